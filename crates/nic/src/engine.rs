//! Step 3 of the walk: the engine. One turn takes what came in, looks at doorbells and timers, lets QPs send in turn, and
//! lets the packets leave.
//!
//! [`Engine::turn`] makes no system call and reads no clock: ports and time are handed in, so the simulator and the tests
//! run the engine that ships. One thread at a time is inside ([`drive::Core`] holds the lock); the cost of a packet does not
//! depend on how many QPs are idle.

mod apart;
pub mod control;
pub mod direct;
pub mod doorbell;
pub mod drive;
pub mod entry;
mod faulted;
pub mod gate;
pub mod gsi;

use std::collections::VecDeque;
use std::sync::Arc;

use scalefabric_transport::congestion::int::{self, NoTrailer, Trailer};
use scalefabric_transport::host::Incoming;
use scalefabric_transport::{Counter, DropReason, Next, Time};
use scalefabric_verbs::{Gid, QpState, QpType, Qpn, WcStatus};
use scalefabric_wire::opcode::Operation;
use scalefabric_wire::packet::Packet;

use crate::completion::Channel;
use crate::config::{Budget, NicConfig};
use crate::counters::{Batch, CountersHandle};
use crate::egress::Egress;
use crate::events::{Events, Listeners};
use crate::host::{Fabric, QpHost};
use crate::ingress::{GsiDatagram, Handover, Ingress, Sorted};
use crate::memory::{Access, Accessor};
use crate::port::{Datagram, Port};
use crate::schedule::{RunQueue, Timers};
use crate::tables::Tables;
use crate::window::Windows;
use doorbell::Doorbells;
use entry::{QpEntry, Slots};
use gsi::GsiRouter;

/// MADs that wait for whoever speaks CM, at most.
const GSI_QUEUE: usize = 256;

/// How long to wait for a port that refused a train, ns: a socket buffer of 64 KiB empties in that time at 25 Gb/s.
const BLOCKED_RETRY_NS: u64 = 20_000;

/// Datagrams whose ACKs are held back, at most: a quarter of the default window.
const MAX_HELD: usize = 64;

/// How long a held ACK waits if nobody turns the engine, ns: as long as the worker stands aside from callers that poll.
/// A smaller time would wake it for each message.
const HOLD_NS: u64 = 1_000_000;

/// How long a held ACK waits, ns, for one that is on its way to us: longer than an ACK that goes apart is behind its request.
const HOPE_NS: u64 = 2_000;

/// Bytes of UC and UD that leave before others are let onto the processor: a receiver on the same one, or behind us in its
/// queue, has no other way to hold us back. A small part of a receive buffer.
const BREATH: usize = 1 << 20;

/// Rounds in which what is posted to a QP leaves before the QP goes.
const LAST_ROUNDS: usize = 256;

/// Batches that are taken from a port before a timer is believed, at most: a flood must not keep timers away.
const DRAIN: usize = 64;

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Turn {
    /// Packets came or left, or a QP was served.
    pub progressed: bool,
    /// QPs wait for their turn: call again at once.
    pub ready: bool,
    /// The earliest time at which the next turn has something to do if nothing comes in and nobody posts.
    pub next_deadline: Option<Time>,
}

/// The engine. It does nothing by itself.
pub struct Engine {
    accessor: Accessor,
    nic: Nic,
}

/// Everything but the way into memory, which a turn borrows apart.
pub(crate) struct Nic {
    pub(crate) config: NicConfig,
    pub(crate) qps: Slots<Box<QpEntry>>,
    pub(crate) fabric: Fabric,
    ingress: Ingress,
    pub(crate) run: RunQueue,
    pub(crate) timers: Timers,
    /// QPs that got packets since ACKs left.
    touched: Vec<u16>,
    /// Those of the batch that is coming in, and its number.
    recent: Vec<u16>,
    batch: u64,
    counters: Vec<CountersHandle>,
    /// Groups with their members, by port: few, and looked at for multicast packets only.
    pub(crate) groups: Vec<(u8, Gid, Vec<u16>)>,
    gsi: VecDeque<GsiDatagram>,
    gsi_open: bool,
    gsi_router: Option<Box<dyn GsiRouter>>,
    /// PSN of the next datagram from QP 1.
    gsi_psn: u32,
    /// Tables' generation for which fallback source ports were asked for.
    routed: u32,
    /// Time of the last turn.
    last: Time,
    /// When the ports were last asked for datagrams.
    received: Time,
    /// Datagrams taken in whose ACKs are held back.
    held: usize,
    /// Since when.
    held_since: Time,
}

