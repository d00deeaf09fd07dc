//! The life of a connection as a state machine without I/O: connect, ready barrier, rebuild, move, key rotation, close. It is told what happened and
//! when, and says what to do; `endpoint` does it on real QPs, the simulator on simulated ones. It may not read a clock, a socket or a QP.
//!
//! One side leads: the one that connected. It alone numbers lanes and decides, so two sides that begin at the same time never have to be told apart: the
//! other asks. Every change is the same three messages: *Begin* (my QP is made), *Accept* (mine is in RTS), *Commit* (so is mine: post). Nobody posts on a
//! lane before both have said that they are ready. A change that keeps the QPs (`turn`) has words of its own. What was said last is said again when a channel comes back, and hearing it twice changes nothing.

mod act;
mod follow;
mod hand_over;
mod keys;
mod lead;
mod machine;
mod message;
mod order;
mod patience;
mod turn;

pub use act::{Action, Change, Input, Ticket};
pub use machine::{Role, Session, Setup};
pub use message::{
    Abilities, Accept, Begin, Body, Drained, LaneId, MAX_OFFERS, MemoryOffer, Message, Purpose, QpOffer, Redirect,
    Strategy, VERSION,
};
pub use patience::{Backoff, Patience};

#[cfg(test)]
mod tests;
