//! The other yardstick: TCP as iperf3 drives it: blocking, 128 KiB at a time, one connection.

use crate::failure::{During, Failure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// What iperf3 writes at a time.
const BLOCK: usize = 128 << 10;

/// Takes one connection and throws away what comes, until the end of it; then says how much it was.
pub fn sink(listener: &TcpListener) -> Result<(), Failure> {
    let (mut stream, _) = listener.accept().during(|| "accept a TCP connection")?;
    let mut buffer = vec![0; BLOCK];
    let mut received = 0u64;
    loop {
        match stream.read(&mut buffer).during(|| "read from a TCP connection")? {
            0 => break,
            count => received += count as u64,
        }
    }
    stream.write_all(&received.to_le_bytes()).during(|| "answer on a TCP connection")
}

/// Sends for `duration`; gives bytes that arrived and the time until the last of them had.
pub fn stream(to: SocketAddr, duration: Duration) -> Result<(u64, Duration), Failure> {
    let mut stream = TcpStream::connect(to).during(|| "connect by TCP")?;
    let bytes = vec![0x5a; BLOCK];
    let begin = Instant::now();
    while begin.elapsed() < duration {
        stream.write_all(&bytes).during(|| "write to a TCP connection")?;
    }
    stream.shutdown(std::net::Shutdown::Write).during(|| "end a TCP connection")?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).during(|| "read the count of a TCP connection")?;
    Ok((u64::from_le_bytes(answer), begin.elapsed()))
}
