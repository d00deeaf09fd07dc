//! Changes that keep the QPs, one session at a time.

use super::super::*;
use super::dialogue::{Talk, accept, begin, broken, commit, drained, made, path, ready};
use crate::directory::FencingToken;
use crate::path::Path;
use scalefabric_verbs::Gid;

const STEP: u64 = 2_000_000_000;
const LANE: LaneId = LaneId(1);

fn change(path: Path, strategy: Option<Strategy>) -> Input {
    let change = Change { path, peer_path: None, strategy, token: FencingToken(1), reason: "test".into() };
    Input::Move { ticket: Ticket(1), change }
}

/// By another source port.
fn label(strategy: Option<Strategy>) -> Input {
    change(Path { flow_label: 9, ..path(1) }, strategy)
}

fn quiet() -> Input {
    Input::Quiet { lane: LANE }
}

fn vectored() -> Input {
    Input::Vectored { lane: LANE }
}

fn not_vectored() -> Input {
    Input::NotVectored { lane: LANE, reason: "test".into() }
}

fn says(body: Body) -> Input {
    Input::Message(body)
}

fn redirect(number: u64, peer_path: Option<Path>) -> Input {
    redirect_by(number, peer_path, false)
}

fn redirect_by(number: u64, peer_path: Option<Path>, alternate: bool) -> Input {
    let gid = std::net::Ipv6Addr::from(path(2).sgid.0);
    says(Body::Redirect(Redirect { number, lane: LANE, gid, peer_path, token: FencingToken(0), alternate }))
}

fn loaded() -> Input {
    Input::Loaded { lane: LANE }
}

/// Both sides load alternate paths, and have nothing else.
fn up_with_alternates(role: Role) -> Talk {
    let mut talk = Talk::up_with_vectors(role);
    let abilities = Abilities { drained_vector: false, alternate_path: true };
    (talk.session.setup.abilities, talk.session.peer_abilities) = (abilities, abilities);
    talk
}

#[test]
fn by_an_alternate_path_the_follower_loads_first_and_nobody_drains() {
    for strategy in [None, Some(Strategy::AlternatePath)] {
        let mut leader = up_with_alternates(Role::Leader);
        leader.then(change(path(2), strategy), &["report Moving", "say redirect 1"]);
        let actions = leader.then(peer_is_quiet(1), &["load 1"]);
        let Action::Load { path: Some(to), dgid: Some(dgid), .. } = &actions[0] else { panic!("{actions:?}") };
        assert_eq!((to.port_num, Gid(dgid.octets())), (2, path(7).sgid));
        leader.then(loaded(), &["migrate 1"]);
        leader.then(vectored(), &["say turn 1"]);
        leader.then(says(Body::Turned { number: 1 }), &["report Up", "answer done"]);
    }
    let mut follower = up_with_alternates(Role::Follower);
    let actions = follower.then(redirect_by(1, None, true), &["report Moving", "load 1"]);
    let Action::Load { path: None, dgid: Some(dgid), .. } = &actions[1] else { panic!("{actions:?}") };
    assert_eq!(Gid(dgid.octets()), path(2).sgid);
    follower.then(loaded(), &["say quiet 1"]);
    follower.then(says(Body::Turn { number: 1 }), &["migrate 1"]);
    follower.then(vectored(), &["say turned 1", "report Up"]);
    // The channel broke, and our word with it.
    follower.then(says(Body::Turn { number: 1 }), &["say turned 1"]);
}

#[test]
fn an_alternate_path_that_cannot_be_loaded_is_taken_back_while_nobody_is_armed() {
    // Here: the follower has loaded and hears of it; a second QP does it, unless the order names the strategy.
    let mut leader = up_with_alternates(Role::Leader);
    leader.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    leader.then(peer_is_quiet(1), &["load 1"]);
    leader.then(not_vectored(), &["say redirect-aborted 1", "unload 1", "make 2"]);
    let mut leader = up_with_alternates(Role::Leader);
    leader.then(change(path(2), Some(Strategy::AlternatePath)), &["report Moving", "say redirect 1"]);
    let refused = says(Body::RedirectRefused { number: 1, reason: "test".into() });
    leader.then(refused, &["answer rolled back", "report Up"]);
    // There.
    let mut follower = up_with_alternates(Role::Follower);
    follower.then(redirect_by(1, None, true), &["report Moving", "load 1"]);
    follower.then(not_vectored(), &["say redirect-refused 1", "unload 1", "report Up"]);
    let mut follower = up_with_alternates(Role::Follower);
    follower.then(redirect_by(1, None, true), &["report Moving", "load 1"]);
    follower.then(loaded(), &["say quiet 1"]);
    let aborted = says(Body::RedirectAborted { number: 1, reason: "test".into() });
    follower.then(aborted, &["unload 1", "report Up"]);
}

