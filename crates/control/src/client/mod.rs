//! The control plane as a process of the fabric sees it: [`AgentDirectory`] speaks with the agent of the node over its Unix socket. No call waits: what
//! is told is sent by a thread when it can be, what is asked is answered from memory, and the memory is also a file, so that a process that
//! starts while agent and control are away still finds its peers.

#[cfg(test)]
mod hand;
mod link;

pub use link::token;

use crate::local::{Carried, FromProcess, Policy};
use crate::memory::Memory;
use crate::tenant::{Quota, Tenants};
use scalefabric_fabric::directory::{
    Allowance, ConnectionId, ConnectionRecord, ConnectionState, Holdings, Limit, Look, Order, OrderId, OrderResult,
    ServiceAddress,
};
use scalefabric_fabric::{Directory, FabricError, Fault};
use scalefabric_verbs::PKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often processes tell what their connections carry: as often as agents tell control by default.
const LOAD_INTERVAL: Duration = Duration::from_millis(100);

/// Judges by policy whether a connection of a tenant may be made to a service, and in which partition.
pub type Judge = fn(&Policy, tenant: &str, service: &str) -> Result<PKey, FabricError>;

/// How a process reaches its agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's socket. Default [`crate::local::default_socket`].
    pub socket: PathBuf,
    /// Where addresses and policy are remembered; `None`: only in memory.
    pub memory: Option<PathBuf>,
    /// Judges connections. Default: the tenants' rules.
    pub judge: Judge,
}

impl Default for Settings {
    fn default() -> Self {
        Self { socket: crate::local::default_socket(), memory: default_memory(), judge: by_tenants }
    }
}

/// By the tenants' rules. Where nobody has given any, everybody may; rules that this version cannot read let nobody in.
fn by_tenants(policy: &Policy, tenant: &str, service: &str) -> Result<PKey, FabricError> {
    let Some(rules) = rules(policy)? else { return Ok(PKey::DEFAULT) };
    rules.may_connect(tenant, service).map(|grant| grant.pkey).map_err(|denied| refused(denied.to_string()))
}

/// The tenants' rules of a policy, if it has any.
fn rules(policy: &Policy) -> Result<Option<Tenants>, FabricError> {
    let rules = policy.get(crate::keys::TENANT_RULES).cloned().map(serde_json::from_value).transpose();
    rules.map_err(|error| refused(format!("the tenants' rules cannot be read: {error}; use the version of control")))
}

fn refused(why: String) -> FabricError {
    FabricError::new(Fault::NoAuthority, why)
}

/// The quotas of a policy. One that this version cannot read has none: it lets nobody connect, so there is little to have.
fn quotas(policy: Option<&Policy>) -> BTreeMap<String, Quota> {
    let rules = policy.and_then(|policy| policy.get(crate::keys::TENANT_RULES));
    let rules = rules.and_then(|rules| serde_json::from_value::<Tenants>(rules.clone()).ok()).unwrap_or_default();
    rules.tenants.into_iter().map(|tenant| (tenant.name, tenant.quota)).collect()
}

/// `$XDG_CACHE_HOME/scalefabric/directory.json`, or the same in `~/.cache`.
fn default_memory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("scalefabric/directory.json"))
}

/// The directory of a process.
pub struct AgentDirectory {
    shared: Arc<Shared>,
    judge: Judge,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for AgentDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentDirectory").field("node", &self.node()).finish_non_exhaustive()
    }
}

/// What calls and the thread share. The lock is held for moments only, never while anything is read, written or waited for.
struct Shared {
    state: Mutex<State>,
    /// There is something to do for the thread.
    wake: Condvar,
    /// Who looks when the policy has changed. Never locked with the state.
    looks: Mutex<Vec<(String, Look)>>,
}

#[derive(Default)]
struct State {
    /// All connections that are not closed.
    records: HashMap<ConnectionId, ConnectionRecord>,
    /// By service and exchange.
    offers: BTreeMap<(String, String), ServiceAddress>,
    wants: BTreeSet<String>,
    /// Of those: what the present link has answered.
    answered: BTreeSet<String>,
    memory: Memory,
    /// To be sent; on a new link everything is sent anew instead.
    changed: Vec<ConnectionId>,
    /// Closed connections that the agent has yet to hear of.
    closed: Vec<ConnectionRecord>,
    queue: VecDeque<FromProcess>,
    /// What was carried, in how many microseconds, and has not been sent.
    carried: HashMap<ConnectionId, (Carried, u64)>,
    /// What tenants have here, and of which the agent has yet to hear.
    holdings: BTreeMap<String, Holdings>,
    held: BTreeSet<String>,
    /// What they have elsewhere.
    elsewhere: BTreeMap<String, Holdings>,
    /// Their quotas, from the policy.
    quotas: BTreeMap<String, Quota>,
    orders: VecDeque<(String, Order)>,
    /// Handed out and not answered: what the agent calls them.
    given: HashMap<OrderId, String>,
    /// How many were handed out.
    handed_out: u64,
    /// Counts links; what came over an earlier one is of no use.
    link: u64,
    linked: bool,
    node: Option<String>,
    remember: bool,
    ending: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the thread.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.wake.notify_one();
        changed
    }

    /// The policy has changed.
    fn look(&self) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.retain(|(tenant, look)| {
            let allowance = self.state().allowance(tenant);
            look(&allowance)
        });
    }
}

