//! Memory regions and windows as objects; what they are is in `memory/`.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_verbs::{
    AccessFlags, LKey, MemoryRegion, MemoryWindow, MwType, ProtectionDomain, RKey, VerbsError, Word,
};

use super::Alive;
use super::device_memory::DmUse;
use super::protection_domain::{PdUse, pd_of};
use super::quota::Token;
use crate::memory::{Region, Window};

/// A memory region.
#[derive(Debug)]
pub struct MrObject {
    region: Region,
    /// Changes with `rereg`. `None` once deregistered: the PD is free then, whoever still has the handle.
    pd: Mutex<Option<PdUse>>,
    /// Its device memory, until it is deregistered.
    dm: Mutex<Option<DmUse>>,
    alive: Alive,
    _token: Token,
}

impl MrObject {
    pub(crate) fn new(region: Region, pd: PdUse, token: Token) -> Self {
        Self { region, pd: Mutex::new(Some(pd)), dm: Mutex::new(None), alive: Alive::new(), _token: token }
    }

    /// The same region, which lies in device memory.
    pub(crate) fn over(mut self, dm: DmUse) -> Self {
        self.dm = Mutex::new(Some(dm));
        self
    }

    fn dm(&self) -> MutexGuard<'_, Option<DmUse>> {
        self.dm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pd(&self) -> MutexGuard<'_, Option<PdUse>> {
        self.pd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryRegion for MrObject {
    fn addr(&self) -> u64 {
        self.region.addr()
    }
    fn length(&self) -> usize {
        self.region.length()
    }
    fn lkey(&self) -> LKey {
        self.region.lkey()
    }
    fn rkey(&self) -> RKey {
        self.region.rkey()
    }
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        self.region.write(offset, data)
    }
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        self.region.read(offset, out)
    }
    fn load_u64(&self, offset: usize) -> Result<u64, VerbsError> {
        self.region.load_u64(offset)
    }
    fn word(&self, offset: usize) -> Result<Option<Arc<dyn Word>>, VerbsError> {
        Ok(self.region.word(offset)?.map(|word| Arc::new(word) as Arc<dyn Word>))
    }
    fn store_u64(&self, offset: usize, value: u64) -> Result<(), VerbsError> {
        self.region.store_u64(offset, value)
    }

    unsafe fn rereg(
        &self,
        range: Option<(*mut u8, usize)>,
        pd: Option<&Arc<dyn ProtectionDomain>>,
        access: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        self.alive.check("memory region")?;
        if self.dm().is_some() && access.is_some_and(|access| !access.contains(AccessFlags::ZERO_BASED)) {
            return Err(VerbsError::invalid("device memory has no addresses here: keep ZERO_BASED"));
        }
        let pd = match (pd, &*self.pd()) {
            (Some(pd), Some(mine)) => Some(pd_of(mine, pd)?),
            _ => None,
        };
        // SAFETY: the caller's promise is exactly the one that `reregister` asks for.
        unsafe { self.region.reregister(range, pd.as_ref().map(PdUse::id), access)? };
        if pd.is_some() {
            *self.pd() = pd;
        }
        Ok(())
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        self.alive.check("memory region")?;
        self.region.deregister()?;
        self.alive.end();
        *self.pd() = None;
        *self.dm() = None;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A memory window.
#[derive(Debug)]
pub struct MwObject {
    window: Window,
    pd: Mutex<Option<PdUse>>,
    alive: Alive,
    _token: Token,
}

impl MwObject {
    pub(crate) fn new(window: Window, pd: PdUse, token: Token) -> Self {
        Self { window, pd: Mutex::new(Some(pd)), alive: Alive::new(), _token: token }
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }
}

impl MemoryWindow for MwObject {
    fn mw_type(&self) -> MwType {
        self.window.mw_type()
    }
    fn rkey(&self) -> RKey {
        self.window.rkey()
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        self.alive.check("memory window")?;
        self.window.deallocate()?;
        self.alive.end();
        *self.pd.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
