//! The shared device (D1): the processes of one user in one network namespace are members of one device.

pub mod connections;
pub mod holder;
pub(crate) mod link;
pub mod membership;
pub mod neighbourhood;
pub mod segment;