#[test]
fn a_redirection_says_that_its_lane_is_decided_if_the_word_of_that_was_lost() {
    let mut follower = up_with_alternates(Role::Follower);
    follower.then(begin(2, Purpose::Rebuild), &["report Rebuilding", "stop"]);
    follower.then(Input::Drained(drained(0)), &["make 2"]);
    follower.then(made(2), &["resolve 5", "ready 2"]);
    follower.then(ready(2), &["say accept 2"]);
    let gid = std::net::Ipv6Addr::from(path(2).sgid.0);
    let redirect =
        Redirect { number: 1, lane: LaneId(2), gid, peer_path: None, token: FencingToken(0), alternate: true };
    follower.then(says(Body::Redirect(redirect)), &["use 2", "report Up", "report Moving", "load 2"]);
}

#[test]
fn once_a_side_may_be_armed_only_a_rebuild_mends_what_goes_wrong() {
    let mut leader = up_with_alternates(Role::Leader);
    leader.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    leader.then(peer_is_quiet(1), &["load 1"]);
    leader.then(loaded(), &["migrate 1"]);
    // Nothing that the peer sends comes, so that it is never armed.
    leader.at(STEP, &["answer rolled back", "report Rebuilding", "stop"]);
    let mut follower = up_with_alternates(Role::Follower);
    follower.then(redirect_by(1, None, true), &["report Moving", "load 1"]);
    follower.then(loaded(), &["say quiet 1"]);
    follower.then(says(Body::Turn { number: 1 }), &["migrate 1"]);
    let broken = Input::Broken { lane: LANE, reason: "test".into() };
    follower.then(broken, &["report Rebuilding", "say broken 1"]);
}

fn peer_is_quiet(number: u64) -> Input {
    says(Body::Quiet { number, gid: std::net::Ipv6Addr::from(path(7).sgid.0) })
}

#[test]
fn a_source_port_is_changed_by_one_side_alone() {
    for role in [Role::Leader, Role::Follower] {
        let mut talk = Talk::up_with_vectors(role);
        talk.then(label(None), &["report Moving", "drain 1"]);
        let actions = talk.then(quiet(), &["vector 1"]);
        let Action::Vector { path: Some(path), dgid: None, .. } = &actions[0] else { panic!("{actions:?}") };
        assert_eq!(path.flow_label, 9);
        talk.then(vectored(), &["resume 1", "report Up", "answer done"]);
    }
}

#[test]
fn another_port_takes_both_sides_in_step() {
    let mut leader = Talk::up_with_vectors(Role::Leader);
    leader.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    leader.then(peer_is_quiet(1), &["drain 1"]);
    let actions = leader.then(quiet(), &["vector 1"]);
    let Action::Vector { dgid: Some(dgid), .. } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(Gid(dgid.octets()), path(7).sgid);
    leader.then(vectored(), &["say turn 1"]);
    leader.then(says(Body::Turned { number: 1 }), &["resume 1", "report Up", "answer done"]);

    let mut follower = Talk::up_with_vectors(Role::Follower);
    follower.then(redirect(1, None), &["report Moving", "drain 1"]);
    let said = follower.then(quiet(), &["say quiet 1"]);
    let Action::Send(Body::Quiet { gid, .. }) = &said[0] else { panic!("{said:?}") };
    assert_eq!(Gid(gid.octets()), path(1).sgid, "it stays where it is");
    let actions = follower.then(says(Body::Turn { number: 1 }), &["vector 1"]);
    let Action::Vector { path: None, dgid: Some(dgid), .. } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(Gid(dgid.octets()), path(2).sgid);
    follower.then(vectored(), &["say turned 1", "resume 1", "report Up"]);
    // The channel broke, and our word with it.
    follower.then(says(Body::Turn { number: 1 }), &["say turned 1"]);
}

