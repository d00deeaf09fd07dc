//! One session at a time: what it hears, what it does, and nothing more. A row of a table is a step.

use super::super::*;
use crate::directory::{FencingToken, OrderResult};
use crate::path::Path;
use scalefabric_verbs::Gid;

pub fn path(n: u8) -> Path {
    Path {
        device: "sf0".into(),
        port_num: n,
        sgid: Gid::from_ip(std::net::IpAddr::from([10, 0, n, 1])),
        dgid: Gid::from_ip(std::net::IpAddr::from([10, 0, n, 2])),
        flow_label: 0,
        dscp: 0,
    }
}

pub fn offer(n: u32) -> QpOffer {
    QpOffer {
        qp_num: n,
        psn: n,
        gid: std::net::Ipv6Addr::LOCALHOST,
        mtu: 1024,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        receive_bytes: 4096,
        receives: 16,
        port: "sf0 port 1".into(),
        srq_num: None,
        domain: 0,
    }
}

pub fn setup(role: Role) -> Setup {
    Setup {
        role,
        service: "echo".into(),
        tenant: String::new(),
        path: None,
        patience: Patience::default(),
        abilities: Abilities::default(),
        seed: 7,
    }
}

const STEP: u64 = 2_000_000_000;

pub(super) struct Talk {
    pub session: Session,
    pub now: u64,
}

impl Talk {
    pub fn new(role: Role) -> Self {
        Self::with(setup(role))
    }

    fn with(setup: Setup) -> Self {
        Self { session: Session::new(setup, 0), now: 0 }
    }

    /// Up on port 1, with QPs that take new vectors, as the peer's do.
    pub fn up_with_vectors(role: Role) -> Self {
        let mut talk = Self::with(Setup { abilities: VECTORS, ..setup(role) });
        talk.come_up(role);
        talk.session.set_path(path(1));
        talk
    }

    /// Hears this, does that, and nothing more.
    #[track_caller]
    pub fn then(&mut self, input: Input, expected: &[&str]) -> Vec<Action> {
        self.session.handle(input, self.now);
        self.expect(expected)
    }

    #[track_caller]
    pub fn at(&mut self, now: u64, expected: &[&str]) -> Vec<Action> {
        self.now = now;
        self.session.handle_timer(now);
        self.expect(expected)
    }

    #[track_caller]
    fn expect(&mut self, expected: &[&str]) -> Vec<Action> {
        let actions: Vec<Action> = std::iter::from_fn(|| self.session.poll_action()).collect();
        let words: Vec<String> = actions.iter().map(word).collect();
        assert_eq!(words, expected);
        actions
    }

    pub fn up(role: Role) -> Self {
        let mut talk = Self::new(role);
        talk.come_up(role);
        talk
    }

    fn come_up(&mut self, role: Role) {
        let talk = self;
        match role {
            Role::Leader => {
                talk.expect(&["report Connecting", "dial", "make 1"]);
                talk.then(Input::ChannelUp, &[]);
                talk.then(made(1), &["say begin 1"]);
                talk.then(accept(1, None), &["ready 1"]);
                talk.then(ready(1), &["say commit 1", "use 1", "report Up"]);
            }
            Role::Follower => {
                talk.expect(&["report Connecting"]);
                talk.then(Input::ChannelUp, &[]);
                talk.then(begin(1, Purpose::Connect), &["make 1"]);
                talk.then(made(1), &["ready 1"]);
                talk.then(ready(1), &["say accept 1"]);
                talk.then(commit(1), &["use 1", "report Up"]);
            }
        }
    }
}

