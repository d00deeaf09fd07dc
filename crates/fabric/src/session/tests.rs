//! Session dialogues.
