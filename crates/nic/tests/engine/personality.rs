//! Personalities as a program meets them: each limit holds exactly, what the other NIC lacks is refused with its errno, and
//! completions and retries come as they do there.

use scalefabric_nic::personality::{Field, PERSONALITIES, Personality};
use scalefabric_verbs::*;

use crate::node::*;

fn world(personality: &'static Personality, count: u8) -> World {
    World::with(count, 1, |config| personality.apply(config))
}

fn errno<T>(result: Result<T, VerbsError>) -> Option<Errno> {
    result.err().map(|e| e.errno)
}

/// What the personality says of a field; `None` if that is not known.
fn figure(personality: &Personality, field: Field) -> Option<u64> {
    personality.figures.iter().find(|f| f.field == field).map(|f| f.value)
}

#[test]
fn each_has_its_qp_types_and_no_others() {
    for personality in PERSONALITIES {
        let w = world(personality, 1);
        let node = &w.nodes[0];
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
            let init =
                QpInit { cap: QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() }, ..node.qp_init(qp_type) };
            let has = personality.qp_types.value.contains(&qp_type);
            let want = if has { None } else { Some(Errno::EOPNOTSUPP) };
            assert_eq!(errno(node.pd.create_qp(&init)), want, "{} {qp_type}", personality.name);
            assert_eq!(node.ctx.supports(qp_type, OpKind::Send), has, "{} {qp_type}", personality.name);
        }
        let xrc = personality.qp_types.value.contains(&QpType::XrcRecv);
        let flag = node.ctx.query_device().unwrap().device_cap_flags & 1 << 20 != 0;
        assert_eq!((errno(node.ctx.open_xrcd()).is_none(), flag), (xrc, xrc), "{}", personality.name);
    }
}

#[test]
fn sizes_hold_at_the_edge_and_not_one_beyond() {
    for personality in PERSONALITIES {
        let w = world(personality, 1);
        let node = &w.nodes[0];
        let attr = node.ctx.query_device().unwrap();
        let qp_type = personality.qp_types.value[0];
        let make = |change: &dyn Fn(&mut QpCap)| {
            let mut cap =
                QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            change(&mut cap);
            errno(node.pd.create_qp(&QpInit { cap, ..node.qp_init(qp_type) }))
        };
        let name = personality.name;
        for beyond in [0, 1] {
            let want = (beyond == 1).then_some(Errno::EINVAL);
            assert_eq!(make(&|cap| cap.max_send_wr = attr.max_qp_wr + beyond), want, "{name} max_send_wr");
            assert_eq!(make(&|cap| cap.max_recv_wr = attr.max_qp_wr + beyond), want, "{name} max_recv_wr");
            assert_eq!(make(&|cap| cap.max_send_sge = attr.max_sge + beyond), want, "{name} max_send_sge");
            assert_eq!(make(&|cap| cap.max_recv_sge = attr.max_sge + beyond), want, "{name} max_recv_sge");
            assert_eq!(make(&|cap| cap.max_inline_data = attr.max_inline_data + beyond), want, "{name} inline");
            assert_eq!(errno(node.ctx.create_cq(attr.max_cqe + beyond, None, 0)), want, "{name} max_cqe");
            let vector = attr.num_comp_vectors - 1 + beyond;
            assert_eq!(errno(node.ctx.create_cq(1, None, vector)), want, "{name} num_comp_vectors");
            if attr.max_srq > 0 {
                let srq =
                    |max_wr, max_sge| errno(node.pd.create_srq(&SrqInit { max_wr, max_sge, srq_limit: 0, xrc: None }));
                assert_eq!(srq(attr.max_srq_wr + beyond, 1), want, "{name} max_srq_wr");
                assert_eq!(srq(1, attr.max_srq_sge + beyond), want, "{name} max_srq_sge");
            }
        }
        // The figures that the personality gives are those that a program sees.
        let known = |field, ours: u64| figure(personality, field).map_or(ours, |value| value.min(ours));
        assert_eq!(u64::from(attr.max_sge), known(Field::MaxSge, 32), "{name}");
        assert_eq!(u64::from(attr.max_inline_data), known(Field::MaxInlineData, 1024), "{name}");
        assert_eq!(u64::from(attr.max_cqe), known(Field::MaxCqe, 1 << 20), "{name}");
    }
}

