//! SIDR_REP (clause 12.11.1.2, table 120): the QP and Q_Key of a datagram service, or why there is none.

use super::ServiceId;
use super::layout::{layout, layout_tests};
use crate::ids::{QKey, Qpn};

layout! {
    /// Service ID resolution reply.
    SidrRep, 232;
    bits {
        /// That of the request.
        request_id: u32 = [(0, 0, 32)];
        /// See [`STATUSES`].
        status: u8 = [(4, 0, 8)];
        /// Bytes of `additional_information` that count.
        additional_information_length: u8 = [(5, 0, 8)];
        /// Vendor whose enhancements are accepted, 24 bits in two pieces (enhanced connection establishment).
        vendor_id: u32 = [(6, 0, 16), (11, 0, 8)];
        /// The service's QP.
        qpn: Qpn = [(8, 0, 24)];
        /// That of the request.
        service_id: ServiceId = [(12, 0, 64)];
        /// The service's Q_Key.
        qkey: QKey = [(20, 0, 32)];
    }
    blocks {
        /// What a refusal adds (a redirection).
        additional_information: [u8; 72] = 24;
        /// For the application.
        private_data: [u8; 136] = 96;
    }
}

/// Statuses: code, and what it says.
pub const STATUSES: &[(u8, &str)] = &[
    (0, "valid QPN and Q_Key"),
    (1, "service ID not supported"),
    (2, "rejected by the service provider"),
    (3, "no QP available"),
    (4, "redirected"),
    (5, "class version not supported"),
];

/// What a status says.
pub fn status_text(status: u8) -> &'static str {
    STATUSES
        .iter()
        .find(|&&(code, _)| code == status)
        .map_or("a status that the standard does not define", |&(_, text)| text)
}

layout_tests! {
    SidrRep,
    known: [
        (0, [0, 0, 0, 1, 2, 3, 0xaa, 0xbb, 0x12, 0x34, 0x56, 0xcc, 0, 0, 0, 0, 1, 0x11, 0x12, 0x34, 0x01, 0x23, 0x45, 0x67]),
        (24, [8]), (96, [9]),
    ],
    means: {
        request_id: 1, status: 2, additional_information_length: 3, vendor_id: 0xaabbcc, qpn: Qpn::new(0x123456),
        service_id: ServiceId(0x0111_1234), qkey: QKey(0x0123_4567),
        additional_information: {
            let mut data = [0; 72];
            data[0] = 8;
            data
        },
        private_data: {
            let mut data = [0; 136];
            data[0] = 9;
            data
        },
    }
}
