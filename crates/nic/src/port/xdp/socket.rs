//! An AF_XDP socket with its memory: frames of one page in which packets lie, and four rings over which they change hands with the kernel
//! (Documentation/networking/af_xdp.rst). A frame belongs to one side at a time: those that were given to the fill ring or the send ring are
//! the kernel's until they come back by the receive ring or the completion ring. Nothing is known here of what is in a packet.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use super::ring::{Mapping, Ring, Which};
use crate::port::udp::socket::set;
use crate::process::Descriptor;

/// Bytes of a frame: a page, which is the most that the kernel takes everywhere.
pub(super) const FRAME: usize = 4096;
/// Frames for packets that come in, and places in their rings.
const RECEIVE: u32 = 4096;
/// Frames for packets that leave, and places in their rings.
const SEND: u32 = 2048;
/// Packets of at most so many bytes come in one frame: the kernel keeps room before them.
const RECEIVE_ROOM: usize = FRAME - 256;
/// Bytes of the largest packet: those of one that takes 17 pages, the kernel's limit, would be more than any interface's.
pub(super) const LARGEST: usize = 3 * FRAME;

const RX: Which = Which { option: libc::XDP_RX_RING, page: libc::XDP_PGOFF_RX_RING };
const TX: Which = Which { option: libc::XDP_TX_RING, page: libc::XDP_PGOFF_TX_RING };
const FILL: Which = Which { option: libc::XDP_UMEM_FILL_RING, page: libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t };
const DONE: Which =
    Which { option: libc::XDP_UMEM_COMPLETION_RING, page: libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t };

/// A socket on one queue of an interface.
#[derive(Debug)]
pub(super) struct Xsk {
    fd: Arc<Descriptor>,
    fill: Ring<u64>,
    done: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    /// Frames for sending that are ours.
    free: Vec<u64>,
    /// What came in several frames is put together here.
    whole: Vec<u8>,
    memory: Mapping,
    several: bool,
}

// SAFETY: what the mapping's pointer leads to belongs to this value alone, and is not bound to a thread.
unsafe impl Send for Xsk {}

