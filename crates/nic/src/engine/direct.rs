//! The same-host path in the engine (D3): a one-sided request whose target is a QP of the same device is executed here, on the
//! target's memory, with its processor asleep.
//!
//! Only what succeeds is done here. Whatever a responder would refuse goes as packets, so that the responder refuses it, with its
//! own NAK, counters and events: that is possible because a request comes here only while nothing else of the QP is under way, and takes no
//! PSN. How another process is kept from touching what was taken away says `direct/`.

use std::cell::Cell;
use std::sync::Arc;

use scalefabric_transport::host::{Direct, SendWqe, WqeOp};
use scalefabric_transport::{Counter, QueuePair, Time, Traffic};
use scalefabric_verbs::{AccessFlags, MigState, QpAttr, QpState, QpType};

use super::entry::{QpShared, QpSide};
use super::{Engine, Nic};
use crate::direct::{Claim, Gate, Open, Published, Terms};
use crate::host::QpHost;
use crate::memory::{MemoryTable, Neighbour, OwnFile, Peer};
use crate::port::capture::Tape;
use crate::ring::atomic::full_fence;
use crate::share::neighbourhood::Neighbourhood;
use crate::tables::Tables;

mod plain;
mod request;
mod shown;
mod unqueued;

pub(crate) use plain::Plain;
pub(crate) use request::Local;
use request::{Request, needs, rkey_of};
pub(crate) use unqueued::{ROOM, Requests};

/// Bytes that are copied behind one hazard: who deregisters waits for no longer than that.
pub(crate) const CHUNK: u32 = 512 << 10;

/// How long a peer that cannot be reached directly is not looked for again, ns.
const LOOK_NS: u64 = 1_000_000;

/// What an engine needs for it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// This process's gates.
    pub file: Arc<OwnFile>,
    /// The other processes of the device, if there are any.
    pub neighbours: Option<Arc<Neighbourhood>>,
    /// A capture's, one for each port: they hear of the packets that were not needed. None without a capture.
    pub tapes: Vec<Tape>,
}

impl Setup {
    /// Only between QPs of one process.
    pub fn alone() -> std::io::Result<Self> {
        Ok(Self { file: OwnFile::new()?, neighbours: None, tapes: Vec::new() })
    }

    /// Opens a QP's gate, which is closed and empty, if its peer may go through.
    pub(super) fn open_gate(&self, side: &QpSide, transport: &QueuePair) {
        let attr = transport.query();
        let hears = match attr.qp_state {
            QpState::Rts | QpState::Sqd => true,
            // The first packet has to be one: it raises COMM_EST.
            QpState::Rtr => transport.is_established(),
            _ => false,
        };
        if hears && side.shared.qp_type == QpType::Rc && attr.path_mig_state == MigState::Migrated {
            self.file.gate(side.shared.index()).open(&Terms {
                qpn: side.shared.qpn,
                pd: side.pd,
                access: attr.qp_access_flags,
                peer_qpn: attr.dest_qp_num,
                peer_gid: attr.ah_attr.dgid,
                sgid_index: attr.ah_attr.sgid_index,
                port_num: attr.port_num,
                max_dest_rd_atomic: attr.max_dest_rd_atomic,
                pkey_index: attr.pkey_index,
            });
        }
    }
}

/// Where the requests of a QP go.
#[derive(Debug, Default)]
pub enum DirectRoute {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// As packets; whether another way is open is looked at again then, ns.
    Wire(u64),
    /// To the memory of a peer.
    Open(Box<OpenRoute>),
}

impl DirectRoute {
    /// Packets are the only way now.
    #[inline]
    pub(crate) fn is_wire(&self, now: Time) -> bool {
        matches!(self, Self::Wire(until) if now.0 < *until)
    }
}

/// The way to a peer's memory.
#[derive(Debug)]
pub struct OpenRoute {
    /// The process; `None`: this one.
    neighbour: Option<Arc<Neighbour>>,
    /// Index of its QP.
    qp: u16,
    open: Open,
    /// Generation of the tables that were looked at.
    tables: u32,
    /// The key that was used last, and its place in the peer's table.
    last_key: Cell<(u32, u32)>,
    /// A key whose memory is mapped nowhere in this process: the shortest way need not be tried with it. 0: none.
    elsewhere: Cell<u32>,
    /// This process's gates.
    file: Arc<OwnFile>,
    /// The other processes.
    others: Option<Arc<Neighbourhood>>,
}

