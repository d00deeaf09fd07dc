//! RTU (clause 12.6.9, table 111): the connection is up; the first data may say so as well.

use super::CommId;
use super::layout::{layout, layout_tests};

layout! {
    /// Ready to use.
    Rtu, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
    }
    blocks {
        /// For the application.
        private_data: [u8; 224] = 8;
    }
}

layout_tests! {
    Rtu,
    known: [(0, [0, 0, 0, 1, 0, 0, 0, 2, 3])],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2),
        private_data: {
            let mut data = [0; 224];
            data[0] = 3;
            data
        },
    }
}
