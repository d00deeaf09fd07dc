//! A memory region with its charge, which follows the region when its range changes and is given back when it is deregistered or dropped.

use super::Charge;
use crate::directory::Holdings;
use scalefabric_verbs::{AccessFlags, LKey, MemoryRegion, ProtectionDomain, RKey, VerbsError, Word};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(super) struct TenantRegion {
    // Dropped before the charge: what is given back is gone.
    inner: Arc<dyn MemoryRegion>,
    charge: Mutex<Option<Charge>>,
}

impl TenantRegion {
    pub fn new(inner: Arc<dyn MemoryRegion>, charge: Charge) -> Self {
        Self { inner, charge: Mutex::new(Some(charge)) }
    }
}

impl MemoryRegion for TenantRegion {
    fn addr(&self) -> u64 {
        self.inner.addr()
    }
    fn length(&self) -> usize {
        self.inner.length()
    }
    fn lkey(&self) -> LKey {
        self.inner.lkey()
    }
    fn rkey(&self) -> RKey {
        self.inner.rkey()
    }
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        self.inner.write(offset, data)
    }
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        self.inner.read(offset, out)
    }
    fn load_u64(&self, offset: usize) -> Result<u64, VerbsError> {
        self.inner.load_u64(offset)
    }
    fn word(&self, offset: usize) -> Result<Option<Arc<dyn Word>>, VerbsError> {
        self.inner.word(offset)
    }
    fn store_u64(&self, offset: usize, value: u64) -> Result<(), VerbsError> {
        self.inner.store_u64(offset, value)
    }
    unsafe fn rereg(
        &self,
        range: Option<(*mut u8, usize)>,
        pd: Option<&Arc<dyn ProtectionDomain>>,
        access: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        let mut charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        let more = match (&*charge, range) {
            (Some(charge), Some((_, length))) => {
                let memory_bytes = (length as u64).saturating_sub(charge.what.memory_bytes);
                Some((charge.ledger.charge(Holdings { memory_bytes, ..Holdings::default() })?, length as u64))
            }
            _ => None,
        };
        // SAFETY: the caller keeps what it has promised; it is handed on as it is.
        unsafe { self.inner.rereg(range, pd, access) }?;
        if let (Some(charge), Some((mut more, length))) = (&mut *charge, more) {
            // What it has less than before is given back with `more`.
            let freed = charge.what.memory_bytes.saturating_sub(length);
            more.what.memory_bytes = freed;
            charge.what.memory_bytes = length;
        }
        Ok(())
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.destroy()?;
        self.charge.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}
