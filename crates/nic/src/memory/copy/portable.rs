//! The kernel copies, and reports faults. It copies ascending and in words, but promises neither; atomics are
//! checked by the kernel first and then done here, so memory that goes away in between still faults. Good enough
//! to work on other machines; a routine in their assembly is the remedy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Copies within this process by the kernel. 0, or 1 on a fault.
fn kernel_copy(to: *mut u8, from: *const u8, length: usize, write: bool) -> u32 {
    let (mut done, pid) = (0, std::process::id() as libc::pid_t);
    while done < length {
        // `local` is the private side, `remote` the one that may fault.
        let (local, remote) = if write { (from.cast_mut(), to) } else { (to, from.cast_mut()) };
        let part = |base: *mut u8| libc::iovec { iov_base: base.wrapping_add(done).cast(), iov_len: length - done };
        let (local, remote) = (part(local), part(remote));
        // SAFETY: one iovec each; the private side is the caller's, the other is checked by the kernel.
        let n = unsafe {
            if write {
                libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
            } else {
                libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
            }
        };
        if n <= 0 {
            return 1;
        }
        done += n as usize;
    }
    0
}

/// No copy here sums.
pub const BLOCK: usize = 128;
pub const LEFT: usize = 16;

pub fn can_sum(_from: *const u8) -> bool {
    false
}

pub unsafe fn copy_out_summed(_: *mut u8, _: *const u8, _: usize, _: &mut [u8; LEFT], _: u32) -> u32 {
    1
}

pub unsafe fn copy_in(to: *mut u8, from: *const u8, length: usize) -> u32 {
    kernel_copy(to, from, length, true)
}

pub unsafe fn copy_out(to: *mut u8, from: *const u8, length: usize) -> u32 {
    kernel_copy(to, from, length, false)
}

/// Does `f` on the word if it can be touched now and is aligned.
fn on_word(at: *mut u64, f: impl FnOnce(&AtomicU64)) -> u32 {
    if !at.is_aligned() || unsafe_touch(at.cast()) != 0 {
        return 1;
    }
    // SAFETY: aligned, and mapped a moment ago. WHY: the kernel offers no atomic copy.
    f(unsafe { AtomicU64::from_ptr(at) });
    0
}

fn unsafe_touch(at: *mut u8) -> u32 {
    let mut byte = 0;
    kernel_copy(&mut byte, at, 1, false)
}

pub unsafe fn load(from: *const u64, value: *mut u64) -> u32 {
    // SAFETY: `value` is the caller's.
    on_word(from.cast_mut(), |word| unsafe { *value = word.load(Ordering::Acquire) })
}

pub unsafe fn store(to: *mut u64, value: u64) -> u32 {
    on_word(to, |word| word.store(value, Ordering::Release))
}

pub unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64, old: *mut u64) -> u32 {
    on_word(at, |word| {
        let found = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|v| v);
        // SAFETY: `old` is the caller's.
        unsafe { *old = found }
    })
}

pub unsafe fn fetch_add(at: *mut u64, add: u64, old: *mut u64) -> u32 {
    // SAFETY: `old` is the caller's.
    on_word(at, |word| unsafe { *old = word.fetch_add(add, Ordering::SeqCst) })
}

pub unsafe fn touch_read(at: *const u8) -> u32 {
    unsafe_touch(at.cast_mut())
}

/// Writes back the byte that it read: a change in between would be lost, so only registration uses it, and only
/// where the kernel cannot tell by MADV_POPULATE_WRITE.
pub unsafe fn touch_write(at: *mut u8) -> u32 {
    let mut byte = 0;
    if kernel_copy(&mut byte, at, 1, false) != 0 { 1 } else { kernel_copy(at, &byte, 1, true) }
}
