//! Every operation of RC and UC, from first to last byte.

use scalefabric_verbs::*;

use crate::node::*;

const LEN: usize = 10_000;

fn all_success(all: &[WorkCompletion], ids: &[u64]) {
    let want: Vec<_> = ids.iter().map(|&id| (id, WcStatus::Success)).collect();
    assert_eq!(outcome(all), want);
}

#[test]
fn a_send_of_many_packets_arrives_whole() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut w = World::new(2);
        let [a, b] = w.connect(qp_type);
        let (src, dst) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
        src.write(0, &pattern(1, LEN)).unwrap();
        recv(&b, 7, &dst, 0, LEN as u32);
        send(&a, 1, SendOp::SendWithImm { imm: 0xdead_beef }, &src, 0, LEN as u32 - 3);
        w.settle();
        all_success(&w.nodes[0].poll(), &[1]);
        let got = w.nodes[1].poll();
        all_success(&got, &[7]);
        assert_eq!((got[0].byte_len, got[0].imm, got[0].opcode), (LEN as u32 - 3, 0xdead_beef, WcOpcode::Recv));
        assert_eq!((got[0].qp_num, got[0].flags), (b.qp_num(), WcFlags::WITH_IMM));
        assert_eq!(read(&dst, 0, LEN - 3), pattern(1, LEN - 3));
        assert_eq!(read(&dst, LEN - 3, 3), [0; 3], "not a byte beyond the message");
    }
}

#[test]
fn a_write_of_every_length_arrives_and_touches_nothing_else() {
    let mut w = World::new(2);
    for qp_type in [QpType::Rc, QpType::Uc] {
        let [a, _b] = w.connect(qp_type);
        let (src, dst) = (w.nodes[0].mr(8192), w.nodes[1].mr(8192));
        src.write(0, &pattern(3, 8192)).unwrap();
        for (i, length) in [0, 1, 3, 4, 1023, 1024, 1025, 2048, 5000].into_iter().enumerate() {
            dst.write(0, &[0xaa; 8192]).unwrap();
            let op = SendOp::Write { remote_addr: dst.addr() + 100, rkey: dst.rkey() };
            send(&a, i as u64, op, &src, 50, length);
            w.settle();
            all_success(&w.nodes[0].poll(), &[i as u64]);
            let length = length as usize;
            assert_eq!(read(&dst, 100, length), pattern(3, 8192)[50..50 + length]);
            assert_eq!(read(&dst, 0, 100), [0xaa; 100]);
            assert_eq!(read(&dst, 100 + length, 50), [0xaa; 50]);
        }
        assert_eq!(w.nodes[1].poll(), []);
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_tells_the_length() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut w = World::new(2);
        let [a, b] = w.connect(qp_type);
        let (src, dst) = (w.nodes[0].mr(4096), w.nodes[1].mr(4096));
        src.write(0, &pattern(5, 4096)).unwrap();
        b.post_recv(&[RecvWr { wr_id: 9, sg_list: &[] }]).unwrap();
        let op = SendOp::WriteWithImm { remote_addr: dst.addr(), rkey: dst.rkey(), imm: 42 };
        send(&a, 2, op, &src, 0, 3000);
        w.settle();
        all_success(&w.nodes[0].poll(), &[2]);
        let got = w.nodes[1].poll();
        all_success(&got, &[9]);
        assert_eq!((got[0].opcode, got[0].imm, got[0].byte_len), (WcOpcode::RecvRdmaWithImm, 42, 3000));
        assert_eq!(read(&dst, 0, 3000), pattern(5, 3000));
    }
}

// proves: operation RC rdma-read
#[test]
fn a_read_fetches_into_several_buffers() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (local, remote) = (w.nodes[0].mr(8192), w.nodes[1].mr(8192));
    remote.write(0, &pattern(6, 8192)).unwrap();
    let sg_list = [sge(&local, 0, 1500), sge(&local, 4000, 2500)];
    let op = SendOp::Read { remote_addr: remote.addr() + 10, rkey: remote.rkey() };
    a.post_send(&[SendWr { sg_list: &sg_list, ..SendWr::new(3, op) }]).unwrap();
    w.settle();
    let done = w.nodes[0].poll();
    all_success(&done, &[3]);
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::RdmaRead, 4000));
    assert_eq!(read(&local, 0, 1500), pattern(6, 8192)[10..1510]);
    assert_eq!(read(&local, 4000, 2500), pattern(6, 8192)[1510..4010]);
}

