//! What all threads of a pool share: arenas, slabs, and a depot of full magazines for each class. None of it is touched on the fast path.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use scalefabric_verbs::{AccessFlags, Errno, MemoryRegion, ProtectionDomain};

use super::arena::Arena;
use super::class::{CLASSES, LARGEST, magazine_of, size_of, slab_of};
use super::config::PoolConfig;
use super::extent::{Extents, GRAIN};
use super::{ArenaReport, PoolReport};
use crate::error::FabricError;
use crate::fork::Home;

/// Most arenas of a pool.
const ARENAS: usize = 4096;

/// Where a block starts: arena in the upper 16 bits, offset in the lower 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block(u64);

impl Block {
    fn new(arena: usize, offset: usize) -> Self {
        Self((arena as u64) << 48 | offset as u64)
    }

    pub fn arena(self) -> usize {
        (self.0 >> 48) as usize
    }

    pub fn offset(self) -> usize {
        (self.0 & ((1 << 48) - 1)) as usize
    }
}

/// Free blocks of one class, as many as [`magazine_of`] says or fewer.
pub(super) type Magazine = Vec<Block>;

#[derive(Debug)]
pub(super) struct Shared {
    /// Never used again.
    pub id: u64,
    pub home: Home,
    pub pds: Vec<Arc<dyn ProtectionDomain>>,
    pub config: PoolConfig,
    /// Whether peers have any right.
    pub is_lent: bool,
    arenas: Box<[OnceLock<Arena>]>,
    room: Mutex<Room>,
    depots: Vec<Mutex<Vec<Magazine>>>,
}

/// Free room in the arenas.
#[derive(Debug, Default)]
struct Room {
    extents: Vec<Extents>,
    /// Slabs by their first block: bytes, class.
    slabs: BTreeMap<Block, (usize, usize)>,
    registered_bytes: usize,
}

