//! Software switches with hosts that are network interfaces: a thread for each host reads what it sends, walks it through the network and gives it to whom it comes. When a
//! host's interface goes away its thread ends. A host behind a [`Bottleneck`] has a second thread, which gives it each packet when its link would have.

use super::packet;
use super::queue::{Bottleneck, Queue, Statistics};
use super::tun::Tun;
use super::{HostId, Network};
use scalefabric_transport::congestion::Hop;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The largest IP packet.
const MAX_PACKET: usize = 65_535;

/// A network that forwards. It goes on for as long as there are interfaces.
#[derive(Clone, Debug)]
pub struct Forwarder {
    network: Arc<Mutex<Network>>,
    links: Arc<BTreeMap<HostId, Link>>,
}

/// The link to a host that is slow.
#[derive(Debug)]
struct Link {
    rate_bps: u64,
    start: Instant,
    state: Mutex<Held>,
    more: Condvar,
}

/// Its queue, and the packets in it.
#[derive(Debug)]
struct Held {
    queue: Queue,
    packets: VecDeque<Waiting>,
    /// Bytes that have left.
    sent_bytes: u64,
}

/// A packet with the times at which it came and leaves, ns.
#[derive(Debug)]
struct Waiting {
    came: u64,
    leaves: u64,
    bytes: Vec<u8>,
}

impl Forwarder {
    /// Starts a thread for each host.
    pub fn start(network: Network, hosts: BTreeMap<HostId, Tun>) -> std::io::Result<Self> {
        Self::start_with(network, hosts, BTreeMap::new())
    }

    /// The same; the links to some hosts are slow, and have queues.
    pub fn start_with(
        network: Network,
        hosts: BTreeMap<HostId, Tun>,
        bottlenecks: BTreeMap<HostId, Bottleneck>,
    ) -> std::io::Result<Self> {
        let network = Arc::new(Mutex::new(network));
        let hosts: Arc<BTreeMap<HostId, Tun>> = Arc::new(hosts);
        let links: BTreeMap<HostId, Link> =
            bottlenecks.into_iter().map(|(host, bottleneck)| (host, Link::new(bottleneck))).collect();
        let links = Arc::new(links);
        for &host in hosts.keys() {
            let (network, hosts, links) = (network.clone(), hosts.clone(), links.clone());
            std::thread::Builder::new()
                .name(format!("switch-{}", host.0))
                .spawn(move || serve(&network, &hosts, &links, host))?;
        }
        for &host in links.keys() {
            let (hosts, links) = (Arc::downgrade(&hosts), links.clone());
            std::thread::Builder::new()
                .name(format!("link-{}", host.0))
                .spawn(move || links[&host].carry(&hosts, host))?;
        }
        Ok(Self { network, links })
    }

    /// The network, to look at its counters or to change its links.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the queue before a host has seen since the last call; nothing for a link without a queue.
    pub fn take_statistics(&self, host: HostId) -> Statistics {
        self.links.get(&host).map(|link| link.held().queue.take_statistics()).unwrap_or_default()
    }

    /// What it has seen so far.
    pub fn statistics(&self, host: HostId) -> Statistics {
        self.links.get(&host).map(|link| link.held().queue.statistics().clone()).unwrap_or_default()
    }
}

impl Link {
    fn new(bottleneck: Bottleneck) -> Self {
        let held = Held { queue: Queue::new(bottleneck), packets: VecDeque::new(), sent_bytes: 0 };
        let (state, rate_bps) = (Mutex::new(held), bottleneck.rate_bps);
        Self { rate_bps, start: Instant::now(), state, more: Condvar::new() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn take(&self, packet: &mut [u8]) {
        let mut held = self.held();
        let now = self.now_ns();
        if let Some(leaves) = held.queue.arrive(now, packet) {
            held.packets.push_back(Waiting { came: now, leaves, bytes: packet.to_vec() });
            drop(held);
            self.more.notify_one();
        }
    }

    /// Gives the host its packets in time, until the interfaces are gone.
    fn carry(&self, hosts: &Weak<BTreeMap<HostId, Tun>>, host: HostId) {
        let mut held = self.held();
        loop {
            let now = self.now_ns();
            let wait = match held.packets.front() {
                Some(first) if first.leaves <= now => {
                    let Some(packet) = held.leave(host, self.rate_bps) else { continue };
                    drop(held);
                    let Some(hosts) = hosts.upgrade() else { return };
                    let _ = hosts[&host].write(&packet);
                    held = self.held();
                    continue;
                }
                Some(first) => Duration::from_nanos(first.leaves - now),
                // Only to see that the interfaces are gone.
                None => Duration::from_millis(100),
            };
            if hosts.strong_count() == 0 {
                return;
            }
            held = self.more.wait_timeout(held, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Held {
    /// The first packet leaves, with a record of the queue as it is at its time, if it has room for one.
    fn leave(&mut self, host: HostId, rate_bps: u64) -> Option<Vec<u8>> {
        let Waiting { leaves, mut bytes, .. } = self.packets.pop_front()?;
        let behind =
            self.packets.iter().take_while(|packet| packet.came <= leaves).map(|packet| packet.bytes.len() as u64);
        let hop = Hop {
            node: host.0 as u32 + 1,
            rate_bps,
            at_ps: leaves * 1_000,
            tx_bytes: self.sent_bytes,
            queue_bytes: behind.sum(),
        };
        packet::stamp(&mut bytes, &hop);
        self.sent_bytes += bytes.len() as u64;
        Some(bytes)
    }
}

fn serve(network: &Mutex<Network>, hosts: &BTreeMap<HostId, Tun>, links: &BTreeMap<HostId, Link>, host: HostId) {
    let mut packet = vec![0; MAX_PACKET];
    while let Ok(length) = hosts[&host].read(&mut packet) {
        let packet = &mut packet[..length];
        let to = network.lock().unwrap_or_else(PoisonError::into_inner).forward(host, packet);
        match to {
            Ok(to) if links.contains_key(&to) => links[&to].take(packet),
            // A host whose interface is down loses the packet, as behind a cable that was pulled.
            Ok(to) => drop(hosts.get(&to).map(|tun| tun.write(packet))),
            Err(_) => {}
        }
    }
}
