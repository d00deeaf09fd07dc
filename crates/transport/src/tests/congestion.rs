//! A QP with a congestion controller: what holds its packets back, what it is told, and telemetry on the way there and back.

use scalefabric_verbs::QpType;
use scalefabric_verbs::WcStatus::*;
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};
use scalefabric_wire::packet::{Aeth, Headers, NakCode, Syndrome};
use scalefabric_wire::{PKey, Psn};

use super::{Dialogue, READ, WRITE, piece};
use crate::congestion::int::{Records, Trailer};
use crate::congestion::{Hop, Profile, Route, int};
use crate::counter::Counter;
use crate::queue_pair::{Config, Next, QueuePair};
use crate::testing::{Fate, Link, Packet, Side};
use crate::time::Time;

/// 1 Gb/s and 100 us: 12,500 bytes, ten packets and a bit.
const ROUTE: Route = Route { line_rate_bps: 1_000_000_000, base_rtt_ps: 100_000_000, packet_bytes: 1152, hops: 1 };

fn control(qp: &mut QueuePair, name: &str) {
    let named = |name| Profile::named(name, ROUTE.line_rate_bps).unwrap();
    qp.set_congestion(&named(name), &named("swift"), &ROUTE, 0).unwrap();
}

/// In RTS, with a controller: it is chosen in RESET, so the QP goes there and comes back.
fn controlled(name: &str, config: Config) -> Dialogue {
    controlled_by(config, |qp| control(qp, name))
}

fn controlled_by(config: Config, control: impl FnOnce(&mut QueuePair)) -> Dialogue {
    let mut d = Dialogue::new(QpType::Rc, config, |_| ());
    let attr = d.side.qp.query();
    d.side.to_state(scalefabric_verbs::QpState::Reset);
    control(&mut d.side.qp);
    d.side.bring_up(&attr);
    d.side.host.now = Time(1_000_000_000);
    d
}

/// A CNP from the peer.
fn cnp(d: &Dialogue) -> Packet {
    let opcode = Opcode::find(Service::Cnp, Operation::Cnp, Position::Only).unwrap();
    let mut headers = Headers::new(opcode, PKey::DEFAULT, d.side.qp.qpn(), Psn::new(0));
    headers.bth.becn = true;
    Packet {
        headers,
        payload: alloc::vec![0; 16],
        port_num: 1,
        src: d.side.qp.query().ah_attr.dgid,
        dst: d.side.host.gids[0][0],
        traffic_class: 0,
        reads_telemetry: false,
        trailer: None,
    }
}

#[test]
fn packets_leave_at_the_rate_and_a_cnp_makes_them_slower() {
    let mut d = controlled("dcqcn-reference", Config::default());
    d.post(1, WRITE, 1 << 19);
    let start = d.now();
    assert_eq!(d.sends().len(), 1);
    // 1152 bytes at 1 Gb/s.
    assert_eq!(d.next(), Next::At(start.after(9216)));
    d.passes(9216);
    assert_eq!(d.sends().len(), 1);
    let before = d.side.qp.congestion().unwrap().rate_bps;
    let cnp = cnp(&d);
    d.side.receive(&cnp);
    assert_eq!(d.side.host.counter(Counter::HandledCnps), 1);
    d.passes(9216);
    let mut left = alloc::vec::Vec::new();
    while left.len() < 2 {
        left.extend(d.sends().iter().map(|_| d.now()));
        d.passes(100);
    }
    let after = d.side.qp.congestion().unwrap();
    assert!(after.rate_bps < before * 6 / 10, "{after:?}");
    let gap = left[1].since(left[0]);
    assert!((9216 * 16 / 10..9216 * 25 / 10).contains(&gap), "{gap} ns between two packets at half the rate");
}

