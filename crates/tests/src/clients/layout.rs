//! Where a case runs. `lo`: two processes on the loopback's device, in a network namespace of their own. `veth`: two
//! namespaces joined by a pair of Ethernet interfaces. Both need root; without root `lo` uses the machine's own loopback
//! and `veth` is skipped.

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which layout.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Two processes on one device.
    Lo,
    /// Two network namespaces.
    Veth,
}

impl Kind {
    /// Both.
    pub fn all() -> Vec<Self> {
        vec![Self::Lo, Self::Veth]
    }

    /// Its word in names of cases.
    pub fn word(self) -> &'static str {
        match self {
            Self::Lo => "lo",
            Self::Veth => "veth",
        }
    }
}

/// A place that is there: namespaces are deleted when it is dropped.
#[derive(Debug)]
pub struct Place {
    kind: Kind,
    /// Namespaces of the server and of the client; the same one for `lo`, none without root.
    namespaces: Vec<String>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Place {
    /// Makes one; `mtu` is that of the cable.
    pub fn new(kind: Kind, mtu: &str) -> Result<Self, String> {
        if !is_root() {
            return match kind {
                Kind::Lo => Ok(Self { kind, namespaces: Vec::new() }),
                Kind::Veth => Err("skipped: network namespaces need root".to_owned()),
            };
        }
        let name = format!("sfc-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let namespaces = match kind {
            Kind::Lo => vec![name],
            Kind::Veth => vec![format!("{name}a"), format!("{name}b")],
        };
        let place = Self { kind, namespaces };
        for namespace in &place.namespaces {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        if let [a, b] = &place.namespaces[..] {
            // Fixed addresses, none of them by itself: a GID table is the same each time.
            let cable = ["-n", a, "link", "add", "eth0", "mtu", mtu, "type", "veth"];
            ip(&[&cable[..], &["peer", "name", "eth0", "mtu", mtu, "netns", b]].concat())?;
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            for (namespace, number) in [(a, 1), (b, 2)] {
                // The name of the machine leads to the cable, and so does `localhost`: whoever gives libfabric no address
                // gets the device that has this one, and it leaves the loopback's out.
                let hosts = format!("10.7.0.{number} localhost {host}\n");
                let folder = own_files(namespace);
                let written =
                    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("hosts"), hosts));
                written.map_err(|error| format!("{}: {error}", folder.display()))?;
                ip(&["-n", namespace, "link", "set", "eth0", "addrgenmode", "none"])?;
                ip(&["-n", namespace, "link", "set", "eth0", "up"])?;
                ip(&["-n", namespace, "addr", "add", &format!("10.7.0.{number}/24"), "dev", "eth0"])?;
                ip(&["-n", namespace, "-6", "addr", "add", &format!("fd07::{number}/64"), "dev", "eth0", "nodad"])?;
            }
        }
        Ok(place)
    }

    /// The shell command line that runs what follows on the server's side.
    pub fn on_server(&self) -> String {
        self.namespaces.first().map_or_else(String::new, |name| format!("ip netns exec {name} "))
    }

    /// The same on the client's side.
    pub fn on_client(&self) -> String {
        self.namespaces.last().map_or_else(String::new, |name| format!("ip netns exec {name} "))
    }

    /// What the placeholders that depend on the place stand for.
    pub fn words(&self) -> Vec<(&'static str, &'static str)> {
        match self.kind {
            Kind::Lo => vec![
                ("server", "127.0.0.1"),
                ("client", "127.0.0.1"),
                ("server6", "::1"),
                ("client6", "::1"),
                ("dev", "sflo"),
                ("netdev", "lo"),
                ("gid", "0"),
                ("gid6", "1"),
            ],
            Kind::Veth => vec![
                ("server", "10.7.0.1"),
                ("client", "10.7.0.2"),
                ("server6", "fd07::1"),
                ("client6", "fd07::2"),
                ("dev", "sf0"),
                ("netdev", "eth0"),
                ("gid", "0"),
                ("gid6", "1"),
            ],
        }
    }
}

/// Deletes the namespaces that a run left that was ended from outside.
pub fn sweep() {
    let Ok(output) = Command::new("ip").args(["netns", "list"]).output() else { return };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let Some(process) = name.strip_prefix("sfc-").and_then(|rest| rest.split('-').next()) else { continue };
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            delete(name);
        }
    }
}

/// The folder whose files `ip netns exec` puts over those of /etc.
fn own_files(namespace: &str) -> PathBuf {
    Path::new("/etc/netns").join(namespace)
}

fn delete(namespace: &str) {
    let _ = ip(&["netns", "del", namespace]);
    let _ = std::fs::remove_dir_all(own_files(namespace));
}

impl Drop for Place {
    fn drop(&mut self) {
        self.namespaces.iter().for_each(|namespace| delete(namespace));
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("`ip`: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {}", arguments.join(" "), said.trim())) }
}

/// True if we may make network namespaces.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}
