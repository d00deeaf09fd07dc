//! What the agent knows: processes, their connections and services, what control told, and which orders are on their way. All under one lock that is
//! held for moments; the door and the uplink tell it what happened and take what is for them.

mod orders;

use super::State;
use super::carrying::Carrying;
use crate::clock::Clock;
use crate::local::{FromProcess, MAX_CARRIED, PROTOCOL, Policy, ToProcess};
use crate::memory::Memory;
use crate::message::{self, Answer};
use crate::proto::control as proto;
use scalefabric_fabric::directory::{
    ConnectionId, ConnectionRecord, ConnectionState, Holdings, Order, OrderResult, ServiceAddress,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// How long a process may take to answer an order.
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers that are kept, for orders that come a second time.
const KEPT_ANSWERS: usize = 4096;
/// How long control's word on a service is waited for while it is joined, before a process hears what is remembered.
const ANSWER: Duration = Duration::from_millis(500);
/// Most tenants that a process works for.
const MAX_TENANTS: usize = 64;
/// Most processes of a node.
const MAX_PROCESSES: usize = 4096;
/// Most connections and services of a process.
const MAX_RECORDS: usize = 1 << 18;

/// A process that has the agent open, as long as it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey(u64);

/// The hub.
#[derive(Debug)]
pub struct Hub {
    node: String,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    /// Something is to be told to control.
    pub upward: Notify,
    /// Tenants have more or less than before, here or elsewhere: processes are to be told.
    pub holdings: Notify,
    /// Tenants have more or less here: control is to be told.
    pub held: Notify,
    /// The policy has changed.
    pub policy_changed: Notify,
    told: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    processes: HashMap<ProcessKey, Process>,
    serial: u64,
    handles: u32,
    memory: Memory,
    remember: bool,
    /// Services that any process wants.
    wants: BTreeSet<String>,
    wants_changed: bool,
    /// Of those: what the replica that is joined has told.
    told_services: BTreeSet<String>,
    /// Processes that asked for a service of which it has told nothing yet, and until when that is waited for.
    asking: Vec<(Duration, ProcessKey, String)>,
    changed: Changed,
    /// Sent to processes and not answered.
    waiting: HashMap<String, Waiting>,
    answers: VecDeque<(String, Answer)>,
    /// For control.
    to_tell: Vec<(String, Answer)>,
    /// What tenants have on other nodes.
    elsewhere: BTreeMap<String, Holdings>,
    /// What they have here, as control was told last.
    told_holdings: BTreeMap<String, Holdings>,
    replica: Option<String>,
    trouble: Option<String>,
}

/// A service and the exchange where it can be reached: a node has several, of one process or of several.
type Offered = (String, String);

/// What control has yet to hear.
#[derive(Debug, Default)]
struct Changed {
    connections: BTreeSet<(ProcessKey, ConnectionId)>,
    gone: BTreeMap<(String, ConnectionId), ()>,
    services: BTreeSet<Offered>,
}

#[derive(Debug)]
struct Process {
    name: String,
    /// `None`: it did not take its messages, and is being cut off.
    out: Option<mpsc::Sender<Arc<ToProcess>>>,
    records: HashMap<ConnectionId, (ConnectionRecord, u32)>,
    offers: BTreeMap<Offered, ServiceAddress>,
    carried: HashMap<ConnectionId, Carrying>,
    /// Its number as it sees it itself, which is part of the names of the connections that it makes.
    pid: u32,
    /// What tenants have in it.
    holdings: BTreeMap<String, Holdings>,
}

/// Whether a process with this number, of this node, made a connection: origins are `<node>/<process>-<start>`.
fn is_made_by(id: &ConnectionId, node: &str, pid: u32) -> bool {
    let Some((of, process)) = id.origin.split_once('/') else { return false };
    of == node && process.split('-').next().is_some_and(|number| number.parse() == Ok(pid))
}

#[derive(Debug)]
struct Waiting {
    processes: BTreeSet<ProcessKey>,
    worst: Option<OrderResult>,
    until: Duration,
}

impl Hub {
    /// An empty one that remembers.
    pub fn new(node: &str, memory: Memory, clock: Arc<dyn Clock>) -> Self {
        let inner = Inner { memory, ..Inner::default() };
        let [upward, holdings, held, policy_changed, told] = std::array::from_fn(|_| Notify::new());
        Self { node: node.to_owned(), clock, inner: Mutex::new(inner), upward, holdings, held, policy_changed, told }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has come. `None`: there are too many.
    pub fn handle_process(&self, pid: i32, out: mpsc::Sender<Arc<ToProcess>>) -> Option<ProcessKey> {
        let mut inner = self.inner();
        if inner.processes.len() >= MAX_PROCESSES {
            return None;
        }
        inner.serial += 1;
        let key = ProcessKey(inner.serial);
        // The first of a process bears its number; a second directory in the same process is told from it.
        let taken = |name: &str| inner.processes.values().any(|process| process.name == name);
        let mut name = pid.to_string();
        let mut more = 1;
        while taken(&name) {
            more += 1;
            name = format!("{pid}-{more}");
        }
        let process = Process {
            name,
            out: Some(out),
            records: HashMap::new(),
            offers: BTreeMap::new(),
            carried: HashMap::new(),
            pid: 0,
            holdings: BTreeMap::new(),
        };
        inner.processes.insert(key, process);
        Some(key)
    }

    /// A process has gone: so have its connections and services.
    pub fn handle_process_gone(&self, key: ProcessKey) {
        let mut inner = self.inner();
        let Some(process) = inner.processes.remove(&key) else { return };
        for id in process.records.into_keys() {
            inner.changed.gone.insert((process.name.clone(), id), ());
        }
        inner.changed.services.extend(process.offers.into_keys());
        let left: Vec<String> =
            inner.waiting.iter().filter(|(_, one)| one.processes.contains(&key)).map(|(id, _)| id.clone()).collect();
        for id in left {
            inner.answered(key, &id, OrderResult::RolledBack { reason: "the process has ended".into() });
        }
        drop(inner);
        self.upward.notify_one();
        self.holdings.notify_one();
        self.held.notify_one();
    }

    /// What a process says. False: it makes no sense.
    pub fn handle_message(&self, key: ProcessKey, message: FromProcess) -> bool {
        let now = self.clock.now();
        // Loads go with the next measurement.
        let urgent = !matches!(message, FromProcess::Carried { .. } | FromProcess::Hold { .. });
        let of_tenant = matches!(message, FromProcess::Hold { .. });
        let sense = self.inner().hear(&self.node, key, message, now);
        if urgent {
            self.upward.notify_one();
        } else if of_tenant {
            self.holdings.notify_one();
            self.held.notify_one();
        }
        sense
    }

    /// Addresses of a service, from control.
    pub fn handle_services(&self, service: &str, addresses: Vec<ServiceAddress>) {
        let mut inner = self.inner();
        if !inner.wants.contains(service) {
            return;
        }
        inner.memory.services.insert(service.to_owned(), addresses.clone());
        inner.remember = true;
        inner.told_services.insert(service.to_owned());
        inner.asking.retain(|(_, _, asked)| asked != service);
        let message = Arc::new(ToProcess::Services { service: service.to_owned(), addresses });
        inner.processes.values_mut().for_each(|process| _ = process.tell(&message));
    }

    /// The policy, from control.
    pub fn handle_policy(&self, json: &[u8]) {
        let Ok(tenants) = serde_json::from_slice(json) else { return };
        let mut inner = self.inner();
        if inner.memory.policy.as_ref() == Some(&tenants) {
            return;
        }
        inner.memory.policy = Some(tenants.clone());
        inner.remember = true;
        let message = Arc::new(ToProcess::Policy { tenants });
        inner.processes.values_mut().for_each(|process| _ = process.tell(&message));
        drop(inner);
        self.policy_changed.notify_one();
    }

    /// An order, from control.
    pub fn handle_order(&self, id: &str, order: &Order) {
        // Old keys are withdrawn before that is answered.
        let overlap_ms = if let Order::RotateKeys { overlap_ms, .. } = order { *overlap_ms } else { 0 };
        let until = self.clock.now() + PATIENCE + Duration::from_millis(overlap_ms);
        self.inner().order(id, order, until);
        self.upward.notify_one();
    }

    /// What tenants have on other nodes, from control.
    pub fn handle_elsewhere(&self, elsewhere: BTreeMap<String, Holdings>) {
        self.inner().elsewhere = elsewhere;
        self.holdings.notify_one();
    }

    /// Tells each process what tenants have outside it.
    pub fn spread_holdings(&self) {
        let mut inner = self.inner();
        let mut all = inner.elsewhere.clone();
        sum(&mut all, inner.processes.values().flat_map(|process| &process.holdings));
        for process in inner.processes.values_mut().filter(|process| !process.holdings.is_empty()) {
            let mut tenants = all.clone();
            tenants.retain(|tenant, _| process.holdings.contains_key(tenant));
            for (tenant, own) in &process.holdings {
                if let Some(sum) = tenants.get_mut(tenant) {
                    sum.qps -= own.qps;
                    sum.mrs -= own.mrs;
                    sum.memory_bytes = sum.memory_bytes.saturating_sub(own.memory_bytes);
                }
            }
            process.tell(&Arc::new(ToProcess::Elsewhere { tenants }));
        }
    }

    /// What tenants have on this node, if that changed; `anew`: in any case.
    pub fn take_holdings(&self, anew: bool) -> Option<BTreeMap<String, Holdings>> {
        let mut inner = self.inner();
        let mut all = BTreeMap::new();
        sum(&mut all, inner.processes.values().flat_map(|process| &process.holdings));
        all.retain(|_, holdings| *holdings != Holdings::default());
        if !anew && all == inner.told_holdings {
            return None;
        }
        inner.told_holdings.clone_from(&all);
        Some(all)
    }

    /// The policy, as it is known now.
    pub fn policy(&self) -> Option<Policy> {
        self.inner().memory.policy.clone()
    }

    /// Joined, or not, and why.
    pub fn handle_uplink(&self, replica: Option<String>, trouble: Option<String>) {
        let mut inner = self.inner();
        if replica.is_none() || inner.replica != replica {
            inner.told_services.clear();
        }
        if replica.is_none() {
            inner.tell_remembered(None);
        }
        if (inner.replica != replica) || (inner.trouble != trouble) {
            (inner.replica, inner.trouble) = (replica, trouble);
            drop(inner);
            self.told.notify_waiters();
        }
    }

    /// Who has waited for control's word on a service for long enough hears what is remembered.
    pub fn tell_remembered(&self) {
        let now = self.clock.now();
        self.inner().tell_remembered(Some(now));
    }

    /// Where replicas are, from control.
    pub fn handle_replicas(&self, replicas: Vec<String>) {
        let mut inner = self.inner();
        if inner.memory.replicas != replicas {
            inner.memory.replicas = replicas;
            inner.remember = true;
        }
    }

    /// Everything, for a replica that was just joined: what was changed before is in it.
    pub fn take_whole(&self) -> (Vec<proto::Connection>, Vec<proto::Service>, Vec<String>) {
        let mut inner = self.inner();
        inner.changed = Changed::default();
        inner.wants_changed = false;
        let processes = inner.processes.values();
        let connections = processes.flat_map(|process| process.records.values().map(|one| process.message(one)));
        let connections = connections.collect();
        let offers = inner.processes.values().flat_map(|process| process.offers.values());
        let services: BTreeMap<(&str, &str), proto::Service> =
            offers.map(|one| ((one.service.as_str(), one.exchange.as_str()), message::service_message(one))).collect();
        (connections, services.into_values().collect(), inner.wants.iter().cloned().collect())
    }

    /// What changed; `None` if nothing did.
    pub fn take_changes(&self) -> Option<proto::Report> {
        let mut inner = self.inner();
        let changed = std::mem::take(&mut inner.changed);
        let mut report = proto::Report::default();
        for (key, id) in changed.connections {
            let Some(process) = inner.processes.get(&key) else { continue };
            report.connections.extend(process.records.get(&id).map(|one| process.message(one)));
        }
        for (process, id) in changed.gone.into_keys() {
            let id = Some(message::connection_id_message(&id));
            report.removed_connections.push(proto::LocalConnectionId { id, process });
        }
        for offered in changed.services {
            match inner.processes.values().find_map(|process| process.offers.get(&offered)) {
                Some(address) => report.services.push(message::service_message(address)),
                None => {
                    let ((service, exchange), node) = (offered, self.node.clone());
                    report.removed_services.push(proto::Service { service, node, exchange, ..Default::default() });
                }
            }
        }
        let empty = report.connections.is_empty()
            && report.removed_connections.is_empty()
            && report.services.is_empty()
            && report.removed_services.is_empty();
        (!empty).then_some(report)
    }

    /// What is wanted, if that changed.
    pub fn take_wants(&self) -> Option<Vec<String>> {
        let mut inner = self.inner();
        std::mem::take(&mut inner.wants_changed).then(|| inner.wants.iter().cloned().collect())
    }

    /// Answers for control, those that time has given among them.
    pub fn take_answers(&self) -> Vec<(String, Answer)> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let late: Vec<String> =
            inner.waiting.iter().filter(|(_, one)| one.until <= now).map(|(id, _)| id.clone()).collect();
        for id in late {
            inner.waiting.remove(&id);
            inner.settle(id, Answer::NotHere { reason: format!("the process did not answer within {PATIENCE:?}") });
        }
        std::mem::take(&mut inner.to_tell)
    }

    /// What the busiest connections carry in an interval, at most so many.
    pub fn take_carried(&self, interval: Duration, most: usize) -> Vec<proto::ConnectionLoad> {
        let now = self.clock.now();
        let mut inner = self.inner();
        let mut loads = Vec::new();
        for Process { carried, records, pid, .. } in inner.processes.values_mut() {
            carried.retain(|_, carrying| !carrying.is_quiet(now));
            let handle = |id| records.get(id).map(|(_, handle)| *handle);
            let load = |(id, carrying): (_, &Carrying)| {
                Some(carrying.within(now, interval, handle(id)?, !is_made_by(id, &self.node, *pid)))
            };
            loads.extend(carried.iter().filter_map(load));
        }
        loads.sort_unstable_by_key(|load| std::cmp::Reverse(load.tx_bytes.saturating_add(load.rx_bytes)));
        loads.truncate(most);
        loads
    }

    /// The memory, if it changed.
    pub fn take_memory(&self) -> Option<Memory> {
        let mut inner = self.inner();
        std::mem::take(&mut inner.remember).then(|| inner.memory.clone())
    }

    /// Replicas that were heard of.
    pub fn replicas(&self) -> Vec<String> {
        self.inner().memory.replicas.clone()
    }

    /// How the agent is.
    pub fn state(&self) -> State {
        let inner = self.inner();
        State {
            replica: inner.replica.clone(),
            trouble: inner.trouble.clone(),
            processes: inner.processes.len(),
            connections: inner.processes.values().map(|process| process.records.len()).sum(),
        }
    }

    /// Waits for a change of the uplink.
    pub async fn changed(&self) {
        self.told.notified().await;
    }
}

/// Adds up what tenants have.
fn sum<'a>(all: &mut BTreeMap<String, Holdings>, more: impl Iterator<Item = (&'a String, &'a Holdings)>) {
    for (tenant, holdings) in more {
        let sum = all.entry(tenant.clone()).or_default();
        sum.qps += holdings.qps;
        sum.mrs += holdings.mrs;
        sum.memory_bytes = sum.memory_bytes.saturating_add(holdings.memory_bytes);
    }
}

