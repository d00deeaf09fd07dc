//! The device segment: what the members of a device share, in a sealed memfd that each of them maps.
//!
//! Everything in it is an atomic, so that a member that dies in the middle of a write leaves nothing half-locked, and Rust
//! never holds a plain reference to bytes that another process changes. The layout has a version and a fingerprint of its
//! sizes: processes of different builds refuse each other instead of misreading. Only the host (the member that serves the
//! rendezvous) writes the port tables; each member writes its own slot's counters.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use scalefabric_transport::Counter;
use scalefabric_verbs::{Gid, Mtu, PKey, PortState};

use super::connections::CmTables;
use crate::counters::{CounterBlock, PortCounters};
use crate::direct::Hazard;
use crate::process::Descriptor;

/// Version of the layout. Changes whenever a member of an older build would misread it.
pub const VERSION: u32 = 5;
/// Slots of a device, the two that are never given out included.
pub const SLOTS: usize = 256;
/// Ports of a device, at most.
pub const PORTS: usize = 2;
/// Slots of a GID table.
pub const GIDS: usize = 128;
/// Slots of a P_Key table.
pub const PKEYS: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"scalefab");
/// A slot's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// Nobody's.
    Free = 0,
    /// A living member's.
    Alive = 1,
    /// Its member has died and its sockets are not drained yet.
    Dead = 2,
}

/// One member's record.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SlotRecord {
    state: AtomicU32,
    /// Process ID in the member's own PID namespace.
    pub pid: AtomicU32,
    /// Start time of the process in clock ticks since boot: with the PID it names a process for good.
    pub start_time: AtomicU64,
    /// Grows each time the slot is given out; the QP numbers of a new member start elsewhere than those of the last.
    pub generation: AtomicU32,
}

impl SlotRecord {
    /// State.
    pub fn state(&self) -> SlotState {
        match self.state.load(Ordering::Acquire) {
            1 => SlotState::Alive,
            2 => SlotState::Dead,
            _ => SlotState::Free,
        }
    }

    /// Changes the state.
    pub fn set_state(&self, state: SlotState) {
        self.state.store(state as u32, Ordering::Release);
    }
}

/// A GID, and whether it is there now: a slot remembers the last GID it had, so that an address that comes back has its old
/// index.
#[derive(Debug)]
#[repr(C)]
struct GidRecord {
    words: [AtomicU64; 2],
    present: AtomicU64,
}

/// One port's tables. `generation` is odd while they change.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PortRecord {
    generation: AtomicU32,
    state: AtomicU32,
    mtu: AtomicU32,
    speed_mbps: AtomicU32,
    ifindex: AtomicU32,
    gids: [GidRecord; GIDS],
    pkeys: [AtomicU32; PKEYS],
}

/// A port's tables as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortTables {
    /// State.
    pub state: PortState,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// Mb/s, 0 unknown.
    pub speed_mbps: u32,
    /// Index of the interface, 0 if it is gone.
    pub ifindex: u32,
    /// GIDs; a slot that is not present remembers its last one.
    pub gids: Vec<GidSlot>,
    /// P_Keys; 0 is an empty slot.
    pub pkeys: Vec<PKey>,
}

/// One slot of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GidSlot {
    /// The GID it has or had; zero if it never had one.
    pub gid: Gid,
    /// Whether it has it now.
    pub present: bool,
}

impl Default for PortTables {
    fn default() -> Self {
        let mut pkeys = vec![PKey(0); PKEYS];
        pkeys[0] = PKey::DEFAULT;
        Self {
            state: PortState::Down,
            mtu: Mtu::Mtu256,
            speed_mbps: 0,
            ifindex: 0,
            gids: vec![GidSlot::default(); GIDS],
            pkeys,
        }
    }
}

