//! Big-endian fields at fixed places of fixed-size arrays: how every header here reads and writes its bytes.
//!
//! Offsets are constants, so after inlining the bounds are known and nothing can panic.

/// The `N` bytes at `at`.
#[inline(always)]
pub(crate) const fn array<const N: usize, const L: usize>(bytes: &[u8; L], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = bytes[at + i];
        i += 1;
    }
    out
}

#[inline(always)]
pub(crate) const fn be16<const L: usize>(bytes: &[u8; L], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) const fn be24<const L: usize>(bytes: &[u8; L], at: usize) -> u32 {
    (bytes[at] as u32) << 16 | (bytes[at + 1] as u32) << 8 | bytes[at + 2] as u32
}

#[inline(always)]
pub(crate) const fn be32<const L: usize>(bytes: &[u8; L], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) const fn be64<const L: usize>(bytes: &[u8; L], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Writes `value` at `at`.
#[inline(always)]
pub(crate) fn put<const N: usize, const L: usize>(out: &mut [u8; L], at: usize, value: [u8; N]) {
    let mut i = 0;
    while i < N {
        out[at + i] = value[i];
        i += 1;
    }
}

/// Writes the low 24 bits of `value` at `at`.
#[inline(always)]
pub(crate) fn put24<const L: usize>(out: &mut [u8; L], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(out, at, [a, b, c]);
}
