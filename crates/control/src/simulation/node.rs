//! A simulated node: the shipped agent's hub, and processes with the shipped directory client. Between them a Unix socket that loses nothing and breaks when either
//! ends; upward a stream to a replica that may break at any moment.

use super::dice::Dice;
use super::{node_name, tenant_of};
use crate::agent::hub::{Hub, ProcessKey};
use crate::client::{AgentDirectory, Settings};
use crate::clock::{Clock, Manual};
use crate::local::{FromProcess, ToProcess};
use crate::memory::Memory;
use crate::message::{self, Answer};
use crate::proto::control as proto;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, Order, OrderId, ServiceAddress};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What an agent tells a replica.
#[derive(Clone, Debug)]
pub enum Up {
    Hello {
        incarnation: u64,
    },
    /// What changed, or everything.
    Report {
        whole: bool,
        records: Vec<(String, ConnectionRecord)>,
        gone: Vec<(String, ConnectionId)>,
        services: Vec<ServiceAddress>,
        withdrawn: Vec<ServiceAddress>,
    },
    Want(Vec<String>),
    Answer(String, Answer),
    Load(Box<crate::rebalance::UtilisationReport>),
}

/// What a replica tells an agent.
#[derive(Clone, Debug)]
pub enum Down {
    Welcome,
    Services(String, Vec<ServiceAddress>),
    Policy(Vec<u8>),
    Order(String, Order),
}

/// An agent that runs.
#[derive(Debug)]
pub struct Agent {
    pub incarnation: u64,
    pub hub: Hub,
    clock: Arc<Manual>,
    /// The stream that it has to a replica, and whether it was welcomed.
    pub stream: Option<(u64, bool)>,
}

impl Agent {
    pub fn start(node: usize, incarnation: u64, memory: Memory, now: u64) -> Self {
        let clock = Arc::new(Manual::default());
        clock.advance(Duration::from_nanos(now));
        let hub = Hub::new(&node_name(node), memory, clock.clone());
        Self { incarnation, hub, clock, stream: None }
    }

    /// Its clock shows at least this.
    pub fn set_clock(&self, now: u64) {
        self.clock.advance(Duration::from_nanos(now).saturating_sub(self.clock.now()));
    }

    /// Everything, for a replica that was just joined.
    pub fn whole(&self) -> Vec<Up> {
        let (connections, services, wants) = self.hub.take_whole();
        let report = proto::Report { connections, services, ..proto::Report::default() };
        vec![report_of(&report, true), Up::Want(sorted(wants))]
    }

