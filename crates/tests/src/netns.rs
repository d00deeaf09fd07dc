//! Network namespaces whose only way out leads into the software switch, and processes in them: this test binary again, told what to do line by line. It knows nothing
//! of what they are told. Needs root; what cannot be made here is said, so that a test can be skipped.

use scalefabric_sim::switch::tun::Tun;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// An interface for a namespace, by a name of its own on this machine: `tag` is at most 5 characters. The error says why there can be none here.
pub fn interface(tag: &str) -> Result<Tun, String> {
    // A process's folder belongs to its effective user.
    if std::fs::metadata("/proc/self").map_or(1, |folder| folder.uid()) != 0 {
        return Err("makes network namespaces, which needs root".into());
    }
    Tun::create(&format!("{tag}-{}", std::process::id() % 1_000_000))
        .map_err(|e| format!("no tun interfaces here: {e}"))
}

/// A namespace whose only way out is an interface. It goes with this value.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// With an address in a /24, or in a /64 of IPv6.
    pub fn new(tun: &Tun, address: IpAddr) -> Self {
        let namespace = Self(format!("ns-{}", tun.name()));
        ip(&["netns", "add", &namespace.0]);
        ip(&["link", "set", "dev", tun.name(), "netns", &namespace.0]);
        let length = if address.is_ipv4() { 24 } else { 64 };
        let address = format!("{address}/{length}");
        let mut add = vec!["-n", &namespace.0, "addr", "add", &address, "dev", tun.name()];
        // Nobody else is there who could have the same address.
        add.extend((length == 64).then_some("nodad"));
        ip(&add);
        ip(&["-n", &namespace.0, "link", "set", "dev", tun.name(), "mtu", "1500", "txqueuelen", "10000", "up"]);
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().expect("`ip` of iproute2");
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A process in a namespace: the test `child` of this binary, with a variable set that tells it to serve. What it says to us begins with `@`, since the test harness
/// prints, too. It is to end when its standard input does.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    answers: BufReader<ChildStdout>,
    /// The words that it said first.
    pub hello: Vec<String>,
}

impl Peer {
    /// Starts it and waits for its first line.
    pub fn start(namespace: &Namespace, config: &Path, variable: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace.0]).arg(std::env::current_exe().expect("our own name"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(variable, "1").env("SCALEFABRIC_CONFIG", config).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process in the namespace");
        let answers = BufReader::new(process.stdout.take().expect("it was piped"));
        let mut peer = Self { process, answers, hello: Vec::new() };
        peer.hello = peer.answer().split(' ').map(str::to_owned).collect();
        peer
    }

    /// Tells it something.
    pub fn say(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("it was piped");
        writeln!(input, "{line}").expect("the process in the namespace listens");
    }

    /// Tells it something, and waits for what it says to it.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.answer()
    }

    /// Waits for its next line.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.answers.read_line(&mut line).expect("lines of text");
            assert!(length > 0, "the process in the namespace has ended");
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().into();
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
