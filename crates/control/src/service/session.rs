//! One agent that has joined this replica: what it tells goes into the store, what is meant for it comes out. All that one agent tells hangs on one
//! lease and is written under one guard, the revision of its node's record: an agent that has been replaced can write nothing more.
//!
//! While the store is away, what the agent tells is kept here, the latest of each key, and written when the store is back.

use super::Shared;
use crate::directory::{NeighbourRecord, NodeRecord, PortRecord};
use crate::keys;
use crate::message::{self, Malformed};
use crate::order::{OrderRecord, json};
use crate::proto::control::{self as proto, from_agent, to_agent};
use crate::store::{Change, Guard, LeaseId, Revision, StoreError};
use scalefabric_fabric::directory::{ConnectionId, ConnectionState};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// Ports of a node at most.
const MAX_PORTS: usize = 256;
/// Connections and services of a node at most: what one device can number.
const MAX_KEYS: usize = 1 << 20;
/// Services that an agent may want to hear of.
const MAX_WANTS: usize = 4096;
/// Changes written together; the guard comes on top.
const TOGETHER: usize = 100;
/// After a failed write.
const PAUSE: Duration = Duration::from_millis(500);

/// What others have for the agent.
#[derive(Debug)]
pub enum Note {
    /// Send this.
    Message(to_agent::Message),
    /// The node's record was written by somebody else.
    NodeRecord(Revision),
    /// The store says that the record is gone: its lease has ended.
    NodeGone,
}

/// Who joins, checked.
pub fn hello(hello: &proto::Hello, replica: &str) -> Result<NodeRecord, Malformed> {
    Ok(NodeRecord {
        node: message::node_name(&hello.node)?,
        version: message::name("version", &hello.version, false)?,
        incarnation: hello.incarnation,
        replica: replica.to_owned(),
        ports: ports(&hello.ports)?,
        neighbours: hello.neighbours.iter().take(MAX_PORTS).map(neighbour).collect::<Result<_, _>>()?,
    })
}

fn ports(ports: &[proto::Port]) -> Result<Vec<PortRecord>, Malformed> {
    if ports.len() > MAX_PORTS {
        return Err(Malformed(format!("{} ports; a node has at most {MAX_PORTS}", ports.len())));
    }
    ports.iter().map(port).collect()
}

fn port(port: &proto::Port) -> Result<PortRecord, Malformed> {
    let gid = |bytes: &Vec<u8>| {
        let octets: Result<[u8; 16], _> = bytes.as_slice().try_into();
        octets.map(Into::into).map_err(|_| Malformed(format!("a GID of {} bytes; it has 16", bytes.len())))
    };
    let port_num = u8::try_from(port.port_num).ok().filter(|port_num| *port_num > 0);
    Ok(PortRecord {
        device: message::name("device", &port.device, false)?,
        port_num: port_num.ok_or_else(|| Malformed(format!("port {}; ports count from 1 to 255", port.port_num)))?,
        gids: port.gids.iter().take(256).map(gid).collect::<Result<_, _>>()?,
        rate_mbps: port.rate_mbps,
        numa_node: u16::try_from(port.numa_node).ok(),
        active: port.active,
    })
}

fn neighbour(neighbour: &proto::Neighbour) -> Result<NeighbourRecord, Malformed> {
    Ok(NeighbourRecord {
        port: neighbour.port,
        chassis: message::name("chassis", &neighbour.chassis, false)?,
        port_id: message::name("port_id", &neighbour.port_id, false)?,
    })
}

/// A session that the store knows of.
pub struct Session {
    shared: Arc<Shared>,
    record: NodeRecord,
    lease: LeaseId,
    /// Guard of all that is written.
    revision: Revision,
    out: mpsc::Sender<Result<proto::ToAgent, Status>>,
    /// All keys of the node in the store, as far as this session knows.
    keys: HashSet<String>,
    /// What is still to be written: a value, or its deletion.
    pending: BTreeMap<String, Option<Vec<u8>>>,
    /// Of a whole report that is not complete: what it holds so far.
    whole: Option<BTreeSet<String>>,
    serial: u64,
    acknowledged: u64,
    handles: HashMap<u32, ConnectionId>,
    wants: BTreeSet<String>,
    /// Latest revision of the node's record that the store told of.
    noted: Revision,
}

