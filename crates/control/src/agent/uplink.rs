//! The agent's way to control: it joins a replica, tells everything once and then what changes, answers, and measures. When the replica is lost it
//! goes to the next; until one is there the hub gathers.

use super::hub::Hub;
use super::lldp::Neighbours;
use super::ports::{self, PortCounters, SharedSource};
use super::{Neighbour, Settings, Tls, Unusable};
use crate::clock::Clock;
use crate::directory::PortRecord;
use crate::message;
use crate::proto::control::control_client::ControlClient;
use crate::proto::control::{self as proto, from_agent, to_agent};
use scalefabric_fabric::exchange::explain_refusal;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Between two attempts: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// How long a replica may take to welcome.
const WELCOME: Duration = Duration::from_secs(10);
/// Nothing heard for so long: the replica is lost. It pings every five seconds.
const SILENCE: Duration = Duration::from_secs(20);
/// What changes within this time is told together.
const GATHER: Duration = Duration::from_millis(20);
/// Connections of one message.
const TOGETHER: usize = 1000;
/// Connections of one load.
const LOADS: usize = 64;
/// Between two messages about what tenants have here. The first of a burst is not held back: until the others hear of it they may give what is had here already.
const HELD: Duration = Duration::from_millis(50);
/// How often ports are listed anew.
const PORTS: Duration = Duration::from_secs(2);

/// After a start of an agent that was there before: its processes come back within this time, and until they have, what it could tell is not whole.
const RETURN: Duration = Duration::from_millis(2500);

/// The uplink.
pub struct Uplink {
    node: String,
    tls: Option<Tls>,
    given: Vec<String>,
    /// As the configuration tells.
    neighbours: Vec<Neighbour>,
    /// As LLDP tells.
    cables: Neighbours,
    hub: Arc<Hub>,
    source: SharedSource,
    clock: Arc<dyn Clock>,
    incarnation: u64,
    ports: Vec<PortRecord>,
    /// Neighbours as control was told last.
    told: Vec<proto::Neighbour>,
}

/// Why a session ended, for people.
type Trouble = String;

impl Uplink {
    /// Checks addresses and certificates.
    pub fn new(
        settings: &Settings,
        hub: Arc<Hub>,
        source: SharedSource,
        cables: Neighbours,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Unusable> {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let uplink = Self {
            node: settings.node.clone(),
            tls: settings.tls.clone(),
            given: settings.control.clone(),
            neighbours: settings.neighbours.clone(),
            cables,
            hub,
            source,
            clock,
            // A later start has a higher number, unless the date was set back by more than the time between.
            incarnation: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            ports: Vec::new(),
            told: Vec::new(),
        };
        if uplink.given.is_empty() {
            return Err(Unusable("no address of control is given".into()));
        }
        for address in &uplink.given {
            uplink.channel(address).map_err(Unusable)?;
        }
        Ok(uplink)
    }

    fn channel(&self, address: &str) -> Result<Channel, String> {
        let wrong = |why: &dyn std::fmt::Display| {
            format!("`{address}` is no address of control ({why}); one looks like `https://10.0.0.1:7480`")
        };
        let mut endpoint = Endpoint::from_shared(address.to_owned())
            .map_err(|error| wrong(&error))?
            .connect_timeout(Duration::from_secs(3))
            .tcp_nodelay(true);
        match (&self.tls, address.starts_with("https://")) {
            (Some(tls), true) => {
                let config = ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(&tls.ca))
                    .identity(Identity::from_pem(&tls.certificate, &tls.key));
                endpoint = endpoint.tls_config(config).map_err(|error| wrong(&error))?;
            }
            (None, true) => return Err(wrong(&"it needs certificates: give `tls`")),
            (_, false) if !is_loopback(address) => {
                return Err(wrong(&"off this host only `https` is spoken"));
            }
            (_, false) => {}
        }
        Ok(endpoint.connect_lazy())
    }

