//! Congestion control: the hooks that every packet passes (D5), and the controller that does nothing.
//!
//! The live data path and the simulator run the same controllers. Before each packet the requester asks for the window and
//! the next time to send; afterwards it reports what it learns.

use crate::time::Time;

/// What a controller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Signal {
    /// A packet of `bytes` left.
    Sent { bytes: u32, psn: scalefabric_wire::Psn },
    /// An ACK took `bytes` off the flight; `rtt_ns` since the newest packet it covers was sent, if that was not a retry.
    Ack { bytes: u32, rtt_ns: Option<u64>, ecn_echo: bool },
    /// A NAK sequence error.
    Nak,
    /// A CNP.
    Cnp,
    /// The retransmission timer ran out.
    Timeout,
}

/// A congestion controller of one QP.
pub trait Controller {
    /// Learns something.
    fn signal(&mut self, now: Time, signal: Signal);
    /// Bytes that may be in flight.
    fn window_bytes(&self) -> u64;
    /// The earliest time at which the next packet of `bytes` may leave; `now` or earlier: at once.
    fn next_send(&self, now: Time, bytes: u32) -> Time;
}

/// The controllers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// No control: the window is what the device's configuration gives, and packets leave at once.
    #[default]
    None,
}

impl Controller for Congestion {
    fn signal(&mut self, _now: Time, _signal: Signal) {}
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }
    fn next_send(&self, now: Time, _bytes: u32) -> Time {
        now
    }
}
