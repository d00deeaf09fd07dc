//! Two network namespaces joined by a veth pair: two hosts on one machine. They are made with `ip` and removed on any way
//! out of the demo; what a killed demo left behind is removed by the next one.

use crate::failure::{During, Failure};
use std::process::{Command, Stdio};

/// Prefix of our namespaces' names; the process ID of the demo follows.
const PREFIX: &str = "sfab-demo-";

/// Addresses of the two sides, from the documentation block of RFC 5737: they can clash with nobody's network.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// Two namespaces; dropping them removes them.
pub struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// Makes them, with the MTU of the link between them.
    pub fn new(mtu: u32) -> Result<Self, Failure> {
        if !is_root() {
            return Err(Failure::usage(
                "--netns makes network namespaces, which needs root: run it with sudo, or leave --netns out",
            ));
        }
        remove_orphans();
        let process = std::process::id();
        let made = Self { names: [format!("{PREFIX}{process}-a"), format!("{PREFIX}{process}-b")] };
        made.build(mtu).map_err(|failure| failure.during("make two network namespaces"))?;
        Ok(made)
    }

    fn build(&self, mtu: u32) -> Result<(), Failure> {
        let [a, b] = &self.names;
        let mtu = mtu.to_string();
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "sfab0", "mtu", &mtu, "type", "veth", "peer", "name", "sfab0", "netns", b])?;
        for (name, address) in self.names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "link", "set", "sfab0", "mtu", &mtu])?;
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "sfab0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "sfab0", "up"])?;
        }
        Ok(())
    }

    /// Name of side 0 or 1.
    pub fn name(&self, side: usize) -> &str {
        &self.names[side]
    }

    /// Address of side 0 or 1.
    pub const fn address(side: usize) -> &'static str {
        ADDRESSES[side]
    }

    /// The network interface in each.
    pub const INTERFACE: &'static str = "sfab0";
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            remove(name);
        }
    }
}

fn remove(name: &str) {
    let _ = Command::new("ip").args(["netns", "delete", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Removes namespaces of demos whose process is gone.
fn remove_orphans() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|id| !std::path::Path::new("/proc").join(id).exists()) {
            remove(&name);
        }
    }
}

/// Runs `ip`; what it says when it fails is in the error.
pub fn ip(arguments: &[&str]) -> Result<(), Failure> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .during(|| "start `ip` (package iproute2), which makes network namespaces")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::failed(format!("`ip {}` failed: {said}", arguments.join(" "))))
}

/// True if this process may make namespaces.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}