    /// Works for as long as the agent lives.
    pub async fn run(mut self) {
        let mut addresses: VecDeque<String> = VecDeque::new();
        if !self.hub.replicas().is_empty() {
            tokio::time::sleep(RETURN).await;
        }
        let mut pause = PAUSE.0;
        loop {
            if addresses.is_empty() {
                addresses.extend(self.given.iter().cloned());
                let heard = self.hub.replicas();
                addresses.extend(heard.into_iter().filter(|address| !self.given.contains(address)));
            }
            let Some(address) = addresses.pop_front() else { return };
            let mut joined = false;
            let trouble = match self.channel(&address) {
                Ok(channel) => self.session(channel, &mut joined).await,
                Err(trouble) => trouble,
            };
            self.hub.handle_uplink(None, Some(format!("{address}: {trouble}")));
            if joined {
                pause = PAUSE.0;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Looks at the ports and their cables; whether anything has changed.
    fn look(&mut self) -> bool {
        let (ports, interfaces) = {
            let mut source = self.source.lock();
            (source.ports(), source.interfaces())
        };
        let neighbour = |(place, port): (usize, &PortRecord)| {
            let seen = interfaces.get(place).and_then(|interface| self.cables.of(interface));
            let written = || {
                let is_its = |one: &&Neighbour| port.device == one.device && port.port_num == one.port_num;
                self.neighbours.iter().find(is_its).map(|one| (one.chassis.clone(), one.port_id.clone()))
            };
            let (chassis, port_id) = seen.map(|end| (end.switch, end.port)).or_else(written)?;
            Some(proto::Neighbour { port: u32::try_from(place).ok()?, chassis, port_id })
        };
        let told: Vec<proto::Neighbour> = ports.iter().enumerate().filter_map(neighbour).collect();
        let changed = ports != self.ports || told != self.told;
        (self.ports, self.told) = (ports, told);
        changed
    }

    fn hello(&mut self) -> proto::Hello {
        self.look();
        proto::Hello {
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: self.incarnation,
            ports: self.ports.iter().map(port_message).collect(),
            neighbours: self.told.clone(),
        }
    }

    /// From joining to the end of it; says why it ended.
    async fn session(&mut self, channel: Channel, joined: &mut bool) -> Trouble {
        let (out, queue) = mpsc::channel(64);
        let hello = from_agent::Message::Hello(self.hello());
        if send(&out, hello).await.is_err() {
            return "it closed the stream".into();
        }
        let mut client = ControlClient::new(channel).max_decoding_message_size(64 * 1024 * 1024);
        let call = client.join(ReceiverStream::new(queue));
        let answers = match tokio::time::timeout(WELCOME, call).await {
            Ok(Ok(answers)) => answers.into_inner(),
            Ok(Err(status)) => return told(&status, self.tls.is_some()),
            Err(_) => return format!("no welcome within {WELCOME:?}"),
        };
        let mut session = Session { uplink: self, out, serial: 0, interval: Duration::from_millis(100) };
        session.run(answers, joined).await
    }
}

fn told(status: &tonic::Status, is_tls: bool) -> Trouble {
    use std::error::Error;
    if let Some(refusal) = explain_refusal("control", status) {
        return refusal.message;
    }
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        // In TLS 1.3 who refuses a certificate may be gone before the other side reads why.
        let broke = error.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset)
        });
        text = if broke && is_tls {
            format!(
                "{error} before it answered: it may have refused our certificate (does its client_ca name who signed it?)"
            )
        } else {
            error.to_string()
        };
        cause = error.source();
    }
    text
}

fn is_loopback(address: &str) -> bool {
    let rest = address.trim_start_matches("http://");
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn port_message(port: &PortRecord) -> proto::Port {
    proto::Port {
        device: port.device.clone(),
        port_num: port.port_num.into(),
        gids: port.gids.iter().map(|gid| gid.octets().to_vec()).collect(),
        rate_mbps: port.rate_mbps,
        numa_node: port.numa_node.map_or(-1, i32::from),
        active: port.active,
    }
}

/// The replica is gone.
struct Gone;

async fn send(out: &mpsc::Sender<proto::FromAgent>, message: from_agent::Message) -> Result<(), Gone> {
    out.send(proto::FromAgent { message: Some(message) }).await.map_err(|_| Gone)
}

/// A replica that was joined.
struct Session<'a> {
    uplink: &'a mut Uplink,
    out: mpsc::Sender<proto::FromAgent>,
    serial: u64,
    interval: Duration,
}

