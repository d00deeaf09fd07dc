//! Every check at its edge, and one step beyond.

use scalefabric_verbs::{QpState, QpType};

use super::*;
use Position::{First, Last, Middle, Only};

/// The packets are taken and the QP goes on.
#[track_caller]
fn accepts(mut bed: Bed, packets: &[Packet]) {
    bed.all(packets);
    let said = bed.said();
    assert_eq!(bed.ctx.state, QpState::Rts, "refused: {:?}", said.last());
}

/// The last packet is refused with this NAK at its PSN, and ends the connection; those before it are taken.
#[track_caller]
fn refuses(mut bed: Bed, packets: &[Packet], code: NakCode, reason: DropReason) {
    bed.all(&packets[..packets.len() - 1]);
    assert_eq!(bed.ctx.state, QpState::Rts);
    let (at, memory) = (bed.psn, bed.host.memory.clone());
    bed.all(&packets[packets.len() - 1..]);
    let said = bed.said();
    assert_nak(&said[said.len() - 1..], at, code);
    assert_eq!(bed.ctx.state, QpState::Err);
    assert_eq!(bed.dropped(reason), 1);
    assert_eq!(bed.host.memory, memory, "what is refused moves no byte");
}

/// The packet is dropped, silently.
#[track_caller]
fn drops(bed: &mut Bed, packet: &Packet, reason: DropReason) {
    let before = bed.dropped(reason);
    bed.give(packet);
    assert!(bed.said().is_empty());
    assert_eq!(bed.dropped(reason), before + 1);
    assert_eq!((bed.ctx.state, bed.host.received.len()), (QpState::Rts, 0));
}

fn with_receive(length: u32) -> Bed {
    let mut bed = Bed::rc();
    bed.post(1, length);
    bed
}

#[test]
fn another_service_is_dropped() {
    let mut bed = with_receive(64);
    let packet = Bed::new(QpType::Uc).send(Only, &[1]);
    drops(&mut bed, &packet, DropReason::WrongTransport);
}

#[test]
fn another_source_port_or_destination_is_dropped() {
    let mut bed = with_receive(64);
    let good = bed.send(Only, &[1]);
    for change in [(|p: &mut Packet| p.src = Gid::ZERO) as fn(&mut Packet), |p| p.port_num = 2, |p| p.dst = Gid::ZERO] {
        let mut packet = good.clone();
        change(&mut packet);
        drops(&mut bed, &packet, DropReason::WrongPeer);
    }
    accepts(bed, &[good]);
}

use scalefabric_wire::Gid;

#[test]
fn another_partition_is_dropped_as_the_table_says_now() {
    let mut bed = with_receive(64);
    bed.host.pkeys[0][0] = PKey(0x8001);
    let mut packet = bed.send(Only, &[1]);
    drops(&mut bed, &packet, DropReason::BadPKey);
    packet.headers.bth.pkey = PKey(0x0001);
    accepts(bed, &[packet]);
}

#[test]
fn states_before_rtr_and_after_rts_take_nothing() {
    for state in [QpState::Reset, QpState::Init, QpState::Err] {
        let mut bed = with_receive(64);
        bed.ctx.state = state;
        bed.give(&bed.send(Only, &[1]));
        assert_eq!(bed.dropped(DropReason::QpState), 1, "{state:?}");
    }
    for state in [QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let mut bed = with_receive(64);
        bed.ctx.state = state;
        bed.give(&bed.send(Only, &[1]));
        assert_eq!(bed.host.received.len(), 1, "{state:?}");
    }
}

#[test]
fn message_must_begin_with_first_or_only() {
    refuses(
        with_receive(4096),
        &[Bed::rc().send(Middle, &bytes(PMTU))],
        NakCode::InvalidRequest,
        DropReason::OpcodeSequence,
    );
    refuses(
        with_receive(4096),
        &[Bed::rc().write(Last, 0, 0, &[1])],
        NakCode::InvalidRequest,
        DropReason::OpcodeSequence,
    );
    accepts(with_receive(4096), &[Bed::rc().send(First, &bytes(PMTU)), Bed::rc().send(Last, &[1])]);
}

#[test]
fn nothing_comes_between_first_and_last() {
    let bed = Bed::rc();
    for intruder in [
        bed.send(Only, &[1]),
        bed.send(First, &bytes(PMTU)),
        bed.write(Middle, 0, 0, &bytes(PMTU)),
        bed.write(Only, AT, 1, &[1]),
        bed.read(AT, 1),
        bed.fetch_add(AT, 1),
        bed.flush_request(AT, 1, 1, 0),
    ] {
        refuses(
            with_receive(4096),
            &[bed.send(First, &bytes(PMTU)), intruder],
            NakCode::InvalidRequest,
            DropReason::OpcodeSequence,
        );
    }
    refuses(
        with_receive(4096),
        &[bed.write(First, AT, 2000, &bytes(PMTU)), bed.send(Last, &[1])],
        NakCode::InvalidRequest,
        DropReason::OpcodeSequence,
    );
}

