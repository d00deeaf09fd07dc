//! What is made from `proto/`: messages and stubs. Nothing is written here by hand.
#![allow(missing_docs, clippy::all, rustdoc::all)]

/// Between control and agents.
pub mod control {
    tonic::include_proto!("scalefabric.control.v1");
}

/// The part of etcd's API that is used.
pub mod etcd {
    tonic::include_proto!("etcdserverpb");
}
