//! A service that waits for connections. It holds no QP.

use super::Connection;
use crate::error::FabricError;
use std::time::Duration;

/// Waits for connections to a service. Dropping it withdraws the service; connections live on.
#[derive(Debug)]
pub struct Listener {}

impl Listener {
    /// The next connection, up and ready; `None` when `timeout` passes.
    pub fn accept(&self, _timeout: Option<Duration>) -> Result<Option<Connection>, FabricError> {
        Err(FabricError::environment("not built yet"))
    }

    /// As [`Listener::accept`], for any executor.
    pub async fn accept_async(&self) -> Result<Connection, FabricError> {
        Err(FabricError::environment("not built yet"))
    }
}
