//! The same-host path in the engine (D3): a one-sided request whose target is a QP of the same device is executed here, on the
//! target's memory, with its processor asleep.
//!
//! Only what succeeds is done here. Whatever a responder would refuse goes as packets, so that the responder refuses it, with its
//! own NAK, counters and events: that is possible because a request comes here only while nothing else of the QP is under way, and takes no
//! PSN. How another process is kept from touching what was taken away says `direct/`.

use std::sync::Arc;

use scalefabric_transport::host::{AtomicOp, Direct, Host as _, RemoteAccess, SendWqe, WqeOp};
use scalefabric_transport::{Counter, Time};
use scalefabric_verbs::{AccessFlags, FlushLevel, FlushPlacement, MigState, QpAttr, QpState, QpType, RKey, WcStatus};

use super::entry::{QpShared, QpSide};
use super::{Engine, Nic};
use crate::direct::{Claim, Gate, Open, Terms};
use crate::host::QpHost;
use crate::memory::{Access, Grant, Neighbour, OwnFile, PdId, Peer, Source};
use crate::share::neighbourhood::Neighbourhood;
use crate::tables::Tables;

/// Bytes that are copied behind one hazard: who deregisters waits for no longer than that.
const CHUNK: u32 = 512 << 10;

/// How long a peer that cannot be reached directly is not looked for again, ns.
const LOOK_NS: u64 = 1_000_000;

/// What an engine needs for it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// This process's gates.
    pub file: Arc<OwnFile>,
    /// The other processes of the device, if there are any.
    pub neighbours: Option<Arc<Neighbourhood>>,
}

