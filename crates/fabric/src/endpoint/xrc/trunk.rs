//! The QP by which a process reaches all processes of one XRC domain in one partition, and how operations for any of them are posted on it. What becomes of them
//! when it fails is in `mending`, and how it takes another path in `moving`.

use super::super::config::{MAX_INLINE, Waiting};
use super::super::gid::Want;
use super::super::hub::PortAt;
use super::super::lane::{address_vector, gid_index};
use super::super::link::lock;
use super::super::log::Bounds;
use super::super::operation::{MAX_PIECES, Operation, Remote, Verb};
use super::super::send::{Outlet, Sender};
use super::super::service::Shared;
use super::super::wait::{Bell, wait};
use super::Inner;
use super::line::Line;
use super::meeting::Welcome;
use crate::directory::{ConnectionId, ConnectionRecord, ConnectionState, FencingToken};
use crate::error::FabricError;
use crate::operation::Outcome;
use crate::path::Path;
use crate::session::{LaneId, QpOffer};
use scalefabric_verbs::{
    AccessFlags, AddressVector, CompletionChannel, CompletionQueue, Gid, Mtu, PKey, Psn, QpAttr, QpCap, QpInit, QpType,
    Qpn, QueuePair, Srqn, WcStatus,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// An initiator QP, and what is posted on it.
pub(in super::super) struct Trunk {
    pub(super) shared: Arc<Shared>,
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) pkey: PKey,
    /// Where the peers are.
    pub(super) near: Option<Gid>,
    pub(super) end: Mutex<End>,
    pub(super) sender: Mutex<Sender>,
    channel: Arc<dyn CompletionChannel>,
    pub(super) bell: Bell,
    /// Who is reached by it.
    lines: Mutex<Vec<Weak<Line>>>,
    pub(super) mending: AtomicBool,
    /// The QP of now has failed: also one that has just been made anew, while that is not over yet.
    pub(super) broken: AtomicBool,
    pub(super) rebuilds: AtomicU64,
    /// Since when nothing has come through.
    pub(super) trouble_since: Mutex<Option<Instant>>,
    /// Its name in the directory.
    pub(super) id: ConnectionId,
    pub(super) service: String,
    pub(super) record: Mutex<Option<ConnectionRecord>>,
    /// Highest authority that has ordered anything of it.
    pub(super) highest: Mutex<FencingToken>,
    pub(super) moves: AtomicU64,
}

/// The QP of now.
pub(super) struct End {
    pub qp: Arc<dyn QueuePair>,
    /// The target QP that it leads to.
    pub target: u32,
    /// Counts QPs.
    pub lane: LaneId,
    pub path: Path,
    /// While it is made anew: what its target had executed, once that is known.
    pub executed: Option<Option<u32>>,
}

/// The queue of a trunk, which outlives its QPs, and the channel that tells of it.
pub(super) type Queue = (Arc<dyn CompletionChannel>, Arc<dyn CompletionQueue>);

/// Makes them.
pub(super) fn queue(shared: &Shared) -> Result<Queue, FabricError> {
    let context = &shared.hub().context;
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(shared.config.depth + 8, Some(channel.clone()), 0)?;
    Ok((channel, cq))
}

/// An initiator QP in RTS.
pub(super) struct Readied {
    pub qp: Arc<dyn QueuePair>,
    pub outlet: Outlet,
    pub path: Path,
}

/// An initiator QP in INIT, whose target is not there yet. It goes if nothing comes of it.
pub(super) struct Begun {
    qp: Option<Arc<dyn QueuePair>>,
    pub path: Path,
    sgid_index: u8,
    pub offer: QpOffer,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(qp) = self.qp.take() {
            let _ = qp.destroy();
        }
    }
}

