//! A port that sends and receives by AF_XDP: packets go between the interface's driver and memory of this process, past the kernel's IP and
//! UDP. Steps 6 and 7 of the walk, where the configuration asks for it.
//!
//! It stands beside the UDP port, not in its place. The UDP sockets stay, hold the addresses, and take whatever the program at the interface
//! does not turn aside (see `program`); what the kernel alone can send (to this host itself, by another interface, to a group, to a
//! neighbour whose MAC address nobody knows yet) leaves by them, the same but for the UDP checksum over IPv4. So one process of a shared device has the interface's
//! program, and the others go on with UDP.
//!
//! The IP header is ours and visible here: identifications are exact, and nothing has to be solved for.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scalefabric_transport::DropReason;
use scalefabric_verbs::{Errno, VerbsError};

use super::frame::{self, HEADERS, Macs};
use super::udp::{Sockets, UdpPort};
use super::{Datagram, Port, Sent, Train};
use crate::netlink;
use crate::process::Descriptor;

mod bpf;
mod hops;
mod program;
mod ring;
mod socket;

use hops::Hops;
use program::Program;
use socket::Xsk;

/// Queues of an interface that get a socket, at most; what comes by others reaches the UDP sockets.
const MAX_QUEUES: u32 = 16;
/// Datagrams in one train: there is no GSO, and a train is what may be blocked as a whole.
const MAX_TRAIN: usize = 64;
/// Frames that wait for one system call, as many as the kernel sends in one.
const BATCH: u32 = 32;
/// Calls for which the UDP sockets are looked at each time after they have delivered.
const WARM: u32 = 64;
/// Quiet UDP sockets are looked at every so many calls.
const COLD_INTERVAL: u32 = 32;

/// What a port counts, and its sockets, for whoever shows counters.
#[derive(Debug, Default)]
pub struct XdpCounters {
    /// Packets that came by AF_XDP.
    pub received: AtomicU64,
    /// Packets that left by AF_XDP.
    pub sent: AtomicU64,
    /// Packets that the kernel sent by the UDP sockets.
    pub sent_by_udp: AtomicU64,
    sockets: Vec<Arc<Descriptor>>,
}

impl XdpCounters {
    /// Packets that the AF_XDP sockets have lost for lack of room.
    pub fn lost(&self) -> u64 {
        self.sockets.iter().map(|fd| socket::lost(fd)).sum()
    }

    /// Whether the driver takes packets from our memory without a copy.
    pub fn is_zero_copy(&self) -> bool {
        self.sockets.iter().all(|fd| socket::is_zero_copy(fd))
    }
}

/// A port over AF_XDP sockets, beside one over UDP sockets.
#[derive(Debug)]
pub struct XdpPort {
    udp: UdpPort,
    addresses: Arc<Sockets>,
    mac: [u8; 6],
    queues: Vec<Xsk>,
    program: Program,
    hops: Hops,
    counters: Arc<XdpCounters>,
    seen: u64,
    now_ns: u64,
    calls: u32,
    udp_warm: u32,
    /// The UDP port holds trains back, which must leave first.
    udp_first: bool,
    /// Frames that were put and not shown to the kernel, or that it did not take.
    waiting: bool,
    egress_drops: u64,
    /// Frames that could not be taken apart, by reason; there are two.
    bad: Vec<(DropReason, u64)>,
}

impl XdpPort {
    /// Puts AF_XDP beside a UDP port that stands on `interface`, for packets to `slot`. Where it cannot be, the UDP port comes back.
    pub fn new(udp: UdpPort, interface: &str, slot: u8) -> Result<Self, (Box<UdpPort>, VerbsError)> {
        match Parts::open(udp.sockets(), interface, slot) {
            Ok(parts) => Ok(Self::join(udp, parts)),
            Err(error) => Err((Box::new(udp), error)),
        }
    }

    fn join(udp: UdpPort, Parts { mac, queues, program, hops }: Parts) -> Self {
        let sockets = queues.iter().map(|queue| queue.fd().clone()).collect();
        let mut port = Self {
            addresses: udp.sockets().clone(),
            udp,
            mac,
            queues,
            program,
            hops,
            counters: Arc::new(XdpCounters { sockets, ..XdpCounters::default() }),
            seen: 0,
            now_ns: 0,
            calls: 0,
            udp_warm: WARM,
            udp_first: false,
            waiting: false,
            egress_drops: 0,
            bad: Vec::with_capacity(4),
        };
        port.refresh();
        port
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<XdpCounters> {
        &self.counters
    }

    /// Follows a change of the addresses.
    #[cold]
    fn refresh(&mut self) {
        self.seen = self.addresses.generation();
        let now = self.addresses.addresses();
        self.program.set_addresses(now.iter().map(|a| a.local.ip));
        self.hops.forget();
    }

    fn receive_frames(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut taken = 0;
        for queue in &mut self.queues {
            taken += queue.receive(max - taken, |bytes| match frame::parse(bytes) {
                Ok(datagram) => sink(&datagram),
                Err(reason) => match self.bad.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => self.bad.push((reason, 1)),
                },
            });
        }
        if taken > 0 {
            self.counters.received.fetch_add(taken as u64, Ordering::Relaxed);
        }
        taken
    }

