//! A connection as an application sees it. A handle that threads may share: sending and receiving have a lock of their own each, and share none with
//! other connections. What becomes of its QPs is the session's.

use super::{Completion, Operation, Pending, Received};
use crate::buffer::RemoteRange;
use crate::directory::{ConnectionId, ConnectionRecord, FencingToken, OrderResult};
use crate::error::FabricError;
use crate::operation::Outcome;
use crate::path::Path;
use std::time::Duration;

/// What a connection has been through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// QPs made anew after a failure.
    pub rebuilds: u64,
    /// Moves to another path.
    pub moves: u64,
    /// Moves that were taken back.
    pub moves_rolled_back: u64,
    /// Operations posted again after a rebuild.
    pub repeated: u64,
    /// Operations reported as in doubt.
    pub in_doubt: u64,
    /// Times that the exchange's channel was dialled again.
    pub redialled: u64,
}

/// A connection. Clones are the same connection; it is closed when the last one is gone.
#[derive(Clone, Debug)]
pub struct Connection {}

fn unbuilt<T>() -> Result<T, FabricError> {
    Err(FabricError::environment("not built yet"))
}

impl Connection {
    /// Its name in the fabric.
    pub fn id(&self) -> &ConnectionId {
        unreachable!("not built yet")
    }

    /// Takes as many of the operations as there is room for, in order, with one doorbell; returns how many. 0: the depth is used up, or completions wait to
    /// be polled. While the connection is being rebuilt they are taken and wait. An error takes none: misuse (the operation at fault is named), or
    /// [`crate::Fault::Closed`].
    pub fn try_post(&self, _operations: &[Operation<'_>]) -> Result<usize, FabricError> {
        unbuilt()
    }

    /// As [`Connection::try_post`], and waits until all are taken. Completions must be polled by another thread or a handler if there are more than the depth.
    pub fn post(&self, _operations: &[Operation<'_>]) -> Result<(), FabricError> {
        unbuilt()
    }

    /// Takes completions of posted operations, in their order; returns how many. Never waits.
    pub fn poll(&self, _out: &mut [Completion]) -> Result<usize, FabricError> {
        unbuilt()
    }

    /// As [`Connection::poll`], and waits for the first; 0 when `timeout` passes.
    pub fn wait(&self, _out: &mut [Completion], _timeout: Option<Duration>) -> Result<usize, FabricError> {
        unbuilt()
    }

    /// Posts an operation and waits for its end.
    pub fn execute(&self, _operation: Operation<'_>) -> Result<Outcome, FabricError> {
        unbuilt()
    }

    /// Posts an operation; its end is a future, for any executor. `None`: no room now.
    pub fn submit(&self, _operation: Operation<'_>) -> Result<Option<Pending>, FabricError> {
        unbuilt()
    }

    /// Gives completions of posted operations to a handler instead of [`Connection::poll`]: called one at a time, in order, from whichever thread finds them. It may post.
    pub fn on_completion(&self, _handler: Box<dyn FnMut(Completion) + Send>) -> Result<(), FabricError> {
        unbuilt()
    }

    /// The next message, if there is one.
    pub fn try_receive(&self) -> Result<Option<Received>, FabricError> {
        unbuilt()
    }

    /// The next message; `None` when `timeout` passes. [`crate::Fault::Closed`] once the connection is closed and everything has been received.
    pub fn receive(&self, _timeout: Option<Duration>) -> Result<Option<Received>, FabricError> {
        unbuilt()
    }

    /// The next message, for any executor.
    pub async fn receive_async(&self) -> Result<Received, FabricError> {
        unbuilt()
    }

    /// Gives messages to a handler instead of `receive`: called one at a time, in order.
    pub fn on_message(&self, _handler: Box<dyn FnMut(Received) + Send>) -> Result<(), FabricError> {
        unbuilt()
    }

    /// Waits until everything that was posted has ended, quiet operations included; false when `timeout` passes.
    pub fn flush(&self, _timeout: Option<Duration>) -> Result<bool, FabricError> {
        unbuilt()
    }

    /// Lets the peer use memory, under a number that both applications agree on.
    pub fn offer(&self, _id: u32, _range: RemoteRange) -> Result<(), FabricError> {
        unbuilt()
    }

    /// What the peer has offered under a number, with the key of now; waits for it; `None` when `timeout` passes.
    pub fn offered(&self, _id: u32, _timeout: Option<Duration>) -> Result<Option<RemoteRange>, FabricError> {
        unbuilt()
    }

    /// What the directory is told of it.
    pub fn record(&self) -> ConnectionRecord {
        unreachable!("not built yet")
    }

    /// What it has been through.
    pub fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    /// Moves it to another path while data flows, and waits until it has moved or everything is as before.
    pub fn move_to(&self, _path: Path, _token: FencingToken, _reason: &str) -> Result<OrderResult, FabricError> {
        unbuilt()
    }

    /// Makes its QP anew, as after a failure.
    pub fn rebuild(&self, _reason: &str) -> Result<(), FabricError> {
        unbuilt()
    }

    /// Ends everything that was posted, tells the peer, and closes.
    pub fn close(&self) -> Result<(), FabricError> {
        unbuilt()
    }
}
