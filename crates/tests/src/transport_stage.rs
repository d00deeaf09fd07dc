//! The bare transport as a stage: every node is a few vectors, and each QP is `transport::QueuePair` over them.
//!
//! Its memory checks are a second, simple implementation of the rules that the NIC's memory table keeps, so that the two
//! check each other through the scripts.

use std::collections::BTreeMap;

use scalefabric_transport::host::{AccessFault, LocalFault};
use scalefabric_transport::{
    AtomicOp, Config, Counter, DropReason, EmitError, Host, Incoming, Next, Outgoing, Path, Payload, QueuePair,
    RecvWqe, RemoteAccess, SendWqe, Time, WqeOp,
};
use scalefabric_verbs::limit::{DeviceLimits, check_values};
use scalefabric_verbs::{
    AccessFlags, AddressVector, EventType, FlushLevel, FlushPlacement, Mtu, OpKind, QKey, QpAttr, QpAttrMask, QpState,
    QpType, RKey, SendFlags, VerbsError, WcStatus, WorkCompletion, op_allowed,
};
use scalefabric_wire::packet::pad_count;
use scalefabric_wire::{Gid, PKey, Qpn, Srqn};

use crate::script::Queue;
use crate::stage::{Bind, Done, Packet, Piece, PlainSend, QpSpec, RegionInfo, Stage, Subject, Target};

struct Node {
    ports: Vec<Gid>,
    pkeys: Vec<Vec<PKey>>,
    counters: BTreeMap<&'static str, u64>,
}

struct Region {
    node: usize,
    pd: u32,
    addr: u64,
    key: u32,
    bytes: Vec<u8>,
    access: AccessFlags,
    valid: bool,
    gone: bool,
}

struct Window {
    node: usize,
    pd: u32,
    rkey: u32,
    /// Region, QP, first byte, length, rights.
    bound: Option<(usize, usize, u64, u64, AccessFlags)>,
}

#[derive(Default)]
struct RecvQueue {
    posted: std::collections::VecDeque<(u64, Vec<Piece>)>,
    done: Vec<Done>,
}

struct Srq {
    node: usize,
    pd: u32,
    queue: RecvQueue,
}

/// A send WQE, and what the host keeps of it: its SGL, its inline bytes, its bind.
type PostedSend = (SendWqe, Vec<Piece>, Vec<u8>, Option<Bind>);

struct Queues {
    spec: QpSpec,
    sends: Vec<PostedSend>,
    first_send: u32,
    recv: RecvQueue,
    done: Vec<Done>,
    taken: BTreeMap<u32, (Vec<Piece>, Option<usize>)>,
    next_slot: u32,
    paths: [AddressVector; 2],
    destroyed: bool,
}

#[derive(Default)]
struct World {
    now: u64,
    nodes: Vec<Node>,
    regions: Vec<Region>,
    windows: Vec<Window>,
    srqs: Vec<Srq>,
    queues: Vec<Queues>,
    events: Vec<(Subject, EventType)>,
    sent: Vec<(usize, Packet)>,
}

/// The stage.
#[derive(Default)]
pub struct TransportStage {
    world: World,
    qps: Vec<QueuePair>,
    /// What the last transmit of each QP waits for.
    paced: Vec<Option<u64>>,
}

/// The world as one QP sees it.
struct View<'a> {
    world: &'a mut World,
    qp: usize,
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

    fn gather(&self, pieces: &[Piece], offset: u32, length: u32) -> Result<Vec<u8>, LocalFault> {
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

/// Limits of a node's device.
struct Limits<'a>(&'a Node);

impl DeviceLimits for Limits<'_> {
    fn port_count(&self) -> u8 {
        self.0.ports.len() as u8
    }
    fn active_mtu(&self, _port_num: u8) -> Mtu {
        Mtu::Mtu4096
    }
    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        self.0.pkeys.get(usize::from(port_num).checked_sub(1)?)?.get(usize::from(index)).copied()
    }
    fn gid(&self, port_num: u8, index: u8) -> Option<Gid> {
        self.0.ports.get(usize::from(port_num).checked_sub(1)?).copied().filter(|_| index == 0)
    }
    fn max_qp_rd_atom(&self) -> u32 {
        128
    }
    fn max_qp_init_rd_atom(&self) -> u32 {
        128
    }
}

