//! What one QP's transport sees of the NIC: [`QpHost`] borrows its rings, the memory table, the egress, the CQs and the
//! port tables for the length of one call.
//!
//! It decides nothing about the protocol. Bytes go from registered memory straight into the packet, and from the packet
//! straight into registered memory; nothing is copied twice.

use std::collections::VecDeque;
use std::sync::Arc;

use scalefabric_transport::congestion::int;
use scalefabric_transport::host::{
    AccessFault, AtomicOp, Direct, EmitError, Host, LocalFault, Outgoing, Path, Payload, PlainWrite, RecvWqe,
    RemoteAccess, Run, SendWqe,
};
use scalefabric_transport::{Counter, DropReason, Time};
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{
    AddressVector, EventSubject, FlushLevel, FlushPlacement, Gid, Mtu, PKey, QpAttr, Qpn, RKey, Srqn, WcStatus,
    WorkCompletion,
};
use scalefabric_wire::bth;
use scalefabric_wire::icrc::{Flow, Running};
use scalefabric_wire::packet::{ICRC_LEN, pad_count};

use crate::completion::{Channel, Pushed};
use crate::counters::Batch;
use crate::egress::{Egress, Way};
use crate::engine::direct::Setup;
use crate::engine::entry::{CqEntry, NO_CQ, QpSide, Route, Slots, SrqShared};
use crate::events::Listeners;
use crate::faults::{DeviceFaults, Fate};
use crate::memory::{Access, PdId, Peer};
use crate::port::Port;
use crate::ring::SendRing;
use crate::tables::Tables;
use crate::window::Windows;

/// Entries of the cache of datagram destinations; a power of two.
const DATAGRAM_ROUTES: usize = 256;

/// What all QPs of an engine share.
pub struct Fabric {
    /// GIDs, P_Keys, states.
    pub tables: Tables,
    /// One per port.
    pub egress: Vec<Egress>,
    /// One per port.
    pub batches: Vec<Batch>,
    /// CQs by number.
    pub cqs: Slots<CqEntry>,
    /// SRQs by the lower 16 bits of their number.
    pub srqs: Slots<Arc<SrqShared>>,
    /// Who hears of asynchronous events.
    pub listeners: Listeners,
    /// Channels to wake after the turn; a channel may stand here twice, which costs one look.
    pub wakes: VecDeque<Arc<Channel>>,
    /// CQs that put something off; one may stand here twice.
    pub late: Vec<u32>,
    /// CQs that overran in this turn.
    pub overruns: Vec<u32>,
    /// Routes of datagrams by destination.
    pub datagrams: Box<[(Qpn, Route)]>,
    /// UDP source ports to use when no port can be asked (in the middle of receiving), one per port.
    pub fallback_ports: Vec<u16>,
    /// Routes made so far.
    pub serial: u64,
    /// What is under way to each destination.
    pub windows: Windows,
    /// A QP was found to have no room in this turn.
    pub blocked: bool,
    /// Bytes of UC and UD that left since others were last let onto the processor.
    pub unanswered: usize,
    /// Faults of the device; mostly there are none.
    pub(crate) faults: Option<Box<DeviceFaults>>,
    /// The same-host path; `None`: all goes as packets.
    pub(crate) direct: Option<Setup>,
}

impl Fabric {
    /// An empty cache of datagram destinations.
    pub fn datagram_routes() -> Box<[(Qpn, Route)]> {
        vec![(Qpn::new(0), Route::none()); DATAGRAM_ROUTES].into_boxed_slice()
    }

    /// Raises an event that concerns a port.
    pub fn port_event(&mut self, event_type: EventType, port_num: u8) {
        self.listeners.tell_all(event_type, EventSubject::Port(port_num));
    }

