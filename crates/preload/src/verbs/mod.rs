//! The functions of libibverbs (v1.0 to v1.18) over the contract. Translation, no policy.
//!
//! | module | what it is |
//! |---|---|
//! | [`object`] | an object of C and what stands behind it; the graveyard |
//! | [`context`] | the open device with its table of operations |
//! | [`device`], [`query`] | the list of devices, and questions |
//! | [`memory`], [`regions`], [`windows`] | protection domains, memory regions, memory windows, device memory |
//! | [`completion`], [`completion_ex`] | channels and CQs, old and extended |
//! | [`queue_pair`], [`attribute`], [`shared_receive_queue`], [`address`] | QPs, SRQs, XRC domains, address handles |
//! | [`post`], [`work_request`] | posting, old and new |
//! | [`async_event`] | asynchronous events |
//! | [`marshal`], [`text`], [`counter`] | what needs no device, or has none |
//! | [`answer`], [`behind`] | errno; the distribution's library for objects that are not ours |
//! | [`lock`], [`hold`] | locks of our tables, and forks; locks that C takes and gives back |
//!
//! A function of libibverbs that is public but missing here would run in the real library with an object of ours. That
//! is why all are here, also those that only say EOPNOTSUPP.

pub mod address;
pub mod answer;
pub mod async_event;
pub mod attribute;
pub mod behind;
pub mod completion;
pub mod completion_ex;
pub mod context;
pub mod counter;
pub mod device;
pub mod hold;
pub mod lock;
pub mod marshal;
pub mod memory;
pub mod object;
pub mod post;
pub mod query;
pub mod queue_pair;
pub mod regions;
pub mod shared_receive_queue;
pub mod text;
pub mod windows;
pub mod work_request;
