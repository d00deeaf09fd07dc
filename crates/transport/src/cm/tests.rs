//! Dialogues of two sides, and many of them with messages lost, repeated and out of order.

use alloc::vec::Vec;

use scalefabric_verbs::Qpn;
use scalefabric_wire::cm::{CmMad, CommId, Drep, Lap, Message, Path, Rej, Rep, Req, Rtu};

use super::connection::{Connection, Event, State};
use super::{RESPONSE_TIMEOUT, SERVICE_TIMEOUT, about, code_ns, reason};
use crate::time::Time;

const A: CommId = CommId(0x0100_0001);
const B: CommId = CommId(0x0200_0002);

fn req() -> Req {
    Req {
        local_comm_id: A,
        local_ca_guid: 0xa,
        local_qpn: Qpn::new(0x1_0001),
        remote_cm_response_timeout: RESPONSE_TIMEOUT,
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: 15,
        primary: Path { local_ack_timeout: 17, ..Path::default() },
        ..Req::default()
    }
}

fn rep() -> Rep {
    Rep { local_comm_id: B, remote_comm_id: A, local_qpn: Qpn::new(0x2_0002), local_ca_guid: 0xb, ..Rep::default() }
}

/// How long the active side waits before it repeats a REQ.
fn interval() -> u64 {
    2 * code_ns(16) + code_ns(RESPONSE_TIMEOUT)
}

fn sent(connection: &mut Connection) -> Vec<CmMad> {
    core::iter::from_fn(|| connection.poll_transmit()).collect()
}

fn told(connection: &mut Connection) -> Vec<Event> {
    core::iter::from_fn(|| connection.poll_event()).collect()
}

fn names(mads: &[CmMad]) -> Vec<&'static str> {
    mads.iter().map(|mad| mad.message.name()).collect()
}

fn give(now: Time, to: &mut Connection, mads: &[CmMad]) {
    mads.iter().for_each(|mad| to.handle(now, mad));
}

fn passive(mad: &CmMad) -> Connection {
    let Message::Req(req) = &mad.message else { panic!("a REQ opens a connection") };
    Connection::request(req, mad.transaction_id, B, 0xb)
}

/// Both sides, connected at time 0.
fn connected() -> (Connection, Connection) {
    let now = Time(0);
    let mut a = Connection::connect(now, req(), 0, 1);
    let opening = sent(&mut a);
    let mut b = passive(&opening[0]);
    assert!(b.accept(now, rep(), 0));
    give(now, &mut a, &sent(&mut b));
    assert!(matches!(told(&mut a)[..], [Event::Replied { .. }]));
    assert!(a.establish());
    give(now, &mut b, &sent(&mut a));
    assert_eq!(told(&mut b), [Event::Established]);
    (a, b)
}

#[test]
fn req_rep_rtu_then_dreq_drep() {
    let (mut a, mut b) = connected();
    assert_eq!((a.state(), b.state()), (State::Established, State::Established));
    assert_eq!((a.remote_id(), a.remote_qpn()), (B, Qpn::new(0x2_0002)));
    assert_eq!(a.deadline(), None, "a connection costs nothing while it stands");
    let now = Time(5);
    assert!(a.disconnect(now));
    let dreq = sent(&mut a);
    assert_eq!(names(&dreq), ["DREQ"]);
    give(now, &mut b, &dreq);
    assert_eq!(told(&mut b), [Event::Disconnected { answered: true }]);
    let drep = sent(&mut b);
    assert_eq!(names(&drep), ["DREP"]);
    give(now, &mut a, &drep);
    assert_eq!(told(&mut a), [Event::Disconnected { answered: true }]);
    for side in [&mut a, &mut b] {
        let end = side.deadline().expect("time wait ends");
        side.handle_timeout(Time(end.0 - 1));
        assert_eq!((told(side).len(), side.state()), (0, State::Timewait));
        side.handle_timeout(end);
        assert_eq!(told(side), [Event::TimewaitExit]);
        assert_eq!(side.state(), State::Closed);
    }
}