impl Session {
    /// Writes the node's record and takes over what its agent told before, at whichever replica.
    pub async fn begin(
        shared: Arc<Shared>,
        record: NodeRecord,
        out: mpsc::Sender<Result<proto::ToAgent, Status>>,
    ) -> Result<Self, Status> {
        let key = keys::node(&record.node);
        let store = &shared.store;
        let (lease, revision) = loop {
            let before = store.get(&key).await.map_err(refused)?;
            let known = before.as_ref().and_then(|entry| serde_json::from_slice::<NodeRecord>(&entry.value).ok());
            if known.is_some_and(|known| known.incarnation > record.incarnation) {
                return Err(Status::failed_precondition(format!(
                    "an agent of `{}` that was started later has joined: end one of them",
                    record.node
                )));
            }
            let old = before.as_ref().and_then(|entry| entry.lease);
            let lease = match old {
                Some(lease) if store.keep_alive(lease).await.is_ok() => lease,
                _ => store.grant(shared.lease_ttl).await.map_err(refused)?,
            };
            let expected = before.map_or(Revision(0), |entry| entry.revision);
            let value = json(&record).map_err(refused)?;
            match store.compare_and_swap(&key, expected, value, Some(lease)).await {
                Ok(Some(revision)) => break (lease, revision),
                Ok(None) | Err(StoreError::LeaseEnded(_)) => {}
                Err(error) => return Err(refused(error)),
            }
        };
        let mut session = Self {
            record,
            lease,
            revision,
            out,
            keys: HashSet::new(),
            pending: BTreeMap::new(),
            whole: None,
            serial: 0,
            acknowledged: 0,
            handles: HashMap::new(),
            wants: BTreeSet::new(),
            noted: Revision(0),
            shared,
        };
        session.load_keys().await.map_err(refused)?;
        Ok(session)
    }

    /// What the store has of the node and is not on our lease goes with its own lease, or is written again by the first report.
    async fn load_keys(&mut self) -> Result<(), StoreError> {
        let (entries, _) = self.shared.store.list(&keys::connections_of(&self.record.node)).await?;
        let ours = self.lease;
        self.keys.extend(entries.into_iter().filter(|entry| entry.lease == Some(ours)).map(|entry| entry.key));
        for address in self.shared.index.services().0 {
            if address.node == self.record.node {
                self.keys.insert(keys::service(&address));
            }
        }
        Ok(())
    }

    /// Revision of the node's record as this session wrote it.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Serves the agent until it leaves, is replaced, or says what it may not.
    pub async fn run(mut self, mut inbound: Streaming<proto::FromAgent>, mut notes: mpsc::Receiver<Note>) {
        let outcome = self.serve(&mut inbound, &mut notes).await;
        self.shared.loads.handle_gone(&self.record.node);
        if let Err(status) = outcome {
            let _ = self.out.send(Err(status)).await;
        }
    }

