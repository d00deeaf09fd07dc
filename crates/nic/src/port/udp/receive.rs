//! Batched receive: `recvmmsg` into buffers that take a whole GRO super-packet each, and the walk over the datagrams in
//! them. Step 7 of the walk begins here; nothing is checked yet.
//!
//! How many messages are asked for follows what came: one while a socket is mostly empty, since each attempt beyond the last message
//! costs; more when all that were asked for came, up to [`SUPER`] if they are super-packets, and up to [`MESSAGES`] on a path that takes
//! them apart, where each message is one datagram.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use super::socket::{RawAddress, recvmsg};
use crate::port::Datagram;

const UDP_GRO: i32 = 104;
const IPV6_FLOWINFO: i32 = 11;
/// Messages taken with one system call, at most. Single datagrams touch the first pages of their buffers only.
const MESSAGES: usize = 32;
/// The same if they are super-packets: their buffers together must stay well inside a core's L2.
const SUPER: usize = 8;
/// Bytes of one buffer: the largest UDP payload.
const BUFFER: usize = 1 << 16;
/// Bytes of control data: TOS, TTL, flow label and the GRO size, each in a header of its own.
const CONTROL: usize = 128;

#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// What the kernel said about one super-packet.
#[derive(Clone, Copy)]
struct Meta {
    src: IpAddr,
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    length: usize,
    segment: usize,
}

/// Buffers of a `recvmmsg`, and how far their datagrams have been handed on.
pub(crate) struct Batch {
    headers: Box<[libc::mmsghdr; MESSAGES]>,
    names: Box<[libc::sockaddr_in6; MESSAGES]>,
    controls: Box<[Control; MESSAGES]>,
    vectors: Box<[libc::iovec; MESSAGES]>,
    buffers: Box<[u8]>,
    /// Messages that the last call filled.
    filled: usize,
    /// The message and the byte in it that come next; `index` counts datagrams within the message.
    message: usize,
    offset: usize,
    index: u16,
    meta: Option<Meta>,
}

// SAFETY: the raw pointers in `headers` and `vectors` point into the boxes of the same struct, which move with it; nobody
// else has them.
unsafe impl Send for Batch {}

