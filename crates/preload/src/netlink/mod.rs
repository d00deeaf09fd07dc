//! The sockets of NETLINK_RDMA: what `rdma dev`, `rdma link`, `rdma resource` and `rdma statistic` ask the kernel.

use crate::hooks::device::Errno;

/// NETLINK_RDMA.
pub const PROTOCOL: i32 = 20;

/// `socket(AF_NETLINK, kind, NETLINK_RDMA)`: a new descriptor.
pub fn open(_kind: i32) -> Result<i32, Errno> {
    Err(libc::EPROTONOSUPPORT)
}
