//! UC, UD and the initiator of XRC: what they send, and what an error does to them (clauses 9.8, 10.3.1.6, annex A14).

use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::{AddressVector, Mtu, QKey, QpAttrMask, QpState, QpType, Qpn, RKey, Srqn};

use super::{Dialogue, SIGNALED, WRITE, piece};
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::{Link, Piece, WHOLE};

#[test]
fn uc_segments_and_completes_when_sent() {
    let mut d = Dialogue::new(QpType::Uc, Config::default(), |_| ());
    d.post(1, WqeOp::SendWithImm { imm: 5 }, 2049);
    d.post(2, WRITE, 0);
    let sent = d.sends();
    assert!(sent.iter().all(|p| !p.headers.bth.ack_req));
    let names: alloc::vec::Vec<_> = sent.iter().map(|p| p.headers.bth.opcode.info().name).collect();
    assert_eq!(names, ["UC SEND FIRST", "UC SEND MIDDLE", "UC SEND LAST with immediate", "UC RDMA WRITE ONLY"]);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
    assert_eq!(d.side.qp.deadline(), None);
    assert_eq!(d.side.host.sends_left(), 0);
}

#[test]
fn a_send_error_leads_uc_to_sqe_and_back_while_it_goes_on_receiving() {
    let mut link = Link::new((QpType::Uc, QpType::Uc), 1 << 16, Config::default(), |_| ());
    link.a.host.post_send(1, WqeOp::Send, SIGNALED, &[Piece { addr: 0, length: 8, key: 0xbad }]);
    link.a.host.post_send(2, WqeOp::Send, SIGNALED, &[piece(0, 8)]);
    link.a.host.post_recv(9, &[piece(0, 64)]);
    link.b.host.post_recv(8, &[piece(0, 64)]);
    link.run();
    let done =
        |link: &mut Link| link.a.host.sent.drain(..).map(|w| (w.wr_id, w.status)).collect::<alloc::vec::Vec<_>>();
    assert_eq!(done(&mut link), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(link.a.qp.state(), QpState::Sqe);
    link.a.host.post_send(3, WqeOp::Send, SIGNALED, &[piece(0, 8)]);
    link.a.qp.flush(&mut link.a.host);
    assert_eq!(done(&mut link), [(3, WrFlushErr)]);
    link.b.host.post_send(4, WqeOp::Send, SIGNALED, &[piece(0, 8)]);
    link.run();
    assert_eq!(link.a.host.received.len(), 1);
    link.a.to_state(QpState::Rts);
    link.a.host.post_send(5, WqeOp::Send, SIGNALED, &[piece(0, 8)]);
    link.run();
    assert_eq!(done(&mut link), [(5, Success)]);
    assert_eq!(link.b.host.received.len(), 1);
}

#[test]
fn a_datagram_carries_its_own_address_and_q_key() {
    let mut d = Dialogue::new(QpType::Ud, Config::default(), |attr| attr.qkey = QKey(0x8765_4321));
    let av = AddressVector { flow_label: 77, ..d.peer.address(1) };
    for qkey in [QKey(0x7fff_ffff), QKey(0x8000_0000)] {
        d.side.host.post_datagram(1, WqeOp::Send, &[piece(0, 100)], (av, Qpn::new(0x33), qkey));
    }
    let sent = d.sends();
    let deth: alloc::vec::Vec<_> = sent.iter().map(|p| p.headers.deth.unwrap()).collect();
    assert_eq!(deth[0].qkey, QKey(0x7fff_ffff));
    assert_eq!(deth[1].qkey, QKey(0x8765_4321), "the top bit means the QP's own");
    assert_eq!(deth[0].src_qp, d.side.qp.qpn());
    assert_eq!((sent[0].headers.bth.dest_qp, sent[0].dst, sent[0].port_num), (Qpn::new(0x33), av.dgid, 1));
    assert_eq!(super::relative(&sent[1]), 1);
    assert_eq!(d.completions(), [(1, Success), (1, Success)]);
}

#[test]
fn a_datagram_of_one_byte_more_than_the_mtu_is_loc_len_err() {
    for (length, status, state) in [(1024, Success, QpState::Rts), (1025, LocLenErr, QpState::Sqe)] {
        let mut d = Dialogue::new(QpType::Ud, Config::default(), |_| ());
        d.side.host.mtu = Mtu::Mtu1024;
        let to = (d.peer.address(1), Qpn::new(0x33), QKey(1));
        d.side.host.post_datagram(1, WqeOp::Send, &[piece(0, length)], to);
        d.sends();
        assert_eq!(d.completions(), [(1, status)]);
        assert_eq!(d.side.qp.state(), state);
    }
}

#[test]
fn a_datagram_by_a_handle_of_another_port_is_loc_qp_op_err() {
    let mut d = Dialogue::new(QpType::Ud, Config::default(), |_| ());
    let av = d.peer.address(2);
    d.side.host.post_datagram(1, WqeOp::Send, &[piece(0, 100)], (av, Qpn::new(0x33), QKey(1)));
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, LocQpOpErr)]);
}

