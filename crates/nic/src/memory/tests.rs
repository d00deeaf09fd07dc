//! The rules of regions and windows, each at its edge and one step beyond.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scalefabric_transport::host::{AccessFault, AtomicOp, LocalFault, RemoteAccess};
use scalefabric_verbs::{AccessFlags, Errno, FlushLevel, FlushPlacement, LKey, MwType, Qpn, RKey, Sge, WcStatus};

use super::*;

const PD: PdId = PdId(1);
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

fn table() -> (Arc<MemoryTable>, Accessor) {
    MemoryTable::new(Seed([1, 2, 3, 4]), 1 << 17)
}

fn peer() -> Peer {
    Peer { pd: PD, qpn: Qpn::new(7) }
}

fn wish(rkey: RKey, va: u64, length: u64, access: AccessFlags) -> RemoteAccess {
    RemoteAccess { rkey, va, length, access, xrc_srqn: None }
}

fn write(accessor: &mut Accessor, rkey: RKey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
    accessor.enter().write_remote(peer(), &wish(rkey, va, data.len() as u64, AccessFlags::REMOTE_WRITE), data)
}

fn sge(addr: u64, length: u32, lkey: LKey) -> Sge {
    Sge { addr, length, lkey }
}

#[test]
fn a_peer_reaches_exactly_the_region() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 1000, ALL).expect("memory");
    let (start, rkey) = (region.addr(), region.rkey());
    assert_eq!(write(&mut accessor, rkey, start, &[1; 1000]), Ok(()));
    assert_eq!(write(&mut accessor, rkey, start + 999, &[2]), Ok(()));
    assert_eq!(write(&mut accessor, rkey, start + 1000, &[3]), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&mut accessor, rkey, start - 1, &[3, 3]), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&mut accessor, rkey, start + 1, &[3; 1000]), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&mut accessor, rkey, u64::MAX, &[3; 2]), Err(AccessFault::OutOfBounds));
    let mut out = [0; 1000];
    region.read(0, &mut out).expect("inside");
    assert!(out[..999].iter().all(|&b| b == 1) && out[999] == 2);
    let beyond = wish(rkey, start, u64::MAX, AccessFlags::REMOTE_READ);
    assert_eq!(accessor.enter().check_remote(peer(), &beyond), Err(AccessFault::OutOfBounds));
}

#[test]
fn the_checks_come_in_their_order() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, AccessFlags::REMOTE_READ).expect("memory");
    let stranger = Peer { pd: PdId(2), ..peer() };
    let access = accessor.enter();
    // Everything is wrong: the key is told first, then the PD, then the right, then the bounds.
    let mut w = wish(RKey(region.rkey().0 ^ 1), 0, 8, AccessFlags::REMOTE_WRITE);
    assert_eq!(access.check_remote(stranger, &w), Err(AccessFault::BadKey));
    w.rkey = region.rkey();
    assert_eq!(access.check_remote(stranger, &w), Err(AccessFault::WrongPd));
    assert_eq!(access.check_remote(peer(), &w), Err(AccessFault::NoRight));
    w.access = AccessFlags::REMOTE_READ;
    assert_eq!(access.check_remote(peer(), &w), Err(AccessFault::OutOfBounds));
    w.va = region.addr();
    assert_eq!(access.check_remote(peer(), &w), Ok(()));
    // Nothing at all is always allowed.
    assert_eq!(access.check_remote(stranger, &wish(RKey(0), 0, 0, AccessFlags::REMOTE_WRITE)), Ok(()));
}

#[test]
fn each_right_is_its_own() {
    let (table, mut accessor) = table();
    let rights = [AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC];
    for given in rights {
        let region = table.allocate(PD, 8, given | AccessFlags::LOCAL_WRITE).expect("memory");
        for asked in rights {
            let expected = if given == asked { Ok(()) } else { Err(AccessFault::NoRight) };
            let wish = wish(region.rkey(), region.addr(), 8, asked);
            assert_eq!(accessor.enter().check_remote(peer(), &wish), expected, "{given:?} {asked:?}");
        }
    }
}

