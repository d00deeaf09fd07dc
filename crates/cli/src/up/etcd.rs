//! An etcd of `sfab up`'s own: a process of it on free ports of the loopback, its data in the temporary folder.

use super::crew::{Crew, Start};
use crate::failure::{During, Failure};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take until it listens.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is started at most.
const ATTEMPTS: u32 = 5;

/// Says what is missing, before anything is started.
pub fn check() -> Result<(), Failure> {
    let installed = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if installed.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(Failure::usage(
        "--store etcd starts an etcd, and there is none: install it (package etcd-server), or leave --store out",
    ))
}

/// Starts it; its address.
pub fn start(crew: &mut Crew, folder: &Path) -> Result<String, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let mut attempt = 1;
    loop {
        let (client, place) = attempt_at(crew, &folder.join(format!("etcd-{attempt}")))?;
        while TcpStream::connect(client).is_err() && !crew.has_ended(place) {
            if Instant::now() >= deadline {
                return Err(crew.obituary(place));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // Whoever listens there is it only if it lives.
        if !crew.has_ended(place) {
            return Ok(format!("http://{client}"));
        }
        // Between our letting go of a port and its taking it another process may have taken it: with others then.
        if attempt == ATTEMPTS {
            return Err(crew.obituary(place));
        }
        crew.replace(place);
        attempt += 1;
    }
}

/// Starts one on ports that are free at this moment; its address and its place.
fn attempt_at(crew: &mut Crew, data: &Path) -> Result<(SocketAddr, usize), Failure> {
    // Both are held until both are known, so that they differ.
    let free = || TcpListener::bind(("127.0.0.1", 0)).during(|| "find a free port for etcd");
    let (one, two) = (free()?, free()?);
    let address = |listener: &TcpListener| listener.local_addr().during(|| "the address of a free port");
    let (client, peer): (SocketAddr, SocketAddr) = (address(&one)?, address(&two)?);
    drop((one, two));
    let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
    let data = data.display().to_string();
    let cluster = format!("up={peer_url}");
    let arguments = [
        ["--data-dir", &data],
        ["--name", "up"],
        ["--listen-client-urls", &client_url],
        ["--advertise-client-urls", &client_url],
        ["--listen-peer-urls", &peer_url],
        ["--initial-advertise-peer-urls", &peer_url],
        ["--initial-cluster", &cluster],
        ["--log-level", "error"],
    ];
    let place = crew.start(Start {
        who: "etcd".into(),
        namespace: None,
        nic: None,
        program: Some("etcd".into()),
        arguments: arguments.concat().into_iter().map(Into::into).collect(),
    })?;
    Ok((client, place))
}