fn word(action: &Action) -> String {
    match action {
        Action::Dial => "dial".into(),
        Action::Send(body) => match body {
            Body::Begin(begin) => format!("say begin {}", begin.lane.0),
            Body::Accept(accept) => format!("say accept {}", accept.lane.0),
            Body::Commit { lane } => format!("say commit {}", lane.0),
            Body::Abort { lane, .. } => format!("say abort {}", lane.0),
            Body::Refuse { lane, .. } => format!("say refuse {}", lane.0),
            Body::Broken { lane, .. } => format!("say broken {}", lane.0),
            Body::AskMove { .. } => "say ask-move".into(),
            Body::MoveRefused { .. } => "say move-refused".into(),
            Body::Switched { lane, sent } => format!("say switched {} after {sent}", lane.0),
            Body::Retired { lane } => format!("say retired {}", lane.0),
            Body::Redirect(redirect) => format!("say redirect {}", redirect.number),
            Body::Quiet { number, .. } => format!("say quiet {number}"),
            Body::RedirectRefused { number, .. } => format!("say redirect-refused {number}"),
            Body::Turn { number } => format!("say turn {number}"),
            Body::Turned { number } => format!("say turned {number}"),
            Body::RedirectAborted { number, .. } => format!("say redirect-aborted {number}"),
            Body::Memory { round, .. } => format!("say memory {round}"),
            Body::MemoryTaken { round } => format!("say taken {round}"),
            Body::Close { .. } => "say close".into(),
        },
        Action::Make { lane, .. } => format!("make {}", lane.0),
        Action::Ready { lane, .. } => format!("ready {}", lane.0),
        Action::Stop => "stop".into(),
        Action::Resolve(drained) => format!("resolve {}", drained.received),
        Action::Use { lane } => format!("use {}", lane.0),
        Action::HandOver { lane } => format!("hand over to {}", lane.0),
        Action::Switch { lane } => format!("switch to {}", lane.0),
        Action::Expect { lane, after } => format!("expect {} after {after}", lane.0),
        Action::Drain { lane, .. } => format!("drain {}", lane.0),
        Action::Vector { lane, .. } => format!("vector {}", lane.0),
        Action::Load { lane, .. } => format!("load {}", lane.0),
        Action::Migrate { lane } => format!("migrate {}", lane.0),
        Action::Unload { lane } => format!("unload {}", lane.0),
        Action::Resume { lane } => format!("resume {}", lane.0),
        Action::Discard { lane } => format!("discard {}", lane.0),
        Action::Retire { lane } => format!("retire for {}", lane.0),
        Action::TakeKeys { round, .. } => format!("take keys {round}"),
        Action::Revoke { round, taken: true } => format!("revoke {round}"),
        Action::Revoke { round, taken: false } => format!("revoke {round} late"),
        Action::Report(state) => format!("report {state:?}"),
        Action::Answer { result, .. } => match result {
            OrderResult::Done { .. } => "answer done".into(),
            OrderResult::RolledBack { .. } => "answer rolled back".into(),
            OrderResult::Fenced { highest } => format!("answer fenced {}", highest.0),
            OrderResult::Rotated { keys, .. } => format!("answer rotated {keys}"),
        },
        Action::Closed(error) => format!("closed {:?}", error.fault),
    }
}

pub(super) fn made(n: u64) -> Input {
    Input::Made { lane: LaneId(n), qp: offer(n as u32) }
}

pub(super) fn ready(n: u64) -> Input {
    Input::Ready { lane: LaneId(n) }
}

pub(super) fn drained(received: u64) -> Drained {
    Drained { received, executed: vec![] }
}

pub(super) fn accept(n: u64, drained: Option<Drained>) -> Input {
    Input::Message(Body::Accept(Accept { lane: LaneId(n), qp: offer(100), drained, abilities: VECTORS }))
}

pub(super) fn begin(n: u64, purpose: Purpose) -> Input {
    let drained = (purpose == Purpose::Rebuild).then(|| drained(5));
    Input::Message(Body::Begin(Begin {
        lane: LaneId(n),
        purpose,
        present: (n > 1).then_some(LaneId(n - 1)),
        qp: offer(200),
        service: "echo".into(),
        tenant: String::new(),
        drained,
        peer_path: None,
        token: FencingToken(0),
        abilities: VECTORS,
    }))
}

pub(super) fn commit(n: u64) -> Input {
    Input::Message(Body::Commit { lane: LaneId(n) })
}

pub(super) fn broken(n: u64) -> Input {
    Input::Broken { lane: LaneId(n), reason: "test".into() }
}