#[test]
fn registration_refuses_what_cannot_be() {
    let (table, _accessor) = table();
    let mut buffer = vec![0u8; 100];
    let fine = Registration {
        pd: PD,
        addr: buffer.as_mut_ptr(),
        length: 100,
        iova: buffer.as_ptr() as u64,
        access: AccessFlags::empty(),
    };
    // SAFETY: the buffer outlives the regions, which are refused or dropped at once.
    let errno = |r: Registration| unsafe { table.register(r) }.map(|_| ()).map_err(|e| e.errno);
    assert_eq!(errno(fine), Ok(()));
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC, AccessFlags::from_bits_retain(1 << 15)] {
        assert_eq!(errno(Registration { access, ..fine }), Err(Errno::EINVAL), "{access:?}");
    }
    let optional = AccessFlags::from_bits_retain(1 << 25) | AccessFlags::RELAXED_ORDERING;
    assert_eq!(errno(Registration { access: optional, ..fine }), Ok(()));
    assert_eq!(errno(Registration { length: usize::MAX, ..fine }), Err(Errno::EINVAL));
    assert_eq!(errno(Registration { length: 1 << 46, ..fine }), Err(Errno::EFAULT));
    assert_eq!(errno(Registration { addr: 4096 as *mut u8, iova: 4096, ..fine }), Err(Errno::EFAULT));
    assert_eq!(errno(Registration { length: 0, ..fine }), Ok(()));
    assert_eq!(errno(Registration { iova: fine.iova + 4096, ..fine }), Ok(()));
    assert_eq!(errno(Registration { iova: fine.iova + 1, ..fine }), Err(Errno::EINVAL), "another offset in the page");
    let top = u64::MAX - 4095 + fine.iova % 4096;
    let unprobed = Registration { access: AccessFlags::ON_DEMAND, length: 5000, ..fine };
    assert_eq!(errno(unprobed), Ok(()));
    assert_eq!(errno(Registration { iova: top, ..unprobed }), Err(Errno::EINVAL), "the iova wraps");
    let persistent = AccessFlags::FLUSH_PERSISTENT;
    assert_eq!(errno(Registration { access: persistent, ..fine }), Err(Errno::EINVAL), "no file behind it");
    assert_eq!(table.allocate(PD, 10, persistent).map(|_| ()).map_err(|e| e.errno), Err(Errno::EINVAL));
    assert!(table.is_empty());
}

#[test]
fn read_only_memory_may_be_registered_without_local_write() {
    let (table, mut accessor) = table();
    static CONSTANT: [u8; 16] = *b"cannot be change";
    let mut registration = Registration {
        pd: PD,
        addr: CONSTANT.as_ptr().cast_mut(),
        length: 16,
        iova: CONSTANT.as_ptr() as u64,
        access: AccessFlags::REMOTE_READ,
    };
    // SAFETY: nobody can write there.
    let region = unsafe { table.register(registration) }.expect("readable");
    let mut out = [0; 16];
    let wish = wish(region.rkey(), region.addr(), 16, AccessFlags::REMOTE_READ);
    assert_eq!(accessor.enter().read_remote(peer(), &wish, &mut out), Ok(()));
    assert_eq!(out, CONSTANT);
    registration.access |= AccessFlags::LOCAL_WRITE;
    // SAFETY: refused before anything is written.
    let refused = unsafe { table.register(registration) }.expect_err("read-only memory");
    assert_eq!(refused.errno, Errno::EFAULT);
    assert_eq!(region.write(0, &[1]).expect_err("read-only memory").errno, Errno::EFAULT);
}

#[test]
fn a_zero_based_region_begins_at_zero() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 64, ALL | AccessFlags::ZERO_BASED).expect("memory");
    assert_eq!(region.addr(), 0);
    assert_eq!(write(&mut accessor, region.rkey(), 60, &[9; 4]), Ok(()));
    assert_eq!(write(&mut accessor, region.rkey(), 61, &[9; 4]), Err(AccessFault::OutOfBounds));
    assert_eq!(region.load_u64(56).expect("inside"), 0x0909_0909_0000_0000);
    let list = [sge(0, 10, region.lkey()), sge(56, 8, region.lkey())];
    assert_eq!(accessor.enter().scatter(PD, list.into_iter(), 8, &[1, 2, 3]), Ok(()));
    let mut out = [0; 11];
    region.read(0, &mut out).expect("inside");
    assert_eq!((out, region.load_u64(56)), ([0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0], Ok(0x0909_0909_0000_0003)));
}

