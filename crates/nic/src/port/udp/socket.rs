//! Opening and setting up the sockets of a port: the only place that calls `socket`, `bind` and `setsockopt` for UDP.
//!
//! A receive socket is bound to one local address and port 4791, so the destination of what it receives is known without
//! asking the kernel for it. A send socket is bound to one local address and a source port, never connected: only then is
//! the IPv4 identification zero, and *i* in segment *i* of a GSO send (D4).

use crate::process::Descriptor;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

/// The UDP port of RoCEv2 (annex A17).
pub const ROCE_PORT: u16 = scalefabric_wire::packet::UDP_PORT;

/// First source port of the range that annex A17 leaves for path entropy.
pub const FIRST_SOURCE_PORT: u16 = 0xc000;

const UDP_GRO: i32 = 104;
const UDP_NO_CHECK6_RX: i32 = 102;
/// `SO_MEMINFO`'s index of the packets that were dropped for lack of buffer.
const SK_MEMINFO_DROPS: usize = 8;
const IPV6_MTU_DISCOVER: i32 = 23;
const IPV6_FLOWINFO: i32 = 11;
const IPV6_FLOWINFO_SEND: i32 = 33;
const IP_PMTUDISC_DO: i32 = 2;
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;

/// A local address as sockets need it: link-local IPv6 means nothing without its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Index of its interface; 0 if it does not matter.
    pub ifindex: u32,
}

/// A socket address as the kernel takes it.
#[derive(Clone, Copy)]
pub(crate) struct RawAddress {
    pub(crate) storage: libc::sockaddr_in6,
    pub(crate) len: u32,
}

impl RawAddress {
    /// Encodes `ip:port`. `flow_label` and, for link-local and multicast destinations, `scope` matter only over IPv6.
    pub(crate) fn new(ip: IpAddr, port: u16, scope: u32, flow_label: u32) -> Self {
        // SAFETY: all-zero is a valid sockaddr_in6; it is larger and at least as aligned as a sockaddr_in.
        let mut storage: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        match ip {
            IpAddr::V4(v4) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(v4).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_in fits into sockaddr_in6 in size and alignment, and both are plain data.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(v4) };
                Self { storage, len: size_of::<libc::sockaddr_in>() as u32 }
            }
            IpAddr::V6(v6) => {
                storage.sin6_family = libc::AF_INET6 as u16;
                storage.sin6_port = port.to_be();
                storage.sin6_flowinfo = (flow_label & 0x000f_ffff).to_be();
                storage.sin6_addr.s6_addr = v6.octets();
                let scoped = v6.is_unicast_link_local() || (v6.is_multicast() && v6.octets()[1] & 0xf <= 2);
                storage.sin6_scope_id = if scoped { scope } else { 0 };
                Self { storage, len: size_of::<libc::sockaddr_in6>() as u32 }
            }
        }
    }

    /// Decodes what the kernel wrote.
    pub(crate) fn decode(storage: &libc::sockaddr_in6) -> Option<(IpAddr, u16)> {
        match i32::from(storage.sin6_family) {
            libc::AF_INET => {
                // SAFETY: the family says that a sockaddr_in was written; it lies within the storage.
                let v4 = unsafe { (storage as *const libc::sockaddr_in6).cast::<libc::sockaddr_in>().read() };
                Some((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let ip = std::net::Ipv6Addr::from(storage.sin6_addr.s6_addr);
                Some((ip.into(), u16::from_be(storage.sin6_port)))
            }
            _ => None,
        }
    }
}

fn open(v6: bool) -> io::Result<Descriptor> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    Descriptor::make(|| unsafe { libc::socket(family, kind, 0) })
}

pub(crate) fn set<T: Copy>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value is readable for its size.
    let done = unsafe { libc::setsockopt(fd, level, name, (value as *const T).cast(), size_of::<T>() as u32) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_int(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut len) = (0i32, 4u32);
    // SAFETY: value and length are writable.
    let done = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn bind(fd: &Descriptor, address: &RawAddress) -> io::Result<()> {
    // SAFETY: the address is valid for its length.
    let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address.storage).cast(), address.len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How to open a receive socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// Bytes of socket buffer to ask for. The kernel gives at most `net.core.rmem_max` unless the process is privileged.
    pub buffer_bytes: usize,
    /// Several sockets on one address, steered by [`steer`]: the shared device.
    pub reuse_port: bool,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self { buffer_bytes: 64 << 20, reuse_port: true }
    }
}

