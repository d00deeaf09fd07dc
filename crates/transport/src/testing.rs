//! A world of plain vectors for tests: [`TestHost`] implements [`Host`] over them, and [`Link`] lets two QPs talk
//! packet by packet in virtual time, with whatever loss a test wants.
//!
//! It checks what it is told as strictly as a NIC (keys, bounds, rights), because tests are about exactly that. It is
//! behind the feature `testing` and no product code uses it.

mod link;

pub use link::{Fate, Link, Side, attributes};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{
    AccessFlags, AddressVector, FlushLevel, FlushPlacement, Mtu, QKey, QpAttr, Qpn, RKey, SendFlags, Srqn, WcStatus,
    WorkCompletion,
};
use scalefabric_wire::packet::Headers;
use scalefabric_wire::{Gid, PKey};

use crate::congestion::Hop;
use crate::congestion::int::{self, Trailer};
use crate::counter::{Counter, DropReason};
use crate::host::{
    AccessFault, AtomicOp, Direct, EmitError, Host, Incoming, LocalFault, Outgoing, Path, Payload, PlainWrite, RecvWqe,
    RemoteAccess, Run, SendWqe, WqeOp,
};
use crate::time::Time;

/// A packet on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet {
    pub headers: Headers,
    pub payload: Vec<u8>,
    /// Port it left by; it arrives at the same number.
    pub port_num: u8,
    pub src: Gid,
    pub dst: Gid,
    pub traffic_class: u8,
    /// The sender says that it reads telemetry trailers.
    pub reads_telemetry: bool,
    /// Its telemetry trailer.
    pub trailer: Option<Trailer>,
}

impl Packet {
    /// As the QP sees it.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming {
            headers: &self.headers,
            payload: &self.payload,
            port_num: self.port_num,
            src: self.src,
            dst: self.dst,
            src_port: 0xc000,
            traffic_class: self.traffic_class,
            hop_limit: 64,
            flow_label: 0,
            reads_telemetry: self.reads_telemetry,
            trailer: self.trailer.as_ref(),
        }
    }
}

/// A range of [`TestHost::memory`] with a key, which is its lkey and its rkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Region {
    pub key: u32,
    pub addr: u64,
    pub length: u64,
    pub access: AccessFlags,
    /// The memory went away (D10): every access to it fails with `Gone`.
    pub gone: bool,
}

/// A piece of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Piece {
    pub addr: u64,
    pub length: u32,
    pub key: u32,
}

#[derive(Clone, Debug)]
struct PostedSend {
    wqe: SendWqe,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
struct PostedRecv {
    wr_id: u64,
    pieces: Vec<Piece>,
}

/// A receive completion and whether it was solicited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Received {
    pub wc: WorkCompletion,
    pub solicited: bool,
}

/// The world of one QP.
#[derive(Debug)]
pub struct TestHost {
    /// The time of this turn.
    pub now: Time,
    /// Memory; addresses are indexes.
    pub memory: Vec<u8>,
    /// What of it has a key.
    pub regions: Vec<Region>,
    /// Send completions so far.
    pub sent: Vec<WorkCompletion>,
    /// Receive completions so far.
    pub received: Vec<Received>,
    /// Asynchronous events so far.
    pub events: Vec<EventType>,
    /// Packets sent and not yet taken away.
    pub wire: VecDeque<Packet>,
    /// Packets for which the wire has room; `usize::MAX` for no limit.
    pub room: usize,
    /// P_Key tables, by port (0 is port 1).
    pub pkeys: [Vec<PKey>; 2],
    /// GID tables, by port.
    pub gids: [Vec<Gid>; 2],
    /// What `Path::Primary` and `Path::Alternate` mean.
    pub paths: [Option<AddressVector>; 2],
    /// Active MTU of both ports.
    pub mtu: Mtu,
    /// What becomes of the next one-sided requests that the host is asked to execute itself; then packets go.
    pub direct: VecDeque<Direct>,
    /// Whether it would execute more of them if nothing were under way.
    pub could_execute: bool,
    /// For which WQE it was asked, and from which byte on.
    pub asked: Vec<(u64, u32)>,
    /// Whoever asks for a plain WRITE finds none: WQEs are taken one by one.
    pub hides_plain_writes: bool,
    /// Packets that [`Host::emit_run`] takes, at most.
    pub run_room: usize,
    /// It leaves the last packet of each run out, as if its memory had gone.
    pub cuts_runs: bool,
    /// Receives come from an SRQ (its `take_recv` is the same; `posted_recvs` tells nothing).
    pub has_srq: bool,
    /// How a BIND_MW ends.
    pub bind_result: Result<(), WcStatus>,
    /// Rkeys that were invalidated, by either side.
    pub invalidated: Vec<RKey>,
    /// Ranges that were flushed.
    pub flushed: Vec<RemoteAccess>,
    /// What the switch behind this host writes on packets with room for telemetry.
    pub hop: Option<Hop>,
    /// Ring space given back: the next WQE index that is still in use.
    pub retired: u32,
    /// What `retired` was when each send completion was placed.
    pub retired_at_completion: Vec<u32>,
    sends: VecDeque<PostedSend>,
    next_send: u32,
    recvs: VecDeque<PostedRecv>,
    xrc_recvs: BTreeMap<Srqn, VecDeque<PostedRecv>>,
    taken: BTreeMap<u32, PostedRecv>,
    next_slot: u32,
    counters: BTreeMap<&'static str, u64>,
}

