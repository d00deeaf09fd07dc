//! Dialogues of one session with its surroundings.

mod dialogue;
mod turning;
