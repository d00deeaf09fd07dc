//! Faults of the device, as a program sees them: what its completions, events and verbs say is what hardware would say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scalefabric_transport::DropReason;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

const S: u64 = 1_000_000_000;

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn event_types(node: &Node) -> Vec<EventType> {
    node.events().into_iter().map(|event| event.event_type).filter(|&t| t != EventType::CommEst).collect()
}

/// Node 0 writes 8 bytes to node 1.
fn write(w: &World, qp: &Arc<dyn QueuePair>, wr_id: u64, src: &Arc<dyn MemoryRegion>, dst: &Arc<dyn MemoryRegion>) {
    let _ = w;
    send(qp, wr_id, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, src, 0, 8);
}

#[test]
fn a_port_goes_down_and_comes_back_and_traffic_survives_it() {
    let (mut w, setups) = World::faulty(["", "port-down at=2s for=1s"]);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    write(&w, &a, 1, &src, &dst);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    w.advance(2 * S - 1);
    assert_eq!(event_types(&w.nodes[1]), []);
    w.advance(1);
    assert_eq!(event_types(&w.nodes[1]), [EventType::PortErr]);
    assert_eq!(w.nodes[1].ctx.query_port(1).unwrap().state, PortState::Down);
    w.advance(S - 100_000_000);
    write(&w, &a, 2, &src, &dst);
    w.settle();
    assert_eq!(w.nodes[0].poll(), []);
    assert!(w.nodes[1].nic.counters(1).drops(DropReason::PortDown) >= 1);
    w.advance(S);
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::Success)], "retried until the port was back");
    assert_eq!(event_types(&w.nodes[1]), [EventType::PortActive]);
    assert_eq!(value(&setups[1].counters.port_down), 1);
}

#[test]
fn a_port_that_stays_down_costs_the_peer_its_retries() {
    let (mut w, _setups) = World::faulty(["", "port-down at=0s"]);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    write(&w, &a, 1, &src, &dst);
    w.advance(60 * S);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn a_gid_goes_and_returns_to_its_index() {
    let (mut w, setups) = World::faulty(["gid-change at=1s for=200ms", ""]);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    w.advance(S);
    assert_eq!(event_types(&w.nodes[0]), [EventType::GidChange]);
    assert_eq!(w.nodes[0].ctx.query_gid(1, 0), Ok(Gid::ZERO));
    write(&w, &a, 1, &src, &dst);
    w.settle();
    assert_eq!(w.nodes[0].poll(), [], "no address to send from");
    w.advance(S / 5);
    assert_eq!(event_types(&w.nodes[0]), [EventType::GidChange]);
    assert_eq!(w.nodes[0].ctx.query_gid(1, 0), Ok(gid(1)));
    w.advance(S);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(value(&setups[0].counters.gid_change), 1);
}

#[test]
fn a_status_ends_the_oldest_wr_and_flushes_the_rest() {
    for (text, status) in [
        ("wc status=RETRY_EXC_ERR qp=client packet=3", WcStatus::RetryExcErr),
        ("wc status=REM_ACCESS_ERR packet=3", WcStatus::RemAccessErr),
        ("wc status=LOC_PROT_ERR qp=#1 packet=3", WcStatus::LocProtErr),
    ] {
        // The same text on both sides: the server sends no requests of its own.
        let (mut w, setups) = World::faulty([text, text]);
        let [a, b] = w.connect(QpType::Rc);
        let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
        recv(&a, 9, &src, 0, 8);
        for wr_id in 0..5 {
            write(&w, &a, wr_id, &src, &dst);
        }
        w.settle();
        w.advance(S);
        let done = outcome(&w.nodes[0].poll());
        let (good, rest) = done.split_at(2);
        assert_eq!(good, [(0, WcStatus::Success), (1, WcStatus::Success)], "{text}");
        let flushed = |id| (id, WcStatus::WrFlushErr);
        assert_eq!(rest, [(2, status), flushed(3), flushed(4), flushed(9)], "{text}");
        assert_eq!(a.query().unwrap().0.qp_state, QpState::Err);
        assert_eq!(b.query().unwrap().0.qp_state, QpState::Rts, "the peer notices nothing but silence");
        assert_eq!(event_types(&w.nodes[0]), [], "a requester's error is told by its completion alone");
        assert_eq!((value(&setups[0].counters.wc), value(&setups[1].counters.wc)), (1, 0));
    }
}

#[test]
fn server_means_the_side_that_is_spoken_to() {
    let text = "wc status=RETRY_EXC_ERR qp=server";
    let (mut w, setups) = World::faulty([text, text]);
    let [a, b] = w.connect(QpType::Rc);
    let (left, right) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    write(&w, &a, 1, &left, &right);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    // Now the server answers with a request of its own.
    write(&w, &b, 2, &right, &left);
    w.settle();
    assert_eq!(outcome(&w.nodes[1].poll()), [(2, WcStatus::RetryExcErr)]);
    assert_eq!((value(&setups[0].counters.wc), value(&setups[1].counters.wc)), (0, 1));
}

#[test]
fn a_status_can_wait_for_its_time() {
    let (mut w, _setups) = World::faulty(["wc status=RETRY_EXC_ERR after=1s", ""]);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    w.advance(5 * S);
    write(&w, &a, 1, &src, &dst);
    w.advance(S - 1);
    write(&w, &a, 2, &src, &dst);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    w.advance(1);
    write(&w, &a, 3, &src, &dst);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(3, WcStatus::RetryExcErr)]);
}

