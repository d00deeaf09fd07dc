//! Every interleaving of a poster and the engine, within loom's bounds: nothing is seen before it is whole, nothing is
//! overwritten before it is done with.

use std::sync::Arc;

use loom::thread;
use scalefabric_transport::host::WqeOp;
use scalefabric_verbs::{LKey, SendFlags, Sge, Srqn};

use super::{RecvRing, SendData, SendEntry, SendRing, SendRingConfig, SharedRecvRing};

const ROUNDS: u32 = 3;

/// Up to two preemptions find what these rings can get wrong, and keep the run short.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(f);
}

fn sge(i: u32) -> Sge {
    Sge { addr: u64::from(i) << 32, length: i + 1, lkey: LKey(i) }
}

#[test]
fn loom_a_send_wqe_is_whole_when_it_is_seen() {
    model(|| {
        let ring = Arc::new(SendRing::new(SendRingConfig { max_wr: 2, max_sge: 1, max_inline: 0, ud: false }));
        let poster = thread::spawn({
            let ring = ring.clone();
            move || {
                for i in 0..ROUNDS {
                    let sges = [sge(i)];
                    let (op, data) = (WqeOp::SendWithImm { imm: i }, SendData::Sges(&sges));
                    let flags = SendFlags::empty();
                    let entry =
                        SendEntry { wr_id: u64::from(i), op, flags, data, ud: None, xrc_srqn: None, bind: None };
                    while ring.poster().post(&entry).is_err() {
                        thread::yield_now();
                    }
                }
            }
        });
        for i in 0..ROUNDS {
            let wqe = loop {
                match ring.wqe(i) {
                    Some(wqe) => break wqe,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((wqe.wr_id, wqe.op, wqe.length), (u64::from(i), WqeOp::SendWithImm { imm: i }, i + 1));
            assert_eq!(ring.sges(i).next(), Some(sge(i)));
            ring.retire(i + 1);
        }
        poster.join().expect("no panic");
    });
}

#[test]
fn loom_a_receive_wqe_is_whole_when_it_is_taken() {
    model(|| {
        let ring = Arc::new(RecvRing::new(2, 1));
        let poster = thread::spawn({
            let ring = ring.clone();
            move || {
                for i in 0..ROUNDS {
                    while ring.poster().post(u64::from(i), &[sge(i)]).is_err() {
                        thread::yield_now();
                    }
                }
            }
        });
        for i in 0..ROUNDS {
            let wqe = loop {
                match ring.take() {
                    Some(wqe) => break wqe,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((wqe.wr_id, wqe.length), (u64::from(i), i + 1));
            assert_eq!(ring.sges(wqe.slot).next(), Some(sge(i)));
            ring.free(wqe.slot);
        }
        poster.join().expect("no panic");
    });
}

#[test]
fn loom_a_shared_slot_is_never_in_two_hands() {
    model(|| {
        let ring = Arc::new(SharedRecvRing::new(Srqn::new(1), 2, 1, 2));
        let poster = thread::spawn({
            let ring = ring.clone();
            move || {
                for i in 0..ROUNDS {
                    while ring.poster().post(u64::from(i), &[sge(i)]).is_err() {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut held = None;
        for i in 0..ROUNDS {
            let wqe = loop {
                match ring.take() {
                    Some((wqe, _)) => break wqe,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((wqe.wr_id, wqe.length), (u64::from(i), i + 1));
            assert_eq!(ring.sges(wqe.slot).next(), Some(sge(i)));
            // Freed one later than it was taken: out of step with taking.
            if let Some((number, slot)) = held.replace((i, wqe.slot)) {
                assert_eq!(ring.sges(slot).next(), Some(sge(number)), "still ours");
                ring.free(slot);
            }
        }
        poster.join().expect("no panic");
    });
}
