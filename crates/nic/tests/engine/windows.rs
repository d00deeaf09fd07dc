//! Memory windows through the verbs: bound by a verb (type 1) or by a WR (type 2), invalidated here and from afar.

use scalefabric_verbs::*;

use crate::node::*;

fn bind<'a>(mw: &'a dyn MemoryWindow, mr: &'a dyn MemoryRegion, rkey: RKey, offset: u64, length: u64) -> BindMw<'a> {
    BindMw { mw, rkey, mr: Some(mr), addr: mr.addr() + offset, length, access: AccessFlags::REMOTE_WRITE }
}

// proves: object memory window type 1
#[test]
fn a_window_of_type_1_grants_its_range_and_no_more() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(4096));
    let mw = w.nodes[1].pd.alloc_mw(MwType::Type1).unwrap();
    b.bind_mw(5, SendFlags::SIGNALED, &bind(&*mw, &*dst, RKey(0), 1024, 64)).unwrap();
    w.settle();
    let done = w.nodes[1].poll();
    assert_eq!((outcome(&done), done[0].opcode), (vec![(5, WcStatus::Success)], WcOpcode::BindMw));
    src.write(0, b"through the window").unwrap();
    send(&a, 1, SendOp::Write { remote_addr: dst.addr() + 1024, rkey: mw.rkey() }, &src, 0, 18);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(read(&dst, 1024, 18), b"through the window");
    send(&a, 2, SendOp::Write { remote_addr: dst.addr() + 1024 + 60, rkey: mw.rkey() }, &src, 0, 8);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::RemAccessErr)]);
    assert_eq!(dst.destroy().unwrap_err().errno, Errno::EBUSY, "a window is bound to it");
    mw.destroy().unwrap();
    dst.destroy().unwrap();
}

// proves: object memory window type 2; operation RC send-with-inv
#[test]
fn a_window_of_type_2_is_invalidated_by_a_send() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(4096));
    let mw = w.nodes[1].pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = RKey((mw.rkey().0 & !0xff) | 0x5a);
    let wr = SendWr::new(5, SendOp::BindMw(bind(&*mw, &*dst, rkey, 0, 256)));
    b.post_send(&[wr]).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[1].poll()), [(5, WcStatus::Success)]);
    assert_eq!(mw.rkey(), rkey);
    let write = SendOp::Write { remote_addr: dst.addr(), rkey };
    send(&a, 1, write, &src, 0, 8);
    recv(&b, 6, &dst, 1024, 64);
    send(&a, 2, SendOp::SendWithInv { invalidate_rkey: rkey }, &src, 0, 8);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let got = w.nodes[1].poll();
    assert_eq!((got[0].wr_id, got[0].flags, got[0].invalidated_rkey), (6, WcFlags::WITH_INV, rkey));
    send(&a, 3, write, &src, 0, 8);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(3, WcStatus::RemAccessErr)]);
}

// proves: operation RC local-inv; wc MW_BIND_ERR
#[test]
fn local_inv_ends_a_window_and_mw_bind_err_refuses_one() {
    let mut w = World::new(2);
    let [_a, b] = w.connect(QpType::Rc);
    let dst = w.nodes[1].mr(4096);
    let mw = w.nodes[1].pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = RKey((mw.rkey().0 & !0xff) | 1);
    let chain =
        [SendWr::new(1, SendOp::BindMw(bind(&*mw, &*dst, rkey, 0, 256))), SendWr::new(2, SendOp::LocalInv { rkey })];
    b.post_send(&chain).unwrap();
    w.settle();
    let done = w.nodes[1].poll();
    assert_eq!(outcome(&done), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(done[1].opcode, WcOpcode::LocalInv);
    let plain = w.nodes[1].pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE).unwrap();
    let next = RKey(rkey.0 + 1);
    b.post_send(&[SendWr::new(3, SendOp::BindMw(bind(&*mw, &*plain, next, 0, 256)))]).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[1].poll()), [(3, WcStatus::MwBindErr)]);
}

#[test]
fn each_type_of_window_has_its_own_way_of_binding() {
    let w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let mr = w.nodes[0].mr(64);
    let (one, two) = (w.nodes[0].pd.alloc_mw(MwType::Type1).unwrap(), w.nodes[0].pd.alloc_mw(MwType::Type2).unwrap());
    let wrong = a.bind_mw(1, SendFlags::empty(), &bind(&*two, &*mr, RKey(0), 0, 8)).unwrap_err();
    assert_eq!(wrong.errno, Errno::EINVAL);
    let wr = SendWr::new(1, SendOp::BindMw(bind(&*one, &*mr, RKey(0), 0, 8)));
    let wrong = a.post_send(&[wr]).unwrap_err();
    assert_eq!((wrong.index, wrong.errno), (0, Errno::EINVAL));
}