#[test]
fn a_receive_that_is_there_is_not_found() {
    let (mut w, setups) = World::faulty(["", "rnr packet=1..2 qp=server"]);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&b, 7, &dst, 0, 64);
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.settle();
    assert_eq!((w.nodes[0].poll(), w.nodes[1].poll()), (vec![], vec![]));
    w.advance(S);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)], "the third time it is found");
    assert_eq!(outcome(&w.nodes[1].poll()), [(7, WcStatus::Success)]);
    assert_eq!(value(&setups[1].counters.rnr), 2);
    // Without retries it ends as on hardware.
    let (mut w, _setups) = World::faulty(["", "rnr"]);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| attr.rnr_retry = 0);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    recv(&qps[1], 7, &dst, 0, 64);
    send(&qps[0], 1, SendOp::Send, &src, 0, 8);
    w.advance(S);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn a_qp_fails_at_its_time_and_only_that_one() {
    let (mut w, setups) = World::faulty(["qp-error at=1s qp=#2", ""]);
    let (first, second) = (w.connect(QpType::Rc), w.connect(QpType::Rc));
    let dst = w.nodes[0].mr(64);
    recv(&second[0], 5, &dst, 0, 8);
    w.advance(S);
    assert_eq!(first[0].query().unwrap().0.qp_state, QpState::Rts);
    assert_eq!(second[0].query().unwrap().0.qp_state, QpState::Err);
    assert_eq!(outcome(&w.nodes[0].poll()), [(5, WcStatus::WrFlushErr)]);
    let want = AsyncEvent { event_type: EventType::QpFatal, subject: EventSubject::QueuePair(second[0].qp_num()) };
    assert!(w.nodes[0].events().contains(&want));
    assert_eq!(value(&setups[0].counters.qp_error), 1);
    w.advance(5 * S);
    assert_eq!(value(&setups[0].counters.qp_error), 1, "once");
}

#[test]
fn a_dead_device_takes_its_qps_along() {
    let (mut w, setups) = World::faulty(["device-fatal at=1s", ""]);
    let [a, _b] = w.connect(QpType::Rc);
    w.advance(S);
    assert_eq!(a.query().unwrap().0.qp_state, QpState::Err);
    let events = w.nodes[0].events();
    assert!(events.contains(&AsyncEvent { event_type: EventType::DeviceFatal, subject: EventSubject::Device }));
    assert_eq!(value(&setups[0].counters.device_fatal), 1);
}

#[test]
fn verbs_fail_with_the_errno_that_was_asked_for() {
    let text = "reg-mr fail every=2, create-qp errno=EINVAL packet=2, create-cq errno=ENOMEM at=1s, modify-qp packet=1, \
                alloc-pd fail, create-srq=100%, create-ah fail, alloc-mw fail";
    let (mut w, setups) = World::faulty([text, ""]);
    let node = &w.nodes[0];
    let errno = |result: Option<VerbsError>| result.map(|e| (e.errno, e.blame, e.message.contains("fault injected")));
    let injected = |errno| Some((errno, Blame::Environment, true));
    let mr = || errno(node.pd.alloc_mr(64, ALL_ACCESS).err());
    assert_eq!([mr(), mr(), mr(), mr()], [None, injected(Errno::ENOMEM), None, injected(Errno::ENOMEM)]);
    let qp = || errno(node.pd.create_qp(&node.qp_init(QpType::Rc)).err());
    assert_eq!([qp(), qp(), qp()], [None, injected(Errno::EINVAL), None]);
    assert_eq!(errno(node.ctx.alloc_pd().err()), injected(Errno::ENOMEM));
    let srq = SrqInit { max_wr: 1, max_sge: 1, srq_limit: 0, xrc: None };
    assert_eq!(errno(node.pd.create_srq(&srq).err()), injected(Errno::ENOMEM));
    assert_eq!(errno(node.pd.create_ah(&AddressVector::new(1, 0, gid(2))).err()), injected(Errno::ENOMEM));
    assert_eq!(errno(node.pd.alloc_mw(MwType::Type1).err()), injected(Errno::ENOMEM));
    let made = node.pd.create_qp(&node.qp_init(QpType::Rc)).unwrap();
    let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::empty());
    let modify = || errno(made.modify(&attr, mask).err());
    assert_eq!([modify(), modify()], [injected(Errno::ENOMEM), None]);
    assert!(node.ctx.create_cq(1, None, 0).is_ok(), "not yet");
    w.advance(S);
    assert_eq!(errno(w.nodes[0].ctx.create_cq(1, None, 0).err()), injected(Errno::ENOMEM));
    assert_eq!(value(&setups[0].counters.verb), 9);
}