impl Engine {
    /// An engine for a device. `counters` has a block for each port.
    pub fn new(config: &NicConfig, accessor: Accessor, counters: Vec<CountersHandle>) -> Self {
        let ports = config.ports.len();
        let max_qp = (config.attr.max_qp as usize).min(65_535);
        let fabric = Fabric {
            tables: Tables::new(&config.ports),
            egress: (0..ports).map(|_| Egress::new(config.staged_bytes)).collect(),
            batches: (0..ports).map(|_| Batch::default()).collect(),
            cqs: Slots::new(0, config.attr.max_cq as usize, 0),
            srqs: Slots::new(1, (config.attr.max_srq as usize).min(65_535), 0),
            listeners: Listeners::default(),
            wakes: VecDeque::with_capacity(64),
            late: Vec::new(),
            overruns: Vec::with_capacity(16),
            datagrams: Fabric::datagram_routes(),
            fallback_ports: vec![0xc000; ports],
            serial: 0,
            windows: Windows::new(config.window_bytes),
            blocked: false,
            unanswered: 0,
            faults: None,
            direct: None,
        };
        let nic = Nic {
            ingress: Ingress::new(config.slot, config.solve_ip_ids),
            config: config.clone(),
            // Index 0 is left out so that no QPN looks like an empty field.
            qps: Slots::new(1, max_qp, (config.seed % 4096) as usize),
            fabric,
            run: RunQueue::default(),
            timers: Timers::default(),
            touched: Vec::new(),
            recent: Vec::new(),
            batch: 0,
            counters,
            groups: Vec::new(),
            gsi: VecDeque::new(),
            gsi_open: false,
            gsi_router: None,
            gsi_psn: 0,
            routed: 0,
            last: Time(0),
            received: Time(0),
            held: 0,
            held_since: Time(0),
        };
        Self { accessor, nic }
    }

    /// Who takes datagrams for other slots of the device. Without one they are dropped as `NoSuchQp`.
    pub fn set_handover(&mut self, handover: Box<dyn Handover>) {
        self.nic.ingress.set_handover(handover);
    }

    /// From now on requests to QPs of this host are executed here.
    pub fn set_direct(&mut self, setup: direct::Setup) {
        self.nic.fabric.direct = Some(setup);
    }

    /// Begins to keep datagrams for QP 1 (bounded; dropped as `NoSuchQp` before, as `ReceiverNotReady` when full).
    pub fn open_gsi(&mut self) {
        self.nic.gsi_open = true;
    }

    /// The oldest datagram for QP 1.
    pub fn take_gsi(&mut self) -> Option<GsiDatagram> {
        self.nic.gsi.pop_front()
    }

    /// All datagrams for QP 1; without allocation if there are none.
    pub(crate) fn take_all_gsi(&mut self) -> Vec<GsiDatagram> {
        self.nic.gsi.drain(..).collect()
    }

    /// The port tables.
    pub fn tables(&self) -> &Tables {
        &self.nic.fabric.tables
    }

    /// One turn: ingress, doorbells, timers, transmission, egress.
    pub fn turn(&mut self, now: Time, ports: &mut [Box<dyn Port>], doorbells: &Doorbells, budget: Budget) -> Turn {
        let access = self.accessor.enter();
        let nic = &mut self.nic;
        // Drivers read the clock before they have the lock, so one may come late with an older time.
        let now = now.max(nic.last);
        nic.last = now;
        nic.begin(now, ports);
        if nic.fabric.faults.is_some() {
            nic.run_faults(now, &access, ports);
        }
        let mut taken = 0;
        if now.since(nic.received) >= budget.receive_gap_ns {
            nic.received = now;
            for index in 0..ports.len() {
                taken += nic.receive(now, &access, index, ports, budget.receive);
            }
        }
        nic.take_doorbells(doorbells);
        taken += nic.run_timers(now, &access, ports, budget.receive);
        let mut progressed = taken > 0;
        progressed |= nic.transmit(now, &access, ports, budget);
        if !nic.fabric.late.is_empty() {
            nic.fabric.run_late(now);
        }
        let holds = if taken > 0 { nic.held + taken <= MAX_HELD } else { nic.hopes_for_ack(now) };
        if budget.hold_acks && holds {
            nic.hold(now, taken);
        } else {
            nic.acknowledge(now, &access, ports);
        }
        if nic.fabric.faults.is_some() {
            nic.fail_faulted(now, &access, ports);
        }
        progressed |= nic.flush(ports);
        drop(access);
        nic.end(now, ports, progressed)
    }