#[test]
fn xrc_message_stays_with_its_srq() {
    let xrc = || {
        let mut bed = Bed::new(QpType::XrcRecv);
        for srqn in [SRQ, Srqn::new(78)] {
            bed.host.post_srq_recv(srqn, 1, &[Piece { addr: BUFFER, length: 4096, key: WHOLE }]);
        }
        bed
    };
    let mut last = xrc().send(Last, &[1]);
    accepts(xrc(), &[xrc().send(First, &bytes(PMTU)), last.clone()]);
    last.headers.xrceth = Some(Srqn::new(78));
    refuses(xrc(), &[xrc().send(First, &bytes(PMTU)), last], NakCode::InvalidRequest, DropReason::OpcodeSequence);
}

#[test]
fn each_operation_needs_its_right_on_the_qp() {
    let bed = Bed::rc();
    for (packet, right) in [
        (bed.write(Only, AT, 1, &[1]), AccessFlags::REMOTE_WRITE),
        (bed.read(AT, 1), AccessFlags::REMOTE_READ),
        (bed.fetch_add(AT, 1), AccessFlags::REMOTE_ATOMIC),
        (bed.compare_swap(AT, 1, 1), AccessFlags::REMOTE_ATOMIC),
        (bed.atomic_write(AT, [1; 8]), AccessFlags::REMOTE_WRITE),
        (bed.flush_request(AT, 1, 1, 0), AccessFlags::FLUSH_GLOBAL),
        (bed.flush_request(AT, 1, 3, 0), AccessFlags::FLUSH_PERSISTENT),
    ] {
        let mut without = Bed::rc();
        without.ctx.attr.qp_access_flags.remove(right);
        refuses(without, core::slice::from_ref(&packet), NakCode::InvalidRequest, DropReason::RemoteAccess);
        accepts(Bed::rc(), &[packet]);
    }
}

#[test]
fn each_operation_needs_its_right_on_the_region() {
    let bed = Bed::rc();
    for (packet, right) in [
        (bed.write(Only, AT, 1, &[1]), AccessFlags::REMOTE_WRITE),
        (bed.write(First, AT, 2000, &bytes(PMTU)), AccessFlags::REMOTE_WRITE),
        (bed.read(AT, 1), AccessFlags::REMOTE_READ),
        (bed.fetch_add(AT, 1), AccessFlags::REMOTE_ATOMIC),
        (bed.atomic_write(AT, [1; 8]), AccessFlags::REMOTE_WRITE),
        (bed.flush_request(AT, 1, 1, 0), AccessFlags::FLUSH_GLOBAL),
    ] {
        let mut without = Bed::rc();
        without.host.regions[1].access.remove(right);
        refuses(without, &[packet], NakCode::RemoteAccessError, DropReason::RemoteAccess);
    }
}

#[test]
fn flush_of_no_known_kind_is_refused() {
    for (plt, sel) in [(0, 0), (4, 0), (1, 2)] {
        refuses(Bed::rc(), &[Bed::rc().flush_request(AT, 1, plt, sel)], NakCode::InvalidRequest, DropReason::Malformed);
    }
    accepts(Bed::rc(), &[Bed::rc().flush_request(AT, 1, 1, 1)]);
}

#[test]
fn reads_and_atomics_beyond_the_limit_are_refused() {
    // Four are remembered; while none is answered, a fifth is one too many.
    for extra in [Bed::rc().read(AT, 1), Bed::rc().fetch_add(AT, 1), Bed::rc().atomic_write(AT, [1; 8])] {
        let mut bed = Bed::rc();
        for _ in 0..4 {
            bed.next(&bed.read(AT, 1));
        }
        let mut extra = extra;
        extra.headers.bth.psn = bed.psn;
        bed.next(&extra);
        assert_eq!(bed.ctx.state, QpState::Err);
        let said = bed.said();
        assert_eq!(said.len(), 5, "the four are answered");
        assert_nak(&said[4..], Psn::new(2), NakCode::InvalidRequest);
        assert_eq!(bed.dropped(DropReason::NoResources), 1);
    }
    let mut bed = Bed::rc();
    for _ in 0..4 {
        bed.next(&bed.read(AT, 1));
    }
    assert_eq!(bed.transmit(1), Some(Next::Ready));
    accepts(bed, &[Bed::rc().read(AT, 1)]);
}

#[test]
fn with_max_dest_rd_atomic_0_no_read_is_taken() {
    let mut bed = Bed::rc();
    bed.ctx.attr.max_dest_rd_atomic = 0;
    refuses(bed, &[Bed::rc().read(AT, 1)], NakCode::InvalidRequest, DropReason::NoResources);
}

