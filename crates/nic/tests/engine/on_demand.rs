//! On-demand paging: regions over memory that is not there yet, or over everything; and advice.

use std::sync::Arc;

use scalefabric_verbs::*;

use crate::node::*;

const PAGE: usize = 4096;
const ODP: AccessFlags = ALL_ACCESS.union(AccessFlags::ON_DEMAND);

/// Pages that nobody can touch yet: their addresses are ours, so that no other test gets them.
fn reserve(pages: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn protect(at: *mut u8, pages: usize, protection: i32) {
    // SAFETY: the test's own mapping, which no reference reaches.
    assert_eq!(unsafe { libc::mprotect(at.cast(), pages * PAGE, protection) }, 0);
}

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn register(node: &Node, at: *mut u8, length: usize, access: AccessFlags) -> Arc<dyn MemoryRegion> {
    // SAFETY: the test's own mapping, which no reference reaches; or none, which fails each access.
    unsafe { node.pd.reg_mr(at, length, at as u64, access) }.unwrap()
}

#[test]
fn a_region_over_memory_that_is_not_there_works_once_it_is() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut w = World::new(2);
        let at = reserve(2);
        let dst = register(&w.nodes[1], at, 2 * PAGE, ODP);
        // SAFETY: as in `register`.
        let plain = unsafe { w.nodes[1].pd.reg_mr(at, 2 * PAGE, at as u64, ALL_ACCESS) };
        assert_eq!(plain.unwrap_err().errno, Errno::EFAULT, "without ON_DEMAND it must be mapped");
        let src = w.nodes[0].mr(PAGE);
        src.write(0, &pattern(1, PAGE)).unwrap();
        let write = |offset| SendOp::Write { remote_addr: dst.addr() + offset, rkey: dst.rkey() };
        if qp_type == QpType::Rc {
            let [a, b] = w.connect(qp_type);
            send(&a, 1, write(100), &src, 0, 3000);
            w.settle();
            assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::RemOpErr)], "nothing is there");
            assert_eq!(b.query().unwrap().0.qp_state, QpState::Err);
        }
        protect(at, 2, BOTH);
        let [a, _b] = w.connect(qp_type);
        send(&a, 2, write(100), &src, 0, 3000);
        w.settle();
        assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::Success)]);
        assert_eq!(read(&dst, 100, 3000), pattern(1, PAGE)[..3000]);
        // And it may go again.
        protect(at, 2, libc::PROT_NONE);
        if qp_type == QpType::Rc {
            send(&a, 3, write(0), &src, 0, 8);
            w.settle();
            assert_eq!(outcome(&w.nodes[0].poll()), [(3, WcStatus::RemOpErr)]);
        }
    }
}

#[test]
fn a_local_on_demand_buffer_that_is_not_there_is_a_local_protection_error() {
    let mut w = World::new(2);
    let at = reserve(1);
    let src = register(&w.nodes[0], at, PAGE, ODP);
    let dst = w.nodes[1].mr(PAGE);
    for mapped in [false, true] {
        let [a, b] = w.connect(QpType::Rc);
        recv(&b, 7, &dst, 0, 4096);
        if mapped {
            protect(at, 1, BOTH);
        }
        send(&a, 1, SendOp::Send, &src, 0, 2000);
        w.settle();
        let want = if mapped { WcStatus::Success } else { WcStatus::LocProtErr };
        assert_eq!(outcome(&w.nodes[0].poll()), [(1, want)]);
        w.nodes[1].poll();
    }
}

/// A region over the whole address space.
fn implicit(node: &Node) -> Arc<dyn MemoryRegion> {
    register(node, std::ptr::null_mut(), usize::MAX, ODP)
}

