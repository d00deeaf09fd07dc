//! The live port: UDP sockets on port 4791, with GSO and GRO (D4). Steps 6 and 7 of the walk.
//!
//! Sockets to receive are opened by whoever owns them (the shared device, or one process alone) and given to the port
//! through [`Sockets`], also while it runs; sockets to send are the port's own. What the kernel refuses to send is counted,
//! never silent. No QP, no protocol and no packet format is known here, but for two things: byte 5 of a datagram is the
//! slot it is for, and its last four bytes are the ICRC (when a path refuses GSO, see [`UdpPort::send`]).

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_transport::DropReason;
use scalefabric_transport::congestion::int;
use scalefabric_wire::icrc::Flow;

use super::{Datagram, MAX_TRAIN_BYTES, Port, Sent, Train};
use crate::process::Descriptor;

mod mailbox;
mod receive;
mod send;
pub mod socket;

pub use mailbox::Neighbours;
pub(crate) use mailbox::hand_over;
use receive::Batch;
use send::{Outcome, Pending, Pool, send_now};
pub use socket::{LocalAddress, ReceiveOptions};

/// How a UDP port sends and whom it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Index of the port in its device, from 0.
    pub index: u8,
    /// The process's slot in the shared device: byte 5 of what is meant for it.
    pub slot: u8,
    /// Send sockets, and so source ports, of each local address. Default 8. 1: no path entropy; many: each costs a
    /// descriptor.
    pub source_ports: usize,
    /// Bytes of each send socket's buffer. Default 4 MiB. Small: the port is blocked more often.
    pub send_buffer_bytes: usize,
    /// Bytes of the receive buffer of each multicast group. Default 1 MiB.
    pub group_buffer_bytes: usize,
    /// Whether trains leave with one GSO send. Default true; false: `max_train` is 1.
    pub gso: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self { index: 0, slot: 1, source_ports: 8, send_buffer_bytes: 4 << 20, group_buffer_bytes: 1 << 20, gso: true }
    }
}

/// What a port counts beside the engine's counters.
#[derive(Debug, Default)]
pub struct UdpCounters {
    /// Trains for which the kernel or the path refused GSO; they left one by one.
    pub gso_refused: AtomicU64,
    /// Datagrams that came here and were for another slot: handed over.
    pub handed_over: AtomicU64,
    /// The same, lost because the other's mailbox was full.
    pub hand_over_lost: AtomicU64,
    /// Datagrams that another slot handed to us.
    pub taken_over: AtomicU64,
    /// Flows that asked for a source port by name and got another one: too many were named, or somebody else has it.
    pub unnamed: AtomicU64,
    /// Errors of receive calls.
    pub receive_errors: AtomicU64,
    /// The last `errno` of a send that was refused; 0 if none was.
    pub last_send_errno: AtomicI32,
}

/// The receive sockets of one local address.
#[derive(Clone, Debug)]
pub struct AddressSockets {
    /// The address.
    pub local: LocalAddress,
    /// This process's own socket, and in a shared device the one for QP 1.
    pub receive: Vec<Arc<Descriptor>>,
}

/// The sockets of a port, as others see them: they may be changed while the port runs, and waited for.
#[derive(Debug)]
pub struct Sockets {
    epoll: Descriptor,
    generation: AtomicU64,
    attention: AtomicBool,
    addresses: Mutex<Vec<AddressSockets>>,
    mailbox: Option<Descriptor>,
    /// Counters.
    pub counters: UdpCounters,
}

