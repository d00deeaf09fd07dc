//! When a design hits the atomic ceiling: offered operations, a share of them on hot words, and what padding, striping and leases change. The ceiling is a
//! closed form; the event simulation gives the same and is run beside it.

use super::engine::{self, Outcome};
use super::load::{Load, Target};
use super::parameter::Key;
use super::profile::Profile;
use super::shape::{Op, Setting, Shape};

/// Words of 8 bytes in a cache line.
const WORDS_OF_A_LINE: u64 = 8;

/// How a program uses atomics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Design {
    /// CAS or FADD.
    pub op: Op,
    /// Share of operations on hot words, 0 to 1.
    pub hot_share: f64,
    /// Hot words, used alike.
    pub hot_words: u64,
    /// Each word has a cache line of its own.
    pub padded: bool,
    /// Each hot word is divided into so many, on lines of their own, of which a client picks one.
    pub stripes: u64,
    /// One atomic operation takes a lease that is good for so many operations.
    pub lease: u64,
    /// The circumstances.
    pub setting: Setting,
}

impl Design {
    /// Nothing hot.
    pub fn spread(op: Op, setting: Setting) -> Self {
        Self { op, hot_share: 0.0, hot_words: 1, padded: true, stripes: 1, lease: 1, setting }
    }

    /// Everything on one word.
    pub fn one_line(op: Op, setting: Setting) -> Self {
        Self { hot_share: 1.0, ..Self::spread(op, setting) }
    }

    /// Cache lines on which the hot words lie. Stripes bring lines of their own.
    pub fn hot_lines(&self) -> u64 {
        let words = self.hot_words * self.stripes;
        if self.padded || self.stripes > 1 { words } else { words.div_ceil(WORDS_OF_A_LINE) }
    }
}

/// What a design can reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// Million operations a second of the whole unit.
    pub unit_mops: f64,
    /// Of one cache line.
    pub line_mops: f64,
    /// Of the design, operations under a lease included.
    pub mops: f64,
    /// What the ceiling is.
    pub limit: &'static str,
}

/// The ceiling of a design.
pub fn ceiling(profile: &Profile, design: &Design) -> Ceiling {
    let setting = design.setting;
    let factor = if setting.emulated_atomics { profile.value(Key::AtomicEmulated) } else { 1.0 };
    let dram = if setting.dram { profile.value(Key::AtomicDram) } else { 0.0 };
    let rate = |ns: f64| if ns > 0.0 { 1000.0 / (ns * factor) } else { f64::INFINITY };
    let line_ns =
        if setting.device_memory { profile.value(Key::AtomicDevice) } else { profile.value(Key::AtomicLine) + dram };
    let (unit_mops, line_mops) = (rate(profile.value(Key::AtomicEngine) + dram), rate(line_ns));
    let chip = rate(profile.value(Key::NicAtomic) / factor).min(rate(profile.value(Key::NicResponder) / factor));
    let hot =
        if design.hot_share > 0.0 { line_mops * design.hot_lines() as f64 / design.hot_share } else { f64::INFINITY };
    let (atomics, limit) = [(unit_mops, "atomic unit"), (hot, "hot cache lines"), (chip, "NIC")]
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .expect("there are three");
    Ceiling { unit_mops, line_mops: line_mops.min(unit_mops), mops: atomics * design.lease as f64, limit }
}

/// What to do when `offered_mops` is too much, or nearly; empty if there is room.
pub fn advice(profile: &Profile, design: &Design, offered_mops: f64) -> Vec<String> {
    let now = ceiling(profile, design);
    if offered_mops <= 0.7 * now.mops {
        return Vec::new();
    }
    let mut advice = Vec::new();
    let with = |changed: Design| ceiling(profile, &changed).mops;
    // Room to breathe: queues grow without measure towards the ceiling.
    let enough = |mops: f64| if offered_mops <= 0.7 * mops { "enough" } else { "not enough alone" };
    let mut propose = |what: String, changed: Design| {
        let reached = with(changed);
        if reached > now.mops * 1.05 {
            advice.push(format!("{what}: {reached:.2} M/s, {}", enough(reached)));
        }
    };
    if now.limit == "hot cache lines" {
        if !design.padded && design.stripes == 1 {
            propose("pad each hot word to a cache line".to_owned(), Design { padded: true, ..*design });
        }
        let lines = offered_mops / design.lease as f64 * design.hot_share / (0.7 * now.line_mops);
        let stripes = ((lines / design.hot_words as f64).ceil() as u64).clamp(2, 4096);
        propose(format!("divide each hot word into {stripes} stripes"), Design { stripes, ..*design });
    }
    let lease = ((offered_mops / (0.7 * now.mops / design.lease as f64)).ceil() as u64).max(2);
    propose(format!("lease: one atomic for {lease} operations"), Design { lease, ..*design });
    if !design.setting.device_memory {
        let setting = Setting { device_memory: true, ..design.setting };
        propose("put the words into the NIC's own memory".to_owned(), Design { setting, ..*design });
    }
    if design.setting.emulated_atomics {
        let setting = Setting { emulated_atomics: false, ..design.setting };
        propose("use a host whose PCIe atomics are not emulated".to_owned(), Design { setting, ..*design });
    }
    if advice.is_empty() {
        advice.push("the whole unit is at its limit: divide the words among several NICs".to_owned());
    }
    advice
}

