//! A connection's data path as its handles, its futures and its task share it: a sending and a receiving half, each with its own lock, and who is to be
//! woken. It is never held up by the task: what the task must know is told over a queue.

use super::acquaintance::Acquaintance;
use super::completion::Completion;
use super::config::Config;
use super::connection::Statistics;
use super::dock::Dock;
use super::hub::{Hubs, PortAt};
use super::lend::Loan;
use super::receive::{Arrival, ReceivePool, Receiver};
use super::received::Received;
use super::send::Sender;
use super::traffic::Traffic;
use super::wait::Bell;
use super::window::Asked;
use crate::directory::{ConnectionId, ConnectionRecord, FencingToken, OrderResult};
use crate::error::{FabricError, Fault};
use crate::exchange::Channel;
use crate::session::{Body, Change, Input, MemoryOffer};
use scalefabric_verbs::{CompletionChannel, PKey};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// What a connection's task is told.
pub(crate) enum Told {
    /// For the session.
    Input(Input),
    /// An order, and who waits for its answer.
    Ordered(Wanted, oneshot::Sender<OrderResult>),
    /// The peer has dialled, or somebody in its name; this is what was said first, and by whom.
    Channel(Box<dyn Channel>, Body, String),
    /// Somebody waits for events: watch the completion channel.
    Watch,
    /// A fault is to be made.
    Inject(Injected),
    /// The device tells that a QP is in error.
    QpFailed { domain: usize, qp_num: u32, reason: &'static str },
    /// The device tells that a QP in SQD is drained.
    Drained,
    /// A port went down.
    PortDown(PortAt),
    /// A port has come up.
    PortUp,
    /// A port's QPs have found losses since the last look (`rose`), or none.
    Losses { at: PortAt, rose: bool },
    /// A port has been up again for long enough.
    PortReturned(PortAt),
    /// Somebody wants to know when keys of before may be withdrawn, and whether the peer said so.
    Offer(Input, oneshot::Sender<bool>),
    /// Windows are to be bound to what is lent, anew if they are already; and who waits until the keys of before may go.
    Bind(Option<Asked>),
}

/// What an order wants of a connection.
pub(crate) enum Wanted {
    /// That it takes another path.
    Move(Change),
    /// That it ends.
    Close { reason: String, token: FencingToken },
}

/// A fault that is made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The QP in use goes to ERR, and nobody is told.
    QpError,
    /// The channel to the peer breaks.
    ChannelLost,
}

type Handler<T> = Mutex<Option<Box<dyn FnMut(T) + Send>>>;

/// Shared state of a connection.
pub(crate) struct Link {
    pub id: ConnectionId,
    pub service: String,
    /// The partition that it is in.
    pub pkey: PKey,
    pub config: Config,
    pub hubs: Arc<Hubs>,
    /// One for each of the fabric's devices, and the channels of their queues.
    pub docks: Vec<Dock>,
    pub channels: Vec<Arc<dyn CompletionChannel>>,
    pub sender: Mutex<Sender>,
    pub receiver: Mutex<Receiver>,
    pub bell: Bell,
    pub tell: UnboundedSender<Told>,
    pub record: Mutex<Option<ConnectionRecord>>,
    pub peer: Mutex<Acquaintance>,
    /// The tenant that the peer connected for; empty on the side that connected.
    pub peer_tenant: String,
    pub statistics: Counters,
    pub traffic: Arc<Traffic>,
    /// A lane's failure was told already; cleared with the next lane.
    pub broken_told: AtomicBool,
    watched: AtomicBool,
    on_completion: Handler<Completion>,
    on_message: Handler<Received>,
    pub has_completion_handler: AtomicBool,
    /// What this side offers to the peer.
    pub offers: Mutex<Vec<MemoryOffer>>,
    /// What of that is offered anew when its keys are made anew.
    pub loans: Mutex<Vec<Loan>>,
}

