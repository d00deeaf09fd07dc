//! Every interleaving of the engine and a poller, within loom's bounds: completions arrive whole and in order while the
//! storage grows, and "request, sleep" loses no wake-up.

use loom::thread;
use scalefabric_verbs::{Qpn, RKey, WcFlags, WcOpcode, WcStatus, WorkCompletion};

use super::{Polled, Pushed, completion_queue};

fn wc(wr_id: u64) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        vendor_err: 0,
        byte_len: wr_id as u32,
        imm: 0,
        invalidated_rkey: RKey(0),
        qp_num: Qpn::new(0),
        src_qp: Qpn::new(0),
        flags: WcFlags::empty(),
        pkey_index: 0,
        sl: 0,
        timestamp_ns: 0,
    }
}

#[test]
fn loom_completions_are_whole_and_in_order_while_storage_grows() {
    loom::model(|| {
        // The first segment holds two: the third completion may need the second segment, or not.
        let (mut producer, ring) = completion_queue(10, false);
        let engine = thread::spawn(move || {
            for i in 1..=3 {
                assert_eq!(producer.push(&wc(i), false), Pushed::Quiet);
            }
        });
        let mut next = 1;
        while next <= 3 {
            let mut out = [wc(99)];
            match ring.poll(&mut out) {
                Polled::Some(1) => {
                    assert_eq!(out[0], wc(next));
                    next += 1;
                }
                Polled::Some(_) => thread::yield_now(),
                Polled::Overrun => panic!("it holds ten"),
            }
        }
        engine.join().expect("no panic");
    });
}

#[test]
fn loom_whoever_asks_is_woken() {
    for solicited in [false, true] {
        loom::model(move || {
            let (mut producer, ring) = completion_queue(4, true);
            let engine = thread::spawn(move || producer.push(&wc(1), solicited));
            let there = ring.req_notify(solicited);
            let woken = engine.join().expect("no panic") == Pushed::Notify;
            assert!(there ^ woken, "asleep beside a completion, or woken twice for it");
        });
    }
}

#[test]
fn loom_one_request_wakes_once() {
    loom::model(|| {
        let (mut producer, ring) = completion_queue(4, true);
        let engine = thread::spawn(move || {
            [producer.push(&wc(1), false), producer.push(&wc(2), false)].map(|p| usize::from(p == Pushed::Notify))
        });
        let there = usize::from(ring.req_notify(false));
        let woken: usize = engine.join().expect("no panic").iter().sum();
        assert_eq!(there + woken, 1);
    });
}

#[test]
fn loom_an_overrun_is_never_told_before_what_came_in_time() {
    loom::model(|| {
        let (mut producer, ring) = completion_queue(1, false);
        let engine = thread::spawn(move || {
            let first = producer.push(&wc(1), false);
            assert_eq!(first, Pushed::Quiet);
            matches!(producer.push(&wc(2), false), Pushed::Overrun { .. })
        });
        let mut got = 0;
        let told = loop {
            match ring.poll(&mut [wc(0)]) {
                Polled::Some(n) => got += n,
                Polled::Overrun => break true,
            }
            if got == 2 {
                break false;
            }
            thread::yield_now();
        };
        assert_eq!(engine.join().expect("no panic"), told);
        assert_eq!(got, if told { 1 } else { 2 });
    });
}