impl OpenRoute {
    #[inline]
    fn gate(&self) -> &Gate {
        match &self.neighbour {
            Some(neighbour) => neighbour.gate(self.qp),
            None => self.file.gate(self.qp),
        }
    }

    /// Place of a key in the peer's table. Most requests have the key of the one before.
    #[inline]
    fn slot_of(&self, table: &MemoryTable, key: u32) -> u32 {
        let (last, slot) = self.last_key.get();
        if last == key {
            return slot;
        }
        let slot = match &self.neighbour {
            Some(neighbour) => neighbour.slot_of(key),
            None => table.slot_of(key),
        };
        self.last_key.set((key, slot));
        slot
    }

    /// Whether the peer's process is a member of the device.
    fn is_there(&self) -> bool {
        let is_there = |neighbour| self.others.as_ref().is_some_and(|others| others.is_there(neighbour));
        self.neighbour.as_ref().is_none_or(|neighbour| is_there(neighbour))
    }

    /// Announces what of the peer is about to be touched, which the caller puts a full fence behind; nothing is needed where the peer is this
    /// process. `Err`: it may not be touched.
    #[inline(always)]
    fn announce(&self, slot: u32) -> Result<Option<Published<'_>>, Unannounced> {
        let Some(neighbour) = &self.neighbour else { return Ok(None) };
        let Some(others) = self.others.as_ref().filter(|others| others.is_there(neighbour)) else {
            return Err(Unannounced::PeerGone);
        };
        // A process that was stopped for too long is nobody's member any more, and its hazard is another's.
        let hazard = others.hazard().ok_or(Unannounced::NoMember)?;
        Ok(Some(hazard.announce(Claim { target: neighbour.slot(), entry: slot, qp: self.qp })))
    }

    /// Behind the fence: whether the hazard was this process's when it was announced, and the gate is still open.
    #[inline(always)]
    fn is_open(&self) -> Result<(), Unannounced> {
        if self.others.as_ref().is_some_and(|others| !others.is_member()) {
            return Err(Unannounced::NoMember);
        }
        if self.gate().is_open(self.open.generation) { Ok(()) } else { Err(Unannounced::PeerGone) }
    }
}

/// Why nothing may be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unannounced {
    /// The peer is not there any more, or on other terms: its way has to be looked for again.
    PeerGone,
    /// This process is no member any more.
    NoMember,
}

/// Adds a request that was executed here to the counters of its port, as packets would have been on both sides: the target does not know of it. Each
/// message is acknowledged by itself.
#[inline]
fn count(wqe: &SendWqe, psns: u32, mut add: impl FnMut(Counter, u64)) {
    Traffic::of(wqe, psns).count(&mut add);
    add(Counter::DirectRequests, 1);
    match wqe.op {
        WqeOp::Write { .. } => add(Counter::WriteRequests, 1),
        WqeOp::Read { .. } => add(Counter::ReadRequests, 1),
        WqeOp::Flush { .. } => {}
        _ => add(Counter::AtomicRequests, 1),
    }
}

/// Finds the way to the peer that the attributes name, if it is a QP of this device that is connected to this one.
fn find(setup: &Setup, tables: &Tables, shared: &QpShared, attr: &QpAttr) -> Option<OpenRoute> {
    let own = tables.port(attr.port_num).filter(|port| port.is_active())?;
    let own_gid = own.gid(u32::from(attr.ah_attr.sgid_index)).filter(|gid| !gid.is_zero())?;
    if attr.path_mig_state != MigState::Migrated {
        return None;
    }
    let dest = attr.dest_qp_num.get();
    let (slot, qp) = ((dest >> 16) as u8, dest as u16);
    let neighbour =
        if slot == (shared.qpn.get() >> 16) as u8 { None } else { Some(setup.neighbours.as_ref()?.neighbour(slot)?) };
    let gate = match &neighbour {
        Some(neighbour) => neighbour.gate(qp),
        None => setup.file.gate(qp),
    };
    let open = gate.read()?;
    let terms = &open.terms;
    // What admission asks of a packet: the right peer, from and to the right address, by the right port, with the right P_Key.
    let port = tables.port(terms.port_num).filter(|port| port.is_active())?;
    let connected = terms.qpn == attr.dest_qp_num
        && terms.peer_qpn == shared.qpn
        && terms.peer_gid == own_gid
        && port.gid(u32::from(terms.sgid_index)) == Some(attr.ah_attr.dgid);
    let pkeys = (own.pkey(attr.pkey_index)?, port.pkey(terms.pkey_index)?);
    (connected && pkeys.0.matches(pkeys.1)).then(|| OpenRoute {
        neighbour,
        qp,
        open,
        tables: tables.generation(),
        last_key: Cell::new((0, 0)),
        elsewhere: Cell::new(0),
        file: setup.file.clone(),
        others: setup.neighbours.clone(),
    })
}

