//! Connections between the members of a device: abstract Unix sockets that keep message boundaries, carry descriptors, and
//! end when the process at the other side does (they are close-on-exec, and a forked child lets go of them: `process`).

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::port::udp::LocalAddress;
use crate::process::{Descriptor, Making};

/// Descriptors in one message; the kernel's limit is 253.
const DESCRIPTORS: usize = 64;
const MESSAGE_BYTES: usize = 8192;

/// What a descriptor of the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A receive socket of a slot on an address; slot 0 is the one for QP 1.
    Receive = 1,
    /// The end of a slot's mailbox that its member reads.
    MailIn = 2,
    /// The end that others write.
    MailOut = 3,
    /// A member's file: its gates, its memory table, the memory that it allocates. Its address is that of no interface; in
    /// the place of the interface's number stands which of the slot's members it is.
    File = 4,
    /// The end of a socket pair whose other end only the member has. Named like its file.
    Life = 5,
}

/// The name of a descriptor of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    /// Port of the device, from 0.
    pub(crate) port: u8,
    pub(crate) slot: u8,
    /// The address of a receive socket; of others unspecified.
    pub(crate) local: LocalAddress,
}

const KEY_BYTES: usize = 24;

impl Key {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.kind as u8, self.port, self.slot, u8::from(self.local.ip.is_ipv4())]);
        out.extend_from_slice(&self.local.ifindex.to_le_bytes());
        let octets = match self.local.ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        out.extend_from_slice(&octets);
    }

    fn get(bytes: &[u8]) -> Option<Self> {
        let kind = match bytes.first()? {
            1 => Kind::Receive,
            2 => Kind::MailIn,
            3 => Kind::MailOut,
            4 => Kind::File,
            5 => Kind::Life,
            _ => return None,
        };
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?);
        let ip = if bytes[3] != 0 { ip.to_canonical() } else { ip.into() };
        let ifindex = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
        Some(Self { kind, port: bytes[1], slot: bytes[2], local: LocalAddress { ip, ifindex } })
    }
}

/// What members tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A process wants a slot. With it: a pidfd.
    Join { version: u32, pid: u32, start_time: u64 },
    /// A member of a host that is gone. With it: a pidfd.
    Rejoin { version: u32, slot: u8 },
    /// The slot. With it: the segment and the listening socket.
    Welcome { slot: u8 },
    /// No; and why.
    Refuse { text: String },
    /// Descriptors of the device, one for each key.
    Hold { keys: Vec<Key> },
    /// An address is gone: close its sockets.
    Drop { port: u8, local: LocalAddress },
    /// Everything that was to be told at the beginning is told.
    Ready,
    /// The tables in the segment have changed.
    Nudge,
    /// A tool wants to know what there is; it does not become a member.
    Survey { version: u32 },
    /// The answer of the host, whose slot it is; members answer for themselves. With it: the segment.
    Roster { host: u8 },
    /// To a member: answer this tool. With it: the connection to it.
    Ask,
    /// What a member has. With it: a file of JSON.
    Report { slot: u8 },
    /// A tool sets the P_Key table of a port, from index 0; it does not become a member. Answered with [`Self::Ready`].
    SetPkeys { version: u32, port: u8, pkeys: Vec<u16> },
    /// A tool wants the segment alone: nobody is asked what it has.
    Look { version: u32 },
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Join { version, pid, start_time } => {
                out.push(1);
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(&pid.to_le_bytes());
                out.extend_from_slice(&start_time.to_le_bytes());
            }
            Self::Rejoin { version, slot } => {
                out.push(2);
                out.extend_from_slice(&version.to_le_bytes());
                out.push(*slot);
            }
            Self::Welcome { slot } => out.extend_from_slice(&[3, *slot]),
            Self::Refuse { text } => {
                out.push(4);
                out.extend_from_slice(text.as_bytes());
            }
            Self::Hold { keys } => {
                out.push(5);
                keys.iter().for_each(|key| key.put(&mut out));
            }
            Self::Drop { port, local } => {
                out.push(6);
                Key { kind: Kind::Receive, port: *port, slot: 0, local: *local }.put(&mut out);
            }
            Self::Ready => out.push(7),
            Self::Nudge => out.push(8),
            Self::Survey { version } => {
                out.push(9);
                out.extend_from_slice(&version.to_le_bytes());
            }
            Self::Roster { host } => out.extend_from_slice(&[10, *host]),
            Self::Ask => out.push(11),
            Self::Report { slot } => out.extend_from_slice(&[12, *slot]),
            Self::SetPkeys { version, port, pkeys } => {
                out.push(13);
                out.extend_from_slice(&version.to_le_bytes());
                out.push(*port);
                pkeys.iter().for_each(|pkey| out.extend_from_slice(&pkey.to_le_bytes()));
            }
            Self::Look { version } => {
                out.push(14);
                out.extend_from_slice(&version.to_le_bytes());
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        Some(match kind {
            1 => Self::Join {
                version: u32_at(0)?,
                pid: u32_at(4)?,
                start_time: u64::from(u32_at(8)?) | u64::from(u32_at(12)?) << 32,
            },
            2 => Self::Rejoin { version: u32_at(0)?, slot: *rest.get(4)? },
            3 => Self::Welcome { slot: *rest.first()? },
            4 => Self::Refuse { text: String::from_utf8_lossy(rest).into_owned() },
            5 => Self::Hold { keys: rest.chunks(KEY_BYTES).map(Key::get).collect::<Option<_>>()? },
            6 => Key::get(rest).map(|key| Self::Drop { port: key.port, local: key.local })?,
            7 => Self::Ready,
            8 => Self::Nudge,
            9 => Self::Survey { version: u32_at(0)? },
            10 => Self::Roster { host: *rest.first()? },
            11 => Self::Ask,
            12 => Self::Report { slot: *rest.first()? },
            13 => Self::SetPkeys {
                version: u32_at(0)?,
                port: *rest.get(4)?,
                pkeys: rest[5..].chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect(),
            },
            14 => Self::Look { version: u32_at(0)? },
            _ => return None,
        })
    }
}

