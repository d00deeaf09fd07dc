//! The invariant CRC (annex A17.3.3): CRC-32 over what no router changes. Eight bytes of ones stand for the LRH, then the
//! IP header with TOS/traffic class, flow label, TTL/hop limit and header checksum as ones, the UDP header with its
//! checksum as ones, the BTH with byte 4 (FECN, BECN, reserved) as ones, and everything up to the ICRC itself.
//!
//! IP and UDP headers of a flow differ from packet to packet only in two lengths and the IPv4 identification, and a CRC is
//! linear: so their part is a constant of the flow and a few table look-ups, and only the bytes that really travel are
//! run through the CRC. For the same reason an unknown identification can be solved for (see [`Flow::check`]).
//! The bit-by-bit twin in the tests is the oracle.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::crc;
use crate::ids::Gid;

/// CRC-32 polynomial, reflected: bit 31 is the coefficient of x^0.
const POLY: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// `v * x` modulo the polynomial: one zero bit through the register.
const fn times_x(v: u32) -> u32 {
    (v >> 1) ^ if v & 1 != 0 { POLY } else { 0 }
}

/// `v / x` modulo the polynomial.
const fn over_x(v: u32) -> u32 {
    if v & ONE != 0 { (v ^ POLY) << 1 | 1 } else { v << 1 }
}

/// Zero bytes through the register.
const fn times_x8n(mut v: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < 8 * bytes {
        v = times_x(v);
        bit += 1;
    }
    v
}

/// `a * b` modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        // Masks instead of branches: the bits are random, so branches would be mispredicted half of the time.
        product ^= b & ((a << bit) as i32 >> 31) as u32;
        b = (b >> 1) ^ (POLY & (b & 1).wrapping_neg());
        bit += 1;
    }
    product
}

/// x^-8, and its powers of two, to make x^(-8 n) in as many multiplications as `n` has ones.
const INVERSE_POWERS: [u32; 17] = {
    let mut power = ONE;
    let mut bit = 0;
    while bit < 8 {
        power = over_x(power);
        bit += 1;
    }
    let mut powers = [0; 17];
    let mut i = 0;
    while i < 17 {
        powers[i] = power;
        power = multiply(power, power);
        i += 1;
    }
    powers
};

/// x^(-8 `bytes`), for up to 2^17 - 1 bytes.
const fn inverse_power(bytes: usize) -> u32 {
    let mut power = ONE;
    let mut bit = 0;
    while bit < INVERSE_POWERS.len() {
        if bytes >> bit & 1 != 0 {
            power = multiply(power, INVERSE_POWERS[bit]);
        }
        bit += 1;
    }
    power
}

/// What byte `b` contributes to the register when `after` more bytes follow it.
const fn byte_table(after: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut bit = 0;
    while bit < 8 {
        table[1 << bit] = times_x8n(1 << bit, after + 1);
        bit += 1;
    }
    let mut b = 1;
    while b < 256usize {
        let low = b & b.wrapping_neg();
        table[b] = table[low] ^ table[b ^ low];
        b += 1;
    }
    table
}

// Distances to the end of the UDP header. IPv4: total length at 2, identification at 4; IPv6: payload length at 4.
static V4_LENGTH_HIGH: [u32; 256] = byte_table(20 - 3 + 8);
static V4_LENGTH_LOW: [u32; 256] = byte_table(20 - 4 + 8);
static V4_ID_HIGH: [u32; 256] = byte_table(20 - 5 + 8);
static V4_ID_LOW: [u32; 256] = byte_table(20 - 6 + 8);
static V6_LENGTH_HIGH: [u32; 256] = byte_table(40 - 5 + 8);
static V6_LENGTH_LOW: [u32; 256] = byte_table(40 - 6 + 8);
static UDP_LENGTH_HIGH: [u32; 256] = byte_table(3);
static UDP_LENGTH_LOW: [u32; 256] = byte_table(2);

/// Adding `UNMASK[b ^ 0xff]` to the register before a BTH does what masking its byte 4, `b`, does: the difference, taken
/// back over the four bytes before it.
static UNMASK: [u32; 256] = {
    let mut table = [0; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = multiply(b as u32, inverse_power(4));
        b += 1;
    }
    table
};

