//! What serves a fabric in the background: one thread that runs the connections' tasks, waits for peers, hears the device's asynchronous events and takes
//! orders of the directory. Data never waits for it.

use super::config::Config;
use super::connection::Connection;
use super::descriptor;
use super::hub::{Hub, Hubs, PortAt};
use super::lend::{self, Rotating};
use super::link::{Link, Told, Wanted, lock};
use super::log::Bounds;
use super::receive::ReceivePool;
use super::seek::Attempt;
use super::task::{Dial, Task};
use super::traffic::{self, Counted};
use super::xrc::Trunk;
use crate::directory::{ConnectionId, Directory, FencingToken, Order, OrderId, OrderResult};
use crate::error::FabricError;
use crate::exchange::{Channel, Exchange, Listener as PeerListener};
use crate::session::{Abilities, Body, Change, Input, LaneId, Message, Purpose, Role, Session, Setup, VERSION};
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{EventSubject, Gid, PKey};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How often the directory is asked for orders.
const ORDERS_EVERY: Duration = Duration::from_millis(5);

/// How long a peer that came may take for its first word.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// Rotates the keys of this process's memory; returns the answer to the order.
pub type RotateKeys = dyn Fn(FencingToken, Duration) -> OrderResult + Send + Sync;

/// What all tasks of a fabric share.
pub(crate) struct Shared {
    pub node: String,
    pub hubs: Arc<Hubs>,
    pub config: Config,
    pub directory: Arc<dyn Directory>,
    pub exchanges: Vec<Arc<dyn Exchange>>,
    pub handle: Handle,
    pub rotate: Option<Arc<RotateKeys>>,
    pub addresses: Mutex<Vec<String>>,
    pub rotating: Rotating,
    /// All connections, those that are gone included until the list is looked through.
    pub known: Mutex<Vec<Weak<Link>>>,
    /// Node and process, and a number of this fabric.
    pub origin: String,
    pub counted: Mutex<Counted>,
    serial: AtomicU64,
    random: AtomicU64,
    /// By device, if they are shared.
    pools: Mutex<Vec<Arc<ReceivePool>>>,
    links: Mutex<HashMap<ConnectionId, UnboundedSender<Told>>>,
    /// By device and number.
    qps: Mutex<HashMap<(usize, u32), UnboundedSender<Told>>>,
    last_receives: Mutex<HashSet<(usize, u32)>>,
    /// QPs of XRC pools, which are ordered about as connections are.
    trunks: Mutex<HashMap<ConnectionId, Weak<Trunk>>>,
    services: Mutex<HashMap<String, UnboundedSender<Connection>>>,
    keeper: Mutex<Weak<Keeper>>,
    port_changes: Mutex<HashMap<PortAt, u64>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("node", &self.node).field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Keeps the thread as long as a handle of the application lives.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub shared: Arc<Shared>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(lock(&self.stop).take());
        // The last handle may be dropped by a handler, on the thread itself.
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// What a fabric is made of.
pub(crate) struct Parts {
    pub node: String,
    pub hubs: Hubs,
    pub config: Config,
    pub directory: Arc<dyn Directory>,
    pub exchanges: Vec<Arc<dyn Exchange>>,
    pub listen: Vec<String>,
    pub rotate: Option<Arc<RotateKeys>>,
}

/// Starts the thread; returns when every address listens.
pub(crate) fn start(parts: Parts) -> Result<Arc<Keeper>, FabricError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| FabricError::environment(format!("no runtime for the fabric's thread: {error}")))?;
    let seed = seed();
    let origin = format!("{}/{}-{:08x}", parts.node, std::process::id(), seed as u32);
    let shared = Arc::new(Shared {
        node: parts.node,
        hubs: Arc::new(parts.hubs),
        config: parts.config,
        directory: parts.directory,
        exchanges: parts.exchanges,
        handle: runtime.handle().clone(),
        rotate: parts.rotate,
        addresses: Mutex::new(Vec::new()),
        rotating: Rotating::default(),
        known: Mutex::new(Vec::new()),
        counted: Mutex::default(),
        origin,
        serial: AtomicU64::new(0),
        random: AtomicU64::new(seed),
        pools: Mutex::default(),
        links: Mutex::new(HashMap::new()),
        qps: Mutex::new(HashMap::new()),
        last_receives: Mutex::new(HashSet::new()),
        trunks: Mutex::default(),
        services: Mutex::new(HashMap::new()),
        keeper: Mutex::new(Weak::new()),
        port_changes: Mutex::new(HashMap::new()),
    });
    let (stop, stopped) = oneshot::channel();
    let (began, begun) = std::sync::mpsc::channel();
    let of_thread = shared.clone();
    let thread = std::thread::Builder::new()
        .name("fabric".into())
        .spawn(move || {
            runtime.block_on(async {
                let listening = listen(&of_thread, &parts.listen).await;
                let ok = listening.is_ok();
                let _ = began.send(listening);
                if !ok {
                    return;
                }
                for domain in 0..of_thread.hubs.all().len() {
                    tokio::spawn(hear_events(of_thread.clone(), domain));
                }
                tokio::spawn(take_orders(of_thread.clone()));
                if let Some(every) = of_thread.config.rotate_every {
                    tokio::spawn(lend::rotate_on_schedule(of_thread.clone(), every));
                }
                tokio::spawn(super::loss::watch(of_thread.clone()));
                tokio::spawn(traffic::tell(of_thread.clone()));
                let _ = stopped.await;
                of_thread.close_all().await;
            });
        })
        .map_err(|error| FabricError::environment(format!("no thread for the fabric: {error}")))?;
    match begun.recv() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error),
        Err(_) => return Err(FabricError::environment("the fabric's thread ended at once")),
    }
    let keeper =
        Arc::new(Keeper { shared: shared.clone(), stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) });
    *lock(&shared.keeper) = Arc::downgrade(&keeper);
    Ok(keeper)
}

