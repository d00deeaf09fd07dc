//! The send queue's ring. A WQE is a control unit, for datagrams an address unit, and then its SGEs (four to a unit) or
//! its inline bytes. The stride is fixed when the queue is made.

use scalefabric_transport::host::{PlainWrite, SendWqe, WqeOp};
use scalefabric_verbs::{
    AccessFlags, AddressVector, FlushLevel, FlushPlacement, Gid, LKey, MwType, QKey, Qpn, RKey, SendFlags, Sge, Srqn,
};

use super::Refusal;
use super::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, lock};
use super::unit::{Slot, Slots, UNIT_BYTES, WORDS, message_length};
use crate::memory::Bind;

/// Sizes of a send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRingConfig {
    /// WRs, at least; rounded up to a power of two. At least 1, at most 2^20.
    pub max_wr: u32,
    /// SGEs in a WR, at most 255.
    pub max_sge: u32,
    /// Inline bytes in a WR.
    pub max_inline: u32,
    /// Whether WRs carry a datagram's address.
    pub ud: bool,
}

/// Where a WR's bytes are.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here: copied into the ring.
    Inline(&'a [u8]),
}

/// A send WR as the ring takes it.
#[derive(Clone, Copy, Debug)]
pub struct SendEntry<'a> {
    /// From the WR.
    pub wr_id: u64,
    /// Operation.
    pub op: WqeOp,
    /// Flags, with SIGNALED already set for `sq_sig_all`.
    pub flags: SendFlags,
    /// Bytes.
    pub data: SendData<'a>,
    /// UD: where it goes. Ignored unless the ring was made for it.
    pub ud: Option<(AddressVector, Qpn, QKey)>,
    /// XRC: the peer's SRQ.
    pub xrc_srqn: Option<Srqn>,
    /// With [`WqeOp::BindMw`]: the bind.
    pub bind: Option<Bind>,
}

/// A send WR as most are: a SEND or WRITE of a connected QP. Nothing in it is optional, so it is written without a look at what it is.
#[derive(Clone, Copy, Debug)]
pub struct PlainEntry<'a> {
    /// From the WR.
    pub wr_id: u64,
    /// Operation.
    pub op: PlainOp,
    /// Flags, as in [`SendEntry`].
    pub flags: SendFlags,
    /// Where it goes; of no meaning to a SEND.
    pub remote_addr: u64,
    /// The key for it; likewise.
    pub rkey: RKey,
    /// Immediate data; 0 without.
    pub imm: u32,
    /// Bytes.
    pub data: SendData<'a>,
}

/// Operation of a [`PlainEntry`]: its code in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PlainOp {
    /// SEND.
    Send = OP_SEND,
    /// SEND with immediate data.
    SendWithImm = OP_SEND_WITH_IMM,
    /// WRITE.
    Write = OP_WRITE,
    /// WRITE with immediate data.
    WriteWithImm = OP_WRITE_WITH_IMM,
}

/// The ring.
#[derive(Debug)]
pub struct SendRing {
    slots: Slots,
    capacity: u32,
    max_sge: u32,
    max_inline: u32,
    /// First word of the SGEs or inline bytes.
    data_word: usize,
    ud: bool,
    /// Next index to be posted, and the lock of those who post.
    next: Mutex<u32>,
    /// Doorbell record: everything before it may be read by the engine.
    posted: AtomicU32,
    /// Everything before it is done with.
    retired: AtomicU32,
}

// Words of the control unit.
const WR_ID: usize = 0;
const CONTROL: usize = 1;
const REMOTE_ADDR: usize = 2;
const KEYS: usize = 3;
const OPERAND_A: usize = 4;
const OPERAND_B: usize = 5;
const EXTRA: usize = 6;
// Words of the address unit, from its start.
const DGID: usize = 0;
const PATH: usize = 2;
const FLOW: usize = 3;
const REMOTE_QP: usize = 4;