#[test]
fn what_a_nic_lacks_is_refused_as_its_driver_does() {
    for personality in PERSONALITIES {
        let w = world(personality, 1);
        let node = &w.nodes[0];
        let attr = node.ctx.query_device().unwrap();
        let name = personality.name;
        let lacks = |field| figure(personality, field) == Some(0);
        let want = |lacking: bool| lacking.then_some(Errno::EOPNOTSUPP);
        let srq = SrqInit { max_wr: 1, max_sge: 1, srq_limit: 0, xrc: None };
        assert_eq!(errno(node.pd.create_srq(&srq)), want(lacks(Field::MaxSrq)), "{name}");
        assert_eq!(errno(node.pd.alloc_mw(MwType::Type2)), want(lacks(Field::MaxMw)), "{name}");
        assert_eq!(errno(node.ctx.alloc_dm(1, 0)), want(lacks(Field::MaxDmSize)), "{name}");
        assert_eq!(errno(node.pd.advise_mr(MrAdvice::Prefetch, false, &[])), want(lacks(Field::OnDemand)), "{name}");
        assert_eq!(errno(node.ctx.query_rt_values()), want(lacks(Field::HcaCoreClock)), "{name}");
        assert_eq!(errno(node.cq.modify_moderation(1, 0)), want(lacks(Field::MaxCqCount)), "{name}");
        assert_eq!(errno(node.cq.resize(300)), want(lacks(Field::ResizeCq)), "{name}");
        let av = AddressVector::new(1, 0, gid(1));
        assert_eq!(errno(node.pd.create_ah(&av)), want(lacks(Field::MaxAh)), "{name}");
        if personality.qp_types.value.contains(&QpType::Ud) {
            let ud = node.qp_small(QpType::Ud);
            let (qp_attr, mask) = QpAttr::init(QpType::Ud, 1, AccessFlags::empty());
            ud.modify(&qp_attr, mask).unwrap();
            let group = Gid::from_ip(std::net::Ipv4Addr::new(239, 1, 1, 1).into());
            assert_eq!(errno(ud.attach_mcast(group)), want(lacks(Field::MaxMcastGrp)), "{name}");
            let _ = ud.detach_mcast(group);
        }
        let port = node.ctx.query_port(1).unwrap();
        let rows = |field, ours: u64| figure(personality, field).map_or(ours, |value| value.min(ours));
        assert_eq!(u64::from(port.gid_tbl_len), rows(Field::GidTblLen, 128), "{name}");
        assert_eq!((attr.vendor_id, attr.vendor_part_id), (0x00ff_ffff, 4096), "{name}: nobody takes us for that NIC");
        assert!(attr.fw_ver.ends_with(name));
    }
}

#[test]
fn an_operation_that_is_missing_is_refused_when_it_is_posted() {
    for personality in PERSONALITIES.iter().filter(|p| p.qp_types.value.contains(&QpType::Rc)) {
        let mut w = world(personality, 2);
        let [a, b] = w.connect_small(QpType::Rc);
        let (src, dst) = (w.nodes[0].mr(4096), w.nodes[1].mr(4096));
        let (remote_addr, rkey) = (dst.addr(), dst.rkey());
        let ops = [
            SendOp::Write { remote_addr, rkey },
            SendOp::WriteWithImm { remote_addr, rkey, imm: 1 },
            SendOp::SendWithImm { imm: 1 },
            SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
            SendOp::AtomicWrite { remote_addr, rkey },
        ];
        for (wr_id, op) in ops.into_iter().enumerate() {
            recv(&b, 9, &dst, 64, 64);
            let has = !personality.without.value.contains(&op.kind());
            assert_eq!(w.nodes[0].ctx.supports(QpType::Rc, op.kind()), has);
            let sg_list = [sge(&src, 0, 8)];
            let posted = a.post_send(&[SendWr { sg_list: &sg_list, ..SendWr::new(wr_id as u64, op) }]);
            assert_eq!(posted.is_ok(), has, "{} {:?}", personality.name, op.kind());
            assert!(posted.err().is_none_or(|e| e.errno == Errno::EINVAL && e.index == 0));
            w.settle();
            w.advance(10_000);
            let want: &[_] = if has { &[(wr_id as u64, WcStatus::Success)] } else { &[] };
            assert_eq!(outcome(&w.nodes[0].poll()), want, "{} {:?}", personality.name, op.kind());
        }
        // The right is asked for by connection managers and not granted.
        let granted = a.query().unwrap().0.qp_access_flags.contains(AccessFlags::REMOTE_ATOMIC);
        assert_eq!(granted, !personality.without.value.contains(&OpKind::FetchAdd), "{}", personality.name);
    }
}

