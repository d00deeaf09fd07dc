//! What switches write on data packets for controllers that ask for it: nothing, a record of each hop (INT), or one byte, the code of the fullest port on the
//! way (PINT). PINT's port is the transport's own; a switch keeps one for each of its ports. Receivers send back what came.

use super::model::HostModel;
use super::packet::{Arena, IntHop};
use super::port::Port;
use super::time::Ps;
use scalefabric_transport::congestion::{Moment, Profile, pint};

/// What is written, and what ports remember for it.
#[derive(Clone, Debug, PartialEq)]
pub enum Writing {
    /// Nothing.
    Nothing,
    /// A record of each hop.
    Records,
    /// The code of the fullest port; the state of all ports, by their index.
    Codes(Vec<pint::Port>),
}

impl Writing {
    /// What a profile needs, in a network whose greatest base RTT is `base_rtt`: the time over which a port averages, since it knows of no sender's.
    pub fn for_profile(profile: &Profile, ports: &[Port], base_rtt: Ps) -> Self {
        if !profile.needs_telemetry() {
            Self::Nothing
        } else if profile.get("pint") == Some(1.0) {
            Self::Codes(ports.iter().map(|port| pint::Port::new(port.rate.bps, base_rtt.0)).collect())
        } else {
            Self::Records
        }
    }

    /// Whether packets carry records.
    pub fn has_records(&self) -> bool {
        matches!(self, Self::Records)
    }

    /// What it adds to a data packet, in bytes.
    #[inline]
    pub fn data_bytes(&self, host: &HostModel) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Records => host.int_bytes,
            Self::Codes(_) => host.pint_bytes,
        }
    }

    /// What it adds to an ACK, in bytes.
    #[inline]
    pub fn ack_bytes(&self, host: &HostModel) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Records => host.ack_int_bytes,
            Self::Codes(_) => host.ack_pint_bytes,
        }
    }

    /// A data packet has left the queue of a switch's port.
    #[inline]
    pub fn write(&mut self, now: Ps, index: u32, port: &Port, arena: &mut Arena, place: u32) {
        match self {
            Self::Nothing => {}
            Self::Records => arena.stamp(
                place,
                IntHop {
                    at: now,
                    tx_bytes: port.tx_bytes,
                    queue_bytes: port.queued_bytes,
                    rate_mbps: (port.rate.bps / 1_000_000) as u32,
                },
            ),
            Self::Codes(states) => {
                let packet = arena.get_mut(place);
                let state = &mut states[index as usize];
                packet.code = state.forward(Moment(now.0), packet.bytes, u64::from(port.queued_bytes), packet.code);
            }
        }
    }
}