impl Sockets {
    /// No addresses yet. `mailbox`: where others hand over what is for this slot.
    pub fn new(mailbox: Option<Descriptor>) -> io::Result<Arc<Self>> {
        // SAFETY: plain system call.
        let epoll = Descriptor::make(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let sockets = Self {
            epoll,
            generation: AtomicU64::new(1),
            attention: AtomicBool::new(true),
            addresses: Mutex::new(Vec::new()),
            mailbox,
            counters: UdpCounters::default(),
        };
        if let Some(mailbox) = &sockets.mailbox {
            sockets.watch(mailbox.as_raw_fd())?;
        }
        Ok(Arc::new(sockets))
    }

    /// A descriptor that is readable when a datagram waits in any of the sockets. For `poll` and `epoll`, not to be read.
    pub fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Makes the next receive look at every socket, also at those that have long been quiet.
    pub fn look_everywhere(&self) {
        self.attention.store(true, Ordering::Release);
    }

    /// Whether the next receive looks at every socket.
    pub(super) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed)
    }

    /// Another number after each change of the addresses.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The present addresses.
    pub fn addresses(&self) -> Vec<AddressSockets> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the addresses and their receive sockets; the port notices at its next turn.
    pub fn set_addresses(&self, new: Vec<AddressSockets>) -> io::Result<()> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let fds = |list: &[AddressSockets]| -> Vec<RawFd> {
            list.iter().flat_map(|a| a.receive.iter().map(|s| s.as_raw_fd())).collect()
        };
        let (before, after) = (fds(&addresses), fds(&new));
        for &fd in before.iter().filter(|fd| !after.contains(fd)) {
            self.forget(fd);
        }
        for &fd in after.iter().filter(|fd| !before.contains(fd)) {
            self.watch(fd)?;
        }
        *addresses = new;
        self.generation.fetch_add(1, Ordering::Release);
        self.look_everywhere();
        Ok(())
    }

    /// Makes [`Sockets::wait_fd`] readable when this descriptor is, too.
    pub(super) fn watch(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the event is valid; the kernel checks the descriptors.
        let done = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn forget(&self, fd: RawFd) {
        // SAFETY: no event is needed to delete; the kernel checks the descriptors.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Bytes of receive buffer that the kernel gave to the smallest socket; `None` without an address.
    pub fn receive_buffer_bytes(&self) -> Option<usize> {
        let each = self.addresses();
        each.iter().flat_map(|a| &a.receive).filter_map(|s| socket::receive_buffer_bytes(s.as_raw_fd()).ok()).min()
    }

    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub fn overflow_drops(&self) -> u64 {
        self.addresses().iter().flat_map(|a| &a.receive).map(|s| socket::overflow_drops(s.as_raw_fd())).sum()
    }
}

impl crate::worker::Source for Sockets {
    fn fd(&self) -> RawFd {
        self.wait_fd()
    }

    fn woken(&self) {
        self.look_everywhere();
    }
}

/// A receive socket of the port.
#[derive(Debug)]
struct Receiver {
    socket: Arc<Descriptor>,
    /// Where its datagrams are sent to.
    dst: IpAddr,
    /// Multicast: the slot is not looked at.
    group: bool,
    /// Calls for which it will still be looked at each time.
    warm: u32,
    /// Messages to ask it for.
    wanted: usize,
}

/// Calls for which a socket that has delivered is looked at each time.
const WARM: u32 = 4096;
/// A quiet socket is looked at every so many calls.
const COLD_INTERVAL: u32 = 32;

/// A port over UDP sockets.
pub struct UdpPort {
    sockets: Arc<Sockets>,
    neighbours: Option<Arc<dyn Neighbours>>,
    options: UdpOptions,
    seen: u64,
    calls: u32,
    receivers: Vec<Receiver>,
    groups: HashMap<IpAddr, (u32, Vec<Arc<Descriptor>>)>,
    /// The receiver that was served last.
    current: usize,
    batch: Batch,
    /// Where the batch's datagrams were sent to, and whether that is a group.
    batch_dst: (IpAddr, bool),
    letter: Vec<u8>,
    pools: Vec<Pool>,
    pending: Pending,
    scratch: Vec<u8>,
    max_train: usize,
    flow_labels: bool,
    /// All receive sockets tell traffic classes, TTLs and hop limits.
    tells_headers: bool,
    egress_drops: u64,
    mailbox_drops: u64,
}

impl std::fmt::Debug for UdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let locals: Vec<_> = self.pools.iter().map(|p| p.local.ip).collect();
        f.debug_struct("UdpPort").field("options", &self.options).field("locals", &locals).finish_non_exhaustive()
    }
}