#[test]
fn an_implicit_region_covers_everything_that_is_mapped_and_nothing_else() {
    let mut w = World::new(2);
    let all = w.nodes.iter().map(implicit).collect::<Vec<_>>();
    assert_eq!((all[1].addr(), all[1].length()), (0, usize::MAX));
    let (here, there) = (reserve(1), reserve(1));
    protect(here, 1, BOTH);
    protect(there, 1, BOTH);
    let watch = register(&w.nodes[1], there, PAGE, ODP);
    let local = register(&w.nodes[0], here, PAGE, ODP);
    local.write(0, &pattern(3, 1000)).unwrap();
    let write_to = |w: &mut World, remote_addr: u64, length: u32| {
        let [a, _b] = w.connect(QpType::Rc);
        let sg_list = [Sge { addr: here as u64, length, lkey: all[0].lkey() }];
        let op = SendOp::Write { remote_addr, rkey: all[1].rkey() };
        a.post_send(&[SendWr { sg_list: &sg_list, ..SendWr::new(1, op) }]).unwrap();
        w.settle();
        outcome(&w.nodes[0].poll())
    };
    assert_eq!(write_to(&mut w, there as u64 + 7, 1000), [(1, WcStatus::Success)]);
    assert_eq!(read(&watch, 7, 1000), pattern(3, 1000));
    // The first page, an address that no processor has, the kernel's part, and the very end.
    for nowhere in [0, 1 << 60, 0xffff_8000_0000_0000, u64::MAX - 8] {
        assert_eq!(write_to(&mut w, nowhere, 8), [(1, WcStatus::RemOpErr)], "{nowhere:#x}");
    }
    assert_eq!(write_to(&mut w, u64::MAX - 8, 9), [(1, WcStatus::RemAccessErr)], "it ends there");
}

#[test]
fn an_implicit_region_is_on_demand_and_begins_at_zero() {
    let w = World::new(1);
    let register = |addr: usize, iova, access| {
        let addr = std::ptr::without_provenance_mut(addr);
        // SAFETY: no reference reaches what is registered: nothing accesses it.
        unsafe { w.nodes[0].pd.reg_mr(addr, usize::MAX, iova, access) }.map(drop).map_err(|e| e.errno)
    };
    assert_eq!(register(0, 0, ODP), Ok(()));
    assert_eq!(register(0, 0, ALL_ACCESS), Err(Errno::EFAULT));
    assert_eq!(register(0, PAGE as u64, ODP), Err(Errno::EINVAL));
    assert_eq!(register(PAGE, PAGE as u64, ODP), Err(Errno::EINVAL));
}

#[test]
fn datagrams_and_shared_queues_use_on_demand_regions() {
    let mut w = World::new(2);
    let (from, to) = (reserve(1), reserve(1));
    protect(from, 1, BOTH);
    protect(to, 1, BOTH);
    let (src, dst) = (register(&w.nodes[0], from, PAGE, ODP), register(&w.nodes[1], to, PAGE, ODP));
    src.write(0, &pattern(5, 500)).unwrap();
    let node = &w.nodes[1];
    let srq = node.pd.create_srq(&SrqInit { max_wr: 8, max_sge: 1, srq_limit: 0, xrc: None }).unwrap();
    srq.post_recv(&[RecvWr { wr_id: 4, sg_list: &[sge(&dst, 0, 1000)] }]).unwrap();
    let b = node.pd.create_qp(&QpInit { srq: Some(srq), ..node.qp_init(QpType::Rc) }).unwrap();
    let pair = [w.nodes[0].qp(QpType::Rc), b];
    w.connect_these(&pair, |_, _, _| {});
    send(&pair[0], 1, SendOp::Send, &src, 0, 500);
    w.settle();
    assert_eq!(outcome(&w.nodes[1].poll()), [(4, WcStatus::Success)]);
    assert_eq!(read(&dst, 0, 500), pattern(5, 500));
    // The capabilities say so.
    let odp = w.nodes[0].ctx.query_device().unwrap().odp;
    assert_eq!(odp.general, OdpFlags::SUPPORT | OdpFlags::SUPPORT_IMPLICIT);
    assert!(odp.rc.is_all() && odp.xrc.is_all());
    assert_eq!(odp.uc, OdpTransport::SEND | OdpTransport::RECV | OdpTransport::SRQ_RECV | OdpTransport::WRITE);
    assert_eq!(odp.ud, OdpTransport::SEND | OdpTransport::RECV | OdpTransport::SRQ_RECV);
}

