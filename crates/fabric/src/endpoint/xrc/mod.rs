//! Connections over XRC (annex A14): a process reaches all processes of a host by one QP, and is reached by all processes of a host over one QP each, whatever
//! the number of processes here. N processes that talk to M processes need N + M QPs on each host where connections of their own need N × M.
//!
//! A QP that fails is made anew (`mending`), on a port that is up, and operations go on: what the target's QP had executed is done, what it had not is posted
//! again, and what nobody can tell is in doubt. Each partition has a QP of its own, and policy is asked by both ends, as for connections.
//!
//! It takes another path by order (`moving`), of a control plane or of the application, and is told to the directory as a connection of the side that sends.
//!
//! What it gives up: a QP carries what is for several peers, so its failure is a pause for all of them, and so is its move. Offers of memory and rotated keys are
//! connections', and but for a port that goes down it does not move by itself: not home when the port has returned, nor away from losses.
//!
//! **The domain** is named by a file of the host. Processes whose devices share domains through files (hardware) share the QPs by which peers come in;
//! on the software NIC a domain is shared within a process, by all contexts that open the file.

mod line;
mod meeting;
mod mending;
mod moving;
mod trunk;

use super::config::Config;
use super::fabric::Fabric;
use super::link::{Injected, lock};
use super::operation::Operation;
use super::receive::{Arrival, ReceivePool};
use super::received::Received;
use super::service::Shared;
use super::wait::{Bell, block_on, wait};
use crate::directory::{ConnectionRecord, FencingToken, OrderResult};
use crate::error::{FabricError, Fault};
use crate::exchange::{Exchange, Identity};
use crate::operation::Outcome;
use crate::session::Change;
use line::Line;
use scalefabric_verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, PKey, QueuePair, SrqInit, Srqn, WcFlags, WcOpcode, WcStatus,
    WorkCompletion, XrcDomain, XrcdInit,
};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
pub(super) use trunk::Trunk;

/// A process's place in an XRC domain: the SRQ at which it is reached, and the QPs by which it reaches others. A handle: clones are the same.
#[derive(Clone)]
pub struct XrcPool {
    inner: Arc<Inner>,
    /// The thread that serves exchanges.
    fabric: Fabric,
}

/// `XRC` of `enum ibv_device_cap_flags`.
const XRC: u32 = 1 << 20;

/// A target QP that this process has a handle of, and how many peers come in by it here.
type Held = (Arc<dyn QueuePair>, usize);

/// By domain and partition: the QPs that lead there.
type Trunks = HashMap<(String, PKey), Vec<Arc<Trunk>>>;

pub(super) struct Inner {
    shared: Arc<Shared>,
    /// What the domain is called between processes: of which host, by which file.
    domain: String,
    /// What this process offers, as policies name it.
    service: String,
    receives: Arc<ReceivePool>,
    recv_cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
    bell: Bell,
    came: Mutex<VecDeque<(Option<Arc<str>>, Arrival)>>,
    /// By the target QP that a message came in on: who sends there.
    names: Mutex<HashMap<u32, Arc<str>>>,
    /// Target QPs that this process has made or opened, and how many peers come in by each.
    targets: Mutex<HashMap<u32, Held>>,
    /// By domain and partition: the QPs that lead there.
    trunks: Mutex<Trunks>,
    /// One at a time looks for a trunk and makes it if there is none, or makes its QP anew.
    turn: Arc<tokio::sync::Mutex<()>>,
    tasks: Mutex<JoinSet<()>>,
    /// Goes last: what is above belongs to it.
    xrcd: Arc<dyn XrcDomain>,
}

impl fmt::Debug for XrcPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcPool").field("domain", &self.inner.domain).finish_non_exhaustive()
    }
}

/// QPs of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XrcCount {
    /// By which this process reaches hosts: one for each.
    pub initiators: usize,
    /// By which others reach this process. Processes of one domain share them.
    pub targets: usize,
    /// How often an initiator's QP was made anew.
    pub rebuilds: u64,
    /// How often one took another path by order.
    pub moves: u64,
}

impl XrcPool {
    /// Joins the domain of a file, which is made if it is not there. Receives, depth, timeouts and limits are those of the fabric's [`Config`]: its `receives`
    /// are posted once, for all peers. To policies it offers the service `xrc` ([`XrcPool::named`]). [`Fault::Environment`] on a device without XRC.
    pub fn new(fabric: &Fabric, file: &Path) -> Result<Self, FabricError> {
        Self::named(fabric, file, "xrc")
    }

