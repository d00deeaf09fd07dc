//! Dialogues: scripts of what two ends say to each other, played on the bare transport and on the engine; the golden
//! captures of a Linux kernel; the page of capabilities that both prove; the contract's own tests, for every backend;
//! real verbs programs on the software NIC; and what tests of the fabric and of the control plane stand on.
//!
//! Nothing here ships. The language of the scripts is described in `scripts/README.md`.

pub mod capabilities;
pub mod clients;
pub mod contract;
pub mod crowd;
pub mod engine_stage;
pub mod eventually;
pub mod fabric;
pub mod folder;
pub mod library;
pub mod linux_stage;
pub mod netns;
pub mod pinned;
pub mod products;
pub mod runner;
pub mod script;
pub mod stage;
pub mod transport_stage;

pub use eventually::{eventually, eventually_or};
pub use folder::Folder;
