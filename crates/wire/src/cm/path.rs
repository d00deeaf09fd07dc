//! A path as a REQ carries it, 44 bytes (table 106, bytes 52 to 95 and again 96 to 139). In RoCEv2 the LIDs say nothing
//! and the GIDs are the addresses.

use super::layout::{layout, layout_tests};
use crate::ids::Gid;

layout! {
    /// Primary or alternate path of a REQ.
    Path, 44;
    bits {
        /// Sender's LID; 0xffff in RoCE.
        local_lid: u16 = [(0, 0, 16)];
        /// Receiver's LID; 0xffff in RoCE.
        remote_lid: u16 = [(2, 0, 16)];
        /// IPv6 flow label, 20 bits.
        flow_label: u32 = [(36, 0, 20)];
        /// Static rate, 6 bits, in the standard's code.
        packet_rate: u8 = [(39, 2, 6)];
        /// Traffic class.
        traffic_class: u8 = [(40, 0, 8)];
        /// Hop limit.
        hop_limit: u8 = [(41, 0, 8)];
        /// Service level, 4 bits.
        sl: u8 = [(42, 0, 4)];
        /// Both ports are in one subnet.
        subnet_local: bool = [(42, 4, 1)];
        /// Local ACK timeout code, 5 bits: 4.096 µs x 2^n.
        local_ack_timeout: u8 = [(43, 0, 5)];
    }
    blocks {
        /// Sender's GID.
        local_gid: Gid = 4;
        /// Receiver's GID.
        remote_gid: Gid = 20;
    }
}

layout_tests! {
    Path,
    known: [(0, [0xff, 0xff, 0xff, 0xff]), (4, [1; 16]), (20, [2; 16]), (36, [0x12, 0x34, 0x50, 0x07, 0x68, 64, 0x38, 0x98])],
    means: {
        local_lid: 0xffff, remote_lid: 0xffff, local_gid: Gid([1; 16]), remote_gid: Gid([2; 16]), flow_label: 0x12345,
        packet_rate: 7, traffic_class: 0x68, hop_limit: 64, sl: 3, subnet_local: true, local_ack_timeout: 19,
    }
}
