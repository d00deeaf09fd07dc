//! Protection domains (clause 11.2.1.4): what memory, windows, QPs, SRQs and address handles belong to.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, DeviceMemory, Errno, MemoryRegion, MemoryWindow, MrAdvice, MwType,
    OdpFlags, ProtectionDomain, QpInit, QueuePair, Sge, SharedMemory, SharedReceiveQueue, SrqInit, VerbsError,
    WorkCompletion,
};

use super::address_handle::{AhObject, answer};
use super::context::Device;
use super::device_memory::DmObject;
use super::memory_region::{MrObject, MwObject};
use super::queue_pair::QpObject;
use super::quota::Token;
use super::shared_receive_queue::SrqObject;
use super::{Alive, ours};
use crate::engine::drive::Core;
use crate::memory::{PdId, Registration};
use crate::port::faults::Verb;
use crate::resources::PdResource;

/// What the objects of a PD hold.
#[derive(Debug)]
pub(crate) struct Pd {
    device: Arc<Device>,
    id: PdId,
    users: AtomicU32,
    alive: Alive,
    _token: Token,
}

impl Pd {
    pub(crate) fn resource(&self, number: u32) -> PdResource {
        PdResource { pdn: number, ctxn: self.device.number, users: self.users.load(Ordering::Acquire) }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if self.alive.end() {
            self.device.core.registry().pd_is_gone(self.id.0);
        }
    }
}

/// A use of a PD, until its object is destroyed: whoever still has a handle of that does not keep the PD busy.
#[derive(Debug)]
pub(crate) struct PdUse {
    pd: Arc<Pd>,
    held: AtomicBool,
}

impl PdUse {
    fn new(pd: &Arc<Pd>) -> Result<Self, VerbsError> {
        pd.alive.check("protection domain")?;
        pd.users.fetch_add(1, Ordering::AcqRel);
        Ok(Self { pd: pd.clone(), held: AtomicBool::new(true) })
    }

    pub(crate) fn id(&self) -> PdId {
        self.pd.id
    }

