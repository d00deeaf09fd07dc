//! Communication management (chapter 12): how two sides agree on a connection, end it, and find a datagram service.
//!
//! [`Connection`] is one side of a connection, [`sidr::Query`] asks for a datagram service, [`request`] and [`attributes`]
//! say what messages and QPs carry. All of them are told of messages and of time, and then asked what to send, what to
//! report and when to be called again. They send nothing, read no clock and choose no number.

pub mod attributes;
pub mod connection;
pub mod repeat;
pub mod request;
pub mod sidr;
#[cfg(test)]
mod tests;

pub use attributes::QpPath;
pub use connection::{Connection, Event, Side, State};
pub use repeat::Repeat;
pub use request::{Reply, Request};
pub use sidr::Query;

/// How fast an answer must come, 4.096 µs x 2^20 = 4.3 s: what Linux asks for and promises.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// How often a message is repeated, as on Linux.
pub const MAX_RETRIES: u8 = 15;
/// What an MRA asks for: 4.096 µs x 2^24 = 69 s, as Linux's rdma_cm does.
pub const SERVICE_TIMEOUT: u8 = 24;
/// Packet lifetime of a RoCE path: 4.096 µs x 2^16 = 0.27 s, Linux's value since 6.2 (18 before).
pub const PACKET_LIFE_TIME: u8 = 16;
/// How long a channel adapter may take to acknowledge: 4.096 µs x 2^15, the value of Linux's software NIC.
pub const CA_ACK_DELAY: u8 = 15;

/// Nanoseconds of a timeout code of 5 bits: 4.096 µs x 2^code.
pub const fn code_ns(code: u8) -> u64 {
    4096 << (code & 31)
}

/// Reasons of a REJ (table 109) that the state machines themselves give or look at.
pub mod reason {
    /// The sender has stopped waiting.
    pub const TIMEOUT: u16 = 4;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The QP belongs to another connection, which has ended without our knowing.
    pub const STALE_CONNECTION: u16 = 10;
    /// The consumer does not want it.
    pub const CONSUMER: u16 = 28;
}

/// What a REJ or MRA is about (fields `message_rejected` and `message_mraed`).
pub mod about {
    /// A REQ.
    pub const REQ: u8 = 0;
    /// A REP.
    pub const REP: u8 = 1;
    /// REJ: no message. MRA: a LAP.
    pub const OTHER: u8 = 2;
}
