//! Identifiers. The program sees a `struct rdma_cm_id`; what it does not see stands behind it. Their number in the device is `handle`,
//! and the device gives their events the address of the identifier.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use scalefabric_ibv::abi::ucma::{self, Command};
use scalefabric_ibv::abi::{self, CmChannel, CmId};

use crate::command::ask;
use crate::device::{self, Device};
use crate::engine::*;
use crate::event::{self, rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel};
use crate::group::Group;

/// Port spaces.
pub const PS_IPOIB: u32 = 0x0002;
/// Connections.
pub const PS_TCP: u32 = 0x0106;
/// Datagrams.
pub const PS_UDP: u32 = 0x0111;

/// QP types.
pub const QPT_RC: u32 = 2;
/// Unreliable connection.
pub const QPT_UC: u32 = 3;
/// Datagrams.
pub const QPT_UD: u32 = 4;
/// XRC, the sending side.
pub const QPT_XRC_SEND: u32 = 9;
/// XRC, the receiving side.
pub const QPT_XRC_RECV: u32 = 10;

/// An identifier with what the program does not see.
#[repr(C)]
struct Object {
    public: CmId,
    private: Private,
}

/// What the program does not see.
pub struct Private {
    state: Mutex<State>,
    /// Rings when events are acknowledged.
    acknowledged: Condvar,
}

/// The part that changes.
pub struct State {
    /// Number in the device.
    pub handle: u32,
    /// It has a channel for itself: calls wait for their events.
    pub sync: bool,
    /// Bound to.
    pub device: Option<&'static Device>,
    /// Events that were acknowledged.
    pub completed: u32,
    /// Groups joined.
    pub groups: Vec<*mut Group>,
    /// Private data that `rdma_create_ep` was given for `rdma_connect`.
    pub connect: Vec<u8>,
    /// QP that `rdma_get_request` makes.
    pub qp_init_attr: Option<abi::QpInitAttr>,
    /// Depths of the connection.
    pub initiator_depth: u8,
    /// As above.
    pub responder_resources: u8,
    /// The QP could not be brought up: REJECTED and DISCONNECTED are not told.
    pub connect_error: bool,
    /// ECE option that we offer or answer.
    pub local_ece: ucma::Ece,
    /// The peer's.
    pub remote_ece: ucma::Ece,
}

/// What stands behind an identifier.
pub fn private<'a>(id: *mut CmId) -> &'a Private {
    // SAFETY: identifiers are made here, as objects, and the program passes living ones.
    unsafe { &(*id.cast::<Object>()).private }
}

