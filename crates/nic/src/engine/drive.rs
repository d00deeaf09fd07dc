//! Who drives the engine, and when (D2): the lock around it, the clock, and the worker that takes over.
//!
//! A posting thread rings and tries the lock; a polling thread tries the lock; a worker and the control verbs wait for
//! it. Nobody on the data path waits for anybody. That no posted work is forgotten is the business of [`super::gate`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use scalefabric_transport::Time;
use scalefabric_verbs::VerbsError;
use scalefabric_verbs::event::EventType;

use super::direct::{Requests, Setup};
use super::entry::QpShared;
use super::gate::Gate;
use super::gsi::GsiSink;
use super::{Engine, Turn};
use crate::clock;
use crate::completion::Channel;
use crate::config::{Budget, NicConfig};
use crate::counters::CountersHandle;
use crate::events::Events;
use crate::faults::{FaultSetup, VerbFaults};
use crate::ingress::{GsiDatagram, Handover};
use crate::memory::{MemoryTable, Seed, guard as memory_guard};
use crate::objects::Registry;
use crate::polling::Pass;
use crate::port::faults::Verb;
use crate::port::{Closed, Port};
use crate::process::{Home, Own};
use crate::ring::Inside;
use crate::tables::PortChange;
use crate::worker::{Drive, Turned};

/// How long the worker leaves to callers what a caller left unfinished, ns. Callers that post usually poll at once; waking
/// the worker for each of them would cost more than it gives.
const GRACE_NS: u64 = 100_000;

/// Turns that a thread takes for the bells of others before it leaves them to the worker.
const ROUNDS: usize = 64;

/// How often the worker tries to come in before it sleeps until it can: about a µs, as a turn takes.
const TRIES: u32 = 16;

/// A caller that turned the engine within this time may come back with an answer, ns: longer than the worker stands aside by default.
const RECENT_NS: u64 = 2_000_000;

/// What a caller's turn that moved packets counts for in [`Drive::caller_turns`].
const BUSY_TURN: u64 = 8;

/// Polls that find the lock taken, and no turn ended in between, before they let others run: longer than most turns take.
const PATIENT_POLLS: u32 = 64;

/// Channels that are woken outside the lock; more are woken inside, which is slower but as right.
const WAKES: usize = 8;

/// Wakes the worker.
pub trait Kick: Send + Sync {
    /// The engine must be turned at `at` or a little later, which is earlier than the worker was told; at 0 by the worker itself, since whoever
    /// polled goes to sleep. Called without the engine's lock; may make a system call.
    fn kick(&self, at: Time);
}

/// What tells the time.
#[derive(Debug)]
enum Clock {
    /// CLOCK_MONOTONIC, and callers drive the engine.
    Real,
    /// What [`Core::turn_at`] was last told; callers do not drive.
    Manual(AtomicU64),
}

/// The engine and its ports: what the lock protects.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) ports: Vec<Box<dyn Port>>,
}

/// The NIC of this process: the engine behind its lock, and what is reached without it.
pub struct Core {
    /// Made in this process, or inherited by a fork: then nothing here is touched but `config`.
    home: Home,
    gate: Own<Gate<State>>,
    clock: Clock,
    config: NicConfig,
    memory: Own<Arc<MemoryTable>>,
    registry: Registry,
    counters: Own<Vec<CountersHandle>>,
    kick: Own<OnceLock<Box<dyn Kick>>>,
    gsi: OnceLock<Arc<dyn GsiSink>>,
    own: Weak<Core>,
    /// When the worker will look again by itself.
    promised: AtomicU64,
    caller_turns: AtomicU64,
    /// When a caller last turned the engine.
    caller_at: AtomicU64,
    /// Polls that found the lock taken: they count as callers that would drive. May miss some of threads that meet here.
    turned_away: AtomicU64,
    /// How many of them there were since a caller's turn ended last (lower half), and the count of turns then (upper half).
    in_a_row: AtomicU64,
    /// Whether posters execute requests to this host themselves; where nobody but [`Core::turn_at`] drives only if somebody says so.
    at_once: AtomicBool,
    /// Verbs that fail because somebody wants them to.
    verb_faults: Own<OnceLock<VerbFaults>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("device", &self.config.device.name).finish_non_exhaustive()
    }
}

/// The lock, held by a verb. Releasing it looks at the doorbells.
pub(crate) struct Held<'c> {
    core: &'c Core,
    guard: Option<Inside<'c, State>>,
}

