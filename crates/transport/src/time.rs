//! Time as the transport knows it: nanoseconds since an epoch that the caller chose. Nobody here reads a clock.

/// A moment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The moment `ns` nanoseconds later; stays at the end of time if that is beyond it.
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; 0 if that is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The local ACK timeout of a `timeout` code, in ns: 4.096 µs x 2^code; 0 means infinite (clause 9.7.6.1.3).
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    if code == 0 { None } else { Some(4096 << (code & 31)) }
}
