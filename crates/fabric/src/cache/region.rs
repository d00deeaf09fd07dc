//! A region of the cache: registered bytes of the application, pinned while the handle lives. Unsafe code stands here because registering memory that
//! somebody else owns cannot be safe: the caller vouches for it.

use std::sync::Arc;

use scalefabric_verbs::{AccessFlags, MemoryRegion, Sge};

use super::Cache;
use crate::buffer::{Local, RemoteRange};
use crate::error::FabricError;

/// Registered bytes of the application. While the handle lives the registration does, and no longer than the cache likes.
#[derive(Debug)]
pub struct Region {
    regions: Vec<Arc<dyn MemoryRegion>>,
    addr: u64,
    length: usize,
    is_lent: bool,
}

impl Cache {
    /// Registers `length` bytes at `addr`, or finds them registered. Errors: those of registration (`EFAULT`: not mapped or not writable; `ENOMEM`:
    /// limits); `EPERM` in a forked child.
    ///
    /// # Safety
    /// Until the region is dropped, peers and devices read and write the range as the cache's access says: nobody may hold Rust references to bytes that
    /// they may write. Memory that is unmapped meanwhile is an error for who uses it, never a signal.
    pub unsafe fn region(&self, addr: *mut u8, length: usize) -> Result<Region, FabricError> {
        self.shared.home.check("this cache")?;
        let mut regions: Vec<Arc<dyn MemoryRegion>> = Vec::new();
        for pd in &self.shared.pds {
            // SAFETY: the caller's promise is the one that this asks for.
            match unsafe { pd.reg_mr(addr, length, addr as u64, self.shared.config.access) } {
                Ok(region) => regions.push(region),
                Err(error) => {
                    regions.iter().for_each(|region| drop(region.destroy()));
                    return Err(error.into());
                }
            }
        }
        let is_lent = self.shared.config.access.intersects(AccessFlags::REMOTE);
        Ok(Region { regions, addr: addr as u64, length, is_lent })
    }
}

impl Region {
    fn is_inside(&self, offset: usize, length: usize) -> bool {
        offset <= self.length && length <= self.length - offset
    }
}

impl Local for Region {
    fn len(&self) -> usize {
        self.length
    }

    fn sge(&self, offset: usize, length: usize) -> Option<Sge> {
        self.sge_on(0, offset, length)
    }

    fn remote(&self, offset: usize, length: usize) -> Option<RemoteRange> {
        self.remote_on(0, offset, length)
    }

    fn sge_on(&self, domain: usize, offset: usize, length: usize) -> Option<Sge> {
        let lkey = self.regions.get(domain)?.lkey();
        let length = self.is_inside(offset, length).then_some(length)?.try_into().ok()?;
        Some(Sge { addr: self.addr + offset as u64, length, lkey })
    }

    fn remote_on(&self, domain: usize, offset: usize, length: usize) -> Option<RemoteRange> {
        let rkey = self.regions.get(domain)?.rkey().0;
        (self.is_lent && self.is_inside(offset, length)).then_some(RemoteRange {
            addr: self.addr + offset as u64,
            length: length as u64,
            rkey,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.regions.iter().for_each(|region| drop(region.destroy()));
    }
}
