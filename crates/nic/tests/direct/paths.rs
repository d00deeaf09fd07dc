//! Both paths beside each other: what an application sees is the same.

use std::sync::Arc;

use scalefabric_transport::Counter;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

const LEN: usize = 16 << 10;

fn world(direct: bool) -> World {
    World::one_nic(2, 1, |_| {}, |_, port| port, direct)
}

/// Which way requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Wire,
    /// Executed by the engine's turns.
    Turns,
    /// Executed by who posts.
    AtOnce,
}

const DIRECT_PATHS: [Path; 2] = [Path::Turns, Path::AtOnce];

/// A world, connected. The way to the peer is known once a request has gone it, which posters wait for.
fn connected(path: Path) -> (World, [Arc<dyn QueuePair>; 2]) {
    let mut w = world(path != Path::Wire);
    let [a, b] = w.connect(QpType::Rc);
    if path == Path::AtOnce {
        w.nodes[0].nic.execute_at_once();
    }
    let there = w.nodes[1].mr(8);
    send_nothing(&a, &there);
    w.settle();
    assert_eq!(w.nodes[0].poll().len(), 1);
    (w, [a, b])
}

fn send_nothing(a: &Arc<dyn QueuePair>, there: &Arc<dyn MemoryRegion>) {
    let op = SendOp::Write { remote_addr: there.addr(), rkey: there.rkey() };
    a.post_send(&[SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(0, op) }]).unwrap();
}

/// Packets sent and received, and their bytes.
fn traffic(w: &World) -> [u64; 4] {
    let counters = w.nodes[0].nic.counters(1);
    [Counter::SentPackets, Counter::SentBytes, Counter::ReceivedPackets, Counter::ReceivedBytes]
        .map(|counter| counters.counter(counter))
}

fn direct(w: &World) -> u64 {
    w.nodes[0].nic.counters(1).counter(Counter::DirectRequests)
}

/// All six operations, in both forms of their data.
#[test]
fn each_one_sided_operation_is_executed_without_a_packet_and_counted() {
    DIRECT_PATHS.into_iter().for_each(each_operation);
}

fn each_operation(path: Path) {
    let (mut w, [a, _b]) = connected(path);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    here.write(0, &pattern(1, LEN)).unwrap();
    let (remote_addr, rkey) = (there.addr() + 8, there.rkey());
    send(&a, 1, SendOp::Write { remote_addr, rkey }, &here, 0, 5001);
    send(&a, 2, SendOp::Read { remote_addr, rkey }, &here, 8000, 5001);
    let counter = there.addr() + 8192;
    there.store_u64(8192, 40).unwrap();
    send(&a, 3, SendOp::FetchAdd { remote_addr: counter, rkey, add: 2 }, &here, 14_000, 8);
    send(&a, 4, SendOp::CompareSwap { remote_addr: counter, rkey, compare: 42, swap: 7 }, &here, 14_008, 8);
    let bytes = 99u64.to_ne_bytes();
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let write = SendOp::AtomicWrite { remote_addr: counter + 8, rkey };
    a.post_send(&[SendWr { flags, inline_data: &bytes, ..SendWr::new(5, write) }]).unwrap();
    let (placement, level) = (FlushPlacement::Global, FlushLevel::Range);
    let flush = SendOp::Flush { remote_addr, rkey, length: 5001, placement, level };
    a.post_send(&[SendWr::new(6, flush)]).unwrap();
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let inline = SendOp::Write { remote_addr: counter + 16, rkey };
    a.post_send(&[SendWr { flags, inline_data: b"inline", ..SendWr::new(7, inline) }]).unwrap();
    a.post_send(&[SendWr::new(8, SendOp::Write { remote_addr: 0, rkey: RKey(1) })]).unwrap();
    if path == Path::AtOnce {
        assert_eq!(direct(&w), 9, "no turn was needed");
    }
    w.settle();
    let done = w.nodes[0].poll();
    assert_eq!(outcome(&done), (1..=8).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(done.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [0, 5001, 8, 8, 0, 0, 0, 0]);
    assert_eq!(read(&there, 8, 5001), pattern(1, LEN)[..5001]);
    assert_eq!(read(&here, 8000, 5001), pattern(1, LEN)[..5001]);
    assert_eq!((here.load_u64(14_000), here.load_u64(14_008)), (Ok(40), Ok(42)));
    assert_eq!((there.load_u64(8192), there.load_u64(8200)), (Ok(7), Ok(99)));
    assert_eq!(read(&there, 8208, 6), *b"inline");
    assert_eq!(direct(&w), 9);
    let counters = w.nodes[0].nic.counters(1);
    assert_eq!(counters.counter(Counter::WriteRequests), 4);
    assert_eq!(counters.counter(Counter::ReadRequests), 1);
    assert_eq!(counters.counter(Counter::AtomicRequests), 3);
}

/// One operation after the other, so that each has an ACK of its own on the wire, too.
fn counted(path: Path) -> Vec<[u64; 4]> {
    let (mut w, [a, _b]) = connected(path);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    let (remote_addr, rkey) = (there.addr(), there.rkey());
    let atomic_write = SendOp::AtomicWrite { remote_addr, rkey };
    let (placement, level) = (FlushPlacement::Global, FlushLevel::Range);
    let mut operations = vec![
        (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 }, 8),
        (atomic_write, 8),
        (SendOp::Flush { remote_addr, rkey, length: 64, placement, level }, 0),
    ];
    for length in [0, 1, 4, 1023, 1024, 1025, 2048, 2049, 9001] {
        operations.push((SendOp::Write { remote_addr, rkey }, length));
        operations.push((SendOp::Read { remote_addr, rkey }, length));
    }
    let before = traffic(&w);
    let one = |(op, length)| {
        let sgl = [sge(&here, 0, length)];
        let sg_list = if length == 0 { &[][..] } else { &sgl };
        a.post_send(&[SendWr { flags: SendFlags::SIGNALED, sg_list, ..SendWr::new(1, op) }]).unwrap();
        w.settle();
        assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)], "{:?}", op.kind());
        let now = traffic(&w);
        std::array::from_fn(|n| now[n] - before[n])
    };
    operations.into_iter().map(one).collect()
}