    /// Sends ACKs that a caller's turn held back, before a verb does something that they must not wait for: a QP may be gone
    /// afterwards.
    pub(crate) fn send_held(&mut self, ports: &mut [Box<dyn Port>]) {
        let nic = &mut self.nic;
        if nic.held == 0 {
            return;
        }
        let now = nic.last;
        let access = self.accessor.enter();
        nic.begin(now, ports);
        nic.acknowledge(now, &access, ports);
        nic.flush(ports);
        ports.iter_mut().for_each(|port| port.flush());
    }

    /// Takes in and acknowledges what has come, before a verb ends a QP: it came while the QP lived.
    pub(crate) fn take_in(&mut self, now: Time, ports: &mut [Box<dyn Port>]) {
        let access = self.accessor.enter();
        let nic = &mut self.nic;
        let now = now.max(nic.last);
        nic.last = now;
        nic.begin(now, ports);
        nic.drain(now, &access, ports, nic.config.budget.receive);
        nic.acknowledge(now, &access, ports);
        nic.flush(ports);
        ports.iter_mut().for_each(|port| port.flush());
    }

    /// What waits, without a turn: for whoever changed something by a verb.
    pub(crate) fn outlook(&self, now: Time) -> Turn {
        let ready = self.nic.has_senders();
        let next_deadline = if ready { Some(now) } else { self.nic.deadline() };
        Turn { progressed: false, ready, next_deadline }
    }

    /// Lends out everything and the way into memory, for a verb.
    pub(crate) fn parts(&mut self) -> (Access<'_>, &mut Nic) {
        (self.accessor.enter(), &mut self.nic)
    }

    pub(crate) fn nic(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// True if so much left without an answer that others should have the processor before there is more.
    pub(crate) fn takes_breath(&mut self) -> bool {
        let sent = &mut self.nic.fabric.unanswered;
        let much = *sent >= BREATH;
        if much {
            *sent = 0;
        }
        much
    }

    /// Whether somebody is to be woken, now or when a CQ has put something off.
    pub(crate) fn has_wakes(&self) -> bool {
        let fabric = &self.nic.fabric;
        !fabric.wakes.is_empty() || fabric.listeners.has_wakes() || !fabric.late.is_empty()
    }

    /// Whether datagrams for QP 1 are kept.
    pub(crate) fn has_gsi(&self) -> bool {
        !self.nic.gsi.is_empty()
    }

    /// A channel to wake now that the turn is over.
    pub(crate) fn next_wake(&mut self) -> Option<Arc<Channel>> {
        self.nic.fabric.wakes.pop_front()
    }

    /// The same for contexts that have asynchronous events.
    pub(crate) fn next_event_wake(&mut self) -> Option<Arc<Events>> {
        self.nic.fabric.listeners.next_wake()
    }
}

impl Nic {
    fn begin(&mut self, now: Time, ports: &mut [Box<dyn Port>]) {
        for (index, port) in ports.iter_mut().enumerate() {
            port.set_time(now.0);
            self.fabric.egress[index].begin_turn(port.as_ref());
        }
        self.fabric.blocked = false;
        if self.routed != self.fabric.tables.generation() {
            self.routed = self.fabric.tables.generation();
            self.reroute(ports);
        }
    }

    /// The tables changed: what to use as source port when a route has to be made in the middle of receiving.
    fn reroute(&mut self, ports: &[Box<dyn Port>]) {
        for (index, port) in ports.iter().enumerate() {
            let gid = self.fabric.tables.port(index as u8 + 1).and_then(|p| p.gids().next());
            if let Some((_, gid)) = gid {
                self.fabric.fallback_ports[index] = port.source_port(gid.to_ip(), 0);
            }
        }
    }

