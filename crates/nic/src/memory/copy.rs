//! Copies in and out of memory that may go away under us (D10). A fault inside one of these routines is an error return.
//!
//! On x86-64 they are a few lines of assembly between two labels; [`super::guard`]'s signal handler recognises a fault by
//! its program counter and continues at a landing pad that returns 1. They use no stack, so the landing pad is right
//! wherever the fault was. Elsewhere the kernel copies (`process_vm_readv`), which reports a fault as EFAULT: correct,
//! and slower.
//!
//! **Order and tearing.** Registered memory is read and written in ascending order of addresses, and x86 shows stores in
//! program order, so whoever polls the last byte of a message finds the rest. Each access is a naturally aligned 1, 2, 4,
//! 8, 16, 32 or 64 bytes *of the registered side*: `copy_in` aligns its stores, `copy_out` its loads. An aligned access of up
//! to 8 bytes is one access in the architecture; an aligned 16-byte one is, on processors with AVX (Intel SDM 3A 9.1.1), and
//! on the others consists of two whole 8-byte ones; an aligned 32-byte one consists of one or two 16-byte ones on every
//! processor that has it, and a 64-byte one of such. So an aligned 8-byte word never tears. `rep movsb` promises neither.

#[cfg(any(not(target_arch = "x86_64"), test))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use portable as routines;
use scalefabric_verbs::Sge;
use scalefabric_wire::icrc::Running;
#[cfg(target_arch = "x86_64")]
use x86_64 as routines;
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::landing_pad;

/// The memory is not mapped, or its protection forbids the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

fn whole(status: u32) -> Result<(), Gone> {
    if status == 0 { Ok(()) } else { Err(Gone) }
}

/// Copies `data` to registered memory. On a fault, a part may have been written.
///
/// # Safety
/// The table grants writing `data.len()` bytes at `to`, now. No Rust reference reaches them.
#[inline]
pub(super) unsafe fn copy_in(to: *mut u8, data: &[u8]) -> Result<(), Gone> {
    // SAFETY: the source is a slice; the destination is the caller's; a fault there is caught.
    whole(unsafe { routines::copy_in(to, data.as_ptr(), data.len()) })
}

/// Copies from registered memory to `out`. On a fault, `out` is partly filled.
///
/// # Safety
/// The table grants reading `out.len()` bytes at `from`, now.
#[inline]
pub(super) unsafe fn copy_out(from: *const u8, out: &mut [u8]) -> Result<(), Gone> {
    // SAFETY: the destination is a slice; the source is the caller's; a fault there is caught.
    whole(unsafe { routines::copy_out(out.as_mut_ptr(), from, out.len()) })
}

/// Copies from registered memory to `out`, and runs the bytes that were copied through a CRC: in one pass where the processor and
/// the address allow it, so that each byte is loaded once. On a fault, `out` is partly filled.
///
/// # Safety
/// As [`copy_out`].
#[inline]
pub(super) unsafe fn copy_out_summed(from: *const u8, out: &mut [u8], mut sum: Running) -> Result<Running, Gone> {
    let mut done = 0;
    if out.len() >= 2 * routines::BLOCK && routines::can_sum(from) {
        done = out.len() - out.len() % routines::BLOCK;
        let mut left = [0; routines::LEFT];
        // SAFETY: as in `copy_out`; `done` is a multiple of a block and not 0, and the address is as the routine needs it.
        whole(unsafe { routines::copy_out_summed(out.as_mut_ptr(), from, done, &mut left, sum.register()) })?;
        // What is left of the bytes stands for all of them, the register before them included.
        sum = Running::resume(0);
        sum.update(&left);
    }
    let rest = &mut out[done..];
    if !rest.is_empty() {
        // SAFETY: the caller's promise, for the bytes behind.
        unsafe { copy_out(from.wrapping_add(done), rest) }?;
        sum.update(rest);
    }
    Ok(sum)
}

/// Copies between two ranges of registered memory, the order and the whole words being those of `to`. On a fault at either side, a part
/// may have been written.
///
/// # Safety
/// The table grants writing `length` bytes at `to`, and reading as many at `from`, now. No Rust reference reaches those at `to`.
#[inline]
pub(super) unsafe fn copy_between(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
    // SAFETY: as the caller says; faults are caught.
    whole(unsafe { routines::copy_in(to, from, length) })
}

