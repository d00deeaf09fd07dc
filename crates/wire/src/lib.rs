//! Bytes to meaning and back: the RoCEv2 headers, the opcode table, the ICRC, MADs, CM messages and capture files.
//!
//! This crate knows nothing of queue pairs or memory. It never panics and never reads past the bytes it was given,
//! whatever they are. Clauses cited are those of the InfiniBand Architecture Specification, volume 1, release 1.5+;
//! RoCEv2 is its annex A17.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod crc;
mod field;
#[cfg(test)]
mod header_tests;

pub mod ids;
pub mod invalid;
pub mod opcode;

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cnp;
pub mod deth;
pub mod ethernet;
pub mod feth;
pub mod grh;
pub mod ieth;
pub mod imm_dt;
pub mod ipv4;
pub mod ipv6;
pub mod reth;
pub mod udp;
pub mod xrceth;

pub mod icrc;
pub mod packet;

pub mod cm;
pub mod mad;

pub mod describe;
pub mod frame;
pub mod pcap;
pub mod pcapng;

pub use ids::{Gid, PKey, Psn, QKey, Qpn, RKey, Srqn};
pub use invalid::{CannotEmit, InvalidPacket};
