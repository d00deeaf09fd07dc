//! Step 2 of the walk: work requests become WQEs in a ring, and the doorbell rings once for a chain.
//!
//! What can be refused at once is refused here, with the errno that libibverbs gives and the index of the WR at fault; what
//! was before it in the chain is posted. No lock but the ring's own is waited for, nothing is allocated. One-sided requests to a peer on this
//! host skip the ring where nothing stands before them.

use std::sync::atomic::{Ordering, fence};

use scalefabric_transport::host::{SendWqe, WqeOp};
use scalefabric_verbs::operation::{SglUse, op_allowed};
use scalefabric_verbs::{
    BindMw, Errno, MemoryRegion, MwType, OpKind, PostError, QpState, QpType, RKey, RecvWr, SendFlags, SendOp, SendWr,
    VerbsError,
};

use crate::engine::direct::{CHUNK, Local, Plain, ROOM, Requests};
use crate::engine::drive::Core;
use crate::engine::entry::{QpShared, SrqShared};
use crate::memory::{Bind, PdId, ensure_here, gather_raw};
use crate::objects::{AhObject, MrObject, MwObject};
use crate::ring::{PlainEntry, PlainOp, Refusal, SendData, SendEntry, SendPoster, SendRing, message_length};

/// Inline bytes that any QP can have; `DeviceAttr::max_inline_data` is never more.
pub const MAX_INLINE: usize = 1024;

/// Inline messages up to here are called short, bytes.
const SHORT_INLINE: usize = 64;

fn refuse(index: usize, errno: Errno, reason: &'static str) -> PostError {
    PostError { index, errno, reason }
}

fn invalid(index: usize, reason: &'static str) -> PostError {
    refuse(index, Errno::EINVAL, reason)
}

impl Refusal {
    fn at(self, index: usize) -> PostError {
        refuse(index, self.errno(), self.reason())
    }
}

/// Posts a chain of send WRs. `raw`: INLINE WRs may name their bytes by SGEs, which the caller vouches for. `whole`: if one
/// is refused, none is posted.
#[inline]
pub(crate) fn post_send(
    core: &Core,
    qp: &QpShared,
    pd: PdId,
    chain: &[SendWr<'_>],
    raw: bool,
    whole: bool,
) -> Result<(), PostError> {
    // What is executed cannot be taken back.
    let may = qp.is_direct() && chain.first().is_some_and(|wr| is_one_sided(&wr.op)) && !(whole && chain.len() > 1);
    let done = if may { post_unqueued(core, qp, chain, raw) } else { 0 };
    if done > 0 && done == chain.len() {
        return Ok(());
    }
    post_queued(core, qp, pd, &chain[done..], raw, whole)
        .map_err(|error| PostError { index: error.index + done, ..error })
}

#[inline]
fn is_one_sided(op: &SendOp<'_>) -> bool {
    use SendOp::{AtomicWrite, CompareSwap, FetchAdd, Flush, Read, Write};
    matches!(op, Write { .. } | Read { .. } | CompareSwap { .. } | FetchAdd { .. } | AtomicWrite { .. } | Flush { .. })
}

#[inline]
fn is_gathered(op: &SendOp<'_>) -> bool {
    matches!(op, SendOp::Write { .. } | SendOp::AtomicWrite { .. })
}

/// Executes the WRs at the head of a chain, whose peer is on this host, without writing a WQE, until one needs it; how many are done.
#[inline]
fn post_unqueued(core: &Core, qp: &QpShared, chain: &[SendWr<'_>], raw: bool) -> usize {
    let Some(ring) = &qp.send else { return 0 };
    let config = core.config();
    if !config.rules.without.is_empty() {
        return 0;
    }
    core.execute_unqueued(qp, &Chain { qp, ring, chain, raw, max_sge_rd: config.attr.max_sge_rd as usize })
}

/// A chain of WRs, as requests that need no WQE.
struct Chain<'c, 'w> {
    qp: &'c QpShared,
    ring: &'c SendRing,
    chain: &'c [SendWr<'w>],
    raw: bool,
    max_sge_rd: usize,
}

impl Requests for Chain<'_, '_> {
    #[inline(always)]
    fn request<'b>(&'b self, n: usize, wqe: &mut SendWqe, room: &'b mut [u8; ROOM]) -> Option<Local<'b>> {
        let wr = self.chain.get(n)?;
        let fits = wr.sg_list.len() <= self.max_sge_rd || is_gathered(&wr.op);
        if fits { unqueued(self.qp, self.ring, wr, self.raw, wqe, room) } else { None }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.chain.len()
    }

    #[inline(always)]
    fn plain(&self, n: usize) -> Option<Plain<'_>> {
        let wr = self.chain.get(n)?;
        let SendOp::Write { remote_addr, rkey } = wr.op else { return None };
        let (to, flags) =
            ((remote_addr, rkey), if self.qp.sq_sig_all { wr.flags | SendFlags::SIGNALED } else { wr.flags });
        match (wr.flags.contains(SendFlags::INLINE), wr.sg_list) {
            (true, []) if wr.inline_data.len() <= self.ring.max_inline() as usize => {
                Plain::inline(wr.wr_id, flags, to, wr.inline_data)
            }
            (false, [sge]) if wr.inline_data.is_empty() && self.ring.max_sge() > 0 => {
                Plain::registered(wr.wr_id, flags, to, sge)
            }
            _ => None,
        }
    }
}