#[test]
fn first_and_middle_fill_the_path_mtu() {
    let bed = Bed::rc();
    for length in [PMTU - 1, PMTU + 1] {
        let too = bytes(length);
        refuses(with_receive(8192), &[bed.send(First, &too)], NakCode::InvalidRequest, DropReason::BadLength);
        refuses(Bed::rc(), &[bed.write(First, AT, 5000, &too)], NakCode::InvalidRequest, DropReason::BadLength);
        refuses(
            with_receive(8192),
            &[bed.send(First, &bytes(PMTU)), bed.send(Middle, &too)],
            NakCode::InvalidRequest,
            DropReason::BadLength,
        );
    }
}

#[test]
fn last_has_one_byte_to_a_full_path_mtu() {
    let bed = Bed::rc();
    for length in [1, PMTU] {
        accepts(with_receive(8192), &[bed.send(First, &bytes(PMTU)), bed.send(Last, &bytes(length))]);
    }
    for length in [0, PMTU + 1] {
        refuses(
            with_receive(8192),
            &[bed.send(First, &bytes(PMTU)), bed.send(Last, &bytes(length))],
            NakCode::InvalidRequest,
            DropReason::BadLength,
        );
    }
}

#[test]
fn only_has_up_to_a_full_path_mtu() {
    let bed = Bed::rc();
    for length in [0, PMTU] {
        accepts(with_receive(8192), &[bed.send(Only, &bytes(length))]);
        accepts(Bed::rc(), &[bed.write(Only, AT, length as u32, &bytes(length))]);
    }
    let too = bytes(PMTU + 1);
    refuses(with_receive(8192), &[bed.send(Only, &too)], NakCode::InvalidRequest, DropReason::BadLength);
    refuses(Bed::rc(), &[bed.write(Only, AT, too.len() as u32, &too)], NakCode::InvalidRequest, DropReason::BadLength);
}

#[test]
fn message_fits_the_receive_buffer() {
    let bed = Bed::rc();
    let whole = [bed.send(First, &bytes(PMTU)), bed.send(Last, &bytes(10))];
    accepts(with_receive(PMTU as u32 + 10), &whole);
    refuses(with_receive(PMTU as u32 + 9), &whole, NakCode::InvalidRequest, DropReason::BadLength);
    accepts(with_receive(5), &[bed.send(Only, &[0; 5])]);
    refuses(with_receive(4), &[bed.send(Only, &[0; 5])], NakCode::InvalidRequest, DropReason::BadLength);
}

#[test]
fn packets_of_a_write_add_up_to_its_reth() {
    let bed = Bed::rc();
    let first = |total| bed.write(First, AT, total, &bytes(PMTU));
    let p = PMTU as u32;
    accepts(Bed::rc(), &[first(p + 3), bed.write(Last, 0, 0, &[0; 3])]);
    // Too little, too much, and a FIRST or MIDDLE with which it would be complete.
    for last in [2, 4] {
        refuses(
            Bed::rc(),
            &[first(p + 3), bed.write(Last, 0, 0, &bytes(last))],
            NakCode::InvalidRequest,
            DropReason::BadLength,
        );
    }
    refuses(Bed::rc(), &[first(p)], NakCode::InvalidRequest, DropReason::BadLength);
    refuses(
        Bed::rc(),
        &[first(2 * p), bed.write(Middle, 0, 0, &bytes(PMTU))],
        NakCode::InvalidRequest,
        DropReason::BadLength,
    );
    for total in [0, 2] {
        refuses(Bed::rc(), &[bed.write(Only, AT, total, &[1])], NakCode::InvalidRequest, DropReason::BadLength);
    }
}

#[test]
fn no_message_is_longer_than_2_to_the_31() {
    let mut bed = Bed::rc();
    bed.host.regions[1].length = 1 << 32;
    let longest = bed.write(First, AT, 1 << 31, &bytes(PMTU));
    let longer = bed.write(First, AT, (1 << 31) + 1, &bytes(PMTU));
    let reads = [bed.read(AT, 1 << 31), bed.read(AT, (1 << 31) + 1)];
    bed.give(&longest);
    assert_eq!(bed.ctx.state, QpState::Rts);
    refuses(Bed::rc(), &[longer], NakCode::InvalidRequest, DropReason::BadLength);
    let mut bed = Bed::rc();
    bed.host.regions[1].length = 1 << 32;
    bed.give(&reads[0]);
    assert_eq!(bed.ctx.state, QpState::Rts);
    refuses(Bed::rc(), &reads[1..], NakCode::InvalidRequest, DropReason::BadLength);
}

