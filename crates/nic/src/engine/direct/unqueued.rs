//! The shortest way of a request: it is executed as its poster holds it, and no WQE is ever written.
//!
//! It is open while the send queue is empty, nothing of the QP is under way, and the way to its peer is known. Then who posts does, under the
//! engine's lock, what a turn would do, without clock, ports and timers. All checks are those of the longer way, and what cannot be done
//! here is queued.

use scalefabric_transport::Time;
use scalefabric_transport::host::{Direct, SendWqe, WqeOp};
use scalefabric_verbs::SendFlags;

use super::plain::Plain;
use super::request::{Local, Request, needs, rkey_of};
use super::{CHUNK, DirectRoute, Unannounced, count};
use crate::engine::Engine;
use crate::engine::entry::{QpEntry, QpShared};
use crate::host::QpHost;
use crate::memory::Peer;
use crate::ring::atomic::full_fence;

/// What a poster holds.
pub(crate) trait Requests {
    /// Fills in the `n`-th request, but for its index, and gives its bytes; `None` if it has to be queued, or there are no more. `room`: for
    /// bytes that have to be gathered first.
    fn request<'b>(&'b self, n: usize, wqe: &mut SendWqe, room: &'b mut [u8; ROOM]) -> Option<Local<'b>>;
    /// How many there are.
    fn count(&self) -> usize;
    /// The `n`-th request if it is a WRITE of one piece that [`Requests::request`] would give, too.
    fn plain(&self, n: usize) -> Option<Plain<'_>>;
}

/// Bytes that may have to be gathered.
pub(crate) const ROOM: usize = 64;

impl Engine {
    /// Executes requests to the peer of a QP in their order until one has to be queued or there are no more; how many are done. `exactly` is asked for the time if completions carry it. The thread has
    /// called [`crate::memory::guard::ensure`].
    #[inline]
    pub(crate) fn execute_unqueued(
        &mut self,
        qp: &QpShared,
        exactly: impl FnOnce() -> Time,
        requests: &impl Requests,
    ) -> usize {
        let plain = self.execute_plain(qp, requests);
        if requests.count() == plain { plain } else { self.execute_others(qp, exactly, requests, plain) }
    }

    /// The same for those behind the first `skip`, whatever they are; how many are done with these. Apart: most callers need no more than the above.
    #[inline(never)]
    fn execute_others(
        &mut self,
        qp: &QpShared,
        exactly: impl FnOnce() -> Time,
        requests: &impl Requests,
        skip: usize,
    ) -> usize {
        let Self { accessor, nic } = self;
        let tables = nic.fabric.tables.generation();
        let (Some(entry), None) = (nic.qps.get_mut(usize::from(qp.index())), &nic.fabric.faults) else { return skip };
        let QpEntry { transport, side, .. } = &mut **entry;
        let Some(ring) = &qp.send else { return skip };
        // The QP may be gone, and its number another one's.
        let may = std::ptr::eq(&raw const *side.shared, qp)
            && nic.fabric.direct.as_ref().is_some_and(|setup| setup.tapes.is_empty())
            && matches!(&side.direct, DirectRoute::Open(route) if route.tables == tables);
        let mut room = [0; ROOM];
        // One place for all: it is large.
        let mut wqe = SendWqe {
            index: 0,
            wr_id: 0,
            op: WqeOp::Send,
            flags: SendFlags::empty(),
            length: 0,
            ud: None,
            xrc_srqn: None,
        };
        let mut next = if may { requests.request(skip, &mut wqe, &mut room) } else { None };
        if next.is_none() {
            return skip;
        }
        let DirectRoute::Open(route) = std::mem::take(&mut side.direct) else { return skip };
        if nic.fabric.cqs.get(side.send_cq as usize).is_some_and(|cq| cq.producer.is_stamped()) {
            nic.last = nic.last.max(exactly());
        }
        let (now, pd, posted) = (nic.last, side.pd, ring.posted());
        let terms = route.open.terms;
        let peer = Peer { pd: terms.pd, qpn: terms.qpn };
        let counters = nic.counters[usize::from(side.port_num.max(1)) - 1].block();
        let mut claimed = route.slot_of(accessor.table(), rkey_of(&wqe.op).1.0);
        let mut announced = route.announce(claimed);
        // Its fence stands behind the hazard, too.
        let access = accessor.enter();
        let mut host = QpHost { now, side, fabric: &mut nic.fabric, memory: &access, ports: None };
        let (mut done, mut bytes, mut psns_done, mut executed_requests, mut lost) = (skip, 0, 0, 0, false);
        while let Some(local) = next {
            let Some((right, counts)) = needs(&wqe.op) else { break };
            if !terms.access.contains(right) || counts && terms.max_dest_rd_atomic == 0 {
                break;
            }
            let slot = route.slot_of(access.table(), rkey_of(&wqe.op).1.0);
            bytes += wqe.length;
            if claimed != slot || (bytes > CHUNK && done > skip) {
                // Who waits for the one waits for the other no longer than for the first.
                drop(announced);
                announced = route.announce(slot);
                full_fence();
                (claimed, bytes) = (slot, wqe.length);
            }
            // Behind the fence, for each request.
            if let Err(why) = announced.as_ref().map_err(|why| *why).and_then(|_| route.is_open()) {
                lost = why == Unannounced::PeerGone;
                break;
            }
            let executed = transport.execute_unqueued(&mut host, posted, &wqe, |_, _, psns| {
                let neighbour = route.neighbour.as_deref();
                let request = Request { wqe: &wqe, local, pd, memory: &access, neighbour, peer, right, slot, done: 0 };
                let outcome = request.execute();
                if matches!(outcome, Direct::Done | Direct::Failed(_)) {
                    psns_done += psns;
                    executed_requests += 1;
                    count(&wqe, psns, |counter, n| counters.add_alone(counter, n));
                }
                outcome
            });
            if !executed {
                break;
            }
            done += 1;
            next = requests.request(done, &mut wqe, &mut room);
        }
        if psns_done > 0 {
            route.gate().count(route.open.generation, psns_done);
        }
        drop(announced);
        host.side.direct_requests += executed_requests;
        let changed = host.side.cq_overrun || transport.state() != qp.state();
        if !lost {
            host.side.direct = DirectRoute::Open(route);
        }
        if changed || !nic.fabric.overruns.is_empty() {
            // A completion without room, or memory that went away in the middle: what else follows from it.
            nic.with_qp(qp.index(), now, &access, None, |_, _| ());
        }
        done
    }
}
