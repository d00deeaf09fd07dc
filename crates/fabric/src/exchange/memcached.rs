//! The exchange through memcached, for fabrics that have one and no way for TCP between all peers. A small client of the text protocol, and the mailbox over
//! it: keys `sfab/…`, polled with back-off. memcached may forget anything at any time; then the channel ends and says so. It has no encryption: beyond
//! the host it must be allowed, or sealed ([`super::Sealed`]).

use super::handshake::explain;
use super::mailbox::{self, Open, Store, Terms};
use super::tcp::{connect, within};
use super::{Channel, Exchange, Listener, Patience, Pending, place};
use crate::error::FabricError;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// How long a message waits to be taken, seconds. A receiver that looks after it finds the message lost.
const MESSAGE_TTL_S: u64 = 600;
/// Life of the counter of calls, seconds; the listener makes it anew.
const CALLS_TTL_S: u64 = 24 * 60 * 60;
/// How long a caller that has a number may take to say who it is.
const CALL_WAIT: Duration = Duration::from_secs(10);
/// Calls looked for at once; their keys fit into one line.
const CALLS_AT_ONCE: usize = 24;
/// Longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Longest line of an answer that we read.
const MAX_LINE: u64 = 1024;

/// memcached. Addresses are `host:port/service`; all peers use the same server.
#[derive(Clone, Debug)]
pub struct Memcached {
    terms: Terms,
    insecure: bool,
}

impl Memcached {
    /// `name` is what peers see; nothing proves it.
    pub fn new(name: impl Into<String>) -> Self {
        let terms = Terms { name: name.into(), local: true, patience: Patience::default() };
        Self { terms, insecure: false }
    }

    /// With another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.terms.patience = patience;
        self
    }

    /// Allows a server on another host: everybody who reaches it, or the network on the way, can read and write messages. Harmless below
    /// [`super::Sealed`], which hides and proves them.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    async fn terms(&self, server: &str) -> Result<Terms, FabricError> {
        let local = place::resolve(server).await?.iter().all(|address| place::is_loopback(address.ip()));
        if !local && !self.insecure {
            return Err(FabricError::misuse(format!(
                "memcached://{server} is on another host and hides nothing, and messages carry keys: seal the exchange (Sealed over Memcached::insecure()), \
                 or use tls://"
            )));
        }
        Ok(Terms { local, ..self.terms.clone() })
    }
}

impl Exchange for Memcached {
    fn scheme(&self) -> &'static str {
        "memcached"
    }

    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let (server, service) = mailbox::split(address)?;
            let terms = self.terms(server).await?;
            mailbox::listen(Server::new(server, &terms), server, service, terms).await
        })
    }

    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        Box::pin(async move {
            let (server, service) = mailbox::split(address)?;
            let terms = self.terms(server).await?;
            within(terms.patience.dial, address, mailbox::dial(Server::new(server, &terms), service, terms)).await
        })
    }
}

#[derive(Clone)]
struct Server {
    address: String,
    patience: Patience,
}

impl Server {
    fn new(address: &str, terms: &Terms) -> Self {
        Self { address: address.to_owned(), patience: terms.patience }
    }
}

impl Open for Server {
    type Store = Client;

    async fn open(&self) -> Result<Client, FabricError> {
        let called = self.called();
        let addresses = place::resolve(&self.address).await?;
        let stream = connect(&addresses, self.patience).await.map_err(|error| error.during(&called))?;
        Ok(Client {
            stream: BufReader::new(stream),
            called,
            patience: self.patience,
            next_call: 1,
            waited_for: Vec::new(),
        })
    }

    fn called(&self) -> String {
        format!("memcached at {}", self.address)
    }
}

/// A connection to a server.
struct Client {
    stream: BufReader<TcpStream>,
    called: String,
    patience: Patience,
    /// The first number of a call that is not yet waited for.
    next_call: u64,
    /// Numbers that callers have taken without saying yet who they are, and since when.
    waited_for: Vec<(u64, Instant)>,
}

fn set(request: &mut Vec<u8>, verb: &str, key: &str, ttl_s: u64, value: &[u8]) {
    request.extend_from_slice(format!("{verb} {key} 0 {ttl_s} {}\r\n", value.len()).as_bytes());
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
}

