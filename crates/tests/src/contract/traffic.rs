//! Messages: SEND and what it carries, over each type of QP.

use scalefabric_verbs::{
    QKey, QpType, RecvWr, SendFlags, SendOp, SendWr, SrqInit, UdAddress, WcFlags, WcOpcode, XrcDomain,
};
use std::sync::Arc;

use super::bench::{Bench, End, Path, QKEY, Shape, next_of, or_skip};
use super::{Outcome, Stop, cases, ensure, same};

cases![
    rc_messages_of_all_sizes_arrive_whole,
    uc_messages_of_all_sizes_arrive_whole,
    immediate_data_arrives_in_host_order,
    a_message_is_gathered_and_scattered,
    inline_bytes_may_be_overwritten_at_once,
    only_signaled_sends_complete,
    messages_in_both_directions_arrive_in_order,
    datagrams_bring_their_grh_and_can_be_answered,
    a_datagram_with_a_wrong_qkey_is_not_received,
    xrc_messages_go_to_the_srq_that_they_name,
    a_chain_completes_in_its_order,
];

/// Sizes around the MTU.
fn sizes(bench: &Bench) -> Vec<usize> {
    let mtu = bench.mtu();
    vec![0, 1, 7, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 40_000]
}

fn messages_of_all_sizes(bench: &Bench, qp_type: QpType) -> Outcome {
    let (one, other) = bench.pair(qp_type)?;
    for (index, size) in sizes(bench).into_iter().enumerate() {
        let sent = one.fill(0, size, index as u8)?;
        other.mr.write(0, &vec![0xee; size + 1])?;
        other.receive(index as u64, 0, 1 << 16)?;
        let list = [one.sge(0, size)];
        one.send(100 + index as u64, SendOp::Send, if size == 0 { &[] } else { &list })?;
        let wc = other.good(index as u64)?;
        same!((wc.opcode, wc.byte_len as usize), (WcOpcode::Recv, size), "the receive");
        same!(wc.qp_num, other.qp.qp_num(), "the QP of the receive");
        same!(one.good(100 + index as u64)?.opcode, WcOpcode::Send, "the send");
        ensure!(other.bytes(0, size)? == sent, "{size} bytes differ");
        same!(other.bytes(size, 1)?, [0xee], "the byte behind the message");
    }
    Ok(())
}

fn rc_messages_of_all_sizes_arrive_whole(bench: &Bench) -> Outcome {
    messages_of_all_sizes(bench, QpType::Rc)
}

fn uc_messages_of_all_sizes_arrive_whole(bench: &Bench) -> Outcome {
    messages_of_all_sizes(bench, QpType::Uc)
}

fn immediate_data_arrives_in_host_order(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    other.receive(1, 0, 64)?;
    one.send(2, SendOp::SendWithImm { imm: 0x0102_0304 }, &[one.sge(0, 5)])?;
    let wc = other.good(1)?;
    ensure!(wc.flags.contains(WcFlags::WITH_IMM), "no immediate: {wc:?}");
    same!((wc.imm, wc.byte_len), (0x0102_0304, 5), "the immediate and the length");
    one.good(2)?;
    Ok(())
}

fn a_message_is_gathered_and_scattered(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let sent = one.fill(0, 6000, 3)?;
    let into = [other.sge(0, 10), other.sge(1000, 2990), other.sge(20_000, 9000)];
    other.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &into }])?;
    one.send(2, SendOp::Send, &[one.sge(0, 1), one.sge(1, 3999), one.sge(4000, 2000)])?;
    same!(other.good(1)?.byte_len, 6000, "the length");
    one.good(2)?;
    let got = [other.bytes(0, 10)?, other.bytes(1000, 2990)?, other.bytes(20_000, 3000)?].concat();
    ensure!(got == sent, "the bytes differ");
    Ok(())
}

