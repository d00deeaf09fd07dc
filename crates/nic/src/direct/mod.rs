//! The same-host path (D3): what the processes of a device share so that one of them can execute a one-sided operation on
//! another's memory by itself, with the other's processor asleep.
//!
//! Here stands the protocol between accessor and owner, in atomics only: the [`Hazard`] by which an accessor says what it is about
//! to touch, and the [`Gate`] by which the owner of a QP says who may. How bytes are reached is the business of `memory/`, and
//! when an operation may go this way that of the transport and of `engine/direct.rs`.

mod gate;
mod hazard;
#[cfg(all(test, loom))]
mod loom_tests;

pub use gate::{Gate, Open, Terms};
pub use hazard::{Claim, Hazard, Published};
