//! The task of a channel through a store: it puts what is sent into the box of this side, takes what comes into the peer's, renews the state that says how far each is,
//! and notices that the peer is gone or that the store has lost something.

use super::{LOOK_AHEAD, Letter, State, Store, WINDOW};
use crate::error::{FabricError, Fault};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

pub(super) fn state_key(side: &str) -> String {
    format!("{side}/state")
}

fn message_key(side: &str, number: u64) -> String {
    format!("{side}/{number}")
}

/// The task of a channel.
pub(super) struct Postman<S: Store> {
    pub called: String,
    pub silence: Duration,
    pub store: S,
    pub mine: String,
    pub theirs: String,
    pub state: State,
    /// As last seen.
    pub peer: Option<State>,
    /// Since when the peer's state is not there, after it was.
    pub absent: Option<Instant>,
    pub meet: Option<oneshot::Sender<String>>,
    pub to_application: mpsc::Sender<Result<Vec<u8>, FabricError>>,
    pub renewed: Instant,
}

type Outgoing = mpsc::Receiver<Letter>;

impl<S: Store> Postman<S> {
    pub async fn work(mut self, mut outgoing: Outgoing) {
        if let Err(error) = self.carry(&mut outgoing).await {
            // The reason comes after everything that was received.
            let _ = self.to_application.send(Err(error)).await;
        }
        drop(outgoing);
        self.part().await;
    }

    /// Until the application has let go, or an error ends the channel.
    async fn carry(&mut self, outgoing: &mut Outgoing) -> Result<(), FabricError> {
        let mut quiet = 0;
        loop {
            quiet = if self.look().await? { 0 } else { quiet + 1 };
            self.renew_in_time().await?;
            let rest = (self.silence / 4).saturating_sub(self.renewed.elapsed());
            tokio::select! {
                biased;
                next = outgoing.recv(), if self.may_send() => match next {
                    Some((message, done)) => {
                        let result = self.send(message).await;
                        let _ = done.send(result.clone());
                        result?;
                        quiet = 0;
                    }
                    None => return Ok(()),
                },
                () = self.to_application.closed() => return Ok(()),
                _ = timeout(rest, self.store.changed(quiet)) => {}
            }
        }
    }

    fn may_send(&self) -> bool {
        self.state.sent - self.peer.as_ref().map_or(0, |peer| peer.taken) < WINDOW
    }

    async fn send(&mut self, message: Vec<u8>) -> Result<(), FabricError> {
        self.state.sent += 1;
        let message = (message_key(&self.mine, self.state.sent), message);
        self.store.put(&[message, (state_key(&self.mine), self.state.emit())]).await
    }

    /// Takes what has come. True if anything was new.
    async fn look(&mut self) -> Result<bool, FabricError> {
        let room = (self.to_application.capacity() as u64).saturating_sub(1).min(LOOK_AHEAD);
        let first = self.state.taken + 1;
        let mut keys = vec![state_key(&self.theirs)];
        keys.extend((first..first + room).map(|number| message_key(&self.theirs, number)));
        let mut values = self.store.get(&keys).await?.into_iter();
        let before = self.peer.clone();
        self.see(values.next().flatten())?;
        let mut taken = Vec::new();
        for (message, key) in values.zip(keys.into_iter().skip(1)) {
            let Some(message) = message else { break };
            if self.to_application.try_send(Ok(message)).is_err() {
                break;
            }
            self.state.taken += 1;
            taken.push(key);
        }
        let new = !taken.is_empty();
        if new {
            self.store.put(&[(state_key(&self.mine), self.state.emit())]).await?;
            self.store.delete(&taken).await?;
        }
        let Some(peer) = &self.peer else { return Ok(new) };
        // The state was read before the messages: what it counts must be there.
        if peer.sent > self.state.taken && taken.len() < room as usize {
            return Err(FabricError::unreachable(format!(
                "{} has lost message {} (evicted for want of memory, expired or restarted): give it more memory, and dial again",
                self.called,
                self.state.taken + 1
            )));
        }
        if peer.closed && peer.sent == self.state.taken {
            return Err(FabricError::new(Fault::Closed, format!("{} has closed the channel", peer.name)));
        }
        Ok(new || before.as_ref() != Some(peer))
    }

    /// The peer's state, or that it is not there.
    fn see(&mut self, value: Option<Vec<u8>>) -> Result<(), FabricError> {
        if let Some(value) = value {
            let state = State::parse(&value)?;
            if let Some(meet) = self.meet.take() {
                let _ = meet.send(state.name.clone());
            }
            self.absent = None;
            self.peer = Some(state);
            return Ok(());
        }
        let Some(peer) = &self.peer else { return Ok(()) };
        let since = *self.absent.get_or_insert_with(Instant::now);
        if !S::FORGETS || since.elapsed() > self.silence {
            return Err(FabricError::unreachable(format!(
                "{} is gone without a goodbye (its process has probably ended, or cannot reach {}): dial again",
                peer.name, self.called
            )));
        }
        Ok(())
    }

    async fn renew_in_time(&mut self) -> Result<(), FabricError> {
        if self.renewed.elapsed() >= self.silence / 4 {
            self.renewed = Instant::now();
            self.store.renew(&state_key(&self.mine), &self.state.emit()).await?;
        }
        Ok(())
    }

    /// Says goodbye, and stays until the peer has taken everything and closed, too, or is gone.
    async fn part(mut self) {
        self.state.closed = true;
        let state = (state_key(&self.mine), self.state.emit());
        let farewell = async {
            self.store.put(std::slice::from_ref(&state)).await?;
            let mut quiet = 0;
            loop {
                let value = self.store.get(&[state_key(&self.theirs)]).await?.remove(0);
                match value.map(|value| State::parse(&value)).transpose()? {
                    Some(peer) if !peer.closed => {}
                    // It has closed, too, is gone, or never came.
                    _ => return Ok::<(), FabricError>(()),
                }
                quiet += 1;
                self.store.changed(quiet).await;
            }
        };
        let _ = timeout(self.silence, farewell).await;
        self.store.finish().await;
    }
}
