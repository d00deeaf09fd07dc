//! `librdmacm.so.1` for hosts and containers without rdma-core: the calls of `rdma/rdma_cma.h` and those that the inline functions of
//! `rdma/rdma_verbs.h` need. It speaks the commands of the kernel's connection manager device ([`scalefabric_ibv::abi::ucma`]) to the
//! engine in `libscalefabric-preload.so`, which is there once in a process, and calls the `ibv_*` functions for everything else. Where the
//! distribution has its own librdmacm, that one is used: it has rsockets, which this one refuses.
//!
//! | module | what it is |
//! |---|---|
//! | `engine` | the functions beneath: the door to the device, libibverbs |
//! | `command` | one command: written, its answer read |
//! | `device` | devices as identifiers know them, with their default PD |
//! | `id` | identifiers: made, moved, destroyed |
//! | `event` | channels and events |
//! | `address`, `resolver` | addresses and routes of an identifier; names |
//! | `connection` | connect, listen, accept, reject, disconnect |
//! | `queue` | QPs, SRQs and CQs that an identifier makes by itself |
//! | `group` | multicast |
//! | `endpoint` | `rdma_create_ep` |
//! | `option` | options, ECE |
//! | `absent` | what is refused: rsockets, InfiniBand services |
//!
//! Every function is `unsafe` as C is: pointers are what `rdma_cma.h` says, or null where it allows that.

#![allow(clippy::missing_safety_doc)]

mod absent;
mod address;
mod command;
mod connection;
mod device;
mod endpoint;
mod engine;
mod event;
mod group;
mod id;
mod option;
mod queue;
mod resolver;
