//! Network namespaces for one test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub struct Namespace(String);

impl Namespace {
    /// Makes one.
    pub fn new(name: &str) -> Self {
        let name = format!("sf-{name}-{}", std::process::id());
        let namespace = Self(name);
        run(Command::new("ip").args(["netns", "add", &namespace.0]));
        namespace.ip("link set lo up");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &str) {
        run(Command::new("ip").args(["-n", &self.0]).args(arguments.split(' ')));
    }

    /// Runs a program inside, and gives what it prints.
    pub fn run(&self, words: &[&str]) -> String {
        run(Command::new("ip").args(["netns", "exec", &self.0]).args(words))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A capture of what passes an interface.
pub struct Capture {
    process: Child,
    file: PathBuf,
}

impl Capture {
    /// Starts tcpdump; `None` if it is not installed.
    pub fn start(namespace: &Namespace, interface: &str) -> Option<Self> {
        Command::new("tcpdump").arg("--version").output().ok()?;
        let file = std::env::temp_dir().join(format!("{}.pcap", namespace.name()));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), "tcpdump", "-i", interface, "-U", "-B", "16384", "-w"]);
        command.arg(&file).args(["udp", "dst", "port", "4791"]).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // It says "listening on" when it does.
        let mut line = String::new();
        let mut errors = BufReader::new(process.stderr.take().unwrap());
        while !line.contains("listening on") {
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0, "tcpdump ended");
        }
        std::thread::spawn(move || errors.lines().for_each(drop));
        Some(Self { process, file })
    }

    /// Ends it and gives the file.
    pub fn finish(mut self) -> Vec<u8> {
        std::thread::sleep(std::time::Duration::from_millis(500));
        // SAFETY: plain system call; the process is our child and not waited for yet.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGINT) };
        self.process.wait().unwrap();
        let bytes = std::fs::read(&self.file).unwrap();
        let _ = std::fs::remove_file(&self.file);
        bytes
    }
}
