//! Bytes: what was sent is what arrived, what was written is what stands there, what was read is what stood there.

use scalefabric_verbs::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use scalefabric_wire::grh::Grh;
use scalefabric_wire::ipv4::Ipv4;

use super::{Checker, Event, Remains, Violation};
use crate::ledger::{Kind, Ledger, Op, SLOTS};
use crate::random::fill;
use crate::wire::Tally;

/// The checker.
#[derive(Debug, Default)]
pub struct Bytes;

fn wrong(what: String) -> Violation {
    Violation { checker: "bytes", what }
}

/// Where two strings of bytes first differ.
fn difference(got: &[u8], want: &[u8]) -> Option<usize> {
    (0..got.len().max(want.len())).find(|&i| got.get(i) != want.get(i))
}

impl Checker for Bytes {
    fn see(&mut self, ledger: &Ledger, _tally: &Tally, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Completed { flow, op: index, wc, brought, target, .. } if wc.status == WcStatus::Success => {
                let flow = &ledger.flows[flow];
                let op = &flow.ops[index];
                match op.kind {
                    Kind::Read => {
                        let want = &flow.expected[index % SLOTS];
                        if let Some(at) = difference(brought, want) {
                            return Err(wrong(format!("flow {} READ {index} brought another byte at {at}", flow.id)));
                        }
                        if wc.byte_len as usize != op.length {
                            let got = wc.byte_len;
                            return Err(wrong(format!(
                                "flow {} READ {index}: byte_len {got}, not {}",
                                flow.id, op.length
                            )));
                        }
                    }
                    Kind::Write | Kind::WriteImm | Kind::Relay if flow.is_reliable() => {
                        // Unless a later operation has already written there, the bytes stand.
                        let later = flow.ops[index + 1..].iter();
                        let overwritten =
                            later.filter(|op| op.writes()).any(|other| other.overlaps(op.target, op.length));
                        let want = &flow.shadow[op.target..op.target + op.length];
                        if !overwritten && let Some(at) = difference(target, want) {
                            return Err(wrong(format!(
                                "flow {} WRITE {index} is complete, but byte {at} of {} is not there",
                                flow.id, op.length
                            )));
                        }
                    }
                    _ => {}
                }
            }
            Event::Received { flow, wc, message, grh, .. } if wc.status == WcStatus::Success => {
                let flow = &ledger.flows[flow];
                if let Some(grh) = grh {
                    origin(flow, wc, grh)?;
                }
                if !flow.is_reliable() {
                    return whole(flow, wc, message);
                }
                let Some(index) = flow.expect_receive() else { return Ok(()) };
                let op = &flow.ops[index];
                if wc.byte_len as usize != op.length {
                    let got = wc.byte_len;
                    return Err(wrong(format!("flow {} message {index}: {got} bytes, not {}", flow.id, op.length)));
                }
                let imm = matches!(op.kind, Kind::SendImm | Kind::WriteImm);
                if wc.flags.contains(WcFlags::WITH_IMM) != imm || imm && wc.imm != op.imm {
                    return Err(wrong(format!(
                        "flow {} message {index}: immediate {:#x} not {:#x}",
                        flow.id, wc.imm, op.imm
                    )));
                }
                if op.kind != Kind::WriteImm {
                    let mut want = [0; crate::ledger::MAX_MESSAGE];
                    let want = &mut want[..op.length];
                    fill(op.key, 0, want);
                    if let Some(at) = difference(message, want) {
                        return Err(wrong(format!(
                            "flow {} message {index} of {} differs at {at}",
                            flow.id, op.length
                        )));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, ledger: &Ledger, _tally: &Tally, remains: &Remains) -> Result<(), Violation> {
        for (flow, memory) in ledger.flows.iter().zip(&remains.targets) {
            if !flow.is_reliable() {
                unreliable(flow, memory)?;
                continue;
            }
            let uncertain =
                |at: usize| flow.uncertain.iter().any(|&(start, length)| (start..start + length).contains(&at));
            let differs = (0..memory.len()).find(|&at| memory[at] != flow.shadow[at] && !uncertain(at));
            if let Some(at) = differs {
                let (got, want) = (memory[at], flow.shadow[at]);
                return Err(wrong(format!("flow {}: byte {at} of its target is {got:#04x}, not {want:#04x}", flow.id)));
            }
        }
        Ok(())
    }
}

/// UD: the 40 bytes in front of a message tell who sent it (annex A17.9.2), over IPv4 with a right checksum.
fn origin(flow: &crate::ledger::Flow, wc: &WorkCompletion, bytes: &[u8]) -> Result<(), Violation> {
    let bad = |what: &str| Err(wrong(format!("flow {}: GRH of a datagram: {what}: {bytes:02x?}", flow.id)));
    if !wc.flags.contains(WcFlags::GRH) {
        return bad("the completion does not say that there is one");
    }
    let (src, dst): (std::net::IpAddr, std::net::IpAddr) = match (Grh::parse(bytes), bytes.get(20..).map(Ipv4::parse)) {
        (Ok(grh), _) => (grh.sgid.to_ip(), grh.dgid.to_ip()),
        (_, Some(Ok(ip))) if ip.checksum == ip.right_checksum() => (ip.src.into(), ip.dst.into()),
        _ => return bad("neither an IPv6 header nor a valid IPv4 header"),
    };
    let want = |nic| crate::wire::address(nic, src.is_ipv6());
    if (src, dst) == (want(flow.from), want(flow.to)) { Ok(()) } else { bad("other addresses") }
}

/// UC and UD: a message that arrives is one that was sent, whole.
fn whole(flow: &crate::ledger::Flow, wc: &WorkCompletion, message: &[u8]) -> Result<(), Violation> {
    let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
    if wc.opcode == WcOpcode::RecvRdmaWithImm {
        let sent = |op: &Op| op.kind == Kind::WriteImm && Some(op.imm) == imm && op.length == wc.byte_len as usize;
        return match flow.ops.iter().any(sent) {
            true => Ok(()),
            false => Err(wrong(format!("flow {}: a WRITE with immediate {imm:x?} that nobody sent", flow.id))),
        };
    }
    match flow.message(message) {
        Some(index) if imm == (flow.ops[index].kind == Kind::SendImm).then_some(flow.ops[index].imm) => Ok(()),
        Some(index) => Err(wrong(format!("flow {}: message {index} came with immediate {imm:x?}", flow.id))),
        None => Err(wrong(format!("flow {}: a message of {} bytes that nobody sent", flow.id, message.len()))),
    }
}

/// UC: each byte is as it was, or as its only WRITE wanted it.
fn unreliable(flow: &crate::ledger::Flow, memory: &[u8]) -> Result<(), Violation> {
    let mut allowed = vec![0; memory.len()];
    for op in flow.ops.iter().filter(|op| matches!(op.kind, Kind::Write | Kind::WriteImm)) {
        fill(op.key, 0, &mut allowed[op.target..op.target + op.length]);
    }
    match (0..memory.len()).find(|&at| memory[at] != 0 && memory[at] != allowed[at]) {
        Some(at) => Err(wrong(format!("flow {}: byte {at} of its target is what nobody wrote", flow.id))),
        None => Ok(()),
    }
}