/// Fills in a WR as a request that needs no WQE; `None` for one that is too long for that, or that has to be refused.
#[inline(always)]
fn unqueued<'b>(
    qp: &QpShared,
    ring: &SendRing,
    wr: &'b SendWr<'_>,
    raw: bool,
    wqe: &mut SendWqe,
    room: &'b mut [u8; ROOM],
) -> Option<Local<'b>> {
    if !is_one_sided(&wr.op) {
        return None;
    }
    let (length, local) = if matches!(wr.op, SendOp::Flush { .. }) {
        (0, Local::Sges(&[]))
    } else if wr.flags.contains(SendFlags::INLINE) {
        let bytes: &[u8] = match (wr.sg_list, raw) {
            ([], _) => wr.inline_data,
            (list, true) => {
                let length: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
                let out = room.get_mut(..usize::try_from(length).ok()?)?;
                // SAFETY: only `post_send_raw` leads here, whose caller vouches for the SGEs of INLINE WRs.
                unsafe { gather_raw(list, out) }.ok()?;
                out
            }
            (_, false) => return None,
        };
        if !is_gathered(&wr.op) || bytes.len() > ring.max_inline() as usize {
            return None;
        }
        (bytes.len() as u32, Local::Inline(bytes))
    } else {
        if !wr.inline_data.is_empty() || wr.sg_list.len() > ring.max_sge() as usize {
            return None;
        }
        (message_length(wr.sg_list).filter(|&length| length <= CHUNK)?, Local::Sges(wr.sg_list))
    };
    wqe.flags = if qp.sq_sig_all { wr.flags | SendFlags::SIGNALED } else { wr.flags };
    wqe.wr_id = wr.wr_id;
    wqe.op = wqe_op(&wr.op);
    wqe.length = length;
    Some(local)
}