impl Process {
    /// One that does not take its messages is cut off: its queue ends, and so does its socket. It comes back and hears everything anew.
    fn tell(&mut self, message: &Arc<ToProcess>) -> bool {
        let told = self.out.as_ref().is_some_and(|out| out.try_send(Arc::clone(message)).is_ok());
        if !told {
            self.out = None;
        }
        told
    }

    fn message(&self, (record, handle): &(ConnectionRecord, u32)) -> proto::Connection {
        let mut message = message::connection_message(record);
        message.handle = *handle;
        message.process.clone_from(&self.name);
        message
    }
}

impl Inner {
    fn hear(&mut self, node: &str, key: ProcessKey, message: FromProcess, now: Duration) -> bool {
        let mut held = BTreeMap::new();
        if matches!(message, FromProcess::Hello { .. }) {
            held.clone_from(&self.elsewhere);
            sum(&mut held, self.processes.values().flat_map(|process| &process.holdings));
        }
        let Some(process) = self.processes.get_mut(&key) else { return false };
        match message {
            FromProcess::Hello { pid, .. } => {
                process.pid = pid;
                process.tell(&Arc::new(ToProcess::Welcome { protocol: PROTOCOL, node: node.to_owned() }));
                // Before the rules: who has heard of a quota has heard what of it is used up. From its first object on it is told of changes.
                if !held.is_empty() {
                    process.tell(&Arc::new(ToProcess::Elsewhere { tenants: held }));
                }
                if let Some(tenants) = self.memory.policy.clone() {
                    process.tell(&Arc::new(ToProcess::Policy { tenants }));
                }
            }
            FromProcess::Publish { record } => return self.publish(key, record),
            FromProcess::Offer { mut address } => {
                address.node = node.to_owned();
                let sense = message::service(&message::service_message(&address)).is_ok();
                if !sense || process.offers.len() >= MAX_RECORDS {
                    return false;
                }
                let offered = (address.service.clone(), address.exchange.clone());
                self.changed.services.insert(offered.clone());
                process.offers.insert(offered, address);
            }
            FromProcess::Withdraw { service, exchange } => {
                let offered = (service, exchange);
                if process.offers.remove(&offered).is_some() {
                    self.changed.services.insert(offered);
                }
            }
            FromProcess::Want { service } => {
                if message::name("service", &service, false).is_err() {
                    return false;
                }
                // What is remembered may be long gone: control knows, if it is there.
                if self.replica.is_some() && !self.told_services.contains(&service) {
                    self.asking.push((now + ANSWER, key, service.clone()));
                } else if let Some(addresses) = self.memory.services.get(&service) {
                    let addresses = addresses.clone();
                    process.tell(&Arc::new(ToProcess::Services { service: service.clone(), addresses }));
                }
                self.wants_changed |= self.wants.insert(service);
            }
            FromProcess::Answer { id, outcome } => self.answered(key, &id, outcome),
            FromProcess::Hold { tenant, holdings } => {
                let known = process.holdings.contains_key(&tenant);
                let too_much = holdings.qps.max(holdings.mrs) > MAX_RECORDS as u64;
                if message::name("tenant", &tenant, false).is_err()
                    || too_much
                    || (!known && process.holdings.len() >= MAX_TENANTS)
                {
                    return false;
                }
                process.holdings.insert(tenant, holdings);
            }
            FromProcess::Carried { interval_us, connections } => {
                if interval_us == 0 || connections.len() > MAX_CARRIED {
                    return false;
                }
                let interval = Duration::from_micros(interval_us.into());
                for carried in connections {
                    if process.records.contains_key(&carried.id) {
                        let fresh = || Carrying::new(now, interval);
                        let carrying = process.carried.entry(carried.id.clone()).or_insert_with(fresh);
                        carrying.tell(now, interval, &carried);
                    }
                }
            }
        }
        true
    }