impl std::ops::Deref for Held<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_ref().expect("held until dropped")
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("held until dropped")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            let now = self.core.now();
            let outlook = guard.engine.outlook(now);
            self.core.release(guard, now, Some(outlook));
            self.core.serve();
        }
    }
}

impl Core {
    /// A NIC whose callers drive it. `ports` are in the order of `config.ports`; `counters` has a block for each port.
    pub fn new(
        config: NicConfig,
        ports: Vec<Box<dyn Port>>,
        counters: Vec<CountersHandle>,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::build(config, ports, counters, Seed::from_os()?, Clock::Real, None)
    }

    /// The same, whose requests to QPs of the same host go without packets.
    pub fn new_direct(
        config: NicConfig,
        ports: Vec<Box<dyn Port>>,
        counters: Vec<CountersHandle>,
        direct: Setup,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::build(config, ports, counters, Seed::from_os()?, Clock::Real, Some(direct))
    }

    /// A NIC that only [`Core::turn_at`] drives, in a time of its own.
    pub fn manual(
        config: NicConfig,
        ports: Vec<Box<dyn Port>>,
        counters: Vec<CountersHandle>,
        seed: Seed,
        direct: Option<Setup>,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::build(config, ports, counters, seed, Clock::Manual(AtomicU64::new(0)), direct)
    }

    fn build(
        mut config: NicConfig,
        mut ports: Vec<Box<dyn Port>>,
        counters: Vec<CountersHandle>,
        seed: Seed,
        clock: Clock,
        direct: Option<Setup>,
    ) -> Result<Arc<Self>, VerbsError> {
        if ports.is_empty() || ports.len() != config.ports.len() || counters.len() != ports.len() || ports.len() > 254 {
            return Err(VerbsError::invalid(format!(
                "{} ports configured, {} given, {} counter blocks: they must be the same number, 1 to 254",
                config.ports.len(),
                ports.len(),
                counters.len()
            )));
        }
        if config.slot == 0 || config.slot == 255 {
            return Err(VerbsError::invalid(format!("slot {} is never given out: use 1 to 254", config.slot)));
        }
        config.attr.phys_port_cnt = ports.len() as u8;
        if !config.congestion.is_none() {
            ports.iter_mut().for_each(|port| port.tell_headers());
        }
        let entries = config.attr.max_mr.saturating_add(config.attr.max_mw).clamp(1, 1 << 20);
        let registry = Registry::new(&config.attr);
        let (memory, accessor) = match &direct {
            Some(setup) => MemoryTable::in_file(seed, entries, setup.file.clone()),
            None => MemoryTable::new(seed, entries),
        };
        let mut engine = Engine::new(&config, accessor, counters.clone());
        if let Some(setup) = direct {
            if let Some(neighbours) = &setup.neighbours {
                memory.set_accessors(neighbours.clone());
            }
            engine.set_direct(setup);
        }
        let at_once = AtomicBool::new(matches!(clock, Clock::Real));
        Ok(Arc::new_cyclic(|own| Self {
            at_once,
            home: Home::here(),
            gate: Own::new(Gate::new(State { engine, ports }, 65_536)),
            clock,
            config,
            memory: Own::new(memory),
            registry,
            counters: Own::new(counters),
            kick: Own::new(OnceLock::new()),
            gsi: OnceLock::new(),
            own: own.clone(),
            promised: AtomicU64::new(0),
            caller_turns: AtomicU64::new(0),
            caller_at: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            in_a_row: AtomicU64::new(0),
            verb_faults: Own::new(OnceLock::new()),
        }))
    }

    /// What it was made from.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Registered memory.
    pub fn memory(&self) -> &Arc<MemoryTable> {
        &self.memory
    }

    /// Limits and numbers of objects, shared by all contexts of this NIC.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The process that opened the device.
    pub fn home(&self) -> Home {
        self.home
    }

    /// A context was opened: it hears of ports and of the device. Its number.
    pub(crate) fn listen(&self, events: &Arc<Events>) -> u32 {
        self.lock().engine.nic().fabric.listeners.add(events)
    }

    /// A context was closed.
    pub(crate) fn unlisten(&self, events: &Arc<Events>) {
        if !self.home.is_here() {
            return;
        }
        self.lock().engine.nic().fabric.listeners.remove(events);
    }

    /// The counters of a port, from 1.
    pub fn counters(&self, port_num: u8) -> Option<&CountersHandle> {
        self.counters.get(usize::from(port_num).wrapping_sub(1))
    }

