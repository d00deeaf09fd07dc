//! The atomics that rings and completion queues are made of: those of `std`, or loom's when built with `--cfg loom`.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, and goes on if another holder panicked: what these locks guard is whole between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
