//! How long a session waits in each state, and how long between tries. Pure arithmetic from a seed; it reads no clock.

/// Timeouts and back-off, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long one step of a change may take until it is tried anew or taken back. Default 2 s. Very short: changes that would have come about are
    /// taken back on a slow machine. Very long: a lost peer is noticed late.
    pub step_ns: u64,
    /// How long making a connection may take in all. Default 10 s.
    pub connect_ns: u64,
    /// How long a failed connection is rebuilt until it is given up. Default 120 s; `u64::MAX`: never.
    pub give_up_ns: u64,
    /// First pause between two tries. Default 1 ms.
    pub backoff_min_ns: u64,
    /// Longest pause. Default 1 s.
    pub backoff_max_ns: u64,
    /// How long a closing side waits for its peer to close, too. Default 1 s.
    pub close_ns: u64,
}

impl Default for Patience {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Self {
            step_ns: 2_000 * MS,
            connect_ns: 10_000 * MS,
            give_up_ns: 120_000 * MS,
            backoff_min_ns: MS,
            backoff_max_ns: 1_000 * MS,
            close_ns: 1_000 * MS,
        }
    }
}

/// Bounded exponential back-off with full jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    state: u64,
    tries: u32,
}

impl Backoff {
    /// With this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x9e37_79b9_7f4a_7c15, tries: 0 }
    }

    /// The next pause: between half of the bound and the bound, which doubles with each try up to `backoff_max_ns`.
    pub fn pause_ns(&mut self, patience: &Patience) -> u64 {
        let bound =
            patience.backoff_min_ns.saturating_mul(1 << self.tries.min(40)).clamp(1, patience.backoff_max_ns.max(1));
        self.tries = self.tries.saturating_add(1);
        let half = bound / 2;
        half + self.next() % (bound - half + 1)
    }

    /// It worked: the next pause is the first again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_to_its_bound_and_never_beyond() {
        let patience = Patience { backoff_min_ns: 8, backoff_max_ns: 100, ..Patience::default() };
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            for bound in [8, 16, 32, 64, 100, 100, 100] {
                let pause = backoff.pause_ns(&patience);
                assert!((bound / 2..=bound).contains(&pause), "seed {seed}: {pause} of {bound}");
            }
            backoff.reset();
            assert!(backoff.pause_ns(&patience) <= 8);
        }
    }

    #[test]
    fn two_sides_with_different_seeds_do_not_march_in_step() {
        let patience = Patience::default();
        let (mut one, mut other) = (Backoff::new(1), Backoff::new(2));
        assert!((0..10).any(|_| one.pause_ns(&patience) != other.pause_ns(&patience)));
    }
}