/// Key of the region that covers all of a new host's memory with every right.
pub const WHOLE: u32 = 0x1111;

impl TestHost {
    /// A host with `bytes` of memory and addresses made from `number`.
    pub fn new(number: u8, bytes: usize) -> Self {
        let gid = |port: u8| Gid::from_ip(core::net::IpAddr::from([10, 0, port, number]));
        Self {
            now: Time(0),
            memory: vec![0; bytes],
            regions: vec![Region {
                key: WHOLE,
                addr: 0,
                length: bytes as u64,
                access: AccessFlags::REMOTE | AccessFlags::LOCAL_WRITE,
                gone: false,
            }],
            sent: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            wire: VecDeque::new(),
            room: usize::MAX,
            pkeys: [vec![PKey::DEFAULT], vec![PKey::DEFAULT]],
            gids: [vec![gid(1)], vec![gid(2)]],
            paths: [None; 2],
            mtu: Mtu::Mtu1024,
            direct: VecDeque::new(),
            could_execute: false,
            asked: Vec::new(),
            hides_plain_writes: false,
            run_room: 15,
            cuts_runs: false,
            has_srq: false,
            bind_result: Ok(()),
            invalidated: Vec::new(),
            flushed: Vec::new(),
            hop: None,
            retired: 0,
            retired_at_completion: Vec::new(),
            sends: VecDeque::new(),
            next_send: 0,
            recvs: VecDeque::new(),
            xrc_recvs: BTreeMap::new(),
            taken: BTreeMap::new(),
            next_slot: 0,
            counters: BTreeMap::new(),
        }
    }

    /// The address vector that leads to this host's port.
    pub fn address(&self, port_num: u8) -> AddressVector {
        AddressVector {
            dgid: self.gids[usize::from(port_num) - 1][0],
            sgid_index: 0,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            static_rate: 0,
            port_num,
        }
    }

    /// Posts a send WR; returns its WQE index. `length` is the pieces' sum.
    pub fn post_send(&mut self, wr_id: u64, op: WqeOp, flags: SendFlags, pieces: &[Piece]) -> u32 {
        self.post_wqe(
            SendWqe {
                index: 0,
                wr_id,
                op,
                flags,
                length: pieces.iter().map(|p| p.length).sum(),
                ud: None,
                xrc_srqn: None,
            },
            pieces,
        )
    }

    /// Posts a datagram SEND.
    pub fn post_datagram(&mut self, wr_id: u64, op: WqeOp, pieces: &[Piece], to: (AddressVector, Qpn, QKey)) -> u32 {
        let index = self.post_send(wr_id, op, SendFlags::SIGNALED, pieces);
        self.sends.back_mut().expect("just posted").wqe.ud = Some(to);
        index
    }

    /// Posts an XRC request.
    pub fn post_xrc(&mut self, wr_id: u64, op: WqeOp, pieces: &[Piece], srqn: Srqn) -> u32 {
        let index = self.post_send(wr_id, op, SendFlags::SIGNALED, pieces);
        self.sends.back_mut().expect("just posted").wqe.xrc_srqn = Some(srqn);
        index
    }