    fn receive_datagrams(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        self.calls = self.calls.wrapping_add(1);
        if self.udp_warm == 0 && !self.calls.is_multiple_of(COLD_INTERVAL) && !self.addresses.wants_attention() {
            return 0;
        }
        if self.udp_warm == 0 {
            self.addresses.look_everywhere();
        }
        let taken = self.udp.receive(max, sink);
        self.udp_warm = if taken > 0 { WARM } else { self.udp_warm.saturating_sub(1) };
        taken
    }

    /// Lets the kernel send a train. What was put into the ring before goes first.
    fn send_by_udp(&mut self, train: &Train<'_>, count: usize) -> Sent {
        if self.waiting && !self.kick() {
            return Sent::Blocked;
        }
        let sent = self.udp.send(train);
        self.udp_first = true;
        if sent == Sent::Done {
            self.counters.sent_by_udp.fetch_add(count as u64, Ordering::Relaxed);
        }
        sent
    }

    /// Lets leave what the UDP port holds back; false if it cannot.
    fn flush_udp(&mut self) -> bool {
        self.udp.flush();
        self.udp_first = self.udp.deadline().is_some();
        !self.udp_first
    }

    fn kick(&mut self) -> bool {
        self.waiting = !self.queues[0].kick();
        !self.waiting
    }

    fn send_frames(&mut self, train: &Train<'_>, count: usize, macs: Macs) -> Sent {
        let head_len = frame::headers_len(train.src);
        let frames = count * Xsk::frames(head_len + train.segment);
        let has_room = self.queues[0].has_room(frames) || (self.kick() && self.queues[0].has_room(frames));
        if !has_room {
            self.waiting = true;
            return Sent::Blocked;
        }
        let mut head = [0; HEADERS];
        let most = self.queues[0].largest().min(self.hops.mtu() + frame::ETHERNET);
        for (ip_id, bytes) in (0..).zip(train.bytes.chunks(train.segment)) {
            let datagram = Datagram {
                src: train.src,
                src_port: train.src_port,
                dst: train.dst,
                traffic_class: train.traffic_class,
                hop_limit: train.hop_limit,
                flow_label: train.flow_label,
                ip_id,
                bytes,
            };
            match frame::write_headers(&mut head, macs, &datagram) {
                Some(len) if len + bytes.len() <= most => {
                    self.queues[0].put(&head[..len], bytes);
                }
                // As the kernel would say EMSGSIZE.
                _ => self.egress_drops += 1,
            }
        }
        self.waiting = true;
        self.counters.sent.fetch_add(count as u64, Ordering::Relaxed);
        if self.queues[0].unsent() >= BATCH {
            self.kick();
        }
        Sent::Done
    }
}

impl Port for XdpPort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        if self.seen != self.addresses.generation() {
            self.refresh();
        }
        let taken = self.receive_frames(max, sink);
        if taken >= max {
            return taken;
        }
        taken + self.receive_datagrams(max - taken, sink)
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        if train.bytes.is_empty() || train.segment == 0 {
            return Sent::Done;
        }
        let count = train.bytes.len().div_ceil(train.segment);
        let Some(dst) = self.hops.find(train.src, train.dst, self.now_ns) else {
            return self.send_by_udp(train, count);
        };
        if self.udp_first && !self.flush_udp() {
            return Sent::Blocked;
        }
        self.send_frames(train, count, Macs { dst, src: self.mac })
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.udp.set_time(now_ns);
    }

    fn look_everywhere(&mut self) {
        self.udp.look_everywhere();
    }

    fn take_drops(&mut self, sink: &mut dyn FnMut(DropReason, u64)) {
        self.udp.take_drops(sink);
        if self.egress_drops != 0 {
            sink(DropReason::EgressError, std::mem::take(&mut self.egress_drops));
        }
        self.bad.drain(..).for_each(|(reason, count)| sink(reason, count));
    }

    fn flush(&mut self) {
        if self.waiting {
            self.kick();
        }
        if self.udp_first {
            self.flush_udp();
        }
    }

    fn source_port(&self, src: IpAddr, flow: u32) -> u16 {
        self.udp.source_port(src, flow)
    }

    fn named_source_port(&self, src: IpAddr, wanted: u16) -> Option<u16> {
        self.udp.named_source_port(src, wanted)
    }

    fn max_train(&self) -> usize {
        self.udp.max_train().min(MAX_TRAIN)
    }

    fn deadline(&self) -> Option<u64> {
        // What the kernel did not take: try again soon.
        if self.waiting { Some(0) } else { self.udp.deadline() }
    }

    fn tell_headers(&mut self) {
        self.udp.tell_headers();
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.udp.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.udp.leave(group)
    }
}