#[test]
fn a_window_of_the_controller_holds_back_and_the_last_packet_in_it_asks() {
    let mut d = controlled("swift", Config::default());
    d.post(1, WRITE, 1 << 19);
    let mut sent = d.sends();
    for _ in 0..20 {
        d.passes(9216);
        sent.extend(d.sends());
    }
    // The flight may pass the window by a part of a packet.
    assert_eq!(sent.len(), 11);
    assert!(sent[10].headers.bth.ack_req);
    assert_eq!(d.next(), Next::Idle);
    d.ack(0);
    assert_eq!(d.sends().len(), 1);
}

/// Nine packets, of which the fifth asked; its answer is so late that a window of two is left, while four that nobody asked about are under way.
#[test]
fn a_window_that_shrinks_below_what_is_under_way_lets_one_packet_go_that_asks() {
    let mut d = controlled_by(Config { ack_req_interval: 5, ..Config::default() }, |qp| {
        let mut swift = Profile::named("swift", ROUTE.line_rate_bps).unwrap();
        swift.set("max_mdf", 0.8).unwrap();
        qp.set_congestion(&swift, &Profile::None, &ROUTE, 0).unwrap();
    });
    d.post(1, WRITE, 1 << 19);
    let mut sent = alloc::vec::Vec::new();
    for _ in 0..9 {
        sent.extend(d.sends());
        d.passes(9216);
    }
    let asked: alloc::vec::Vec<bool> = sent.iter().map(|packet| packet.headers.bth.ack_req).collect();
    assert_eq!(asked, [false, false, false, false, true, false, false, false, false]);
    d.passes(20_000_000);
    d.ack(4);
    let window = d.side.qp.congestion().unwrap().window_bytes;
    assert!(window < 4 * 1152, "{window} and four packets under way");
    let sent = d.sends();
    assert_eq!(sent.len(), 1, "or the retransmission timer would be the next to act");
    assert!(sent[0].headers.bth.ack_req);
    d.passes(100_000);
    assert_eq!((d.sends().len(), d.next()), (0, Next::Idle), "this answer is owed");
    d.ack(9);
    assert!(!d.sends().is_empty());
}

#[test]
fn a_loss_is_told_once_and_a_copy_of_its_nak_is_not() {
    let mut d = controlled("swift", Config::default());
    d.post(1, WRITE, 1 << 19);
    for _ in 0..8 {
        d.sends();
        d.passes(9216);
    }
    let window = |d: &Dialogue| d.side.qp.congestion().unwrap().window_bytes;
    let before = window(&d);
    d.nak(2, NakCode::PsnSequenceError);
    let after = window(&d);
    assert!(after < before * 6 / 10, "{before} and {after}");
    d.passes(1_000_000);
    d.sends();
    d.nak(2, NakCode::PsnSequenceError);
    assert_eq!(window(&d), after);
}

#[test]
fn a_read_is_asked_for_in_parts_that_the_window_can_hold_back_and_tells_the_round_trip() {
    let mut d = controlled("swift", Config::default());
    d.post(1, READ, 1 << 19);
    let sent = d.sends();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].headers.reth.unwrap().dma_len, 16 * 1024);
    assert_eq!(d.next(), Next::At(d.now().after(16 * 9216)), "what it asks for takes the line that long");
    // The first response after 10 ms: far beyond the target.
    d.passes(10_000_000);
    let before = d.side.qp.congestion().unwrap().window_bytes;
    d.read_response(Position::First, 0, &[0; 1024]);
    assert!(d.side.qp.congestion().unwrap().window_bytes < before * 6 / 10);
}

