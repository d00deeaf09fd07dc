//! The small commands, one file each.

pub mod agent;
pub mod control;
pub mod counters;
pub mod decode;
pub mod devices;
mod ending;
pub mod gids;
mod heap;
pub mod personalities;
pub mod res;
pub mod run;
pub mod sim;
pub mod top;
