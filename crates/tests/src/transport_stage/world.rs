//! The world of the bare transport: vectors for memory and queues, and [`Host`] over them for one QP at a time.

use std::collections::BTreeMap;

use scalefabric_transport::host::{AccessFault, LocalFault};
use scalefabric_transport::{
    AtomicOp, Counter, DropReason, EmitError, Host, Outgoing, Path, Payload, RecvWqe, RemoteAccess, SendWqe, Time,
};
use scalefabric_verbs::{
    AccessFlags, AddressVector, EventType, FlushLevel, FlushPlacement, Mtu, QpType, RKey, SendFlags, WcStatus,
    WorkCompletion,
};
use scalefabric_wire::packet::pad_count;
use scalefabric_wire::{Gid, PKey, Srqn};

use crate::stage::{Bind, Done, Packet, Piece, QpSpec, Subject};

pub(super) struct Node {
    pub(super) ports: Vec<Gid>,
    pub(super) pkeys: Vec<Vec<PKey>>,
    pub(super) counters: BTreeMap<&'static str, u64>,
}

pub(super) struct Region {
    pub(super) node: usize,
    pub(super) pd: u32,
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) access: AccessFlags,
    pub(super) valid: bool,
    pub(super) gone: bool,
}

pub(super) struct Window {
    pub(super) node: usize,
    pub(super) pd: u32,
    pub(super) rkey: u32,
    /// Region, QP, first byte, length, rights.
    pub(super) bound: Option<(usize, usize, u64, u64, AccessFlags)>,
}

#[derive(Default)]
pub(super) struct RecvQueue {
    pub(super) posted: std::collections::VecDeque<(u64, Vec<Piece>)>,
    pub(super) done: Vec<Done>,
}

pub(super) struct Srq {
    pub(super) node: usize,
    pub(super) pd: u32,
    pub(super) queue: RecvQueue,
}

/// A send WQE, and what the host keeps of it: its SGL, its inline bytes, its bind.
pub(super) type PostedSend = (SendWqe, Vec<Piece>, Vec<u8>, Option<Bind>);

pub(super) struct Queues {
    pub(super) spec: QpSpec,
    pub(super) sends: Vec<PostedSend>,
    pub(super) first_send: u32,
    pub(super) recv: RecvQueue,
    pub(super) done: Vec<Done>,
    pub(super) taken: BTreeMap<u32, (Vec<Piece>, Option<usize>)>,
    pub(super) next_slot: u32,
    pub(super) paths: [AddressVector; 2],
    pub(super) destroyed: bool,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) regions: Vec<Region>,
    pub(super) windows: Vec<Window>,
    pub(super) srqs: Vec<Srq>,
    pub(super) queues: Vec<Queues>,
    pub(super) events: Vec<(Subject, EventType)>,
    pub(super) sent: Vec<(usize, Packet)>,
}

/// The world as one QP sees it.
pub(super) struct View<'a> {
    pub(super) world: &'a mut World,
    pub(super) qp: usize,
}

