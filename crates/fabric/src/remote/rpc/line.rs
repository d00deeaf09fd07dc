//! What carries calls: messages that go whole to one peer, and come to a handler. [`Line`] is one over a connection.

use crate::buffer::Local;
use crate::endpoint::{Connection, MAX_INLINE, Operation, Piece};
use crate::error::FabricError;
use crate::pool::Pool;
use std::fmt::Debug;
use std::sync::Arc;

/// Messages to and from one peer.
pub trait Messages: Send + Sync + Debug {
    /// Sends a message, without waiting; false if there is no room now.
    fn send(&self, message: &[u8]) -> Result<bool, FabricError>;
    /// Gives all messages that come from now on to a handler, one at a time.
    fn on_message(&self, handler: Box<dyn FnMut(Vec<u8>) + Send>) -> Result<(), FabricError>;
    /// Longest message that the peer can receive, bytes.
    fn longest(&self) -> usize;
}

/// A connection that carries calls, and nothing else.
#[derive(Clone, Debug)]
pub struct Line {
    connection: Connection,
    pool: Pool,
    longest: usize,
}

impl Line {
    /// `longest` is the peer's [`crate::endpoint::Config::receive_bytes`].
    pub fn new(connection: &Connection, pool: &Pool, longest: usize) -> Self {
        Self { connection: connection.clone(), pool: pool.clone(), longest }
    }
}

impl Messages for Line {
    fn send(&self, message: &[u8]) -> Result<bool, FabricError> {
        // The end of a SEND is not waited for: a call whose request or answer was lost ends with its deadline.
        let posted = if message.len() <= MAX_INLINE {
            self.connection.submit(Operation::send(message))?
        } else {
            let buffer = Arc::new(self.pool.alloc(message.len())?);
            buffer.write(0, message)?;
            let piece = Piece::new(buffer as Arc<dyn Local>, 0, message.len());
            self.connection.submit(Operation::send(&piece))?
        };
        Ok(posted.is_some())
    }

    fn on_message(&self, mut handler: Box<dyn FnMut(Vec<u8>) + Send>) -> Result<(), FabricError> {
        self.connection.on_message(Box::new(move |received| {
            let mut message = vec![0; received.len()];
            // What cannot be read was no message of ours (the notice of a WRITE).
            if !received.is_write() && received.read(0, &mut message).is_ok() {
                drop(received);
                handler(message);
            }
        }))
    }

    fn longest(&self) -> usize {
        self.longest
    }
}
