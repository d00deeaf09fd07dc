//! The line to the guest's program (`rig/rigstage.c`): one question a line, answered by lines that end with `ok` or `err`.
//! Nothing is decided here. A guest that does not answer ends the play by a panic: there is nothing to compare then.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection, which is one process in the guest with objects of its own.
pub struct Guest {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

/// What the kernel said no with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub i32);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Linux: errno {}", self.0)
    }
}

impl Guest {
    /// Connects.
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let write = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
        write.set_nodelay(true)?;
        write.set_read_timeout(Some(Duration::from_secs(60)))?;
        let read = BufReader::new(write.try_clone()?);
        Ok(Self { write, read })
    }

    /// Asks, and hands every line before the last to `sink`. Returns the numbers behind `ok`, as text.
    pub fn ask_with(&mut self, question: &str, sink: &mut dyn FnMut(&str)) -> Result<String, Refusal> {
        let line = format!("{question}\n");
        self.write.write_all(line.as_bytes()).unwrap_or_else(|error| panic!("the guest is gone: {error}"));
        loop {
            let mut answer = String::new();
            match self.read.read_line(&mut answer) {
                Ok(0) => panic!("the guest's program ended at: {question}"),
                Err(error) => panic!("the guest does not answer '{question}': {error}"),
                Ok(_) => {}
            }
            let answer = answer.trim_end();
            if answer == "ok" {
                return Ok(String::new());
            }
            if let Some(rest) = answer.strip_prefix("ok ") {
                return Ok(rest.to_owned());
            }
            if let Some(errno) = answer.strip_prefix("err ") {
                return Err(Refusal(errno.parse().unwrap_or(22)));
            }
            sink(answer);
        }
    }

    /// Asks.
    pub fn ask(&mut self, question: &str) -> Result<String, Refusal> {
        self.ask_with(question, &mut |_| {})
    }

    /// Asks for numbers.
    pub fn numbers(&mut self, question: &str) -> Result<Vec<u64>, Refusal> {
        Ok(self.ask(question)?.split(' ').filter_map(|word| word.parse().ok()).collect())
    }
}

/// Bytes as the guest's program writes and reads them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// And back.
pub fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).filter_map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()).collect()
}