fn move_to(n: u8, token: u64) -> Input {
    order_to(n, token, 0)
}

fn order_to(n: u8, token: u64, ticket: u64) -> Input {
    let change = Change {
        path: path(n),
        peer_path: None,
        strategy: Some(Strategy::MakeBeforeBreak),
        token: FencingToken(token),
        reason: "test".into(),
    };
    Input::Move { ticket: Ticket(ticket), change }
}

/// Which order an action answers.
fn answered(action: &Action) -> u64 {
    let Action::Answer { ticket, .. } = action else { panic!("{action:?} answers no order") };
    ticket.0
}

/// A peer whose QPs take new vectors.
const VECTORS: Abilities = Abilities { drained_vector: true, alternate_path: false };

const MBB: Purpose = Purpose::Move(Strategy::MakeBeforeBreak);

#[test]
fn nobody_posts_before_both_are_ready() {
    // `up` is the dialogue: the leader uses the lane only after Accept and its own RTS, the follower only after Commit.
    Talk::up(Role::Leader);
    Talk::up(Role::Follower);
}

#[test]
fn a_leader_says_begin_when_the_channel_comes_after_the_qp() {
    let mut talk = Talk::new(Role::Leader);
    talk.expect(&["report Connecting", "dial", "make 1"]);
    talk.then(made(1), &[]);
    talk.then(Input::ChannelUp, &["say begin 1"]);
}

#[test]
fn a_peer_that_does_not_answer_is_asked_again_with_a_new_lane_and_given_up_in_the_end() {
    let mut talk = Talk::new(Role::Leader);
    talk.expect(&["report Connecting", "dial", "make 1"]);
    talk.then(Input::ChannelUp, &[]);
    talk.then(made(1), &["say begin 1"]);
    talk.at(STEP, &["discard 1", "say abort 1"]);
    let again = talk.session.deadline_ns().unwrap();
    assert!(again > STEP && again <= STEP + 1_000_000);
    talk.at(again, &["make 2"]);
    talk.then(made(2), &["say begin 2"]);
    // A late answer to the first is nothing.
    talk.then(accept(1, None), &[]);
    let end = talk.at(10_000_000_000, &["say close", "report Closed", "closed Unreachable"]);
    let Some(Action::Closed(error)) = end.last() else { panic!() };
    assert!(error.message.contains("did not answer"), "{error}");
}

#[test]
fn a_channel_that_cannot_be_made_is_dialled_with_growing_pauses_and_its_reason_is_told() {
    let mut talk = Talk::new(Role::Leader);
    talk.expect(&["report Connecting", "dial", "make 1"]);
    talk.then(made(1), &[]);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        talk.then(Input::ChannelDown { reason: "connection refused".into() }, &[]);
        let at = talk.session.deadline_ns().unwrap();
        pauses.push(at - talk.now);
        talk.at(at, &["dial"]);
    }
    assert!(pauses[3] > pauses[0], "{pauses:?}");
    while talk.session.deadline_ns().is_some_and(|at| at < 10_000_000_000) {
        talk.now = talk.session.deadline_ns().unwrap();
        talk.session.handle_timer(talk.now);
        while let Some(action) = talk.session.poll_action() {
            if let Action::Make { lane, .. } = action {
                talk.session.handle(made(lane.0), talk.now);
            }
        }
    }
    let end = talk.at(10_000_000_000, &["report Closed", "closed Unreachable"]);
    let Some(Action::Closed(error)) = end.last() else { panic!() };
    assert!(error.message.contains("connection refused"), "{error}");
}