impl Session<'_> {
    async fn run(&mut self, mut answers: tonic::Streaming<proto::ToAgent>, joined: &mut bool) -> Trouble {
        let hub = Arc::clone(&self.uplink.hub);
        let clock = Arc::clone(&self.uplink.clock);
        let mut before = self.uplink.source.lock().counters();
        let mut measured = clock.now();
        let mut listed = measured;
        let mut measure = tokio::time::interval(self.interval);
        measure.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heard = clock.now();
        let mut told_held = Duration::ZERO;
        loop {
            let early = (told_held + HELD).saturating_sub(clock.now());
            let held = async {
                tokio::time::sleep(early).await;
                hub.held.notified().await;
            };
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(proto::ToAgent { message: Some(message) })) => {
                        heard = clock.now();
                        let welcome = matches!(message, to_agent::Message::Welcome(_));
                        if self.hear(message).await.is_err() {
                            return "it closed the stream".into();
                        }
                        if welcome {
                            *joined = true;
                            measure = tokio::time::interval(self.interval);
                            measure.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => return "it ended the stream".into(),
                    Err(status) => return told(&status, self.uplink.tls.is_some() && !*joined),
                },
                () = hub.upward.notified(), if *joined => {
                    tokio::time::sleep(GATHER).await;
                    if self.changes().await.is_err() {
                        return "it closed the stream".into();
                    }
                }
                () = held, if *joined => {
                    told_held = clock.now();
                    if self.holdings(false).await.is_err() {
                        return "it closed the stream".into();
                    }
                }
                _ = measure.tick() => {
                    let now = clock.now();
                    hub.tell_remembered();
                    if now.saturating_sub(heard) > SILENCE {
                        return format!("nothing was heard of it for {SILENCE:?}");
                    }
                    if now.saturating_sub(listed) > PORTS {
                        listed = now;
                        if self.list_ports().await.is_err() {
                            return "it closed the stream".into();
                        }
                        // Answers that nobody gave in time.
                        hub.upward.notify_one();
                    }
                    let counters = self.uplink.source.lock().counters();
                    let passed = now.saturating_sub(measured);
                    if *joined && self.load(&before, &counters, passed).await.is_err() {
                        return "it closed the stream".into();
                    }
                    (before, measured) = (counters, now);
                }
            }
        }
    }

    async fn load(&mut self, before: &[PortCounters], now: &[PortCounters], passed: Duration) -> Result<(), Gone> {
        let Some(mut load) = ports::load(before, now, passed) else { return Ok(()) };
        if load.tx_bytes.len() != self.uplink.ports.len() {
            return Ok(());
        }
        load.connections = self.uplink.hub.take_carried(passed, LOADS);
        // A replica that does not keep up with loads does without some.
        match self.out.try_send(proto::FromAgent { message: Some(from_agent::Message::Load(load)) }) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Gone),
            _ => Ok(()),
        }
    }

    /// What tenants have here, if that changed.
    async fn holdings(&mut self, anew: bool) -> Result<(), Gone> {
        match self.uplink.hub.take_holdings(anew) {
            Some(all) => send(&self.out, from_agent::Message::Holdings(message::holdings_message(&all))).await,
            None => Ok(()),
        }
    }

    async fn list_ports(&mut self) -> Result<(), Gone> {
        if !self.uplink.look() {
            return Ok(());
        }
        let ports = self.uplink.ports.iter().map(port_message).collect();
        let neighbours = self.uplink.told.clone();
        self.report(proto::Report { ports, neighbours, ..proto::Report::default() }).await
    }

    async fn report(&mut self, mut report: proto::Report) -> Result<(), Gone> {
        self.serial += 1;
        report.serial = self.serial;
        send(&self.out, from_agent::Message::Report(report)).await
    }

    async fn hear(&mut self, message: to_agent::Message) -> Result<(), Gone> {
        let hub = Arc::clone(&self.uplink.hub);
        match message {
            to_agent::Message::Welcome(welcome) => {
                self.interval = Duration::from_millis(u64::from(welcome.load_interval_ms.max(10)));
                hub.handle_uplink(Some(welcome.replica), None);
                hub.handle_replicas(welcome.replicas);
                self.whole().await?;
            }
            to_agent::Message::Ping(ping) => {
                send(&self.out, from_agent::Message::Pong(proto::Pong { nonce: ping.nonce })).await?;
            }
            to_agent::Message::Services(update) => {
                let addresses = update.addresses.iter().filter_map(|one| message::service(one).ok()).collect();
                hub.handle_services(&update.service, addresses);
            }
            to_agent::Message::Policy(policy) => hub.handle_policy(&policy.json),
            to_agent::Message::Elsewhere(all) => {
                if let Ok(all) = message::holdings(&all) {
                    hub.handle_elsewhere(all);
                }
            }
            to_agent::Message::Order(order) => match message::order(&order) {
                Ok((id, order)) => hub.handle_order(&id, &order),
                Err(malformed) => {
                    let answer = message::Answer::NotHere { reason: malformed.0 };
                    send(&self.out, from_agent::Message::Answer(message::answer_message(&order.id, &answer))).await?;
                }
            },
            to_agent::Message::Taken(_) => {}
        }
        Ok(())
    }

    /// Everything there is, in pieces.
    async fn whole(&mut self) -> Result<(), Gone> {
        let (connections, services, wants) = self.uplink.hub.take_whole();
        let mut pieces = connections.chunks(TOGETHER).map(<[_]>::to_vec).collect::<Vec<_>>();
        let last = pieces.pop().unwrap_or_default();
        for connections in pieces {
            let report = proto::Report { whole: true, more: true, connections, ..proto::Report::default() };
            self.report(report).await?;
        }
        let report = proto::Report { whole: true, connections: last, services, ..proto::Report::default() };
        self.report(report).await?;
        send(&self.out, from_agent::Message::Want(proto::Want { services: wants })).await?;
        self.holdings(true).await?;
        self.changes().await
    }

    async fn changes(&mut self) -> Result<(), Gone> {
        let hub = Arc::clone(&self.uplink.hub);
        for (id, answer) in hub.take_answers() {
            send(&self.out, from_agent::Message::Answer(message::answer_message(&id, &answer))).await?;
        }
        if let Some(report) = hub.take_changes() {
            self.report(report).await?;
        }
        if let Some(services) = hub.take_wants() {
            send(&self.out, from_agent::Message::Want(proto::Want { services })).await?;
        }
        Ok(())
    }
}