    /// Who wakes the worker. Only the first one counts. Without one nobody is woken: only callers drive.
    pub fn set_kick(&self, kick: Box<dyn Kick>) {
        let _ = self.kick.set(kick);
    }

    /// Who takes datagrams for other slots of the device.
    pub fn set_handover(&self, handover: Box<dyn Handover>) {
        self.lock().engine.set_handover(handover);
    }

    /// Begins to keep datagrams for QP 1, of this process's workers; see [`Engine::open_gsi`].
    pub fn open_gsi(&self) {
        self.lock().engine.open_gsi();
    }

    pub(super) fn set_sink(&self, sink: Arc<dyn GsiSink>) {
        let _ = self.gsi.set(sink);
    }

    /// The oldest datagram for QP 1 that is kept.
    pub fn take_gsi(&self) -> Option<GsiDatagram> {
        self.lock().engine.take_gsi()
    }

    /// The time.
    pub fn now(&self) -> Time {
        match &self.clock {
            Clock::Real => clock::now(),
            Clock::Manual(now) => Time(now.load(Ordering::Acquire)),
        }
    }

    /// What has to be added to [`Core::now`] to get nanoseconds since 1970; 0 for a time of its own.
    pub fn epoch_offset_ns(&self) -> u64 {
        match &self.clock {
            Clock::Real => clock::epoch_offset_ns(),
            Clock::Manual(_) => 0,
        }
    }

    /// From now on these faults happen, and their times count from now. Only the first call counts.
    pub fn install_faults(&self, setup: &FaultSetup) {
        let now = self.now();
        if self.verb_faults.set(VerbFaults::new(setup.clone(), now)).is_ok() {
            self.lock().engine.nic().install_faults(setup.clone(), now);
        }
    }

    /// A verb is called that a fault may be wanted for.
    pub(crate) fn check_verb(&self, verb: Verb) -> Result<(), VerbsError> {
        match self.verb_faults.get() {
            None => Ok(()),
            Some(faults) => faults.check(self.now(), verb),
        }
    }

    /// Changes a port's tables and raises the event that belongs to it.
    pub fn change_port(&self, port_num: u8, change: &PortChange) -> Result<(), VerbsError> {
        self.lock().engine.nic().change_port(port_num, change)?;
        if let (PortChange::RemoveGid { gid }, Some(sink), Some(core)) = (change, self.gsi.get(), self.own.upgrade()) {
            sink.address_gone(&core, port_num, *gid);
        }
        Ok(())
    }

    /// Members of these slots are gone.
    pub(crate) fn forget_neighbours(&self, slots: &[u8]) {
        self.lock().engine.nic().forget_neighbours(slots);
    }

    /// `set_pkey` of a port: raises PKEY_CHANGE if it changed.
    pub fn set_pkey(&self, port_num: u8, index: u16, pkey: scalefabric_verbs::PKey) -> Result<(), VerbsError> {
        self.change_port(port_num, &PortChange::SetPKey { index, pkey })
    }

    /// Raises DEVICE_FATAL and puts every QP into ERR: the device is gone (its segment was lost, an injected fault).
    pub fn fail_device(&self) {
        let now = self.now();
        let mut held = self.lock();
        let State { engine, ports } = &mut *held;
        engine.fail_all(now, ports);
        engine.nic().fabric.listeners.tell_all(EventType::DeviceFatal, scalefabric_verbs::EventSubject::Device);
        drop(held);
        if let (Some(sink), Some(core)) = (self.gsi.get(), self.own.upgrade()) {
            sink.device_gone(&core);
        }
    }

    /// One turn at a time that the caller says: for tests and the simulator. Time never goes back.
    pub fn turn_at(&self, now: Time) -> Turn {
        if let Clock::Manual(clock) = &self.clock {
            clock.fetch_max(now.0, Ordering::AcqRel);
        }
        let now = self.now();
        let mut guard = self.gate.wait();
        memory_guard::ensure(now.0);
        let State { engine, ports } = &mut *guard;
        let turn = engine.turn(now, ports, self.gate.bells(), self.config.budget);
        self.release(guard, now, Some(turn));
        turn
    }

    /// A posting thread's doorbell: tells the engine, and turns it if nobody else does.
    #[inline]
    pub(crate) fn ring(&self, qp: &QpShared) {
        if qp.is_direct() && self.post_directly(qp.index()) {
            return;
        }
        self.gate.bells().ring(qp.index());
        self.serve();
    }

