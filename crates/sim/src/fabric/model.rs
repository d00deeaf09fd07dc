//! What hosts and switches of the simulator are like: every number that a run assumes, by name, with two sets of them. `reference` assumes what the
//! simulators of the literature assume; `roce` what a RoCEv2 fabric and the transport that ships do. Data only.

use super::port::{PRIORITIES, Schedule};
use super::time::{Ps, Rate};

/// What a receiver does with a packet that comes too early, and a sender with what it hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The receiver throws away what is not next; the sender goes back to it. What RC and the transport that ships do.
    GoBackN,
    /// The receiver keeps what comes early; the sender sends again what is missing once a packet `reorder` later has arrived.
    /// Sprayed paths need a `reorder` beyond what paths differ by.
    Selective {
        /// In packets.
        reorder: u32,
    },
}

/// How a receiver tells of ECN marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// A flag in the ACK of the packet that was marked, as the reference simulators do.
    InAck,
    /// CNPs of their own, at most one in this time for each QP.
    Packets {
        /// The least time between two.
        interval: Ps,
    },
}

/// Hosts with the whole engine instead of the light QP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineModel {
    /// The congestion controller, by the transport's name.
    pub algorithm: String,
    /// Parameters that differ from the profile's.
    pub parameters: Vec<(String, f64)>,
}

/// Hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct HostModel {
    /// Payload of a full packet, in bytes.
    pub mtu: u32,
    /// What every data packet has on the wire besides payload, in bytes.
    pub header_bytes: u32,
    /// What INT adds to each data packet, in bytes.
    pub int_bytes: u32,
    /// What PINT adds to each data packet, in bytes.
    pub pint_bytes: u32,
    /// What a time stamp adds to each data packet, in bytes.
    pub stamp_bytes: u32,
    /// An ACK, NAK or CNP on the wire, in bytes.
    pub ack_bytes: u32,
    /// What INT adds to an ACK, in bytes.
    pub ack_int_bytes: u32,
    /// What PINT adds to an ACK, in bytes.
    pub ack_pint_bytes: u32,
    /// The receiver answers each so many packets, and the last of a message; each one of a QP whose controller has a window.
    pub ack_every: u32,
    /// ACKs leave a host before data and are not stopped by PFC there.
    pub acks_first: bool,
    /// Duplicates are acknowledged again.
    pub answer_duplicates: bool,
    /// Least time between two NAKs for the same packet; none: it is told once until it comes.
    pub nak_interval: Option<Ps>,
    /// An answer is awaited so long, then the sender goes back; none: for ever.
    pub timeout: Option<Ps>,
    /// A sender gives up after so many timeouts in a row.
    pub retry_cnt: u32,
    /// What happens after loss.
    pub recovery: Recovery,
    /// How marks are told.
    pub notification: Notification,
    /// Priority of ACKs and NAKs in switches.
    pub ack_priority: u8,
    /// Priority of CNPs in switches.
    pub cnp_priority: u8,
    /// The base RTT that controllers are told: the greatest of the fabric, as the reference simulators do, or that of the two hosts.
    pub greatest_rtt: bool,
    /// A QP has at most so many bytes in flight, whatever its controller says; 0: no limit.
    pub flight_limit: u64,
    /// A QP sends at most so fast, on the wire, as `ibv_modify_qp_rate_limit` asks for; none: as fast as its port.
    pub qp_rate: Option<Rate>,
    /// The whole engine on each host; none: the light host.
    pub engine: Option<EngineModel>,
}

/// When a switch marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// No mark up to here, in bytes at 25 Gb/s if `scaled`, else in bytes.
    pub kmin: u64,
    /// Every packet from here on.
    pub kmax: u64,
    /// Probability just below `kmax`.
    pub pmax: f64,
    /// Thresholds grow with the rate of the port.
    pub scaled: bool,
}

