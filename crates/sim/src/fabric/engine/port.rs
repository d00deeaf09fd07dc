//! The port of an engine in the fabric: what the engine sends waits here until the wire is free, and what arrives until the engine takes its turn. It knows neither
//! the fabric's time nor its ways. Data and answers wait apart, so that an ACK does not wait behind data, as on the light host.

use scalefabric_nic::port::{Datagram, Port, Sent, Train};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// Data packets that wait, at most: the wire is never idle, and the engine decides late.
const ROOM: usize = 2;
/// Source UDP ports begin here.
const SOURCE_PORT: u16 = 0xc000;

/// A packet as UDP carries it, BTH to ICRC, with what its headers say.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// IPv4 TOS: priority in the upper three bits, ECN in the lower two.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// BTH, headers, payload, ICRC.
    pub bytes: Vec<u8>,
}

/// Opcodes of a BTH that answer: ACK and NAK, atomic ACK, CNP.
const ANSWERS: [u8; 3] = [0x11, 0x12, 0x81];

impl Frame {
    /// Whether it is an ACK, a NAK or a CNP, not data.
    pub fn is_answer(&self) -> bool {
        self.bytes.first().is_some_and(|opcode| ANSWERS.contains(opcode))
    }

    /// Whether it is a CNP.
    pub fn is_cnp(&self) -> bool {
        self.bytes.first() == Some(&ANSWERS[2])
    }

    /// A switch has marked it, if it may be marked.
    pub fn mark(&mut self) {
        if self.traffic_class & 3 != 0 {
            self.traffic_class |= 3;
        }
    }
}

/// What waits on both sides.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Answers to be sent.
    pub answers: VecDeque<Frame>,
    /// Data to be sent.
    pub data: VecDeque<Frame>,
    /// The engine was told that there is no room.
    pub refused: bool,
    /// What has arrived.
    pub arrived: VecDeque<Frame>,
}

/// A handle; clones are the same port.
#[derive(Clone, Debug, Default)]
pub struct EnginePort(Arc<Mutex<Waiting>>);

impl EnginePort {
    /// What waits.
    pub fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Port for EnginePort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut count = 0;
        while count < max {
            // Not held while the engine works: it may send.
            let Some(frame) = self.waiting().arrived.pop_front() else { break };
            sink(&Datagram {
                src: frame.src,
                src_port: frame.src_port,
                dst: frame.dst,
                traffic_class: frame.traffic_class,
                hop_limit: frame.hop_limit,
                flow_label: 0,
                ip_id: 0,
                bytes: &frame.bytes,
            });
            count += 1;
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut waiting = self.waiting();
        let frame = Frame {
            src: train.src,
            dst: train.dst,
            src_port: train.src_port,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit,
            bytes: train.bytes.to_vec(),
        };
        if frame.is_answer() {
            waiting.answers.push_back(frame);
        } else if waiting.data.len() < ROOM {
            waiting.data.push_back(frame);
        } else {
            waiting.refused = true;
            return Sent::Blocked;
        }
        Sent::Done
    }

    fn source_port(&self, _src: IpAddr, flow: u32) -> u16 {
        SOURCE_PORT | (flow & 0x3fff) as u16
    }

    /// One datagram at a time: a NIC has no trains.
    fn max_train(&self) -> usize {
        1
    }
}