impl TransportStage {
    fn with<R>(&mut self, qp: usize, act: impl FnOnce(&mut QueuePair, &mut View<'_>) -> R) -> R {
        act(&mut self.qps[qp], &mut View { world: &mut self.world, qp })
    }

    fn next_key(&self) -> u32 {
        ((self.world.regions.len() + self.world.windows.len()) as u32 + 1) << 12
    }
}

impl Stage for TransportStage {
    fn name(&self) -> &'static str {
        "transport"
    }

    fn add_node(&mut self, ports: &[Gid], pkeys: &[PKey], _config: &Config) -> usize {
        self.world.nodes.push(Node {
            ports: ports.to_vec(),
            pkeys: vec![pkeys.to_vec(); ports.len()],
            counters: BTreeMap::new(),
        });
        self.world.nodes.len() - 1
    }

    fn add_region(&mut self, node: usize, pd: u32, bytes: &[u8], access: AccessFlags) -> Result<usize, String> {
        access.check_mr().map_err(|e| e.to_string())?;
        let key = self.next_key();
        let addr = 0x10_0000 * (self.world.regions.len() as u64 + 1);
        let bytes = bytes.to_vec();
        self.world.regions.push(Region { node, pd, addr, key, bytes, access, valid: true, gone: false });
        Ok(self.world.regions.len() - 1)
    }

    fn region(&self, region: usize) -> RegionInfo {
        let r = &self.world.regions[region];
        RegionInfo { addr: r.addr, len: r.bytes.len() as u64, lkey: r.key, rkey: r.key }
    }

    fn read(&self, region: usize, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        let bytes = &self.world.regions[region].bytes;
        let start = offset as usize;
        bytes.get(start..start + length).map(<[u8]>::to_vec).ok_or_else(|| "beyond the region".to_string())
    }

    fn gone(&mut self, region: usize) -> Result<(), String> {
        self.world.regions[region].gone = true;
        Ok(())
    }

    fn dereg(&mut self, region: usize) -> Result<(), String> {
        if self.world.windows.iter().any(|w| w.bound.is_some_and(|bound| bound.0 == region)) {
            return Err("EBUSY: a window is bound".into());
        }
        self.world.regions[region].valid = false;
        Ok(())
    }

    fn add_window(&mut self, node: usize, pd: u32) -> Result<usize, String> {
        let rkey = self.next_key();
        self.world.windows.push(Window { node, pd, rkey, bound: None });
        Ok(self.world.windows.len() - 1)
    }

    fn window_rkey(&self, window: usize, tag: u8) -> u32 {
        self.world.windows[window].rkey & !0xff | u32::from(tag)
    }

    fn add_srq(&mut self, node: usize, pd: u32, _xrc: bool, limit: u32) -> Result<usize, String> {
        if limit != 0 {
            return Err("the limit event is the NIC's work: run this script on the engine only".into());
        }
        self.world.srqs.push(Srq { node, pd, queue: RecvQueue::default() });
        Ok(self.world.srqs.len() - 1)
    }

    fn srqn(&self, srq: usize) -> Srqn {
        Srqn::new(srq as u32 + 1)
    }

    fn arm(&mut self, _srq: usize, _limit: u32) -> Result<(), String> {
        Err("the limit event is the NIC's work: run this script on the engine only".into())
    }

    fn add_qp(&mut self, spec: &QpSpec) -> Result<usize, String> {
        let number = self.qps.len();
        self.qps.push(QueuePair::new(spec.qp_type, Qpn::new(0x11 + number as u32), spec.config));
        self.paced.push(None);
        let none = AddressVector::default();
        self.world.queues.push(Queues {
            spec: *spec,
            sends: Vec::new(),
            first_send: 0,
            recv: RecvQueue::default(),
            done: Vec::new(),
            taken: BTreeMap::new(),
            next_slot: 0,
            paths: [none; 2],
            destroyed: false,
        });
        Ok(number)
    }

    fn qpn(&self, qp: usize) -> Qpn {
        self.qps[qp].qpn()
    }

    fn modify(&mut self, qp: usize, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let spec = self.world.queues[qp].spec;
        let current = self.qps[qp].query();
        // The order of the NIC: the table first (in the transport), values after; all or nothing.
        scalefabric_verbs::check_modify(spec.qp_type, self.qps[qp].state(), attr, mask)?;
        check_values(spec.qp_type, &current, attr, mask, &Limits(&self.world.nodes[spec.node]))?;
        self.with(qp, |qp, view| qp.modify(view, attr, mask))?;
        let now = self.qps[qp].query();
        let queues = &mut self.world.queues[qp];
        if mask.contains(QpAttrMask::AV) {
            queues.paths[0] = now.ah_attr;
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            queues.paths[1] = now.alt_ah_attr;
        }
        if now.qp_state == QpState::Reset {
            queues.recv.posted.clear();
            queues.sends.clear();
            queues.first_send = 0;
        }
        Ok(())
    }