#[test]
fn everything_that_comes_twice_is_answered_twice_and_told_once() {
    let now = Time(0);
    let mut a = Connection::connect(now, req(), 0, 1);
    let opening = sent(&mut a);
    let mut b = passive(&opening[0]);
    // Not answered by the consumer yet: it takes longer.
    give(now, &mut b, &opening);
    let mra = sent(&mut b);
    assert!(matches!(mra[0].message, Message::Mra(m) if m.message_mraed == about::REQ));
    b.accept(now, rep(), 0);
    let accepted = sent(&mut b);
    give(now, &mut b, &opening);
    assert_eq!(sent(&mut b), accepted);
    give(now, &mut a, &accepted);
    give(now, &mut a, &accepted);
    assert!(matches!(sent(&mut a)[..], [CmMad { message: Message::Mra(m), .. }] if m.message_mraed == about::REP));
    assert_eq!(told(&mut a).len(), 1);
    a.establish();
    let rtu = sent(&mut a);
    give(now, &mut a, &accepted);
    assert_eq!(sent(&mut a), rtu, "the RTU was lost");
    give(now, &mut b, &rtu);
    give(now, &mut b, &rtu);
    assert_eq!(told(&mut b), [Event::Established]);
    b.disconnect(now);
    let dreq = sent(&mut b);
    give(now, &mut a, &dreq);
    give(now, &mut a, &dreq);
    assert_eq!(names(&sent(&mut a)), ["DREP", "DREP"]);
    assert_eq!(told(&mut a), [Event::Disconnected { answered: true }]);
}

#[test]
fn a_req_is_repeated_as_often_as_it_says_and_no_oftener() {
    let mut a = Connection::connect(Time(0), req(), 0, 1);
    let opening = sent(&mut a);
    let mut repeated = 0;
    while let Some(at) = a.deadline().filter(|_| a.state() == State::ReqSent) {
        assert_eq!(at.0, interval() * (repeated + 1));
        a.handle_timeout(at);
        match names(&sent(&mut a))[..] {
            ["REQ"] => repeated += 1,
            // To whoever may have seen one of them.
            ["REJ"] => assert_eq!(told(&mut a), [Event::Unreachable]),
            ref other => panic!("{other:?}"),
        }
    }
    assert_eq!(repeated, 15);
    assert_eq!(names(&opening), ["REQ"]);
}

#[test]
fn an_mra_puts_the_repetition_off() {
    let mut a = Connection::connect(Time(0), req(), 0, 1);
    let mut b = passive(&sent(&mut a)[0]);
    b.handle(Time(1), &Connection::connect(Time(0), req(), 0, 1).poll_transmit().unwrap());
    give(Time(1), &mut a, &sent(&mut b));
    a.handle_timeout(Time(interval()));
    assert!(sent(&mut a).is_empty());
    assert!(a.deadline().unwrap() > Time(code_ns(SERVICE_TIMEOUT)));
}

#[test]
fn a_rejection_is_told_and_said_again_to_who_did_not_hear_it() {
    let now = Time(0);
    let mut a = Connection::connect(now, req(), 0, 1);
    let opening = sent(&mut a);
    let mut b = passive(&opening[0]);
    let mut words = [0; 148];
    words[0] = 7;
    assert!(b.reject(now, reason::CONSUMER, &[], words));
    let lost = sent(&mut b);
    give(now, &mut b, &opening);
    let again = sent(&mut b);
    assert_eq!(again, lost);
    give(now, &mut a, &again);
    assert_eq!(told(&mut a), [Event::Rejected { reason: reason::CONSUMER, private_data: words }]);
    assert_eq!(a.state(), State::Closed);
    assert!(!b.accept(now, rep(), 0) && !b.disconnect(now), "it is over");
}

#[test]
fn who_gives_up_refuses_a_late_rep() {
    let now = Time(0);
    let mut a = Connection::connect(now, req(), 0, 1);
    let mut b = passive(&sent(&mut a)[0]);
    b.accept(now, rep(), 0);
    a.abandon(now);
    assert_eq!(names(&sent(&mut a)), ["REJ"], "lost");
    give(now, &mut a, &sent(&mut b));
    let rej = sent(&mut a);
    assert!(matches!(rej[0].message, Message::Rej(r) if r.reason == reason::TIMEOUT && r.remote_comm_id == B));
    give(now, &mut b, &rej);
    assert!(matches!(told(&mut b)[..], [Event::Rejected { reason: reason::TIMEOUT, .. }]));
}

#[test]
fn data_before_the_rtu_is_as_good_as_an_rtu() {
    let now = Time(0);
    let mut a = Connection::connect(now, req(), 0, 1);
    let mut b = passive(&sent(&mut a)[0]);
    b.accept(now, rep(), 0);
    assert!(b.communicate());
    assert_eq!(told(&mut b), [Event::Established]);
    assert_eq!(b.deadline(), None, "the REP is not repeated");
    assert!(!b.communicate());
    let rtu = Rtu { local_comm_id: A, remote_comm_id: B, ..Rtu::default() };
    b.handle(now, &CmMad { transaction_id: 1, attribute_modifier: 0, message: rtu.into() });
    assert!(told(&mut b).is_empty());
}