/// Posts a chain by way of the send queue.
fn post_queued(
    core: &Core,
    qp: &QpShared,
    pd: PdId,
    chain: &[SendWr<'_>],
    raw: bool,
    whole: bool,
) -> Result<(), PostError> {
    let Some(ring) = &qp.send else { return Err(invalid(0, "an XRC target QP has no send queue")) };
    let mut poster = ring.poster();
    // Under the ring's lock, which a change to RESET takes after it has set the state: nothing is left in the ring of a QP
    // in RESET. Otherwise a stale state is harmless: RTS seen of a QP in ERR queues a WQE that the doorbell below has
    // flushed.
    if !qp.state().post_send_allowed() {
        return Err(invalid(0, "the QP is in RESET, INIT or RTR: take it to RTS before posting sends"));
    }
    let mut result = Ok(());
    let mut posted = false;
    let mut may_read = false;
    let before = poster.mark();
    let takes_plain = takes_plain(core, qp);
    for (index, wr) in chain.iter().enumerate() {
        if takes_plain && let Some(entry) = plain_entry(wr) {
            if let Err(refusal) = post_short(qp, &mut poster, entry) {
                result = Err(refusal.at(index));
                break;
            }
            posted = true;
            continue;
        }
        let outcome = match (wr.flags.contains(SendFlags::INLINE) && !wr.sg_list.is_empty(), raw) {
            (true, true) => {
                if !may_read {
                    ensure_here();
                    may_read = true;
                }
                post_gathered(core, qp, pd, wr, &mut poster, index)
            }
            (true, false) => {
                Err(invalid(index, "INLINE with SGEs: post_send takes inline_data; SGEs need post_send_raw"))
            }
            (false, _) => post_one(core, qp, pd, wr, wr.inline_data, &mut poster, index),
        };
        match outcome {
            Ok(_) => posted = true,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
        if !whole {
            show_key(wr);
        }
    }
    if whole {
        match result {
            Ok(()) => chain.iter().for_each(show_key),
            Err(_) => {
                poster.take_back(before);
                posted = false;
            }
        }
    }
    poster.ring_doorbell();
    drop(poster);
    if posted {
        core.ring(qp);
    }
    result
}

/// Posts the WRs at the head of a chain by the send queue, as long as they have the short form; how many, or which was refused. `next` gives one
/// after the other. None if the QP takes none now, or executes them at once where that is possible: then they are for [`post_send`], as is
/// what stands behind them.
#[inline]
pub(crate) fn post_plain<'a>(
    core: &Core,
    qp: &QpShared,
    mut next: impl FnMut() -> Option<PlainEntry<'a>>,
) -> Result<usize, PostError> {
    let Some(ring) = &qp.send else { return Ok(0) };
    if qp.is_direct() || !takes_plain(core, qp) {
        return Ok(0);
    }
    let mut poster = ring.poster();
    // As in `post_queued`.
    if !qp.state().post_send_allowed() {
        return Ok(0);
    }
    let mut count = 0;
    let mut result = Ok(());
    while let Some(entry) = next() {
        if let Err(refusal) = post_short(qp, &mut poster, entry) {
            result = Err(refusal.at(count));
            break;
        }
        count += 1;
    }
    poster.ring_doorbell();
    drop(poster);
    if count > 0 {
        core.ring(qp);
    }
    result.map(|()| count)
}

/// Whether a QP takes WRs in their short form. Those that a device's rules or the QP's type forbid go the long way, which says why they are refused.
#[inline]
fn takes_plain(core: &Core, qp: &QpShared) -> bool {
    matches!(qp.qp_type, QpType::Rc | QpType::Uc) && core.config().rules.without.is_empty()
}

/// Writes a WR in its short form.
#[inline(always)]
fn post_short(qp: &QpShared, poster: &mut SendPoster<'_>, mut entry: PlainEntry<'_>) -> Result<(), Refusal> {
    if qp.sq_sig_all {
        entry.flags |= SendFlags::SIGNALED;
    }
    poster.post_plain(&entry)
}

/// A WR in its short form, if it has one.
#[inline(always)]
fn plain_entry<'a>(wr: &SendWr<'a>) -> Option<PlainEntry<'a>> {
    let (op, (remote_addr, rkey), imm) = match wr.op {
        SendOp::Write { remote_addr, rkey } => (PlainOp::Write, (remote_addr, rkey), 0),
        SendOp::WriteWithImm { remote_addr, rkey, imm } => (PlainOp::WriteWithImm, (remote_addr, rkey), imm),
        SendOp::Send => (PlainOp::Send, (0, RKey(0)), 0),
        SendOp::SendWithImm { imm } => (PlainOp::SendWithImm, (0, RKey(0)), imm),
        _ => return None,
    };
    let data = match (wr.flags.contains(SendFlags::INLINE), wr.sg_list, wr.inline_data) {
        (false, sges, []) => SendData::Sges(sges),
        (true, [], bytes) => SendData::Inline(bytes),
        _ => return None,
    };
    Some(PlainEntry { wr_id: wr.wr_id, op, flags: wr.flags, remote_addr, rkey, imm, data })
}