#[test]
fn the_ports_counters_are_those_of_the_packets_that_were_not_needed() {
    let wire = counted(Path::Wire);
    assert!(wire.windows(2).all(|pair| pair[0][0] < pair[1][0]), "{wire:?}");
    for path in DIRECT_PATHS {
        assert_eq!(counted(path), wire, "{path:?}");
    }
}

#[test]
fn a_message_that_goes_as_packets_comes_in_order_with_those_that_do_not() {
    let mut w = world(true);
    let [a, b] = w.connect(QpType::Rc);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    let (remote_addr, rkey) = (there.addr(), there.rkey());
    recv(&b, 100, &there, 4096, 64);
    for (id, byte) in [(1, 1), (3, 3)] {
        here.write(id as usize * 64, &[byte; 64]).unwrap();
    }
    send(&a, 1, SendOp::Write { remote_addr, rkey }, &here, 64, 64);
    send(&a, 2, SendOp::Send, &here, 0, 64);
    send(&a, 3, SendOp::Write { remote_addr, rkey }, &here, 192, 64);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(outcome(&w.nodes[1].poll()), [(100, WcStatus::Success)]);
    assert_eq!(read(&there, 0, 64), [3; 64]);
    assert_eq!(direct(&w), 1, "the third found the second under way");
    send(&a, 4, SendOp::Write { remote_addr, rkey }, &here, 64, 64);
    w.settle();
    assert_eq!((w.nodes[0].poll().len(), direct(&w)), (1, 2), "and the fourth nobody");
}

#[test]
fn what_a_closed_gate_a_reset_peer_or_a_lost_right_refuses_is_refused_as_on_the_wire() {
    let mut w = world(true);
    let [a, b] = w.connect(QpType::Rc);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    let op = SendOp::Write { remote_addr: there.addr(), rkey: there.rkey() };
    send(&a, 1, op, &here, 0, 64);
    w.settle();
    assert_eq!((outcome(&w.nodes[0].poll()), direct(&w)), (vec![(1, WcStatus::Success)], 1));
    let (mut attr, _) = b.query().unwrap();
    attr.qp_access_flags = AccessFlags::REMOTE_READ;
    b.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
    send(&a, 2, op, &here, 0, 64);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::RemInvReqErr)]);
    assert_eq!((direct(&w), w.nodes[0].nic.counters(1).counter(Counter::RemoteInvalidRequests)), (1, 1));
}

