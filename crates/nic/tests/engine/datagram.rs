//! UD: datagrams, their 40 bytes of GRH, Q_Keys, answers, multicast.

use std::net::Ipv4Addr;
use std::sync::Arc;

use scalefabric_transport::DropReason;
use scalefabric_verbs::*;

use crate::node::*;

fn ah(node: &Node, to: Gid) -> Arc<dyn AddressHandle> {
    let av = AddressVector { traffic_class: 0x68, hop_limit: 17, ..AddressVector::new(1, 0, to) };
    node.pd.create_ah(&av).unwrap()
}

fn say(qp: &Arc<dyn QueuePair>, ah: &Arc<dyn AddressHandle>, to: Qpn, qkey: QKey, what: &[u8]) {
    let ud = UdAddress { ah: &**ah, remote_qpn: to, remote_qkey: qkey };
    let wr = SendWr {
        flags: SendFlags::INLINE,
        inline_data: what,
        ud: Some(ud),
        ..SendWr::new(1, SendOp::SendWithImm { imm: 3 })
    };
    qp.post_send(&[wr]).unwrap();
}

// proves: object address handle; operation UD send
#[test]
fn a_datagram_arrives_behind_its_grh_and_can_be_answered() {
    let mut w = World::new(2);
    let key = QKey(0x1234);
    let qps = [ud(&w.nodes[0], key), ud(&w.nodes[1], key)];
    let mr = [w.nodes[0].mr(256), w.nodes[1].mr(256)];
    mr[1].write(0, &[0xee; 256]).unwrap();
    recv(&qps[0], 20, &mr[0], 0, 256);
    recv(&qps[1], 10, &mr[1], 0, 256);
    say(&qps[0], &ah(&w.nodes[0], gid(2)), qps[1].qp_num(), key, b"hello");
    w.settle();
    let got = w.nodes[1].poll();
    assert_eq!(outcome(&got), [(10, WcStatus::Success)]);
    assert_eq!((got[0].byte_len, got[0].src_qp, got[0].imm), (45, qps[0].qp_num(), 3));
    assert_eq!(got[0].flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(read(&mr[1], 40, 5), b"hello");
    let grh: [u8; 40] = read(&mr[1], 0, 40).try_into().unwrap();
    assert_eq!(grh[..20], [0; 20], "over IPv4 the first 20 bytes are zeros here");
    assert_eq!((grh[20], grh[21], grh[28]), (0x45, 0x68, 17));

    let back = w.nodes[1].pd.create_ah_from_wc(&got[0], &grh, 1).unwrap();
    let av = back.address_vector();
    assert_eq!((av.dgid, av.sgid_index, av.port_num, av.traffic_class), (gid(1), 0, 1, 0x68));
    say(&qps[1], &back, got[0].src_qp, key, b"and back");
    w.settle();
    assert_eq!(w.nodes[0].poll().iter().filter(|wc| wc.opcode == WcOpcode::Recv).count(), 1);
    assert_eq!(read(&mr[0], 40, 8), b"and back");
}

#[test]
fn a_wrong_qkey_is_dropped_and_counted() {
    let mut w = World::new(2);
    let qps = [ud(&w.nodes[0], QKey(1)), ud(&w.nodes[1], QKey(2))];
    let mr = w.nodes[1].mr(256);
    recv(&qps[1], 10, &mr, 0, 256);
    let ah = ah(&w.nodes[0], gid(2));
    say(&qps[0], &ah, qps[1].qp_num(), QKey(1), b"x");
    // A set top bit means the QP's own Q_Key, which is wrong here, too.
    say(&qps[0], &ah, qps[1].qp_num(), QKey(0x8000_0002), b"x");
    w.settle();
    assert_eq!(w.nodes[1].poll(), []);
    assert_eq!(w.nodes[1].nic.counters(1).drops(DropReason::BadQKey), 2);
    assert_eq!(w.nodes[1].ctx.query_port(1).unwrap().qkey_viol_cntr, 2);
    say(&qps[0], &ah, qps[1].qp_num(), QKey(2), b"x");
    w.settle();
    assert_eq!(w.nodes[1].poll().len(), 1);
}

#[test]
fn a_datagram_without_a_receive_is_lost_and_counted() {
    let mut w = World::new(2);
    let qps = [ud(&w.nodes[0], QKey(1)), ud(&w.nodes[1], QKey(1))];
    say(&qps[0], &ah(&w.nodes[0], gid(2)), qps[1].qp_num(), QKey(1), b"x");
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)], "a sender of datagrams never knows");
    assert_eq!(w.nodes[1].nic.counters(1).drops(DropReason::ReceiverNotReady), 1);
}

