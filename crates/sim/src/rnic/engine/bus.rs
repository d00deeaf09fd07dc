//! PCIe of one side: what it carries each way, and how many reads may be open.

use super::super::profile::Profile;
use super::super::server::Server;
use super::super::shape::{bus_bytes, bus_bytes_per_ns, request_bytes, time_ps};

/// One side's PCIe.
#[derive(Default)]
pub(super) struct Bus {
    pub(super) up: Server,
    pub(super) down: Server,
    pub(super) reads: Server,
}

/// A DMA read: a request up, data down, a credit held; when it may begin.
pub(super) fn read(profile: &Profile, bus: &mut Bus, at: u64, bytes: u64, credit_ps: u64) -> u64 {
    let rate = bus_bytes_per_ns(profile);
    let at = bus.reads.start(at, credit_ps);
    let at = bus.up.start(at, time_ps(request_bytes(profile, bytes), rate));
    bus.down.start(at, time_ps(bus_bytes(profile, bytes), rate))
}

/// A posted DMA write; when it may begin.
pub(super) fn write(profile: &Profile, bus: &mut Bus, at: u64, bytes: u64) -> u64 {
    bus.up.start(at, time_ps(bus_bytes(profile, bytes), bus_bytes_per_ns(profile)))
}