fn receive_socket(local: LocalAddress, bound: IpAddr, buffer_bytes: usize, reuse: i32) -> io::Result<Descriptor> {
    let v6 = bound.is_ipv6();
    let socket = open(v6)?;
    let fd = socket.as_raw_fd();
    let on = 1i32;
    if reuse != 0 {
        set(fd, libc::SOL_SOCKET, reuse, &on)?;
    }
    if v6 {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &on)?;
        set(fd, libc::IPPROTO_IPV6, IPV6_FLOWINFO, &on)?;
        // RoCEv2 leaves the UDP checksum 0 (annex A17.3.2: the ICRC does its work), and so does Linux's rxe. IPv6 sockets
        // throw such datagrams away unless told otherwise.
        set(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, &on)?;
    }
    // A switch may mark what passes it. None stands between two ends of the loopback, and who controls congestion there asks by `tell_headers`.
    if !bound.is_loopback() {
        tell_traffic_class(fd, v6)?;
    }
    // Kernels before 5.0 have no UDP_GRO: datagrams then come one by one, which is only slower.
    let _ = set(fd, libc::IPPROTO_UDP, UDP_GRO, &on);
    let bytes = i32::try_from(buffer_bytes / 2).unwrap_or(i32::MAX / 2);
    if set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes).is_err() {
        set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes)?;
    }
    bind(&socket, &RawAddress::new(bound, ROCE_PORT, local.ifindex, 0))?;
    Ok(socket)
}

/// Makes a receive socket tell the traffic class, the TTL and the hop limit of what it receives. Each of the two costs each datagram 0.05 to 0.1 µs.
pub(crate) fn tell_headers(socket: RawFd, v6: bool) -> io::Result<()> {
    tell_traffic_class(socket, v6)?;
    let (level, name) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT) } else { (libc::IPPROTO_IP, libc::IP_RECVTTL) };
    set(socket, level, name, &1i32)
}

fn tell_traffic_class(socket: RawFd, v6: bool) -> io::Result<()> {
    let (level, name) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) } else { (libc::IPPROTO_IP, libc::IP_RECVTOS) };
    set(socket, level, name, &1i32)
}

/// `sendmsg` as the kernel has it. The C library's may be the point where another thread ends this one, which costs two locked instructions a call.
///
/// # Safety
///
/// As for `sendmsg`: all that `header` points to can be read for the lengths in it.
pub(super) unsafe fn sendmsg(socket: RawFd, header: &libc::msghdr, flags: i32) -> isize {
    // SAFETY: the caller's promise; the kernel only reads.
    unsafe { libc::syscall(libc::SYS_sendmsg, socket, std::ptr::from_ref(header), flags) as isize }
}

/// `recvmsg`, in the same way.
///
/// # Safety
///
/// As for `recvmsg`: all that `header` points to can be written for the lengths in it.
pub(super) unsafe fn recvmsg(socket: RawFd, header: &mut libc::msghdr, flags: i32) -> isize {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_recvmsg, socket, std::ptr::from_mut(header), flags) as isize }
}

/// Opens a receive socket on `local`, port 4791.
pub fn open_receive(local: LocalAddress, options: ReceiveOptions) -> io::Result<Descriptor> {
    receive_socket(local, local.ip, options.buffer_bytes, if options.reuse_port { libc::SO_REUSEPORT } else { 0 })
}

/// Opens a socket that receives what is sent to a multicast group on the interface of `local`. Every such socket of the
/// host gets its own copy.
pub fn open_group(local: LocalAddress, group: IpAddr, buffer_bytes: usize) -> io::Result<Descriptor> {
    let socket = receive_socket(local, group, buffer_bytes, libc::SO_REUSEADDR)?;
    let fd = socket.as_raw_fd();
    match group {
        IpAddr::V4(v4) => {
            set(fd, libc::IPPROTO_IP, IP_MULTICAST_ALL, &0i32)?;
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: u32::from(v4).to_be() },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: local.ifindex as i32,
            };
            set(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)?;
        }
        IpAddr::V6(v6) => {
            let _ = set(fd, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, &0i32);
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: v6.octets() },
                ipv6mr_interface: local.ifindex,
            };
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)?;
        }
    }
    Ok(socket)
}