#[test]
fn responses_to_reads_are_paced_like_requests() {
    let mut link = Link::rc();
    let attr = link.b.qp.query();
    link.b.to_state(scalefabric_verbs::QpState::Reset);
    control(&mut link.b.qp, "dcqcn");
    link.b.bring_up(&attr);
    link.set_now(Time(1_000_000_000));
    link.a.host.post_send(1, READ, super::SIGNALED, &[piece(0x1000, 100 * 1024)]);
    let mut came = alloc::vec::Vec::new();
    let end = link.now().after(100_000_000);
    // Rounds by hand: the time of each response counts.
    while link.now() < end {
        let now = link.now();
        let moved = link.round(&mut |from_a, _| {
            came.extend((!from_a).then_some(now));
            Fate::Arrives
        });
        if !moved {
            link.set_now(now.after(4608));
        }
    }
    assert_eq!(came.len(), 100);
    let took = came[99].since(came[0]);
    assert!((99 * 9216..=99 * 9216 + 99 * 4608).contains(&took), "{took} ns for 99 packets at 1 Gb/s");
    assert_eq!(link.a.host.sent.len(), 1);
}

#[test]
fn a_controller_is_chosen_before_rtr_and_not_for_datagrams() {
    let mut d = Dialogue::rc(|_| ());
    let dcqcn = Profile::named("dcqcn", ROUTE.line_rate_bps).unwrap();
    let late = d.side.qp.set_congestion(&dcqcn, &Profile::None, &ROUTE, 0).unwrap_err();
    assert!(late.0.contains("RESET or INIT"), "{late}");
    let mut ud = Side::new(QpType::Ud, 1, 64, Config::default());
    let datagram = ud.qp.set_congestion(&dcqcn, &Profile::None, &ROUTE, 0).unwrap_err();
    assert!(datagram.0.contains("UD"), "{datagram}");
    ud.qp.set_congestion(&Profile::None, &Profile::None, &ROUTE, 0).unwrap();
    assert_eq!(ud.qp.congestion(), None);
}

/// Two sides that read telemetry, the first with HPCC.
fn telemetered(b_reads: bool) -> Link {
    let config = |telemetry| Config { telemetry, ..Config::default() };
    let mut link = Link::new((QpType::Rc, QpType::Rc), 1 << 20, config(true), |_| ());
    let attrs = (link.a.qp.query(), link.b.qp.query());
    let mut again = Side::new(QpType::Rc, 2, 1 << 20, config(b_reads));
    again.bring_up(&attrs.1);
    link.b = again;
    link.a.to_state(scalefabric_verbs::QpState::Reset);
    control(&mut link.a.qp, "hpcc");
    link.a.bring_up(&attrs.0);
    link.set_now(Time(1_000_000_000));
    link
}

/// Runs something long through a switch. On the way of the requester's packets its link is used `percent.0`, on that of the responder's `percent.1`.
/// Gives how many packets of each had room for its records.
fn cross(link: &mut Link, op: super::WqeOp, percent: (u64, u64)) -> (usize, usize) {
    link.a.host.post_send(1, op, super::SIGNALED, &[piece(0x1000, 900 * 1024)]);
    let (mut roomy, mut tx_bytes) = ((0, 0), (0, 0));
    let end = link.now().after(10_000_000_000);
    while link.a.host.sent.is_empty() && link.now() < end {
        let (rate_bps, at_ps) = (ROUTE.line_rate_bps, link.now().0 * 1000);
        let hop = |node, tx_bytes| Some(Hop { node, rate_bps, at_ps, tx_bytes, queue_bytes: 0 });
        (link.a.host.hop, link.b.host.hop) = (hop(1, tx_bytes.0), hop(2, tx_bytes.1));
        link.round(&mut |from_a, packet: &Packet| {
            let has_room = usize::from(packet.trailer.is_some_and(|trailer| matches!(trailer, Trailer::Request(_))));
            *if from_a { &mut roomy.0 } else { &mut roomy.1 } += has_room;
            Fate::Arrives
        });
        // 4608 ns are 576 bytes.
        tx_bytes = (tx_bytes.0 + 576 * percent.0 / 100, tx_bytes.1 + 576 * percent.1 / 100);
        link.set_now(link.now().after(4608));
    }
    assert_eq!(link.a.host.sent.first().map(|wc| wc.status), Some(Success));
    assert_eq!((ignored(&link.a), ignored(&link.b)), (0, 0), "every trailer is of use");
    roomy
}