impl PortTables {
    /// Lays wanted GIDs over the table. Those that are there stay; those no longer wanted leave, and their slot remembers
    /// them; one that comes back gets its old slot; new ones get slots that never had a GID, and only when there are none
    /// left the slot of one that is gone. Returns what found no room.
    pub fn set_gids(&mut self, wanted: &[Gid]) -> Vec<Gid> {
        for slot in &mut self.gids {
            slot.present = wanted.contains(&slot.gid) && !slot.gid.is_zero();
        }
        let mut homeless = Vec::new();
        for &gid in wanted {
            if self.gids.iter().any(|slot| slot.gid == gid) {
                continue;
            }
            let virgin = self.gids.iter().position(|slot| slot.gid.is_zero());
            match virgin.or_else(|| self.gids.iter().position(|slot| !slot.present)) {
                Some(index) => self.gids[index] = GidSlot { gid, present: true },
                None => homeless.push(gid),
            }
        }
        homeless
    }
}

impl PortRecord {
    /// Replaces the tables. Only one process at a time may do this: the host.
    pub fn write(&self, tables: &PortTables) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.state.store(tables.state as u32, Ordering::Release);
        self.mtu.store(tables.mtu as u32, Ordering::Release);
        self.speed_mbps.store(tables.speed_mbps, Ordering::Release);
        self.ifindex.store(tables.ifindex, Ordering::Release);
        for (record, slot) in self.gids.iter().zip(&tables.gids) {
            let value = u128::from_be_bytes(slot.gid.0);
            record.words[0].store((value >> 64) as u64, Ordering::Release);
            record.words[1].store(value as u64, Ordering::Release);
            record.present.store(u64::from(slot.present), Ordering::Release);
        }
        for (record, pkey) in self.pkeys.iter().zip(&tables.pkeys) {
            record.store(u32::from(pkey.0), Ordering::Release);
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes a P_Key. Any member may do this; the last one wins. False beyond the table.
    pub fn set_pkey(&self, index: u16, pkey: PKey) -> bool {
        let Some(record) = self.pkeys.get(usize::from(index)) else { return false };
        record.store(u32::from(pkey.0), Ordering::Release);
        true
    }

    /// Reads the tables; waits for a writer to finish, but not for one that died: after a while what is there is taken.
    pub fn read(&self) -> PortTables {
        for _ in 0..10_000 {
            let before = self.generation.load(Ordering::Acquire);
            let tables = self.read_once();
            if before.is_multiple_of(2) && self.generation.load(Ordering::Acquire) == before {
                return tables;
            }
            std::thread::yield_now();
        }
        self.read_once()
    }

    fn read_once(&self) -> PortTables {
        let state = if self.state.load(Ordering::Acquire) == PortState::Active as u32 {
            PortState::Active
        } else {
            PortState::Down
        };
        let mtu = match self.mtu.load(Ordering::Acquire) {
            5 => Mtu::Mtu4096,
            4 => Mtu::Mtu2048,
            3 => Mtu::Mtu1024,
            2 => Mtu::Mtu512,
            _ => Mtu::Mtu256,
        };
        let gid = |record: &GidRecord| {
            let [high, low] = [&record.words[0], &record.words[1]].map(|w| w.load(Ordering::Acquire));
            let value = u128::from(high) << 64 | u128::from(low);
            GidSlot { gid: Gid(value.to_be_bytes()), present: record.present.load(Ordering::Acquire) != 0 }
        };
        PortTables {
            state,
            mtu,
            speed_mbps: self.speed_mbps.load(Ordering::Acquire),
            ifindex: self.ifindex.load(Ordering::Acquire),
            gids: self.gids.iter().map(gid).collect(),
            pkeys: self.pkeys.iter().map(|p| PKey(p.load(Ordering::Acquire) as u16)).collect(),
        }
    }
}

/// The segment's fixed part.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Layout {
    magic: AtomicU64,
    version: AtomicU32,
    fingerprint: AtomicU32,
    /// The slot whose member serves the rendezvous.
    pub host: AtomicU32,
    /// Ports of the device.
    pub ports_used: AtomicU32,
    /// The highest slot that was ever given out.
    top: AtomicU32,
    slots: [SlotRecord; SLOTS],
    ports: [PortRecord; PORTS],
    counters: [[PortCounters; PORTS]; SLOTS],
    /// Counts of members that are gone.
    departed: [PortCounters; PORTS],
    /// What each member touches of the others' memory now (D3).
    hazards: [Hazard; SLOTS],
    /// What the communication managers share.
    pub(super) cm: CmTables,
}

