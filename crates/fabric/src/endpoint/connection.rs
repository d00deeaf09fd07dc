//! A connection as an application sees it. A handle that threads may share: sending and receiving have a lock of their own each, and share none with
//! other connections. What becomes of its QPs is the session's.

use super::completion::{Completion, Pending};
use super::link::{Injected, Link, Told, lock};
use super::operation::Operation;
use super::received::Received;
use super::service::Keeper;
use super::wait::wait;
use crate::directory::{ConnectionId, ConnectionRecord, FencingToken, OrderResult};
use crate::error::{FabricError, Fault};
use crate::exchange::Identity;
use crate::operation::Outcome;
use crate::path::Path;
use crate::session::{Change, Input};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// What a connection has been through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// QPs made anew after a failure.
    pub rebuilds: u64,
    /// Moves to another path.
    pub moves: u64,
    /// Those of them that kept the QP: it took a new address vector.
    pub turned: u64,
    /// Those of them that kept the QP and did not drain it: it migrated to an alternate path.
    pub migrated: u64,
    /// Moves that were taken back.
    pub moves_rolled_back: u64,
    /// Operations posted again after a rebuild.
    pub repeated: u64,
    /// Operations reported as in doubt.
    pub in_doubt: u64,
    /// Times that the exchange's channel was made again.
    pub redialled: u64,
    /// Channels that were refused, because somebody else than the peer of first contact was there.
    pub refused: u64,
}

/// A connection. Clones are the same connection; it is closed when the last one is gone.
#[derive(Clone, Debug)]
pub struct Connection {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    link: Arc<Link>,
    _keeper: Arc<Keeper>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let reason = "the application let go of it".into();
        let _ = self.link.tell.send(Told::Input(Input::Close { reason, order: None }));
    }
}

impl Connection {
    pub(super) fn new(link: Arc<Link>, keeper: Arc<Keeper>) -> Self {
        Self { handle: Arc::new(Handle { link, _keeper: keeper }) }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.handle.link
    }

    /// Its name in the fabric.
    pub fn id(&self) -> &ConnectionId {
        &self.link().id
    }

    /// Service that it was made for.
    pub fn service(&self) -> &str {
        &self.link().service
    }

    /// Who the peer is, as far as the exchange has proved it.
    pub fn peer(&self) -> Option<Identity> {
        lock(&self.link().peer).identity().cloned()
    }

