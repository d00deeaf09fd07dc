//! The laboratory: seeded runs of the engine that ships, in virtual time, under named faults, with checkers that know the
//! promises and not the code.
//!
//! Everything follows from one seed: the number of NICs, their connections, what they ask for, and what the wire does to
//! their packets. A run that breaks a promise ends with one line that repeats it.

pub mod attacker;
pub mod canary;
pub mod checker;
pub mod fabric;
pub mod ledger;
pub mod pattern;
pub mod random;
pub mod receive;
pub mod rnic;
pub mod run;
pub mod station;
pub mod switch;
pub mod wire;
pub mod workload;
pub mod world;