#[test]
fn an_iova_renames_addresses() {
    let (table, mut accessor) = table();
    let keep = table.allocate(PD, 4096, ALL).expect("memory");
    let registration = Registration { pd: PD, addr: keep.host_addr(), length: 4096, iova: 0x5000, access: ALL };
    // SAFETY: `keep` outlives the region; nobody has a reference to it.
    let region = unsafe { table.register(registration) }.expect("mapped");
    assert_ne!(region.rkey(), keep.rkey());
    assert_eq!(write(&mut accessor, region.rkey(), 0x5001, &[7]), Ok(()));
    assert_eq!(write(&mut accessor, region.rkey(), 0x6000, &[7]), Err(AccessFault::OutOfBounds));
    assert_eq!(keep.load_u64(0), Ok(0x0700));
}

#[test]
fn implicit_on_demand_covers_the_address_space() {
    let (table, mut accessor) = table();
    let access = ALL | AccessFlags::ON_DEMAND;
    let registration = Registration { pd: PD, addr: std::ptr::null_mut(), length: usize::MAX, iova: 0, access };
    let buffer = table.allocate(PD, 8, ALL).expect("memory");
    // SAFETY: the test touches only the buffer through it.
    let region = unsafe { table.register(registration) }.expect("not probed");
    guard::ensure(0);
    assert_eq!(write(&mut accessor, region.rkey(), buffer.addr(), &[5; 8]), Ok(()));
    assert_eq!(buffer.load_u64(0), Ok(0x0505_0505_0505_0505));
    assert_eq!(write(&mut accessor, region.rkey(), 8, &[5; 8]), Err(AccessFault::Gone));
    assert_eq!(write(&mut accessor, region.rkey(), 1 << 63, &[5; 8]), Err(AccessFault::Gone));
}

#[test]
fn an_sgl_is_gathered_and_scattered_across_its_pieces() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 4096, ALL).expect("memory");
    let image: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    region.write(0, &image).expect("inside");
    let lkey = region.lkey();
    // The empty piece in the middle has a bad key: nobody looks at it.
    let list = [sge(region.addr() + 100, 10, lkey), sge(0, 0, LKey(1)), sge(region.addr() + 7, 33, lkey)];
    let flat: Vec<u8> = image[100..110].iter().chain(&image[7..40]).copied().collect();
    for offset in 0..=43usize {
        for end in offset..=43 {
            let mut out = vec![0; end - offset];
            assert_eq!(accessor.enter().gather(PD, list.into_iter(), offset as u32, &mut out), Ok(()));
            assert_eq!(out, flat[offset..end]);
        }
    }
    let mut long = [0; 44];
    assert_eq!(accessor.enter().gather(PD, list.into_iter(), 0, &mut long), Err(LocalFault::OutOfBounds));
    assert_eq!(accessor.enter().gather(PD, list.into_iter(), 44, &mut [0]), Err(LocalFault::OutOfBounds));
    assert_eq!(accessor.enter().scatter(PD, list.into_iter(), 9, &[0xff; 3]), Ok(()));
    let mut out = [0; 1];
    region.read(109, &mut out).expect("inside");
    assert_eq!(out, [0xff]);
    region.read(8, &mut out).expect("inside");
    assert_eq!(out, [0xff]);
    region.read(9, &mut out).expect("inside");
    assert_eq!(out, [9]);
}

#[test]
fn local_faults_are_told_apart() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, AccessFlags::empty()).expect("memory");
    let window = table.allocate_window(PD, MwType::Type1).expect("room");
    let access = accessor.enter();
    let check = |pd, sge, write| access.check_local(pd, &sge, write);
    let good = sge(region.addr(), 100, region.lkey());
    assert_eq!(check(PD, good, false), Ok(()));
    assert_eq!(check(PD, good, true), Err(LocalFault::NoLocalWrite));
    assert_eq!(check(PdId(9), good, false), Err(LocalFault::WrongPd));
    assert_eq!(check(PD, Sge { addr: good.addr + 1, ..good }, false), Err(LocalFault::OutOfBounds));
    assert_eq!(check(PD, Sge { lkey: LKey(good.lkey.0 ^ 0x80), ..good }, false), Err(LocalFault::BadKey));
    assert_eq!(check(PD, Sge { lkey: LKey(0), ..good }, false), Err(LocalFault::BadKey));
    assert_eq!(check(PD, Sge { lkey: LKey(window.rkey().0), ..good }, false), Err(LocalFault::BadKey));
    assert_eq!(check(PD, Sge { lkey: LKey(0), length: 0, addr: 0 }, true), Ok(()));
}

