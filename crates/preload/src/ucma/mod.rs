//! The kernel's connection manager device, `/dev/infiniband/rdma_cm`, below the distribution's librdmacm: what is written to its
//! descriptor are commands ([`scalefabric_ibv::abi::ucma`]), whose answers go to addresses inside them. This module
//! translates between those bytes and [`CmChannel`], whose meaning is the same.
//!
//! | file | what it is |
//! |---|---|
//! | `address`, `convert` | between structs and the contract's values |
//! | `memory` | the caller's memory |
//! | `file` | an open file: its commands |
//! | `door` | how it is opened |

mod address;
mod convert;
mod door;
mod file;
mod memory;

use std::sync::Arc;

use scalefabric_verbs::CmChannel;

use crate::hooks::device::Errno;

pub use door::open;
pub use scalefabric_ibv::abi::ucma::ABI_VERSION;

/// A new, registered descriptor that speaks to a channel, which is closed with it. `flags` are those of `open`.
pub fn open_channel(channel: Arc<dyn CmChannel>, flags: i32) -> Result<i32, Errno> {
    file::open(channel, flags)
}