impl Shared {
    pub fn new(pds: Vec<Arc<dyn ProtectionDomain>>, config: PoolConfig, home: Home) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            home,
            pds,
            is_lent: config.access.intersects(AccessFlags::REMOTE),
            config,
            arenas: (0..ARENAS).map(|_| OnceLock::new()).collect(),
            room: Mutex::new(Room::default()),
            depots: (0..CLASSES).map(|_| Mutex::new(Vec::new())).collect(),
        }
    }

    pub fn arena(&self, block: Block) -> &Arena {
        self.arenas[block.arena()].get().expect("a block lies in an arena")
    }

    /// A magazine of free blocks.
    pub fn refill(&self, class: usize) -> Result<Magazine, FabricError> {
        if let Some(magazine) = lock(&self.depots[class]).pop() {
            return Ok(magazine);
        }
        let (bytes, size) = (slab_of(class), size_of(class));
        let mut room = lock(&self.room);
        let slab = self.take(&mut room, bytes)?;
        room.slabs.insert(slab, (bytes, class));
        drop(room);
        // Last first: blocks are taken from the end, and so go up in addresses.
        let blocks: Vec<Block> =
            (0..bytes / size).rev().map(|index| Block::new(slab.arena(), slab.offset() + index * size)).collect();
        let mut magazines: Vec<Magazine> = blocks.chunks(magazine_of(class)).map(<[Block]>::to_vec).collect();
        let first = magazines.pop().expect("a slab has blocks");
        lock(&self.depots[class]).append(&mut magazines);
        Ok(first)
    }

    /// Takes a magazine that a thread has no room for.
    pub fn put(&self, class: usize, magazine: Magazine) {
        if !magazine.is_empty() {
            lock(&self.depots[class]).push(magazine);
        }
    }

    /// Takes one block, from a thread that keeps none.
    pub fn put_one(&self, class: usize, block: Block) {
        let mut depot = lock(&self.depots[class]);
        match depot.last_mut() {
            Some(magazine) if magazine.len() < magazine_of(class) => magazine.push(block),
            _ => {
                let mut magazine = Vec::with_capacity(magazine_of(class));
                magazine.push(block);
                depot.push(magazine);
            }
        }
    }

    /// An extent for a buffer that is larger than all classes.
    pub fn take_large(&self, bytes: usize) -> Result<Block, FabricError> {
        self.take(&mut lock(&self.room), extent_of(bytes)?)
    }

    /// Gives it back.
    pub fn give_large(&self, block: Block, bytes: usize) {
        if let Ok(bytes) = extent_of(bytes) {
            lock(&self.room).extents[block.arena()].give(block.offset(), bytes);
        }
    }

    /// Adds an arena.
    pub fn grow(&self, bytes: usize) -> Result<(), FabricError> {
        self.grow_in(&mut lock(&self.room), bytes)
    }

    fn grow_in(&self, room: &mut Room, bytes: usize) -> Result<(), FabricError> {
        let limit = self.config.limit_bytes;
        let left = limit.saturating_sub(room.registered_bytes);
        // Pages may round the arena up beyond the limit, by less than one of them.
        if bytes > left {
            return Err(no_memory(format!(
                "the pool has registered {} MiB, and {} MiB more would pass limit_bytes ({} MiB): free buffers, or raise the limit",
                room.registered_bytes >> 20,
                bytes.div_ceil(1 << 20),
                limit >> 20
            )));
        }
        let index = room.extents.len();
        let Some(slot) = self.arenas.get(index) else {
            return Err(no_memory(format!("the pool has {ARENAS} arenas, the most there can be: raise arena_bytes")));
        };
        let arena = Arena::new(bytes.next_multiple_of(GRAIN), &self.pds, &self.config, self.home)?;
        room.registered_bytes += arena.length;
        room.extents.push(Extents::new(arena.length / GRAIN * GRAIN));
        slot.set(arena).expect("arenas are added under the lock");
        Ok(())
    }

    fn take(&self, room: &mut Room, bytes: usize) -> Result<Block, FabricError> {
        if let Some(block) = room.take(bytes) {
            return Ok(block);
        }
        if self.reclaim(room)
            && let Some(block) = room.take(bytes)
        {
            return Ok(block);
        }
        let left = self.config.limit_bytes.saturating_sub(room.registered_bytes);
        // A smaller last arena is better than none.
        let next = self.config.arena_bytes.min(left).max(bytes);
        if let Err(refused) = self.grow_in(room, next) {
            // A quota may leave less, and so may what is locked: what is asked for may still be had.
            if next <= bytes || self.grow_in(room, bytes).is_err() {
                return Err(refused);
            }
        }
        room.take(bytes).ok_or_else(|| no_memory("the new arena is already full".into()))
    }

    /// Slabs all of whose blocks lie in depots become free room again. Blocks in the magazines of threads count as used.
    fn reclaim(&self, room: &mut Room) -> bool {
        let mut gained = false;
        for (class, depot) in self.depots.iter().enumerate() {
            let mut depot = lock(depot);
            let mut free: BTreeMap<Block, Vec<Block>> = BTreeMap::new();
            for block in depot.drain(..).flatten() {
                let (&slab, _) = room.slabs.range(..=block).next_back().expect("a block lies in a slab");
                free.entry(slab).or_default().push(block);
            }
            for (slab, blocks) in free {
                let (bytes, _) = room.slabs[&slab];
                if blocks.len() == bytes / size_of(class) {
                    room.slabs.remove(&slab);
                    room.extents[slab.arena()].give(slab.offset(), bytes);
                    gained = true;
                } else {
                    depot.extend(blocks.chunks(magazine_of(class)).map(<[Block]>::to_vec));
                }
            }
        }
        gained
    }

    pub fn rotate_keys(&self) -> Result<usize, FabricError> {
        self.home.check("this pool")?;
        let room = lock(&self.room);
        let arenas = || self.arenas[..room.extents.len()].iter().filter_map(OnceLock::get);
        let mut fresh: Vec<Vec<Arc<dyn MemoryRegion>>> = Vec::new();
        for arena in arenas() {
            match arena.register_again(&self.pds, self.config.access) {
                Ok(regions) => fresh.push(regions),
                Err(error) => {
                    fresh.iter().flatten().for_each(|region| drop(region.destroy()));
                    return Err(error.during("rotating keys; all keys are as before"));
                }
            }
        }
        let made = fresh.iter().map(Vec::len).sum();
        arenas().zip(fresh).for_each(|(arena, regions)| arena.publish(regions));
        Ok(made)
    }

    pub fn retire_old(&self) -> Result<usize, FabricError> {
        self.home.check("this pool")?;
        let room = lock(&self.room);
        let (mut gone, mut failure) = (0, None);
        for arena in self.arenas[..room.extents.len()].iter().filter_map(OnceLock::get) {
            let mut kept = Vec::new();
            for region in arena.take_old() {
                match region.destroy() {
                    Ok(()) => gone += 1,
                    Err(error) => {
                        failure = Some(error);
                        kept.push(region);
                    }
                }
            }
            arena.put_back_old(kept);
        }
        failure.map_or(Ok(gone), |error| {
            Err(FabricError::from(error)
                .during(format!("retiring old keys; {gone} are retired, others are still good")))
        })
    }

    pub fn report(&self) -> PoolReport {
        let room = lock(&self.room);
        let arenas = || self.arenas[..room.extents.len()].iter().filter_map(OnceLock::get);
        PoolReport {
            arenas: arenas().map(|arena| arena.report.clone()).collect::<Vec<ArenaReport>>(),
            registered_bytes: room.registered_bytes,
            free_bytes: room.extents.iter().map(Extents::free).sum(),
            limit_bytes: self.config.limit_bytes,
            old_registrations: arenas().map(Arena::old_registrations).sum(),
        }
    }
}

impl Room {
    fn take(&mut self, bytes: usize) -> Option<Block> {
        self.extents
            .iter_mut()
            .enumerate()
            .find_map(|(arena, extents)| extents.take(bytes).map(|offset| Block::new(arena, offset)))
    }
}

/// Bytes of the extent of a large buffer.
fn extent_of(bytes: usize) -> Result<usize, FabricError> {
    debug_assert!(bytes > LARGEST);
    bytes
        .checked_next_multiple_of(GRAIN)
        .filter(|&bytes| bytes < 1 << 47)
        .ok_or_else(|| FabricError::misuse(format!("a buffer of {bytes} bytes is more than an address space holds")))
}

fn no_memory(message: String) -> FabricError {
    let mut error = FabricError::environment(message);
    error.errno = Some(Errno::ENOMEM);
    error
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
