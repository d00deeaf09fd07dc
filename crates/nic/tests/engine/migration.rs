//! Path migration between two ports: QPN, PD and memory stay.

use scalefabric_nic::PortChange;
use scalefabric_transport::Counter;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

// proves: event PATH_MIG
#[test]
fn a_qp_whose_port_goes_down_migrates_to_the_other_one() {
    let mut w = World::with(2, 2, |_| {});
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| {
        attr.timeout = 8;
        attr.retry_cnt = 1;
    });
    for side in 0..2 {
        let mut attr = QpAttr {
            alt_ah_attr: AddressVector::new(2, 0, Gid::from_ip(ip(2 - side as u8, 2))),
            alt_port_num: 2,
            alt_timeout: 8,
            path_mig_state: MigState::Rearm,
            qp_state: QpState::Rts,
            ..QpAttr::default()
        };
        attr.alt_pkey_index = 0;
        let mask = QpAttrMask::STATE | QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
        qps[side].modify(&attr, mask).unwrap();
    }
    let mrs = [w.nodes[0].mr(8192), w.nodes[1].mr(8192)];
    let write = |to: usize| SendOp::Write { remote_addr: mrs[to].addr() + 4096, rkey: mrs[to].rkey() };
    // A packet each way arms both sides.
    send(&qps[0], 1, write(1), &mrs[0], 0, 8);
    send(&qps[1], 1, write(0), &mrs[1], 0, 8);
    w.settle();
    assert_eq!([0, 1].map(|n| qps[n].query().unwrap().0.path_mig_state), [MigState::Armed; 2]);
    w.nodes[0].poll();

    mrs[0].write(0, &pattern(8, 3000)).unwrap();
    w.nodes[0].nic.change_port(1, PortChange::Down).unwrap();
    send(&qps[0], 2, write(1), &mrs[0], 0, 3000);
    w.advance(1_000_000_000);
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::Success)]);
    assert_eq!(read(&mrs[1], 4096, 3000), pattern(8, 3000));
    for n in 0..2 {
        let attr = qps[n].query().unwrap().0;
        assert_eq!((attr.path_mig_state, attr.port_num, attr.alt_port_num), (MigState::Migrated, 2, 1), "side {n}");
        let subject = EventSubject::QueuePair(qps[n].qp_num());
        let migrated = AsyncEvent { event_type: EventType::PathMig, subject };
        assert!(w.nodes[n].events().contains(&migrated));
    }
    assert!(w.nodes[0].nic.counters(2).counter(Counter::SentPackets) >= 3);
    // And it goes on both ways by the other port.
    send(&qps[1], 3, write(0), &mrs[1], 0, 100);
    w.settle();
    assert!(w.nodes[1].poll().iter().any(|wc| (wc.wr_id, wc.status) == (3, WcStatus::Success)));
}
