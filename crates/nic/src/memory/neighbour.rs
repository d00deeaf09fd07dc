//! What this process does itself with the memory of a peer on the same host: in its own memory, in another process's that is mapped
//! here, or through the kernel.
//!
//! The checks are those of [`super::access`], on the table of whoever owns the memory. A refusal has no reason here: the packets
//! that follow hear it from the responder. Everything that touches is done behind a [`Grant`], which the caller holds no
//! longer than its hazard stands.

use std::io;
use std::sync::Arc;

use scalefabric_transport::host::{AtomicOp, RemoteAccess};
use scalefabric_verbs::{AccessFlags, RKey, Sge};

use super::access::{Access, Host, Lookup, Peer, host_address, offset_inside, opened, opened_at, perform};
use super::copy::{self, Gone};
use super::file::ForeignFile;
use super::other::Other;
use super::table::{Entry, PdId};
use crate::direct::Gate;
use crate::process::Descriptor;
use crate::ring::atomic::{Ordering, fence};

/// Another process of the device, and what of it can be reached from here.
#[derive(Debug)]
pub struct Neighbour {
    file: ForeignFile,
    other: Arc<Other>,
    /// Its slot, and which of the slot's members it is.
    slot: u8,
    generation: u32,
}

impl Neighbour {
    /// The process whose file this is, the slot's member of that generation.
    pub fn new(file: Arc<Descriptor>, other: Arc<Other>, slot: u8, generation: u32) -> io::Result<Self> {
        Ok(Self { file: ForeignFile::join(file)?, other, slot, generation })
    }

    /// Its slot.
    #[inline]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Which of its slot's members it is.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The gate of one of its QPs.
    #[inline]
    pub fn gate(&self, qp: u16) -> &Gate {
        self.file.gate(qp)
    }

    /// Place in its memory table of whatever has that key.
    #[inline]
    pub fn slot_of(&self, rkey: u32) -> u32 {
        self.file.slot_of(rkey)
    }

    /// The process.
    pub fn other(&self) -> &Other {
        &self.other
    }

    /// What an access may touch, all checks passed. `slot`: the key's place. The caller's hazard stands.
    #[inline(always)]
    pub fn grant(&self, slot: u32, peer: Peer, access: &RemoteAccess) -> Option<Grant<'_>> {
        let entry = opened_at(self, slot, peer, access.rkey, access.access).ok()?;
        let offset = offset_inside(entry, access.va, access.length)?;
        let there = entry.host.load(Ordering::Relaxed).wrapping_add(offset);
        let place = match self.file.here(there, access.length) {
            Some(here) => Place::Here(here),
            None => Place::There(&self.other, there),
        };
        Some(Grant { place, relaxed: is_relaxed(entry) })
    }

    /// What a key opens, all checks passed but those of a range. `slot`: the key's place. The caller's hazard stands.
    #[inline(always)]
    pub fn open(&self, slot: u32, peer: Peer, rkey: RKey, right: AccessFlags) -> Option<Opened<'_>> {
        let entry = opened_at(self, slot, peer, rkey, right).ok()?;
        Some(Opened { file: Some(&self.file), entry })
    }

    /// Whether it has granted a FLUSH of the whole region.
    pub fn grants_region(&self, peer: Peer, access: &RemoteAccess) -> bool {
        opened(self, peer, access.rkey, access.access).is_ok()
    }
}

impl Lookup for Neighbour {
    #[inline]
    fn slot_of(&self, key: u32) -> u32 {
        self.file.slot_of(key)
    }
    #[inline]
    fn named(&self, slot: u32, key: u32) -> Option<&Entry> {
        let entry = self.file.entry(slot)?;
        (key != 0 && entry.key.load(Ordering::Acquire) == key).then_some(entry)
    }
    #[inline]
    fn at(&self, slot: u32) -> Option<&Entry> {
        self.file.entry(slot)
    }
}

/// Memory that a key opens, while the hazard stands.
pub struct Opened<'n> {
    /// A neighbour's; `None`: it is our own.
    file: Option<&'n ForeignFile>,
    entry: &'n Entry,
}

/// The bytes of a WRITE, in one piece and not of no length.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// In registered memory.
    Registered(&'a Sge),
}

impl Piece<'_> {
    /// How many they are.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        match self {
            Self::Inline(bytes) => bytes.len() as u32,
            Self::Registered(sge) => sge.length,
        }
    }
}

impl Opened<'_> {
    /// Whether its memory can be mapped here at all.
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.file.is_none_or(|file| file.has(host_address(self.entry, 0) as u64))
    }

    /// Writes a piece to `va`, if that is inside and mapped here. False if not all of it could be done.
    #[inline(always)]
    pub fn put(&self, memory: &Access<'_>, pd: PdId, va: u64, piece: &Piece<'_>) -> bool {
        let length = piece.length();
        let Some(offset) = offset_inside(self.entry, va, u64::from(length)) else { return false };
        let there = host_address(self.entry, offset);
        let Some(to) = self.file.map_or(Some(there), |file| file.here(there as u64, u64::from(length))) else {
            return false;
        };
        let from = match piece {
            Piece::Inline(bytes) => bytes.as_ptr(),
            Piece::Registered(sge) => match memory.local(pd, sge, false) {
                Ok(from) => from.cast_const(),
                Err(_) => return false,
            },
        };
        // SAFETY: the range lies inside of what the key opens, and the source was checked or is a slice; neither is taken away while hazard and turn last.
        unsafe { copy::copy_between(to, from, length as usize) }.is_ok()
    }
}

fn is_relaxed(entry: &Entry) -> bool {
    entry.access().contains(AccessFlags::RELAXED_ORDERING)
}