    /// Posts a WQE as it is, but for its index.
    pub fn post_wqe(&mut self, mut wqe: SendWqe, pieces: &[Piece]) -> u32 {
        wqe.index = self.next_send;
        self.next_send = self.next_send.wrapping_add(1);
        self.sends.push_back(PostedSend { wqe, pieces: pieces.to_vec() });
        wqe.index
    }

    /// Lets the WQE indexes start elsewhere, to see them wrap. Before the first post, and before the QP leaves RESET.
    pub fn start_sends_at(&mut self, index: u32) {
        self.next_send = index;
        self.retired = index;
    }

    /// Posts a receive WR.
    pub fn post_recv(&mut self, wr_id: u64, pieces: &[Piece]) {
        self.recvs.push_back(PostedRecv { wr_id, pieces: pieces.to_vec() });
    }

    /// Posts a receive WR to an XRC SRQ, which it makes.
    pub fn post_srq_recv(&mut self, srqn: Srqn, wr_id: u64, pieces: &[Piece]) {
        self.xrc_recvs.entry(srqn).or_default().push_back(PostedRecv { wr_id, pieces: pieces.to_vec() });
    }

    /// Receive WRs posted and not taken.
    pub fn recvs_left(&self) -> usize {
        self.recvs.len()
    }

    /// Send WQEs posted and not retired.
    pub fn sends_left(&self) -> usize {
        self.sends.len()
    }

    /// A counter's value.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter.label()).copied().unwrap_or(0)
    }

    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.get(reason.label()).copied().unwrap_or(0)
    }

    /// Takes the next packet off the wire.
    pub fn take_packet(&mut self) -> Option<Packet> {
        self.wire.pop_front()
    }

    fn local(&self, piece: &Piece, write: bool) -> Result<(), LocalFault> {
        let region = self.regions.iter().find(|r| r.key == piece.key).ok_or(LocalFault::BadKey)?;
        if region.gone {
            return Err(LocalFault::Gone);
        }
        if piece.addr < region.addr || piece.addr + u64::from(piece.length) > region.addr + region.length {
            return Err(LocalFault::OutOfBounds);
        }
        if write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::NoLocalWrite);
        }
        Ok(())
    }

    fn gather(&self, pieces: &[Piece], offset: u32, length: u32, inline: bool) -> Result<Vec<u8>, LocalFault> {
        let mut out = Vec::new();
        let mut at = 0;
        for piece in pieces {
            let (from, to) = (offset.max(at), (offset + length).min(at + piece.length));
            if from < to {
                if !inline {
                    self.local(piece, false)?;
                }
                let start = (piece.addr + u64::from(from - at)) as usize;
                let end = start + (to - from) as usize;
                out.extend_from_slice(self.memory.get(start..end).ok_or(LocalFault::OutOfBounds)?);
            }
            at += piece.length;
        }
        assert_eq!(out.len(), length as usize, "the transport asked for bytes beyond the WQE's length");
        Ok(out)
    }

    fn scatter(&mut self, pieces: &[Piece], offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let end = offset + data.len() as u32;
        assert!(end <= pieces.iter().map(|p| p.length).sum(), "the transport wrote beyond the WQE's length");
        let mut at = 0;
        for piece in pieces {
            let (from, to) = (offset.max(at), end.min(at + piece.length));
            if from < to {
                self.local(piece, true)?;
                let start = (piece.addr + u64::from(from - at)) as usize;
                self.memory[start..start + (to - from) as usize]
                    .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            }
            at += piece.length;
        }
        Ok(())
    }

    fn remote(&self, access: &RemoteAccess) -> Result<(), AccessFault> {
        if access.length == 0 {
            return Ok(());
        }
        let region = self.regions.iter().find(|r| r.key == access.rkey.0).ok_or(AccessFault::BadKey)?;
        if region.gone {
            return Err(AccessFault::Gone);
        }
        let end = access.va.checked_add(access.length).ok_or(AccessFault::OutOfBounds)?;
        if access.va < region.addr || end > region.addr + region.length {
            return Err(AccessFault::OutOfBounds);
        }
        if region.access.contains(access.access) { Ok(()) } else { Err(AccessFault::NoRight) }
    }

    fn word(&mut self, va: u64) -> &mut [u8; 8] {
        let start = va as usize;
        (&mut self.memory[start..start + 8]).try_into().expect("eight bytes")
    }
}

impl Host for TestHost {
    fn now(&self) -> Time {
        self.now
    }