#[test]
fn both_disconnect_at_once_and_each_is_told_once() {
    let (mut a, mut b) = connected();
    let now = Time(1);
    a.disconnect(now);
    b.disconnect(now);
    let (from_a, from_b) = (sent(&mut a), sent(&mut b));
    give(now, &mut a, &from_b);
    give(now, &mut b, &from_a);
    let (from_a, from_b) = (sent(&mut a), sent(&mut b));
    assert_eq!((names(&from_a), names(&from_b)), (["DREP"].into(), ["DREP"].into()));
    give(now, &mut a, &from_b);
    give(now, &mut b, &from_a);
    assert_eq!(told(&mut a), [Event::Disconnected { answered: true }]);
    assert_eq!(told(&mut b), [Event::Disconnected { answered: true }]);
}

#[test]
fn a_dreq_that_nobody_answers_ends_all_the_same() {
    let (mut a, _) = connected();
    a.disconnect(Time(0));
    let mut dreqs = sent(&mut a).len();
    while a.state() == State::DreqSent {
        a.handle_timeout(a.deadline().unwrap());
        dreqs += sent(&mut a).len();
    }
    assert_eq!(dreqs, 16);
    assert_eq!(told(&mut a), [Event::Disconnected { answered: false }]);
}

#[test]
fn a_stale_connection_ends_when_its_qp_asks_anew() {
    let (_, mut b) = connected();
    b.handle_stale(Time(1));
    assert_eq!(names(&sent(&mut b)), ["DREQ"]);
    assert_eq!(told(&mut b), [Event::Disconnected { answered: false }]);
}

#[test]
fn messages_of_another_connection_change_nothing() {
    let (_, mut b) = connected();
    let foreign = CommId(99);
    for message in [
        Message::Drep(Drep { local_comm_id: foreign, remote_comm_id: B, ..Drep::default() }),
        Message::Dreq(scalefabric_wire::cm::Dreq { local_comm_id: foreign, remote_comm_id: B, ..Default::default() }),
        Message::Lap(Lap { local_comm_id: foreign, remote_comm_id: B, ..Default::default() }),
    ] {
        b.handle(Time(1), &CmMad { transaction_id: 1, attribute_modifier: 0, message });
    }
    assert_eq!((b.state(), sent(&mut b).len(), told(&mut b).len()), (State::Established, 0, 0));
}

#[test]
fn an_alternate_path_is_declined() {
    let (_, mut b) = connected();
    let lap = Lap { local_comm_id: A, remote_comm_id: B, ..Default::default() };
    b.handle(Time(1), &CmMad { transaction_id: 9, attribute_modifier: 0, message: lap.into() });
    assert!(matches!(sent(&mut b)[..], [CmMad { message: Message::Apr(apr), .. }] if apr.ap_status == 2));
    assert_eq!(b.state(), State::Established);
}

/// A generator (PCG-like step) for one seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What a consumer has been told.
#[derive(Default, Debug)]
struct Heard {
    up: u32,
    down: u32,
    refused: u32,
}

/// Two hosts and a bad network between them.
struct World {
    dice: Dice,
    loss: u64,
    now: Time,
    sides: [Option<Connection>; 2],
    heard: [Heard; 2],
    /// Consumers disconnect as soon as they are connected.
    leaving: bool,
    /// Arrival, receiver, message.
    wire: Vec<(Time, usize, CmMad)>,
}

impl World {
    fn new(seed: u64, loss: u64) -> Self {
        let a = Connection::connect(Time(0), req(), 0, 1);
        Self {
            dice: Dice(seed),
            loss,
            now: Time(0),
            sides: [Some(a), None],
            heard: Default::default(),
            leaving: false,
            wire: Vec::new(),
        }
    }

    fn post(&mut self, to: usize, mad: CmMad) {
        let copies = if self.dice.roll(100) < self.loss { 0 } else { 1 + u64::from(self.dice.roll(10) == 0) };
        for _ in 0..copies {
            // Up to three seconds: answers overtake what they answer.
            let at = self.now.after(self.dice.roll(3_000_000_000));
            self.wire.push((at, to, mad));
        }
    }

    fn pump(&mut self, side: usize) {
        let Some(connection) = &mut self.sides[side] else { return };
        let heard = &mut self.heard[side];
        let mut events = told(connection);
        for event in events.drain(..) {
            match event {
                Event::Replied { .. } => {
                    assert!(connection.establish());
                    heard.up += 1;
                }
                Event::Established => heard.up += 1,
                Event::Disconnected { .. } => heard.down += 1,
                Event::Rejected { .. } | Event::Unreachable => heard.refused += 1,
                Event::TimewaitExit => {}
            }
        }
        if self.leaving && connection.state() == State::Established {
            connection.disconnect(self.now);
        }
        for mad in sent(connection) {
            self.post(1 - side, mad);
        }
    }

