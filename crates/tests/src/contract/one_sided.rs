//! WRITE, READ and atomics.

use scalefabric_verbs::{AtomicCap, QpType, SendFlags, SendOp, SendWr, WcFlags, WcOpcode, WcStatus};

use super::bench::Bench;
use super::{Outcome, Stop, cases, ensure, same};

cases![
    writes_of_all_sizes_arrive_whole_and_take_no_receive,
    a_write_with_immediate_takes_a_receive,
    reads_of_all_sizes_bring_the_bytes,
    a_fenced_send_follows_the_read_before_it,
    atomics_return_the_old_value,
    an_atomic_that_is_not_aligned_is_refused,
];

fn writes_of_all_sizes_arrive_whole_and_take_no_receive(bench: &Bench) -> Outcome {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (one, other) = match bench.pair(qp_type) {
            Err(Stop::Skip(_)) if qp_type == QpType::Uc => continue,
            pair => pair?,
        };
        let mtu = bench.mtu();
        for (index, size) in [1, mtu, mtu + 1, 40_000].into_iter().enumerate() {
            let sent = one.fill(0, size, index as u8)?;
            let op = SendOp::Write { remote_addr: other.mr.addr() + 3, rkey: other.mr.rkey() };
            one.send(index as u64, op, &[one.sge(0, size)])?;
            same!(one.good(index as u64)?.opcode, WcOpcode::RdmaWrite, "the completion");
            if qp_type == QpType::Uc {
                // A UC write is complete when it has left: it arrives a little later.
                let until = std::time::Instant::now() + super::bench::PATIENCE;
                while other.bytes(3, size)? != sent && std::time::Instant::now() < until {
                    std::thread::yield_now();
                }
            }
            ensure!(other.bytes(3, size)? == sent, "{qp_type}: {size} bytes differ");
        }
        other.nothing()?;
    }
    Ok(())
}

fn a_write_with_immediate_takes_a_receive(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    other.receive(1, 50_000, 16)?;
    let sent = one.fill(0, 5000, 9)?;
    let op = SendOp::WriteWithImm { remote_addr: other.mr.addr(), rkey: other.mr.rkey(), imm: 0xdead_0001 };
    one.send(2, op, &[one.sge(0, 5000)])?;
    let wc = other.good(1)?;
    same!((wc.opcode, wc.imm, wc.byte_len), (WcOpcode::RecvRdmaWithImm, 0xdead_0001, 5000), "the receive");
    ensure!(wc.flags.contains(WcFlags::WITH_IMM), "no immediate: {wc:?}");
    one.good(2)?;
    ensure!(other.bytes(0, 5000)? == sent, "the bytes differ");
    same!(other.bytes(50_000, 16)?, [0; 16], "the receive's own buffer");
    Ok(())
}

fn reads_of_all_sizes_bring_the_bytes(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let mtu = bench.mtu();
    for (index, size) in [1, 8, mtu, mtu + 1, 40_000].into_iter().enumerate() {
        let there = other.fill(0, size, 40 + index as u8)?;
        let op = SendOp::Read { remote_addr: other.mr.addr(), rkey: other.mr.rkey() };
        let half = size / 2;
        let list = [one.sge(0, half), one.sge(60_000, size - half)];
        one.send(index as u64, op, if half == 0 { &list[1..] } else { &list })?;
        same!(one.good(index as u64)?.opcode, WcOpcode::RdmaRead, "the completion");
        let got = [one.bytes(0, half)?, one.bytes(60_000, size - half)?].concat();
        ensure!(got == there, "{size} bytes differ");
    }
    Ok(())
}

fn a_fenced_send_follows_the_read_before_it(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let there = other.fill(0, 8, 77)?;
    other.receive(1, 4096, 64)?;
    let into = [one.sge(0, 8)];
    let read = SendWr {
        flags: SendFlags::SIGNALED,
        sg_list: &into,
        ..SendWr::new(2, SendOp::Read { remote_addr: other.mr.addr(), rkey: other.mr.rkey() })
    };
    // The same bytes go back: without the fence they might be the old ones.
    let send = SendWr { flags: SendFlags::SIGNALED | SendFlags::FENCE, sg_list: &into, ..SendWr::new(3, SendOp::Send) };
    one.qp.post_send(&[read, send])?;
    one.good(2)?;
    one.good(3)?;
    other.good(1)?;
    ensure!(other.bytes(4096, 8)? == there, "the send left before the read had come");
    Ok(())
}

fn need_atomics(bench: &Bench) -> Outcome {
    if bench.attr.atomic_cap == AtomicCap::None {
        return Err(Stop::Skip("the device has no atomics (atomic_cap)".to_owned()));
    }
    Ok(())
}

fn atomics_return_the_old_value(bench: &Bench) -> Outcome {
    need_atomics(bench)?;
    let (one, other) = bench.pair(QpType::Rc)?;
    let (remote_addr, rkey) = (other.mr.addr() + 16, other.mr.rkey());
    other.mr.store_u64(16, 100)?;
    let steps = [
        (SendOp::FetchAdd { remote_addr, rkey, add: 5 }, WcOpcode::FetchAdd, 100, 105),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 105, swap: 7 }, WcOpcode::CompSwap, 105, 7),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 8, swap: 9 }, WcOpcode::CompSwap, 7, 7),
        (SendOp::FetchAdd { remote_addr, rkey, add: u64::MAX }, WcOpcode::FetchAdd, 7, 6),
    ];
    for (index, (op, opcode, old, new)) in steps.into_iter().enumerate() {
        one.mr.store_u64(0, u64::MAX)?;
        one.send(index as u64, op, &[one.sge(0, 8)])?;
        same!(one.good(index as u64)?.opcode, opcode, "the completion");
        same!((one.mr.load_u64(0)?, other.mr.load_u64(16)?), (old, new), "the old and the new value");
    }
    Ok(())
}

fn an_atomic_that_is_not_aligned_is_refused(bench: &Bench) -> Outcome {
    need_atomics(bench)?;
    let (one, other) = bench.pair(QpType::Rc)?;
    let op = SendOp::FetchAdd { remote_addr: other.mr.addr() + 4, rkey: other.mr.rkey(), add: 1 };
    let list = [one.sge(0, 8)];
    let wr = SendWr { sg_list: &list, flags: SendFlags::SIGNALED, ..SendWr::new(1, op) };
    // Refused when it is posted, or by the peer.
    match one.qp.post_send(&[wr]) {
        Ok(()) => drop(one.bad(1, WcStatus::RemInvReqErr)?),
        Err(error) => same!(error.errno, scalefabric_verbs::Errno::EINVAL, "the errno"),
    }
    same!(other.bytes(0, 16)?, [0; 16], "the bytes there");
    Ok(())
}