/// How a switch chooses among ways of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// By a hash of addresses and source port: a flow keeps its way.
    Hash,
    /// Each packet by chance.
    Spray,
    /// Each packet to a port with the least in its queues, in grades of 16 KiB.
    Adaptive,
}

/// PFC.
#[derive(Clone, Debug, PartialEq)]
pub struct Pfc {
    /// Priorities that use it; 0: none.
    pub priorities: u8,
    /// Alpha of ports as fast as a host's, in 1/1024.
    pub alpha_1024: u32,
    /// Alpha doubles with each doubling of speed above a host's.
    pub alpha_by_speed: bool,
    /// Bytes that each port and priority has for itself.
    pub reserve: u32,
    /// Bytes below the threshold at which a pause ends.
    pub resume_below: u32,
    /// Headroom: so many times rate x delay of the link …
    pub headroom_delays: u32,
    /// … and so many bytes.
    pub headroom_bytes: u32,
    /// Quanta of a PAUSE (512 bit times each), told again at half of it; none: until RESUME comes.
    pub quanta: Option<u16>,
    /// A priority that was paused so long without a break loses what waits, and pauses are ignored for as long; none: no watchdog.
    pub watchdog: Option<Ps>,
    /// A PFC frame on the wire, in bytes.
    pub frame_bytes: u32,
}

/// Switches.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchModel {
    /// Buffer in bytes.
    pub buffer: u64,
    /// Priority flow control.
    pub pfc: Pfc,
    /// Alpha of priorities without PFC, in 1/1024.
    pub lossy_alpha_1024: u32,
    /// ECN; none: no marks.
    pub marking: Option<Marking>,
    /// Among the priorities of a port.
    pub schedule: Schedule,
    /// Among ways.
    pub balance: Balance,
    /// After a link failed, ways that need it are used for so long.
    pub reconvergence: Ps,
}

/// Everything that a run assumes.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Hosts.
    pub host: HostModel,
    /// Switches.
    pub switch: SwitchModel,
    /// Serialisation is cut to whole nanoseconds, as ns-3.17 does.
    pub ns3_quantum: bool,
}

impl Model {
    /// What the reference simulators assume: 1000-byte payload, 48 bytes of headers, an ACK for each packet with the mark in it, no
    /// retransmission timer, 32 MiB of buffer.
    pub fn reference() -> Self {
        Self {
            host: HostModel {
                mtu: 1000,
                header_bytes: 48,
                int_bytes: 42,
                pint_bytes: 2,
                stamp_bytes: 8,
                ack_bytes: 60,
                ack_int_bytes: 28,
                // Within what pads an ACK to 60 bytes.
                ack_pint_bytes: 0,
                ack_every: 1,
                acks_first: true,
                answer_duplicates: false,
                nak_interval: Some(Ps::from_ns(500_000)),
                timeout: None,
                retry_cnt: 7,
                recovery: Recovery::GoBackN,
                notification: Notification::InAck,
                ack_priority: 3,
                cnp_priority: 3,
                greatest_rtt: true,
                flight_limit: 0,
                qp_rate: None,
                engine: None,
            },
            switch: SwitchModel {
                buffer: 32 << 20,
                pfc: Pfc {
                    priorities: 1 << 3,
                    alpha_1024: 128,
                    alpha_by_speed: true,
                    reserve: 4096,
                    resume_below: 3072,
                    headroom_delays: 3,
                    headroom_bytes: 0,
                    quanta: None,
                    watchdog: None,
                    frame_bytes: 43,
                },
                lossy_alpha_1024: 1024,
                marking: Some(Marking { kmin: 100_000, kmax: 400_000, pmax: 0.2, scaled: true }),
                schedule: Schedule::default(),
                balance: Balance::Hash,
                reconvergence: Ps::from_ns(1_000_000),
            },
            ns3_quantum: false,
        }
    }

