//! An etcd of the test's own: a child on free ports with its data in a folder of the test, ended with it.

use super::Folder;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
        let folder = Folder::new();
        // Both are held until both are known, so that they differ.
        let free = || TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let (one, two) = (free(), free());
        let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
        let (port, peer_port) = (port(&one), port(&two));
        drop((one, two));
        let child = spawn(&folder, port, peer_port);
        let mut server = Self { child, port, peer_port, folder };
        server.wait();
        Some(server)
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

    /// Starts it again with the data that it had.
    pub fn revive(&mut self) {
        self.child = spawn(&self.folder, self.port, self.peer_port);
        self.wait();
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(self.child.try_wait().is_ok_and(|ended| ended.is_none()), "etcd has ended");
            assert!(Instant::now() < deadline, "etcd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
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