/// Different for each fabric of each process.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

async fn listen(shared: &Arc<Shared>, addresses: &[String]) -> Result<(), FabricError> {
    for address in addresses {
        let (exchange, place) = shared.exchange_of(address)?;
        let listener = exchange.listen(place).await?;
        lock(&shared.addresses).push(format!("{}://{}", exchange.scheme(), listener.address()));
        tokio::spawn(accept(shared.clone(), listener));
    }
    Ok(())
}

async fn accept(shared: Arc<Shared>, mut listener: Box<dyn PeerListener>) {
    loop {
        match listener.accept().await {
            Ok(channel) => {
                tokio::spawn(greet(shared.clone(), channel));
            }
            Err(error) if matches!(error.fault, crate::Fault::Peer | crate::Fault::Unreachable) => {}
            // The listener is gone; connections live on, new ones cannot be made here.
            Err(_) => return,
        }
    }
}

/// Hears what a peer that came wants, and leads it to its connection.
async fn greet(shared: Arc<Shared>, mut channel: Box<dyn Channel>) {
    let (message, known) = loop {
        let Ok(Ok(bytes)) = tokio::time::timeout(FIRST_WORD, channel.receive()).await else { return };
        let Ok(message) = Message::parse(&bytes) else { return };
        let known = lock(&shared.links).get(&message.connection).cloned();
        // A try that was given up before this side heard of it: the next one follows.
        if known.is_some() || !matches!(message.body, Body::Abort { .. }) {
            break (message, known);
        }
    };
    if let Some(known) = known {
        let _ = known.send(Told::Channel(channel, message.body, message.from));
        return;
    }
    let refusal = match &message.body {
        Body::Begin(begin) if begin.purpose == Purpose::Connect => {
            let service = begin.service.clone();
            let connection = message.connection.clone();
            match shared.take_in(connection, &service, &begin.tenant.clone(), channel, message.from, message.body) {
                Ok(()) => return,
                Err((back, error)) => {
                    channel = back;
                    Body::Refuse { lane: LaneId(1), reason: error.message, for_good: true }
                }
            }
        }
        _ => Body::Close {
            reason: "this process does not know the connection: it was closed, or the process is a new one".into(),
        },
    };
    let answer =
        Message { version: VERSION, connection: message.connection, from: shared.origin.clone(), body: refusal };
    if let Ok(bytes) = answer.emit() {
        let _ = channel.send(&bytes).await;
    }
}