/// Bytes that the identification's place is away from what follows the UDP header, plus the four bytes of the window in
/// which [`Flow::check`] looks: identification, flags and fragment offset.
const ID_WINDOW: usize = 20 - 8 + 8 + 4;

/// One byte through the register.
const fn step(state: u32, byte: u8) -> u32 {
    let mut state = state ^ byte as u32;
    let mut bit = 0;
    while bit < 8 {
        state = times_x(state);
        bit += 1;
    }
    state
}

/// The register after `bytes`. Slow: for the constants of a flow, and the oracle.
fn run(mut state: u32, bytes: &[u8]) -> u32 {
    for &byte in bytes {
        state = step(state, byte);
    }
    state
}

/// Whether an ICRC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Right with the identification that was guessed.
    Ok,
    /// Right with this IPv4 identification instead. 16 of 32 bits have checked the packet, so one damaged packet of
    /// about 2^15 passes.
    OkWithId(u16),
    /// Wrong.
    Bad,
}

/// The inverse powers that [`Flow::check`] needs, by length. Owned by the caller (one for each thread that receives).
#[derive(Clone, Debug)]
pub struct InverseCache {
    entries: [(u32, u32); Self::WAYS],
}

impl InverseCache {
    const WAYS: usize = 64;

    /// Empty.
    pub const fn new() -> Self {
        Self { entries: [(u32::MAX, 0); Self::WAYS] }
    }

    /// x^(-8 `bytes`).
    #[inline]
    fn get(&mut self, bytes: usize) -> u32 {
        // Packets are multiples of four bytes, so the lowest two bits of a length tell nothing.
        let entry = &mut self.entries[bytes / 4 % Self::WAYS];
        if entry.0 != bytes as u32 {
            *entry = (bytes as u32, inverse_power(bytes));
        }
        entry.1
    }
}

impl Default for InverseCache {
    fn default() -> Self {
        Self::new()
    }
}

/// What the ICRCs of one flow have in common: IP version, addresses and UDP source port. The flow is not fragmented; over
/// IPv4 it has no options and says "do not fragment", as RoCEv2 does everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The register after the UDP header of an empty packet whose lengths and identification are zero.
    base: u32,
    v6: bool,
}

/// Most bytes between the UDP header and the ICRC.
pub const MAX_TRANSPORT: usize = 65_535 - 20 - 8 - 4;