    /// As [`XrcPool::new`], and names what this process offers: [`crate::Directory::may_connect`] is asked for it by both ends, and says in which partition
    /// they meet. Tenants of different partitions share no QP.
    pub fn named(fabric: &Fabric, file: &Path, service: &str) -> Result<Self, FabricError> {
        let shared = fabric.shared().clone();
        let (hub, config) = (shared.hub(), &shared.config);
        if hub.attr.device_cap_flags & XRC == 0 {
            let device = &hub.device;
            return Err(FabricError::environment(format!(
                "{device} has no XRC (`device_cap_flags`): take another device, or connections of their own with `share_receives`"
            )));
        }
        let cannot = |what: &str, error: &dyn fmt::Display| {
            FabricError::environment(format!(
                "{what} {}: {error}; name a file that this process may write",
                file.display()
            ))
        };
        let opened = std::fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(file);
        let opened = opened.map_err(|error| cannot("cannot open", &error))?;
        let met = opened.metadata().map_err(|error| cannot("cannot look at", &error))?;
        let init = XrcdInit { fd: Some(opened.as_raw_fd()), create: true, exclusive: false };
        let xrcd = hub.context.open_xrcd_with(&init).map_err(|error| {
            FabricError::from(error).during(format!("the XRC domain of {} on {}", file.display(), hub.device))
        })?;
        let domain = format!("{}/{}/{}:{}", boot(), hub.device, met.dev(), met.ino());
        let channel = hub.context.create_comp_channel()?;
        let recv_cq = hub.context.create_cq(config.receives + 8, Some(channel.clone()), 0)?;
        let xrc = Some((xrcd.clone(), recv_cq.clone()));
        let srq = hub.pd.create_srq(&SrqInit { max_wr: config.receives, max_sge: 1, srq_limit: 0, xrc })?;
        let bytes = config.receives as usize * config.receive_bytes.max(1) as usize;
        let region = hub.pd.alloc_mr(bytes, AccessFlags::LOCAL_WRITE)?;
        let receives = ReceivePool::of(srq, region, config.receives, config.receive_bytes)?;
        let inner = Inner {
            shared,
            xrcd,
            domain,
            service: service.to_owned(),
            receives,
            recv_cq,
            channel,
            bell: Bell::default(),
            came: Mutex::default(),
            names: Mutex::default(),
            targets: Mutex::default(),
            trunks: Mutex::default(),
            turn: Arc::default(),
            tasks: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner), fabric: fabric.clone() })
    }

    /// Lets peers come in at an address of an exchange, given without its scheme; returns the address that was taken. Until the pool is gone.
    pub fn listen(&self, exchange: &Arc<dyn Exchange>, address: &str) -> Result<String, FabricError> {
        let (exchange, address) = (exchange.clone(), address.to_owned());
        let listening = self.inner.shared.handle.spawn(async move { exchange.listen(&address).await });
        let mut listener = block_on(listening).map_err(|_| gone())??;
        let address = listener.address();
        let inner = Arc::downgrade(&self.inner);
        let mut tasks = lock(&self.inner.tasks);
        let accepting = async move {
            loop {
                match listener.accept().await {
                    Ok(channel) => {
                        let Some(inner) = inner.upgrade() else { return };
                        let serving = meeting::serve(Arc::downgrade(&inner), channel);
                        let mut tasks = lock(&inner.tasks);
                        while tasks.try_join_next().is_some() {}
                        tasks.spawn_on(serving, &inner.shared.handle);
                    }
                    Err(error) if matches!(error.fault, Fault::Peer | Fault::Unreachable) => {}
                    Err(_) => return,
                }
            }
        };
        tasks.spawn_on(accepting, &self.inner.shared.handle);
        Ok(address)
    }

    /// Connects to the process at an exchange's address, given without its scheme: over the QP that leads to its host already, or over a new one.
    pub fn connect(&self, exchange: &Arc<dyn Exchange>, address: &str) -> Result<XrcPeer, FabricError> {
        let (inner, exchange, address) = (self.inner.clone(), exchange.clone(), address.to_owned());
        let patience = Duration::from_nanos(inner.shared.config.patience.connect_ns);
        let meeting = self.inner.shared.handle.spawn(async move {
            let met = tokio::time::timeout(patience, meeting::meet(&inner, exchange, &address)).await;
            met.map_err(|_| FabricError::unreachable(format!("{address} did not answer in time: try again")))?
        });
        let (trunk, line) = block_on(meeting).map_err(|_| gone())??;
        Ok(XrcPeer { trunk, line, pool: self.clone() })
    }

    /// The next message of any peer, if there is one.
    pub fn try_receive(&self) -> Result<Option<XrcMessage>, FabricError> {
        let inner = &self.inner;
        let mut came = lock(&inner.came);
        if came.is_empty() {
            inner.poll(&mut came)?;
        }
        let Some((from, arrival)) = came.pop_front() else { return Ok(None) };
        let more = !came.is_empty();
        drop(came);
        if more {
            inner.bell.ring();
        }
        Ok(Some(XrcMessage { from, received: Received { pool: inner.receives.clone(), arrival } }))
    }

    /// The next message of any peer; `None` when `timeout` passes.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<XrcMessage>, FabricError> {
        let inner = &self.inner;
        let arm = || Ok(inner.recv_cq.req_notify(false)?);
        wait(&inner.bell, std::slice::from_ref(&inner.channel), inner.config().waiting, timeout, arm, || {
            self.try_receive()
        })
    }

    /// How many QPs it has.
    pub fn count(&self) -> XrcCount {
        let trunks = lock(&self.inner.trunks);
        let initiators = trunks.values().flatten().filter(|trunk| trunk.is_open()).count();
        let rebuilds = trunks.values().flatten().map(|trunk| trunk.rebuilds()).sum();
        let moves = trunks.values().flatten().map(|trunk| trunk.moves()).sum();
        XrcCount { initiators, targets: lock(&self.inner.targets).len(), rebuilds, moves }
    }

    /// The number of its SRQ.
    pub fn srq_num(&self) -> Srqn {
        self.inner.receives.srq.srq_num()
    }

    /// The fabric that it belongs to: memory for it is registered with its protection domain.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

