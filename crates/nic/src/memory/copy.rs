//! Copies in and out of memory that may go away under us (D10). A fault inside one of these routines is an error return.
//!
//! On x86-64 they are a few lines of assembly between two labels; [`super::guard`]'s signal handler recognises a fault by
//! its program counter and continues at a landing pad that returns 1. They use no stack, so the landing pad is right
//! wherever the fault was. Elsewhere the kernel copies (`process_vm_readv`), which reports a fault as EFAULT: correct,
//! and slower.
//!
//! **Order and tearing.** Registered memory is read and written in ascending order of addresses, and x86 shows stores in
//! program order, so whoever polls the last byte of a message finds the rest. Each access is a naturally aligned 1, 2, 4,
//! 8, 16 or 32 bytes *of the registered side*: `copy_in` aligns its stores, `copy_out` its loads. An aligned access of up
//! to 8 bytes is one access in the architecture; an aligned 16-byte one is, on processors with AVX (Intel SDM 3A 9.1.1), and
//! on the others consists of two whole 8-byte ones; an aligned 32-byte one consists of one or two 16-byte ones on every
//! processor that has it. So an aligned 8-byte word never tears. `rep movsb` promises neither.

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
        let mut left = [0; routines::BLOCK];
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

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    //! Arguments in rdi, rsi, rdx, rcx; result in eax. No stack is used and no register kept, so that `ret` at the
    //! landing pad returns from any point.

    macro_rules! copy_routine {
        ($name:literal, $aligned_side:literal, $load:literal, $store:literal) => {
            concat!(
                // Head: move 1, 2, 4, 8 bytes until the registered side is aligned to 16, or too little is left.
                ".p2align 5\n.globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ", @function\n",
                $name,
                ":\n",
                "test ",
                $aligned_side,
                ", 15\n jz 5f\n",
                "test ",
                $aligned_side,
                ", 1\n jz 2f\n test rdx, rdx\n jz 9f\n",
                "mov al, [rsi]\n mov [rdi], al\n inc rsi\n inc rdi\n dec rdx\n",
                "2: test ",
                $aligned_side,
                ", 2\n jz 3f\n cmp rdx, 2\n jb 9f\n",
                "mov ax, [rsi]\n mov [rdi], ax\n add rsi, 2\n add rdi, 2\n sub rdx, 2\n",
                "3: test ",
                $aligned_side,
                ", 4\n jz 4f\n cmp rdx, 4\n jb 8f\n",
                "mov eax, [rsi]\n mov [rdi], eax\n add rsi, 4\n add rdi, 4\n sub rdx, 4\n",
                "4: test ",
                $aligned_side,
                ", 8\n jz 5f\n cmp rdx, 8\n jb 7f\n",
                "mov rax, [rsi]\n mov [rdi], rax\n add rsi, 8\n add rdi, 8\n sub rdx, 8\n",
                // Body: 64 bytes a round, then 16.
                "5: sub rdx, 64\n jb 6f\n",
                ".p2align 4\n",
                "55: ",
                $load,
                " xmm0, [rsi]\n",
                $load,
                " xmm1, [rsi+16]\n",
                $load,
                " xmm2, [rsi+32]\n",
                $load,
                " xmm3, [rsi+48]\n",
                $store,
                " [rdi], xmm0\n",
                $store,
                " [rdi+16], xmm1\n",
                $store,
                " [rdi+32], xmm2\n",
                $store,
                " [rdi+48], xmm3\n",
                "add rsi, 64\n add rdi, 64\n sub rdx, 64\n jae 55b\n",
                "6: add rdx, 64\n",
                "66: cmp rdx, 16\n jb 67f\n",
                $load,
                " xmm0, [rsi]\n",
                $store,
                " [rdi], xmm0\n",
                "add rsi, 16\n add rdi, 16\n sub rdx, 16\n jmp 66b\n",
                // Tail: 8, 4, 2, 1 as the bits of what is left say; the last byte is stored last.
                "67: test dl, 8\n jz 7f\n mov rax, [rsi]\n mov [rdi], rax\n add rsi, 8\n add rdi, 8\n",
                "7: test dl, 4\n jz 8f\n mov eax, [rsi]\n mov [rdi], eax\n add rsi, 4\n add rdi, 4\n",
                "8: test dl, 2\n jz 9f\n mov ax, [rsi]\n mov [rdi], ax\n add rsi, 2\n add rdi, 2\n",
                "9: test dl, 1\n jz 99f\n mov al, [rsi]\n mov [rdi], al\n",
                "99: xor eax, eax\n ret\n.size ",
                $name,
                ", . - ",
                $name,
                "\n",
            )
        };
    }

    macro_rules! routine {
        ($name:literal, $body:literal) => {
            concat!(
                ".p2align 4\n.globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ", @function\n",
                $name,
                ":\n",
                $body,
                "\nxor eax, eax\nret\n.size ",
                $name,
                ", . - ",
                $name,
                "\n"
            )
        };
    }

    // For 256 bytes and more, with AVX: twice as fast in the first-level cache. What is left goes to the narrow routine.
    macro_rules! wide_routine {
        ($name:literal, $narrow:literal, $aligned_side:literal, $load:literal, $store:literal, $wide_load:literal,
         $wide_store:literal) => {
            concat!(
                ".p2align 5\n.globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ", @function\n",
                $name,
                ":\n",
                "test ",
                $aligned_side,
                ", 31\n jz 5f\n",
                "test ",
                $aligned_side,
                ", 1\n jz 2f\n",
                "mov al, [rsi]\n mov [rdi], al\n inc rsi\n inc rdi\n dec rdx\n",
                "2: test ",
                $aligned_side,
                ", 2\n jz 3f\n",
                "mov ax, [rsi]\n mov [rdi], ax\n add rsi, 2\n add rdi, 2\n sub rdx, 2\n",
                "3: test ",
                $aligned_side,
                ", 4\n jz 4f\n",
                "mov eax, [rsi]\n mov [rdi], eax\n add rsi, 4\n add rdi, 4\n sub rdx, 4\n",
                "4: test ",
                $aligned_side,
                ", 8\n jz 44f\n",
                "mov rax, [rsi]\n mov [rdi], rax\n add rsi, 8\n add rdi, 8\n sub rdx, 8\n",
                "44: test ",
                $aligned_side,
                ", 16\n jz 5f\n",
                $load,
                " xmm0, [rsi]\n",
                $store,
                " [rdi], xmm0\n add rsi, 16\n add rdi, 16\n sub rdx, 16\n",
                "5: sub rdx, 128\n",
                ".p2align 4\n",
                "55: ",
                $wide_load,
                " ymm0, [rsi]\n",
                $wide_load,
                " ymm1, [rsi+32]\n",
                $wide_load,
                " ymm2, [rsi+64]\n",
                $wide_load,
                " ymm3, [rsi+96]\n",
                $wide_store,
                " [rdi], ymm0\n",
                $wide_store,
                " [rdi+32], ymm1\n",
                $wide_store,
                " [rdi+64], ymm2\n",
                $wide_store,
                " [rdi+96], ymm3\n",
                "add rsi, 128\n add rdi, 128\n sub rdx, 128\n jae 55b\n",
                "add rdx, 128\n vzeroupper\n jmp ",
                $narrow,
                "\n.size ",
                $name,
                ", . - ",
                $name,
                "\n",
            )
        };
    }

    // Copies blocks of 128 bytes and folds them into one block with the same remainder: 8 streams of 128 bits side by side, each multiplied
    // by x^1024 modulo the polynomial before the next block is added (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
    // PCLMULQDQ Instruction", Intel 2009). rdi: to; rsi: from, aligned to 32; rdx: bytes, a multiple of 128 and not 0; rcx: the block that
    // is left; r8d: the register before; r9: the two factors, twice.
    macro_rules! fold {
        ($sum:literal, $at:literal) => {
            concat!(
                "vmovdqa ymm6, [rsi+",
                $at,
                "]\n",
                "vpclmulqdq ymm7, ",
                $sum,
                ", ymm5, 0x00\n",
                "vpclmulqdq ",
                $sum,
                ", ",
                $sum,
                ", ymm5, 0x11\n",
                "vmovdqu [rdi+",
                $at,
                "], ymm6\n",
                "vpxor ymm7, ymm7, ymm6\n",
                "vpxor ",
                $sum,
                ", ",
                $sum,
                ", ymm7\n",
            )
        };
    }
    macro_rules! sum_routine {
        ($name:literal) => {
            concat!(
                ".p2align 5\n.globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ", @function\n",
                $name,
                ":\n",
                "vmovdqa ymm0, [rsi]\n vmovdqa ymm1, [rsi+32]\n vmovdqa ymm2, [rsi+64]\n vmovdqa ymm3, [rsi+96]\n",
                "vmovdqu [rdi], ymm0\n vmovdqu [rdi+32], ymm1\n vmovdqu [rdi+64], ymm2\n vmovdqu [rdi+96], ymm3\n",
                "vmovd xmm4, r8d\n vpxor ymm0, ymm0, ymm4\n vmovdqu ymm5, [r9]\n",
                "add rsi, 128\n add rdi, 128\n sub rdx, 128\n jz 6f\n",
                ".p2align 4\n5:\n",
                fold!("ymm0", "0"),
                fold!("ymm1", "32"),
                fold!("ymm2", "64"),
                fold!("ymm3", "96"),
                "add rsi, 128\n add rdi, 128\n sub rdx, 128\n jnz 5b\n",
                "6: vmovdqu [rcx], ymm0\n vmovdqu [rcx+32], ymm1\n vmovdqu [rcx+64], ymm2\n vmovdqu [rcx+96], ymm3\n",
                "vzeroupper\n xor eax, eax\n ret\n.size ",
                $name,
                ", . - ",
                $name,
                "\n",
            )
        };
    }

    std::arch::global_asm!(
        ".pushsection .text.scalefabric_memory,\"ax\",@progbits",
        ".globl scalefabric_memory_wide_start",
        ".hidden scalefabric_memory_wide_start",
        "scalefabric_memory_wide_start:",
        wide_routine!(
            "scalefabric_memory_wide_copy_in",
            "scalefabric_memory_copy_in",
            "dil",
            "movups",
            "movaps",
            "vmovups",
            "vmovaps"
        ),
        wide_routine!(
            "scalefabric_memory_wide_copy_out",
            "scalefabric_memory_copy_out",
            "sil",
            "movaps",
            "movups",
            "vmovaps",
            "vmovups"
        ),
        sum_routine!("scalefabric_memory_wide_copy_out_summed"),
        ".globl scalefabric_memory_start",
        ".hidden scalefabric_memory_start",
        "scalefabric_memory_start:",
        copy_routine!("scalefabric_memory_copy_in", "dil", "movups", "movaps"),
        copy_routine!("scalefabric_memory_copy_out", "sil", "movaps", "movups"),
        routine!("scalefabric_memory_load", "mov rax, [rdi]\nmov [rsi], rax"),
        routine!("scalefabric_memory_store", "mov [rdi], rsi"),
        routine!("scalefabric_memory_compare_swap", "mov rax, rsi\nlock cmpxchg [rdi], rdx\nmov [rcx], rax"),
        routine!("scalefabric_memory_fetch_add", "lock xadd [rdi], rsi\nmov [rdx], rsi"),
        routine!("scalefabric_memory_touch_read", "mov al, [rdi]"),
        // Writes without changing, and without losing a concurrent change.
        routine!("scalefabric_memory_touch_write", "lock or byte ptr [rdi], 0"),
        ".globl scalefabric_memory_end",
        ".hidden scalefabric_memory_end",
        "scalefabric_memory_end:",
        ".globl scalefabric_memory_landing_pad",
        ".hidden scalefabric_memory_landing_pad",
        "scalefabric_memory_landing_pad:",
        "mov eax, 1",
        "ret",
        ".globl scalefabric_memory_wide_landing_pad",
        ".hidden scalefabric_memory_wide_landing_pad",
        "scalefabric_memory_wide_landing_pad:",
        // Dirty upper halves would slow down whoever uses SSE next.
        "vzeroupper",
        "mov eax, 1",
        "ret",
        ".popsection",
    );

    unsafe extern "C" {
        #[link_name = "scalefabric_memory_copy_in"]
        pub fn narrow_copy_in(to: *mut u8, from: *const u8, length: usize) -> u32;
        #[link_name = "scalefabric_memory_copy_out"]
        pub fn narrow_copy_out(to: *mut u8, from: *const u8, length: usize) -> u32;
        #[link_name = "scalefabric_memory_wide_copy_in"]
        fn wide_copy_in(to: *mut u8, from: *const u8, length: usize) -> u32;
        #[link_name = "scalefabric_memory_wide_copy_out"]
        fn wide_copy_out(to: *mut u8, from: *const u8, length: usize) -> u32;
        #[link_name = "scalefabric_memory_wide_copy_out_summed"]
        fn wide_copy_out_summed(
            to: *mut u8,
            from: *const u8,
            length: usize,
            left: *mut u8,
            register: u32,
            factors: *const u64,
        ) -> u32;
        #[link_name = "scalefabric_memory_load"]
        pub fn load(from: *const u64, value: *mut u64) -> u32;
        #[link_name = "scalefabric_memory_store"]
        pub fn store(to: *mut u64, value: u64) -> u32;
        #[link_name = "scalefabric_memory_compare_swap"]
        pub fn compare_swap(at: *mut u64, compare: u64, swap: u64, old: *mut u64) -> u32;
        #[link_name = "scalefabric_memory_fetch_add"]
        pub fn fetch_add(at: *mut u64, add: u64, old: *mut u64) -> u32;
        #[link_name = "scalefabric_memory_touch_read"]
        pub fn touch_read(at: *const u8) -> u32;
        #[link_name = "scalefabric_memory_touch_write"]
        pub fn touch_write(at: *mut u8) -> u32;
        static scalefabric_memory_wide_start: u8;
        static scalefabric_memory_start: u8;
        static scalefabric_memory_end: u8;
        static scalefabric_memory_landing_pad: u8;
        static scalefabric_memory_wide_landing_pad: u8;
    }

    /// From this length on the wide routines pay. They need at least 31 + 128 bytes.
    const WIDE: usize = 256;

    /// The fastest routine for the length.
    #[inline]
    pub unsafe fn copy_in(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: as the caller says.
        unsafe { if length < WIDE { narrow_copy_in(to, from, length) } else { long_copy_in(to, from, length) } }
    }

    // Not inline: the question for AVX would swell each caller.
    #[inline(never)]
    unsafe fn long_copy_in(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: as the caller says; AVX is there.
        unsafe {
            if std::arch::is_x86_feature_detected!("avx") {
                wide_copy_in(to, from, length)
            } else {
                narrow_copy_in(to, from, length)
            }
        }
    }

    /// The fastest routine for the length.
    #[inline]
    pub unsafe fn copy_out(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: as the caller says.
        unsafe { if length < WIDE { narrow_copy_out(to, from, length) } else { long_copy_out(to, from, length) } }
    }

    // Not inline: the question for AVX would swell each caller.
    #[inline(never)]
    unsafe fn long_copy_out(to: *mut u8, from: *const u8, length: usize) -> u32 {
        // SAFETY: as the caller says; AVX is there.
        unsafe {
            if std::arch::is_x86_feature_detected!("avx") {
                wide_copy_out(to, from, length)
            } else {
                narrow_copy_out(to, from, length)
            }
        }
    }

    /// What [`copy_out_summed`] folds to.
    pub const BLOCK: usize = 128;

    /// x^(1024+32) and x^(1024-32) modulo the polynomial, reflected, for both halves of a vector.
    static FACTORS: [u64; 4] = [0x1_e88e_f372, 0x1_4a7f_e880, 0x1_e88e_f372, 0x1_4a7f_e880];

    /// Whether [`copy_out_summed`] can read there: its loads are aligned, so that words do not tear.
    #[inline]
    pub fn can_sum(from: *const u8) -> bool {
        (from as usize).is_multiple_of(32)
            && std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("vpclmulqdq")
    }

    /// Copies, and folds what it copied and the register before it into `left`. `length` is a multiple of [`BLOCK`], and not 0;
    /// [`can_sum`] has said yes.
    pub unsafe fn copy_out_summed(
        to: *mut u8,
        from: *const u8,
        length: usize,
        left: &mut [u8; BLOCK],
        register: u32,
    ) -> u32 {
        // SAFETY: as the caller says; `left` has room for a block, and the factors are four words.
        unsafe { wide_copy_out_summed(to, from, length, left.as_mut_ptr(), register, FACTORS.as_ptr()) }
    }

    /// Where a routine that faulted at `counter` goes on; `None` if that is not one of ours.
    pub fn landing_pad(counter: usize) -> Option<usize> {
        let wide = (&raw const scalefabric_memory_wide_start) as usize;
        let narrow = (&raw const scalefabric_memory_start) as usize;
        let end = (&raw const scalefabric_memory_end) as usize;
        if !(wide..end).contains(&counter) {
            None
        } else if counter < narrow {
            Some((&raw const scalefabric_memory_wide_landing_pad) as usize)
        } else {
            Some((&raw const scalefabric_memory_landing_pad) as usize)
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), test))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
mod portable {
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

