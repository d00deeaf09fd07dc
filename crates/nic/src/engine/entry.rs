//! What the engine keeps for each object: the QP with its transport and its routes, the CQ's producer, the SRQ. The parts
//! that posting threads reach without the engine's lock are behind an `Arc` and say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use scalefabric_transport::{self as transport, RecvWqe, Time};
use scalefabric_verbs::{AddressVector, QpCap, QpState, QpType, Qpn, Srqn};
use scalefabric_wire::icrc::Flow;

use crate::completion::{Channel, Producer};
use crate::egress::Way;
use crate::engine::apart::Habit;
use crate::engine::direct::DirectRoute;
use crate::events::Events;
use crate::memory::PdId;
use crate::ring::{RecvRing, SendRing, SharedRecvRing};
use crate::window::Part;

/// What posting threads need of a QP: no lock but the rings' own.
#[derive(Debug)]
pub struct QpShared {
    /// Number.
    pub qpn: Qpn,
    /// Type.
    pub qp_type: QpType,
    /// Sizes, as given.
    pub cap: QpCap,
    /// Every send WR makes a completion.
    pub sq_sig_all: bool,
    /// Send queue; `None` for an XRC target.
    pub send: Option<SendRing>,
    /// Receive queue; `None` with an SRQ and for XRC.
    pub recv: Option<RecvRing>,
    /// The state as the engine last left it. Stale by one turn at most; what a stale value can do is said where it is read.
    state: AtomicU8,
    /// The way to its peer's memory is known: a poster may try the short turn. Stale values cost a look.
    direct: AtomicBool,
}

impl QpShared {
    /// A QP in RESET.
    pub fn new(
        qpn: Qpn,
        qp_type: QpType,
        cap: QpCap,
        sq_sig_all: bool,
        send: Option<SendRing>,
        recv: Option<RecvRing>,
    ) -> Self {
        Self {
            qpn,
            qp_type,
            cap,
            sq_sig_all,
            send,
            recv,
            state: AtomicU8::new(QpState::Reset as u8),
            direct: AtomicBool::new(false),
        }
    }

    /// The state as the engine last left it.
    #[inline]
    pub fn state(&self) -> QpState {
        QpState::from_raw(u32::from(self.state.load(Ordering::Acquire))).unwrap_or(QpState::Err)
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Whether the way to its peer's memory is known.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    pub(crate) fn set_direct(&self, direct: bool) {
        self.direct.store(direct, Ordering::Relaxed);
    }

    /// Index of the QP in its process: the lower 16 bits of its number.
    #[inline]
    pub fn index(&self) -> u16 {
        self.qpn.get() as u16
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqShared {
    /// Number.
    pub srqn: Srqn,
    /// WQEs.
    pub ring: SharedRecvRing,
    /// Its PD.
    pub pd: PdId,
    /// XRC: its domain and the CQ of its completions.
    pub xrc: Option<(u32, u32)>,
    /// Where its events go.
    pub events: Arc<Events>,
    /// QPs that take from it.
    pub users: AtomicU32,
}

/// One of a QP's paths, ready to send by.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The path, as the QP's attributes have it.
    pub av: AddressVector,
    /// Its addresses; `None` if its GID is gone or does not go with the destination.
    pub way: Option<Way>,
    /// Constants of its ICRCs.
    pub flow: Flow,
    /// Each route that is made has its own: packets of one serial share addresses for sure.
    pub serial: u64,
    /// Generation of the tables from which `way` was made.
    pub generation: u32,
}

impl Route {
    /// Lets switches mark what goes this way: ECT(0), unless the application has set the ECN bits itself.
    pub fn set_ecn(&mut self, capable: bool) {
        if let Some(way) = self.way.as_mut().filter(|way| capable && way.traffic_class & 3 == 0) {
            way.traffic_class |= 2;
        }
    }