#[test]
fn atomic_write_has_eight_bytes() {
    let good = Bed::rc().atomic_write(AT, [1; 8]);
    accepts(Bed::rc(), core::slice::from_ref(&good));
    let mut short = good.clone();
    short.payload.pop();
    let mut wrong = good;
    wrong.headers.reth.as_mut().unwrap().dma_len = 7;
    for packet in [short, wrong] {
        refuses(Bed::rc(), &[packet], NakCode::InvalidRequest, DropReason::BadLength);
    }
}

#[test]
fn access_stays_inside_its_region() {
    let bed = Bed::rc();
    let end = AT + LEN;
    for packet in [
        bed.write(Only, end - 4, 4, &[1; 4]),
        bed.write(Only, AT, 4, &[1; 4]),
        bed.write(First, end - 2000, 2000, &bytes(PMTU)),
        bed.read(end - 4, 4),
        bed.fetch_add(end - 8, 1),
        bed.flush_request(end - 4, 4, 1, 0),
    ] {
        let mut bed = Bed::rc();
        bed.give(&packet);
        assert_eq!(bed.ctx.state, QpState::Rts);
    }
    for packet in [
        bed.write(Only, end - 3, 4, &[1; 4]),
        bed.write(Only, AT - 1, 4, &[1; 4]),
        bed.write(Only, u64::MAX - 1, 4, &[1; 4]),
        bed.write(First, end - 1999, 2000, &bytes(PMTU)),
        bed.read(end - 3, 4),
        bed.read(u64::MAX, 4),
        bed.fetch_add(end, 1),
        bed.fetch_add(end - 4, 1),
        bed.flush_request(end - 3, 4, 1, 0),
    ] {
        refuses(Bed::rc(), &[packet], NakCode::RemoteAccessError, DropReason::RemoteAccess);
    }
}

#[test]
fn wrong_key_is_refused() {
    for mut packet in [Bed::rc().write(Only, AT, 4, &[1; 4]), Bed::rc().read(AT, 1), Bed::rc().atomic_write(AT, [1; 8])]
    {
        packet.headers.reth.as_mut().unwrap().rkey = RKey(KEY + 1);
        refuses(Bed::rc(), &[packet], NakCode::RemoteAccessError, DropReason::RemoteAccess);
    }
}

#[test]
fn memory_that_went_away_is_our_trouble() {
    let mut bed = Bed::rc();
    bed.host.regions[1].gone = true;
    refuses(bed, &[Bed::rc().write(Only, AT, 1, &[1])], NakCode::RemoteOperationalError, DropReason::RemoteAccess);
}

#[test]
fn atomics_are_aligned() {
    let bed = Bed::rc();
    for packet in [bed.fetch_add(AT + 4, 1), bed.compare_swap(AT + 1, 0, 1), bed.atomic_write(AT + 7, [1; 8])] {
        refuses(Bed::rc(), &[packet], NakCode::InvalidRequest, DropReason::Malformed);
    }
    accepts(Bed::rc(), &[bed.fetch_add(AT + 8, 1)]);
}

#[test]
fn first_fault_in_the_order_of_the_checks_is_the_one_that_is_told() {
    // Misaligned and out of bounds: the key check comes first.
    refuses(Bed::rc(), &[Bed::rc().fetch_add(3, 1)], NakCode::RemoteAccessError, DropReason::RemoteAccess);
    // Too long and with a wrong key: the length comes first.
    let mut packet = Bed::rc().write(Only, AT, 5, &[1; 4]);
    packet.headers.reth.as_mut().unwrap().rkey = RKey(1);
    refuses(Bed::rc(), core::slice::from_ref(&packet), NakCode::InvalidRequest, DropReason::BadLength);
    // Not expected: nothing else is looked at.
    let mut bed = Bed::rc();
    packet.headers.bth.psn = bed.psn.next();
    bed.give(&packet);
    assert_nak(&bed.said(), bed.psn, NakCode::PsnSequenceError);
    assert_eq!(bed.ctx.state, QpState::Rts);
}

#[test]
fn packet_without_a_header_that_its_opcode_needs_is_dropped() {
    let mut bed = Bed::rc();
    for (operation, position) in [
        (Operation::Write, Only),
        (Operation::ReadRequest, Only),
        (Operation::FetchAdd, Only),
        (Operation::Flush, Only),
        (Operation::AtomicWrite, Only),
        (Operation::SendWithImm, Only),
        (Operation::SendWithInv, Only),
    ] {
        let packet = bed.packet(operation, position, &[]);
        drops(&mut bed, &packet, DropReason::Malformed);
    }
    let mut ud = Bed::new(QpType::Ud);
    let mut packet = ud.send(Only, &[]);
    packet.headers.deth = None;
    drops(&mut ud, &packet, DropReason::Malformed);
}
