//! Step 7 of the walk: a datagram is checked and finds its QP.
//!
//! Checks that need no QP, in this order: port, headers (length, version, opcode, pad), slot, ICRC, destination. Each
//! ends in a counted [`DropReason`]. Whatever the bytes are, nothing here panics and no memory is touched.

use std::net::IpAddr;
use std::ops::Range;

use scalefabric_transport::responder::Alike;
use scalefabric_transport::{Counter, DropReason};
use scalefabric_wire::bth;
use scalefabric_wire::icrc::{Check, Flow, InverseCache, Sender};
use scalefabric_wire::invalid::InvalidPacket;
use scalefabric_wire::packet::{Headers, ICRC_LEN, Packet, Reth};
use scalefabric_wire::{Gid, Qpn};

use crate::counters::Batch;
use crate::port::Datagram;

/// Flows remembered; a power of two.
const FLOWS: usize = 256;

/// A datagram for another slot of the device, which GRO merged with ours (D1).
pub trait Handover: Send {
    /// Passes it on; false if that slot is not in use or has no room.
    fn pass(&mut self, slot: u8, port_num: u8, datagram: &Datagram<'_>) -> bool;
}

/// A datagram for QP 1, kept for whoever speaks CM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GsiDatagram {
    /// Port it came in by.
    pub port_num: u8,
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Source UDP port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// IPv4 identification, or the likeliest.
    pub ip_id: u16,
    /// BTH and DETH.
    pub headers: Headers,
    /// The packet as it came, BTH to ICRC.
    pub bytes: Vec<u8>,
    /// Where the MAD stands in it.
    payload: Range<usize>,
}

impl GsiDatagram {
    /// A copy of a datagram and of what was found in it.
    pub fn new(port_num: u8, datagram: &Datagram<'_>, packet: &Packet<'_>) -> Self {
        let start = packet.headers.len();
        Self {
            port_num,
            src: Gid::from_ip(datagram.src),
            dst: Gid::from_ip(datagram.dst),
            src_port: datagram.src_port,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            ip_id: datagram.ip_id,
            headers: packet.headers,
            bytes: datagram.bytes.to_vec(),
            payload: start..start + packet.payload.len(),
        }
    }

    /// The MAD.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload.clone()).unwrap_or_default()
    }

    /// As it came from the port.
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            src: self.src.to_ip(),
            dst: self.dst.to_ip(),
            src_port: self.src_port,
            ip_id: self.ip_id,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            bytes: &self.bytes,
        }
    }
}

