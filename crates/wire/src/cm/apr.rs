//! APR (clause 12.8.2, table 116): answers a LAP.

use super::CommId;
use super::layout::{layout, layout_tests};

layout! {
    /// Alternate path response.
    Apr, 232;
    bits {
        /// The sender's ID of this connection.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
        /// Bytes of `additional_information` that count.
        additional_information_length: u8 = [(8, 0, 8)];
        /// See [`STATUSES`].
        ap_status: u8 = [(9, 0, 8)];
    }
    blocks {
        /// What would have been accepted.
        additional_information: [u8; 72] = 12;
        /// For the application.
        private_data: [u8; 148] = 84;
    }
}

/// Statuses (table 117): code, and what it says.
pub const STATUSES: &[(u8, &str)] = &[
    (0, "alternate path loaded"),
    (1, "invalid communication instance"),
    (2, "alternate paths not supported"),
    (3, "failover port currently disabled"),
    (4, "alternate path rejected: consumer"),
    (5, "redirected"),
    (6, "proposed path is the current alternate"),
    (7, "alternate remote port GID or LID is not valid"),
    (8, "alternate remote port LID is not valid"),
    (9, "invalid alternate traffic class"),
    (10, "invalid alternate hop limit"),
    (11, "invalid alternate packet rate"),
    (12, "invalid alternate SL"),
];

/// What a status says.
pub fn status_text(status: u8) -> &'static str {
    STATUSES
        .iter()
        .find(|&&(code, _)| code == status)
        .map_or("a status that the standard does not define", |&(_, text)| text)
}

layout_tests! {
    Apr,
    known: [(0, [0, 0, 0, 1, 0, 0, 0, 2, 4, 5, 0, 0, 6]), (84, [7])],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2), additional_information_length: 4, ap_status: 5,
        additional_information: {
            let mut data = [0; 72];
            data[0] = 6;
            data
        },
        private_data: {
            let mut data = [0; 148];
            data[0] = 7;
            data
        },
    }
}
