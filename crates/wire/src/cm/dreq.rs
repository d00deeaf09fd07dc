//! DREQ (clause 12.6.10, table 112): takes a connection down.

use super::CommId;
use super::layout::{layout, layout_tests};
use crate::ids::Qpn;

layout! {
    /// Request for communication release.
    Dreq, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
        /// The receiver's QP (RD: end-to-end context).
        remote_qpn: Qpn = [(8, 0, 24)];
    }
    blocks {
        /// For the application.
        private_data: [u8; 220] = 12;
    }
}

layout_tests! {
    Dreq,
    known: [(0, [0, 0, 0, 1, 0, 0, 0, 2, 0x12, 0x34, 0x56, 0, 9])],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2), remote_qpn: Qpn::new(0x123456),
        private_data: {
            let mut data = [0; 220];
            data[0] = 9;
            data
        },
    }
}
