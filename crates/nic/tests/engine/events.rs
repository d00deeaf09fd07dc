//! Ports, P_Keys and GIDs that change while QPs run, and the events that tell.

use scalefabric_nic::PortChange;
use scalefabric_transport::{Counter, DropReason};
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

fn on_port(event_type: EventType) -> AsyncEvent {
    AsyncEvent { event_type, subject: EventSubject::Port(1) }
}

// proves: event PORT_ERR; event PORT_ACTIVE
#[test]
fn a_port_that_goes_down_loses_packets_and_comes_back() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&b, 1, &dst, 0, 64);
    w.nodes[1].nic.change_port(1, PortChange::Down).unwrap();
    assert_eq!(w.nodes[1].events(), [on_port(EventType::PortErr)]);
    assert_eq!(w.nodes[1].ctx.query_port(1).unwrap().state, PortState::Down);
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!(w.nodes[0].poll(), []);
    assert_eq!(w.nodes[1].nic.counters(1).drops(DropReason::PortDown), 1);
    assert_eq!(w.nodes[1].nic.counters(1).counter(Counter::LinkDowned), 1);
    w.nodes[1].nic.change_port(1, PortChange::Up).unwrap();
    assert_eq!(w.nodes[1].events(), [on_port(EventType::PortActive)]);
    w.advance(200_000_000);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(outcome(&w.nodes[1].poll()), [(1, WcStatus::Success)]);
}

#[test]
fn a_sender_whose_own_port_is_down_retries() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&b, 1, &dst, 0, 64);
    w.nodes[0].nic.change_port(1, PortChange::Down).unwrap();
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!(w.nodes[0].nic.counters(1).drops(DropReason::PortDown), 1);
    w.nodes[0].nic.change_port(1, PortChange::Up).unwrap();
    w.advance(200_000_000);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
}

// proves: event PKEY_CHANGE
#[test]
fn a_pkey_that_changes_shuts_the_peer_out_until_it_changes_back() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&b, 1, &dst, 0, 64);
    w.nodes[1].nic.core().set_pkey(1, 0, PKey(0x8001)).unwrap();
    assert_eq!(w.nodes[1].events(), [on_port(EventType::PkeyChange)]);
    assert_eq!(w.nodes[1].ctx.query_pkey(1, 0).unwrap(), PKey(0x8001));
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    assert!(w.nodes[1].nic.counters(1).drops(DropReason::BadPKey) >= 1);
    assert!(w.nodes[1].ctx.query_port(1).unwrap().bad_pkey_cntr >= 1);
    w.nodes[1].nic.core().set_pkey(1, 0, PKey::DEFAULT).unwrap();
    w.advance(200_000_000);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(w.nodes[0].ctx.query_pkey(1, 9).unwrap_err().errno, Errno::EINVAL);
}

// proves: event GID_CHANGE
#[test]
fn a_gid_that_goes_silences_its_qps_and_its_slot_waits_for_them() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&b, 1, &dst, 0, 64);
    let node = &w.nodes[0];
    node.nic.change_port(1, PortChange::RemoveGid { gid: gid(1) }).unwrap();
    assert_eq!(node.events(), [on_port(EventType::GidChange)]);
    assert_eq!(node.ctx.query_gid(1, 0).unwrap(), Gid::ZERO);
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!(w.nodes[0].nic.counters(1).drops(DropReason::EgressError), 1);
    assert_eq!(w.nodes[1].nic.counters(1).counter(Counter::ReceivedPackets), 0);
    // Another address does not inherit the slot, and with it the QP.
    let other = Gid::from_ip(ip(99, 1));
    w.nodes[0].nic.change_port(1, PortChange::AddGid { gid: other, index: None }).unwrap();
    assert_eq!(w.nodes[0].ctx.query_gid(1, 1).unwrap(), other);
    w.nodes[0].nic.change_port(1, PortChange::AddGid { gid: gid(1), index: None }).unwrap();
    assert_eq!(w.nodes[0].ctx.query_gid(1, 0).unwrap(), Gid::ZERO, "slot 0 waits for its QP");
    a.destroy().unwrap();
    let again = Gid::from_ip(ip(98, 1));
    w.nodes[0].nic.change_port(1, PortChange::AddGid { gid: again, index: None }).unwrap();
    assert_eq!(w.nodes[0].ctx.query_gid(1, 0).unwrap(), again);
    let table: Vec<_> = w.nodes[0].ctx.query_gid_table().unwrap().iter().map(|e| (e.gid_index, e.gid)).collect();
    assert_eq!(table, [(0, again), (1, other), (2, gid(1))]);
}

// proves: object address handle
#[test]
fn an_address_handle_holds_its_slot() {
    let w = World::new(2);
    let node = &w.nodes[0];
    let ah = node.pd.create_ah(&AddressVector::new(1, 0, gid(2))).unwrap();
    node.nic.change_port(1, PortChange::RemoveGid { gid: gid(1) }).unwrap();
    let add = |n| node.nic.change_port(1, PortChange::AddGid { gid: gid(n), index: None }).unwrap();
    add(50);
    assert_eq!(node.ctx.query_gid(1, 0).unwrap(), Gid::ZERO);
    ah.destroy().unwrap();
    add(51);
    assert_eq!(node.ctx.query_gid(1, 0).unwrap(), gid(51));
}