    /// Takes a batch of datagrams from a port; gives how many. [`Nic::acknowledge`] ends it.
    fn receive(
        &mut self,
        now: Time,
        memory: &Access<'_>,
        index: usize,
        ports: &mut [Box<dyn Port>],
        max: usize,
    ) -> usize {
        let port_num = index as u8 + 1;
        self.batch += 1;
        let count = ports[index].receive(max, &mut |datagram| self.take(now, memory, port_num, datagram));
        if count == 0 {
            return 0;
        }
        // Only those of this batch: ACKs may be owed to many more, and to look at all of them for each batch would cost each packet
        // the more, the more QPs are busy.
        let mut recent = core::mem::take(&mut self.recent);
        for qp in recent.drain(..) {
            // State, timers and CQs as the packets left them.
            let has_work = self.with_qp(qp, now, memory, Some(&*ports), |entry, host| {
                let posted = host.side.shared.send.as_ref().map(|ring| ring.posted());
                entry.transport.waits_for_wqe().is_none_or(|next| posted.is_some_and(|posted| posted != next))
            });
            // The batch may have opened the window, or asked for a READ.
            if has_work == Some(true) {
                self.run.push(qp);
            }
        }
        self.recent = recent;
        count
    }

    /// Ends the batch: one ACK for each QP covers what came together. Requests have left before it, so that an ACK, which is
    /// shorter than any of them, can close their train instead of making one of its own, unless it [goes apart](apart::Habit).
    fn acknowledge(&mut self, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>]) {
        self.held = 0;
        if self.request_goes_first() {
            self.flush(ports);
            ports.iter_mut().for_each(|port| port.flush());
        }
        let mut touched = core::mem::take(&mut self.touched);
        for qp in touched.drain(..) {
            let owes = self.with_qp(qp, now, memory, Some(&*ports), |entry, host| {
                *entry.touched = false;
                entry.transport.end_of_batch(host)
            });
            if owes == Some(true) {
                self.run.push(qp);
            }
        }
        self.touched = touched;
    }

    /// Keeps the ACKs back for so many more datagrams.
    fn hold(&mut self, now: Time, taken: usize) {
        if self.held == 0 {
            self.held_since = now;
        }
        self.held += taken;
    }

    /// Whether ACKs are held of a QP whose one request may be acknowledged any moment, behind the request that came: then the application is likely
    /// to post. If its ACK left before that, a peer that only waits for this ACK would look at memory from then on, and no more for packets.
    fn hopes_for_ack(&self, now: Time) -> bool {
        self.held > 0
            && now.since(self.held_since) < HOPE_NS
            && matches!(self.touched[..], [qp] if self.qps.get(usize::from(qp)).is_some_and(|e| e.transport.packets_under_way() == 1))
    }

    /// Whether a request waits that is to leave before an ACK joins its train.
    fn request_goes_first(&mut self) -> bool {
        let [qp] = self.touched[..] else { return false };
        let Some(entry) = self.qps.get_mut(usize::from(qp)) else { return false };
        let QpEntry { transport, side, habit, .. } = &mut **entry;
        let port = usize::from(side.port_num.max(1)) - 1;
        self.fabric.egress[port].is_joinable_one()
            && transport.owes_plain_ack()
            && habit.goes_apart(transport.packets_under_way())
    }

    fn take(&mut self, now: Time, memory: &Access<'_>, port_num: u8, datagram: &Datagram<'_>) {
        if self.take_alike(now, memory, port_num, datagram) {
            return;
        }
        let index = usize::from(port_num) - 1;
        let active = self.fabric.tables.port(port_num).is_some_and(|p| p.is_active());
        let batch = &mut self.fabric.batches[index];
        if !active {
            return batch.drop_packet(DropReason::PortDown);
        }
        if datagram.bytes.get(int::FLAGS_AT).is_some_and(|flags| flags & int::TRAILED != 0) {
            match int::split(datagram.bytes) {
                Ok((packet, trailer)) => {
                    let bare = Datagram { bytes: packet, ..*datagram };
                    return self.take_packet(now, memory, port_num, (&bare, datagram), Some(&trailer));
                }
                // Receivers ignore reserved bits: the packet is judged as it is.
                Err(NoTrailer::Absent) => {}
                Err(NoTrailer::UnknownVersion | NoTrailer::Contradiction) => {
                    return batch.drop_packet(DropReason::BadTrailer);
                }
            }
        }
        self.take_packet(now, memory, port_num, (datagram, datagram), None);
    }

