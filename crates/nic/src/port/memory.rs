//! A wire in memory: ports that reach each other without a socket, and a queue of what is on the way that a test can look
//! at, drop from, reorder, duplicate and edit.
//!
//! Datagrams keep the order of sending. A sent train is cut into datagrams with the IPv4 identification that a kernel would
//! give them (D4). Buffers are recycled, so that a running wire allocates nothing. No time passes on this wire.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::port::{Datagram, Port, Sent, Train};

/// A datagram on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WirePacket {
    /// Number of the port that sent it, in the order of [`MemoryWire::port`]; `usize::MAX` for an injected one.
    pub from: usize,
    /// Source address.
    pub src: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination address.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// IPv4 identification.
    pub ip_id: u16,
    /// BTH to ICRC.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Endpoint {
    addresses: Vec<IpAddr>,
    groups: Vec<IpAddr>,
    inbox: VecDeque<WirePacket>,
    blocked: bool,
    max_train: usize,
}

#[derive(Debug, Default)]
struct State {
    endpoints: Vec<Endpoint>,
    in_flight: VecDeque<WirePacket>,
    spare: Vec<Vec<u8>>,
    held: bool,
}

impl State {
    fn deliver(&mut self, mut packet: WirePacket) {
        let group = packet.dst.is_multicast();
        let mut last = None;
        for index in 0..self.endpoints.len() {
            let e = &self.endpoints[index];
            let takes = if group { e.groups.contains(&packet.dst) } else { e.addresses.contains(&packet.dst) };
            if takes && let Some(before) = last.replace(index) {
                let copy = self.copy(&packet);
                self.endpoints[before].inbox.push_back(copy);
            }
        }
        match last {
            Some(index) => self.endpoints[index].inbox.push_back(packet),
            None => self.spare.push(core::mem::take(&mut packet.bytes)),
        }
    }

    fn copy(&mut self, packet: &WirePacket) -> WirePacket {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&packet.bytes);
        WirePacket { bytes, ..*packet }
    }
}

/// The wire: a handle; clones are the same wire.
#[derive(Clone, Debug, Default)]
pub struct MemoryWire(Arc<Mutex<State>>);

impl MemoryWire {
    /// A wire without ports, that delivers at once.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Plugs in a port with these addresses. Several ports may share an address: each gets its copy of a group's datagrams,
    /// and the last one plugged in gets the others.
    pub fn port(&self, addresses: &[IpAddr]) -> MemoryPort {
        let mut state = self.state();
        state.endpoints.push(Endpoint { addresses: addresses.to_vec(), max_train: 64, ..Endpoint::default() });
        MemoryPort { wire: self.clone(), index: state.endpoints.len() - 1 }
    }

    /// Adds an address to a port.
    pub fn add_address(&self, port: usize, address: IpAddr) {
        self.state().endpoints[port].addresses.push(address);
    }

    /// Whether packets wait in flight until [`MemoryWire::deliver`], or arrive at once.
    pub fn hold(&self, held: bool) {
        self.state().held = held;
        if !held {
            self.deliver(usize::MAX);
        }
    }

    /// Whether a port refuses to send.
    pub fn block(&self, port: usize, blocked: bool) {
        self.state().endpoints[port].blocked = blocked;
    }

    /// Most datagrams in a train of a port; 1: none.
    pub fn set_max_train(&self, port: usize, max_train: usize) {
        self.state().endpoints[port].max_train = max_train;
    }

    /// Looks at, or changes, what is in flight.
    pub fn in_flight<R>(&self, f: impl FnOnce(&mut VecDeque<WirePacket>) -> R) -> R {
        f(&mut self.state().in_flight)
    }

    /// Lets at most `count` packets arrive; returns how many did.
    pub fn deliver(&self, count: usize) -> usize {
        let mut state = self.state();
        let mut done = 0;
        while done < count
            && let Some(packet) = state.in_flight.pop_front()
        {
            state.deliver(packet);
            done += 1;
        }
        done
    }

    /// A packet arrives that no port of the wire sent.
    pub fn inject(&self, packet: WirePacket) {
        self.state().deliver(packet);
    }
}

