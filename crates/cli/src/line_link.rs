//! The TCP connection by which two processes of `sfab` agree on what comes: one JSON value a line, both ways. RDMA itself has no way to
//! find a peer; this is the usual one. It never blocks for ever: each wait polls, so that whoever waits can also drive its queue pairs.

use crate::failure::{During, Failure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What is said in one exchange.
pub trait Line: Serialize + DeserializeOwned {
    /// The program that speaks it, for messages.
    const PROGRAM: &'static str;
    /// Bytes of a line: a longer one is not ours.
    const LONGEST: usize;

    /// What it says, if it says that one side cannot go on.
    fn trouble(&self) -> Option<&str>;
}

/// A connection that carries lines of one kind.
pub struct LineLink<L> {
    stream: TcpStream,
    received: Vec<u8>,
    peer: String,
    lines: PhantomData<fn() -> L>,
}

impl<L: Line> LineLink<L> {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> Result<Self, Failure> {
        let peer = stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |address| address.to_string());
        stream.set_nodelay(true).during(|| "set TCP_NODELAY")?;
        stream.set_nonblocking(true).during(|| "make the exchange non-blocking")?;
        Ok(Self { stream, received: Vec::new(), peer, lines: PhantomData })
    }

    /// The other end's address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The stream, to look at its addresses and to wait for it.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a line.
    pub fn send(&mut self, message: &L) -> Result<(), Failure> {
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
    pub fn try_receive(&mut self) -> Result<Option<L>, Failure> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return self.read_line(&line).map(Some);
            }
            if self.received.len() > L::LONGEST {
                let (peer, program) = (&self.peer, L::PROGRAM);
                return Err(Failure::failed(format!("{peer} sends a line without end: it is no `{program}`")));
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

    fn read_line(&self, line: &[u8]) -> Result<L, Failure> {
        let message: L = serde_json::from_slice(line).map_err(|error| {
            let (peer, program) = (&self.peer, L::PROGRAM);
            Failure::failed(format!(
                "{peer} sent a line that is not part of the exchange ({error}): is it `{program}` of this version?"
            ))
        })?;
        match message.trouble() {
            Some(what) => Err(Failure::failed(format!("the other process failed: {what}"))),
            None => Ok(message),
        }
    }

    /// Waits for the next line.
    pub fn receive(&mut self, timeout: Duration, waiting_for: &str) -> Result<L, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::net::TcpListener;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        Ready,
        Go,
        Trouble(String),
    }

    impl Line for Word {
        const PROGRAM: &'static str = "sfab test";
        const LONGEST: usize = 1024;

        fn trouble(&self) -> Option<&str> {
            if let Self::Trouble(what) = self { Some(what) } else { None }
        }
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    fn pair() -> (LineLink<Word>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (LineLink::new(listener.accept().unwrap().0).unwrap(), far)
    }

    #[test]
    fn lines_arrive_in_order_however_they_are_cut() {
        let (mut link, mut far) = pair();
        far.write_all(b"\"ready\"\n\"g").unwrap();
        assert_eq!(link.receive(PATIENCE, "ready").unwrap(), Word::Ready);
        assert!(matches!(link.try_receive(), Ok(None)));
        far.write_all(b"o\"\n").unwrap();
        assert_eq!(link.receive(PATIENCE, "go").unwrap(), Word::Go);
    }

    #[test]
    fn a_stranger_and_a_closed_connection_are_told_apart() {
        let (mut link, mut far) = pair();
        far.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let error = link.receive(PATIENCE, "hello").unwrap_err().to_string();
        assert!(error.contains("not part of the exchange") && error.contains("sfab test"), "{error}");
        drop(far);
        let error = link.receive(PATIENCE, "hello").unwrap_err().to_string();
        assert!(error.contains("lost the other process"), "{error}");
    }

    #[test]
    fn a_line_without_end_is_refused_and_one_of_trouble_is_told() {
        let (mut link, mut far) = pair();
        far.write_all(b"{\"trouble\":\"no memory\"}\n").unwrap();
        let error = link.receive(PATIENCE, "ready").unwrap_err().to_string();
        assert!(error.contains("no memory"), "{error}");
        far.write_all(&[b'x'; 8192]).unwrap();
        let error = link.receive(PATIENCE, "ready").unwrap_err().to_string();
        assert!(error.contains("without end"), "{error}");
    }
}