#[test]
fn atomics_work_on_the_word_and_return_what_was_there() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 16, ALL).expect("memory");
    let w = wish(region.rkey(), region.addr() + 8, 8, AccessFlags::REMOTE_ATOMIC);
    let mut atomic = |op| accessor.enter().atomic_remote(peer(), &w, op);
    assert_eq!(atomic(AtomicOp::FetchAdd { add: 5 }), Ok(0));
    assert_eq!(atomic(AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(5));
    assert_eq!(atomic(AtomicOp::CompareSwap { compare: 5, swap: u64::MAX }), Ok(5));
    assert_eq!(atomic(AtomicOp::FetchAdd { add: 2 }), Ok(u64::MAX));
    assert_eq!(region.load_u64(8), Ok(1));
    assert_eq!(atomic(AtomicOp::Write { value: 77 }), Ok(0));
    assert_eq!((region.load_u64(0), region.load_u64(8)), (Ok(0), Ok(77)));
    let beyond = wish(region.rkey(), region.addr() + 16, 8, AccessFlags::REMOTE_ATOMIC);
    let refused = accessor.enter().atomic_remote(peer(), &beyond, AtomicOp::FetchAdd { add: 1 });
    assert_eq!(refused, Err(AccessFault::OutOfBounds));
}

#[test]
fn the_owner_copies_inside_its_region_only() {
    let (table, _accessor) = table();
    let region = table.allocate(PD, 16, AccessFlags::empty()).expect("memory");
    assert_eq!(region.write(8, &[1; 8]), Ok(()), "the owner needs no right");
    for (offset, length) in [(9, 8), (17, 0), (usize::MAX, 2), (0, 17)] {
        assert_eq!(region.write(offset, &vec![0; length]).expect_err("outside").errno, Errno::EINVAL);
        assert_eq!(region.read(offset, &mut vec![0; length]).expect_err("outside").errno, Errno::EINVAL);
    }
    assert_eq!(region.write(16, &[]), Ok(()));
    assert_eq!(region.store_u64(0, 3), Ok(()));
    assert_eq!(region.store_u64(4, 3).expect_err("not aligned").errno, Errno::EINVAL);
    assert_eq!(region.load_u64(16).expect_err("outside").errno, Errno::EINVAL);
    region.deregister().expect("once");
    assert_eq!(region.deregister().expect_err("twice").errno, Errno::EINVAL);
    assert_eq!(region.write(0, &[1]).expect_err("gone").errno, Errno::EINVAL);
    assert_eq!(region.lkey(), LKey(0));
}

#[test]
fn a_stale_key_is_refused() {
    let (table, mut accessor) = MemoryTable::new(Seed([9; 4]), 1);
    let mut seen = HashSet::new();
    for _ in 0..255 {
        let region = table.allocate(PD, 8, ALL).expect("memory");
        let (rkey, addr) = (region.rkey(), region.addr());
        assert!(seen.insert(rkey));
        assert!(table.allocate(PD, 8, ALL).is_err_and(|e| e.errno == Errno::ENOMEM), "the table is full");
        drop(region);
        assert_eq!(write(&mut accessor, rkey, addr, &[1]), Err(AccessFault::BadKey));
    }
    let last = table.allocate(PD, 8, ALL).expect("memory");
    assert!(!seen.contains(&last.rkey()));
    for old in seen {
        assert_eq!(write(&mut accessor, old, last.addr(), &[1]), Err(AccessFault::BadKey));
    }
}

#[test]
fn a_hundred_thousand_regions_are_found_and_forgotten() {
    let (table, mut accessor) = table();
    let keep = table.allocate(PD, 4096, ALL).expect("memory");
    let addr = keep.host_addr();
    let regions: Vec<Region> = (0..100_000)
        .map(|i| {
            let access = ALL | AccessFlags::ON_DEMAND;
            let registration = Registration { pd: PdId(i % 7), addr, length: 4096, iova: addr as u64, access };
            // SAFETY: `keep` outlives the regions.
            unsafe { table.register(registration) }.expect("room")
        })
        .collect();
    assert_eq!(table.len(), 100_001);
    assert_eq!(table.entries_of_pd(PdId(6)), 14_285);
    let keys: HashSet<RKey> = regions.iter().map(Region::rkey).collect();
    assert_eq!(keys.len(), 100_000);
    for (i, region) in regions.iter().enumerate().step_by(977) {
        let peer = Peer { pd: PdId(i as u32 % 7), ..peer() };
        let w = wish(region.rkey(), region.addr(), 8, AccessFlags::REMOTE_READ);
        assert_eq!(accessor.enter().check_remote(peer, &w), Ok(()));
    }
    drop(regions);
    assert_eq!((table.len(), table.entries_of_pd(PdId(6))), (1, 0));
    for key in keys {
        assert_eq!(write(&mut accessor, key, addr as u64, &[1]), Err(AccessFault::BadKey));
    }
}

