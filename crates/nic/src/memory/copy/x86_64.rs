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

// Copies blocks of 128 bytes and folds them into 16 bytes with the same remainder: 8 streams of 128 bits side by side, each multiplied
// by x^1024 modulo the polynomial before the next block is added (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009), at the end each on to its neighbour (x^256, x^128). rdi: to; rsi: from, aligned to 32; rdx: bytes, a
// multiple of 128 and not 0; rcx: the 16 bytes that are left; r8d: the register before; r9: the factors by distance, `FACTORS`.
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
// Carries a sum on to the one that follows at the distance of the factors in register 5.
macro_rules! carry {
    ($width:literal, $sum:literal, $next:literal) => {
        concat!(
            "vpclmulqdq ",
            $width,
            "7, ",
            $width,
            $sum,
            ", ",
            $width,
            "5, 0x00\n",
            "vpclmulqdq ",
            $width,
            $sum,
            ", ",
            $width,
            $sum,
            ", ",
            $width,
            "5, 0x11\n",
            "vpxor ",
            $width,
            "7, ",
            $width,
            "7, ",
            $width,
            $sum,
            "\n",
            "vpxor ",
            $width,
            $next,
            ", ",
            $width,
            $next,
            ", ",
            $width,
            "7\n",
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
            "vmovd xmm4, r8d\n vpxor ymm0, ymm0, ymm4\n vbroadcasti128 ymm5, [r9]\n",
            "add rsi, 128\n add rdi, 128\n sub rdx, 128\n jz 6f\n",
            ".p2align 4\n5:\n",
            fold!("ymm0", "0"),
            fold!("ymm1", "32"),
            fold!("ymm2", "64"),
            fold!("ymm3", "96"),
            "add rsi, 128\n add rdi, 128\n sub rdx, 128\n jnz 5b\n",
            "6: vbroadcasti128 ymm5, [r9+48]\n",
            carry!("ymm", "0", "1"),
            carry!("ymm", "1", "2"),
            carry!("ymm", "2", "3"),
            "vmovdqu xmm5, [r9+64]\n vextracti128 xmm2, ymm3, 1\n",
            carry!("xmm", "3", "2"),
            "vmovdqu [rcx], xmm2\n",
            "vzeroupper\n xor eax, eax\n ret\n.size ",
            $name,
            ", . - ",
            $name,
            "\n",
        )
    };
}