#[test]
fn a_rebuild_drains_before_it_begins_and_resolves_before_it_is_ready() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(broken(1), &["report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(3)), &["make 2"]);
    let said = talk.then(made(2), &["say begin 2"]);
    let Action::Send(Body::Begin(begin)) = &said[0] else { panic!() };
    assert_eq!(begin.drained, Some(drained(3)));
    talk.then(accept(2, Some(drained(9))), &["resolve 9", "ready 2"]);
    talk.then(ready(2), &["say commit 2", "use 2", "report Up"]);
    // Once more, of a lane that is gone: nothing.
    talk.then(broken(1), &[]);
}

#[test]
fn a_rebuild_on_the_following_side() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(begin_rebuild(), &["report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(8)), &["make 2"]);
    talk.then(made(2), &["resolve 5", "ready 2"]);
    let said = talk.then(ready(2), &["say accept 2"]);
    let Action::Send(Body::Accept(accept)) = &said[0] else { panic!() };
    assert_eq!(accept.drained, Some(drained(8)));
    talk.then(commit(2), &["use 2", "report Up"]);
}

fn begin_rebuild() -> Input {
    begin(2, Purpose::Rebuild)
}

#[test]
fn a_follower_that_finds_its_lane_broken_asks_and_says_so_again_on_a_new_channel() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(broken(1), &["report Rebuilding", "say broken 1"]);
    talk.then(Input::ChannelDown { reason: "test".into() }, &[]);
    talk.then(Input::ChannelUp, &["say broken 1"]);
    talk.then(begin_rebuild(), &["stop"]);
}

#[test]
fn a_rebuild_is_tried_again_until_it_is_given_up() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(broken(1), &["report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(0)), &["make 2"]);
    talk.then(Input::Failed { lane: LaneId(2), reason: "no QP is left".into() }, &["discard 2", "say abort 2"]);
    let at = talk.session.deadline_ns().unwrap();
    talk.at(at, &["make 3"]);
    talk.then(made(3), &["say begin 3"]);
    talk.then(
        Input::Message(Body::Refuse { lane: LaneId(3), reason: "busy".into(), for_good: false }),
        &["discard 3", "say abort 3"],
    );
    talk.at(120_000_000_000, &["say close", "report Closed", "closed Unreachable"]);
}

#[test]
fn a_peer_that_forgot_the_connection_ends_it() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(Input::ChannelDown { reason: "test".into() }, &[]);
    let at = talk.session.deadline_ns().unwrap();
    talk.at(at, &["dial"]);
    talk.then(Input::ChannelUp, &["say commit 1"]);
    let refuse = Body::Refuse { lane: LaneId(1), reason: "unknown connection".into(), for_good: true };
    talk.then(Input::Message(refuse), &["report Closed", "closed Peer"]);
}

#[test]
fn a_move_is_made_before_it_is_broken() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(move_to(2, 1), &["report Moving", "make 2"]);
    talk.then(made(2), &["say begin 2"]);
    talk.then(accept(2, None), &["ready 2"]);
    talk.then(ready(2), &["say commit 2", "hand over to 2"]);
    talk.then(Input::Message(Body::Switched { lane: LaneId(2), sent: 40 }), &["expect 2 after 40"]);
    talk.then(Input::Idle { lane: LaneId(2), sent: 17 }, &["say switched 2 after 17", "switch to 2"]);
    talk.then(Input::Message(Body::Retired { lane: LaneId(2) }), &[]);
    talk.then(Input::Received { lane: LaneId(2) }, &["say retired 2", "retire for 2", "report Up", "answer done"]);
}

#[test]
fn a_move_that_does_not_come_about_leaves_everything_as_it_was() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(move_to(2, 1), &["report Moving", "make 2"]);
    talk.then(made(2), &["say begin 2"]);
    talk.at(STEP, &["discard 2", "say abort 2", "answer rolled back", "report Up"]);
    assert_eq!(talk.session.lane(), Some(LaneId(1)));
    let mut talk = Talk::up(Role::Follower);
    talk.then(begin(2, MBB), &["report Moving", "make 2"]);
    talk.then(made(2), &["ready 2"]);
    talk.then(ready(2), &["say accept 2"]);
    let abort = Body::Abort { lane: LaneId(2), reason: "test".into() };
    talk.then(Input::Message(abort), &["discard 2", "report Up"]);
}

#[test]
fn a_follower_whose_abort_was_lost_hears_it_from_the_lane_that_the_leader_names() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(begin(2, MBB), &["report Moving", "make 2"]);
    talk.then(made(2), &["ready 2"]);
    talk.then(ready(2), &["say accept 2"]);
    talk.then(Input::ChannelDown { reason: "test".into() }, &[]);
    talk.then(Input::ChannelUp, &["say accept 2"]);
    talk.then(commit(1), &["discard 2", "report Up"]);
}