    /// Executes what a thread posts on the memory of a peer on this host, if the engine is free; see [`Engine::execute_unqueued`]. How many of the requests are done.
    #[inline]
    pub(crate) fn execute_unqueued(&self, qp: &QpShared, requests: &impl Requests) -> usize {
        if !self.at_once.load(Ordering::Relaxed) {
            return 0;
        }
        let Some(mut guard) = self.gate.try_enter() else { return 0 };
        memory_guard::ensure(clock::coarse().0);
        let done = guard.engine.execute_unqueued(qp, || self.now(), requests);
        if guard.engine.has_wakes() {
            let now = self.now();
            let outlook = guard.engine.outlook(now);
            self.release(guard, now, Some(outlook));
        } else {
            drop(guard);
        }
        // Somebody may have rung while this thread was inside.
        self.serve();
        done
    }

    /// A poster's short turn: what was posted is executed on the memory of a peer on this host. False if the bell must ring.
    #[inline]
    fn post_directly(&self, index: u16) -> bool {
        if !matches!(self.clock, Clock::Real) {
            return false;
        }
        let Some(mut guard) = self.gate.try_enter() else { return false };
        // Nobody waits for a timer here, so the time of the last tick will do.
        let coarse = clock::coarse();
        memory_guard::ensure(coarse.0);
        let done = guard.engine.turn_directly(index, coarse, || self.now());
        if guard.engine.has_wakes() {
            let now = self.now();
            let outlook = guard.engine.outlook(now);
            self.release(guard, now, Some(outlook));
        } else {
            drop(guard);
        }
        if done {
            // Somebody may have rung while this thread was inside.
            self.serve();
        }
        done
    }