/// What came from the other side.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message, Vec<Descriptor>),
    /// Nothing waits.
    Nothing,
    /// The other side is gone, or talks nonsense.
    Closed,
}

fn address(name: &str) -> io::Result<(libc::sockaddr_un, u32)> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let bytes = name.as_bytes();
    if bytes.len() + 1 > address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path[1..].iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, (size_of::<libc::sa_family_t>() + 1 + bytes.len()) as u32))
}

fn socket() -> io::Result<Descriptor> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    Descriptor::make(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// Listens at an abstract name. `EADDRINUSE`: somebody does already.
pub(crate) fn listen(name: &str) -> io::Result<Descriptor> {
    let listener = socket()?;
    let (address, len) = address(name)?;
    // SAFETY: the address is valid for its length.
    let done = unsafe {
        libc::bind(listener.as_raw_fd(), (&raw const address).cast(), len) == 0
            && libc::listen(listener.as_raw_fd(), 256) == 0
    };
    if done { Ok(listener) } else { Err(io::Error::last_os_error()) }
}

/// A connection to another member.
#[derive(Debug)]
pub(crate) struct Link {
    fd: Descriptor,
    waiting: VecDeque<(Vec<u8>, Vec<Arc<Descriptor>>)>,
}

impl Link {
    fn new(fd: Descriptor) -> Self {
        Self { fd, waiting: VecDeque::new() }
    }

    /// Connects to whoever listens at a name.
    pub(crate) fn connect(name: &str) -> io::Result<Self> {
        Self::connect_by(socket()?, name)
    }

    /// Connects, and wants to know of each message who sent it.
    pub(crate) fn connect_signed(name: &str) -> io::Result<Self> {
        let fd = socket()?;
        crate::port::udp::socket::set(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32)?;
        Self::connect_by(fd, name)
    }

    fn connect_by(fd: Descriptor, name: &str) -> io::Result<Self> {
        let (address, len) = address(name)?;
        // SAFETY: the address is valid for its length.
        let done = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Self::new(fd)) }
    }

    /// The next connection that waits at a listener.
    pub(crate) fn accept(listener: RawFd) -> Option<Self> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no address is asked for.
        let call = || unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        Descriptor::make(call).ok().map(Self::new)
    }

    /// Another descriptor of it, to be given away.
    pub(crate) fn duplicate(&self) -> io::Result<Descriptor> {
        self.fd.try_clone()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Process (in our PID namespace, 0 if it is not in it) and effective user at the other side, as the kernel says.
    pub(crate) fn peer(&self) -> io::Result<(u32, u32)> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&credentials) as u32;
        // SAFETY: value and length are writable.
        let done = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut len,
            )
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok((credentials.pid as u32, credentials.uid)) }
    }

    /// Puts a message in the queue; [`Link::flush`] sends it.
    pub(crate) fn queue(&mut self, message: &Message, descriptors: Vec<Arc<Descriptor>>) {
        self.waiting.push_back((message.encode(), descriptors));
    }

    /// Puts descriptors in the queue, in as many messages as they need.
    pub(crate) fn queue_hold(&mut self, held: &[(Key, Arc<Descriptor>)]) {
        for part in held.chunks(DESCRIPTORS) {
            let keys = part.iter().map(|(key, _)| *key).collect();
            self.queue(&Message::Hold { keys }, part.iter().map(|(_, fd)| fd.clone()).collect());
        }
    }

    /// Sends what waits. `Ok(false)`: the other side has no room now; try again later.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while let Some((bytes, descriptors)) = self.waiting.front() {
            match send(self.fd.as_raw_fd(), bytes, descriptors) {
                Ok(()) => {
                    self.waiting.pop_front();
                }
                // Too many descriptors are on their way already, or the socket is full.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS | libc::ENOBUFS)) => {
                    return Ok(false);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// True if something waits to be sent.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a message that is there.
    pub(crate) fn receive(&self) -> Received {
        self.receive_signed().0
    }

    /// The same, with the process that sent it, in our PID namespace: 0 if it is not in it, or if the connection was
    /// not made with [`Link::connect_signed`].
    pub(crate) fn receive_signed(&self) -> (Received, u32) {
        let mut bytes = [0u8; MESSAGE_BYTES];
        let mut control = [0u64; 64];
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        let making = Making::begin();
        // SAFETY: buffers are writable for the lengths given.
        let n = unsafe { libc::recvmsg(self.fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
        if n < 0 {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => (Received::Nothing, 0),
                _ => (Received::Closed, 0),
            };
        }
        let (mut descriptors, mut sender) = (Vec::new(), 0);
        // SAFETY: the kernel has filled the control buffer; the macros stay inside `msg_controllen`, and each descriptor
        // in it is new and nobody else's.
        unsafe {
            let mut cmsg = libc::CMSG_FIRSTHDR(&raw const header);
            while !cmsg.is_null() {
                if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                    let count = ((*cmsg).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                    for i in 0..count {
                        descriptors.push(Descriptor::keep(OwnedFd::from_raw_fd(data.add(i).read_unaligned())));
                    }
                }
                if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_CREDENTIALS {
                    sender = libc::CMSG_DATA(cmsg).cast::<libc::ucred>().read_unaligned().pid as u32;
                }
                cmsg = libc::CMSG_NXTHDR(&raw const header, cmsg);
            }
        }
        drop(making);
        let cut = header.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
        let received = match Message::decode(&bytes[..n as usize]) {
            // No byte at all is the end of the connection.
            Some(message) if !cut => Received::Message(message, descriptors),
            _ => Received::Closed,
        };
        (received, sender)
    }

    /// Waits for a message.
    pub(crate) fn wait(&self, timeout: Duration) -> Received {
        self.wait_signed(timeout).0
    }

    /// The same, with its sender.
    pub(crate) fn wait_signed(&self, timeout: Duration) -> (Received, u32) {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis().min(i32::MAX as u128) as i32) };
        self.receive_signed()
    }
}

