//! What a connection has on one of its fabric's devices: queues, their channel, and receives. A lane is made from the parts of the device that it is on; what
//! came on any of them is taken in one order by the sending and the receiving half. It decides nothing about where a lane lies.

use super::config::Config;
use super::hub::Hub;
use super::receive::ReceivePool;
use crate::error::FabricError;
use scalefabric_verbs::{CompletionChannel, CompletionQueue};
use std::sync::Arc;

/// Parts of a connection on one device.
#[derive(Debug)]
pub(crate) struct Dock {
    pub hub: Arc<Hub>,
    pub send_cq: Arc<dyn CompletionQueue>,
    pub recv_cq: Arc<dyn CompletionQueue>,
    pub pool: Arc<ReceivePool>,
}

impl Dock {
    /// Makes them; and the channel on which both queues tell of completions.
    pub fn new(
        hub: &Arc<Hub>,
        config: &Config,
        pool: Arc<ReceivePool>,
    ) -> Result<(Self, Arc<dyn CompletionChannel>), FabricError> {
        let channel = hub.context.create_comp_channel()?;
        // Two lanes, a marker and a signal of each.
        let send_cq = hub.context.create_cq(2 * config.depth + 24, Some(channel.clone()), 0)?;
        let recv_cq = hub.context.create_cq(pool.receives + 8, Some(channel.clone()), 0)?;
        Ok((Self { hub: hub.clone(), send_cq, recv_cq, pool }, channel))
    }
}
