//! A service that waits for connections. It holds no QP.

use super::connection::Connection;
use super::link::lock;
use super::service::Keeper;
use super::wait::block_on_for;
use crate::error::{FabricError, Fault};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Waits for connections to a service. Dropping it withdraws the service; connections live on.
#[derive(Debug)]
pub struct Listener {
    keeper: Arc<Keeper>,
    service: String,
    accepted: Mutex<UnboundedReceiver<Connection>>,
}

impl Listener {
    pub(super) fn new(keeper: &Arc<Keeper>, service: &str) -> Result<Self, FabricError> {
        let (accept, accepted) = unbounded_channel();
        keeper.shared.offer(service, accept)?;
        Ok(Self { keeper: keeper.clone(), service: service.to_owned(), accepted: Mutex::new(accepted) })
    }

    /// The next connection, up and ready; `None` when `timeout` passes.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<Connection>, FabricError> {
        block_on_for(self.accept_async(), timeout).transpose()
    }

    /// As [`Listener::accept`], for any executor.
    pub async fn accept_async(&self) -> Result<Connection, FabricError> {
        let next = std::future::poll_fn(|cx| lock(&self.accepted).poll_recv(cx)).await;
        next.ok_or_else(|| FabricError::new(Fault::Closed, "the service was withdrawn"))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.keeper.shared.withdraw(&self.service);
    }
}