impl QpHost<'_, '_> {
    /// The right that a request needs, if the way to its peer's memory is known and its terms allow it. The way is looked for if it is time to.
    fn allowed(&mut self, wqe: &SendWqe, attr: &QpAttr) -> Option<AccessFlags> {
        let (right, counts) = needs(&wqe.op)?;
        let Self { side, fabric, now, .. } = self;
        let setup = fabric.direct.as_ref()?;
        let tables = fabric.tables.generation();
        let known = match &side.direct {
            DirectRoute::Open(route) => route.tables == tables,
            DirectRoute::Wire(until) if now.0 < *until => return None,
            _ => false,
        };
        if fabric.faults.is_some() || !(known || look(setup, &fabric.tables, side, attr, now.0)) {
            return None;
        }
        let DirectRoute::Open(route) = &side.direct else { return None };
        let Terms { access, max_dest_rd_atomic, .. } = route.open.terms;
        (access.contains(right) && !(counts && max_dest_rd_atomic == 0)).then_some(right)
    }

    /// Whether [`QpHost::directly`] would execute a request, as it looks now: nothing is announced, since nothing is touched.
    pub(crate) fn could_go_directly(&mut self, wqe: &SendWqe, attr: &QpAttr) -> bool {
        let Some(right) = self.allowed(wqe, attr) else { return false };
        let Self { side, memory, .. } = self;
        let DirectRoute::Open(route) = &side.direct else { return false };
        if !route.is_there() || route.is_open().is_err() {
            side.direct = DirectRoute::Unknown;
            return false;
        }
        let slot = route.slot_of(memory.table(), rkey_of(&wqe.op).1.0);
        let peer = Peer { pd: route.open.terms.pd, qpn: route.open.terms.qpn };
        request::is_within_reach(wqe, memory, route.neighbour.as_deref(), peer, right, slot)
    }

    /// Executes a request of this QP on the memory of its peer, if that is on this host and everything allows it.
    pub(crate) fn directly(&mut self, wqe: &SendWqe, attr: &QpAttr, done: u32, psns: u32) -> Direct {
        let Some(right) = self.allowed(wqe, attr) else { return Direct::Wire };
        let Self { side, fabric, memory, .. } = self;
        let (pd, shared) = (side.pd, &side.shared);
        let Some(ring) = &shared.send else { return Direct::Wire };
        let DirectRoute::Open(route) = &side.direct else { return Direct::Wire };
        let slot = route.slot_of(memory.table(), rkey_of(&wqe.op).1.0);
        let announced = route.announce(slot);
        full_fence();
        let published = announced.and_then(|published| route.is_open().map(|()| published));
        if let Some(why) = published.as_ref().err().copied() {
            drop(published);
            if why == Unannounced::PeerGone {
                side.direct = DirectRoute::Unknown;
            }
            return Direct::Wire;
        }
        let Open { generation, terms } = route.open;
        let neighbour = route.neighbour.as_deref();
        let (peer, local) = (Peer { pd: terms.pd, qpn: terms.qpn }, Local::Queued(ring, wqe.index));
        let outcome = Request { wqe, local, pd, memory, neighbour, peer, right, slot, done }.execute();
        if matches!(outcome, Direct::Done | Direct::Failed(_)) {
            route.gate().count(generation, psns);
            drop(published);
            side.direct_requests += 1;
            let port = usize::from(side.port_num.max(1)) - 1;
            let batch = &mut fabric.batches[port];
            count(wqe, psns, |counter, n| batch.count(counter, n));
        }
        outcome
    }
}