#[test]
fn a_group_hears_once_each_and_the_sender_does_not_hear_itself() {
    let mut w = World::new(3);
    let group = Gid::from_ip(Ipv4Addr::new(239, 1, 2, 3).into());
    let key = QKey(7);
    let sender = ud(&w.nodes[0], key);
    let members = [ud(&w.nodes[0], key), ud(&w.nodes[1], key), ud(&w.nodes[1], key)];
    let outsider = ud(&w.nodes[2], key);
    let mrs: Vec<_> = w.nodes.iter().map(|n| n.mr(1024)).collect();
    sender.attach_mcast(group).unwrap();
    recv(&sender, 100, &mrs[0], 0, 128);
    for (i, (qp, node)) in members.iter().zip([0, 1, 1]).enumerate() {
        qp.attach_mcast(group).unwrap();
        qp.attach_mcast(group).unwrap();
        recv(qp, i as u64, &mrs[node], 128 * (i + 1), 128);
    }
    recv(&outsider, 50, &mrs[2], 0, 128);
    say(&sender, &ah(&w.nodes[0], group), Qpn::MULTICAST, key, b"to all");
    w.settle();
    let heard = |node: usize| {
        let mut ids: Vec<_> =
            w.nodes[node].poll().iter().filter(|wc| wc.opcode == WcOpcode::Recv).map(|wc| wc.wr_id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!((heard(0), heard(1), heard(2)), (vec![0], vec![1, 2], vec![]));
    assert_eq!(read(&mrs[1], 256 + 40, 6), b"to all");
    // The answer to a group's datagram leaves from an address, not from the group.
    let grh: [u8; 40] = read(&mrs[1], 256, 40).try_into().unwrap();
    let wc = WorkCompletion { flags: WcFlags::GRH, ..blank() };
    assert_eq!(w.nodes[1].pd.create_ah_from_wc(&wc, &grh, 1).unwrap().address_vector().dgid, gid(1));
}

// proves: object multicast attach
#[test]
fn attach_and_detach_have_their_rules() {
    let w = World::new(2);
    let group = Gid::from_ip(Ipv4Addr::new(239, 1, 2, 3).into());
    let qp = ud(&w.nodes[0], QKey(1));
    let errno = |r: Result<(), VerbsError>| r.unwrap_err().errno;
    assert_eq!(errno(qp.attach_mcast(gid(2))), Errno::EINVAL);
    assert_eq!(errno(qp.detach_mcast(group)), Errno::EINVAL);
    let [rc, _] = w.connect(QpType::Rc);
    assert_eq!(errno(rc.attach_mcast(group)), Errno::EINVAL);
    qp.attach_mcast(group).unwrap();
    assert_eq!(errno(qp.destroy()), Errno::EBUSY);
    qp.detach_mcast(group).unwrap();
    qp.destroy().unwrap();
}

#[test]
fn a_group_without_members_here_is_counted() {
    let mut w = World::new(2);
    let group = Gid::from_ip(Ipv4Addr::new(239, 1, 2, 3).into());
    let (a, b) = (ud(&w.nodes[0], QKey(1)), ud(&w.nodes[1], QKey(1)));
    b.attach_mcast(group).unwrap();
    w.wire.hold(true);
    say(&a, &ah(&w.nodes[0], group), Qpn::MULTICAST, QKey(1), b"x");
    w.settle();
    // It is on the way when the last member leaves; the interface still hears it.
    let packet = w.wire.in_flight(|q| q[0].clone());
    w.wire.hold(false);
    w.settle();
    b.detach_mcast(group).unwrap();
    w.wire.inject(packet.clone());
    w.settle();
    let none = w.nodes[1].nic.counters(1).drops(DropReason::NotMulticastMember);
    assert_eq!(none, 0, "nobody listens on the interface any more");
    b.attach_mcast(Gid::from_ip(Ipv4Addr::new(239, 9, 9, 9).into())).unwrap();
    let other = scalefabric_nic::port::memory::WirePacket { dst: Ipv4Addr::new(239, 9, 9, 9).into(), ..packet };
    w.wire.inject(other);
    w.settle();
    assert_eq!(w.nodes[1].nic.counters(1).drops(DropReason::BadIcrc), 1, "the ICRC covers the address");
}

#[test]
fn datagrams_to_many_destinations_each_find_their_way() {
    let mut w = World::new(5);
    let key = QKey(1);
    let sender = ud(&w.nodes[0], key);
    let others: Vec<_> = (1..5).map(|n| ud(&w.nodes[n], key)).collect();
    let mrs: Vec<_> = w.nodes.iter().map(|n| n.mr(4096)).collect();
    for (n, qp) in others.iter().enumerate() {
        (0..8).for_each(|i| recv(qp, i, &mrs[n + 1], 64 * i as usize, 64));
    }
    let ahs: Vec<_> = (2..6).map(|n| ah(&w.nodes[0], gid(n))).collect();
    for round in 0..8u8 {
        for (n, qp) in others.iter().enumerate() {
            say(&sender, &ahs[n], qp.qp_num(), key, &[round, n as u8]);
        }
    }
    w.settle();
    for n in 0..4 {
        assert_eq!(w.nodes[n + 1].poll().len(), 8);
        for round in 0..8 {
            assert_eq!(read(&mrs[n + 1], 64 * round + 40, 2), [round as u8, n as u8]);
        }
    }
}

#[test]
fn the_device_counts_attachments_over_all_groups() {
    let w = World::with(1, 1, |config| config.attr.max_total_mcast_qp_attach = 3);
    let group = |n| Gid::from_ip(Ipv4Addr::new(239, 1, 2, n).into());
    let qps = [ud(&w.nodes[0], QKey(1)), ud(&w.nodes[0], QKey(1))];
    for (qp, n) in [(0, 1), (1, 1), (0, 2)] {
        qps[qp].attach_mcast(group(n)).unwrap();
    }
    assert_eq!(qps[1].attach_mcast(group(2)).unwrap_err().errno, Errno::ENOMEM);
    assert_eq!(qps[1].attach_mcast(group(3)).unwrap_err().errno, Errno::ENOMEM);
    qps[0].attach_mcast(group(1)).expect("attached already: nothing changes");
    qps[0].detach_mcast(group(2)).unwrap();
    qps[1].attach_mcast(group(3)).unwrap();
    assert_eq!(qps[0].attach_mcast(group(2)).unwrap_err().errno, Errno::ENOMEM);
}

#[test]
fn what_was_posted_leaves_though_its_qp_is_destroyed_at_once() {
    let mut w = World::new(2);
    let key = QKey(0x77);
    let receiver = ud(&w.nodes[1], key);
    let mr = w.nodes[1].mr(1024);
    (0..3).for_each(|n| recv(&receiver, n, &mr, 256 * n as usize, 256));
    let sender = ud(&w.nodes[0], key);
    let way = ah(&w.nodes[0], gid(2));
    // Nobody turns the engine in between: in a program another thread is in it just then.
    (0..3).for_each(|_| say(&sender, &way, receiver.qp_num(), key, b"last words"));
    sender.destroy().unwrap();
    w.settle();
    let got: Vec<u64> = w.nodes[1].poll().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(got, [0, 1, 2]);
    assert_eq!(w.nodes[0].poll(), [], "nothing of a QP that is gone is left in its CQ");
}
