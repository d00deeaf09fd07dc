//! Proofs of the decider: its authority, its answers and its explanations as dialogues, and a seeded simulation of everything around it that can go wrong.

mod dialogue;
mod simulation;
