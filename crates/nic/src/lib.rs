//! The software RDMA NIC: the transport given a body. Rings, memory table, engine, ports, and the device that several
//! processes share.
//!
//! [`engine::Engine::turn`] makes no system call: ports and clock are handed in, so the simulator and the tests run the
//! engine that ships. Raw access to registered memory lives in `memory/` and nowhere else.

pub mod clock;
pub(crate) mod cm;
pub mod completion;
pub mod config;
pub mod congestion;
pub mod counters;
pub mod direct;
pub mod discovery;
pub mod egress;
pub mod engine;
pub mod events;
pub mod faults;
pub mod host;
pub mod ingress;
pub mod manual;
pub mod memory;
pub mod netlink;
pub mod objects;
pub mod options;
pub mod personality;
pub mod polling;
pub mod port;
pub mod post;
pub mod process;
pub mod provider;
pub mod resources;
pub mod ring;
pub mod schedule;
pub mod share;
pub mod survey;
pub mod tables;
pub mod window;
pub mod worker;

pub use config::{Budget, NicConfig, PortConfig};
pub use counters::{CounterBlock, CountersHandle, PortCounters};
pub use engine::drive::{Core, Kick};
pub use manual::ManualNic;
pub use objects::NicContext;
pub use tables::PortChange;
