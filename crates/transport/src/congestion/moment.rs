//! Time as controllers know it, and how long bytes take.

/// A moment, in picoseconds since an epoch that the caller chose. It ends after 213 days: whoever runs longer chooses a new
/// epoch, as the requester does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `ps` picoseconds later; stays at the end of time if that is beyond it.
    #[must_use]
    pub const fn after(self, ps: u64) -> Self {
        Self(self.0.saturating_add(ps))
    }

    /// Picoseconds since `earlier`; 0 if that is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Picoseconds in a microsecond.
pub(crate) const US: u64 = 1_000_000;

/// Time that `bytes` take at `rate_bps`, ps, rounded up: a pacer that rounds down is faster than its rate.
pub(crate) fn time_ps(bytes: u64, rate_bps: u64) -> u64 {
    const BITS_PS: u64 = 8_000_000_000_000;
    let rate = rate_bps.max(1);
    match bytes.checked_mul(BITS_PS) {
        Some(product) => product.div_ceil(rate),
        None => u64::try_from((u128::from(bytes) * u128::from(BITS_PS)).div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
    }
}

/// Bytes that pass in `ps` at `rate_bps`.
pub(crate) fn bytes_in(ps: u64, rate_bps: u64) -> u64 {
    u64::try_from(u128::from(ps) * u128::from(rate_bps) / 8_000_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_what_the_rate_says_to_the_picosecond() {
        assert_eq!(time_ps(1048, 100_000_000_000), 83_840);
        assert_eq!(time_ps(1048, 400_000_000_000), 20_960);
        assert_eq!(time_ps(1, 3_000_000_000_000), 3, "8/3 ps, rounded up");
        // Beyond 64 bits: 8 GB at 1 Gb/s.
        assert_eq!(time_ps(8_000_000_000, 1_000_000_000), 64_000_000_000_000);
        assert_eq!(time_ps(u64::MAX, 1), u64::MAX);
        assert_eq!(bytes_in(83_840, 100_000_000_000), 1048);
    }
}