async fn hear_events(shared: Arc<Shared>, domain: usize) {
    let context = shared.hubs.all()[domain].context.clone();
    let Some(fd) = descriptor::watch(context.async_fd()) else { return };
    loop {
        let Ok(mut guard) = fd.readable().await else { return };
        guard.clear_ready();
        while let Ok(Some(event)) = context.get_async_event(Some(Duration::ZERO)) {
            let qp_num = match event.subject {
                EventSubject::QueuePair(qp_num) => qp_num.get(),
                EventSubject::Port(port_num) => {
                    let at = PortAt { domain, port_num };
                    match event.event_type {
                        EventType::PortErr => shared.port_changed(at, false),
                        EventType::PortActive => shared.port_changed(at, true),
                        _ => {}
                    }
                    continue;
                }
                _ => continue,
            };
            match event.event_type {
                EventType::QpLastWqeReached if lock(&shared.qps).contains_key(&(domain, qp_num)) => {
                    lock(&shared.last_receives).insert((domain, qp_num));
                }
                EventType::SqDrained => {
                    if let Some(tell) = lock(&shared.qps).get(&(domain, qp_num)) {
                        let _ = tell.send(Told::Drained);
                    }
                }
                EventType::QpFatal => shared.tell_qp(domain, qp_num, "the device reports a failed QP"),
                EventType::QpReqErr => {
                    shared.tell_qp(domain, qp_num, "the peer sent a request that is wrong in itself");
                }
                EventType::QpAccessErr => shared.tell_qp(domain, qp_num, "the peer touched memory that it may not"),
                _ => {}
            }
        }
    }
}

async fn take_orders(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(ORDERS_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        while let Some((id, order)) = shared.directory.next_order() {
            tokio::spawn(carry_out(shared.clone(), id, order));
        }
    }
}

async fn carry_out(shared: Arc<Shared>, id: OrderId, order: Order) {
    let result = match &order {
        Order::Move { connection, path, token, reason } => {
            let change =
                Change { path: path.clone(), peer_path: None, strategy: None, token: *token, reason: reason.clone() };
            shared.order(connection, Wanted::Move(change)).await
        }
        Order::Close { connection, token, reason } => {
            shared.order(connection, Wanted::Close { reason: reason.clone(), token: *token }).await
        }
        Order::RotateKeys { token, overlap_ms, tenant } => {
            lend::carry_out(shared.clone(), *token, Duration::from_millis(*overlap_ms), tenant.clone()).await
        }
    };
    shared.directory.answer(id, result);
}