/// Sends a member's report to a tool. One that does not take it has gone, or will ask again.
pub(crate) fn report(tool: &Descriptor, slot: u8, text: &[u8]) -> io::Result<()> {
    let name = c"scalefabric-report".as_ptr();
    // SAFETY: a C string.
    let file = Descriptor::make(|| unsafe { libc::memfd_create(name, libc::MFD_CLOEXEC) })?;
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: the bytes are readable for their length.
        let n = unsafe { libc::write(file.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
        if n <= 0 {
            return Err(io::Error::last_os_error());
        }
        rest = &rest[n as usize..];
    }
    send(tool.as_raw_fd(), &Message::Report { slot }.encode(), &[Arc::new(file)])
}

/// The text of a report.
pub(crate) fn read_report(file: &Descriptor) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut part = [0u8; 65_536];
    loop {
        // SAFETY: the part is writable for its length.
        let n =
            unsafe { libc::pread(file.as_raw_fd(), part.as_mut_ptr().cast(), part.len(), text.len() as libc::off_t) };
        match n {
            0 => return Ok(text),
            1.. => text.extend_from_slice(&part[..n as usize]),
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

fn send(socket: RawFd, bytes: &[u8], descriptors: &[Arc<Descriptor>]) -> io::Result<()> {
    let mut control = [0u64; 64];
    let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = (&raw const vector).cast_mut();
    header.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let payload = size_of_val(&descriptors[0].as_raw_fd()) * descriptors.len();
        // SAFETY: at most `DESCRIPTORS` descriptors fit the control buffer, which is aligned for a cmsghdr.
        unsafe {
            debug_assert!(libc::CMSG_SPACE(payload as u32) as usize <= size_of_val(&control));
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(payload as u32) as _;
            let cmsg = libc::CMSG_FIRSTHDR(&raw const header);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(payload as u32) as _;
            let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
            for (i, fd) in descriptors.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: everything the header points to is valid; the kernel only reads.
    let n = unsafe { libc::sendmsg(socket, &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A pidfd of this process.
pub(crate) fn own_pidfd() -> io::Result<Descriptor> {
    // SAFETY: plain system call.
    Descriptor::make(|| unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as RawFd })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("scalefabric-test-{test}-{}", std::process::id())
    }

    #[test]
    fn messages_survive_their_encoding() {
        let v4 = LocalAddress { ip: "10.1.2.3".parse().unwrap(), ifindex: 7 };
        let v6 = LocalAddress { ip: "fe80::1".parse().unwrap(), ifindex: 9 };
        let key = Key { kind: Kind::Receive, port: 1, slot: 254, local: v4 };
        let all = [
            Message::Join { version: 3, pid: 77, start_time: 1 << 40 },
            Message::Rejoin { version: 1, slot: 9 },
            Message::Welcome { slot: 2 },
            Message::Refuse { text: "full".into() },
            Message::Hold { keys: vec![key, Key { kind: Kind::MailOut, local: v6, ..key }] },
            Message::Drop { port: 1, local: v6 },
            Message::Ready,
            Message::Nudge,
            Message::Survey { version: 7 },
            Message::Roster { host: 3 },
            Message::Ask,
            Message::Report { slot: 254 },
            Message::SetPkeys { version: 3, port: 1, pkeys: vec![0xffff, 0x8011] },
            Message::Look { version: 3 },
        ];
        for message in all {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message.clone()));
            for end in 0..bytes.len() {
                let _ = Message::decode(&bytes[..end]);
            }
        }
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[99]), None);
    }

    #[test]
    fn descriptors_travel_and_the_end_is_seen() {
        let name = name("link");
        let listener = listen(&name).unwrap();
        assert_eq!(listen(&name).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        let mut a = Link::connect(&name).unwrap();
        let b = Link::accept(listener.as_raw_fd()).unwrap();
        // SAFETY: plain system call that cannot fail.
        assert_eq!(b.peer().unwrap(), (std::process::id(), unsafe { libc::geteuid() }));
        assert!(matches!(b.receive(), Received::Nothing));
        let local = LocalAddress { ip: "10.1.2.3".parse().unwrap(), ifindex: 7 };
        let fd = Arc::new(own_pidfd().unwrap());
        let held: Vec<_> =
            (0..100).map(|slot| (Key { kind: Kind::Receive, port: 0, slot, local }, fd.clone())).collect();
        a.queue_hold(&held);
        assert!(a.flush().unwrap() && !a.is_behind());
        let mut got = Vec::new();
        while let Received::Message(Message::Hold { keys }, fds) = b.receive() {
            assert_eq!(keys.len(), fds.len());
            got.extend(keys.into_iter().map(|key| key.slot));
        }
        assert_eq!(got, (0..100).collect::<Vec<u8>>());
        drop(a);
        assert!(matches!(b.receive(), Received::Closed));
    }
}
