//! XRC domains.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use scalefabric_verbs::{VerbsError, XrcDomain, XrcdInit};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside, Parent, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::device::{Device, operation};
use crate::objects::{owned, returned};

/// An XRC domain.
#[derive(Debug)]
pub(crate) struct XrcdObject {
    pub(crate) device: Arc<Device>,
    pub(crate) shared: Arc<Shared>,
}

/// The domain itself.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Arc<Device>,
    handle: Handle<abi::Xrcd>,
    parents: Parents<()>,
    uses: AtomicUsize,
}

owned!(XrcdObject);

impl Parent for Shared {
    fn uses(&self) -> &AtomicUsize {
        &self.uses
    }
}

fn close(device: &Device, xrcd: *mut abi::Xrcd) -> i32 {
    let context = device.context();
    match operation!(context.pointer(), close_xrcd) {
        // SAFETY: a living domain that nothing hangs on.
        Some(close) => returned(unsafe { close(xrcd) }),
        None => libc::EOPNOTSUPP,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.handle.end(|xrcd| close(&self.device, xrcd));
    }
}

impl Shared {
    pub(crate) fn enter(&self) -> Result<Inside<'_, abi::Xrcd>, VerbsError> {
        self.handle.enter_or("XRC domain")
    }
}

impl XrcdObject {
    pub(crate) fn open(device: &Arc<Device>, init: &XrcdInit) -> Result<Arc<Self>, VerbsError> {
        let context = device.context();
        let open = operation!(context.pointer(), open_xrcd).ok_or_else(|| explain::unsupported("XRC domains"))?;
        let mut oflags = 0;
        if init.create || init.fd.is_none() {
            oflags |= libc::O_CREAT;
        }
        if init.exclusive {
            oflags |= libc::O_EXCL;
        }
        // Descriptor and flags are given.
        let mut attr = abi::XrcdInitAttr { comp_mask: 3, fd: init.fd.unwrap_or(-1), oflags };
        // SAFETY: an open context, and attributes that are read only.
        let xrcd = unsafe { open(context.pointer(), &mut attr) };
        if xrcd.is_null() {
            return Err(match last_errno() {
                libc::EOPNOTSUPP | libc::ENOSYS => explain::unsupported("XRC domains"),
                libc::EINVAL if device.attr_or_none().is_none_or(|attr| attr.device_cap_flags & (1 << 20) == 0) => {
                    explain::unsupported("XRC domains (device_cap_flags has no XRC)")
                }
                raw => explain::failed("open an XRC domain", raw),
            });
        }
        let shared = Arc::new(Shared {
            device: device.clone(),
            handle: Handle::new(xrcd),
            parents: Parents::new(()),
            uses: AtomicUsize::new(0),
        });
        Ok(Arc::new(Self { device: device.clone(), shared }))
    }

    pub(crate) fn used(&self) -> Use<Shared> {
        Use::of(&self.shared)
    }
}

impl XrcDomain for XrcdObject {
    fn destroy(&self) -> Result<(), VerbsError> {
        let shared = &self.shared;
        destroy(&shared.handle, &shared.parents, Some(&shared.uses), "XRC domain", |xrcd| close(&self.device, xrcd))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
