//! The QP by which a process reaches all processes of one XRC domain, and how operations for any of them are posted on it. When it fails all that was outstanding
//! ends, and it is never used again.

use super::super::config::{MAX_INLINE, Waiting};
use super::super::gid::Want;
use super::super::link::lock;
use super::super::log::Bounds;
use super::super::operation::{MAX_PIECES, Operation, Remote, Verb};
use super::super::send::{Outlet, Sender};
use super::super::service::Shared;
use super::super::wait::{Bell, wait};
use super::meeting::Welcome;
use crate::error::FabricError;
use crate::operation::Outcome;
use crate::session::{LaneId, QpOffer};
use scalefabric_verbs::{
    AccessFlags, AddressVector, CompletionChannel, Gid, Mtu, Psn, QpAttr, QpCap, QpInit, QpType, Qpn, QueuePair, Srqn,
    WcStatus,
};
use std::sync::{Arc, Mutex};

/// Looks at the queue after which what a QP in ERR has not flushed will not come.
const FLUSH_LOOKS: u32 = 10_000;

/// An initiator QP.
pub(in super::super) struct Trunk {
    qp: Arc<dyn QueuePair>,
    sender: Mutex<Sender>,
    channel: Arc<dyn CompletionChannel>,
    bell: Bell,
    /// The target QP that it leads to.
    pub target: u32,
}

/// An initiator QP in INIT, whose target is not there yet.
pub(super) struct Begun {
    qp: Arc<dyn QueuePair>,
    sender: Sender,
    channel: Arc<dyn CompletionChannel>,
    vector: AddressVector,
    pub offer: QpOffer,
}

impl Begun {
    /// Makes it, on a port that reaches the peer.
    pub fn new(shared: &Shared, near: Option<Gid>) -> Result<Self, FabricError> {
        let (hub, config) = (&shared.hub, &shared.config);
        let entry = hub.choose(&Want { peer: near, ..Want::default() })?;
        let sgid_index = index(entry.gid_index)?;
        let channel = hub.context.create_comp_channel()?;
        let cq = hub.context.create_cq(config.depth + 8, Some(channel.clone()), 0)?;
        let max_inline = (config.max_inline.min(hub.attr.max_inline_data) as usize).min(MAX_INLINE);
        let cap = QpCap {
            max_send_wr: config.depth + 1,
            max_recv_wr: 0,
            max_send_sge: MAX_PIECES as u32,
            max_recv_sge: 0,
            max_inline_data: max_inline as u32,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { qp_type: QpType::XrcSend, send_cq, recv_cq, srq: None, cap, sq_sig_all: false };
        let qp = hub.pd.create_qp(&init)?;
        let (attr, mask) = QpAttr::init(QpType::XrcSend, entry.port_num, AccessFlags::empty());
        qp.modify(&attr, mask)?;
        let bounds = Bounds { max_inline, max_rd_atomic: 0, peer_receive_bytes: 0, keys: 0, xrc_srqn: None };
        let offer = QpOffer {
            qp_num: qp.qp_num().get(),
            psn: shared.random() as u32 & 0xff_ffff,
            gid: entry.gid.0.into(),
            mtu: hub.mtu(entry.port_num)?.bytes(),
            max_dest_rd_atomic: 0,
            max_rd_atomic: config.max_rd_atomic.min(u8::try_from(hub.attr.max_qp_init_rd_atom).unwrap_or(u8::MAX)),
            receive_bytes: 0,
            receives: 0,
            port: format!("{} port {}", hub.device, entry.port_num),
            srq_num: None,
        };
        let vector = AddressVector::new(entry.port_num, sgid_index, Gid::ZERO);
        Ok(Self { qp, sender: Sender::new(cq, config.depth, bounds), channel, vector, offer })
    }

    /// Takes it to RTS towards its target.
    pub fn ready(mut self, shared: &Shared, target: &QpOffer) -> Result<Trunk, FabricError> {
        let config = &shared.config;
        let mtu = mtu(self.offer.mtu.min(target.mtu))?;
        self.vector.dgid = Gid(target.gid.octets());
        self.vector.traffic_class = config.dscp << 2;
        let (qpn, psn) = (Qpn::new(target.qp_num), Psn::new(target.psn));
        let (rtr, mask) = QpAttr::rtr(QpType::XrcSend, qpn, psn, mtu, self.vector);
        self.qp.modify(&rtr, mask)?;
        let max_rd_atomic = self.offer.max_rd_atomic.min(target.max_dest_rd_atomic);
        let (mut rts, mask) = QpAttr::rts(QpType::XrcSend, Psn::new(self.offer.psn));
        (rts.max_rd_atomic, rts.timeout, rts.retry_cnt) = (max_rd_atomic, config.timeout, config.retry_cnt);
        self.qp.modify(&rts, mask)?;
        self.sender.bounds.max_rd_atomic = max_rd_atomic;
        let (lane, qp, psn) = (LaneId(1), self.qp.clone(), self.offer.psn);
        self.sender.use_lane(Outlet { lane, qp, psn, mtu: mtu.bytes(), max_rd_atomic });
        let (sender, bell) = (Mutex::new(self.sender), Bell::default());
        Ok(Trunk { qp: self.qp, sender, channel: self.channel, bell, target: target.qp_num })
    }
}

/// Makes the target QP of an initiator, in RTS.
pub(super) fn make_target(
    shared: &Shared,
    xrcd: &Arc<dyn scalefabric_verbs::XrcDomain>,
    peer: &QpOffer,
) -> Result<(Arc<dyn QueuePair>, QpOffer), FabricError> {
    let (hub, config) = (&shared.hub, &shared.config);
    let peer_gid = Gid(peer.gid.octets());
    let entry = hub.choose(&Want { peer: Some(peer_gid), ..Want::default() })?;
    let qp = hub.context.create_xrc_target(xrcd)?;
    let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let (attr, mask) = QpAttr::init(QpType::XrcRecv, entry.port_num, rights);
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
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num().get()
    }

    /// Whether it can still be used.
    pub fn is_open(&self) -> bool {
        lock(&self.sender).closed.is_none()
    }

    /// Posts operations for one of the processes that it reaches, and waits for their ends.
    pub(super) fn execute_all(
        &self,
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
            &self.channel,
            waiting,
            None,
            || self.arm(),
            || {
                let mut sender = lock(&self.sender);
                let mut ended = self.drive(&mut sender)?;
                while let Some(&cell) = cells.front() {
                    let Some(outcome) = sender.take_cell(cell) else { break };
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
                            cells.drain(..).for_each(|cell| sender.abandon_cell(cell));
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
        let cq = lock(&self.sender).cq.clone();
        Ok(cq.req_notify(false)?)
    }

    /// Takes completions. A failure ends everything that is outstanding, for whomever it was.
    fn drive(&self, sender: &mut Sender) -> Result<bool, FabricError> {
        let found = sender.poll()?;
        let Some((_, status)) = found.broken else { return Ok(found.ended) };
        let (attr, mask) = QpAttr::error();
        let _ = self.qp.modify(&attr, mask);
        sender.drop_lane();
        // What was flushed is said to be so; what else is outstanding nobody knows.
        for _ in 0..FLUSH_LOOKS {
            if !sender.poll()?.ended && sender.all_failed() {
                break;
            }
        }
        sender.end(FabricError::unreachable(format!(
            "the QP to the peer's host failed with {} ({}): connect anew",
            status.as_str(),
            status.info().name
        )));
        Ok(true)
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        let (attr, mask) = QpAttr::error();
        let _ = self.qp.modify(&attr, mask);
        let _ = self.qp.destroy();
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
