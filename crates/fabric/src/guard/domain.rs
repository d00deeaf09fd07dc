//! A protection domain: regions and QPs are charged before they are made. Regions of device memory are charged as regions, their bytes are the device's.

use super::Ledger;
use super::queue_pair::TenantQueuePair;
use super::region::TenantRegion;
use crate::directory::Holdings;
use scalefabric_verbs::device_memory::DeviceMemory;
use scalefabric_verbs::on_demand::MrAdvice;
use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, MemoryRegion, MemoryWindow, MwType, ProtectionDomain, QpInit, QueuePair,
    Sge, SharedMemory, SharedReceiveQueue, SrqInit, VerbsError, WorkCompletion,
};
use std::any::Any;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct TenantDomain {
    pub inner: Arc<dyn ProtectionDomain>,
    pub ledger: Arc<Ledger>,
}

impl TenantDomain {
    fn region(
        &self,
        length: usize,
        make: impl FnOnce() -> Result<Arc<dyn MemoryRegion>, VerbsError>,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let charge = self.ledger.charge(Holdings { mrs: 1, memory_bytes: length as u64, qps: 0 })?;
        Ok(Arc::new(TenantRegion::new(make()?, charge)))
    }
}

impl ProtectionDomain for TenantDomain {
    fn pd_num(&self) -> u32 {
        self.inner.pd_num()
    }
    unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        // SAFETY: the caller keeps what it has promised; it is handed on as it is.
        self.region(length, || unsafe { self.inner.reg_mr(addr, length, iova, access) })
    }
    fn alloc_mr(&self, length: usize, access: AccessFlags) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.region(length, || self.inner.alloc_mr(length, access))
    }
    /// Regions are charged, and this is none.
    fn alloc_shared(&self, length: usize) -> Result<Arc<dyn SharedMemory>, VerbsError> {
        self.inner.alloc_shared(length)
    }
    fn reg_dm_mr(
        &self,
        dm: &Arc<dyn DeviceMemory>,
        offset: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.region(0, || self.inner.reg_dm_mr(dm, offset, length, access))
    }
    fn advise_mr(&self, advice: MrAdvice, flush: bool, sg_list: &[Sge]) -> Result<(), VerbsError> {
        self.inner.advise_mr(advice, flush, sg_list)
    }
    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn MemoryWindow>, VerbsError> {
        self.inner.alloc_mw(mw_type)
    }
    fn create_qp(&self, init: &QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let charge = self.ledger.charge(Holdings { qps: 1, ..Holdings::default() })?;
        Ok(Arc::new(TenantQueuePair::new(self.inner.create_qp(init)?, charge)))
    }
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        self.inner.create_srq(init)
    }
    fn create_ah(&self, av: &AddressVector) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        self.inner.create_ah(av)
    }
    fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        self.inner.create_ah_from_wc(wc, grh, port_num)
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.destroy()
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}
