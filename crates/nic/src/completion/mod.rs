//! Completion queues, the channels on which they ring, and asynchronous events: step 12 of the walk (clause 11.2.6).
//!
//! The engine places completions through the one [`Producer`] of a queue; any thread polls the [`CompletionRing`]. No
//! system call is made while a completion is placed: the engine tells the channel after its turn ([`EventQueue`]).

mod cqe;
mod event_queue;
mod ring;

#[cfg(all(test, loom))]
mod loom_tests;

pub use event_queue::EventQueue;
pub use ring::{CompletionRing, Polled, Producer, Pushed, Shape, completion_queue, completion_queue_with};

/// A completion channel: events name the CQ by its number.
pub type Channel = EventQueue<u32>;
