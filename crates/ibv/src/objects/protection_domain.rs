//! Protection domains, and what is made of them.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, DeviceMemory, MemoryRegion, MemoryWindow, MrAdvice, MwType,
    ProtectionDomain, QpInit, QueuePair, Sge, SharedReceiveQueue, SrqInit, VerbsError, WorkCompletion,
};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside, Parent, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::address_handle::AhObject;
use crate::objects::device::{Device, operation};
use crate::objects::memory_region::{MrObject, MwObject};
use crate::objects::queue_pair::QpObject;
use crate::objects::shared_receive_queue::SrqObject;
use crate::objects::{owned, returned};

/// A protection domain: what hangs on it keeps `Shared`.
#[derive(Debug)]
pub(crate) struct PdObject {
    pub(crate) device: Arc<Device>,
    pub(crate) shared: Arc<Shared>,
}

/// The domain itself.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Arc<Device>,
    handle: Handle<abi::Pd>,
    parents: Parents<()>,
    uses: AtomicUsize,
}

owned!(PdObject);

impl Parent for Shared {
    fn uses(&self) -> &AtomicUsize {
        &self.uses
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nothing hangs on it any more.
        let _ = self.handle.end(|pd| unsafe { (self.device.verbs.dealloc_pd)(pd) });
    }
}

impl Shared {
    pub(crate) fn enter(&self) -> Result<Inside<'_, abi::Pd>, VerbsError> {
        self.handle.enter_or("protection domain")
    }
}

impl PdObject {
    pub(crate) fn alloc(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        let context = device.context();
        // SAFETY: an open context.
        let pd = unsafe { (device.verbs.alloc_pd)(context.pointer()) };
        if pd.is_null() {
            return Err(explain::failed("make a protection domain", last_errno()));
        }
        let shared = Arc::new(Shared {
            device: device.clone(),
            handle: Handle::new(pd),
            parents: Parents::new(()),
            uses: AtomicUsize::new(0),
        });
        Ok(Arc::new(Self { device: device.clone(), shared }))
    }

    pub(crate) fn used(&self) -> Use<Shared> {
        Use::of(&self.shared)
    }
}

impl ProtectionDomain for PdObject {
    fn pd_num(&self) -> u32 {
        // SAFETY: `handle` is set when it is made and never changes.
        self.shared.handle.enter().map_or(0, |pd| unsafe { (*pd.pointer()).handle })
    }

    unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { MrObject::register(self, addr, length, iova, access)? })
    }

    fn alloc_mr(&self, length: usize, access: AccessFlags) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        Ok(MrObject::alloc(self, length, access)?)
    }

    fn reg_dm_mr(
        &self,
        dm: &Arc<dyn DeviceMemory>,
        offset: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        Ok(MrObject::of_device_memory(self, dm, offset, length, access)?)
    }

    fn advise_mr(&self, advice: MrAdvice, flush: bool, sg_list: &[Sge]) -> Result<(), VerbsError> {
        let pd = self.shared.enter()?;
        let context = self.device.context();
        let advise =
            operation!(context.pointer(), advise_mr).ok_or_else(|| explain::unsupported("advice on memory regions"))?;
        let list: Vec<abi::Sge> =
            sg_list.iter().map(|sge| abi::Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey.0 }).collect();
        // SAFETY: the list is read only; its length is told.
        let code =
            unsafe { advise(pd.pointer(), advice as u32, flush.into(), list.as_ptr().cast_mut(), list.len() as u32) };
        match code {
            0 => Ok(()),
            code => Err(explain::failed(&format!("advise {advice:?} on {} ranges", list.len()), returned(code))),
        }
    }

    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn MemoryWindow>, VerbsError> {
        Ok(MwObject::alloc(self, mw_type)?)
    }

    fn create_qp(&self, init: &QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Ok(QpObject::create(self, init)?)
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        Ok(SrqObject::create(self, init)?)
    }

    fn create_ah(&self, av: &AddressVector) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        Ok(AhObject::create(self, av)?)
    }

    fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        Ok(AhObject::answering(self, wc, grh, port_num)?)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let shared = &self.shared;
        destroy(&shared.handle, &shared.parents, Some(&shared.uses), "protection domain", |pd| {
            // SAFETY: nothing hangs on it.
            returned(unsafe { (self.device.verbs.dealloc_pd)(pd) })
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
