//! The data path of C: work requests that are like most go into the ring as they are; from the first that is not, they become those of the
//! contract on the stack, some at a time. One doorbell for each lot. Nothing is allocated, no lock is taken but the ring's own.
//!
//! As in libibverbs: what comes before the request at fault is posted, `bad_wr` names it, the return value is its errno.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use scalefabric_ibv::abi;
use scalefabric_nic::objects::QpObject;
use scalefabric_nic::ring::{PlainEntry, PlainOp, SendData};
use scalefabric_verbs::{
    Errno, PostError, QKey, QpType, Qpn, QueuePair, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge, Srqn, UdAddress,
};

use super::address::AhPart;
use super::answer::{tell, tell_post};
use super::object::{alive, is_ours};
use super::queue_pair::QpPart;
use super::shared_receive_queue::SrqPart;
use super::windows::{self, MwPart};

/// Work requests in a lot.
const BATCH: usize = 32;

// An SGE of C is one of the contract.
const _: () = assert!(size_of::<abi::Sge>() == size_of::<Sge>() && align_of::<abi::Sge>() == align_of::<Sge>());
const _: () = assert!(std::mem::offset_of!(abi::Sge, length) == std::mem::offset_of!(Sge, length));
const _: () = assert!(std::mem::offset_of!(abi::Sge, lkey) == std::mem::offset_of!(Sge, lkey));

const SEND_WITH_INV: u32 = 9;
const BIND_MW: u32 = 8;

/// A scatter/gather list.
///
/// # Safety
/// `list` has `count` entries.
#[inline]
unsafe fn sges<'a>(list: *mut abi::Sge, count: c_int) -> Result<&'a [Sge], PostError> {
    if count == 0 {
        return Ok(&[]);
    }
    if count < 0 || list.is_null() {
        return Err(refuse("num_sge is negative, or sg_list is null"));
    }
    // SAFETY: the caller's promise; the layouts are the same.
    Ok(unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count as usize) })
}

fn refuse(reason: &'static str) -> PostError {
    PostError { index: 0, errno: Errno::EINVAL, reason }
}

/// A send work request of C in the ring's short form, if it has one.
///
/// # Safety
/// As `ibv_post_send`.
#[inline]
unsafe fn plain<'a>(wr: &'a abi::SendWr) -> Option<PlainEntry<'a>> {
    let (op, has_imm) = match wr.opcode {
        0 => (PlainOp::Write, false),
        1 => (PlainOp::WriteWithImm, true),
        2 => (PlainOp::Send, false),
        3 => (PlainOp::SendWithImm, true),
        _ => return None,
    };
    let flags = SendFlags::from_bits(wr.send_flags).filter(|flags| !flags.contains(SendFlags::INLINE))?;
    // SAFETY: plain numbers, and the program's list.
    let (rdma, sges) = unsafe { (wr.wr.rdma, sges(wr.sg_list, wr.num_sge).ok()?) };
    let imm = if has_imm { u32::from_be(wr.imm_data) } else { 0 };
    Some(PlainEntry {
        wr_id: wr.wr_id,
        op,
        flags,
        remote_addr: rdma.remote_addr,
        rkey: RKey(rdma.rkey),
        imm,
        data: SendData::Sges(sges),
    })
}

