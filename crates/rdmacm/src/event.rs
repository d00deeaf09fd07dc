//! Event channels, and events: taken from the device, prepared as librdmacm prepares them (addresses and routes asked for, QPs brought
//! up), handed over, acknowledged.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use scalefabric_ibv::abi::ucma::{self, Command, Plain};
use scalefabric_ibv::abi::{self, CmChannel, CmConnParam, CmEvent, CmId, CmUdParam};

use crate::command::ask;
use crate::device;
use crate::engine::*;
use crate::group::{self, Group};
use crate::id::{self, private, state};
use crate::{address, connection};

const ADDR_RESOLVED: u32 = 0;
const ADDR_ERROR: u32 = 1;
const ROUTE_RESOLVED: u32 = 2;
const ROUTE_ERROR: u32 = 3;
/// A peer wants to connect.
pub const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const CONNECT_ERROR: u32 = 6;
/// The peer said no.
pub const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;
const MULTICAST_JOIN: u32 = 12;
const MULTICAST_ERROR: u32 = 13;

/// Names of the events, in the order of their numbers.
const NAMES: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// An event with what the program does not see.
#[repr(C)]
struct Object {
    public: CmEvent,
    private_data: [u8; 256],
    /// Whose acknowledgement it is.
    owner: *mut CmId,
    group: *mut Group,
}

/// Takes the next event of a channel that the program shall see.
pub fn next(channel: *mut CmChannel) -> Result<*mut CmEvent, Errno> {
    loop {
        // SAFETY: the program passes a living channel.
        let fd = unsafe { (*channel).fd };
        let raw: ucma::EventResp = ask(fd, Command::GetEvent, |response| ucma::GetEvent { response })?;
        if let Some(event) = prepare(channel, &raw) {
            return Ok(Box::into_raw(event).cast());
        }
    }
}

/// The event as the program sees it; none if it does not.
fn prepare(channel: *mut CmChannel, raw: &ucma::EventResp) -> Option<Box<Object>> {
    let pointer = std::ptr::with_exposed_provenance_mut::<u8>(raw.uid as usize);
    if pointer.is_null() {
        return None;
    }
    // SAFETY: zeros are a value: null pointers and numbers.
    let mut event: Box<Object> = unsafe { Box::new(std::mem::zeroed()) };
    event.public.event = raw.event;
    event.public.status = raw.status.cast_signed();
    if matches!(raw.event, MULTICAST_JOIN | MULTICAST_ERROR) {
        event.group = pointer.cast();
        // SAFETY: the device gives the join the address that it was made with; it lives until its events are acknowledged.
        event.owner = unsafe { (*event.group).id };
    } else {
        event.owner = pointer.cast();
    }
    event.public.id = event.owner;
    event.copy_param(raw);
    let seen = match raw.event {
        ADDR_RESOLVED => event.settle(address::query(event.owner), ADDR_ERROR),
        ROUTE_RESOLVED => event.settle(address::query(event.owner), ROUTE_ERROR),
        CONNECT_REQUEST => event.request(channel, raw),
        CONNECT_RESPONSE => event.response(raw.ece),
        REJECTED if state(event.owner).connect_error => false,
        REJECTED => {
            connection::to_error(event.owner);
            true
        }
        DISCONNECTED => !state(event.owner).connect_error,
        MULTICAST_JOIN => {
            let joined = group::joined(event.group, event.ud().ah_attr.grh.dgid, event.ud().ah_attr.dlid);
            event.settle(joined, MULTICAST_ERROR)
        }
        _ => true,
    };
    if seen {
        return Some(event);
    }
    private(event.owner).acknowledge();
    None
}

impl Object {
    /// What was done for the event failed: it is an error instead.
    fn settle(&mut self, done: Result<(), Errno>, error: u32) -> bool {
        if let Err(errno) = done {
            self.public.event = error;
            self.public.status = -errno;
        }
        true
    }

    fn ud(&self) -> CmUdParam {
        // SAFETY: numbers and a pointer, whichever arm was written.
        unsafe { self.public.param.ud }
    }