    /// The object is destroyed.
    pub(crate) fn release(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.pd.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for PdUse {
    fn drop(&mut self) {
        self.release();
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct PdObject {
    pd: Arc<Pd>,
}

impl PdObject {
    pub(crate) fn new(device: &Arc<Device>, id: u32, token: Token) -> Self {
        let pd =
            Pd { device: device.clone(), id: PdId(id), users: AtomicU32::new(0), alive: Alive::new(), _token: token };
        let pd = Arc::new(pd);
        device.core.registry().pd_is_born(id, &pd);
        Self { pd }
    }

    fn core(&self) -> &Arc<Core> {
        &self.pd.device.core
    }

    pub(crate) fn enter(&self) -> Result<PdUse, VerbsError> {
        PdUse::new(&self.pd)
    }
}

impl ProtectionDomain for PdObject {
    fn pd_num(&self) -> u32 {
        self.pd.id.0
    }

    unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let pd = self.enter()?;
        let max = self.core().config().attr.max_mr_size;
        if length as u64 > max && length != usize::MAX {
            return Err(VerbsError::invalid(format!("{length} bytes are more than max_mr_size {max}")));
        }
        check_on_demand(self.core(), access)?;
        self.core().check_verb(Verb::RegMr)?;
        let token = self.core().registry().mrs.take()?;
        let registration = Registration { pd: pd.id(), addr, length, iova, access };
        // SAFETY: the caller's promise is exactly the one that `register` asks for.
        let region = unsafe { self.core().memory().register(registration)? };
        Ok(Arc::new(MrObject::new(region, pd, token)))
    }

    fn reg_dm_mr(
        &self,
        dm: &Arc<dyn DeviceMemory>,
        offset: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let pd = self.enter()?;
        check_on_demand(self.core(), access)?;
        self.core().check_verb(Verb::RegMr)?;
        let used = ours::<DmObject>(self.core(), dm.as_any(), "device memory")?.enter(offset, length)?;
        let token = self.core().registry().mrs.take()?;
        let piece = &used.0.allocation;
        let region = self.core().memory().register_piece(pd.id(), piece, offset as usize, length, access)?;
        Ok(Arc::new(MrObject::new(region, pd, token).over(used)))
    }

    fn advise_mr(&self, advice: MrAdvice, flush: bool, sg_list: &[Sge]) -> Result<(), VerbsError> {
        self.pd.alive.check("protection domain")?;
        if !self.core().config().attr.odp.general.contains(OdpFlags::SUPPORT) {
            return Err(no_on_demand());
        }
        self.core().memory().advise(self.pd.id, advice, flush, sg_list)
    }

    fn alloc_mr(&self, length: usize, access: AccessFlags) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let pd = self.enter()?;
        self.core().check_verb(Verb::RegMr)?;
        let token = self.core().registry().mrs.take()?;
        let region = self.core().memory().allocate(pd.id(), length, access)?;
        Ok(Arc::new(MrObject::new(region, pd, token)))
    }

    fn alloc_shared(&self, length: usize) -> Result<Arc<dyn SharedMemory>, VerbsError> {
        self.pd.alive.check("protection domain")?;
        Ok(Arc::new(self.core().memory().allocate_shared(length)?))
    }

    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn MemoryWindow>, VerbsError> {
        let pd = self.enter()?;
        self.core().check_verb(Verb::AllocMw)?;
        let token = self.core().registry().mws.take()?;
        let window = self.core().memory().allocate_window(pd.id(), mw_type)?;
        Ok(Arc::new(MwObject::new(window, pd, token)))
    }

    fn create_qp(&self, init: &QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.core().check_verb(Verb::CreateQp)?;
        Ok(Arc::new(QpObject::new(&self.pd.device, self.enter()?, init)?))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        self.core().check_verb(Verb::CreateSrq)?;
        Ok(Arc::new(SrqObject::new(&self.pd.device, self.enter()?, init)?))
    }

    fn create_ah(&self, av: &AddressVector) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        self.core().check_verb(Verb::CreateAh)?;
        let token = self.core().registry().ahs.take()?;
        Ok(Arc::new(AhObject::new(self.core(), self.enter()?, av, token)?))
    }

    fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        let av = answer(self.core().enter()?.engine.tables().port_or_err(port_num)?, port_num, wc, grh)?;
        self.create_ah(&av)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.pd.alive.is_inherited() {
            return Ok(());
        }
        self.pd.alive.check("protection domain")?;
        let users = self.pd.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!(
                    "protection domain {} still has {users} memory regions, windows, QPs, SRQs or address handles: destroy \
                     them first",
                    self.pd.id.0
                ),
            ));
        }
        self.pd.alive.end();
        self.core().registry().pd_is_gone(self.pd.id.0);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn no_on_demand() -> VerbsError {
    VerbsError::misuse(
        Errno::EOPNOTSUPP,
        "this device has no on-demand paging (see its ODP capabilities): register without",
    )
}

fn check_on_demand(core: &Core, access: AccessFlags) -> Result<(), VerbsError> {
    let has = core.config().attr.odp.general.contains(OdpFlags::SUPPORT);
    if access.contains(AccessFlags::ON_DEMAND) && !has { Err(no_on_demand()) } else { Ok(()) }
}

/// The PD behind a trait object, which must be of the same device as `pd`.
pub(crate) fn pd_of(like: &PdUse, pd: &Arc<dyn ProtectionDomain>) -> Result<PdUse, VerbsError> {
    pd.as_any()
        .downcast_ref::<PdObject>()
        .filter(|pd| Arc::ptr_eq(&pd.pd.device.core, &like.pd.device.core))
        .ok_or_else(|| VerbsError::invalid("the protection domain is of another device: use one of this device"))?
        .enter()
}
