//! Moving a connection as an application or an agent orders it: many moves at once, both sides' ports in one order. What a move is, is the session's
//! ([`crate::session`]); nothing is decided here.

use super::connection::Connection;
use super::link::{Told, Wanted};
use crate::directory::OrderResult;
use crate::error::FabricError;
use crate::session::Change;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// A move that is under way: its answer, for a thread that waits or for any executor. Dropping it leaves the move as it is.
#[derive(Debug)]
#[must_use = "the move is on its way; its answer is told here"]
pub struct Moving {
    connection: Connection,
    answered: oneshot::Receiver<OrderResult>,
}

impl Moving {
    /// Waits until the connection has moved, or everything is as before. An error: it was closed meanwhile.
    pub fn wait(self) -> Result<OrderResult, FabricError> {
        super::wait::block_on(self)
    }
}

impl Future for Moving {
    type Output = Result<OrderResult, FabricError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = Pin::new(&mut self.answered).poll(cx);
        answer.map_err(|_| self.connection.closed_error())
    }
}

impl Connection {
    /// Begins to move and returns at once: who moves many connections begins them all, and then waits. With [`Change::peer_path`] the peer moves in
    /// the same hand-over; only the side that connected can order that, at the other it has no effect. Error: the connection is closed.
    pub fn begin_move(&self, change: Change) -> Result<Moving, FabricError> {
        let (answer, answered) = oneshot::channel();
        self.link().tell.send(Told::Ordered(Wanted::Move(change), answer)).map_err(|_| self.closed_error())?;
        Ok(Moving { connection: self.clone(), answered })
    }
}