impl Batch {
    pub(crate) fn new() -> Self {
        // SAFETY: all-zero is valid for each of these plain C structs (null pointers are set below).
        let (mut headers, mut names, mut vectors) = unsafe {
            (
                Box::new(std::mem::zeroed::<[libc::mmsghdr; MESSAGES]>()),
                Box::new(std::mem::zeroed::<[libc::sockaddr_in6; MESSAGES]>()),
                Box::new(std::mem::zeroed::<[libc::iovec; MESSAGES]>()),
            )
        };
        let mut controls = Box::new([const { Control([0; CONTROL]) }; MESSAGES]);
        let mut buffers = vec![0u8; MESSAGES * BUFFER].into_boxed_slice();
        for i in 0..MESSAGES {
            vectors[i].iov_base = buffers[i * BUFFER..].as_mut_ptr().cast();
            vectors[i].iov_len = BUFFER;
            let header = &mut headers[i].msg_hdr;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut controls[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
            header.msg_controllen = CONTROL as _;
        }
        Self { headers, names, controls, vectors, buffers, filled: 0, message: 0, offset: 0, index: 0, meta: None }
    }

    /// True if the last call's datagrams have not all been handed on.
    pub(crate) fn pending(&self) -> bool {
        self.message < self.filled
    }

    /// Fills the buffers from a socket; returns how many messages came, 0 if none waits. Never blocks. What was pending
    /// must have been taken. `wanted` is the socket's own: for how many to ask, 1 at first.
    pub(crate) fn fill(&mut self, socket: RawFd, wanted: &mut usize) -> io::Result<usize> {
        debug_assert!(!self.pending());
        // Only what the last call changed has to be set again.
        for header in &mut self.headers[..self.filled] {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        self.filled = 0;
        self.message = 0;
        let n = self.ask(socket, *wanted);
        if n < 0 {
            let error = io::Error::last_os_error();
            *wanted = 1;
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        self.filled = n as usize;
        self.begin();
        let most = if self.meta.is_some_and(|meta| meta.segment < meta.length) { SUPER } else { MESSAGES };
        *wanted = if self.filled == *wanted { *wanted * 2 } else { self.filled.next_power_of_two() }.min(most);
        Ok(self.filled)
    }

    /// The system call: how many messages came, or a negative number.
    fn ask(&mut self, socket: RawFd, wanted: usize) -> isize {
        if wanted == 1 {
            let header = &mut self.headers[0];
            // SAFETY: header, name, control block, vector and buffer are valid for the lengths given and not in use.
            let length = unsafe { recvmsg(socket, &mut header.msg_hdr, libc::MSG_DONTWAIT) };
            if length < 0 {
                return length;
            }
            header.msg_len = length as u32;
            return 1;
        }
        // SAFETY: as above, for all of them.
        let count = unsafe {
            libc::recvmmsg(
                socket,
                self.headers.as_mut_ptr(),
                wanted as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        isize::try_from(count).unwrap_or(-1)
    }

    /// Reads what the kernel said about the current message.
    fn begin(&mut self) {
        self.offset = 0;
        self.index = 0;
        self.meta = None;
        if self.message >= self.filled {
            return;
        }
        let header = &self.headers[self.message];
        let length = (header.msg_len as usize).min(BUFFER);
        let Some((src, src_port)) = RawAddress::decode(&self.names[self.message]) else { return };
        let mut meta = Meta { src, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0, length, segment: length };
        let control = &self.controls[self.message].0[..header.msg_hdr.msg_controllen.min(CONTROL)];
        for (level, kind, data) in control_messages(control) {
            let int = || data.first_chunk::<4>().map(|b| i32::from_ne_bytes(*b));
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) => meta.traffic_class = data.first().copied().unwrap_or(0),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => meta.traffic_class = int().unwrap_or(0) as u8,
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    meta.hop_limit = int().unwrap_or(64) as u8;
                }
                (libc::IPPROTO_IPV6, IPV6_FLOWINFO) => {
                    meta.flow_label = u32::from_be(int().unwrap_or(0) as u32) & 0x000f_ffff;
                }
                (libc::IPPROTO_UDP, UDP_GRO) => {
                    meta.segment = int().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0).unwrap_or(length);
                }
                _ => {}
            }
        }
        self.meta = Some(meta);
    }

    /// Gives at most `max` pending datagrams to `each`; returns how many. `dst` is the address of the socket.
    pub(crate) fn take(&mut self, max: usize, dst: IpAddr, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut taken = 0;
        while taken < max && self.message < self.filled {
            if let Some(meta) = self.meta {
                let from = self.message * BUFFER + self.offset;
                let size = meta.segment.min(meta.length - self.offset);
                each(&Datagram {
                    src: meta.src,
                    src_port: meta.src_port,
                    dst,
                    traffic_class: meta.traffic_class,
                    hop_limit: meta.hop_limit,
                    flow_label: meta.flow_label,
                    ip_id: self.index,
                    bytes: &self.buffers[from..from + size],
                });
                taken += 1;
                self.index = self.index.wrapping_add(1);
                self.offset += size;
                if self.offset < meta.length {
                    continue;
                }
            }
            self.message += 1;
            self.begin();
        }
        taken
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} of {} messages taken, {} vectors)", self.message, self.filled, self.vectors.len())
    }
}

/// Walks control messages: level, type, data.
fn control_messages(mut bytes: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    std::iter::from_fn(move || {
        let int = |at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let length = usize::from_ne_bytes(bytes.get(..size_of::<usize>())?.try_into().ok()?);
        let (level, kind) = (int(size_of::<usize>())?, int(size_of::<usize>() + 4)?);
        let data = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or(&[]);
        Some((level, kind, data))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_block_that_lies_about_its_length_ends_the_walk() {
        assert_eq!(control_messages(&[]).count(), 0);
        assert_eq!(control_messages(&[0xff; 40]).count(), 0);
        assert_eq!(control_messages(&[0; 40]).count(), 0);
        let mut one = vec![0u8; 24];
        one[0] = 20;
        one[8] = 1;
        one[16] = 7;
        assert_eq!(control_messages(&one).collect::<Vec<_>>(), [(1, 0, &[7u8, 0, 0, 0][..])]);
    }
}
