//! What each way of posting saves: batch, inline, BlueFlame, unsignalled, huge pages, UC, and the settings of the bus. Each row is the same operation
//! with one thing changed.

use super::cache::Cache;
use super::engine;
use super::load::{Load, Memory};
use super::parameter::Key;
use super::path::Path;
use super::profile::Profile;
use super::shape::{Op, Setting, Shape, Transport};
use crate::random::Random;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Saving {
    /// What is changed.
    pub what: &'static str,
    /// Of which quantity the figures are.
    pub of: &'static str,
    /// Without, in nanoseconds.
    pub without_ns: f64,
    /// With, in nanoseconds.
    pub with_ns: f64,
}

impl Saving {
    /// Nanoseconds saved.
    pub fn saved_ns(&self) -> f64 {
        self.without_ns - self.with_ns
    }
}

/// Operations in the batch that is looked at.
pub const BATCH: u32 = 8;

/// Latency of one operation.
pub fn latency_ns(profile: &Profile, shape: Shape, setting: Setting) -> f64 {
    Path::new(profile, shape, setting).latency_ps() as f64 / 1000.0
}

/// Nanoseconds that one thread on one QP needs for each operation, when it has 64 under way.
pub fn interval_ns(
    profile: &Profile,
    shape: Shape,
    setting: Setting,
    batch: u32,
    signal_every: u32,
) -> Result<f64, String> {
    let shape = Shape { blueflame: shape.blueflame && batch == 1, ..shape };
    let load = Load { depth: 64, batch, signal_every, operations: 8000, ..Load::one(shape, setting) };
    Ok(1000.0 / engine::run(profile, &load)?.mops())
}

/// Times until the operations of a batch are seen to be done, from the moment at which all are wanted: mean and last, in nanoseconds. `batched` rings
/// once and signals the last; otherwise each is rung and its completion handled. Closed form.
pub fn batch_latency_ns(profile: &Profile, shape: Shape, setting: Setting, batched: bool) -> (f64, f64) {
    let path = Path::new(profile, shape, setting);
    let step = match batched {
        true => path.build_ps(),
        false => path.build_ps() + path.ring_ps() + profile.ps(Key::CpuCompletion),
    };
    let first = path.latency_ps();
    let last = first + u64::from(BATCH - 1) * step;
    // One ring comes after all are built, and one CQE tells of all: none is seen before the last.
    let mean = if batched { last } else { first + u64::from(BATCH - 1) * step / 2 };
    (mean as f64 / 1000.0, last as f64 / 1000.0)
}

/// Misses of translations, in a million accesses anywhere in a region.
pub fn page_miss_ppm(profile: &Profile, memory: Memory, seed: u64) -> u64 {
    let (mut cache, mut random) = (Cache::new(profile.count(Key::MttEntries)), Random::new(seed, 0x6d74_7400));
    let pages = memory.pages() * memory.regions;
    let entries = cache.entries();
    match pages <= entries {
        true => (0..pages).for_each(|page| _ = cache.touch(page)),
        false => (0..3 * entries).for_each(|_| _ = cache.touch(random.below(pages))),
    }
    cache.warm();
    (0..100_000).for_each(|_| _ = cache.touch(random.below(pages)));
    cache.miss_ppm()
}

/// All rows for a small WRITE, and READ where it is about READ.
pub fn all(profile: &Profile, setting: Setting, seed: u64) -> Result<Vec<Saving>, String> {
    let write = Shape::new(Op::Write, 8);
    let read = Shape::new(Op::Read, 8);
    let latency = |shape: Shape, setting: Setting| latency_ns(profile, shape, setting);
    let interval = |batch, every| interval_ns(profile, write, setting, batch, every);
    let mut rows = Vec::new();
    let mut row = |what, of, without_ns: f64, with_ns: f64| rows.push(Saving { what, of, without_ns, with_ns });
    let one = interval(1, 1)?;
    row("batch of 8, last signalled", "a thread's time for each", one, interval(BATCH, BATCH)?);
    let (mean, last) = batch_latency_ns(profile, write, setting, false);
    let (mean_batched, last_batched) = batch_latency_ns(profile, write, setting, true);
    row("batch of 8, last signalled", "mean latency of 8 wanted at once", mean, mean_batched);
    row("batch of 8, last signalled", "latency of the last of 8", last, last_batched);
    row("unsignalled, 1 in 16 signalled", "a thread's time for each", one, interval(1, 16)?);
    row("inline", "latency", latency(write, setting), latency(Shape { inline: true, ..write }, setting));
    row("BlueFlame", "latency", latency(write, setting), latency(Shape { blueflame: true, ..write }, setting));
    let unacknowledged = latency(write, setting) - profile.value(Key::NicAcknowledge);
    row("UC instead of RC, ACK not handled", "latency", latency(write, setting), unacknowledged);
    let miss = |page_bytes| {
        let memory = Memory { regions: 1, region_bytes: 1 << 30, page_bytes };
        page_miss_ppm(profile, memory, seed) as f64 / 1e6 * profile.value(Key::MttMiss)
    };
    let base = latency(read, setting);
    row("2 MiB pages for 4 KiB, random in 1 GiB", "READ latency", base + miss(1 << 12), base + miss(1 << 21));
    row("1 GiB pages for 4 KiB, random in 1 GiB", "READ latency", base + miss(1 << 12), base + miss(1 << 30));
    let slow = Setting { relaxed_ordering: false, aspm: true, ..setting };
    let fast = Setting { relaxed_ordering: true, aspm: false, ..setting };
    row("relaxed ordering, no ASPM", "READ latency", latency(read, slow), latency(read, fast));
    let [polling, events] = [false, true].map(|events| latency(write, Setting { events, ..setting }));
    row("polling, not events", "latency", events, polling);
    let uc = Shape { transport: Transport::Uc, ..write };
    let rate = |shape| Ok::<_, String>(1000.0 / engine::run(profile, &super::curve::steady(shape, setting))?.mops());
    row("UC instead of RC, 48 threads", "the NIC's time for each", rate(write)?, rate(uc)?);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::profile::Kind;
    use super::*;

    #[test]
    fn nothing_that_is_meant_to_save_costs() {
        for kind in Kind::ALL {
            for name in ["cx5", "cx6", "cx7"] {
                let profile = Profile::named(name, kind).unwrap();
                for saving in all(&profile, Setting::default(), 1).unwrap() {
                    // The mean latency of a batch may rise where posting is cheap: the early ones wait to be told.
                    let may_cost = saving.of == "mean latency of 8 wanted at once";
                    assert!(may_cost || saving.saved_ns() >= -0.5, "{name} {kind:?}: {saving:?}");
                }
            }
        }
    }
}