// proves: operation RC atomic-cmp-and-swp; operation RC atomic-fetch-and-add
#[test]
fn atomics_return_the_old_value() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (local, remote) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    remote.store_u64(8, 100).unwrap();
    let (remote_addr, rkey) = (remote.addr() + 8, remote.rkey());
    send(&a, 1, SendOp::FetchAdd { remote_addr, rkey, add: 5 }, &local, 0, 8);
    send(&a, 2, SendOp::CompareSwap { remote_addr, rkey, compare: 105, swap: 7 }, &local, 8, 8);
    send(&a, 3, SendOp::CompareSwap { remote_addr, rkey, compare: 105, swap: 9 }, &local, 16, 8);
    w.settle();
    let done = w.nodes[0].poll();
    all_success(&done, &[1, 2, 3]);
    assert_eq!(
        done.iter().map(|d| d.opcode).collect::<Vec<_>>(),
        [WcOpcode::FetchAdd, WcOpcode::CompSwap, WcOpcode::CompSwap]
    );
    assert_eq!([0, 8, 16].map(|at| local.load_u64(at).unwrap()), [100, 105, 7]);
    assert_eq!(remote.load_u64(8).unwrap(), 7);
}

// proves: operation RC flush; operation RC atomic-write
#[test]
fn flush_and_atomic_write_complete() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (local, remote) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    local.write(0, &0x0102_0304_0506_0708u64.to_ne_bytes()).unwrap();
    let (remote_addr, rkey) = (remote.addr() + 16, remote.rkey());
    send(&a, 1, SendOp::AtomicWrite { remote_addr, rkey }, &local, 0, 8);
    let flush =
        SendOp::Flush { remote_addr, rkey, length: 8, placement: FlushPlacement::Global, level: FlushLevel::Range };
    a.post_send(&[SendWr::new(2, flush)]).unwrap();
    w.settle();
    let done = w.nodes[0].poll();
    all_success(&done, &[1, 2]);
    assert_eq!(done.iter().map(|d| d.opcode).collect::<Vec<_>>(), [WcOpcode::AtomicWrite, WcOpcode::Flush]);
    assert_eq!(read(&remote, 16, 8), 0x0102_0304_0506_0708u64.to_ne_bytes());
}

#[test]
fn inline_bytes_may_change_after_posting() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let dst = w.nodes[1].mr(64);
    recv(&b, 1, &dst, 0, 64);
    let mut bytes = *b"inline bytes";
    let wr = SendWr { flags: SendFlags::INLINE, inline_data: &bytes, ..SendWr::new(5, SendOp::Send) };
    a.post_send(&[wr]).unwrap();
    bytes.fill(0);
    w.settle();
    all_success(&w.nodes[0].poll(), &[5]);
    assert_eq!(read(&dst, 0, bytes.len()), b"inline bytes");
}

#[test]
fn a_chain_is_sent_in_order_and_only_signaled_ones_complete() {
    let mut w = World::new(2);
    let mut init = w.nodes[0].qp_init(QpType::Rc);
    init.sq_sig_all = false;
    let qps = [w.nodes[0].pd.create_qp(&init).unwrap(), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, _, _| {});
    let dst = w.nodes[1].mr(64);
    for i in 0..3 {
        recv(&qps[1], i, &dst, 8 * i as usize, 8);
    }
    let data: Vec<[u8; 1]> = (0..3).map(|i| [b'a' + i]).collect();
    let chain: Vec<_> = (0..3)
        .map(|i| {
            let signaled = if i == 1 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let flags = SendFlags::INLINE | signaled;
            SendWr { flags, inline_data: &data[i], ..SendWr::new(10 + i as u64, SendOp::Send) }
        })
        .collect();
    qps[0].post_send(&chain).unwrap();
    w.settle();
    all_success(&w.nodes[0].poll(), &[11]);
    all_success(&w.nodes[1].poll(), &[0, 1, 2]);
    assert_eq!([0, 8, 16].map(|at| read(&dst, at, 1)[0]), *b"abc");
}