    /// Takes a datagram that is like the one before it in its train the short way; false if it has to go the long one.
    #[inline]
    fn take_alike(&mut self, now: Time, memory: &Access<'_>, port_num: u8, datagram: &Datagram<'_>) -> bool {
        let generation = self.fabric.tables.generation();
        let Some((qp, alike)) = self.ingress.alike(port_num, generation, datagram) else { return false };
        let Some(entry) = self.qps.get_mut(usize::from(qp)) else { return false };
        let QpEntry { transport, side, touched, batch, .. } = &mut **entry;
        let counters = &mut self.fabric.batches[usize::from(port_num) - 1];
        // The PSN first: an ICRC that is not needed costs more.
        if !transport.expects_alike(alike.psn) || !self.ingress.is_whole(datagram, counters) {
            return false;
        }
        let mut host = QpHost { now, side, fabric: &mut self.fabric, memory, ports: None };
        let taken = transport.receive_alike(&mut host, &alike);
        if taken {
            if core::mem::replace(batch, self.batch) != self.batch {
                self.recent.push(qp);
                if !core::mem::replace(touched, true) {
                    self.touched.push(qp);
                }
            }
            let counters = &mut self.fabric.batches[usize::from(port_num) - 1];
            counters.count(Counter::ReceivedPackets, 1);
            counters.count(Counter::ReceivedBytes, datagram.bytes.len() as u64);
        }
        taken
    }

    /// Takes a datagram without what stood behind its ICRC; beside it the whole one, for whoever it is for.
    #[inline]
    fn take_packet(
        &mut self,
        now: Time,
        memory: &Access<'_>,
        port_num: u8,
        (datagram, whole): (&Datagram<'_>, &Datagram<'_>),
        trailer: Option<&Trailer>,
    ) {
        let index = usize::from(port_num) - 1;
        let batch = &mut self.fabric.batches[index];
        match self.ingress.sort(port_num, datagram, whole, batch) {
            Sorted::Done => {}
            Sorted::Qp(qp, packet) => {
                if !self.deliver(qp, now, memory, port_num, datagram, (&packet, trailer)) {
                    self.fabric.batches[index].drop_packet(DropReason::NoSuchQp);
                }
            }
            Sorted::Multicast(packet) => self.deliver_group(now, memory, port_num, datagram, &packet),
            Sorted::Gsi(packet) => self.keep_gsi(port_num, datagram, &packet),
        }
    }