impl Begun {
    /// Makes it, in a partition, on a port that reaches the peer.
    pub fn new(
        shared: &Shared,
        near: Option<Gid>,
        pkey: PKey,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Result<Self, FabricError> {
        let hub = shared.hub();
        let entry = hub.choose(&Want { peer: near, ..Want::default() })?;
        let path = Path {
            device: hub.device.clone(),
            port_num: entry.port_num,
            sgid: entry.gid,
            dgid: near.unwrap_or(Gid::ZERO),
            flow_label: 0,
            dscp: shared.config.dscp,
        };
        Self::on(shared, path, pkey, cq)
    }

    /// Makes it on this path; an error if nothing can be sent by it.
    pub fn on(shared: &Shared, path: Path, pkey: PKey, cq: &Arc<dyn CompletionQueue>) -> Result<Self, FabricError> {
        let (hub, config) = (shared.hub(), &shared.config);
        let sgid_index = gid_index(hub, &path)?;
        let max_inline = (config.max_inline.min(hub.attr.max_inline_data) as usize).min(MAX_INLINE);
        let cap = QpCap {
            // A marker at its end.
            max_send_wr: config.depth + 2,
            max_recv_wr: 0,
            max_send_sge: MAX_PIECES as u32,
            max_recv_sge: 0,
            max_inline_data: max_inline as u32,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { qp_type: QpType::XrcSend, send_cq, recv_cq, srq: None, cap, sq_sig_all: false };
        let qp = hub.pd.create_qp(&init)?;
        let (mut attr, mask) = QpAttr::init(QpType::XrcSend, path.port_num, AccessFlags::empty());
        attr.pkey_index = hub.pkey_index(path.port_num, pkey)?;
        qp.modify(&attr, mask)?;
        let offer = QpOffer {
            qp_num: qp.qp_num().get(),
            psn: shared.random() as u32 & 0xff_ffff,
            gid: path.sgid.0.into(),
            mtu: hub.mtu(path.port_num)?.bytes(),
            max_dest_rd_atomic: 0,
            max_rd_atomic: config.max_rd_atomic.min(u8::try_from(hub.attr.max_qp_init_rd_atom).unwrap_or(u8::MAX)),
            receive_bytes: 0,
            receives: 0,
            port: format!("{} port {}", hub.device, path.port_num),
            srq_num: None,
            domain: 0,
        };
        Ok(Self { qp: Some(qp), path, sgid_index, offer })
    }

    /// Takes it to RTS towards its target.
    pub fn ready(mut self, shared: &Shared, target: &QpOffer, lane: LaneId) -> Result<Readied, FabricError> {
        let config = &shared.config;
        let qp = self.qp.clone().ok_or_else(|| FabricError::environment("the QP is gone"))?;
        let mtu = mtu(self.offer.mtu.min(target.mtu))?;
        self.path.dgid = Gid(target.gid.octets());
        let vector = address_vector(&self.path, self.sgid_index);
        let (qpn, psn) = (Qpn::new(target.qp_num), Psn::new(target.psn));
        let (rtr, mask) = QpAttr::rtr(QpType::XrcSend, qpn, psn, mtu, vector);
        qp.modify(&rtr, mask)?;
        let max_rd_atomic = self.offer.max_rd_atomic.min(target.max_dest_rd_atomic);
        let (mut rts, mask) = QpAttr::rts(QpType::XrcSend, Psn::new(self.offer.psn));
        (rts.max_rd_atomic, rts.timeout, rts.retry_cnt) = (max_rd_atomic, config.timeout, config.retry_cnt);
        qp.modify(&rts, mask)?;
        self.qp = None;
        let psn = self.offer.psn;
        let outlet = Outlet { lane, domain: 0, peer_domain: 0, qp: qp.clone(), psn, mtu: mtu.bytes(), max_rd_atomic };
        Ok(Readied { qp, outlet, path: self.path.clone() })
    }
}

/// Makes the target QP of an initiator, in RTS, at the address by which the initiator wants to reach it, if it wants one.
pub(super) fn make_target(
    shared: &Shared,
    xrcd: &Arc<dyn scalefabric_verbs::XrcDomain>,
    (peer, wanted): (&QpOffer, Option<Gid>),
    pkey: PKey,
) -> Result<(Arc<dyn QueuePair>, QpOffer), FabricError> {
    let (hub, config) = (shared.hub(), &shared.config);
    let peer_gid = Gid(peer.gid.octets());
    let entry = hub.choose(&Want { peer: Some(peer_gid), gid: wanted, ..Want::default() })?;
    let qp = hub.context.create_xrc_target(xrcd)?;
    let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let (mut attr, mask) = QpAttr::init(QpType::XrcRecv, entry.port_num, rights);
    attr.pkey_index = hub.pkey_index(entry.port_num, pkey)?;
    qp.modify(&attr, mask)?;
    let mut vector = AddressVector::new(entry.port_num, index(entry.gid_index)?, peer_gid);
    vector.traffic_class = config.dscp << 2;
    let mtu = mtu(hub.mtu(entry.port_num)?.bytes().min(peer.mtu))?;
    let (qpn, psn) = (Qpn::new(peer.qp_num), Psn::new(peer.psn));
    let (mut rtr, mask) = QpAttr::rtr(QpType::XrcRecv, qpn, psn, mtu, vector);
    let limit = u8::try_from(hub.attr.max_qp_rd_atom).unwrap_or(u8::MAX).min(config.max_rd_atomic);
    (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (limit, config.min_rnr_timer);
    qp.modify(&rtr, mask)?;
    let psn = shared.random() as u32 & 0xff_ffff;
    let (rts, mask) = QpAttr::rts(QpType::XrcRecv, Psn::new(psn));
    qp.modify(&rts, mask)?;
    let offer = QpOffer {
        qp_num: qp.qp_num().get(),
        psn,
        gid: entry.gid.0.into(),
        mtu: mtu.bytes(),
        max_dest_rd_atomic: limit,
        max_rd_atomic: 0,
        receive_bytes: config.receive_bytes,
        receives: config.receives,
        port: format!("{} port {}", hub.device, entry.port_num),
        srq_num: None,
        domain: 0,
    };
    Ok((qp, offer))
}

fn index(gid_index: u32) -> Result<u8, FabricError> {
    u8::try_from(gid_index).map_err(|_| FabricError::environment(format!("GID index {gid_index} is beyond 255")))
}

fn mtu(bytes: u32) -> Result<Mtu, FabricError> {
    Mtu::from_bytes(bytes).ok_or_else(|| FabricError::peer(format!("mtu {bytes} is none")))
}

impl Trunk {
    /// A trunk by a QP in RTS.
    pub(super) fn new(
        inner: &Inner,
        (channel, cq): Queue,
        Readied { qp, outlet, path }: Readied,
        (target, pkey, near): (u32, PKey, Option<Gid>),
        service: &str,
    ) -> Arc<Self> {
        let shared = inner.shared.clone();
        let max_inline = (shared.config.max_inline.min(shared.hub().attr.max_inline_data) as usize).min(MAX_INLINE);
        let max_rd_atomic = outlet.max_rd_atomic;
        let bounds = Bounds { max_inline, max_rd_atomic, peer_receive_bytes: 0, keys: 0, domain: 0, xrc_srqn: None };
        let lane = outlet.lane;
        let mut sender = Sender::new(cq, shared.config.depth, bounds);
        sender.use_lane(outlet);
        let (id, traffic) = (shared.next_id(), sender.traffic.clone());
        let trunk = Arc::new(Self {
            turn: inner.turn.clone(),
            shared,
            pkey,
            near,
            end: Mutex::new(End { qp, target, lane, path, executed: None }),
            sender: Mutex::new(sender),
            channel,
            bell: Bell::default(),
            lines: Mutex::default(),
            mending: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            rebuilds: AtomicU64::new(0),
            trouble_since: Mutex::new(None),
            id,
            service: service.to_owned(),
            record: Mutex::default(),
            highest: Mutex::default(),
            moves: AtomicU64::new(0),
        });
        trunk.shared.add_trunk(&trunk.id, &trunk, traffic);
        trunk.tell(ConnectionState::Up);
        trunk
    }

    /// Somebody more is reached by it.
    pub fn add(&self, line: &Arc<Line>) {
        let mut lines = lock(&self.lines);
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(line));
    }

    /// Who is reached by it.
    pub(super) fn lines(&self) -> Vec<Arc<Line>> {
        lock(&self.lines).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn qp_num(&self) -> u32 {
        lock(&self.end).qp.qp_num().get()
    }

    pub fn target(&self) -> u32 {
        lock(&self.end).target
    }

    /// Whether it can still be used.
    pub fn is_open(&self) -> bool {
        lock(&self.sender).closed.is_none()
    }

    /// How often its QP was made anew.
    pub fn rebuilds(&self) -> u64 {
        self.rebuilds.load(Ordering::Relaxed)
    }

    /// A port went down: if it is this one's, and there is another, it is left at once and not after all retries.
    pub fn hear_port_down(&self, at: PortAt) {
        let hubs = &self.shared.hubs;
        let others = |other: PortAt| other != at && other.domain == 0 && hubs.is_active(other);
        if at.domain == 0 && lock(&self.end).path.port_num == at.port_num && hubs.ports().any(others) {
            self.fail();
        }
    }

    /// Takes the QP to ERR, and tells nobody.
    pub fn fail(&self) {
        let (attr, mask) = QpAttr::error();
        let _ = lock(&self.end).qp.modify(&attr, mask);
    }

    /// Posts operations for one of the processes that it reaches, and waits for their ends.
    pub(super) fn execute_all(
        self: &Arc<Self>,
        operations: &[Operation<'_>],
        to: &Welcome,
        waiting: Waiting,
    ) -> Result<Vec<Outcome>, FabricError> {
        for operation in operations {
            check(operation)?;
        }
        let (mut cells, mut outcomes) = (std::collections::VecDeque::new(), Vec::with_capacity(operations.len()));
        let (mut next, mut refused) = (0, 0);
        let done = wait(
            &self.bell,
            std::slice::from_ref(&self.channel),
            waiting,
            None,
            || self.arm(),
            || {
                let mut sender = lock(&self.sender);
                let mut ended = self.drive(&mut sender)?;
                while let Some(&cell) = cells.front() {
                    let Some(outcome) = sender.cells.take(cell) else { break };
                    cells.pop_front();
                    outcomes.push(outcome);
                }
                if cells.is_empty() {
                    outcomes.extend((0..std::mem::take(&mut refused)).map(|_| Outcome::NotDone(WcStatus::WrFlushErr)));
                }
                while next < operations.len() {
                    sender.bounds.xrc_srqn = Some(Srqn::new(to.srq_num));
                    sender.bounds.peer_receive_bytes = to.receive_bytes;
                    let posted = match sender.post_for_cell(&operations[next]) {
                        Ok(posted) => posted,
                        // The QP failed under those before: what is left was never posted.
                        Err(_) if next > 0 && sender.closed.is_some() => {
                            (refused, next) = (operations.len() - next, operations.len());
                            break;
                        }
                        Err(error) => {
                            cells.drain(..).for_each(|cell| sender.cells.abandon(cell));
                            return Err(error);
                        }
                    };
                    let Some(cell) = posted else { break };
                    cells.push_back(cell);
                    next += 1;
                }
                ended |= self.drive(&mut sender)?;
                drop(sender);
                if ended {
                    self.bell.ring();
                }
                Ok((outcomes.len() == operations.len()).then_some(()))
            },
        );
        done.map(|_| outcomes)
    }

    fn arm(&self) -> Result<(), FabricError> {
        let cq = lock(&self.sender).queue(0);
        cq.map_or(Ok(()), |cq| Ok(cq.req_notify(false)?))
    }

    /// Takes completions. After a failure the QP is made anew, and what is outstanding waits for that.
    pub(super) fn drive(self: &Arc<Self>, sender: &mut Sender) -> Result<bool, FabricError> {
        let found = sender.poll()?;
        let present = sender.lane();
        if sender.closed.is_none() && found.broken.is_some_and(|(lane, _)| present == Some(lane)) {
            sender.drop_lane();
            self.broken.store(true, Ordering::SeqCst);
            self.begin_to_mend();
        } else if found.ended && found.broken.is_none() {
            *lock(&self.trouble_since) = None;
        }
        Ok(found.ended)
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.shared.forget(&self.id);
        self.tell(ConnectionState::Closed);
        self.fail();
        let _ = lock(&self.end).qp.destroy();
    }
}

fn check(operation: &Operation<'_>) -> Result<(), FabricError> {
    let remote = match operation.verb {
        Verb::Send { .. } => None,
        Verb::Write { remote, .. }
        | Verb::Read { remote, .. }
        | Verb::CompareSwap { remote, .. }
        | Verb::FetchAdd { remote, .. } => Some(remote),
    };
    match remote {
        Some(Remote::Offered { id, .. }) => Err(FabricError::misuse(format!(
            "offer {id} is a connection's: over XRC memory is named by its range and key"
        ))),
        _ => Ok(()),
    }
}
