//! The pool on a device that pins its pages, and on software NICs: buffers do not overlap, keys open what they name, rotation keeps old keys good until they are retired, limits
//! and forks are answered and not suffered.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc;

use scalefabric_fabric::pool::{Buffer, PageKind, Pool, PoolConfig, Zeroing};
use scalefabric_fabric::{FabricError, Local};
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions, RequestPath};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::pinned::PinnedDomain;
use scalefabric_verbs::{AccessFlags, Errno, ProtectionDomain, Provider};

const MIB: usize = 1 << 20;

fn small() -> PoolConfig {
    PoolConfig { initial_bytes: 4 * MIB, arena_bytes: 4 * MIB, limit_bytes: 16 * MIB, ..PoolConfig::default() }
}

/// A device, and a pool on it; `None` where nothing can be pinned.
fn pool(config: PoolConfig) -> Option<(Arc<PinnedDomain>, Pool)> {
    let device = PinnedDomain::open().map_err(|error| println!("skipped: no device that pins pages: {error}")).ok()?;
    let pd: Arc<dyn ProtectionDomain> = device.clone();
    Some((device, Pool::new(&[pd], config).unwrap()))
}

fn mark(buffer: &Buffer, value: u64) {
    let last = buffer.len() - 8;
    buffer.store_u64(0, value).unwrap();
    buffer.write(last, &value.to_ne_bytes()).unwrap();
}

fn check(device: &PinnedDomain, buffer: &Buffer, value: u64) {
    let mut word = [0; 8];
    buffer.read(buffer.len() - 8, &mut word).unwrap();
    assert_eq!((buffer.load_u64(0).unwrap(), u64::from_ne_bytes(word)), (value, value), "somebody wrote into it");
    let sge = buffer.sge(0, 8).unwrap();
    assert_eq!(device.read_word(sge.lkey, sge.addr).unwrap(), value, "the key opens something else");
}

#[test]
fn buffers_of_many_threads_never_overlap() {
    let Some((device, pool)) = pool(small()) else { return };
    let (send, receive) = mpsc::channel::<(Buffer, u64)>();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (pool, send) = (pool.clone(), send.clone());
            let device = &device;
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut own: Vec<(Buffer, u64)> = Vec::new();
                for step in 0..4000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let bytes = 8 * (1 + (random >> 33) as usize % [8, 100, 2000, 20_000][step % 4]);
                    if let Ok(buffer) = pool.alloc(bytes) {
                        let value = thread << 32 | step as u64;
                        mark(&buffer, value);
                        own.push((buffer, value));
                    }
                    if own.len() > 40 {
                        let (buffer, value) = own.swap_remove((random >> 40) as usize % own.len());
                        check(device, &buffer, value);
                        // Every other one is freed by another thread.
                        if step % 2 == 0 {
                            send.send((buffer, value)).unwrap();
                        }
                    }
                }
                own.iter().for_each(|(buffer, value)| check(device, buffer, *value));
            });
        }
        drop(send);
        for (buffer, value) in receive {
            check(&device, &buffer, value);
        }
    });
    assert!(pool.report().registered_bytes <= 16 * MIB);
}

#[test]
fn buffers_are_aligned_and_stay_inside() {
    let Some((_, pool)) = pool(small()) else { return };
    for bytes in [0, 1, 64, 65, 700, 4095, 4096, 5000, 100_000, MIB, MIB + 1] {
        let lines = pool.alloc(bytes).unwrap();
        assert!(lines.addr().is_multiple_of(64) && lines.len() == bytes);
        let pages = pool.alloc_aligned(bytes, 4096).unwrap();
        assert!(pages.addr().is_multiple_of(4096));
        assert!(pages.sge(0, bytes).is_some() && pages.sge(1, bytes).is_none() && pages.remote(bytes + 1, 0).is_none());
        assert!(pages.write(bytes, &[1]).is_err() && pages.read(usize::MAX, &mut [0]).is_err());
    }
    assert!(pool.alloc_aligned(1, 8192).is_err() && pool.alloc_aligned(1, 48).is_err());
    assert!(pool.alloc(64).unwrap().store_u64(4, 1).is_err(), "a word has to be aligned");
}

