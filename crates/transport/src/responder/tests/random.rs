//! Anything may arrive. Whatever it is: no panic, no byte outside what was granted, no receive completed twice, and the QP
//! is in RTS or ERR.

use proptest::prelude::*;
use scalefabric_verbs::{QpState, QpType};
use scalefabric_wire::opcode::TABLE;

use super::*;

#[derive(Clone, Debug)]
struct Anything {
    row: usize,
    psn_off: i32,
    length: usize,
    va_off: i64,
    dma_len: u32,
    key: u32,
    ack_req: bool,
    plt: u8,
    qkey: u32,
    srqn: u32,
    missing: bool,
    act: u8,
}

fn anything() -> impl Strategy<Value = Anything> {
    let near = || prop_oneof![8 => Just(0), 2 => -3..4_i32, 1 => any::<i32>()];
    let length = prop_oneof![4 => Just(PMTU), 3 => 0..20_usize, 1 => 0..2 * PMTU, 1 => Just(8)];
    let dma_len = prop_oneof![4 => Just(8_u32), 4 => 0..5000_u32, 2 => Just(2 * PMTU as u32), 1 => any::<u32>()];
    let va = prop_oneof![6 => Just(0_i64), 3 => -16..16_i64, 2 => 0..LEN as i64 + 8, 1 => any::<i64>()];
    (
        (0..TABLE.len(), near(), length, va, dma_len),
        (prop_oneof![9 => Just(KEY), 1 => any::<u32>()], any::<bool>(), 0..5_u8),
        (prop_oneof![9 => Just(0x1234_u32), 1 => any::<u32>()], 76..79_u32, prop::bool::weighted(0.05), any::<u8>()),
    )
        .prop_map(|((row, psn_off, length, va_off, dma_len), (key, ack_req, plt), (qkey, srqn, missing, act))| {
            Anything { row, psn_off, length, va_off, dma_len, key, ack_req, plt, qkey, srqn, missing, act }
        })
}

fn packet(bed: &Bed, what: &Anything) -> Packet {
    // Mostly of the QP's own service, so that something gets through.
    let ours: Vec<_> = TABLE.iter().filter(|info| info.service == bed.ctx.service()).collect();
    let info = if what.act.is_multiple_of(16) { &TABLE[what.row] } else { ours[what.row % ours.len()] };
    let mut packet = bed.send(Position::Only, &bytes(what.length));
    let va = AT.wrapping_add_signed(what.va_off);
    let headers = &mut packet.headers;
    headers.bth.opcode = Opcode::from_byte(info.code).unwrap();
    headers.bth.psn = Psn::new(bed.r.expected_psn().get().wrapping_add_signed(what.psn_off));
    headers.bth.ack_req = what.ack_req;
    headers.xrceth = Some(Srqn::new(what.srqn));
    headers.deth = Some(Deth { qkey: QKey(what.qkey), src_qp: PEER });
    headers.imm = Some(1);
    headers.ieth = Some(RKey(what.key));
    headers.feth = Some(Feth { plt: what.plt, sel: what.plt & 1 });
    if !what.missing {
        headers.reth = Some(Reth { va, rkey: RKey(what.key), dma_len: what.dma_len });
        headers.atomic_eth = Some(AtomicEth { va, rkey: RKey(what.key), swap_or_add: 1, compare: 0 });
    }
    packet
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_arrives_does_harm(
        qp_type in prop::sample::select(&[QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcRecv][..]),
        arrivals in prop::collection::vec(anything(), 1..60),
    ) {
        let mut bed = Bed::new(qp_type);
        let canary = 0x5a;
        bed.host.memory.fill(canary);
        bed.host.has_srq = matches!(qp_type, QpType::XrcRecv);
        let mut posted = 0;
        for what in &arrivals {
            if what.act & 3 == 0 {
                bed.post(posted, 1500);
                bed.host.post_srq_recv(SRQ, posted, &[Piece { addr: BUFFER, length: 1500, key: WHOLE }]);
                posted += 1;
            }
            bed.host.room = if what.act & 0x30 == 0 { 1 } else { usize::MAX };
            let incoming = packet(&bed, what);
            let expected = bed.r.expected_psn();
            bed.give(&incoming);
            if what.act & 0x40 == 0 {
                bed.said();
            }
            // Invariants.
            prop_assert!(matches!(bed.ctx.state, QpState::Rts | QpState::Err));
            let moved = bed.r.expected_psn().since(expected);
            if bed.ctx.is_reliable() {
                let packets = what.dma_len.div_ceil(PMTU as u32).max(1) as i32;
                prop_assert!(moved == 0 || what.psn_off == 0, "only the expected PSN moves it");
                prop_assert!((0..=packets.max(1)).contains(&moved));
            }
            for said in bed.host.wire.drain(..) {
                prop_assert!(bed.ctx.is_reliable());
                prop_assert!(said.payload.len() <= PMTU);
                prop_assert_eq!(said.headers.bth.dest_qp, PEER);
            }
            let failed = bed.host.received.iter().filter(|r| r.wc.status != WcStatus::Success).count();
            if bed.ctx.state == QpState::Rts && bed.ctx.is_reliable() {
                prop_assert_eq!(failed, 0, "an error of a reliable QP ends it");
            }
        }
        let (start, end) = (AT as usize, (AT + LEN) as usize);
        let buffer = BUFFER as usize;
        for (at, byte) in bed.host.memory.iter().enumerate() {
            let granted = (start..end).contains(&at) || (buffer..buffer + 1500).contains(&at);
            prop_assert!(granted || *byte == canary, "byte {:#x} was touched", at);
        }
    }
}
