//! The objects of the verbs over libibverbs: one file for each, or for a few that belong together. What the header of C has
//! inline goes through the tables of operations here. Posting and polling allocate nothing.

mod address_handle;
mod completion_queue;
mod context;
mod device;
mod device_memory;
mod memory_region;
mod protection_domain;
mod queue_pair;
mod shared_receive_queue;
mod work_request;
mod xrc_domain;

pub use context::IbvContext;
pub(crate) use device::{Device, sysfs_interfaces};

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_verbs::VerbsError;

use crate::explain;
use crate::library::last_errno;

/// An object of a device.
pub(crate) trait Owned: 'static {
    /// The device that made it.
    fn device(&self) -> &Arc<Device>;
}

/// This device's object behind a trait object, or the error that says whose it is.
pub(crate) fn ours<'a, T: Owned>(device: &Arc<Device>, any: &'a dyn Any, what: &str) -> Result<&'a T, VerbsError> {
    any.downcast_ref::<T>()
        .filter(|object| Arc::ptr_eq(object.device(), device))
        .ok_or_else(|| VerbsError::invalid(format!("the {what} is of another device: use one of this device")))
}

/// Waits until a descriptor is readable; false when `until` passes.
pub(crate) fn readable(fd: RawFd, until: Option<Instant>) -> Result<bool, VerbsError> {
    loop {
        let timeout = match until {
            None => -1,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                // Rounded up: a rest below a millisecond must not become a busy loop.
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which is ours.
        let ready = unsafe { libc::poll(&mut poll, 1, timeout) };
        match ready {
            0 if until.is_some_and(|until| Instant::now() >= until) => return Ok(false),
            0 => {}
            ready if ready > 0 => return Ok(true),
            _ if last_errno() == libc::EINTR => {}
            _ => return Err(explain::failed("wait for an event", last_errno())),
        }
    }
}

/// When a wait that begins now ends; `None`: never.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Makes a descriptor of libibverbs non-blocking: who waits polls it first, and another thread may take the event meanwhile.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), VerbsError> {
    // SAFETY: plain calls on a descriptor that libibverbs has just opened.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(explain::failed("make an event descriptor non-blocking", last_errno())) }
}

/// An errno that a call returned, as C functions do it: a positive number, or −1 with `errno` set.
pub(crate) fn returned(code: i32) -> i32 {
    match code {
        -1 => last_errno(),
        code => code.abs(),
    }
}

macro_rules! owned {
    ($($object:ty),*) => {
        $( impl crate::objects::Owned for $object {
            fn device(&self) -> &std::sync::Arc<crate::objects::Device> {
                &self.device
            }
        } )*
    };
}
pub(crate) use owned;