#[test]
fn who_cannot_makes_a_second_qp_and_a_strategy_by_name_is_taken_or_refused() {
    // This side cannot.
    let mut talk = Talk::up(Role::Leader);
    talk.session.set_path(path(1));
    talk.then(label(None), &["report Moving", "make 2"]);
    let mut talk = Talk::up(Role::Leader);
    talk.session.set_path(path(1));
    talk.then(label(Some(Strategy::DrainedVector)), &["answer rolled back"]);
    // Both can.
    let mut talk = Talk::up_with_vectors(Role::Leader);
    talk.then(label(Some(Strategy::AlternatePath)), &["answer rolled back"]);
    talk.then(label(Some(Strategy::MakeBeforeBreak)), &["report Moving", "make 2"]);
}

#[test]
fn what_is_refused_before_anything_changed_is_done_by_a_second_qp_unless_the_order_names_the_strategy() {
    for (strategy, then) in
        [(None, "make 2"), (Some(Strategy::DrainedVector), "report Up"), (Some(Strategy::DrainedVector), "report Up")]
    {
        let mut talk = Talk::up_with_vectors(Role::Leader);
        talk.then(change(path(2), strategy), &["report Moving", "say redirect 1"]);
        let refused = says(Body::RedirectRefused { number: 1, reason: "test".into() });
        match strategy {
            None => talk.then(refused, &[then]),
            Some(_) => talk.then(refused, &["answer rolled back", then]),
        };
        let mut talk = Talk::up_with_vectors(Role::Leader);
        talk.then(change(path(2), strategy), &["report Moving", "say redirect 1"]);
        talk.then(peer_is_quiet(1), &["drain 1"]);
        match strategy {
            None => talk.then(not_vectored(), &["say redirect-aborted 1", "resume 1", then]),
            Some(_) => talk.then(not_vectored(), &["say redirect-aborted 1", "resume 1", "answer rolled back", then]),
        };
    }
    let mut follower = Talk::up_with_vectors(Role::Follower);
    follower.then(redirect(1, None), &["report Moving", "drain 1"]);
    follower.then(not_vectored(), &["say redirect-refused 1", "resume 1", "report Up"]);
}

#[test]
fn a_follower_goes_on_as_before_when_the_leader_takes_it_back_or_does_something_else() {
    let aborted = || says(Body::RedirectAborted { number: 1, reason: "test".into() });
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(redirect(1, None), &["report Moving", "drain 1"]);
    // Not drained yet: it cannot go back before it is.
    talk.then(aborted(), &[]);
    talk.then(quiet(), &["resume 1", "report Up"]);
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(redirect(1, None), &["report Moving", "drain 1"]);
    talk.then(quiet(), &["say quiet 1"]);
    talk.then(aborted(), &["resume 1", "report Up"]);
    // The word was lost with the channel, and on the next one the leader says which lane it uses, or begins anew.
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(redirect(1, None), &["report Moving", "drain 1"]);
    talk.then(quiet(), &["say quiet 1"]);
    talk.then(commit(1), &["resume 1", "report Up"]);
    talk.then(redirect(2, None), &["report Moving", "drain 1"]);
    talk.then(redirect(3, None), &["drain 1"]);
    talk.then(quiet(), &["say quiet 3"]);
    talk.then(redirect(3, None), &["say quiet 3"]);
    talk.then(redirect(2, None), &[]);
}

#[test]
fn a_leader_says_again_what_a_broken_channel_may_have_lost() {
    let mut talk = Talk::up_with_vectors(Role::Leader);
    talk.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    talk.then(Input::ChannelUp, &["say redirect 1"]);
    talk.then(peer_is_quiet(1), &["drain 1"]);
    talk.then(Input::ChannelUp, &[]);
    talk.then(quiet(), &["vector 1"]);
    talk.then(vectored(), &["say turn 1"]);
    talk.then(Input::ChannelUp, &["say turn 1"]);
}

