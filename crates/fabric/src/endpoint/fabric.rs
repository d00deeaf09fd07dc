//! The fabric of a process: a provider, its exchanges, its directory, and one thread of service for channels, timers and asynchronous events. Data
//! never waits for that thread.

use super::config::Config;
use super::connection::Connection;
use super::hub::{Hub, Hubs};
use super::link::lock;
use super::listener::Listener;
use super::seek::{gone, seek};
use super::service::{self, Keeper, Parts, RotateKeys};
use super::wait::block_on;
use crate::directory::{Directory, NoDirectory};
use crate::error::FabricError;
use crate::exchange::Exchange;
use crate::guard::TenantProvider;
use crate::path::Path;
use scalefabric_verbs::{Context, ProtectionDomain, Provider};
use std::sync::Arc;
use tokio::sync::oneshot;

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

impl Target {
    /// A service at an exchange's address.
    pub fn at(exchange: impl Into<String>, service: impl Into<String>) -> Self {
        Self::Address { exchange: exchange.into(), service: service.into() }
    }
}

/// Builds a [`Fabric`].
pub struct Builder {
    provider: Arc<dyn Provider>,
    exchanges: Vec<Arc<dyn Exchange>>,
    listen: Vec<String>,
    directory: Option<Arc<dyn Directory>>,
    config: Config,
    node: Option<String>,
    device: Option<String>,
    also: Vec<String>,
    rotate: Option<Arc<RotateKeys>>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("listen", &self.listen).field("device", &self.device).finish_non_exhaustive()
    }
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

    /// One more device, on which connections can go on: they move there by order, and by themselves when no port of the device that they are on is up. Memory
    /// that is posted then must be registered with [`Fabric::protection_domains`], in their order (a pool or a cache that was made with them), and what a
    /// peer is lent, too. Each connection has queues and receives on every device. At most four devices, that of [`Builder::device`] included.
    #[must_use]
    pub fn also(mut self, device: impl Into<String>) -> Self {
        self.also.push(device.into());
        self
    }

    /// How keys that are not of a pool ([`Fabric::rotate_keys_of`]) are rotated when the control plane orders it or [`Config::rotate_every`] is over:
    /// registers memory anew, offers it on its connections ([`Connection::rotate`]), withdraws the old keys. It is given the order's token, 0 on
    /// schedule, and the overlap. Default: nothing.
    #[must_use]
    pub fn rotate_with(mut self, rotate: Arc<RotateKeys>) -> Self {
        self.rotate = Some(rotate);
        self
    }

    /// Opens the device, listens, starts the thread.
    pub fn build(self) -> Result<Fabric, FabricError> {
        let directory = self.directory.unwrap_or_else(|| Arc::new(NoDirectory));
        let provider: Arc<dyn Provider> = match self.config.tenant.as_str() {
            "" => self.provider,
            tenant => Arc::new(TenantProvider::new(self.provider, Arc::clone(&directory), tenant)),
        };
        let mut hubs = vec![Hub::open(&*provider, self.device.as_deref())?];
        for device in &self.also {
            hubs.push(Hub::open(&*provider, Some(device))?);
        }
        for hub in &hubs {
            self.config.check(&hub.attr)?;
        }
        let keeper = service::start(Parts {
            node: self.node.unwrap_or_else(host_name),
            hubs: Hubs::new(hubs)?,
            config: self.config,
            directory,
            exchanges: self.exchanges,
            listen: self.listen,
            rotate: self.rotate,
        })?;
        Ok(Fabric { keeper })
    }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "localhost".into(), |name| name.trim().into())
}

/// The fabric of a process. A handle: clones are the same. Its thread ends when the last handle, connection and listener are gone.
#[derive(Clone, Debug)]
pub struct Fabric {
    keeper: Arc<Keeper>,
}

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
            also: Vec::new(),
            rotate: None,
        }
    }

    pub(super) fn shared(&self) -> &Arc<service::Shared> {
        &self.keeper.shared
    }

    /// The open device; the first, if there are more.
    pub fn context(&self) -> &Arc<dyn Context> {
        &self.keeper.shared.hub().context
    }

    /// The protection domain of all connections: memory for them is registered here. The first device's, if there are more.
    pub fn protection_domain(&self) -> &Arc<dyn ProtectionDomain> {
        &self.keeper.shared.hub().pd
    }

    /// The protection domains of all devices ([`Builder::also`]): memory that operations go on with on another device is registered with each.
    pub fn protection_domains(&self) -> Vec<Arc<dyn ProtectionDomain>> {
        self.keeper.shared.hubs.all().iter().map(|hub| hub.pd.clone()).collect()
    }

    /// Addresses at which this process can be reached, with their schemes and the ports that were really taken.
    pub fn addresses(&self) -> Vec<String> {
        lock(&self.keeper.shared.addresses).clone()
    }

    /// Offers a service. Misuse if it is offered already, or if the fabric listens nowhere.
    pub fn listen(&self, service: &str) -> Result<Listener, FabricError> {
        Listener::new(&self.keeper, service)
    }

    /// Connects, waiting until data can flow or [`crate::session::Patience::connect_ns`] has passed.
    pub fn connect(&self, target: &Target) -> Result<Connection, FabricError> {
        block_on(self.connect_async(target))
    }

    /// As [`Fabric::connect`], for any executor.
    pub async fn connect_async(&self, target: &Target) -> Result<Connection, FabricError> {
        self.connect_on(target, None).await
    }

    /// As [`Fabric::connect_async`], on this path to begin with.
    pub async fn connect_on(&self, target: &Target, path: Option<Path>) -> Result<Connection, FabricError> {
        let shared = &self.keeper.shared;
        match target {
            Target::Address { exchange, service } => {
                let up = shared.connect(&self.keeper, exchange, service, path)?.wait().await;
                up.map_err(|error| error.during(format!("cannot connect to `{service}` at {exchange}")))
            }
            Target::Service(service) => {
                let (told, outcome) = oneshot::channel();
                shared.handle.spawn(seek(shared.clone(), self.keeper.clone(), service.clone(), path, told));
                outcome.await.unwrap_or_else(|_| Err(gone()))
            }
        }
    }
}
