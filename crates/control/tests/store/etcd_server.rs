//! An etcd of the test's own: a child on free ports with its data in a folder of the test, ended with it.

use super::Folder;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long etcd may take to come up. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The child.
pub struct Server {
    child: Child,
    port: u16,
    peer_port: u16,
    folder: Folder,
}

impl Server {
    /// Starts it. `None`, and says so, if etcd is not installed.
    pub fn start() -> Option<Self> {
        let installed = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if installed.is_err() {
            println!("skipped: `etcd` is not installed; install the package etcd-server");
            return None;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Both are held until both are known, so that they differ.
            let free = || TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
            let (one, two) = (free(), free());
            let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
            let (port, peer_port) = (port(&one), port(&two));
            drop((one, two));
            let folder = Folder::new();
            let child = spawn(&folder, port, peer_port);
            let mut server = Self { child, port, peer_port, folder };
            if server.comes_up(deadline) {
                return Some(server);
            }
            // Between our letting go of a port and etcd's taking it another process may have taken it: with others then.
        }
    }

    /// Where it is.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again with the data that it had, at the same place: until its ports are free again, if another has them.
    pub fn revive(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.child = spawn(&self.folder, self.port, self.peer_port);
            if self.comes_up(deadline) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until it is well; false if it has ended.
    fn comes_up(&mut self, deadline: Instant) -> bool {
        loop {
            assert!(Instant::now() < deadline, "etcd does not come up within {PATIENCE:?}");
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            if is_well(self.port) {
                // Whoever answered is the child only if it lives: one whose port is another's ends at once.
                return self.child.try_wait().is_ok_and(|ended| ended.is_none());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether an etcd with a leader answers there.
fn is_well(port: u16) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn spawn(folder: &Folder, port: u16, peer_port: u16) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.file("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--name", "test", "--initial-cluster", &format!("test={peer}")])
        // The shortest lease is one and a half elections.
        .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd was there a moment ago")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