    fn send_wqe(&mut self, index: u32) -> Option<SendWqe> {
        let at = index.wrapping_sub(self.retired);
        self.sends.get(at as usize).map(|p| p.wqe)
    }

    fn plain_write(&mut self, index: u32) -> Option<PlainWrite> {
        if self.hides_plain_writes {
            return None;
        }
        self.send_wqe(index)?.plain_write()
    }

    fn retire_sends(&mut self, next: u32) {
        while self.retired != next {
            self.sends.pop_front().expect("the transport retires only what was posted");
            self.retired = self.retired.wrapping_add(1);
        }
    }

    fn complete_send(&mut self, wc: &WorkCompletion) {
        self.sent.push(*wc);
        self.retired_at_completion.push(self.retired);
    }

    fn scatter_send(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let at = index.wrapping_sub(self.retired) as usize;
        let pieces = self.sends[at].pieces.clone();
        self.scatter(&pieces, offset, data)
    }

    fn bind_mw(&mut self, _index: u32) -> Result<(), WcStatus> {
        self.bind_result
    }

    fn local_invalidate(&mut self, rkey: RKey) -> Result<(), WcStatus> {
        if !self.regions.iter().any(|r| r.key == rkey.0) {
            return Err(WcStatus::LocProtErr);
        }
        self.regions.retain(|r| r.key != rkey.0);
        self.invalidated.push(rkey);
        Ok(())
    }

    fn take_recv(&mut self, xrc_srqn: Option<Srqn>) -> Result<Option<RecvWqe>, AccessFault> {
        let queue = match xrc_srqn {
            None => &mut self.recvs,
            Some(srqn) => self.xrc_recvs.get_mut(&srqn).ok_or(AccessFault::BadKey)?,
        };
        let Some(posted) = queue.pop_front() else { return Ok(None) };
        let slot = self.next_slot;
        self.next_slot += 1;
        let wqe = RecvWqe {
            slot,
            wr_id: posted.wr_id,
            length: posted.pieces.iter().map(|p| p.length).sum(),
            srq: xrc_srqn.or(self.has_srq.then_some(Srqn::new(1))),
        };
        self.taken.insert(slot, posted);
        Ok(Some(wqe))
    }

    fn scatter_recv(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let pieces = self.taken.get(&wqe.slot).expect("a receive WQE is used only until it completes").pieces.clone();
        self.scatter(&pieces, offset, data)
    }

    fn complete_recv(&mut self, wqe: &RecvWqe, wc: &WorkCompletion, solicited: bool) {
        self.taken.remove(&wqe.slot).expect("a receive WQE completes once");
        self.received.push(Received { wc: *wc, solicited });
    }

    fn posted_recvs(&self) -> Option<u32> {
        if self.has_srq { None } else { Some(self.recvs.len() as u32) }
    }

    fn check_remote(&mut self, access: &RemoteAccess) -> Result<(), AccessFault> {
        self.remote(access)
    }

