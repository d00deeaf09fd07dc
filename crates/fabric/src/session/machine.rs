//! The session itself: its state, how inputs find their step, timers. The steps are in `lead`, `follow`, `hand_over`, `turn` and `keys`, orders in `order`.

use super::act::{Action, Change, Input, Ticket};
use super::hand_over::HandOver;
use super::keys::Keys;
use super::message::{Abilities, Accept, Begin, Body, Drained, LaneId, Purpose};
use super::order::Giver;
use super::patience::{Backoff, Patience};
use super::turn::Turning;
use crate::directory::{ConnectionState, FencingToken};
use crate::error::FabricError;
use crate::path::Path;
use std::collections::VecDeque;

/// Which side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that connected: it decides.
    Leader,
    /// The one that was connected to: it asks.
    Follower,
}

/// What a session is made with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Which side.
    pub role: Role,
    /// Service that is wanted or offered.
    pub service: String,
    /// Tenant.
    pub tenant: String,
    /// Leader: the path of the first lane; `None`: one that reaches the peer.
    pub path: Option<Path>,
    /// Timeouts and back-off.
    pub patience: Patience,
    /// What this side's QPs can do.
    pub abilities: Abilities,
    /// Seed of the back-off.
    pub seed: u64,
}

/// What a lane is being made for, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub lane: LaneId,
    pub purpose: Purpose,
    /// Leader, in a move: the order, and who gave it.
    pub order: Option<(Change, Giver)>,
}

/// Follower: an order that the leader was asked to carry out.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub ticket: Ticket,
    pub change: Change,
    /// Until when it waits.
    pub until: u64,
}

/// Where the session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Leader: nothing begun. Follower: no Begin has come.
    New,
    /// Leader, rebuild: waits until its QPs are drained.
    Stopping,
    /// Leader: waits for its QP.
    Making(Attempt),
    /// Leader: has said Begin, or will when there is a channel; waits for Accept.
    Asking(Attempt, Box<Begin>),
    /// Leader: has Accept; waits until its QP is ready.
    Readying(Attempt, Box<Begin>),
    /// Leader: waits before the next try.
    Pausing(Purpose),
    /// Follower, rebuild: waits until its QPs are drained.
    FollowStopping(Box<Begin>),
    /// Follower: waits for its QP.
    FollowMaking(Box<Begin>),
    /// Follower: waits until its QP is ready.
    FollowReadying(Box<Begin>, Box<Accept>),
    /// Follower: has said Accept; waits for Commit.
    Accepted(Box<Begin>, Box<Accept>),
    /// Follower: its lane failed; waits for the leader to begin.
    Asked {
        /// The lane that failed.
        lane: LaneId,
        /// Why.
        reason: String,
    },
    /// Data flows.
    Up,
    /// A move: both lanes are there.
    HandingOver(HandOver),
    /// QPs take new address vectors.
    Turning(Box<Turning>),
    /// Has said Close.
    Closing {
        /// Why.
        reason: String,
    },
    /// Over.
    Closed,
}

/// The state machine of one connection.
#[derive(Clone, Debug)]
pub struct Session {
    pub(super) setup: Setup,
    pub(super) backoff: Backoff,
    redial: Backoff,
    pub(super) phase: Phase,
    /// The lane that is the connection's: committed.
    pub(super) lane: Option<LaneId>,
    /// Leader: the last number given. Follower: the last that was begun.
    pub(super) last_lane: LaneId,
    pub(super) channel: bool,
    redial_at: Option<u64>,
    /// End of the present step.
    pub(super) step_at: Option<u64>,
    /// End of all patience: connecting, or rebuilding.
    pub(super) give_up_at: Option<u64>,
    /// What this side had received when it was last stopped; forgotten when a lane is committed.
    pub(super) drained: Option<Drained>,
    pub(super) highest: FencingToken,
    pub(super) waiting: VecDeque<(Change, Giver)>,
    /// Follower: a move that was asked of the leader.
    pub(super) asked_move: Option<Asked>,
    /// Follower: the lane in use failed while another was being made; the leader may not have heard it.
    pub(super) hurt: Option<(LaneId, String)>,
    /// The last lane whose hand-over has ended here.
    pub(super) retired_lane: Option<LaneId>,
    pub(super) peer_abilities: Abilities,
    /// Leader: the last redirection begun. Follower: the last that was taken up.
    pub(super) redirections: u64,
    /// Follower: the last redirection that was carried out here.
    pub(super) turned: u64,
    /// Follower: what the leader began while this side changed its own vector.
    pub(super) deferred: Option<Body>,
    pub(super) keys: Keys,
    pub(super) generation: u64,
    pub(super) trouble: String,
    state: Option<ConnectionState>,
    out: VecDeque<Action>,
}