#[test]
fn a_follower_that_lost_the_lane_that_was_decided_says_so() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(begin_rebuild(), &["report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(8)), &["make 2"]);
    talk.then(made(2), &["resolve 5", "ready 2"]);
    talk.then(ready(2), &["say accept 2"]);
    // It keeps the QP: the leader may have posted on it, and only the QP knows what was executed.
    talk.then(broken(2), &["say broken 2"]);
    talk.then(commit(2), &["use 2", "report Up", "report Rebuilding", "say broken 2"]);
    talk.then(begin(3, Purpose::Rebuild), &["stop"]);
}

#[test]
fn a_follower_never_makes_a_second_qp_for_one_number() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(begin(2, MBB), &["report Moving", "make 2"]);
    talk.then(made(2), &["ready 2"]);
    talk.then(broken(2), &["say refuse 2", "discard 2", "report Up"]);
    talk.then(begin(2, MBB), &["say refuse 2"]);
}

#[test]
fn a_leader_that_hears_that_a_lane_is_broken_before_it_decides_begins_another() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(broken(1), &["report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(3)), &["make 2"]);
    talk.then(made(2), &["say begin 2"]);
    talk.then(accept(2, Some(drained(9))), &["resolve 9", "ready 2"]);
    let broken = Body::Broken { lane: LaneId(2), reason: "test".into() };
    talk.then(Input::Message(broken), &["discard 2", "say abort 2"]);
    talk.at(talk.session.deadline_ns().unwrap(), &["make 3"]);
}

#[test]
fn a_lane_that_fails_while_another_is_made_is_told_until_it_is_heard() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(begin(2, MBB), &["report Moving", "make 2"]);
    talk.then(made(2), &["ready 2"]);
    talk.then(ready(2), &["say accept 2"]);
    talk.then(broken(1), &["say broken 1"]);
    talk.then(Input::ChannelUp, &["say broken 1", "say accept 2"]);
    let abort = Body::Abort { lane: LaneId(2), reason: "test".into() };
    talk.then(Input::Message(abort), &["discard 2", "report Rebuilding", "say broken 1"]);
}

#[test]
fn a_lane_that_breaks_in_a_hand_over_is_rebuilt() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(move_to(2, 1), &["report Moving", "make 2"]);
    talk.then(made(2), &["say begin 2"]);
    talk.then(accept(2, None), &["ready 2"]);
    talk.then(ready(2), &["say commit 2", "hand over to 2"]);
    talk.then(broken(1), &["answer rolled back", "report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(3)), &["make 3"]);
}

#[test]
fn a_hand_over_that_does_not_end_is_rebuilt() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(move_to(2, 1), &["report Moving", "make 2"]);
    talk.then(made(2), &["say begin 2"]);
    talk.then(accept(2, None), &["ready 2"]);
    talk.then(ready(2), &["say commit 2", "hand over to 2"]);
    talk.at(STEP, &["answer rolled back", "report Rebuilding", "stop"]);
}

#[test]
fn an_order_without_authority_is_refused_and_an_equal_one_is_not() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(move_to(2, 9), &["report Moving", "make 2"]);
    talk.then(move_to(3, 8), &["answer fenced 9"]);
    talk.then(
        Input::Failed { lane: LaneId(2), reason: "test".into() },
        &["discard 2", "say abort 2", "answer rolled back", "report Up"],
    );
    talk.then(move_to(2, 9), &["report Moving", "make 3"]);
    let close = Input::Close { reason: "test".into(), order: Some((Ticket(1), FencingToken(3))) };
    talk.then(close, &["answer fenced 9"]);
}