// Bits of the control word beside op (0..8), flags (8..16) and SGE count (16..24).
const HAS_UD: u64 = 1 << 24;
const HAS_XRC: u64 = 1 << 25;
const IS_INLINE: u64 = 1 << 26;

impl SendRing {
    /// An empty ring.
    pub fn new(config: SendRingConfig) -> Self {
        let capacity = config.max_wr.clamp(1, 1 << 20).next_power_of_two();
        let head = 1 + usize::from(config.ud);
        let data_units = (config.max_sge as usize * 16).max(config.max_inline as usize).div_ceil(UNIT_BYTES);
        Self {
            slots: Slots::new(capacity, head + data_units),
            capacity,
            // Room that inline data needs gives no more SGEs: the device's limit is in SGEs.
            max_sge: config.max_sge.max(1).next_multiple_of(4).min(255),
            max_inline: (data_units * UNIT_BYTES) as u32,
            data_word: head * WORDS,
            ud: config.ud,
            next: Mutex::new(0),
            posted: AtomicU32::new(0),
            retired: AtomicU32::new(0),
        }
    }

    /// WRs it holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// SGEs a WR may have; at least what was asked for.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Inline bytes a WR may have; at least what was asked for.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Takes the posting side's lock. What is posted becomes visible to the engine with [`SendPoster::ring_doorbell`] or
    /// when the poster is dropped.
    pub fn poster(&self) -> SendPoster<'_> {
        SendPoster { next: lock(&self.next), ring: self }
    }

    #[inline]
    fn slot(&self, index: u32) -> Slot<'_> {
        self.slots.at(index & (self.capacity - 1))
    }

    /// The slot at `index`, or `None` if nothing is posted there (or it is retired already).
    #[inline]
    fn posted_slot(&self, index: u32) -> Option<Slot<'_>> {
        // Both tests in one: index lies in [retired, posted), modulo 2^32. Acquire pairs with the doorbell's release.
        let retired = self.retired.load(Ordering::Relaxed);
        let posted = self.posted.load(Ordering::Acquire);
        (index.wrapping_sub(retired) < posted.wrapping_sub(retired)).then(|| self.slot(index))
    }

    /// Engine: the WQE at `index`, or `None` if it is not posted (or retired already).
    #[inline]
    pub fn wqe(&self, index: u32) -> Option<SendWqe> {
        let slot = self.posted_slot(index)?;
        let control = slot.get(CONTROL);
        Some(SendWqe {
            index,
            wr_id: slot.get(WR_ID),
            op: decode_op(slot, control as u8),
            flags: SendFlags::from_bits_retain((control >> 8) as u8 as u32),
            length: (control >> 32) as u32,
            ud: (control & HAS_UD != 0).then(|| decode_ud(slot)),
            xrc_srqn: (control & HAS_XRC != 0).then(|| Srqn::new(slot.get(EXTRA) as u32)),
        })
    }

    /// Engine: the same if it is a WRITE, as far as sending and retiring need it.
    #[inline]
    pub fn plain_write(&self, index: u32) -> Option<PlainWrite> {
        let slot = self.posted_slot(index)?;
        let control = slot.get(CONTROL);
        if control as u8 != OP_WRITE || control & (HAS_UD | HAS_XRC) != 0 {
            return None;
        }
        Some(PlainWrite {
            remote_addr: slot.get(REMOTE_ADDR),
            rkey: RKey((slot.get(KEYS) >> 32) as u32),
            flags: SendFlags::from_bits_retain((control >> 8) as u8 as u32),
            length: (control >> 32) as u32,
        })
    }

    /// Engine: true if its bytes are inline.
    #[inline]
    pub fn is_inline(&self, index: u32) -> bool {
        self.slot(index).get(CONTROL) & IS_INLINE != 0
    }

    /// Engine: its SGEs; none if its bytes are inline.
    #[inline]
    pub fn sges(&self, index: u32) -> impl Iterator<Item = Sge> + '_ {
        let slot = self.slot(index);
        let count = (slot.get(CONTROL) >> 16) as u8 as usize;
        let data_word = self.data_word;
        (0..count).map(move |i| slot.sge(data_word + 2 * i))
    }

    /// Engine: its SGE, if it has only one.
    #[inline]
    pub fn only_sge(&self, index: u32) -> Option<Sge> {
        let slot = self.slot(index);
        let count = (slot.get(CONTROL) >> 16) as u8;
        (count == 1).then(|| slot.sge(self.data_word))
    }

    /// Engine: copies inline bytes from `offset`. The caller stays inside the WQE's length.
    pub fn copy_inline(&self, index: u32, offset: u32, out: &mut [u8]) {
        self.slot(index).get_bytes(self.data_word, offset as usize, out);
    }

    /// Engine: the bind of a BIND_MW WQE.
    pub fn bind(&self, index: u32) -> Option<Bind> {
        let slot = self.slot(index);
        if slot.get(CONTROL) as u8 != OP_BIND_MW {
            return None;
        }
        let (keys, extra) = (slot.get(KEYS), slot.get(EXTRA));
        Some(Bind {
            mw_type: if extra >> 32 == 1 { MwType::Type1 } else { MwType::Type2 },
            rkey: RKey(keys as u32),
            mr: LKey((keys >> 32) as u32),
            addr: slot.get(REMOTE_ADDR),
            length: slot.get(OPERAND_A),
            access: AccessFlags::from_bits_retain(extra as u32),
        })
    }

    /// Engine: everything before `next` is done with.
    pub fn retire(&self, next: u32) {
        debug_assert!(
            next.wrapping_sub(self.retired.load(Ordering::Relaxed)) <= self.capacity,
            "retired beyond what was posted"
        );
        // Release: our reads of those slots come before a poster's writes to them.
        self.retired.store(next, Ordering::Release);
    }

    /// Index of the oldest WQE that is not retired.
    pub fn oldest(&self) -> u32 {
        self.retired.load(Ordering::Acquire)
    }

    /// Index that the next posted WQE will have, as published.
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire)
    }

    /// Forgets everything; both counters start at 0 again (QP to RESET). The caller holds the engine's lock.
    pub fn reset(&self) {
        let mut next = lock(&self.next);
        *next = 0;
        self.posted.store(0, Ordering::Release);
        self.retired.store(0, Ordering::Release);
    }
}

