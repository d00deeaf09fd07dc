//! The last act of the demo with two rails: a port of the near device goes down under load, its connections go on by the other port, and come home when it is up
//! again. It measures how long a connection was silent.

use super::load::Load;
use super::{PATIENCE, Stage};
use crate::failure::{During, Failure};
use scalefabric_nic::PortChange;
use scalefabric_nic::provider::SoftwareContext;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The port that fails.
const PORT: u8 = 2;

/// Messages of a connection that show that its data flows again.
const FLOWS: u64 = 8;

/// How it went.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortFailure {
    /// Connections that were on the port.
    pub connections: usize,
    /// Longest time between two messages of any connection, from before the port went down until all flowed again.
    pub silence: Duration,
    /// The same, from then until all were home again.
    pub silence_home: Duration,
    /// From the port's return, `return_after` included, until the last connection was home.
    pub home_after: Duration,
}

impl Stage {
    /// Takes the port down and up again.
    pub(super) fn fail_port(&self, load: &Load) -> Result<PortFailure, Failure> {
        let context = self.near.context().clone();
        let set = |change: PortChange| {
            let software = context.as_any().downcast_ref::<SoftwareContext>();
            let software = software.ok_or_else(|| Failure::failed("the device is not a software NIC"))?;
            software.core().change_port(PORT, &change).during(|| "change the port's state")
        };
        let connections = self.on_rails()[usize::from(PORT) - 1];
        load.take_longest_gap();
        set(PortChange::Down)?;
        self.wait(load, "a connection stayed on a port that is down", || self.on_port(PORT) == 0)?;
        let before: Vec<u64> = load.gauges().iter().map(|gauge| gauge.checked.load(Ordering::Relaxed)).collect();
        let flows = || {
            let now = load.gauges().iter().map(|gauge| gauge.checked.load(Ordering::Relaxed));
            now.zip(&before).all(|(now, before)| now >= before + FLOWS)
        };
        self.wait(load, "a connection is silent since the port went down", flows)?;
        let silence = load.take_longest_gap();
        set(PortChange::Up)?;
        let returned = Instant::now();
        self.wait(load, "a connection did not come home", || self.on_port(PORT) >= connections)?;
        Ok(PortFailure { connections, silence, silence_home: load.take_longest_gap(), home_after: returned.elapsed() })
    }

    fn on_port(&self, port_num: u8) -> usize {
        self.on_rails()[usize::from(port_num) - 1]
    }

    fn wait(&self, load: &Load, what: &str, done: impl Fn() -> bool) -> Result<(), Failure> {
        let begun = Instant::now();
        while !done() {
            load.check()?;
            if begun.elapsed() > PATIENCE {
                return Err(Failure::failed(what));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