#[test]
fn orders_wait_for_the_change_before_them_and_too_many_are_refused() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(move_to(2, 1), &["report Moving", "make 2"]);
    for ticket in 1..=16 {
        talk.then(order_to(3, 1, ticket), &[]);
    }
    // By the name of the one that is refused: all have the same authority.
    let refused = talk.then(order_to(3, 1, 17), &["answer rolled back"]);
    assert_eq!(answered(&refused[0]), 17);
    let failed = |lane| Input::Failed { lane: LaneId(lane), reason: "test".into() };
    let next = ["report Up", "report Moving", "make 3"];
    let actions = talk.then(failed(2), &[&["discard 2", "say abort 2", "answer rolled back"][..], &next].concat());
    assert_eq!(answered(&actions[2]), 0);
    let end = talk.then(
        Input::Close { reason: "test".into(), order: Some((Ticket(18), FencingToken(1))) },
        &["say close", "answer done"],
    );
    assert_eq!(answered(&end[1]), 18);
}

#[test]
fn a_late_refusal_is_not_taken_for_that_of_the_order_that_is_asked_now() {
    let refusal = |ticket: Option<u64>| {
        let (ticket, token) = (ticket.map(Ticket), FencingToken(1));
        Input::Message(Body::MoveRefused { token, ticket, reason: "test".into(), highest: token })
    };
    let mut talk = Talk::up(Role::Follower);
    talk.then(order_to(2, 1, 1), &["say ask-move"]);
    let late = talk.at(3 * STEP, &["answer rolled back"]);
    assert_eq!(answered(&late[0]), 1);
    talk.then(order_to(3, 1, 2), &["say ask-move"]);
    talk.then(refusal(Some(1)), &[]);
    let actions = talk.then(refusal(Some(2)), &["answer rolled back"]);
    assert_eq!(answered(&actions[0]), 2);
    // A leader that does not say which is taken at its token.
    talk.then(order_to(2, 1, 3), &["say ask-move"]);
    let actions = talk.then(refusal(None), &["answer rolled back"]);
    assert_eq!(answered(&actions[0]), 3);
}

#[test]
fn a_follower_asks_the_leader_to_move() {
    let mut talk = Talk::up(Role::Follower);
    talk.then(move_to(2, 1), &["say ask-move"]);
    let (token, ticket) = (FencingToken(1), Some(Ticket(0)));
    let refused = Body::MoveRefused { token, ticket, reason: "test".into(), highest: token };
    talk.then(Input::Message(refused), &["answer rolled back"]);
    talk.then(move_to(2, 2), &["say ask-move"]);
    talk.at(3 * STEP, &["answer rolled back"]);
    let mut leader = Talk::up(Role::Leader);
    leader.session.set_path(path(1));
    let ask = Body::AskMove {
        path: path(2),
        strategy: Some(Strategy::MakeBeforeBreak),
        token: FencingToken(4),
        ticket: Some(Ticket(5)),
        reason: "test".into(),
    };
    let made = leader.then(Input::Message(ask), &["report Moving", "make 2"]);
    let Action::Make { path: Some(own), .. } = &made[1] else { panic!() };
    assert_eq!((own.port_num, own.dgid), (1, path(2).sgid));
    let failed = Input::Failed { lane: LaneId(2), reason: "test".into() };
    let refused = leader.then(failed, &["discard 2", "say abort 2", "say move-refused", "report Up"]);
    let Action::Send(Body::MoveRefused { ticket, .. }) = refused[2] else { panic!("{refused:?}") };
    assert_eq!(ticket, Some(Ticket(5)));
}

#[test]
fn new_keys_are_told_and_old_ones_withdrawn_when_taken_or_when_the_overlap_is_over() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(Input::Offer { offers: vec![], overlap_ns: 1000 }, &["say memory 1"]);
    talk.then(Input::Message(Body::MemoryTaken { round: 1 }), &["revoke 1"]);
    talk.then(Input::Offer { offers: vec![], overlap_ns: 1000 }, &["say memory 2"]);
    talk.at(999, &[]);
    talk.then(Input::Offer { offers: vec![], overlap_ns: 0 }, &["say memory 3"]);
    talk.at(999, &[]);
    talk.at(1000, &["revoke 3 late"]);
    talk.then(Input::Message(Body::Memory { round: 1, offers: vec![] }), &["take keys 1"]);
    talk.then(Input::KeysIdle { round: 1 }, &["say taken 1"]);
    // Said twice is heard once.
    talk.then(Input::Message(Body::Memory { round: 1, offers: vec![] }), &[]);
    talk.then(Input::ChannelUp, &["say commit 1", "say memory 3", "say taken 1"]);
}