/// Reads 8 bytes in one piece, with acquire ordering.
///
/// # Safety
/// As [`copy_out`].
pub(super) unsafe fn load_u64(from: *const u64) -> Result<u64, Gone> {
    let mut value = 0;
    // SAFETY: as the caller says; `value` is ours.
    whole(unsafe { routines::load(from, &mut value) }).map(|()| value)
}

/// Writes 8 bytes in one piece, with release ordering.
///
/// # Safety
/// As [`copy_in`].
pub(super) unsafe fn store_u64(to: *mut u64, value: u64) -> Result<(), Gone> {
    // SAFETY: as the caller says.
    whole(unsafe { routines::store(to, value) })
}

/// Compares and swaps 8 bytes; returns the old value. Sequentially consistent, also for this host's processors.
///
/// # Safety
/// As [`copy_in`].
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Gone> {
    let mut old = 0;
    // SAFETY: as the caller says; `old` is ours.
    whole(unsafe { routines::compare_swap(at, compare, swap, &mut old) }).map(|()| old)
}

/// Adds to 8 bytes; returns the old value. Sequentially consistent.
///
/// # Safety
/// As [`copy_in`].
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Gone> {
    let mut old = 0;
    // SAFETY: as the caller says; `old` is ours.
    whole(unsafe { routines::fetch_add(at, add, &mut old) }).map(|()| old)
}

/// Touches one byte in each page of `length` bytes at `at`, reading or (without changing it) writing.
///
/// # Safety
/// If `write`, the caller may write there.
pub(super) unsafe fn touch(at: *mut u8, length: usize, page: usize, write: bool) -> Result<(), Gone> {
    if length == 0 {
        return Ok(());
    }
    let end = at.wrapping_add(length - 1);
    let mut next = at;
    loop {
        // SAFETY: as the caller says.
        whole(unsafe { if write { routines::touch_write(next) } else { routines::touch_read(next) } })?;
        let page_start = next.wrapping_sub(next as usize % page);
        if end as usize - (page_start as usize) < page {
            return Ok(());
        }
        next = page_start.wrapping_add(page);
    }
}

