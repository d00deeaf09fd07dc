//! Event channels, and the identifiers of a process by number.

use core::ffi::c_void;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scalefabric_verbs::{CmChannel, CmEvent, CmId, Errno, PortSpace, QpType, VerbsError};

use super::id::IbvCmId;
use super::{done, failed};
use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside};
use crate::library::{self, RdmaCm, last_errno};
use crate::objects::{deadline, readable, set_nonblocking};

/// An event channel.
pub(crate) struct IbvCmChannel {
    pub(crate) cm: &'static RdmaCm,
    handle: Handle<abi::CmChannel>,
    fd: i32,
}

impl core::fmt::Debug for IbvCmChannel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IbvCmChannel").field("handle", &self.handle).field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Every living identifier of the process, by its number, which is its context in C.
static IDENTIFIERS: Mutex<Option<HashMap<u32, Arc<IbvCmId>>>> = Mutex::new(None);
/// Numbers of identifiers and joins.
static NEXT: AtomicU32 = AtomicU32::new(1);

pub(crate) fn next_number() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn table() -> MutexGuard<'static, Option<HashMap<u32, Arc<IbvCmId>>>> {
    IDENTIFIERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn insert(id: &Arc<IbvCmId>) {
    table().get_or_insert_default().insert(id.id(), id.clone());
}

pub(crate) fn remove(number: u32) {
    let gone = table().as_mut().and_then(|ids| ids.remove(&number));
    drop(gone);
}

pub(crate) fn find(number: u32) -> Option<Arc<IbvCmId>> {
    table().as_ref().and_then(|ids| ids.get(&number).cloned())
}

fn all() -> Vec<Arc<IbvCmId>> {
    table().as_ref().map(|ids| ids.values().cloned().collect()).unwrap_or_default()
}

impl IbvCmChannel {
    pub(crate) fn open() -> Result<Arc<Self>, VerbsError> {
        let cm = library::rdma_cm()?;
        // SAFETY: no arguments.
        let channel = unsafe { (cm.create_event_channel)() };
        if channel.is_null() {
            return Err(match last_errno() {
                libc::ENODEV | libc::ENOENT => VerbsError::environment(
                    Errno::ENODEV,
                    "no event channel: there is no RDMA device, or /dev/infiniband/rdma_cm is not there (load rdma_ucm)",
                ),
                _ => failed("open an event channel"),
            });
        }
        // SAFETY: just made.
        let fd = unsafe { (*channel).fd };
        let channel = Arc::new(Self { cm, handle: Handle::new(channel), fd });
        set_nonblocking(fd)?;
        Ok(channel)
    }

    pub(crate) fn enter(&self) -> Result<Inside<'_, abi::CmChannel>, VerbsError> {
        self.handle.enter_or("event channel")
    }
}

impl Drop for IbvCmChannel {
    fn drop(&mut self) {
        let _ = self.handle.end(|channel| {
            // SAFETY: every identifier kept its channel: there is none any more.
            unsafe { (self.cm.destroy_event_channel)(channel) };
            0
        });
    }
}

/// A channel is used through its `Arc`: identifiers keep it.
#[derive(Debug)]
struct ChannelHandle(Arc<IbvCmChannel>);

impl IbvCmChannel {
    /// As the contract hands it out.
    pub(crate) fn handle(self: Arc<Self>) -> Arc<dyn CmChannel> {
        Arc::new(ChannelHandle(self))
    }

    /// The channel behind a handle of the contract.
    pub(crate) fn of(any: &dyn Any) -> Result<Arc<Self>, VerbsError> {
        let handle = any.downcast_ref::<ChannelHandle>();
        handle
            .map(|handle| handle.0.clone())
            .ok_or_else(|| VerbsError::invalid("the event channel is of another backend"))
    }
}

impl CmChannel for ChannelHandle {
    fn fd(&self) -> i32 {
        self.0.fd
    }

    fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>, VerbsError> {
        let until = deadline(timeout);
        loop {
            let channel = self.0.enter()?;
            let mut event = core::ptr::null_mut();
            // SAFETY: a living channel, and a pointer of ours to fill.
            if unsafe { (self.0.cm.get_cm_event)(channel.pointer(), &mut event) } == 0 {
                // SAFETY: an event that was just taken, read, and acknowledged once; its identifiers stay until then.
                let told = unsafe {
                    let told = super::event::translate(&self.0, &*event);
                    (self.0.cm.ack_cm_event)(event);
                    told
                };
                match told {
                    Some(told) => return Ok(Some(told)),
                    None => continue,
                }
            }
            let raw = last_errno();
            drop(channel);
            if !matches!(raw, libc::EAGAIN | libc::EINTR) {
                return Err(explain::failed("take an event", raw));
            }
            if !readable(self.0.fd, until)? {
                return Ok(None);
            }
        }
    }

    fn create_id(&self, space: PortSpace, qp_type: QpType, uid: u64) -> Result<Arc<dyn CmId>, VerbsError> {
        let channel = self.0.enter()?;
        let number = next_number();
        let mut id = core::ptr::null_mut();
        let context = number as usize as *mut c_void;
        // SAFETY: a living channel, and a pointer of ours to fill.
        let code = unsafe { (self.0.cm.create_id)(channel.pointer(), &mut id, context, space.to_raw().into()) };
        done(code, "make an identifier")?;
        let made = IbvCmId::new(&self.0, id, number, space, space.qp_type(qp_type), uid, false);
        insert(&made);
        Ok(made)
    }

    fn find_id(&self, id: u32) -> Result<Arc<dyn CmId>, VerbsError> {
        let found =
            find(id).ok_or_else(|| VerbsError::misuse(Errno::ENOENT, format!("there is no identifier {id}")))?;
        if !found.is_on(&self.0) {
            return Err(VerbsError::invalid(format!("identifier {id} is on another channel")));
        }
        Ok(found)
    }

    fn leave_multicast(&self, multicast_id: u32) -> Result<u32, VerbsError> {
        let on_it = all().into_iter().filter(|id| id.is_on(&self.0));
        for id in on_it {
            if let Some(reported) = id.leave(multicast_id)? {
                return Ok(reported);
            }
        }
        Err(VerbsError::misuse(Errno::ENOENT, format!("there is no join {multicast_id} on this channel")))
    }

    fn close(&self) {
        for id in all() {
            if id.is_on(&self.0) {
                let _ = id.destroy();
            }
        }
        let _ = self.0.handle.end(|channel| {
            // SAFETY: no identifier is left on it.
            unsafe { (self.0.cm.destroy_event_channel)(channel) };
            0
        });
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        self.close();
    }
}