impl Flow {
    /// A flow over IPv4, destination port 4791.
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, udp_src: u16) -> Self {
        let mut ip = [0xff; 28];
        ip[8] = 0x45;
        // TOS stays ones; total length and identification are added later; flags: DF; TTL and checksum stay ones.
        ip[10..16].copy_from_slice(&[0, 0, 0, 0, 0x40, 0]);
        ip[17] = 17;
        ip[20..24].copy_from_slice(&src.octets());
        ip[24..28].copy_from_slice(&dst.octets());
        Self { base: Self::with_udp(&ip, udp_src), v6: false }
    }

    /// A flow over IPv6, destination port 4791.
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, udp_src: u16) -> Self {
        let mut ip = [0xff; 48];
        ip[8] = 0x6f;
        ip[12..15].copy_from_slice(&[0, 0, 17]);
        ip[16..32].copy_from_slice(&src.octets());
        ip[32..48].copy_from_slice(&dst.octets());
        Self { base: Self::with_udp(&ip, udp_src), v6: true }
    }

    /// A flow between two GIDs; both are IPv4 or both are IPv6 (else it is treated as IPv6).
    pub fn between(src: Gid, dst: Gid, udp_src: u16) -> Self {
        match (src.to_ip(), dst.to_ip()) {
            (core::net::IpAddr::V4(src), core::net::IpAddr::V4(dst)) => Self::v4(src, dst, udp_src),
            _ => Self::v6(Ipv6Addr::from_octets(src.0), Ipv6Addr::from_octets(dst.0), udp_src),
        }
    }

    fn with_udp(dummy_and_ip: &[u8], udp_src: u16) -> u32 {
        let mut udp = [0xff; 8];
        udp[0..2].copy_from_slice(&udp_src.to_be_bytes());
        udp[2..4].copy_from_slice(&crate::packet::UDP_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&[0, 0]);
        run(run(!0, dummy_and_ip), &udp)
    }

    /// The register after IP and UDP header, with byte 4 of the BTH masked ahead.
    #[inline]
    fn state(&self, ip_id: u16, transport_len: usize, bth_byte_4: u8) -> u32 {
        let udp_len = ((transport_len + 8 + crate::packet::ICRC_LEN) as u16).to_be_bytes();
        let mut state = self.base
            ^ UDP_LENGTH_HIGH[udp_len[0] as usize]
            ^ UDP_LENGTH_LOW[udp_len[1] as usize]
            ^ UNMASK[(bth_byte_4 ^ 0xff) as usize];
        if self.v6 {
            state ^= V6_LENGTH_HIGH[udp_len[0] as usize] ^ V6_LENGTH_LOW[udp_len[1] as usize];
        } else {
            let ip_len = ((transport_len + 28 + crate::packet::ICRC_LEN) as u16).to_be_bytes();
            let id = ip_id.to_be_bytes();
            state ^= V4_LENGTH_HIGH[ip_len[0] as usize]
                ^ V4_LENGTH_LOW[ip_len[1] as usize]
                ^ V4_ID_HIGH[id[0] as usize]
                ^ V4_ID_LOW[id[1] as usize];
        }
        state
    }

    /// Starts the ICRC of a packet of which `transport_len` bytes (BTH to pad) will be given in pieces. `bth_byte_4` is
    /// the byte with FECN and BECN as it travels. `ip_id` is not looked at over IPv6.
    #[inline]
    pub fn start(&self, ip_id: u16, transport_len: usize, bth_byte_4: u8) -> Running {
        Running(self.state(ip_id, transport_len, bth_byte_4))
    }

    /// The ICRC of `transport`: BTH to pad, without the ICRC, at least a BTH and at most [`MAX_TRANSPORT`] bytes. It is
    /// sent least significant byte first.
    #[inline]
    pub fn icrc(&self, ip_id: u16, transport: &[u8]) -> u32 {
        if transport.len() <= crc::SHORT {
            return !crc::update(
                self.state(ip_id, transport.len(), transport.get(4).copied().unwrap_or(0xff)),
                transport,
            );
        }
        let mut running = self.start(ip_id, transport.len(), transport.get(4).copied().unwrap_or(0xff));
        running.update(transport);
        running.finish()
    }

    /// Checks a packet, `bytes_with_icrc` being BTH to ICRC. Over IPv4 a mismatch is solved for the identification: the
    /// difference of the two CRCs, taken back over the bytes behind it, must be a change of those 16 bits (and of DF, which
    /// some senders do not set) and of nothing else. To refuse instead, treat [`Check::OkWithId`] as bad.
    #[inline]
    pub fn check(&self, ip_id_guess: u16, bytes_with_icrc: &[u8], cache: &mut InverseCache) -> Check {
        let Some((transport, icrc)) = bytes_with_icrc.split_last_chunk::<4>() else {
            return Check::Bad;
        };
        let difference = self.icrc(ip_id_guess, transport) ^ u32::from_le_bytes(*icrc);
        if difference == 0 { Check::Ok } else { self.solve(ip_id_guess, difference, transport.len(), cache) }
    }

    #[cold]
    #[inline(never)]
    fn solve(&self, ip_id_guess: u16, difference: u32, transport_len: usize, cache: &mut InverseCache) -> Check {
        if self.v6 || transport_len > MAX_TRANSPORT {
            return Check::Bad;
        }
        // Bytes 4 to 7 of the IPv4 header, in the order of the register: identification high, low, flags, offset.
        let [high, low, flags, offset] = multiply(difference, cache.get(transport_len + ID_WINDOW)).to_le_bytes();
        if (flags == 0 || flags == 0x40) && offset == 0 {
            Check::OkWithId(ip_id_guess ^ u16::from_be_bytes([high, low]))
        } else {
            Check::Bad
        }
    }
}

