//! Changes of the directory, for those who watch it. Who is too slow is told so and begins again; nobody waits for a slow reader.

use super::{Located, NodeRecord};
use crate::store::Revision;
use scalefabric_fabric::directory::{ConnectionId, ServiceAddress};
use std::sync::Arc;
use tokio::sync::broadcast;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A connection is new or has changed.
    Connection(Located),
    /// A connection is gone.
    ConnectionGone {
        /// Node.
        node: Arc<str>,
        /// Process.
        process: Arc<str>,
        /// Which.
        id: ConnectionId,
    },
    /// A service can be reached.
    Service(Arc<ServiceAddress>),
    /// A service can no longer be reached at an address.
    ServiceGone {
        /// Service.
        service: String,
        /// Node.
        node: String,
        /// Its exchange there.
        exchange: String,
    },
    /// A node is new or has changed.
    Node(Arc<NodeRecord>),
    /// A node's agent has not been heard of for its lease.
    NodeGone(String),
    /// Everything may have changed: read again.
    All,
}

/// Changes of one or several revisions, up to the one that is named.
pub type Batch = Arc<(Revision, Vec<Change>)>;

/// The reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lagged;

/// A stream of changes.
#[derive(Debug)]
pub struct Changes(pub(super) broadcast::Receiver<Batch>);

impl Changes {
    /// The next ones; `None` when the directory ends. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<Result<Batch, Lagged>> {
        match self.0.recv().await {
            Ok(batch) => Some(Ok(batch)),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Err(Lagged)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