/// What a connection has been through.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub rebuilds: AtomicU64,
    pub moves: AtomicU64,
    pub turned: AtomicU64,
    pub migrated: AtomicU64,
    pub moves_rolled_back: AtomicU64,
    pub redialled: AtomicU64,
    pub refused: AtomicU64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: ConnectionId,
        service: String,
        peer_tenant: String,
        pkey: PKey,
        config: Config,
        hubs: Arc<Hubs>,
        pools: Vec<Arc<ReceivePool>>,
        tell: UnboundedSender<Told>,
        bounds: super::log::Bounds,
    ) -> Result<Arc<Self>, FabricError> {
        let docks = hubs.all().iter().zip(pools).map(|(hub, pool)| Dock::new(hub, &config, pool));
        let (docks, channels): (Vec<Dock>, Vec<_>) = docks.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let traffic = Arc::new(Traffic::default());
        let home = &docks[0];
        let mut sender = Sender::new(home.send_cq.clone(), config.depth, bounds);
        let mut receiver = Receiver::new(home.recv_cq.clone(), home.pool.clone());
        (sender.traffic, receiver.traffic) = (traffic.clone(), traffic.clone());
        Ok(Arc::new(Self {
            id,
            service,
            pkey,
            config,
            hubs,
            docks,
            channels,
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            bell: Bell::default(),
            tell,
            record: Mutex::new(None),
            peer: Mutex::default(),
            peer_tenant,
            statistics: Counters::default(),
            traffic,
            broken_told: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            on_completion: Mutex::new(None),
            on_message: Mutex::new(None),
            has_completion_handler: AtomicBool::new(false),
            offers: Mutex::new(Vec::new()),
            loans: Mutex::new(Vec::new()),
        }))
    }

    /// Takes completions of operations. With the lock held; it also wakes who waits for them.
    pub fn drive_sender(&self, sender: &mut Sender) -> Result<bool, FabricError> {
        let found = sender.poll()?;
        if let Some((lane, status)) = found.broken {
            self.tell_broken(lane, format!("{} ({})", status.as_str(), status.info().name));
        }
        if found.ended {
            for waker in sender.wakers.drain(..) {
                waker.wake();
            }
            if let Some(round) = sender.keys_are_idle() {
                let _ = self.tell.send(Told::Input(Input::KeysIdle { round }));
            }
        }
        Ok(found.ended)
    }

    /// Takes messages.
    pub fn drive_receiver(&self, receiver: &mut Receiver) -> Result<bool, FabricError> {
        let found = receiver.poll()?;
        self.after_receive(receiver, &found);
        Ok(found.messages)
    }

    pub fn after_receive(&self, receiver: &mut Receiver, found: &super::receive::Found) {
        if let Some((lane, status)) = found.broken {
            self.tell_broken(lane, format!("a receive ended with {} ({})", status.as_str(), status.info().name));
        }
        if let Some(lane) = found.received {
            let _ = self.tell.send(Told::Input(Input::Received { lane }));
        }
        if found.messages {
            for waker in receiver.wakers.drain(..) {
                waker.wake();
            }
        }
    }

    fn tell_broken(&self, lane: crate::session::LaneId, reason: String) {
        if !self.broken_told.swap(true, Ordering::AcqRel) {
            let _ = self.tell.send(Told::Input(Input::Broken { lane, reason }));
        }
    }

    /// Looks at both halves and gives handlers what came. For the task, and for whoever wants progress.
    pub fn drive(&self) -> Result<(), FabricError> {
        let ended = {
            let mut sender = lock(&self.sender);
            self.drive_sender(&mut sender)?
        };
        let came = {
            let mut receiver = lock(&self.receiver);
            self.drive_receiver(&mut receiver)?
        };
        if ended || came {
            self.bell.ring();
        }
        self.run_handlers();
        Ok(())
    }

    /// Asks for an event at the next completion.
    pub fn arm(&self) -> Result<(), FabricError> {
        self.arm_sender()?;
        self.arm_receiver()
    }

    /// The same, of operations only.
    pub fn arm_sender(&self) -> Result<(), FabricError> {
        let queue = |index| lock(&self.sender).queue(index);
        (0..).map_while(queue).try_for_each(|cq| Ok(cq.req_notify(false)?))
    }

    /// The same, of messages only.
    pub fn arm_receiver(&self) -> Result<(), FabricError> {
        let queue = |index| lock(&self.receiver).queue(index);
        (0..).map_while(queue).try_for_each(|cq| Ok(cq.req_notify(false)?))
    }

    /// Lanes may come on this device from now on: who sleeps hears of it, and asks for its events, too.
    pub fn attach(&self, domain: usize) {
        let dock = &self.docks[domain];
        lock(&self.sender).attach(domain, &dock.send_cq);
        lock(&self.receiver).attach(domain, &dock.recv_cq, &dock.pool);
        if domain > 0 {
            self.wake_all();
        }
    }

    /// There are lanes on these devices only, and everything of the others has been taken.
    pub fn detach(&self, keep: impl Fn(usize) -> bool) {
        lock(&self.sender).detach(&keep);
        lock(&self.receiver).detach(&keep);
    }

    /// Somebody sleeps outside of [`super::wait`]: the task watches the channel from now on.
    pub fn watch(&self) {
        if !self.watched.swap(true, Ordering::AcqRel) {
            let _ = self.tell.send(Told::Watch);
        }
    }

    pub fn set_completion_handler(&self, handler: Box<dyn FnMut(Completion) + Send>) {
        *lock(&self.on_completion) = Some(handler);
        self.has_completion_handler.store(true, Ordering::Release);
    }

    pub fn set_message_handler(&self, handler: Box<dyn FnMut(Received) + Send>) {
        *lock(&self.on_message) = Some(handler);
        lock(&self.receiver).has_handler = true;
    }

    /// Gives handlers what waits for them. One thread at a time; who finds another at it leaves the work to it.
    pub fn run_handlers(&self) {
        if self.has_completion_handler.load(Ordering::Acquire) {
            let next = || {
                let mut one = [Completion::default()];
                (lock(&self.sender).take_done(&mut one) == 1).then_some(one[0])
            };
            self.give(&self.on_completion, next, || lock(&self.sender).has_completions());
        }
        if lock(&self.receiver).has_handler {
            let next = || {
                let arrival = lock(&self.receiver).next()?;
                Some(self.received(arrival))
            };
            self.give(&self.on_message, next, || lock(&self.receiver).has_messages());
        }
    }

    fn give<T>(&self, handler: &Handler<T>, next: impl Fn() -> Option<T>, more: impl Fn() -> bool) {
        // Who holds it looks again after it has let go, so nothing is left lying.
        while more() {
            let Ok(mut handler) = handler.try_lock() else { return };
            let Some(call) = handler.as_mut() else { return };
            while let Some(item) = next() {
                call(item);
            }
        }
    }

    pub fn received(&self, arrival: Arrival) -> Received {
        Received { pool: self.docks[usize::from(arrival.domain)].pool.clone(), arrival }
    }

    pub fn statistics(&self) -> Statistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sender = lock(&self.sender);
        Statistics {
            rebuilds: read(&self.statistics.rebuilds),
            moves: read(&self.statistics.moves),
            turned: read(&self.statistics.turned),
            migrated: read(&self.statistics.migrated),
            moves_rolled_back: read(&self.statistics.moves_rolled_back),
            repeated: sender.repeated,
            in_doubt: sender.in_doubt,
            redialled: read(&self.statistics.redialled),
            refused: read(&self.statistics.refused),
        }
    }

    /// Wakes everybody who waits for anything.
    pub fn wake_all(&self) {
        for waker in lock(&self.sender).wakers.drain(..) {
            waker.wake();
        }
        for waker in lock(&self.receiver).wakers.drain(..) {
            waker.wake();
        }
        self.bell.ring();
    }

    pub fn closed(&self) -> Option<FabricError> {
        lock(&self.sender).closed.clone()
    }

    /// Why nothing can be told to the task any more.
    pub fn closed_error(&self) -> FabricError {
        self.closed().unwrap_or_else(|| FabricError::new(Fault::Closed, "the fabric's thread is gone"))
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("id", &self.id).field("service", &self.service).finish_non_exhaustive()
    }
}
