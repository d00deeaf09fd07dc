//! The identifiers that travel in headers, each a type of its own, so that a PSN can never be passed where a QPN is meant.
//!
//! Nothing here parses packets. Sizes: clause 5.2 and 9.2 of the IBTA specification.

use core::fmt;

/// Packet sequence number, 24 bits, arithmetic modulo 2^24 (clause 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Number of PSNs.
    pub const MODULUS: u32 = 1 << 24;

    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::MODULUS - 1))
    }

    /// The value, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `count` packets later; wraps.
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The PSN `count` packets earlier; wraps.
    #[must_use]
    pub const fn sub(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// The next PSN.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Signed distance from `other` to `self`, -2^23 to 2^23 - 1. Positive: `self` is later (clause 9.7.2: half the
    /// space is ahead, half behind).
    pub const fn since(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// True if `self` lies before `other` in the half-space sense of [`Psn::since`].
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

macro_rules! hex_fmt {
    ($t:ty, $w:literal) => {
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $w, "x}"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $w, "x}"), self.0)
            }
        }
    };
}

/// Queue pair number, 24 bits. 0 and 1 are the management QPs; 0xFFFFFF means multicast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The QPN that every multicast packet carries (clause 10.5).
    pub const MULTICAST: Self = Self(0x00ff_ffff);
    /// The general services QP, where CM messages go (clause 13.4).
    pub const GSI: Self = Self(1);

    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The value, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Shared receive queue number as XRC carries it, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Srqn(u32);

impl Srqn {
    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The value, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Partition key: 15 bits of number, top bit set for a full member (clause 10.9.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full member. What RoCE uses unless told otherwise.
    pub const DEFAULT: Self = Self(0xffff);

    /// The match rule of clause 10.9.3: same low 15 bits (not zero), and at least one of the two a full member.
    pub const fn matches(self, other: Self) -> bool {
        let (a, b) = (self.0 & 0x7fff, other.0 & 0x7fff);
        a != 0 && a == b && (self.0 | other.0) & 0x8000 != 0
    }
}

/// Queue key of datagram QPs, 32 bits. A set top bit in a posted WR means "use the QP's own" (clause 10.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QKey(pub u32);

/// Remote key: what a peer must show to touch a memory region or window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RKey(pub u32);

hex_fmt!(Psn, "8");
hex_fmt!(Qpn, "8");
hex_fmt!(Srqn, "8");
hex_fmt!(PKey, "6");
hex_fmt!(QKey, "10");
hex_fmt!(RKey, "10");

/// Global identifier, 128 bits. In RoCEv2 it is an IP address: IPv6 as it is, IPv4 as `::ffff:a.b.c.d` (annex A17.9.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zeros: an empty slot of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID of an IP address.
    pub const fn from_ip(ip: core::net::IpAddr) -> Self {
        match ip {
            core::net::IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            core::net::IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address of a GID: IPv4 if it is a mapped one.
    pub const fn to_ip(self) -> core::net::IpAddr {
        core::net::Ipv6Addr::from_octets(self.0).to_canonical()
    }

    /// True for an empty slot.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// True for an IPv4-mapped GID.
    pub fn is_ipv4(&self) -> bool {
        matches!(self.to_ip(), core::net::IpAddr::V4(_))
    }

    /// True if the GID names a multicast group (ff00::/8, or 224.0.0.0/4 mapped).
    pub fn is_multicast(&self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&core::net::Ipv6Addr::from_octets(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps_at_half_the_space() {
        assert_eq!(Psn::new(0).since(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }

    #[test]
    fn two_limited_members_do_not_match() {
        assert!(PKey(0x8001).matches(PKey(0x0001)));
        assert!(!PKey(0x0001).matches(PKey(0x0001)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }
}