/// Bytes of the whole segment.
const SIZE: usize = size_of::<Layout>().next_multiple_of(4096);

/// What two builds must have in common to share a segment.
const fn fingerprint() -> u32 {
    let mut value = 0x811c_9dc5u32;
    let sizes = [size_of::<Layout>(), size_of::<PortCounters>(), size_of::<PortRecord>(), SIZE, PKEYS, GIDS];
    let mut i = 0;
    while i < sizes.len() {
        value = (value ^ sizes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    value
}

/// A mapped device segment.
#[derive(Debug)]
pub struct Segment {
    memory: NonNull<Layout>,
    fd: Descriptor,
}

// SAFETY: the mapping lives as long as the struct, at one place, and all of `Layout` is atomics.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new segment for a device of `ports` ports.
    pub fn create(name: &str, ports: usize) -> io::Result<Arc<Self>> {
        let name = CString::new(format!("scalefabric-{name}")).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string.
        let fd = Descriptor::make(|| unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain system calls on our own descriptor.
        let done = unsafe {
            libc::ftruncate(fd.as_raw_fd(), SIZE as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !done {
            return Err(io::Error::last_os_error());
        }
        let segment = Self::map(fd)?;
        let layout = segment.layout();
        layout.ports_used.store(ports as u32, Ordering::Relaxed);
        layout.version.store(VERSION, Ordering::Relaxed);
        layout.fingerprint.store(fingerprint(), Ordering::Relaxed);
        for port in &layout.ports {
            port.write(&PortTables::default());
        }
        layout.magic.store(MAGIC, Ordering::Release);
        Ok(Arc::new(segment))
    }

    /// Maps a segment that another member has sent. It must be sealed (nobody can cut it under us) and of this build's layout.
    pub fn join(fd: Descriptor) -> io::Result<Arc<Self>> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
        // SAFETY: plain system calls; all-zero is a valid stat.
        let (seals, size) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &raw mut stat) < 0 {
                return Err(io::Error::last_os_error());
            }
            (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), stat.st_size)
        };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return wrong("the device segment is not sealed");
        }
        if size != SIZE as libc::off_t {
            return wrong("the device segment has another size: its members run another version of scaleFabric");
        }
        let segment = Self::map(fd)?;
        let layout = segment.layout();
        let same = layout.magic.load(Ordering::Acquire) == MAGIC
            && layout.version.load(Ordering::Relaxed) == VERSION
            && layout.fingerprint.load(Ordering::Relaxed) == fingerprint();
        if same { Ok(Arc::new(segment)) } else { wrong("the device's members run another version of scaleFabric") }
    }

    fn map(fd: Descriptor) -> io::Result<Self> {
        // SAFETY: a fresh shared mapping of our own descriptor; the kernel chooses the place.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, fd })
    }

    /// A descriptor of it, to be sent to others.
    pub fn duplicate(&self) -> io::Result<Descriptor> {
        self.fd.try_clone()
    }

    /// The fixed part.
    pub fn layout(&self) -> &Layout {
        // SAFETY: the mapping is large enough, page-aligned, zeroed at birth (valid for atomics), sealed against shrinking,
        // and lives as long as `self`.
        unsafe { self.memory.as_ref() }
    }

    /// A slot's record.
    pub fn slot(&self, slot: u8) -> &SlotRecord {
        &self.layout().slots[usize::from(slot)]
    }

    /// What a slot's member touches of the others' memory now.
    #[inline]
    pub fn hazard(&self, slot: u8) -> &Hazard {
        &self.layout().hazards[usize::from(slot)]
    }

    /// A slot is given out.
    pub fn give_out(&self, slot: u8) {
        self.layout().top.fetch_max(u32::from(slot), Ordering::AcqRel);
    }

    /// The highest slot that was ever given out.
    pub fn top(&self) -> u8 {
        self.layout().top.load(Ordering::Acquire) as u8
    }

    /// True while the slot is that of the same member.
    #[inline]
    pub fn is_member(&self, slot: u8, generation: u32) -> bool {
        let record = self.slot(slot);
        record.generation.load(Ordering::Acquire) == generation
            && record.state.load(Ordering::Acquire) == SlotState::Alive as u32
    }

    /// A port's tables, from index 0.
    pub fn port(&self, index: usize) -> &PortRecord {
        &self.layout().ports[index]
    }

    /// The counters that a slot's member writes for a port, from index 0.
    pub fn counters(&self, slot: u8, index: usize) -> &PortCounters {
        &self.layout().counters[usize::from(slot)][index]
    }

    /// The device's counters of a port: all members', living and gone.
    pub fn all_counters(&self, index: usize) -> Vec<(String, u64)> {
        let layout = self.layout();
        let mut sum: Vec<_> = layout.departed[index].all().map(|(name, value)| (name.to_owned(), value)).collect();
        self.add_members(index, |member| {
            for ((_, total), (_, value)) in sum.iter_mut().zip(member.all()) {
                *total = total.wrapping_add(value);
            }
        });
        sum
    }

    /// Some of [`Segment::all_counters`] by their places there, added to `out`, without allocating; false if one is beyond the last. Only slots that are somebody's are
    /// looked at: what others counted has moved to those that are gone.
    pub fn read_counters(&self, index: usize, places: &[u32], out: &mut [u64]) -> bool {
        let mut all = true;
        let mut add = |block: &PortCounters| {
            for (place, sum) in places.iter().zip(&mut *out) {
                match block.at(*place as usize) {
                    Some(value) => *sum = sum.wrapping_add(value),
                    None => all = false,
                }
            }
        };
        add(&self.layout().departed[index]);
        self.add_members(index, add);
        all
    }

    /// Some of [`Self::all_counters`], by number: for who looks often.
    pub fn some_counters<const N: usize>(&self, index: usize, which: [Counter; N]) -> [u64; N] {
        let mut sum = which.map(|counter| self.layout().departed[index].counter(counter));
        self.add_members(index, |member| {
            for (total, counter) in sum.iter_mut().zip(which) {
                *total = total.wrapping_add(member.counter(counter));
            }
        });
        sum
    }

    /// The blocks of all that may have counted something: a slot's counters are 0 when it becomes free.
    fn add_members(&self, index: usize, mut add: impl FnMut(&PortCounters)) {
        for (slot, counters) in self.layout().counters.iter().enumerate().take(SLOTS - 1).skip(1) {
            if self.layout().slots[slot].state() != SlotState::Free {
                add(&counters[index]);
            }
        }
    }

    /// Moves what a slot's member has counted to those that are gone, so that the slot starts at zero.
    pub fn retire_counters(&self, slot: u8) {
        let layout = self.layout();
        for (index, departed) in layout.departed.iter().enumerate() {
            layout.counters[usize::from(slot)][index].move_to(departed);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody can have a reference into it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), SIZE) };
    }
}