/// A flow, and what its packets have taught about the sender's identifications.
///
/// Solving lets one damaged packet of about 2^15 pass. A sender whose identifications were as predicted for some time is
/// therefore believed to go on like that: another one is accepted only if it is a small number, as of a segment whose
/// place in its train was lost on the way, and then 25 bits still check. Should the address change hands, some packets are
/// refused until the new sender's ways are accepted.
///
/// On a path that takes trains apart, each segment looks like the first of a train. Once that was seen, a packet that seems to be
/// the first of a train is taken for the one behind the last packet, so that few have to be solved.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    flow: Flow,
    /// Packets as predicted, less those that were refused.
    steady: u8,
    /// Trains are taken apart on the way.
    apart: bool,
    /// Identification behind that of the last packet.
    next: u16,
}

impl Sender {
    /// Packets as predicted after which surprises are refused.
    const STEADY: u8 = 8;
    /// Identifications that segments of a train can have.
    const TRAIN_IDS: u16 = 128;

    /// A sender of whom nothing is known.
    pub const fn new(flow: Flow) -> Self {
        Self { flow, steady: 0, apart: false, next: 0 }
    }

    /// As [`Flow::check`], and learns.
    #[inline]
    pub fn check(&mut self, ip_id_guess: u16, bytes_with_icrc: &[u8], cache: &mut InverseCache) -> Check {
        let predicted = if self.apart && ip_id_guess == 0 { self.next } else { ip_id_guess };
        let check = self.flow.check(predicted, bytes_with_icrc, cache);
        if check == Check::Ok && !self.apart {
            self.steady = (self.steady + 1).min(2 * Self::STEADY);
            return check;
        }
        self.learn(ip_id_guess, predicted, check)
    }

    /// What follows from a packet whose identification was not as the port said, or may not have been.
    #[inline(never)]
    fn learn(&mut self, ip_id_guess: u16, predicted: u16, check: Check) -> Check {
        let (check, id) = match check {
            Check::Bad => return Check::Bad,
            Check::Ok => (Check::Ok, predicted),
            // What the port said was right after all.
            Check::OkWithId(id) if id == ip_id_guess => (Check::Ok, id),
            Check::OkWithId(id) => (Check::OkWithId(id), id),
        };
        if id < Self::TRAIN_IDS {
            self.next = (id + 1) % Self::TRAIN_IDS;
            self.apart = id != ip_id_guess || (self.apart && id == 0);
        }
        match check {
            Check::Ok => self.steady = (self.steady + 1).min(2 * Self::STEADY),
            Check::OkWithId(id) if id >= Self::TRAIN_IDS => {
                if self.steady >= Self::STEADY {
                    self.steady -= 1;
                    return Check::Bad;
                }
                self.steady = 0;
            }
            _ => {}
        }
        check
    }
}

/// An ICRC in the making, so that copying and the CRC can be one pass over the bytes.
#[derive(Clone, Debug)]
pub struct Running(u32);

impl Running {
    /// The next bytes, as they travel.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = if bytes.len() < crc::SHORT { crc::update(self.0, bytes) } else { crc::update_long(self.0, bytes) };
    }

    /// The ICRC.
    #[inline]
    pub fn finish(self) -> u32 {
        !self.0
    }

    /// The register as it stands (reflected, not inverted), for whoever runs bytes through it by other means.
    #[inline]
    pub fn register(&self) -> u32 {
        self.0
    }

    /// Goes on with such a register.
    #[inline]
    pub fn resume(register: u32) -> Self {
        Self(register)
    }
}