/// Puts a send work request of C into a place of a lot, as the contract has it. Made in its place: it is too large to be moved
/// for nothing.
///
/// # Safety
/// As `ibv_post_send`.
#[inline]
unsafe fn translate<'a>(
    wr: &'a abi::SendWr,
    qp_type: QpType,
    place: &mut MaybeUninit<SendWr<'a>>,
) -> Result<(), PostError> {
    // SAFETY: which member of the unions counts is said by opcode and QP type, as in C; all are plain numbers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let (remote_addr, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
    let op = match wr.opcode {
        0 => SendOp::Write { remote_addr, rkey },
        1 => SendOp::WriteWithImm { remote_addr, rkey, imm: u32::from_be(wr.imm_data) },
        2 => SendOp::Send,
        3 => SendOp::SendWithImm { imm: u32::from_be(wr.imm_data) },
        4 => SendOp::Read { remote_addr, rkey },
        5 => SendOp::CompareSwap {
            remote_addr: atomic.remote_addr,
            rkey: RKey(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        6 => SendOp::FetchAdd { remote_addr: atomic.remote_addr, rkey: RKey(atomic.rkey), add: atomic.compare_add },
        7 => SendOp::LocalInv { rkey: RKey(wr.imm_data) },
        BIND_MW => {
            let bind = &wr.bind_mw;
            // SAFETY: the program's window and region.
            SendOp::BindMw(unsafe { windows::bind(bind.mw, bind.rkey, &bind.bind_info) }.map_err(|error| {
                tell("ibv_post_send", &error);
                refuse("the bind names no window or region of this device, or unknown rights")
            })?)
        }
        SEND_WITH_INV => SendOp::SendWithInv { invalidate_rkey: RKey(wr.imm_data) },
        15 => SendOp::AtomicWrite { remote_addr, rkey },
        _ => return Err(refuse("the opcode is not one that ibv_post_send can post here")),
    };
    let Some(flags) = SendFlags::from_bits(wr.send_flags) else {
        return Err(refuse("send_flags: only FENCE 1, SIGNALED 2, SOLICITED 4 and INLINE 8 exist here"));
    };
    // SAFETY: the program's list.
    let sg_list = unsafe { sges(wr.sg_list, wr.num_sge)? };
    let (mut ud_address, mut xrc_srqn) = (None, None);
    match qp_type {
        QpType::Ud => {
            // SAFETY: as above; the handle is the program's.
            let (ud, ah) = unsafe {
                let ud = wr.wr.ud;
                (ud, if is_ours(ud.ah) { alive::<AhPart>(ud.ah) } else { None })
            };
            let Some(ah) = ah else { return Err(refuse("the address handle is null, destroyed or never one")) };
            let (remote_qpn, remote_qkey) = (Qpn::new(ud.remote_qpn), QKey(ud.remote_qkey));
            ud_address = Some(UdAddress { ah: &*ah.part.ah, remote_qpn, remote_qkey });
        }
        QpType::XrcSend => xrc_srqn = Some(Srqn::new(wr.remote_srqn)),
        _ => {}
    }
    place.write(SendWr { wr_id: wr.wr_id, op, flags, sg_list, inline_data: &[], ud: ud_address, xrc_srqn });
    Ok(())
}

/// Tells which request was refused: the one `error.index` behind `at`, in the chain that begins with `head`.
///
/// # Safety
/// The chain has it; its requests are of a kind whose `next` is at the same place.
#[cold]
unsafe fn refused<T>(
    call: &str,
    error: &PostError,
    (head, mut at): (*mut T, *mut T),
    next: impl Fn(*mut T) -> *mut T,
    bad: *mut *mut T,
) -> c_int {
    for _ in 0..error.index {
        at = next(at);
    }
    let index = std::iter::successors(Some(head), |&wr| Some(next(wr))).take_while(|&wr| wr != at).count();
    if !bad.is_null() {
        // SAFETY: the program's word.
        unsafe { *bad = at };
    }
    tell_post(call, &PostError { index, ..*error })
}

/// Posts the requests at the head of a chain that have the short form; `at` is left where the others begin.
///
/// # Safety
/// `at` is a chain of the program.
#[inline]
unsafe fn post_head(qp: &dyn QueuePair, at: &mut *mut abi::SendWr) -> Result<(), PostError> {
    let Some(qp) = qp.as_any().downcast_ref::<QpObject>() else { return Ok(()) };
    let posted = qp.post_plain(|| {
        // SAFETY: the caller's promise; a request of the program has a successor.
        let (entry, next) = unsafe {
            let wr = at.as_ref()?;
            (plain(wr)?, wr.next)
        };
        *at = next;
        Some(entry)
    });
    posted.map(drop)
}

/// The operation `post_send`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn post_send(qp: *mut abi::Qp, wr: *mut abi::SendWr, bad_wr: *mut *mut abi::SendWr) -> c_int {
    const CALL: &str = "ibv_post_send";
    // SAFETY: it is ours, since the operation is.
    let Some(object) = (unsafe { alive::<QpPart>(qp.cast()) }) else {
        // SAFETY: the program's word.
        return unsafe { refused(CALL, &refuse("the QP was destroyed"), (wr, wr), |wr| wr, bad_wr) };
    };
    // SAFETY: a request of the program has a successor.
    let next = |wr: *mut abi::SendWr| unsafe { (*wr).next };
    let mut at = wr;
    // SAFETY: the program's chain.
    if let Err(error) = unsafe { post_head(&*object.part.qp, &mut at) } {
        // SAFETY: the program's chain and word.
        return unsafe { refused(CALL, &error, (wr, wr), next, bad_wr) };
    }
    let mut lot: [MaybeUninit<SendWr<'_>>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
    while !at.is_null() {
        let (first, mut count) = (at, 0);
        let mut outcome = Ok(());
        let mut binds = false;
        while count < BATCH && !at.is_null() {
            // SAFETY: the program's chain.
            if let Err(error) = unsafe { translate(&*at, object.part.qp_type, &mut lot[count]) } {
                outcome = Err(error);
                break;
            }
            count += 1;
            // SAFETY: as above.
            unsafe {
                binds |= (*at).opcode == BIND_MW;
                at = (*at).next;
            }
        }
        if count > 0 {
            // SAFETY: so many were written; what inline requests name is the program's to vouch for.
            let posted = unsafe {
                let chain = std::slice::from_raw_parts(lot.as_ptr().cast::<SendWr<'_>>(), count);
                object.part.qp.post_send_raw(chain)
            };
            let good = posted.as_ref().map_or_else(|error| error.index, |()| count);
            if binds {
                // SAFETY: the program's chain.
                unsafe { show_keys(first, good) };
            }
            if let Err(error) = posted {
                // SAFETY: the program's chain and word.
                return unsafe { refused(CALL, &error, (wr, first), next, bad_wr) };
            }
        }
        if let Err(error) = outcome {
            // SAFETY: the program's chain and word.
            return unsafe { refused(CALL, &error, (wr, at), next, bad_wr) };
        }
    }
    0
}

/// Writes the new keys of windows whose binds were posted into their structures.
unsafe fn show_keys(mut wr: *mut abi::SendWr, count: usize) {
    for _ in 0..count {
        // SAFETY: the caller's chain has so many; a bind that was posted names a live window.
        unsafe {
            if (*wr).opcode == BIND_MW
                && let Some(mw) = alive::<MwPart>((*wr).bind_mw.mw)
            {
                (*mw.c()).rkey = mw.part.mw.rkey().0;
            }
            wr = (*wr).next;
        }
    }
}

/// Posts a chain of receives, some at a time.
///
/// # Safety
/// `wr` is a chain of the program.
#[inline]
unsafe fn receive(
    call: &str,
    wr: *mut abi::RecvWr,
    bad_wr: *mut *mut abi::RecvWr,
    post: impl Fn(&[RecvWr<'_>]) -> Result<(), PostError>,
) -> c_int {
    // SAFETY: a request of the program has a successor.
    let next = |wr: *mut abi::RecvWr| unsafe { (*wr).next };
    let mut lot: [MaybeUninit<RecvWr<'_>>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
    let mut at = wr;
    while !at.is_null() {
        let (first, mut count) = (at, 0);
        let mut outcome = Ok(());
        while count < BATCH && !at.is_null() {
            // SAFETY: the program's chain and lists.
            let (wr_id, sg_list) = unsafe { ((*at).wr_id, sges((*at).sg_list, (*at).num_sge)) };
            match sg_list {
                Ok(sg_list) => lot[count].write(RecvWr { wr_id, sg_list }),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            count += 1;
            at = next(at);
        }
        if count > 0 {
            // SAFETY: so many were written.
            let chain = unsafe { std::slice::from_raw_parts(lot.as_ptr().cast::<RecvWr<'_>>(), count) };
            if let Err(error) = post(chain) {
                // SAFETY: the program's chain and word.
                return unsafe { refused(call, &error, (wr, first), next, bad_wr) };
            }
        }
        if let Err(error) = outcome {
            // SAFETY: the program's chain and word.
            return unsafe { refused(call, &error, (wr, at), next, bad_wr) };
        }
    }
    0
}

/// The operation `post_recv`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn post_recv(qp: *mut abi::Qp, wr: *mut abi::RecvWr, bad_wr: *mut *mut abi::RecvWr) -> c_int {
    const CALL: &str = "ibv_post_recv";
    // SAFETY: it is ours, since the operation is; the program's chain and word.
    unsafe {
        match alive::<QpPart>(qp.cast()) {
            Some(object) => receive(CALL, wr, bad_wr, |chain| object.part.qp.post_recv(chain)),
            None => refused(CALL, &refuse("the QP was destroyed"), (wr, wr), |wr| wr, bad_wr),
        }
    }
}

/// The operation `post_srq_recv`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    wr: *mut abi::RecvWr,
    bad_wr: *mut *mut abi::RecvWr,
) -> c_int {
    const CALL: &str = "ibv_post_srq_recv";
    // SAFETY: it is ours, since the operation is; the program's chain and word.
    unsafe {
        match alive::<SrqPart>(srq) {
            Some(object) => receive(CALL, wr, bad_wr, |chain| object.part.srq.post_recv(chain)),
            None => refused(CALL, &refuse("the SRQ was destroyed"), (wr, wr), |wr| wr, bad_wr),
        }
    }
}