#[test]
fn both_sides_send_at_once() {
    let mut w = World::new(2);
    let qps = w.connect(QpType::Rc);
    let mrs = [w.nodes[0].mr(2 * LEN), w.nodes[1].mr(2 * LEN)];
    for side in 0..2 {
        mrs[side].write(0, &pattern(side as u8, LEN)).unwrap();
        recv(&qps[side], 1, &mrs[side], LEN, LEN as u32);
    }
    for side in 0..2 {
        send(&qps[side], 2, SendOp::Send, &mrs[side], 0, LEN as u32);
    }
    w.settle();
    for side in 0..2 {
        let mut done = outcome(&w.nodes[side].poll());
        done.sort_by_key(|d| d.0);
        assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!(read(&mrs[side], LEN, LEN), pattern(1 - side as u8, LEN));
    }
}

#[test]
fn a_qp_talks_to_another_of_its_own_nic() {
    let mut w = World::new(1);
    let node = &w.nodes[0];
    let qps = [node.qp(QpType::Rc), node.qp(QpType::Rc)];
    for side in 0..2 {
        let av = AddressVector::new(1, 0, gid(1));
        for (attr, mask) in [
            QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_WRITE),
            QpAttr::rtr(QpType::Rc, qps[1 - side].qp_num(), Psn::new(5), Mtu::Mtu4096, av),
            QpAttr::rts(QpType::Rc, Psn::new(5)),
        ] {
            qps[side].modify(&attr, mask).unwrap();
        }
    }
    let mr = node.mr(64);
    mr.write(0, b"to myself").unwrap();
    recv(&qps[1], 2, &mr, 32, 16);
    send(&qps[0], 1, SendOp::Send, &mr, 0, 9);
    w.settle();
    let mut done = outcome(&w.nodes[0].poll());
    done.sort_by_key(|d| d.0);
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(read(&mr, 32, 9), b"to myself");
}

#[test]
fn many_qps_share_the_wire_fairly() {
    let mut w = World::new(2);
    let pairs: Vec<_> = (0..8).map(|_| w.connect(QpType::Rc)).collect();
    let (src, dst) = (w.nodes[0].mr(1 << 20), w.nodes[1].mr(8 << 20));
    for (i, [a, _]) in pairs.iter().enumerate() {
        let op = SendOp::Write { remote_addr: dst.addr() + ((i as u64) << 20), rkey: dst.rkey() };
        send(a, i as u64, op, &src, 0, 1 << 20);
    }
    // After some turns, no QP is done before another has begun.
    for _ in 0..4 {
        for node in &w.nodes {
            node.nic.turn(scalefabric_transport::Time(w.now));
        }
    }
    let begun: Vec<_> = pairs.iter().map(|[a, _]| a.query().unwrap().0.sq_psn).collect();
    assert!(begun.iter().all(|&psn| psn != Psn::new(0xff_fff0)), "a QP starves: {begun:?}");
    w.settle();
    let mut ids: Vec<_> = w.nodes[0].poll().iter().map(|d| d.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
}

#[test]
fn ipv6_carries_the_same() {
    // It looks at a packet.
    if crate::DIRECT {
        return;
    }
    let v6 = |n: u8| std::net::IpAddr::from(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)));
    let mut w = World::with(2, 1, |config| {
        let n = config.seed as u8;
        config.ports[0].gids.push(Gid::from_ip(v6(n)));
    });
    (0..2).for_each(|n| w.wire.add_address(n, v6(n as u8 + 1)));
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |side, attr, _| {
        attr.ah_attr.dgid = Gid::from_ip(v6(2 - side as u8));
        attr.ah_attr.sgid_index = 1;
        attr.ah_attr.flow_label = 0xabcde;
    });
    let (src, dst) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    src.write(0, &pattern(1, LEN)).unwrap();
    w.wire.hold(true);
    send(&qps[0], 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, LEN as u32);
    w.settle();
    let first = w.wire.in_flight(|q| q[0].clone());
    assert_eq!((first.src, first.dst, first.flow_label), (v6(1), v6(2), 0xabcde));
    w.wire.hold(false);
    w.settle();
    all_success(&w.nodes[0].poll(), &[1]);
    assert_eq!(read(&dst, 0, LEN), pattern(1, LEN));
}

