//! The thread and the state behind it: identifiers, connections, questions, and what waits for an answer.
//!
//! One lock guards all of it. It is taken by callers and by the thread, never by whoever turns an engine: messages come by
//! [`Post`], whose inbox has a lock of its own. So sending (which takes an engine's lock) is allowed while it is held.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scalefabric_transport::Time;
use scalefabric_transport::cm::{Connection, Event, QpPath};
use scalefabric_verbs::{AddressVector, CmEvent, Errno, Gid, VerbsError};

use super::id::Id;
use super::links::{Link, Links};
use super::multicast::Join;
use super::receive::Unheard;
use super::service::{Answers, Questions};
use crate::clock;
use crate::completion::EventQueue;
use crate::engine::drive::Core;
use crate::engine::gsi::GsiSink;
use crate::ingress::GsiDatagram;
use crate::process::Home;
use crate::provider::communication;
use crate::share::connections::Orphan;
use crate::share::membership::OrphanSink;
use crate::worker::with_signals_blocked;

/// What the thread is told.
pub(super) enum Work {
    /// A message has come.
    Message(Arc<Core>, Box<GsiDatagram>),
    /// A process has died and left connections.
    Orphans(Arc<Core>, Vec<Orphan>),
    /// An address of a port has gone.
    AddressGone(Arc<Core>, u8, Gid),
    /// A device has gone.
    DeviceGone(Arc<Core>),
    /// There is an earlier deadline.
    Look,
}

/// Where engines and memberships leave what is for the communication manager. It starts one if there is none.
#[derive(Debug)]
pub(crate) struct Post;

impl Post {
    fn leave(work: impl Iterator<Item = Work>) {
        // Without a thread messages are lost, as on a wire.
        let Ok(agent) = Agent::get() else { return };
        work.for_each(|work| agent.inbox.push(work));
        agent.inbox.wake();
    }
}

impl GsiSink for Post {
    fn take(&self, core: &Arc<Core>, datagrams: Vec<GsiDatagram>) {
        Self::leave(datagrams.into_iter().map(|datagram| Work::Message(core.clone(), Box::new(datagram))));
    }

    fn address_gone(&self, core: &Arc<Core>, port_num: u8, gid: Gid) {
        Self::leave(std::iter::once(Work::AddressGone(core.clone(), port_num, gid)));
    }

    fn device_gone(&self, core: &Arc<Core>) {
        Self::leave(std::iter::once(Work::DeviceGone(core.clone())));
    }
}

impl OrphanSink for Post {
    fn take(&self, core: &Arc<Core>, orphans: Vec<Orphan>) {
        Self::leave(std::iter::once(Work::Orphans(core.clone(), orphans)));
    }
}

/// The communication manager.
pub(super) struct Agent {
    home: Home,
    pub(super) state: Mutex<State>,
    inbox: EventQueue<Work>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agent")
    }
}

/// An event channel, and who belongs to it.
pub(super) struct Line {
    pub(super) events: Arc<EventQueue<CmEvent>>,
    pub(super) ids: BTreeSet<u32>,
}

/// What the lock guards.
pub(super) struct State {
    pub(super) channels: HashMap<u32, Line>,
    pub(super) ids: HashMap<u32, Id>,
    /// Identifiers that listen, by port space and port.
    pub(super) listeners: HashMap<(u16, u16), Vec<u32>>,
    pub(super) joins: HashMap<u32, Join>,
    pub(super) links: Links,
    pub(super) questions: Questions,
    pub(super) answered: Answers,
    /// Requests that nobody listens for yet.
    pub(super) unheard: Vec<Unheard>,
    next_channel: u32,
    next_number: u32,
    next_comm: u32,
    random: RandomState,
    drawn: u64,
}

impl Agent {
    /// The agent of this process.
    pub(super) fn get() -> Result<Arc<Self>, VerbsError> {
        let mut agent = communication().agent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = &*agent {
            return Ok(agent.clone());
        }
        Ok(agent.insert(Self::start()?).clone())
    }

    fn start() -> Result<Arc<Self>, VerbsError> {
        let random = RandomState::new();
        let mut state = State {
            channels: HashMap::new(),
            ids: HashMap::new(),
            listeners: HashMap::new(),
            joins: HashMap::new(),
            links: Links::default(),
            questions: Questions::default(),
            answered: Answers::default(),
            unheard: Vec::new(),
            next_channel: 0,
            next_number: 0,
            next_comm: 0,
            random,
            drawn: 0,
        };
        state.next_comm = state.draw() as u32;
        let agent = Arc::new(Self { home: Home::here(), state: Mutex::new(state), inbox: EventQueue::new()? });
        let own = agent.clone();
        with_signals_blocked(|| std::thread::Builder::new().name("sf-cm".into()).spawn(move || own.run()))
            .map_err(|e| VerbsError::environment(Errno::ENOMEM, format!("no thread for connection management: {e}")))?;
        Ok(agent)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a caller: refused in a forked child, whose copy may be a half-made one.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, State>, VerbsError> {
        self.home.check("event channel or identifier")?;
        Ok(self.lock())
    }

    /// Ends or refuses all that is open, without waiting for answers.
    pub(super) fn end(&self) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let links: Vec<u32> = state.links.keys().collect();
        for key in links {
            if let Some(link) = state.links.get_mut(&key) {
                link.id = None;
                link.machine.abandon(clock::now());
            }
            state.pump(key);
        }
    }