impl Shared {
    /// The exchange of an address, and the address without its scheme.
    pub fn exchange_of<'a>(&self, address: &'a str) -> Result<(Arc<dyn Exchange>, &'a str), FabricError> {
        let known = || self.exchanges.iter().map(|exchange| exchange.scheme()).collect::<Vec<_>>().join(", ");
        let Some((scheme, place)) = address.split_once("://") else {
            return Err(FabricError::misuse(format!("`{address}` has no scheme: write one of {}, then ://", known())));
        };
        match self.exchanges.iter().find(|exchange| exchange.scheme() == scheme) {
            Some(exchange) => Ok((exchange.clone(), place)),
            None => {
                Err(FabricError::misuse(format!("`{scheme}` is no exchange of this fabric, which has: {}", known())))
            }
        }
    }

    /// A number that is not used twice soon (SplitMix64 over a counter).
    pub fn random(&self) -> u64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn next_id(&self) -> ConnectionId {
        ConnectionId { origin: self.origin.clone(), serial: self.serial.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// The first device.
    pub fn hub(&self) -> &Arc<Hub> {
        self.hubs.home()
    }

    /// Receives on each device.
    fn pools(&self) -> Result<Vec<Arc<ReceivePool>>, FabricError> {
        let of = |hub: &Arc<Hub>| ReceivePool::new(hub, self.config.receives, self.config.receive_bytes);
        let make = || self.hubs.all().iter().map(of).collect::<Result<Vec<_>, _>>();
        if !self.config.share_receives {
            return make();
        }
        let mut pools = lock(&self.pools);
        if pools.is_empty() {
            *pools = make()?;
        }
        Ok(pools.clone())
    }

    fn link(
        &self,
        id: ConnectionId,
        service: &str,
        peer_tenant: &str,
        pkey: PKey,
    ) -> Result<(Arc<Link>, Told2), FabricError> {
        let (tell, told) = unbounded_channel();
        let device_inline = self.hubs.all().iter().map(|hub| hub.attr.max_inline_data).min().unwrap_or(0);
        let bounds = Bounds {
            max_inline: (self.config.max_inline.min(device_inline) as usize).min(super::MAX_INLINE),
            max_rd_atomic: 0,
            peer_receive_bytes: 0,
            keys: 0,
            domain: 0,
            xrc_srqn: None,
        };
        let config = self.config.clone();
        let (service, peer_tenant) = (service.to_owned(), peer_tenant.to_owned());
        let (hubs, pools) = (self.hubs.clone(), self.pools()?);
        let link = Link::new(id.clone(), service, peer_tenant, pkey, config, hubs, pools, tell.clone(), bounds)?;
        lock(&self.counted).add(id.clone(), link.traffic.clone());
        lock(&self.links).insert(id, tell);
        let mut known = lock(&self.known);
        if known.len() == known.capacity() {
            known.retain(|link| link.strong_count() > 0);
        }
        known.push(Arc::downgrade(&link));
        Ok((link, told))
    }

    fn setup(&self, role: Role, service: &str, path: Option<crate::path::Path>) -> Setup {
        Setup {
            role,
            service: service.to_owned(),
            tenant: self.config.tenant.clone(),
            path,
            patience: self.config.patience,
            abilities: Abilities {
                drained_vector: self.hubs.all().iter().all(|hub| hub.context.takes_vector_in_sqd()),
                alternate_path: self.hubs.all().iter().all(|hub| hub.has_alternate_paths()),
            },
            seed: self.random(),
        }
    }

    /// Begins to connect; the result comes when data can flow.
    pub fn connect(
        self: &Arc<Self>,
        keeper: &Arc<Keeper>,
        address: &str,
        service: &str,
        path: Option<crate::path::Path>,
    ) -> Result<Attempt, FabricError> {
        let pkey = self.directory.may_connect(&self.config.tenant, service)?;
        let (exchange, place) = self.exchange_of(address)?;
        let near = path.as_ref().map(|path| path.dgid).or_else(|| near(place));
        let (link, told) = self.link(self.next_id(), service, "", pkey)?;
        let session = Session::new(self.setup(Role::Leader, service, path), 0);
        let (ready, up) = oneshot::channel();
        let connection = Connection::new(link.clone(), keeper.clone());
        let ready = Box::new(move |result: Result<(), FabricError>| {
            let _ = ready.send(result.map(|()| connection));
        });
        let dial = Dial { exchange, address: place.to_owned() };
        let task = Task::new(link.clone(), self.clone(), session, Some(dial), told, near, ready);
        self.handle.spawn(task.run());
        Ok(Attempt::new(up, link))
    }

    /// Takes a new connection in, if somebody offers the service.
    #[allow(clippy::result_large_err, clippy::type_complexity)]
    fn take_in(
        self: &Arc<Self>,
        id: ConnectionId,
        service: &str,
        tenant: &str,
        channel: Box<dyn Channel>,
        from: String,
        first: Body,
    ) -> Result<(), (Box<dyn Channel>, FabricError)> {
        let accepted = lock(&self.services).get(service).cloned();
        let keeper = lock(&self.keeper).upgrade();
        let (Some(accepted), Some(keeper)) = (accepted, keeper) else {
            let mut known: Vec<String> = lock(&self.services).keys().cloned().collect();
            known.sort();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let error = FabricError::misuse(format!("nobody here offers the service `{service}`; offered: {known}"));
            return Err((channel, error));
        };
        // Who connects says whose it is. That it may is judged here as well; that it is, the partition proves. Nobody takes in what is meant for a service of another tenant.
        let pkey = self.directory.may_serve(&self.config.tenant, service);
        let pkey = pkey.and_then(|()| self.directory.may_connect(tenant, service));
        let link = pkey.and_then(|pkey| self.link(id, service, tenant, pkey));
        let (link, told) = match link {
            Ok(both) => both,
            Err(error) => return Err((channel, error)),
        };
        let session = Session::new(self.setup(Role::Follower, service, None), 0);
        let connection = Connection::new(link.clone(), keeper);
        let ready = Box::new(move |result: Result<(), FabricError>| {
            if result.is_ok() {
                let _ = accepted.send(connection);
            }
        });
        let _ = link.tell.send(Told::Channel(channel, first, from));
        let task = Task::new(link, self.clone(), session, None, told, None, ready);
        self.handle.spawn(task.run());
        Ok(())
    }

    /// Offers a service.
    pub fn offer(&self, service: &str, accepted: UnboundedSender<Connection>) -> Result<(), FabricError> {
        let addresses = lock(&self.addresses).clone();
        if addresses.is_empty() {
            return Err(FabricError::misuse("the fabric listens nowhere: give its builder `listen_at`"));
        }
        self.directory.may_serve(&self.config.tenant, service)?;
        let mut services = lock(&self.services);
        if services.contains_key(service) {
            return Err(FabricError::misuse(format!("the service `{service}` is offered by this fabric already")));
        }
        services.insert(service.to_owned(), accepted);
        drop(services);
        for exchange in addresses {
            let (service, node) = (service.to_owned(), self.node.clone());
            self.directory.offer(crate::directory::ServiceAddress { service, node, exchange, paths: Vec::new() });
        }
        Ok(())
    }

    pub fn withdraw(&self, service: &str) {
        if lock(&self.services).remove(service).is_some() {
            let addresses = lock(&self.addresses).clone();
            addresses.iter().for_each(|exchange| self.directory.withdraw(service, exchange));
        }
    }

    /// Gives an order to a connection and waits for its answer.
    pub async fn order(&self, id: &ConnectionId, wanted: Wanted) -> OrderResult {
        let trunk = lock(&self.trunks).get(id).and_then(Weak::upgrade);
        if let Some(trunk) = trunk {
            return match wanted {
                Wanted::Move(change) => trunk.take_path(&change).await,
                Wanted::Close { reason, token } => trunk.close(&reason, token),
            };
        }
        let link = lock(&self.links).get(id).cloned();
        let gone = || OrderResult::RolledBack {
            reason: format!("{}/{} is not a connection of this process", id.origin, id.serial),
        };
        let Some(link) = link else { return gone() };
        let (answer, answered) = oneshot::channel();
        if link.send(Told::Ordered(wanted, answer)).is_err() {
            return gone();
        }
        answered.await.unwrap_or_else(|_| gone())
    }

    /// A QP of an XRC pool, which orders may name from now on.
    pub fn add_trunk(&self, id: &ConnectionId, trunk: &Arc<Trunk>, traffic: Arc<traffic::Traffic>) {
        lock(&self.trunks).insert(id.clone(), Arc::downgrade(trunk));
        lock(&self.counted).add(id.clone(), traffic);
    }

    /// The QPs of XRC pools.
    pub fn trunks(&self) -> Vec<Arc<Trunk>> {
        lock(&self.trunks).values().filter_map(Weak::upgrade).collect()
    }

    /// A task has ended, or a QP of an XRC pool is gone.
    pub fn forget(&self, id: &ConnectionId) {
        lock(&self.trunks).remove(id);
        lock(&self.links).remove(id);
        lock(&self.counted).forget(id);
    }

    pub fn watch_qp(&self, domain: usize, qp_num: u32, tell: UnboundedSender<Told>) {
        lock(&self.last_receives).remove(&(domain, qp_num));
        lock(&self.qps).insert((domain, qp_num), tell);
    }

    pub fn forget_qp(&self, domain: usize, qp_num: u32) {
        lock(&self.qps).remove(&(domain, qp_num));
        lock(&self.last_receives).remove(&(domain, qp_num));
    }

    pub fn had_last_receive(&self, domain: usize, qp_num: u32) -> bool {
        lock(&self.last_receives).contains(&(domain, qp_num))
    }

    fn tell_qp(&self, domain: usize, qp_num: u32, reason: &'static str) {
        if let Some(tell) = lock(&self.qps).get(&(domain, qp_num)) {
            let _ = tell.send(Told::QpFailed { domain, qp_num, reason });
        }
    }

    /// Tells every connection.
    pub fn tell_all(&self, told: impl Fn() -> Told) {
        for tell in lock(&self.links).values() {
            let _ = tell.send(told());
        }
    }

    /// Counts a change of a port's state; returns how many there have been.
    pub fn count_port_change(&self, at: PortAt) -> u64 {
        let mut changes = lock(&self.port_changes);
        let count = changes.entry(at).or_default();
        *count += 1;
        *count
    }

    /// How many changes there have been.
    pub fn port_changes(&self, at: PortAt) -> u64 {
        lock(&self.port_changes).get(&at).copied().unwrap_or(0)
    }

    /// Closes every connection, and waits a little for the goodbyes.
    async fn close_all(&self) {
        for tell in lock(&self.links).values() {
            let _ = tell.send(Told::Input(Input::Close { reason: "the process ends".into(), order: None }));
        }
        let patience = Duration::from_nanos(self.config.patience.close_ns);
        let _ = tokio::time::timeout(patience, async {
            while !lock(&self.links).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

type Told2 = tokio::sync::mpsc::UnboundedReceiver<Told>;

/// The address of an exchange as a hint where the peer is; a name before it (`node3@`) does not matter.
pub(super) fn near(place: &str) -> Option<Gid> {
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().ok().map(Gid::from_ip)
}
