//! What a CQ can be beyond a queue: stamped, moderated, batched, without overrun; and how a program tells the time.

use std::sync::Arc;
use std::time::Duration;

use scalefabric_nic::NicConfig;
use scalefabric_verbs::*;

use crate::node::*;

fn cq_with(node: &Node, cqe: u32, flags: CqFlags) -> Arc<dyn CompletionQueue> {
    node.ctx.create_cq_with(&CqInit { cqe, flags, ..CqInit::default() }).unwrap()
}

/// A pair whose node 0 completes into that CQ.
fn pair(w: &World, cq: &Arc<dyn CompletionQueue>) -> [Arc<dyn QueuePair>; 2] {
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..w.nodes[0].qp_init(QpType::Rc) };
    let qps = [w.nodes[0].pd.create_qp(&init).unwrap(), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, _, _| {});
    qps
}

fn write(w: &World, qp: &Arc<dyn QueuePair>, wr_id: u64) {
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    send(qp, wr_id, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 8);
    // The regions go with their handles, after the WRITE.
    std::mem::forget((src, dst));
}

#[test]
fn completions_tell_when_they_came_if_asked() {
    let mut w = World::new(2);
    let (stamped, plain) = (cq_with(&w.nodes[0], 8, CqFlags::TIMESTAMP), cq_with(&w.nodes[0], 8, CqFlags::empty()));
    let (a, b) = (pair(&w, &stamped), pair(&w, &plain));
    let mut times = Vec::new();
    for wr_id in 0..3 {
        write(&w, &a[0], wr_id);
        write(&w, &b[0], wr_id);
        w.settle();
        times.push((w.now, poll(&stamped)[0].timestamp_ns));
        assert_eq!(poll(&plain)[0].timestamp_ns, 0);
        w.advance(5_000);
    }
    assert!(times.iter().all(|(now, stamp)| now == stamp), "{times:?}");
    let ctx = &w.nodes[0].ctx;
    assert_eq!(ctx.query_rt_values().unwrap(), w.now, "by the same clock");
    let attr = ctx.query_device().unwrap();
    assert_eq!((attr.hca_core_clock, attr.completion_timestamp_mask), (1_000_000, u64::MAX));
    assert_eq!(ctx.wallclock_ns(77).unwrap(), 77, "a time of one's own has no other epoch");
}

