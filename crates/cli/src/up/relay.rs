//! A way from inside a network namespace to control, which listens on the loopback outside: a TCP listener inside, a Unix socket, which knows no namespaces, and a
//! TCP connection outside. It copies bytes and understands none of them.

use crate::failure::{During, Failure};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Inside: what comes by TCP goes to the socket. Runs for ever.
pub fn into_socket(listen: SocketAddr, socket: &Path) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen).during(|| format!("listen on {listen}"))?;
    loop {
        let (near, _) = listener.accept().during(|| "accept")?;
        // Whoever cannot be reached now is tried again by whoever wants him.
        let Ok(far) = UnixStream::connect(socket) else { continue };
        let clones = (near.try_clone(), far.try_clone());
        if let (Ok(near_too), Ok(far_too)) = clones {
            std::thread::spawn(move || copy(near, far, |far| far.shutdown(Shutdown::Write)));
            std::thread::spawn(move || copy(far_too, near_too, |near| near.shutdown(Shutdown::Write)));
        }
    }
}

/// Outside: what comes by the socket goes to an address, from a thread of its own.
pub fn from_socket(socket: &Path, to: SocketAddr) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket).during(|| format!("make the socket {}", socket.display()))?;
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(to) else { continue };
            let _ = far.set_nodelay(true);
            let clones = (near.try_clone(), far.try_clone());
            if let (Ok(near_too), Ok(far_too)) = clones {
                std::thread::spawn(move || copy(near, far, |far| far.shutdown(Shutdown::Write)));
                std::thread::spawn(move || copy(far_too, near_too, |near| near.shutdown(Shutdown::Write)));
            }
        }
    });
    Ok(())
}

/// Copies until the end of what is read, and passes the end on.
fn copy<W: Write>(mut from: impl Read, mut to: W, end: impl Fn(&W) -> std::io::Result<()>) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = end(&to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_their_end_come_through_both_halves() {
        let socket = std::env::temp_dir().join(format!("sfab-relay-{}.sock", std::process::id()));
        let far = TcpListener::bind("127.0.0.1:0").expect("a port");
        from_socket(&socket, far.local_addr().expect("an address")).expect("outside");
        // A port that was free a moment ago.
        let inside = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port");
        let path = socket.clone();
        std::thread::spawn(move || into_socket(inside, &path));
        let mut near = loop {
            match TcpStream::connect(inside) {
                Ok(near) => break near,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        };
        near.write_all(b"there").expect("write");
        near.shutdown(Shutdown::Write).expect("end");
        let (mut end, _) = far.accept().expect("it comes");
        let mut text = String::new();
        end.read_to_string(&mut text).expect("read");
        end.write_all(b"and back").expect("write");
        drop(end);
        assert_eq!(text, "there");
        let mut back = String::new();
        near.read_to_string(&mut back).expect("read");
        assert_eq!(back, "and back");
        std::fs::remove_file(&socket).expect("removed");
    }
}