    fn arrive(&mut self, side: usize, mad: &CmMad) {
        match (&mut self.sides[side], &mad.message) {
            (None, Message::Req(_)) => {
                let mut b = passive(mad);
                b.accept(self.now, rep(), 0);
                self.sides[side] = Some(b);
            }
            (Some(connection), _) if connection.state() != State::Closed => connection.handle(self.now, mad),
            // What the NIC says for a connection that it has forgotten.
            (_, Message::Dreq(dreq)) => {
                let drep =
                    Drep { local_comm_id: dreq.remote_comm_id, remote_comm_id: dreq.local_comm_id, ..Drep::default() };
                self.post(1 - side, CmMad { transaction_id: 1, attribute_modifier: 0, message: drep.into() });
            }
            (_, Message::Rep(rep)) => {
                let rej =
                    Rej { local_comm_id: rep.remote_comm_id, remote_comm_id: rep.local_comm_id, ..Rej::default() };
                self.post(1 - side, CmMad { transaction_id: 1, attribute_modifier: 0, message: rej.into() });
            }
            _ => {}
        }
        self.pump(side);
    }

    /// Lets time pass until nothing happens any more, or until `done`.
    fn run(&mut self, done: impl Fn(&Self) -> bool) {
        self.pump(0);
        for _ in 0..10_000 {
            if done(self) {
                return;
            }
            let deadline = self.sides.iter().flatten().filter_map(Connection::deadline).min();
            let arrival = self.wire.iter().map(|(at, ..)| *at).min();
            let Some(next) = [deadline, arrival].into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            if let Some(at) = self.wire.iter().position(|(at, ..)| *at <= self.now) {
                let (_, side, mad) = self.wire.swap_remove(at);
                self.arrive(side, &mad);
            } else {
                for side in 0..2 {
                    if let Some(connection) = &mut self.sides[side] {
                        connection.handle_timeout(self.now);
                    }
                    self.pump(side);
                }
            }
        }
        panic!("it does not end");
    }

    fn state(&self, side: usize) -> Option<State> {
        self.sides[side].as_ref().map(Connection::state)
    }
}

#[test]
fn with_a_third_of_all_messages_lost_both_sides_come_up_and_go_down_together() {
    for seed in 0..400 {
        let mut world = World::new(seed, 33);
        world.run(|w| (0..2).all(|side| w.state(side) == Some(State::Established)));
        let up = [world.heard[0].up, world.heard[1].up];
        assert_eq!(up, [1, 1], "seed {seed}: {:?}", world.heard);
        let who = (seed % 2) as usize;
        let now = world.now;
        assert!(world.sides[who].as_mut().unwrap().disconnect(now));
        if seed % 5 == 0 {
            world.sides[1 - who].as_mut().unwrap().disconnect(now);
            world.pump(1 - who);
        }
        world.pump(who);
        world.run(|_| false);
        for side in 0..2 {
            let heard = &world.heard[side];
            assert_eq!((heard.up, heard.down, heard.refused), (1, 1, 0), "seed {seed}, side {side}");
            assert_eq!(world.state(side), Some(State::Closed), "seed {seed}, side {side}");
        }
    }
}

#[test]
fn whatever_is_lost_each_side_ends_and_is_told_its_end_once() {
    let mut failed = 0;
    for seed in 0..600 {
        let mut world = World::new(seed, 70 + seed % 30);
        // The one that calls gives up its patience at some time, as applications do.
        let patience = Time(world.dice.roll(120) * 1_000_000_000);
        world.run(|w| w.now >= patience);
        world.leaving = true;
        for side in 0..2 {
            let now = world.now;
            if let Some(connection) = &mut world.sides[side] {
                connection.disconnect(now);
            }
            world.pump(side);
        }
        world.run(|_| false);
        for side in 0..2 {
            let heard = &world.heard[side];
            let ends = heard.down + heard.refused;
            assert!(heard.up <= 1 && heard.down <= 1 && heard.refused <= 1, "seed {seed}, side {side}: {heard:?}");
            assert!(ends == 1 || world.sides[side].is_none(), "seed {seed}, side {side}: {heard:?}");
            assert!(heard.up == 0 || heard.down == 1, "seed {seed}, side {side}: {heard:?}");
            assert!(matches!(world.state(side), None | Some(State::Closed)), "seed {seed}, side {side}");
        }
        failed += usize::from(world.heard[0].refused == 1);
    }
    assert!(failed > 20, "the network was not bad enough: {failed}");
}
