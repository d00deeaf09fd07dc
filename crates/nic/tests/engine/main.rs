//! The shipped engine over a wire in memory, in virtual time: what an application sees through the verbs. Each test is a
//! dialogue of a few NICs; nothing here looks inside the engine.

#![allow(clippy::needless_range_loop, clippy::type_complexity, missing_docs)]

/// These NICs talk by packets; the tests of `direct` play the same on one NIC that needs none.
pub const DIRECT: bool = false;

mod bad_input;
mod completion_options;
mod connected;
mod contexts;
mod counters;
mod datagram;
mod device_faults;
mod device_memory;
mod errors;
mod events;
mod gone;
mod lifetime;
mod loss;
mod many;
mod migration;
mod node;
mod on_demand;
mod personality;
mod posting;
mod sequences;
mod shared_recv;
mod threads;
mod windows;
mod xrc;
