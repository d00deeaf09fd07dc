//! Dialogues with one session.

mod dialogue;