impl Xsk {
    /// Opens a socket on a queue. `several`: packets may take several frames, which kernels before 6.6 refuse (EINVAL); so is a queue that
    /// the interface does not have.
    pub(super) fn open(ifindex: u32, queue: u32, several: bool) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain system call.
        let fd = Descriptor::make(|| unsafe { libc::socket(libc::AF_XDP, kind, 0) })?;
        let raw = fd.as_raw_fd();
        let memory = Mapping::new((RECEIVE + SEND) as usize * FRAME, None)?;
        let registration = libc::xdp_umem_reg_v1 {
            addr: memory.at().as_ptr() as u64,
            len: memory.bytes() as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
        };
        set(raw, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)?;
        for (which, size) in [(FILL, RECEIVE), (RX, RECEIVE), (DONE, SEND), (TX, SEND)] {
            set(raw, libc::SOL_XDP, which.option, &size)?;
        }
        let offsets: libc::xdp_mmap_offsets = get(raw, libc::XDP_MMAP_OFFSETS)?;
        let mut socket = Self {
            fill: Ring::map(&fd, FILL, RECEIVE, &offsets.fr)?,
            done: Ring::map(&fd, DONE, SEND, &offsets.cr)?,
            rx: Ring::map(&fd, RX, RECEIVE, &offsets.rx)?,
            tx: Ring::map(&fd, TX, SEND, &offsets.tx)?,
            free: (RECEIVE..RECEIVE + SEND).map(frame).rev().collect(),
            whole: Vec::with_capacity(LARGEST),
            memory,
            several,
            fd: Arc::new(fd),
        };
        (0..RECEIVE).for_each(|n| socket.fill.put(frame(n)));
        socket.fill.publish();
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP | if several { libc::XDP_USE_SG } else { 0 },
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address is valid for its length.
        let bound = unsafe { libc::bind(raw, (&raw const address).cast(), size_of_val(&address) as u32) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    /// The socket itself: to wait for, to be pointed at by a program, and for its statistics.
    pub(super) fn fd(&self) -> &Arc<Descriptor> {
        &self.fd
    }

    /// Bytes of the largest packet, Ethernet header included, that comes in and leaves.
    pub(super) fn largest(&self) -> usize {
        if self.several { LARGEST } else { RECEIVE_ROOM }
    }

    /// Gives at most `max` packets to `each`; returns how many. Makes a system call only where the driver asks for it. A packet is the
    /// kernel's again when `each` returns.
    pub(super) fn receive(&mut self, max: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut waiting = self.rx.waiting();
        if waiting == 0 {
            return 0;
        }
        let (mut taken, mut frames) = (0, 0);
        while waiting > 0 && taken < max {
            waiting -= 1;
            let part = self.rx.take();
            let last = part.options & libc::XDP_PKT_CONTD == 0;
            // SAFETY: the frame came by the receive ring and is ours until it goes to the fill ring, below; nothing else reads or writes it.
            let bytes = unsafe { self.memory.bytes_at(part.addr, part.len) };
            if last && self.whole.is_empty() {
                each(bytes);
                taken += 1;
            } else {
                self.whole.extend_from_slice(bytes);
                if last {
                    each(&self.whole);
                    self.whole.clear();
                    taken += 1;
                }
            }
            // There is room: the ring has as many places as there are frames for it.
            self.fill.put(part.addr & !(FRAME as u64 - 1));
            frames += 1;
        }
        if frames > 0 {
            self.rx.release();
            self.fill.publish();
            if self.fill.needs_wakeup() {
                // SAFETY: nothing is written: there is no buffer.
                unsafe { libc::recv(self.fd.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
            }
        }
        taken
    }

    /// Frames that a packet takes.
    pub(super) const fn frames(bytes: usize) -> usize {
        bytes.div_ceil(FRAME)
    }

    /// Whether there is room for so many frames.
    pub(super) fn has_room(&mut self, frames: usize) -> bool {
        if self.free.len() < frames {
            for _ in 0..self.done.waiting() {
                self.free.push(self.done.take() & !(FRAME as u64 - 1));
            }
            self.done.release();
        }
        self.free.len() >= frames && self.tx.room() as usize >= frames
    }

    /// Puts a packet, of two parts, into the send ring. There must be room. It leaves with the next [`Xsk::kick`].
    pub(super) fn put(&mut self, head: &[u8], body: &[u8]) {
        let total = head.len() + body.len();
        let (mut done, mut body) = (0, body);
        while done < total {
            let Some(at) = self.free.pop() else { return };
            let len = (total - done).min(FRAME);
            // SAFETY: the frame is one of those for sending and was among the free ones: ours, until it is put into the ring.
            let place = unsafe { self.memory.bytes_at_mut(at, len as u32) };
            let first = if done == 0 { head.len() } else { 0 };
            let (part, rest) = body.split_at(len - first);
            place[..first].copy_from_slice(&head[..first]);
            place[first..].copy_from_slice(part);
            body = rest;
            done += len;
            let options = if done < total { libc::XDP_PKT_CONTD } else { 0 };
            self.tx.put(libc::xdp_desc { addr: at, len: len as u32, options });
        }
    }

    /// Packets that were put and not taken by the kernel, in frames.
    pub(super) fn unsent(&self) -> u32 {
        self.tx.unseen()
    }

    /// Lets everything leave. False: the kernel has no room now.
    pub(super) fn kick(&mut self) -> bool {
        self.tx.publish();
        let mut unsent = self.tx.unseen();
        while unsent > 0 {
            if !self.tx.needs_wakeup() {
                // The driver takes them by itself.
                return true;
            }
            // SAFETY: nothing is read: there is no buffer.
            unsafe {
                libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0);
            }
            // A call sends some tens of packets, so there may be more to do; one that sends none says that it cannot.
            let left = self.tx.unseen();
            if left == unsent {
                return false;
            }
            unsent = left;
        }
        true
    }
}

/// Where frame `n` lies.
fn frame(n: u32) -> u64 {
    u64::from(n) * FRAME as u64
}

impl Mapping {
    /// # Safety
    /// Nobody writes to these bytes while they are looked at.
    unsafe fn bytes_at(&self, at: u64, len: u32) -> &[u8] {
        let Some(at) = self.inside(at, len) else { return &[] };
        // SAFETY: within the mapping, and as the caller promises.
        unsafe { std::slice::from_raw_parts(self.at().as_ptr().add(at), len as usize) }
    }

    /// # Safety
    /// Nobody else reads or writes these bytes.
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes_at_mut(&self, at: u64, len: u32) -> &mut [u8] {
        let Some(at) = self.inside(at, len) else { return &mut [] };
        // SAFETY: within the mapping, and as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.at().as_ptr().add(at), len as usize) }
    }

    fn inside(&self, at: u64, len: u32) -> Option<usize> {
        let end = at.checked_add(u64::from(len))?;
        (end <= self.bytes() as u64).then_some(at as usize)
    }
}

fn get<T>(fd: RawFd, name: libc::c_int) -> io::Result<T> {
    // SAFETY: the structs that are asked for here are plain integers, for which all-zero is valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as u32;
    // SAFETY: value and length are writable.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, (&raw mut value).cast(), &raw mut len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Packets that a socket has lost: no frame to put them in, no place in the ring, or too long.
pub(super) fn lost(fd: &Descriptor) -> u64 {
    get::<libc::xdp_statistics>(fd.as_raw_fd(), libc::XDP_STATISTICS)
        .map_or(0, |s| s.rx_dropped + s.rx_ring_full + s.rx_invalid_descs)
}

/// Whether the driver reads and writes the frames itself.
pub(super) fn is_zero_copy(fd: &Descriptor) -> bool {
    get::<libc::xdp_options>(fd.as_raw_fd(), libc::XDP_OPTIONS).is_ok_and(|o| o.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}