    /// What is remembered of services, to those who have asked and waited until `now`; `None`: to all who wait.
    fn tell_remembered(&mut self, now: Option<Duration>) {
        let due = |(until, _, _): &mut (Duration, ProcessKey, String)| now.is_none_or(|now| *until <= now);
        for (_, key, service) in self.asking.extract_if(.., due) {
            let (Some(process), Some(addresses)) = (self.processes.get_mut(&key), self.memory.services.get(&service))
            else {
                continue;
            };
            process.tell(&Arc::new(ToProcess::Services { service, addresses: addresses.clone() }));
        }
    }

    fn publish(&mut self, key: ProcessKey, record: ConnectionRecord) -> bool {
        let Some(process) = self.processes.get_mut(&key) else { return false };
        if message::connection(&message::connection_message(&record)).is_err() {
            return false;
        }
        let id = record.id.clone();
        if record.state == ConnectionState::Closed {
            if process.records.remove(&id).is_some() {
                self.changed.connections.remove(&(key, id.clone()));
                self.changed.gone.insert((process.name.clone(), id), ());
            }
            return true;
        }
        let known = process.records.get(&id);
        if known.is_some_and(|(known, _)| known.generation > record.generation) {
            return true;
        }
        if known.is_none() && process.records.len() >= MAX_RECORDS {
            return false;
        }
        let handle = known.map(|(_, handle)| *handle).unwrap_or_else(|| {
            self.handles += 1;
            self.handles
        });
        self.changed.gone.remove(&(process.name.clone(), id.clone()));
        process.records.insert(id.clone(), (record, handle));
        self.changed.connections.insert((key, id));
        true
    }
}