// The same with vectors of 64 bytes, four side by side (x^2048). The multiplication takes eight cycles on some processors, so that more bytes must be
// under way at once; what is 1 KiB ahead is fetched, because processors do not look ahead beyond a page. rsi is aligned to 64, rdi to 4, rdx at least 256.
// Stores that cross cache lines cost twice, and headers put every payload across: so each line of the target is put together from two loads, the last
// one's (`$before`) and this one's (`$now`), as register 9 says, and rdi stands at the beginning of a line.
macro_rules! broad_fold {
    ($sum:literal, $at:literal, $now:literal, $before:literal) => {
        concat!(
            "prefetcht0 [rsi+1024+",
            $at,
            "]\nvmovdqa64 ",
            $now,
            ", [rsi+",
            $at,
            "]\n",
            "vpclmulqdq zmm7, ",
            $sum,
            ", zmm5, 0x00\n",
            "vpclmulqdq ",
            $sum,
            ", ",
            $sum,
            ", zmm5, 0x11\n",
            broad_store!($at, $now, $before),
            "vpternlogq ",
            $sum,
            ", zmm7, ",
            $now,
            ", 0x96\n",
        )
    };
}
macro_rules! broad_store {
    ($at:literal, $now:literal, $before:literal) => {
        concat!("vpermt2d ", $before, ", zmm9, ", $now, "\nvmovdqa64 [rdi+", $at, "], ", $before, "\n")
    };
}
macro_rules! broad_carry {
    ($sum:literal, $next:literal) => {
        concat!(
            "vpclmulqdq zmm7, zmm",
            $sum,
            ", zmm5, 0x00\n",
            "vpclmulqdq zmm",
            $sum,
            ", zmm",
            $sum,
            ", zmm5, 0x11\n",
            "vpternlogq zmm",
            $next,
            ", zmm7, zmm",
            $sum,
            ", 0x96\n",
        )
    };
}
macro_rules! broad_sum_routine {
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
            "vmovdqa64 zmm0, [rsi]\n vmovdqa64 zmm1, [rsi+64]\n vmovdqa64 zmm2, [rsi+128]\n vmovdqa64 zmm3, [rsi+192]\n",
            // The words of the first line that are ours (k1), those of the one behind the last (k2), and where a line's words come from.
            "mov r11, rcx\n mov ecx, edi\n and ecx, 63\n shr ecx, 2\n and rdi, -64\n",
            "mov eax, 0xffff\n shl eax, cl\n kmovw k1, eax\n knotw k2, k1\n",
            "mov eax, 16\n sub eax, ecx\n vpbroadcastd zmm8, eax\n vpmovzxbd zmm9, [r9+80]\n vpaddd zmm9, zmm9, zmm8\n",
            "vpermd zmm8, zmm9, zmm0\n vmovdqu32 [rdi]{{k1}}, zmm8\n",
            "vmovdqa64 zmm8, zmm0\n",
            broad_store!("64", "zmm1", "zmm8"),
            "vmovdqa64 zmm8, zmm1\n",
            broad_store!("128", "zmm2", "zmm8"),
            "vmovdqa64 zmm8, zmm2\n",
            broad_store!("192", "zmm3", "zmm8"),
            "vmovdqa64 zmm8, zmm3\n",
            "vmovd xmm4, r8d\n vpxorq zmm0, zmm0, zmm4\n vbroadcasti32x4 zmm5, [r9+16]\n",
            "add rsi, 256\n add rdi, 256\n sub rdx, 512\n jb 6f\n",
            ".p2align 4\n5:\n",
            broad_fold!("zmm0", "0", "zmm6", "zmm8"),
            broad_fold!("zmm1", "64", "zmm8", "zmm6"),
            broad_fold!("zmm2", "128", "zmm6", "zmm8"),
            broad_fold!("zmm3", "192", "zmm8", "zmm6"),
            "add rsi, 256\n add rdi, 256\n sub rdx, 256\n jae 5b\n",
            "6: vbroadcasti32x4 zmm5, [r9]\n",
            broad_carry!("0", "2"),
            broad_carry!("1", "3"),
            "add rdx, 256\n jz 7f\n",
            broad_fold!("zmm2", "0", "zmm6", "zmm8"),
            broad_fold!("zmm3", "64", "zmm8", "zmm6"),
            "add rdi, 128\n",
            "7: vpermd zmm8, zmm9, zmm8\n vmovdqu32 [rdi]{{k2}}, zmm8\n",
            "vbroadcasti32x4 zmm5, [r9+32]\n",
            broad_carry!("2", "3"),
            "vbroadcasti128 ymm5, [r9+48]\n vextracti64x4 ymm2, zmm3, 1\n",
            carry!("ymm", "3", "2"),
            "vmovdqu xmm5, [r9+64]\n vextracti128 xmm3, ymm2, 1\n",
            carry!("xmm", "2", "3"),
            "vmovdqu [r11], xmm3\n",
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
    broad_sum_routine!("scalefabric_memory_broad_copy_out_summed"),
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
    #[link_name = "scalefabric_memory_broad_copy_out_summed"]
    fn broad_copy_out_summed(
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

/// Bytes that stand for all that were folded.
pub const LEFT: usize = 16;

/// For each distance d over which sums are carried: x^(d+32) and x^(d-32) modulo the polynomial, reflected. Then the numbers of the words of a line.
static FACTORS: [[u64; 2]; 6] = [
    // 1024
    [0x1_e88e_f372, 0x1_4a7f_e880],
    // 2048
    [0x1_1542_778a, 0x1_322d_1430],
    // 512
    [0x1_5444_2bd4, 0x1_c6e4_1596],
    // 256
    [0x0_f1da_05aa, 0x1_5a54_6366],
    // 128
    [0x1_7519_97d0, 0x0_ccaa_009e],
    [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908],
];

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
    left: &mut [u8; LEFT],
    register: u32,
) -> u32 {
    let is_broad = (from as usize).is_multiple_of(64)
        && (to as usize).is_multiple_of(4)
        && length >= 2 * BLOCK
        && std::arch::is_x86_feature_detected!("avx512f");
    // SAFETY: as the caller says, and the processor and the addresses are as the routine needs them; `left` has room, and the
    // factors are those of the five distances, and behind them the numbers of the words.
    unsafe {
        let routine = if is_broad { broad_copy_out_summed } else { wide_copy_out_summed };
        routine(to, from, length, left.as_mut_ptr(), register, FACTORS.as_ptr().cast())
    }
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
