//! Endpoints: connections as applications see them. They drive the session's state machine over a provider's QPs and an exchange's channel, post in
//! batches, and give completions by polling, events, callbacks or futures. No policy of the control plane stands here.

mod acquaintance;
mod alternate;
mod cell;
mod completion;
mod config;
mod connection;
pub(crate) mod descriptor;
mod dock;
mod fabric;
mod gid;
mod hub;
mod lane;
mod lanes;
mod lend;
mod link;
mod listener;
mod log;
mod loss;
mod operation;
mod rebind;
mod receive;
mod received;
mod resolve;
mod seek;
mod send;
mod service;
mod talk;
mod task;
mod traffic;
mod trigger;
mod vector;
mod wait;
mod window;
mod xrc;

pub use completion::{Completion, Pending};
pub use config::{Config, MAX_INLINE, Waiting};
pub use connection::{Connection, Statistics};
pub use fabric::{Builder, Fabric, Target};
pub use gid::{Want, choose as choose_gid};
pub use lend::Rotation;
pub use link::Injected;
pub use listener::Listener;
pub use operation::{MAX_PIECES, Operation, Piece, Remote, Source, Verb};
pub use rebind::Moving;
pub use received::Received;
pub use service::RotateKeys;
pub use xrc::{XrcCount, XrcMessage, XrcPeer, XrcPool};

#[cfg(test)]
mod tests;