#[test]
fn an_ack_goes_with_the_request_or_behind_it_if_the_one_before_is_unacknowledged() {
    if crate::DIRECT {
        // Nothing is acknowledged.
        return;
    }
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let memory = [w.nodes[0].mr(64), w.nodes[1].mr(64)];
    w.wire.hold(true);
    let write = |w: &World, side: usize, wr_id| {
        let (from, to) = (&memory[side], &memory[1 - side]);
        let op = SendOp::Write { remote_addr: to.addr() + 8, rkey: to.rkey() };
        send([&a, &b][side], wr_id, op, from, 0, 8);
        w.nodes[side].nic.turn(scalefabric_transport::Time(w.now));
    };
    // The identification is the place in the train; an ACK has 20 bytes.
    let left = |w: &World| w.wire.in_flight(|q| q.iter().map(|p| (p.ip_id, p.bytes.len())).collect::<Vec<_>>());
    write(&w, 0, 1);
    w.wire.deliver(1);
    write(&w, 1, 2);
    assert_eq!(left(&w), [(0, 40), (1, 20)], "nothing was unacknowledged: one train");
    w.wire.deliver(2);
    w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
    // The ACK of the second is late, while the next request comes.
    let late = w.wire.in_flight(|q| q.drain(..).collect::<Vec<_>>());
    assert_eq!(late.iter().map(|p| p.bytes.len()).collect::<Vec<_>>(), [20]);
    write(&w, 0, 3);
    w.wire.deliver(1);
    write(&w, 1, 4);
    assert_eq!(left(&w), [(0, 40), (0, 20)], "the request first, then the ACK, each alone");
    w.wire.in_flight(|q| q.extend(late));
    w.wire.hold(false);
    w.settle();
    all_success(&w.nodes[0].poll(), &[1, 3]);
    all_success(&w.nodes[1].poll(), &[2, 4]);
}

#[test]
fn a_held_ack_waits_a_little_for_the_one_that_is_owed_to_us() {
    if crate::DIRECT {
        // Nothing is acknowledged.
        return;
    }
    for under_way in [false, true] {
        // As the turns of a poller.
        let mut w = World::with(2, 1, |config| config.budget.hold_acks = true);
        let [a, b] = w.connect(QpType::Rc);
        let memory = [w.nodes[0].mr(64), w.nodes[1].mr(64)];
        let to = |n: usize| SendOp::Write { remote_addr: memory[n].addr() + 8, rkey: memory[n].rkey() };
        w.wire.hold(true);
        if under_way {
            send(&b, 1, to(0), &memory[1], 0, 8);
            w.nodes[1].nic.turn(scalefabric_transport::Time(w.now));
        }
        let ours = w.wire.in_flight(|q| q.drain(..).collect::<Vec<_>>());
        assert_eq!(ours.len(), usize::from(under_way));
        send(&a, 2, to(1), &memory[0], 0, 8);
        w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
        w.wire.deliver(1);
        let acks = |w: &World, after: u64| {
            w.nodes[1].nic.turn(scalefabric_transport::Time(w.now + after));
            w.wire.in_flight(|q| q.len())
        };
        assert_eq!(acks(&w, 0), 0, "the turn that took the request in keeps its ACK");
        assert_eq!(acks(&w, 1_999), usize::from(!under_way), "the next one finds nothing");
        assert_eq!(acks(&w, 2_000), 1, "it does not wait for longer");
        w.now += 2_000;
        w.wire.in_flight(|q| q.extend(ours));
        w.wire.hold(false);
        w.advance(10_000_000);
        all_success(&w.nodes[0].poll(), &[2]);
        all_success(&w.nodes[1].poll(), if under_way { &[1] } else { &[] });
    }
}

#[test]
fn a_turn_that_has_sent_its_share_still_fills_the_train_that_it_began() {
    if crate::DIRECT {
        // No packets.
        return;
    }
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(300 * 1024), w.nodes[1].mr(300 * 1024));
    w.wire.set_max_train(0, 10);
    w.wire.hold(true);
    send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 300 * 1024);
    w.settle();
    // Over IPv4 the identification is the place in the train.
    let places: Vec<u16> = w.wire.in_flight(|packets| packets.iter().map(|packet| packet.ip_id).collect());
    let lengths: Vec<usize> = places.chunk_by(|_, next| *next != 0).map(<[u16]>::len).collect();
    // The first packet has a RETH and is longer than its one follower, which therefore ends its train. A turn's share is 128 packets.
    let mut expected = vec![2];
    expected.extend([10; 29]);
    expected.push(8);
    assert_eq!(lengths, expected);
    w.wire.hold(false);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
}
