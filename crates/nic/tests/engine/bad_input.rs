//! Any bytes from anyone: dropped with a counted reason, never a panic, never memory touched.

use proptest::prelude::*;
use scalefabric_nic::port::memory::WirePacket;
use scalefabric_transport::DropReason;
use scalefabric_transport::congestion::int;
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
            QpType::Ud => ud(&w.nodes[1], QKey(0x1111_1111)),
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
fn a_bad_telemetry_trailer_has_its_reason_and_a_reserved_bit_alone_harms_nothing() {
    // To a QP that is not there: that is the reason as soon as the trailer is not.
    let with = |change: fn(&mut [u8; int::LEN])| {
        let mut bytes = sealed(vec![0x04, 0, 0xff, 0xff, 0, 0x01, 0x77, 0x77, 0, 0, 0, 0]);
        bytes[int::FLAGS_AT] |= int::TRAILED;
        let mut trailer = int::ROOM;
        change(&mut trailer);
        bytes.extend(trailer);
        bytes
    };
    one_drop(with(|_| ()), DropReason::NoSuchQp);
    one_drop(with(|trailer| trailer[int::LEN - 4] += 1), DropReason::BadTrailer);
    one_drop(with(|trailer| trailer[int::LEN - 2] = 5), DropReason::BadTrailer);
    one_drop(with(|trailer| trailer[int::LEN - 1] = 255), DropReason::BadTrailer);
    // What does not begin as one is a part of the packet, which is damaged then.
    one_drop(with(|trailer| trailer[int::LEN - 8] = 0), DropReason::BadIcrc);
    let mut alone = with(|_| ());
    alone.truncate(alone.len() - int::LEN);
    one_drop(alone, DropReason::NoSuchQp);
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

#[test]
fn a_datagram_for_another_slot_is_handed_over_as_it_came() {
    use std::sync::{Arc, Mutex};

    use scalefabric_nic::ingress::Handover;
    use scalefabric_nic::port::Datagram;

    struct Mailbox(Arc<Mutex<Vec<(u8, u8, Vec<u8>)>>>);
    impl Handover for Mailbox {
        fn pass(&mut self, slot: u8, port_num: u8, datagram: &Datagram<'_>) -> bool {
            self.0.lock().unwrap().push((slot, port_num, datagram.bytes.to_vec()));
            slot == 9
        }
    }
    let mut w = World::new(2);
    let passed = Arc::new(Mutex::new(Vec::new()));
    w.nodes[1].nic.core().set_handover(Box::new(Mailbox(passed.clone())));
    let for_slot = |slot: u8| sealed(vec![0x04, 0, 0xff, 0xff, 0, slot, 0, 1, 0, 0, 0, 0]);
    w.wire.inject(packet(for_slot(9)));
    w.wire.inject(packet(for_slot(8)));
    // Telemetry goes with it.
    let mut trailed = for_slot(9);
    trailed[int::FLAGS_AT] |= int::TRAILED;
    trailed.extend(int::ROOM);
    w.wire.inject(packet(trailed.clone()));
    w.settle();
    assert_eq!(*passed.lock().unwrap(), [(9, 1, for_slot(9)), (8, 1, for_slot(8)), (9, 1, trailed)]);
    let counters = w.nodes[1].nic.counters(1);
    assert_eq!((counters.drops(DropReason::NoSuchQp), counters.all_drops()), (1, 1), "slot 8 had no room");
}

#[test]
fn datagrams_for_qp_1_are_kept_for_whoever_asks_and_not_without_end() {
    let mut w = World::new(2);
    let mad = |n: u8| {
        let mut bytes = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, n];
        bytes.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
        bytes.extend([n; 256]);
        sealed(bytes)
    };
    w.wire.inject(packet(mad(0)));
    w.settle();
    let drops = |w: &World, reason| w.nodes[1].nic.counters(1).drops(reason);
    assert_eq!(drops(&w, DropReason::NoSuchQp), 1, "nobody speaks CM yet");
    let core = w.nodes[1].nic.core().clone();
    core.open_gsi();
    (0..=255).for_each(|n| w.wire.inject(packet(mad(n))));
    w.wire.inject(packet(mad(7)));
    w.settle();
    assert_eq!(drops(&w, DropReason::ReceiverNotReady), 1, "the 257th");
    let first = core.take_gsi().unwrap();
    assert_eq!((first.src, first.dst, first.payload().len(), first.port_num), (gid(1), gid(2), 256, 1));
    assert_eq!(first.headers.deth.unwrap().qkey, QKey(0x8001_0000));
    assert_eq!((1..=255).map(|n| core.take_gsi().unwrap().payload()[0] == n).filter(|same| *same).count(), 255);
    assert_eq!(core.take_gsi(), None);
}