#[test]
fn the_psns_of_both_ends_are_those_that_packets_would_have_taken() {
    let psns = [true, false].map(|direct| {
        let mut w = world(direct);
        let [a, b] = w.connect(QpType::Rc);
        let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
        let (remote_addr, rkey) = (there.addr(), there.rkey());
        let mut seen = Vec::new();
        for (id, length) in [(1, 0), (2, 1), (3, 1024), (4, 1025), (5, 9000)] {
            send(&a, id, SendOp::Write { remote_addr, rkey }, &here, 0, length);
            send(&a, id + 10, SendOp::Read { remote_addr, rkey }, &here, 0, length);
            recv(&b, id, &there, 0, 64);
            send(&a, id + 20, SendOp::Send, &here, 0, 64);
            send(&a, id + 30, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, &here, 0, 8);
            w.settle();
            assert_eq!(w.nodes[0].poll().len(), 4);
            seen.push((a.query().unwrap().0.sq_psn, b.query().unwrap().0.rq_psn));
        }
        assert!(seen.iter().all(|(sq, rq)| sq == rq), "{seen:?}");
        b.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
        assert_eq!(b.query().unwrap().0.rq_psn, seen[4].1, "also in ERR");
        seen
    });
    assert_eq!(psns[0], psns[1]);
}

/// What one seed's requests lead to.
#[derive(Debug, PartialEq)]
struct Story {
    done: Vec<(u64, WcStatus, u32)>,
    received: Vec<(u64, WcStatus, u32)>,
    events: Vec<(EventType, EventSubject)>,
    states: [QpState; 2],
    /// The requester's, while it lives (behind what was refused, more or fewer may have left), and the responder's.
    psns: (Option<Psn>, Psn),
    /// FNV-1a of the memory of both.
    bytes: [u64; 2],
    requests: [u64; 6],
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random requests, some of which cannot be executed, one after the other or several at a time.
fn story(seed: u64, path: Path) -> (Story, u64) {
    let (mut w, [a, b]) = connected(path);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    let small = w.nodes[1].pd.alloc_mr(4096, AccessFlags::REMOTE_READ).unwrap();
    here.write(0, &pattern(seed as u8, LEN)).unwrap();
    there.write(0, &pattern(seed as u8 ^ 77, LEN)).unwrap();
    let mut random = seed;
    let mut below = |limit: u64| next(&mut random) % limit;
    let (mut done, mut received) = (Vec::new(), Vec::new());
    let tell =
        |all: Vec<WorkCompletion>| all.into_iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect::<Vec<_>>();
    for id in 1..=60u64 {
        let length = match below(4) {
            0 => below(16),
            1 => below(1024),
            _ => below(6000),
        } as u32;
        let rare = below(120);
        let target: &Arc<dyn MemoryRegion> = if rare == 0 { &small } else { &there };
        let rkey = if rare == 1 { RKey(target.rkey().0 ^ 0x100) } else { target.rkey() };
        let remote_addr = target.addr() + if rare == 2 { LEN as u64 } else { below(8192) };
        let word = target.addr() + 8 * below(512) + u64::from(rare == 3);
        let offset = below(8192) as usize;
        let (op, length) = match below(8) {
            0..=2 => (SendOp::Write { remote_addr, rkey }, length),
            3 | 4 => (SendOp::Read { remote_addr, rkey }, length),
            5 => (SendOp::FetchAdd { remote_addr: word, rkey, add: below(99) }, if rare == 4 { 4 } else { 8 }),
            6 => (SendOp::CompareSwap { remote_addr: word, rkey, compare: 0, swap: below(99) }, 8),
            _ => {
                recv(&b, id, &there, 12_000, 4000);
                (SendOp::Send, length.min(3000))
            }
        };
        // Without a fence a READ may see what a later WRITE has written, on a wire.
        let (flags, sg_list) = (SendFlags::SIGNALED | SendFlags::FENCE, [sge(&here, offset, length)]);
        a.post_send(&[SendWr { flags, sg_list: &sg_list, ..SendWr::new(id, op) }]).unwrap();
        if below(3) > 0 {
            w.settle();
            done.extend(tell(w.nodes[0].poll()));
            received.extend(tell(w.nodes[1].poll()));
        }
        if a.query().unwrap().0.qp_state != QpState::Rts {
            break;
        }
    }
    w.settle();
    done.extend(tell(w.nodes[0].poll()));
    received.extend(tell(w.nodes[1].poll()));
    let attrs = [a.query().unwrap().0, b.query().unwrap().0];
    let counters = w.nodes[0].nic.counters(1);
    let story = Story {
        done,
        received,
        events: w.nodes[0].events().into_iter().map(|event| (event.event_type, event.subject)).collect(),
        states: attrs.map(|attr| attr.qp_state),
        psns: ((attrs[0].qp_state == QpState::Rts).then_some(attrs[0].sq_psn), attrs[1].rq_psn),
        bytes: [&here, &there].map(|mr| {
            let bytes = read(mr, 0, LEN);
            bytes
                .iter()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
        }),
        requests: [
            Counter::WriteRequests,
            Counter::ReadRequests,
            Counter::AtomicRequests,
            Counter::CqeErrors,
            Counter::RespondedAccessErrors,
            Counter::RemoteInvalidRequests,
        ]
        .map(|counter| counters.counter(counter)),
    };
    (story, counters.counter(Counter::DirectRequests))
}

#[test]
fn random_requests_tell_the_same_story_on_all_paths() {
    let (mut executed, mut failed) = ([0, 0], 0);
    for seed in 0..200 {
        let (wire, none) = story(seed, Path::Wire);
        assert_eq!(none, 0);
        for (path, executed) in DIRECT_PATHS.into_iter().zip(&mut executed) {
            let (one, direct) = story(seed, path);
            assert_eq!(one, wire, "seed {seed}, {path:?}");
            *executed += direct;
        }
        failed += u64::from(wire.states[0] != QpState::Rts);
    }
    assert!(executed.iter().all(|&n| n > 2000), "only {executed:?} went without packets: nothing was compared");
    assert!((20..180).contains(&failed), "{failed} of 200 ended in an error");
}

#[test]
fn a_region_that_is_deregistered_is_not_found_any_more() {
    let mut w = world(true);
    let [a, _b] = w.connect(QpType::Rc);
    let (here, there) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let op = SendOp::Write { remote_addr: there.addr(), rkey: there.rkey() };
    send(&a, 1, op, &here, 0, 64);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    there.destroy().unwrap();
    send(&a, 2, op, &here, 0, 64);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(2, WcStatus::RemAccessErr)]);
}