#[derive(Clone, Copy, Debug)]
enum Place<'n> {
    /// Mapped in this process.
    Here(Host),
    /// Only in the other one.
    There(&'n Other, u64),
}

/// Bytes of a peer that may be touched while the hazard stands.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'n> {
    place: Place<'n>,
    /// Their owner does not care about the order in which they appear.
    relaxed: bool,
}

impl Grant<'_> {
    /// Writes `length` bytes to what is granted, from its byte `at` on. `ends`: they are the last of their message.
    ///
    /// # Safety
    /// The grant covers them, and the table grants reading as many at `from`, now.
    #[inline(always)]
    unsafe fn write(&self, at: usize, from: *const u8, length: usize, ends: bool) -> Result<(), Gone> {
        match self.place {
            // SAFETY: the caller's promise.
            Place::Here(to) => unsafe { copy::copy_between(to.wrapping_add(at), from, length) },
            // SAFETY: as above for the source; the kernel checks the other side.
            Place::There(other, to) => unsafe {
                other.write(to + at as u64, from, length, ends && !self.relaxed).map_err(|_| Gone)
            },
        }
    }

    /// Whether anything can be done there: only WRITE and READ (`moves`) where it is not mapped, if the kernel lets us.
    pub fn is_within_reach(&self, moves: bool) -> bool {
        match self.place {
            Place::Here(_) => true,
            Place::There(other, _) => moves && !other.is_refused(),
        }
    }
}

/// Where the bytes of a WRITE come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a, I> {
    /// Registered memory.
    Sges(I),
    /// The WQE.
    Inline(&'a [u8]),
}

impl Access<'_> {
    /// As [`Neighbour::grant`], for memory of this process.
    #[inline]
    pub fn grant(&self, slot: u32, peer: Peer, access: &RemoteAccess) -> Option<Grant<'static>> {
        let entry = opened_at(self.table(), slot, peer, access.rkey, access.access).ok()?;
        let offset = offset_inside(entry, access.va, access.length)?;
        Some(Grant { place: Place::Here(host_address(entry, offset)), relaxed: is_relaxed(entry) })
    }

    /// As [`Neighbour::open`], for memory of this process.
    #[inline]
    pub fn open(&self, slot: u32, peer: Peer, rkey: RKey, right: AccessFlags) -> Option<Opened<'_>> {
        let entry = opened_at(self.table(), slot, peer, rkey, right).ok()?;
        Some(Opened { file: None, entry })
    }

    /// As [`Neighbour::grants_region`].
    pub fn grants_region(&self, peer: Peer, access: &RemoteAccess) -> bool {
        opened(self.table(), peer, access.rkey, access.access).is_ok()
    }

    /// Writes bytes `offset` to `offset + length` of a message to the same place in what is granted; `last`: it ends there. False if not all of
    /// it could be done.
    #[inline(always)]
    pub fn put<I: Iterator<Item = Sge>>(
        &self,
        pd: PdId,
        source: Source<'_, I>,
        grant: &Grant<'_>,
        offset: u32,
        length: u32,
        last: bool,
    ) -> bool {
        let move_piece = |from: *const u8, range: std::ops::Range<usize>| {
            // SAFETY: the grant covers the message, and the source was checked; neither is taken away while hazard and turn last.
            unsafe {
                grant.write(offset as usize + range.start, from, range.len(), last && range.end == length as usize)
            }
        };
        match source {
            Source::Inline(bytes) => move_piece(bytes.as_ptr(), 0..bytes.len()).is_ok(),
            Source::Sges(sges) => self
                .pieces(pd, sges, offset, length as usize, false, |from, range| move_piece(from.cast_const(), range))
                .is_ok(),
        }
    }

    /// As [`Access::put`], for a message that is one SGE, from its first byte to its last.
    #[inline(always)]
    pub fn put_one(&self, pd: PdId, sge: &Sge, grant: &Grant<'_>) -> bool {
        let Ok(from) = self.local(pd, sge, false) else { return false };
        // SAFETY: as in `put`.
        unsafe { grant.write(0, from, sge.length as usize, true) }.is_ok()
    }

    /// Reads what is granted into the SGL, as [`Access::put`] the other way round.
    pub fn get(&self, pd: PdId, sges: impl Iterator<Item = Sge>, grant: &Grant<'_>, offset: u32, length: u32) -> bool {
        let moved = self.pieces(pd, sges, offset, length as usize, true, |to, range| {
            let at = offset as usize + range.start;
            match grant.place {
                // SAFETY: as in `put`, the other way round.
                Place::Here(from) => unsafe { copy::copy_between(to, from.wrapping_add(at), range.len()) },
                // SAFETY: as in `put`, the other way round.
                Place::There(other, from) => unsafe { other.read(to, from + at as u64, range.len()).map_err(|_| Gone) },
            }
        });
        moved.is_ok()
    }

    /// Whether the SGL can take `length` bytes.
    pub fn can_scatter(&self, pd: PdId, sges: impl Iterator<Item = Sge>, length: usize) -> bool {
        self.pieces(pd, sges, 0, length, true, |_, _| Ok(())).is_ok()
    }

    /// Does an atomic on what is granted; the old value, or `None` if it is not mapped here and nothing was done.
    pub fn atomic(&self, grant: &Grant<'_>, op: AtomicOp) -> Option<u64> {
        let Place::Here(at) = grant.place else { return None };
        // SAFETY: as in `put`.
        unsafe { perform(at.cast(), op) }.ok()
    }

    /// What was written is visible to all processors of this host.
    pub fn flush_global(&self) {
        fence(Ordering::SeqCst);
    }
}