#[test]
fn guessed_keys_open_nothing() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 8, ALL).expect("memory");
    let hits = (0..200_000u32)
        .filter(|i| {
            let guess = RKey(region.rkey().0.wrapping_add(i.wrapping_mul(256) + 1 + i % 255));
            guess != region.rkey() && write(&mut accessor, guess, region.addr(), &[1]).is_ok()
        })
        .count();
    assert_eq!(hits, 0);
}

#[test]
fn reregistration_changes_what_it_is_told_to() {
    let (table, mut accessor) = table();
    let keep = table.allocate(PD, 8192, ALL).expect("memory");
    let (addr, iova) = (keep.host_addr(), keep.addr());
    let registration = Registration { pd: PD, addr, length: 4096, iova, access: ALL };
    // SAFETY: `keep` outlives the region.
    let region = unsafe { table.register(registration) }.expect("mapped");
    let rkey = region.rkey();
    // SAFETY: as above.
    let rereg = |range, pd, access| unsafe { region.reregister(range, pd, access) };
    // Rights: the key stays.
    rereg(None, None, Some(AccessFlags::REMOTE_READ)).expect("allowed");
    assert_eq!(region.rkey(), rkey);
    assert_eq!(write(&mut accessor, rkey, iova, &[1]), Err(AccessFault::NoRight));
    // PD.
    rereg(None, Some(PdId(5)), Some(ALL)).expect("allowed");
    assert_eq!((table.entries_of_pd(PdId(5)), region.pd()), (1, PdId(5)));
    assert_eq!(write(&mut accessor, rkey, iova, &[1]), Err(AccessFault::WrongPd));
    // Range: the old key is dead.
    rereg(Some((addr.wrapping_add(4096), 4096)), Some(PD), None).expect("allowed");
    assert_ne!(region.rkey(), rkey);
    assert_eq!(write(&mut accessor, rkey, iova, &[1]), Err(AccessFault::BadKey));
    assert_eq!(write(&mut accessor, region.rkey(), iova, &[1]), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&mut accessor, region.rkey(), iova + 8191, &[1]), Ok(()));
    // Refused: everything as before.
    let now = region.rkey();
    assert_eq!(rereg(Some((16 as *mut u8, 8)), None, None).expect_err("not mapped").errno, Errno::EFAULT);
    assert_eq!(rereg(None, None, Some(AccessFlags::REMOTE_WRITE)).expect_err("rights").errno, Errno::EINVAL);
    assert_eq!(region.rkey(), now);
    assert_eq!(write(&mut accessor, now, iova + 4096, &[1]), Ok(()));
    // SAFETY: refused.
    let refused = unsafe { keep.reregister(Some((addr, 1)), None, None) };
    assert_eq!(refused.expect_err("its memory is its own").errno, Errno::EINVAL);
}

fn bind_of(window: &Window, region: &Region, rkey: RKey) -> Bind {
    Bind {
        mw_type: window.mw_type(),
        rkey,
        mr: region.lkey(),
        addr: region.addr() + 10,
        length: 20,
        access: AccessFlags::REMOTE_WRITE,
    }
}

