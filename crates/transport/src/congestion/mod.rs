//! Congestion control: one code for the live NIC and for the simulator (D5).
//!
//! A [`Controller`] belongs to one QP. It hears what happens to the QP's packets ([`Event`]) and says how much may be in
//! flight, how fast, and when the next packet may leave. Which one and with which parameters says a [`Profile`]; what it
//! has to control, a [`Route`]. The receiver's part of DCQCN, which answers marked packets not too often, is
//! [`NotificationPoint`].
//!
//! There is no clock and no chance here. Time is a [`Moment`] in picoseconds, because a packet at 400 Gb/s takes 21 ns and a
//! nanosecond too few in each is 5 % of the rate. Rates are whole bits a second; ratios are `f64`, and nothing but the four
//! operations of IEEE 754 and comparisons is done with them, so that a run gives the same bytes on every machine.

pub mod dcqcn;
mod flight;
pub mod hpcc;
pub mod int;
mod moment;
mod notification;
mod pace;
mod parameter;
pub mod pint;
mod profile;
pub mod swift;
mod throttle;
pub mod timely;

#[cfg(test)]
mod tests;

pub use moment::Moment;
pub use notification::NotificationPoint;
pub use pace::Pace;
pub use parameter::{Invalid, Parameter};
pub use profile::{Control, Named, PROFILES, Profile};

/// What a switch on the way wrote about its port (in-band network telemetry, INT), when the packet left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hop {
    /// Which port of which switch: another number than before means another way, whose counters cannot be compared. A
    /// network whose ways do not change may leave it 0.
    pub node: u32,
    /// Rate of the link, bit/s.
    pub rate_bps: u64,
    /// When, ps of the switch's own clock. Only differences count.
    pub at_ps: u64,
    /// Bytes that left by the port before this packet.
    pub tx_bytes: u64,
    /// Bytes that still waited for the port when this packet had left its queue.
    pub queue_bytes: u64,
}

/// What an ACK brings back of what switches wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Telemetry<'a> {
    /// Nothing.
    #[default]
    None,
    /// Every hop of the packet that is acknowledged, in order.
    Hops(&'a [Hop]),
    /// The code of the fullest hop's utilisation ([`pint`]).
    Pint(u8),
}

/// How a loss was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The peer misses a packet (NAK sequence error, or a response from beyond it).
    Nak,
    /// The retransmission timer ran out.
    Timeout,
}

/// What a controller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A packet left.
    Sent {
        /// What it adds to the flight, which [`Controller::window_bytes`] limits: payload, or payload and a charge. 0 for what
        /// is not acknowledged (a READ response, UC).
        flight_bytes: u32,
        /// What it takes of the wire, which [`Controller::rate_bps`] limits: all headers included.
        wire_bytes: u32,
    },
    /// An ACK or a response.
    Ack {
        /// What it takes off the flight; 0 for one that covers nothing new.
        flight_bytes: u32,
        /// Time since the packet that it acknowledges was sent, ps; `None` if that was sent twice, or nobody looked.
        rtt_ps: Option<u64>,
        /// The peer says that the packet came marked.
        ecn_echo: bool,
        /// What switches wrote on the packet.
        telemetry: Telemetry<'a>,
    },
    /// A congestion notification packet. Simulators that carry it as a flag in the ACK tell it first, then the ACK.
    Cnp,
    /// Something was lost, and the sender goes back: the flight is empty.
    Lost(Loss),
    /// The sender goes back without congestion (the peer was not ready): the flight is empty.
    Withdrawn,
    /// [`Controller::next_timer`] has come. It may be late, and it may be too early.
    Timer,
}

/// A congestion controller of one QP.
///
/// Whatever comes in whatever order, the rate stays between 1 bit/s and the line's, and the window above 0.
pub trait Controller {
    /// Learns something. `now` never goes back. What was due before `now` is done first, with its own time.
    fn handle(&mut self, now: Moment, event: Event<'_>);
    /// A packet may leave while fewer bytes than this are in flight; `u64::MAX`: no window. Never 0.
    fn window_bytes(&self) -> u64;
    /// Bits a second on the wire. Never 0, and never above the line rate.
    fn rate_bps(&self) -> u64;
    /// The earliest time at which the next packet may leave: when the last one is through at the present rate.
    fn next_send(&self) -> Moment;
    /// When something changes by itself; `None`: not before the next event.
    fn next_timer(&self) -> Option<Moment>;
}

/// What a controller controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Rate of the sender's link, bit/s. Nothing leaves faster.
    pub line_rate_bps: u64,
    /// Round trip through an empty network, ps: the largest of the network where ways differ.
    pub base_rtt_ps: u64,
    /// Bytes of a full packet, as the flight counts them.
    pub packet_bytes: u32,
    /// Switches on the way, one direction.
    pub hops: u8,
}

impl Route {
    /// Bytes that fill the way at line rate, at least one packet.
    pub fn bdp_bytes(&self) -> u64 {
        moment::bytes_in(self.base_rtt_ps, self.line_rate_bps).max(u64::from(self.packet_bytes)).max(1)
    }
}