    fn copy_param(&mut self, raw: &ucma::EventResp) {
        let is_ud = id::is_ud(self.owner);
        let (data, length) = match (ucma::UdParam::read(&raw.param), ucma::ConnParam::read(&raw.param)) {
            (Some(ud), _) if is_ud => {
                let ah_attr = address::ah_attr(&ud.ah_attr);
                let private_data = std::ptr::null();
                let (qp_num, qkey, private_data_len) = (ud.qp_num, ud.qkey, ud.private_data_len);
                self.public.param.ud = CmUdParam { private_data, private_data_len, ah_attr, qp_num, qkey };
                (ud.private_data, ud.private_data_len)
            }
            (_, Some(conn)) => {
                self.public.param.conn = CmConnParam {
                    private_data: std::ptr::null(),
                    private_data_len: conn.private_data_len,
                    responder_resources: conn.responder_resources,
                    initiator_depth: conn.initiator_depth,
                    flow_control: conn.flow_control,
                    retry_count: conn.retry_count,
                    rnr_retry_count: conn.rnr_retry_count,
                    srq: conn.srq,
                    qp_num: conn.qp_num,
                };
                (conn.private_data, conn.private_data_len)
            }
            _ => return,
        };
        self.private_data = data;
        // The pointer is the first member of both arms.
        self.public.param.ud.private_data = if !self.group.is_null() {
            // SAFETY: the join of this event lives.
            unsafe { (*self.group).context.cast_const() }
        } else if length > 0 {
            self.private_data.as_ptr().cast()
        } else {
            std::ptr::null()
        };
    }

    /// The new identifier of a request. If it cannot be made, the request is as good as never seen.
    fn request(&mut self, channel: *mut CmChannel, raw: &ucma::EventResp) -> bool {
        let listener = self.owner;
        // SAFETY: the listener lives while it has an event that is not acknowledged, the channel while it is used.
        let (made, fd) =
            unsafe { (id::allocate(channel, (*listener).context, (*listener).ps, (*listener).qp_type), (*channel).fd) };
        let Ok(new) = made else {
            let _ = id::destroy_handle(fd, raw.id);
            return false;
        };
        {
            let mut state = state(new);
            state.handle = raw.id;
            state.remote_ece = raw.ece;
            if !id::is_ud(listener) {
                // SAFETY: `copy_param` wrote this arm.
                let conn = unsafe { self.public.param.conn };
                (state.initiator_depth, state.responder_resources) = (conn.initiator_depth, conn.responder_resources);
            }
        }
        let own_channel = if state(listener).sync { id::migrate(new, null_mut()) } else { Ok(()) };
        if own_channel.and_then(|()| address::query(new)).is_err() {
            // SAFETY: nobody else has it.
            unsafe { id::rdma_destroy_id(new) };
            return false;
        }
        (self.public.id, self.public.listen_id) = (new, listener);
        true
    }

    /// The peer accepted: a QP that the identifier has is brought up, and the peer told.
    fn response(&mut self, ece: ucma::Ece) -> bool {
        state(self.owner).remote_ece = ece;
        // SAFETY: a living identifier.
        if unsafe { (*self.owner).qp.is_null() } {
            return true;
        }
        self.public.event = ESTABLISHED;
        match connection::bring_up(self.owner, ece) {
            Ok(()) => true,
            Err(errno) => {
                state(self.owner).connect_error = true;
                self.settle(Err(errno), CONNECT_ERROR)
            }
        }
    }
}

/// `rdma_create_event_channel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut CmChannel {
    let opened = device::any().and_then(|()| {
        // SAFETY: no memory is passed.
        match unsafe { sfab_ucma_open(libc::O_RDWR | libc::O_CLOEXEC) } {
            -1 => Err(errno()),
            fd => Ok(Box::into_raw(Box::new(abi::CmChannel { fd }))),
        }
    });
    opened.unwrap_or_else(|errno| {
        status(Err(errno));
        null_mut()
    })
}

/// `rdma_destroy_event_channel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut CmChannel) {
    // SAFETY: the program's channel, made here, for the last time.
    unsafe {
        sfab_ucma_close((*channel).fd);
        drop(Box::from_raw(channel));
    }
}

/// `rdma_get_cm_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut CmChannel, event: *mut *mut CmEvent) -> c_int {
    if channel.is_null() || event.is_null() {
        return status(Err(libc::EINVAL));
    }
    // SAFETY: the caller's place.
    status(next(channel).map(|next| unsafe { *event = next }))
}

/// `rdma_ack_cm_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    if event.is_null() {
        return status(Err(libc::EINVAL));
    }
    // SAFETY: the program's event, made here, for the last time.
    let event = unsafe { Box::from_raw(event.cast::<Object>()) };
    if !event.group.is_null() {
        group::acknowledge(event.group);
    }
    private(event.owner).acknowledge();
    0
}

/// `rdma_event_str`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    NAMES.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}