/// Copies the bytes that SGEs name by address into `out` (INLINE by SGEs: lkeys are not looked at). Returns how many.
/// Bytes beyond `out` are not copied: the caller has checked that they fit.
///
/// The caller has called [`super::ensure_here`] a moment ago: what is not there is an error then, and no signal.
///
/// # Safety
/// The SGEs name memory that the calling thread may read.
#[inline]
pub unsafe fn gather_raw(sges: &[Sge], out: &mut [u8]) -> Result<usize, Gone> {
    let mut filled = 0;
    for sge in sges {
        let length = (sge.length as usize).min(out.len() - filled);
        // SAFETY: the caller's promise.
        unsafe { copy_out(sge.addr as usize as *const u8, &mut out[filled..filled + length]) }?;
        filled += length;
    }
    Ok(filled)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize) -> u32;

    fn x86_in(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: the test's buffers.
        unsafe { routines::copy_in(to, from, length) }
    }

    fn narrow_in(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: the test's buffers.
        unsafe { routines::narrow_copy_in(to, from, length) }
    }

    fn narrow_out(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: the test's buffers.
        unsafe { routines::narrow_copy_out(to, from, length) }
    }

    fn x86_out(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: the test's buffers.
        unsafe { routines::copy_out(to, from, length) }
    }

    #[test]
    fn each_length_at_each_alignment_copies_exactly_its_bytes() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 7 + 1) as u8 | 1).collect();
        let copies: [Copy; 6] = [narrow_in, narrow_out, x86_in, x86_out, portable::copy_in, portable::copy_out];
        for (c, copy) in copies.into_iter().enumerate() {
            // Short ones each; long ones, and the kernel's slow copies, in steps that meet every remainder.
            let lengths = (0..200).step_by(if c < 4 { 1 } else { 37 }).chain((200..560).step_by(23));
            for (length, to, from) in lengths.flat_map(|l| (0..33).map(move |to| (l, to, (to * 5 + l) % 33))) {
                let mut target = vec![0u8; 640];
                // SAFETY: both ranges lie inside their vectors.
                let status = unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), length) };
                assert_eq!(status, 0);
                assert_eq!(target[to..to + length], source[from..from + length], "{c} {length} {to} {from}");
                assert!(target[..to].iter().chain(&target[to + length..]).all(|&b| b == 0), "{c} {length} {to} {from}");
            }
        }
    }

    #[test]
    fn copying_and_summing_in_one_pass_is_copying_and_then_summing() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i * i * 7 + i / 3) as u8).collect();
        // Where one pass is possible, and where it is not; and each place in a line of the target.
        let aligned = source.as_ptr().align_offset(64);
        let lengths = (0..700).step_by(3).chain([768, 1024, 2048, 4096, 4097, 4222]);
        let cases =
            lengths.flat_map(|length| [aligned, aligned + 32, aligned + 8, aligned + 1].map(|from| (length, from)));
        for (number, (length, from)) in cases.enumerate() {
            let places = [number % 67, number / 67 * 4 % 64, 12];
            for (to, register) in places.into_iter().flat_map(|to| [0, !0, 0x1234_5678].map(|register| (to, register)))
            {
                let (mut target, mut sum) = (vec![0u8; length + 200], Running::resume(register));
                let to = target.as_ptr().align_offset(64) + to;
                // SAFETY: both ranges lie inside their vectors.
                let told = unsafe {
                    copy_out_summed(source.as_ptr().add(from), &mut target[to..to + length], Running::resume(register))
                };
                sum.update(&source[from..from + length]);
                assert_eq!(told.map(Running::finish), Ok(sum.finish()), "{length} from {from}");
                assert_eq!(target[to..to + length], source[from..from + length], "{length} to {to}");
                assert!(target[..to].iter().chain(&target[to + length..]).all(|&byte| byte == 0), "{length} to {to}");
            }
        }
    }

    #[test]
    fn atomics_return_the_old_value() {
        let mut word = 5u64;
        let at: *mut u64 = &mut word;
        // SAFETY: the test's word.
        unsafe {
            assert_eq!(compare_swap(at, 4, 9), Ok(5));
            assert_eq!(compare_swap(at, 5, 9), Ok(5));
            assert_eq!(fetch_add(at, u64::MAX), Ok(9));
            assert_eq!(load_u64(at), Ok(8));
            assert_eq!(store_u64(at, 1 << 63), Ok(()));
            assert_eq!(load_u64(at), Ok(1 << 63));
            let mut old = 0;
            assert_eq!(portable::compare_swap(at, 1 << 63, 3, &mut old), 0);
            assert_eq!(portable::fetch_add(at, 1, &mut old), 0);
            assert_eq!((old, *at), (3, 4));
            assert_eq!(portable::touch_write(at.cast()), 0);
            assert_eq!(*at, 4);
        }
    }

    #[test]
    fn unmapped_memory_is_an_error_in_each_routine() {
        crate::memory::guard::ensure_here();
        let gone = 16 as *mut u8;
        let mut out = [0; 100];
        // SAFETY: page zero is never mapped; faults are caught.
        unsafe {
            assert_eq!(copy_in(gone, &[1; 100]), Err(Gone));
            assert_eq!(copy_in(gone, &[1; 1000]), Err(Gone), "the wide routine");
            assert_eq!(copy_out(gone, &mut [1; 1000]), Err(Gone), "the wide routine");
            assert_eq!(copy_out(gone, &mut out), Err(Gone));
            for aligned in [32, 64] {
                let told = copy_out_summed(aligned as *const u8, &mut [1; 1000], Running::resume(0));
                assert!(matches!(told, Err(Gone)), "those that sum");
            }
            assert_eq!(load_u64(gone.cast()), Err(Gone));
            assert_eq!(store_u64(gone.cast(), 1), Err(Gone));
            assert_eq!(compare_swap(gone.cast(), 1, 2), Err(Gone));
            assert_eq!(fetch_add(gone.cast(), 1), Err(Gone));
            assert_eq!(touch(gone, 1, 4096, false), Err(Gone));
            assert_eq!(touch(gone, 1, 4096, true), Err(Gone));
            // Not canonical: a general protection fault.
            assert_eq!(copy_out(0x8000_0000_0000_0000_usize as *const u8, &mut out), Err(Gone));
            assert_eq!(portable::copy_in(gone, out.as_ptr(), 1), 1);
            assert_eq!(portable::load(gone.cast(), out.as_mut_ptr().cast()), 1);
        }
    }

    #[test]
    fn inline_bytes_are_gathered_by_address() {
        let (a, b) = ([1u8, 2, 3], [4u8, 5]);
        let sge = |bytes: &[u8]| Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, ..Sge::default() };
        let mut out = [0; 8];
        // SAFETY: the SGEs name the test's arrays.
        assert_eq!(unsafe { gather_raw(&[sge(&a), sge(&[]), sge(&b)], &mut out) }, Ok(5));
        assert_eq!(out, [1, 2, 3, 4, 5, 0, 0, 0]);
    }
}