impl Client {
    /// Life of a state or claim, seconds.
    fn state_ttl_s(&self) -> u64 {
        self.patience.silence.as_secs().max(3) + 1
    }

    /// Sends requests and reads one line for each.
    async fn ask(&mut self, request: &[u8], lines: usize) -> Result<Vec<String>, FabricError> {
        let (limit, called) = (self.patience.send, self.called.clone());
        within(limit, &called, async {
            self.stream.write_all(request).await.map_err(|error| explain(&called, "a request", &error))?;
            let mut answers = Vec::with_capacity(lines);
            for _ in 0..lines {
                answers.push(self.line().await?);
            }
            Ok(answers)
        })
        .await
    }

    async fn line(&mut self) -> Result<String, FabricError> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line).await;
        read.map_err(|error| explain(&self.called, "an answer", &error))?;
        if line.is_empty() {
            return Err(FabricError::unreachable(format!("{} has hung up: is it running? Dial again", self.called)));
        }
        let Some(text) = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok()) else {
            return Err(FabricError::peer(format!(
                "{} does not speak memcached's text protocol: check the port",
                self.called
            )));
        };
        if text.starts_with("SERVER_ERROR") || text.starts_with("CLIENT_ERROR") || text == "ERROR" {
            return Err(FabricError::unreachable(format!(
                "{} refuses ({text}): give it more memory or larger items (-m, -I), and dial again",
                self.called
            )));
        }
        Ok(text.to_owned())
    }

    fn unexpected(&self, answer: &str) -> FabricError {
        FabricError::peer(format!(
            "{} answers `{answer}`, which is not memcached's text protocol: check the port",
            self.called
        ))
    }

    async fn stored(&mut self, request: &[u8], count: usize) -> Result<(), FabricError> {
        for answer in self.ask(request, count).await? {
            if answer != "STORED" {
                return Err(self.unexpected(&answer));
            }
        }
        Ok(())
    }

    async fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, FabricError> {
        let (limit, called) = (self.patience.send, self.called.clone());
        within(limit, &called, async {
            let request = format!("get {}\r\n", keys.join(" "));
            self.stream.write_all(request.as_bytes()).await.map_err(|error| explain(&called, "a request", &error))?;
            let mut values = vec![None; keys.len()];
            loop {
                let line = self.line().await?;
                if line == "END" {
                    return Ok(values);
                }
                let mut words = line.split(' ');
                let header = (
                    words.next(),
                    words.next(),
                    words.next(),
                    words.next().and_then(|length| length.parse::<usize>().ok()),
                );
                let (Some("VALUE"), Some(key), Some(_), Some(length @ ..=0x10_0000)) = header else {
                    return Err(self.unexpected(&line));
                };
                let mut value = vec![0; length + 2];
                self.stream.read_exact(&mut value).await.map_err(|error| explain(&called, "an answer", &error))?;
                value.truncate(length);
                if let Some(index) = keys.iter().position(|asked| asked == key) {
                    values[index] = Some(value);
                }
            }
        })
        .await
    }
}

impl Store for Client {
    const FORGETS: bool = true;

    async fn claim(&mut self, key: &str, value: &[u8]) -> Result<bool, FabricError> {
        let mut request = Vec::new();
        set(&mut request, "add", key, self.state_ttl_s(), value);
        match self.ask(&request, 1).await?[0].as_str() {
            "STORED" => Ok(true),
            "NOT_STORED" => Ok(false),
            other => Err(self.unexpected(other)),
        }
    }

    async fn put(&mut self, items: &[(String, Vec<u8>)]) -> Result<(), FabricError> {
        let mut request = Vec::new();
        for (key, value) in items {
            let ttl_s = if key.ends_with("/state") { self.state_ttl_s() } else { MESSAGE_TTL_S };
            set(&mut request, "set", key, ttl_s, value);
        }
        self.stored(&request, items.len()).await
    }

