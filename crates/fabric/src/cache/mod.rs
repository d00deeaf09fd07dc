//! The registration cache: registrations of memory that the application owns, kept while the memory is there, so that the next call for the same bytes
//! costs a look instead of a registration. It never finds a registration whose memory went away in between; where it cannot be sure it keeps nothing.
//! The reasons stand in `docs/decisions/registration-cache.md`, the argument in `core.rs`.
//!
//! Unsafe code stands in `region.rs`, which registers, and `watch.rs`, which talks to the kernel.
//!
//! **Fork.** A child never finds anything: every call answers `EPERM`, and dropping what was inherited does nothing.

mod config;
mod core;
mod entry;
mod interval;
mod quarantine;
mod region;
mod threads;
mod watch;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use scalefabric_verbs::ProtectionDomain;

pub use config::{CacheConfig, CacheReport, Passing, Watching, Weakness};
pub use region::Region;

use self::core::{Core, Source};
use self::watch::{Maps, Watch};
use crate::error::FabricError;
use crate::fork::Home;

/// Most registrations that can be kept.
const MOST_ENTRIES: usize = 1 << 16;

/// Every cache of the process, for who hears of vanished memory without knowing whose it was.
static CACHES: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// A cache of registrations. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    owner: Arc<Owner>,
}

/// Stops the threads with the last clone.
#[derive(Debug)]
struct Owner {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl Cache {
    /// A cache that registers with each of `pds`: one for each device (rail) that shall reach the memory. It is made even where the kernel does not tell
    /// what goes away; it then keeps nothing, and [`Self::report`] says why.
    pub fn new(pds: &[Arc<dyn ProtectionDomain>], config: CacheConfig) -> Result<Self, FabricError> {
        if pds.is_empty() {
            return Err(FabricError::misuse("a cache needs a protection domain: it registers with each one"));
        }
        if config.max_entries > MOST_ENTRIES {
            return Err(FabricError::misuse(format!(
                "max_entries is {}: {MOST_ENTRIES} are the most, since each may be a mapping of its own to the kernel",
                config.max_entries
            )));
        }
        config.access.check_mr()?;
        let home = Home::here()?;
        let (source, reason) = match config.watching {
            Watching::Kernel => match Watch::open().and_then(|watch| Ok(Source::Kernel { watch, maps: Maps::open()? }))
            {
                Ok(source) => (source, None),
                Err(why) => (Source::Nobody, Some(why)),
            },
            Watching::Promised => (Source::Promised, None),
            Watching::Never => (Source::Nobody, None),
        };
        let core = Arc::new(Core::new(pds.to_vec(), config, home, source, reason));
        let mut owner = Owner { core: Arc::clone(&core), threads: Vec::new() };
        let failed = |error: std::io::Error| FabricError::environment(format!("a thread of the cache: {error}"));
        if core.config.batch > 1 || core.keeps() {
            let core = Arc::clone(&core);
            owner.threads.push(watch::spawn("sf-cache-sweep", move || threads::sweep(&core)).map_err(failed)?);
        }
        if matches!(core.source, Source::Kernel { .. }) {
            let core = Arc::clone(&core);
            owner.threads.push(watch::spawn("sf-cache-read", move || threads::read(&core)).map_err(failed)?);
        }
        let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
        caches.retain(|core| core.strong_count() > 0);
        caches.push(Arc::downgrade(&core));
        Ok(Self { owner: Arc::new(owner) })
    }

    #[inline]
    fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    /// Loses what it keeps of `length` bytes at `addr`, because they are about to go away. Regions in use stay registered until they are dropped.
    pub fn forget(&self, addr: *const u8, length: usize) {
        let core = self.core();
        if core.home.is_here() {
            core.forget(&mut core.lock(), addr.addr(), addr.addr().saturating_add(length));
            core.work.notify_one();
        }
    }

    /// Loses everything that it keeps: keys are new from here on, and old ones are refused once the regions that use them are dropped.
    pub fn clear(&self) {
        self.forget(std::ptr::null(), usize::MAX);
    }

    /// Deregisters now what waits for a batch.
    pub fn flush(&self) {
        let core = self.core();
        if core.home.is_here() {
            let mut state = core.lock();
            let waiting = state.removed.drain(..).collect();
            state.reserve();
            drop(state);
            core.deregister(waiting);
        }
    }

    /// Asks the kernel whether a change is under way, and does nothing else: what every hit does, for benchmarks that want to know what the rest of it costs.
    #[doc(hidden)]
    #[inline]
    pub fn ask_kernel(&self) -> bool {
        self.core().settled()
    }

    /// What it has and did.
    pub fn report(&self) -> CacheReport {
        self.core().report()
    }
}

/// [`Cache::forget`] for every cache of the process: for hooks of `munmap` and its like, which do not know who registered. The hook calls it before
/// the memory goes away. It frees nothing; where caches are made or dropped at the same time, it waits for that.
pub fn forget_everywhere(addr: *const u8, length: usize) {
    let caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    for core in caches.iter().filter_map(Weak::upgrade).filter(|core| core.home.is_here()) {
        core.forget(&mut core.lock(), addr.addr(), addr.addr().saturating_add(length));
        core.work.notify_one();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let core = &self.core;
        if !core.home.is_here() {
            // The threads are the parent's, and descriptors are closed.
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            std::mem::forget(Arc::clone(core));
            return;
        }
        let mut state = core.lock();
        state.must_stop = true;
        core.forget(&mut state, 0, usize::MAX);
        let watched: Vec<_> = state.removed.iter().filter(|entry| entry.is_watched).map(Arc::clone).collect();
        watched.iter().for_each(|entry| core.unwatch(&state, entry.start, entry.end));
        drop(state);
        core.work.notify_all();
        if let Source::Kernel { watch, .. } = &core.source {
            watch.tell_to_stop();
        }
        for thread in self.threads.drain(..) {
            // It has panicked at worst, and said so.
            let _ = thread.join();
        }
        let removed = core.lock().removed.drain(..).collect();
        core.deregister(removed);
    }
}
