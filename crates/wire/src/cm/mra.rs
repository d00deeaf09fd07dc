//! MRA (clause 12.6.6, table 107): "your message has arrived, the answer takes longer".

use super::CommId;
use super::layout::{layout, layout_tests};

layout! {
    /// Message receipt acknowledgment.
    Mra, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
        /// What arrived, 2 bits: 0 REQ, 1 REP, 2 LAP.
        message_mraed: u8 = [(8, 0, 2)];
        /// How long the answer may take: 4.096 µs x 2^n, 5 bits.
        service_timeout: u8 = [(9, 0, 5)];
    }
    blocks {
        /// For the application.
        private_data: [u8; 222] = 10;
    }
}

layout_tests! {
    Mra,
    known: [(0, [0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0xa0, 7])],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2), message_mraed: 2, service_timeout: 20,
        private_data: {
            let mut data = [0; 222];
            data[0] = 7;
            data
        },
    }
}
