//! REP (clause 12.6.8, table 110): accepts a REQ.

use super::CommId;
use super::layout::{layout, layout_tests};
use crate::ids::{Psn, QKey, Qpn};

layout! {
    /// Reply to a request for communication.
    Rep, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
        /// Q_Key, for datagram services.
        local_qkey: QKey = [(8, 0, 32)];
        /// The sender's QP (XRC: its target QP).
        local_qpn: Qpn = [(12, 0, 24)];
        /// The sender's end-to-end context, 24 bits (RD).
        local_eecn: u32 = [(16, 0, 24)];
        /// PSN at which the receiver has to start sending.
        starting_psn: Psn = [(20, 0, 24)];
        /// Vendor whose enhancements are accepted, 24 bits in three pieces (enhanced connection establishment).
        vendor_id: u32 = [(15, 0, 8), (19, 0, 8), (23, 0, 8)];
        /// READs and atomics that the sender can answer at a time.
        responder_resources: u8 = [(24, 0, 8)];
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = [(25, 0, 8)];
        /// How long the sender takes to acknowledge: 4.096 µs x 2^n, 5 bits.
        target_ack_delay: u8 = [(26, 0, 5)];
        /// About the alternate path, 2 bits: 0 accepted, 1 not supported, 2 refused.
        failover_accepted: u8 = [(26, 5, 2)];
        /// End-to-end flow control is in use.
        end_to_end_flow_control: bool = [(26, 7, 1)];
        /// `rnr_retry` for the receiver, 3 bits.
        rnr_retry_count: u8 = [(27, 0, 3)];
        /// The sender's QP has an SRQ.
        srq: bool = [(27, 3, 1)];
        /// GUID of the sender's channel adapter.
        local_ca_guid: u64 = [(28, 0, 64)];
    }
    blocks {
        /// For the application.
        private_data: [u8; 196] = 36;
    }
}

layout_tests! {
    Rep,
    known: [
        (0, [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 0xaa, 0, 0, 5, 0xbb, 0x12, 0x34, 0x56, 0xcc]),
        (24, [7, 8, 0x7b, 0xf0]), (28, [9; 8]), (36, [0x11]), (231, [0x22]),
    ],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2), local_qkey: QKey(3), local_qpn: Qpn::new(0x010203),
        local_eecn: 5, starting_psn: Psn::new(0x123456), vendor_id: 0xaabbcc, responder_resources: 7, initiator_depth: 8,
        target_ack_delay: 15, failover_accepted: 1, end_to_end_flow_control: true, rnr_retry_count: 7, srq: true,
        local_ca_guid: 0x0909_0909_0909_0909,
        private_data: {
            let mut data = [0; 196];
            (data[0], data[195]) = (0x11, 0x22);
            data
        },
    }
}
