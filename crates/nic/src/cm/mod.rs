//! The communication manager of this process: it speaks chapter 12 from QP 1 for all its devices, and gives applications the
//! contract of [`scalefabric_verbs::cm`].
//!
//! One thread sleeps until a message or a deadline comes; it starts with the first channel, or with the first message that
//! another host sends. Protocol is in `transport/src/cm`; which process a message is for is decided in `route`; ports,
//! listeners and connections that others must know of are in the device segment (`share/connections.rs`).

mod active;
mod agent;
mod change;
mod devices;
mod handle;
mod id;
mod index;
mod links;
mod listing;
mod multicast;
mod options;
mod passive;
mod receive;
mod route;
mod service;

use std::sync::{Arc, Mutex, Weak};

use scalefabric_verbs::{CmChannel, VerbsError};

pub(crate) use agent::Post;
pub(crate) use listing::list;
pub(crate) use route::Router;

use crate::provider::SoftwareProvider;

/// What there is once in a process. A forked child has another.
#[derive(Default)]
pub(crate) struct Whole {
    agent: Mutex<Option<Arc<agent::Agent>>>,
    /// Devices in use, so that identifiers of one share one context (and one descriptor).
    devices: Mutex<Vec<Weak<devices::Device>>>,
}

impl Whole {
    /// The process ends: peers are told, if nobody is just in the middle of something.
    pub(crate) fn end(&self) {
        if let Ok(agent) = self.agent.try_lock()
            && let Some(agent) = &*agent
        {
            agent.end();
        }
    }
}

/// Opens an event channel whose identifiers use the devices of `provider`.
pub(crate) fn open_channel(provider: &SoftwareProvider) -> Result<Arc<dyn CmChannel>, VerbsError> {
    handle::Channel::open(provider)
}