    /// RoCEv2 over Ethernet: 4096-byte payload, headers with preamble and gap, an ACK for each eighth packet, CNPs of their own in a strict
    /// priority, go-back-N with the timer of `timeout` 14 (67 ms), PFC with quanta and watchdog.
    pub fn roce() -> Self {
        let reference = Self::reference();
        let mut weights = [1; PRIORITIES];
        weights[3] = 4;
        Self {
            host: HostModel {
                mtu: 4096,
                // Preamble 8, Ethernet 14 + 4, gap 12, IPv4 20, UDP 8, BTH 12, ICRC 4.
                header_bytes: 82,
                int_bytes: 64,
                pint_bytes: 4,
                stamp_bytes: 0,
                ack_bytes: 86,
                ack_int_bytes: 64,
                ack_pint_bytes: 4,
                ack_every: 8,
                answer_duplicates: true,
                nak_interval: None,
                timeout: Some(Ps(4_096_000 << 14)),
                notification: Notification::Packets { interval: Ps::from_ns(4_000) },
                cnp_priority: 6,
                greatest_rtt: false,
                ..reference.host
            },
            switch: SwitchModel {
                pfc: Pfc {
                    headroom_delays: 2,
                    // The packet that fills the threshold, the one that the frame waits for, the one that the other side has begun; and frames.
                    headroom_bytes: 3 * 4178 + 2 * 84,
                    quanta: Some(u16::MAX),
                    watchdog: Some(Ps::from_ns(200_000_000)),
                    frame_bytes: 84,
                    ..reference.switch.pfc
                },
                schedule: Schedule { strict: 1 << 6, weights },
                ..reference.switch
            },
            ns3_quantum: false,
        }
    }

    /// A data packet on the wire: payload, headers, what switches write on, and a time stamp.
    pub fn wire_bytes(&self, payload: u32, written: u32, with_stamp: bool) -> u32 {
        let stamp = if with_stamp { self.host.stamp_bytes } else { 0 };
        payload + self.host.header_bytes + written + stamp
    }
}

/// Marks and thresholds of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PortMarking {
    kmin: u32,
    kmax: u32,
    /// Pmax in units of 2^-32.
    pmax: u64,
}

impl PortMarking {
    /// Of a port of `bps`.
    pub fn of(marking: Option<Marking>, bps: u64) -> Self {
        let Some(marking) = marking else { return Self { kmin: u32::MAX, kmax: u32::MAX, pmax: 0 } };
        let scale = |bytes: u64| {
            let scaled = u128::from(bytes) * u128::from(bps) / 25_000_000_000;
            u32::try_from(if marking.scaled { scaled } else { u128::from(bytes) }).unwrap_or(u32::MAX)
        };
        let pmax = (marking.pmax.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        Self { kmin: scale(marking.kmin), kmax: scale(marking.kmax), pmax }
    }

    /// The chance of a mark at a queue of so many bytes, in units of 2^-32.
    #[inline]
    pub fn chance(&self, queue_bytes: u32) -> u64 {
        if queue_bytes > self.kmax {
            1 << 32
        } else if queue_bytes > self.kmin {
            self.pmax * u64::from(queue_bytes - self.kmin) / u64::from((self.kmax - self.kmin).max(1))
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marking_follows_the_line_between_its_thresholds() {
        let model = Model::reference();
        let port = PortMarking::of(model.switch.marking, 100_000_000_000);
        let chance = |bytes| port.chance(bytes) as f64 / 4_294_967_296.0;
        assert_eq!((chance(0), chance(400_000), chance(1_600_001)), (0.0, 0.0, 1.0));
        assert!((chance(1_000_000) - 0.1).abs() < 1e-6 && (chance(1_600_000) - 0.2).abs() < 1e-6);
        // Thresholds scale with the rate: 400G marks from 1.6 MB on.
        let fast = PortMarking::of(model.switch.marking, 400_000_000_000);
        assert_eq!((fast.chance(1_600_000), fast.chance(6_400_001)), (0, 1 << 32));
        assert_eq!(PortMarking::of(None, 1).chance(u32::MAX), 0);
    }
}
