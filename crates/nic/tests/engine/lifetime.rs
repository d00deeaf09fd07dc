//! Who may be destroyed when, what dropping does, and the device's limits.

use std::sync::Arc;

use scalefabric_verbs::*;

use crate::node::*;

fn errno<T: std::fmt::Debug>(result: Result<T, VerbsError>) -> Errno {
    result.unwrap_err().errno
}

// proves: object protection domain; object completion queue; object completion channel; object XRC domain
#[test]
fn what_is_in_use_is_busy() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let pd = node.ctx.alloc_pd().unwrap();
    let mr = pd.alloc_mr(64, ALL_ACCESS).unwrap();
    assert_eq!(errno(pd.destroy()), Errno::EBUSY);
    mr.destroy().unwrap();
    let ah = pd.create_ah(&AddressVector::new(1, 0, gid(1))).unwrap();
    assert_eq!(errno(pd.destroy()), Errno::EBUSY);
    drop(ah);
    let mw = pd.alloc_mw(MwType::Type2).unwrap();
    assert_eq!(errno(pd.destroy()), Errno::EBUSY);
    mw.destroy().unwrap();

    let channel = node.ctx.create_comp_channel().unwrap();
    let cq = node.ctx.create_cq(8, Some(channel.clone()), 0).unwrap();
    assert_eq!(errno(channel.destroy()), Errno::EBUSY);
    let srq = pd.create_srq(&SrqInit { max_wr: 4, max_sge: 1, srq_limit: 0, xrc: None }).unwrap();
    let init = QpInit { send_cq: cq.clone(), srq: Some(srq.clone()), ..node.qp_init(QpType::Rc) };
    let qp = pd.create_qp(&init).unwrap();
    assert_eq!(
        (errno(pd.destroy()), errno(cq.destroy()), errno(srq.destroy())),
        (Errno::EBUSY, Errno::EBUSY, Errno::EBUSY)
    );
    assert_eq!(errno(node.cq.destroy()), Errno::EBUSY);
    qp.destroy().unwrap();
    drop(init);
    drop(qp);
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    channel.destroy().unwrap();
    drop(srq);
    pd.destroy().unwrap();
    assert_eq!(errno(pd.destroy()), Errno::EINVAL);
    assert_eq!(errno(pd.alloc_mr(64, ALL_ACCESS)), Errno::EINVAL);
}

#[test]
fn children_keep_their_parents() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let pd = node.ctx.alloc_pd().unwrap();
    let cq = node.ctx.create_cq(8, None, 0).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..node.qp_init(QpType::Rc) };
    let qp = pd.create_qp(&init).unwrap();
    let mr = pd.alloc_mr(64, ALL_ACCESS).unwrap();
    drop((init, pd, cq));
    let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::empty());
    qp.modify(&attr, mask).unwrap();
    mr.write(0, b"alive").unwrap();
    assert_eq!(read(&mr, 0, 5), b"alive");
}

#[test]
fn completions_of_a_destroyed_qp_are_not_seen() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let [c, _d] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let write = SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() };
    send(&a, 1, write, &src, 0, 8);
    send(&c, 2, write, &src, 0, 8);
    w.settle();
    drop(a);
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::Success)]);
    drop(b);
}

#[test]
fn a_qp_that_was_reset_starts_afresh() {
    let mut w = World::new(2);
    let qps = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    for round in 0..3 {
        recv(&qps[1], 1, &dst, 0, 64);
        recv(&qps[1], 2, &dst, 0, 64);
        send(&qps[0], round, SendOp::Send, &src, 0, 8);
        w.settle();
        assert_eq!(outcome(&w.nodes[0].poll()), [(round, WcStatus::Success)]);
        let (attr, mask) = QpAttr::reset();
        qps.iter().for_each(|qp| qp.modify(&attr, mask).unwrap());
        assert_eq!(w.nodes[1].poll(), [], "a reset takes the completions along");
        assert_eq!(qps[0].query().unwrap().0.qp_state, QpState::Reset);
        w.connect_these(&qps, |_, _, _| {});
    }
}

#[test]
fn packets_for_a_destroyed_qp_find_nobody() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let gone = b.qp_num();
    drop(b);
    let again: Vec<_> = (0..20).map(|_| w.nodes[1].qp(QpType::Rc)).collect();
    assert!(again.iter().all(|qp| qp.qp_num() != gone), "a number is not reused while others are free");
    let src = w.nodes[0].mr(64);
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    let drops = w.nodes[1].nic.counters(1).drops(scalefabric_transport::DropReason::NoSuchQp);
    assert_eq!(drops, 1);
}