/// The load that drives a design to its ceiling.
pub fn load(design: &Design, seed: u64) -> Load {
    let shape = Shape::new(design.op, 8);
    let target =
        Target { hot_ppm: (design.hot_share * 1e6).round() as u32, hot_lines: design.hot_lines(), ..Target::SPREAD };
    let one = Load::one(shape, design.setting);
    Load { threads: 36, qps: 144, depth: 32, batch: 4, signal_every: 4, target, operations: 20_000, seed, ..one }
}

/// The same by events; the rate of operations is the outcome's times the lease.
pub fn simulate(profile: &Profile, design: &Design, seed: u64) -> Result<Outcome, String> {
    engine::run(profile, &load(design, seed))
}

#[cfg(test)]
mod tests {
    use super::super::profile::Kind;
    use super::*;

    #[test]
    fn the_simulation_reaches_the_ceiling_and_never_passes_it() {
        for (name, kind) in
            [("cx3", Kind::Measured), ("cx6", Kind::Measured), ("cx6", Kind::Course), ("cx7", Kind::Course)]
        {
            let profile = Profile::named(name, kind).unwrap();
            for (hot_share, hot_words) in [(0.0, 1), (1.0, 1), (1.0, 4), (0.3, 1), (0.3, 4)] {
                let design = Design { hot_share, hot_words, ..Design::spread(Op::Cas, Setting::default()) };
                let (expected, got) = (ceiling(&profile, &design).mops, simulate(&profile, &design, 1).unwrap().mops());
                let ratio = got / expected;
                assert!((0.85..1.04).contains(&ratio), "{name} {hot_share} on {hot_words}: {got} of {expected}");
            }
        }
    }

    #[test]
    fn padding_stripes_and_leases_raise_the_ceiling_until_the_unit_limits() {
        let profile = Profile::named("cx6", Kind::Measured).unwrap();
        let bare = Design { hot_words: 4, padded: false, ..Design::one_line(Op::Fadd, Setting::default()) };
        let padded = Design { padded: true, ..bare };
        assert_eq!(bare.hot_lines(), 1);
        assert_eq!(padded.hot_lines(), 4);
        let of = |design: &Design| ceiling(&profile, design).mops;
        assert!((of(&padded) / of(&bare) - 4.0).abs() < 1e-9);
        assert!(of(&Design { stripes: 8, ..bare }) > of(&padded));
        assert!((of(&Design { lease: 10, ..bare }) / of(&bare) - 10.0).abs() < 1e-9);
        let unit = ceiling(&profile, &Design { stripes: 1000, ..bare });
        assert_eq!((unit.limit, unit.mops), ("atomic unit", unit.unit_mops));
    }

    #[test]
    fn advice_comes_when_it_is_needed_and_says_what_is_enough() {
        let profile = Profile::named("cx6", Kind::Course).unwrap();
        let design = Design::one_line(Op::Cas, Setting::default());
        assert!(advice(&profile, &design, 1.0).is_empty());
        let told = advice(&profile, &design, 3.0);
        assert!(told.iter().any(|line| line.contains("stripes") && line.ends_with(", enough")), "{told:?}");
        assert!(told.iter().any(|line| line.starts_with("lease: one atomic for 3 operations")), "{told:?}");
        let spread = Design::spread(Op::Cas, Setting::default());
        let told = advice(&profile, &spread, 100.0);
        assert!(told.iter().all(|line| !line.contains("stripes")), "{told:?}");
    }
}