/// A slot's counters of one port: what the engine counts into.
#[derive(Debug)]
pub struct SlotCounters {
    segment: Arc<Segment>,
    slot: u8,
    index: usize,
}

impl SlotCounters {
    /// The block of a slot and a port, from index 0.
    pub fn new(segment: Arc<Segment>, slot: u8, index: usize) -> Self {
        Self { segment, slot, index }
    }
}

impl CounterBlock for SlotCounters {
    fn block(&self) -> &PortCounters {
        self.segment.counters(self.slot, self.index)
    }
}

#[cfg(test)]
mod tests {
    use scalefabric_transport::Counter;

    use super::*;

    fn gid(n: u8) -> Gid {
        Gid::from_ip(std::net::Ipv4Addr::new(10, 0, 0, n).into())
    }

    fn present(tables: &PortTables) -> Vec<(usize, Gid)> {
        let each = tables.gids.iter().enumerate();
        each.filter(|(_, slot)| slot.present).map(|(i, slot)| (i, slot.gid)).collect()
    }

    #[test]
    fn an_address_that_comes_back_has_its_old_index() {
        let mut tables = PortTables::default();
        tables.set_gids(&[gid(1), gid(2)]);
        tables.set_gids(&[gid(2)]);
        tables.set_gids(&[gid(2), gid(3)]);
        assert_eq!(present(&tables), [(1, gid(2)), (2, gid(3))], "slot 0 is not given to another address");
        tables.set_gids(&[gid(3), gid(1), gid(2)]);
        assert_eq!(present(&tables), [(0, gid(1)), (1, gid(2)), (2, gid(3))]);
    }