impl Inner {
    fn config(&self) -> &Config {
        &self.shared.config
    }

    fn poll(&self, came: &mut VecDeque<(Option<Arc<str>>, Arrival)>) -> Result<(), FabricError> {
        let mut some = [WorkCompletion::default(); 16];
        loop {
            let count = self.recv_cq.poll(&mut some)?;
            for wc in &some[..count] {
                let slot = wc.wr_id as u32;
                if wc.status != WcStatus::Success {
                    self.receives.give_back(slot);
                    continue;
                }
                let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
                let is_write = wc.opcode == WcOpcode::RecvRdmaWithImm;
                let from = lock(&self.names).get(&wc.qp_num.get()).cloned();
                came.push_back((from, Arrival { domain: 0, slot, length: wc.byte_len, imm, is_write }));
            }
            if count < some.len() {
                return Ok(());
            }
        }
    }
}

/// This boot of this host, as its kernel calls it.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| "host".into(), |id| id.trim().into())
}

fn gone() -> FabricError {
    FabricError::environment("the fabric's thread is gone")
}

/// A message that came over XRC.
#[derive(Debug)]
pub struct XrcMessage {
    from: Option<Arc<str>>,
    received: Received,
}

impl XrcMessage {
    /// Node and process that sent it, as it said when it connected; empty if it has gone since.
    pub fn from(&self) -> &str {
        self.from.as_deref().unwrap_or_default()
    }

    /// The message.
    pub fn received(&self) -> &Received {
        &self.received
    }
}

/// A process that is reached over XRC. While it lives, the peer keeps the QP by which we come in.
pub struct XrcPeer {
    trunk: Arc<Trunk>,
    /// Its end tells the peer that we are gone.
    line: Arc<Line>,
    pool: XrcPool,
}

impl fmt::Debug for XrcPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcPeer")
            .field("name", &self.line.welcome.from)
            .field("qp_num", &self.qp_num())
            .finish_non_exhaustive()
    }
}

impl XrcPeer {
    /// Node and process, as it says.
    pub fn name(&self) -> &str {
        &self.line.welcome.from
    }

    /// Who it is, as far as the exchange has proved it.
    pub fn identity(&self) -> &Identity {
        &self.line.identity
    }

    /// Number of the QP by which it is reached: the same for all processes of its domain.
    pub fn qp_num(&self) -> u32 {
        self.trunk.qp_num()
    }

    /// Carries an operation out and waits for its end. One-sided operations name memory of the peer by its range and key, registered with the
    /// protection domain of the peer's fabric; numbers of offers belong to connections, and are misuse here. While the QP is made anew it waits. If that does
    /// not succeed before [`crate::session::Patience::give_up_ns`] has passed, everything is refused with [`Fault::Unreachable`]: connect anew.
    pub fn execute(&self, operation: Operation<'_>) -> Result<Outcome, FabricError> {
        let mut outcomes = self.execute_all(std::slice::from_ref(&operation))?;
        outcomes.pop().ok_or_else(|| FabricError::environment("an operation without an end"))
    }

    /// Carries operations out, in order and as many at once as there is room for, and waits for all ends.
    pub fn execute_all(&self, operations: &[Operation<'_>]) -> Result<Vec<Outcome>, FabricError> {
        self.trunk.execute_all(operations, &self.line.welcome, self.pool.inner.config().waiting)
    }

    /// What the directory is told of the QP by which it is reached.
    pub fn record(&self) -> Option<ConnectionRecord> {
        lock(&self.trunk.record).clone()
    }

    /// Moves the QP by which it and its neighbours are reached to another path, and waits until it has moved or everything is as before. Operations wait as long as
    /// those that were posted before take to end; nothing is lost, repeated or reordered. A path to another address of the peer moves the peer's end there.
    pub fn move_to(
        &self,
        path: crate::path::Path,
        token: FencingToken,
        reason: &str,
    ) -> Result<OrderResult, FabricError> {
        let (trunk, reason) = (self.trunk.clone(), reason.to_owned());
        let change = Change { path, peer_path: None, strategy: None, token, reason };
        block_on(self.pool.inner.shared.handle.spawn(async move { trunk.take_path(&change).await })).map_err(|_| gone())
    }

    /// Makes a fault, to see what becomes of it: the QP goes to ERR, and nobody is told. For tests and drills; other faults are connections', and misuse.
    pub fn inject(&self, fault: Injected) -> Result<(), FabricError> {
        match fault {
            Injected::QpError => self.trunk.fail(),
            other => return Err(FabricError::misuse(format!("{other:?} is a fault of connections"))),
        }
        Ok(())
    }
}