#[test]
fn what_breaks_or_hangs_while_vectors_change_is_rebuilt_and_the_order_answered() {
    let mut talk = Talk::up_with_vectors(Role::Leader);
    talk.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    talk.then(broken(1), &["answer rolled back", "report Rebuilding", "stop"]);
    talk.then(Input::Drained(drained(0)), &["make 2"]);
    // After Turn the follower may or may not have changed: only a rebuild helps.
    let mut talk = Talk::up_with_vectors(Role::Leader);
    talk.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    talk.then(peer_is_quiet(1), &["drain 1"]);
    talk.then(quiet(), &["vector 1"]);
    talk.then(vectored(), &["say turn 1"]);
    talk.at(STEP, &["answer rolled back", "report Rebuilding", "stop"]);
    // A follower that does not answer has changed nothing.
    let mut talk = Talk::up_with_vectors(Role::Leader);
    talk.then(change(path(2), None), &["report Moving", "say redirect 1"]);
    talk.at(STEP, &["say redirect-aborted 1", "answer rolled back", "report Up"]);
    // A follower's own.
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(label(None), &["report Moving", "drain 1"]);
    talk.then(begin(2, Purpose::Rebuild), &["answer rolled back", "report Rebuilding", "stop"]);
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(redirect(1, None), &["report Moving", "drain 1"]);
    talk.at(STEP, &["report Rebuilding", "say broken 1"]);
}

#[test]
fn what_the_leader_begins_while_a_follower_changes_its_own_vector_waits_for_that() {
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(label(None), &["report Moving", "drain 1"]);
    talk.then(begin(2, Purpose::Move(Strategy::MakeBeforeBreak)), &[]);
    talk.then(quiet(), &["vector 1"]);
    talk.then(vectored(), &["resume 1", "report Up", "answer done", "report Moving", "make 2"]);
    // Taken back meanwhile, it is not taken up.
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(label(None), &["report Moving", "drain 1"]);
    talk.then(begin(2, Purpose::Move(Strategy::MakeBeforeBreak)), &[]);
    talk.then(says(Body::Abort { lane: LaneId(2), reason: "test".into() }), &[]);
    talk.then(redirect(1, None), &[]);
    talk.then(says(Body::RedirectAborted { number: 1, reason: "test".into() }), &[]);
    talk.then(quiet(), &["vector 1"]);
    talk.then(vectored(), &["resume 1", "report Up", "answer done"]);
}

#[test]
fn a_follower_that_asked_is_answered_when_what_it_asked_for_is_done_and_not_before() {
    let mut talk = Talk::up_with_vectors(Role::Follower);
    talk.then(change(path(3), None), &["say ask-move"]);
    // The leader does something of its own first.
    talk.then(redirect(1, None), &["report Moving", "drain 1"]);
    talk.then(quiet(), &["say quiet 1"]);
    talk.then(says(Body::Turn { number: 1 }), &["vector 1"]);
    talk.then(vectored(), &["say turned 1", "resume 1", "report Up"]);
    talk.then(redirect(2, Some(path(3))), &["report Moving", "drain 1"]);
    talk.then(quiet(), &["say quiet 2"]);
    talk.then(says(Body::Turn { number: 2 }), &["vector 1"]);
    talk.then(vectored(), &["say turned 2", "resume 1", "report Up", "answer done"]);
}

#[test]
fn a_leader_that_moved_meanwhile_stays_there_when_it_does_what_the_follower_asked() {
    let mut talk = Talk::up_with_vectors(Role::Leader);
    talk.then(change(path(2), Some(Strategy::MakeBeforeBreak)), &["report Moving", "make 2"]);
    let (token, ticket) = (FencingToken(4), Some(Ticket(1)));
    let ask = Body::AskMove { path: path(3), strategy: None, token, ticket, reason: "test".into() };
    talk.then(says(ask), &[]);
    talk.then(made(2), &["say begin 2"]);
    talk.then(accept(2, None), &["ready 2"]);
    talk.then(ready(2), &["say commit 2", "hand over to 2"]);
    talk.session.set_path(path(2));
    talk.then(Input::Idle { lane: LaneId(2), sent: 0 }, &["say switched 2 after 0", "switch to 2"]);
    talk.then(says(Body::Switched { lane: LaneId(2), sent: 0 }), &["expect 2 after 0"]);
    talk.then(Input::Received { lane: LaneId(2) }, &["say retired 2"]);
    let actions = talk.then(
        says(Body::Retired { lane: LaneId(2) }),
        &["retire for 2", "report Up", "answer done", "report Moving", "say redirect 1"],
    );
    let Some(Action::Send(Body::Redirect(redirect))) = actions.get(4) else { panic!("{actions:?}") };
    assert_eq!(Gid(redirect.gid.octets()), path(2).sgid);
    assert_eq!(redirect.peer_path, Some(path(3)));
}
