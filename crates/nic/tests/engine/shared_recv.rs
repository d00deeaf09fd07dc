//! Shared receive queues: one for many QPs, its limit event, its sizes.

use std::sync::Arc;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

fn with_srq(w: &World, max_wr: u32) -> (Arc<dyn SharedReceiveQueue>, Vec<[Arc<dyn QueuePair>; 2]>) {
    let node = &w.nodes[1];
    let srq = node.pd.create_srq(&SrqInit { max_wr, max_sge: 2, srq_limit: 0, xrc: None }).unwrap();
    let mut init = node.qp_init(QpType::Rc);
    init.srq = Some(srq.clone());
    let pairs = (0..2).map(|_| {
        let qps = [w.nodes[0].qp(QpType::Rc), node.pd.create_qp(&init).unwrap()];
        w.connect_these(&qps, |_, _, _| {});
        qps
    });
    let pairs = pairs.collect();
    (srq, pairs)
}

fn post(srq: &Arc<dyn SharedReceiveQueue>, wr_id: u64, mr: &Arc<dyn MemoryRegion>, offset: usize) {
    srq.post_recv(&[RecvWr { wr_id, sg_list: &[sge(mr, offset, 64)] }]).unwrap();
}

// proves: object shared receive queue
#[test]
fn qps_take_from_one_queue_in_order() {
    let mut w = World::new(2);
    let (srq, pairs) = with_srq(&w, 16);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(1024));
    (0..4).for_each(|i| post(&srq, i, &dst, 64 * i as usize));
    for i in 0..4u8 {
        src.write(0, &[b'a' + i]).unwrap();
        send(&pairs[i as usize % 2][0], u64::from(i), SendOp::Send, &src, 0, 1);
        w.settle();
    }
    let got = w.nodes[1].poll();
    assert_eq!(got.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let qpns: Vec<_> = got.iter().map(|wc| wc.qp_num).collect();
    let (x, y) = (pairs[0][1].qp_num(), pairs[1][1].qp_num());
    assert_eq!(qpns, [x, y, x, y]);
    assert_eq!([0, 64, 128, 192].map(|at| read(&dst, at, 1)[0]), *b"abcd");
}

// proves: event SRQ_LIMIT_REACHED
#[test]
fn the_limit_event_comes_once_when_few_are_left() {
    let mut w = World::new(2);
    let (srq, pairs) = with_srq(&w, 16);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(1024));
    (0..4).for_each(|i| post(&srq, i, &dst, 64 * i as usize));
    srq.modify(None, Some(3)).unwrap();
    assert_eq!(srq.query().unwrap().2, 3);
    assert_eq!(w.nodes[1].events(), []);
    send(&pairs[0][0], 1, SendOp::Send, &src, 0, 1);
    w.settle();
    assert_eq!(w.nodes[1].events(), [], "3 are left: not fewer than the limit");
    send(&pairs[0][0], 2, SendOp::Send, &src, 0, 1);
    send(&pairs[0][0], 3, SendOp::Send, &src, 0, 1);
    w.settle();
    let subject = EventSubject::SharedReceiveQueue(srq.srq_num());
    assert_eq!(w.nodes[1].events(), [AsyncEvent { event_type: EventType::SrqLimitReached, subject }]);
    assert_eq!(srq.query().unwrap().2, 0, "disarmed");
}

#[test]
fn arming_above_what_is_posted_raises_the_event_at_once() {
    let w = World::new(2);
    let (srq, _pairs) = with_srq(&w, 16);
    srq.modify(None, Some(1)).unwrap();
    assert_eq!(w.nodes[1].events().len(), 1);
}

#[test]
fn an_srq_grows_but_does_not_shrink_below_what_it_holds() {
    let w = World::new(2);
    let (srq, _pairs) = with_srq(&w, 16);
    let dst = w.nodes[1].mr(64);
    let (size, _, _) = srq.query().unwrap();
    (0..size).for_each(|i| post(&srq, u64::from(i), &dst, 0));
    let full = srq.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]).unwrap_err();
    assert_eq!((full.index, full.errno), (0, Errno::ENOMEM));
    srq.modify(Some(size * 2), None).unwrap();
    post(&srq, 1, &dst, 0);
    assert_eq!(srq.modify(Some(1), None).unwrap_err().errno, Errno::EINVAL);
    let max = w.nodes[1].ctx.query_device().unwrap().max_srq_wr;
    assert_eq!(srq.modify(Some(max + 1), None).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(srq.modify(None, Some(max)).unwrap_err().errno, Errno::EINVAL);
}

// proves: event QP_LAST_WQE_REACHED
#[test]
fn a_failed_qp_with_an_srq_tells_when_it_took_its_last_wqe() {
    let mut w = World::new(2);
    let (_srq, pairs) = with_srq(&w, 16);
    let (attr, mask) = QpAttr::error();
    pairs[0][1].modify(&attr, mask).unwrap();
    w.settle();
    let subject = EventSubject::QueuePair(pairs[0][1].qp_num());
    let event = AsyncEvent { event_type: EventType::QpLastWqeReached, subject };
    assert!(w.nodes[1].events().contains(&event));
}

#[test]
fn a_wqe_of_an_unfinished_message_goes_back_with_its_qp() {
    let mut w = World::new(2);
    let (srq, pairs) = with_srq(&w, 4);
    let (src, dst) = (w.nodes[0].mr(8192), w.nodes[1].mr(8192));
    let (size, _, _) = srq.query().unwrap();
    // Each QP dies in the middle of a message that has taken a WQE. If the slot leaked, the ring would run dry.
    let [a, b] = &pairs[0];
    for round in 0..3 * size as usize {
        srq.post_recv(&[RecvWr { wr_id: 5, sg_list: &[sge(&dst, 0, 8192)] }]).unwrap();
        w.wire.hold(true);
        send(a, 1, SendOp::Send, &src, 0, 4000);
        w.settle();
        w.wire.deliver(1);
        w.wire.in_flight(|q| q.clear());
        w.settle();
        w.wire.in_flight(|q| q.clear());
        w.wire.hold(false);
        let (attr, mask) = QpAttr::reset();
        a.modify(&attr, mask).unwrap();
        b.modify(&attr, mask).unwrap();
        assert_eq!(w.nodes[1].poll(), [], "round {round}");
        w.connect_these(&pairs[0], |_, _, _| {});
    }
}

#[test]
fn a_limit_given_at_creation_is_not_armed() {
    let w = World::new(1);
    let node = &w.nodes[0];
    let srq = node.pd.create_srq(&SrqInit { max_wr: 4, max_sge: 1, srq_limit: 2, xrc: None }).unwrap();
    assert_eq!(srq.query().unwrap().2, 0);
    assert_eq!(node.events(), []);
    // Armed when fewer are posted already: at once.
    srq.modify(None, Some(2)).unwrap();
    let subject = EventSubject::SharedReceiveQueue(srq.srq_num());
    assert_eq!(node.events(), [AsyncEvent { event_type: EventType::SrqLimitReached, subject }]);
}
