//! The C door: unmodified verbs programs on the software NIC. This crate translates and holds no policy.
//!
//! | module | what it is |
//! |---|---|
//! | [`verbs`] | the functions of libibverbs |
//! | [`ucma`] | the kernel's connection manager device, `/dev/infiniband/rdma_cm` |
//! | [`hooks`] | functions of libc that lead to files and descriptors of ours |
//! | [`tree`] | the files under `/sys/class/infiniband` and `/dev/infiniband` |
//! | [`netlink`] | the sockets of NETLINK_RDMA |
//! | [`signal`] | what a signal does to a call that waits |
//! | [`real`] | the libraries that stand behind us: libc and the distribution's libibverbs |
//!
//! It is built as a static library and linked into the products by `cargo xtask build`. Nothing here runs before the
//! first call: children of a program inherit the library, whether they use RDMA or not.

pub mod hooks;
pub mod netlink;
pub mod real;
pub mod signal;
pub mod tree;
pub mod ucma;
pub mod verbs;