    fn write_remote(&mut self, access: &RemoteAccess, data: &[u8]) -> Result<(), AccessFault> {
        assert_eq!(access.length, data.len() as u64);
        self.remote(access)?;
        if !data.is_empty() {
            let start = access.va as usize;
            self.memory[start..start + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn atomic_remote(&mut self, access: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessFault> {
        assert!(access.va.is_multiple_of(8), "the responder checks alignment");
        self.remote(access)?;
        let word = self.word(access.va);
        let old = u64::from_le_bytes(*word);
        let (new, answer) = match op {
            AtomicOp::CompareSwap { compare, swap } => (if old == compare { swap } else { old }, old),
            AtomicOp::FetchAdd { add } => (old.wrapping_add(add), old),
            AtomicOp::Write { value } => (value, 0),
        };
        *word = new.to_le_bytes();
        Ok(answer)
    }

    fn flush_remote(
        &mut self,
        access: &RemoteAccess,
        _placement: FlushPlacement,
        _level: FlushLevel,
    ) -> Result<(), AccessFault> {
        self.remote(access)?;
        self.flushed.push(*access);
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: RKey, _xrc_srqn: Option<Srqn>) -> Result<(), AccessFault> {
        if !self.regions.iter().any(|r| r.key == rkey.0) {
            return Err(AccessFault::BadKey);
        }
        self.regions.retain(|r| r.key != rkey.0);
        self.invalidated.push(rkey);
        Ok(())
    }

    fn execute_directly(&mut self, wqe: &SendWqe, _attr: &QpAttr, done: u32, _psns: u32) -> Direct {
        let Some(outcome) = self.direct.pop_front() else { return Direct::Wire };
        self.asked.push((wqe.wr_id, done));
        outcome
    }

    fn may_execute_directly(&self) -> bool {
        self.could_execute || !self.direct.is_empty()
    }

    fn could_execute_directly(&mut self, _wqe: &SendWqe, _attr: &QpAttr) -> bool {
        self.could_execute
    }

    fn emit(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError> {
        if self.room == 0 {
            return Err(EmitError::Blocked);
        }
        let payload = match payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Wqe { index, offset, length } => {
                let posted = &self.sends[index.wrapping_sub(self.retired) as usize];
                let inline = posted.wqe.flags.contains(SendFlags::INLINE);
                self.gather(&posted.pieces, offset, length, inline).map_err(EmitError::Local)?
            }
            Payload::Remote(access) => {
                self.remote(&access).map_err(EmitError::Access)?;
                let start = if access.length == 0 { 0 } else { access.va as usize };
                self.memory[start..start + access.length as usize].to_vec()
            }
        };
        let av = match packet.path {
            Path::Primary => self.paths[0],
            Path::Alternate => self.paths[1],
            Path::Datagram(av) => Some(av),
        };
        let av = av.expect("the QP has a path");
        if self.room != usize::MAX {
            self.room -= 1;
        }
        let mut headers = packet.headers;
        headers.bth.pad_count = (payload.len().wrapping_neg() & 3) as u8;
        self.wire.push_back(Packet {
            headers,
            payload,
            port_num: av.port_num,
            src: self.gid(av.port_num, av.sgid_index),
            dst: av.dgid,
            traffic_class: av.traffic_class,
            reads_telemetry: packet.reads_telemetry,
            trailer: None,
        });
        Ok(())
    }

    fn room_for_run(&self, _packet: &Outgoing, index: u32, _length: u32) -> usize {
        let posted = &self.sends[index.wrapping_sub(self.retired) as usize];
        if posted.pieces.len() == 1 { self.run_room.min(self.room) } else { 0 }
    }

    fn emit_run(&mut self, packet: &Outgoing, run: Run) -> usize {
        let mut packet = *packet;
        let count = run.count - u32::from(self.cuts_runs);
        for number in 0..count {
            packet.headers.bth.ack_req = run.asks(number);
            let offset = run.offset + number * run.length;
            if self.emit(&packet, Payload::Wqe { index: run.index, offset, length: run.length }).is_err() {
                return number as usize;
            }
            packet.headers.bth.psn = packet.headers.bth.psn.next();
        }
        count as usize
    }

    fn emit_trailed(
        &mut self,
        packet: &Outgoing,
        payload: Payload<'_>,
        trailer: &[u8; int::LEN],
    ) -> Result<(), EmitError> {
        self.emit(packet, payload)?;
        // A BTH, of which the switch sees one byte, and the trailer.
        let mut bytes = [&[int::TRAILED; 12][..], trailer].concat();
        if let Some(hop) = &self.hop {
            int::stamp(&mut bytes, hop);
        }
        let (_, trailer) = int::split(&bytes).expect("the transport makes trailers that can be read");
        self.wire.back_mut().expect("just sent").trailer = Some(trailer);
        Ok(())
    }

    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        self.pkeys.get(usize::from(port_num).checked_sub(1)?)?.get(usize::from(index)).copied()
    }

    fn gid(&self, port_num: u8, index: u8) -> Gid {
        let table = usize::from(port_num).checked_sub(1).and_then(|p| self.gids.get(p));
        table.and_then(|t| t.get(usize::from(index))).copied().unwrap_or_default()
    }

    fn active_mtu(&self, _port_num: u8) -> Mtu {
        self.mtu
    }

    fn paths_swapped(&mut self) {
        self.paths.swap(0, 1);
    }

    fn event(&mut self, event: EventType) {
        self.events.push(event);
    }

    fn count(&mut self, counter: Counter, n: u64) {
        *self.counters.entry(counter.label()).or_default() += n;
    }

    fn drop_packet(&mut self, reason: DropReason) {
        *self.counters.entry(reason.label()).or_default() += 1;
    }
}
