//! Datagrams that reached the wrong process of a shared device: GRO merged neighbours of one flow, or the kernel fell back
//! to its hash. They are handed over whole through a Unix datagram socket of the slot they are for.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;

use crate::port::Datagram;

/// Bytes before the packet: source, destination (16 each), source port, identification, port, traffic class, hop limit.
const HEADER: usize = 40;

/// The other members of a shared device, as a port sees them.
pub trait Neighbours: Send + Sync {
    /// The mailbox of a living slot, to send to; `None` if nobody lives there.
    fn mailbox(&self, slot: u8) -> Option<RawFd>;
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Hands a datagram that came in by port `port_index` over. False if the mailbox is full: the datagram is lost.
pub(crate) fn hand_over(mailbox: RawFd, port_index: u8, datagram: &Datagram<'_>) -> bool {
    let mut header = [0u8; HEADER];
    header[0..16].copy_from_slice(&octets(datagram.src));
    header[16..32].copy_from_slice(&octets(datagram.dst));
    header[32..34].copy_from_slice(&datagram.src_port.to_be_bytes());
    header[34..36].copy_from_slice(&datagram.ip_id.to_be_bytes());
    header[36] = port_index;
    header[37] = datagram.traffic_class;
    header[38] = datagram.hop_limit;
    let vectors = [
        libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER },
        libc::iovec { iov_base: datagram.bytes.as_ptr().cast_mut().cast(), iov_len: datagram.bytes.len() },
    ];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: both vectors are readable for their lengths until the call returns; the kernel only reads.
    unsafe { libc::sendmsg(mailbox, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) >= 0 }
}

/// Takes one datagram for port `port_index` out of a mailbox into `buffer`. `Ok(None)`: nothing waits.
///
/// A device has one mailbox a slot and port, so what is found for another port is refused.
pub(crate) fn take<'a>(mailbox: RawFd, port_index: u8, buffer: &'a mut [u8]) -> io::Result<Option<Datagram<'a>>> {
    // SAFETY: the buffer is writable for its length.
    let n = unsafe { libc::recv(mailbox, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    if n < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    decode(port_index, &buffer[..n as usize]).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn decode(port_index: u8, bytes: &[u8]) -> Option<Datagram<'_>> {
    let (header, bytes) = bytes.split_first_chunk::<HEADER>()?;
    if header[36] != port_index {
        return None;
    }
    let ip = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(header.get(at..at + 16)?).ok()?).to_canonical());
    Some(Datagram {
        src: ip(0)?,
        dst: ip(16)?,
        src_port: u16::from_be_bytes([header[32], header[33]]),
        ip_id: u16::from_be_bytes([header[34], header[35]]),
        traffic_class: header[37],
        hop_limit: header[38],
        flow_label: 0,
        bytes,
    })
}