/// A window has its new key as soon as its bind is posted.
#[inline]
fn show_key(wr: &SendWr<'_>) {
    if let SendOp::BindMw(bind) = &wr.op
        && let Some(mw) = bind.mw.as_any().downcast_ref::<MwObject>()
    {
        mw.window().set_rkey(bind.rkey);
    }
}

#[inline]
fn post_one(
    core: &Core,
    qp: &QpShared,
    pd: PdId,
    wr: &SendWr<'_>,
    inline_bytes: &[u8],
    poster: &mut SendPoster<'_>,
    index: usize,
) -> Result<u32, PostError> {
    let entry = send_entry(core, qp, pd, wr, inline_bytes).map_err(|reason| invalid(index, reason))?;
    poster.post(&entry).map_err(|refusal| refusal.at(index))
}

/// A WR whose inline bytes are named by SGEs.
fn post_gathered(
    core: &Core,
    qp: &QpShared,
    pd: PdId,
    wr: &SendWr<'_>,
    poster: &mut SendPoster<'_>,
    index: usize,
) -> Result<u32, PostError> {
    let length: u64 = wr.sg_list.iter().map(|sge| u64::from(sge.length)).sum();
    if length > u64::from(qp.cap.max_inline_data.min(MAX_INLINE as u32)) {
        return Err(Refusal::InlineTooLong.at(index));
    }
    // Each has its buffer apart: a large one would cost the short messages the clearing of it.
    match length as usize {
        length @ 0..=SHORT_INLINE => post_copied::<SHORT_INLINE>(core, qp, pd, wr, length, poster, index),
        length => post_copied::<MAX_INLINE>(core, qp, pd, wr, length, poster, index),
    }
}

#[inline(never)]
fn post_copied<const ROOM: usize>(
    core: &Core,
    qp: &QpShared,
    pd: PdId,
    wr: &SendWr<'_>,
    length: usize,
    poster: &mut SendPoster<'_>,
    index: usize,
) -> Result<u32, PostError> {
    let mut bytes = [0; ROOM];
    let out = &mut bytes[..length];
    // SAFETY: only `post_send_raw` leads here, whose caller vouches for the SGEs of INLINE WRs.
    let copied = unsafe { gather_raw(wr.sg_list, out) };
    if copied.is_err() {
        return Err(refuse(index, Errno::EFAULT, "an SGE of an INLINE work request names memory that cannot be read"));
    }
    post_one(core, qp, pd, wr, out, poster, index)
}

