//! Functions of libc that lead to files and descriptors of ours. Each asks one question (is this path, is this
//! descriptor ours?) and else goes on to libc, with nothing changed.

pub mod device;
mod table;

pub use device::{Device, Node, find, register};
