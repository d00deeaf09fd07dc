//! A registered region, as its owner holds it.

use scalefabric_verbs::{AccessFlags, LKey, RKey, VerbsError};

use super::table::PdId;

/// What is to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Its protection domain.
    pub pd: PdId,
    /// First byte in this process.
    pub addr: *mut u8,
    /// Bytes. 0 makes a region in which only zero-length accesses succeed. `usize::MAX` at address 0 with ON_DEMAND is
    /// the whole address space (implicit on-demand paging).
    pub length: usize,
    /// Address by which SGEs and peers name the first byte. Must have `addr`'s offset in its page, as Linux demands. Not
    /// looked at with ZERO_BASED.
    pub iova: u64,
    /// Rights. REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE.
    pub access: AccessFlags,
}

/// A region. Dropping it deregisters it, bound windows or not.
#[derive(Debug)]
pub struct Region {}

impl Region {
    /// Address of its first byte as SGEs and peers name it; 0 with ZERO_BASED.
    pub fn addr(&self) -> u64 {
        todo!()
    }
    /// Address of its first byte in this process.
    pub fn host_addr(&self) -> *mut u8 {
        todo!()
    }
    /// Bytes.
    pub fn length(&self) -> usize {
        todo!()
    }
    /// Local key.
    pub fn lkey(&self) -> LKey {
        todo!()
    }
    /// Remote key: the same number as the lkey.
    pub fn rkey(&self) -> RKey {
        todo!()
    }
    /// Its protection domain now.
    pub fn pd(&self) -> PdId {
        todo!()
    }
    /// Its rights now.
    pub fn access(&self) -> AccessFlags {
        todo!()
    }
    /// Copies bytes in. `EINVAL` outside the region or after deregistration, `EFAULT` if the memory is gone.
    pub fn write(&self, _offset: usize, _data: &[u8]) -> Result<(), VerbsError> {
        todo!()
    }
    /// Copies bytes out.
    pub fn read(&self, _offset: usize, _out: &mut [u8]) -> Result<(), VerbsError> {
        todo!()
    }
    /// Reads an aligned 8-byte word in one piece, with acquire ordering.
    pub fn load_u64(&self, _offset: usize) -> Result<u64, VerbsError> {
        todo!()
    }
    /// Writes an aligned 8-byte word in one piece, with release ordering.
    pub fn store_u64(&self, _offset: usize, _value: u64) -> Result<(), VerbsError> {
        todo!()
    }
    /// Changes range, PD or rights; `None` keeps. The keys change, as the standard allows (clause 11.2.8.5). When it
    /// returns, nothing touches the old range any more. `EBUSY` while windows are bound. On an error the region is as
    /// before.
    ///
    /// # Safety
    /// As [`super::MemoryTable::register`] for the new range.
    pub unsafe fn reregister(
        &self,
        _range: Option<(*mut u8, usize)>,
        _pd: Option<PdId>,
        _access: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        todo!()
    }
    /// Deregisters. When it returns, nothing touches the memory any more: it waits for the engine's present turn to end,
    /// so it must not be called from inside a turn. `EBUSY` while windows are bound, `EINVAL` the second time.
    pub fn deregister(&self) -> Result<(), VerbsError> {
        todo!()
    }
}