#[test]
fn a_type_1_window_is_bound_rebound_and_unbound() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, ALL).expect("memory");
    let window = table.allocate_window(PD, MwType::Type1).expect("room");
    let (unbound, start) = (window.rkey(), region.addr());
    assert_eq!(write(&mut accessor, unbound, start + 10, &[1]), Err(AccessFault::BadKey));
    let first = window.prepare_rkey();
    assert_eq!(first.0 >> 8, unbound.0 >> 8);
    assert_ne!(first, unbound);
    let bind = bind_of(&window, &region, first);
    assert_eq!(accessor.enter().bind(peer(), &bind), Ok(()));
    assert_eq!(write(&mut accessor, unbound, start + 10, &[1]), Err(AccessFault::BadKey));
    assert_eq!(write(&mut accessor, first, start + 10, &[1; 20]), Ok(()));
    assert_eq!(write(&mut accessor, first, start + 9, &[1]), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&mut accessor, first, start + 30, &[1]), Err(AccessFault::OutOfBounds));
    let read = wish(first, start + 10, 1, AccessFlags::REMOTE_READ);
    assert_eq!(accessor.enter().check_remote(peer(), &read), Err(AccessFault::NoRight), "the window gives less");
    // Any QP of the PD may use it.
    let other = Peer { qpn: Qpn::new(8), ..peer() };
    let w = wish(first, start + 10, 1, AccessFlags::REMOTE_WRITE);
    assert_eq!(accessor.enter().check_remote(other, &w), Ok(()));
    assert_eq!(accessor.enter().check_remote(Peer { pd: PdId(2), ..peer() }, &w), Err(AccessFault::WrongPd));
    // Bound again: the old key is dead.
    let second = window.prepare_rkey();
    assert_eq!(accessor.enter().bind(peer(), &Bind { rkey: second, addr: start, ..bind }), Ok(()));
    assert_eq!(write(&mut accessor, first, start + 10, &[1]), Err(AccessFault::BadKey));
    assert_eq!(write(&mut accessor, second, start, &[1]), Ok(()));
    assert_eq!(region.deregister().expect_err("a window is bound").errno, Errno::EBUSY);
    // SAFETY: refused.
    let rereg = unsafe { region.reregister(None, None, Some(AccessFlags::empty())) };
    assert_eq!(rereg.expect_err("a window is bound").errno, Errno::EBUSY);
    assert_eq!(write(&mut accessor, second, start, &[1]), Ok(()), "a refused deregistration changes nothing");
    // Not to be invalidated.
    assert_eq!(accessor.enter().invalidate_local(peer(), second), Err(WcStatus::LocQpOpErr));
    assert_eq!(accessor.enter().invalidate_remote(peer(), second), Err(AccessFault::NoRight));
    // Unbound by length 0.
    let third = window.prepare_rkey();
    assert_eq!(accessor.enter().bind(peer(), &Bind { rkey: third, length: 0, mr: LKey(0), ..bind }), Ok(()));
    assert_eq!(write(&mut accessor, third, start, &[1]), Err(AccessFault::BadKey));
    assert_eq!(region.deregister(), Ok(()));
}

#[test]
fn a_type_2_window_belongs_to_its_qp_until_it_is_invalidated() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, ALL).expect("memory");
    let window = table.allocate_window(PD, MwType::Type2).expect("room");
    let rkey = RKey(window.rkey().0 & !0xff | 0x42);
    let bind = bind_of(&window, &region, rkey);
    let other = Peer { qpn: Qpn::new(8), ..peer() };
    let w = wish(rkey, region.addr() + 10, 1, AccessFlags::REMOTE_WRITE);
    assert_eq!(accessor.enter().bind(peer(), &bind), Ok(()));
    assert_eq!(accessor.enter().check_remote(peer(), &w), Ok(()));
    assert_eq!(accessor.enter().check_remote(other, &w), Err(AccessFault::WrongQp));
    assert_eq!(accessor.enter().bind(peer(), &bind), Err(WcStatus::MwBindErr), "invalidate first");
    assert_eq!(accessor.enter().invalidate_remote(other, rkey), Err(AccessFault::WrongQp));
    assert_eq!(accessor.enter().invalidate_local(Peer { pd: PdId(2), ..peer() }, rkey), Err(WcStatus::LocQpOpErr));
    assert_eq!(region.deregister().expect_err("bound").errno, Errno::EBUSY);
    assert_eq!(accessor.enter().invalidate_remote(peer(), rkey), Ok(()));
    assert_eq!(accessor.enter().check_remote(peer(), &w), Err(AccessFault::BadKey));
    assert_eq!(accessor.enter().invalidate_remote(peer(), rkey), Err(AccessFault::BadKey), "only once");
    assert_eq!(accessor.enter().bind(other, &bind), Ok(()));
    assert_eq!(accessor.enter().invalidate_local(other, rkey), Ok(()));
    assert_eq!(accessor.enter().bind(peer(), &Bind { length: 0, ..bind }), Err(WcStatus::MwBindErr));
    assert_eq!(accessor.enter().bind(peer(), &bind), Ok(()));
    // The QP goes away: a new QP of the same number gets nothing.
    accessor.enter().forget_qp(Qpn::new(8));
    assert_eq!(accessor.enter().check_remote(peer(), &w), Ok(()));
    accessor.enter().forget_qp(Qpn::new(7));
    assert_eq!(accessor.enter().check_remote(peer(), &w), Err(AccessFault::BadKey));
    assert_eq!(region.deregister(), Ok(()));
}