    /// The thread looks at its deadlines again.
    pub(super) fn look(&self) {
        self.inbox.push(Work::Look);
        self.inbox.wake();
    }

    fn run(self: Arc<Self>) {
        loop {
            let deadline = self.lock().deadline();
            let left = deadline.map(|at| Duration::from_nanos(at.since(clock::now())));
            if left.is_none_or(|left| !left.is_zero()) {
                self.inbox.sleep(left);
            }
            while let Some(work) = self.inbox.take() {
                let mut state = self.lock();
                match work {
                    Work::Message(core, datagram) => state.receive(&self, &core, &datagram, true, clock::now()),
                    Work::Orphans(core, orphans) => state.adopt(&core, orphans, clock::now()),
                    Work::AddressGone(core, port_num, gid) => state.address_gone(&core, port_num, gid),
                    Work::DeviceGone(core) => state.device_gone(&core, clock::now()),
                    Work::Look => {}
                }
            }
            let mut state = self.lock();
            state.hear(&self, clock::now());
            state.handle_timeout(clock::now());
        }
    }
}

impl State {
    /// A number that nobody can foresee.
    pub(super) fn draw(&mut self) -> u64 {
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.drawn);
        self.drawn += 1;
        hasher.finish()
    }

    /// A number for an identifier or a join.
    pub(super) fn number(&mut self) -> u32 {
        loop {
            let number = self.next_number;
            self.next_number = (self.next_number + 1) & 0x7fff_ffff;
            if !self.ids.contains_key(&number) && !self.joins.contains_key(&number) {
                return number;
            }
        }
    }

    /// A number for a channel.
    pub(super) fn channel_number(&mut self) -> u32 {
        loop {
            let number = self.next_channel;
            self.next_channel = self.next_channel.wrapping_add(1);
            if !self.channels.contains_key(&number) {
                return number;
            }
        }
    }

    /// An ID for a connection or a question of a slot: the slot, and a number that the process has not in use.
    pub(super) fn comm_id(&mut self, slot: u8) -> u32 {
        loop {
            self.next_comm = (self.next_comm + 1) & 0x00ff_ffff;
            let id = u32::from(slot) << 24 | self.next_comm;
            let free = |id: &u32| !self.links.contains_key(id) && !self.questions.contains_key(*id);
            if self.next_comm != 0 && free(&id) {
                return id;
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let unheard = self.unheard.iter().map(|unheard| unheard.look);
        unheard.chain(self.links.deadline()).chain(self.questions.deadline()).min()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.answered.forget_old(now);
        for key in self.links.due(now) {
            if let Some(link) = self.links.get_mut(&key) {
                link.machine.handle_timeout(now);
            }
            self.pump(key);
        }
        for key in self.questions.due(now) {
            if let Some(question) = self.questions.get_mut(key) {
                question.machine.handle_timeout(now);
            }
            self.pump_question(key);
        }
    }

    /// Sends and tells what a connection has to send and to tell, and forgets it when it is over.
    pub(super) fn pump(&mut self, key: u32) {
        let Some(link) = self.links.get_mut(&key) else { return };
        while let Some(mad) = link.machine.poll_transmit() {
            link.core.send_gsi(&link.av, &mad.emit());
        }
        let mut events: Vec<Event> = Vec::new();
        while let Some(event) = link.machine.poll_event() {
            if let Event::Replied { rep, .. } = &event {
                link.path.take_rep(rep, link.packet_life_time);
            }
            events.push(event);
        }
        link.note();
        let id = link.id;
        self.links.settle(key);
        if let Some(id) = id {
            events.into_iter().for_each(|event| self.tell_connection(id, event));
        }
        if !self.links.contains_key(&key)
            && let Some(id) = id.and_then(|id| self.ids.get_mut(&id))
        {
            id.link = None;
        }
    }

    /// A process of the device has died: its connections are ended for it.
    fn adopt(&mut self, core: &Arc<Core>, orphans: Vec<Orphan>, now: Time) {
        for orphan in orphans {
            let sgid_index = {
                let held = core.lock();
                held.engine.tables().port(orphan.port_num).and_then(|port| port.find_gid(orphan.sgid))
            };
            let Some(sgid_index) = sgid_index else { continue };
            let av = AddressVector::new(orphan.port_num, sgid_index, orphan.dgid);
            let machine = Connection::orphan(now, orphan.local_id, orphan.remote_id, orphan.remote_qpn);
            let path = QpPath::none(av);
            let link = Link {
                machine,
                core: core.clone(),
                device: None,
                av,
                path,
                packet_life_time: 0,
                id: None,
                noted: None,
            };
            self.links.insert(orphan.local_id, link);
            self.pump(orphan.local_id);
        }
    }
}
