//! Device memory: allocated on the NIC, reached by copies here and by peers through a region.

use std::sync::Arc;

use scalefabric_verbs::*;

use crate::node::*;

fn dm_mr(
    node: &Node,
    dm: &Arc<dyn DeviceMemory>,
    offset: u64,
    length: usize,
) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
    node.pd.reg_dm_mr(dm, offset, length, ALL_ACCESS | AccessFlags::ZERO_BASED)
}

#[test]
fn a_peer_reads_writes_and_counts_in_device_memory() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let dm = w.nodes[1].ctx.alloc_dm(8192, 3).unwrap();
    assert_eq!(dm.length(), 8192);
    let mr = dm_mr(&w.nodes[1], &dm, 4096, 4096).unwrap();
    assert_eq!((mr.addr(), mr.length()), (0, 4096), "it begins at zero, wherever it lies in the device");
    let local = w.nodes[0].mr(4096);
    local.write(0, &pattern(1, 2000)).unwrap();
    let rkey = mr.rkey();
    send(&a, 1, SendOp::Write { remote_addr: 8, rkey }, &local, 0, 2000);
    send(&a, 2, SendOp::FetchAdd { remote_addr: 2048, rkey, add: 5 }, &local, 2040, 8);
    send(&a, 3, SendOp::Read { remote_addr: 9, rkey }, &local, 2100, 50);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [1, 2, 3].map(|id| (id, WcStatus::Success)));
    let mut out = vec![0; 2000];
    dm.read(4096 + 8, &mut out).unwrap();
    assert_eq!(out, pattern(1, 2000));
    assert_eq!(read(&local, 2100, 50), pattern(1, 2000)[1..51]);
    assert_eq!(mr.load_u64(2048).unwrap(), 5);
    // What is copied in is what a peer reads.
    dm.write(4096, &[9; 4]).unwrap();
    send(&a, 4, SendOp::Read { remote_addr: 0, rkey }, &local, 0, 4);
    // One byte beyond.
    send(&a, 5, SendOp::Write { remote_addr: 4000, rkey }, &local, 0, 97);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(4, WcStatus::Success), (5, WcStatus::RemAccessErr)]);
    assert_eq!(read(&local, 0, 4), [9; 4]);
}

#[test]
fn device_memory_that_a_region_uses_is_busy_and_outlives_its_handle() {
    let mut w = World::new(2);
    let node = &w.nodes[0];
    let dm = node.ctx.alloc_dm(64, 0).unwrap();
    let (mr, second) = (dm_mr(node, &dm, 0, 64).unwrap(), dm_mr(node, &dm, 60, 4).unwrap());
    second.destroy().unwrap();
    assert_eq!(dm.destroy().unwrap_err().errno, Errno::EBUSY);
    mr.destroy().unwrap();
    dm.destroy().unwrap();
    assert_eq!(dm.write(0, &[1]).unwrap_err().errno, Errno::EINVAL, "a stale handle");
    assert_eq!(dm_mr(node, &dm, 0, 64).unwrap_err().errno, Errno::EINVAL);
    // Dropped under its region: the bytes stay until the region goes.
    let [a, _b] = w.connect(QpType::Rc);
    let dm = w.nodes[1].ctx.alloc_dm(64, 0).unwrap();
    let mr = dm_mr(&w.nodes[1], &dm, 0, 64).unwrap();
    drop(dm);
    let local = w.nodes[0].mr(64);
    local.write(0, &[7; 64]).unwrap();
    send(&a, 1, SendOp::Write { remote_addr: 0, rkey: mr.rkey() }, &local, 0, 64);
    w.settle();
    assert_eq!(read(&mr, 0, 64), [7; 64]);
}

#[test]
fn the_device_gives_out_exactly_what_it_has() {
    let w = World::with(1, 1, |config| config.attr.max_dm_size = 10_000);
    let ctx = &w.nodes[0].ctx;
    assert_eq!(ctx.query_device().unwrap().max_dm_size, 10_000);
    let errno = |length, log_align| ctx.alloc_dm(length, log_align).map(drop).unwrap_err().errno;
    assert_eq!([errno(0, 0), errno(10_001, 0), errno(1, 15), errno(1, 64)], [Errno::EINVAL; 4]);
    let first = ctx.alloc_dm(9_000, 0).unwrap();
    assert_eq!(errno(1_001, 0), Errno::ENOMEM);
    let second = ctx.alloc_dm(1_000, 12).unwrap();
    assert_eq!(errno(1, 0), Errno::ENOMEM);
    second.destroy().unwrap();
    drop(second);
    drop(first);
    assert!(ctx.alloc_dm(10_000, 0).is_ok());
    let none = World::with(1, 1, |config| config.attr.max_dm_size = 0);
    assert_eq!(none.nodes[0].ctx.alloc_dm(1, 0).unwrap_err().errno, Errno::EOPNOTSUPP);
}

#[test]
fn copies_and_regions_stay_inside() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let dm = node.ctx.alloc_dm(100, 0).unwrap();
    assert!(dm.write(99, &[1]).is_ok() && dm.write(100, &[]).is_ok());
    let mut out = [0; 2];
    let wrong = [dm.write(99, &[1, 2]), dm.read(99, &mut out), dm.read(u64::MAX, &mut out), dm.write(101, &[])];
    assert!(wrong.iter().all(|r| r.as_ref().unwrap_err().errno == Errno::EINVAL));
    assert!(dm_mr(node, &dm, 50, 50).is_ok());
    assert_eq!(dm_mr(node, &dm, 50, 51).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(node.pd.reg_dm_mr(&dm, 0, 8, ALL_ACCESS).unwrap_err().errno, Errno::EINVAL, "not zero-based");
    let mr = dm_mr(node, &dm, 0, 100).unwrap();
    // SAFETY: no new range is given.
    let rereg = |access| unsafe { mr.rereg(None, None, Some(access)) };
    assert_eq!(rereg(AccessFlags::LOCAL_WRITE).unwrap_err().errno, Errno::EINVAL);
    rereg(AccessFlags::LOCAL_WRITE | AccessFlags::ZERO_BASED).unwrap();
    let other = World::new(1);
    assert_eq!(dm_mr(&other.nodes[0], &dm, 0, 8).unwrap_err().errno, Errno::EINVAL, "of another device");
}

#[test]
fn new_device_memory_is_zeroed() {
    let w = World::new(1);
    for _ in 0..3 {
        let dm = w.nodes[0].ctx.alloc_dm(4096, 0).unwrap();
        let mut out = [1; 4096];
        dm.read(0, &mut out).unwrap();
        assert_eq!(out, [0; 4096]);
        dm.write(0, &[0xee; 4096]).unwrap();
    }
}