#[test]
fn a_long_message_takes_several_turns_and_arrives_whole() {
    let mut w = world(true);
    let [a, _b] = w.connect(QpType::Rc);
    const LONG: usize = 9 << 20;
    let (here, there) = (w.nodes[0].mr(LONG), w.nodes[1].mr(LONG));
    here.write(0, &pattern(9, LONG)).unwrap();
    send(&a, 1, SendOp::Write { remote_addr: there.addr(), rkey: there.rkey() }, &here, 0, LONG as u32);
    let turn = w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
    assert!(turn.ready && w.nodes[0].poll().is_empty(), "others have their turn in between");
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(read(&there, 0, LONG), pattern(9, LONG));
    assert_eq!(direct(&w), 1);
}

/// QPs of nodes 0 and 1, of which the second stays in RTR, as who only serves does.
fn connect_to_rtr(w: &World) -> [Arc<dyn QueuePair>; 2] {
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    for side in 0..2 {
        let av = AddressVector::new(1, sgid(side), gid(2 - side as u8));
        let steps = [
            QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_WRITE),
            QpAttr::rtr(QpType::Rc, qps[1 - side].qp_num(), Psn::new(1), Mtu::Mtu1024, av),
            QpAttr::rts(QpType::Rc, Psn::new(1)),
        ];
        for (attr, mask) in &steps[..3 - side] {
            qps[side].modify(attr, *mask).unwrap();
        }
    }
    qps
}

