//! Sending: a pool of sockets for each local address, GSO trains, and several small trains with one `sendmmsg`.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use super::socket::{FIRST_SOURCE_PORT, LocalAddress, ROCE_PORT, RawAddress, open_named, open_send, sendmsg, share};
use crate::port::Train;
use crate::process::Descriptor;

const UDP_SEGMENT: i32 = 103;
/// Trains that wait for one `sendmmsg`.
const PENDING: usize = 32;
/// Trains larger than this leave at once: copying them would cost more than a system call saves.
const PENDING_BYTES: usize = 1280;
/// The same where there are no trains, and each packet would cost a system call.
const SINGLE_BYTES: usize = crate::egress::MAX_PACKET;
/// Control data of a train: TOS, TTL, GSO size.
const CONTROL: usize = 96;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control {
    bytes: [u8; CONTROL],
    len: usize,
}

impl Control {
    /// What has to be said about a train beyond its bytes.
    fn of(train: &Train<'_>) -> Self {
        let mut control = Self { bytes: [0; CONTROL], len: 0 };
        let v6 = train.src.is_ipv6();
        if train.traffic_class != 0 {
            let (level, kind) =
                if v6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
            control.push(level, kind, &i32::from(train.traffic_class).to_ne_bytes());
        }
        // 64 is what the socket does by itself.
        if train.hop_limit != 64 && train.hop_limit != 0 {
            let (level, kind) =
                if v6 { (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) } else { (libc::IPPROTO_IP, libc::IP_TTL) };
            control.push(level, kind, &i32::from(train.hop_limit).to_ne_bytes());
        }
        if train.bytes.len() > train.segment {
            control.push(libc::IPPROTO_UDP, UDP_SEGMENT, &(train.segment as u16).to_ne_bytes());
        }
        control
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let at = self.len;
        self.bytes[at..at + size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        self.bytes[at + HEADER - 8..at + HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + HEADER - 4..at + HEADER].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..at + HEADER + data.len()].copy_from_slice(data);
        self.len = at + (HEADER + data.len()).next_multiple_of(size_of::<usize>());
    }
}

/// How a system call that sends went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sent,
    Blocked,
    /// The kernel or the path does not do GSO.
    GsoRefused,
    /// Any other `errno`.
    Failed(i32),
}

fn outcome(errno: i32, gso: bool) -> Outcome {
    match errno {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Outcome::Blocked,
        libc::EIO | libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP if gso => Outcome::GsoRefused,
        errno => Outcome::Failed(errno),
    }
}

/// Sends one train.
pub(crate) fn send_now(socket: RawFd, scope: u32, train: &Train<'_>) -> Outcome {
    send_to_port(socket, scope, train, ROCE_PORT)
}

