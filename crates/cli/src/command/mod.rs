//! The small commands, one file each.

pub mod counters;
pub mod decode;
pub mod devices;
pub mod gids;
pub mod personalities;
pub mod res;
pub mod run;
