//! memcached and etcd as child processes on free ports of the loopback, for as long as a test needs them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server; it ends with its handle.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    folder: Option<PathBuf>,
}

impl Server {
    /// `None`, and a line that says so, if the package is not installed.
    pub fn memcached() -> Option<Self> {
        let address = free_port();
        let port = address.port().to_string();
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-U", "0", "-m", "64", "-u", "root", "-p", &port]);
        Self::start(command, address, None, "memcached", "memcached")
    }

    pub fn etcd() -> Option<Self> {
        let (address, peers) = (free_port(), free_port());
        let folder = std::env::temp_dir().join(format!("scalefabric-etcd-{}-{}", std::process::id(), address.port()));
        let (clients, peers) = (format!("http://{address}"), format!("http://{peers}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&folder).args([
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
            "--listen-peer-urls",
            &peers,
            "--initial-advertise-peer-urls",
            &peers,
            "--initial-cluster",
            &format!("default={peers}"),
            "--log-level",
            "fatal",
        ]);
        Self::start(command, address, Some(folder), "etcd", "etcd-server")
    }

    fn start(
        mut command: Command,
        address: SocketAddr,
        folder: Option<PathBuf>,
        program: &str,
        package: &str,
    ) -> Option<Self> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                println!("skipped: {program} does not start ({error}); install the package {package}");
                return None;
            }
        };
        let mut server = Self { child, address, folder };
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                panic!("{program} has ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    /// Ends it, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A port that nobody has now.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}