impl View<'_> {
    fn queues(&mut self) -> &mut Queues {
        &mut self.world.queues[self.qp]
    }

    fn spec(&self) -> QpSpec {
        self.world.queues[self.qp].spec
    }

    fn local(&self, piece: &Piece, write: bool) -> Result<usize, LocalFault> {
        let spec = self.spec();
        let place = self.world.regions.iter().position(|r| r.node == spec.node && r.key == piece.lkey && r.valid);
        let place = place.ok_or(LocalFault::BadKey)?;
        let region = &self.world.regions[place];
        // A WQE of an XRC SRQ lives in the SRQ's PD; the QP itself has none.
        if spec.qp_type != QpType::XrcRecv && region.pd != spec.pd {
            return Err(LocalFault::WrongPd);
        }
        let end = piece.addr.checked_add(u64::from(piece.length)).ok_or(LocalFault::OutOfBounds)?;
        if piece.addr < region.addr || end > region.addr + region.bytes.len() as u64 {
            return Err(LocalFault::OutOfBounds);
        }
        if write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::NoLocalWrite);
        }
        if region.gone {
            return Err(LocalFault::Gone);
        }
        Ok(place)
    }

    pub(super) fn gather(&self, pieces: &[Piece], offset: u32, length: u32) -> Result<Vec<u8>, LocalFault> {
        let mut bytes = Vec::new();
        for piece in cut(pieces, offset, length) {
            let place = self.local(&piece, false)?;
            let region = &self.world.regions[place];
            let start = (piece.addr - region.addr) as usize;
            bytes.extend_from_slice(&region.bytes[start..start + piece.length as usize]);
        }
        assert_eq!(bytes.len(), length as usize, "the transport asked for bytes beyond the WQE's length");
        Ok(bytes)
    }

    fn scatter(&mut self, pieces: &[Piece], offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let mut rest = data;
        for piece in cut(pieces, offset, data.len() as u32) {
            let place = self.local(&piece, true)?;
            let region = &mut self.world.regions[place];
            let start = (piece.addr - region.addr) as usize;
            let (now, later) = rest.split_at(piece.length as usize);
            region.bytes[start..start + now.len()].copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty(), "the transport wrote beyond the WQE's length");
        Ok(())
    }

    /// The region and the place in it that a peer may touch.
    fn remote(&self, access: &RemoteAccess) -> Result<Option<(usize, usize)>, AccessFault> {
        if access.length == 0 {
            return Ok(None);
        }
        let spec = self.spec();
        let pd = match access.xrc_srqn {
            None => spec.pd,
            Some(srqn) => {
                let srq = self.world.srqs.get((srqn.get() as usize).wrapping_sub(1)).filter(|s| s.node == spec.node);
                srq.ok_or(AccessFault::WrongPd)?.pd
            }
        };
        let end = access.va.checked_add(access.length).ok_or(AccessFault::OutOfBounds)?;
        let key = access.rkey.0;
        let here = |r: &&Region| r.node == spec.node && r.key == key && r.valid;
        let (region, first, last, rights) = if let Some(region) = self.world.regions.iter().find(here) {
            if region.pd != pd {
                return Err(AccessFault::WrongPd);
            }
            (region, region.addr, region.addr + region.bytes.len() as u64, region.access)
        } else {
            let window = self.world.windows.iter().find(|w| w.node == spec.node && w.rkey == key && w.bound.is_some());
            let window = window.ok_or(AccessFault::BadKey)?;
            let (region, qp, addr, length, rights) = window.bound.ok_or(AccessFault::BadKey)?;
            if window.pd != pd {
                return Err(AccessFault::WrongPd);
            }
            if qp != self.qp {
                return Err(AccessFault::WrongQp);
            }
            (&self.world.regions[region], addr, addr + length, rights)
        };
        if access.va < first || end > last {
            return Err(AccessFault::OutOfBounds);
        }
        if !rights.contains(access.access) {
            return Err(AccessFault::NoRight);
        }
        if region.gone {
            return Err(AccessFault::Gone);
        }
        let place = self.world.regions.iter().position(|r| core::ptr::eq(r, region)).ok_or(AccessFault::BadKey)?;
        Ok(Some((place, (access.va - region.addr) as usize)))
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), ()> {
        let (node, qp) = (self.spec().node, self.qp);
        let window = self.world.windows.iter_mut().find(|w| w.node == node && w.rkey == rkey.0);
        match window {
            Some(window) if window.bound.is_some_and(|bound| bound.1 == qp) => {
                window.bound = None;
                Ok(())
            }
            _ => Err(()),
        }
    }
}

/// The pieces that cover `length` bytes from `offset`.
fn cut(pieces: &[Piece], offset: u32, length: u32) -> Vec<Piece> {
    let (mut at, end) = (0, offset + length);
    let mut out = Vec::new();
    for piece in pieces {
        let (from, to) = (offset.max(at), end.min(at + piece.length));
        if from < to {
            out.push(Piece { addr: piece.addr + u64::from(from - at), length: to - from, lkey: piece.lkey });
        }
        at += piece.length;
    }
    out
}

