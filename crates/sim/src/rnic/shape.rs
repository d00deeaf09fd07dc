//! What is asked of a NIC: one operation ([`Shape`]), and the circumstances that hold for all ([`Setting`]). Sizes that follow from the formats of WQE,
//! packet and TLP are computed here. No time is.

use super::parameter::Key;
use super::profile::Profile;

/// An operation of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND into a posted receive.
    Send,
    /// FETCH_AND_ADD of 8 bytes.
    Fadd,
    /// COMPARE_AND_SWAP of 8 bytes.
    Cas,
}

impl Op {
    /// All, in the order in which they are told.
    pub const ALL: [Op; 5] = [Op::Write, Op::Read, Op::Send, Op::Fadd, Op::Cas];

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Read => "read",
            Op::Send => "send",
            Op::Fadd => "fadd",
            Op::Cas => "cas",
        }
    }

    /// FADD and CAS.
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::Fadd | Op::Cas)
    }

    /// READ and atomics: the answer carries data, and only so many may be under way.
    pub fn is_answered(self) -> bool {
        self == Op::Read || self.is_atomic()
    }
}

/// Transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection: WRITE, SEND complete with the ACK.
    Rc,
    /// Unreliable connection: they complete when they have left.
    Uc,
    /// Unreliable datagram: as UC, and each WQE carries an address.
    Ud,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Which.
    pub op: Op,
    /// Bytes of data; 8 for atomics.
    pub bytes: u32,
    /// Data travels inside the WQE. Only WRITE and SEND, up to `nic.inline_bytes`.
    pub inline: bool,
    /// The CPU writes the WQE to the BAR. Only for a WQE that is rung alone.
    pub blueflame: bool,
    /// Transport service.
    pub transport: Transport,
}

impl Shape {
    /// An RC operation, not inline, without BlueFlame.
    pub fn new(op: Op, bytes: u32) -> Self {
        let bytes = if op.is_atomic() { 8 } else { bytes };
        Self { op, bytes, inline: false, blueflame: false, transport: Transport::Rc }
    }

    /// Says why a profile's NIC cannot do this.
    pub fn check(&self, profile: &Profile) -> Result<(), String> {
        let limit = profile.count(Key::NicInline);
        if self.inline && self.op.is_answered() {
            return Err(format!("a {} has no data to send: it cannot be inline", self.op.label()));
        }
        if self.inline && u64::from(self.bytes) > limit {
            return Err(format!("{} B inline; {} takes at most {limit} (nic.inline_bytes)", self.bytes, profile.name));
        }
        if self.op.is_atomic() && self.bytes != 8 {
            return Err(format!("an atomic works on 8 bytes, not {}", self.bytes));
        }
        if self.op.is_answered() && self.transport != Transport::Rc {
            return Err(format!("a {} needs RC", self.op.label()));
        }
        if self.op == Op::Write && self.transport == Transport::Ud {
            return Err("UD has only SEND".to_owned());
        }
        let most = if self.transport == Transport::Ud { profile.count(Key::WireMtu) } else { 1 << 31 };
        if u64::from(self.bytes) > most {
            return Err(format!("{} B are more than one message can carry, {most}", self.bytes));
        }
        Ok(())
    }

    /// Blocks of 64 B that the WQE takes: control 16, remote address 16, UD address 48, atomic 16, each piece of data 16, or 4 and the data inline.
    pub fn wqe_blocks(&self) -> u64 {
        let remote = if self.op == Op::Send { 0 } else { 16 };
        let address = if self.transport == Transport::Ud { 48 } else { 0 };
        let atomic = if self.op.is_atomic() { 16 } else { 0 };
        let data = if self.inline { 4 + u64::from(self.bytes) } else { 16 };
        (16 + remote + address + atomic + data).div_ceil(64)
    }

    /// Data that leaves with the request.
    pub fn request_bytes(&self) -> u64 {
        match self.op {
            Op::Write | Op::Send => self.bytes.into(),
            Op::Read => 16,
            Op::Fadd | Op::Cas => 28,
        }
    }

    /// Data that comes with the answer.
    pub fn answer_bytes(&self) -> u64 {
        if self.op.is_answered() { self.bytes.into() } else { 4 }
    }

    /// Data that must be read from the requester's memory before it can leave.
    pub fn gathered_bytes(&self) -> u64 {
        if self.inline || self.op.is_answered() { 0 } else { self.bytes.into() }
    }
}

