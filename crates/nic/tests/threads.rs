//! Threads on one NIC, in real time: whoever posts or polls drives the engine, nobody else does (D2). There is no worker
//! here, so work that is forgotten stays forgotten and a test would hang.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use scalefabric_nic::polling::Polling;
use scalefabric_nic::port::Port;
use scalefabric_nic::port::memory::MemoryWire;
use scalefabric_nic::{Core, NicConfig, NicContext, PortConfig, PortCounters};
use scalefabric_transport::Counter;
use scalefabric_verbs::*;

fn ip(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

struct Side {
    ctx: Arc<dyn Context>,
    counters: Arc<PortCounters>,
    pd: Arc<dyn ProtectionDomain>,
}

fn sides() -> [Side; 2] {
    sides_with(Polling::default(), |_| ())
}

fn sides_with(polling: Polling, prepare: impl Fn(&Core)) -> [Side; 2] {
    let wire = MemoryWire::new();
    [1, 2].map(|n| {
        let mut config = NicConfig::new("real", vec![PortConfig::new("wire", vec![Gid::from_ip(ip(n))])]);
        config.polling = polling;
        let counters = Arc::new(PortCounters::default());
        let port: Box<dyn Port> = Box::new(wire.port(&[ip(n)]));
        let core = Core::new(config, vec![port], vec![counters.clone()]).unwrap();
        prepare(&core);
        let ctx: Arc<dyn Context> = NicContext::new(&core).unwrap();
        let pd = ctx.alloc_pd().unwrap();
        Side { ctx, counters, pd }
    })
}

struct End {
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    mr: Arc<dyn MemoryRegion>,
}

fn connect(sides: &[Side; 2], sq_sig_all: bool) -> [End; 2] {
    connect_with(sides, sq_sig_all, None)
}

/// The second end's completions go to `channel`.
fn connect_with(sides: &[Side; 2], sq_sig_all: bool, channel: Option<Arc<dyn CompletionChannel>>) -> [End; 2] {
    let ends = [0, 1].map(|n: usize| {
        let cq = sides[n].ctx.create_cq(64, channel.clone().filter(|_| n == 1), 0).unwrap();
        let qp = sides[n]
            .pd
            .create_qp(&QpInit {
                qp_type: QpType::Rc,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                cap: QpCap { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 },
                sq_sig_all,
            })
            .unwrap();
        let mr = sides[n].pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
        End { cq, qp, mr }
    });
    for n in 0..2 {
        let av = AddressVector::new(1, 0, Gid::from_ip(ip(2 - n as u8)));
        for (attr, mask) in [
            QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_WRITE),
            QpAttr::rtr(QpType::Rc, ends[1 - n].qp.qp_num(), Psn::new(7), Mtu::Mtu1024, av),
            QpAttr::rts(QpType::Rc, Psn::new(7)),
        ] {
            ends[n].qp.modify(&attr, mask).unwrap();
        }
    }
    ends
}

fn blank() -> WorkCompletion {
    // Not Success, so that an entry that nobody filled is noticed.
    WorkCompletion { status: WcStatus::GeneralErr, ..WorkCompletion::default() }
}

/// Waits for one completion of a receive; others are sends.
fn next_recv(end: &End) -> WorkCompletion {
    let mut out = [blank()];
    loop {
        match end.cq.poll(&mut out).unwrap() {
            0 => std::thread::yield_now(),
            _ => {
                assert_eq!(out[0].status, WcStatus::Success);
                if out[0].opcode.is_receive() {
                    return out[0];
                }
            }
        }
    }
}

fn post_recv(end: &End) {
    let sg_list = [Sge { addr: end.mr.addr(), length: 64, lkey: end.mr.lkey() }];
    end.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &sg_list }]).unwrap();
}

fn say(end: &End, imm: u32) {
    let wr = SendWr { flags: SendFlags::INLINE, inline_data: b"ping", ..SendWr::new(2, SendOp::SendWithImm { imm }) };
    end.qp.post_send(&[wr]).unwrap();
}

/// A worker that never comes.
struct Nobody;

impl scalefabric_nic::engine::drive::Kick for Nobody {
    fn kick(&self, _at: scalefabric_transport::Time) {}
}

