//! Connections: listen, connect, accept, reject, disconnect. Where the identifier has a QP, it is moved through its states with the
//! attributes that the device gives.

use std::ffi::{c_int, c_void};

use scalefabric_ibv::abi::ucma::{self, Command, Plain};
use scalefabric_ibv::abi::{self, CmConnParam, CmId};

use crate::command::{ask, tell, tell_with};
use crate::engine::*;
use crate::event;
use crate::id::{self, acknowledge_last, complete, is_ud, place, state};
use crate::{address, queue};

/// "As many as the device allows", in both depths.
const MAX: u8 = 0xff;
/// Reject reasons: the consumer's own, and that its ECE option is not supported.
const CONSUMER_DEFINED: u8 = 28;
const VENDOR_OPTION_NOT_SUPPORTED: u8 = 35;

/// States of a QP.
pub const INIT: u32 = 1;
/// Ready to receive.
pub const RTR: u32 = 2;
/// Ready to send.
pub const RTS: u32 = 3;
const ERR: u32 = 6;
/// `IBV_QP_STATE`.
pub const MASK_STATE: c_int = 1;

/// The attributes that bring the identifier's QP to a state.
pub fn attributes(id: *mut CmId, qp_state: u32) -> Result<(abi::QpAttr, c_int), Errno> {
    let (fd, handle) = place(id);
    let raw: ucma::UserQpAttr =
        ask(fd, Command::InitQpAttr, |response| ucma::InitQpAttr { response, id: handle, qp_state })?;
    let attr = abi::QpAttr {
        qp_state: raw.qp_state,
        cur_qp_state: raw.cur_qp_state,
        path_mtu: raw.path_mtu,
        path_mig_state: raw.path_mig_state,
        qkey: raw.qkey,
        rq_psn: raw.rq_psn,
        sq_psn: raw.sq_psn,
        dest_qp_num: raw.dest_qp_num,
        qp_access_flags: raw.qp_access_flags,
        cap: abi::QpCap {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        },
        ah_attr: address::ah_attr(&raw.ah_attr),
        alt_ah_attr: address::ah_attr(&raw.alt_ah_attr),
        pkey_index: raw.pkey_index,
        alt_pkey_index: raw.alt_pkey_index,
        en_sqd_async_notify: raw.en_sqd_async_notify,
        sq_draining: raw.sq_draining,
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        min_rnr_timer: raw.min_rnr_timer,
        port_num: raw.port_num,
        timeout: raw.timeout,
        retry_cnt: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
        alt_port_num: raw.alt_port_num,
        alt_timeout: raw.alt_timeout,
        rate_limit: 0,
    };
    Ok((attr, raw.qp_attr_mask.cast_signed()))
}

/// Moves a QP to a state with the device's attributes, changed by `adjust`.
pub fn modify(
    id: *mut CmId,
    qp: *mut abi::Qp,
    qp_state: u32,
    adjust: impl FnOnce(&mut abi::QpAttr),
) -> Result<(), Errno> {
    let (mut attr, mask) = attributes(id, qp_state)?;
    adjust(&mut attr);
    // SAFETY: a living QP; `attr` lives through the call.
    done(unsafe { ibv_modify_qp(qp, &raw mut attr, mask) })
}

/// The identifier's QP goes from INIT to RTS, if it has one.
fn to_rts(id: *mut CmId, responder_resources: u8, initiator_depth: u8) -> Result<(), Errno> {
    // SAFETY: a living identifier.
    let qp = unsafe { (*id).qp };
    if qp.is_null() {
        return Ok(());
    }
    modify(id, qp, INIT, |_| ())?;
    modify(id, qp, RTR, |attr| {
        if responder_resources != MAX {
            attr.max_dest_rd_atomic = responder_resources;
        }
    })?;
    modify(id, qp, RTS, |attr| {
        if initiator_depth != MAX {
            attr.max_rd_atomic = initiator_depth;
        }
    })
}

/// The identifier's QP goes to ERR, if it has one.
pub fn to_error(id: *mut CmId) {
    // SAFETY: a living identifier and its QP.
    unsafe {
        if !(*id).qp.is_null() {
            let mut attr: abi::QpAttr = std::mem::zeroed();
            attr.qp_state = ERR;
            ibv_modify_qp((*id).qp, &raw mut attr, MASK_STATE);
        }
    }
}

/// The active side has the peer's answer: its QP goes to RTS, and the peer is told. If that fails the QP goes to ERR.
pub fn bring_up(id: *mut CmId, ece: ucma::Ece) -> Result<(), Errno> {
    queue::settle_ece(id, ece)?;
    to_rts(id, MAX, MAX).and_then(|()| ready_to_use(id)).inspect_err(|_| to_error(id))
}

