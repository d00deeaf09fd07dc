//! The shortest way for what most requests are: WRITEs of one piece into memory that is mapped here, a neighbour's or our own.
//!
//! It does what [`Engine::execute_unqueued`] does, and is its twin: what it executes, that one would have executed, with the same checks, counts and
//! completions, and whatever asks for a closer look is left to it. What does not change from one request to the next is looked at once for a
//! chain: state, route, gate and key, of which none can change while the hazard stands.

use scalefabric_transport::{Counter, Traffic};
use scalefabric_verbs::{AccessFlags, RKey, SendFlags, Sge, WcOpcode, WorkCompletion};

use super::{CHUNK, DirectRoute};
use crate::engine::Engine;
use crate::engine::direct::unqueued::Requests;
use crate::engine::entry::{QpEntry, QpShared};
use crate::memory::{Peer, Piece};

/// A WRITE of one piece.
pub(crate) struct Plain<'b> {
    /// As posted.
    pub wr_id: u64,
    /// With SIGNALED if all requests of the QP are.
    pub flags: SendFlags,
    /// Where the bytes go.
    pub remote_addr: u64,
    /// With what key.
    pub rkey: RKey,
    /// Its bytes: at least 1, and [`CHUNK`] at most.
    pub piece: Piece<'b>,
}

impl Engine {
    /// Executes the requests at the head of a chain that are plain; how many. The thread has called [`crate::memory::guard::ensure`].
    #[inline]
    pub(super) fn execute_plain(&mut self, qp: &QpShared, requests: &impl Requests) -> usize {
        let Self { accessor, nic } = self;
        let tables = nic.fabric.tables.generation();
        let (Some(entry), None, Some(ring)) = (nic.qps.get_mut(usize::from(qp.index())), &nic.fabric.faults, &qp.send)
        else {
            return 0;
        };
        let QpEntry { transport, side, .. } = &mut **entry;
        let DirectRoute::Open(route) = &side.direct else { return 0 };
        let Some(mut next) = requests.plain(0) else { return 0 };
        // The QP may be gone, and its number another one's.
        let may = route.elsewhere.get() != next.rkey.0
            && std::ptr::eq(&raw const *side.shared, qp)
            && route.tables == tables
            && route.open.terms.access.contains(AccessFlags::REMOTE_WRITE)
            && nic.fabric.direct.as_ref().is_some_and(|setup| setup.tapes.is_empty())
            && transport.may_execute_unqueued(ring.posted())
            && nic.fabric.cqs.get(side.send_cq as usize).is_some_and(|cq| !cq.producer.is_stamped());
        if !may {
            return 0;
        }
        let rkey = next.rkey;
        let slot = route.slot_of(accessor.table(), rkey.0);
        let Ok(announced) = route.announce(slot) else { return 0 };
        // Its fence stands behind the hazard, too.
        let access = accessor.enter();
        let peer = Peer { pd: route.open.terms.pd, qpn: route.open.terms.qpn };
        let opened = match &route.neighbour {
            Some(neighbour) => neighbour.open(slot, peer, rkey, AccessFlags::REMOTE_WRITE),
            None => access.open(slot, peer, rkey, AccessFlags::REMOTE_WRITE),
        };
        let (Some(opened), Ok(())) = (opened, route.is_open()) else { return 0 };
        if !opened.is_here() {
            route.elsewhere.set(rkey.0);
            return 0;
        }
        let (mut done, mut psns, mut bytes, mut padded) = (0, 0, 0u32, 0u64);
        loop {
            let length = next.piece.length();
            if bytes + length > CHUNK || !opened.put(&access, side.pd, next.remote_addr, &next.piece) {
                break;
            }
            bytes += length;
            padded += u64::from(length.next_multiple_of(4));
            psns += transport.packets_of_write(length);
            done += 1;
            if next.flags.contains(SendFlags::SIGNALED) {
                let wc = WorkCompletion {
                    wr_id: next.wr_id,
                    opcode: WcOpcode::RdmaWrite,
                    qp_num: qp.qpn,
                    ..WorkCompletion::default()
                };
                side.cq_overrun |= nic.fabric.complete(nic.last, side.send_cq, &wc, false);
            }
            match requests.plain(done) {
                Some(plain) if plain.rkey == rkey && !side.cq_overrun => next = plain,
                _ => break,
            }
        }
        if done > 0 {
            route.gate().count(route.open.generation, psns);
        }
        drop(announced);
        if done > 0 {
            transport.executed_unqueued(psns);
            side.direct_requests += done as u64;
            let traffic = Traffic::of_writes(done as u32, psns, padded);
            let counters = nic.counters[usize::from(side.port_num.max(1)) - 1].block();
            traffic.count(|counter, n| counters.add_alone(counter, n));
            counters.add_alone(Counter::DirectRequests, done as u64);
            counters.add_alone(Counter::WriteRequests, done as u64);
            if side.cq_overrun || !nic.fabric.overruns.is_empty() {
                // A completion without room: what else follows from it.
                nic.with_qp(qp.index(), nic.last, &access, None, |_, _| ());
            }
        }
        done
    }
}

impl<'b> Plain<'b> {
    /// With its bytes here.
    #[inline(always)]
    pub fn inline(wr_id: u64, flags: SendFlags, to: (u64, RKey), bytes: &'b [u8]) -> Option<Self> {
        let fits = !bytes.is_empty() && bytes.len() <= CHUNK as usize;
        fits.then_some(Self { wr_id, flags, remote_addr: to.0, rkey: to.1, piece: Piece::Inline(bytes) })
    }

    /// With its bytes in registered memory.
    #[inline(always)]
    pub fn registered(wr_id: u64, flags: SendFlags, to: (u64, RKey), sge: &'b Sge) -> Option<Self> {
        let fits = (1..=CHUNK).contains(&sge.length);
        fits.then_some(Self { wr_id, flags, remote_addr: to.0, rkey: to.1, piece: Piece::Registered(sge) })
    }
}