/// Sends one train to another port than that of RoCE: for trying what the kernel can do.
pub(crate) fn send_to_port(socket: RawFd, scope: u32, train: &Train<'_>, port: u16) -> Outcome {
    let mut control = Control::of(train);
    let mut to = RawAddress::new(train.dst, port, scope, train.flow_label);
    let mut vector = libc::iovec { iov_base: train.bytes.as_ptr().cast_mut().cast(), iov_len: train.bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut to.storage).cast();
    header.msg_namelen = to.len;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    if control.len > 0 {
        header.msg_control = control.bytes.as_mut_ptr().cast();
        header.msg_controllen = control.len as _;
    }
    // SAFETY: everything the header points to lives on this stack or is borrowed from the train; the kernel only reads.
    let n = unsafe { sendmsg(socket, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n >= 0 {
        return Outcome::Sent;
    }
    outcome(io::Error::last_os_error().raw_os_error().unwrap_or(0), train.bytes.len() > train.segment)
}

/// One send socket.
#[derive(Debug)]
pub(crate) struct SendSocket {
    pub(crate) fd: Descriptor,
    pub(crate) source_port: u16,
}

/// The send sockets of one local address.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) local: LocalAddress,
    /// Those among which flows are spread.
    pub(crate) sockets: Vec<SendSocket>,
    /// Those that somebody named, in order of source port.
    named: RefCell<Vec<SendSocket>>,
    buffer_bytes: usize,
}

/// Source ports of an address that can be named, at most: each costs a descriptor for as long as the address is there.
const MAX_NAMED: usize = 64;

impl Pool {
    /// Opens `size` sockets on different source ports, from one that depends on `start` on.
    pub(crate) fn open(local: LocalAddress, size: usize, start: u32, buffer_bytes: usize) -> io::Result<Self> {
        let mut sockets = Vec::with_capacity(size);
        const RANGE: u32 = 0x4000;
        for step in 0..RANGE {
            if sockets.len() == size {
                break;
            }
            let source_port = FIRST_SOURCE_PORT + ((start + step) % RANGE) as u16;
            match open_send(local, source_port, buffer_bytes) {
                Ok(fd) => sockets.push(SendSocket { fd, source_port }),
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(e) if sockets.is_empty() => return Err(e),
                Err(_) => break,
            }
        }
        if sockets.is_empty() {
            Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
        } else {
            // From here on others may have the same source port: what matters is only that these differ from one another.
            for socket in &sockets {
                share(socket.fd.as_raw_fd())?;
            }
            Ok(Self { local, sockets, named: RefCell::default(), buffer_bytes })
        }
    }

    /// The socket of a flow.
    pub(crate) fn for_flow(&self, flow: u32) -> &SendSocket {
        // Consecutive QPNs spread evenly; a multiplicative hash also spreads flow labels.
        let hash = flow.wrapping_mul(0x9e37_79b1) >> 16;
        &self.sockets[hash as usize % self.sockets.len()]
    }

    /// The socket with a source port. After the pool was opened anew it may be missing: then it is opened, and if that cannot be, the first one of all
    /// stands in.
    pub(crate) fn by_port(&self, source_port: u16) -> RawFd {
        let find = |sockets: &[SendSocket]| Some(sockets.iter().find(|s| s.source_port == source_port)?.fd.as_raw_fd());
        let named = || find(&self.named.borrow());
        let open = || self.name(source_port).ok().and_then(|()| find(&self.named.borrow()));
        find(&self.sockets).or_else(named).or_else(open).unwrap_or_else(|| self.sockets[0].fd.as_raw_fd())
    }

    /// Sees to it that there is a socket with this source port. `EMFILE`: too many have been named already.
    pub(crate) fn name(&self, source_port: u16) -> io::Result<()> {
        if self.sockets.iter().any(|s| s.source_port == source_port) {
            return Ok(());
        }
        let mut named = self.named.borrow_mut();
        let Err(place) = named.binary_search_by_key(&source_port, |s| s.source_port) else { return Ok(()) };
        if named.len() >= MAX_NAMED || source_port < FIRST_SOURCE_PORT {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let fd = open_named(self.local, source_port, self.buffer_bytes)?;
        named.insert(place, SendSocket { fd, source_port });
        Ok(())
    }
}

/// One small train that waits.
#[derive(Clone, Copy)]
struct Waiting {
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    segment: usize,
    from: usize,
    to: usize,
}

/// Small trains that leave with one `sendmmsg`, all from one socket. Their order is kept.
pub(crate) struct Pending {
    socket: RawFd,
    scope: u32,
    waiting: Vec<Waiting>,
    bytes: Vec<u8>,
    /// Bytes of the largest train that waits.
    most: usize,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending({} trains, {} bytes)", self.waiting.len(), self.bytes.len())
    }
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self {
            socket: -1,
            scope: 0,
            waiting: Vec::with_capacity(PENDING),
            bytes: Vec::with_capacity(PENDING * PENDING_BYTES),
            most: PENDING_BYTES,
        }
    }

    /// There are no trains: packets of any size wait for one another.
    pub(crate) fn take_large(&mut self) {
        self.most = SINGLE_BYTES;
    }

    /// Without room, as a stand-in: allocates nothing.
    pub(crate) const fn new_empty() -> Self {
        Self { socket: -1, scope: 0, waiting: Vec::new(), bytes: Vec::new(), most: 0 }
    }

    /// The socket that all wait for, and its scope.
    pub(crate) fn socket(&self) -> (RawFd, u32) {
        (self.socket, self.scope)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a train if it is small, from the same socket as the others, and there is room.
    pub(crate) fn push(&mut self, socket: RawFd, scope: u32, train: &Train<'_>) -> bool {
        let fits = train.bytes.len() <= self.most
            && self.waiting.len() < PENDING
            && self.bytes.len() + train.bytes.len() <= PENDING * self.most;
        if !fits || (!self.waiting.is_empty() && socket != self.socket) {
            return false;
        }
        (self.socket, self.scope) = (socket, scope);
        let from = self.bytes.len();
        self.bytes.extend_from_slice(train.bytes);
        self.waiting.push(Waiting {
            src: train.src,
            src_port: train.src_port,
            dst: train.dst,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit,
            flow_label: train.flow_label,
            segment: train.segment,
            from,
            to: self.bytes.len(),
        });
        true
    }

    /// Sends what waits, in order. `each` learns of every train that did not simply leave; what is `Blocked` stays.
    pub(crate) fn flush(&mut self, each: &mut dyn FnMut(&Train<'_>, Outcome)) {
        let mut done = 0;
        while done < self.waiting.len() {
            let (sent, errno) = self.sendmmsg(done);
            done += sent;
            let Some(w) = self.waiting.get(done) else { break };
            if sent > 0 && errno == 0 {
                continue;
            }
            let train = w.train(&self.bytes);
            match outcome(errno, train.bytes.len() > train.segment) {
                Outcome::Blocked => break,
                outcome => {
                    each(&train, outcome);
                    done += 1;
                }
            }
        }
        self.waiting.drain(..done);
        if self.waiting.is_empty() {
            self.bytes.clear();
        }
    }

    /// One system call, from train `first` on: how many left, and the `errno` if none did.
    fn sendmmsg(&mut self, first: usize) -> (usize, i32) {
        let count = self.waiting.len() - first;
        if count == 1 {
            let w = self.waiting[first];
            let train = w.train(&self.bytes);
            return match send_now(self.socket, self.scope, &train) {
                Outcome::Sent => (1, 0),
                Outcome::Blocked => (0, libc::EAGAIN),
                Outcome::GsoRefused => (0, libc::EIO),
                Outcome::Failed(errno) => (0, errno),
            };
        }
        // SAFETY: all-zero is valid for these plain C structs.
        let (mut headers, mut vectors, mut names) = unsafe {
            (
                std::mem::zeroed::<[libc::mmsghdr; PENDING]>(),
                std::mem::zeroed::<[libc::iovec; PENDING]>(),
                std::mem::zeroed::<[libc::sockaddr_in6; PENDING]>(),
            )
        };
        let mut controls = [Control { bytes: [0; CONTROL], len: 0 }; PENDING];
        for (i, w) in self.waiting[first..].iter().enumerate() {
            let train = w.train(&self.bytes);
            controls[i] = Control::of(&train);
            let to = RawAddress::new(w.dst, ROCE_PORT, self.scope, w.flow_label);
            names[i] = to.storage;
            vectors[i] = libc::iovec { iov_base: train.bytes.as_ptr().cast_mut().cast(), iov_len: train.bytes.len() };
            let header = &mut headers[i].msg_hdr;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_namelen = to.len;
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
            if controls[i].len > 0 {
                header.msg_control = controls[i].bytes.as_mut_ptr().cast();
                header.msg_controllen = controls[i].len as _;
            }
        }
        // SAFETY: the first `count` headers and all they point to live until the call returns; the kernel only reads.
        let n = unsafe {
            libc::sendmmsg(
                self.socket,
                headers.as_mut_ptr(),
                count as u32,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        if n < 0 { (0, io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { (n as usize, 0) }
    }
}

impl Waiting {
    fn train<'a>(&self, bytes: &'a [u8]) -> Train<'a> {
        Train {
            src: self.src,
            src_port: self.src_port,
            dst: self.dst,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            segment: self.segment,
            bytes: &bytes[self.from..self.to],
        }
    }
}
