//! REQ (clause 12.6.5, table 106): asks for a connection.

use super::layout::{layout, layout_tests};
use super::{CommId, Path, ServiceId};
use crate::ids::{PKey, Psn, QKey, Qpn};

/// Transport service type of the field of that name: 0 RC, 1 UC, 2 RD, 3 see the extended type.
#[allow(missing_docs)]
pub mod service {
    pub const RC: u8 = 0;
    pub const UC: u8 = 1;
    pub const RD: u8 = 2;
    pub const EXTENDED: u8 = 3;
    /// Extended transport type of XRC (annex A14).
    pub const EXTENDED_XRC: u8 = 1;
}

layout! {
    /// Request for communication.
    Req, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// Vendor whose enhancements are offered, 24 bits (enhanced connection establishment).
        vendor_id: u32 = [(5, 0, 24)];
        /// Who is called.
        service_id: ServiceId = [(8, 0, 64)];
        /// GUID of the sender's channel adapter.
        local_ca_guid: u64 = [(16, 0, 64)];
        /// Q_Key, for datagram services.
        local_qkey: QKey = [(28, 0, 32)];
        /// The sender's QP.
        local_qpn: Qpn = [(32, 0, 24)];
        /// READs and atomics that the sender can answer at a time.
        responder_resources: u8 = [(35, 0, 8)];
        /// The sender's end-to-end context, 24 bits (RD).
        local_eecn: u32 = [(36, 0, 24)];
        /// READs and atomics that the sender wants to have outstanding.
        initiator_depth: u8 = [(39, 0, 8)];
        /// The receiver's end-to-end context, 24 bits (RD).
        remote_eecn: u32 = [(40, 0, 24)];
        /// How fast the receiver has to answer: 4.096 µs x 2^n, 5 bits.
        remote_cm_response_timeout: u8 = [(43, 0, 5)];
        /// Transport service, 2 bits: see [`service`].
        transport_service_type: u8 = [(43, 5, 2)];
        /// End-to-end flow control is in use.
        end_to_end_flow_control: bool = [(43, 7, 1)];
        /// PSN at which the receiver has to start sending. (Sender's receive queue.)
        starting_psn: Psn = [(44, 0, 24)];
        /// How fast the sender will answer, 5 bits.
        local_cm_response_timeout: u8 = [(47, 0, 5)];
        /// `retry_cnt` for both, 3 bits.
        retry_count: u8 = [(47, 5, 3)];
        /// P_Key.
        pkey: PKey = [(48, 0, 16)];
        /// Path MTU code, 4 bits: 1 = 256 … 5 = 4096.
        path_mtu: u8 = [(50, 0, 4)];
        /// RDC exists (RD).
        rdc_exists: bool = [(50, 4, 1)];
        /// `rnr_retry` for the receiver, 3 bits.
        rnr_retry_count: u8 = [(50, 5, 3)];
        /// How often the sender repeats a CM message, 4 bits.
        max_cm_retries: u8 = [(51, 0, 4)];
        /// The sender's QP has an SRQ.
        srq: bool = [(51, 4, 1)];
        /// Extended transport type, 3 bits: see [`service`].
        extended_transport_type: u8 = [(51, 5, 3)];
        /// The sender supports the alternate path's service (SAP).
        sap_supported: bool = [(139, 5, 1)];
    }
    blocks {
        /// Primary path.
        primary: Path = 52;
        /// Alternate path; all zeros if there is none.
        alternate: Path = 96;
        /// For the application; begins with [`super::IpAddressing`] if the service ID is one of annex A11.
        private_data: [u8; 92] = 140;
    }
}

impl Req {
    /// True if an alternate path is given.
    pub fn has_alternate(&self) -> bool {
        self.alternate.local_lid != 0 || !self.alternate.local_gid.is_zero()
    }

    /// True if XRC is asked for.
    pub const fn is_xrc(&self) -> bool {
        self.transport_service_type == service::EXTENDED && self.extended_transport_type == service::EXTENDED_XRC
    }
}

layout_tests! {
    Req,
    known: [
        (0, [0, 0, 0xbe, 0xef, 0, 0, 2, 0xc9]), (8, [0, 0, 0, 0, 1, 6, 0x12, 0x34]), (16, [8; 8]), (28, [0, 0, 0, 9]),
        (32, [1, 2, 3, 4, 0, 0, 5, 6, 0, 0, 7, 0xa2]), (44, [0x12, 0x34, 0x56, 0x97, 0xff, 0xff, 0x37, 0xf8]),
        (52, [0xff, 0xff]), (139, [0x4c]), (140, [0xab]), (231, [0xcd]),
    ],
    means: {
        local_comm_id: CommId(0xbeef), vendor_id: 0x2c9, service_id: ServiceId(0x0106_1234),
        local_ca_guid: 0x0808_0808_0808_0808, local_qkey: QKey(9), local_qpn: Qpn::new(0x010203), responder_resources: 4,
        local_eecn: 5, initiator_depth: 6, remote_eecn: 7, remote_cm_response_timeout: 20, transport_service_type: 1,
        starting_psn: Psn::new(0x123456), local_cm_response_timeout: 18, retry_count: 7, pkey: PKey::DEFAULT, path_mtu: 3,
        rnr_retry_count: 7, max_cm_retries: 15, srq: true,
        primary: Path { local_lid: 0xffff, ..Path::default() },
        alternate: Path { local_ack_timeout: 9, ..Path::default() }, sap_supported: true,
        private_data: {
            let mut data = [0; 92];
            (data[0], data[91]) = (0xab, 0xcd);
            data
        },
    }
}
