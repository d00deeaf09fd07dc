//! Steps 5 and 6 of the walk: packets become bytes in place, and leave in trains.
//!
//! Each port has one arena. A packet is written straight to its end: headers, payload (copied there by the memory table or
//! the ring), pad, ICRC. Neighbours of one size to one destination form a train (D4); the last one may be shorter and
//! closes it. The place in the train is the packet's IPv4 identification, which the ICRC covers. Behind half a train's bytes no new
//! train begins until those before have left. When a port has no room its trains stay, in order, and [`Egress::reserve`] finds no
//! room either, which is the back-pressure that the transport sees. Nothing here allocates after the start, and nothing looks at the protocol.

use std::collections::VecDeque;
use std::net::IpAddr;

use scalefabric_transport::Counter;
use scalefabric_transport::congestion::int;
use scalefabric_wire::Gid;
use scalefabric_wire::icrc::Flow;

use crate::counters::Batch;
use crate::port::{MAX_TRAIN_BYTES, Port, Sent, Train};

/// The largest packet: 4096 bytes of payload, all headers that can meet, pad and ICRC, rounded up.
pub const MAX_PACKET: usize = 4096 + 128 + int::LEN;

/// Trains that wait at a port, at most. Bounds the descriptors as the arena bounds the bytes.
const MAX_TRAINS: usize = 512;

/// Where a packet goes and what its IP and UDP headers say. Packets of one way may share a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class, as it leaves.
    pub traffic_class: u8,
    /// TTL or hop limit, never 0.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
}

impl Way {
    /// The way between two GIDs. `None` if one is IPv4 and the other IPv6, or one is missing.
    pub fn between(src: Gid, dst: Gid, src_port: u16, av: &scalefabric_verbs::AddressVector) -> Option<Self> {
        if src.is_zero() || dst.is_zero() || src.is_ipv4() != dst.is_ipv4() {
            return None;
        }
        Some(Self {
            src: src.to_ip(),
            dst: dst.to_ip(),
            src_port,
            traffic_class: av.traffic_class,
            hop_limit: if av.hop_limit == 0 { 64 } else { av.hop_limit },
            flow_label: av.flow_label & 0x000f_ffff,
        })
    }

    /// What the ICRCs of this way have in common.
    pub fn flow(&self) -> Flow {
        Flow::between(Gid::from_ip(self.src), Gid::from_ip(self.dst), self.src_port)
    }
}

/// One train in the arena.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    way: Way,
    /// Serial of the route that opened it; 0 is nobody's.
    serial: u64,
    /// Destination slot: the upper 8 bits of the destination QPN. A train never mixes them (D1).
    slot: u8,
    start: usize,
    len: usize,
    segment: usize,
    count: usize,
    closed: bool,
}

/// Room for one packet, found by [`Egress::reserve`].
#[derive(Clone, Copy, Debug)]
pub struct Room {
    start: usize,
    size: usize,
    joins: bool,
    /// IPv4 identification that the packet will have.
    pub ip_id: u16,
}

/// What leaves by one port.
#[derive(Debug)]
pub struct Egress {
    arena: Box<[u8]>,
    tail: usize,
    trains: VecDeque<Waiting>,
    max_train: usize,
    blocked: bool,
}

impl Egress {
    /// An empty egress whose arena holds `staged_bytes`, at least one train.
    pub fn new(staged_bytes: usize) -> Self {
        Self {
            arena: vec![0; staged_bytes.max(MAX_TRAIN_BYTES)].into_boxed_slice(),
            tail: 0,
            trains: VecDeque::with_capacity(MAX_TRAINS),
            max_train: 1,
            blocked: false,
        }
    }

    /// Called at the start of a turn: a port may have learnt that it has no trains.
    pub fn begin_turn(&mut self, port: &dyn Port) {
        self.max_train = port.max_train().max(1);
    }

    /// Finds room for a packet of `size` bytes by a way (`serial`: of its route, so that most neighbours need not be
    /// compared address by address). `None`: no room now.
    #[inline]
    pub fn reserve(&self, way: &Way, serial: u64, slot: u8, size: usize) -> Option<Room> {
        if self.tail + size > self.arena.len() || size > MAX_PACKET {
            return None;
        }
        if let Some(open) = self.trains.back()
            && !open.closed
            && size <= open.segment
            && open.count < self.max_train
            && open.len + size <= MAX_TRAIN_BYTES
            && open.slot == slot
            && (open.serial == serial || open.way == *way)
        {
            return Some(Room { start: self.tail, size, joins: true, ip_id: open.count as u16 });
        }
        (!self.is_full()).then_some(Room { start: self.tail, size, joins: false, ip_id: 0 })
    }