impl UdpPort {
    /// A port over `sockets`. With `neighbours` it is one of several processes that share the addresses.
    pub fn new(sockets: Arc<Sockets>, neighbours: Option<Arc<dyn Neighbours>>, options: UdpOptions) -> Self {
        let mut port = Self {
            sockets,
            neighbours,
            options,
            seen: 0,
            calls: 0,
            receivers: Vec::new(),
            groups: HashMap::new(),
            current: 0,
            batch: Batch::new(),
            batch_dst: (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), false),
            letter: vec![0; (1 << 16) + 64],
            pools: Vec::new(),
            pending: Pending::new(),
            scratch: Vec::new(),
            max_train: if options.gso { max_segments() } else { 1 },
            flow_labels: true,
            tells_headers: false,
            egress_drops: 0,
            mailbox_drops: 0,
        };
        if port.max_train == 1 {
            port.pending.take_large();
        }
        port.refresh();
        port
    }

    /// A port of one process alone, on addresses that nobody else may use: opens its own receive sockets.
    pub fn alone(locals: &[LocalAddress], receive: ReceiveOptions, options: UdpOptions) -> io::Result<Self> {
        let sockets = Sockets::new(None)?;
        let receive = ReceiveOptions { reuse_port: false, ..receive };
        let open =
            |&local| Ok(AddressSockets { local, receive: vec![Arc::new(socket::open_receive(local, receive)?)] });
        sockets.set_addresses(locals.iter().map(open).collect::<io::Result<_>>()?)?;
        Ok(Self::new(sockets, None, options))
    }

    /// The sockets, to wait for them or to change them.
    pub fn sockets(&self) -> &Arc<Sockets> {
        &self.sockets
    }

    /// Follows a change of the addresses.
    fn refresh(&mut self) {
        self.seen = self.sockets.generation.load(Ordering::Acquire);
        let addresses = self.sockets.addresses();
        let mut receivers = Vec::with_capacity(addresses.len() * 2 + self.groups.len());
        for address in &addresses {
            let each = address.receive.iter();
            receivers.extend(each.map(|s| Receiver {
                socket: s.clone(),
                dst: address.local.ip,
                group: false,
                warm: WARM,
                wanted: 1,
            }));
        }
        for (&group, (_, sockets)) in &self.groups {
            let each = sockets.iter();
            receivers.extend(each.map(|s| Receiver {
                socket: s.clone(),
                dst: group,
                group: true,
                warm: WARM,
                wanted: 1,
            }));
        }
        self.receivers = receivers;
        self.current = 0;
        if self.tells_headers {
            self.ask_for_headers();
        }
        self.pools.retain(|pool| addresses.iter().any(|a| a.local == pool.local));
        for address in &addresses {
            if self.pools.iter().any(|pool| pool.local == address.local) {
                continue;
            }
            let start = std::process::id().wrapping_mul(61) + u32::from(self.options.index) * 16;
            let size = self.options.source_ports.max(1);
            match Pool::open(address.local, size, start, self.options.send_buffer_bytes) {
                Ok(pool) => self.pools.push(pool),
                // Without a pool what leaves from this address is counted as refused.
                Err(e) => self.note_errno(e.raw_os_error().unwrap_or(0)),
            }
        }
    }

    fn ask_for_headers(&self) {
        for receiver in &self.receivers {
            if let Err(e) = socket::tell_headers(receiver.socket.as_raw_fd(), receiver.dst.is_ipv6()) {
                self.note_errno(e.raw_os_error().unwrap_or(0));
            }
        }
    }

    fn note_errno(&self, errno: i32) {
        self.sockets.counters.last_send_errno.store(errno, Ordering::Relaxed);
    }

    fn pool(&self, src: IpAddr) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.local.ip == src)
    }

    /// Gives datagrams of the batch to the sink, but for those that belong to another slot.
    fn hand_on(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let (slot, index) = (self.options.slot, self.options.index);
        let (dst, group) = self.batch_dst;
        let (counters, mut lost) = (&self.sockets.counters, 0);
        let neighbours = self.neighbours.as_deref();
        let taken = self.batch.take(max, dst, &mut |datagram| {
            let for_slot = datagram.bytes.get(5).copied().unwrap_or(slot);
            if let Some(neighbours) = neighbours
                && for_slot != slot
                && for_slot != 0
                && !group
                && let Some(mailbox) = neighbours.mailbox(for_slot)
            {
                if mailbox::hand_over(mailbox, index, datagram) {
                    counters.handed_over.fetch_add(1, Ordering::Relaxed);
                } else {
                    counters.hand_over_lost.fetch_add(1, Ordering::Relaxed);
                    lost += 1;
                }
                return;
            }
            sink(datagram);
        });
        self.mailbox_drops += lost;
        taken
    }

    /// Takes what others handed over.
    fn take_letters(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let Some(mailbox) = &self.sockets.mailbox else { return 0 };
        let mut taken = 0;
        while taken < max {
            match mailbox::take(mailbox.as_raw_fd(), self.options.index, &mut self.letter) {
                Ok(Some(datagram)) => {
                    self.sockets.counters.taken_over.fetch_add(1, Ordering::Relaxed);
                    sink(&datagram);
                    taken += 1;
                }
                Ok(None) => break,
                Err(_) => {
                    self.sockets.counters.receive_errors.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
        taken
    }

    /// Sends a train whole, or notes why not.
    fn send_train(&mut self, socket: RawFd, scope: u32, train: &Train<'_>) -> Sent {
        match self.try_send(socket, scope, train) {
            Outcome::Sent => Sent::Done,
            Outcome::Blocked => Sent::Blocked,
            outcome => {
                self.lose(socket, scope, train, outcome);
                Sent::Done
            }
        }
    }

    /// Sends, without flow label if the kernel does not let this process choose one.
    fn try_send(&mut self, socket: RawFd, scope: u32, train: &Train<'_>) -> Outcome {
        let plain = Train { flow_label: 0, ..*train };
        if train.flow_label == 0 || !self.flow_labels {
            return send_now(socket, scope, &plain);
        }
        let outcome = send_now(socket, scope, train);
        let refused = matches!(outcome, Outcome::GsoRefused | Outcome::Failed(libc::EINVAL | libc::EPERM));
        if refused && train.src.is_ipv6() {
            let second = send_now(socket, scope, &plain);
            self.flow_labels &= second != Outcome::Sent;
            return second;
        }
        outcome
    }

    /// A train was refused: without GSO it leaves in single datagrams; otherwise it is lost and counted.
    fn lose(&mut self, socket: RawFd, scope: u32, train: &Train<'_>, outcome: Outcome) {
        let count = train.bytes.len().div_ceil(train.segment.max(1)) as u64;
        match outcome {
            Outcome::GsoRefused => {
                self.sockets.counters.gso_refused.fetch_add(1, Ordering::Relaxed);
                let mut left = 0;
                for index in 0..count as usize {
                    left += u64::from(self.send_single(socket, scope, train, index));
                }
                self.egress_drops += count - left;
                if left > 0 {
                    self.max_train = 1;
                    self.pending.take_large();
                }
            }
            Outcome::Failed(errno) => {
                self.note_errno(errno);
                self.egress_drops += count;
            }
            Outcome::Sent | Outcome::Blocked => {}
        }
    }

    /// Sends one datagram of a train alone: its identification is then 0 and no longer its index, so its ICRC is made anew.
    fn send_single(&mut self, socket: RawFd, scope: u32, train: &Train<'_>, index: usize) -> bool {
        let from = index * train.segment;
        let bytes = &train.bytes[from..train.bytes.len().min(from + train.segment)];
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(bytes);
        reseal(&mut scratch, train, 0);
        let outcome = self.try_send(socket, scope, &Train { segment: scratch.len(), bytes: &scratch, ..*train });
        self.scratch = scratch;
        if let Outcome::Failed(errno) = outcome {
            self.note_errno(errno);
        }
        outcome == Outcome::Sent
    }

    fn flush_pending(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut pending = std::mem::replace(&mut self.pending, Pending::new_empty());
        let (socket, scope) = pending.socket();
        pending.flush(&mut |train, outcome| {
            // A flow label that the kernel refuses is the one reason for which a second try makes sense.
            let retry = train.flow_label != 0 && matches!(outcome, Outcome::GsoRefused | Outcome::Failed(libc::EINVAL));
            if !(retry && self.try_send(socket, scope, train) == Outcome::Sent) {
                self.lose(socket, scope, train, outcome);
            }
        });
        self.pending = pending;
        if self.max_train == 1 {
            self.pending.take_large();
        }
    }
}

/// Makes the ICRC of a datagram of `train` right for an IPv4 identification.
pub(crate) fn reseal(datagram: &mut [u8], train: &Train<'_>, ip_id: u16) {
    let flow = match (train.src, train.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Flow::v4(src, dst, train.src_port),
        // No identification over IPv6.
        _ => return,
    };
    // Behind the ICRC there may be a telemetry trailer.
    let trailed = datagram.get(int::FLAGS_AT).is_some_and(|flags| flags & int::TRAILED != 0);
    let packet = match trailed.then(|| int::split(datagram)) {
        Some(Ok((packet, _))) => packet.len(),
        _ => datagram.len(),
    };
    if let Some((body, icrc)) = datagram[..packet].split_last_chunk_mut::<4>() {
        *icrc = flow.icrc(ip_id, body).to_le_bytes();
    }
}

/// Segments that one GSO send may have: 128 on newer kernels, 64 on older ones. Tried once, on the loopback.
fn max_segments() -> usize {
    // Not a lock: a fork in the middle would leave it taken in the child.
    static TRIED: AtomicUsize = AtomicUsize::new(0);
    let try_it = || {
        let local = LocalAddress { ip: std::net::Ipv4Addr::LOCALHOST.into(), ifindex: 0 };
        let Ok(socket) = socket::open_send(local, 0, 1 << 18) else { return 64 };
        // To the socket itself, whose filter drops everything.
        let Ok(own) = socket::local_address(socket.as_raw_fd()) else { return 64 };
        let train = Train {
            src: local.ip,
            src_port: own.port(),
            dst: local.ip,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            segment: 4,
            bytes: &[0; 128 * 4],
        };
        match send::send_to_port(socket.as_raw_fd(), 0, &train, own.port()) {
            Outcome::Sent => 128,
            _ => 64,
        }
    };
    if TRIED.load(Ordering::Relaxed) == 0 {
        TRIED.store(try_it(), Ordering::Relaxed);
    }
    TRIED.load(Ordering::Relaxed)
}

impl Port for UdpPort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut taken = 0;
        if self.batch.pending() {
            taken = self.hand_on(max, sink);
            if taken >= max {
                return taken;
            }
        }
        if self.seen != self.sockets.generation.load(Ordering::Relaxed) {
            self.refresh();
        }
        let everywhere =
            self.sockets.attention.load(Ordering::Relaxed) && self.sockets.attention.swap(false, Ordering::Acquire);
        self.calls = self.calls.wrapping_add(1);
        let cold = everywhere || self.calls.is_multiple_of(COLD_INTERVAL);
        for step in 1..=self.receivers.len() {
            // Starts behind the socket that was served last, so that a busy one cannot starve the others.
            let index = (self.current + step) % self.receivers.len();
            let receiver = &mut self.receivers[index];
            if receiver.warm == 0 && !cold {
                continue;
            }
            match self.batch.fill(receiver.socket.as_raw_fd(), &mut receiver.wanted) {
                Ok(0) => receiver.warm = receiver.warm.saturating_sub(1),
                Ok(_) => {
                    receiver.warm = WARM;
                    self.batch_dst = (receiver.dst, receiver.group);
                    self.current = index;
                    taken += self.hand_on(max - taken, sink);
                    if self.batch.pending() || taken >= max {
                        return taken;
                    }
                }
                Err(_) => {
                    self.sockets.counters.receive_errors.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if cold {
            taken += self.take_letters(max - taken, sink);
        }
        taken
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        if train.bytes.is_empty() {
            return Sent::Done;
        }
        debug_assert!(train.bytes.len() <= MAX_TRAIN_BYTES && train.segment > 0);
        let Some(pool) = self.pool(train.src) else {
            // The address is gone: like a cut wire, but counted.
            self.note_errno(libc::EADDRNOTAVAIL);
            self.egress_drops += train.bytes.len().div_ceil(train.segment.max(1)) as u64;
            return Sent::Done;
        };
        let (socket, scope) = (pool.by_port(train.src_port), pool.local.ifindex);
        if self.pending.push(socket, scope, train) {
            return Sent::Done;
        }
        self.flush_pending();
        if !self.pending.is_empty() {
            return Sent::Blocked;
        }
        if self.pending.push(socket, scope, train) {
            return Sent::Done;
        }
        self.send_train(socket, scope, train)
    }

    fn look_everywhere(&mut self) {
        self.sockets.look_everywhere();
    }

    fn take_drops(&mut self, sink: &mut dyn FnMut(DropReason, u64)) {
        if self.egress_drops != 0 {
            sink(DropReason::EgressError, std::mem::take(&mut self.egress_drops));
        }
        if self.mailbox_drops != 0 {
            sink(DropReason::MailboxFull, std::mem::take(&mut self.mailbox_drops));
        }
    }

    fn flush(&mut self) {
        self.flush_pending();
    }

    fn source_port(&self, src: IpAddr, flow: u32) -> u16 {
        self.pool(src).map_or(socket::FIRST_SOURCE_PORT, |pool| pool.for_flow(flow).source_port)
    }

    fn named_source_port(&self, src: IpAddr, wanted: u16) -> Option<u16> {
        match self.pool(src)?.name(wanted) {
            Ok(()) => Some(wanted),
            Err(e) => {
                self.note_errno(e.raw_os_error().unwrap_or(0));
                self.sockets.counters.unnamed.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn max_train(&self) -> usize {
        self.max_train
    }

    fn deadline(&self) -> Option<u64> {
        // What is still held back was blocked: try again soon.
        (!self.pending.is_empty()).then_some(0)
    }

    fn tell_headers(&mut self) {
        if !std::mem::replace(&mut self.tells_headers, true) {
            self.ask_for_headers();
        }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if let Some((users, _)) = self.groups.get_mut(&group) {
            *users += 1;
            return Ok(());
        }
        let mut opened = Vec::new();
        let mut interfaces = Vec::new();
        for address in self.sockets.addresses() {
            if address.local.ip.is_ipv4() == group.is_ipv4() && !interfaces.contains(&address.local.ifindex) {
                interfaces.push(address.local.ifindex);
                let socket = socket::open_group(address.local, group, self.options.group_buffer_bytes)?;
                self.sockets.watch(socket.as_raw_fd())?;
                opened.push(Arc::new(socket));
            }
        }
        if opened.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        self.groups.insert(group, (1, opened));
        self.refresh();
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        let Some((users, _)) = self.groups.get_mut(&group) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        *users -= 1;
        if *users == 0 {
            self.groups.remove(&group);
            self.refresh();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