#[test]
fn a_window_lies_over_an_on_demand_region() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let at = reserve(1);
    let region = register(&w.nodes[1], at, PAGE, ODP);
    let mw = w.nodes[1].pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = RKey(mw.rkey().0 ^ 1);
    let access = AccessFlags::REMOTE_WRITE;
    let bind = BindMw { mw: &*mw, rkey, mr: Some(&*region), addr: region.addr(), length: 64, access };
    b.post_send(&[SendWr::new(5, SendOp::BindMw(bind))]).unwrap();
    protect(at, 1, BOTH);
    w.settle();
    let src = w.nodes[0].mr(64);
    src.write(0, &[6; 64]).unwrap();
    send(&a, 1, SendOp::Write { remote_addr: region.addr(), rkey }, &src, 0, 64);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(read(&region, 0, 64), [6; 64]);
}

#[test]
fn advice_brings_pages_in_or_says_why_not() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let at = reserve(8);
    protect(at, 4, BOTH);
    protect(at.wrapping_add(4 * PAGE), 2, libc::PROT_READ);
    let mr = register(node, at, 8 * PAGE, ODP);
    let advise = |advice, flush, page: usize, pages: usize| {
        let sges = [sge(&mr, page * PAGE, (pages * PAGE) as u32)];
        node.pd.advise_mr(advice, flush, &sges).map_err(|e| e.errno)
    };
    use MrAdvice::{Prefetch, PrefetchNoFault, PrefetchWrite};
    assert_eq!(advise(PrefetchNoFault, true, 0, 1), Err(Errno::EFAULT), "not there yet");
    assert_eq!(advise(PrefetchWrite, true, 0, 2), Ok(()));
    assert_eq!(advise(PrefetchNoFault, true, 0, 2), Ok(()));
    assert_eq!(advise(PrefetchNoFault, true, 0, 3), Err(Errno::EFAULT));
    assert_eq!(advise(Prefetch, false, 3, 1), Ok(()));
    assert_eq!(advise(PrefetchNoFault, true, 3, 1), Ok(()), "brought in without FLUSH, too");
    assert_eq!(advise(Prefetch, true, 4, 2), Ok(()));
    assert_eq!(advise(PrefetchWrite, true, 3, 2), Err(Errno::EFAULT), "the second is read-only");
    assert_eq!(advise(PrefetchWrite, false, 3, 2), Ok(()), "nobody waits for it");
    assert_eq!(advise(Prefetch, true, 5, 2), Err(Errno::EFAULT), "the second may not be read");
    // What is wrong in itself is told in any case.
    assert_eq!(advise(Prefetch, false, 7, 2), Err(Errno::EFAULT), "beyond the region");
    let read_only = register(node, at, PAGE, AccessFlags::ON_DEMAND);
    let other_pd = node.ctx.alloc_pd().unwrap();
    let pinned = node.mr(64);
    let of = |mr: &Arc<dyn MemoryRegion>| [sge(mr, 0, 64)];
    let errno = |result: Result<(), VerbsError>| result.unwrap_err().errno;
    assert_eq!(errno(node.pd.advise_mr(PrefetchWrite, false, &of(&read_only))), Errno::EPERM);
    assert_eq!(node.pd.advise_mr(Prefetch, true, &of(&read_only)), Ok(()));
    assert_eq!(errno(other_pd.advise_mr(Prefetch, false, &of(&mr))), Errno::EPERM);
    assert_eq!(errno(node.pd.advise_mr(Prefetch, false, &of(&pinned))), Errno::EINVAL);
    mr.destroy().unwrap();
    let stale = [Sge { addr: at as u64, length: 1, lkey: LKey(0x1234_5678) }];
    assert_eq!(errno(node.pd.advise_mr(Prefetch, false, &stale)), Errno::ENOENT);
    assert_eq!(node.pd.advise_mr(Prefetch, true, &[]), Ok(()));
}

#[test]
fn a_device_without_on_demand_paging_refuses_it() {
    let w = World::with(1, 1, |config| config.attr.odp = OdpCaps::default());
    let node = &w.nodes[0];
    let at = reserve(1);
    protect(at, 1, BOTH);
    // SAFETY: as in `register`.
    let refused = unsafe { node.pd.reg_mr(at, PAGE, at as u64, ODP) };
    assert_eq!(refused.unwrap_err().errno, Errno::EOPNOTSUPP);
    assert_eq!(node.pd.advise_mr(MrAdvice::Prefetch, false, &[]).unwrap_err().errno, Errno::EOPNOTSUPP);
}