const OP_SEND: u8 = 1;
const OP_SEND_WITH_IMM: u8 = 2;
const OP_SEND_WITH_INV: u8 = 3;
const OP_WRITE: u8 = 4;
const OP_WRITE_WITH_IMM: u8 = 5;
const OP_READ: u8 = 6;
const OP_COMPARE_SWAP: u8 = 7;
const OP_FETCH_ADD: u8 = 8;
const OP_LOCAL_INV: u8 = 9;
const OP_BIND_MW: u8 = 10;
const OP_FLUSH: u8 = 11;
const OP_ATOMIC_WRITE: u8 = 12;

#[inline]
fn control_word(op: u8, flags: SendFlags, length: u32) -> u64 {
    u64::from(op) | u64::from(flags.bits() as u8) << 8 | u64::from(length) << 32
}

fn decode_op(slot: Slot<'_>, op: u8) -> WqeOp {
    let keys = slot.get(KEYS);
    let (rkey, low) = (RKey((keys >> 32) as u32), keys as u32);
    let remote_addr = slot.get(REMOTE_ADDR);
    let (a, b) = (slot.get(OPERAND_A), slot.get(OPERAND_B));
    match op {
        OP_SEND => WqeOp::Send,
        OP_SEND_WITH_IMM => WqeOp::SendWithImm { imm: low },
        OP_SEND_WITH_INV => WqeOp::SendWithInv { invalidate_rkey: rkey },
        OP_WRITE => WqeOp::Write { remote_addr, rkey },
        OP_WRITE_WITH_IMM => WqeOp::WriteWithImm { remote_addr, rkey, imm: low },
        OP_READ => WqeOp::Read { remote_addr, rkey },
        OP_COMPARE_SWAP => WqeOp::CompareSwap { remote_addr, rkey, compare: a, swap: b },
        OP_FETCH_ADD => WqeOp::FetchAdd { remote_addr, rkey, add: a },
        OP_LOCAL_INV => WqeOp::LocalInv { rkey },
        OP_FLUSH => WqeOp::Flush {
            remote_addr,
            rkey,
            length: low,
            placement: match a {
                0 => FlushPlacement::Global,
                1 => FlushPlacement::Persistent,
                _ => FlushPlacement::GlobalAndPersistent,
            },
            level: if b == 0 { FlushLevel::Range } else { FlushLevel::MemoryRegion },
        },
        OP_ATOMIC_WRITE => WqeOp::AtomicWrite { remote_addr, rkey },
        // Only the poster writes op codes, and only these.
        _ => WqeOp::BindMw,
    }
}

