//! Step 4 of the walk: a WQE becomes packets. First, middle, last or only; headers; how many PSNs a message takes.
//!
//! Everything here is a pure function of the WQE, the path MTU and the number of the packet within its message, so that
//! a packet can be made again at any time: nothing is remembered for retransmission (clauses 9.4 and 9.7.2).

use scalefabric_verbs::operation::OpKind;
use scalefabric_verbs::{FlushLevel, FlushPlacement, QpType, SendFlags, WcStatus};
use scalefabric_wire::opcode::{Extensions, Opcode, Operation, Position};
use scalefabric_wire::packet::{AtomicEth, Deth, Feth, Reth};
use scalefabric_wire::{PKey, Psn, QKey};

use crate::context::Context;
use crate::host::{Outgoing, Path, Payload, SendWqe, WqeOp};

/// The largest message, 2^31 bytes (clause 9.7.2; `max_msg_sz`).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// What one packet costs the flight beyond its payload: headers, and what a receiver's socket buffer charges for it.
pub(crate) const PACKET_COST: u32 = 128;

/// A packet, ready to be emitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub outgoing: Outgoing,
    pub payload: Payload<'static>,
    /// PSNs that it takes: 1, but for a READ one for each response packet.
    pub psns: u32,
    /// What it adds to the flight (see [`cost`]).
    pub cost: u32,
    /// It ends its message.
    pub last: bool,
}

/// How a request is completed by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By an ACK, which may cover many.
    Posted,
    /// By READ responses.
    Read,
    /// By an ATOMIC acknowledge.
    Atomic,
    /// By a READ response without payload: FLUSH and ATOMIC WRITE.
    Answered,
    /// Not by the peer at all: LOCAL_INV, BIND_MW.
    Local,
}

impl WqeOp {
    /// Which operation of the table it is.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::Send => OpKind::Send,
            Self::SendWithImm { .. } => OpKind::SendWithImm,
            Self::SendWithInv { .. } => OpKind::SendWithInv,
            Self::Write { .. } => OpKind::Write,
            Self::WriteWithImm { .. } => OpKind::WriteWithImm,
            Self::Read { .. } => OpKind::Read,
            Self::CompareSwap { .. } => OpKind::CompareSwap,
            Self::FetchAdd { .. } => OpKind::FetchAdd,
            Self::LocalInv { .. } => OpKind::LocalInv,
            Self::BindMw => OpKind::BindMw,
            Self::Flush { .. } => OpKind::Flush,
            Self::AtomicWrite { .. } => OpKind::AtomicWrite,
        }
    }

    pub(crate) const fn completion(&self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Read,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Kind::Atomic,
            Self::Flush { .. } | Self::AtomicWrite { .. } => Kind::Answered,
            Self::LocalInv { .. } | Self::BindMw => Kind::Local,
            _ => Kind::Posted,
        }
    }

    const fn operation(&self) -> Option<Operation> {
        Some(match self {
            Self::Send => Operation::Send,
            Self::SendWithImm { .. } => Operation::SendWithImm,
            Self::SendWithInv { .. } => Operation::SendWithInv,
            Self::Write { .. } => Operation::Write,
            Self::WriteWithImm { .. } => Operation::WriteWithImm,
            Self::Read { .. } => Operation::ReadRequest,
            Self::CompareSwap { .. } => Operation::CompareSwap,
            Self::FetchAdd { .. } => Operation::FetchAdd,
            Self::Flush { .. } => Operation::Flush,
            Self::AtomicWrite { .. } => Operation::AtomicWrite,
            Self::LocalInv { .. } | Self::BindMw => return None,
        })
    }
}

/// PSNs that a WQE takes (clause 9.7.2: a READ one for each response packet, a message without bytes one).
#[inline]
pub(crate) fn packets(wqe: &SendWqe, pmtu: u32) -> u32 {
    match wqe.op.completion() {
        Kind::Posted | Kind::Read => packets_of(wqe.length, pmtu),
        Kind::Atomic | Kind::Answered => 1,
        Kind::Local => 0,
    }
}