    pub fn can_sum(_from: *const u8) -> bool {
        false
    }

    pub unsafe fn copy_out_summed(_: *mut u8, _: *const u8, _: usize, _: &mut [u8; BLOCK], _: u32) -> u32 {
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
        // Where one pass is possible, and where it is not.
        let aligned = source.as_ptr().align_offset(32);
        for from in [aligned, aligned + 8, aligned + 1] {
            for length in (0..700).step_by(3).chain([768, 1024, 2048, 4096, 4097, 4222]) {
                for register in [0, !0, 0x1234_5678] {
                    let (mut target, mut sum) = (vec![0u8; length + 1], Running::resume(register));
                    // SAFETY: both ranges lie inside their vectors.
                    let told = unsafe {
                        copy_out_summed(source.as_ptr().add(from), &mut target[..length], Running::resume(register))
                    };
                    sum.update(&source[from..from + length]);
                    assert_eq!(told.map(Running::finish), Ok(sum.finish()), "{length} from {from}");
                    assert_eq!(target[..length], source[from..from + length]);
                    assert_eq!(target[length], 0);
                }
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
            let aligned = copy_out_summed(32 as *const u8, &mut [1; 1000], Running::resume(0));
            assert!(matches!(aligned, Err(Gone)), "the one that sums");
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
