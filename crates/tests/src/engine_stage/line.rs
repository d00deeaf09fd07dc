//! A port of an engine whose other end is the script: what arrives is taken from one queue, what leaves is put into another.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_nic::port::{Datagram, Port, Sent, Train};
use scalefabric_wire::Gid;
use scalefabric_wire::icrc::Flow;
use scalefabric_wire::packet::Packet as WirePacket;

use crate::stage::Packet;

/// A packet as it arrives: what the IP and UDP headers said, and BTH to ICRC.
pub(super) struct Arriving {
    pub packet: Packet,
    pub ip_id: u16,
    pub bytes: Vec<u8>,
}

/// Both ends of a port: what arrives and what has left.
#[derive(Default)]
pub(super) struct Line {
    pub inbox: VecDeque<Arriving>,
    pub outbox: VecDeque<Packet>,
    pub groups: Vec<IpAddr>,
    pub now: u64,
    pub port_num: u8,
}

/// A port whose other end is the script.
pub(super) struct ScriptPort(pub Arc<Mutex<Line>>);

impl ScriptPort {
    fn line(&self) -> std::sync::MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for ScriptPort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut count = 0;
        while count < max {
            // The line is not locked while the engine works: it may send.
            let Some(arriving) = self.line().inbox.pop_front() else { break };
            let packet = &arriving.packet;
            sink(&Datagram {
                src: packet.src.to_ip(),
                src_port: packet.src_port,
                dst: packet.dst.to_ip(),
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
                ip_id: arriving.ip_id,
                bytes: &arriving.bytes,
            });
            count += 1;
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut line = self.line();
        let (src, dst) = (Gid::from_ip(train.src), Gid::from_ip(train.dst));
        for (id, bytes) in train.bytes.chunks(train.segment.max(1)).enumerate() {
            let packet = WirePacket::parse(bytes).expect("the engine sends packets that can be read");
            let icrc = Flow::between(src, dst, train.src_port).icrc(id as u16, &bytes[..bytes.len() - 4]);
            assert_eq!(packet.icrc, icrc, "the ICRC of a packet that leaves is right");
            let sent = Packet {
                headers: packet.headers,
                payload: packet.payload.to_vec(),
                src,
                dst,
                port_num: line.port_num,
                src_port: train.src_port,
                traffic_class: train.traffic_class,
                hop_limit: train.hop_limit,
                flow_label: train.flow_label,
                at: line.now,
            };
            line.outbox.push_back(sent);
        }
        Sent::Done
    }

    fn set_time(&mut self, now_ns: u64) {
        self.line().now = now_ns;
    }

    fn source_port(&self, _src: IpAddr, flow: u32) -> u16 {
        0xc000 | (flow as u16 & 0x3fff)
    }

    fn join(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.line().groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.line().groups.retain(|g| *g != group);
        Ok(())
    }
}