/// A WR as the ring takes it, or why not.
#[inline]
fn send_entry<'a>(
    core: &Core,
    qp: &QpShared,
    pd: PdId,
    wr: &'a SendWr<'_>,
    inline_bytes: &'a [u8],
) -> Result<SendEntry<'a>, &'static str> {
    let kind = wr.op.kind();
    if !op_allowed(qp.qp_type, kind) {
        return Err("the QP's type does not have this operation");
    }
    let config = core.config();
    if !config.rules.without.is_empty() && config.rules.without.contains(&kind) {
        return Err("the device does not have this operation (its personality lacks it)");
    }
    let rule = kind.rule();
    if rule.sgl == SglUse::Scatter && wr.sg_list.len() > config.attr.max_sge_rd as usize {
        return Err("more SGEs than max_sge_rd for an operation that fills them");
    }
    let inline = wr.flags.contains(SendFlags::INLINE);
    let data = match (rule.sgl, inline) {
        (SglUse::None, _) => SendData::Sges(&[]),
        (SglUse::Scatter, true) => return Err("INLINE makes no sense for an operation that fills its buffers"),
        (_, false) if !wr.inline_data.is_empty() => return Err("inline_data is given without the flag INLINE"),
        (_, false) => SendData::Sges(wr.sg_list),
        (SglUse::Gather, true) => SendData::Inline(inline_bytes),
    };
    let ud = match (qp.qp_type, &wr.ud) {
        (QpType::Ud, Some(to)) => {
            let ah = to.ah.as_any().downcast_ref::<AhObject>().ok_or("the address handle is of another backend")?;
            if ah.pd() != pd || !ah.is_of(core) {
                return Err("the address handle is of another protection domain");
            }
            if !ah.is_alive() {
                return Err("the address handle was destroyed");
            }
            Some((ah.av(), to.remote_qpn, to.remote_qkey))
        }
        (QpType::Ud, None) => return Err("a UD work request needs an address handle, a QPN and a Q_Key"),
        _ => None,
    };
    let xrc_srqn = match (qp.qp_type, wr.xrc_srqn) {
        (QpType::XrcSend, None) if rule.remote || rule.consumes_receive => {
            return Err("an XRC work request needs the number of the peer's SRQ");
        }
        (QpType::XrcSend, srqn) => srqn,
        _ => None,
    };
    let bind = match &wr.op {
        SendOp::BindMw(bind) => Some(bind_of(bind, MwType::Type2)?),
        _ => None,
    };
    let mut flags = wr.flags;
    if qp.sq_sig_all {
        flags |= SendFlags::SIGNALED;
    }
    Ok(SendEntry { wr_id: wr.wr_id, op: wqe_op(&wr.op), flags, data, ud, xrc_srqn, bind })
}