    /// What there is to tell.
    pub fn news(&self) -> Vec<Up> {
        let mut answers = self.hub.take_answers();
        // The hub's maps have no order that a seed decides.
        answers.sort_by(|a, b| a.0.cmp(&b.0));
        let mut news: Vec<Up> = answers.into_iter().map(|(id, answer)| Up::Answer(id, answer)).collect();
        news.extend(self.hub.take_changes().map(|report| report_of(&report, false)));
        news.extend(self.hub.take_wants().map(|wants| Up::Want(sorted(wants))));
        news
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// Through the messages of the protocol, as over gRPC.
fn report_of(report: &proto::Report, whole: bool) -> Up {
    let record = |one: &proto::Connection| Some((one.process.clone(), message::connection(one).ok()?));
    let mut records: Vec<_> = report.connections.iter().filter_map(record).collect();
    records.sort_by(|a, b| (&a.0, &a.1.id).cmp(&(&b.0, &b.1.id)));
    let gone =
        |one: &proto::LocalConnectionId| Some((one.process.clone(), message::connection_id(one.id.as_ref()).ok()?));
    Up::Report {
        whole,
        records,
        gone: report.removed_connections.iter().filter_map(gone).collect(),
        services: report.services.iter().filter_map(|one| message::service(one).ok()).collect(),
        withdrawn: report.removed_services.iter().filter_map(|one| message::service(one).ok()).collect(),
    }
}

/// A process of the node.
#[derive(Debug)]
pub struct Process {
    pub node: usize,
    pub tenant: String,
    pub incarnation: u64,
    pub alive: bool,
    /// By how much its clock is ahead of the world's, ns.
    pub ahead: i64,
    /// It does nothing until then.
    pub paused_until: u64,
    pub directory: AgentDirectory,
    link: Option<(ProcessKey, mpsc::Receiver<Arc<ToProcess>>)>,
    /// Services that it offers.
    pub services: Vec<String>,
    /// Services that it wants to be connected to.
    pub wants: Vec<String>,
    /// Numbers of connections that it has made.
    pub serial: u64,
    /// The key of the memory that it lends; what it lent before; connections whose peers may still use that.
    pub keys: Keys,
    /// Orders that came and have not been given to their connections.
    pub orders: Vec<(OrderId, Order)>,
}

/// Keys of the memory that a process lends.
#[derive(Debug, Default)]
pub struct Keys {
    pub now: u32,
    /// The key before, and until when by the world's clock it may be good at most.
    pub before: Option<(u32, u64)>,
    /// The order that asked for it, answered when the key before is withdrawn.
    pub order: Option<OrderId>,
    /// Ends that have yet to say that the key before is not used any more.
    pub waits: std::collections::BTreeSet<ConnectionId>,
}

impl Process {
    pub fn start(slot: usize, incarnation: u64, memory: Memory, dice: &mut Dice) -> Self {
        let (node, tenant) = (slot / super::PER_NODE, tenant_of(slot));
        let mut process = Self {
            node,
            tenant: tenant.into(),
            incarnation,
            alive: true,
            ahead: dice.below(1_000_000_000) as i64,
            paused_until: 0,
            directory: AgentDirectory::by_hand(memory, Settings::default().judge),
            link: None,
            services: super::services_of(slot),
            wants: super::wants_of(slot),
            serial: 0,
            keys: Keys { now: (slot as u32) << 16 | (incarnation as u32 & 0xffff), ..Keys::default() },
            orders: Vec::new(),
        };
        let exchange = super::exchange_of(slot, incarnation);
        for service in &process.services {
            let address = ServiceAddress {
                service: service.clone(),
                node: node_name(node),
                exchange: exchange.clone(),
                paths: Vec::new(),
            };
            process.directory.offer(address);
        }
        process.wants.sort();
        process
    }

    pub fn origin(&self) -> String {
        format!("{}/{}-{}", node_name(self.node), self.tenant, self.incarnation)
    }

    /// The time by its own clock.
    pub fn clock(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.ahead)
    }

    /// Its agent is gone.
    pub fn unlink(&mut self) {
        if self.link.take().is_some() {
            self.directory.unlink();
        }
    }

    pub fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Opens the agent's socket.
    pub fn link(&mut self, slot: usize, hub: &Hub) {
        let (out, queue) = mpsc::channel(1024);
        // Numbers of processes are used again by others, and the agent knows it.
        let pid = slot as i32 * 1000 + self.incarnation as i32 % 1000 + 1;
        if let Some(key) = hub.handle_process(pid, out) {
            self.directory.link();
            self.link = Some((key, queue));
        }
    }

    /// What it says goes to the agent, what the agent says comes here; true if anything was said.
    pub fn exchange(&mut self, hub: &Hub) -> bool {
        let Some((key, queue)) = &mut self.link else { return false };
        let key = *key;
        let mut spoken = false;
        for message in self.directory.take() {
            spoken = true;
            if !hub.handle_message(key, message) {
                hub.handle_process_gone(key);
                self.unlink();
                return true;
            }
        }
        while let Ok(message) = queue.try_recv() {
            spoken = true;
            self.directory.hear((*message).clone());
        }
        while let Some(order) = self.directory.next_order() {
            self.orders.push(order);
        }
        spoken
    }

    /// The process has ended; its agent notices.
    pub fn die(&mut self, hub: Option<&Hub>) {
        self.alive = false;
        if let (Some((key, _)), Some(hub)) = (self.link.take(), hub) {
            hub.handle_process_gone(key);
        }
    }
}

/// Lets the compiler see that what is said by hand is what goes over the socket.
const _: fn(&AgentDirectory) -> Vec<FromProcess> = AgentDirectory::take;

/// Processes and agent of all nodes.
#[derive(Debug)]
pub struct Node {
    pub agent: Option<Agent>,
    /// The agent's file.
    pub memory: Memory,
    /// The file of the node's processes.
    pub process_memory: Memory,
    /// How often the agent was started.
    pub starts: u64,
    /// Highest tokens that the agent has surely seen and not forgotten: what the checker measures orders by.
    pub known_token: u64,
    pub saved_token: u64,
    pub reports: u64,
    /// What it says of its ports is not true.
    pub lies: bool,
    pub up: [bool; 2],
    /// Orders by the name that control gave them.
    pub orders: BTreeMap<String, Order>,
}

impl Node {
    pub fn new(lies: bool) -> Self {
        Self {
            agent: None,
            memory: Memory::default(),
            process_memory: Memory::default(),
            starts: 0,
            known_token: 0,
            saved_token: 0,
            reports: 0,
            lies,
            up: [true; 2],
            orders: BTreeMap::new(),
        }
    }
}