fn ignored(side: &Side) -> u64 {
    side.host.counter(Counter::IgnoredTrailers)
}

/// The same for a WRITE whose way is used.
fn cross_a_switch(link: &mut Link, percent: u64) -> usize {
    cross(link, WRITE, (percent, 0)).0
}

#[test]
fn telemetry_comes_back_and_hpcc_follows_it() {
    let mut link = telemetered(true);
    let roomy = cross_a_switch(&mut link, 190);
    assert!(roomy > 800, "all but the first few of 900 packets had room, not {roomy}");
    let state = link.a.qp.congestion().unwrap();
    assert_eq!(state.algorithm, "hpcc");
    assert!(state.rate_bps < ROUTE.line_rate_bps * 6 / 10, "{state:?}");
}

#[test]
fn a_peer_that_does_not_read_telemetry_gets_none_and_hpcc_becomes_its_fallback() {
    let mut link = telemetered(false);
    assert_eq!(cross_a_switch(&mut link, 190), 0);
    assert_eq!(link.a.qp.congestion().unwrap().algorithm, "swift");
    assert_eq!(link.a.host.counter(Counter::TelemetryFallbacks), 1);
}

#[test]
fn responses_to_a_read_bring_the_telemetry_of_their_own_way_to_who_asked() {
    let mut link = telemetered(true);
    let (requests, responses) = cross(&mut link, READ, (0, 190));
    assert!(requests > 50, "all but the first few of 57 READs ask for room, not {requests}");
    assert!(responses > 800, "all but the first few of 900 responses have room, not {responses}");
    let state = link.a.qp.congestion().unwrap();
    assert_eq!(state.algorithm, "hpcc");
    assert!(state.rate_bps < ROUTE.line_rate_bps * 6 / 10, "{state:?}");
    assert_eq!(link.a.host.counter(Counter::TelemetryFallbacks), 0);
}

#[test]
fn what_congests_only_the_requests_of_a_read_does_not_slow_it() {
    let mut link = telemetered(true);
    cross(&mut link, READ, (190, 40));
    let state = link.a.qp.congestion().unwrap();
    assert!(state.rate_bps > ROUTE.line_rate_bps * 9 / 10, "{state:?}");
}

#[test]
fn a_reader_whose_peer_reads_no_telemetry_falls_back_too() {
    let mut link = telemetered(false);
    assert_eq!(cross(&mut link, READ, (0, 190)), (0, 0));
    assert_eq!(link.a.qp.congestion().unwrap().algorithm, "swift");
}

#[test]
fn a_trailer_that_nobody_asked_for_is_counted_and_harms_nothing() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 1024);
    assert_eq!(d.sends().len(), 1);
    let mut ack = d.response(Operation::Acknowledge, Position::Only, 0, &[]);
    ack.headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(31), msn: 1 });
    ack.trailer = Some(Trailer::Echo(Records::default()));
    d.side.receive(&ack);
    assert_eq!(ignored(&d.side), 1);
    assert_eq!(d.side.host.sent.len(), 1, "the ACK counts");
}

#[test]
fn without_acknowledges_hpcc_is_its_fallback_from_the_start() {
    let mut uc = Side::new(QpType::Uc, 1, 64, Config { telemetry: true, ..Config::default() });
    control(&mut uc.qp, "hpcc");
    assert_eq!(uc.qp.congestion().unwrap().algorithm, "swift");
}

#[test]
fn an_echo_that_nobody_wrote_on_counts_as_silence() {
    let (packet, trailer) = int::split(&int::ROOM).unwrap();
    assert!(packet.is_empty());
    assert_eq!(trailer, Trailer::Request(Records::default()));
    let echo = int::echo(&Records::default());
    assert_eq!(int::split(&echo).unwrap().1, Trailer::Echo(Records::default()));
}