/// Looks for the way, and remembers what was found.
#[cold]
fn look(setup: &Setup, tables: &Tables, side: &mut QpSide, attr: &QpAttr, now: u64) -> bool {
    let found = find(setup, tables, &side.shared, attr);
    let open = found.is_some();
    side.shared.set_direct(open);
    side.direct = match found {
        Some(route) => DirectRoute::Open(Box::new(route)),
        None => DirectRoute::Wire(now + LOOK_NS),
    };
    open
}

impl Engine {
    /// A poster's short turn: executes what is posted to one QP, if its way to its peer's memory is known. False if something is left for a
    /// whole turn. Ports are not looked at: who only posts has the worker for what comes in. `about` is a time that is not long ago; `exactly`
    /// is asked if completions carry it.
    #[inline]
    pub(crate) fn turn_directly(&mut self, qp: u16, about: Time, exactly: impl FnOnce() -> Time) -> bool {
        let Some(entry) = self.nic.qps.get_mut(usize::from(qp)) else { return false };
        if !matches!(entry.side.direct, DirectRoute::Open(_)) {
            return false;
        }
        let cq = self.nic.fabric.cqs.get(entry.side.send_cq as usize);
        let now = if cq.is_some_and(|cq| cq.producer.is_stamped()) { exactly() } else { about };
        let access = self.accessor.enter();
        let now = now.max(self.nic.last);
        self.nic.last = now;
        let budget = self.nic.config.budget.transmit_per_qp;
        let done =
            self.nic.with_qp(qp, now, &access, None, |entry, host| entry.transport.transmit_directly(host, budget));
        drop(access);
        for (batch, counters) in self.nic.fabric.batches.iter_mut().zip(&self.nic.counters) {
            batch.flush(counters.block());
        }
        done == Some(true)
    }
}

impl Nic {
    /// Waits until nobody is inside a gate that is closed.
    fn wait_gate(setup: &Setup, qp: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if let Some(neighbours) = &setup.neighbours {
            // One who is stopped in the middle goes on with what the regions allow; their ends wait for it again.
            let _ = neighbours.wait_qp(qp);
        }
    }

    /// A verb has changed a QP: closes its gate, waits until nobody is inside, and opens it on the new terms if there are any.
    pub(super) fn renew_gate(&mut self, qp: u16) {
        let Some(setup) = &self.fabric.direct else { return };
        let gate = setup.file.gate(qp);
        gate.close();
        Self::wait_gate(setup, qp);
        let Some(entry) = self.qps.get_mut(usize::from(qp)) else { return };
        entry.side.direct = DirectRoute::Unknown;
        setup.open_gate(&entry.side, &entry.transport);
    }

    /// The QP is in RESET, or goes.
    pub(super) fn reset_gate(&mut self, qp: u16) {
        let Some(setup) = &self.fabric.direct else { return };
        setup.file.gate(qp).close();
        Self::wait_gate(setup, qp);
        setup.file.gate(qp).reset();
        if let Some(entry) = self.qps.get_mut(usize::from(qp)) {
            entry.side.direct = DirectRoute::Unknown;
        }
    }

    /// PSNs that requests would have taken which the peer has executed by itself. Behind a closed gate nobody adds to it any more.
    pub(super) fn executed_psns(&self, qp: u16) -> u32 {
        let Some(setup) = &self.fabric.direct else { return 0 };
        let gate = setup.file.gate(qp);
        if gate.read().is_none() {
            Self::wait_gate(setup, qp);
        }
        gate.executed_psns()
    }

    /// Members of these slots are gone: their memory is let go of.
    pub(crate) fn forget_neighbours(&mut self, slots: &[u8]) {
        for (_, entry) in self.qps.iter_mut() {
            if let DirectRoute::Open(route) = &entry.side.direct
                && route.neighbour.as_ref().is_some_and(|neighbour| slots.contains(&neighbour.slot()))
            {
                entry.side.direct = DirectRoute::Unknown;
            }
        }
    }
}
