//! Shows a capture the packets that requests to this host would have been: bytes as on the wire, ICRC included, each with a comment that says that it
//! was none.
//!
//! Only the requester's capture has them: the target of a request does not know of it.

use scalefabric_transport::host::{Outgoing, Payload};
use scalefabric_wire::opcode::Operation;
use scalefabric_wire::packet::pad_count;

use crate::egress::Way;
use crate::host::{QpHost, fill, payload_len};
use crate::port::Datagram;
use crate::port::capture;

/// What stands beside such a packet.
const COMMENT: &str = "same host: executed without this packet";

impl QpHost<'_, '_> {
    /// Whether there is a capture.
    #[inline]
    pub(crate) fn has_tape(&self) -> bool {
        self.fabric.direct.as_ref().is_some_and(|setup| !setup.tapes.is_empty())
    }

    /// Records a packet that was not needed; one without a way there is not recorded.
    pub(crate) fn record(&mut self, packet: &Outgoing, payload: Payload<'_>, answer: bool) {
        self.renew_primary(packet.headers.bth.dest_qp, answer);
        let Some(way) = self.side.routes[0].way else { return };
        let way = if answer { Way { src: way.dst, dst: way.src, ..way } } else { way };
        let mut headers = packet.headers;
        // An atomic's result is a header, and lies where the WQE wanted it.
        let payload = if headers.bth.opcode.info().operation == Operation::AtomicAcknowledge {
            let mut value = [0; 8];
            if self.fill(payload, &mut value).is_err() {
                return;
            }
            headers.atomic_ack_eth = Some(u64::from_ne_bytes(value));
            Payload::None
        } else {
            payload
        };
        let (start, length) = (headers.len(), payload_len(&payload));
        let pad = usize::from(pad_count(length));
        headers.bth.pad_count = pad as u8;
        let mut bytes = vec![0; start + length + pad + 4];
        if headers.emit(&mut bytes).is_err() || self.fill(payload, &mut bytes[start..start + length]).is_err() {
            return;
        }
        let (transport, icrc) = bytes.split_at_mut(start + length + pad);
        icrc.copy_from_slice(&way.flow().icrc(0, transport).to_le_bytes());
        let datagram = Datagram {
            src: way.src,
            src_port: way.src_port,
            dst: way.dst,
            traffic_class: way.traffic_class,
            hop_limit: way.hop_limit,
            flow_label: way.flow_label,
            ip_id: 0,
            bytes: &bytes,
        };
        let index = usize::from(self.side.port_num.max(1)) - 1;
        let direction = if answer { capture::Way::In } else { capture::Way::Out };
        let now_ns = self.now.0;
        if let Some(tape) = self.fabric.direct.as_mut().and_then(|setup| setup.tapes.get_mut(index)) {
            tape.record(now_ns, direction, &datagram, COMMENT);
        }
    }

    fn fill(&self, payload: Payload<'_>, out: &mut [u8]) -> Result<(), ()> {
        fill(&*self.side, &self.fabric.srqs, self.memory, payload, out).map_err(|_| ())
    }
}