    /// Room for a packet of the same size behind the last one, in the same train. `None`: none now, or not in that train.
    #[inline]
    pub fn behind(&self, serial: u64, size: usize) -> Option<Room> {
        let open = self.trains.back()?;
        let joins = !open.closed
            && open.serial == serial
            && open.segment == size
            && open.count < self.max_train
            && open.len + size <= MAX_TRAIN_BYTES
            && self.tail + size <= self.arena.len();
        joins.then_some(Room { start: self.tail, size, joins, ip_id: open.count as u16 })
    }

    /// The bytes of such a room, and those of the packet before it.
    #[inline]
    pub fn bytes_behind(&mut self, room: Room) -> (&[u8], &mut [u8]) {
        let (before, here) = self.arena.split_at_mut(room.start);
        (&before[room.start - room.size..], &mut here[..room.size])
    }

    /// As [`Egress::commit`], for such a room.
    #[inline]
    pub fn commit_behind(&mut self, room: Room) {
        if let Some(open) = self.trains.back_mut() {
            self.tail += room.size;
            open.len += room.size;
            open.count += 1;
        }
    }

    /// The bytes of a room.
    #[inline]
    pub fn bytes(&mut self, room: Room) -> &mut [u8] {
        &mut self.arena[room.start..room.start + room.size]
    }

    /// The packet is written and leaves. A room that is not committed is free again.
    #[inline]
    pub fn commit(&mut self, room: Room, way: &Way, serial: u64, slot: u8) {
        self.tail = room.start + room.size;
        match self.trains.back_mut() {
            Some(open) if room.joins => {
                open.count += 1;
                open.len += room.size;
                open.closed = room.size < open.segment;
            }
            _ => self.trains.push_back(Waiting {
                way: *way,
                serial,
                slot,
                start: room.start,
                len: room.size,
                segment: room.size,
                count: 1,
                closed: false,
            }),
        }
    }

    /// True if nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// True if one packet waits that a shorter one may join, and nothing else.
    #[inline]
    pub fn is_joinable_one(&self) -> bool {
        let is_one = |train: &Waiting| train.count == 1 && !train.closed;
        self.max_train > 1 && self.trains.len() == 1 && self.trains.front().is_some_and(is_one)
    }

