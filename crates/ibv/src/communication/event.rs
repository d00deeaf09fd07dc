//! Events of librdmacm as the contract has them.

use core::ffi::c_void;
use std::sync::Arc;

use scalefabric_verbs::{CmEvent, CmEventType, CmId, ConnEvent, Ece, EventParam, QKey, QpType, Qpn, UdEvent};

use super::channel::{IbvCmChannel, find, insert, next_number};
use super::id::IbvCmId;
use crate::abi;
use crate::translate;

fn event_type(raw: u32) -> Option<CmEventType> {
    use CmEventType::*;
    let all = [
        AddrResolved,
        AddrError,
        RouteResolved,
        RouteError,
        ConnectRequest,
        ConnectResponse,
        ConnectError,
        Unreachable,
        Rejected,
        Established,
        Disconnected,
        DeviceRemoval,
        MulticastJoin,
        MulticastError,
        AddrChange,
        TimewaitExit,
    ];
    all.get(raw as usize).copied()
}

/// The number of an identifier: its context.
///
/// # Safety
/// A living identifier.
unsafe fn number(id: *mut abi::CmId) -> u32 {
    // SAFETY: as the caller says.
    unsafe { (*id).context as usize as u32 }
}

/// Bytes that an event carries.
///
/// # Safety
/// The pointer and length of an event that is not acknowledged yet.
unsafe fn private_data(at: *const c_void, length: u8) -> Vec<u8> {
    if at.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    unsafe { core::slice::from_raw_parts(at.cast::<u8>(), length.into()) }.to_vec()
}

/// `None` for events that the contract does not have, and for those of an identifier that nobody has accepted.
///
/// # Safety
/// An event that is not acknowledged yet.
pub(crate) unsafe fn translate(channel: &Arc<IbvCmChannel>, event: &abi::CmEvent) -> Option<CmEvent> {
    let event_type = event_type(event.event)?;
    let is_request = event_type == CmEventType::ConnectRequest;
    let is_join = matches!(event_type, CmEventType::MulticastJoin | CmEventType::MulticastError);
    // SAFETY: identifiers of an event live until it is acknowledged.
    let (own, listener) = unsafe {
        let of_event = number(if is_request { event.listen_id } else { event.id });
        (of_event, is_request.then_some(of_event))
    };
    let known = find(own)?;
    let is_ud = known.qp_type() == QpType::Ud;
    // SAFETY: which arm of the union counts is told by the type of the QP; for joins the data is the number that was given.
    let (param, join) = unsafe {
        if is_ud {
            let ud = event.param.ud;
            let data = if is_join { Vec::new() } else { private_data(ud.private_data, ud.private_data_len) };
            let param = UdEvent {
                private_data: data,
                ah_attr: translate::address_vector(&ud.ah_attr),
                qp_num: Qpn::new(ud.qp_num),
                qkey: QKey(ud.qkey),
            };
            (EventParam::Ud(param), is_join.then_some(ud.private_data as usize as u32))
        } else {
            let conn = event.param.conn;
            let param = ConnEvent {
                private_data: private_data(conn.private_data, conn.private_data_len),
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                flow_control: conn.flow_control != 0,
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                srq: conn.srq != 0,
                qp_num: Qpn::new(conn.qp_num),
            };
            (EventParam::Conn(param), None)
        }
    };
    let mut told = CmEvent {
        event: event_type,
        status: event.status,
        uid: known.uid(),
        id: own,
        listen_id: listener,
        request: None,
        param,
        ece: Ece::default(),
    };
    if let Some(join) = join {
        told.uid = known.report_join(join)?;
        told.id = join;
        return Some(told);
    }
    if is_request {
        let number = next_number();
        // SAFETY: the new identifier is ours from now on: its context becomes its number.
        unsafe { (*event.id).context = number as usize as *mut c_void };
        let request = IbvCmId::new(channel, event.id, number, known.port_space(), known.qp_type(), 0, true);
        told.ece = request.remote_ece();
        told.id = number;
        insert(&request);
        known.report();
        request.report();
        told.request = Some(request);
        return Some(told);
    }
    if known.is_passive() && known.uid() == 0 {
        return None;
    }
    if event_type == CmEventType::ConnectResponse {
        told.ece = known.remote_ece();
    }
    known.report();
    Some(told)
}
