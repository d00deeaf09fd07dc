//! Packets of the fabric simulator: what a header would tell, without payload, in an arena whose places are used again.

use super::time::Ps;

/// No packet.
pub const NONE: u32 = u32::MAX;

/// Switches that one INT stack can tell of.
pub const INT_HOPS: usize = 6;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of a message.
    Data,
    /// Everything before `psn` has arrived.
    Ack,
    /// The receiver wants `psn` next and got a later one.
    Nak,
    /// Congestion notification.
    Cnp,
    /// PFC: stop sending the priority.
    Pause,
    /// PFC: go on.
    Resume,
}

/// One packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The next in the same queue, or in the list of free places.
    pub next: u32,
    /// Queue pair.
    pub qp: u32,
    /// Packet number within the QP. In an ACK or NAK: the one expected next.
    pub psn: u32,
    /// In an ACK: the packet that it answers (selective repeat).
    pub answers: u32,
    /// Destination host.
    pub to: u32,
    /// What ECMP hashes beside the addresses: the UDP source port.
    pub entropy: u32,
    /// The port by which it entered the switch that holds it.
    pub ingress: u32,
    /// Bytes on the wire.
    pub bytes: u32,
    /// Bytes of payload.
    pub payload: u32,
    /// When the data packet left the sender; its ACK brings it back.
    pub sent: Ps,
    /// What it is.
    pub kind: Kind,
    /// Priority, 0 to 7. In a PFC frame: the priority that it speaks of.
    pub priority: u8,
    /// ECN: a switch has marked it. In an ACK: the data packet was marked.
    pub marked: bool,
    /// Data: the receiver shall answer. ACK: nothing.
    pub wants_ack: bool,
    /// The data packet was sent before: its time says nothing of the path.
    pub again: bool,
    /// The code of the fullest port so far (PINT), which the ACK brings back; 0: nobody wrote.
    pub code: u8,
}

impl Packet {
    /// A packet of `bytes` on the wire that leaves at `sent`, from no queue pair to no host: who makes one adds what its kind has.
    pub const fn bare(kind: Kind, priority: u8, bytes: u32, sent: Ps) -> Self {
        Self {
            next: NONE,
            qp: NONE,
            psn: 0,
            answers: 0,
            to: NONE,
            entropy: 0,
            ingress: 0,
            bytes,
            payload: 0,
            sent,
            kind,
            priority,
            marked: false,
            wants_ack: false,
            again: false,
            code: 0,
        }
    }
}

/// What a switch tells of one hop (INT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntHop {
    /// When the packet left the queue.
    pub at: Ps,
    /// Bytes that the port has sent before this packet.
    pub tx_bytes: u64,
    /// Bytes in the port's queues after the packet left.
    pub queue_bytes: u32,
    /// Rate of the port in Mb/s.
    pub rate_mbps: u32,
}

/// The hops of a packet's way.
#[derive(Clone, Copy, Debug, Default)]
pub struct IntStack {
    /// How many are filled.
    pub count: u8,
    /// From the sender on.
    pub hops: [IntHop; INT_HOPS],
}

/// All packets of a run.
#[derive(Default)]
pub struct Arena {
    packets: Vec<Packet>,
    /// Beside the packets, only if INT is used.
    stacks: Vec<IntStack>,
    with_int: bool,
    free: u32,
    used: usize,
}

impl Arena {
    /// No packets yet.
    pub fn new(with_int: bool) -> Self {
        Self { packets: Vec::new(), stacks: Vec::new(), with_int, free: NONE, used: 0 }
    }

    /// Makes a packet.
    #[inline]
    pub fn add(&mut self, packet: Packet) -> u32 {
        self.used += 1;
        let place = self.free;
        if place == NONE {
            self.packets.push(packet);
            if self.with_int {
                self.stacks.push(IntStack::default());
            }
            return self.packets.len() as u32 - 1;
        }
        self.free = self.packets[place as usize].next;
        self.packets[place as usize] = packet;
        if self.with_int {
            self.stacks[place as usize].count = 0;
        }
        place
    }

    /// A packet is no more.
    #[inline]
    pub fn remove(&mut self, place: u32) {
        self.packets[place as usize].next = self.free;
        self.free = place;
        self.used -= 1;
    }

    /// A packet.
    #[inline]
    pub fn get(&self, place: u32) -> &Packet {
        &self.packets[place as usize]
    }

    /// A packet, to change it.
    #[inline]
    pub fn get_mut(&mut self, place: u32) -> &mut Packet {
        &mut self.packets[place as usize]
    }

    /// A switch tells of itself; the seventh and later ones are not heard.
    #[inline]
    pub fn stamp(&mut self, place: u32, hop: IntHop) {
        if let Some(stack) = self.stacks.get_mut(place as usize)
            && let Some(free) = stack.hops.get_mut(usize::from(stack.count))
        {
            *free = hop;
            stack.count += 1;
        }
    }

    /// What the switches told; empty without INT.
    pub fn hops(&self, place: u32) -> &[IntHop] {
        self.stacks.get(place as usize).map_or(&[], |stack| &stack.hops[..usize::from(stack.count)])
    }

    /// Packets that exist.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Packets that existed at one moment.
    pub fn peak(&self) -> usize {
        self.packets.len()
    }
}