#[test]
fn a_peer_that_was_started_anew_before_the_first_lane_is_told_the_keys_and_its_own_are_taken() {
    let memory = |round| Input::Message(Body::Memory { round, offers: vec![] });
    let mut leader = Talk::new(Role::Leader);
    leader.expect(&["report Connecting", "dial", "make 1"]);
    leader.then(Input::ChannelUp, &[]);
    leader.then(Input::Offer { offers: vec![], overlap_ns: 1000 }, &["say memory 1"]);
    leader.then(memory(3), &["take keys 3"]);
    leader.then(Input::KeysIdle { round: 3 }, &["say taken 3"]);
    leader.then(Input::Message(Body::MemoryTaken { round: 1 }), &["revoke 1"]);
    leader.then(Input::ChannelDown { reason: "its process died".into() }, &[]);
    // At the same address there is another process, which knows nothing and counts from 1.
    leader.then(Input::ChannelUp, &["say memory 1"]);
    leader.then(memory(1), &["take keys 1"]);
}

#[test]
fn both_sides_close() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(Input::Close { reason: "done".into(), order: None }, &["say close"]);
    talk.then(Input::Message(Body::Close { reason: "too".into() }), &["report Closed", "closed Closed"]);
    let mut talk = Talk::up(Role::Follower);
    let close = Input::Message(Body::Close { reason: "done".into() });
    talk.then(close, &["say close", "report Closed", "closed Closed"]);
    let mut talk = Talk::up(Role::Leader);
    talk.then(Input::Close { reason: "done".into(), order: None }, &["say close"]);
    talk.at(1_000_000_000, &["report Closed", "closed Closed"]);
}

#[test]
fn an_account_that_cannot_be_and_a_word_of_the_other_role_end_the_connection() {
    let mut talk = Talk::up(Role::Leader);
    talk.then(Input::Contradicted { reason: "test".into() }, &["say close", "report Closed", "closed Peer"]);
    let mut talk = Talk::up(Role::Leader);
    let error = crate::FabricError::environment("no QP is left");
    talk.then(Input::Hopeless { error }, &["say close", "report Closed", "closed Environment"]);
    let mut talk = Talk::up(Role::Leader);
    talk.then(commit(1), &["say close", "report Closed", "closed Peer"]);
}

#[test]
fn a_clock_that_jumps_makes_timers_early_or_late_and_nothing_worse() {
    let mut talk = Talk::up(Role::Leader);
    talk.session.handle_timer(u64::MAX);
    talk.session.handle(move_to(2, 1), u64::MAX);
    talk.session.handle_timer(0);
    talk.expect(&["report Moving", "make 2"]);
    assert_eq!(talk.session.deadline_ns(), Some(u64::MAX));
}

#[test]
fn messages_survive_the_wire_and_bad_ones_are_refused_with_their_fault() {
    let message = Message {
        version: VERSION,
        connection: crate::directory::ConnectionId { origin: "a".into(), serial: 1 },
        from: "a".into(),
        body: Body::Accept(Accept { lane: LaneId(1), qp: offer(5), drained: Some(drained(3)), abilities: VECTORS }),
    };
    let bytes = message.emit().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap(), message);
    for end in 0..bytes.len() {
        assert!(Message::parse(&bytes[..end]).is_err());
    }
    let text = String::from_utf8(bytes).unwrap();
    for (from, to, part) in [
        ("\"version\":1", "\"version\":2", "version 2"),
        ("\"mtu\":1024", "\"mtu\":1000", "mtu 1000"),
        ("\"psn\":5", "\"psn\":16777216", "24 bits"),
    ] {
        assert!(text.contains(from), "{text}");
        let error = Message::parse(text.replace(from, to).as_bytes()).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
}