    /// True while the port refuses trains.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// True if so much waits that it should leave before another train begins: later it would have fallen out of the nearest
    /// cache.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.tail >= MAX_TRAIN_BYTES / 2 || self.trains.len() >= MAX_TRAINS
    }

    /// How many packets of its size the train that is being built can still take.
    pub fn rest_of_train(&self) -> usize {
        self.trains.back().map_or(0, |open| self.rest_of(open))
    }

    #[inline]
    fn rest_of(&self, open: &Waiting) -> usize {
        if open.closed {
            return 0;
        }
        let bytes = (MAX_TRAIN_BYTES - open.len).min(self.arena.len() - self.tail);
        self.max_train.saturating_sub(open.count).min(bytes / open.segment.max(1))
    }

    /// How many packets of `size` bytes can stand behind the last one, in the same train.
    #[inline]
    pub fn room_for_run(&self, serial: u64, size: usize) -> usize {
        let open = self.trains.back().filter(|open| open.serial == serial && open.segment == size);
        open.map_or(0, |open| self.rest_of(open))
    }

    /// The bytes of so many, for which there is room; those of the packet before them; and the IPv4 identification of the first.
    #[inline]
    pub fn run_bytes(&mut self, count: usize, size: usize) -> (&[u8], &mut [u8], u16) {
        let ip_id = self.trains.back().map_or(0, |open| open.count as u16);
        let (before, here) = self.arena.split_at_mut(self.tail);
        (&before[self.tail - size..], &mut here[..count * size], ip_id)
    }

    /// So many of them are written and leave.
    #[inline]
    pub fn commit_run(&mut self, count: usize, size: usize) {
        if let Some(open) = self.trains.back_mut() {
            self.tail += count * size;
            open.len += count * size;
            open.count += count;
        }
    }

    /// Sends what waits until the port blocks; returns true if something left.
    pub fn flush(&mut self, port: &mut dyn Port, batch: &mut Batch) -> bool {
        let mut progressed = false;
        self.blocked = false;
        while let Some(train) = self.trains.front_mut() {
            // Once the port has refused it, a train keeps its shape.
            train.closed = true;
            let sent = port.send(&Train {
                src: train.way.src,
                src_port: train.way.src_port,
                dst: train.way.dst,
                traffic_class: train.way.traffic_class,
                hop_limit: train.way.hop_limit,
                flow_label: train.way.flow_label,
                segment: train.segment,
                bytes: &self.arena[train.start..train.start + train.len],
            });
            if sent == Sent::Blocked {
                self.blocked = true;
                break;
            }
            batch.count(Counter::SentPackets, train.count as u64);
            batch.count(Counter::SentBytes, train.len as u64);
            self.trains.pop_front();
            progressed = true;
        }
        match self.trains.front().map(|t| t.start) {
            None => self.tail = 0,
            // Part of the arena has left: move the rest down, so that a port which takes one train at a time does not
            // starve the QPs behind it. At most one move per flush that blocked.
            Some(start) if start > 0 && progressed => {
                self.arena.copy_within(start..self.tail, 0);
                self.tail -= start;
                for train in &mut self.trains {
                    train.start -= start;
                }
            }
            Some(_) => {}
        }
        progressed
    }

    /// Throws away what waits (the port went down): packets are lost as on a wire. Returns how many.
    pub fn discard(&mut self) -> u64 {
        let lost = self.trains.iter().map(|t| t.count as u64).sum();
        self.trains.clear();
        self.tail = 0;
        self.blocked = false;
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[derive(Default)]
    struct Recorder {
        trains: Vec<(u16, usize, Vec<u8>)>,
        room: usize,
    }

    impl Port for Recorder {
        fn receive(&mut self, _: usize, _: &mut dyn FnMut(&crate::port::Datagram<'_>)) -> usize {
            0
        }
        fn send(&mut self, train: &Train<'_>) -> Sent {
            if self.room == 0 {
                return Sent::Blocked;
            }
            self.room -= 1;
            self.trains.push((train.src_port, train.segment, train.bytes.to_vec()));
            Sent::Done
        }
        fn source_port(&self, _: IpAddr, _: u32) -> u16 {
            0xc000
        }
        fn max_train(&self) -> usize {
            4
        }
    }

    fn way(src_port: u16) -> Way {
        Way {
            src: Ipv4Addr::new(10, 0, 0, 1).into(),
            dst: Ipv4Addr::new(10, 0, 0, 2).into(),
            src_port,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    fn put(egress: &mut Egress, src_port: u16, slot: u8, size: usize) -> Option<u16> {
        let room = egress.reserve(&way(src_port), u64::from(src_port) + 1, slot, size)?;
        egress.bytes(room).fill(room.ip_id as u8);
        egress.commit(room, &way(src_port), u64::from(src_port) + 1, slot);
        Some(room.ip_id)
    }

    fn shapes(port: &Recorder) -> Vec<(u16, usize, usize)> {
        port.trains.iter().map(|t| (t.0, t.1, t.2.len())).collect()
    }

    #[test]
    fn equal_packets_form_a_train_and_a_shorter_one_closes_it() {
        let (mut e, mut port) = (Egress::new(0), Recorder { room: 9, ..Recorder::default() });
        e.begin_turn(&port);
        let ids: Vec<_> = [100, 100, 40, 40].iter().map(|&size| put(&mut e, 1, 1, size).unwrap()).collect();
        assert_eq!(ids, [0, 1, 2, 0]);
        assert!(e.flush(&mut port, &mut Batch::default()));
        assert_eq!(shapes(&port), [(1, 100, 240), (1, 40, 40)]);
    }

    #[test]
    fn a_longer_packet_another_way_or_another_slot_starts_a_new_train() {
        let (mut e, mut port) = (Egress::new(0), Recorder { room: 9, ..Recorder::default() });
        e.begin_turn(&port);
        for (src_port, slot, size) in [(1, 1, 40), (1, 1, 44), (2, 1, 44), (2, 2, 44)] {
            assert_eq!(put(&mut e, src_port, slot, size), Some(0));
        }
        e.flush(&mut port, &mut Batch::default());
        assert_eq!(shapes(&port), [(1, 40, 40), (1, 44, 44), (2, 44, 44), (2, 44, 44)]);
    }

    #[test]
    fn a_train_has_no_more_packets_and_bytes_than_the_port_takes() {
        let (mut e, mut port) = (Egress::new(1 << 20), Recorder { room: 99, ..Recorder::default() });
        e.begin_turn(&port);
        let ids: Vec<_> = (0..5).map(|_| put(&mut e, 1, 1, 40).unwrap()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 0]);
        e.max_train = 128;
        let ids: Vec<_> = (0..17).map_while(|_| put(&mut e, 2, 1, 4112)).collect();
        assert_eq!(ids, (0..15).collect::<Vec<_>>(), "15 packets of 4112 bytes fill a train, and it has to leave");
        e.flush(&mut port, &mut Batch::default());
        assert_eq!(put(&mut e, 2, 1, 4112), Some(0));
        e.flush(&mut port, &mut Batch::default());
        assert!(port.trains.iter().all(|t| t.2.len() <= MAX_TRAIN_BYTES));
    }

    #[test]
    fn a_blocked_port_keeps_trains_in_order_and_then_there_is_no_room() {
        let (mut e, mut port) = (Egress::new(0), Recorder::default());
        e.begin_turn(&port);
        let mut sent = 0u16;
        while put(&mut e, sent, 1, 4000).is_some() {
            sent += 1;
        }
        assert_eq!(sent as usize, (MAX_TRAIN_BYTES / 2).div_ceil(4000));
        assert!(!e.flush(&mut port, &mut Batch::default()) && e.is_blocked());
        port.room = 2;
        assert!(e.flush(&mut port, &mut Batch::default()) && e.is_blocked());
        assert!(put(&mut e, sent, 1, 4000).is_some(), "room again after two trains left");
        port.room = 99;
        e.flush(&mut port, &mut Batch::default());
        assert!(e.is_empty() && !e.is_blocked());
        let order: Vec<_> = port.trains.iter().map(|t| t.0).collect();
        assert_eq!(order, (0..=sent).collect::<Vec<_>>());
    }

    #[test]
    fn behind_a_packet_there_is_room_for_its_equals_only() {
        let (mut e, mut port) = (Egress::new(0), Recorder { room: 9, ..Recorder::default() });
        e.begin_turn(&port);
        assert!(e.behind(2, 40).is_none(), "no train is open");
        put(&mut e, 1, 1, 40);
        assert!(e.behind(3, 40).is_none() && e.behind(2, 36).is_none() && e.behind(2, 44).is_none());
        for id in 1..4 {
            let room = e.behind(2, 40).unwrap();
            assert_eq!(room.ip_id, id);
            let (before, here) = e.bytes_behind(room);
            assert_eq!(before, [id as u8 - 1; 40]);
            here.fill(id as u8);
            e.commit_behind(room);
        }
        assert!(e.behind(2, 40).is_none(), "the port takes four to a train");
        e.flush(&mut port, &mut Batch::default());
        assert_eq!(port.trains[0].2, [0, 1, 2, 3].map(|id| [id; 40]).concat());
        put(&mut e, 1, 1, 40);
        put(&mut e, 1, 1, 20);
        assert!(e.behind(2, 20).is_none() && e.behind(2, 40).is_none(), "a shorter one has closed the train");
    }

    #[test]
    fn a_room_that_is_not_committed_leaves_no_trace() {
        let (mut e, mut port) = (Egress::new(0), Recorder { room: 9, ..Recorder::default() });
        e.begin_turn(&port);
        put(&mut e, 1, 1, 40);
        let room = e.reserve(&way(1), 9, 1, 40).unwrap();
        e.bytes(room).fill(0xee);
        assert_eq!(put(&mut e, 1, 1, 40), Some(1));
        e.flush(&mut port, &mut Batch::default());
        assert_eq!(port.trains[0].2, [vec![0; 40], vec![1; 40]].concat());
    }
}