impl Session {
    /// A new session. The leader's begins at once.
    pub fn new(setup: Setup, now_ns: u64) -> Self {
        let seed = setup.seed;
        let mut session = Self {
            setup,
            backoff: Backoff::new(seed),
            redial: Backoff::new(!seed),
            phase: Phase::New,
            lane: None,
            last_lane: LaneId(0),
            channel: false,
            redial_at: None,
            step_at: None,
            give_up_at: None,
            drained: None,
            highest: FencingToken(0),
            waiting: VecDeque::new(),
            asked_move: None,
            hurt: None,
            retired_lane: None,
            peer_abilities: Abilities::default(),
            redirections: 0,
            turned: 0,
            deferred: None,
            keys: Keys::default(),
            generation: 0,
            trouble: "the peer has not answered".into(),
            state: None,
            out: VecDeque::new(),
        };
        session.give_up_at = Some(now_ns.saturating_add(session.setup.patience.connect_ns));
        session.report(ConnectionState::Connecting);
        if session.setup.role == Role::Leader {
            session.push(Action::Dial);
            session.make(Purpose::Connect, now_ns);
        }
        session
    }

    /// Tells what happened at `now_ns`. Times may stand still or jump; they only make timers early or late.
    pub fn handle(&mut self, input: Input, now_ns: u64) {
        if self.phase == Phase::Closed {
            return;
        }
        match input {
            Input::Message(body) => self.handle_message(body, now_ns),
            Input::ChannelUp => self.handle_channel_up(now_ns),
            Input::ChannelDown { reason } => self.handle_channel_down(reason, now_ns),
            Input::Drained(drained) => self.handle_drained(drained, now_ns),
            Input::Made { lane, qp } => match self.setup.role {
                Role::Leader => self.lead_made(lane, qp, now_ns),
                Role::Follower => self.follow_made(lane, qp, now_ns),
            },
            Input::Ready { lane } => match self.setup.role {
                Role::Leader => self.lead_ready(lane, now_ns),
                Role::Follower => self.follow_ready(lane),
            },
            Input::Quiet { lane } | Input::Loaded { lane } => self.handle_quiet(lane, now_ns),
            Input::Vectored { lane } => self.handle_vectored(lane, now_ns),
            Input::NotVectored { lane, reason } => self.handle_not_vectored(lane, reason, now_ns),
            Input::Failed { lane, reason } => match self.setup.role {
                Role::Leader => self.lead_failed(lane, reason, now_ns),
                Role::Follower => self.follow_failed(lane, reason, now_ns),
            },
            Input::Hopeless { error } => {
                self.send(Body::Close { reason: error.message.clone() });
                self.end(error);
            }
            Input::Broken { lane, reason } => self.handle_broken(lane, reason, now_ns),
            Input::Contradicted { reason } => {
                let error = FabricError::peer(format!("the peer's account of what it received cannot be: {reason}"));
                self.send(Body::Close { reason: error.message.clone() });
                self.end(error);
            }
            Input::Idle { lane, sent } => self.handle_idle(lane, sent, now_ns),
            Input::Received { lane } => self.handle_received(lane, now_ns),
            Input::KeysIdle { round } => self.handle_keys_idle(round),
            Input::Offer { offers, overlap_ns } => self.handle_offer(offers, overlap_ns, now_ns),
            Input::Move { ticket, change } => self.handle_move(ticket, change, now_ns),
            Input::Rebuild { reason } => {
                if let Some(lane) = self.newest_lane() {
                    self.handle_broken(lane, reason, now_ns);
                }
            }
            Input::Close { reason, order } => self.handle_close(reason, order, now_ns),
        }
    }

    /// Runs what is due.
    pub fn handle_timer(&mut self, now_ns: u64) {
        let due = |at: Option<u64>| at.is_some_and(|at| at <= now_ns);
        if due(self.redial_at) {
            self.redial_at = None;
            self.push(Action::Dial);
        }
        if due(self.keys.revoke_at) {
            self.revoke_keys(false);
        }
        if let Some(asked) = self.asked_move.take_if(|asked| asked.until <= now_ns) {
            self.roll_back(asked.ticket, "the leading side did not answer in time".into());
            self.next_order(now_ns);
        }
        if due(self.give_up_at) && !matches!(self.phase, Phase::Closed | Phase::Closing { .. }) {
            let what = if self.lane.is_none() { "connect" } else { "rebuild the connection" };
            let error = FabricError::unreachable(format!("gave up to {what}: {}", self.trouble));
            self.send(Body::Close { reason: error.message.clone() });
            self.end(error);
            return;
        }
        if due(self.step_at) {
            self.step_at = None;
            self.handle_step_timeout(now_ns);
        }
    }