// proves: object device context
#[test]
fn limits_are_those_of_query_device() {
    let w = World::with(1, 1, |config| {
        config.attr.max_qp = 2;
        config.attr.max_cq = 2;
        config.attr.max_pd = 2;
        config.attr.max_srq = 1;
        config.attr.max_ah = 1;
        config.attr.max_mr = 1;
        config.attr.max_mw = 1;
    });
    let node = &w.nodes[0];
    let attr = node.ctx.query_device().unwrap();
    assert_eq!((attr.vendor_part_id, attr.phys_port_cnt), (4096, 1));
    let _qps = [node.qp(QpType::Rc), node.qp(QpType::Ud)];
    assert_eq!(errno(node.pd.create_qp(&node.qp_init(QpType::Rc))), Errno::ENOMEM);
    let _cq = node.ctx.create_cq(1, None, 0).unwrap();
    assert_eq!(errno(node.ctx.create_cq(1, None, 0)), Errno::ENOMEM);
    let _pd = node.ctx.alloc_pd().unwrap();
    assert_eq!(errno(node.ctx.alloc_pd()), Errno::ENOMEM);
    let init = SrqInit { max_wr: 1, max_sge: 1, srq_limit: 0, xrc: None };
    let _srq = node.pd.create_srq(&init).unwrap();
    assert_eq!(errno(node.pd.create_srq(&init)), Errno::ENOMEM);
    let av = AddressVector::new(1, 0, gid(1));
    let _ah = node.pd.create_ah(&av).unwrap();
    assert_eq!(errno(node.pd.create_ah(&av)), Errno::ENOMEM);
    let _mr = node.pd.alloc_mr(64, ALL_ACCESS).unwrap();
    assert_eq!(errno(node.pd.alloc_mr(64, ALL_ACCESS)), Errno::ENOMEM);
    let _mw = node.pd.alloc_mw(MwType::Type1).unwrap();
    assert_eq!(errno(node.pd.alloc_mw(MwType::Type1)), Errno::ENOMEM);
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let attr = node.ctx.query_device().unwrap();
    let with = |change: fn(&mut QpCap, &DeviceAttr)| {
        let mut init = node.qp_init(QpType::Rc);
        change(&mut init.cap, &attr);
        errno(node.pd.create_qp(&init))
    };
    assert_eq!(with(|cap, a| cap.max_send_wr = a.max_qp_wr + 1), Errno::EINVAL);
    assert_eq!(with(|cap, a| cap.max_recv_wr = a.max_qp_wr + 1), Errno::EINVAL);
    assert_eq!(with(|cap, a| cap.max_send_sge = a.max_sge + 1), Errno::EINVAL);
    assert_eq!(with(|cap, a| cap.max_recv_sge = a.max_sge + 1), Errno::EINVAL);
    assert_eq!(with(|cap, a| cap.max_inline_data = a.max_inline_data + 1), Errno::EINVAL);
    let target = node.qp_init(QpType::XrcRecv);
    assert_eq!(errno(node.pd.create_qp(&target)), Errno::EINVAL);
    assert_eq!(errno(node.ctx.create_cq(0, None, 0)), Errno::EINVAL);
    assert_eq!(errno(node.ctx.create_cq(attr.max_cqe + 1, None, 0)), Errno::EINVAL);
    assert_eq!(errno(node.ctx.create_cq(1, None, attr.num_comp_vectors)), Errno::EINVAL);
    node.ctx.create_cq(attr.max_cqe, None, attr.num_comp_vectors - 1).unwrap();
    let mut init = node.qp_init(QpType::Rc);
    init.cap = QpCap {
        max_send_wr: attr.max_qp_wr,
        max_recv_wr: attr.max_qp_wr,
        max_send_sge: attr.max_sge,
        max_recv_sge: attr.max_sge,
        max_inline_data: attr.max_inline_data,
    };
    let qp = node.pd.create_qp(&init).unwrap();
    let cap = qp.query().unwrap().1.cap;
    assert!(cap.max_send_wr >= attr.max_qp_wr && cap.max_inline_data == attr.max_inline_data);
}

#[test]
fn a_cq_is_not_resized_below_what_it_holds() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    for i in 0..10 {
        send(&a, i, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 8);
    }
    w.settle();
    let cq = &w.nodes[0].cq;
    assert_eq!(errno(cq.resize(4)), Errno::EINVAL);
    cq.resize(1000).unwrap();
    assert!(cq.cqe() >= 1000);
    assert_eq!(w.nodes[0].poll().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn wrong_masks_name_the_attribute() {
    let w = World::new(1);
    let qp = w.nodes[0].qp(QpType::Rc);
    let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::empty());
    let error = qp.modify(&attr, mask - QpAttrMask::PORT).unwrap_err();
    assert!(error.errno == Errno::EINVAL && error.message.contains("PORT"), "{error}");
    let error = qp.modify(&attr, mask | QpAttrMask::SQ_PSN).unwrap_err();
    assert!(error.errno == Errno::EINVAL && error.message.contains("SQ_PSN"), "{error}");
    let (attr, mask) = QpAttr::init(QpType::Rc, 2, AccessFlags::empty());
    assert_eq!(errno(qp.modify(&attr, mask)), Errno::EINVAL);
}

#[test]
fn objects_of_another_device_are_refused() {
    let w = World::new(2);
    let init = QpInit { srq: None, ..w.nodes[1].qp_init(QpType::Rc) };
    // Handles of our own kind but of another NIC: the CQ number would mean another queue.
    let result = w.nodes[0].pd.create_qp(&init);
    assert_eq!(errno(result.map(|qp: Arc<dyn QueuePair>| qp.qp_num())), Errno::EINVAL);
}