    /// Hands a packet to a QP; false if there is none.
    #[inline]
    fn deliver(
        &mut self,
        qp: u16,
        now: Time,
        memory: &Access<'_>,
        port_num: u8,
        datagram: &Datagram<'_>,
        (packet, trailer): (&Packet<'_>, Option<&Trailer>),
    ) -> bool {
        let Some(entry) = self.qps.get_mut(usize::from(qp)) else { return false };
        let QpEntry { transport, side, touched, batch, .. } = &mut **entry;
        if core::mem::replace(batch, self.batch) != self.batch {
            self.recent.push(qp);
            if !core::mem::replace(touched, true) {
                self.touched.push(qp);
            }
        }
        let incoming = Incoming {
            headers: &packet.headers,
            payload: packet.payload,
            port_num,
            src: Gid::from_ip(datagram.src),
            dst: Gid::from_ip(datagram.dst),
            src_port: datagram.src_port,
            traffic_class: datagram.traffic_class,
            flow_label: datagram.flow_label,
            hop_limit: datagram.hop_limit,
            reads_telemetry: datagram.bytes[int::FLAGS_AT] & int::CAPABLE != 0,
            trailer,
        };
        transport.receive(&mut QpHost { now, side, fabric: &mut self.fabric, memory, ports: None }, &incoming);
        let operation = packet.headers.bth.opcode.info().operation;
        if matches!(operation, Operation::Write | Operation::ReadResponse) && transport.takes_alike() {
            self.ingress.remember(qp, port_num, self.fabric.tables.generation(), datagram, packet);
        }
        true
    }

    fn deliver_group(
        &mut self,
        now: Time,
        memory: &Access<'_>,
        port_num: u8,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) {
        let group = Gid::from_ip(datagram.dst);
        let src = Gid::from_ip(datagram.src);
        let own = self.fabric.tables.port(port_num).is_some_and(|p| p.find_gid(src).is_some());
        let sender = packet.headers.deth.map(|d| d.src_qp);
        let place = self.groups.iter().position(|(p, g, _)| *p == port_num && *g == group);
        let mut any = false;
        if let Some(place) = place {
            for i in 0..self.groups[place].2.len() {
                let qp = self.groups[place].2[i];
                let qpn = Qpn::new(u32::from(self.config.slot) << 16 | u32::from(qp));
                any = true;
                // A group's datagram does not come back to the QP that sent it (clause 10.5.2.2).
                if !(own && sender == Some(qpn)) {
                    self.deliver(qp, now, memory, port_num, datagram, (packet, None));
                }
            }
        }
        if !any {
            self.fabric.batches[usize::from(port_num) - 1].drop_packet(DropReason::NotMulticastMember);
        }
    }

    /// Calls a QP's transport and draws the consequences: state seen by posters, timers, overrun CQs.
    pub(crate) fn with_qp<R>(
        &mut self,
        qp: u16,
        now: Time,
        memory: &Access<'_>,
        ports: Option<&[Box<dyn Port>]>,
        call: impl FnOnce(&mut Caller<'_>, &mut QpHost<'_, '_>) -> R,
    ) -> Option<R> {
        let entry = &mut **self.qps.get_mut(usize::from(qp))?;
        let QpEntry { transport, side, touched, wake_at, .. } = entry;
        let mut host = QpHost { now, side, fabric: &mut self.fabric, memory, ports };
        let mut caller = Caller { transport, touched, wake_at };
        let result = call(&mut caller, &mut host);
        let state = transport.state();
        if core::mem::take(&mut side.heard_in_rtr)
            && let Some(setup) = &self.fabric.direct
        {
            setup.open_gate(side, transport);
        }
        if state != side.shared.state() {
            side.shared.set_state(state);
            if let (Some(setup), false) = (&self.fabric.direct, matches!(state, QpState::Rts | QpState::Sqd)) {
                setup.file.gate(qp).close();
            }
            if state == QpState::Err {
                // A thread that posted while it still saw the old state rings no bell for a receive. Either it sees ERR
                // after its WQE is written, or we see the WQE now: both sides put a full fence between.
                std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                transport.flush(&mut QpHost { now, side, fabric: &mut self.fabric, memory, ports });
            }
        }
        self.fabric.windows.settle(&mut side.part, transport.bytes_under_way());
        if transport.waits_for_window() {
            self.fabric.windows.wait(qp, side.part);
        }
        let deadline = match (transport.deadline(), *wake_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if let Some(at) = deadline {
            self.timers.arm(qp, at);
        }
        if side.cq_overrun || !self.fabric.overruns.is_empty() {
            side.cq_overrun = false;
            self.fail_overrun(now, memory, ports);
        }
        Some(result)
    }

    /// CQs that overran take their QPs with them (clause 10.2.4.2: CQ error; the QPs cannot report any more).
    fn fail_overrun(&mut self, now: Time, memory: &Access<'_>, ports: Option<&[Box<dyn Port>]>) {
        while let Some(cq) = self.fabric.overruns.pop() {
            for (index, entry) in self.qps.iter_mut() {
                let QpEntry { transport, side, .. } = &mut **entry;
                let uses = side.send_cq == cq || side.recv_cq == cq;
                if uses && !matches!(transport.state(), QpState::Reset | QpState::Err) {
                    let mut host = QpHost { now, side, fabric: &mut self.fabric, memory, ports };
                    transport.fail(&mut host, WcStatus::FatalErr);
                    side.shared.set_state(transport.state());
                    side.cq_overrun = false;
                    self.timers.arm(index as u16, now);
                }
            }
        }
    }

    fn take_doorbells(&mut self, doorbells: &Doorbells) {
        let Self { qps, run, .. } = self;
        doorbells.take(|qp| {
            if qps.get(usize::from(qp)).is_some() {
                run.push(qp);
            }
        });
    }

    /// Calls the QPs whose timers are due; gives how many datagrams were taken before.
    fn run_timers(&mut self, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>], max: usize) -> usize {
        let mut drained = None;
        // Each QP at most once a turn: a deadline that stays due would hold us here for ever.
        for _ in 0..self.timers.len() {
            let Some(qp) = self.timers.pop_due(now) else { break };
            if drained.is_none() && self.is_due(qp, now) {
                drained = Some(self.drain(now, memory, ports, max));
            }
            let due = self.is_due(qp, now);
            let Some(entry) = self.qps.get_mut(usize::from(qp)) else { continue };
            if entry.wake_at.is_some_and(|at| at <= now) {
                entry.wake_at = None;
                self.run.push(qp);
            }
            self.with_qp(qp, now, memory, Some(&*ports), |entry, host| {
                if due {
                    entry.transport.on_timer(host);
                }
            });
            if due {
                self.run.push(qp);
            }
        }
        drained.unwrap_or(0)
    }

    fn is_due(&self, qp: u16, now: Time) -> bool {
        let deadline = self.qps.get(usize::from(qp)).and_then(|entry| entry.transport.deadline());
        deadline.is_some_and(|at| at <= now)
    }

    /// Takes all that has come. What waits in a socket came in time, however late we look: only then is an answer missing.
    fn drain(&mut self, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>], max: usize) -> usize {
        let mut taken = 0;
        for index in 0..ports.len() {
            ports[index].look_everywhere();
            for _ in 0..DRAIN {
                match self.receive(now, memory, index, ports, max) {
                    0 => break,
                    count => taken += count,
                }
            }
        }
        taken
    }

    fn transmit(&mut self, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>], budget: Budget) -> bool {
        let mut served = false;
        for _ in 0..self.run.len().min(budget.qps) {
            let Some(qp) = self.run.pop() else { break };
            let next = self.transmit_from(qp, now, memory, ports, budget.transmit_per_qp);
            served |= !matches!(next, None | Some(Next::Blocked));
            match next {
                None | Some(Next::Idle | Next::At(_)) => {}
                Some(Next::Ready | Next::Blocked) => self.run.push(qp),
            }
            if self.fabric.egress.iter().any(Egress::is_blocked) && self.run.len() == 1 {
                break;
            }
        }
        // Those whose destination has room again.
        for _ in 0..budget.qps {
            if self.fabric.egress.iter().any(Egress::is_blocked) {
                break;
            }
            let Some(qp) = self.fabric.windows.pop() else { break };
            let next = self.transmit_from(qp, now, memory, ports, budget.transmit_per_qp);
            served |= !matches!(next, None | Some(Next::Blocked));
            if matches!(next, Some(Next::Ready | Next::Blocked)) {
                self.run.push(qp);
            }
        }
        served
    }