impl State {
    fn allowance(&self, tenant: &str) -> Allowance {
        let Some(quota) = self.quotas.get(tenant) else { return Allowance::default() };
        let elsewhere = self.elsewhere.get(tenant).copied().unwrap_or_default();
        let limit = |most: Option<u64>, elsewhere| most.map(|most| Limit { most, elsewhere });
        Allowance {
            qps: limit(quota.qps, elsewhere.qps),
            mrs: limit(quota.mrs, elsewhere.mrs),
            memory_bytes: limit(quota.memory_bytes, elsewhere.memory_bytes),
            rate_bps: quota.rate_bps,
        }
    }
}

impl AgentDirectory {
    /// Begins. An agent that is not there is waited for in the background.
    pub fn new(settings: &Settings) -> Result<Self, FabricError> {
        let memory = settings.memory.as_deref().map(Memory::load).unwrap_or_default();
        let quotas = quotas(memory.policy.as_ref());
        let state = State { memory, quotas, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new(), looks: Mutex::default() });
        let (theirs, settings_there) = (Arc::clone(&shared), settings.clone());
        let thread = std::thread::Builder::new()
            .name("sfab-directory".into())
            .spawn(move || link::run(&theirs, &settings_there))
            .map_err(|error| {
                FabricError::environment(format!("the directory's thread could not be started: {error}"))
            })?;
        Ok(Self { shared, judge: settings.judge, thread: Some(thread) })
    }

    /// Whether the agent is there now.
    pub fn is_linked(&self) -> bool {
        self.shared.state().linked
    }

    /// What a tenant has in this process, as it was told last.
    pub fn held(&self, tenant: &str) -> Holdings {
        self.shared.state().holdings.get(tenant).copied().unwrap_or_default()
    }

    /// The node's name, once the agent has said it.
    pub fn node(&self) -> Option<String> {
        self.shared.state().node.clone()
    }
}