    /// A route that leads nowhere.
    pub fn none() -> Self {
        let unspecified = std::net::Ipv6Addr::UNSPECIFIED;
        Self {
            av: AddressVector { port_num: 0, ..AddressVector::default() },
            way: None,
            flow: Flow::v6(unspecified, unspecified, 0),
            serial: 0,
            generation: 0,
        }
    }
}

/// What the engine keeps of a QP beside its transport. A [`crate::host::QpHost`] borrows this and the transport apart.
#[derive(Debug)]
pub struct QpSide {
    /// Shared with posters.
    pub shared: Arc<QpShared>,
    /// PD; that of no object for an XRC target.
    pub pd: PdId,
    /// CQ of the send queue, [`NO_CQ`] for none.
    pub send_cq: u32,
    /// CQ of the receive queue.
    pub recv_cq: u32,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<Arc<SrqShared>>,
    /// XRC target: its domain.
    pub xrcd: Option<u32>,
    /// Where its events go.
    pub events: Arc<Events>,
    /// XRC target: those who opened it by its number hear of it, too.
    pub more_events: Vec<Arc<Events>>,
    /// Primary and alternate path.
    pub routes: [Route; 2],
    /// Port to whose counters this QP adds.
    pub port_num: u8,
    /// GID slots that it holds: port and index.
    pub held_gids: [Option<(u8, u8)>; 2],
    /// The SRQ's WQE that a message in progress has taken: it goes back to the SRQ's free slots if the QP is reset.
    pub srq_taken: Option<RecvWqe>,
    /// What it has under way, of the window of its destination.
    pub part: Part,
    /// A completion of this QP met a full CQ.
    pub cq_overrun: bool,
    /// Its packets say that they may be marked (ECT(0)): a congestion controller listens for it.
    pub ecn_capable: bool,
    /// Its owner has named its congestion control, and the configuration is not asked.
    pub congestion_named: bool,
    /// Where its requests go.
    pub direct: DirectRoute,
    /// Those that were executed without packets.
    pub direct_requests: u64,
    /// In RTR the first packet has come, and its peer may go on without: the gate is to be opened.
    pub heard_in_rtr: bool,
}

/// A QP without that CQ.
pub const NO_CQ: u32 = u32::MAX;

/// A QP.
#[derive(Debug)]
pub struct QpEntry {
    /// Its protocol.
    pub transport: transport::QueuePair,
    /// The rest.
    pub side: QpSide,
    /// It got a packet since ACKs left.
    pub touched: bool,
    /// The last batch in which it got one.
    pub batch: u64,
    /// Pacing or an RNR wait ends then.
    pub wake_at: Option<Time>,
    /// Multicast groups that it is attached to.
    pub groups: u32,
    /// Whether its application waits for ACKs.
    pub habit: Habit,
}

/// A CQ, as the engine sees it.
#[derive(Debug)]
pub struct CqEntry {
    /// The side that places.
    pub producer: Producer,
    /// Where its completion events go.
    pub channel: Option<Arc<Channel>>,
    /// Where its asynchronous events go.
    pub events: Arc<Events>,
    /// QPs and SRQs that use it.
    pub users: u32,
    /// What it puts off.
    pub late: Late,
}

/// What a CQ puts off: events by moderation, and completions whose batch is not whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Late {
    /// Moderation: completions that an event waits for; 0 and 1: none.
    pub count: u16,
    /// Moderation: how long an event waits at most, ns; 0: for ever, if it waits for a count.
    pub period_ns: u64,
    /// How long a completion is hidden at most, ns.
    pub batch_ns: u64,
    /// An event waits: completions since, and when it ends.
    pub event: Option<(u32, Option<Time>)>,
    /// Completions are hidden until then.
    pub hidden: Option<Time>,
}

impl Late {
    /// When something is due.
    pub fn deadline(&self) -> Option<Time> {
        [self.hidden, self.event.and_then(|(_, at)| at)].into_iter().flatten().min()
    }
}

/// Objects by small numbers: an index is reused only after all others were, so that a late packet or handle does not meet
/// the successor.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Option<T>>,
    next: usize,
    first: usize,
    len: usize,
    limit: usize,
}

impl<T> Slots<T> {
    /// At most `limit` objects with indexes from `first` on; the search begins at `start`.
    pub fn new(first: usize, limit: usize, start: usize) -> Self {
        let next = first + start % limit.max(1);
        Self { slots: Vec::new(), next, first, len: 0, limit }
    }

    /// Puts an object into a free slot.
    pub fn insert(&mut self, make: impl FnOnce(usize) -> T) -> Option<usize> {
        if self.len >= self.limit {
            return None;
        }
        let end = self.first + self.limit;
        let mut index = self.next;
        while self.slots.get(index).is_some_and(Option::is_some) {
            index = if index + 1 >= end { self.first } else { index + 1 };
        }
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(make(index));
        self.next = if index + 1 >= end { self.first } else { index + 1 };
        self.len += 1;
        Some(index)
    }

    /// Takes an object out.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let object = self.slots.get_mut(index)?.take()?;
        self.len -= 1;
        Some(object)
    }

    /// An object.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.as_ref()
    }

    /// An object.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// All objects with their indexes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, s)| Some((i, s.as_mut()?)))
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the highest index that was ever used.
    pub fn high(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_reused_last() {
        let mut slots = Slots::new(2, 3, 1);
        let order: Vec<_> = (0..4).map(|_| slots.insert(|i| i)).collect();
        assert_eq!(order, [Some(3), Some(4), Some(2), None]);
        assert_eq!(slots.remove(4), Some(4));
        assert_eq!(slots.remove(4), None);
        slots.remove(3);
        assert_eq!(slots.insert(|i| i), Some(3), "the search goes on behind the last one given out");
        assert_eq!(slots.insert(|i| i), Some(4));
        assert_eq!(slots.len(), 3);
    }
}