#[test]
fn address_vectors_that_lead_nowhere_are_refused() {
    let w = World::new(2);
    let pd = &w.nodes[0].pd;
    let good = AddressVector::new(1, 0, gid(2));
    let errno = |av: AddressVector| pd.create_ah(&av).unwrap_err().errno;
    assert_eq!(errno(AddressVector { dgid: Gid::ZERO, ..good }), Errno::EINVAL);
    assert_eq!(errno(AddressVector { sgid_index: 1, ..good }), Errno::EINVAL);
    assert_eq!(errno(AddressVector { port_num: 2, ..good }), Errno::EINVAL);
    let qp = w.nodes[0].qp(QpType::Rc);
    let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::empty());
    qp.modify(&attr, mask).unwrap();
    let (mut attr, mask) = QpAttr::rtr(QpType::Rc, Qpn::new(9), Psn::new(0), Mtu::Mtu1024, good);
    attr.ah_attr.dgid = Gid::ZERO;
    assert_eq!(qp.modify(&attr, mask).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(qp.query().unwrap().0.qp_state, QpState::Init, "all or nothing");
}

// proves: event COMM_EST; event SQ_DRAINED; object asynchronous event queue
#[test]
fn comm_est_and_sq_drained_are_raised() {
    let mut w = World::new(2);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, _, _| {});
    // Side 1 goes back to RTR by a new connection, so that a packet finds it there.
    let late = w.nodes[1].qp(QpType::Rc);
    let early = w.nodes[0].qp(QpType::Rc);
    for (side, me, peer) in [(0, &early, &late), (1, &late, &early)] {
        let av = AddressVector::new(1, 0, gid(2 - side));
        let steps = [
            QpAttr::init(QpType::Rc, 1, AccessFlags::empty()),
            QpAttr::rtr(QpType::Rc, peer.qp_num(), Psn::new(1), Mtu::Mtu1024, av),
            QpAttr::rts(QpType::Rc, Psn::new(1)),
        ];
        for (attr, mask) in &steps[..if side == 0 { 3 } else { 2 }] {
            me.modify(attr, *mask).unwrap();
        }
    }
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&late, 1, &dst, 0, 64);
    send(&early, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    let established = AsyncEvent { event_type: EventType::CommEst, subject: EventSubject::QueuePair(late.qp_num()) };
    assert_eq!(w.nodes[1].events(), [established]);
    let (attr, mask) = QpAttr::sqd(true);
    early.modify(&attr, mask).unwrap();
    w.settle();
    let drained = AsyncEvent { event_type: EventType::SqDrained, subject: EventSubject::QueuePair(early.qp_num()) };
    assert_eq!(w.nodes[0].events(), [drained]);
    send(&early, 2, SendOp::Send, &src, 0, 8);
    recv(&late, 2, &dst, 0, 64);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)], "what is posted in SQD waits");
    let (attr, mask) = QpAttr::resume();
    early.modify(&attr, mask).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::Success)]);
}

// proves: object completion channel
#[test]
fn a_channel_wakes_for_what_was_asked() {
    let mut w = World::new(2);
    let node = &w.nodes[1];
    let channel = node.ctx.create_comp_channel().unwrap();
    let cq = node.ctx.create_cq(16, Some(channel.clone()), 0).unwrap();
    let mut init = node.qp_init(QpType::Rc);
    init.recv_cq = cq.clone();
    let qps = [w.nodes[0].qp(QpType::Rc), node.pd.create_qp(&init).unwrap()];
    w.connect_these(&qps, |_, _, _| {});
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(256));
    (0..4).for_each(|i| recv(&qps[1], i, &dst, 64 * i as usize, 64));
    let woken = || channel.wait(Some(std::time::Duration::ZERO)).unwrap().map(|cq| cq.cq_num());
    send(&qps[0], 1, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!(woken(), None, "nobody asked");
    cq.req_notify(true).unwrap();
    send(&qps[0], 2, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!(woken(), None, "not a solicited one");
    let sg_list = [sge(&src, 0, 8)];
    let wr = SendWr { sg_list: &sg_list, flags: SendFlags::SOLICITED, ..SendWr::new(3, SendOp::Send) };
    qps[0].post_send(&[wr]).unwrap();
    w.settle();
    assert_eq!(woken(), Some(cq.cq_num()));
    cq.req_notify(false).unwrap();
    send(&qps[0], 4, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!((woken(), woken()), (Some(cq.cq_num()), None));
    assert_eq!(poll(&cq).len(), 4);
}

#[test]
fn port_attributes_follow_the_interface() {
    let w = World::new(1);
    let node = &w.nodes[0];
    node.nic.change_port(1, PortChange::SetMtu(Mtu::Mtu1024)).unwrap();
    node.nic.change_port(1, PortChange::SetSpeed(25_000)).unwrap();
    let attr = node.ctx.query_port(1).unwrap();
    assert_eq!(
        (attr.active_mtu, attr.max_mtu, attr.active_speed_ex, attr.link_layer),
        (Mtu::Mtu1024, Mtu::Mtu4096, 25_000, 2)
    );
    assert_eq!((attr.active_width, attr.active_speed), (1, 32));
    assert_eq!(node.ctx.query_port(0).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(node.ctx.query_port(2).unwrap_err().errno, Errno::EINVAL);
    let qp = node.qp(QpType::Rc);
    let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::empty());
    qp.modify(&attr, mask).unwrap();
    let av = AddressVector::new(1, 0, gid(2));
    let (attr, mask) = QpAttr::rtr(QpType::Rc, Qpn::new(9), Psn::new(0), Mtu::Mtu2048, av);
    assert_eq!(qp.modify(&attr, mask).unwrap_err().errno, Errno::EINVAL);
}