#[test]
fn an_old_key_is_good_until_it_is_retired() {
    let Some((device, pool)) = pool(small()) else { return };
    let buffer = pool.alloc(64).unwrap();
    mark(&buffer, 7);
    let (old, old_remote) = (buffer.sge(0, 8).unwrap(), buffer.remote(0, 8).unwrap());
    assert_eq!(pool.rotate_keys().unwrap(), 1);
    let new = buffer.sge(0, 8).unwrap();
    assert_ne!(old.lkey, new.lkey);
    assert_ne!(old_remote.rkey, buffer.remote(0, 8).unwrap().rkey);
    assert_eq!(pool.report().old_registrations, 1);
    for sge in [old, new] {
        assert_eq!(device.read_word(sge.lkey, sge.addr).unwrap(), 7);
    }
    assert_eq!(pool.retire_old().unwrap(), 1);
    assert!(device.read_word(old.lkey, old.addr).is_err(), "a retired key still opens the memory");
    assert_eq!(device.read_word(new.lkey, new.addr).unwrap(), 7);
    // Buffers of arenas to come have present keys, too.
    assert_eq!(device.registrations().1, 1);
}

#[test]
fn a_buffer_has_a_key_for_each_domain_and_none_to_lend_without_rights() {
    let Ok(first) = PinnedDomain::open() else { return println!("skipped: no device that pins pages") };
    let second = PinnedDomain::open().unwrap();
    let pds: [Arc<dyn ProtectionDomain>; 2] = [first.clone(), second.clone()];
    let config = PoolConfig { access: AccessFlags::LOCAL_WRITE, ..small() };
    // Different numbers of registrations make different keys.
    let other = Pool::new(&pds[1..], small()).unwrap();
    let pool = Pool::new(&pds, config).unwrap();
    let buffer = pool.alloc(64).unwrap();
    mark(&buffer, 9);
    for (domain, device) in [(0, &first), (1, &second)] {
        let sge = buffer.sge_on(domain, 0, 8).unwrap();
        assert_eq!(device.read_word(sge.lkey, sge.addr).unwrap(), 9);
        assert!(buffer.remote_on(domain, 0, 8).is_none());
    }
    assert_ne!(buffer.sge_on(0, 0, 8), buffer.sge_on(1, 0, 8));
    assert!(buffer.sge_on(2, 0, 8).is_none());
    drop(other);
}

#[test]
fn memory_lives_as_long_as_its_buffers() {
    let Some((device, pool)) = pool(small()) else { return };
    let buffer = pool.alloc(5000).unwrap();
    let large = pool.alloc(2 * MIB).unwrap();
    mark(&buffer, 3);
    drop(pool);
    check(&device, &buffer, 3);
    drop(large);
    // In another thread, which never allocated.
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert_eq!(device.registrations().1, 0, "the arena is still registered");
}

#[test]
fn the_limit_is_an_error_and_freed_memory_serves_every_size() {
    let Some((_, pool)) = pool(small()) else { return };
    let fill = |bytes: usize| -> (Vec<Buffer>, FabricError) {
        let mut buffers = Vec::new();
        loop {
            match pool.alloc(bytes) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => return (buffers, error),
            }
        }
    };
    for bytes in [4096, 100_000, 3 * MIB, 64, 600_000] {
        let (buffers, error) = fill(bytes);
        assert_eq!(error.errno, Some(Errno::ENOMEM), "{error}");
        assert!(error.message.contains("limit_bytes"), "{error}");
        let got = buffers.iter().map(|buffer| buffer.len()).sum::<usize>();
        assert!(got * 2 >= 16 * MIB, "only {got} bytes in buffers of {bytes}");
    }
}

#[test]
fn where_an_arena_is_refused_the_pool_grows_by_what_is_asked_for() {
    // More than any address space has, as a quota may be less than an arena.
    let config = PoolConfig { arena_bytes: 1 << 50, limit_bytes: 1 << 51, ..small() };
    let Some((_, pool)) = pool(config) else { return };
    let first = pool.alloc(3 * MIB).unwrap();
    let second = pool.alloc(3 * MIB).unwrap();
    assert_eq!((first.len(), second.len()), (3 * MIB, 3 * MIB));
    assert!(pool.alloc(1 << 50).is_err());
}

#[test]
fn better_pages_are_refused_with_a_reason_or_taken() {
    let Some((_, pool)) = pool(small()) else { return };
    let report = pool.report();
    let arena = &report.arenas[0];
    println!("{arena}");
    let better = PageKind::ALL.iter().filter(|kind| **kind < arena.pages).count();
    assert_eq!(arena.refused.len(), better, "each better kind has its reason");
    assert!(arena.refused.iter().all(|(_, why)| !why.is_empty()));
    assert!(arena.pages == PageKind::Plain || arena.huge_bytes > 0);
    // Who insists gets an error that says why.
    let insists = PoolConfig { best_pages: PageKind::Huge1G, least_pages: PageKind::Huge1G, ..small() };
    let pd: Arc<dyn ProtectionDomain> = PinnedDomain::open().unwrap();
    let error = Pool::new(&[pd], insists).unwrap_err();
    assert!(error.message.contains("no multiple"), "{error}");
}

