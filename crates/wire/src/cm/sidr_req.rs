//! SIDR_REQ (clause 12.11.1.1, table 119): asks which QP and Q_Key a datagram service has.

use super::ServiceId;
use super::layout::{layout, layout_tests};
use crate::ids::PKey;

layout! {
    /// Service ID resolution request.
    SidrReq, 232;
    bits {
        /// Ties the reply to the request.
        request_id: u32 = [(0, 0, 32)];
        /// P_Key.
        pkey: PKey = [(4, 0, 16)];
        /// Who is called.
        service_id: ServiceId = [(8, 0, 64)];
    }
    blocks {
        /// For the application; begins with [`super::IpAddressing`] if the service ID is one of annex A11.
        private_data: [u8; 216] = 16;
    }
}

layout_tests! {
    SidrReq,
    known: [(0, [0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0x11, 0x12, 0x34, 5])],
    means: {
        request_id: 1, pkey: PKey::DEFAULT, service_id: ServiceId(0x0111_1234),
        private_data: {
            let mut data = [0; 216];
            data[0] = 5;
            data
        },
    }
}
