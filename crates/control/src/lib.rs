//! The control plane: one service, one agent a node, and the store behind them. It decides and tells; data never passes through it, and everything that is
//! connected works on when it is away.
#![forbid(unsafe_code)]

pub mod agent;
pub mod client;
pub mod clock;
pub mod config;
pub mod directory;
pub mod keys;
pub mod leader;
pub mod load;
pub mod local;
pub mod memory;
pub mod message;
pub mod order;
pub mod proto;
pub mod rebalance;
pub mod rotation;
pub mod service;
#[cfg(test)]
mod simulation;
pub mod store;
pub mod tenant;
pub mod topology;