#[test]
fn a_peer_in_rtr_hears_of_the_first_request_by_a_packet_and_of_the_others_not() {
    let mut w = world(true);
    let [a, b] = connect_to_rtr(&w);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    let op = SendOp::Write { remote_addr: there.addr(), rkey: there.rkey() };
    send(&a, 1, op, &here, 0, 64);
    w.settle();
    assert_eq!((outcome(&w.nodes[0].poll()), direct(&w)), (vec![(1, WcStatus::Success)], 0));
    let established = AsyncEvent { event_type: EventType::CommEst, subject: EventSubject::QueuePair(b.qp_num()) };
    assert_eq!(w.nodes[1].events(), [established]);
    // The way is looked for again after a while.
    w.advance(2_000_000);
    send(&a, 2, op, &here, 0, 64);
    w.settle();
    assert_eq!((outcome(&w.nodes[0].poll()), direct(&w)), (vec![(2, WcStatus::Success)], 1));
    assert_eq!(w.nodes[1].events(), []);
    assert_eq!(b.query().unwrap().0.qp_state, QpState::Rtr);
    let (attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(1));
    b.modify(&attr, mask).unwrap();
    send(&a, 3, op, &here, 0, 64);
    w.advance(2_000_000);
    send(&a, 4, op, &here, 0, 64);
    w.settle();
    assert_eq!((w.nodes[0].poll().len(), direct(&w)), (2, 2), "the third found another gate than the one it knew");
}

#[test]
fn a_queue_that_is_kept_full_comes_away_from_packets() {
    let mut w = world(true);
    let [a, _b] = connect_to_rtr(&w);
    let (here, there) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    here.write(0, &pattern(3, LEN)).unwrap();
    let op = |n: u64| SendOp::Write { remote_addr: there.addr() + n % 64 * 64, rkey: there.rkey() };
    let (mut posted, mut done) = (0, Vec::new());
    while done.len() < 2000 {
        // As a program that posts another one for each that is complete.
        while posted < done.len() as u64 + 60 {
            send(&a, posted, op(posted), &here, posted as usize % 64 * 64, 64);
            posted += 1;
        }
        w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
        w.now += 20_000;
        done.extend(outcome(&w.nodes[0].poll()));
    }
    assert_eq!(done, (0..done.len() as u64).map(|n| (n, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(read(&there, 0, 4096), pattern(3, LEN)[..4096]);
    assert!(direct(&w) > 1000, "{}", direct(&w));
}

#[test]
fn a_chain_that_is_executed_at_once_counts_and_completes_as_its_requests_do_one_by_one() {
    let told = DIRECT_PATHS.map(|path| {
        let (mut w, [a, b]) = connected(path);
        let (here, there, other) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN), w.nodes[1].mr(LEN));
        here.write(0, &pattern(7, LEN)).unwrap();
        let before = (traffic(&w), direct(&w));
        let to = |mr: &Arc<dyn MemoryRegion>, offset: u64| SendOp::Write {
            remote_addr: mr.addr() + offset,
            rkey: mr.rkey(),
        };
        let sges = [sge(&here, 3, 8), sge(&here, 64, 5000), sge(&here, 100, 700)];
        let wr = |id: usize, op, sg_list| SendWr { sg_list, ..SendWr::new(id as u64, op) };
        let inline = SendWr { flags: SendFlags::INLINE, inline_data: b"inline", ..SendWr::new(3, to(&there, 6000)) };
        let read = SendOp::Read { remote_addr: there.addr(), rkey: there.rkey() };
        let chain = [
            wr(1, to(&there, 0), &sges[..1]),
            wr(2, to(&there, 64), &sges[1..2]),
            inline,
            wr(4, to(&other, 8), &sges[..1]),
            wr(5, to(&other, 16), &sges),
            wr(6, read, &sges[..1]),
            wr(7, to(&there, 7000), &sges[2..]),
            // Beyond its end: as a packet, which is refused.
            wr(8, to(&there, LEN as u64 - 7), &sges[..1]),
            wr(9, to(&there, 0), &sges[..1]),
        ];
        a.post_send(&chain).unwrap();
        w.settle();
        let (now, done) = ((traffic(&w), direct(&w)), outcome(&w.nodes[0].poll()));
        let counted: [u64; 4] = std::array::from_fn(|n| now.0[n] - before.0[n]);
        let psns = [&a, &b].map(|qp| (qp.query().unwrap().0.sq_psn, qp.query().unwrap().0.rq_psn));
        assert_eq!(now.1 - before.1, 7, "{path:?}");
        (counted, done, psns, read_all(&there), read_all(&other))
    });
    assert_eq!(told[0], told[1]);
    let states = [WcStatus::Success; 7].into_iter().chain([WcStatus::RemAccessErr, WcStatus::WrFlushErr]);
    assert_eq!(told[0].1, (1..).zip(states).collect::<Vec<_>>());
}

fn read_all(mr: &Arc<dyn MemoryRegion>) -> Vec<u8> {
    read(mr, 0, LEN)
}
