//! The kernel's connection manager device, `/dev/infiniband/rdma_cm`, below the distribution's librdmacm.

use crate::hooks::device::Errno;

/// `open("/dev/infiniband/rdma_cm", flags)`: a new descriptor, registered with [`crate::hooks::register`].
pub fn open(_flags: i32) -> Result<i32, Errno> {
    Err(libc::ENODEV)
}
