//! QPs, SRQs and CQs that an identifier makes by itself, and brings up by itself.

use std::ffi::c_int;
use std::ptr::{null_mut, read};

use scalefabric_ibv::abi::{self, CmId, ucma};

use crate::connection::{INIT, MASK_STATE, RTR, RTS, modify};
use crate::engine::*;
use crate::id::{self, is_ud, state};

const QP_INIT_PD: u32 = 1;
const QP_INIT_XRCD: u32 = 1 << 1;
const SRQ_INIT_TYPE: u32 = 1;
const SRQ_INIT_PD: u32 = 1 << 1;
const SRQ_INIT_XRCD: u32 = 1 << 2;
const SRQ_INIT_CQ: u32 = 1 << 3;
const SRQT_BASIC: u32 = 0;
const SRQT_XRC: u32 = 1;
/// `IBV_QP_SQ_PSN`.
const MASK_SQ_PSN: c_int = 1 << 16;

unsafe fn destroy_cqs(id: *mut CmId) {
    // SAFETY: a living identifier; CQs and channels are those that it made. Of an XRC receiver they belong to its SRQ.
    unsafe {
        let id = &mut *id;
        if id.qp_type == id::QPT_XRC_RECV && !id.srq.is_null() {
            return;
        }
        for cq in [id.send_cq, if id.recv_cq == id.send_cq { null_mut() } else { id.recv_cq }] {
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        let second = if id.recv_cq_channel == id.send_cq_channel { null_mut() } else { id.recv_cq_channel };
        for channel in [id.send_cq_channel, second] {
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
        (id.send_cq, id.recv_cq) = (null_mut(), null_mut());
        (id.send_cq_channel, id.recv_cq_channel) = (null_mut(), null_mut());
    }
}

/// A CQ with a channel of its own, whose context is the identifier.
unsafe fn make_cq(id: *mut CmId, cqe: u32) -> Result<(*mut abi::CompChannel, *mut abi::Cq), Errno> {
    // SAFETY: the identifier is bound: it has a context.
    unsafe {
        let channel = made(ibv_create_comp_channel((*id).verbs))?;
        let cq = made(ibv_create_cq((*id).verbs, cqe.cast_signed(), id.cast(), channel, 0));
        cq.map(|cq| (channel, cq)).inspect_err(|_| {
            ibv_destroy_comp_channel(channel);
        })
    }
}

/// Makes the CQs that have a size.
unsafe fn create_cqs(id: *mut CmId, send: u32, recv: u32) -> Result<(), Errno> {
    // SAFETY: a living identifier.
    unsafe {
        if recv > 0 {
            ((*id).recv_cq_channel, (*id).recv_cq) = make_cq(id, recv)?;
        }
        if send > 0 {
            ((*id).send_cq_channel, (*id).send_cq) = make_cq(id, send).inspect_err(|_| destroy_cqs(id))?;
        }
    }
    Ok(())
}

/// The ECE option of a new QP: what it offers, or what it makes of the peer's.
unsafe fn init_ece(id: *mut CmId, qp: *mut abi::Qp) -> Result<(), Errno> {
    let mut ece = abi::Ece::default();
    // SAFETY: a living QP.
    if unsafe { ibv_query_ece(qp, &raw mut ece) } != 0 {
        return Ok(());
    }
    let remote = {
        let mut state = state(id);
        state.local_ece = ucma::Ece { vendor_id: ece.vendor_id, attr_mod: ece.options };
        state.remote_ece
    };
    if remote.vendor_id == 0 { Ok(()) } else { apply_ece(id, qp, remote) }
}

/// The peer's option is put into the QP, which may refuse it (`ECONNREFUSED`) or not know it.
fn apply_ece(id: *mut CmId, qp: *mut abi::Qp, remote: ucma::Ece) -> Result<(), Errno> {
    let mut ece = abi::Ece { vendor_id: remote.vendor_id, options: remote.attr_mod, comp_mask: 0 };
    // SAFETY: a living QP.
    match done(unsafe { ibv_set_ece(qp, &raw mut ece) }) {
        Ok(()) => state(id).local_ece.attr_mod = ece.options,
        Err(libc::ECONNREFUSED) => return Err(libc::ECONNREFUSED),
        Err(_) => {}
    }
    Ok(())
}

/// What the peer made of our option.
pub fn settle_ece(id: *mut CmId, remote: ucma::Ece) -> Result<(), Errno> {
    if remote.vendor_id == 0 {
        return Ok(());
    }
    // SAFETY: a living identifier with a QP.
    apply_ece(id, unsafe { (*id).qp }, remote)
}

/// A datagram QP goes to RTS, one of a connection to INIT.
unsafe fn init_qp(id: *mut CmId, qp: *mut abi::Qp) -> Result<(), Errno> {
    modify(id, qp, INIT, |_| ())?;
    if !is_ud(id) {
        return Ok(());
    }
    // SAFETY: zeros are an attribute struct; the QP lives.
    unsafe {
        let mut attr: abi::QpAttr = std::mem::zeroed();
        attr.qp_state = RTR;
        done(ibv_modify_qp(qp, &raw mut attr, MASK_STATE))?;
        attr.qp_state = RTS;
        done(ibv_modify_qp(qp, &raw mut attr, MASK_STATE | MASK_SQ_PSN))
    }
}

/// Makes the identifier's QP. Only members that the mask names are looked at behind it: the program's struct may be a shorter one.
pub unsafe fn create_qp_ex(id: *mut CmId, attr: *mut abi::QpInitAttrEx) -> Result<(), Errno> {
    // SAFETY: a living identifier, and the caller's struct.
    unsafe {
        if !(*id).qp.is_null() || (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        if (*attr).comp_mask & QP_INIT_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= QP_INIT_PD;
            (*attr).pd = (*id).pd;
        } else if (*(*attr).pd).context != (*id).verbs {
            return Err(libc::EINVAL);
        }
        let differs = |own: *mut abi::Cq, given: *mut abi::Cq| !own.is_null() && !given.is_null() && own != given;
        if differs((*id).recv_cq, (*attr).recv_cq) || differs((*id).send_cq, (*attr).send_cq) {
            return Err(libc::EINVAL);
        }
        if (*id).qp_type == id::QPT_XRC_RECV && ((*attr).comp_mask & QP_INIT_XRCD == 0 || (*attr).xrcd.is_null()) {
            (*attr).xrcd = state(id).device.ok_or(libc::EINVAL)?.xrcd()?;
            (*attr).comp_mask |= QP_INIT_XRCD;
        }
        let size = |given: *mut abi::Cq, own: *mut abi::Cq, wanted: u32| {
            if given.is_null() && own.is_null() { wanted } else { 0 }
        };
        let send = size((*attr).send_cq, (*id).send_cq, (*attr).cap.max_send_wr);
        let recv = size((*attr).recv_cq, (*id).recv_cq, (*attr).cap.max_recv_wr);
        create_cqs(id, send, recv)?;
        if (*attr).send_cq.is_null() {
            (*attr).send_cq = (*id).send_cq;
        }
        if (*attr).recv_cq.is_null() {
            (*attr).recv_cq = (*id).recv_cq;
        }
        if (*attr).srq.is_null() {
            (*attr).srq = (*id).srq;
        }
        let made = if (*attr).comp_mask == QP_INIT_PD {
            made(ibv_create_qp((*attr).pd, attr.cast()))
        } else {
            operation!((*id).verbs, create_qp_ex).and_then(|create| made(create((*id).verbs, attr)))
        };
        let qp = made.inspect_err(|_| destroy_cqs(id))?;
        init_ece(id, qp).and_then(|()| init_qp(id, qp)).inspect_err(|_| {
            ibv_destroy_qp(qp);
            destroy_cqs(id);
        })?;
        (*id).pd = (*qp).pd;
        (*id).qp = qp;
        Ok(())
    }
}

/// Makes the identifier's QP from the short struct, in which the sizes come back.
pub unsafe fn create_qp(id: *mut CmId, pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> Result<(), Errno> {
    // SAFETY: zeros are a value; the long struct begins as the short one.
    unsafe {
        let mut attr: abi::QpInitAttrEx = std::mem::zeroed();
        (&raw mut attr).cast::<abi::QpInitAttr>().write(read(init));
        attr.comp_mask = QP_INIT_PD;
        attr.pd = if pd.is_null() { (*id).pd } else { pd };
        let result = create_qp_ex(id, &raw mut attr);
        init.write(read((&raw const attr).cast()));
        result
    }
}

unsafe fn create_srq_ex(id: *mut CmId, attr: *mut abi::SrqInitAttrEx) -> Result<(), Errno> {
    // SAFETY: a living identifier, and the caller's struct.
    unsafe {
        if (*attr).comp_mask & SRQ_INIT_TYPE == 0 || (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        if (*attr).comp_mask & SRQ_INIT_PD == 0 || (*attr).pd.is_null() {
            (*attr).pd = (*id).pd;
            (*attr).comp_mask |= SRQ_INIT_PD;
        }
        if (*attr).srq_type == SRQT_XRC {
            if (*attr).comp_mask & SRQ_INIT_XRCD == 0 || (*attr).xrcd.is_null() {
                (*attr).xrcd = state(id).device.ok_or(libc::EINVAL)?.xrcd()?;
            }
            if (*attr).comp_mask & SRQ_INIT_CQ == 0 || (*attr).cq.is_null() {
                create_cqs(id, 0, (*attr).attr.max_wr)?;
                (*attr).cq = (*id).recv_cq;
            }
            (*attr).comp_mask |= SRQ_INIT_XRCD | SRQ_INIT_CQ;
        }
        let made = if (*attr).comp_mask == SRQ_INIT_TYPE | SRQ_INIT_PD && (*attr).srq_type == SRQT_BASIC {
            made(ibv_create_srq((*attr).pd, attr.cast()))
        } else {
            operation!((*id).verbs, create_srq_ex).and_then(|create| made(create((*id).verbs, attr)))
        };
        (*id).srq = made.inspect_err(|_| destroy_cqs(id))?;
        if (*id).pd.is_null() {
            (*id).pd = (*attr).pd;
        }
        Ok(())
    }
}

unsafe fn create_srq(id: *mut CmId, pd: *mut abi::Pd, init: *mut abi::SrqInitAttr) -> Result<(), Errno> {
    // SAFETY: zeros are a value; the long struct begins as the short one; a living identifier.
    unsafe {
        let mut attr: abi::SrqInitAttrEx = std::mem::zeroed();
        (&raw mut attr).cast::<abi::SrqInitAttr>().write(read(init));
        attr.comp_mask = SRQ_INIT_TYPE | SRQ_INIT_PD;
        attr.srq_type = if (*id).qp_type == id::QPT_XRC_RECV { SRQT_XRC } else { SRQT_BASIC };
        attr.pd = pd;
        let result = create_srq_ex(id, &raw mut attr);
        init.write(read((&raw const attr).cast()));
        result
    }
}

/// `rdma_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(id: *mut CmId, pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { create_qp(id, pd, init) })
}

/// `rdma_create_qp_ex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut CmId, attr: *mut abi::QpInitAttrEx) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { create_qp_ex(id, attr) })
}

/// `rdma_destroy_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    // SAFETY: a living identifier with a QP.
    unsafe {
        ibv_destroy_qp((*id).qp);
        (*id).qp = null_mut();
        destroy_cqs(id);
    }
}

/// `rdma_create_srq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut CmId, pd: *mut abi::Pd, attr: *mut abi::SrqInitAttr) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { create_srq(id, pd, attr) })
}

/// `rdma_create_srq_ex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut CmId, attr: *mut abi::SrqInitAttrEx) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { create_srq_ex(id, attr) })
}

/// `rdma_destroy_srq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut CmId) {
    // SAFETY: a living identifier with an SRQ.
    unsafe {
        ibv_destroy_srq((*id).srq);
        (*id).srq = null_mut();
        destroy_cqs(id);
    }
}