/// Packets that carry so many bytes.
#[inline]
pub(crate) fn packets_of(length: u32, pmtu: u32) -> u32 {
    // At most 2^23: a message has at most 2^31 bytes, a packet at least 256. pmtu is a power of two.
    let full = length >> pmtu.trailing_zeros();
    (full + u32::from(length & (pmtu - 1) != 0)).max(1)
}

/// Byte of the message at which packet `packet` begins; the length for the packet after the last.
#[inline]
pub(crate) fn offset(wqe: &SendWqe, packet: u32, pmtu: u32) -> u32 {
    packet.saturating_mul(pmtu).min(wqe.length)
}

/// What packets `from..to` of a WQE add to the flight: the bytes that travel, either way, and a charge for each packet.
#[inline]
pub(crate) fn cost(wqe: &SendWqe, from: u32, to: u32, pmtu: u32) -> u32 {
    (offset(wqe, to, pmtu) - offset(wqe, from, pmtu)).saturating_add((to - from).saturating_mul(PACKET_COST))
}

/// The packet after the last that one READ request asks for, when it begins with packet `from`.
///
/// A READ larger than `stride` packets is asked for in parts, cut on a fixed grid. For the peer each part is a READ of its
/// own; the PSNs are those of the whole. Nobody else limits how much a responder sends at once, and a socket buffer
/// takes only so much.
#[inline]
pub(crate) fn read_part_end(total: u32, from: u32, stride: u32) -> u32 {
    ((from / stride + 1).saturating_mul(stride)).min(total)
}

/// Whether the peer's NIC could make sense of it: what the verbs could not or did not refuse when it was posted
/// (clause 10.8.2: LOC_QP_OP_ERR and LOC_LEN_ERR).
pub(crate) fn check(ctx: &Context, wqe: &SendWqe, active_mtu: u32) -> Result<(), WcStatus> {
    let rule = wqe.op.kind().rule();
    if !rule.types.contains(&ctx.qp_type) {
        return Err(WcStatus::LocQpOpErr);
    }
    if rule.rd_atomic && ctx.attr.max_rd_atomic == 0 {
        return Err(WcStatus::LocQpOpErr);
    }
    if ctx.qp_type == QpType::XrcSend && !rule.local && wqe.xrc_srqn.is_none() {
        return Err(WcStatus::LocQpOpErr);
    }
    if rule.fixed_length.is_some_and(|length| length != wqe.length) || wqe.length > MAX_MESSAGE {
        return Err(WcStatus::LocLenErr);
    }
    if ctx.qp_type == QpType::Ud {
        // A datagram leaves by the QP's port, whose P_Key it carries: a handle of another port is refused, as a device
        // that claims UD_AV_PORT_ENFORCE must.
        if wqe.ud.is_none_or(|(av, ..)| av.port_num != ctx.attr.port_num) {
            return Err(WcStatus::LocQpOpErr);
        }
        // C10-93.1.1 would have it vanish without an error; hardware reports it, and so do we.
        if wqe.length > active_mtu {
            return Err(WcStatus::LocLenErr);
        }
    }
    Ok(())
}

/// Opcodes by service, operation and position, so that a packet costs one load.
const OPCODES: [[[Option<Opcode>; 4]; 14]; 6] = {
    use scalefabric_wire::opcode::TABLE;
    let mut table = [[[None; 4]; 14]; 6];
    let mut row = 0;
    while row < TABLE.len() {
        let info = &TABLE[row];
        table[info.service as usize][info.operation as usize][info.position as usize] = Opcode::from_byte(info.code);
        row += 1;
    }
    table
};