    /// Lets a QP send, at most `budget` packets and what then still fits into the train that is begun. A train leaves as soon as it is full, while its
    /// bytes are in the nearest cache.
    fn transmit_from(
        &mut self,
        qp: u16,
        now: Time,
        memory: &Access<'_>,
        ports: &mut [Box<dyn Port>],
        budget: usize,
    ) -> Option<Next> {
        let mut left = budget;
        let mut is_ending = false;
        loop {
            let before = left;
            let next = self.with_qp(qp, now, memory, Some(&*ports), |entry, host| {
                let next = entry.transport.transmit_before_ack(host, &mut left, *entry.touched);
                *entry.wake_at = match next {
                    Next::At(at) => Some(at),
                    _ => None,
                };
                next
            });
            if self.fabric.blocked || self.fabric.egress.iter().any(Egress::is_full) {
                self.fabric.blocked = false;
                self.flush(ports);
            }
            if left == 0 && next == Some(Next::Ready) && !is_ending {
                is_ending = true;
                left = self.fabric.egress.iter().map(Egress::rest_of_train).max().unwrap_or(0);
                if left > 0 {
                    continue;
                }
            }
            let goes_on = next == Some(Next::Blocked) && left < before && left > 0;
            if !goes_on || self.fabric.egress.iter().any(Egress::is_blocked) {
                return next;
            }
        }
    }

