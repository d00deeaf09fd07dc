//! One registration of the cache: its range, its keys, who uses it, and whether it may still be found. It decides nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use scalefabric_verbs::{LKey, MemoryRegion, RKey};

use super::core::Core;
use crate::fork::Home;

/// Low bits of `uses`: handles; above: how often it was found.
const HANDLES: u64 = (1 << 24) - 1;

pub(super) struct Entry {
    pub start: usize,
    pub end: usize,
    /// With each protection domain.
    pub keys: Box<[(LKey, RKey)]>,
    /// Whether peers have any right.
    pub is_lent: bool,
    /// Whether the kernel was asked to watch the range.
    pub is_watched: bool,
    home: Home,
    core: Weak<Core>,
    /// Taken out by who deregisters.
    regions: Mutex<Vec<Arc<dyn MemoryRegion>>>,
    /// It is in the map, or about to be: may be found.
    is_live: AtomicBool,
    uses: AtomicU64,
    /// The cache's clock when it was last found.
    used: AtomicU64,
}

/// Without its keys.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("start", &self.start).field("end", &self.end).finish_non_exhaustive()
    }
}

/// A range that was registered.
pub(super) struct Registered {
    pub start: usize,
    pub end: usize,
    pub regions: Vec<Arc<dyn MemoryRegion>>,
}

impl Entry {
    /// An entry in use by one handle.
    pub fn new(core: &Arc<Core>, made: Registered, is_live: bool) -> Arc<Self> {
        let Registered { start, end, regions } = made;
        Arc::new(Self {
            start,
            end,
            keys: regions.iter().map(|region| (region.lkey(), region.rkey())).collect(),
            is_lent: core.is_lent,
            is_watched: is_live,
            home: core.home,
            core: Arc::downgrade(core),
            regions: Mutex::new(regions),
            is_live: AtomicBool::new(is_live),
            uses: AtomicU64::new(1),
            used: AtomicU64::new(core.now()),
        })
    }

    pub fn bytes(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    pub fn is_here(&self) -> bool {
        self.home.is_here()
    }

    #[inline]
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::SeqCst)
    }

    /// It may not be found any more.
    pub fn kill(&self) {
        // With `hold` and `is_idle`: either who holds sees that it is dead, or who wants to deregister sees the handle.
        self.is_live.store(false, Ordering::SeqCst);
    }

    /// Another handle, which found it at `now`.
    #[inline]
    pub fn hold(&self, now: u64) {
        self.uses.fetch_add(HANDLES + 2, Ordering::SeqCst);
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// A handle is gone. True: it was the last, and the entry is dead.
    #[inline]
    pub fn let_go(&self) -> bool {
        self.uses.fetch_sub(1, Ordering::SeqCst) & HANDLES == 1 && !self.is_live()
    }

    /// It was not a find after all.
    pub fn take_back_find(&self) {
        self.uses.fetch_sub(HANDLES + 1, Ordering::Relaxed);
    }

    pub fn is_idle(&self) -> bool {
        self.uses.load(Ordering::SeqCst) & HANDLES == 0
    }

    /// How often it was found.
    pub fn finds(&self) -> u64 {
        self.uses.load(Ordering::Relaxed) / (HANDLES + 1)
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn core(&self) -> Option<Arc<Core>> {
        self.core.upgrade()
    }

    /// Its registrations, for the first who asks when nobody uses it and nobody can find it.
    pub fn claim(&self) -> Vec<Arc<dyn MemoryRegion>> {
        if self.is_live() || !self.is_idle() {
            return Vec::new();
        }
        std::mem::take(&mut self.regions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let regions = std::mem::take(self.regions.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.home.is_here() {
            regions.iter().for_each(|region| drop(region.destroy()));
        } else {
            // The registrations are the parent's.
            std::mem::forget(regions);
        }
    }
}