/// Makes packet `packet` of a WQE that passed [`check`], with PSN `psn`. `None` if the service has no such packet, which
/// [`check`] excludes. `stride`: see [`read_part_end`].
pub(crate) fn segment(ctx: &Context, wqe: &SendWqe, pkey: PKey, packet: u32, psn: Psn, stride: u32) -> Option<Segment> {
    let pmtu = ctx.packet_bytes();
    let total = packets(wqe, pmtu);
    let kind = wqe.op.completion();
    let (position, next) = match kind {
        Kind::Posted => {
            let position = match (packet == 0, packet + 1 == total) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, true) => Position::Last,
                (false, false) => Position::Middle,
            };
            (position, packet + 1)
        }
        Kind::Read => (Position::Only, read_part_end(total, packet, stride)),
        Kind::Atomic | Kind::Answered | Kind::Local => (Position::Only, packet + 1),
    };
    // Immediate data and the key to invalidate travel in the last packet; those before are those of a plain message.
    let operation = match (wqe.op.operation()?, position) {
        (Operation::SendWithImm | Operation::SendWithInv, Position::First | Position::Middle) => Operation::Send,
        (Operation::WriteWithImm, Position::First | Position::Middle) => Operation::Write,
        (operation, _) => operation,
    };
    let opcode = OPCODES[ctx.service() as usize][operation as usize][position as usize]?;
    let info = opcode.info();
    let (start, end) = (offset(wqe, packet, pmtu), offset(wqe, next, pmtu));

    let mut outgoing = ctx.packet(opcode, pkey, psn);
    let headers = &mut outgoing.headers;
    // The bit means something only where a receive WQE completes (clause 9.2.3).
    headers.bth.solicited =
        next == total && wqe.flags.contains(SendFlags::SOLICITED) && wqe.op.kind().rule().consumes_receive;
    if info.extensions.contains(Extensions::XRCETH) {
        headers.xrceth = wqe.xrc_srqn;
    }
    let mut payload = Payload::None;
    if info.payload && end > start {
        payload = Payload::Wqe { index: wqe.index, offset: start, length: end - start };
    }
    match wqe.op {
        WqeOp::Send => {}
        WqeOp::SendWithImm { imm } => headers.imm = info.extensions.contains(Extensions::IMM_DT).then_some(imm),
        WqeOp::SendWithInv { invalidate_rkey } => {
            headers.ieth = info.extensions.contains(Extensions::IETH).then_some(invalidate_rkey);
        }
        WqeOp::Write { remote_addr, rkey } | WqeOp::WriteWithImm { remote_addr, rkey, .. } => {
            if info.extensions.contains(Extensions::RETH) {
                headers.reth = Some(Reth { va: remote_addr, rkey, dma_len: wqe.length });
            }
            if let (WqeOp::WriteWithImm { imm, .. }, true) = (wqe.op, info.extensions.contains(Extensions::IMM_DT)) {
                headers.imm = Some(imm);
            }
        }
        WqeOp::AtomicWrite { remote_addr, rkey } => {
            headers.reth = Some(Reth { va: remote_addr, rkey, dma_len: wqe.length });
        }
        WqeOp::Read { remote_addr, rkey } => {
            let va = remote_addr.wrapping_add(u64::from(start));
            headers.reth = Some(Reth { va, rkey, dma_len: end - start });
        }
        WqeOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            headers.atomic_eth = Some(AtomicEth { va: remote_addr, rkey, swap_or_add: swap, compare });
        }
        WqeOp::FetchAdd { remote_addr, rkey, add } => {
            headers.atomic_eth = Some(AtomicEth { va: remote_addr, rkey, swap_or_add: add, compare: 0 });
        }
        WqeOp::Flush { remote_addr, rkey, length, placement, level } => {
            headers.reth = Some(Reth { va: remote_addr, rkey, dma_len: length });
            headers.feth = Some(feth(placement, level));
        }
        WqeOp::LocalInv { .. } | WqeOp::BindMw => return None,
    }
    if let (QpType::Ud, Some((av, remote_qpn, remote_qkey))) = (ctx.qp_type, wqe.ud) {
        outgoing.path = Path::Datagram(av);
        outgoing.headers.bth.dest_qp = remote_qpn;
        outgoing.headers.deth = Some(Deth { qkey: qkey(ctx, remote_qkey), src_qp: ctx.qpn });
    }
    Some(Segment {
        outgoing,
        payload,
        psns: next - packet,
        cost: (end - start).saturating_add((next - packet).saturating_mul(PACKET_COST)),
        last: next == total,
    })
}

/// A Q_Key with its top bit set is not sent: it means the QP's own (clause 10.2.5).
fn qkey(ctx: &Context, wr: QKey) -> QKey {
    if wr.0 & 0x8000_0000 != 0 { ctx.attr.qkey } else { wr }
}

