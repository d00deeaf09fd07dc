//! The control plane: one service, one agent a node, and the store behind them. It decides and tells; data never passes through it, and everything that is
//! connected works on when it is away.
#![forbid(unsafe_code)]

pub mod rebalance;
pub mod store;
pub mod tenant;
pub mod topology;