#[test]
fn a_bind_is_refused_for_each_reason_of_its_own() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, ALL).expect("memory");
    let no_bind = table.allocate(PD, 100, ALL - AccessFlags::MW_BIND).expect("memory");
    let no_write = table.allocate(PD, 100, AccessFlags::MW_BIND).expect("memory");
    let foreign = table.allocate(PdId(2), 100, ALL).expect("memory");
    let type1 = table.allocate_window(PD, MwType::Type1).expect("room");
    let type2 = table.allocate_window(PD, MwType::Type2).expect("room");
    let (good1, good2) = (bind_of(&type1, &region, type1.prepare_rkey()), bind_of(&type2, &region, type2.rkey()));
    let on = |region: &Region, bind: Bind| Bind { mr: region.lkey(), addr: region.addr() + 10, ..bind };
    for good in [good1, good2] {
        let bad = [
            Bind { rkey: region.rkey(), ..good },
            Bind { rkey: RKey(0), ..good },
            Bind { mr: LKey(good.mr.0 ^ 1), ..good },
            Bind { mr: LKey(type1.rkey().0), ..good },
            Bind { addr: region.addr() - 1, ..good },
            Bind { addr: region.addr() + 81, ..good },
            Bind { length: u64::MAX, ..good },
            Bind { access: AccessFlags::LOCAL_WRITE, ..good },
            Bind { access: AccessFlags::FLUSH_GLOBAL, ..good },
            Bind { mw_type: if good == good1 { MwType::Type2 } else { MwType::Type1 }, ..good },
            on(&no_bind, good),
            on(&foreign, good),
            on(&no_write, good),
            on(&no_write, Bind { access: AccessFlags::REMOTE_ATOMIC, ..good }),
        ];
        for bind in bad {
            assert_eq!(accessor.enter().bind(peer(), &bind), Err(WcStatus::MwBindErr), "{bind:?}");
        }
        assert_eq!(accessor.enter().bind(Peer { pd: PdId(2), ..peer() }, &good), Err(WcStatus::MwBindErr));
    }
    assert_eq!(region.deregister(), Ok(()), "nothing was bound");
}

#[test]
fn a_window_may_be_zero_based_if_it_is_of_type_2() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, ALL).expect("memory");
    let type1 = table.allocate_window(PD, MwType::Type1).expect("room");
    let type2 = table.allocate_window(PD, MwType::Type2).expect("room");
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED;
    let bind = Bind { access, ..bind_of(&type1, &region, type1.prepare_rkey()) };
    assert_eq!(accessor.enter().bind(peer(), &bind), Err(WcStatus::MwBindErr));
    let bind = Bind { access, ..bind_of(&type2, &region, type2.rkey()) };
    assert_eq!(accessor.enter().bind(peer(), &bind), Ok(()));
    assert_eq!(write(&mut accessor, bind.rkey, 0, &[5; 20]), Ok(()));
    assert_eq!(write(&mut accessor, bind.rkey, 20, &[5]), Err(AccessFault::OutOfBounds));
    let mut out = [0; 32];
    region.read(0, &mut out).expect("inside");
    assert!(out.iter().enumerate().all(|(i, &b)| (b == 5) == (10..30).contains(&i)));
}

#[test]
fn a_window_dies_with_its_region_and_frees_it_when_deallocated() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 100, ALL).expect("memory");
    let window = table.allocate_window(PD, MwType::Type2).expect("room");
    let bind = bind_of(&window, &region, window.rkey());
    let addr = bind.addr;
    assert_eq!(accessor.enter().bind(peer(), &bind), Ok(()));
    window.deallocate().expect("once");
    assert_eq!(window.deallocate().expect_err("twice").errno, Errno::EINVAL);
    assert_eq!(write(&mut accessor, bind.rkey, addr, &[1]), Err(AccessFault::BadKey));
    assert_eq!(accessor.enter().bind(peer(), &bind), Err(WcStatus::MwBindErr));
    assert_eq!(region.deregister(), Ok(()));
    let region = table.allocate(PD, 100, ALL).expect("memory");
    let window = table.allocate_window(PD, MwType::Type2).expect("room");
    let bind = bind_of(&window, &region, window.rkey());
    assert_eq!(accessor.enter().bind(peer(), &bind), Ok(()));
    drop(region);
    assert_eq!(write(&mut accessor, bind.rkey, bind.addr, &[1]), Err(AccessFault::BadKey));
    assert_eq!(accessor.enter().invalidate_local(peer(), bind.rkey), Ok(()));
    drop(window);
    assert!(table.is_empty());
}