#[test]
fn a_datagram_without_address_and_a_write_on_ud_are_loc_qp_op_err() {
    for op in [WqeOp::Send, WRITE] {
        let mut d = Dialogue::new(QpType::Ud, Config::default(), |_| ());
        d.post(1, op, 8);
        assert_eq!(d.sends(), []);
        assert_eq!(d.completions(), [(1, LocQpOpErr)]);
    }
}

#[test]
fn each_request_packet_of_xrc_names_the_srq() {
    let mut d = Dialogue::new(QpType::XrcSend, Config::default(), |_| ());
    let ops = [
        (WqeOp::Send, 2049),
        (WqeOp::Write { remote_addr: 0, rkey: RKey(WHOLE) }, 8),
        (WqeOp::Read { remote_addr: 0, rkey: RKey(WHOLE) }, 8),
        (WqeOp::FetchAdd { remote_addr: 0, rkey: RKey(WHOLE), add: 1 }, 8),
    ];
    for (op, length) in ops {
        d.side.host.post_xrc(1, op, &[piece(0, length)], Srqn::new(0x55));
    }
    let sent = d.sends();
    assert_eq!(sent.len(), 6);
    assert!(sent.iter().all(|p| p.headers.xrceth == Some(Srqn::new(0x55))));
    assert!(sent.iter().all(|p| p.headers.bth.opcode.info().name.starts_with("XRC")));
}

#[test]
fn sqe_takes_no_new_attributes_but_those_of_its_transition() {
    let mut d = Dialogue::new(QpType::Uc, Config::default(), |_| ());
    d.post(1, super::READ, 8);
    d.sends();
    let attr = scalefabric_verbs::QpAttr { qp_state: QpState::Rts, ..d.side.qp.query() };
    assert!(d.side.modify(&attr, QpAttrMask::STATE | QpAttrMask::TIMEOUT).is_err());
    assert_eq!(d.side.qp.state(), QpState::Sqe);
    assert!(d.side.modify(&attr, QpAttrMask::STATE).is_ok());
}

#[test]
fn what_is_posted_in_sqe_is_flushed_with_the_next_turn() {
    let mut d = Dialogue::new(QpType::Uc, Config::default(), |_| ());
    d.post(1, super::READ, 8);
    d.sends();
    d.post(2, WRITE, 8);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, LocQpOpErr), (2, WrFlushErr)]);
}

#[test]
fn xrc_moves_data_both_ways_over_a_wire_that_loses() {
    let srqn = Srqn::new(0x55);
    let mut link = Link::new((QpType::XrcSend, QpType::XrcRecv), 1 << 16, Config::default(), |attr| attr.timeout = 8);
    for (i, byte) in link.a.host.memory.iter_mut().enumerate() {
        *byte = (i % 241) as u8;
    }
    for wr_id in 0..4 {
        link.b.host.post_srq_recv(srqn, wr_id, &[piece(0x8000, 4096)]);
    }
    let (write, read) = (
        WqeOp::Write { remote_addr: 0x4000, rkey: RKey(WHOLE) },
        WqeOp::Read { remote_addr: 0x4000, rkey: RKey(WHOLE) },
    );
    link.a.host.post_xrc(1, WqeOp::Send, &[piece(0, 3000)], srqn);
    link.a.host.post_xrc(2, write, &[piece(0x100, 5000)], srqn);
    link.a.host.post_xrc(3, read, &[piece(0x4000, 5000)], srqn);
    let mut n = 0;
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut |_, _| {
        n += 1;
        if n % 4 == 0 { crate::testing::Fate::Lost } else { crate::testing::Fate::Arrives }
    });
    let done: alloc::vec::Vec<_> = link.a.host.sent.iter().map(|w| (w.wr_id, w.status)).collect();
    assert_eq!(done, [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(link.b.host.received.len(), 1);
    assert_eq!(link.b.host.memory[0x8000..0x8000 + 3000], link.a.host.memory[..3000]);
    assert_eq!(link.b.host.memory[0x4000..0x4000 + 5000], link.a.host.memory[0x100..0x100 + 5000]);
    assert_eq!(link.a.host.memory[0x4000..0x4000 + 5000], link.a.host.memory[0x100..0x100 + 5000]);
}