fn decode_ud(slot: Slot<'_>) -> (AddressVector, Qpn, QKey) {
    let word = |i| slot.get(WORDS + i);
    let mut dgid = [0; 16];
    dgid[..8].copy_from_slice(&word(DGID).to_le_bytes());
    dgid[8..].copy_from_slice(&word(DGID + 1).to_le_bytes());
    let [sgid_index, hop_limit, traffic_class, sl, static_rate, port_num, ..] = word(PATH).to_le_bytes();
    let flow_label = word(FLOW) as u32;
    let av =
        AddressVector { dgid: Gid(dgid), sgid_index, hop_limit, traffic_class, flow_label, sl, static_rate, port_num };
    let remote = word(REMOTE_QP);
    (av, Qpn::new(remote as u32), QKey((remote >> 32) as u32))
}

/// Writes what the operation needs beside the common fields; returns its code.
fn write_op(slot: Slot<'_>, entry: &SendEntry<'_>) -> u8 {
    let set = |word, value| slot.set(word, value);
    let remote = |addr: u64, rkey: RKey, low: u32| {
        set(REMOTE_ADDR, addr);
        set(KEYS, u64::from(low) | u64::from(rkey.0) << 32);
    };
    match entry.op {
        WqeOp::Send => OP_SEND,
        WqeOp::SendWithImm { imm } => {
            remote(0, RKey(0), imm);
            OP_SEND_WITH_IMM
        }
        WqeOp::SendWithInv { invalidate_rkey } => {
            remote(0, invalidate_rkey, 0);
            OP_SEND_WITH_INV
        }
        WqeOp::Write { remote_addr, rkey } => {
            remote(remote_addr, rkey, 0);
            OP_WRITE
        }
        WqeOp::WriteWithImm { remote_addr, rkey, imm } => {
            remote(remote_addr, rkey, imm);
            OP_WRITE_WITH_IMM
        }
        WqeOp::Read { remote_addr, rkey } => {
            remote(remote_addr, rkey, 0);
            OP_READ
        }
        WqeOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            remote(remote_addr, rkey, 0);
            set(OPERAND_A, compare);
            set(OPERAND_B, swap);
            OP_COMPARE_SWAP
        }
        WqeOp::FetchAdd { remote_addr, rkey, add } => {
            remote(remote_addr, rkey, 0);
            set(OPERAND_A, add);
            OP_FETCH_ADD
        }
        WqeOp::LocalInv { rkey } => {
            remote(0, rkey, 0);
            OP_LOCAL_INV
        }
        WqeOp::BindMw => {
            // A BIND_MW without its bind cannot be executed: it is written as one that names no window.
            let bind = entry.bind.unwrap_or(Bind {
                mw_type: MwType::Type2,
                rkey: RKey(0),
                mr: LKey(0),
                addr: 0,
                length: 0,
                access: AccessFlags::empty(),
            });
            set(REMOTE_ADDR, bind.addr);
            set(KEYS, u64::from(bind.rkey.0) | u64::from(bind.mr.0) << 32);
            set(OPERAND_A, bind.length);
            let mw_type = u64::from(bind.mw_type == MwType::Type1);
            set(EXTRA, u64::from(bind.access.bits()) | mw_type << 32);
            OP_BIND_MW
        }
        WqeOp::Flush { remote_addr, rkey, length, placement, level } => {
            remote(remote_addr, rkey, length);
            let placement = match placement {
                FlushPlacement::Global => 0,
                FlushPlacement::Persistent => 1,
                FlushPlacement::GlobalAndPersistent => 2,
            };
            set(OPERAND_A, placement);
            set(OPERAND_B, u64::from(level == FlushLevel::MemoryRegion));
            OP_FLUSH
        }
        WqeOp::AtomicWrite { remote_addr, rkey } => {
            remote(remote_addr, rkey, 0);
            OP_ATOMIC_WRITE
        }
    }
}

