//! What a REQ and a REP say, from what the application and the path say. Field for field what Linux's rdma_cm sends.

use scalefabric_verbs::{Gid, Mtu, PKey, Psn, QpType, Qpn};
use scalefabric_wire::QKey;
use scalefabric_wire::cm::{self, CommId, Path, Rep, Req, ServiceId, req::service};

use super::{CA_ACK_DELAY, MAX_RETRIES, RESPONSE_TIMEOUT};

/// LID of a RoCE port, which has none.
const NO_LID: u16 = 0xffff;
/// End-to-end context that an XRC requester names, as Linux does.
const XRC_EECN: u32 = 1;

/// What goes into a REQ.
#[derive(Clone, Debug)]
pub struct Request {
    /// Our ID.
    pub local_id: CommId,
    /// Who is called.
    pub service_id: ServiceId,
    /// EUI-64 of our device.
    pub ca_guid: u64,
    /// Our QP.
    pub qpn: Qpn,
    /// Type of our QP.
    pub qp_type: QpType,
    /// First PSN that we expect.
    pub starting_psn: Psn,
    /// READs and atomics that we can answer.
    pub responder_resources: u8,
    /// READs and atomics that we want.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries after timeouts.
    pub retry_count: u8,
    /// RNR retries that the peer shall make.
    pub rnr_retry_count: u8,
    /// Our QP has an SRQ.
    pub srq: bool,
    /// P_Key.
    pub pkey: PKey,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Source and destination.
    pub gids: (Gid, Gid),
    /// Flow label.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit; above 1 the path leaves the subnet.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Packet lifetime code of the path.
    pub packet_life_time: u8,
    /// Vendor of the enhanced connection establishment; 0 none.
    pub vendor_id: u32,
    /// All 92 bytes, the header of annex A11 included.
    pub private_data: [u8; 92],
}

/// The local ACK timeout that a path and a device's delay call for (clause 12.7.34): one more than the path's lifetime, and
/// more again if the delay is as long.
pub fn ack_timeout(ca_ack_delay: u8, packet_life_time: u8) -> u8 {
    let path = packet_life_time.saturating_add(1);
    let sum = if path >= ca_ack_delay {
        path + u8::from(ca_ack_delay >= path - 1)
    } else {
        ca_ack_delay + u8::from(path >= ca_ack_delay - 1)
    };
    sum.min(31)
}

/// The flow label that Linux derives for a RoCE path from the ports of the addresses.
pub fn flow_label(src_port: u16, dst_port: u16) -> u32 {
    (u32::from(src_port) * 31 + u32::from(dst_port)) & 0x000f_ffff
}

impl Request {
    /// The message.
    pub fn message(&self) -> Req {
        let xrc = matches!(self.qp_type, QpType::XrcSend | QpType::XrcRecv);
        Req {
            local_comm_id: self.local_id,
            vendor_id: self.vendor_id,
            service_id: self.service_id,
            local_ca_guid: self.ca_guid,
            local_qkey: QKey(0),
            local_qpn: self.qpn,
            // An XRC initiator answers nothing: what is exchanged belongs to the target (annex A14).
            responder_resources: if xrc { 0 } else { self.responder_resources },
            local_eecn: if xrc { XRC_EECN } else { 0 },
            initiator_depth: self.initiator_depth,
            remote_eecn: 0,
            remote_cm_response_timeout: RESPONSE_TIMEOUT,
            transport_service_type: match self.qp_type {
                QpType::Uc => service::UC,
                QpType::XrcSend | QpType::XrcRecv => service::EXTENDED,
                _ => service::RC,
            },
            end_to_end_flow_control: self.flow_control && !xrc,
            starting_psn: self.starting_psn,
            local_cm_response_timeout: RESPONSE_TIMEOUT,
            retry_count: self.retry_count.min(7),
            pkey: self.pkey,
            path_mtu: self.path_mtu as u8,
            rdc_exists: false,
            rnr_retry_count: self.rnr_retry_count.min(7),
            max_cm_retries: MAX_RETRIES,
            srq: self.srq && !xrc,
            extended_transport_type: if xrc { service::EXTENDED_XRC } else { 0 },
            sap_supported: false,
            primary: Path {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: self.gids.0,
                remote_gid: self.gids.1,
                flow_label: self.flow_label & 0x000f_ffff,
                packet_rate: 0,
                traffic_class: self.traffic_class,
                hop_limit: self.hop_limit,
                sl: self.sl,
                subnet_local: self.hop_limit <= 1,
                local_ack_timeout: ack_timeout(CA_ACK_DELAY, self.packet_life_time),
            },
            alternate: Path::default(),
            private_data: self.private_data,
        }
    }
}

/// What goes into a REP.
#[derive(Clone, Debug)]
pub struct Reply {
    /// EUI-64 of our device.
    pub ca_guid: u64,
    /// Our QP.
    pub qpn: Qpn,
    /// First PSN that we expect.
    pub starting_psn: Psn,
    /// READs and atomics that we answer.
    pub responder_resources: u8,
    /// READs and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retries that the peer shall make.
    pub rnr_retry_count: u8,
    /// Our QP has an SRQ.
    pub srq: bool,
    /// Vendor of the enhanced connection establishment; 0 none.
    pub vendor_id: u32,
    /// For the application.
    pub private_data: [u8; 196],
}

impl Reply {
    /// The message. `xrc`: an XRC target names its QP as an end-to-end context (annex A14).
    pub fn message(&self, local_id: CommId, remote_id: CommId, xrc: bool) -> Rep {
        Rep {
            local_comm_id: local_id,
            remote_comm_id: remote_id,
            local_qpn: if xrc { Qpn::new(0) } else { self.qpn },
            local_eecn: if xrc { self.qpn.get() } else { 0 },
            starting_psn: self.starting_psn,
            vendor_id: self.vendor_id,
            responder_resources: self.responder_resources,
            initiator_depth: if xrc { 0 } else { self.initiator_depth },
            target_ack_delay: CA_ACK_DELAY,
            end_to_end_flow_control: self.flow_control && !xrc,
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: self.srq || xrc,
            local_ca_guid: self.ca_guid,
            private_data: self.private_data,
            ..Rep::default()
        }
    }
}

/// The QP that a REP names.
pub fn reply_qpn(rep: &Rep, xrc: bool) -> Qpn {
    if xrc { Qpn::new(rep.local_eecn) } else { rep.local_qpn }
}

/// The QP type that a REQ asks its receiver for.
pub fn wanted_qp_type(req: &Req) -> Option<QpType> {
    match req.transport_service_type {
        service::RC => Some(QpType::Rc),
        service::UC => Some(QpType::Uc),
        service::EXTENDED if req.is_xrc() => Some(QpType::XrcRecv),
        _ => None,
    }
}

/// Private data of a message's size, from what the application gave. `None` if that is too long.
pub fn padded<const N: usize>(front: &[u8], data: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    out.get_mut(..front.len())?.copy_from_slice(front);
    out.get_mut(front.len()..front.len() + data.len())?.copy_from_slice(data);
    Some(out)
}

/// The 36 bytes of annex A11.
pub fn addressing(header: &cm::IpAddressing) -> [u8; cm::ip_addressing::LEN] {
    let mut bytes = [0; cm::ip_addressing::LEN];
    header.emit(&mut bytes);
    bytes
}