    /// Places a completion; true if the CQ has overrun.
    #[inline(always)]
    pub(crate) fn complete(&mut self, now: Time, cq: u32, wc: &WorkCompletion, solicited: bool) -> bool {
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return false };
        let pushed = entry.producer.push_at(wc, solicited, now.0);
        let waits = entry.late.event.is_some();
        if pushed == Pushed::Quiet && !waits {
            return false;
        }
        if waits {
            self.count_late(cq);
        }
        self.finish_push(now, cq, pushed)
    }

    /// What follows from a completion beside that it is there.
    #[cold]
    fn finish_push(&mut self, now: Time, cq: u32, pushed: Pushed) -> bool {
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return false };
        let (notify, overrun) = match pushed {
            Pushed::Quiet => return false,
            Pushed::Hidden => {
                if entry.late.hidden.is_none() {
                    entry.late.hidden = Some(now.after(entry.late.batch_ns));
                    self.late.push(cq);
                }
                return false;
            }
            Pushed::Notify => (true, false),
            Pushed::Overrun { notify } => (notify, true),
            Pushed::Lost => return true,
        };
        if notify {
            self.notify(now, cq, overrun);
        }
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return false };
        if overrun {
            self.listeners.tell(&entry.events, EventType::CqErr, EventSubject::CompletionQueue(cq));
            self.overruns.push(cq);
        }
        overrun
    }

    /// A CQ that was armed got what it was armed for: its channel rings, now or by its moderation.
    fn notify(&mut self, now: Time, cq: u32, at_once: bool) {
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return };
        let late = &mut entry.late;
        if !at_once && (late.count > 1 || late.period_ns > 0) {
            if late.event.is_none() {
                late.event = Some((1, (late.period_ns > 0).then(|| now.after(late.period_ns))));
                self.late.push(cq);
            }
            return;
        }
        if let Some(channel) = &entry.channel {
            channel.push(cq);
            self.wakes.push_back(channel.clone());
        }
    }

    /// One more completion while an event waits.
    #[cold]
    fn count_late(&mut self, cq: u32) {
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return };
        let Some((seen, _)) = &mut entry.late.event else { return };
        *seen += 1;
        if entry.late.count > 1 && *seen >= u32::from(entry.late.count) {
            self.end_late_event(cq);
        }
    }

    fn end_late_event(&mut self, cq: u32) {
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return };
        if entry.late.event.take().is_some()
            && let Some(channel) = &entry.channel
        {
            channel.push(cq);
            self.wakes.push_back(channel.clone());
        }
    }

    /// Ends what CQs have put off until now.
    pub fn run_late(&mut self, now: Time) {
        let mut index = 0;
        while let Some(&cq) = self.late.get(index) {
            let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
            let Some(late) = self.cqs.get(cq as usize).map(|entry| entry.late) else {
                self.late.swap_remove(index);
                continue;
            };
            if due(late.hidden) {
                self.show(now, cq);
            }
            if due(late.event.and_then(|(_, at)| at)) {
                self.end_late_event(cq);
            }
            let left = self.cqs.get(cq as usize).map(|entry| entry.late);
            if left.is_none_or(|late| late.hidden.is_none() && late.event.is_none()) {
                self.late.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Shows the poller the completions of a CQ whose batch is not whole.
    pub fn show(&mut self, now: Time, cq: u32) {
        let Some(entry) = self.cqs.get_mut(cq as usize) else { return };
        entry.late.hidden = None;
        if entry.producer.show() {
            self.notify(now, cq, false);
        }
    }

    /// Sets the moderation of a CQ. An event that waits comes now.
    pub fn moderate(&mut self, cq: u32, count: u16, period_ns: u64) {
        if let Some(entry) = self.cqs.get_mut(cq as usize) {
            (entry.late.count, entry.late.period_ns) = (count, period_ns);
            self.end_late_event(cq);
        }
    }

    /// When [`Fabric::run_late`] has something to do.
    pub fn late_deadline(&self) -> Option<Time> {
        self.late.iter().filter_map(|&cq| self.cqs.get(cq as usize)?.late.deadline()).min()
    }
}

/// A host for one QP, for one call.
pub struct QpHost<'a, 't> {
    /// Time of the turn.
    pub now: Time,
    /// The QP's own.
    pub side: &'a mut QpSide,
    /// What is shared.
    pub fabric: &'a mut Fabric,
    /// Memory during this turn.
    pub memory: &'a Access<'t>,
    /// Ports, to ask for a source port; `None` in the middle of receiving from one.
    pub ports: Option<&'a [Box<dyn Port>]>,
}

/// The flow from which a port chooses the UDP source port, unless the flow label names one: the flow label if the application gave one, else a mix of the
/// two QPNs as Linux has it (`rdma_calc_flow_label`).
pub fn flow_of(av: &AddressVector, local: Qpn, remote: Qpn) -> u32 {
    if av.flow_label & 0x000f_ffff != 0 {
        return av.flow_label & 0x000f_ffff;
    }
    let mut v = u64::from(local.get()) * u64::from(remote.get());
    v ^= v >> 20;
    v ^= v >> 40;
    (v & 0x000f_ffff) as u32
}

/// Makes a route for an address vector from the tables as they are now.
pub fn make_route(fabric: &mut Fabric, ports: Option<&[Box<dyn Port>]>, av: &AddressVector, flow: u32) -> Route {
    let src = fabric.tables.port(av.port_num).and_then(|p| p.gid(u32::from(av.sgid_index))).unwrap_or(Gid::ZERO);
    let index = usize::from(av.port_num).wrapping_sub(1);
    let src_port = match ports.and_then(|p| p.get(index)) {
        Some(port) => scalefabric_verbs::named_source_port(av.flow_label)
            .and_then(|wanted| port.named_source_port(src.to_ip(), wanted))
            .unwrap_or_else(|| port.source_port(src.to_ip(), flow)),
        None => fabric.fallback_ports.get(index).copied().unwrap_or(0xc000),
    };
    let way = Way::between(src, av.dgid, src_port, av);
    let flow = way.map_or(Route::none().flow, |w| w.flow());
    fabric.serial += 1;
    Route { av: *av, way, flow, serial: fabric.serial, generation: fabric.tables.generation() }
}

impl QpHost<'_, '_> {
    fn batch(&mut self) -> &mut Batch {
        let index = usize::from(self.side.port_num.max(1)) - 1;
        &mut self.fabric.batches[index]
    }

    fn peer(&self, xrc_srqn: Option<Srqn>) -> Result<Peer, AccessFault> {
        peer(self.side, &self.fabric.srqs, xrc_srqn)
    }

    /// Finds the route of a packet, made anew if the tables have changed: where it stands, so that nothing is copied.
    #[inline]
    fn route(&mut self, packet: &Outgoing) -> RouteAt {
        let generation = self.fabric.tables.generation();
        match packet.path {
            Path::Primary | Path::Alternate => {
                let which = usize::from(packet.path == Path::Alternate);
                let route = &self.side.routes[which];
                if route.generation != generation && route.av.port_num != 0 {
                    self.renew_route(which, packet.headers.bth.dest_qp);
                }
                RouteAt::Path(which)
            }
            Path::Datagram(ref av) => {
                let qpn = self.side.shared.qpn;
                let place = datagram_place(av, qpn);
                let (of, route) = &self.fabric.datagrams[place];
                if *of != qpn || route.generation != generation || route.av != *av {
                    self.new_datagram_route(place, av, packet.headers.bth.dest_qp);
                }
                RouteAt::Datagram(place)
            }
        }
    }

    /// Makes the primary route anew if the tables have changed. Before an answer there was a request.
    pub(crate) fn renew_primary(&mut self, dest_qp: Qpn, answer: bool) {
        let route = &self.side.routes[0];
        if !answer && route.generation != self.fabric.tables.generation() && route.av.port_num != 0 {
            self.renew_route(0, dest_qp);
        }
    }

    #[cold]
    fn renew_route(&mut self, which: usize, dest_qp: Qpn) {
        let old = self.side.routes[which];
        let flow = flow_of(&old.av, self.side.shared.qpn, dest_qp);
        let mut fresh = make_route(self.fabric, self.ports, &old.av, flow);
        fresh.set_ecn(self.side.ecn_capable);
        // The UDP source port of a path is chosen once: it is what keeps a QP on one way through the fabric.
        if let (Some(old), Some(new)) = (&old.way, &mut fresh.way)
            && old.src == new.src
        {
            new.src_port = old.src_port;
            fresh.flow = new.flow();
        }
        self.side.routes[which] = fresh;
    }

    #[cold]
    fn new_datagram_route(&mut self, place: usize, av: &AddressVector, dest_qp: Qpn) {
        let qpn = self.side.shared.qpn;
        let mut route = make_route(self.fabric, self.ports, av, flow_of(av, qpn, dest_qp));
        if self.ports.is_none() {
            // Without a port to ask the source port is a stand-in: good for this packet, not for the next.
            route.generation = 0;
        }
        self.fabric.datagrams[place] = (qpn, route);
    }

    /// Puts a packet behind the one that this QP emitted just before, from which it differs as [`Host::emit_alike`] says.
    #[inline]
    fn emit_behind(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError> {
        let (header_len, length) = (packet.headers.len(), payload_len(&payload));
        let end = header_len + length.next_multiple_of(4);
        let serial = self.side.routes[0].serial;
        let room = self.open_train(packet).and_then(|egress| egress.behind(serial, end + ICRC_LEN));
        let Some(room) = room else { return self.emit_with(packet, payload, &[]) };
        let Self { side, fabric, memory, .. } = self;
        let route = &side.routes[0];
        let bth = &packet.headers.bth;
        let port_num = route.av.port_num;
        let Fabric { egress, srqs, .. } = &mut **fabric;
        let egress = &mut egress[usize::from(port_num) - 1];
        let (before, bytes) = egress.bytes_behind(room);
        bytes[..bth::LEN].copy_from_slice(&before[..bth::LEN]);
        bytes[8..bth::LEN].copy_from_slice(&(bth.psn.get() | u32::from(bth.ack_req) << 31).to_be_bytes());
        if let (Some(reth), Some(out)) = (&packet.headers.reth, bytes[bth::LEN..header_len].first_chunk_mut()) {
            reth.emit(out);
        }
        if length >= ONE_PASS {
            let (transport, icrc) = bytes.split_at_mut(end);
            let sum = fill_and_sum(side, srqs, memory, payload, transport, header_len, &route.flow, room.ip_id)?;
            icrc.copy_from_slice(&sum.to_le_bytes());
        } else {
            fill(side, srqs, memory, payload, &mut bytes[header_len..header_len + length])?;
            let (transport, icrc) = bytes.split_at_mut(end);
            if header_len + length < end {
                transport[header_len + length..].fill(0);
            }
            icrc.copy_from_slice(&route.flow.icrc(room.ip_id, transport).to_le_bytes());
        }
        egress.commit_behind(room);
        Ok(())
    }

    /// Whether nothing has to be looked at before a packet goes behind the one before it, and the port's train.
    #[inline]
    fn open_train(&self, packet: &Outgoing) -> Option<&Egress> {
        let port_num = self.side.routes[0].av.port_num;
        let is_plain = self.fabric.faults.is_none()
            && matches!(packet.path, Path::Primary)
            && self.fabric.tables.port(port_num).is_some_and(|port| port.is_active());
        is_plain.then(|| &self.fabric.egress[usize::from(port_num) - 1])
    }

    /// As [`Host::emit_run`] says.
    fn put_run(&mut self, packet: &Outgoing, run: Run) -> usize {
        let Self { side, fabric, memory, .. } = self;
        let route = &side.routes[0];
        let sge = side.shared.send.as_ref().and_then(|ring| ring.only_sge(run.index));
        let (length, size) = (run.length as usize, bth::LEN + run.length as usize + ICRC_LEN);
        let all = run.count as usize * length;
        let source = sge.and_then(|sge| memory.readable(side.pd, &sge, run.offset, all).ok());
        let Some(source) = source else { return 0 };
        let egress = &mut fabric.egress[usize::from(route.av.port_num) - 1];
        let (before, bytes, ip_id) = egress.run_bytes(run.count as usize, size);
        let mut header = [0; bth::LEN];
        header.copy_from_slice(&before[..bth::LEN]);
        let mut psn = packet.headers.bth.psn;
        let mut sent = 0;
        for (number, out) in (0..).zip(bytes.chunks_exact_mut(size)) {
            let last_word = psn.get() | u32::from(run.asks(number)) << 31;
            header[bth::LEN - 4..].copy_from_slice(&last_word.to_be_bytes());
            let (head, rest) = out.split_at_mut(bth::LEN);
            let (data, icrc) = rest.split_at_mut(length);
            head.copy_from_slice(&header);
            let mut sum = route.flow.start(ip_id + number as u16, size - ICRC_LEN, header[4]);
            sum.update(&header);
            let Ok(sum) = source.copy_summed(sent * length, data, sum) else { break };
            icrc.copy_from_slice(&sum.finish().to_le_bytes());
            psn = psn.next();
            sent += 1;
        }
        egress.commit_run(sent, size);
        sent
    }

    /// Puts a packet and what stands behind its ICRC into the port's train.
    #[inline]
    fn emit_with(&mut self, packet: &Outgoing, payload: Payload<'_>, trailer: &[u8]) -> Result<(), EmitError> {
        let at = self.route(packet);
        let Self { side, fabric, memory, now, .. } = self;
        let Fabric { datagrams, egress, tables, srqs, batches, blocked, faults, unanswered, .. } = &mut **fabric;
        let route = match at {
            RouteAt::Path(which) => &side.routes[which],
            RouteAt::Datagram(place) => &datagrams[place].1,
        };
        if let Some(faults) = faults {
            let (bth, to) = (&packet.headers.bth, route.av.dgid.to_ip());
            match faults.sending(*now, side.shared.index(), bth.dest_qp, to, bth.opcode.byte()) {
                Fate::Sent => {}
                Fate::Lost => {
                    batches[usize::from(side.port_num.max(1)) - 1].drop_packet(DropReason::Fault);
                    return Ok(());
                }
                Fate::Ends(status) => return Err(EmitError::Status(status)),
            }
        }
        let port_num = route.av.port_num;
        let active = tables.port(port_num).is_some_and(|port| port.is_active());
        let (Some(way), true) = (&route.way, active) else {
            // A GID that is gone, or a mixture of IPv4 and IPv6: there is no address to send from.
            let down = !active && tables.port(port_num).is_some();
            let reason = if down { DropReason::PortDown } else { DropReason::EgressError };
            batches[usize::from(side.port_num.max(1)) - 1].drop_packet(reason);
            return Ok(());
        };
        let egress = &mut egress[usize::from(port_num) - 1];
        let length = payload_len(&payload);
        let pad = usize::from(pad_count(length));
        let header_len = packet.headers.len();
        let size = header_len + length + pad + 4 + trailer.len();
        let slot = (packet.headers.bth.dest_qp.get() >> 16) as u8;
        let Some(room) = egress.reserve(way, route.serial, slot, size) else {
            *blocked = true;
            return Err(EmitError::Blocked);
        };
        let bytes = egress.bytes(room);
        let headers = &packet.headers;
        let emitted = if usize::from(headers.bth.pad_count) == pad {
            headers.emit(bytes)
        } else {
            let mut headers = *headers;
            headers.bth.pad_count = pad as u8;
            headers.emit(bytes)
        };
        debug_assert!(emitted.is_ok(), "the transport left out a header of {:?}", headers.bth.opcode);
        if emitted.is_err() {
            batches[usize::from(side.port_num.max(1)) - 1].drop_packet(DropReason::EgressError);
            return Ok(());
        }
        let (transport, behind) = bytes.split_at_mut(size - 4 - trailer.len());
        let sum = if length >= ONE_PASS {
            fill_and_sum(side, srqs, memory, payload, transport, header_len, &route.flow, room.ip_id)?
        } else {
            fill(side, srqs, memory, payload, &mut transport[header_len..header_len + length])?;
            transport[header_len + length..].fill(0);
            route.flow.icrc(room.ip_id, transport)
        };
        let (icrc, room_behind) = behind.split_at_mut(4);
        icrc.copy_from_slice(&sum.to_le_bytes());
        // The ICRC takes these bits for ones, whatever they are.
        if packet.reads_telemetry {
            transport[int::FLAGS_AT] |= int::CAPABLE;
        }
        if !trailer.is_empty() {
            transport[int::FLAGS_AT] |= int::TRAILED;
            room_behind.copy_from_slice(trailer);
        }
        egress.commit(room, way, route.serial, slot);
        if !headers.bth.opcode.is_acknowledged() {
            *unanswered += size;
        }
        Ok(())
    }
}

/// Where a route stands.
#[derive(Clone, Copy)]
enum RouteAt {
    Path(usize),
    Datagram(usize),
}

/// On whose behalf a peer's access is made.
#[inline]
fn peer(side: &QpSide, srqs: &Slots<Arc<SrqShared>>, xrc_srqn: Option<Srqn>) -> Result<Peer, AccessFault> {
    let pd = match xrc_srqn {
        None => side.pd,
        Some(srqn) => xrc_srq(srqs, srqn, side.xrcd).ok_or(AccessFault::WrongPd)?.pd,
    };
    Ok(Peer { pd, qpn: side.shared.qpn })
}

/// The SRQ of that number, if it belongs to the XRC domain.
fn xrc_srq(srqs: &Slots<Arc<SrqShared>>, srqn: Srqn, xrcd: Option<u32>) -> Option<&Arc<SrqShared>> {
    let srq = srqs.get(srqn.get() as usize & 0xffff)?;
    (srq.srqn == srqn && srq.xrc.map(|x| x.0) == xrcd && xrcd.is_some()).then_some(srq)
}

/// Payloads from this length on are copied and summed in one pass.
const ONE_PASS: usize = 512;

/// Copies a payload and its pad behind the header of a packet, BTH to pad, and gives the ICRC.
#[inline(never)]
#[allow(clippy::too_many_arguments)]
fn fill_and_sum(
    side: &QpSide,
    srqs: &Slots<Arc<SrqShared>>,
    memory: &Access<'_>,
    payload: Payload<'_>,
    transport: &mut [u8],
    header_len: usize,
    flow: &Flow,
    ip_id: u16,
) -> Result<u32, EmitError> {
    let (transport_len, length) = (transport.len(), payload_len(&payload));
    let (header, body) = transport.split_at_mut(header_len);
    let (data, pad) = body.split_at_mut(length);
    pad.fill(0);
    let mut sum = flow.start(ip_id, transport_len, header[4]);
    sum.update(header);
    let mut sum = fill_summed(side, srqs, memory, payload, data, sum)?;
    sum.update(pad);
    Ok(sum.finish())
}

/// As [`fill`], and the bytes go through a CRC.
fn fill_summed(
    side: &QpSide,
    srqs: &Slots<Arc<SrqShared>>,
    memory: &Access<'_>,
    payload: Payload<'_>,
    out: &mut [u8],
    mut sum: Running,
) -> Result<Running, EmitError> {
    match payload {
        Payload::Wqe { index, offset, .. }
            if let Some(ring) = &side.shared.send
                && !ring.is_inline(index)
                && let Some(sge) = ring.only_sge(index) =>
        {
            memory.gather_one_summed(side.pd, &sge, offset, out, sum).map_err(EmitError::Local)
        }
        Payload::Remote(access) => {
            let peer = peer(side, srqs, access.xrc_srqn).map_err(EmitError::Access)?;
            memory.read_remote_summed(peer, &access, out, sum).map_err(EmitError::Access)
        }
        _ => {
            fill(side, srqs, memory, payload, out)?;
            sum.update(out);
            Ok(sum)
        }
    }
}

/// Copies a payload into the packet.
#[inline]
pub(crate) fn fill(
    side: &QpSide,
    srqs: &Slots<Arc<SrqShared>>,
    memory: &Access<'_>,
    payload: Payload<'_>,
    out: &mut [u8],
) -> Result<(), EmitError> {
    match payload {
        Payload::None => Ok(()),
        Payload::Bytes(bytes) => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        Payload::Wqe { index, offset, .. } => {
            let Some(ring) = &side.shared.send else { return Err(EmitError::Local(LocalFault::OutOfBounds)) };
            if ring.is_inline(index) {
                ring.copy_inline(index, offset, out);
                return Ok(());
            }
            match ring.only_sge(index) {
                Some(sge) => memory.gather_one(side.pd, &sge, offset, out),
                None => memory.gather(side.pd, ring.sges(index), offset, out),
            }
            .map_err(EmitError::Local)
        }
        Payload::Remote(access) => {
            let peer = peer(side, srqs, access.xrc_srqn).map_err(EmitError::Access)?;
            memory.read_remote(peer, &access, out).map_err(EmitError::Access)
        }
    }
}

fn datagram_place(av: &AddressVector, qpn: Qpn) -> usize {
    let [a, b, c, d] = [12, 13, 14, 15].map(|i| u32::from(av.dgid.0[i]));
    let key =
        (a << 24 | b << 16 | c << 8 | d) ^ qpn.get().rotate_left(13) ^ av.flow_label ^ u32::from(av.sgid_index) << 5;
    (key.wrapping_mul(0x9e37_79b1) >> 24) as usize % DATAGRAM_ROUTES
}

pub(crate) fn payload_len(payload: &Payload<'_>) -> usize {
    match payload {
        Payload::None => 0,
        Payload::Wqe { length, .. } => *length as usize,
        Payload::Remote(access) => access.length as usize,
        Payload::Bytes(bytes) => bytes.len(),
    }
}

impl Host for QpHost<'_, '_> {
    fn now(&self) -> Time {
        self.now
    }

    #[inline]
    fn send_wqe(&mut self, index: u32) -> Option<SendWqe> {
        self.side.shared.send.as_ref()?.wqe(index)
    }

    #[inline]
    fn plain_write(&mut self, index: u32) -> Option<PlainWrite> {
        self.side.shared.send.as_ref()?.plain_write(index)
    }

    #[inline]
    fn window(&self) -> u32 {
        self.fabric.windows.room(self.side.part)
    }

    fn retire_sends(&mut self, next: u32) {
        if let Some(ring) = &self.side.shared.send {
            ring.retire(next);
        }
    }

    #[inline(always)]
    fn complete_send(&mut self, wc: &WorkCompletion) {
        if self.side.send_cq != NO_CQ {
            self.side.cq_overrun |= self.fabric.complete(self.now, self.side.send_cq, wc, false);
        }
    }

    fn scatter_send(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let Some(ring) = &self.side.shared.send else { return Err(LocalFault::OutOfBounds) };
        self.memory.scatter(self.side.pd, ring.sges(index), offset, data)
    }

    fn bind_mw(&mut self, index: u32) -> Result<(), WcStatus> {
        let bind = self.side.shared.send.as_ref().and_then(|ring| ring.bind(index)).ok_or(WcStatus::MwBindErr)?;
        self.memory.bind(Peer { pd: self.side.pd, qpn: self.side.shared.qpn }, &bind)
    }

    fn local_invalidate(&mut self, rkey: RKey) -> Result<(), WcStatus> {
        self.memory.invalidate_local(Peer { pd: self.side.pd, qpn: self.side.shared.qpn }, rkey)
    }

    fn take_recv(&mut self, xrc_srqn: Option<Srqn>) -> Result<Option<RecvWqe>, AccessFault> {
        if let Some(faults) = &mut self.fabric.faults
            && faults.taking_recv(self.now, self.side.shared.index())
        {
            return Ok(None);
        }
        let srq = match xrc_srqn {
            Some(srqn) => Some(xrc_srq(&self.fabric.srqs, srqn, self.side.xrcd).ok_or(AccessFault::WrongPd)?),
            None => self.side.srq.as_ref(),
        };
        let Some(srq) = srq else { return Ok(self.side.shared.recv.as_ref().and_then(|ring| ring.take())) };
        let srqn = srq.srqn;
        let taken = srq.ring.take();
        if let Some((_, true)) = taken {
            let events = srq.events.clone();
            let subject = EventSubject::SharedReceiveQueue(srqn);
            self.fabric.listeners.tell(&events, EventType::SrqLimitReached, subject);
        }
        let wqe = taken.map(|(wqe, _)| wqe);
        if wqe.is_some() {
            self.side.srq_taken = wqe;
        }
        Ok(wqe)
    }

    fn scatter_recv(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        match wqe.srq {
            None => match &self.side.shared.recv {
                Some(ring) => self.memory.scatter(self.side.pd, ring.sges(wqe.slot), offset, data),
                None => Err(LocalFault::OutOfBounds),
            },
            Some(srqn) => match self.fabric.srqs.get(srqn.get() as usize & 0xffff) {
                Some(srq) => self.memory.scatter(srq.pd, srq.ring.sges(wqe.slot), offset, data),
                None => Err(LocalFault::OutOfBounds),
            },
        }
    }

    fn complete_recv(&mut self, wqe: &RecvWqe, wc: &WorkCompletion, solicited: bool) {
        let mut cq = self.side.recv_cq;
        match wqe.srq {
            None => {
                if let Some(ring) = &self.side.shared.recv {
                    ring.free(wqe.slot);
                }
            }
            Some(srqn) => {
                if let Some(srq) = self.fabric.srqs.get(srqn.get() as usize & 0xffff) {
                    srq.ring.free(wqe.slot);
                    self.side.srq_taken = None;
                    // Receives of an XRC SRQ complete on the SRQ's CQ (annex A14), others on the QP's.
                    cq = srq.xrc.map_or(cq, |x| x.1);
                }
            }
        }
        self.side.cq_overrun |= self.fabric.complete(self.now, cq, wc, solicited);
    }

    fn posted_recvs(&self) -> Option<u32> {
        self.side.shared.recv.as_ref().map(|ring| ring.posted())
    }

    fn check_remote(&mut self, access: &RemoteAccess) -> Result<(), AccessFault> {
        self.memory.check_remote(self.peer(access.xrc_srqn)?, access)
    }

    fn write_remote(&mut self, access: &RemoteAccess, data: &[u8]) -> Result<(), AccessFault> {
        self.memory.write_remote(self.peer(access.xrc_srqn)?, access, data)
    }

    fn atomic_remote(&mut self, access: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessFault> {
        self.memory.atomic_remote(self.peer(access.xrc_srqn)?, access, op)
    }

    fn flush_remote(
        &mut self,
        access: &RemoteAccess,
        placement: FlushPlacement,
        level: FlushLevel,
    ) -> Result<(), AccessFault> {
        self.memory.flush_remote(self.peer(access.xrc_srqn)?, access, placement, level)
    }

    fn invalidate_remote(&mut self, rkey: RKey, xrc_srqn: Option<Srqn>) -> Result<(), AccessFault> {
        self.memory.invalidate_remote(self.peer(xrc_srqn)?, rkey)
    }

    #[inline]
    fn execute_directly(&mut self, wqe: &SendWqe, attr: &QpAttr, done: u32, psns: u32) -> Direct {
        self.directly(wqe, attr, done, psns)
    }

    fn could_execute_directly(&mut self, wqe: &SendWqe, attr: &QpAttr) -> bool {
        self.could_go_directly(wqe, attr)
    }

    #[inline]
    fn may_execute_directly(&self) -> bool {
        self.fabric.direct.is_some() && !self.side.direct.is_wire(self.now)
    }

    #[inline]
    fn shows(&self) -> bool {
        self.has_tape()
    }

    fn show(&mut self, packet: &Outgoing, payload: Payload<'_>, answer: bool) {
        self.record(packet, payload, answer);
    }

    #[inline]
    fn emit(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError> {
        self.emit_with(packet, payload, &[])
    }

    #[inline]
    fn emit_alike(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError> {
        self.emit_behind(packet, payload)
    }

    #[inline]
    fn room_for_run(&self, packet: &Outgoing, index: u32, length: u32) -> usize {
        let is_plain = packet.headers.len() == bth::LEN && length.is_multiple_of(4);
        let has_one = |ring: &SendRing| !ring.is_inline(index) && ring.only_sge(index).is_some();
        if !is_plain || !self.side.shared.send.as_ref().is_some_and(has_one) {
            return 0;
        }
        let size = bth::LEN + length as usize + ICRC_LEN;
        self.open_train(packet).map_or(0, |egress| egress.room_for_run(self.side.routes[0].serial, size))
    }

    fn emit_run(&mut self, packet: &Outgoing, run: Run) -> usize {
        self.put_run(packet, run)
    }

    fn emit_trailed(
        &mut self,
        packet: &Outgoing,
        payload: Payload<'_>,
        trailer: &[u8; int::LEN],
    ) -> Result<(), EmitError> {
        self.emit_with(packet, payload, trailer)
    }

    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        self.fabric.tables.port(port_num)?.pkey(index)
    }

    fn gid(&self, port_num: u8, index: u8) -> Gid {
        self.fabric.tables.port(port_num).and_then(|p| p.gid(u32::from(index))).unwrap_or(Gid::ZERO)
    }

    fn active_mtu(&self, port_num: u8) -> Mtu {
        self.fabric.tables.port(port_num).map_or(Mtu::Mtu256, |p| p.mtu())
    }

    fn paths_swapped(&mut self) {
        self.side.routes.swap(0, 1);
        self.side.port_num = self.side.routes[0].av.port_num.max(1);
    }

    fn event(&mut self, event: EventType) {
        let qpn = self.side.shared.qpn;
        self.side.heard_in_rtr |= event == EventType::CommEst;
        self.fabric.listeners.tell(&self.side.events, event, EventSubject::QueuePair(qpn));
        for events in &self.side.more_events {
            self.fabric.listeners.tell(events, event, EventSubject::QueuePair(qpn));
        }
    }

    fn count(&mut self, counter: Counter, n: u64) {
        self.batch().count(counter, n);
    }

    fn drop_packet(&mut self, reason: DropReason) {
        self.batch().drop_packet(reason);
    }
}

/// A PD of no object: nothing is registered in it.
pub const NO_PD: PdId = PdId(u32::MAX);
