//! The side of a test: devices, and children that are asked one line at a time.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::namespace::Namespace;

/// Environment variable that makes this binary a child.
pub const CHILD: &str = "SCALEFABRIC_TEST_CHILD";

pub fn is_root() -> bool {
    // SAFETY: plain system call that cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A device and the configuration that makes it.
pub struct Device {
    name: String,
    address: String,
    folder: PathBuf,
}

impl Device {
    /// A device of its own on a loopback address of its own: tests of several checkouts may run side by side.
    pub fn new(name: &str, last: u8) -> Self {
        let pid = std::process::id();
        let mut device = Self::automatic(&format!("{name}-{pid}"));
        device.address = format!("127.{}.{}.{last}", 64 + (pid >> 8 & 0x3f), pid & 0xff);
        let text = format!(
            "receive_buffer = 4194304\n[[device]]\nname = \"{}\"\n[[device.port]]\ninterface = \"lo\"\n\
             addresses = [\"{}\"]\n",
            device.name, device.address
        );
        std::fs::write(device.folder.join("config.toml"), text).unwrap();
        device
    }

    /// A device that appears by itself.
    pub fn automatic(name: &str) -> Self {
        Self::configured(name, "")
    }

    /// The same, with a configuration.
    pub fn configured(name: &str, config: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("scalefabric-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.toml"), config).unwrap();
        // Another user may not be able to reach the place where this binary was built.
        std::fs::copy(std::env::current_exe().unwrap(), folder.join("child")).unwrap();
        Self { name: name.into(), address: String::new(), folder }
    }

    /// Its configuration.
    pub fn config(&self) -> String {
        std::fs::read_to_string(self.folder.join("config.toml")).unwrap()
    }

    /// The address that [`Device::new`] chose.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A child process; ends with its handle.
pub struct Child {
    process: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Child {
    pub fn start(device: &Device) -> Self {
        Self::start_with(device, |_| {})
    }

    pub fn start_with(device: &Device, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(device.folder.join("child"));
        change(&mut command);
        Self::spawn(command, device)
    }

    pub fn start_in(namespace: &Namespace, device: &Device) -> Self {
        Self::start_by(&["ip", "netns", "exec", namespace.name()], device)
    }

    /// Starts it by way of another program.
    pub fn start_by(words: &[&str], device: &Device) -> Self {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(device.folder.join("child"));
        Self::spawn(command, device)
    }

    fn spawn(mut command: Command, device: &Device) -> Self {
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, &device.name).env("SCALEFABRIC_CONFIG", device.folder.join("config.toml"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A test beside this one may fork while its own copy of the program is open for writing: then it is busy a moment.
        let mut process = loop {
            match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, answers }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Tells a line and waits for its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// The answer to what was told.
    pub fn answer(&mut self) -> String {
        loop {
            let mut answer = String::new();
            assert!(self.answers.read_line(&mut answer).unwrap() > 0, "the child ended before it answered");
            // The test harness prints, too, and without an end of line before the first answer.
            if let Some((_, answer)) = answer.split_once('@') {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Stops it, and returns when it stands.
    pub fn stop(&self) {
        let pid = self.process.id() as i32;
        // SAFETY: plain system calls on our own child.
        unsafe {
            libc::kill(pid, libc::SIGSTOP);
            libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED);
        }
    }

    pub fn resume(&self) {
        // SAFETY: plain system call on our own child.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGCONT) };
    }

    /// Waits for its own end; whether it ended well.
    pub fn ends_well(mut self) -> bool {
        self.process.wait().unwrap().success()
    }

    /// Lets it end by itself: there is nothing more to be told.
    pub fn leave(mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }

    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
