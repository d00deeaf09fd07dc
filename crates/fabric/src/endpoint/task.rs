//! The task of one connection, on the fabric's thread: it runs the session, carries out what the session wants on QPs, and keeps the channel to the peer.
//! Data flows beside it.

use super::alternate::Migrating;
use super::descriptor;
use super::lane::Lane;
use super::link::{Injected, Link, Told, Wanted, lock};
use super::loss::Losses;
use super::service::Shared;
use super::talk::{dial, receive};
use super::trigger::Home;
use super::vector::Then;
use super::window::Windows;
use crate::directory::OrderResult;
use crate::error::FabricError;
use crate::exchange::{Channel, Exchange};
use crate::path::Path;
use crate::session::{Action, Change, Input, LaneId, Session, Strategy, Ticket};
use scalefabric_verbs::{Gid, QpAttr};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

pub(super) type Dialling = Pin<Box<dyn Future<Output = Result<Box<dyn Channel>, FabricError>> + Send>>;

/// What is told when the connection is up for the first time, or will never be.
pub(crate) type Ready = Box<dyn FnOnce(Result<(), FabricError>) + Send>;

/// How the peer is reached again. The side that was connected to has none.
pub(crate) struct Dial {
    pub exchange: Arc<dyn Exchange>,
    pub address: String,
}

/// Who waits for the answer to an order.
pub(crate) enum Asker {
    /// A thread, or the directory.
    Caller(oneshot::Sender<OrderResult>),
    /// The way home of this connection.
    Home,
    /// A rule of this side, which looks again by itself.
    Nobody,
}

/// How often a side looks whether the peer's QP still answers while there is no channel.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The task.
pub(crate) struct Task {
    pub link: Arc<Link>,
    pub shared: Arc<Shared>,
    pub session: Session,
    pub dial: Option<Dial>,
    pub told: UnboundedReceiver<Told>,
    /// A GID of the peer, or one near to it, as long as it has not told its own.
    pub near: Option<Gid>,
    pub ready: Option<Ready>,
    pub(super) lanes: Vec<Lane>,
    pub(super) path: Option<Path>,
    pub(super) home: Home,
    pub(super) losses: Losses,
    pub(super) channel: Option<Box<dyn Channel>>,
    dialling: Option<Dialling>,
    pub(super) inputs: VecDeque<Input>,
    /// Who waits for the answer to which order.
    answers: BTreeMap<Ticket, Asker>,
    tickets: u64,
    /// Who waits until the keys from before a round of offers may go.
    revoked: Vec<(u64, oneshot::Sender<bool>)>,
    /// How many offers the session was given: the number of its newest round, once it has come to it.
    pub(super) offered: u64,
    pub(super) windows: Windows,
    pub(super) hand_over: Option<LaneId>,
    pub(super) draining: Option<(LaneId, Then)>,
    pub(super) migrating: Option<Migrating>,
    /// The peer waits to hear that its old keys are used no more.
    old_keys: bool,
    looks: u32,
    begun: Instant,
    pub(super) dialled: bool,
    /// The completion channels' descriptors, kept open by the link; none as long as nobody sleeps.
    events: Vec<AsyncFd<OwnedFd>>,
}

