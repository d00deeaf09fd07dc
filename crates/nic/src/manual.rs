//! A NIC without threads, sockets or a clock: for tests, dialogues and the simulator. Its engine is the one that ships.
//!
//! Nothing moves until [`ManualNic::turn`] is called with a time; `poll_cq` and `post_send` do not drive it. The same seed
//! and the same calls give the same packets.

use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_verbs::{Context, Errno, VerbsError};

use crate::config::NicConfig;
use crate::counters::{CountersHandle, PortCounters};
use crate::engine::Turn;
use crate::engine::direct::Setup;
use crate::engine::drive::Core;
use crate::memory::Seed;
use crate::objects::NicContext;
use crate::port::Port;
use crate::tables::PortChange;

/// A NIC that is driven by hand.
#[derive(Debug)]
pub struct ManualNic {
    core: Arc<Core>,
    context: Arc<NicContext>,
    counters: Vec<Arc<PortCounters>>,
}

impl ManualNic {
    /// A NIC on these ports, in the order of `config.ports`. Keys are made from `seed`.
    pub fn new(config: NicConfig, ports: Vec<Box<dyn Port>>, seed: u64) -> Result<Self, VerbsError> {
        Self::build(config, ports, seed, None)
    }

    /// The same, where requests between QPs of this NIC go without packets.
    pub fn new_direct(config: NicConfig, ports: Vec<Box<dyn Port>>, seed: u64) -> Result<Self, VerbsError> {
        let setup = Setup::alone().map_err(|error| VerbsError::environment(Errno::ENOMEM, error.to_string()))?;
        Self::build(config, ports, seed, Some(setup))
    }

    /// From now on who posts a request to a QP of this NIC executes it at once, as on a NIC that its callers drive; else turns do.
    pub fn execute_at_once(&self) {
        self.core.execute_at_once();
    }

    fn build(
        config: NicConfig,
        ports: Vec<Box<dyn Port>>,
        seed: u64,
        direct: Option<Setup>,
    ) -> Result<Self, VerbsError> {
        let counters: Vec<_> = ports.iter().map(|_| Arc::new(PortCounters::default())).collect();
        let handles = counters.iter().map(|c| c.clone() as CountersHandle).collect();
        // SplitMix64: four words that differ for seeds that differ in one bit.
        let mut state = seed;
        let words = [(); 4].map(|()| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        let core = Core::manual(config, ports, handles, Seed(words), direct)?;
        let context = NicContext::new(&core)?;
        Ok(Self { core, context, counters })
    }

    /// The open device.
    pub fn context(&self) -> Arc<dyn Context> {
        self.context.clone()
    }

    /// The engine behind its lock.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// One turn at `now`. Time does not go back: an earlier `now` is taken as the last one.
    pub fn turn(&self, now: Time) -> Turn {
        self.core.turn_at(now)
    }

    /// Changes a port's tables and raises the event that belongs to it.
    pub fn change_port(&self, port_num: u8, change: PortChange) -> Result<(), VerbsError> {
        self.core.change_port(port_num, &change)
    }

    /// Counters of a port, from 1. Up to date after each turn.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn counters(&self, port_num: u8) -> &PortCounters {
        &self.counters[usize::from(port_num) - 1]
    }
}
