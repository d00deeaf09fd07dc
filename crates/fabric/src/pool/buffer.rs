//! A buffer of a pool. It names bytes and copies them; it never lends them, for peers may write them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use scalefabric_verbs::{AccessFlags, MemoryRegion, Sge};

use super::Token;
use super::arena::Arena;
use super::magazine;
use super::shared::Block;
use crate::buffer::{Local, RemoteRange};
use crate::error::FabricError;

/// Registered bytes. It may be sent to other threads and dropped there. While it lives, its arena does.
///
/// Whoever posts it keeps it until the operation has completed: a buffer that is dropped may be given to somebody else at once.
#[derive(Debug)]
pub struct Buffer {
    pub(super) token: Arc<Token>,
    pub(super) block: Block,
    pub(super) length: usize,
    /// Its class; `None` for an extent of its own.
    pub(super) class: Option<u8>,
}

impl Buffer {
    fn arena(&self) -> &Arena {
        self.token.shared.arena(self.block)
    }

    fn offset(&self, offset: usize, bytes: usize, what: &str) -> Result<usize, FabricError> {
        self.token.shared.home.check("this buffer")?;
        if offset > self.length || bytes > self.length - offset {
            return Err(FabricError::misuse(format!(
                "{what} of {bytes} bytes at offset {offset} leaves the buffer of {} bytes",
                self.length
            )));
        }
        Ok(self.block.offset() + offset)
    }

    /// Address of the first byte, as SGEs and peers name it.
    pub fn addr(&self) -> u64 {
        (self.arena().at + self.block.offset()) as u64
    }

    /// Copies bytes in. Errors: outside the buffer; `EPERM` in a forked child.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        let at = self.offset(offset, data.len(), "a write")?;
        self.arena().copy_in(at, data);
        Ok(())
    }

    /// Copies bytes out. A peer that writes them meanwhile is seen in part. Errors as [`Self::write`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        let at = self.offset(offset, out.len(), "a read")?;
        self.arena().copy_out(at, out);
        Ok(())
    }

    /// Sets bytes to zero. Errors as [`Self::write`].
    pub fn zero(&self, offset: usize, bytes: usize) -> Result<(), FabricError> {
        let at = self.offset(offset, bytes, "zeroing")?;
        self.arena().zero(at, bytes);
        Ok(())
    }

    /// Reads the 8-byte word at a multiple of 8 in one piece, with acquire ordering: what was written before it is seen.
    pub fn load_u64(&self, offset: usize) -> Result<u64, FabricError> {
        Ok(self.arena().word(self.word(offset)?).load(Ordering::Acquire))
    }

    /// Writes the 8-byte word at a multiple of 8 in one piece, with release ordering.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), FabricError> {
        self.arena().word(self.word(offset)?).store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<usize, FabricError> {
        let at = self.offset(offset, 8, "a word")?;
        if !offset.is_multiple_of(8) {
            return Err(FabricError::misuse(format!("the word at offset {offset} is not aligned to 8 bytes")));
        }
        Ok(at)
    }
}

impl Local for Buffer {
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
        let at = self.offset(offset, length, "an SGE").ok()?;
        let arena = self.arena();
        Some(Sge { addr: (arena.at + at) as u64, length: length.try_into().ok()?, lkey: arena.lkey(domain)? })
    }

    fn region_on(&self, domain: usize) -> Option<Arc<dyn MemoryRegion>> {
        self.token.shared.config.access.contains(AccessFlags::MW_BIND).then(|| self.arena().region(domain))?
    }

    fn remote_on(&self, domain: usize, offset: usize, length: usize) -> Option<RemoteRange> {
        let at = self.offset(offset, length, "a range").ok()?;
        if !self.token.shared.is_lent {
            return None;
        }
        let arena = self.arena();
        Some(RemoteRange { addr: (arena.at + at) as u64, length: length as u64, rkey: arena.rkey(domain)?.0 })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        magazine::free(&self.token.shared, self.block, self.class, self.length);
    }
}
