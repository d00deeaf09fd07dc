//! The atomics and locks that rings, completion queues and the memory table are made of: those of `std`, or loom's when
//! built with `--cfg loom`.

#[cfg(loom)]
pub use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
/// Loom's would want to hear of each borrow; what stands in it has a lock around it that loom follows.
pub use std::cell::UnsafeCell;
#[cfg(not(loom))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

/// A full fence, as `fence(SeqCst)`, at half its cost on x86-64: there an operation with a `lock` prefix orders everything before it with
/// everything behind it, and processors do it faster than `mfence`.
#[inline]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: it changes no byte: the top of the stack gets the value that it has. WHY: LLVM makes an `mfence` of every fence, and of each
    // atomic operation that changes nothing.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}

/// A full fence directly behind an atomic read-modify-write with [`Ordering::SeqCst`]: on x86-64 that is one itself, for all that is before and behind it.
#[inline]
pub fn fence_behind_change() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}

/// Locks, and goes on if another holder panicked: what these locks guard is whole between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