impl Setup {
    /// Only between QPs of one process.
    pub fn alone() -> std::io::Result<Self> {
        Ok(Self { file: OwnFile::new()?, neighbours: None })
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
}

impl OpenRoute {
    fn gate<'a>(&'a self, file: &'a OwnFile) -> &'a Gate {
        match &self.neighbour {
            Some(neighbour) => neighbour.gate(self.qp),
            None => file.gate(self.qp),
        }
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
    (connected && pkeys.0.matches(pkeys.1)).then_some(OpenRoute { neighbour, qp, open, tables: tables.generation() })
}

/// The right that a request needs, and whether it counts against `max_dest_rd_atomic`.
fn needs(op: &WqeOp) -> Option<(AccessFlags, bool)> {
    Some(match op {
        WqeOp::Write { .. } => (AccessFlags::REMOTE_WRITE, false),
        WqeOp::Read { .. } => (AccessFlags::REMOTE_READ, true),
        WqeOp::CompareSwap { .. } | WqeOp::FetchAdd { .. } => (AccessFlags::REMOTE_ATOMIC, true),
        WqeOp::AtomicWrite { .. } => (AccessFlags::REMOTE_WRITE, true),
        WqeOp::Flush { placement: FlushPlacement::Global, .. } => (AccessFlags::FLUSH_GLOBAL, true),
        // To persistence: a system call of the owner's.
        _ => return None,
    })
}

fn rkey_of(op: &WqeOp) -> (u64, RKey) {
    match *op {
        WqeOp::Write { remote_addr, rkey }
        | WqeOp::Read { remote_addr, rkey }
        | WqeOp::CompareSwap { remote_addr, rkey, .. }
        | WqeOp::FetchAdd { remote_addr, rkey, .. }
        | WqeOp::AtomicWrite { remote_addr, rkey }
        | WqeOp::Flush { remote_addr, rkey, .. } => (remote_addr, rkey),
        _ => (0, RKey(0)),
    }
}

/// One request at its target.
struct Request<'a> {
    wqe: &'a SendWqe,
    side: &'a QpSide,
    memory: &'a Access<'a>,
    neighbour: Option<&'a Neighbour>,
    peer: Peer,
    right: AccessFlags,
    done: u32,
}

impl Request<'_> {
    fn grant(&self, va: u64, rkey: RKey, length: u64) -> Option<Grant<'_>> {
        let access = RemoteAccess { rkey, va, length, access: self.right, xrc_srqn: None };
        match self.neighbour {
            Some(neighbour) => neighbour.grant(self.peer, &access),
            None => self.memory.grant(self.peer, &access),
        }
    }

    fn pd(&self) -> PdId {
        self.side.pd
    }

    fn execute(&self) -> Direct {
        let (va, rkey) = rkey_of(&self.wqe.op);
        match self.wqe.op {
            WqeOp::Write { .. } | WqeOp::Read { .. } => self.move_bytes(va, rkey),
            WqeOp::CompareSwap { compare, swap, .. } => self.atomic(va, rkey, AtomicOp::CompareSwap { compare, swap }),
            WqeOp::FetchAdd { add, .. } => self.atomic(va, rkey, AtomicOp::FetchAdd { add }),
            WqeOp::AtomicWrite { .. } => self.atomic_write(va, rkey),
            WqeOp::Flush { length, level, .. } => self.flush(va, rkey, length, level),
            _ => Direct::Wire,
        }
    }

    /// WRITE and READ: as much as goes behind one hazard.
    #[inline]
    fn move_bytes(&self, va: u64, rkey: RKey) -> Direct {
        let Some(ring) = &self.side.shared.send else { return Direct::Wire };
        let (index, whole) = (self.wqe.index, self.wqe.length);
        // Without bytes no key is looked at (clause 9.7.4.1.3).
        if whole == 0 {
            return Direct::Done;
        }
        let Some(grant) = self.grant(va, rkey, u64::from(whole)) else { return Direct::Wire };
        let part = (whole - self.done).min(CHUNK);
        let last = self.done + part == whole;
        let moved = match self.wqe.op {
            WqeOp::Read { .. } => self.memory.get(self.pd(), ring.sges(index), &grant, self.done, part),
            _ if ring.is_inline(index) => {
                let mut bytes = [0; crate::post::MAX_INLINE];
                let Some(bytes) = bytes.get_mut(..whole as usize) else { return Direct::Wire };
                ring.copy_inline(index, 0, bytes);
                let source: Source<'_, std::iter::Empty<_>> = Source::Inline(bytes);
                self.memory.put(self.pd(), source, &grant, 0, whole, true)
            }
            _ => self.memory.put(self.pd(), Source::Sges(ring.sges(index)), &grant, self.done, part, last),
        };
        match (moved, last) {
            (false, _) => Direct::Wire,
            (true, false) => Direct::Part(part),
            (true, true) => Direct::Done,
        }
    }

    fn atomic(&self, va: u64, rkey: RKey, op: AtomicOp) -> Direct {
        let Some(ring) = &self.side.shared.send else { return Direct::Wire };
        // Its result must have a place before it is executed: it cannot be executed again.
        let has_place = || self.memory.can_scatter(self.pd(), ring.sges(self.wqe.index), 8);
        if !va.is_multiple_of(8) || self.wqe.length != 8 || !has_place() {
            return Direct::Wire;
        }
        let Some(grant) = self.grant(va, rkey, 8) else { return Direct::Wire };
        let Some(old) = self.memory.atomic(&grant, op) else { return Direct::Wire };
        match self.memory.scatter(self.pd(), ring.sges(self.wqe.index), 0, &old.to_ne_bytes()) {
            Ok(()) => Direct::Done,
            Err(_) => Direct::Failed(WcStatus::LocProtErr),
        }
    }

    fn atomic_write(&self, va: u64, rkey: RKey) -> Direct {
        let Some(ring) = &self.side.shared.send else { return Direct::Wire };
        let mut bytes = [0; 8];
        if self.wqe.length != 8 || !va.is_multiple_of(8) {
            return Direct::Wire;
        }
        if ring.is_inline(self.wqe.index) {
            ring.copy_inline(self.wqe.index, 0, &mut bytes);
        } else if self.memory.gather(self.pd(), ring.sges(self.wqe.index), 0, &mut bytes).is_err() {
            return Direct::Wire;
        }
        let Some(grant) = self.grant(va, rkey, 8) else { return Direct::Wire };
        match self.memory.atomic(&grant, AtomicOp::Write { value: u64::from_ne_bytes(bytes) }) {
            Some(_) => Direct::Done,
            None => Direct::Wire,
        }
    }

    fn flush(&self, va: u64, rkey: RKey, length: u32, level: FlushLevel) -> Direct {
        let granted = match level {
            FlushLevel::Range => length == 0 || self.grant(va, rkey, u64::from(length)).is_some(),
            FlushLevel::MemoryRegion => {
                let access = RemoteAccess { rkey, va, length: 0, access: self.right, xrc_srqn: None };
                match self.neighbour {
                    Some(neighbour) => neighbour.grants_region(self.peer, &access),
                    None => self.memory.grants_region(self.peer, &access),
                }
            }
        };
        if !granted {
            return Direct::Wire;
        }
        self.memory.flush_global();
        Direct::Done
    }
}