    async fn serve(
        &mut self,
        inbound: &mut Streaming<proto::FromAgent>,
        notes: &mut mpsc::Receiver<Note>,
    ) -> Result<(), Status> {
        self.welcome().await?;
        let ttl = self.shared.lease_ttl;
        let mut renewal = tokio::time::interval(ttl / 3);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heard = self.shared.clock.now();
        let mut nonce = 0;
        let mut writing: Option<Writing> = None;
        let mut renewing: Option<Renewing> = None;
        loop {
            if writing.is_none() {
                // Only now: a write on its way may have been our own change of the record.
                if self.noted > self.revision {
                    return Err(Status::aborted("another agent of this node has joined"));
                }
                writing = self.next_write();
            }
            tokio::select! {
                message = inbound.message() => {
                    let Some(message) = message? else { return Ok(()) };
                    heard = self.shared.clock.now();
                    self.hear(message).await?;
                }
                note = notes.recv() => match note {
                    Some(Note::Message(message)) => self.tell(message).await?,
                    Some(Note::NodeRecord(revision)) => self.noted = self.noted.max(revision),
                    Some(Note::NodeGone) => return Err(Status::aborted("the lease has ended: join again")),
                    None => return Err(Status::unavailable("this replica ends, or the agent has joined anew")),
                },
                _ = renewal.tick() => {
                    if self.shared.clock.now().saturating_sub(heard) > ttl {
                        return Err(Status::deadline_exceeded("nothing was heard of the agent for its whole lease"));
                    }
                    nonce += 1;
                    // Beside the rest: neither a slow store nor an agent that does not read may keep the lease from being renewed.
                    if renewing.is_none() {
                        renewing = Some(self.renew());
                    }
                    self.ping(nonce)?;
                }
                outcome = pending(renewing.as_mut()) => {
                    renewing = None;
                    outcome?;
                }
                outcome = pending(writing.as_mut().map(|writing| &mut writing.outcome)) => {
                    let Some(done) = writing.take() else { continue };
                    self.written(done, outcome).await?;
                }
            }
        }
    }

    fn renew(&self) -> Renewing {
        let (store, lease) = (Arc::clone(&self.shared.store), self.lease);
        Box::pin(async move {
            match store.keep_alive(lease).await {
                Ok(()) => Ok(()),
                // It may still be kept in time.
                Err(error) if error.is_passing() => Ok(()),
                Err(StoreError::LeaseEnded(_)) => Err(Status::aborted("the lease has ended: join again")),
                Err(error) => Err(refused(error)),
            }
        })
    }

