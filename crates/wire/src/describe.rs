//! Packets in words: one line each, for `sfab decode` and for the messages of failing tests.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use crate::aeth::{self, Syndrome};
use crate::cm::{self, CmMad, Message, ServiceId};
use crate::feth::Feth;
use crate::frame::{Frame, NotRoce};
use crate::ids::Qpn;
use crate::opcode::{Operation, Service};
use crate::packet::{Headers, NakCode, Packet};

/// What a syndrome says: `ACK credits 31`, `RNR NAK 20 (10.24 ms)`, `NAK remote access error`.
pub fn syndrome(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(Syndrome::NO_CREDITS) => "ACK".into(),
        Syndrome::Ack(code) => format!("ACK credits {}", aeth::credits(code).unwrap_or(0)),
        Syndrome::RnrNak(code) => {
            let us = aeth::rnr_timer_ns(code) / 1_000;
            format!("RNR NAK {code} ({}.{:02} ms)", us / 1_000, us % 1_000 / 10)
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => "NAK PSN sequence error".into(),
        Syndrome::Nak(NakCode::InvalidRequest) => "NAK invalid request".into(),
        Syndrome::Nak(NakCode::RemoteAccessError) => "NAK remote access error".into(),
        Syndrome::Nak(NakCode::RemoteOperationalError) => "NAK remote operational error".into(),
        Syndrome::Nak(NakCode::InvalidRdRequest) => "NAK invalid RD request".into(),
        Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}"),
    }
}

/// Opcode, QP, PSN, flags and extended headers.
pub fn headers(headers: &Headers) -> String {
    let bth = &headers.bth;
    let mut text = format!("{} qp {} psn {}", bth.opcode.info().name, bth.dest_qp, bth.psn);
    // Writing to a String cannot fail.
    macro_rules! add {
        ($($arg:tt)*) => { let _ = write!(text, $($arg)*); };
    }
    for (set, word) in [
        (bth.ack_req, " ack"),
        (bth.solicited, " solicited"),
        (!bth.mig_req, " mig=0"),
        (bth.fecn, " fecn"),
        (bth.becn, " becn"),
    ] {
        if set {
            text.push_str(word);
        }
    }
    if bth.pkey != crate::PKey::DEFAULT {
        add!(" pkey {}", bth.pkey);
    }
    if let Some(srqn) = headers.xrceth {
        add!(" srq {srqn}");
    }
    if let Some(deth) = headers.deth {
        add!(" from qp {} qkey {}", deth.src_qp, deth.qkey);
    }
    if let Some(Feth { plt, sel }) = headers.feth {
        let placement = match plt {
            Feth::GLOBAL_VISIBILITY => "visibility",
            Feth::PERSISTENCE => "persistence",
            3 => "visibility and persistence",
            _ => "undefined placement",
        };
        let level = match sel {
            Feth::RANGE => "range",
            Feth::MEMORY_REGION => "region",
            _ => "undefined level",
        };
        add!(" {placement} of a {level}");
    }
    if let Some(reth) = headers.reth {
        add!(" va {:#x} rkey {} dma_len {}", reth.va, reth.rkey, reth.dma_len);
    }
    if let Some(eth) = headers.atomic_eth {
        add!(" va {:#x} rkey {}", eth.va, eth.rkey);
        if bth.opcode.info().operation as u8 == Operation::CompareSwap as u8 {
            add!(" compare {:#x} swap {:#x}", eth.compare, eth.swap_or_add);
        } else {
            add!(" add {:#x}", eth.swap_or_add);
        }
    }
    if let Some(aeth) = headers.aeth {
        add!(" {} msn {}", syndrome(aeth.syndrome), aeth.msn);
    }
    if let Some(original) = headers.atomic_ack_eth {
        add!(" original {original:#x}");
    }
    if let Some(imm) = headers.imm {
        add!(" imm {imm:#010x}");
    }
    if let Some(rkey) = headers.ieth {
        add!(" invalidate {rkey}");
    }
    text
}

fn service(id: ServiceId) -> String {
    match id.port() {
        Some((ServiceId::TCP, port)) => format!("service tcp:{port}"),
        Some((ServiceId::UDP, port)) => format!("service udp:{port}"),
        _ => format!("service {id}"),
    }
}