    /// Takes as many of the operations as there is room for, in order, with one doorbell; returns how many. 0: the depth is used up, or completions wait to
    /// be polled. While the connection is being rebuilt they are taken and wait. An error takes none: misuse (the operation at fault is named), or
    /// [`crate::Fault::Closed`].
    pub fn try_post(&self, operations: &[Operation<'_>]) -> Result<usize, FabricError> {
        let link = self.link();
        let mut sender = lock(&link.sender);
        let count = sender.post(operations)?;
        if count == operations.len() {
            return Ok(count);
        }
        // Room that a look at the queue makes is used at once.
        let ended = link.drive_sender(&mut sender)?;
        let more = if ended { sender.post(&operations[count..])? } else { 0 };
        drop(sender);
        if ended {
            link.bell.ring();
            link.run_handlers();
        }
        Ok(count + more)
    }

    /// As [`Connection::try_post`], and waits until all are taken. Completions must be polled by another thread or a handler if there are more than the depth.
    pub fn post(&self, operations: &[Operation<'_>]) -> Result<(), FabricError> {
        let mut taken = self.try_post(operations)?;
        if taken < operations.len() {
            self.wait_for(None, || {
                taken += self.try_post(&operations[taken..])?;
                Ok((taken == operations.len()).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Takes completions of posted operations, in their order; returns how many. Never waits.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, FabricError> {
        let link = self.link();
        let mut sender = lock(&link.sender);
        let ended = link.drive_sender(&mut sender)?;
        let count = sender.take_done(out);
        let closed = if count == 0 { sender.closed.clone() } else { None };
        drop(sender);
        if ended {
            link.bell.ring();
        }
        match closed {
            Some(error) => Err(error),
            None => Ok(count),
        }
    }

    /// As [`Connection::poll`], and waits for the first; 0 when `timeout` passes.
    pub fn wait(&self, out: &mut [Completion], timeout: Option<Duration>) -> Result<usize, FabricError> {
        let count = self.wait_for(timeout, || {
            let count = self.poll(out)?;
            Ok((count > 0).then_some(count))
        })?;
        Ok(count.unwrap_or(0))
    }

    /// Posts an operation and waits for its end.
    pub fn execute(&self, operation: Operation<'_>) -> Result<Outcome, FabricError> {
        let link = self.link();
        let mut cell = lock(&link.sender).post_for_cell(&operation)?;
        let outcome = self.wait_for(None, || {
            let mut sender = lock(&link.sender);
            let ended = link.drive_sender(&mut sender)?;
            let outcome = match cell {
                Some(cell) => sender.cells.take(cell),
                None => {
                    cell = sender.post_for_cell(&operation)?;
                    None
                }
            };
            drop(sender);
            if ended {
                link.bell.ring();
                link.run_handlers();
            }
            Ok(outcome)
        })?;
        outcome.ok_or_else(|| FabricError::environment("a wait without an end has ended"))
    }

    /// Posts an operation; its end is a future, for any executor. `None`: no room now.
    pub fn submit(&self, operation: Operation<'_>) -> Result<Option<Pending>, FabricError> {
        let cell = lock(&self.link().sender).post_for_cell(&operation)?;
        Ok(cell.map(|cell| Pending::new(self.link().clone(), cell)))
    }

    /// Posts an operation as soon as there is room, and gives its end, for any executor.
    pub async fn execute_async(&self, operation: Operation<'_>) -> Result<Outcome, FabricError> {
        let link = self.link();
        let pending = std::future::poll_fn(|cx| {
            loop {
                if let Some(pending) = self.submit(operation)? {
                    return Poll::Ready(Ok::<_, FabricError>(pending));
                }
                link.watch();
                lock(&link.sender).wakers.push(cx.waker().clone());
                link.arm_sender()?;
                // If a look ends nothing, the event will.
                let ended = link.drive_sender(&mut lock(&link.sender))?;
                if !ended {
                    return Poll::Pending;
                }
            }
        })
        .await?;
        pending.await
    }

    /// Gives completions of posted operations to a handler instead of [`Connection::poll`]: called one at a time, in order, from whichever thread finds them. It may post.
    pub fn on_completion(&self, handler: Box<dyn FnMut(Completion) + Send>) -> Result<(), FabricError> {
        self.link().set_completion_handler(handler);
        self.link().watch();
        self.link().run_handlers();
        Ok(())
    }

    /// The next message, if there is one.
    pub fn try_receive(&self) -> Result<Option<Received>, FabricError> {
        let link = self.link();
        let mut receiver = lock(&link.receiver);
        let mut next = receiver.next();
        if next.is_none() {
            link.drive_receiver(&mut receiver)?;
            next = receiver.next();
        }
        drop(receiver);
        match next {
            Some(arrival) => Ok(Some(link.received(arrival))),
            None => Ok(None),
        }
    }

    /// The next message; `None` when `timeout` passes. [`crate::Fault::Closed`] once the connection is closed and everything has been received.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Received>, FabricError> {
        self.wait_for(timeout, || match self.try_receive()? {
            Some(message) => Ok(Some(message)),
            None => self.link().closed().map_or(Ok(None), Err),
        })
    }

    /// The next message, for any executor.
    pub async fn receive_async(&self) -> Result<Received, FabricError> {
        let link = self.link();
        link.watch();
        std::future::poll_fn(|cx| {
            if let Some(message) = self.try_receive()? {
                return Poll::Ready(Ok(message));
            }
            lock(&link.receiver).wakers.push(cx.waker().clone());
            link.arm_receiver()?;
            match self.try_receive()? {
                Some(message) => Poll::Ready(Ok(message)),
                None => link.closed().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
            }
        })
        .await
    }

    /// Gives messages to a handler instead of `receive`: called one at a time, in order.
    pub fn on_message(&self, handler: Box<dyn FnMut(Received) + Send>) -> Result<(), FabricError> {
        self.link().set_message_handler(handler);
        self.link().watch();
        self.link().run_handlers();
        Ok(())
    }

    /// Waits until everything that was posted has ended, quiet operations included; false when `timeout` passes.
    pub fn flush(&self, timeout: Option<Duration>) -> Result<bool, FabricError> {
        let link = self.link();
        let settled = self.wait_for(timeout, || {
            let mut sender = lock(&link.sender);
            let ended = link.drive_sender(&mut sender)?;
            let settled = sender.settle();
            drop(sender);
            if ended {
                link.bell.ring();
                link.run_handlers();
            }
            Ok(settled.then_some(()))
        })?;
        Ok(settled.is_some())
    }

    /// What the directory is told of it.
    pub fn record(&self) -> Option<ConnectionRecord> {
        lock(&self.link().record).clone()
    }

    /// What it has been through.
    pub fn statistics(&self) -> Statistics {
        self.link().statistics()
    }

    /// Moves it to another path while data flows, in the best way that both sides have, and waits until it has moved or everything is as before.
    pub fn move_to(&self, path: Path, token: FencingToken, reason: &str) -> Result<OrderResult, FabricError> {
        let change = Change { path, peer_path: None, strategy: None, token, reason: reason.to_owned() };
        self.begin_move(change)?.wait()
    }

    /// Makes its QP anew, as after a failure. Returns at once.
    pub fn rebuild(&self, reason: &str) -> Result<(), FabricError> {
        let input = Input::Rebuild { reason: reason.to_owned() };
        self.link().tell.send(Told::Input(input)).map_err(|_| self.closed_error())
    }

    /// Makes a fault, to see what becomes of it. For tests and drills.
    pub fn inject(&self, fault: Injected) -> Result<(), FabricError> {
        self.link().tell.send(Told::Inject(fault)).map_err(|_| self.closed_error())
    }

    /// Waits until everything that was posted has ended, tells the peer, and closes. What has not ended after `timeout` is reported as it is.
    pub fn close(&self, timeout: Option<Duration>) -> Result<(), FabricError> {
        match self.flush(timeout) {
            Ok(_) => {}
            Err(error) if error.fault == Fault::Closed => return Ok(()),
            Err(error) => return Err(error),
        }
        let reason = "the application closed it".into();
        if self.link().tell.send(Told::Input(Input::Close { reason, order: None })).is_err() {
            return Ok(());
        }
        self.wait_for(None, || Ok(self.link().closed().map(|_| ())))?;
        Ok(())
    }

    /// Why it is closed, if it is.
    pub fn closed(&self) -> Option<FabricError> {
        self.link().closed()
    }

    pub(super) fn closed_error(&self) -> FabricError {
        self.link().closed_error()
    }

    pub(super) fn wait_for<T>(
        &self,
        timeout: Option<Duration>,
        attempt: impl FnMut() -> Result<Option<T>, FabricError>,
    ) -> Result<Option<T>, FabricError> {
        let link = self.link();
        wait(&link.bell, &link.channels, link.config.waiting, timeout, || link.arm(), attempt)
    }
}
