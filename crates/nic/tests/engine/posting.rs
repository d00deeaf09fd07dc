//! What a post refuses at once: errno and `bad_wr` as libibverbs has them.

use scalefabric_verbs::*;

use crate::node::*;

fn refused(result: Result<(), PostError>, index: usize, errno: Errno) {
    let error = result.unwrap_err();
    assert_eq!((error.index, error.errno), (index, errno), "{}", error.reason);
}

#[test]
fn posting_is_refused_by_state() {
    let w = World::new(2);
    let qp = w.nodes[0].qp(QpType::Rc);
    let wr = [SendWr::new(1, SendOp::Send)];
    let rr = [RecvWr { wr_id: 1, sg_list: &[] }];
    refused(qp.post_send(&wr), 0, Errno::EINVAL);
    refused(qp.post_recv(&rr), 0, Errno::EINVAL);
    let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::empty());
    qp.modify(&attr, mask).unwrap();
    refused(qp.post_send(&wr), 0, Errno::EINVAL);
    qp.post_recv(&rr).unwrap();
    let av = AddressVector::new(1, 0, gid(2));
    let (attr, mask) = QpAttr::rtr(QpType::Rc, Qpn::new(77), Psn::new(0), Mtu::Mtu1024, av);
    qp.modify(&attr, mask).unwrap();
    refused(qp.post_send(&wr), 0, Errno::EINVAL);
    qp.post_recv(&rr).unwrap();
    let (attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(0));
    qp.modify(&attr, mask).unwrap();
    qp.post_send(&wr).unwrap();
}

#[test]
fn a_full_queue_takes_what_fits_and_names_the_rest() {
    let w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let depth = a.query().unwrap().0.cap.max_send_wr as usize;
    let chain = vec![SendWr::new(1, SendOp::Send); depth + 2];
    refused(a.post_send(&chain), depth, Errno::ENOMEM);
    refused(a.post_send(&chain[..1]), 0, Errno::ENOMEM);
    let depth = b.query().unwrap().0.cap.max_recv_wr as usize;
    let chain = vec![RecvWr { wr_id: 1, sg_list: &[] }; depth + 1];
    refused(b.post_recv(&chain), depth, Errno::ENOMEM);
}

#[test]
fn the_wr_at_fault_is_named_and_those_before_it_are_sent() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&b, 1, &dst, 0, 64);
    let many = vec![sge(&src, 0, 1); a.query().unwrap().0.cap.max_send_sge as usize + 1];
    let one = [sge(&src, 0, 4)];
    let good = SendWr { sg_list: &one, ..SendWr::new(1, SendOp::Send) };
    let bad = SendWr { sg_list: &many, ..SendWr::new(2, SendOp::Send) };
    refused(a.post_send(&[good, bad, good]), 1, Errno::EINVAL);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    let many = vec![sge(&dst, 0, 1); b.query().unwrap().0.cap.max_recv_sge as usize + 1];
    refused(b.post_recv(&[RecvWr { wr_id: 1, sg_list: &many }]), 0, Errno::EINVAL);
}

#[test]
fn a_qp_has_no_more_than_its_device_however_it_is_rounded() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let limits = node.ctx.query_device().unwrap();
    let most = QpCap {
        max_send_wr: limits.max_qp_wr,
        max_recv_wr: limits.max_qp_wr,
        max_send_sge: 1,
        max_recv_sge: limits.max_sge,
        max_inline_data: limits.max_inline_data,
    };
    let make = |cap| node.pd.create_qp(&QpInit { cap, ..node.qp_init(QpType::Rc) }).unwrap();
    let has = make(most).query().unwrap().0.cap;
    assert!(has.max_send_sge < limits.max_sge, "room for inline data gives no SGEs: {has:?}");
    // What it has can be asked for again.
    make(has);
}

