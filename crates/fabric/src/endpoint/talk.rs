//! The channel to a connection's peer, as its task keeps it: what is said and heard, whether who calls is the peer of first contact, and how the channel is lost.
//! What the words mean is the session's.

use super::link::lock;
use super::task::{Dialling, Task};
use crate::directory::ConnectionState;
use crate::error::FabricError;
use crate::exchange::Channel;
use crate::session::{Body, Input, Message, VERSION};
use std::sync::atomic::Ordering;

impl Task {
    pub(super) fn take_channel(&mut self, channel: Box<dyn Channel>) {
        if self.dialled {
            self.link.statistics.redialled.fetch_add(1, Ordering::Relaxed);
        }
        self.dialled = true;
        self.channel = Some(channel);
        self.inputs.push_back(Input::ChannelUp);
    }

    pub(super) fn hear_message(&mut self, message: Result<Vec<u8>, FabricError>) {
        let message = message.and_then(|bytes| Message::parse(&bytes)).and_then(|message| {
            if message.connection == self.link.id {
                return Ok(message);
            }
            Err(FabricError::peer(format!("a message for connection {:?} came to another", message.connection)))
        });
        match message {
            Ok(message) => {
                let heard = lock(&self.link.peer).hear(&message.from);
                match heard {
                    Ok(()) => self.inputs.push_back(Input::Message(message.body)),
                    Err(error) => self.refuse_peer(error),
                }
            }
            Err(error) => self.lose_channel(error),
        }
    }

    pub(super) fn lose_channel(&mut self, error: FabricError) {
        self.channel = None;
        self.inputs.push_back(Input::ChannelDown { reason: error.message });
    }

    /// Whether the peer of first contact is behind a new channel. A stranger is told so; what is there stays as it is.
    pub(super) fn admit(&mut self, channel: Box<dyn Channel>, from: Option<&str>) -> Option<Box<dyn Channel>> {
        let identity = channel.peer();
        let mut known = lock(&self.link.peer);
        let heard = known.clone();
        let admitted = known.admit(&identity).and_then(|()| from.map_or(Ok(()), |from| known.hear(from)));
        let Err(error) = admitted else { return Some(channel) };
        // What half of it said is not believed either.
        *known = heard;
        drop(known);
        self.link.statistics.refused.fetch_add(1, Ordering::Relaxed);
        if self.dial.is_some() {
            self.inputs.push_back(Input::ChannelDown { reason: error.message });
            return None;
        }
        let (connection, from) = (self.link.id.clone(), self.shared.origin.clone());
        let body = Body::Close { reason: error.message };
        let message = Message { version: VERSION, connection, from, body };
        tokio::spawn(async move {
            let mut channel = channel;
            if let Ok(bytes) = message.emit() {
                let _ = channel.send(&bytes).await;
            }
        });
        None
    }

    /// Somebody else answers where the peer was. While data flows only the channel is refused, and a look at the data path tells whether the peer is
    /// still there; without it nobody can rebuild the connection.
    pub(super) fn refuse_peer(&mut self, error: FabricError) {
        self.link.statistics.refused.fetch_add(1, Ordering::Relaxed);
        let state = lock(&self.link.record).as_ref().map(|record| record.state);
        if matches!(state, Some(ConnectionState::Up | ConnectionState::Moving)) {
            lock(&self.link.sender).probe();
            let _ = self.link.drive();
            self.lose_channel(error);
        } else {
            self.channel = None;
            self.inputs.push_back(Input::ChannelDown { reason: error.message.clone() });
            self.inputs.push_back(Input::Close { reason: error.message, order: None });
        }
    }

    pub(super) async fn say(&mut self, body: Body) {
        let Some(channel) = &mut self.channel else { return };
        let (connection, from) = (self.link.id.clone(), self.shared.origin.clone());
        let message = Message { version: VERSION, connection, from, body };
        let sent = match message.emit() {
            Ok(bytes) => channel.send(&bytes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            self.lose_channel(error);
        }
    }
}

pub(super) async fn receive(channel: &mut Option<Box<dyn Channel>>) -> Result<Vec<u8>, FabricError> {
    match channel {
        Some(channel) => channel.receive().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn dial(dialling: &mut Option<Dialling>) -> Result<Box<dyn Channel>, FabricError> {
    match dialling {
        Some(dialling) => dialling.await,
        None => std::future::pending().await,
    }
}