    async fn renew(&mut self, key: &str, value: &[u8]) -> Result<(), FabricError> {
        if !key.ends_with("/listener") {
            let mut request = Vec::new();
            set(&mut request, "set", key, self.state_ttl_s(), value);
            return self.stored(&request, 1).await;
        }
        // A claim that was forgotten may be another's by now.
        if !self.claim(key, value).await? {
            if self.values(&[key.to_owned()]).await?[0].as_deref().is_some_and(|now| now != value) {
                return Err(FabricError::unreachable(format!(
                    "{} had forgotten that we listen, and another has taken the service: stop one of the two",
                    self.called
                )));
            }
            let touch = format!("touch {key} {}\r\n", self.state_ttl_s());
            self.ask(touch.as_bytes(), 1).await?;
        }
        Ok(())
    }

    async fn get(&mut self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, FabricError> {
        self.values(keys).await
    }

    async fn delete(&mut self, keys: &[String]) -> Result<(), FabricError> {
        let request: String = keys.iter().map(|key| format!("delete {key}\r\n")).collect();
        self.ask(request.as_bytes(), keys.len()).await.map(drop)
    }

    async fn open_calls(&mut self, calls: &str) -> Result<(), FabricError> {
        let mut request = Vec::new();
        let last = self.next_call - 1;
        set(&mut request, "add", &format!("{calls}/last"), CALLS_TTL_S, last.to_string().as_bytes());
        self.ask(&request, 1).await.map(drop)
    }

    async fn call(&mut self, calls: &str, id: &str) -> Result<(), FabricError> {
        let answer = self.ask(format!("incr {calls}/last 1\r\n").as_bytes(), 1).await?.remove(0);
        if answer == "NOT_FOUND" {
            return Err(FabricError::unreachable(format!(
                "{} has forgotten the listener's box of calls: dial again",
                self.called
            )));
        }
        let number: u64 = answer.trim().parse().map_err(|_| self.unexpected(&answer))?;
        let mut request = Vec::new();
        set(&mut request, "set", &format!("{calls}/{number}"), MESSAGE_TTL_S, id.as_bytes());
        self.stored(&request, 1).await
    }

    async fn take_calls(&mut self, calls: &str) -> Result<Vec<String>, FabricError> {
        match self.values(&[format!("{calls}/last")]).await?.remove(0) {
            Some(last) => {
                let last = String::from_utf8_lossy(&last);
                let last: u64 = last.trim().parse().map_err(|_| self.unexpected(&last))?;
                // One at a time is enough to notice, and a counter that somebody has spoilt does no harm.
                while self.next_call <= last && self.waited_for.len() < 4 * CALLS_AT_ONCE {
                    self.waited_for.push((self.next_call, Instant::now()));
                    self.next_call += 1;
                }
            }
            None => self.open_calls(calls).await?,
        }
        if self.waited_for.is_empty() {
            return Ok(Vec::new());
        }
        let asked: Vec<u64> = self.waited_for.iter().take(CALLS_AT_ONCE).map(|(number, _)| *number).collect();
        let keys: Vec<String> = asked.iter().map(|number| format!("{calls}/{number}")).collect();
        let values = self.values(&keys).await?;
        let mut came = Vec::new();
        for (number, value) in asked.into_iter().zip(values) {
            if let Some(id) = value {
                self.waited_for.retain(|(waiting, _)| *waiting != number);
                self.delete(&[format!("{calls}/{number}")]).await?;
                came.push(String::from_utf8_lossy(&id).into_owned());
            }
        }
        self.waited_for.retain(|(_, since)| since.elapsed() < CALL_WAIT);
        Ok(came)
    }

    async fn watch(&mut self, _prefix: &str) -> Result<(), FabricError> {
        Ok(())
    }

    async fn changed(&mut self, quiet: u32) {
        sleep(Duration::from_millis(1 << quiet.min(6)).min(LONGEST_PAUSE)).await;
    }

    async fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    #[test]
    fn a_server_on_another_host_must_be_allowed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(Memcached::new("node1").listen("192.0.2.7:11211/storage")).unwrap_err();
        assert_eq!(error.fault, Fault::Misuse);
        assert!(error.message.contains("Sealed"), "{error}");
    }
}