#[test]
fn inline_has_its_rules() {
    let w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let mr = w.nodes[0].mr(64);
    let long = vec![0; a.query().unwrap().0.cap.max_inline_data as usize + 1];
    let inline = SendWr { flags: SendFlags::INLINE, ..SendWr::new(1, SendOp::Send) };
    refused(a.post_send(&[SendWr { inline_data: &long, ..inline }]), 0, Errno::EINVAL);
    let one = [sge(&mr, 0, 4)];
    refused(a.post_send(&[SendWr { sg_list: &one, ..inline }]), 0, Errno::EINVAL);
    refused(a.post_send(&[SendWr { inline_data: b"x", ..SendWr::new(1, SendOp::Send) }]), 0, Errno::EINVAL);
    let read = SendOp::Read { remote_addr: 0, rkey: RKey(0) };
    refused(a.post_send(&[SendWr { op: read, inline_data: b"x", ..inline }]), 0, Errno::EINVAL);
}

#[test]
fn inline_by_sges_needs_the_raw_call() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let dst = w.nodes[1].mr(64);
    recv(&b, 1, &dst, 0, 64);
    let (one, two) = (*b"first, ", *b"second");
    let sg_list = [
        Sge { addr: one.as_ptr() as u64, length: 7, lkey: LKey(0) },
        Sge { addr: two.as_ptr() as u64, length: 6, lkey: LKey(0) },
    ];
    let wr = SendWr { flags: SendFlags::INLINE, sg_list: &sg_list, ..SendWr::new(1, SendOp::Send) };
    // SAFETY: both SGEs name arrays that live until the call returns.
    unsafe { a.post_send_raw(&[wr]).unwrap() };
    w.settle();
    assert_eq!(read(&dst, 0, 13), b"first, second");
}

#[test]
fn an_operation_that_the_type_does_not_have_is_refused() {
    let w = World::new(2);
    let [uc, _] = w.connect(QpType::Uc);
    let (remote_addr, rkey) = (0, RKey(0));
    for op in [
        SendOp::Read { remote_addr, rkey },
        SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        SendOp::AtomicWrite { remote_addr, rkey },
    ] {
        refused(uc.post_send(&[SendWr::new(1, op)]), 0, Errno::EINVAL);
    }
    let datagrams = ud(&w.nodes[0], QKey(1));
    refused(datagrams.post_send(&[SendWr::new(1, SendOp::Write { remote_addr, rkey })]), 0, Errno::EINVAL);
    refused(datagrams.post_send(&[SendWr::new(1, SendOp::Send)]), 0, Errno::EINVAL);
}

#[test]
fn a_foreign_address_handle_is_refused() {
    let w = World::new(2);
    let datagrams = ud(&w.nodes[0], QKey(1));
    let pd = w.nodes[0].ctx.alloc_pd().unwrap();
    let ah = pd.create_ah(&AddressVector::new(1, 0, gid(2))).unwrap();
    let to = UdAddress { ah: &*ah, remote_qpn: Qpn::new(9), remote_qkey: QKey(1) };
    refused(datagrams.post_send(&[SendWr { ud: Some(to), ..SendWr::new(1, SendOp::Send) }]), 0, Errno::EINVAL);
}

#[test]
fn a_qp_with_an_srq_or_without_queues_takes_no_receives() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let srq = node.pd.create_srq(&SrqInit { max_wr: 8, max_sge: 1, srq_limit: 0, xrc: None }).unwrap();
    let mut init = node.qp_init(QpType::Rc);
    init.srq = Some(srq);
    let qp = node.pd.create_qp(&init).unwrap();
    refused(qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]), 0, Errno::EINVAL);
    let target = node.ctx.create_xrc_target(&node.ctx.open_xrcd().unwrap()).unwrap();
    refused(target.post_send(&[SendWr::new(1, SendOp::Send)]), 0, Errno::EINVAL);
    refused(target.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]), 0, Errno::EINVAL);
}

#[test]
fn a_destroyed_qp_takes_nothing() {
    let w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    a.destroy().unwrap();
    refused(a.post_send(&[SendWr::new(1, SendOp::Send)]), 0, Errno::EINVAL);
    refused(a.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]), 0, Errno::EINVAL);
    assert_eq!(a.destroy().unwrap_err().errno, Errno::EINVAL);
    assert_eq!(a.query().unwrap_err().errno, Errno::EINVAL);
}