/// ACCEPT without parameters: the RTU.
fn ready_to_use(id: *mut CmId) -> Result<(), Errno> {
    let (fd, handle) = place(id);
    tell(fd, Command::Accept, &ucma::Accept { uid: 0, conn_param: ucma::ConnParam::zeroed(), id: handle, reserved: 0 })
}

/// Parameters of a connection as the program gave them.
unsafe fn given<'a>(param: *const CmConnParam) -> Option<&'a CmConnParam> {
    // SAFETY: null, or the caller's.
    unsafe { param.as_ref() }
}

/// Depths beyond the device's are `EINVAL`; a connection needs a QP or its number.
fn check(id: *mut CmId, param: Option<&CmConnParam>) -> Result<(), Errno> {
    // SAFETY: a living identifier.
    let (ps, has_qp) = unsafe { ((*id).ps, !(*id).qp.is_null()) };
    if ps != id::PS_TCP {
        return Ok(());
    }
    let Some(param) = param else { return if has_qp { Ok(()) } else { Err(libc::EINVAL) } };
    let (max_initiator, max_responder) = state(id).device.ok_or(libc::EINVAL)?.depths();
    let fits = |asked: u8, max: u8| asked == MAX || asked <= max;
    if fits(param.responder_resources, max_responder) && fits(param.initiator_depth, max_initiator) {
        Ok(())
    } else {
        Err(libc::EINVAL)
    }
}

/// The parameters of the command. Private data of `rdma_create_ep` stands before the program's.
unsafe fn conn_param(id: *mut CmId, param: Option<&CmConnParam>) -> Result<ucma::ConnParam, Errno> {
    let mut raw = ucma::ConnParam::zeroed();
    // SAFETY: a living identifier and its QP.
    (raw.qp_num, raw.srq) = unsafe {
        match ((*id).qp.as_ref(), param) {
            (Some(qp), _) => (qp.qp_num, u8::from(!qp.srq.is_null())),
            (None, Some(param)) => (param.qp_num, param.srq),
            (None, None) => (0, 0),
        }
    };
    (raw.retry_count, raw.rnr_retry_count) = (7, 7);
    raw.valid = 1;
    let mut data = {
        let state = state(id);
        (raw.responder_resources, raw.initiator_depth) = (state.responder_resources, state.initiator_depth);
        state.connect.clone()
    };
    if let Some(param) = param {
        (raw.flow_control, raw.retry_count, raw.rnr_retry_count) =
            (param.flow_control, param.retry_count, param.rnr_retry_count);
        if !param.private_data.is_null() {
            // SAFETY: the caller says that so many bytes are there.
            data.extend_from_slice(unsafe {
                std::slice::from_raw_parts(param.private_data.cast::<u8>(), usize::from(param.private_data_len))
            });
        }
    }
    raw.private_data_len = u8::try_from(data.len()).map_err(|_| libc::EINVAL)?;
    raw.private_data[..data.len()].copy_from_slice(&data);
    Ok(raw)
}

/// A depth: what was asked, or `otherwise`.
fn depth(asked: Option<u8>, otherwise: u8) -> u8 {
    asked.filter(|&asked| asked != MAX).unwrap_or(otherwise)
}

unsafe fn connect(id: *mut CmId, param: *const CmConnParam) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let param = unsafe { given(param) };
    check(id, param)?;
    let device = state(id).device.ok_or(libc::EINVAL)?;
    let (max_initiator, max_responder) = device.depths();
    let ece = {
        let mut state = state(id);
        state.initiator_depth = depth(param.map(|param| param.initiator_depth), max_initiator);
        state.responder_resources = depth(param.map(|param| param.responder_resources), max_responder);
        state.local_ece
    };
    // SAFETY: the caller's.
    let conn_param = unsafe { conn_param(id, param)? };
    let (fd, handle) = place(id);
    tell_with(fd, Command::Connect, &ucma::Connect { conn_param, id: handle, reserved: 0 }, &ece)?;
    state(id).connect = Vec::new();
    complete(id)
}