    #[test]
    fn a_full_table_gives_away_slots_of_the_gone_and_then_refuses() {
        let mut tables = PortTables::default();
        let all: Vec<Gid> = (0..GIDS as u8).map(gid).collect();
        assert!(tables.set_gids(&all).is_empty());
        assert!(tables.set_gids(&all[1..]).is_empty());
        let mut more = all[1..].to_vec();
        more.push(gid(200));
        assert!(tables.set_gids(&more).is_empty());
        assert_eq!(tables.gids[0], GidSlot { gid: gid(200), present: true });
        more.push(gid(201));
        assert_eq!(tables.set_gids(&more), [gid(201)]);
    }

    #[test]
    fn a_second_mapping_sees_what_the_first_wrote() {
        let first = Segment::create("test", 1).unwrap();
        let second = Segment::join(first.fd.try_clone().unwrap()).unwrap();
        let mut tables = PortTables { state: PortState::Active, mtu: Mtu::Mtu1024, ..PortTables::default() };
        tables.set_gids(&[gid(7)]);
        first.port(0).write(&tables);
        assert_eq!(second.port(0).read(), tables);
        second.port(0).set_pkey(3, PKey(0x8001));
        assert_eq!(first.port(0).read().pkeys[3], PKey(0x8001));
        assert!(!second.port(0).set_pkey(PKEYS as u16, PKey(1)));
    }

    #[test]
    fn a_foreign_or_unsealed_file_is_refused() {
        // SAFETY: plain system call with a C string.
        let fd = Descriptor::make(|| unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING) }).unwrap();
        assert!(Segment::join(fd.try_clone().unwrap()).is_err());
        // SAFETY: plain system calls.
        unsafe {
            libc::ftruncate(fd.as_raw_fd(), SIZE as libc::off_t);
            libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        }
        let error = Segment::join(fd).unwrap_err().to_string();
        assert!(error.contains("another version"), "{error}");
    }

    #[test]
    fn counters_of_the_gone_stay_in_the_sum() {
        let segment = Segment::create("test", 1).unwrap();
        for (slot, packets) in [(1, 5), (2, 7)] {
            segment.slot(slot).set_state(SlotState::Alive);
            segment.counters(slot, 0).add(Counter::SentPackets, packets);
        }
        segment.slot(1).set_state(SlotState::Dead);
        segment.retire_counters(1);
        segment.slot(1).set_state(SlotState::Free);
        assert_eq!(segment.counters(1, 0).counter(Counter::SentPackets), 0);
        assert_eq!(segment.some_counters(0, [Counter::SentPackets]), [12]);
        let sum = segment.all_counters(0);
        assert_eq!(sum.iter().find(|(name, _)| name == "sent_pkts"), Some(&("sent_pkts".to_owned(), 12)));
    }
}
