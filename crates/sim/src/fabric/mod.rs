//! The fabric simulator: whole fabrics, packet by packet, in virtual picoseconds, under the congestion controllers that ship.
//!
//! [`scenario`] reads what shall run, [`topology`] and [`workload`] make it, [`world`] runs it, [`report`] tells what came out. The same seed gives the
//! same bytes on every machine and with any number of threads.

pub mod bench;
pub mod buffer;
pub mod csv;
pub mod engine;
pub mod event;
pub mod host;
pub mod model;
pub mod packet;
pub mod parameters;
pub mod pause;
pub mod plot;
pub mod port;
pub mod qp;
pub mod rebind;
pub mod recorder;
pub mod report;
pub mod route;
pub mod runner;
pub mod scenario;
pub mod switch;
pub mod telemetry;
pub mod time;
pub mod timeline;
pub mod topology;
pub mod validate;
pub mod workload;
pub mod world;

#[cfg(test)]
mod tests;
