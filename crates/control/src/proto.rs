//! What is made from `proto/`: messages and stubs. Nothing is written here by hand.
#![allow(missing_docs, clippy::all, rustdoc::all)]

/// Between control and agents.
pub mod control {
    tonic::include_proto!("scalefabric.control.v1");
}