/// Name and key fields of a CM message.
pub fn cm(mad: &CmMad) -> String {
    let ids = |local, remote| format!("id {local} to {remote}");
    let addresses = |data: &[u8]| {
        cm::IpAddressing::parse(data)
            .map_or(String::new(), |ip| format!(" {}:{} calls {}", ip.src, ip.src_port, ip.dst))
    };
    let fields = match &mad.message {
        Message::Req(m) => {
            let ip = if m.service_id.port().is_some() { addresses(&m.private_data) } else { String::new() };
            format!(
                "id {} {} qp {} psn {} service type {} mtu code {} resources {} depth {} retry {} rnr_retry {} \
                 timeout {}{}{ip}",
                m.local_comm_id,
                service(m.service_id),
                m.local_qpn,
                m.starting_psn,
                m.transport_service_type,
                m.path_mtu,
                m.responder_resources,
                m.initiator_depth,
                m.retry_count,
                m.rnr_retry_count,
                m.primary.local_ack_timeout,
                if m.has_alternate() { " with alternate path" } else { "" },
            )
        }
        Message::Mra(m) => format!("{} timeout code {}", ids(m.local_comm_id, m.remote_comm_id), m.service_timeout),
        Message::Rej(m) => {
            let text = cm::rej::reason_text(m.reason);
            format!("{} reason {} ({text})", ids(m.local_comm_id, m.remote_comm_id), m.reason)
        }
        Message::Rep(m) => format!(
            "{} qp {} psn {} resources {} depth {} rnr_retry {}",
            ids(m.local_comm_id, m.remote_comm_id),
            m.local_qpn,
            m.starting_psn,
            m.responder_resources,
            m.initiator_depth,
            m.rnr_retry_count
        ),
        Message::Rtu(m) => ids(m.local_comm_id, m.remote_comm_id),
        Message::Dreq(m) => format!("{} qp {}", ids(m.local_comm_id, m.remote_comm_id), m.remote_qpn),
        Message::Drep(m) => ids(m.local_comm_id, m.remote_comm_id),
        Message::SidrReq(m) => {
            let ip = if m.service_id.port().is_some() { addresses(&m.private_data) } else { String::new() };
            format!("request {:#x} {}{ip}", m.request_id, service(m.service_id))
        }
        Message::SidrRep(m) => {
            let text = cm::sidr_rep::status_text(m.status);
            format!("request {:#x} qp {} qkey {} status {} ({text})", m.request_id, m.qpn, m.qkey, m.status)
        }
        Message::Lap(m) => format!(
            "{} alternate path {} to {}",
            ids(m.local_comm_id, m.remote_comm_id),
            m.alternate_local_gid,
            m.alternate_remote_gid
        ),
        Message::Apr(m) => {
            let text = cm::apr::status_text(m.ap_status);
            format!("{} status {} ({text})", ids(m.local_comm_id, m.remote_comm_id), m.ap_status)
        }
    };
    format!("CM {} {fields}", mad.message.name())
}

/// Headers, payload length, and for QP 1 the MAD in it.
pub fn packet(packet: &Packet<'_>) -> String {
    let mut text = headers(&packet.headers);
    let info = packet.headers.bth.opcode.info();
    if info.payload && info.service as u8 != Service::Cnp as u8 {
        let _ = write!(text, " len {}", packet.payload.len());
    }
    if packet.headers.deth.is_some() && packet.headers.bth.dest_qp == Qpn::GSI {
        let _ = match CmMad::parse(packet.payload) {
            Ok(mad) => write!(text, " | {}", cm(&mad)),
            Err(invalid) => write!(text, " | not a CM message: {invalid}"),
        };
    }
    text
}

/// A captured frame. `time_ns` is printed as seconds.
pub fn line(time_ns: u64, frame: &Frame<'_>) -> String {
    let mut text = format!("{} {} > {} {}", time(time_ns), frame.ip.src(), frame.ip.dst(), packet(&frame.packet));
    match frame.ip.traffic_class() {
        0 => {}
        class => {
            let ecn = ["", " ECT(1)", " ECT(0)", " CE"][usize::from(class & 3)];
            let _ = write!(text, " dscp {}{ecn}", class >> 2);
        }
    }
    if frame.icrc_ok() {
        text.push_str(" icrc ok");
    } else {
        let _ = write!(text, " icrc BAD ({:#010x}, not {:#010x})", frame.packet.icrc, frame.right_icrc);
    }
    text
}

/// A captured frame that is not RoCEv2, or not a valid packet.
pub fn not_roce(time_ns: u64, original_len: u32, reason: &NotRoce) -> String {
    match reason {
        NotRoce::Invalid(invalid) => format!("{} INVALID ({original_len} bytes): {invalid}", time(time_ns)),
        other => format!("{} not RoCEv2 ({original_len} bytes): {other}", time(time_ns)),
    }
}

fn time(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::{Opcode, TABLE};
    use crate::{PKey, Psn};
    use proptest::prelude::*;

    #[test]
    fn a_write_says_where_it_goes() {
        let mut write = Headers::new(Opcode::from_byte(0x0b).unwrap(), PKey::DEFAULT, Qpn::new(0x12), Psn::new(7));
        write.reth = Some(crate::packet::Reth { va: 0x1000, rkey: crate::RKey(9), dma_len: 3 });
        write.imm = Some(5);
        write.bth.ack_req = true;
        assert_eq!(
            packet(&Packet { headers: write, payload: &[1, 2, 3], icrc: 0 }),
            "RC RDMA WRITE ONLY with immediate qp 0x000012 psn 0x000007 ack va 0x1000 rkey 0x00000009 dma_len 3 imm \
             0x00000005 len 3"
        );
    }

    #[test]
    fn syndromes_speak() {
        assert_eq!(syndrome(Syndrome::RnrNak(20)), "RNR NAK 20 (10.24 ms)");
        assert_eq!(syndrome(Syndrome::RnrNak(1)), "RNR NAK 1 (0.01 ms)");
        assert_eq!(syndrome(Syndrome::Ack(31)), "ACK");
        assert_eq!(syndrome(Syndrome::Ack(5)), "ACK credits 6");
    }

    proptest! {
        #[test]
        fn anything_can_be_described(row in 0..TABLE.len(), mut bytes in prop::collection::vec(any::<u8>(), 60..320)) {
            bytes[0] = TABLE[row].code;
            bytes[1] = 0;
            bytes.truncate(bytes.len() / 4 * 4);
            if let Ok(p) = Packet::parse(&bytes) {
                prop_assert!(!packet(&p).contains('\n'));
            }
        }
    }
}
