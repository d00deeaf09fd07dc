//! The registration cache against memory that comes and goes: threads map, unmap, move, shrink, protect, discard and fork, and after each lookup a device
//! that pins reads what the thread has just written. A registration that outlived its memory shows other bytes. The canaries leave one protection out
//! each and must be caught.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_fabric::Local;
use scalefabric_fabric::cache::{Cache, CacheConfig, CacheReport, Region, Watching, Weakness};
use scalefabric_tests::pinned::PinnedDomain;
use scalefabric_verbs::{Errno, ProtectionDomain};

const PAGE: usize = 4096;
const THREADS: usize = 4;
/// Mappings of each thread.
const AREAS: usize = 12;

/// A mapping has one watcher, and neighbours may be one mapping: caches of different tests would get in each other's way.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

/// One mapping of a thread.
#[derive(Clone, Copy)]
struct Area {
    at: usize,
    pages: usize,
}

fn pointer(at: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at)
}

fn map_at(at: usize, pages: usize, flags: libc::c_int) -> usize {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, or one that replaces pages of the caller's own area.
    let got = unsafe {
        libc::mmap(pointer(at).cast(), pages * PAGE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1, 0)
    };
    assert_ne!(got, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    got.expose_provenance()
}

fn unmap(at: usize, pages: usize) {
    // SAFETY: pages of the caller's own area, to which nothing refers.
    assert_eq!(unsafe { libc::munmap(pointer(at).cast(), pages * PAGE) }, 0);
}

fn advise(at: usize, pages: usize, advice: libc::c_int) {
    // SAFETY: pages of the caller's own area.
    assert_eq!(unsafe { libc::madvise(pointer(at).cast(), pages * PAGE, advice) }, 0);
}

/// What all threads share.
struct World {
    cache: Cache,
    device: Arc<PinnedDomain>,
    /// Where areas are, for those who look up what is not theirs.
    places: Vec<AtomicUsize>,
    left: AtomicU64,
    lookups: AtomicU64,
    stale: AtomicU64,
    first: Mutex<Option<String>>,
    is_over: AtomicBool,
    forks: u64,
}

impl World {
    fn new(config: CacheConfig, operations: u64, forks: u64) -> Option<Arc<Self>> {
        let device = match PinnedDomain::open() {
            Ok(device) => device,
            Err(error) => {
                println!("skipped: no device that pins pages: {error}");
                return None;
            }
        };
        let pd: Arc<dyn ProtectionDomain> = device.clone();
        Some(Arc::new(Self {
            cache: Cache::new(&[pd], config).unwrap(),
            device,
            places: (0..THREADS * AREAS).map(|_| AtomicUsize::new(0)).collect(),
            left: AtomicU64::new(operations),
            lookups: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            first: Mutex::new(None),
            is_over: AtomicBool::new(false),
            forks,
        }))
    }

    fn region(&self, at: usize, bytes: usize) -> Result<Region, scalefabric_fabric::FabricError> {
        // SAFETY: the device only reads, and no reference to the memory of areas is ever made.
        unsafe { self.cache.region(pointer(at), bytes) }
    }

    /// Looks up a range of the caller's own area; the device must see the word that is written into it.
    fn check(&self, at: usize, bytes: usize, word: usize, token: u64, story: &str) {
        let region = self.region(at, bytes).expect("the thread's own memory is there");
        self.check_region(&region, at, word, token, story);
    }

    fn check_region(&self, region: &Region, at: usize, word: usize, token: u64, story: &str) {
        let sge = region.sge(word, 8).expect("a word of the range");
        assert_eq!(sge.addr as usize, at + word);
        // SAFETY: a word of the caller's own area, which is mapped and writable.
        unsafe { pointer(at + word).cast::<u64>().write_volatile(token) };
        let seen = self.device.read_word(sge.lkey, sge.addr).expect("it is registered");
        self.lookups.fetch_add(1, Ordering::Relaxed);
        if seen != token {
            self.stale.fetch_add(1, Ordering::Relaxed);
            let text = format!("{story}: wrote {token:#x} at {:#x}, the device reads {seen:#x}", at + word);
            self.first.lock().unwrap().get_or_insert(text);
        }
    }
}

/// One thread's life.
fn live(world: &World, thread: usize, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut areas: [Option<Area>; AREAS] = [None; AREAS];
    let mut held: Vec<Region> = Vec::new();
    let mut token = (thread as u64) << 56;
    while !world.is_over.load(Ordering::Relaxed) {
        // In lots, so that the counter is not what threads fight for.
        if world.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(32)).is_err() {
            break;
        }
        for _ in 0..32 {
            let index = random.next(AREAS);
            let place = &world.places[thread * AREAS + index];
            let Some(area) = areas[index] else {
                let pages = 1 + random.next(8);
                let area = Area { at: map_at(0, pages, 0), pages };
                areas[index] = Some(area);
                place.store(area.at, Ordering::Relaxed);
                continue;
            };
            let first = random.next(area.pages);
            let pages = 1 + random.next(area.pages - first);
            let (at, bytes) = (area.at + first * PAGE, pages * PAGE);
            match random.next(1000) {
                0..100 => {
                    // Some of the thread's own memory, as a list.
                    let mut list: Vec<(*mut u8, usize)> = Vec::new();
                    for area in areas.iter().flatten() {
                        if list.len() < 10 && random.next(3) > 0 {
                            let first = random.next(area.pages);
                            list.push((pointer(area.at + first * PAGE), (area.pages - first) * PAGE));
                        }
                    }
                    let mut regions = Vec::new();
                    // SAFETY: the device only reads, and no reference to the memory of areas is ever made.
                    unsafe { world.cache.regions(&list, &mut regions) }.expect("the thread's own memory is there");
                    assert_eq!(regions.len(), list.len());
                    for (region, (addr, bytes)) in regions.iter().zip(&list) {
                        token += 1;
                        let word = random.next(bytes / 8) * 8;
                        world.check_region(region, addr.expose_provenance(), word, token, "a lookup of many");
                    }
                }
                100..700 => {
                    token += 1;
                    // Often not whole pages.
                    let skip = [0, 64, 520][random.next(3)];
                    let word = random.next((bytes - skip) / 8) * 8;
                    world.check(at + skip, bytes - skip, word, token, "a lookup");
                }
                700..760 => {
                    // Somebody else's memory, which may change or be gone at any moment.
                    let other = world.places[random.next(world.places.len())].load(Ordering::Relaxed);
                    if other != 0
                        && let Ok(region) = world.region(other, (1 + random.next(4)) * PAGE)
                        && held.len() < 16
                    {
                        held.push(region);
                    }
                }
                760..790 => held.clear(),
                790..850 => {
                    unmap(area.at, area.pages);
                    areas[index] = None;
                }
                850..880 if area.pages > 1 => {
                    let kept = 1 + random.next(area.pages - 1);
                    unmap(area.at + kept * PAGE, area.pages - kept);
                    areas[index] = Some(Area { pages: kept, ..area });
                }
                880..910 => {
                    // Grows or shrinks; to grow it mostly has to move.
                    let pages = 1 + random.next(10);
                    // SAFETY: the thread's own area, to which nothing refers.
                    let moved = unsafe {
                        libc::mremap(pointer(area.at).cast(), area.pages * PAGE, pages * PAGE, libc::MREMAP_MAYMOVE)
                    };
                    if moved == libc::MAP_FAILED {
                        // It was mapped over in part, and so is several mappings.
                        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
                        continue;
                    }
                    areas[index] = Some(Area { at: moved.expose_provenance(), pages });
                    place.store(moved.expose_provenance(), Ordering::Relaxed);
                }
                910..940 => {
                    map_at(at, pages, libc::MAP_FIXED);
                }
                940..942 => advise(at, pages, libc::MADV_DONTNEED),
                942..943 => advise(at, pages, libc::MADV_FREE),
                943..985 => {
                    // SAFETY: the thread's own area.
                    unsafe { libc::mprotect(pointer(at).cast(), bytes, libc::PROT_READ) };
                    // Found or refused: it is readable all the same.
                    drop(world.region(at, bytes));
                    // SAFETY: likewise.
                    unsafe { libc::mprotect(pointer(at).cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
                }
                985..=999 if world.forks > 0 && random.next(1000) < world.forks as usize => fork(world, at, bytes),
                _ => {}
            }
        }
        if world.stale.load(Ordering::Relaxed) > 0 {
            world.is_over.store(true, Ordering::Relaxed);
        }
    }
    for area in areas.iter().flatten() {
        unmap(area.at, area.pages);
    }
}

/// A child finds nothing, and does no harm; the parent's memory is written while the child has copies of it.
fn fork(world: &World, at: usize, bytes: usize) {
    let before = world.region(at, bytes).unwrap();
    // SAFETY: the child only asks the cache, which refuses, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = world.region(at, bytes).is_err_and(|error| error.errno == Some(Errno::EPERM));
        // What it inherited goes without a word, and its own memory without waiting for anybody.
        drop(before);
        world.cache.clear();
        // SAFETY: the child's copy of the area; then the end, without running the parent's handlers.
        unsafe {
            libc::munmap(pointer(at).cast(), bytes);
            libc::_exit(i32::from(!refused));
        }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    world.check_region(&before, at, 0, at as u64 ^ 0x55, "beside a child");
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child found something in its parent's cache");
    world.check(at, bytes, 8, at as u64 ^ 0xaa, "after a child");
}

/// Runs `operations`; returns lookups, stale ones with the first one's story, and the cache's report.
fn fuzz(config: CacheConfig, operations: u64, forks: u64) -> Option<(u64, u64, Option<String>, CacheReport)> {
    let seed = std::env::var("SFAB_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
    });
    println!("SFAB_SEED={seed}");
    let world = World::new(config, operations, forks)?;
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let world = Arc::clone(&world);
            std::thread::spawn(move || live(&world, thread, seed.wrapping_add(thread as u64)))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let report = world.cache.report();
    let lookups = world.lookups.load(Ordering::Relaxed);
    let first = world.first.lock().unwrap().take();
    let stale = world.stale.load(Ordering::Relaxed);
    let device = Arc::clone(&world.device);
    drop(world);
    assert_eq!(device.registrations().1, 0, "registrations are left");
    Some((lookups, stale, first, report))
}

fn small() -> CacheConfig {
    CacheConfig { max_bytes: 512 << 10, max_entries: 20, merge_bytes: 64 << 10, ..CacheConfig::default() }
}

fn operations() -> u64 {
    std::env::var("SFAB_CACHE_OPERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000)
}

#[test]
fn a_million_operations_and_no_hit_is_stale() {
    let _alone = alone();
    let Some((lookups, stale, first, report)) = fuzz(small(), operations(), 30) else { return };
    println!("{lookups} lookups, {report:#?}");
    assert_eq!(stale, 0, "{}", first.unwrap_or_default());
    if report.watching == Watching::Never {
        println!("skipped: the kernel does not tell what goes away: {}", report.reason.unwrap_or_default());
        return;
    }
    // It did keep, lose, join and evict, and not only pass.
    assert!(report.hits * 10 > lookups, "{report:?}");
    assert!(report.invalidated > 0 && report.joined > 0 && report.evicted > 0, "{report:?}");
}

/// The canary of the fuzzer: a cache that is told nothing (the promise is broken) finds what is gone.
#[test]
fn a_cache_that_is_told_nothing_is_caught() {
    let _alone = alone();
    let config = CacheConfig { watching: Watching::Promised, ..small() };
    let Some((_, stale, _, report)) = fuzz(config, 100_000, 0) else { return };
    assert!(stale > 0, "a cache without invalidation was not noticed: {report:?}");
}

/// The canary of the question to the kernel.
#[test]
fn a_cache_that_does_not_ask_the_kernel_is_caught() {
    let _alone = alone();
    let config = CacheConfig { weakness: Weakness::NoQuestion, ..small() };
    let Some((_, stale, _, report)) = fuzz(config, 4_000_000, 0) else { return };
    if report.watching == Watching::Never {
        println!("skipped: the kernel does not tell what goes away");
        return;
    }
    assert!(stale > 0, "a cache that does not ask was not noticed: {report:?}");
}

/// One thread discards memory again and again, another asks for that very memory all the time. Returns how many checks there were, and how many stale.
fn discard(config: CacheConfig, rounds: u64) -> Option<(u64, u64)> {
    let world = World::new(config, 0, 0)?;
    let area = map_at(0, 4, 0);
    let other = Arc::clone(&world);
    let asks = std::thread::spawn(move || {
        while !other.is_over.load(Ordering::Relaxed) {
            drop(other.region(area, 4 * PAGE));
        }
    });
    for round in 0..rounds {
        // SAFETY: the test's own area.
        unsafe { pointer(area).cast::<u64>().write_volatile(round) };
        advise(area, 4, libc::MADV_DONTNEED);
        world.check(area, 4 * PAGE, 0, !round, "after discarding");
        if world.stale.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    world.is_over.store(true, Ordering::Relaxed);
    asks.join().unwrap();
    unmap(area, 4);
    Some((world.lookups.load(Ordering::Relaxed), world.stale.load(Ordering::Relaxed)))
}

#[test]
fn memory_that_is_being_discarded_is_not_kept() {
    let _alone = alone();
    let Some((lookups, stale)) = discard(small(), 3000) else { return };
    assert_eq!((lookups, stale), (3000, 0));
}

/// The canary of the quarantine.
#[test]
fn a_cache_that_keeps_what_is_being_discarded_is_caught() {
    let _alone = alone();
    let config = CacheConfig { weakness: Weakness::NoQuarantine, ..small() };
    let Some((_, stale)) = discard(config, 200_000) else { return };
    assert!(stale > 0, "a cache without quarantine was not noticed");
}

/// Watching must not change what the application's own calls do.
#[test]
fn memory_of_which_a_part_is_kept_can_still_be_moved() {
    let _alone = alone();
    let Some(world) = World::new(small(), 0, 0) else { return };
    let area = map_at(0, 16, 0);
    world.check(area + 4 * PAGE, 2 * PAGE, 8, 1, "a part");
    // SAFETY: the test's own area, to which nothing refers.
    let moved = unsafe { libc::mremap(pointer(area).cast(), 16 * PAGE, 64 * PAGE, libc::MREMAP_MAYMOVE) };
    assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let moved = moved.expose_provenance();
    world.check(moved + 4 * PAGE, 2 * PAGE, 8, 2, "moved");
    unmap(moved, 64);
}

/// Files can be truncated without a word, so what lies in them is registered for its use only, and that is counted.
#[test]
fn files_and_shared_memory_are_not_kept() {
    let _alone = alone();
    let Some(world) = World::new(small(), 0, 0) else { return };
    // SAFETY: a new mapping.
    let at = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let at = at.expose_provenance();
    world.check(at, 4 * PAGE, 8, 1, "shared");
    assert!(!world.region(at, PAGE).unwrap().is_kept());
    let report = world.cache.report();
    assert_eq!((report.entries, report.hits), (0, 0));
    assert!(report.watching == Watching::Never || report.passing.unwatchable == 2, "{report:?}");
    unmap(at, 4);
}

/// What was not used for longest goes first, by bytes and by entries; what is in use stays.
#[test]
fn the_least_recently_used_makes_room() {
    let _alone = alone();
    let config = CacheConfig { max_entries: 4, max_bytes: 8 * PAGE, merge_bytes: 0, ..CacheConfig::default() };
    let Some(world) = World::new(config, 0, 0) else { return };
    if world.cache.report().watching == Watching::Never {
        return println!("skipped: the kernel does not tell what goes away");
    }
    let area = map_at(0, 64, 0);
    let ask = |index: usize, pages: usize| world.region(area + index * 4 * PAGE, pages * PAGE).unwrap();
    let registered = || world.device.registrations().0;
    let in_use = ask(0, 1);
    for index in 1..4 {
        drop(ask(index, 1));
    }
    drop(ask(1, 1));
    assert_eq!((registered(), world.cache.report().entries), (4, 4));
    // A fifth: number 2 is the oldest that nobody uses.
    drop(ask(4, 1));
    assert_eq!((registered(), world.cache.report().entries), (5, 4));
    for index in [0, 1, 3, 4] {
        drop(ask(index, 1));
    }
    assert_eq!(registered(), 5, "one of those that were used lately is gone");
    drop(ask(2, 1));
    assert_eq!(registered(), 6);
    // By bytes: six pages leave room for the one in use and one more.
    drop(ask(5, 6));
    let report = world.cache.report();
    assert!(report.bytes <= 8 * PAGE && in_use.is_kept(), "{report:?}");
    // What cannot fit is not kept.
    assert!(!ask(6, 9).is_kept());
    assert_eq!(world.cache.report().passing.too_large, 1);
    drop(in_use);
    unmap(area, 64);
}

/// Ranges that overlap become one, and so do small neighbours.
#[test]
fn ranges_that_touch_are_joined() {
    let _alone = alone();
    let config = CacheConfig { merge_bytes: 8 * PAGE, ..CacheConfig::default() };
    let Some(world) = World::new(config, 0, 0) else { return };
    if world.cache.report().watching == Watching::Never {
        return println!("skipped: the kernel does not tell what goes away");
    }
    let area = map_at(0, 64, 0);
    let ask = |first: usize, pages: usize| drop(world.region(area + first * PAGE, pages * PAGE).unwrap());
    ask(0, 4);
    ask(4, 4);
    assert_eq!(world.cache.report().entries, 1, "neighbours of eight pages are one");
    ask(8, 1);
    assert_eq!(world.cache.report().entries, 2, "nine would be more than merge_bytes");
    ask(6, 20);
    assert_eq!((world.cache.report().entries, world.cache.report().bytes), (1, 26 * PAGE));
    let before = world.device.registrations().0;
    ask(0, 26);
    ask(3, 9);
    assert_eq!(world.device.registrations().0, before);
    unmap(area, 64);
}

/// A hook that hears of vanished memory, for where the kernel does not tell.
#[test]
fn what_is_forgotten_is_registered_anew() {
    let _alone = alone();
    let config = CacheConfig { watching: Watching::Promised, batch: 1, ..small() };
    let Some(world) = World::new(config, 0, 0) else { return };
    let area = map_at(0, 8, 0);
    for round in 0..10 {
        world.check(area, 8 * PAGE, 16, round, "before");
        world.check(area, 8 * PAGE, 16, round, "again");
        scalefabric_fabric::cache::forget_everywhere(pointer(area + PAGE), PAGE);
        map_at(area, 8, libc::MAP_FIXED);
        world.check(area, 8 * PAGE, 16, !round, "after");
        world.cache.clear();
    }
    assert_eq!(world.stale.load(Ordering::Relaxed), 0);
    let report = world.cache.report();
    assert_eq!((report.kept, report.hits, report.invalidated), (20, 10, 20));
    world.cache.flush();
    assert_eq!(world.device.registrations().1, 0);
    unmap(area, 8);
}