fn feth(placement: FlushPlacement, level: FlushLevel) -> Feth {
    let plt = match placement {
        FlushPlacement::Global => 1,
        FlushPlacement::Persistent => 2,
        FlushPlacement::GlobalAndPersistent => 3,
    };
    let sel = match level {
        FlushLevel::Range => 0,
        FlushLevel::MemoryRegion => 1,
    };
    Feth { plt, sel }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::{AddressVector, Qpn, RKey};

    use crate::queue_pair::Config;
    use crate::testing::attributes;

    fn context(qp_type: QpType) -> Context {
        let mut ctx = Context::new(qp_type, Qpn::new(7), Config::default());
        ctx.attr = attributes();
        ctx
    }

    fn wqe(op: WqeOp, length: u32) -> SendWqe {
        SendWqe { index: 0, wr_id: 1, op, flags: SendFlags::SOLICITED, length, ud: None, xrc_srqn: None }
    }

    fn names(ctx: &Context, wqe: &SendWqe) -> alloc::vec::Vec<&'static str> {
        let total = packets(wqe, ctx.pmtu());
        let mut names = alloc::vec::Vec::new();
        let mut packet = 0;
        while packet < total {
            let s = segment(ctx, wqe, PKey::DEFAULT, packet, Psn::new(packet), 1 << 20).unwrap();
            names.push(s.outgoing.headers.bth.opcode.info().name);
            packet += s.psns;
        }
        names
    }

    #[test]
    fn a_message_of_no_bytes_is_one_packet() {
        let ctx = context(QpType::Rc);
        assert_eq!(names(&ctx, &wqe(WqeOp::Send, 0)), ["RC SEND ONLY"]);
        assert_eq!(packets(&wqe(WqeOp::Read { remote_addr: 0, rkey: RKey(1) }, 0), 1024), 1);
    }

    #[test]
    fn a_byte_more_than_the_path_mtu_makes_two_packets() {
        let ctx = context(QpType::Rc);
        assert_eq!(names(&ctx, &wqe(WqeOp::Send, 1024)), ["RC SEND ONLY"]);
        assert_eq!(names(&ctx, &wqe(WqeOp::Send, 1025)), ["RC SEND FIRST", "RC SEND LAST"]);
    }

    #[test]
    fn immediate_data_travels_in_the_last_packet_alone() {
        let ctx = context(QpType::Uc);
        let w = wqe(WqeOp::WriteWithImm { remote_addr: 4, rkey: RKey(1), imm: 9 }, 3000);
        assert_eq!(
            names(&ctx, &w),
            ["UC RDMA WRITE FIRST", "UC RDMA WRITE MIDDLE", "UC RDMA WRITE LAST with immediate"]
        );
        let first = segment(&ctx, &w, PKey::DEFAULT, 0, Psn::new(0), 1).unwrap();
        assert_eq!(first.outgoing.headers.reth, Some(Reth { va: 4, rkey: RKey(1), dma_len: 3000 }));
        assert_eq!(first.outgoing.headers.imm, None);
        assert!(!first.outgoing.headers.bth.solicited && !first.last);
        let last = segment(&ctx, &w, PKey::DEFAULT, 2, Psn::new(2), 1).unwrap();
        assert_eq!((last.outgoing.headers.reth, last.outgoing.headers.imm), (None, Some(9)));
        assert!(last.outgoing.headers.bth.solicited && last.last);
    }

    #[test]
    fn only_what_makes_a_receive_completion_is_solicited() {
        let ctx = context(QpType::Rc);
        let (remote_addr, rkey) = (0, RKey(1));
        for (op, wakes) in [
            (WqeOp::Send, true),
            (WqeOp::SendWithInv { invalidate_rkey: rkey }, true),
            (WqeOp::WriteWithImm { remote_addr, rkey, imm: 1 }, true),
            (WqeOp::Write { remote_addr, rkey }, false),
            (WqeOp::Read { remote_addr, rkey }, false),
            (WqeOp::FetchAdd { remote_addr, rkey, add: 1 }, false),
        ] {
            let s = segment(&ctx, &wqe(op, 8), PKey::DEFAULT, 0, Psn::new(0), 1).unwrap();
            assert_eq!(s.outgoing.headers.bth.solicited, wakes, "{op:?}");
        }
    }

    #[test]
    fn a_read_that_begins_again_in_the_middle_asks_for_the_rest() {
        let ctx = context(QpType::Rc);
        let w = wqe(WqeOp::Read { remote_addr: 0x1000, rkey: RKey(1) }, 5000);
        let s = segment(&ctx, &w, PKey::DEFAULT, 2, Psn::new(12), 1 << 20).unwrap();
        assert_eq!(s.outgoing.headers.reth, Some(Reth { va: 0x1800, rkey: RKey(1), dma_len: 2952 }));
        assert_eq!((s.psns, s.outgoing.headers.bth.psn), (3, Psn::new(12)));
    }

    #[test]
    fn a_large_read_is_asked_for_in_parts_on_a_grid() {
        assert_eq!(read_part_end(10, 0, 4), 4);
        assert_eq!(read_part_end(10, 3, 4), 4);
        assert_eq!(read_part_end(10, 4, 4), 8);
        assert_eq!(read_part_end(10, 9, 4), 10);
    }

    #[test]
    fn every_operation_of_the_table_has_its_packets_on_every_service_that_has_it() {
        let ops = [
            WqeOp::Send,
            WqeOp::SendWithImm { imm: 1 },
            WqeOp::SendWithInv { invalidate_rkey: RKey(1) },
            WqeOp::Write { remote_addr: 0, rkey: RKey(1) },
            WqeOp::WriteWithImm { remote_addr: 0, rkey: RKey(1), imm: 1 },
            WqeOp::Read { remote_addr: 0, rkey: RKey(1) },
            WqeOp::CompareSwap { remote_addr: 0, rkey: RKey(1), compare: 0, swap: 1 },
            WqeOp::FetchAdd { remote_addr: 0, rkey: RKey(1), add: 1 },
            WqeOp::Flush {
                remote_addr: 0,
                rkey: RKey(1),
                length: 8,
                placement: FlushPlacement::Global,
                level: FlushLevel::Range,
            },
            WqeOp::AtomicWrite { remote_addr: 0, rkey: RKey(1) },
        ];
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
            let mut ctx = context(qp_type);
            ctx.attr.max_rd_atomic = 1;
            for op in ops {
                let length = op.kind().rule().fixed_length.unwrap_or(if qp_type == QpType::Ud { 1000 } else { 3000 });
                let mut w = wqe(op, length);
                w.xrc_srqn = Some(scalefabric_wire::Srqn::new(5));
                let port_num = ctx.attr.port_num;
                w.ud = Some((AddressVector { port_num, ..ctx.attr.ah_attr }, Qpn::new(3), QKey(1)));
                let allowed = check(&ctx, &w, 1024).is_ok();
                assert_eq!(allowed, op.kind().rule().types.contains(&qp_type));
                for packet in 0..packets(&w, 1024) {
                    let made = segment(&ctx, &w, PKey::DEFAULT, packet, Psn::new(0), 8);
                    assert!(made.is_some() || !allowed, "{qp_type} {op:?} packet {packet}");
                    if !allowed {
                        continue;
                    }
                    if let Some(s) = made {
                        let h = s.outgoing.headers;
                        let e = h.bth.opcode.info().extensions;
                        assert_eq!(e.contains(Extensions::RETH), h.reth.is_some());
                        assert_eq!(e.contains(Extensions::XRCETH), h.xrceth.is_some());
                        assert_eq!(e.contains(Extensions::IMM_DT), h.imm.is_some());
                        assert_eq!(e.contains(Extensions::IETH), h.ieth.is_some());
                        assert_eq!(e.contains(Extensions::DETH), h.deth.is_some());
                        assert_eq!(e.contains(Extensions::ATOMIC_ETH), h.atomic_eth.is_some());
                        assert_eq!(e.contains(Extensions::FETH), h.feth.is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn the_cost_of_a_message_is_that_of_its_packets() {
        let w = wqe(WqeOp::Send, 1500);
        assert_eq!(cost(&w, 1, 2, 1024), 476 + PACKET_COST);
        assert_eq!(cost(&w, 0, 1, 1024) + cost(&w, 1, 2, 1024), cost(&w, 0, 2, 1024));
    }
}