    /// An agent whose queue is full has enough to read; one that has gone is noticed.
    fn ping(&self, nonce: u64) -> Result<(), Status> {
        let message = proto::ToAgent { message: Some(to_agent::Message::Ping(proto::Ping { nonce })) };
        match self.out.try_send(Ok(message)) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Status::cancelled("the agent has gone")),
            _ => Ok(()),
        }
    }

    async fn welcome(&mut self) -> Result<(), Status> {
        let shared = Arc::clone(&self.shared);
        self.tell(to_agent::Message::Welcome(proto::Welcome {
            replica: shared.name.clone(),
            lease_ms: shared.lease_ttl.as_millis() as u32,
            load_interval_ms: shared.load_interval.as_millis() as u32,
            replicas: shared.replicas(),
        }))
        .await?;
        if let Some(policy) = shared.policy() {
            self.tell(policy).await?;
        }
        let prefix = format!("{}{}/", keys::ORDERS, keys::part(&self.record.node));
        for entry in shared.store.list(&prefix).await.map_err(refused)?.0 {
            if let Some(message) = waiting_order(&entry.key, &entry.value) {
                self.tell(message).await?;
            }
        }
        Ok(())
    }

    async fn tell(&self, message: to_agent::Message) -> Result<(), Status> {
        let message = proto::ToAgent { message: Some(message) };
        // An agent that takes nothing for a whole lease is gone.
        match self.out.send_timeout(Ok(message), self.shared.lease_ttl).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Status::deadline_exceeded("the agent does not read")),
        }
    }

    async fn hear(&mut self, message: proto::FromAgent) -> Result<(), Status> {
        match message.message {
            Some(from_agent::Message::Report(report)) => self.report(report)?,
            Some(from_agent::Message::Load(load)) => {
                let (handles, shared) = (&self.handles, &self.shared);
                let id = |handle| handles.get(&handle).cloned();
                let now = shared.clock.now();
                if !shared.loads.handle_load(&self.record.node, &self.record.ports, &load, id, now) {
                    return Err(Status::invalid_argument("a load that does not fit the ports of this node"));
                }
            }
            Some(from_agent::Message::Want(want)) => self.want(want).await?,
            Some(from_agent::Message::Answer(answer)) => self.answer(&answer).await?,
            Some(from_agent::Message::Holdings(all)) => {
                let value = json(&message::holdings(&all)?).map_err(refused)?;
                self.pending.insert(keys::holdings(&self.record.node), Some(value));
            }
            Some(from_agent::Message::Pong(_)) => {}
            Some(from_agent::Message::Hello(_)) => return Err(Status::invalid_argument("a second Hello")),
            // Of a newer version: left out.
            None => {}
        }
        Ok(())
    }

    fn report(&mut self, report: proto::Report) -> Result<(), Status> {
        if report.serial != self.serial + 1 {
            return Err(Status::invalid_argument(format!("report {} after {}", report.serial, self.serial)));
        }
        self.serial = report.serial;
        let mut named = Vec::new();
        for connection in &report.connections {
            let record = message::connection(connection)?;
            let process = message::name("process", &connection.process, false)?;
            let key = keys::connection(&self.record.node, &process, &record.id);
            if connection.handle != 0 {
                self.handles.insert(connection.handle, record.id.clone());
            }
            let closed = record.state == ConnectionState::Closed;
            let value = if closed { None } else { Some(json(&record).map_err(refused)?) };
            named.push((key, value));
        }
        for gone in &report.removed_connections {
            let id = message::connection_id(gone.id.as_ref())?;
            self.handles.retain(|_, known| *known != id);
            named.push((keys::connection(&self.record.node, &gone.process, &id), None));
        }
        for service in &report.services {
            let address = message::service(service)?;
            if address.node != self.record.node {
                return Err(Status::permission_denied("a service of another node"));
            }
            named.push((keys::service(&address), Some(json(&address).map_err(refused)?)));
        }
        for gone in &report.removed_services {
            let address = message::service(gone)?;
            if address.node != self.record.node {
                return Err(Status::permission_denied("a service of another node"));
            }
            named.push((keys::service(&address), None));
        }
        if !report.ports.is_empty() {
            self.record.ports = ports(&report.ports)?;
            self.record.neighbours =
                report.neighbours.iter().take(MAX_PORTS).map(neighbour).collect::<Result<_, _>>()?;
            named.push((keys::node(&self.record.node), Some(json(&self.record).map_err(refused)?)));
        }
        if report.whole && self.whole.is_none() {
            self.whole = Some(BTreeSet::new());
        }
        if let Some(whole) = &mut self.whole {
            whole.extend(named.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key.clone()));
        }
        self.pending.extend(named);
        if !report.more
            && let Some(whole) = self.whole.take()
        {
            let gone = self.keys.iter().filter(|key| !whole.contains(*key));
            self.pending.extend(gone.map(|key| (key.clone(), None)));
        }
        if self.pending.len() + self.keys.len() > 2 * MAX_KEYS {
            return Err(Status::resource_exhausted(format!("a node has at most {MAX_KEYS} connections and services")));
        }
        Ok(())
    }

    fn next_write(&mut self) -> Option<Writing> {
        // What the store has already need not be deleted twice.
        let keys = &self.keys;
        self.pending.retain(|key, value| value.is_some() || keys.contains(key));
        if self.pending.is_empty() {
            if self.acknowledged != self.serial && self.whole.is_none() {
                self.acknowledged = self.serial;
                let taken = proto::ReportTaken { serial: self.serial };
                let _ = self.out.try_send(Ok(proto::ToAgent { message: Some(to_agent::Message::Taken(taken)) }));
            }
            return None;
        }
        let mut taken: Vec<(String, Option<Vec<u8>>)> = Vec::with_capacity(TOGETHER);
        while taken.len() < TOGETHER
            && let Some(one) = self.pending.pop_first()
        {
            taken.push(one);
        }
        let lease = Some(self.lease);
        let change = |(key, value): &(String, Option<Vec<u8>>)| match value.clone() {
            Some(value) => Change::Put { key: key.clone(), value, lease },
            None => Change::Delete { key: key.clone() },
        };
        let changes: Vec<Change> = taken.iter().map(change).collect();
        let guard = Guard { key: keys::node(&self.record.node), revision: self.revision };
        let store = Arc::clone(&self.shared.store);
        let outcome = Box::pin(async move {
            let outcome = store.transact(vec![guard], changes).await;
            if outcome.as_ref().is_err_and(StoreError::is_passing) {
                tokio::time::sleep(PAUSE).await;
            }
            outcome
        });
        Some(Writing { taken, outcome })
    }

    async fn written(&mut self, done: Writing, outcome: Result<Option<Revision>, StoreError>) -> Result<(), Status> {
        match outcome {
            Ok(Some(revision)) => {
                let node = keys::node(&self.record.node);
                for (key, value) in done.taken {
                    if key == node {
                        self.revision = revision;
                    } else if value.is_some() {
                        self.keys.insert(key);
                    } else {
                        self.keys.remove(&key);
                    }
                }
                Ok(())
            }
            Ok(None) => {
                Err(Status::aborted("another agent of this node has joined, or the lease has ended: join again"))
            }
            Err(error) if error.is_passing() => {
                for (key, value) in done.taken {
                    // Not known whether it is there: it must be deleted if it is to go.
                    self.keys.insert(key.clone());
                    self.pending.entry(key).or_insert(value);
                }
                Ok(())
            }
            Err(error) => Err(refused(error)),
        }
    }

    async fn want(&mut self, want: proto::Want) -> Result<(), Status> {
        if want.services.len() > MAX_WANTS {
            return Err(Status::resource_exhausted(format!("an agent may ask for {MAX_WANTS} services")));
        }
        let wants: BTreeSet<String> =
            want.services.iter().map(|name| message::name("service", name, false)).collect::<Result<_, _>>()?;
        self.shared.set_wants(&self.record.node, self.revision, &wants);
        for service in wants.difference(&self.wants) {
            self.tell(self.shared.service_update(service)).await?;
        }
        self.wants = wants;
        Ok(())
    }

    async fn answer(&mut self, answer: &proto::OrderAnswer) -> Result<(), Status> {
        let key = keys::order(&self.record.node, &answer.id);
        let answer = message::answer(answer)?;
        let store = Arc::clone(&self.shared.store);
        // Beside the session: an answer may wait for the store.
        tokio::spawn(async move {
            for _ in 0..60 {
                let outcome = async {
                    let Some(entry) = store.get(&key).await? else { return Ok(true) };
                    let Ok(mut record) = serde_json::from_slice::<OrderRecord>(&entry.value) else { return Ok(true) };
                    if record.answer.is_some() {
                        return Ok(true);
                    }
                    record.answer = Some(answer.clone());
                    let written = store.compare_and_swap(&key, entry.revision, json(&record)?, None).await?;
                    Ok::<bool, StoreError>(written.is_some())
                };
                match outcome.await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        });
        Ok(())
    }
}

struct Writing {
    taken: Vec<(String, Option<Vec<u8>>)>,
    outcome: OnItsWay<Result<Option<Revision>, StoreError>>,
}

type OnItsWay<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;
type Renewing = OnItsWay<Result<(), Status>>;

/// What is on its way, if there is anything.
async fn pending<'a, T: 'a>(on_its_way: impl Into<Option<&'a mut OnItsWay<T>>>) -> T {
    match on_its_way.into() {
        Some(on_its_way) => on_its_way.await,
        None => std::future::pending().await,
    }
}

/// An order of the store that has no answer yet.
pub fn waiting_order(key: &str, value: &[u8]) -> Option<to_agent::Message> {
    let record: OrderRecord = serde_json::from_slice(value).ok()?;
    let id = keys::parts(key)?.into_iter().nth(1)?;
    record.answer.is_none().then(|| to_agent::Message::Order(message::order_message(&id, &record.order)))
}

/// The store's failure, for an agent.
pub fn refused(error: StoreError) -> Status {
    match error {
        StoreError::Unavailable(_) | StoreError::NotDone(_) => Status::unavailable(error.to_string()),
        StoreError::Broken(_) => Status::data_loss(error.to_string()),
        other => Status::internal(other.to_string()),
    }
}
