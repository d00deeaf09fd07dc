//! The pool: memory that is registered once and then given out in nanoseconds. Arenas of huge pages, blocks of size classes, and in each thread a
//! magazine of free blocks, so that neither allocating nor freeing takes a lock that threads share. It posts nothing and knows no peers.
//!
//! Unsafe code stands in `arena.rs` only, which maps and copies.
//!
//! **Fork.** Arenas are not inherited (`MADV_DONTFORK`), so that hardware never loses its pages to a copy. In a child every call answers `EPERM`, and
//! dropping what was inherited does nothing.
//!
//! **Keys.** [`Pool::rotate_keys`] registers every arena anew. Buffers then tell the new keys; the old ones stay good until [`Pool::retire_old`].

mod arena;
mod buffer;
mod class;
mod config;
mod extent;
mod magazine;
mod pages;
mod shared;

use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_verbs::{AccessFlags, ProtectionDomain};

pub use buffer::Buffer;
pub use class::{LINE, PAGE};
pub use config::{ArenaReport, PageKind, PoolConfig, Zeroing};
pub use pages::node_of;

use crate::error::FabricError;
use crate::fork::Home;
use shared::Shared;

/// A pool of registered memory. Clones are the same pool. Its arenas live until the last clone and the last buffer are gone.
#[derive(Clone, Debug)]
pub struct Pool {
    root: Arc<Root>,
}

/// What the handles of a pool own together.
#[derive(Debug)]
struct Root {
    shared: Arc<Shared>,
    /// One for each thread that allocated. Buffers hold the token of their thread, so that counting them costs no cache line that threads share.
    tokens: Mutex<Vec<Arc<Token>>>,
}

/// Keeps the arenas alive for the buffers of one thread.
#[derive(Debug)]
struct Token {
    shared: Arc<Shared>,
}

/// What a pool has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Its arenas, oldest first.
    pub arenas: Vec<ArenaReport>,
    /// Bytes registered.
    pub registered_bytes: usize,
    /// Bytes that are in no slab and no large buffer.
    pub free_bytes: usize,
    /// Most bytes that may be registered.
    pub limit_bytes: usize,
    /// Registrations whose keys were replaced and which are still good.
    pub old_registrations: usize,
}

impl Pool {
    /// Maps and registers `initial_bytes` with each of `pds`: one for each device (rail) that shall reach the memory. A buffer's keys are told apart by
    /// the index in `pds`. Errors: no `pds`, a configuration that contradicts itself, memory or registration refused.
    pub fn new(pds: &[Arc<dyn ProtectionDomain>], config: PoolConfig) -> Result<Self, FabricError> {
        if pds.is_empty() {
            return Err(FabricError::misuse(
                "a pool needs a protection domain: its memory is registered with each one",
            ));
        }
        if config.initial_bytes > config.limit_bytes {
            return Err(FabricError::misuse(format!(
                "initial_bytes is {} and limit_bytes only {}: raise the limit, or start with less",
                config.initial_bytes, config.limit_bytes
            )));
        }
        if config.best_pages > config.least_pages {
            return Err(FabricError::misuse(format!(
                "least_pages ({}) are better than best_pages ({}): exchange them",
                config.least_pages, config.best_pages
            )));
        }
        config.access.check_mr()?;
        let shared = Arc::new(Shared::new(pds.to_vec(), config, Home::here()?));
        if shared.config.initial_bytes > 0 {
            shared.grow(shared.config.initial_bytes)?;
        }
        Ok(Self { root: Arc::new(Root { shared, tokens: Mutex::new(Vec::new()) }) })
    }

    /// A buffer of `bytes`, aligned to a cache line. Its bytes are what the last owner left, or zero ([`PoolConfig::zeroing`]). Errors: `ENOMEM`
    /// beyond `limit_bytes`, `EPERM` in a forked child.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, FabricError> {
        magazine::alloc(&self.root, bytes, class::class_of(bytes))
    }

    /// A buffer at a multiple of `align`: a power of two up to 4096.
    pub fn alloc_aligned(&self, bytes: usize, align: usize) -> Result<Buffer, FabricError> {
        if !align.is_power_of_two() || align > PAGE {
            return Err(FabricError::misuse(format!(
                "buffers are aligned to a power of two up to {PAGE}, not to {align}"
            )));
        }
        let class = if align <= LINE { class::class_of(bytes) } else { class::page_class_of(bytes) };
        magazine::alloc(&self.root, bytes, class)
    }

    /// Registers every arena anew with every domain. From then on buffers tell the new keys. The old ones stay good until [`Self::retire_old`]. Either
    /// all arenas change or, on an error, none. Returns the number of registrations made.
    pub fn rotate_keys(&self) -> Result<usize, FabricError> {
        self.root.shared.rotate_keys()
    }

    /// Deregisters what [`Self::rotate_keys`] replaced: who still uses an old key gets a refusal from now on. To be called when what was posted with old
    /// keys has completed. Returns the number of registrations that are gone; `EBUSY` while a memory window is bound to one, which then stays.
    pub fn retire_old(&self) -> Result<usize, FabricError> {
        self.root.shared.retire_old()
    }

    /// Whether both are the same pool.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }

    /// Whether windows can be bound to its memory.
    pub(crate) fn lets_windows(&self) -> bool {
        self.root.shared.config.access.contains(AccessFlags::MW_BIND)
    }

    /// What it has.
    pub fn report(&self) -> PoolReport {
        self.root.shared.report()
    }

    /// Number of protection domains that it is registered with.
    pub fn domains(&self) -> usize {
        self.root.shared.pds.len()
    }
}

impl Root {
    /// A token for the calling thread.
    fn new_token(&self) -> Arc<Token> {
        let token = Arc::new(Token { shared: Arc::clone(&self.shared) });
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&token));
        token
    }

    /// The thread of this token has ended.
    fn forget_token(&self, token: &Arc<Token>) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|known| !Arc::ptr_eq(known, token));
    }
}