/// Makes the kernel give each datagram to the socket whose place in the SO_REUSEPORT group is byte 5 of the payload: the
/// upper byte of the destination QPN, which is the slot. A number past the end falls back to the kernel's hash.
pub fn steer(socket: RawFd) -> io::Result<()> {
    // ldb [5]; ret a
    let mut program = [
        libc::sock_filter { code: (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 5 },
        libc::sock_filter { code: (libc::BPF_RET | 0x10) as u16, jt: 0, jf: 0, k: 0 },
    ];
    attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &mut program)
}

fn attach(socket: RawFd, name: i32, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, name, &program)
}

/// Opens a send socket on `local` and a source port that nobody else has. `EADDRINUSE`: take another port.
pub fn open_send(local: LocalAddress, source_port: u16, buffer_bytes: usize) -> io::Result<Descriptor> {
    open_source(local, source_port, buffer_bytes, false)
}

/// The same, on a source port that other send sockets may have too.
pub(crate) fn open_named(local: LocalAddress, source_port: u16, buffer_bytes: usize) -> io::Result<Descriptor> {
    open_source(local, source_port, buffer_bytes, true)
}

/// Lets others open the same source port with [`open_named`]. Nothing is received by any of them, so they do not disturb one another.
pub(crate) fn share(socket: RawFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)
}

fn open_source(local: LocalAddress, source_port: u16, buffer_bytes: usize, shared: bool) -> io::Result<Descriptor> {
    let v6 = local.ip.is_ipv6();
    let socket = open(v6)?;
    let fd = socket.as_raw_fd();
    // Nothing is ever received here: strays must not fill kernel memory.
    attach(fd, libc::SO_ATTACH_FILTER, &mut [libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: 0 }])?;
    let bytes = i32::try_from(buffer_bytes / 2).unwrap_or(i32::MAX / 2);
    if set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)?;
    }
    // The default TTL is a sysctl; an AH says 64 unless it says otherwise, and so do we.
    if v6 {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1i32)?;
        set(fd, libc::IPPROTO_IPV6, IPV6_MTU_DISCOVER, &IP_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, &64i32)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, &64i32)?;
        set(fd, libc::IPPROTO_IPV6, IPV6_FLOWINFO_SEND, &1i32)?;
        if local.ifindex != 0 {
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &(local.ifindex as i32))?;
        }
    } else {
        set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &IP_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IP, libc::IP_TTL, &64i32)?;
        set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, &64i32)?;
        if local.ifindex != 0 {
            let interface = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: 0 },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: local.ifindex as i32,
            };
            set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &interface)?;
        }
    }
    if shared {
        share(fd)?;
    }
    bind(&socket, &RawAddress::new(local.ip, source_port, local.ifindex, 0))?;
    Ok(socket)
}

/// Bytes of receive buffer that the kernel gave.
pub fn receive_buffer_bytes(socket: RawFd) -> io::Result<usize> {
    get_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF).map(|n| n as usize)
}

/// Datagrams that the kernel dropped because the receive buffer was full.
pub fn overflow_drops(socket: RawFd) -> u64 {
    let mut info = [0u32; 9];
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the array is writable for `len` bytes.
    let done =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, info.as_mut_ptr().cast(), &raw mut len) };
    if done < 0 || (len as usize) < size_of_val(&info) { 0 } else { u64::from(info[SK_MEMINFO_DROPS]) }
}

/// Takes and forgets whatever waits in a socket; returns how many reads it took. Never blocks, and ends even while
/// datagrams keep coming.
pub fn drain(socket: RawFd) -> usize {
    let mut byte = [0u8; 1];
    for taken in 0..1 << 20 {
        // SAFETY: the buffer is writable for its length.
        let n = unsafe { libc::recv(socket, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
        if n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return taken;
        }
    }
    1 << 20
}

/// The local address of a socket.
pub fn local_address(socket: RawFd) -> io::Result<SocketAddr> {
    // SAFETY: all-zero is a valid sockaddr_in6.
    let mut storage: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&storage) as u32;
    // SAFETY: address and length are writable.
    let done = unsafe { libc::getsockname(socket, (&raw mut storage).cast(), &raw mut len) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let (ip, port) = RawAddress::decode(&storage).ok_or(io::ErrorKind::InvalidData)?;
    Ok(SocketAddr::new(ip, port))
}

/// A loopback address that belongs to this process's tests: all of 127/8 is local, and tests of several checkouts may run side
/// by side on one machine. Each test takes another `last`.
#[cfg(test)]
pub(crate) fn own_loopback(last: u8) -> IpAddr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 64 + (pid >> 8 & 0x3f) as u8, pid as u8, last).into()
}