#[test]
fn iwarp_reads_into_one_sge() {
    let siw = Personality::find("siw").unwrap();
    let mut w = world(siw, 2);
    let [a, _b] = w.connect_small(QpType::Rc);
    let (local, remote) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let read = SendOp::Read { remote_addr: remote.addr(), rkey: remote.rkey() };
    let two = [sge(&local, 0, 8), sge(&local, 8, 8)];
    let refused = a.post_send(&[SendWr { sg_list: &two, ..SendWr::new(1, read) }]).unwrap_err();
    assert_eq!(refused.errno, Errno::EINVAL);
    a.post_send(&[SendWr { sg_list: &two[..1], ..SendWr::new(2, read) }]).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::Success)]);
}

/// When a WRITE to a peer that is not there is sent again, for the first time, ns after it was posted.
fn first_retry(personality: Option<&'static Personality>, timeout: u8) -> u64 {
    let mut w = World::with(2, 1, |config| {
        if let Some(personality) = personality {
            personality.apply(config);
        }
    });
    let qps = [w.nodes[0].qp_small(QpType::Rc), w.nodes[1].qp_small(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| attr.timeout = timeout);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    w.nodes[1].nic.change_port(1, scalefabric_nic::PortChange::Down).unwrap();
    let lost = |w: &World| w.nodes[1].nic.counters(1).drops(scalefabric_transport::DropReason::PortDown);
    send(&qps[0], 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 8);
    w.settle();
    assert_eq!(lost(&w), 1);
    let start = w.now;
    while lost(&w) == 1 {
        let now = w.now;
        let next = w.nodes[0].nic.turn(scalefabric_transport::Time(now)).next_deadline.unwrap().0;
        w.advance(next.max(now + 1) - now);
    }
    w.now - start
}

#[test]
fn a_lost_packet_costs_what_it_costs_there() {
    let named = |name| Some(Personality::find(name).unwrap());
    assert_eq!(first_retry(None, 1), 8_192);
    assert_eq!(first_retry(named("rxe"), 1), 8_192);
    assert_eq!(first_retry(named("connectx-5"), 1), 2 * (4_096 << 12), "code 12 is the least, and it takes twice");
    assert_eq!(first_retry(named("connectx-6"), 1), 2 * (4_096 << 16));
    assert_eq!(first_retry(named("connectx-6"), 17), 2 * (4_096 << 17), "a larger one is as it is");
}

#[test]
fn completions_of_a_nic_that_batches_come_together_or_late() {
    let connectx = Personality::find("connectx-6").unwrap();
    let mut w = world(connectx, 2);
    let [a, _b] = w.connect_small(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let write = SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() };
    for wr_id in 0..9 {
        assert!(w.nodes[0].poll().is_empty());
        send(&a, wr_id, write, &src, 0, 8);
        w.settle();
        if wr_id == 7 {
            assert_eq!(w.nodes[0].poll().len(), 8);
        }
    }
    assert!(w.nodes[0].poll().is_empty());
    w.advance(2_000);
    assert_eq!(w.nodes[0].poll().len(), 1);
}