#[test]
fn flush_needs_its_right_and_its_range() {
    let (table, mut accessor) = table();
    let access = AccessFlags::FLUSH_GLOBAL | AccessFlags::LOCAL_WRITE;
    let region = table.allocate(PD, 100, access).expect("memory");
    let access = accessor.enter();
    let flush = |va, length, placement, level| {
        access.flush_remote(peer(), &wish(region.rkey(), va, length, AccessFlags::empty()), placement, level)
    };
    let (start, global) = (region.addr(), FlushPlacement::Global);
    assert_eq!(flush(start, 100, global, FlushLevel::Range), Ok(()));
    assert_eq!(flush(start, 101, global, FlushLevel::Range), Err(AccessFault::OutOfBounds));
    assert_eq!(flush(0, 1 << 40, global, FlushLevel::MemoryRegion), Ok(()), "not looked at");
    for placement in [FlushPlacement::Persistent, FlushPlacement::GlobalAndPersistent] {
        assert_eq!(flush(start, 1, placement, FlushLevel::Range), Err(AccessFault::NoRight));
    }
}

#[test]
fn deregistration_waits_for_the_turn() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 64, ALL).expect("memory");
    let (rkey, addr) = (region.rkey(), region.addr());
    let done = Arc::new(AtomicBool::new(false));
    let access = accessor.enter();
    let thread = std::thread::spawn({
        let done = done.clone();
        move || {
            region.deregister().expect("once");
            done.store(true, Ordering::SeqCst);
        }
    });
    // As soon as the key is revoked, the other thread is waiting, and stays so.
    let w = wish(rkey, addr, 8, AccessFlags::REMOTE_WRITE);
    while access.check_remote(peer(), &w).is_ok() {
        std::thread::yield_now();
    }
    for _ in 0..100 {
        std::thread::yield_now();
        assert!(!done.load(Ordering::SeqCst));
    }
    drop(access);
    thread.join().expect("no panic");
    assert!(done.load(Ordering::SeqCst));
}

#[test]
fn deregistration_from_inside_a_turn_does_not_wait_for_itself() {
    let (table, mut accessor) = table();
    let region = table.allocate(PD, 64, ALL).expect("memory");
    let _access = accessor.enter();
    region.deregister().expect("once");
}

#[test]
fn registration_and_traffic_run_side_by_side() {
    let (table, mut accessor) = table();
    let stop = Arc::new(AtomicBool::new(false));
    let shared = Arc::new(std::sync::Mutex::new((RKey(0), 0u64)));
    let thread = std::thread::spawn({
        let (table, stop, shared) = (table.clone(), stop.clone(), shared.clone());
        move || {
            for _ in 0..300 {
                let region = table.allocate(PD, 4096, ALL).expect("memory");
                *shared.lock().expect("whole") = (region.rkey(), region.addr());
                std::thread::yield_now();
                region.deregister().expect("once");
                // What the engine wrote up to now is whole; afterwards nobody writes.
                let allocation = region.allocation().expect("allocated").addr();
                // SAFETY: the allocation lives as long as the region.
                let first = unsafe { copy::load_u64(allocation.cast()) };
                std::thread::yield_now();
                // SAFETY: as above.
                assert_eq!(unsafe { copy::load_u64(allocation.cast()) }, first);
            }
            stop.store(true, Ordering::SeqCst);
        }
    });
    let mut count = 0u64;
    while !stop.load(Ordering::SeqCst) {
        let (rkey, addr) = *shared.lock().expect("whole");
        for _ in 0..20 {
            count += 1;
            let _ = write(&mut accessor, rkey, addr, &count.to_le_bytes());
        }
    }
    thread.join().expect("no panic");
    assert!(table.is_empty());
}