impl Task {
    pub fn new(
        link: Arc<Link>,
        shared: Arc<Shared>,
        session: Session,
        dial: Option<Dial>,
        told: UnboundedReceiver<Told>,
        near: Option<Gid>,
        ready: Ready,
    ) -> Self {
        Self {
            link,
            shared,
            session,
            dial,
            told,
            near,
            ready: Some(ready),
            lanes: Vec::new(),
            path: None,
            home: Home::default(),
            losses: Losses::default(),
            channel: None,
            dialling: None,
            inputs: VecDeque::new(),
            answers: BTreeMap::new(),
            tickets: 0,
            revoked: Vec::new(),
            offered: 0,
            windows: Windows::default(),
            hand_over: None,
            old_keys: false,
            draining: None,
            migrating: None,
            looks: 0,
            begun: Instant::now(),
            dialled: false,
            events: Vec::new(),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Runs until the connection is over.
    pub async fn run(mut self) {
        loop {
            self.act().await;
            if self.session.is_closed() {
                break;
            }
            self.pause().await;
        }
        self.shared.forget(&self.link.id);
    }

    /// Carries out what the session wants, until it wants nothing more.
    async fn act(&mut self) {
        loop {
            while let Some(action) = self.session.poll_action() {
                self.carry_out(action).await;
            }
            let now = self.now_ns();
            match self.inputs.pop_front() {
                Some(input) => self.session.handle(input, now),
                None => {
                    self.go_home(now);
                    if self.inputs.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for the next thing that happens.
    async fn pause(&mut self) {
        let now = self.now_ns();
        let home = self.home.deadline_ns().filter(|_| self.session.is_up());
        let until = self.session.deadline_ns().into_iter().chain(home).min();
        let until = until.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let changing = self.hand_over.is_some() || self.draining.is_some() || self.migrating.is_some();
        let watching = changing || self.old_keys || self.windows.is_binding();
        self.looks = if watching { self.looks + 1 } else { 0 };
        let look = match self.looks {
            0 => None,
            1..=200 => Some(Duration::ZERO),
            _ => Some(Duration::from_millis(1)),
        };
        // Who has nothing to send would never learn that its peer is gone.
        let lonely = self.channel.is_none().then_some(PROBE_EVERY);
        tokio::select! {
            biased;
            told = self.told.recv() => match told {
                Some(told) => self.hear(told),
                None => self.inputs.push_back(Input::Close { reason: "nobody holds it any more".into(), order: None }),
            },
            message = receive(&mut self.channel) => self.hear_message(message),
            dialled = dial(&mut self.dialling) => {
                self.dialling = None;
                match dialled {
                    Ok(channel) => {
                        if let Some(channel) = self.admit(channel, None) {
                            self.take_channel(channel);
                        }
                    }
                    Err(error) => self.inputs.push_back(Input::ChannelDown { reason: error.message }),
                }
            }
            () = readable(&self.events) => {}
            () = sleep(until) => {
                let now = self.now_ns();
                self.session.handle_timer(now);
            }
            () = sleep(look) => {}
            () = sleep(lonely) => {
                lock(&self.link.sender).probe();
                let _ = self.link.drive();
            }
        }
        if watching || !self.events.is_empty() {
            self.look();
        }
    }

    /// Drives the data path on behalf of those who sleep, and of a hand-over.
    pub(super) fn look(&mut self) {
        if !self.events.is_empty() {
            for channel in &self.link.channels {
                while let Ok(Some(_)) = channel.wait(Some(Duration::ZERO)) {}
            }
            let _ = self.link.drive();
            let _ = self.link.arm();
        }
        if let Err(error) = self.link.drive() {
            let lane = self.session.lane().unwrap_or(LaneId(0));
            self.inputs.push_back(Input::Broken { lane, reason: error.message });
        }
        self.old_keys = self.old_keys && lock(&self.link.sender).keys_idle_at.is_some();
        if let Some(lane) = self.hand_over {
            let sender = lock(&self.link.sender);
            if sender.is_idle() {
                self.hand_over = None;
                self.inputs.push_back(Input::Idle { lane, sent: sender.executed });
            }
        }
        self.look_at_queue();
        self.look_at_migration();
        self.look_at_windows();
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Input(input) => self.inputs.push_back(input),
            Told::PortDown(at) => self.hear_port_down(at),
            Told::PortUp => self.leave_dead_port(),
            Told::PortReturned(at) => {
                let now = self.now_ns();
                let device = &self.link.hubs.all()[at.domain].device;
                self.home.port_returned(device, at.port_num, now);
            }
            Told::Losses { at, rose } => self.hear_losses(at, rose),
            Told::Drained => {}
            Told::Ordered(wanted, answer) => {
                if matches!(wanted, Wanted::Move(_)) {
                    self.home.forget();
                }
                self.order(wanted, Asker::Caller(answer));
            }
            Told::Offer(input, revoked) => {
                self.give_offer(input, [revoked]);
            }
            Told::Bind(asked) => self.bind_windows(asked),
            Told::Channel(channel, first, from) => {
                if let Some(channel) = self.admit(channel, Some(&from)) {
                    self.take_channel(channel);
                    self.inputs.push_back(Input::Message(first));
                }
            }
            Told::Watch => {
                if self.events.is_empty() {
                    let channels = self.link.channels.iter();
                    self.events = channels.filter_map(|channel| descriptor::watch(channel.fd())).collect();
                    self.look();
                }
            }
            Told::Inject(Injected::ChannelLost) => {
                if self.channel.is_some() {
                    self.lose_channel(FabricError::unreachable("the channel was broken on purpose"));
                }
            }
            Told::Inject(Injected::QpError) => {
                let present = self.session.lane();
                if let Some(lane) = self.lanes.iter().find(|lane| Some(lane.id) == present) {
                    let (attr, mask) = QpAttr::error();
                    let _ = lane.qp.modify(&attr, mask);
                }
            }
            Told::QpFailed { domain, qp_num, reason } => {
                let is_it = |lane: &&Lane| lane.domain == domain && lane.qp.qp_num().get() == qp_num;
                if let Some(lane) = self.lanes.iter().find(is_it) {
                    self.inputs.push_back(Input::Broken { lane: lane.id, reason: reason.into() });
                }
            }
        }
    }

    /// Gives the session an [`Input::Offer`] and returns the number of its round. Until the session has come to it, it may still say of the round before that the
    /// keys from before that one may go, so who waits here is known by his round.
    pub(super) fn give_offer(&mut self, input: Input, waiting: impl IntoIterator<Item = oneshot::Sender<bool>>) -> u64 {
        self.offered += 1;
        let round = self.offered;
        self.revoked.extend(waiting.into_iter().map(|revoked| (round, revoked)));
        self.inputs.push_back(input);
        round
    }

    /// Gives the session an order, which `asker` waits for.
    pub(super) fn order(&mut self, wanted: Wanted, asker: Asker) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.answers.insert(ticket, asker);
        self.inputs.push_back(match wanted {
            Wanted::Move(change) => Input::Move { ticket, change: self.with_peer(change) },
            Wanted::Close { reason, token } => Input::Close { reason, order: Some((ticket, token)) },
        });
    }

    /// A move to another address of the peer moves the peer as well: it is told which address it should be reached by.
    fn with_peer(&self, mut change: Change) -> Change {
        let (wanted, present) = (change.path.dgid, self.path.as_ref().map(|path| path.dgid));
        if change.peer_path.is_none() && wanted != Gid::ZERO && present.is_some_and(|present| present != wanted) {
            // The peer looks up where that is when it makes a QP.
            change.strategy.get_or_insert(Strategy::MakeBeforeBreak);
            change.peer_path = Some(Path {
                device: String::new(),
                port_num: 0,
                sgid: wanted,
                dgid: change.path.sgid,
                flow_label: 0,
                dscp: change.path.dscp,
            });
        }
        change
    }

    async fn carry_out(&mut self, action: Action) {
        match action {
            Action::Dial => {
                if let Some(dial) = &self.dial {
                    let (exchange, address) = (dial.exchange.clone(), dial.address.clone());
                    self.dialling = Some(Box::pin(async move { exchange.dial(&address).await }));
                }
            }
            Action::Send(body) => self.say(body).await,
            Action::Make { lane, path, peer } => self.make(lane, path, peer.map(|peer| Gid(peer.gid.octets()))),
            Action::Ready { lane, peer } => {
                let ready = match self.lanes.iter_mut().find(|other| other.id == lane) {
                    Some(lane) => lane.ready(&self.link, &peer),
                    None => Err(FabricError::environment("the QP is gone")),
                };
                self.near = Some(Gid(peer.gid.octets()));
                self.inputs.push_back(match ready {
                    Ok(()) => Input::Ready { lane },
                    Err(error) => Input::Failed { lane, reason: error.message },
                });
            }
            Action::Stop => match self.stop().await {
                Ok(drained) => self.inputs.push_back(Input::Drained(drained)),
                Err(error) => {
                    let reason = error.message;
                    self.inputs.push_back(Input::Close { reason, order: None });
                }
            },
            Action::Resolve(peer) => self.resolve(&peer),
            Action::Use { lane } => {
                // A first QP that took two attempts is no rebuild: nothing was there before.
                self.link.statistics.rebuilds.fetch_add(u64::from(self.path.is_some()), Ordering::Relaxed);
                // Who was away is at home now, or still away.
                let before = self.path.clone().filter(|_| !self.home.is_away());
                self.take_lane(lane);
                // A rebuild goes to another port only where its own was down, told or not.
                if let (Some(before), Some(now)) = (before, &self.path)
                    && (&before.device, before.port_num) != (&now.device, now.port_num)
                {
                    let now = self.now_ns();
                    self.home.leave(&before, now);
                }
                self.leave_dead_port();
                let any = lock(&self.link.receiver).open(lane);
                if any {
                    self.link.wake_all();
                }
            }
            Action::HandOver { lane } => {
                lock(&self.link.sender).hold();
                self.hand_over = Some(lane);
                self.look();
            }
            Action::Switch { lane } => {
                self.take_lane(lane);
                self.leave_dead_port();
            }
            Action::Drain { lane, path } => self.drain(lane, path.as_ref()),
            Action::Vector { lane, path, dgid } => self.vector(lane, path, dgid.map(|gid| Gid(gid.octets()))),
            Action::Load { lane, path, dgid } => self.load(lane, path, dgid.map(|gid| Gid(gid.octets()))),
            Action::Migrate { lane } => self.migrate(lane),
            Action::Unload { lane } => self.unload(lane),
            Action::Resume { lane } => {
                self.resume(lane);
                self.leave_dead_port();
            }
            Action::Expect { lane, after } => {
                let mut receiver = lock(&self.link.receiver);
                match receiver.expect(lane, after) {
                    Ok(found) => {
                        self.link.after_receive(&mut receiver, &found);
                        drop(receiver);
                        self.link.bell.ring();
                    }
                    Err(error) => self.inputs.push_back(Input::Contradicted { reason: error.message }),
                }
            }
            Action::Discard { lane } => self.destroy(|other| other == lane),
            Action::Retire { lane } => {
                self.link.statistics.moves.fetch_add(1, Ordering::Relaxed);
                self.destroy(|other| other < lane);
            }
            Action::TakeKeys { round, offers } => {
                let mut sender = lock(&self.link.sender);
                sender.take_offers(round, offers);
                match sender.keys_are_idle() {
                    Some(round) => self.inputs.push_back(Input::KeysIdle { round }),
                    // The last ones may have no signal, and nobody may poll: the peer must not wait for that.
                    None => {
                        sender.settle();
                        self.old_keys = true;
                    }
                }
                sender.pump();
                drop(sender);
                self.link.wake_all();
            }
            Action::Revoke { round, taken } => {
                self.windows.revoke(round);
                for (_, revoked) in self.revoked.extract_if(.., |(asked, _)| *asked <= round) {
                    let _ = revoked.send(taken);
                }
            }
            Action::Report(state) => self.report(state),
            Action::Answer { ticket, result } => self.answer(ticket, result),
            Action::Closed(error) => self.close(error).await,
        }
    }

    fn answer(&mut self, ticket: Ticket, result: OrderResult) {
        if matches!(result, OrderResult::RolledBack { .. }) {
            self.link.statistics.moves_rolled_back.fetch_add(1, Ordering::Relaxed);
        }
        match self.answers.remove(&ticket) {
            Some(Asker::Caller(answer)) => drop(answer.send(result)),
            Some(Asker::Home) if matches!(result, OrderResult::Done { .. }) => self.home.forget(),
            Some(Asker::Home) => self.home.refused(self.begun.elapsed().as_nanos() as u64),
            Some(Asker::Nobody) | None => {}
        }
    }

    /// The end: what is outstanding is told as what it is.
    async fn close(&mut self, error: FabricError) {
        let _ = self.stop().await;
        // The last words, if there are any, are on their way: dropping the channel says goodbye after them.
        self.channel = None;
        lock(&self.link.sender).end(error.clone());
        for (_, answer) in std::mem::take(&mut self.answers) {
            if let Asker::Caller(answer) = answer {
                let _ = answer.send(OrderResult::RolledBack { reason: error.message.clone() });
            }
        }
        self.revoked.clear();
        self.windows.end();
        if let Some(ready) = self.ready.take() {
            ready(Err(error));
        }
        self.link.wake_all();
        self.link.run_handlers();
    }
}

async fn readable(events: &[AsyncFd<OwnedFd>]) {
    std::future::poll_fn(|cx| {
        for events in events {
            if let Poll::Ready(Ok(mut guard)) = events.poll_read_ready(cx) {
                guard.clear_ready();
                return Poll::Ready(());
            }
        }
        Poll::Pending
    })
    .await;
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(Duration::ZERO) => tokio::task::yield_now().await,
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}