/// Its part that changes. Not held while anything is called.
pub fn state<'a>(id: *mut CmId) -> MutexGuard<'a, State> {
    private(id).state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its descriptor and its number.
pub fn place(id: *mut CmId) -> (c_int, u32) {
    // SAFETY: a living identifier has a channel.
    (unsafe { (*(*id).channel).fd }, state(id).handle)
}

impl Private {
    /// Counts an acknowledged event.
    pub fn acknowledge(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).completed += 1;
        self.acknowledged.notify_all();
    }

    /// Waits until `done` says that enough events are acknowledged.
    pub fn wait(&self, mut done: impl FnMut(&mut State) -> bool) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.acknowledged.wait_while(state, |state| !done(state)).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Whether the identifier is for datagrams.
pub fn is_ud(id: *mut CmId) -> bool {
    // SAFETY: a living identifier.
    unsafe { (*id).qp_type == QPT_UD }
}

/// An identifier that has no number yet. Without a channel it gets one of its own.
pub fn allocate(channel: *mut CmChannel, context: *mut c_void, ps: u32, qp_type: u32) -> Result<*mut CmId, Errno> {
    let sync = channel.is_null();
    // SAFETY: makes a channel.
    let channel = if sync { made(unsafe { rdma_create_event_channel() })? } else { channel };
    // SAFETY: zeros are a value: null pointers and numbers.
    let mut public: CmId = unsafe { std::mem::zeroed() };
    (public.channel, public.context, public.ps, public.qp_type) = (channel, context, ps, qp_type);
    let none = ucma::Ece { vendor_id: 0, attr_mod: 0 };
    let state = State {
        handle: u32::MAX,
        sync,
        device: None,
        completed: 0,
        groups: Vec::new(),
        connect: Vec::new(),
        qp_init_attr: None,
        initiator_depth: 0,
        responder_resources: 0,
        connect_error: false,
        local_ece: none,
        remote_ece: none,
    };
    let private = Private { state: Mutex::new(state), acknowledged: Condvar::new() };
    Ok(Box::into_raw(Box::new(Object { public, private })).cast())
}

/// Frees an identifier that is gone from the device.
pub fn free(id: *mut CmId) {
    // SAFETY: it was allocated here, and nobody else has it any more.
    let mut object = unsafe { Box::from_raw(id.cast::<Object>()) };
    let state = object.private.state.get_mut().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = state.device {
        device.release();
    }
    for group in state.groups.drain(..) {
        // SAFETY: a group in the list was made as a Box.
        drop(unsafe { Box::from_raw(group) });
    }
    crate::address::free_paths(&mut object.public.route);
    if state.sync {
        // SAFETY: the identifier's own channel.
        unsafe { rdma_destroy_event_channel(object.public.channel) };
    }
}

/// Makes an identifier.
pub fn create(channel: *mut CmChannel, context: *mut c_void, ps: u32, qp_type: u32) -> Result<*mut CmId, Errno> {
    device::any()?;
    let id = allocate(channel, context, ps, qp_type)?;
    let answer = ask(place(id).0, Command::CreateId, |response| ucma::CreateId {
        uid: id.expose_provenance() as u64,
        response,
        ps: ps as u16,
        qp_type: qp_type as u8,
        reserved: [0; 5],
    });
    match answer {
        Ok(ucma::Word { value }) => {
            state(id).handle = value;
            Ok(id)
        }
        Err(errno) => {
            free(id);
            Err(errno)
        }
    }
}

/// Destroys a number in the device: how many events it has reported.
pub fn destroy_handle(fd: c_int, handle: u32) -> Result<u32, Errno> {
    let answer: ucma::Word =
        ask(fd, Command::DestroyId, |response| ucma::DestroyId { response, id: handle, reserved: 0 })?;
    Ok(answer.value)
}

/// Waits for the event that follows a call, where the identifier has its channel for itself.
pub fn complete(id: *mut CmId) -> Result<(), Errno> {
    if !state(id).sync {
        return Ok(());
    }
    acknowledge_last(id);
    // SAFETY: a living identifier, whose channel is its own; the event is ours until it is acknowledged.
    unsafe {
        (*id).event = event::next((*id).channel)?;
        match ((*(*id).event).event, (*(*id).event).status) {
            (_, 0) => Ok(()),
            (event::REJECTED, _) => Err(libc::ECONNREFUSED),
            (_, status) => Err(status.abs()),
        }
    }
}

/// Acknowledges the event that the last call left in the identifier.
pub fn acknowledge_last(id: *mut CmId) {
    // SAFETY: a living identifier; its event is one that was not acknowledged.
    unsafe {
        if !(*id).event.is_null() {
            rdma_ack_cm_event((*id).event);
            (*id).event = null_mut();
        }
    }
}

/// Moves an identifier to another channel, or to one of its own.
pub fn migrate(id: *mut CmId, channel: *mut CmChannel) -> Result<(), Errno> {
    let was_sync = state(id).sync;
    if was_sync && channel.is_null() {
        return Err(libc::EINVAL);
    }
    let sync = channel.is_null();
    // SAFETY: makes a channel.
    let channel = if sync { made(unsafe { rdma_create_event_channel() })? } else { channel };
    let (from, handle) = place(id);
    // SAFETY: the channel is the caller's, or new.
    let to = unsafe { (*channel).fd };
    let answer =
        ask(to, Command::MigrateId, |response| ucma::MigrateId { response, id: handle, fd: from.cast_unsigned() });
    let reported = match answer {
        Ok(ucma::Word { value }) => value,
        Err(errno) => {
            if sync {
                // SAFETY: the new channel.
                unsafe { rdma_destroy_event_channel(channel) };
            }
            return Err(errno);
        }
    };
    // SAFETY: a living identifier.
    let old = unsafe { std::mem::replace(&mut (*id).channel, channel) };
    state(id).sync = sync;
    if was_sync {
        acknowledge_last(id);
        // SAFETY: the identifier's own channel, which it has left.
        unsafe { rdma_destroy_event_channel(old) };
    }
    private(id).wait(|state| state.completed >= reported);
    Ok(())
}

/// `rdma_create_id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut CmChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    let qp_type = if matches!(ps, PS_IPOIB | PS_UDP) { QPT_UD } else { QPT_RC };
    // SAFETY: the caller's place.
    status(create(channel, context, ps, qp_type).map(|new| unsafe { *id = new }))
}

/// `rdma_destroy_id`: waits until all its events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut CmId) -> c_int {
    let (fd, handle) = place(id);
    status(destroy_handle(fd, handle).map(|reported| {
        acknowledge_last(id);
        private(id).wait(|state| state.completed >= reported);
        free(id);
    }))
}

/// `rdma_migrate_id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut CmId, channel: *mut CmChannel) -> c_int {
    status(migrate(id, channel))
}