    fn query(&self, qp: usize) -> QpAttr {
        self.qps[qp].query()
    }

    fn destroy(&mut self, qp: usize) -> Result<(), String> {
        self.world.queues[qp].destroyed = true;
        Ok(())
    }

    fn post_send(&mut self, qp: usize, wr: &PlainSend) -> Result<(), String> {
        let state = self.qps[qp].state();
        let queues = &mut self.world.queues[qp];
        if !state.post_send_allowed() {
            return Err(format!("EINVAL: post_send in {state}"));
        }
        if !op_allowed(queues.spec.qp_type, wr.kind) {
            return Err(format!("EINVAL: a {} QP has no {}", queues.spec.qp_type, wr.kind.as_str()));
        }
        let mut flags = wr.flags;
        if queues.spec.sig_all {
            flags |= SendFlags::SIGNALED;
        }
        let index = queues.first_send.wrapping_add(queues.sends.len() as u32);
        let wqe = SendWqe {
            index,
            wr_id: wr.wr,
            op: operation(wr),
            flags,
            length: wr.pieces.iter().map(|p| p.length).sum(),
            ud: wr.ud.map(|(dgid, qpn, qkey)| (AddressVector { dgid, ..AddressVector::default() }, qpn, QKey(qkey))),
            xrc_srqn: wr.srqn,
        };
        let inline = if flags.contains(SendFlags::INLINE) {
            let view = View { world: &mut self.world, qp };
            view.gather(&wr.pieces, 0, wqe.length).map_err(|fault| format!("EFAULT: {fault:?}"))?
        } else {
            Vec::new()
        };
        self.world.queues[qp].sends.push((wqe, wr.pieces.clone(), inline, wr.bind));
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.with(qp, |qp, view| qp.flush(view));
        }
        Ok(())
    }

    fn post_recv(&mut self, target: Target, wr: u64, pieces: &[Piece]) -> Result<(), String> {
        match target {
            Target::Srq(srq) => self.world.srqs[srq].queue.posted.push_back((wr, pieces.to_vec())),
            Target::Qp(qp) => {
                let state = self.qps[qp].state();
                if !state.post_recv_allowed() {
                    return Err(format!("EINVAL: post_recv in {state}"));
                }
                if self.world.queues[qp].spec.srq.is_some() || !self.qps[qp].qp_type().has_recv_queue() {
                    return Err("EINVAL: this QP has no receive queue of its own".into());
                }
                self.world.queues[qp].recv.posted.push_back((wr, pieces.to_vec()));
                if state == QpState::Err {
                    self.with(qp, |qp, view| qp.flush(view));
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, out: &mut Vec<(usize, Packet)>) {
        for qp in 0..self.qps.len() {
            if self.world.queues[qp].destroyed {
                continue;
            }
            self.paced[qp] = loop {
                match self.with(qp, |qp, view| qp.transmit(view, 16)) {
                    Next::Ready => {}
                    Next::At(time) => break Some(time.0),
                    Next::Idle | Next::Blocked => break None,
                }
            };
        }
        out.append(&mut self.world.sent);
    }

    fn deliver(&mut self, node: usize, packets: &[Packet]) {
        let mut touched = Vec::new();
        for packet in packets {
            let qpn = packet.headers.bth.dest_qp;
            let place = (0..self.qps.len()).find(|&qp| {
                let queues = &self.world.queues[qp];
                queues.spec.node == node && self.qps[qp].qpn() == qpn && !queues.destroyed
            });
            let Some(qp) = place else {
                *self.world.nodes[node].counters.entry(DropReason::NoSuchQp.label()).or_default() += 1;
                continue;
            };
            let incoming = Incoming {
                headers: &packet.headers,
                payload: &packet.payload,
                port_num: packet.port_num,
                src: packet.src,
                dst: packet.dst,
                src_port: packet.src_port,
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
            };
            self.with(qp, |qp, view| qp.receive(view, &incoming));
            touched.push(qp);
        }
        touched.dedup();
        for qp in touched {
            self.with(qp, |qp, view| qp.end_of_batch(view));
        }
    }

    fn now(&self) -> u64 {
        self.world.now
    }

    fn next_deadline(&mut self) -> Option<u64> {
        let timers =
            self.qps.iter().zip(&self.world.queues).filter(|(_, q)| !q.destroyed).filter_map(|(qp, _)| qp.deadline());
        timers.map(|t| t.0).chain(self.paced.iter().flatten().copied()).min()
    }

    fn set_now(&mut self, ns: u64) {
        self.world.now = ns;
        for qp in 0..self.qps.len() {
            if !self.world.queues[qp].destroyed && self.qps[qp].deadline().is_some_and(|t| t.0 <= ns) {
                self.with(qp, |qp, view| qp.on_timer(view));
            }
        }
    }

    fn poll(&mut self, target: Target, queue: Queue) -> Vec<Done> {
        let done = match (target, queue) {
            (Target::Qp(qp), Queue::Send) => &mut self.world.queues[qp].done,
            (Target::Qp(qp), Queue::Recv) => &mut self.world.queues[qp].recv.done,
            (Target::Srq(srq), _) => &mut self.world.srqs[srq].queue.done,
        };
        std::mem::take(done)
    }

    fn events(&mut self) -> Vec<(Subject, EventType)> {
        std::mem::take(&mut self.world.events)
    }

    fn counter(&self, node: usize, label: &str) -> u64 {
        self.world.nodes[node].counters.get(label).copied().unwrap_or(0)
    }

    fn set_pkey(&mut self, node: usize, port: u8, index: u16, value: PKey) {
        let table = &mut self.world.nodes[node].pkeys[usize::from(port) - 1];
        table[usize::from(index)] = value;
        self.world.events.push((Subject::Node(node), EventType::PkeyChange));
    }

    fn change_port(&mut self, _node: usize, _port: u8, _change: &str) -> Result<(), String> {
        Err("ports are the NIC's work: run this script on the engine only".into())
    }

    fn fail(&mut self, qp: usize, status: WcStatus) -> Result<(), String> {
        self.with(qp, |qp, view| qp.fail(view, status));
        Ok(())
    }

    fn fail_device(&mut self, _node: usize) -> Result<(), String> {
        Err("a device is the NIC's work: run this script on the engine only".into())
    }

    fn attach(&mut self, _qp: usize, _group: Gid) -> Result<(), String> {
        Err("groups are the NIC's work: run this script on the engine only".into())
    }

    fn detach(&mut self, _qp: usize, _group: Gid) -> Result<(), String> {
        Err("groups are the NIC's work: run this script on the engine only".into())
    }

    fn members(&self, _group: Gid) -> Vec<usize> {
        Vec::new()
    }
}

/// The WQE's operation.
fn operation(wr: &PlainSend) -> WqeOp {
    let (remote_addr, rkey) = (wr.remote_addr, RKey(wr.rkey));
    match wr.kind {
        OpKind::Send => WqeOp::Send,
        OpKind::SendWithImm => WqeOp::SendWithImm { imm: wr.imm },
        OpKind::SendWithInv => WqeOp::SendWithInv { invalidate_rkey: RKey(wr.inv) },
        OpKind::Write => WqeOp::Write { remote_addr, rkey },
        OpKind::WriteWithImm => WqeOp::WriteWithImm { remote_addr, rkey, imm: wr.imm },
        OpKind::Read => WqeOp::Read { remote_addr, rkey },
        OpKind::CompareSwap => WqeOp::CompareSwap { remote_addr, rkey, compare: wr.compare, swap: wr.swap },
        OpKind::FetchAdd => WqeOp::FetchAdd { remote_addr, rkey, add: wr.add },
        OpKind::LocalInv => WqeOp::LocalInv { rkey: RKey(wr.inv) },
        OpKind::BindMw => WqeOp::BindMw,
        OpKind::Flush => WqeOp::Flush {
            remote_addr,
            rkey,
            length: wr.length,
            placement: placement(wr.placement),
            level: if wr.whole_region { FlushLevel::MemoryRegion } else { FlushLevel::Range },
        },
        OpKind::AtomicWrite => WqeOp::AtomicWrite { remote_addr, rkey },
    }
}

/// FLUSH placement of its bits.
pub fn placement(bits: u8) -> FlushPlacement {
    match bits & 3 {
        2 => FlushPlacement::Persistent,
        3 => FlushPlacement::GlobalAndPersistent,
        _ => FlushPlacement::Global,
    }
}
