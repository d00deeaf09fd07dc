//! Which descriptors of this process lead to devices of ours. Reading it takes no lock and waits for nobody: a forked child
//! finds it usable whatever other threads did at that moment.
//!
//! A descriptor's cell names a slot, and holds one reference to it; a call under way holds another. Slots stay where they
//! are for ever, so a late reader finds a slot that is no longer his, never memory that is gone. The last reference takes
//! the device out.
//!
//! A child of `vfork` runs in its parent's memory, and closes its parent's descriptors there: the table belongs to the
//! process that is written in it, and others read it only.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::device::Device;

/// Descriptors in a page of the table.
const PAGE: usize = 1024;
/// Pages: descriptors from PAGE * PAGES on are never ours.
const PAGES: usize = 1024;
/// Slots in a block.
const BLOCK: usize = 256;
/// Blocks of slots.
const BLOCKS: usize = 256;
/// A slot's count while its device is put in or taken out.
const BUSY: u32 = 1 << 31;

struct Slot {
    /// References: descriptors and calls under way. 0: free.
    count: AtomicU32,
    /// How often the slot was taken; part of what a descriptor's cell says.
    generation: AtomicU32,
    device: UnsafeCell<Option<Arc<dyn Device>>>,
}

/// Descriptors that lead to devices, or did once: the highest number and one.
static END: AtomicI32 = AtomicI32::new(0);
/// Cells of descriptors: 0, or the slot's number and one (low half) and its generation (high half).
static CELLS: [AtomicPtr<[AtomicU64; PAGE]>; PAGES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PAGES];
static SLOTS: [AtomicPtr<[Slot; BLOCK]>; BLOCKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; BLOCKS];
/// The process whose table this is; 0 before the first device.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// A device, kept while a call is under way in it.
pub struct Borrowed {
    slot: &'static Slot,
}

impl std::ops::Deref for Borrowed {
    type Target = Arc<dyn Device>;

    fn deref(&self) -> &Arc<dyn Device> {
        // SAFETY: a reference is counted, so the slot is not busy and its device stays.
        match unsafe { &*self.slot.device.get() } {
            Some(device) => device,
            // The count of a slot without a device is 0 or BUSY: nobody can borrow it.
            None => std::process::abort(),
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        release(self.slot);
    }
}

/// The device behind a descriptor. Where no device was ever registered this is one load and one branch.
#[inline]
pub fn find(fd: i32) -> Option<Borrowed> {
    if fd >= END.load(Ordering::Relaxed) { None } else { look(fd) }
}

#[cold]
fn look(fd: i32) -> Option<Borrowed> {
    let cell = cell(fd)?;
    loop {
        let word = cell.load(Ordering::Acquire);
        let slot = slot_of(word)?;
        let mut count = slot.count.load(Ordering::Relaxed);
        // A slot that is free or busy is not this descriptor's any more: its cell will say so.
        while count != 0 && count & BUSY == 0 {
            match slot.count.compare_exchange_weak(count, count + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let borrowed = Borrowed { slot };
                    if cell.load(Ordering::Acquire) == word {
                        return Some(borrowed);
                    }
                    break;
                }
                Err(now) => count = now,
            }
        }
        std::hint::spin_loop();
    }
}

/// Makes a descriptor lead to a device. What it led to before is let go. False if the table has no room.
pub fn insert(fd: i32, device: Arc<dyn Device>) -> bool {
    own();
    let (Some(cell), Some((number, slot))) = (page(fd), free_slot()) else { return false };
    // SAFETY: `free_slot` made the slot busy: nobody else looks at its device.
    unsafe { *slot.device.get() = Some(device) };
    let generation = slot.generation.load(Ordering::Relaxed);
    slot.count.store(1, Ordering::Release);
    END.fetch_max(fd + 1, Ordering::Relaxed);
    let before = cell.swap(u64::from(generation) << 32 | (number as u64 + 1), Ordering::AcqRel);
    slot_of(before).inspect(|slot| release(slot));
    true
}

/// `to` is a duplicate of `from` from now on; nothing if `from` is not ours.
pub fn duplicate(from: i32, to: i32) {
    let Some(borrowed) = find(from) else { return };
    if !is_owned() || from == to {
        return;
    }
    let (Some(source), Some(target)) = (cell(from), page(to)) else { return };
    let word = source.load(Ordering::Acquire);
    if slot_of(word).is_none_or(|slot| !std::ptr::eq(slot, borrowed.slot)) {
        return;
    }
    END.fetch_max(to + 1, Ordering::Relaxed);
    let before = target.swap(word, Ordering::AcqRel);
    // The call's reference becomes the descriptor's.
    std::mem::forget(borrowed);
    slot_of(before).inspect(|slot| release(slot));
}

/// A descriptor that is about to be closed: its cell is empty from now on. What is returned must be dropped after the
/// kernel closed it.
pub fn remove(fd: i32) -> Option<Borrowed> {
    if fd >= END.load(Ordering::Relaxed) {
        return None;
    }
    let cell = cell(fd)?;
    if cell.load(Ordering::Relaxed) == 0 || !is_owned() {
        return None;
    }
    slot_of(cell.swap(0, Ordering::AcqRel)).map(|slot| Borrowed { slot })
}

/// The highest number that may be ours, and one.
pub fn end() -> i32 {
    END.load(Ordering::Relaxed)
}