/// The ICRC of a captured packet from its IP header on: everything is read from the bytes, options and extension headers
/// included. `None` if they are not UDP over IP, or fragments. Slow and plain: for captures and as the oracle of [`Flow`].
pub fn of_ip_packet(ip: &[u8]) -> Option<u32> {
    let mut state = run(!0, &[0xff; 8]);
    let header = match ip.first()? >> 4 {
        4 => {
            let header = ip.get(..usize::from(ip[0] & 0xf) * 4).filter(|header| header.len() >= 20)?;
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
            if header[9] != 17 || fragment != 0 || total > ip.len() {
                return None;
            }
            for (at, &byte) in header.iter().enumerate() {
                state = step(state, if matches!(at, 1 | 8 | 10 | 11) { 0xff } else { byte });
            }
            (header.len(), total)
        }
        6 => {
            let header = ip.get(..40)?;
            if header[6] != 17 {
                return None;
            }
            for (at, &byte) in header.iter().enumerate() {
                let masked = match at {
                    0 => byte | 0x0f,
                    1..=3 | 7 => 0xff,
                    _ => byte,
                };
                state = step(state, masked);
            }
            (40, 40 + usize::from(u16::from_be_bytes([header[4], header[5]])))
        }
        _ => return None,
    };
    let udp = ip.get(header.0..header.1).filter(|udp| udp.len() >= 8 + crate::bth::LEN + 4)?;
    for (at, &byte) in udp[..udp.len() - 4].iter().enumerate() {
        state = step(state, if matches!(at, 6 | 7 | 12) { 0xff } else { byte });
    }
    Some(!state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// A whole IP packet around `transport`, with every masked field at `noise`.
    fn ip_packet(v6: bool, src: [u8; 16], dst: [u8; 16], port: u16, id: u16, noise: u8, transport: &[u8]) -> Vec<u8> {
        let udp_len = (transport.len() + 12) as u16;
        let mut ip = Vec::new();
        if v6 {
            ip.extend([0x60 | noise & 0xf, noise, noise, noise]);
            ip.extend(udp_len.to_be_bytes());
            ip.extend([17, noise]);
            ip.extend(src);
            ip.extend(dst);
        } else {
            ip.extend([0x45, noise]);
            ip.extend((udp_len + 20).to_be_bytes());
            ip.extend(id.to_be_bytes());
            ip.extend([0x40, 0, noise, 17, noise, noise]);
            ip.extend(&src[12..]);
            ip.extend(&dst[12..]);
        }
        ip.extend(port.to_be_bytes());
        ip.extend(4791u16.to_be_bytes());
        ip.extend(udp_len.to_be_bytes());
        ip.extend([noise, noise]);
        ip.extend(transport);
        ip.extend([0; 4]);
        ip
    }

    fn flow(v6: bool, src: [u8; 16], dst: [u8; 16], port: u16) -> Flow {
        if v6 {
            Flow::v6(Ipv6Addr::from_octets(src), Ipv6Addr::from_octets(dst), port)
        } else {
            let v4 = |a: [u8; 16]| Ipv4Addr::new(a[12], a[13], a[14], a[15]);
            Flow::v4(v4(src), v4(dst), port)
        }
    }

    proptest! {
        #[test]
        fn fast_and_slow_twin_agree(
            v6: bool, src: [u8; 16], dst: [u8; 16], port: u16, id: u16, noise: u8,
            transport in prop::collection::vec(any::<u8>(), 12..400), split in 0usize..400,
        ) {
            let want = of_ip_packet(&ip_packet(v6, src, dst, port, id, noise, &transport));
            let flow = flow(v6, src, dst, port);
            prop_assert_eq!(want, Some(flow.icrc(id, &transport)));
            let mut running = flow.start(id, transport.len(), transport[4]);
            let (a, b) = transport.split_at(split.min(transport.len()));
            running.update(a);
            let mut running = Running::resume(running.register());
            running.update(b);
            prop_assert_eq!(want, Some(running.finish()));
        }

        #[test]
        fn an_unknown_identification_is_found(
            src: [u8; 16], dst: [u8; 16], id: u16, guess: u16,
            mut transport in prop::collection::vec(any::<u8>(), 12..400),
        ) {
            let flow = flow(false, src, dst, 0xc000);
            let icrc = flow.icrc(id, &transport);
            transport.extend(icrc.to_le_bytes());
            let want = if id == guess { Check::Ok } else { Check::OkWithId(id) };
            prop_assert_eq!(flow.check(guess, &transport, &mut InverseCache::new()), want);
        }

        #[test]
        fn inverse_powers_invert(bytes in 0usize..100_000, value: u32) {
            prop_assert_eq!(multiply(times_x8n(value, bytes), inverse_power(bytes)), value);
        }

        #[test]
        fn nothing_panics(ip in prop::collection::vec(any::<u8>(), 0..120), bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = of_ip_packet(&ip);
            let mut cache = InverseCache::new();
            let _ = flow(false, [0; 16], [1; 16], 1).check(0, &bytes, &mut cache);
            let _ = flow(true, [0; 16], [1; 16], 1).check(0, &bytes, &mut cache);
        }
    }

    #[test]
    fn a_damaged_packet_passes_as_another_identification_about_once_in_2_to_the_15() {
        let flow = Flow::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0xc123);
        let mut cache = InverseCache::new();
        let mut packet: Vec<u8> = (0..1060u32).map(|i| (i * 7) as u8).collect();
        let icrc = flow.icrc(0, &packet);
        packet.extend(icrc.to_le_bytes());
        assert_eq!(flow.check(0, &packet, &mut cache), Check::Ok);
        let mut passed = 0;
        for bit in 0..packet.len() * 8 {
            let masked = bit / 8 == 4;
            packet[bit / 8] ^= 1 << (bit % 8);
            match flow.check(0, &packet, &mut cache) {
                Check::Ok => assert!(masked, "bit {bit}"),
                Check::OkWithId(_) => passed += 1,
                Check::Bad => assert!(!masked, "bit {bit}"),
            }
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(passed <= 2, "{passed} of 8504 damaged packets passed");
    }

    #[test]
    fn a_sender_that_does_not_set_df_is_understood() {
        let (src, dst) = ([1; 16], [2; 16]);
        let mut ip = ip_packet(false, src, dst, 0xc000, 0x1234, 9, &[3; 40]);
        ip[6] = 0;
        let icrc = of_ip_packet(&ip).unwrap().to_le_bytes();
        let end = ip.len();
        ip[end - 4..].copy_from_slice(&icrc);
        let check = flow(false, src, dst, 0xc000).check(7, &ip[28..], &mut InverseCache::new());
        assert_eq!(check, Check::OkWithId(0x1234));
    }

    #[test]
    fn surprises_of_a_steady_sender_are_refused_until_they_are_its_way() {
        let flow = Flow::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0xc123);
        let packet = |id| {
            let mut bytes = Vec::from([7; 40]);
            bytes.extend(flow.icrc(id, &[7; 40]).to_le_bytes());
            bytes
        };
        let mut cache = InverseCache::new();
        let mut sender = Sender::new(flow);
        // Nothing is known: everything is believed.
        assert_eq!(sender.check(0, &packet(0x4321), &mut cache), Check::OkWithId(0x4321));
        for _ in 0..20 {
            assert_eq!(sender.check(0, &packet(0), &mut cache), Check::Ok);
        }
        assert_eq!(sender.check(0, &packet(63), &mut cache), Check::OkWithId(63));
        assert_eq!(sender.check(0, &packet(0x4321), &mut cache), Check::Bad);
        // Another host has the address now.
        let refused = (0..100).take_while(|&i| sender.check(0, &packet(0x5000 + i), &mut cache) == Check::Bad).count();
        assert!((1..16).contains(&refused), "{refused}");
        assert_eq!(sender.check(0, &packet(0x6000), &mut cache), Check::OkWithId(0x6000));
    }

    #[test]
    fn of_a_train_that_was_taken_apart_few_packets_are_solved_for() {
        let flow = Flow::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0xc123);
        let packet = |id| {
            let mut bytes = Vec::from([7; 40]);
            bytes.extend(flow.icrc(id, &[7; 40]).to_le_bytes());
            bytes
        };
        let (mut cache, mut sender) = (InverseCache::new(), Sender::new(flow));
        let mut look = |guess, id| sender.check(guess, &packet(id), &mut cache);
        // Each comes alone, and the port takes it for the first of a train.
        let apart: Vec<Check> = (0..3).flat_map(|_| 0..15).map(|id| look(0, id)).collect();
        assert_eq!(apart.iter().filter(|check| **check != Check::Ok).collect::<Vec<_>>(), [&Check::OkWithId(1)]);
        // From now on whole trains come.
        assert!((0..3).flat_map(|_| 0..15).all(|id| look(id, id) == Check::Ok));
        assert_eq!(look(0, 7), Check::OkWithId(7), "and again one that lost its place");
    }

    #[test]
    fn over_ipv6_there_is_nothing_to_solve_for() {
        let flow = Flow::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 0xc000);
        let mut packet = [5; 44];
        let icrc = flow.icrc(0, &packet[..40]) ^ 1;
        packet[40..].copy_from_slice(&icrc.to_le_bytes());
        assert_eq!(flow.check(0, &packet, &mut InverseCache::new()), Check::Bad);
    }
}
