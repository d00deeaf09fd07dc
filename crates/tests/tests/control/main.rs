//! The control plane with everything in its place: a replica, agents, and fabrics of two nodes over a software NIC that really sends. What control decides must be
//! seen in where packets go; what it cannot do while it is away must not be missed.

mod away;
mod lldp;
mod rate;
mod rebalance;
mod services;
mod tenants;
mod world;