fn inline_bytes_may_be_overwritten_at_once(bench: &Bench) -> Outcome {
    let bytes = bench.attr.max_inline_data.min(64) as usize;
    if bytes == 0 {
        return Err(Stop::Skip("the device has no inline data".to_owned()));
    }
    let mut shape = Shape::new(QpType::Rc);
    shape.cap.max_inline_data = bytes as u32;
    shape.cap.max_send_sge = 1;
    let (one, other) = bench.pair_with(&shape, Path::default())?;
    other.receive(1, 0, 1 << 12)?;
    let mut data = vec![0x5a; bytes];
    let mut wr = SendWr::new(2, SendOp::Send);
    wr.flags = SendFlags::SIGNALED | SendFlags::INLINE;
    wr.inline_data = &data;
    one.qp.post_send(&[wr])?;
    // The bytes go away before anything can have been acknowledged.
    data.fill(0);
    drop(data);
    same!(other.good(1)?.byte_len as usize, bytes, "the length");
    one.good(2)?;
    same!(other.bytes(0, bytes)?, vec![0x5a; bytes], "the bytes");
    // SGEs that name memory are for the unsafe call.
    let list = [one.sge(0, 8)];
    let with_list = SendWr { sg_list: &list, flags: SendFlags::INLINE, ..SendWr::new(3, SendOp::Send) };
    ensure!(one.qp.post_send(&[with_list]).is_err(), "INLINE with SGEs is accepted by the safe call");
    Ok(())
}

fn only_signaled_sends_complete(bench: &Bench) -> Outcome {
    let shape = Shape { sq_sig_all: false, ..Shape::new(QpType::Rc) };
    let (one, other) = bench.pair_with(&shape, Path::default())?;
    for id in 0..5 {
        other.receive(id, 0, 64)?;
    }
    for id in 0..5 {
        let list = [one.sge(0, 8)];
        let mut wr = SendWr::new(100 + id, SendOp::Send);
        wr.sg_list = &list;
        wr.flags = if id == 3 { SendFlags::SIGNALED } else { SendFlags::empty() };
        one.qp.post_send(&[wr])?;
    }
    for id in 0..5 {
        other.good(id)?;
    }
    one.good(103)?;
    one.nothing()
}

fn messages_in_both_directions_arrive_in_order(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    const COUNT: u64 = 200;
    const WINDOW: u64 = 16;
    let ends: [&End; 2] = [&one, &other];
    for end in ends {
        for id in 0..WINDOW {
            end.receive(id, 4096 + id * 64, 64)?;
        }
    }
    for id in 0..COUNT {
        for (number, end) in ends.iter().enumerate() {
            end.mr.write(0, &(id * 2 + number as u64).to_le_bytes())?;
            end.send(1 << 32 | id, SendOp::Send, &[end.sge(0, 8)])?;
        }
        // Each end has now one send and one receive to complete, in any order between the two.
        for (number, end) in ends.iter().enumerate() {
            let (mut sent, mut received) = (false, false);
            while !(sent && received) {
                let wc = end.next()?;
                ensure!(wc.status == scalefabric_verbs::WcStatus::Success, "WR {} ended with {}", wc.wr_id, wc.status);
                if wc.opcode.is_receive() {
                    same!(wc.wr_id, id % WINDOW, "the receive's turn");
                    let from = (4096 + (id % WINDOW) * 64) as usize;
                    let value = u64::from_le_bytes(end.bytes(from, 8)?.try_into().expect("8 bytes"));
                    same!(value, id * 2 + (1 - number as u64), "the message");
                    end.receive(id % WINDOW, from as u64, 64)?;
                    received = true;
                } else {
                    same!(wc.wr_id, 1 << 32 | id, "the send's turn");
                    sent = true;
                }
            }
        }
    }
    Ok(())
}

/// Sends a datagram of bytes at offset 0.
fn datagram(from: &End, to: &End, ah: &dyn scalefabric_verbs::AddressHandle, length: usize, qkey: QKey) -> Outcome {
    let list = [from.sge(0, length)];
    let mut wr = SendWr::new(7, SendOp::SendWithImm { imm: 99 });
    wr.flags = SendFlags::SIGNALED;
    wr.sg_list = &list;
    wr.ud = Some(UdAddress { ah, remote_qpn: to.qp.qp_num(), remote_qkey: qkey });
    from.qp.post_send(&[wr])?;
    from.good(7)?;
    Ok(())
}

