//! Time and rates of the fabric simulator: picoseconds in 64 bits (half a year), and how long bytes take on a wire. Pure numbers; nobody here reads a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A moment or a span, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ps(pub u64);

impl Ps {
    /// The beginning.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// From nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1_000))
    }

    /// Whole nanoseconds, cut off.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }

    /// Microseconds, for people.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds, for people.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The time from `earlier` to here; 0 if that is later.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Ps {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Ps {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.3} ns", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.3} µs", self.0 as f64 / 1e6),
            1_000_000_000..1_000_000_000_000 => write!(f, "{:.3} ms", self.0 as f64 / 1e9),
            _ => write!(f, "{:.3} s", self.0 as f64 / 1e12),
        }
    }
}

/// The speed of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits a second; never 0 in a fabric that was checked.
    pub bps: u64,
    /// Picoseconds a byte takes, if that is a whole number, else 0.
    whole: u64,
    /// Cut serialisation to whole nanoseconds, as ns-3.17 does (its 1 ns quantum).
    quantised: bool,
}

/// Picoseconds in a second times bits in a byte.
const PS_BITS: u64 = 8_000_000_000_000;

impl Rate {
    /// A rate of `bps` bits a second.
    pub const fn new(bps: u64, quantised: bool) -> Self {
        let whole = if bps != 0 && PS_BITS.is_multiple_of(bps) { PS_BITS / bps } else { 0 };
        Self { bps, whole, quantised }
    }

    /// How long `bytes` take, rounded to the nearest picosecond.
    #[inline]
    pub fn serialise(&self, bytes: u32) -> Ps {
        let exact = if self.whole != 0 { u64::from(bytes) * self.whole } else { span(u64::from(bytes), self.bps).0 };
        Ps(if self.quantised { exact / 1_000 * 1_000 } else { exact })
    }

    /// Gigabits a second, for people.
    pub fn gbps(&self) -> f64 {
        self.bps as f64 / 1e9
    }

    /// Bytes that pass in `time`.
    pub fn bytes_in(&self, time: Ps) -> u64 {
        ((u128::from(self.bps) * u128::from(time.0)) / u128::from(PS_BITS)) as u64
    }
}

/// How long `bytes` take at `bps`; 0 bits a second take for ever.
#[inline]
pub fn span(bytes: u64, bps: u64) -> Ps {
    if bps == 0 {
        return Ps::NEVER;
    }
    match bytes.checked_mul(PS_BITS) {
        Some(product) => Ps(product.saturating_add(bps / 2) / bps),
        None => Ps(u64::try_from(u128::from(bytes) * u128::from(PS_BITS) / u128::from(bps)).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialisation_is_exact() {
        // 1048 B at 100 Gb/s take 83.84 ns, at 400 Gb/s 20.96 ns.
        assert_eq!(Rate::new(100_000_000_000, false).serialise(1048), Ps(83_840));
        assert_eq!(Rate::new(400_000_000_000, false).serialise(1048), Ps(20_960));
        // A rate that does not divide: 3 Gb/s, 2666.67 ps a byte.
        assert_eq!(Rate::new(3_000_000_000, false).serialise(1000), Ps(2_666_667));
    }

    #[test]
    fn the_quantum_of_ns3_cuts() {
        assert_eq!(Rate::new(100_000_000_000, true).serialise(1048), Ps(83_000));
        assert_eq!(Rate::new(400_000_000_000, true).serialise(1048), Ps(20_000));
    }

    #[test]
    fn a_bandwidth_delay_product() {
        // 4.16 µs at 100 Gb/s hold 52,000 B.
        assert_eq!(Rate::new(100_000_000_000, false).bytes_in(Ps::from_ns(4160)), 52_000);
        assert_eq!(span(1, 0), Ps::NEVER);
        // 2^24 bytes at one byte a second: more than 64 bits hold on the way, the result fits.
        assert_eq!(span(1 << 23, 8), Ps((1 << 23) * 1_000_000_000_000));
    }
}