/// What holds for all operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// PCIe relaxed ordering is on.
    pub relaxed_ordering: bool,
    /// PCIe link power management is on.
    pub aspm: bool,
    /// Completions are waited for by events, not by polling.
    pub events: bool,
    /// Atomics work on the NIC's own memory.
    pub device_memory: bool,
    /// The memory that peers use does not fit the last-level cache.
    pub dram: bool,
    /// Software emulates PCIe atomics.
    pub emulated_atomics: bool,
    /// Switches between the two hosts.
    pub switches: u32,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            relaxed_ordering: true,
            aspm: false,
            events: false,
            device_memory: false,
            dram: false,
            emulated_atomics: false,
            switches: 1,
        }
    }
}

/// Bytes a nanosecond that the bus carries each way before TLP headers.
pub fn bus_bytes_per_ns(profile: &Profile) -> f64 {
    let lanes = profile.value(Key::BusLanes);
    let gigabits = match profile.count(Key::BusGeneration) {
        1 => 2.5 * 0.8,
        2 => 5.0 * 0.8,
        generation @ 3..=5 => 8.0 * f64::from(1u32 << (generation - 3)) * 128.0 / 130.0,
        // PAM4 in flits of 256 B, of which 242 are for TLPs.
        generation => 8.0 * f64::from(1u32 << (generation - 3)) * 242.0 / 256.0,
    };
    gigabits * lanes / 8.0
}

/// What a transfer of `bytes` takes on the bus, cut at Max_Payload_Size.
pub fn bus_bytes(profile: &Profile, bytes: u64) -> u64 {
    bytes + (profile.value(Key::BusTlp) * bytes.div_ceil(profile.count(Key::BusMaxPayload)) as f64) as u64
}

/// What asking for `bytes` takes on the bus, cut at Max_Read_Request_Size.
pub fn request_bytes(profile: &Profile, bytes: u64) -> u64 {
    (profile.value(Key::BusTlp) * bytes.div_ceil(profile.count(Key::BusMaxReadRequest)) as f64) as u64
}

/// What a message of `bytes` takes on the wire, in packets of the path MTU.
pub fn wire_bytes(profile: &Profile, bytes: u64) -> u64 {
    bytes + profile.count(Key::WireHeader) * bytes.div_ceil(profile.count(Key::WireMtu)).max(1)
}

/// Picoseconds for `bytes` at a rate.
pub fn time_ps(bytes: u64, bytes_per_ns: f64) -> u64 {
    (bytes as f64 * 1000.0 / bytes_per_ns).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wqes_take_the_blocks_of_the_format() {
        let blocks = |op, bytes, inline, transport| Shape { inline, transport, ..Shape::new(op, bytes) }.wqe_blocks();
        assert_eq!(blocks(Op::Write, 8, false, Transport::Rc), 1);
        assert_eq!(blocks(Op::Read, 4096, false, Transport::Rc), 1);
        assert_eq!(blocks(Op::Cas, 8, false, Transport::Rc), 1);
        for (bytes, expected) in [(28, 1), (29, 2), (92, 2), (93, 3), (220, 4)] {
            assert_eq!(blocks(Op::Write, bytes, true, Transport::Rc), expected, "{bytes} B inline");
        }
        assert_eq!(blocks(Op::Send, 8, false, Transport::Ud), 2);
    }

    #[test]
    fn what_a_nic_cannot_do_is_refused() {
        let profile = Profile::named("cx6", super::super::profile::Kind::Course).unwrap();
        let inline = |op, bytes| Shape { inline: true, ..Shape::new(op, bytes) }.check(&profile);
        assert!(inline(Op::Write, 220).is_ok());
        assert!(inline(Op::Write, 4096).unwrap_err().contains("nic.inline_bytes"));
        assert!(inline(Op::Read, 8).unwrap_err().contains("no data to send"));
        assert!(Shape { transport: Transport::Uc, ..Shape::new(Op::Read, 8) }.check(&profile).is_err());
        assert!(Shape { transport: Transport::Ud, ..Shape::new(Op::Send, 8192) }.check(&profile).is_err());
        assert!(Shape { transport: Transport::Ud, ..Shape::new(Op::Send, 1024) }.check(&profile).is_ok());
    }

    #[test]
    fn the_bus_has_its_known_rates() {
        let mut profile = Profile::named("cx6", super::super::profile::Kind::Course).unwrap();
        for (generation, gigabytes) in [(1.0, 4.0), (2.0, 8.0), (3.0, 15.75), (4.0, 31.5), (5.0, 63.0), (6.0, 121.0)] {
            profile.set(Key::BusGeneration, generation, "test").unwrap();
            profile.set(Key::BusLanes, 16.0, "test").unwrap();
            assert!((bus_bytes_per_ns(&profile) - gigabytes).abs() < 0.1, "generation {generation}");
        }
    }
}
