//! The fabric of a process: a provider, its exchanges, its directory, and one thread of service for channels, timers and asynchronous events. Data
//! never waits for that thread.

use super::{Config, Connection, Listener};
use crate::directory::Directory;
use crate::error::FabricError;
use crate::exchange::Exchange;
use scalefabric_verbs::Provider;
use std::sync::Arc;

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A service by its name: the directory knows where it is.
    Service(String),
    /// A service at an exchange's address, such as `tcp://10.0.0.1:7471`.
    Address {
        /// With its scheme.
        exchange: String,
        /// Name of the service there.
        service: String,
    },
}

/// Builds a [`Fabric`].
#[derive(Debug)]
pub struct Builder {
    provider: Arc<dyn Provider>,
    exchanges: Vec<Arc<dyn Exchange>>,
    listen: Vec<String>,
    directory: Option<Arc<dyn Directory>>,
    config: Config,
    node: Option<String>,
    device: Option<String>,
}

impl Builder {
    /// A way to reach peers, and to be reached. At least one is needed to connect.
    #[must_use]
    pub fn exchange(mut self, exchange: Arc<dyn Exchange>) -> Self {
        self.exchanges.push(exchange);
        self
    }

    /// An address at which this process can be reached, with its scheme, such as `tcp://0.0.0.0:7471`.
    #[must_use]
    pub fn listen_at(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// The control plane. Default: none.
    #[must_use]
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = Some(directory);
        self
    }

    /// What connections are like. Default: [`Config::default`].
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Name of this node. Default: the host's name.
    #[must_use]
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// The device. Default: the first that has an active port.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Opens the device, listens, starts the thread.
    pub fn build(self) -> Result<Fabric, FabricError> {
        Err(FabricError::environment("not built yet"))
    }
}

/// The fabric of a process. A handle: clones are the same. The thread ends when the last one is gone.
#[derive(Clone, Debug)]
pub struct Fabric {}

impl Fabric {
    /// Begins to build one.
    pub fn builder(provider: Arc<dyn Provider>) -> Builder {
        Builder {
            provider,
            exchanges: Vec::new(),
            listen: Vec::new(),
            directory: None,
            config: Config::default(),
            node: None,
            device: None,
        }
    }

    /// The open device.
    pub fn context(&self) -> &Arc<dyn scalefabric_verbs::Context> {
        unreachable!("not built yet")
    }

    /// The protection domain of all connections: memory for them is registered here.
    pub fn protection_domain(&self) -> &Arc<dyn scalefabric_verbs::ProtectionDomain> {
        unreachable!("not built yet")
    }

    /// Addresses at which this process can be reached, with their schemes and the ports that were really taken.
    pub fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    /// Offers a service. Misuse if it is offered already, or if the fabric listens nowhere.
    pub fn listen(&self, _service: &str) -> Result<Listener, FabricError> {
        Err(FabricError::environment("not built yet"))
    }

    /// Connects, waiting until data can flow or [`crate::session::Patience::connect_ns`] has passed.
    pub fn connect(&self, _target: &Target) -> Result<Connection, FabricError> {
        Err(FabricError::environment("not built yet"))
    }

    /// As [`Fabric::connect`], for any executor.
    pub async fn connect_async(&self, _target: &Target) -> Result<Connection, FabricError> {
        Err(FabricError::environment("not built yet"))
    }
}