/// A port on a [`MemoryWire`].
#[derive(Debug)]
pub struct MemoryPort {
    wire: MemoryWire,
    index: usize,
}

impl MemoryPort {
    /// Its number on the wire.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Port for MemoryPort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut count = 0;
        while count < max {
            // The wire is not held while the engine works: it may send.
            let Some(packet) = self.wire.state().endpoints[self.index].inbox.pop_front() else { break };
            sink(&Datagram {
                src: packet.src,
                src_port: packet.src_port,
                dst: packet.dst,
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
                ip_id: packet.ip_id,
                bytes: &packet.bytes,
            });
            self.wire.state().spare.push(packet.bytes);
            count += 1;
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut state = self.wire.state();
        if state.endpoints[self.index].blocked {
            return Sent::Blocked;
        }
        for (i, datagram) in train.bytes.chunks(train.segment.max(1)).enumerate() {
            let mut bytes = state.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(datagram);
            let packet = WirePacket {
                from: self.index,
                src: train.src,
                src_port: train.src_port,
                dst: train.dst,
                traffic_class: train.traffic_class,
                hop_limit: train.hop_limit,
                flow_label: train.flow_label,
                ip_id: i as u16,
                bytes,
            };
            if state.held {
                state.in_flight.push_back(packet);
            } else {
                state.deliver(packet);
            }
        }
        Sent::Done
    }

    fn source_port(&self, _src: IpAddr, flow: u32) -> u16 {
        0xc000 | ((flow ^ (flow >> 14)) & 0x3fff) as u16
    }

    fn max_train(&self) -> usize {
        self.wire.state().endpoints[self.index].max_train
    }

    fn join(&mut self, group: IpAddr) -> std::io::Result<()> {
        let groups = &mut self.wire.state().endpoints[self.index].groups;
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.wire.state().endpoints[self.index].groups.retain(|g| *g != group);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    fn train(bytes: &[u8], dst: IpAddr) -> Train<'_> {
        Train { src: ip(1), src_port: 0xc001, dst, traffic_class: 2, hop_limit: 9, flow_label: 0, segment: 4, bytes }
    }

    fn received(port: &mut MemoryPort) -> Vec<(u16, Vec<u8>)> {
        let mut got = Vec::new();
        port.receive(10, &mut |d| got.push((d.ip_id, d.bytes.to_vec())));
        got
    }

    #[test]
    fn a_train_arrives_cut_and_numbered() {
        let wire = MemoryWire::new();
        let (mut a, mut b) = (wire.port(&[ip(1)]), wire.port(&[ip(2)]));
        assert_eq!(a.send(&train(b"aaaabbbbcc", ip(2))), Sent::Done);
        let expected = vec![(0, b"aaaa".to_vec()), (1, b"bbbb".to_vec()), (2, b"cc".to_vec())];
        assert_eq!(received(&mut b), expected);
        assert_eq!(received(&mut a), vec![]);
    }

    #[test]
    fn a_held_packet_can_be_edited_and_dropped() {
        let wire = MemoryWire::new();
        let (mut a, mut b) = (wire.port(&[ip(1)]), wire.port(&[ip(2)]));
        wire.hold(true);
        a.send(&train(b"aaaabbbb", ip(2)));
        wire.in_flight(|q| {
            q.remove(0);
            q[0].bytes[0] = b'x';
        });
        assert_eq!(received(&mut b), vec![]);
        assert_eq!(wire.deliver(10), 1);
        assert_eq!(received(&mut b), vec![(1, b"xbbb".to_vec())]);
    }

    #[test]
    fn a_group_reaches_its_members_only() {
        let wire = MemoryWire::new();
        let group = Ipv4Addr::new(239, 0, 0, 1).into();
        let (mut a, mut b, mut c) = (wire.port(&[ip(1)]), wire.port(&[ip(2)]), wire.port(&[ip(3)]));
        a.join(group).unwrap();
        b.join(group).unwrap();
        a.send(&train(b"m", group));
        assert_eq!((received(&mut a).len(), received(&mut b).len(), received(&mut c).len()), (1, 1, 0));
        b.leave(group).unwrap();
        a.send(&train(b"m", group));
        assert_eq!((received(&mut a).len(), received(&mut b).len()), (1, 0));
    }
}
