//! The sockets of NETLINK_RDMA: what `rdma dev`, `rdma link`, `rdma resource` and `rdma statistic` ask the kernel.
