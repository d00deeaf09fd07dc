//! QPs that execute what is posted when the test says so: reliable and in order, as clause 9.7 wants, with any distance between what was executed and what was
//! acknowledged. They hold no bytes; messages are told apart by their immediate data, one-sided operations by their address. They hear only who comes from
//! where they send to, in SQD they finish what was begun and begin nothing, and they migrate as clause 17.2.8 has it.

use scalefabric_verbs::*;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
pub struct FakeCq(pub Mutex<VecDeque<WorkCompletion>>);

impl CompletionQueue for FakeCq {
    fn cq_num(&self) -> u32 {
        0
    }
    fn cqe(&self) -> u32 {
        u32::MAX
    }
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut queue = self.0.lock().unwrap();
        let count = out.len().min(queue.len());
        for (to, from) in out.iter_mut().zip(queue.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }
    fn req_notify(&self, _: bool) -> Result<(), VerbsError> {
        Ok(())
    }
    fn resize(&self, _: u32) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug, Default)]
pub struct FakeSrq(pub Mutex<VecDeque<u64>>);

impl SharedReceiveQueue for FakeSrq {
    fn srq_num(&self) -> Srqn {
        Srqn::new(0)
    }
    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.0.lock().unwrap().extend(chain.iter().map(|wr| wr.wr_id));
        Ok(())
    }
    fn modify(&self, _: Option<u32>, _: Option<u32>) -> Result<(), VerbsError> {
        Ok(())
    }
    fn query(&self) -> Result<(u32, u32, u32), VerbsError> {
        Ok((0, 0, 0))
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
pub struct FakeRegion;

impl MemoryRegion for FakeRegion {
    fn addr(&self) -> u64 {
        0
    }
    fn length(&self) -> usize {
        usize::MAX
    }
    fn lkey(&self) -> LKey {
        LKey(1)
    }
    fn rkey(&self) -> RKey {
        RKey(1)
    }
    fn write(&self, _: usize, _: &[u8]) -> Result<(), VerbsError> {
        Ok(())
    }
    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), VerbsError> {
        Ok(())
    }
    fn load_u64(&self, _: usize) -> Result<u64, VerbsError> {
        Ok(0)
    }
    fn store_u64(&self, _: usize, _: u64) -> Result<(), VerbsError> {
        Ok(())
    }
    unsafe fn rereg(
        &self,
        _: Option<(*mut u8, usize)>,
        _: Option<&Arc<dyn ProtectionDomain>>,
        _: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the peer sees of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A message with this immediate.
    Message(u32),
    /// A one-sided change at this address.
    Change(u64),
    /// None.
    Nothing,
}

#[derive(Debug)]
struct Out {
    wr_id: u64,
    effect: Effect,
    psns: u32,
    signalled: bool,
}

#[derive(Debug)]
struct Inside {
    state: QpState,
    peer: u32,
    sgid: Gid,
    dgid: Gid,
    /// The addresses of the alternate path.
    alternate: (Gid, Gid),
    migration: MigState,
    /// In SQD: so many of `out` were begun.
    begun: Option<usize>,
    /// Posted and not acknowledged; the first `executed` of them were executed at the peer.
    out: VecDeque<Out>,
    executed: usize,
    rq_psn: u32,
}

#[derive(Debug)]
pub struct FakeQp {
    pub qp_num: u32,
    send_cq: Arc<FakeCq>,
    recv_cq: Arc<FakeCq>,
    srq: Arc<FakeSrq>,
    inside: Mutex<Inside>,
}

impl FakeQp {
    pub fn new(qp_num: u32, sgid: Gid, send_cq: &Arc<FakeCq>, recv_cq: &Arc<FakeCq>, srq: &Arc<FakeSrq>) -> Arc<Self> {
        let inside = Inside {
            state: QpState::Init,
            peer: 0,
            sgid,
            dgid: Gid::ZERO,
            alternate: (Gid::ZERO, Gid::ZERO),
            migration: MigState::Migrated,
            begun: None,
            out: VecDeque::new(),
            executed: 0,
            rq_psn: 0,
        };
        let (send_cq, recv_cq, srq) = (send_cq.clone(), recv_cq.clone(), srq.clone());
        Arc::new(Self { qp_num, send_cq, recv_cq, srq, inside: Mutex::new(inside) })
    }

    pub fn ready(&self, peer: u32, dgid: Gid, rq_psn: u32) {
        let mut inside = self.inside.lock().unwrap();
        (inside.state, inside.peer, inside.dgid, inside.rq_psn) = (QpState::Rts, peer, dgid, rq_psn);
    }

    /// To SQD. Of what waits so many more than were executed were begun.
    pub fn drain(&self, more: usize) {
        let mut inside = self.inside.lock().unwrap();
        if inside.state == QpState::Rts {
            inside.state = QpState::Sqd;
            inside.begun = Some((inside.executed + more).min(inside.out.len()));
        }
    }

    /// In SQD, and nothing that was begun is left.
    pub fn is_drained(&self) -> bool {
        self.inside.lock().unwrap().begun == Some(0)
    }

    pub fn is_draining(&self) -> bool {
        self.inside.lock().unwrap().begun.is_some_and(|left| left > 0)
    }

    /// A new vector, which only a drained QP takes.
    pub fn turn(&self, sgid: Gid, dgid: Gid) -> bool {
        let drained = self.is_drained();
        let mut inside = self.inside.lock().unwrap();
        if drained {
            (inside.sgid, inside.dgid) = (sgid, dgid);
        }
        drained
    }

    /// Loads an alternate path.
    pub fn load(&self, sgid: Gid, dgid: Gid) {
        let mut inside = self.inside.lock().unwrap();
        (inside.alternate, inside.migration) = ((sgid, dgid), MigState::Rearm);
    }

    pub fn unload(&self) {
        let mut inside = self.inside.lock().unwrap();
        // One that is armed belongs to a leader that rebuilds: it goes soon.
        if inside.migration == MigState::Rearm {
            inside.migration = MigState::Migrated;
        }
    }

    pub fn migration(&self) -> MigState {
        self.inside.lock().unwrap().migration
    }

    /// Primary and alternate path change places; only an armed QP does.
    pub fn migrate(&self) -> bool {
        self.inside.lock().unwrap().migrate()
    }

    /// Whether it is armed, and its alternate path leads to where the peer is now: the peer's next packet takes it there.
    pub fn follows(&self, peer: &FakeQp) -> bool {
        let (here, there) = (self.inside.lock().unwrap(), peer.inside.lock().unwrap());
        here.migration == MigState::Armed && here.alternate == (there.dgid, there.sgid)
    }

    /// Back to RTS.
    pub fn resume(&self) {
        assert!(!self.is_draining(), "a QP that drains does not go back");
        let mut inside = self.inside.lock().unwrap();
        if inside.state == QpState::Sqd {
            (inside.state, inside.begun) = (QpState::Rts, None);
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.inside.lock().unwrap().state, QpState::Rts | QpState::Sqd)
    }

    /// Something is on its way: only such a QP ever notices that nobody answers.
    pub fn is_busy(&self) -> bool {
        let inside = self.inside.lock().unwrap();
        inside.begun.unwrap_or(inside.out.len()) > 0
    }

    pub fn sgid(&self) -> Gid {
        self.inside.lock().unwrap().sgid
    }

    /// Whether the two hear one another.
    pub fn hears(&self, peer: &FakeQp) -> bool {
        let (here, there) = (self.inside.lock().unwrap(), peer.inside.lock().unwrap());
        let up = |state| matches!(state, QpState::Rts | QpState::Sqd);
        let known = here.sgid == there.dgid && here.dgid == there.sgid;
        known && up(here.state) && up(there.state) && here.peer == peer.qp_num && there.peer == self.qp_num
    }

    pub fn rq_psn(&self) -> u32 {
        self.inside.lock().unwrap().rq_psn
    }

    pub fn peer(&self) -> u32 {
        self.inside.lock().unwrap().peer
    }

    /// Executes the next operation at the peer's QP; what it did.
    pub fn execute(&self, peer: &FakeQp) -> Option<Effect> {
        // A peer that is armed follows.
        let asks = peer.follows(self) && self.migration() == MigState::Migrated && self.is_busy();
        if asks && peer.is_up() && self.is_up() {
            peer.migrate();
        }
        if !self.hears(peer) {
            return None;
        }
        let mut inside = self.inside.lock().unwrap();
        let mut there = peer.inside.lock().unwrap();
        if inside.begun.is_some_and(|begun| inside.executed >= begun) {
            return None;
        }
        let next = inside.out.get(inside.executed)?;
        if let Effect::Message(imm) = next.effect {
            let slot = peer.srq.0.lock().unwrap().pop_front()?;
            peer.recv_cq.0.lock().unwrap().push_back(WorkCompletion {
                wr_id: slot,
                opcode: WcOpcode::Recv,
                imm,
                flags: WcFlags::WITH_IMM,
                qp_num: Qpn::new(peer.qp_num),
                ..WorkCompletion::default()
            });
        }
        let (effect, psns) = (next.effect, next.psns);
        there.rq_psn = (there.rq_psn + psns) & 0xff_ffff;
        inside.executed += 1;
        if inside.migration != MigState::Migrated && there.migration == MigState::Rearm {
            there.migration = MigState::Armed;
        }
        Some(effect)
    }

    /// An acknowledgement of everything that was executed comes back from the peer, if it is there.
    pub fn acknowledge(&self, peer: Option<&FakeQp>) {
        let armed = peer.is_some_and(|peer| self.hears(peer) && peer.migration() != MigState::Migrated);
        let mut inside = self.inside.lock().unwrap();
        if armed && inside.executed > 0 && inside.migration == MigState::Rearm {
            inside.migration = MigState::Armed;
        }
        if !matches!(inside.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let executed = std::mem::take(&mut inside.executed);
        inside.begun = inside.begun.map(|begun| begun - executed);
        for out in inside.out.drain(..executed) {
            if out.signalled {
                self.complete(out.wr_id, WcStatus::Success);
            }
        }
    }

    /// It fails: the oldest operation says how, the others are flushed.
    pub fn fail(&self, status: WcStatus) {
        let mut inside = self.inside.lock().unwrap();
        (inside.state, inside.begun) = (QpState::Err, None);
        let mut status = status;
        for out in inside.out.drain(..) {
            self.complete(out.wr_id, status);
            status = WcStatus::WrFlushErr;
        }
    }

    fn complete(&self, wr_id: u64, status: WcStatus) {
        let qp_num = Qpn::new(self.qp_num);
        self.send_cq.0.lock().unwrap().push_back(WorkCompletion { wr_id, status, qp_num, ..WorkCompletion::default() });
    }
}

impl Inside {
    fn migrate(&mut self) -> bool {
        let armed = self.migration == MigState::Armed;
        if armed {
            let primary = (self.sgid, self.dgid);
            (self.sgid, self.dgid) = std::mem::replace(&mut self.alternate, primary);
            self.migration = MigState::Migrated;
        }
        armed
    }
}

impl QueuePair for FakeQp {
    fn qp_num(&self) -> Qpn {
        Qpn::new(self.qp_num)
    }
    fn qp_type(&self) -> QpType {
        QpType::Rc
    }
    fn modify(&self, attr: &QpAttr, _: QpAttrMask) -> Result<(), VerbsError> {
        assert_eq!(attr.qp_state, QpState::Err);
        self.fail(WcStatus::WrFlushErr);
        Ok(())
    }
    fn query(&self) -> Result<(QpAttr, QpInitInfo), VerbsError> {
        Err(VerbsError::invalid("not asked in tests"))
    }
    fn post_send(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        for (index, wr) in chain.iter().enumerate() {
            let mut inside = self.inside.lock().unwrap();
            match inside.state {
                QpState::Rts | QpState::Sqd => {}
                QpState::Err => {
                    drop(inside);
                    self.complete(wr.wr_id, WcStatus::WrFlushErr);
                    continue;
                }
                _ => return Err(PostError { index, errno: Errno::EINVAL, reason: "not in RTS" }),
            }
            let effect = match wr.op {
                SendOp::SendWithImm { imm } => Effect::Message(imm),
                SendOp::Write { remote_addr, .. } | SendOp::FetchAdd { remote_addr, .. } if remote_addr > 0 => {
                    Effect::Change(remote_addr)
                }
                _ => Effect::Nothing,
            };
            let signalled = wr.flags.contains(SendFlags::SIGNALED);
            inside.out.push_back(Out { wr_id: wr.wr_id, effect, psns: 1, signalled });
        }
        Ok(())
    }
    unsafe fn post_send_raw(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.post_send(chain)
    }
    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        Ok(())
    }
    fn bind_mw(&self, _: u64, _: SendFlags, _: &BindMw<'_>) -> Result<(), VerbsError> {
        Err(VerbsError::invalid("not in tests"))
    }
    fn attach_mcast(&self, _: Gid) -> Result<(), VerbsError> {
        Ok(())
    }
    fn detach_mcast(&self, _: Gid) -> Result<(), VerbsError> {
        Ok(())
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
