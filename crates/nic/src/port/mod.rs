//! Ports: where datagrams come in and go out. The engine knows only the [`Port`] trait; behind it stand UDP sockets, a
//! simulated wire, faults, or a capture file, and they stack.

use std::net::IpAddr;

use scalefabric_transport::DropReason;

pub mod capture;
pub mod faults;
mod frame;
pub mod memory;
pub mod udp;
pub mod xdp;

/// Bytes of a train, at most: what one GSO send takes over IPv4 and over IPv6, with room to spare.
pub const MAX_TRAIN_BYTES: usize = 65_000;

/// A received UDP payload, BTH to ICRC, with what its headers said.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination address (a group for multicast).
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit; 64 if the port cannot tell.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 over IPv4 or if the port cannot tell.
    pub flow_label: u32,
    /// IPv4 identification if known for sure, else the likeliest (its place in a super-packet). The ICRC covers it.
    pub ip_id: u16,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A train of datagrams that leave with one system call: same addresses, same size but for the last, which may be
/// shorter.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// Source address: one of the port's.
    pub src: IpAddr,
    /// Source UDP port: one that [`Port::source_port`] gave.
    pub src_port: u16,
    /// Destination address; the destination port is 4791.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// All datagrams, one after the other, at most [`MAX_TRAIN_BYTES`]. Datagram *i* carries IPv4 identification *i* (D4).
    pub bytes: &'a [u8],
}

/// How a train left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It left, or was lost as on a wire (counted by the port).
    Done,
    /// No room: keep it and try again.
    Blocked,
}

/// A port of the NIC.
pub trait Port: Send {
    /// Gives at most `max` datagrams to `sink`; returns how many. Never blocks.
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize;

    /// Sends a train. Never blocks.
    fn send(&mut self, train: &Train<'_>) -> Sent;

    /// Called at the start of each turn, before anything else: the time, in ns of the engine's clock. Ports that delay
    /// packets or stamp them need it; no port reads a clock itself.
    fn set_time(&mut self, _now_ns: u64) {}

    /// The next receive must look wherever a datagram can wait, also where long none came.
    fn look_everywhere(&mut self) {}

    /// Tells what this port has dropped since the last call, by reason. The engine adds it to its counters each turn.
    fn take_drops(&mut self, _sink: &mut dyn FnMut(DropReason, u64)) {}

    /// Called at the end of each turn: what was held back leaves now.
    fn flush(&mut self) {}

    /// The source UDP port for a flow (0xC000 to 0xFFFF), one of those that the port can send from.
    fn source_port(&self, src: IpAddr, flow: u32) -> u16;

    /// The same for a flow whose source port was chosen by whoever knows the fabric: that port if this one can send from it, else `None`.
    fn named_source_port(&self, _src: IpAddr, _wanted: u16) -> Option<u16> {
        None
    }

    /// Datagrams in one train, at most; 1 if there are no trains. May fall to 1 for good while running (a path that
    /// refuses GSO): ask each time.
    fn max_train(&self) -> usize {
        64
    }

    /// The next time at which the port itself has something to do (a delayed packet), in ns of the engine's clock.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// From now on datagrams tell their true traffic class and TTL or hop limit. Until then a port may give 0 and 64 where asking would cost each datagram:
    /// only datagram QPs, captures and congestion control look at them. The traffic class is left out at most where no switch can have marked it.
    fn tell_headers(&mut self) {}

    /// Joins a multicast group.
    fn join(&mut self, _group: IpAddr) -> std::io::Result<()> {
        Ok(())
    }

    /// Leaves a multicast group.
    fn leave(&mut self, _group: IpAddr) -> std::io::Result<()> {
        Ok(())
    }
}

/// The port of a process that ends: nothing comes in, and what is sent is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed;

impl Port for Closed {
    fn receive(&mut self, _max: usize, _sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        0
    }
    fn send(&mut self, _train: &Train<'_>) -> Sent {
        Sent::Done
    }
    fn source_port(&self, _src: IpAddr, _flow: u32) -> u16 {
        0xc000
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        (**self).receive(max, sink)
    }
    fn send(&mut self, train: &Train<'_>) -> Sent {
        (**self).send(train)
    }
    fn set_time(&mut self, now_ns: u64) {
        (**self).set_time(now_ns);
    }
    fn look_everywhere(&mut self) {
        (**self).look_everywhere();
    }
    fn take_drops(&mut self, sink: &mut dyn FnMut(DropReason, u64)) {
        (**self).take_drops(sink);
    }
    fn flush(&mut self) {
        (**self).flush();
    }
    fn source_port(&self, src: IpAddr, flow: u32) -> u16 {
        (**self).source_port(src, flow)
    }

    fn named_source_port(&self, src: IpAddr, wanted: u16) -> Option<u16> {
        (**self).named_source_port(src, wanted)
    }
    fn max_train(&self) -> usize {
        (**self).max_train()
    }
    fn deadline(&self) -> Option<u64> {
        (**self).deadline()
    }
    fn tell_headers(&mut self) {
        (**self).tell_headers();
    }
    fn join(&mut self, group: IpAddr) -> std::io::Result<()> {
        (**self).join(group)
    }
    fn leave(&mut self, group: IpAddr) -> std::io::Result<()> {
        (**self).leave(group)
    }
}
