//! Address handles: where a datagram goes.

use std::any::Any;
use std::sync::Arc;

use scalefabric_verbs::{AddressHandle, AddressVector, VerbsError, WorkCompletion};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::device::Device;
use crate::objects::protection_domain::{PdObject, Shared as Pd};
use crate::objects::{owned, returned};
use crate::translate;

/// An address handle.
#[derive(Debug)]
pub(crate) struct AhObject {
    pub(crate) device: Arc<Device>,
    pub(crate) handle: Handle<abi::Ah>,
    av: AddressVector,
    parents: Parents<Use<Pd>>,
}

owned!(AhObject);

impl AhObject {
    pub(crate) fn create(pd: &PdObject, av: &AddressVector) -> Result<Arc<Self>, VerbsError> {
        let device = &pd.device;
        let parent = pd.used();
        let inside = pd.shared.enter()?;
        let mut attr = translate::ah_attr(av);
        // SAFETY: a living PD, and attributes that are read only.
        let ah = unsafe { (device.verbs.create_ah)(inside.pointer(), &mut attr) };
        if ah.is_null() {
            return Err(explain::create_ah(av, &**device, last_errno()));
        }
        drop(inside);
        Ok(Arc::new(Self { device: device.clone(), handle: Handle::new(ah), av: *av, parents: Parents::new(parent) }))
    }

    /// Answers a datagram: libibverbs finds the GID index and turns the path round.
    pub(crate) fn answering(
        pd: &PdObject,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<Arc<Self>, VerbsError> {
        let context = pd.device.context();
        let mut wc = translate::completion_to_c(wc);
        // SAFETY: 40 bytes of any content are a GRH.
        let mut grh: abi::Grh = unsafe { core::ptr::read_unaligned(grh.as_ptr().cast()) };
        // SAFETY: all members are numbers.
        let mut attr: abi::AhAttr = unsafe { core::mem::zeroed() };
        // SAFETY: an open context, and structures of ours.
        let code =
            unsafe { (pd.device.verbs.init_ah_from_wc)(context.pointer(), port_num, &mut wc, &mut grh, &mut attr) };
        if code != 0 {
            let raw = returned(code);
            return Err(match raw {
                libc::EINVAL | libc::ENOENT | libc::EIO => VerbsError::invalid(format!(
                    "cannot answer this datagram from port {port_num}: its GRH names no GID of the port, or the port does \
                     not exist (wc_flags must have GRH)"
                )),
                raw => explain::failed("answer a datagram", raw),
            });
        }
        Self::create(pd, &translate::address_vector(&attr))
    }
}

impl Drop for AhObject {
    fn drop(&mut self) {
        // SAFETY: nobody holds it any more; its PD is still there.
        let _ = self.handle.end(|ah| unsafe { (self.device.verbs.destroy_ah)(ah) });
    }
}

impl AddressHandle for AhObject {
    fn address_vector(&self) -> AddressVector {
        self.av
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        destroy(&self.handle, &self.parents, None, "address handle", |ah| {
            // SAFETY: a living handle, ended once.
            returned(unsafe { (self.device.verbs.destroy_ah)(ah) })
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
