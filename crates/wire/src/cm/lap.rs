//! LAP (clause 12.8.1, table 115): proposes a new alternate path. Its fields stand in another order than in a REQ.

use super::CommId;
use super::layout::{layout, layout_tests};
use crate::ids::{Gid, Qpn};

layout! {
    /// Load alternate path.
    Lap, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
        /// The receiver's QP (RD: end-to-end context).
        remote_qpn: Qpn = [(12, 0, 24)];
        /// How fast the receiver has to answer: 4.096 µs x 2^n, 5 bits.
        remote_cm_response_timeout: u8 = [(15, 0, 5)];
        /// Sender's LID.
        alternate_local_lid: u16 = [(20, 0, 16)];
        /// Receiver's LID.
        alternate_remote_lid: u16 = [(22, 0, 16)];
        /// IPv6 flow label, 20 bits.
        alternate_flow_label: u32 = [(56, 0, 20)];
        /// Traffic class.
        alternate_traffic_class: u8 = [(59, 0, 8)];
        /// Hop limit.
        alternate_hop_limit: u8 = [(60, 0, 8)];
        /// Static rate, 6 bits.
        alternate_packet_rate: u8 = [(61, 2, 6)];
        /// Service level, 4 bits.
        alternate_sl: u8 = [(62, 0, 4)];
        /// Both ports are in one subnet.
        alternate_subnet_local: bool = [(62, 4, 1)];
        /// Local ACK timeout code, 5 bits.
        alternate_local_ack_timeout: u8 = [(63, 0, 5)];
    }
    blocks {
        /// Sender's GID.
        alternate_local_gid: Gid = 24;
        /// Receiver's GID.
        alternate_remote_gid: Gid = 40;
        /// For the application.
        private_data: [u8; 168] = 64;
    }
}

layout_tests! {
    Lap,
    known: [
        (0, [0, 0, 0, 1, 0, 0, 0, 2]), (12, [0x12, 0x34, 0x56, 0xa0]), (20, [0, 3, 0, 4]), (24, [5; 16]), (40, [6; 16]),
        (56, [0xab, 0xcd, 0xe0, 0x68, 64, 0x3f, 0xf8, 0x98, 7]),
    ],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2), remote_qpn: Qpn::new(0x123456),
        remote_cm_response_timeout: 20, alternate_local_lid: 3, alternate_remote_lid: 4,
        alternate_local_gid: Gid([5; 16]), alternate_remote_gid: Gid([6; 16]), alternate_flow_label: 0xabcde,
        alternate_traffic_class: 0x68, alternate_hop_limit: 64, alternate_packet_rate: 63, alternate_sl: 15,
        alternate_subnet_local: true, alternate_local_ack_timeout: 19,
        private_data: {
            let mut data = [0; 168];
            data[0] = 7;
            data
        },
    }
}
