//! Both halves of a connection and its session, over simulated QPs.

mod fake;
mod ports;
mod simulation;
mod world;