    /// What is posted to a QP leaves before the QP goes, as far as it can without waiting: programs post unsignaled datagrams
    /// and destroy the QP at once, and a NIC of hardware has sent them by then. Here the doorbell may have found another thread
    /// in the engine, which has not looked since.
    pub(crate) fn send_posted(&mut self, qp: u16, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>]) {
        let now = now.max(self.last);
        self.last = now;
        self.begin(now, ports);
        let mut blocked = false;
        // As many packets as a send queue has WQEs, at the least; what is longer than that is cut off.
        for _ in 0..LAST_ROUNDS {
            let next = self.transmit_from(qp, now, memory, ports, self.config.budget.transmit_per_qp);
            let stuck = core::mem::replace(&mut blocked, next == Some(Next::Blocked));
            self.flush(ports);
            if !matches!(next, Some(Next::Ready | Next::Blocked)) || (blocked && stuck) {
                break;
            }
        }
        self.fabric.blocked = false;
        self.flush(ports);
        ports.iter_mut().for_each(|port| port.flush());
    }

    fn flush(&mut self, ports: &mut [Box<dyn Port>]) -> bool {
        let mut progressed = false;
        for (index, port) in ports.iter_mut().enumerate() {
            let egress = &mut self.fabric.egress[index];
            if !egress.is_empty() {
                progressed |= egress.flush(port.as_mut(), &mut self.fabric.batches[index]);
            }
        }
        progressed
    }

    fn end(&mut self, now: Time, ports: &mut [Box<dyn Port>], progressed: bool) -> Turn {
        let mut deadline = self.deadline();
        let mut sooner = |at: Time| deadline = Some(deadline.map_or(at, |d| d.min(at)));
        let mut blocked = false;
        for (index, port) in ports.iter_mut().enumerate() {
            port.flush();
            let batch = &mut self.fabric.batches[index];
            port.take_drops(&mut |reason, n| batch.drop_packets(reason, n));
            batch.flush(self.counters[index].block());
            if let Some(at) = port.deadline() {
                sooner(Time(at));
            }
            if !self.fabric.egress[index].is_empty() {
                blocked = true;
                sooner(now.after(BLOCKED_RETRY_NS));
            }
        }
        // While a port is blocked its QPs stay in the queue; turning in circles does not make room.
        let ready = self.has_senders() && !blocked;
        if ready {
            sooner(now);
        }
        if self.held > 0 {
            sooner(now.after(HOLD_NS));
        }
        Turn { progressed, ready, next_deadline: deadline }
    }

    /// Whether a QP has something to send, as far as is known.
    fn has_senders(&self) -> bool {
        !self.run.is_empty() || self.fabric.windows.is_open()
    }

    /// The next time at which a QP or a CQ has something to do.
    fn deadline(&self) -> Option<Time> {
        let timers = self.timers.first();
        if self.fabric.late.is_empty() && self.fabric.faults.is_none() {
            return timers;
        }
        let faults = self.fabric.faults.as_ref().and_then(|faults| faults.deadline());
        [timers, self.fabric.late_deadline(), faults].into_iter().flatten().min()
    }

    /// Adds to a port's counters outside a turn.
    pub(crate) fn count(&mut self, port_num: u8, counter: Counter, n: u64) {
        if let Some(batch) = self.fabric.batches.get_mut(usize::from(port_num).wrapping_sub(1)) {
            batch.count(counter, n);
        }
    }
}

/// The parts of a QP's entry that a call may change.
pub(crate) struct Caller<'a> {
    pub(crate) transport: &'a mut scalefabric_transport::QueuePair,
    pub(crate) touched: &'a mut bool,
    pub(crate) wake_at: &'a mut Option<Time>,
}

/// True for QPs that can be attached to a group.
pub(crate) fn takes_multicast(qp_type: QpType) -> bool {
    qp_type == QpType::Ud
}