    /// Posters execute requests to this host themselves, though nobody but [`Core::turn_at`] drives.
    pub fn execute_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// The lock, for a verb; an error in a forked child, where whoever held it may be gone.
    pub(crate) fn enter(&self) -> Result<Held<'_>, VerbsError> {
        self.home.check("device")?;
        Ok(self.lock())
    }

    /// A verb is about to end a QP, or what it receives: what waits in a socket came before that, and a NIC of hardware had taken
    /// it in by then. A peer says goodbye through QP 1, whose socket is another one, so that its last message may still wait
    /// when the application has heard of the end. A NIC that is driven by hand moves in its turns only.
    pub(crate) fn take_in(&self, state: &mut State) {
        if matches!(self.clock, Clock::Real) {
            state.engine.take_in(self.now(), &mut state.ports);
        }
    }

    /// Waits for the lock, where it is certain that the device is this process's.
    pub(crate) fn lock(&self) -> Held<'_> {
        assert!(self.home.is_here(), "a verb on the parent's device went on in a forked child");
        // Verbs touch memory, too: a QP that leaves SQD, or fails, goes on with what it has.
        memory_guard::ensure(self.now().0);
        let mut guard = self.gate.wait();
        let State { engine, ports } = &mut *guard;
        engine.send_held(ports);
        Held { core: self, guard: Some(guard) }
    }

    /// The process ends: takes in what has come, sends what is due, and closes the ports, all of it within `limit_ns`. Other
    /// threads may go on with verbs; nothing leaves or arrives any more.
    pub(crate) fn end(&self, limit_ns: u64) {
        if !self.home.is_here() {
            return;
        }
        let until = self.now().after(limit_ns);
        let Some(mut guard) = self.gate.wait_unless(|| self.now() >= until) else { return };
        memory_guard::ensure(self.now().0);
        let State { engine, ports } = &mut *guard;
        engine.send_held(ports);
        loop {
            let now = self.now();
            let turn = engine.turn(now, ports, self.gate.bells(), self.config.budget);
            if now >= until || !(turn.progressed || turn.ready) {
                break;
            }
        }
        ports.iter_mut().for_each(|port| {
            port.flush();
            // Not dropped: who waits for its descriptors may still do so.
            std::mem::forget(std::mem::replace(port, Box::new(Closed)));
        });
    }

    /// A polling thread's turn; false if another thread has the engine, or nobody but [`Core::turn_at`] may drive.
    pub(crate) fn poll(&self) -> bool {
        if matches!(self.clock, Clock::Manual(_)) {
            return false;
        }
        let Some(guard) = self.gate.try_enter() else {
            self.turn_away();
            return false;
        };
        // Without a worker nobody would send a held ACK if this caller never came back.
        let hold_acks = self.kick.get().is_some();
        self.caller_turn(guard, Budget { hold_acks, ..self.config.budget });
        self.serve();
        true
    }

    /// A poll found the lock taken. Where pollers outnumber the processors, whoever has it may have lost its processor to one of them:
    /// if so many in a row find it taken and no turn has ended meanwhile, they let others run, or they would burn their slices
    /// while the one with the lock waits for its next.
    fn turn_away(&self) {
        self.turned_away.store(self.turned_away.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let turns = self.caller_turns.load(Ordering::Relaxed) as u32;
        let in_a_row = self.in_a_row.load(Ordering::Relaxed);
        let count = if (in_a_row >> 32) as u32 == turns { in_a_row as u32 } else { 0 };
        self.in_a_row.store(u64::from(turns) << 32 | u64::from(count.saturating_add(1)), Ordering::Relaxed);
        if count >= PATIENT_POLLS {
            clock::breathe();
        }
    }

    /// A thread would sleep until something is in `channel`, at most for `limit`: first it drives for as long as the device's
    /// [`Polling`](crate::polling::Polling) says. Gives what came meanwhile. A descriptor that is O_NONBLOCK is not waited for.
    pub(crate) fn spin_for(&self, limit: Option<Duration>, channel: &Channel) -> Option<u32> {
        if let Some(event) = channel.take() {
            return Some(event);
        }
        if matches!(self.clock, Clock::Manual(_)) || self.config.polling.spins_never() || channel.is_nonblocking() {
            return None;
        }
        let begin = self.now();
        loop {
            let quiet = self.now().since(begin);
            match self.config.polling.after(quiet) {
                _ if limit.is_some_and(|limit| u128::from(quiet) >= limit.as_nanos()) => return None,
                Pass::Spin => std::hint::spin_loop(),
                Pass::Yield => clock::breathe(),
                Pass::Sleep => return None,
            }
            // Who waits for an event answers at once: it may not call again for a long time.
            if let Some(guard) = self.gate.try_enter() {
                self.caller_turn(guard, self.config.budget);
                self.serve();
            }
            if let Some(event) = channel.take() {
                return Some(event);
            }
        }
    }

    /// A thread is about to sleep until something happens: the worker must be there.
    pub(crate) fn someone_sleeps(&self) {
        if let Some(kick) = self.kick.get() {
            // 0 says that it was kicked since its last turn. Any other time does not count: a worker that stands aside
            // because callers poll sleeps past it.
            if self.promised.swap(0, Ordering::Relaxed) != 0 {
                kick.kick(Time(0));
            }
        }
    }

    /// A turn of a thread that posts or polls.
    fn caller_turn(&self, mut guard: Inside<'_, State>, budget: Budget) {
        let now = self.now();
        memory_guard::ensure(now.0);
        let State { engine, ports } = &mut *guard;
        let turn = engine.turn(now, ports, self.gate.bells(), budget);
        // Only whoever holds the lock writes it. A turn that moved packets takes as long as many that did not.
        let weight = if turn.progressed { BUSY_TURN } else { 1 };
        self.caller_turns.store(self.caller_turns.load(Ordering::Relaxed) + weight, Ordering::Relaxed);
        self.caller_at.store(now.0, Ordering::Relaxed);
        let breath = engine.takes_breath();
        self.release(guard, now, Some(turn));
        if breath {
            clock::breathe();
        }
    }

    /// Turns the engine for bells that were rung when nobody could go in.
    #[inline]
    fn serve(&self) {
        if !self.gate.bells().is_empty() {
            self.serve_bells();
        }
    }

    fn serve_bells(&self) {
        if !matches!(self.clock, Clock::Real) {
            return;
        }
        if self.gate.serve(ROUNDS, |guard| self.caller_turn(guard, Budget::INLINE)) {
            return;
        }
        // Others ring faster than we turn: a thread that only wanted to post is not held for ever.
        if self.kick.get().is_some() {
            self.someone_sleeps();
        } else {
            let _all = self.gate.serve(usize::MAX, |guard| self.caller_turn(guard, Budget::INLINE));
        }
    }

    /// Gives the lock back, wakes who sleeps, and tells the worker of an earlier deadline. Whoever calls it looks at the
    /// doorbells afterwards ([`Core::serve`]).
    #[inline]
    fn release(&self, guard: Inside<'_, State>, now: Time, turn: Option<Turn>) {
        if guard.engine.has_wakes() || guard.engine.has_gsi() {
            return self.release_and_wake(guard, now, turn);
        }
        // Under the lock, as below.
        let kick = turn.and_then(|turn| self.kick_wanted(now, &turn));
        drop(guard);
        if let (Some(at), Some(kick)) = (kick, self.kick.get()) {
            kick.kick(at);
        }
    }

    /// [`Core::release`], when somebody waits for what happened.
    fn release_and_wake(&self, mut guard: Inside<'_, State>, now: Time, turn: Option<Turn>) {
        let mut wakes: [Option<Arc<Channel>>; WAKES] = [const { None }; WAKES];
        let mut count = 0;
        while let Some(channel) = guard.engine.next_wake() {
            if wakes[..count].iter().flatten().any(|c| Arc::ptr_eq(c, &channel)) {
                continue;
            }
            if count < WAKES {
                wakes[count] = Some(channel);
                count += 1;
            } else {
                channel.wake();
            }
        }
        let mut events: [Option<Arc<Events>>; WAKES] = [const { None }; WAKES];
        for place in &mut events {
            *place = guard.engine.next_event_wake();
        }
        while let Some(more) = guard.engine.next_event_wake() {
            more.wake();
        }
        let sink = self.gsi.get();
        let datagrams = sink.map(|_| guard.engine.take_all_gsi()).unwrap_or_default();
        // Under the lock, so that a later turn cannot be overtaken: the worker's own turn sets `promised` there, too.
        let kick = turn.and_then(|turn| self.kick_wanted(now, &turn));
        drop(guard);
        for channel in wakes.into_iter().flatten() {
            channel.wake();
        }
        for context in events.into_iter().flatten() {
            context.wake();
        }
        if let (Some(at), Some(kick)) = (kick, self.kick.get()) {
            kick.kick(at);
        }
        if !datagrams.is_empty()
            && let (Some(sink), Some(core)) = (sink, self.own.upgrade())
        {
            sink.take(&core, datagrams);
        }
    }

    /// The time for which the worker must be woken, if it sleeps longer.
    fn kick_wanted(&self, now: Time, turn: &Turn) -> Option<Time> {
        let at = turn.next_deadline?;
        let at = if turn.ready { now.after(GRACE_NS) } else { at };
        // Once told, the worker looks at that time or later by itself: telling it again would only cost.
        (at.0 < self.promised.load(Ordering::Relaxed)).then(|| {
            self.promised.store(at.0, Ordering::Relaxed);
            at
        })
    }
}

