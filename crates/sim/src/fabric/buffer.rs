//! The shared buffer of a switch: which packet is let in, when a priority of an ingress port is paused and when it goes on.
//!
//! Lossless priorities are counted by ingress port: a reserve of its own, then the shared part up to a threshold that shrinks as the buffer fills
//! (dynamic threshold: alpha times what is free), then headroom, which holds what was on the wire when the pause was sent. The others are counted by
//! egress queue and dropped above alpha times what is free. It decides; it sends nothing and knows no time.

use super::port::PRIORITIES;

/// Sizes of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferSizes {
    /// All of it, in bytes.
    pub total: u64,
    /// What each ingress port and priority that uses PFC has for itself.
    pub reserve: u32,
    /// Bytes below the threshold at which a pause ends.
    pub resume_below: u32,
    /// Priorities that PFC protects.
    pub lossless: u8,
    /// Alpha of the egress queues of the other priorities, in 1/1024.
    pub lossy_alpha_1024: u32,
}

/// What an ingress port holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ingress {
    /// Bytes by priority, without headroom.
    pub bytes: [u32; PRIORITIES],
    /// Bytes in headroom.
    pub headroom: [u32; PRIORITIES],
    /// Priorities that were told to pause.
    pub paused: u8,
    /// Alpha in 1/1024.
    pub alpha_1024: u32,
    /// Room for what arrives after a pause was sent, for each priority.
    pub headroom_limit: u32,
}

/// The buffer of one switch.
#[derive(Clone, Debug)]
pub struct Buffer {
    sizes: BufferSizes,
    /// What reserves and headrooms leave.
    shared_size: u64,
    shared_used: u64,
    /// Most that was shared.
    pub shared_peak: u64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is let in.
    In,
    /// There is no room.
    Dropped,
}

impl Buffer {
    /// An empty buffer. `set_aside` is what reserves and headrooms of all ports take.
    pub fn new(sizes: BufferSizes, set_aside: u64) -> Self {
        let shared_size = sizes.total.saturating_sub(set_aside);
        Self { sizes, shared_size, shared_used: 0, shared_peak: 0 }
    }

    /// True if PFC protects the priority.
    #[inline]
    pub fn is_lossless(&self, priority: usize) -> bool {
        self.sizes.lossless & (1 << priority) != 0
    }

    /// What a port with this alpha may hold of the shared part now.
    #[inline]
    pub fn threshold(&self, alpha_1024: u32) -> u64 {
        (self.shared_size.saturating_sub(self.shared_used) * u64::from(alpha_1024)) >> 10
    }

    /// Takes a packet in, if there is room. `queue_bytes` is what its egress queue holds.
    #[inline]
    pub fn admit(&mut self, port: &mut Ingress, priority: usize, bytes: u32, queue_bytes: u32) -> Admission {
        if !self.is_lossless(priority) {
            if u64::from(queue_bytes) + u64::from(bytes) > self.threshold(self.sizes.lossy_alpha_1024) {
                return Admission::Dropped;
            }
            self.share(u64::from(bytes));
            return Admission::In;
        }
        let reserve = self.sizes.reserve;
        let after = port.bytes[priority] + bytes;
        if after <= reserve {
            port.bytes[priority] = after;
            return Admission::In;
        }
        if u64::from(after - reserve) > self.threshold(port.alpha_1024) {
            if port.headroom[priority] + bytes > port.headroom_limit {
                return Admission::Dropped;
            }
            port.headroom[priority] += bytes;
            return Admission::In;
        }
        port.bytes[priority] = after;
        self.share(u64::from(bytes.min(after - reserve)));
        Admission::In
    }

    fn share(&mut self, bytes: u64) {
        self.shared_used += bytes;
        self.shared_peak = self.shared_peak.max(self.shared_used);
    }

    /// A packet leaves: headroom first, then the shared part, then the reserve.
    #[inline]
    pub fn release(&mut self, port: &mut Ingress, priority: usize, bytes: u32) {
        if !self.is_lossless(priority) {
            self.shared_used -= u64::from(bytes);
            return;
        }
        let from_headroom = port.headroom[priority].min(bytes);
        port.headroom[priority] -= from_headroom;
        let rest = bytes - from_headroom;
        let from_shared = rest.min(port.bytes[priority].saturating_sub(self.sizes.reserve));
        port.bytes[priority] -= rest;
        self.shared_used -= u64::from(from_shared);
    }

    fn shared_of(&self, port: &Ingress, priority: usize) -> u64 {
        u64::from(port.bytes[priority].saturating_sub(self.sizes.reserve))
    }

