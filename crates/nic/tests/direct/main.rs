//! Requests that go without packets, because both QPs are on one NIC: the dialogues of `engine` that do not look at packets, played
//! again that way, and what only this path has. Several processes do the same in `processes/direct.rs`.

#![allow(clippy::needless_range_loop, clippy::type_complexity, dead_code, missing_docs)]

/// For [`node`]: both sides are on one NIC.
pub const DIRECT: bool = true;

#[path = "../engine/connected.rs"]
mod connected;
#[path = "../engine/device_memory.rs"]
mod device_memory;
#[path = "../engine/errors.rs"]
mod errors;
#[path = "../engine/gone.rs"]
mod gone;
#[path = "../engine/node.rs"]
mod node;
mod paths;
#[path = "../engine/posting.rs"]
mod posting;
#[path = "../engine/windows.rs"]
mod windows;