impl Core {
    /// The worker's turn.
    fn worker_turn(&self, mut guard: Inside<'_, State>, now: Time) -> Turned {
        memory_guard::ensure(now.0);
        let State { engine, ports } = &mut *guard;
        // A caller that was here a moment ago may be waiting for what comes in now, and post an answer with which the ACK goes. If it does not, the
        // next turn sends it.
        let hold_acks = now.since(self.last_caller_turn()) < RECENT_NS;
        let turn = engine.turn(now, ports, self.gate.bells(), Budget { hold_acks, ..self.config.budget });
        // What the worker is told now is what it will do: nobody needs to kick it for that.
        let deadline = if turn.ready { Some(now) } else { turn.next_deadline };
        self.promised.store(deadline.map_or(u64::MAX, |d| d.0), Ordering::Relaxed);
        let breath = engine.takes_breath();
        self.release(guard, now, None);
        if breath {
            clock::breathe();
        }
        self.serve();
        Turned { busy: turn.progressed || turn.ready, deadline }
    }
}

impl Drive for Core {
    fn turn(&self, now: Time) -> Turned {
        self.turn_if_free(now).unwrap_or_else(|| self.worker_turn(self.gate.wait(), now))
    }

    fn turn_if_free(&self, now: Time) -> Option<Turned> {
        // Who is inside comes out soon. To sleep until then would keep others out for as long as the wake takes: nobody is let past who waits.
        let soon = (0..TRIES).find_map(|_| {
            self.gate.try_enter().or_else(|| {
                std::hint::spin_loop();
                None
            })
        });
        soon.map(|guard| self.worker_turn(guard, now))
    }

    fn caller_turns(&self) -> u64 {
        self.caller_turns.load(Ordering::Relaxed).wrapping_add(self.turned_away.load(Ordering::Relaxed))
    }

    fn last_caller_turn(&self) -> Time {
        Time(self.caller_at.load(Ordering::Relaxed))
    }
}