#[test]
fn a_held_ack_leaves_before_the_qp_that_owes_it_is_destroyed() {
    // With a worker to fall back on, a poll that takes a message in holds its ACK back for what may be posted next.
    let sides = sides_with(Polling::default(), |core| core.set_kick(Box::new(Nobody)));
    let [a, b] = connect(&sides, true);
    post_recv(&b);
    say(&a, 7);
    assert_eq!(next_recv(&b).imm, 7);
    b.qp.destroy().unwrap();
    let mut out = [blank()];
    let got = (0..1000).any(|_| a.cq.poll(&mut out).unwrap() == 1);
    assert!(got, "the ACK went down with its QP");
    assert_eq!(out[0].status, WcStatus::Success);
}

#[test]
fn who_waits_for_an_event_drives_for_as_long_as_it_spins() {
    for (polling, comes) in [("spin=1s", true), ("spin=0,yield=1s", true), ("spin=0", false)] {
        let sides = sides_with(polling.parse().unwrap(), |_| ());
        let channel = sides[1].ctx.create_comp_channel().unwrap();
        let [a, b] = connect_with(&sides, true, Some(channel.clone()));
        post_recv(&b);
        b.cq.req_notify(false).unwrap();
        // It lies on the wire, and nobody but the one who waits would take it in.
        say(&a, 9);
        let event = channel.wait(Some(Duration::from_millis(if comes { 30_000 } else { 5 }))).unwrap();
        assert_eq!(event.is_some(), comes, "{polling}");
        let mut out = [blank()];
        let arrived = b.cq.poll(&mut out).unwrap();
        // Without a spin the poll drives: what came is there afterwards.
        assert_eq!((arrived, out[0].imm), (1, 9), "{polling}");
    }
}

#[test]
fn many_threads_play_ping_pong_on_one_engine() {
    const ROUNDS: u32 = 300;
    let sides = sides();
    let pairs: Vec<_> = (0..3).map(|_| connect(&sides, true)).collect();
    std::thread::scope(|scope| {
        for [a, b] in &pairs {
            for (end, first) in [(a, true), (b, false)] {
                scope.spawn(move || {
                    post_recv(end);
                    if first {
                        say(end, 0);
                    }
                    for round in 0..ROUNDS {
                        let wc = next_recv(end);
                        assert_eq!(wc.imm, 2 * round + u32::from(first), "in order, once");
                        post_recv(end);
                        if !(first && round + 1 == ROUNDS) {
                            say(end, wc.imm + 1);
                        }
                    }
                    // The last words still have to leave, and to be acknowledged.
                    for _ in 0..1000 {
                        let _ = end.cq.poll(&mut [blank()]).unwrap();
                    }
                });
            }
        }
    });
}

#[test]
fn a_doorbell_that_meets_a_busy_engine_is_answered_by_whoever_holds_it() {
    const ROUNDS: u64 = 1_000;
    let sides = sides();
    // Nothing is signaled: there is nothing to poll for.
    let [a, b] = connect(&sides, false);
    let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        // The holder: one verb a round, at the moment of the post. Nobody polls on this side.
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                barrier.wait();
                sides[0].ctx.query_port(1).unwrap();
                barrier.wait();
            }
        });
        for round in 0..ROUNDS {
            barrier.wait();
            let wr = SendWr {
                flags: SendFlags::INLINE,
                inline_data: &round.to_ne_bytes(),
                ..SendWr::new(1, SendOp::Write { remote_addr, rkey })
            };
            // Room is made by ACKs: each post takes in those of earlier rounds.
            a.qp.post_send(&[wr]).unwrap();
            barrier.wait();
            // Both threads are out of the engine. What was posted must have left, whoever carried it.
            while b.mr.load_u64(0).unwrap() != round {
                b.cq.poll(&mut [blank()]).unwrap();
            }
        }
    });
    assert!(sides[0].counters.counter(Counter::SentPackets) >= ROUNDS);
}

#[test]
fn verbs_get_in_while_a_thread_polls_without_pause() {
    let sides = sides();
    let [a, _b] = connect(&sides, true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                a.cq.poll(&mut [blank()]).unwrap();
            }
        });
        for _ in 0..2_000 {
            a.qp.query().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
