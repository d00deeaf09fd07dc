//! Helpers for memory on the other side: typed atomics, locks and leases, rings and mailboxes with credits, hash buckets read in one READ. They speak to a
//! peer through an endpoint only and never touch a QP.
pub mod publish;