/// The posting side, while it holds the ring's lock.
#[derive(Debug)]
pub struct SendPoster<'r> {
    next: MutexGuard<'r, u32>,
    ring: &'r SendRing,
}

impl SendPoster<'_> {
    /// Where the next WQE goes, for [`SendPoster::take_back`].
    #[inline]
    pub fn mark(&self) -> u32 {
        *self.next
    }

    /// Takes back what was posted since the mark, before the doorbell has rung for it.
    pub fn take_back(&mut self, mark: u32) {
        *self.next = mark;
    }

    /// The index that the next WQE gets, and its place.
    #[inline]
    fn place(&self) -> Result<(u32, Slot<'_>), Refusal> {
        let index = *self.next;
        // Acquire pairs with the release of `retire`.
        if index.wrapping_sub(self.ring.retired.load(Ordering::Acquire)) >= self.ring.capacity {
            return Err(Refusal::Full);
        }
        Ok((index, self.ring.slot(index)))
    }

    // Not inline: it would swell the way of those that have SGEs.
    #[inline(never)]
    fn write_inline(&self, slot: Slot<'_>, bytes: &[u8]) -> Result<(u32, u64), Refusal> {
        if bytes.len() > self.ring.max_inline as usize {
            return Err(Refusal::InlineTooLong);
        }
        slot.set_bytes(self.ring.data_word, bytes);
        Ok((bytes.len() as u32, IS_INLINE))
    }

    /// Writes the SGEs or the inline bytes of a WQE; gives the length of its message, and what the control word says of them.
    #[inline(always)]
    fn write_data(&self, slot: Slot<'_>, data: &SendData<'_>) -> Result<(u32, u64), Refusal> {
        let sges = match *data {
            SendData::Sges(sges) => sges,
            SendData::Inline(bytes) => return self.write_inline(slot, bytes),
        };
        if sges.len() > self.ring.max_sge as usize {
            return Err(Refusal::TooManySges);
        }
        let length = message_length(sges).ok_or(Refusal::MessageTooLong)?;
        for (i, sge) in sges.iter().enumerate() {
            slot.set_sge(self.ring.data_word + 2 * i, sge);
        }
        Ok((length, (sges.len() as u64) << 16))
    }

    /// Writes a WQE of the short form. The ring is not one of datagrams.
    #[inline(always)]
    pub fn post_plain(&mut self, entry: &PlainEntry<'_>) -> Result<(), Refusal> {
        let (index, slot) = self.place()?;
        let (length, data_bits) = self.write_data(slot, &entry.data)?;
        slot.set(WR_ID, entry.wr_id);
        slot.set(CONTROL, control_word(entry.op as u8, entry.flags, length) | data_bits);
        slot.set(REMOTE_ADDR, entry.remote_addr);
        slot.set(KEYS, u64::from(entry.imm) | u64::from(entry.rkey.0) << 32);
        *self.next = index.wrapping_add(1);
        Ok(())
    }

    /// Writes a WQE; returns its index.
    pub fn post(&mut self, entry: &SendEntry<'_>) -> Result<u32, Refusal> {
        let ring = self.ring;
        let (index, slot) = self.place()?;
        let (length, data_bits) = self.write_data(slot, &entry.data)?;
        let op = write_op(slot, entry);
        let mut control = control_word(op, entry.flags, length) | data_bits;
        if let (true, Some((av, qpn, qkey))) = (ring.ud, &entry.ud) {
            control |= HAS_UD;
            let set = |i, value| slot.set(WORDS + i, value);
            slot.set_bytes(WORDS + DGID, &av.dgid.0);
            let path = [av.sgid_index, av.hop_limit, av.traffic_class, av.sl, av.static_rate, av.port_num, 0, 0];
            set(PATH, u64::from_le_bytes(path));
            set(FLOW, u64::from(av.flow_label));
            set(REMOTE_QP, u64::from(qpn.get()) | u64::from(qkey.0) << 32);
        }
        if let Some(srqn) = entry.xrc_srqn {
            control |= HAS_XRC;
            slot.set(EXTRA, u64::from(srqn.get()));
        }
        slot.set(WR_ID, entry.wr_id);
        slot.set(CONTROL, control);
        *self.next = index.wrapping_add(1);
        Ok(index)
    }

    /// Makes everything posted so far visible to the engine.
    pub fn ring_doorbell(&mut self) {
        self.ring.posted.store(*self.next, Ordering::Release);
    }
}