fn datagrams_bring_their_grh_and_can_be_answered(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Ud)?;
    let ah = one.pd.create_ah(&bench.way())?;
    same!(ah.address_vector().dgid, bench.gid, "where the handle leads");
    let length = bench.mtu() - 8;
    let sent = one.fill(0, length, 5)?;
    other.receive(1, 0, length + 40)?;
    datagram(&one, &other, &*ah, length, QKEY)?;
    let wc = other.good(1)?;
    same!(wc.byte_len as usize, length + 40, "the length with the GRH");
    same!((wc.src_qp, wc.imm), (one.qp.qp_num(), 99), "the sender and the immediate");
    ensure!(wc.flags.contains(WcFlags::GRH | WcFlags::WITH_IMM), "the flags: {:?}", wc.flags);
    ensure!(other.bytes(40, length)? == sent, "the bytes differ");
    let grh: [u8; 40] = other.bytes(0, 40)?.try_into().expect("40 bytes");
    let back = other.pd.create_ah_from_wc(&wc, &grh, bench.port_num)?;
    same!(back.address_vector().dgid, bench.gid, "where the answer goes");
    one.receive(2, 8192, 1000)?;
    datagram(&other, &one, &*back, 32, QKEY)?;
    same!(one.good(2)?.byte_len, 72, "the answer's length");
    Ok(())
}

fn a_datagram_with_a_wrong_qkey_is_not_received(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Ud)?;
    let ah = one.pd.create_ah(&bench.way())?;
    other.receive(1, 0, 256)?;
    datagram(&one, &other, &*ah, 16, QKey(QKEY.0 + 1))?;
    other.nothing()?;
    datagram(&one, &other, &*ah, 16, QKEY)?;
    other.good(1)?;
    Ok(())
}

fn xrc_messages_go_to_the_srq_that_they_name(bench: &Bench) -> Outcome {
    let xrcd: Arc<dyn XrcDomain> = or_skip(bench.context.open_xrcd())?;
    let initiator = bench.end(&Shape::new(QpType::XrcSend))?;
    let target = bench.context.create_xrc_target(&xrcd)?;
    let receiver = bench.end(&Shape::new(QpType::Ud))?;
    let mut queues = Vec::new();
    for _ in 0..2 {
        let cq = bench.context.create_cq(16, None, 0)?;
        let init = SrqInit { max_wr: 8, max_sge: 1, srq_limit: 0, xrc: Some((xrcd.clone(), cq.clone())) };
        queues.push((receiver.pd.create_srq(&init)?, cq));
    }
    ensure!(queues[0].0.srq_num() != queues[1].0.srq_num(), "two queues with one number");
    bench.connect(&*initiator.qp, target.qp_num(), Path::default())?;
    bench.connect(&*target, initiator.qp.qp_num(), Path::default())?;
    for (index, (srq, cq)) in queues.iter().enumerate().rev() {
        let sent = initiator.fill(0, 3000, index as u8)?;
        let into = [receiver.sge(index as u64 * 4096, 4096)];
        srq.post_recv(&[RecvWr { wr_id: 5, sg_list: &into }])?;
        let list = [initiator.sge(0, 3000)];
        let mut wr = SendWr::new(6, SendOp::Send);
        (wr.flags, wr.sg_list, wr.xrc_srqn) = (SendFlags::SIGNALED, &list, Some(srq.srq_num()));
        initiator.qp.post_send(&[wr])?;
        let wc = next_of(&**cq)?;
        same!((wc.wr_id, wc.byte_len), (5, 3000), "the receive");
        initiator.good(6)?;
        ensure!(receiver.bytes(index * 4096, 3000)? == sent, "the bytes differ");
    }
    Ok(())
}

fn a_chain_completes_in_its_order(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    const COUNT: u64 = 40;
    let into = [other.sge(0, 64)];
    let receives: Vec<RecvWr<'_>> = (0..COUNT).map(|wr_id| RecvWr { wr_id, sg_list: &into }).collect();
    other.qp.post_recv(&receives)?;
    let list = [one.sge(0, 16)];
    let sends: Vec<SendWr<'_>> = (0..COUNT)
        .map(|wr_id| SendWr { sg_list: &list, flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, SendOp::Send) })
        .collect();
    one.qp.post_send(&sends)?;
    for id in 0..COUNT {
        other.good(id)?;
        one.good(id)?;
    }
    Ok(())
}
