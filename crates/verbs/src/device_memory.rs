//! Device memory (`ibv_alloc_dm`): bytes that belong to the NIC. A program reaches them by copies and by work requests,
//! peers through a region ([`crate::ProtectionDomain::reg_dm_mr`]); they have no address in the program.

use core::any::Any;
use core::fmt::Debug;

use crate::error::VerbsError;

/// A piece of device memory.
pub trait DeviceMemory: Send + Sync + Debug {
    /// Bytes, as asked for.
    fn length(&self) -> u64;

    /// Copies bytes in (`ibv_memcpy_to_dm`). `EINVAL` if they do not fit.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError>;

    /// Copies bytes out (`ibv_memcpy_from_dm`). `EINVAL` if there are not so many.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError>;

    /// Frees it: `EBUSY` while a region uses it. Dropping the last handle frees it, too, once no region does.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
