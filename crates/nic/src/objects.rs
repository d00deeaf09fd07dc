//! The objects of the verbs, as the software NIC makes them: one file per object, each implementing its trait of
//! `scalefabric-verbs` over the engine.
//!
//! Handles are `Arc`s and keep their parents alive. `destroy` refuses with EBUSY what the standard refuses; dropping the
//! last handle destroys, too, and takes what hangs on it along. Nothing here is on the data path but the posting and
//! polling that it passes on.

mod address_handle;
mod completion_queue;
mod context;
mod device_memory;
mod memory_region;
mod protection_domain;
mod queue_pair;
mod quota;
mod shared_receive_queue;
mod xrc_domain;

pub use address_handle::AhObject;
pub use completion_queue::{ChannelObject, CqObject};
pub use context::{NicContext, width_and_speed};
pub use device_memory::DmObject;
pub use memory_region::{MrObject, MwObject};
pub use protection_domain::PdObject;
pub use queue_pair::QpObject;
pub(crate) use quota::Registry;
pub use shared_receive_queue::SrqObject;
pub use xrc_domain::XrcdObject;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scalefabric_verbs::{Errno, PostError, VerbsError};

use crate::engine::drive::Core;
use crate::process::Home;

/// Whether an object still lives; `destroy` may be called once. In a forked child nothing of the parent's does.
#[derive(Debug)]
pub(crate) struct Alive {
    home: Home,
    alive: AtomicBool,
}

impl Alive {
    pub(crate) fn new() -> Self {
        Self { home: Home::here(), alive: AtomicBool::new(true) }
    }

    #[inline]
    pub(crate) fn is(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.home.is_here()
    }

    /// True in a forked child: to destroy it there succeeds and does nothing.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.home.is_here()
    }

    /// The object must live.
    pub(crate) fn check(&self, what: &str) -> Result<(), VerbsError> {
        self.home.check(what)?;
        if self.is() {
            Ok(())
        } else {
            Err(VerbsError::invalid(format!("this {what} was destroyed: the handle is stale")))
        }
    }

    /// What a posting verb says of one that does not live.
    pub(crate) fn check_post(&self, destroyed: &'static str) -> Result<(), PostError> {
        if self.is() {
            return Ok(());
        }
        let inherited = "it belongs to the parent process: a forked child opens the device for itself";
        Err(if self.is_inherited() {
            PostError { index: 0, errno: Errno::ENODEV, reason: inherited }
        } else {
            PostError { index: 0, errno: Errno::EINVAL, reason: destroyed }
        })
    }

    /// Ends it; false if it had ended before, or is the parent's.
    pub(crate) fn end(&self) -> bool {
        !self.is_inherited() && self.alive.swap(false, Ordering::AcqRel)
    }
}

/// An object of a device.
pub(crate) trait Owned: 'static {
    /// The NIC that made it.
    fn core(&self) -> &Arc<Core>;
}

/// This NIC's object behind a trait object, or the error that says whose it is: numbers of another NIC's objects would
/// mean something else here.
pub(crate) fn ours<'a, T: Owned>(core: &Arc<Core>, any: &'a dyn Any, what: &str) -> Result<&'a T, VerbsError> {
    any.downcast_ref::<T>()
        .filter(|object| Arc::ptr_eq(object.core(), core))
        .ok_or_else(|| VerbsError::invalid(format!("the {what} is of another device: use one of this device")))
}

macro_rules! owned {
    ($($object:ty),*) => {
        $( impl Owned for $object {
            fn core(&self) -> &Arc<Core> {
                &self.core
            }
        } )*
    };
}

owned!(ChannelObject, CqObject, DmObject, SrqObject, XrcdObject);
