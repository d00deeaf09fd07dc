//! The fabric library: what an application wants of RDMA, over any [`scalefabric_verbs::Provider`]. Memory that is registered once, connections
//! that come up by themselves and survive a failed QP, a failed port and a move to another port, several rails as one connection, and
//! helpers for memory on the other side.
//!
//! It knows neither its backend nor the control plane: it defines [`Directory`], and who has a control plane hands one in. Rules that need no
//! I/O ([`balance`], [`path`], [`session`]) are pure functions and state machines, so that the simulator runs the very same ones.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod balance;
pub mod buffer;
pub mod cache;
pub mod certificate;
pub mod directory;
pub mod ecmp;
pub mod endpoint;
pub mod error;
pub mod exchange;
mod fork;
pub mod guard;
pub mod operation;
pub mod path;
pub mod pool;
pub mod rail;
pub mod remote;
pub mod session;

pub use buffer::{Local, RemoteRange};
pub use directory::Directory;
pub use error::{FabricError, Fault};
pub use operation::{Outcome, Repeat};
pub use path::Path;
