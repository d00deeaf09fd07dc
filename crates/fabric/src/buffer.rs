//! What a posted operation names: local bytes that know their keys, and a range of the peer's memory. It holds no bytes itself and never
//! lends them: registered memory is shared with peers, so it is copied in and out.

use scalefabric_verbs::{MemoryRegion, RKey, Sge};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Registered local memory that can be posted: a pool's buffer, a region of the registration cache, a plain region.
///
/// An implementation keeps the registration alive as long as it lives itself, and the endpoint keeps what was posted until it has completed.
pub trait Local: Send + Sync {
    /// Bytes.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The piece `offset .. offset + length` as an SGE; `None` outside the buffer, and for pieces of more than `u32::MAX` bytes.
    fn sge(&self, offset: usize, length: usize) -> Option<Sge>;

    /// The same piece as a peer may address it, if it may.
    fn remote(&self, offset: usize, length: usize) -> Option<RemoteRange>;

    /// [`Self::sge`] with the key of another protection domain, where it is registered with several (rails): the index is that of the domains which
    /// the pool or the cache was made with. `None` for a domain that it is not registered with.
    fn sge_on(&self, domain: usize, offset: usize, length: usize) -> Option<Sge> {
        if domain == 0 { self.sge(offset, length) } else { None }
    }

    /// The registration behind the memory in a protection domain, for windows that are bound to it. `None`, which is the default: no window can be bound.
    fn region_on(&self, domain: usize) -> Option<Arc<dyn MemoryRegion>> {
        let _ = domain;
        None
    }

    /// [`Self::remote`] with the key of another protection domain.
    fn remote_on(&self, domain: usize, offset: usize, length: usize) -> Option<RemoteRange> {
        if domain == 0 { self.remote(offset, length) } else { None }
    }
}

/// A range of a peer's memory, and the key that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRange {
    /// First byte, as the peer's region counts.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Key. Never printed: who has it may touch the memory.
    pub rkey: u32,
}

impl RemoteRange {
    /// The key as verbs take it.
    pub fn key(&self) -> RKey {
        RKey(self.rkey)
    }

    /// A part of it; `None` outside.
    pub fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| Self { addr: self.addr + offset, length, rkey: self.rkey })
    }
}

impl std::fmt::Debug for RemoteRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteRange").field("addr", &self.addr).field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stays_inside_and_a_key_is_never_printed() {
        let range = RemoteRange { addr: 0x1000, length: 100, rkey: 0xdead_beef };
        assert_eq!(range.part(10, 90).map(|part| (part.addr, part.length)), Some((0x100a, 90)));
        assert_eq!(range.part(10, 91), None);
        assert_eq!(range.part(u64::MAX, 2), None);
        assert!(!format!("{range:?}").contains("beef"));
        assert!(!format!("{range:?}").contains(&0xdead_beef_u32.to_string()));
    }
}