impl Drop for SendPoster<'_> {
    fn drop(&mut self) {
        self.ring_doorbell();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ring(max_wr: u32) -> SendRing {
        SendRing::new(SendRingConfig { max_wr, max_sge: 3, max_inline: 100, ud: true })
    }

    fn entry<'a>(wr_id: u64, op: WqeOp, data: SendData<'a>) -> SendEntry<'a> {
        SendEntry { wr_id, op, flags: SendFlags::SIGNALED, data, ud: None, xrc_srqn: None, bind: None }
    }

    fn post(ring: &SendRing, entry: &SendEntry<'_>) -> Result<u32, Refusal> {
        ring.poster().post(entry)
    }

    #[test]
    fn every_operation_comes_back_as_it_was_posted() {
        let (remote_addr, rkey) = (0x0123_4567_89ab_cdef, RKey(0xfedc_ba98));
        let flush = |placement, level| WqeOp::Flush { remote_addr, rkey, length: 77, placement, level };
        let ops = [
            WqeOp::Send,
            WqeOp::SendWithImm { imm: 0xffff_fffe },
            WqeOp::SendWithInv { invalidate_rkey: rkey },
            WqeOp::Write { remote_addr, rkey },
            WqeOp::WriteWithImm { remote_addr, rkey, imm: 3 },
            WqeOp::Read { remote_addr, rkey },
            WqeOp::CompareSwap { remote_addr, rkey, compare: u64::MAX, swap: 1 },
            WqeOp::FetchAdd { remote_addr, rkey, add: 1 << 63 },
            WqeOp::LocalInv { rkey },
            flush(FlushPlacement::Global, FlushLevel::Range),
            flush(FlushPlacement::Persistent, FlushLevel::MemoryRegion),
            flush(FlushPlacement::GlobalAndPersistent, FlushLevel::Range),
            WqeOp::AtomicWrite { remote_addr, rkey },
            WqeOp::BindMw,
        ];
        let ring = ring(4);
        for (i, op) in ops.into_iter().enumerate() {
            let sges =
                [Sge { addr: 1 + i as u64, length: 8, lkey: LKey(9) }, Sge { addr: 2, length: 5, lkey: LKey(8) }];
            let index = post(&ring, &entry(i as u64, op, SendData::Sges(&sges))).expect("there is room");
            let wqe = ring.wqe(index).expect("posted");
            assert_eq!((wqe.index, wqe.wr_id, wqe.op, wqe.length), (i as u32, i as u64, op, 13));
            assert_eq!((wqe.flags, wqe.ud, wqe.xrc_srqn), (SendFlags::SIGNALED, None, None));
            assert_eq!(ring.sges(index).collect::<Vec<_>>(), sges);
            assert!(!ring.is_inline(index));
            ring.retire(index + 1);
        }
    }

    #[test]
    fn the_short_form_leaves_what_the_long_one_does() {
        let (remote_addr, rkey, imm) = (0x0123_4567_89ab_cdef, RKey(0xfedc_ba98), 0x8000_0001);
        let sges = [Sge { addr: 1, length: 8, lkey: LKey(9) }, Sge { addr: 2, length: 5, lkey: LKey(8) }];
        let ring = SendRing::new(SendRingConfig { max_wr: 2, max_sge: 4, max_inline: 64, ud: false });
        let operations = [
            (PlainOp::Send, WqeOp::Send),
            (PlainOp::SendWithImm, WqeOp::SendWithImm { imm }),
            (PlainOp::Write, WqeOp::Write { remote_addr, rkey }),
            (PlainOp::WriteWithImm, WqeOp::WriteWithImm { remote_addr, rkey, imm }),
        ];
        for ((op, long), data) in operations.into_iter().flat_map(|operation| {
            [SendData::Sges(&sges), SendData::Inline(b"hello"), SendData::Inline(&[])].map(|data| (operation, data))
        }) {
            let has_imm = matches!(op, PlainOp::SendWithImm | PlainOp::WriteWithImm);
            let imm = if has_imm { imm } else { 0 };
            let flags = SendFlags::SOLICITED;
            let short = PlainEntry { wr_id: 7, op, flags, remote_addr, rkey, imm, data };
            let index = post(&ring, &SendEntry { flags, ..entry(7, long, data) }).expect("there is room");
            ring.poster().post_plain(&short).expect("there is room");
            let [expected, mut found] = [index, index + 1].map(|index| ring.wqe(index).expect("posted"));
            found.index = index;
            assert_eq!(found, expected);
            match data {
                SendData::Sges(sges) => assert_eq!(ring.sges(index + 1).collect::<Vec<_>>(), sges),
                SendData::Inline(bytes) => {
                    let mut out = vec![0; bytes.len()];
                    ring.copy_inline(index + 1, 0, &mut out);
                    assert_eq!((out.as_slice(), ring.sges(index + 1).count()), (bytes, 0));
                }
            }
            assert_eq!(ring.is_inline(index + 1), matches!(data, SendData::Inline(_)));
            assert_eq!(ring.poster().post_plain(&short), Err(Refusal::Full));
            ring.retire(index + 2);
            let refused = |data| ring.poster().post_plain(&PlainEntry { data, ..short });
            let many = vec![Sge::default(); ring.max_sge() as usize + 1];
            assert_eq!(refused(SendData::Sges(&many)), Err(Refusal::TooManySges));
            let long = [Sge { length: (1 << 31) + 1, ..Sge::default() }];
            assert_eq!(refused(SendData::Sges(&long)), Err(Refusal::MessageTooLong));
            let long = vec![0; ring.max_inline() as usize + 1];
            assert_eq!(refused(SendData::Inline(&long)), Err(Refusal::InlineTooLong));
        }
    }

    #[test]
    fn a_datagram_keeps_its_address() {
        let av = AddressVector {
            dgid: Gid(std::array::from_fn(|i| i as u8 + 1)),
            sgid_index: 7,
            hop_limit: 64,
            traffic_class: 0xb9,
            flow_label: 0xf_ffff,
            sl: 3,
            static_rate: 2,
            port_num: 1,
        };
        let ring = ring(1);
        let mut wr = entry(1, WqeOp::SendWithImm { imm: 5 }, SendData::Inline(b"hello"));
        wr.ud = Some((av, Qpn::new(0xab_cdef), QKey(0x8000_0001)));
        let index = post(&ring, &wr).expect("there is room");
        assert_eq!(ring.wqe(index).and_then(|w| w.ud), wr.ud);
        let mut out = [0; 4];
        ring.copy_inline(index, 1, &mut out);
        assert_eq!(&out, b"ello");
        assert!(ring.is_inline(index) && ring.sges(index).next().is_none());
    }

    #[test]
    fn a_bind_keeps_its_parameters() {
        let ring = ring(1);
        let bind = Bind {
            mw_type: MwType::Type1,
            rkey: RKey(0x1234_5678),
            mr: LKey(0x9abc_def0),
            addr: u64::MAX,
            length: 1 << 40,
            access: AccessFlags::REMOTE_READ | AccessFlags::ZERO_BASED,
        };
        let mut wr = entry(1, WqeOp::BindMw, SendData::Sges(&[]));
        wr.bind = Some(bind);
        let index = post(&ring, &wr).expect("there is room");
        assert_eq!(ring.bind(index), Some(bind));
    }

    #[test]
    fn a_full_ring_refuses_and_takes_again_after_retiring() {
        let ring = ring(3);
        assert_eq!(ring.capacity(), 4);
        let wr = entry(0, WqeOp::Send, SendData::Sges(&[]));
        for _ in 0..4 {
            post(&ring, &wr).expect("there is room");
        }
        assert_eq!(post(&ring, &wr), Err(Refusal::Full));
        ring.retire(1);
        assert_eq!(post(&ring, &wr), Ok(4));
        assert_eq!(ring.wqe(0), None, "retired");
        assert_eq!(ring.wqe(5), None, "not posted");
    }

    #[test]
    fn too_much_is_refused_one_beyond_the_edge() {
        let ring = ring(8);
        let (sges, inline) =
            (vec![Sge::default(); ring.max_sge() as usize + 1], vec![0; ring.max_inline() as usize + 1]);
        let posted = |data| post(&ring, &entry(0, WqeOp::Send, data)).map(|_| ());
        assert_eq!(posted(SendData::Sges(&sges[1..])), Ok(()));
        assert_eq!(posted(SendData::Sges(&sges)), Err(Refusal::TooManySges));
        assert_eq!(posted(SendData::Inline(&inline[1..])), Ok(()));
        assert_eq!(posted(SendData::Inline(&inline)), Err(Refusal::InlineTooLong));
        let long = Sge { length: (1 << 31) + 1, ..Sge::default() };
        assert_eq!(posted(SendData::Sges(&[long])), Err(Refusal::MessageTooLong));
    }

    #[test]
    fn nothing_is_seen_before_the_doorbell() {
        let ring = ring(4);
        let mut poster = ring.poster();
        poster.post(&entry(0, WqeOp::Send, SendData::Sges(&[]))).expect("there is room");
        assert_eq!(ring.wqe(0), None);
        poster.ring_doorbell();
        assert!(ring.wqe(0).is_some());
    }

    #[test]
    fn the_counters_wrap() {
        let ring = ring(2);
        let start = u32::MAX - 1;
        *lock(&ring.next) = start;
        ring.posted.store(start, Ordering::Relaxed);
        ring.retired.store(start, Ordering::Relaxed);
        for i in 0..5 {
            let index = post(&ring, &entry(i, WqeOp::Send, SendData::Sges(&[]))).expect("there is room");
            assert_eq!(index, start.wrapping_add(i as u32));
            assert_eq!(ring.wqe(index).map(|w| w.wr_id), Some(i));
            assert_eq!(ring.wqe(index.wrapping_add(1)), None);
            ring.retire(index.wrapping_add(1));
            assert_eq!(ring.wqe(index), None);
        }
    }
}
