//! A completion channel: an event queue of CQ numbers.

use super::event_queue::EventQueue;

/// Events name the CQ by its number.
pub type Channel = EventQueue<u32>;
