//! Where a packet goes next: the kernel's answers, kept for a while. Nobody waits for an answer: until there is one, packets leave by the UDP
//! sockets, for which the kernel finds it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use crate::netlink::neighbour::{Hop, Tables};

/// How long an answer holds, ns: a neighbour that changes its MAC address or a route that changes is noticed within that time.
const HOLDS_NS: u64 = 250_000_000;
/// The same while nobody knows the neighbour.
const UNRESOLVED_NS: u64 = 2_000_000;
/// Destinations that are remembered, at most.
const MOST: usize = 4096;

/// The next hops of a port.
#[derive(Debug)]
pub(super) struct Hops {
    tables: Tables,
    ifindex: u32,
    /// Bytes of an IP packet, at most, as it was when the last answer came.
    mtu: u32,
    known: HashMap<(IpAddr, IpAddr), (Hop, u64)>,
    /// The last answer: most packets go where the one before went.
    last: Option<((IpAddr, IpAddr), Hop, u64)>,
}

impl Hops {
    pub(super) fn new(ifindex: u32, mtu: u32) -> io::Result<Self> {
        Ok(Self { tables: Tables::open()?, ifindex, mtu, known: HashMap::new(), last: None })
    }

    /// Bytes of an IP packet that the interface takes.
    pub(super) fn mtu(&self) -> usize {
        self.mtu as usize
    }

    /// Forgets everything: addresses or the interface have changed.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.last = None;
    }

    /// The MAC address of the next hop; `None`: the kernel has to send it.
    pub(super) fn find(&mut self, src: IpAddr, dst: IpAddr, now_ns: u64) -> Option<[u8; 6]> {
        let hop = match &self.last {
            Some((way, hop, until)) if *way == (src, dst) && now_ns < *until => *hop,
            _ => self.look_up(src, dst, now_ns),
        };
        match hop {
            Hop::Neighbour(mac) => Some(mac),
            Hop::Unresolved | Hop::Elsewhere => None,
        }
    }

    #[cold]
    fn look_up(&mut self, src: IpAddr, dst: IpAddr, now_ns: u64) -> Hop {
        let way = (src, dst);
        let (hop, until) = match self.known.get(&way) {
            Some(&(hop, until)) if now_ns < until => (hop, until),
            _ => {
                let hop = if dst.is_multicast() { Hop::Elsewhere } else { self.tables.hop(self.ifindex, src, dst) };
                self.mtu = self.tables.mtu(self.ifindex).unwrap_or(self.mtu);
                let until = now_ns + if hop == Hop::Unresolved { UNRESOLVED_NS } else { HOLDS_NS };
                if self.known.len() >= MOST {
                    self.known.clear();
                }
                self.known.insert(way, (hop, until));
                (hop, until)
            }
        };
        self.last = Some((way, hop, until));
        hop
    }
}