    /// What to do next. Ask until there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.pop_front()
    }

    /// When [`Session::handle_timer`] has something to do.
    pub fn deadline_ns(&self) -> Option<u64> {
        let asked = self.asked_move.as_ref().map(|asked| asked.until);
        [self.redial_at, self.step_at, self.give_up_at, self.keys.revoke_at, asked].into_iter().flatten().min()
    }

    /// The lane that is the connection's.
    pub fn lane(&self) -> Option<LaneId> {
        self.lane
    }

    /// Which side it is.
    pub fn role(&self) -> Role {
        self.setup.role
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether data flows and nothing is being changed.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Counts every report of a new state.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The highest authority seen.
    pub fn highest_token(&self) -> FencingToken {
        self.highest
    }

    pub(super) fn handle_message(&mut self, body: Body, now_ns: u64) {
        let leader = self.setup.role == Role::Leader;
        match body {
            Body::Begin(begin) if !leader => self.follow_begin(begin, now_ns),
            Body::Commit { lane } if !leader => self.follow_commit(lane, now_ns),
            Body::Abort { lane, reason } if !leader => self.follow_abort(lane, reason, now_ns),
            Body::MoveRefused { token, ticket, reason, highest } if !leader => {
                self.highest = self.highest.max(highest);
                self.follow_move_refused(ticket, token, reason, now_ns);
            }
            Body::Redirect(redirect) if !leader => self.follow_redirect(redirect, now_ns),
            Body::Turn { number } if !leader => self.follow_turn(number, now_ns),
            Body::RedirectAborted { number, .. } if !leader => self.follow_redirect_aborted(number, now_ns),
            Body::Quiet { number, gid } if leader => self.lead_quiet(number, gid, now_ns),
            Body::Turned { number } if leader => self.lead_turned(number, now_ns),
            Body::RedirectRefused { number, reason } if leader => self.lead_redirect_refused(number, reason, now_ns),
            Body::Accept(accept) if leader => self.lead_accept(accept, now_ns),
            Body::Refuse { lane, reason, for_good } if leader => self.lead_refuse(lane, reason, for_good, now_ns),
            Body::Broken { lane, reason } if leader => {
                if self.is_live(lane) || self.is_attempt(lane) {
                    self.handle_broken(lane, format!("the peer says: {reason}"), now_ns);
                }
            }
            Body::AskMove { path, strategy, token, ticket, reason } if leader => {
                self.lead_asked_move(path, strategy, (ticket, token), reason, now_ns);
            }
            Body::Switched { lane, sent } => self.handle_switched(lane, sent),
            Body::Retired { lane } => self.handle_retired(lane, now_ns),
            Body::Memory { round, offers } => self.handle_memory(round, offers),
            Body::MemoryTaken { round } => self.handle_memory_taken(round),
            Body::Close { reason } => {
                if !matches!(self.phase, Phase::Closing { .. }) {
                    self.send(Body::Close { reason: "closed by the other side".into() });
                }
                let error = FabricError::new(crate::Fault::Closed, format!("the peer closed the connection: {reason}"));
                self.end(error);
            }
            other => {
                let error = FabricError::peer(format!(
                    "the peer said what only the other role may say ({}): both sides think that they {}",
                    name(&other),
                    if leader { "lead" } else { "follow" }
                ));
                self.send(Body::Close { reason: error.message.clone() });
                self.end(error);
            }
        }
    }

    fn handle_channel_up(&mut self, now_ns: u64) {
        self.channel = true;
        self.redial_at = None;
        self.redial.reset();
        if self.lane.is_none() {
            // Until a lane is decided another process may be found at the same address than the one before.
            self.keys.forget_peer();
        }
        match self.setup.role {
            Role::Leader => self.lead_resume(now_ns),
            Role::Follower => self.follow_resume(now_ns),
        }
        self.repeat_keys();
    }

    fn handle_channel_down(&mut self, reason: String, now_ns: u64) {
        self.channel = false;
        // It is said again on the next one.
        self.deferred = None;
        if let Phase::Closing { reason } = &self.phase {
            let error = FabricError::new(crate::Fault::Closed, format!("closed: {reason}"));
            self.end(error);
            return;
        }
        if self.setup.role == Role::Leader && self.redial_at.is_none() {
            self.redial_at = Some(now_ns.saturating_add(self.redial.pause_ns(&self.setup.patience)));
        }
        if self.lane.is_none() || self.give_up_at.is_some() {
            self.trouble = reason;
        }
    }

    fn handle_drained(&mut self, drained: Drained, now_ns: u64) {
        let all = self.drained.get_or_insert_default();
        all.received = drained.received;
        all.executed.extend(drained.executed);
        match self.setup.role {
            Role::Leader => self.lead_drained(now_ns),
            Role::Follower => self.follow_drained(now_ns),
        }
    }

    pub(super) fn handle_broken(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        match self.setup.role {
            Role::Leader => self.lead_broken(lane, reason, now_ns),
            Role::Follower => self.follow_broken(lane, reason, now_ns),
        }
    }

    fn handle_step_timeout(&mut self, now_ns: u64) {
        match &self.phase {
            Phase::Closing { reason } => {
                let error = FabricError::new(crate::Fault::Closed, format!("closed: {reason}"));
                self.end(error);
            }
            Phase::HandingOver(over) => {
                let lane = over.lane;
                self.handle_broken(lane, "the hand-over to the new path did not end in time".into(), now_ns);
            }
            Phase::Turning(_) => self.turn_timeout(now_ns),
            Phase::Up => self.proceed(now_ns),
            _ => match self.setup.role {
                Role::Leader => self.lead_timeout(now_ns),
                Role::Follower => self.follow_timeout(now_ns),
            },
        }
    }

    /// Data flows: the change has ended, and the next may begin.
    pub(super) fn up(&mut self, now_ns: u64) {
        self.rest();
        self.proceed(now_ns);
    }

    /// Data flows: the change has ended.
    pub(super) fn rest(&mut self) {
        self.phase = Phase::Up;
        self.step_at = None;
        self.give_up_at = None;
        self.drained = None;
        self.hurt = None;
        self.backoff.reset();
        self.report(ConnectionState::Up);
    }

    /// It is over, for this reason.
    pub(super) fn end(&mut self, error: FabricError) {
        let waiting = std::mem::take(&mut self.waiting);
        let givers = waiting.into_iter().map(|(_, giver)| giver).chain(self.move_under_way());
        let own = givers.filter_map(|giver| match giver {
            Giver::Here(ticket) => Some(ticket),
            Giver::Peer { .. } => None,
        });
        let asked = self.asked_move.take().map(|asked| asked.ticket);
        for ticket in own.chain(asked).collect::<Vec<_>>() {
            self.roll_back(ticket, "the connection was closed".into());
        }
        self.phase = Phase::Closed;
        (self.step_at, self.give_up_at, self.redial_at, self.keys.revoke_at) = (None, None, None, None);
        self.report(ConnectionState::Closed);
        self.push(Action::Closed(error));
    }

    pub(super) fn step(&mut self, now_ns: u64) {
        self.step_at = Some(now_ns.saturating_add(self.setup.patience.step_ns));
    }

    pub(super) fn begin_to_give_up(&mut self, now_ns: u64) {
        if self.give_up_at.is_none() && self.setup.patience.give_up_ns != u64::MAX {
            self.give_up_at = Some(now_ns.saturating_add(self.setup.patience.give_up_ns));
        }
    }

    pub(super) fn report(&mut self, state: ConnectionState) {
        if self.state != Some(state) {
            self.state = Some(state);
            self.generation += 1;
            self.push(Action::Report(state));
        }
    }

    pub(super) fn send(&mut self, body: Body) {
        if self.channel {
            self.push(Action::Send(body));
        }
    }

    pub(super) fn push(&mut self, action: Action) {
        self.out.push_back(action);
    }

    /// The newest lane on which anything may have been posted.
    pub(super) fn newest_lane(&self) -> Option<LaneId> {
        match &self.phase {
            Phase::HandingOver(over) => Some(over.lane),
            _ => self.lane,
        }
    }

    /// Whether a lane is being made.
    fn is_attempt(&self, of: LaneId) -> bool {
        matches!(&self.phase, Phase::Asking(attempt, _) | Phase::Readying(attempt, _) if attempt.lane == of)
    }

    /// Whether a lane still carries something: the one in use, and in a hand-over the one before.
    pub(super) fn is_live(&self, lane: LaneId) -> bool {
        match &self.phase {
            Phase::HandingOver(over) => lane == over.lane || Some(lane) == over.before,
            _ => Some(lane) == self.lane,
        }
    }
}

fn name(body: &Body) -> &'static str {
    match body {
        Body::Begin(_) => "begin",
        Body::Accept(_) => "accept",
        Body::Commit { .. } => "commit",
        Body::Abort { .. } => "abort",
        Body::Refuse { .. } => "refuse",
        Body::Broken { .. } => "broken",
        Body::AskMove { .. } => "ask-move",
        Body::MoveRefused { .. } => "move-refused",
        Body::Switched { .. } => "switched",
        Body::Retired { .. } => "retired",
        Body::Redirect(_) => "redirect",
        Body::Quiet { .. } => "quiet",
        Body::RedirectRefused { .. } => "redirect-refused",
        Body::Turn { .. } => "turn",
        Body::Turned { .. } => "turned",
        Body::RedirectAborted { .. } => "redirect-aborted",
        Body::Memory { .. } => "memory",
        Body::MemoryTaken { .. } => "memory-taken",
        Body::Close { .. } => "close",
    }
}