#[test]
fn packets_of_the_client_are_chosen_on_its_own_side_only() {
    // The same text on both sides, as with one environment for both programs: the client's 2nd incoming packet is lost.
    let text = "drop qp=client packet=2";
    let (mut w, _setups) = World::faulty([text, text]);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    for wr_id in 0..3 {
        write(&w, &a, wr_id, &src, &dst);
        w.settle();
    }
    let lost = |w: &World, n: usize| w.nodes[n].nic.counters(1).drops(DropReason::Fault);
    assert_eq!((lost(&w, 0), lost(&w, 1)), (1, 0));
    w.advance(S);
    assert_eq!(w.nodes[0].poll().len(), 3);
    // The same for what it sends, and for the other side.
    let (mut w, _setups) = World::faulty(["drop qp=client dir=tx packet=2", "drop qp=server packet=1"]);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    for wr_id in 0..3 {
        write(&w, &a, wr_id, &src, &dst);
        w.settle();
    }
    assert_eq!((lost(&w, 0), lost(&w, 1)), (1, 1));
    w.advance(S);
    assert_eq!(w.nodes[0].poll().len(), 3);
}

#[test]
fn datagrams_know_who_speaks_first_too() {
    let text = "drop qp=server dir=tx";
    let (mut w, _setups) = World::faulty([text, text]);
    let key = QKey(5);
    let qps = [0, 1].map(|n: usize| {
        let qp = w.nodes[n].qp(QpType::Ud);
        let (mut attr, mask) = QpAttr::init(QpType::Ud, 1, AccessFlags::empty());
        attr.qkey = key;
        qp.modify(&attr, mask).unwrap();
        qp.modify(&QpAttr { qp_state: QpState::Rtr, ..attr }, QpAttrMask::STATE).unwrap();
        qp.modify(&QpAttr { qp_state: QpState::Rts, ..attr }, QpAttrMask::STATE | QpAttrMask::SQ_PSN).unwrap();
        qp
    });
    let mrs = [w.nodes[0].mr(256), w.nodes[1].mr(256)];
    let say = |w: &mut World, from: usize, to: usize| {
        recv(&qps[to], 1, &mrs[to], 0, 256);
        let ah = w.nodes[from].pd.create_ah(&AddressVector::new(1, 0, gid(to as u8 + 1))).unwrap();
        let ud = Some(UdAddress { ah: &*ah, remote_qpn: qps[to].qp_num(), remote_qkey: key });
        let sg_list = [sge(&mrs[from], 0, 8)];
        qps[from].post_send(&[SendWr { sg_list: &sg_list, ud, ..SendWr::new(2, SendOp::Send) }]).unwrap();
        w.settle();
        w.nodes[from].poll();
        w.nodes[to].poll().iter().filter(|wc| wc.opcode == WcOpcode::Recv).count()
    };
    assert_eq!(say(&mut w, 0, 1), 1, "the client's");
    assert_eq!(say(&mut w, 1, 0), 0, "the server's answer");
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed: u64| {
        let text = format!("rnr=30%, seed={seed}");
        let (mut w, setups) = World::faulty(["", &text]);
        let [a, b] = w.connect(QpType::Rc);
        let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
        (0..40).for_each(|wr_id| recv(&b, wr_id, &dst, 0, 64));
        (0..40).for_each(|wr_id| send(&a, wr_id, SendOp::Send, &src, 0, 8));
        w.advance(10 * S);
        assert_eq!(w.nodes[0].poll().len(), 40);
        value(&setups[1].counters.rnr)
    };
    assert_eq!(run(1), run(1));
    assert!(run(1) > 0 && (1..6).any(|seed| run(seed) != run(1)));
}
