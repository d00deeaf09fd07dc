//! Three processes and a fourth one, each in a network namespace of its own, around a switch whose link to the fourth is slow, queues and marks. It judges nothing.

use scalefabric_fabric::ecmp::EcmpHash;
use scalefabric_sim::switch::body::Forwarder;
use scalefabric_sim::switch::queue::{Bottleneck, Marking, Statistics};
use scalefabric_sim::switch::{HostId, Network};
use scalefabric_tests::netns::{Namespace, Peer, interface};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// What tells a process that it is one of ours.
pub const CHILD: &str = "SCALEFABRIC_CONGESTION_CHILD";
/// Those that send.
pub const SENDERS: usize = 3;

/// Which addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    fn address(self, n: usize) -> IpAddr {
        match self {
            Self::V4 => [10, 77, 4, n as u8 + 1].into(),
            Self::V6 => Ipv6Addr::new(0xfd77, 4, 0, 0, 0, 0, 0, n as u16 + 1).into(),
        }
    }
}

/// 200 Mb/s, so that the processors are not what is slow; room for all that three senders may have in flight.
const SLOW: Bottleneck = Bottleneck {
    rate_bps: 200_000_000,
    buffer_bytes: 8 << 20,
    marking: Some(Marking { kmin: 40_000, kmax: 160_000, most: 0.2 }),
    seed: 1,
};

/// Bytes until senders have found their rates, and bytes that are judged: four seconds, so that a sender that waits for its retransmission timer, 2 s, is not all that is seen.
const WARM_UP: u64 = 24_000_000;
const MEASURED: u64 = 96_000_000;

/// Three that send, one that receives behind the slow link.
pub struct Rig {
    senders: Vec<Peer>,
    receiver: Peer,
    forwarder: Forwarder,
    slow: HostId,
    _spaces: Vec<Namespace>,
    configs: Vec<std::path::PathBuf>,
}

impl Rig {
    /// `None` where there are no namespaces or interfaces to be made. `congestion`: lines of TOML.
    pub fn build(tag: &str, family: Family, congestion: &str) -> Option<Self> {
        let mut network = Network::new();
        let switch = network.add_switch(EcmpHash::default());
        let (mut hosts, mut spaces, mut configs, mut addresses) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let mut slow = None;
        for n in 0..=SENDERS {
            let tun = match interface(&format!("sfc{tag}{n}")) {
                Ok(tun) => tun,
                Err(why) => {
                    eprintln!("skipped: {why}");
                    return None;
                }
            };
            let address = family.address(n);
            spaces.push(Namespace::new(&tun, address));
            let path = std::env::temp_dir().join(format!("{}.toml", tun.name()));
            let device = format!("[[device]]\nname = \"slow\"\n[[device.port]]\ninterface = \"{}\"\n", tun.name());
            std::fs::write(&path, format!("{congestion}\n{device}")).unwrap();
            configs.push(path);
            let host = network.attach((switch, n as u16), &[address]);
            addresses.push(address);
            hosts.insert(host, tun);
            slow = Some(host);
        }
        let slow = slow?;
        let forwarder = Forwarder::start_with(network, hosts, BTreeMap::from([(slow, SLOW)])).unwrap();
        let peer = |n: usize| Peer::start(&spaces[n], &configs[n], CHILD);
        let mut senders: Vec<Peer> = (0..SENDERS).map(peer).collect();
        let mut receiver = peer(SENDERS);
        for (n, sender) in senders.iter_mut().enumerate() {
            let (theirs, ours) = (qpn(&receiver, n), qpn(sender, 0));
            assert_eq!(sender.ask(&format!("connect 0 {theirs} {}", addresses[SENDERS])), "ok");
            assert_eq!(receiver.ask(&format!("connect {n} {ours} {}", addresses[n])), "ok");
        }
        Some(Self { senders, receiver, forwarder, slow, _spaces: spaces, configs })
    }

    /// Waits until the queue has passed so many bytes.
    fn pass(&self, bytes: u64) -> Statistics {
        let start = Instant::now();
        loop {
            let seen = self.forwarder.statistics(self.slow);
            if seen.bytes >= bytes {
                return seen;
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "only {} of {bytes} bytes passed: {seen:?}",
                seen.bytes
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All write at once; what the queue saw when they had found their rates.
    pub fn write(&mut self) -> Statistics {
        let place = place(&self.receiver);
        for sender in &mut self.senders {
            assert_eq!(sender.ask(&format!("write {place}")), "going");
        }
        let seen = self.measure();
        for sender in &mut self.senders {
            sender.say("stop");
        }
        for sender in &mut self.senders {
            assert!(sender.answer().parse::<u64>().unwrap() > 0);
        }
        seen
    }

    /// The one behind the slow link reads from all at once.
    pub fn read(&mut self) -> Statistics {
        let places: Vec<String> = self.senders.iter().map(place).collect();
        assert_eq!(self.receiver.ask(&format!("read {}", places.join(" "))), "going");
        let seen = self.measure();
        assert!(self.receiver.ask("stop").parse::<u64>().unwrap() > 0);
        seen
    }

    fn measure(&self) -> Statistics {
        self.pass(WARM_UP);
        self.forwarder.take_statistics(self.slow);
        let seen = self.pass(MEASURED);
        eprintln!(
            "queue: mean {:.0} B, most {} B, {:.2} % marked, {} lost, fairness {:.3}",
            seen.mean_bytes(),
            seen.most_bytes,
            100.0 * seen.marked_part(),
            seen.dropped,
            seen.fairness()
        );
        seen
    }

    /// What controls those that write.
    pub fn writers(&mut self) -> Vec<String> {
        self.senders.iter_mut().map(|sender| sender.ask("algorithm 0")).collect()
    }

    /// What controls the QPs of the one that reads.
    pub fn readers(&mut self) -> Vec<String> {
        (0..SENDERS).map(|n| self.receiver.ask(&format!("algorithm {n}"))).collect()
    }
}

/// The number of a peer's QP.
fn qpn(peer: &Peer, which: usize) -> u32 {
    peer.hello[0].split(',').nth(which).and_then(|word| word.parse().ok()).unwrap()
}

/// Key and address of a peer's memory.
fn place(peer: &Peer) -> String {
    format!("{} {}", peer.hello[1], peer.hello[2])
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.configs.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}