/// What stands before the port does.
struct Parts {
    mac: [u8; 6],
    queues: Vec<Xsk>,
    program: Program,
    hops: Hops,
}

impl Parts {
    fn open(sockets: &Sockets, interface: &str, slot: u8) -> Result<Self, VerbsError> {
        let facts = facts(interface).map_err(|e| refused(interface, "it cannot be looked at", &e))?;
        let facts = facts.ok_or_else(|| gone(interface))?;
        if facts.is_loopback() {
            return Err(unsupported(interface, "the loopback has no driver that could run a program"));
        }
        let Some(mac) = facts.mac else {
            return Err(unsupported(interface, "it is not an Ethernet interface"));
        };
        let queues = open_queues(facts.index).map_err(|e| refused(interface, "no AF_XDP socket can be opened", &e))?;
        let most = queues[0].largest() - frame::ETHERNET;
        if facts.mtu as usize > most {
            let text =
                format!("its MTU is {}, and {most} is the most (on Linux before 6.6: a page less headers)", facts.mtu);
            return Err(unsupported(interface, &text));
        }
        let several = queues[0].largest() == socket::LARGEST;
        let program = Program::attach(facts.index, slot, mac, &queues, several)
            .map_err(|e| refused(interface, "no XDP program can be attached", &e))?;
        for queue in &queues {
            let watched = sockets.watch(queue.fd().as_raw_fd());
            watched.map_err(|e| refused(interface, "it cannot be waited for", &e))?;
        }
        let hops =
            Hops::new(facts.index, facts.mtu).map_err(|e| refused(interface, "routes cannot be asked for", &e))?;
        Ok(Self { mac, queues, program, hops })
    }
}

/// A socket on each queue that the interface has.
fn open_queues(ifindex: u32) -> io::Result<Vec<Xsk>> {
    let mut several = true;
    let first = Xsk::open(ifindex, 0, several).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => {
            several = false;
            Xsk::open(ifindex, 0, several)
        }
        _ => Err(error),
    })?;
    let more = (1..MAX_QUEUES).map_while(|queue| Xsk::open(ifindex, queue, several).ok());
    Ok(std::iter::once(first).chain(more).collect())
}

fn facts(interface: &str) -> io::Result<Option<netlink::Interface>> {
    Ok(netlink::interfaces()?.into_iter().find(|i| i.name == interface))
}

fn gone(interface: &str) -> VerbsError {
    VerbsError::environment(Errno::ENODEV, format!("there is no interface {interface:?}"))
}

fn unsupported(interface: &str, why: &str) -> VerbsError {
    let text = format!("interface {interface} cannot have AF_XDP sockets: {why} (sockets = \"udp\" needs none)");
    VerbsError::environment(Errno::EOPNOTSUPP, text)
}

fn refused(interface: &str, what: &str, error: &io::Error) -> VerbsError {
    let (errno, remedy) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            Errno::EPERM,
            "AF_XDP needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: run as root, or with sockets = \"udp\"",
        ),
        Some(libc::EBUSY | libc::EEXIST) => (
            Errno::EBUSY,
            "a program is attached already (see `ip link show`): one process of a device can have AF_XDP, the others \
             take sockets = \"udp\" or \"xdp-or-udp\"",
        ),
        Some(libc::EOPNOTSUPP) => (Errno::EOPNOTSUPP, "its driver runs no XDP programs: sockets = \"udp\""),
        Some(libc::ENOBUFS | libc::ENOMEM) => (Errno::ENOMEM, "raise the limit of locked memory (ulimit -l)"),
        Some(libc::ENOSYS | libc::EAFNOSUPPORT) => (Errno::ENOSYS, "this kernel has no AF_XDP: sockets = \"udp\""),
        _ => (Errno::EIO, "sockets = \"udp\" needs none"),
    };
    VerbsError::environment(errno, format!("interface {interface}: {what}: {error}; {remedy}"))
}
