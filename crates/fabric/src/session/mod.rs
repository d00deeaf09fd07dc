//! The life of a connection as a state machine without I/O: connect, ready barrier, rebuild, move, key rotation, close. It is told what happened and
//! when, and says what to do; `endpoint` does it on real QPs, the simulator on simulated ones. It may not read a clock, a socket or a QP.

mod message;
mod patience;

pub use message::{Accept, Begin, Body, Drained, LaneId, MemoryOffer, Message, Purpose, QpOffer, Strategy};
pub use patience::{Backoff, Patience};