#[test]
fn a_device_without_a_clock_stamps_nothing() {
    let w = World::with(1, 1, |config| config.attr.hca_core_clock = 0);
    let ctx = &w.nodes[0].ctx;
    let init = CqInit { cqe: 1, flags: CqFlags::TIMESTAMP, ..CqInit::default() };
    assert_eq!(ctx.create_cq_with(&init).unwrap_err().errno, Errno::EOPNOTSUPP);
    assert_eq!(ctx.query_rt_values().unwrap_err().errno, Errno::EOPNOTSUPP);
    let unknown = CqInit { cqe: 1, flags: CqFlags::from_bits_retain(1 << 9), ..CqInit::default() };
    assert_eq!(ctx.create_cq_with(&unknown).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn a_cq_that_is_told_to_ignore_overruns_takes_more_than_its_size() {
    for (flags, outcome) in [(CqFlags::IGNORE_OVERRUN, Ok(5)), (CqFlags::SINGLE_THREADED, Err(Errno::EIO))] {
        let mut w = World::new(2);
        let cq = cq_with(&w.nodes[0], 2, flags);
        let qps = pair(&w, &cq);
        (0..5).for_each(|wr_id| write(&w, &qps[0], wr_id));
        w.settle();
        let mut all = [blank(); 8];
        let got = cq.poll(&mut all).and_then(|n| cq.poll(&mut all[n..]).map(|more| n + more)).map_err(|e| e.errno);
        assert_eq!(got, outcome, "{flags:?}");
    }
}

/// True if the channel has an event of that CQ.
fn rings(channel: &Arc<dyn CompletionChannel>) -> bool {
    channel.wait(Some(Duration::ZERO)).unwrap().is_some()
}

#[test]
fn a_moderated_cq_rings_for_many_or_after_a_while() {
    let mut w = World::new(2);
    let channel = w.nodes[0].ctx.create_comp_channel().unwrap();
    let cq = w.nodes[0].ctx.create_cq(64, Some(channel.clone()), 0).unwrap();
    let qps = pair(&w, &cq);
    let mut wr_id = 0;
    let mut writes = |w: &mut World, n: usize| {
        for _ in 0..n {
            write(w, &qps[0], wr_id);
            wr_id += 1;
            w.settle();
        }
    };
    cq.modify_moderation(3, 100).unwrap();
    // Three completions.
    cq.req_notify(false).unwrap();
    writes(&mut w, 2);
    assert!(!rings(&channel));
    assert_eq!(poll(&cq).len(), 2, "they are there, only the bell waits");
    writes(&mut w, 1);
    assert!(rings(&channel) && !rings(&channel));
    // One, and 100 us.
    poll(&cq);
    cq.req_notify(false).unwrap();
    writes(&mut w, 1);
    w.advance(99_000);
    assert!(!rings(&channel));
    w.advance(1_000);
    assert!(rings(&channel));
    // Switched off: what waits rings at once, and so does the next one.
    poll(&cq);
    cq.req_notify(false).unwrap();
    writes(&mut w, 1);
    assert!(!rings(&channel));
    cq.modify_moderation(0, 0).unwrap();
    assert!(rings(&channel));
    poll(&cq);
    cq.req_notify(false).unwrap();
    writes(&mut w, 1);
    assert!(rings(&channel));
}

#[test]
fn moderation_stays_within_what_the_device_says() {
    let w = World::with(1, 1, |config| (config.attr.max_cq_count, config.attr.max_cq_period) = (16, 50));
    let cq = &w.nodes[0].cq;
    cq.modify_moderation(16, 50).unwrap();
    assert_eq!(cq.modify_moderation(17, 50).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(cq.modify_moderation(16, 51).unwrap_err().errno, Errno::EINVAL);
    let none = World::with(1, 1, |config| (config.attr.max_cq_count, config.attr.max_cq_period) = (0, 0));
    assert_eq!(none.nodes[0].cq.modify_moderation(1, 1).unwrap_err().errno, Errno::EOPNOTSUPP);
}

fn batched(config: &mut NicConfig) {
    (config.completion_batch, config.completion_batch_ns) = (4, 10_000);
}

#[test]
fn a_device_that_batches_shows_completions_together() {
    let mut w = World::with(2, 1, batched);
    let channel = w.nodes[0].ctx.create_comp_channel().unwrap();
    let cq = w.nodes[0].ctx.create_cq(64, Some(channel.clone()), 0).unwrap();
    let qps = pair(&w, &cq);
    cq.req_notify(false).unwrap();
    (0..3).for_each(|wr_id| write(&w, &qps[0], wr_id));
    w.settle();
    assert!(poll(&cq).is_empty() && !rings(&channel));
    write(&w, &qps[0], 3);
    w.settle();
    assert_eq!(poll(&cq).len(), 4);
    assert!(rings(&channel));
    // The rest of a batch does not come: time shows what is there.
    cq.req_notify(false).unwrap();
    write(&w, &qps[0], 4);
    w.settle();
    w.advance(9_000);
    assert!(poll(&cq).is_empty() && !rings(&channel));
    w.advance(1_000);
    assert_eq!(poll(&cq).len(), 1);
    assert!(rings(&channel));
    // A QP that fails hides nothing.
    write(&w, &qps[0], 5);
    w.settle();
    qps[0].modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    recv(&qps[0], 9, &w.nodes[0].mr(8), 0, 8);
    w.settle();
    assert_eq!(outcome(&poll(&cq)), [(5, WcStatus::Success), (9, WcStatus::WrFlushErr)]);
}

#[test]
fn a_rate_limit_is_taken_in_rts_and_only_what_can_be_kept() {
    let w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let limit = RateLimit { rate_limit: 8_000, ..RateLimit::default() };
    a.modify_rate_limit(&limit).unwrap();
    assert_eq!(a.query().unwrap().0.rate_limit, 8_000);
    let burst = RateLimit { max_burst_sz: 1000, ..limit };
    assert_eq!(a.modify_rate_limit(&burst).unwrap_err().errno, Errno::EOPNOTSUPP);
    let reset = w.nodes[0].qp(QpType::Rc);
    assert_eq!(reset.modify_rate_limit(&limit).unwrap_err().errno, Errno::EINVAL);
    let none = World::with(2, 1, |config| config.attr.rate_limit_max = 0);
    let [a, _b] = none.connect(QpType::Rc);
    assert_eq!(a.modify_rate_limit(&limit).unwrap_err().errno, Errno::EOPNOTSUPP);
}

#[test]
fn data_is_in_order_for_what_a_qp_can_do() {
    let w = World::new(1);
    let (rc, ud) = (w.nodes[0].qp(QpType::Rc), w.nodes[0].qp(QpType::Ud));
    assert!(rc.data_in_order(OpKind::Write).contains(DataInOrder::WHOLE_MSG | DataInOrder::ALIGNED_128_BYTES));
    assert_eq!(ud.data_in_order(OpKind::Send), DataInOrder::all());
    assert_eq!(ud.data_in_order(OpKind::Write), DataInOrder::empty());
}