/// A pool on a software NIC whose requests go that way.
fn software_pool(name: &str, path: RequestPath, config: PoolConfig) -> Pool {
    let id = std::process::id();
    let address = Ipv4Addr::new(127, 50 + (id >> 14) as u8 % 50, (id >> 6) as u8, (id << 2) as u8 | path as u8).into();
    let port = PortOptions { interface: "lo".into(), addresses: vec![address] };
    let device = DeviceOptions { name: name.into(), ports: vec![port], ..DeviceOptions::default() };
    let options = Options { devices: vec![device], automatic: false, path, ..Options::default() };
    let context = SoftwareProvider::new(options).open(name).unwrap();
    Pool::new(&[context.alloc_pd().unwrap()], config).unwrap()
}

#[test]
fn neighbours_map_the_pool_of_a_software_nic_and_no_other() {
    // Reserved pages are private and come first, wherever a machine has them.
    let ordinary = PoolConfig { best_pages: PageKind::Transparent, ..small() };
    let report = |pool: &Pool| pool.report().arenas[0].clone();
    let shared = software_pool("sfpool", RequestPath::Auto, ordinary.clone());
    let arena = report(&shared);
    println!("{arena}");
    assert_eq!(arena.shared, Ok(()), "{arena}");
    assert_eq!(
        arena.refused.len(),
        usize::from(arena.pages == PageKind::Plain),
        "a better kind has its reason: {arena}"
    );
    assert!(arena.pages == PageKind::Plain || arena.huge_bytes > 0);
    let buffer = shared.alloc(3 * MIB).unwrap();
    mark(&buffer, 5);
    let told = |pool: &Pool| report(pool).shared.expect_err("it is private");
    assert!(
        told(&software_pool("sfpool", RequestPath::Auto, PoolConfig { shared: false, ..ordinary.clone() }))
            .contains("PoolConfig")
    );
    assert!(told(&software_pool("sfpoolw", RequestPath::Wire, ordinary.clone())).contains("wire path"));
    if let Some((_, pool)) = pool(ordinary) {
        assert!(told(&pool).contains("does not have"), "{}", told(&pool));
    }
    // What a child of fork touches of its parent's is nothing: shared pages would be shared with it, too.
    // SAFETY: the child only looks at a mapping that it should not have, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut page = 0u8;
        let at = std::ptr::with_exposed_provenance_mut((buffer.addr() as usize) & !4095);
        // SAFETY: mincore only says whether something is mapped there.
        let is_mapped = unsafe { libc::mincore(at, 4096, &raw mut page) } == 0;
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(i32::from(is_mapped)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has the arena");
    let mut word = [0; 8];
    buffer.read(0, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 5);
}

#[test]
fn a_zeroing_pool_shows_nothing_of_the_last_owner() {
    for (zeroing, is_shown) in [(Zeroing::OnAlloc, false), (Zeroing::Never, true)] {
        let Some((_, pool)) = pool(PoolConfig { zeroing, ..small() }) else { return };
        let secret = pool.alloc(100_000).unwrap();
        secret.write(0, &[0x5a; 100_000]).unwrap();
        let at = secret.addr();
        drop(secret);
        let next = pool.alloc(100_000).unwrap();
        assert_eq!(next.addr(), at, "the same bytes come back");
        let mut bytes = vec![0; 100_000];
        next.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().any(|byte| *byte != 0), is_shown);
    }
}

#[test]
fn a_child_is_refused_and_does_not_crash() {
    let Some((device, pool)) = pool(small()) else { return };
    let buffer = pool.alloc(64).unwrap();
    mark(&buffer, 11);
    // SAFETY: the child only calls the pool, which refuses, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |error: FabricError| error.errno == Some(Errno::EPERM);
        let all = pool.alloc(64).is_err_and(refused)
            && pool.rotate_keys().is_err_and(refused)
            && buffer.write(0, &[1]).is_err_and(refused)
            && buffer.load_u64(0).is_err_and(refused)
            && buffer.sge(0, 8).is_none();
        drop(buffer);
        drop(pool);
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not refused, or crashed");
    check(&device, &buffer, 11);
}
