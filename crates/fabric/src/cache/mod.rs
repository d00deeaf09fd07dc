//! The registration cache: registrations of memory that the application owns, kept while the memory is there.

mod config;
mod region;

use std::sync::Arc;

use scalefabric_verbs::ProtectionDomain;

pub use config::{CacheConfig, Watching};
pub use region::Region;

use crate::error::FabricError;
use crate::fork::Home;

/// A cache of registrations. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pds: Vec<Arc<dyn ProtectionDomain>>,
    config: CacheConfig,
    home: Home,
}

impl Cache {
    /// A cache that registers with each of `pds`: one for each device (rail) that shall reach the memory.
    pub fn new(pds: &[Arc<dyn ProtectionDomain>], config: CacheConfig) -> Result<Self, FabricError> {
        if pds.is_empty() {
            return Err(FabricError::misuse("a cache needs a protection domain: it registers with each one"));
        }
        config.access.check_mr()?;
        Ok(Self { shared: Arc::new(Shared { pds: pds.to_vec(), config, home: Home::here()? }) })
    }
}