/// The last reference takes the device out, and tells it.
fn release(slot: &'static Slot) {
    let mut count = slot.count.load(Ordering::Relaxed);
    loop {
        let next = if count == 1 { BUSY } else { count - 1 };
        match slot.count.compare_exchange_weak(count, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => count = now,
        }
    }
    if count == 1 {
        // SAFETY: the slot is busy: nobody else looks at its device.
        let device = unsafe { (*slot.device.get()).take() };
        slot.generation.fetch_add(1, Ordering::Relaxed);
        slot.count.store(0, Ordering::Release);
        if let Some(device) = device {
            device.close();
        }
    }
}

/// A slot that was free, now busy.
fn free_slot() -> Option<(usize, &'static Slot)> {
    for (index, block) in SLOTS.iter().enumerate() {
        let block: &'static [Slot; BLOCK] = allocated(block, || {
            Box::new(std::array::from_fn(|_| Slot {
                count: AtomicU32::new(0),
                generation: AtomicU32::new(0),
                device: UnsafeCell::new(None),
            }))
        });
        for (at, slot) in block.iter().enumerate() {
            if slot.count.load(Ordering::Relaxed) == 0
                && slot.count.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some((index * BLOCK + at, slot));
            }
        }
    }
    None
}

fn slot_of(word: u64) -> Option<&'static Slot> {
    let number = (word as u32 as usize).checked_sub(1)?;
    // SAFETY: a block that a cell names was put there before, and stays.
    let block = unsafe { SLOTS.get(number / BLOCK)?.load(Ordering::Acquire).as_ref() }?;
    block.get(number % BLOCK)
}

/// The cell of a descriptor, if its page is there.
fn cell(fd: i32) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    // SAFETY: a page that was put there stays.
    let page = unsafe { CELLS.get(fd / PAGE)?.load(Ordering::Acquire).as_ref() }?;
    page.get(fd % PAGE)
}

/// The cell of a descriptor; its page is made if need be. `None`: the number is negative or too high.
fn page(fd: i32) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    let page = CELLS.get(fd / PAGE)?;
    allocated(page, || Box::new([const { AtomicU64::new(0) }; PAGE])).get(fd % PAGE)
}

/// What stands at `place`; made first if nothing does. It stays for ever.
fn allocated<T>(place: &AtomicPtr<T>, make: impl FnOnce() -> Box<T>) -> &'static T {
    let mut found = place.load(Ordering::Acquire);
    if found.is_null() {
        let new = Box::into_raw(make());
        found = match place.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: `new` came from a Box just now, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: what was put there is never taken away.
    unsafe { &*found }
}

/// The table becomes this process's, and its forked children's.
fn own() {
    extern "C" fn in_child() {
        OWNER.store(process(), Ordering::Relaxed);
    }
    if OWNER.load(Ordering::Relaxed) == 0 && OWNER.swap(process(), Ordering::Relaxed) == 0 {
        // SAFETY: the handler only stores a number.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// False in a child of `vfork`, and in one that `clone` made behind libc's back.
fn is_owned() -> bool {
    OWNER.load(Ordering::Relaxed) == process()
}

/// The number of this process, asked of the kernel.
fn process() -> i32 {
    // SAFETY: it has no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

// SAFETY: the device is touched only as the counts allow: put in and taken out by whoever made the slot busy, read by
// those who hold a reference. `Device` is Send and Sync.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::device::{Errno, Node};
    use std::sync::atomic::AtomicUsize;

    struct Counting(&'static AtomicUsize);

    impl Device for Counting {
        fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
            Ok(bytes.len())
        }
        fn node(&self) -> Node {
            Node::Character(7)
        }
        fn close(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_device_is_closed_once_with_its_last_descriptor() {
        static CLOSED: AtomicUsize = AtomicUsize::new(0);
        assert!(insert(5000, Arc::new(Counting(&CLOSED))));
        duplicate(5000, 5001);
        duplicate(5002, 5003);
        assert!(find(5003).is_none() && find(4999).is_none() && find(-1).is_none());
        drop(remove(5000));
        assert!(find(5000).is_none());
        let under_way = find(5001).unwrap();
        drop(remove(5001));
        assert_eq!(CLOSED.load(Ordering::Relaxed), 0, "a call is under way");
        assert_eq!(under_way.write(b"abc"), Ok(3));
        drop(under_way);
        assert_eq!(CLOSED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_number_taken_again_leads_to_the_new_device() {
        static OLD: AtomicUsize = AtomicUsize::new(0);
        static NEW: AtomicUsize = AtomicUsize::new(0);
        assert!(insert(6000, Arc::new(Counting(&OLD))));
        assert!(insert(6000, Arc::new(Counting(&NEW))));
        assert_eq!((OLD.load(Ordering::Relaxed), NEW.load(Ordering::Relaxed)), (1, 0));
        drop(remove(6000));
        assert_eq!(NEW.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn finders_and_closers_at_the_same_time_lose_nothing() {
        static CLOSED: AtomicUsize = AtomicUsize::new(0);
        let rounds = 2000;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while CLOSED.load(Ordering::Relaxed) < rounds {
                        if let Some(device) = find(7000) {
                            assert_eq!(device.node(), Node::Character(7));
                        }
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..rounds {
                assert!(insert(7000, Arc::new(Counting(&CLOSED))));
                drop(remove(7000));
            }
            while CLOSED.load(Ordering::Relaxed) < rounds {
                std::thread::yield_now();
            }
        });
    }
}
