//! What the two processes of a demo tell each other over TCP: who they are, their queue pairs, what comes next, and what
//! arrived. RDMA itself has no way to find a peer; this is the usual one. One JSON object a line.
//!
//! The order is fixed: `Hello` both ways; then for each queue pair `QueuePair` both ways and `Ready` both ways (the second
//! barrier: nobody sends before both are in RTS); then `Step`, `Go`, `Sent`, `Verdict` for each step; at the end `Finish`.

use crate::demo::pattern::Mismatch;
use crate::demo::step::{Step, Transport};
use crate::failure::{During, Failure};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Version of this exchange. Two different ones refuse each other.
pub const VERSION: u32 = 1;

/// A longer line than this is not ours.
const MAX_LINE: usize = 64 * 1024;

/// One line of the exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Version of the exchange, and bytes of memory that each side registers (the initiator decides).
    Hello { version: u32, region_bytes: u64 },
    /// A queue pair to connect to.
    QueuePair(PeerInfo),
    /// The queue pair is in RTS.
    Ready,
    /// What comes next.
    Step(Step),
    /// The target is prepared.
    Go,
    /// The initiator has sent everything.
    Sent,
    /// What the target found.
    Verdict(Verdict),
    /// Nothing more comes.
    Finish,
    /// One side cannot go on.
    Trouble(String),
}

/// All that one needs to know of a peer's queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// RC, UC or UD.
    pub transport: Transport,
    /// Queue pair number.
    pub qpn: u32,
    /// PSN of its first packet.
    pub psn: u32,
    /// GID as text.
    pub gid: String,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Remote key of its region.
    pub rkey: u32,
    /// Address of the first byte of its region.
    pub addr: u64,
    /// Bytes of its region.
    pub length: u64,
}

/// What the target found after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Messages that arrived whole.
    pub arrived: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// The first byte that was wrong.
    pub mismatch: Option<Mismatch>,
}

/// The connection between the two processes. Never blocks for ever: each wait polls, so that whoever waits can also
/// drive its queue pairs.
pub struct Link {
    stream: TcpStream,
    received: Vec<u8>,
    peer: String,
}

impl Link {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> Result<Self, Failure> {
        let peer = stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |address| address.to_string());
        stream.set_nodelay(true).during(|| "set TCP_NODELAY")?;
        stream.set_nonblocking(true).during(|| "make the exchange non-blocking")?;
        Ok(Self { stream, received: Vec::new(), peer })
    }

    /// Sends a line.
    pub fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).during(|| "write a message of the exchange")?;
        line.push(b'\n');
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_micros(50)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.gone(&error.to_string())),
            }
        }
        Ok(())
    }

    /// The next line if it is there.
    pub fn try_receive(&mut self) -> Result<Option<Message>, Failure> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return match serde_json::from_slice(&line) {
                    Ok(Message::Trouble(what)) => Err(Failure::failed(format!("the other process failed: {what}"))),
                    Ok(message) => Ok(Some(message)),
                    Err(error) => Err(Failure::failed(format!(
                        "{} sent a line that is not part of the exchange ({error}): is it `sfab demo` of this version?",
                        self.peer
                    ))),
                };
            }
            if self.received.len() > MAX_LINE {
                return Err(Failure::failed(format!("{} sends a line without end: it is no `sfab demo`", self.peer)));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(self.gone("it closed the connection")),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.gone(&error.to_string())),
            }
        }
    }

    /// Waits for the next line.
    pub fn receive(&mut self, timeout: Duration, waiting_for: &str) -> Result<Message, Failure> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            if Instant::now() > deadline {
                return Err(Failure::failed(format!(
                    "{} did not answer within {} s (waiting for {waiting_for}): is it stopped?",
                    self.peer,
                    timeout.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn gone(&self, why: &str) -> Failure {
        Failure::failed(format!(
            "lost the other process at {} ({why}): was it ended? its own output says more",
            self.peer
        ))
    }
}

/// The message was not the one that had to come.
pub fn unexpected(expected: &str, message: &Message) -> Failure {
    Failure::failed(format!("the exchange is out of step: expected {expected}, got {message:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Link::new(listener.accept().unwrap().0).unwrap(), far)
    }

    #[test]
    fn lines_arrive_in_order_however_they_are_cut() {
        let (mut link, mut far) = pair();
        far.write_all(b"\"ready\"\n\"g").unwrap();
        assert!(matches!(link.receive(Duration::from_secs(5), "ready"), Ok(Message::Ready)));
        assert!(matches!(link.try_receive(), Ok(None)));
        far.write_all(b"o\"\n").unwrap();
        assert!(matches!(link.receive(Duration::from_secs(5), "go"), Ok(Message::Go)));
    }

    #[test]
    fn a_stranger_and_a_closed_connection_are_told_apart() {
        let (mut link, mut far) = pair();
        far.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let error = link.receive(Duration::from_secs(5), "hello").unwrap_err().to_string();
        assert!(error.contains("not part of the exchange"), "{error}");
        drop(far);
        let error = link.receive(Duration::from_secs(5), "hello").unwrap_err().to_string();
        assert!(error.contains("lost the other process"), "{error}");
    }
}
