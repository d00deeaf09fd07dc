//! REJ (clause 12.6.7, table 108): refuses a connection, with the reason.

use super::CommId;
use super::layout::{layout, layout_tests};

layout! {
    /// Reject.
    Rej, 232;
    bits {
        /// The sender's ID of this connection; 0 if it never had one.
        local_comm_id: CommId = [(0, 0, 32)];
        /// The receiver's ID of this connection.
        remote_comm_id: CommId = [(4, 0, 32)];
        /// What is refused, 2 bits: 0 REQ, 1 REP, 2 no message (a timeout).
        message_rejected: u8 = [(8, 0, 2)];
        /// Bytes of `ari` that count, 7 bits.
        reject_info_length: u8 = [(9, 0, 7)];
        /// Why: see [`REASONS`].
        reason: u16 = [(10, 0, 16)];
    }
    blocks {
        /// Additional reject information: the value that would have been accepted.
        ari: [u8; 72] = 12;
        /// For the application.
        private_data: [u8; 148] = 84;
    }
}

/// Reasons (table 109): code, and what it says.
pub const REASONS: &[(u16, &str)] = &[
    (1, "no QP available"),
    (2, "no EE context available"),
    (3, "no resources available"),
    (4, "timeout"),
    (5, "unsupported request"),
    (6, "invalid communication ID"),
    (7, "invalid communication instance"),
    (8, "invalid service ID: nobody listens there"),
    (9, "invalid transport service type"),
    (10, "stale connection"),
    (11, "RDC does not exist"),
    (12, "primary remote port GID rejected"),
    (13, "primary remote port LID rejected"),
    (14, "invalid primary SL"),
    (15, "invalid primary traffic class"),
    (16, "invalid primary hop limit"),
    (17, "invalid primary packet rate"),
    (18, "alternate remote port GID rejected"),
    (19, "alternate remote port LID rejected"),
    (20, "invalid alternate SL"),
    (21, "invalid alternate traffic class"),
    (22, "invalid alternate hop limit"),
    (23, "invalid alternate packet rate"),
    (24, "port and CM redirection"),
    (25, "port redirection"),
    (26, "invalid path MTU"),
    (27, "insufficient responder resources"),
    (28, "consumer reject"),
    (29, "RNR retry count rejected"),
    (30, "duplicate local communication ID"),
    (31, "invalid class version"),
    (32, "invalid flow label"),
    (33, "invalid alternate flow label"),
    (35, "vendor ID is not supported"),
];

/// What a reason says.
pub fn reason_text(reason: u16) -> &'static str {
    REASONS
        .iter()
        .find(|&&(code, _)| code == reason)
        .map_or("a reason that the standard does not define", |&(_, text)| text)
}

layout_tests! {
    Rej,
    known: [(0, [0, 0, 0, 1, 0, 0, 0, 2, 0x40, 0x10, 0, 28, 0x99]), (84, [0x77])],
    means: {
        local_comm_id: CommId(1), remote_comm_id: CommId(2), message_rejected: 1, reject_info_length: 8, reason: 28,
        ari: {
            let mut data = [0; 72];
            data[0] = 0x99;
            data
        },
        private_data: {
            let mut data = [0; 148];
            data[0] = 0x77;
            data
        },
    }
}