unsafe fn accept(id: *mut CmId, param: *const CmConnParam) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let param = unsafe { given(param) };
    // SAFETY: a living identifier.
    if param.is_none() && unsafe { (*id).qp.is_null() } {
        return Err(libc::EINVAL);
    }
    check(id, param)?;
    let (max_initiator, max_responder) = state(id).device.ok_or(libc::EINVAL)?.depths();
    let (responder_resources, initiator_depth, ece) = {
        let mut state = state(id);
        state.initiator_depth =
            depth(param.map(|param| param.initiator_depth), state.initiator_depth.min(max_initiator));
        state.responder_resources =
            depth(param.map(|param| param.responder_resources), state.responder_resources.min(max_responder));
        let ece = ucma::Ece { vendor_id: state.remote_ece.vendor_id, attr_mod: state.local_ece.attr_mod };
        (state.responder_resources, state.initiator_depth, ece)
    };
    if !is_ud(id) {
        to_rts(id, responder_resources, initiator_depth)?;
    }
    // SAFETY: the caller's.
    let conn_param = unsafe { conn_param(id, param)? };
    let (fd, handle) = place(id);
    let uid = id.expose_provenance() as u64;
    let accept = ucma::Accept { uid, conn_param, id: handle, reserved: 0 };
    tell_with(fd, Command::Accept, &accept, &ece).inspect_err(|_| to_error(id))?;
    if is_ud(id) {
        if state(id).sync {
            acknowledge_last(id);
        }
        return Ok(());
    }
    complete(id)
}

unsafe fn reject(id: *mut CmId, data: *const c_void, length: u8, reason: u8) -> Result<(), Errno> {
    let (fd, handle) = place(id);
    let mut command = ucma::Reject { id: handle, reason, ..ucma::Reject::zeroed() };
    if !data.is_null() {
        command.private_data_len = length;
        // SAFETY: the caller says that so many bytes are there; the room is 256.
        unsafe {
            std::ptr::copy_nonoverlapping(data.cast::<u8>(), command.private_data.as_mut_ptr(), usize::from(length));
        }
    }
    tell(fd, Command::Reject, &command)
}

fn disconnect(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: a living identifier.
    if unsafe { (*id).verbs.is_null() } {
        return Err(libc::EINVAL);
    }
    to_error(id);
    let (fd, handle) = place(id);
    tell(fd, Command::Disconnect, &ucma::Disconnect { id: handle })?;
    complete(id)
}

fn listen(id: *mut CmId, backlog: c_int) -> Result<(), Errno> {
    let (fd, handle) = place(id);
    tell(fd, Command::Listen, &ucma::Listen { id: handle, backlog: backlog.max(0).cast_unsigned() })?;
    address::query(id)
}

/// Waits for a peer, and makes the QP that `rdma_create_ep` promised.
unsafe fn get_request(listener: *mut CmId, id: *mut *mut CmId) -> Result<(), Errno> {
    if !state(listener).sync {
        return Err(libc::EINVAL);
    }
    acknowledge_last(listener);
    // SAFETY: a living listener; the event is ours until it is acknowledged.
    unsafe {
        let event = event::next((*listener).channel)?;
        let new = (*event).id;
        let made = match ((*event).status, (*event).event) {
            (0, event::CONNECT_REQUEST) => match state(listener).qp_init_attr.as_ref().map(|init| std::ptr::read(init))
            {
                Some(mut init) => queue::create_qp(new, (*listener).pd, &mut init),
                None => Ok(()),
            },
            (0, _) => Err(libc::EINVAL),
            (status, _) => Err(status.abs()),
        };
        match made {
            Ok(()) => {
                (*new).event = event;
                *id = new;
            }
            Err(_) => (*listener).event = event,
        }
        made
    }
}

/// `rdma_listen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
    status(listen(id, backlog))
}

/// `rdma_get_request`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut CmId, id: *mut *mut CmId) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { get_request(listen, id) })
}

/// `rdma_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut CmId, conn_param: *mut CmConnParam) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { connect(id, conn_param) })
}

/// `rdma_establish`: of identifiers without a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut CmId) -> c_int {
    // SAFETY: a living identifier.
    status(if unsafe { (*id).qp.is_null() } { ready_to_use(id) } else { Err(libc::EINVAL) })
}

/// `rdma_accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut CmId, conn_param: *mut CmConnParam) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { accept(id, conn_param) })
}

/// `rdma_reject`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut CmId, private_data: *const c_void, private_data_len: u8) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { reject(id, private_data, private_data_len, CONSUMER_DEFINED) })
}

/// `rdma_reject_ece`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut CmId, private_data: *const c_void, private_data_len: u8) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { reject(id, private_data, private_data_len, VENDOR_OPTION_NOT_SUPPORTED) })
}

/// `rdma_disconnect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut CmId) -> c_int {
    status(disconnect(id))
}

/// `rdma_notify`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut CmId, event: u32) -> c_int {
    let (fd, handle) = place(id);
    status(tell(fd, Command::Notify, &ucma::Notify { id: handle, event }))
}

/// `rdma_init_qp_attr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut CmId,
    qp_attr: *mut abi::QpAttr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's structs.
    unsafe {
        status(attributes(id, (*qp_attr).qp_state).map(|(attr, mask)| {
            *qp_attr = attr;
            *qp_attr_mask = mask;
        }))
    }
}