impl Host for View<'_> {
    fn now(&self) -> Time {
        Time(self.world.now)
    }

    fn send_wqe(&mut self, index: u32) -> Option<SendWqe> {
        let queues = self.queues();
        queues.sends.get(index.wrapping_sub(queues.first_send) as usize).map(|posted| posted.0)
    }

    fn retire_sends(&mut self, next: u32) {
        let queues = self.queues();
        let count = next.wrapping_sub(queues.first_send) as usize;
        queues.sends.drain(..count);
        queues.first_send = next;
    }

    fn complete_send(&mut self, wc: &WorkCompletion) {
        self.queues().done.push(Done { wc: *wc, solicited: None });
    }

    fn scatter_send(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let queues = self.queues();
        let pieces = queues.sends[index.wrapping_sub(queues.first_send) as usize].1.clone();
        self.scatter(&pieces, offset, data)
    }

    fn bind_mw(&mut self, index: u32) -> Result<(), WcStatus> {
        let qp = self.qp;
        let queues = self.queues();
        let bind = queues.sends[index.wrapping_sub(queues.first_send) as usize].3.ok_or(WcStatus::MwBindErr)?;
        let pd = queues.spec.pd;
        let world = &mut *self.world;
        let window = &mut world.windows[bind.window];
        let Some(place) = bind.region.filter(|_| bind.length > 0) else {
            window.bound = None;
            window.rkey = bind.rkey;
            return Ok(());
        };
        let region = &world.regions[place];
        let needs_write = bind.access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC);
        let end = bind.addr.checked_add(bind.length).ok_or(WcStatus::MwBindErr)?;
        let fits = bind.addr >= region.addr && end <= region.addr + region.bytes.len() as u64;
        let allowed = region.access.contains(AccessFlags::MW_BIND)
            && (!needs_write || region.access.contains(AccessFlags::LOCAL_WRITE));
        let same_key = window.rkey >> 8 == bind.rkey >> 8;
        if !region.valid
            || region.pd != pd
            || window.pd != pd
            || !fits
            || !allowed
            || !same_key
            || window.bound.is_some()
        {
            return Err(WcStatus::MwBindErr);
        }
        window.bound = Some((place, qp, bind.addr, bind.length, bind.access));
        window.rkey = bind.rkey;
        Ok(())
    }

    fn local_invalidate(&mut self, rkey: RKey) -> Result<(), WcStatus> {
        self.invalidate(rkey).map_err(|()| WcStatus::LocQpOpErr)
    }

    fn take_recv(&mut self, xrc_srqn: Option<Srqn>) -> Result<Option<RecvWqe>, AccessFault> {
        let spec = self.spec();
        let srq = match xrc_srqn {
            Some(srqn) => {
                let place = (srqn.get() as usize).wrapping_sub(1);
                let here = self.world.srqs.get(place).is_some_and(|s| s.node == spec.node);
                Some(here.then_some(place).ok_or(AccessFault::BadKey)?)
            }
            None => spec.srq,
        };
        let queue = match srq {
            Some(place) => &mut self.world.srqs[place].queue,
            None => &mut self.world.queues[self.qp].recv,
        };
        let Some((wr_id, pieces)) = queue.posted.pop_front() else { return Ok(None) };
        let length = pieces.iter().map(|p| p.length).sum();
        let queues = self.queues();
        let slot = queues.next_slot;
        queues.next_slot += 1;
        queues.taken.insert(slot, (pieces, srq));
        Ok(Some(RecvWqe { slot, wr_id, length, srq: srq.map(|place| Srqn::new(place as u32 + 1)) }))
    }

    fn scatter_recv(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let pieces = self.queues().taken[&wqe.slot].0.clone();
        self.scatter(&pieces, offset, data)
    }

    fn complete_recv(&mut self, wqe: &RecvWqe, wc: &WorkCompletion, solicited: bool) {
        let (_, srq) = self.queues().taken.remove(&wqe.slot).expect("a receive WQE completes once");
        let done = Done { wc: *wc, solicited: Some(solicited) };
        // An XRC target has no CQ of its own: its completions go to the SRQ's.
        match srq.filter(|_| self.spec().qp_type == QpType::XrcRecv) {
            Some(place) => self.world.srqs[place].queue.done.push(done),
            None => self.queues().recv.done.push(done),
        }
    }

    fn posted_recvs(&self) -> Option<u32> {
        let queues = &self.world.queues[self.qp];
        if queues.spec.srq.is_some() || queues.spec.qp_type == QpType::XrcRecv {
            return None;
        }
        Some(queues.recv.posted.len() as u32)
    }

    fn check_remote(&mut self, access: &RemoteAccess) -> Result<(), AccessFault> {
        self.remote(access).map(|_| ())
    }

    fn write_remote(&mut self, access: &RemoteAccess, data: &[u8]) -> Result<(), AccessFault> {
        assert_eq!(access.length, data.len() as u64);
        if let Some((place, at)) = self.remote(access)? {
            self.world.regions[place].bytes[at..at + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn atomic_remote(&mut self, access: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessFault> {
        assert!(access.va.is_multiple_of(8) && access.length == 8, "the responder checks alignment");
        let Some((place, at)) = self.remote(access)? else { return Ok(0) };
        let word = &mut self.world.regions[place].bytes[at..at + 8];
        let old = u64::from_le_bytes((&*word).try_into().expect("eight bytes"));
        let (new, answer) = match op {
            AtomicOp::CompareSwap { compare, swap } => (if old == compare { swap } else { old }, old),
            AtomicOp::FetchAdd { add } => (old.wrapping_add(add), old),
            AtomicOp::Write { value } => (value, 0),
        };
        word.copy_from_slice(&new.to_le_bytes());
        Ok(answer)
    }

    fn flush_remote(
        &mut self,
        access: &RemoteAccess,
        _placement: FlushPlacement,
        level: FlushLevel,
    ) -> Result<(), AccessFault> {
        if level == FlushLevel::MemoryRegion {
            let node = self.spec().node;
            let region = self.world.regions.iter().find(|r| r.node == node && r.key == access.rkey.0 && r.valid);
            let region = region.ok_or(AccessFault::BadKey)?;
            let whole = RemoteAccess { va: region.addr, length: region.bytes.len() as u64, ..*access };
            return self.remote(&whole).map(|_| ());
        }
        self.remote(access).map(|_| ())
    }

    fn invalidate_remote(&mut self, rkey: RKey, _xrc_srqn: Option<Srqn>) -> Result<(), AccessFault> {
        self.invalidate(rkey).map_err(|()| AccessFault::BadKey)
    }

    fn emit(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError> {
        let payload = match payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Wqe { index, offset, length } => {
                let queues = self.queues();
                let (wqe, pieces, inline, _) = &queues.sends[index.wrapping_sub(queues.first_send) as usize];
                if wqe.flags.contains(SendFlags::INLINE) {
                    inline[offset as usize..(offset + length) as usize].to_vec()
                } else {
                    let pieces = pieces.clone();
                    self.gather(&pieces, offset, length).map_err(EmitError::Local)?
                }
            }
            Payload::Remote(access) => match self.remote(&access).map_err(EmitError::Access)? {
                Some((place, at)) => self.world.regions[place].bytes[at..at + access.length as usize].to_vec(),
                None => Vec::new(),
            },
        };
        let av = match packet.path {
            Path::Primary => self.queues().paths[0],
            Path::Alternate => self.queues().paths[1],
            Path::Datagram(av) => av,
        };
        let src = self.gid(av.port_num, av.sgid_index);
        if src.is_zero() {
            self.drop_packet(DropReason::PortDown);
            return Ok(());
        }
        let mut headers = packet.headers;
        headers.bth.pad_count = pad_count(payload.len());
        let node = self.spec().node;
        let at = self.world.now;
        self.world.sent.push((
            node,
            Packet {
                headers,
                payload,
                src,
                dst: av.dgid,
                port_num: av.port_num,
                src_port: 0xc000,
                traffic_class: av.traffic_class,
                hop_limit: av.hop_limit,
                flow_label: av.flow_label,
                at,
            },
        ));
        Ok(())
    }

    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        let node = &self.world.nodes[self.spec().node];
        node.pkeys.get(usize::from(port_num).checked_sub(1)?)?.get(usize::from(index)).copied()
    }

    fn gid(&self, port_num: u8, index: u8) -> Gid {
        let node = &self.world.nodes[self.spec().node];
        let port = usize::from(port_num).checked_sub(1).and_then(|port| node.ports.get(port));
        port.copied().filter(|_| index == 0).unwrap_or_default()
    }

    fn active_mtu(&self, _port_num: u8) -> Mtu {
        Mtu::Mtu4096
    }

    fn paths_swapped(&mut self) {
        self.queues().paths.swap(0, 1);
    }

    fn event(&mut self, event: EventType) {
        self.world.events.push((Subject::Qp(self.qp), event));
    }

    fn count(&mut self, counter: Counter, n: u64) {
        let node = self.spec().node;
        *self.world.nodes[node].counters.entry(counter.label()).or_default() += n;
    }

    fn drop_packet(&mut self, reason: DropReason) {
        let node = self.spec().node;
        *self.world.nodes[node].counters.entry(reason.label()).or_default() += 1;
    }
}
