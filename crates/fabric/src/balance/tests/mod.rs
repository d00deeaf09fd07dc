//! Proofs of the balancing rule: small dialogues for each rule with its edges, and properties over random worlds, judged by code of their own.

mod property;
mod rule;
mod world;