/// A bind as the ring takes it. Whether it is allowed is found out when it is executed (MW_BIND_ERR).
fn bind_of(bind: &BindMw<'_>, mw_type: MwType) -> Result<Bind, &'static str> {
    let mw = bind.mw.as_any().downcast_ref::<MwObject>().ok_or("the memory window is of another backend")?;
    if mw.window().mw_type() != mw_type {
        return Err("a window of type 1 is bound by bind_mw, one of type 2 by a BIND_MW work request");
    }
    let mr = match bind.mr {
        Some(mr) => mr.as_any().downcast_ref::<MrObject>().ok_or("the memory region is of another backend")?.lkey(),
        None if bind.length == 0 => Default::default(),
        None => return Err("a bind needs a memory region, or length 0 to unbind"),
    };
    let rkey = match mw_type {
        MwType::Type1 => mw.window().prepare_rkey(),
        MwType::Type2 => bind.rkey,
    };
    Ok(Bind { mw_type, rkey, mr, addr: bind.addr, length: bind.length, access: bind.access })
}

#[inline]
fn wqe_op(op: &SendOp<'_>) -> WqeOp {
    match *op {
        SendOp::Send => WqeOp::Send,
        SendOp::SendWithImm { imm } => WqeOp::SendWithImm { imm },
        SendOp::SendWithInv { invalidate_rkey } => WqeOp::SendWithInv { invalidate_rkey },
        SendOp::Write { remote_addr, rkey } => WqeOp::Write { remote_addr, rkey },
        SendOp::WriteWithImm { remote_addr, rkey, imm } => WqeOp::WriteWithImm { remote_addr, rkey, imm },
        SendOp::Read { remote_addr, rkey } => WqeOp::Read { remote_addr, rkey },
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            WqeOp::CompareSwap { remote_addr, rkey, compare, swap }
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => WqeOp::FetchAdd { remote_addr, rkey, add },
        SendOp::LocalInv { rkey } => WqeOp::LocalInv { rkey },
        SendOp::BindMw(_) => WqeOp::BindMw,
        SendOp::Flush { remote_addr, rkey, length, placement, level } => {
            WqeOp::Flush { remote_addr, rkey, length, placement, level }
        }
        SendOp::AtomicWrite { remote_addr, rkey } => WqeOp::AtomicWrite { remote_addr, rkey },
    }
}

/// `ibv_bind_mw`: a window of type 1.
pub(crate) fn bind_mw(
    core: &Core,
    qp: &QpShared,
    wr_id: u64,
    flags: SendFlags,
    bind: &BindMw<'_>,
) -> Result<(), VerbsError> {
    let Some(ring) = &qp.send else { return Err(VerbsError::invalid("an XRC target QP has no send queue")) };
    if core.config().rules.without.contains(&OpKind::BindMw) {
        return Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device has no memory windows"));
    }
    if !matches!(qp.qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend) {
        return Err(VerbsError::invalid(format!("a {} QP binds no memory windows", qp.qp_type.as_str())));
    }
    bind.access.check_mw()?;
    let mut poster = ring.poster();
    // Under the ring's lock, as in `post_send`; and so that the window's keys change in the order of their binds.
    if !qp.state().post_send_allowed() {
        return Err(VerbsError::invalid(format!("the QP is in {}: take it to RTS before binding", qp.state())));
    }
    let bound = bind_of(bind, MwType::Type1).map_err(VerbsError::invalid)?;
    let entry = SendEntry {
        wr_id,
        op: WqeOp::BindMw,
        flags: if qp.sq_sig_all { flags | SendFlags::SIGNALED } else { flags },
        data: SendData::Sges(&[]),
        ud: None,
        xrc_srqn: None,
        bind: Some(bound),
    };
    let outcome = poster.post(&entry).map_err(|refusal| VerbsError::misuse(refusal.errno(), refusal.reason()));
    if outcome.is_ok()
        && let Some(mw) = bind.mw.as_any().downcast_ref::<MwObject>()
    {
        mw.window().set_rkey(bound.rkey);
    }
    poster.ring_doorbell();
    drop(poster);
    outcome?;
    core.ring(qp);
    Ok(())
}

/// Posts a chain of receive WRs to a QP's own queue.
pub(crate) fn post_recv(core: &Core, qp: &QpShared, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
    let Some(ring) = &qp.recv else {
        return Err(invalid(0, "this QP has no receive queue of its own: post to its shared receive queue"));
    };
    let mut poster = ring.poster();
    // Under the ring's lock, as in `post_send`.
    if !qp.state().post_recv_allowed() {
        return Err(invalid(0, "the QP is in RESET: take it to INIT before posting receives"));
    }
    let mut result = Ok(());
    for (index, wr) in chain.iter().enumerate() {
        if let Err(refusal) = poster.post(wr.wr_id, wr.sg_list) {
            result = Err(refusal.at(index));
            break;
        }
    }
    poster.ring_doorbell();
    drop(poster);
    // The other half of the fence in `Nic::with_qp`: a receive needs no doorbell, unless the QP has failed meanwhile.
    fence(Ordering::SeqCst);
    if qp.state() == QpState::Err {
        core.ring(qp);
    }
    result
}

/// Posts a chain of receive WRs to a shared queue.
pub(crate) fn post_srq_recv(srq: &SrqShared, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
    let mut poster = srq.ring.poster();
    let mut result = Ok(());
    for (index, wr) in chain.iter().enumerate() {
        if let Err(refusal) = poster.post(wr.wr_id, wr.sg_list) {
            result = Err(refusal.at(index));
            break;
        }
    }
    poster.ring_doorbell();
    result
}
