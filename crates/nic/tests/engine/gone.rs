//! Memory that goes away while WRs and peers use it (D10), as the verbs show it. The memory is protected, not unmapped: an
//! address that is free could be given to another test of this process.

use std::sync::Arc;

use scalefabric_transport::DropReason;
use scalefabric_verbs::*;

use crate::node::*;

const PAGE: usize = 4096;

fn protect(mr: &Arc<dyn MemoryRegion>, protection: i32) {
    protect_page(mr, 0, protection);
}

fn protect_page(mr: &Arc<dyn MemoryRegion>, page: usize, protection: i32) {
    let at = mr.addr() as usize + page * PAGE;
    // SAFETY: whole pages that only the NIC touches.
    assert_eq!(unsafe { libc::mprotect(at as *mut libc::c_void, PAGE, protection) }, 0);
}

#[test]
fn a_source_that_is_gone_ends_with_loc_prot_err() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(PAGE), w.nodes[1].mr(PAGE));
    protect(&src, libc::PROT_NONE);
    send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 3000);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::LocProtErr)]);
    assert_eq!(a.query().unwrap().0.qp_state, QpState::Err);
    assert_eq!(src.write(0, &[1]).unwrap_err().errno, Errno::EFAULT);
}

#[test]
fn of_a_long_write_leaves_what_stands_before_the_page_that_is_gone() {
    for gone in 0..12 {
        let mut w = World::new(2);
        let [a, _b] = w.connect(QpType::Rc);
        let (src, dst) = (w.nodes[0].mr(12 * PAGE), w.nodes[1].mr(12 * PAGE));
        src.write(0, &[7; 12 * PAGE]).unwrap();
        protect_page(&src, gone, libc::PROT_NONE);
        send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 12 * PAGE as u32);
        w.settle();
        assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::LocProtErr)], "{gone}");
        let mut arrived = vec![0; 12 * PAGE];
        dst.read(0, &mut arrived).unwrap();
        assert!(arrived[..gone * PAGE].iter().all(|&byte| byte == 7), "{gone}");
        assert!(arrived[gone * PAGE..].iter().all(|&byte| byte == 0), "{gone}");
        assert_eq!(w.nodes[1].nic.counters(1).drops(DropReason::BadIcrc), 0, "nothing half written left");
    }
}

#[test]
fn a_target_that_is_gone_refuses_the_peer() {
    for op in 0..4 {
        let mut w = World::new(2);
        let [a, _b] = w.connect(QpType::Rc);
        let (src, dst) = (w.nodes[0].mr(PAGE), w.nodes[1].mr(PAGE));
        let (remote_addr, rkey) = (dst.addr(), dst.rkey());
        // Readable only, for what writes; not even that, for what reads.
        protect(&dst, if op == 1 { libc::PROT_NONE } else { libc::PROT_READ });
        let op = match op {
            0 => SendOp::Write { remote_addr, rkey },
            1 => SendOp::Read { remote_addr, rkey },
            2 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            _ => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
        };
        send(&a, 1, op, &src, 0, 8);
        w.settle();
        let done = outcome(&w.nodes[0].poll());
        assert!(matches!(done[..], [(1, WcStatus::RemOpErr | WcStatus::RemAccessErr)]), "{done:?}");
        protect(&dst, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(dst.load_u64(0), Ok(0));
    }
}

#[test]
fn a_receive_buffer_that_is_gone_ends_with_loc_prot_err() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(PAGE), w.nodes[1].mr(PAGE));
    recv(&b, 7, &dst, 0, 1000);
    protect(&dst, libc::PROT_READ);
    send(&a, 1, SendOp::Send, &src, 0, 100);
    w.settle();
    assert_eq!(outcome(&w.nodes[1].poll()), [(7, WcStatus::LocProtErr)]);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::RemOpErr)]);
}

#[test]
fn a_qp_does_not_inherit_the_windows_of_its_number() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(PAGE));
    let mw = w.nodes[1].pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = RKey((mw.rkey().0 & !0xff) | 0x5a);
    let access = AccessFlags::REMOTE_WRITE;
    let bind = BindMw { mw: &*mw, rkey, mr: Some(&*dst), addr: dst.addr(), length: 256, access };
    b.post_send(&[SendWr::new(5, SendOp::BindMw(bind))]).unwrap();
    let write = SendOp::Write { remote_addr: dst.addr(), rkey };
    w.settle();
    send(&a, 1, write, &src, 0, 8);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    // Both sides start anew, with the same numbers.
    let pair = [a, b];
    for qp in &pair {
        qp.modify(&QpAttr { qp_state: QpState::Reset, ..qp.query().unwrap().0 }, QpAttrMask::STATE).unwrap();
    }
    w.connect_these(&pair, |_, _, _| {});
    send(&pair[0], 2, write, &src, 0, 8);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::RemAccessErr)]);
    dst.destroy().expect("no window is bound to it any more");
}
