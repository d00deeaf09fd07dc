//! Waiting with an eye on the exchange: whoever polls queue pairs also notices that the other end has gone, has failed, or has said what comes next.

use crate::failure::Failure;
use crate::perf::exchange::{Link, Message, unexpected};
use quanta::Instant;
use std::time::Duration;

/// How often the exchange is looked at while nothing else happens: a look is a system call.
const LOOK: Duration = Duration::from_micros(500);

/// How long nothing at all may come.
const SILENCE: Duration = Duration::from_secs(30);

/// An exchange that is looked at now and then.
pub struct Watch<'a> {
    link: &'a mut Link,
    looked: Instant,
    heard: Instant,
    /// The other end was finished first.
    early: Option<Message>,
}

impl<'a> Watch<'a> {
    /// Begins now.
    pub fn new(link: &'a mut Link) -> Self {
        let now = Instant::now();
        Self { link, looked: now, heard: now, early: None }
    }

    /// Something came: patience begins anew.
    pub fn is_alive(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Nothing came. The next line of the exchange, if it is there.
    pub fn look(&mut self, now: Instant) -> Result<Option<Message>, Failure> {
        if self.early.is_some() {
            return Ok(self.early.take());
        }
        if now.saturating_duration_since(self.looked) < LOOK {
            return Ok(None);
        }
        self.looked = now;
        let message = self.link.try_receive()?;
        if message.is_some() {
            self.heard = now;
        }
        Ok(message)
    }

    /// Nothing came where something must: fails if the other end has gone, has said something out of turn, or has been silent too long.
    pub fn wait(&mut self, now: Instant, for_what: &str) -> Result<(), Failure> {
        if self.early.is_none()
            && let Some(message) = self.look(now)?
        {
            match message {
                Message::Done { .. } => self.early = Some(message),
                other => return Err(unexpected(for_what, &other)),
            }
        }
        if now.saturating_duration_since(self.heard) < SILENCE {
            return Ok(());
        }
        let (peer, seconds) = (self.link.peer(), SILENCE.as_secs());
        Err(Failure::failed(format!("{for_what}: nothing came for {seconds} s: is the process at {peer} stopped?")))
    }
}
