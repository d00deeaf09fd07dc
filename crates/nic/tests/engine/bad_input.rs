//! Any bytes from anyone: dropped with a counted reason, never a panic, never memory touched.

use proptest::prelude::*;
use scalefabric_nic::port::memory::WirePacket;
use scalefabric_transport::DropReason;
use scalefabric_verbs::*;
use scalefabric_wire::icrc::Flow;

use crate::node::*;

fn packet(bytes: Vec<u8>) -> WirePacket {
    WirePacket {
        from: usize::MAX,
        src: ip(1, 1),
        src_port: 0xc123,
        dst: ip(2, 1),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        ip_id: 0,
        bytes,
    }
}

/// The bytes with a right ICRC behind them.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().max(12).next_multiple_of(4), 0);
    let icrc = Flow::between(gid(1), gid(2), 0xc123).icrc(0, &bytes);
    bytes.extend(icrc.to_le_bytes());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_are_dropped_or_ignored(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let mut w = World::new(2);
        let _qps = w.connect(QpType::Rc);
        let mr = w.nodes[1].mr(4096);
        mr.write(0, &[0x55; 4096]).unwrap();
        let count = all.len() as u64;
        all.into_iter().for_each(|bytes| w.wire.inject(packet(bytes)));
        w.settle();
        prop_assert_eq!(w.nodes[1].nic.counters(1).all_drops(), count);
        prop_assert_eq!(read(&mr, 0, 4096), vec![0x55; 4096]);
    }

    #[test]
    fn well_sealed_nonsense_to_a_real_qp_touches_no_memory(
        opcode in prop::sample::select(scalefabric_wire::opcode::TABLE.iter().map(|o| o.code).collect::<Vec<_>>()),
        flags: u8, psn in 0u32..8, ack: bool, body in prop::collection::vec(any::<u8>(), 0..120),
        qp_type in prop::sample::select(vec![QpType::Rc, QpType::Uc, QpType::Ud]),
    ) {
        let mut w = World::new(2);
        let qp = match qp_type {
            QpType::Ud => crate::datagram::ud(&w.nodes[1], QKey(0x1111_1111)),
            _ => w.connect(qp_type)[1].clone(),
        };
        let mr = w.nodes[1].mr(4096);
        mr.write(0, &[0x55; 4096]).unwrap();
        let mut bytes = vec![opcode, flags & 0xf0, 0xff, 0xff];
        bytes.extend(qp.qp_num().get().to_be_bytes());
        bytes.extend(((0xff_fff0 + psn) | (u32::from(ack) << 31)).to_be_bytes());
        bytes.extend(body);
        w.wire.inject(packet(sealed(bytes)));
        w.settle();
        w.advance(1_000_000_000);
        prop_assert_eq!(read(&mr, 0, 4096), vec![0x55; 4096]);
    }
}

fn one_drop(bytes: Vec<u8>, reason: DropReason) {
    let mut w = World::new(2);
    let _qps = w.connect(QpType::Rc);
    w.wire.inject(packet(bytes));
    w.settle();
    let counters = w.nodes[1].nic.counters(1);
    assert_eq!((counters.drops(reason), counters.all_drops()), (1, 1), "{reason:?}");
}

#[test]
fn each_early_check_has_its_reason() {
    let bth = |opcode: u8, flags: u8, qpn: u32| {
        let mut bytes = vec![opcode, flags, 0xff, 0xff];
        bytes.extend(qpn.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    };
    one_drop(vec![0; 3], DropReason::Truncated);
    one_drop(sealed(bth(0xff, 0, 0x01_0001)), DropReason::BadOpcode);
    one_drop(sealed(bth(0x04, 0x01, 0x01_0001)), DropReason::BadVersion);
    one_drop(sealed(bth(0x04, 0x30, 0x01_0001)), DropReason::BadPad);
    one_drop(sealed(bth(0x06, 0, 0x01_0001)), DropReason::Truncated);
    one_drop(sealed(bth(0x04, 0, 0x01_7777)), DropReason::NoSuchQp);
    one_drop(sealed(bth(0x04, 0, 0x09_0001)), DropReason::NoSuchQp);
    one_drop(sealed(bth(0x04, 0, 1)), DropReason::NoSuchQp);
    one_drop(sealed(bth(0x04, 0, 0xff_ffff)), DropReason::Malformed);
    let mut damaged = sealed(bth(0x04, 0, 0x01_0001));
    damaged[9] ^= 1;
    one_drop(damaged, DropReason::BadIcrc);
}

#[test]
fn packets_of_a_stranger_are_not_heard() {
    let mut w = World::new(3);
    let [_a, b] = w.connect(QpType::Rc);
    let dst = w.nodes[1].mr(64);
    recv(&b, 1, &dst, 0, 64);
    let mut bytes = vec![0x04, 0, 0xff, 0xff];
    bytes.extend(b.qp_num().get().to_be_bytes());
    bytes.extend(0x80ff_fff0u32.to_be_bytes());
    bytes.extend(b"spoofed!");
    let icrc = Flow::between(gid(3), gid(2), 0xc123).icrc(0, &bytes);
    bytes.extend(icrc.to_le_bytes());
    w.wire.inject(WirePacket { src: ip(3, 1), ..packet(bytes) });
    w.settle();
    assert_eq!(w.nodes[1].poll(), []);
    assert_eq!(w.nodes[1].nic.counters(1).drops(DropReason::WrongPeer), 1);
}