    /// True if the other side must stop now. Remembers that it was told.
    #[inline]
    pub fn must_pause(&self, port: &mut Ingress, priority: usize) -> bool {
        let bit = 1 << priority;
        if port.paused & bit != 0 || !self.is_lossless(priority) {
            return false;
        }
        let full = port.headroom[priority] > 0 || {
            let shared = self.shared_of(port, priority);
            shared > 0 && shared >= self.threshold(port.alpha_1024)
        };
        if full {
            port.paused |= bit;
        }
        full
    }

    /// True if the other side may go on now. Remembers that it was told.
    #[inline]
    pub fn may_resume(&self, port: &mut Ingress, priority: usize) -> bool {
        let bit = 1 << priority;
        if port.paused & bit == 0 || port.headroom[priority] > 0 {
            return false;
        }
        let shared = self.shared_of(port, priority);
        let free = shared == 0 || shared + u64::from(self.sizes.resume_below) <= self.threshold(port.alpha_1024);
        if free {
            port.paused &= !bit;
        }
        free
    }

    /// Bytes of the shared part in use.
    pub fn shared_used(&self) -> u64 {
        self.shared_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn buffer(total: u64, set_aside: u64) -> Buffer {
        let sizes = BufferSizes { total, reserve: 4096, resume_below: 3072, lossless: 0b1000, lossy_alpha_1024: 1024 };
        Buffer::new(sizes, set_aside)
    }

    fn port() -> Ingress {
        Ingress { alpha_1024: 128, headroom_limit: 37_500, ..Ingress::default() }
    }

    /// N equal ports fill up to N·B'/(8+N) in the shared part before they pause (alpha 1/8).
    #[test]
    fn equal_ports_pause_where_the_dynamic_threshold_says() {
        for n in [1_u64, 2, 8, 16] {
            let mut buffer = buffer(32 << 20, 1 << 20);
            let mut ports = vec![port(); n as usize];
            let mut held = 0_u64;
            while ports.iter().any(|port| port.paused == 0) {
                for port in &mut ports {
                    if port.paused == 0 {
                        assert_eq!(buffer.admit(port, 3, 1000, 0), Admission::In);
                        buffer.must_pause(port, 3);
                        held += 1000;
                    }
                }
            }
            let expected = n * 4096 + n * (31 << 20) / (8 + n);
            assert!(held.abs_diff(expected) <= 2_000 * n, "{n}: {held} {expected}");
        }
    }

    #[test]
    fn headroom_takes_what_follows_a_pause_and_one_byte_more_is_dropped() {
        let mut buffer = buffer(1 << 20, 0);
        let mut port = port();
        while !buffer.must_pause(&mut port, 3) {
            buffer.admit(&mut port, 3, 1000, 0);
        }
        // At the threshold: what comes now goes to headroom, but for what the shared part may still take.
        let mut more = 0;
        while buffer.admit(&mut port, 3, 500, 0) == Admission::In {
            more += 500;
        }
        assert_eq!(port.headroom[3], 37_500);
        assert!((36_000..39_000).contains(&more), "{more}");
        assert!(!buffer.must_pause(&mut port, 3), "told twice");
    }

    #[test]
    fn a_pause_ends_when_the_port_is_well_below_its_threshold() {
        let mut buffer = buffer(1 << 20, 0);
        let mut port = port();
        let mut held = 0_u32;
        while !buffer.must_pause(&mut port, 3) {
            buffer.admit(&mut port, 3, 1000, 0);
            held += 1;
        }
        let mut left = 0;
        while !buffer.may_resume(&mut port, 3) {
            buffer.release(&mut port, 3, 1000);
            left += 1;
        }
        // Three packets are more than 3072 B less growth of the threshold.
        assert!((2..=4).contains(&left), "{left} of {held}");
        assert!(!buffer.may_resume(&mut port, 3), "told twice");
    }

    #[test]
    fn what_went_in_comes_out_and_nothing_is_left() {
        for seed in 0..50 {
            let mut random = Random::new(seed, 1);
            let mut buffer = buffer(200_000, 50_000);
            let mut ports = [port(), port()];
            let mut held: Vec<(usize, usize, u32)> = Vec::new();
            for _ in 0..5_000 {
                if random.chance(550_000) {
                    let (of, priority) = (random.below(2) as usize, *random.pick(&[0_usize, 3]));
                    let bytes = random.range(60, 1500) as u32;
                    if buffer.admit(&mut ports[of], priority, bytes, 0) == Admission::In {
                        held.push((of, priority, bytes));
                    }
                } else if !held.is_empty() {
                    let (of, priority, bytes) = held.swap_remove(random.below(held.len() as u64) as usize);
                    buffer.release(&mut ports[of], priority, bytes);
                }
            }
            for (of, priority, bytes) in held {
                buffer.release(&mut ports[of], priority, bytes);
            }
            assert_eq!(buffer.shared_used(), 0, "seed {seed}");
            assert!(ports.iter().all(|port| port.bytes == [0; 8] && port.headroom == [0; 8]), "seed {seed}");
        }
    }
}