impl QpHost<'_, '_> {
    /// Executes a request of this QP on the memory of its peer, if that is on this host and everything allows it.
    #[inline]
    pub(crate) fn directly(&mut self, wqe: &SendWqe, attr: &QpAttr, done: u32, psns: u32) -> Direct {
        let Some((right, counts)) = needs(&wqe.op) else { return Direct::Wire };
        let outcome = {
            let Self { side, fabric, memory, now, .. } = self;
            let Some(setup) = &fabric.direct else { return Direct::Wire };
            let tables = fabric.tables.generation();
            let known = match &side.direct {
                DirectRoute::Open(route) => route.tables == tables,
                DirectRoute::Wire(until) if now.0 < *until => return Direct::Wire,
                _ => false,
            };
            if fabric.faults.is_some() || !(known || look(setup, &fabric.tables, side, attr, now.0)) {
                return Direct::Wire;
            }
            let DirectRoute::Open(route) = &side.direct else { return Direct::Wire };
            let gate = route.gate(&setup.file);
            let Terms { pd, access, qpn, max_dest_rd_atomic, .. } = route.open.terms;
            if !access.contains(right) || counts && max_dest_rd_atomic == 0 {
                return Direct::Wire;
            }
            let neighbour = route.neighbour.as_deref();
            let published = match (neighbour, &setup.neighbours) {
                (None, _) => None,
                (Some(neighbour), Some(all)) if all.is_there(neighbour) => {
                    let entry = neighbour.slot_of(rkey_of(&wqe.op).1.0);
                    let claim = Claim { target: neighbour.slot(), entry, qp: route.qp };
                    let Some(hazard) = all.hazard() else { return Direct::Wire };
                    let published = hazard.publish(claim);
                    // A process that was stopped for too long is nobody's member any more, and its hazard is another's.
                    if all.hazard().is_none() {
                        return Direct::Wire;
                    }
                    Some(published)
                }
                _ => {
                    side.direct = DirectRoute::Unknown;
                    return Direct::Wire;
                }
            };
            let generation = route.open.generation;
            if !gate.is_open(generation) {
                drop(published);
                side.direct = DirectRoute::Unknown;
                return Direct::Wire;
            }
            let peer = Peer { pd, qpn };
            let outcome = Request { wqe, side, memory, neighbour, peer, right, done }.execute();
            if matches!(outcome, Direct::Done | Direct::Failed(_)) {
                gate.count(generation, psns);
            }
            drop(published);
            outcome
        };
        if matches!(outcome, Direct::Done | Direct::Failed(_)) {
            self.count(Counter::DirectRequests, 1);
            match wqe.op {
                WqeOp::Write { .. } => self.count(Counter::WriteRequests, 1),
                WqeOp::Read { .. } => self.count(Counter::ReadRequests, 1),
                WqeOp::Flush { .. } => {}
                _ => self.count(Counter::AtomicRequests, 1),
            }
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
        let attr = entry.transport.query();
        let is_ready = matches!(attr.qp_state, QpState::Rts | QpState::Sqd)
            && entry.side.shared.qp_type == QpType::Rc
            && attr.path_mig_state == MigState::Migrated;
        if is_ready {
            gate.open(&Terms {
                qpn: entry.side.shared.qpn,
                pd: entry.side.pd,
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
