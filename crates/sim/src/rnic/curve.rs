//! Curves: one load, one thing varied. Each point is a run of its own with the same seed.

use super::engine::{self, Outcome};
use super::load::{Load, Memory};
use super::profile::Profile;
use super::shape::{Op, Setting, Shape};
use crate::rnic::Key;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// QPs of all threads.
    Qps,
    /// Registered regions of the load's size each.
    Regions,
    /// Bytes of a page.
    PageBytes,
    /// Bytes of data.
    Bytes,
    /// Threads, with a QP each.
    Threads,
    /// Operations that a thread has under way.
    Depth,
}

impl Axis {
    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Axis::Qps => "QPs",
            Axis::Regions => "regions",
            Axis::PageBytes => "page bytes",
            Axis::Bytes => "bytes",
            Axis::Threads => "threads",
            Axis::Depth => "depth",
        }
    }

    /// The load with this set to `value`.
    pub fn set(self, load: Load, value: u64) -> Load {
        let small = u32::try_from(value).unwrap_or(u32::MAX);
        match self {
            Axis::Qps => Load { qps: small, ..load },
            Axis::Regions => Load { memory: Memory { regions: value, ..load.memory }, ..load },
            Axis::PageBytes => Load { memory: Memory { page_bytes: value, ..load.memory }, ..load },
            Axis::Bytes => Load { shape: Shape { bytes: small, ..load.shape }, ..load },
            Axis::Threads => Load { threads: small, qps: small, ..load },
            Axis::Depth => Load { depth: small, ..load },
        }
    }
}

/// A load that a well-made program would put on a NIC: 48 threads, 16 under way each, one in 4 signalled, BlueFlame.
pub fn steady(shape: Shape, setting: Setting) -> Load {
    let one = Load::one(Shape { blueflame: true, ..shape }, setting);
    Load { threads: 48, qps: 48, depth: 16, signal_every: 4, operations: 20_000, ..one }
}

/// Runs the load at each value.
pub fn along(profile: &Profile, load: &Load, axis: Axis, values: &[u64]) -> Result<Vec<(u64, Outcome)>, String> {
    let run = |value: &u64| {
        let outcome = engine::run(profile, &axis.set(*load, *value));
        outcome.map(|outcome| (*value, outcome)).map_err(|error| format!("{} {value}: {error}", axis.label()))
    };
    values.iter().map(run).collect()
}

/// Gb/s of a stream of large messages, closed form: the wire, or the bus.
pub fn stream_gbps(profile: &Profile, op: Op) -> f64 {
    let mtu = profile.value(Key::WireMtu);
    let share = if op == Op::Read { Key::WireReadEfficiency } else { Key::WireEfficiency };
    let wire =
        profile.value(Key::WireRate) * mtu / (mtu + profile.value(Key::WireHeader)) * profile.value(share) / 1000.0;
    let payload = profile.value(Key::BusMaxPayload);
    let bus = super::shape::bus_bytes_per_ns(profile) * 8.0 * payload / (payload + profile.value(Key::BusTlp));
    wire.min(bus)
}

#[cfg(test)]
mod tests {
    use super::super::profile::Kind;
    use super::*;

    fn rates(profile: &Profile, load: &Load, axis: Axis, values: &[u64]) -> Vec<f64> {
        along(profile, load, axis, values).unwrap().iter().map(|(_, outcome)| outcome.mops()).collect()
    }

    #[test]
    fn more_qps_than_contexts_never_raise_the_rate() {
        for (name, kind) in
            [("cx3", Kind::Measured), ("cib", Kind::Measured), ("cx5", Kind::Measured), ("cx6", Kind::Measured)]
        {
            let profile = Profile::named(name, kind).unwrap();
            let entries = profile.count(Key::QpcEntries);
            let values: Vec<u64> = (0..5).map(|doubling| entries << doubling).collect();
            let got = rates(&profile, &steady(Shape::new(Op::Read, 8), Setting::default()), Axis::Qps, &values);
            // 1 %: chance of which contexts are met.
            assert!(got.windows(2).all(|pair| pair[1] <= pair[0] * 1.01), "{name}: {got:?}");
            assert!(got[4] < got[0], "{name}: {got:?}");
        }
    }

    #[test]
    fn larger_pages_never_miss_more() {
        for kind in Kind::ALL {
            let profile = Profile::named("cx6", kind).unwrap();
            let load = steady(Shape::new(Op::Read, 8), Setting::default());
            let load = Load { memory: Memory { regions: 4, region_bytes: 1 << 30, page_bytes: 4096 }, ..load };
            let pages = [1 << 12, 1 << 16, 1 << 21, 1 << 30];
            let got = along(&profile, &load, Axis::PageBytes, &pages).unwrap();
            let misses: Vec<u64> = got.iter().map(|(_, outcome)| outcome.miss_ppm("pages (MTT)")).collect();
            assert!(misses.windows(2).all(|pair| pair[1] <= pair[0]), "{misses:?}");
            assert!(misses[0] > 500_000 && misses[3] == 0, "{misses:?}");
        }
    }

    #[test]
    fn more_regions_never_raise_the_rate() {
        let profile = Profile::named("cx6", Kind::Course).unwrap();
        let load = steady(Shape::new(Op::Write, 8), Setting::default());
        let got = rates(&profile, &load, Axis::Regions, &[1, 256, 512, 4096]);
        assert!(got.windows(2).all(|pair| pair[1] <= pair[0] * 1.01), "{got:?}");
        assert!(got[3] < got[0] * 0.8, "{got:?}");
    }

    #[test]
    fn wider_and_newer_buses_never_lower_the_rate() {
        let mut profile = Profile::named("cib", Kind::Measured).unwrap();
        let load = steady(Shape::new(Op::Read, 256), Setting::default());
        let mut last = 0.0;
        for (generation, lanes) in [(1.0, 4.0), (2.0, 4.0), (3.0, 4.0), (3.0, 8.0), (3.0, 16.0), (4.0, 16.0)] {
            profile.set(Key::BusGeneration, generation, "test").unwrap();
            profile.set(Key::BusLanes, lanes, "test").unwrap();
            let got = engine::run(&profile, &load).unwrap().mops();
            // A thousandth: who is first in a queue changes with any time.
            assert!(got >= last * 0.999, "generation {generation} x{lanes}: {got} after {last}");
            last = got;
        }
        let mut starved = profile.clone();
        starved.set(Key::BusReadCredits, 1.0, "test").unwrap();
        let got = engine::run(&starved, &load).unwrap();
        assert!(got.mops() < last / 5.0 && got.limit().starts_with("DMA read credits"), "{got:?}");
    }
}