impl Drop for AgentDirectory {
    fn drop(&mut self) {
        self.shared.change(|state| state.ending = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Directory for AgentDirectory {
    fn publish(&self, record: ConnectionRecord) {
        self.shared.change(|state| {
            let known = state.records.get(&record.id);
            if known.is_some_and(|known| known.generation > record.generation) {
                return;
            }
            if record.state == ConnectionState::Closed {
                if state.records.remove(&record.id).is_some() {
                    state.closed.push(record);
                }
                return;
            }
            state.changed.push(record.id.clone());
            state.records.insert(record.id.clone(), record);
        });
    }

    fn offer(&self, address: ServiceAddress) {
        self.shared.change(|state| {
            state.offers.insert((address.service.clone(), address.exchange.clone()), address.clone());
            state.queue.push_back(FromProcess::Offer { address });
        });
    }

    fn withdraw(&self, service: &str, exchange: &str) {
        let offered = (service.to_owned(), exchange.to_owned());
        self.shared.change(|state| {
            if state.offers.remove(&offered).is_some() {
                let (service, exchange) = offered;
                // What is remembered of it is wrong from now on, too: nobody else is at that address.
                if let Some(known) = state.memory.services.get_mut(&service) {
                    let node = state.node.as_ref();
                    let own = |address: &ServiceAddress| node.is_none_or(|node| *node == address.node);
                    known.retain(|address| address.exchange != exchange || !own(address));
                }
                state.queue.push_back(FromProcess::Withdraw { service, exchange });
            }
        });
    }

    fn resolve(&self, service: &str) -> Vec<ServiceAddress> {
        let mut state = self.shared.state();
        if !state.wants.contains(service) {
            state.wants.insert(service.to_owned());
            state.queue.push_back(FromProcess::Want { service: service.to_owned() });
            self.shared.wake.notify_one();
        }
        let mut addresses = state.memory.services.get(service).cloned().unwrap_or_default();
        // What is offered by this very process needs no agent.
        let own = state.offers.values().filter(|own| own.service == service);
        for own in own {
            if !addresses.iter().any(|address| address.exchange == own.exchange) {
                addresses.push(own.clone());
            }
        }
        addresses
    }

    fn may_learn(&self, service: &str) -> bool {
        !self.shared.state().answered.contains(service)
    }

    fn may_connect(&self, tenant: &str, service: &str) -> Result<PKey, FabricError> {
        match &self.shared.state().memory.policy {
            Some(policy) => (self.judge)(policy, tenant, service),
            None => Ok(PKey::DEFAULT),
        }
    }

    fn may_serve(&self, tenant: &str, service: &str) -> Result<(), FabricError> {
        let Some(rules) = self.shared.state().memory.policy.as_ref().map(rules).transpose()?.flatten() else {
            return Ok(());
        };
        rules.may_serve(tenant, service).map_err(|denied| refused(denied.to_string()))
    }

    fn next_order(&self) -> Option<(OrderId, Order)> {
        let mut state = self.shared.state();
        let (name, order) = state.orders.pop_front()?;
        state.handed_out += 1;
        let id = OrderId(state.handed_out);
        state.given.insert(id, name);
        Some((id, order))
    }

    fn answer(&self, order: OrderId, result: OrderResult) {
        self.shared.change(|state| {
            if let Some(id) = state.given.remove(&order) {
                state.queue.push_back(FromProcess::Answer { id, outcome: result });
            }
        });
    }

    /// The rebalancer sees what each connection sends again.
    fn balances(&self) -> bool {
        true
    }

    fn allowance(&self, tenant: &str) -> Allowance {
        self.shared.state().allowance(tenant)
    }

    fn watch_allowance(&self, tenant: &str, look: Look) {
        self.shared.looks.lock().unwrap_or_else(PoisonError::into_inner).push((tenant.to_owned(), look));
    }

    fn holds(&self, tenant: &str, holdings: Holdings) {
        self.shared.change(|state| {
            state.holdings.insert(tenant.to_owned(), holdings);
            state.held.insert(tenant.to_owned());
        });
    }

    fn load_interval(&self) -> Option<Duration> {
        Some(LOAD_INTERVAL)
    }

    fn carried(&self, interval: Duration, connections: Vec<Carried>) {
        let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        self.shared.change(|state| {
            // Nobody listens: what was carried meanwhile is of no use later.
            if !state.linked {
                return;
            }
            for one in connections {
                match state.carried.get_mut(&one.id) {
                    Some((sum, sum_us)) => {
                        sum.tx_bytes += one.tx_bytes;
                        sum.rx_bytes += one.rx_bytes;
                        sum.packets += one.packets;
                        sum.retransmitted += one.retransmitted;
                        *sum_us += interval_us;
                    }
                    None => drop(state.carried.insert(one.id.clone(), (one, interval_us))),
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::ToProcess;
    use scalefabric_fabric::directory::FencingToken;

    #[test]
    fn nobody_serves_what_belongs_to_another_tenant() {
        let rules = serde_json::json!({ "tenant": [
            { "name": "red", "pkey": "0x8011", "services": ["kv"] }, { "name": "blue", "pkey": "0x8012" }] });
        let policy = Policy::from([(crate::keys::TENANT_RULES.to_owned(), rules)]);
        let knowing = |policy| AgentDirectory::by_hand(Memory { policy, ..Memory::default() }, by_tenants);
        let directory = knowing(Some(policy));
        assert!(directory.may_serve("red", "kv").is_ok());
        for stranger in ["blue", ""] {
            let refused = directory.may_serve(stranger, "kv").expect_err("it is red's");
            assert!(refused.fault == Fault::NoAuthority && refused.message.contains("`red`"), "{refused}");
        }
        assert!(directory.may_serve("", "other").is_ok());
        assert!(knowing(None).may_serve("", "kv").is_ok());
    }

    #[test]
    fn two_orders_that_say_the_same_are_answered_each_by_its_own_name() {
        let directory = AgentDirectory::by_hand(Memory::default(), by_tenants);
        directory.link();
        directory.take();
        let connection = ConnectionId { origin: "n1/1".into(), serial: 1 };
        let order = Order::Close { connection, token: FencingToken(5), reason: "again".into() };
        for id in ["a", "b"] {
            assert!(directory.hear(ToProcess::Order { id: id.into(), order: order.clone() }));
        }
        let (first, second) = (directory.next_order().expect("the first"), directory.next_order().expect("the second"));
        assert_eq!((&first.1, &second.1), (&order, &order));
        let done = OrderResult::Done { generation: 1, pause_us: 0 };
        let failed = OrderResult::RolledBack { reason: "no".into() };
        directory.answer(second.0, done.clone());
        directory.answer(first.0, failed.clone());
        // Twice, and of nobody.
        directory.answer(first.0, done.clone());
        directory.answer(OrderId(77), done.clone());
        let answers = [
            FromProcess::Answer { id: "b".into(), outcome: done },
            FromProcess::Answer { id: "a".into(), outcome: failed },
        ];
        assert_eq!(directory.take(), answers);
    }
}