/// What became of a datagram.
pub enum Sorted<'a> {
    /// For a QP of this process.
    Qp(u16, Packet<'a>),
    /// For the members of a group.
    Multicast(Packet<'a>),
    /// For QP 1.
    Gsi(Packet<'a>),
    /// Dropped and counted, or handed over.
    Done,
}

/// Source, destination, source port, and what the ICRCs between them have in common.
type KnownFlow = (IpAddr, IpAddr, u16, Sender);

/// Bytes of the BTH that name the opcode, the flags, the P_Key and the destination.
const HEAD: usize = 8;

/// A request that was delivered to a QP, for the next one, which in a train differs in little: what these decide need
/// not be decided again.
struct Before {
    port_num: u8,
    /// Generation of the tables that it was checked against.
    generation: u32,
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    traffic_class: u8,
    head: [u8; HEAD],
    qp: u16,
    header_len: usize,
    /// Its place among the flows.
    flow: usize,
}

/// The state that checking needs: caches, nothing else.
pub struct Ingress {
    slot: u8,
    solve_ip_ids: bool,
    inverse: InverseCache,
    /// Constants of the ICRCs by source, destination and port: making them costs more than a small packet's CRC.
    flows: Box<[Option<KnownFlow>]>,
    handover: Option<Box<dyn Handover>>,
    before: Option<Before>,
}

impl Ingress {
    /// For a process with this slot.
    pub fn new(slot: u8, solve_ip_ids: bool) -> Self {
        Self {
            slot,
            solve_ip_ids,
            inverse: InverseCache::new(),
            flows: vec![None; FLOWS].into_boxed_slice(),
            handover: None,
            before: None,
        }
    }

    /// Who takes datagrams for other slots.
    pub fn set_handover(&mut self, handover: Box<dyn Handover>) {
        self.handover = Some(handover);
    }

    /// The datagram went to that QP, which takes others like it the short way while the tables are of that generation.
    pub fn remember(&mut self, qp: u16, port_num: u8, generation: u32, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let Some(head) = datagram.bytes.first_chunk() else { return };
        let (src, dst, src_port) = (datagram.src, datagram.dst, datagram.src_port);
        self.before = Some(Before {
            port_num,
            generation,
            src,
            dst,
            src_port,
            traffic_class: datagram.traffic_class,
            head: *head,
            qp,
            header_len: packet.headers.len(),
            flow: place(src, src_port),
        });
    }

    /// If the datagram is like the one before it: the QP, and what it does not share with that one. Whether it is whole has to be
    /// asked of [`Ingress::is_whole`].
    #[inline]
    pub fn alike<'a>(&self, port_num: u8, generation: u32, datagram: &Datagram<'a>) -> Option<(u16, Alike<'a>)> {
        let before = self.before.as_ref()?;
        let bytes = datagram.bytes;
        let same = bytes.first_chunk() == Some(&before.head)
            && port_num == before.port_num
            && generation == before.generation
            && datagram.src_port == before.src_port
            && datagram.traffic_class == before.traffic_class
            && datagram.src == before.src
            && datagram.dst == before.dst;
        if !same {
            return None;
        }
        let (headers, rest) = bytes.split_at_checked(before.header_len)?;
        let (body, _) = rest.split_last_chunk::<ICRC_LEN>()?;
        let view = bth::View::new(headers).ok()?;
        let length = body.len().checked_sub(usize::from(view.pad_count())).filter(|_| body.len().is_multiple_of(4))?;
        let reth = match headers.get(bth::LEN..) {
            Some([]) | None => None,
            Some(rest) => Some(Reth::parse(rest).ok()?),
        };
        Some((before.qp, Alike { psn: view.psn(), ack_req: view.ack_req(), reth, payload: &body[..length] }))
    }

    /// Whether a datagram that is like the one before it has the right ICRC.
    #[inline]
    pub fn is_whole(&mut self, datagram: &Datagram<'_>, batch: &mut Batch) -> bool {
        let Some(flow) = self.before.as_ref().map(|before| before.flow) else { return false };
        // Another flow may have taken its place meanwhile.
        let (src, dst, port) = (datagram.src, datagram.dst, datagram.src_port);
        let sender = match &mut self.flows[flow] {
            Some((s, d, p, sender)) if *p == port && *s == src && *d == dst => sender,
            _ => return false,
        };
        match sender.check(datagram.ip_id, datagram.bytes, &mut self.inverse) {
            Check::Ok => true,
            Check::OkWithId(_) => {
                batch.count(Counter::SolvedIpIds, u64::from(self.solve_ip_ids));
                self.solve_ip_ids
            }
            Check::Bad => false,
        }
    }

    /// Checks a datagram and finds out for whom it is. `whole`: with what stood behind its ICRC, as another slot gets it.
    #[inline]
    pub fn sort<'a>(
        &mut self,
        port_num: u8,
        datagram: &Datagram<'a>,
        whole: &Datagram<'_>,
        batch: &mut Batch,
    ) -> Sorted<'a> {
        let packet = match Packet::parse(datagram.bytes) {
            Ok(packet) => packet,
            Err(invalid) => {
                batch.drop_packet(reason(&invalid));
                return Sorted::Done;
            }
        };
        let qpn = packet.headers.bth.dest_qp;
        let slot = (qpn.get() >> 16) as u8;
        let ours = slot == self.slot || qpn == Qpn::MULTICAST || qpn == Qpn::GSI;
        if !ours {
            let passed = self.handover.as_mut().is_some_and(|h| h.pass(slot, port_num, whole));
            if !passed {
                batch.drop_packet(DropReason::NoSuchQp);
            }
            return Sorted::Done;
        }
        let sender = sender(&mut self.flows, datagram);
        match sender.check(datagram.ip_id, datagram.bytes, &mut self.inverse) {
            Check::Ok => {}
            Check::OkWithId(_) if self.solve_ip_ids => batch.count(Counter::SolvedIpIds, 1),
            Check::OkWithId(_) | Check::Bad => {
                batch.drop_packet(DropReason::BadIcrc);
                return Sorted::Done;
            }
        }
        batch.count(Counter::ReceivedPackets, 1);
        batch.count(Counter::ReceivedBytes, datagram.bytes.len() as u64);
        // A group address and the group's QPN come together or not at all (clause 9.6.1.2).
        if (qpn == Qpn::MULTICAST) != datagram.dst.is_multicast() {
            batch.drop_packet(DropReason::Malformed);
            return Sorted::Done;
        }
        if qpn == Qpn::MULTICAST {
            Sorted::Multicast(packet)
        } else if qpn == Qpn::GSI {
            Sorted::Gsi(packet)
        } else {
            Sorted::Qp(qpn.get() as u16, packet)
        }
    }
}

/// The flow of a datagram, remembered or made.
#[inline]
fn sender<'f>(flows: &'f mut [Option<KnownFlow>], datagram: &Datagram<'_>) -> &'f mut Sender {
    let (src, dst, port) = (datagram.src, datagram.dst, datagram.src_port);
    let entry = &mut flows[place(src, port)];
    if !matches!(entry, Some((s, d, p, _)) if *p == port && *s == src && *d == dst) {
        *entry = None;
    }
    let made = || (src, dst, port, Sender::new(Flow::between(Gid::from_ip(src), Gid::from_ip(dst), port)));
    &mut entry.get_or_insert_with(made).3
}

/// Where a flow is remembered.
#[inline]
fn place(src: IpAddr, port: u16) -> usize {
    usize::from(port ^ (port >> 8) ^ last_byte(src)) % FLOWS
}

fn last_byte(ip: IpAddr) -> u16 {
    u16::from(match ip {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    })
}

fn reason(invalid: &InvalidPacket) -> DropReason {
    match invalid {
        InvalidPacket::Truncated { .. } => DropReason::Truncated,
        InvalidPacket::BadOpcode(_) => DropReason::BadOpcode,
        InvalidPacket::BadVersion(_) => DropReason::BadVersion,
        InvalidPacket::BadPad { .. } => DropReason::BadPad,
        InvalidPacket::Malformed(_) => DropReason::Malformed,
    }
}
