//! `sfab sim nic`: what the timing model of real NICs says. This file reads the command line and finds the profile; each question is a file below.

mod atomics;
mod figures;
mod latency;
mod points;
mod rate;

use crate::failure::{During, Failure};
use clap::{Args, Subcommand, ValueEnum};
use scalefabric_sim::rnic::{Kind, Op, Profile, Setting, Shape, Transport};
use std::path::PathBuf;

/// How long operations take on a real NIC and where, what batching and the like save, and where rates end: a model, with its figures' sources.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim nic                                      one page about ConnectX-6, measured figures
  sfab sim nic latency --op cas --kind course       where the time of a CAS passes
  sfab sim nic savings --profile cx5                what batch 8, inline, unsignalled, huge pages save
  sfab sim nic rate --by qps --op read              message rate against QPs
  sfab sim nic rate --by page-size --region-size 1G
  sfab sim nic atomics --words 8 --stripes 16       spread, one hot line, padded, striped, leased
  sfab sim nic ceiling --offered 3M --hot-share 0.4 is it too much, and what to do
  sfab sim nic compare                              what is taught beside what was measured
  sfab sim nic validate                             every reference point: expected, got, ok or why not")]
pub struct Options {
    #[command(subcommand)]
    question: Option<Question>,
    #[command(flatten)]
    chosen: Chosen,
}

/// Which NIC.
#[derive(Args)]
struct Chosen {
    /// cx3, cib, cx4, cx5, cx6, cx7, cx8; see sfab sim nic profiles
    #[arg(long, global = true, value_name = "NAME", default_value = "cx6")]
    profile: String,
    /// Whose figures
    #[arg(long, global = true, value_enum, default_value_t = KindName::Measured)]
    kind: KindName,
    /// A profile of your own, in TOML; see docs/sim.md
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "profile")]
    profile_file: Option<PathBuf>,
    /// Seed of all chance
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindName {
    /// What engineers are taught
    Course,
    /// What was measured and published
    Measured,
}

#[derive(Subcommand)]
enum Question {
    Latency(latency::Options),
    Savings(figures::SavingsOptions),
    Rate(Box<rate::Options>),
    Atomics(atomics::Options),
    Ceiling(atomics::CeilingOptions),
    Compare(points::CompareOptions),
    Validate(points::ValidateOptions),
    Parameters(figures::ParametersOptions),
    Profiles(figures::ProfilesOptions),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OpName {
    Write,
    Read,
    Send,
    Fadd,
    Cas,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TransportName {
    Rc,
    Uc,
    Ud,
}

/// One operation.
#[derive(Args)]
struct Operation {
    /// Operation
    #[arg(long, value_enum, default_value_t = OpName::Write)]
    op: OpName,
    /// Bytes of data, as in 8, 4K; atomics have 8
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = crate::units::parse_size)]
    size: u32,
    /// Data inside the WQE
    #[arg(long)]
    inline: bool,
    /// Transport service
    #[arg(long, value_enum, default_value_t = TransportName::Rc)]
    transport: TransportName,
}

/// Circumstances.
#[derive(Args)]
struct Circumstances {
    /// Wait for completions by events instead of polling
    #[arg(long)]
    events: bool,
    /// PCIe without relaxed ordering
    #[arg(long)]
    strict_ordering: bool,
    /// PCIe with link power management
    #[arg(long)]
    aspm: bool,
    /// Atomics and READs on the NIC's own memory
    #[arg(long)]
    device_memory: bool,
    /// Peers' memory does not fit the last-level cache
    #[arg(long)]
    dram: bool,
    /// The host emulates PCIe atomics in software
    #[arg(long)]
    emulated_atomics: bool,
    /// Switches between the hosts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=16))]
    switches: u32,
}

impl Chosen {
    fn kind(&self) -> Kind {
        match self.kind {
            KindName::Course => Kind::Course,
            KindName::Measured => Kind::Measured,
        }
    }

    fn read(&self) -> Result<Profile, Failure> {
        let Some(path) = &self.profile_file else {
            return Profile::named(&self.profile, self.kind()).map_err(|error| Failure::usage(error.to_string()));
        };
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        Profile::parse(&path.display().to_string(), &text).map_err(|error| Failure::usage(error.to_string()))
    }
}

impl Operation {
    fn shape(&self, blueflame: bool) -> Shape {
        let op = match self.op {
            OpName::Write => Op::Write,
            OpName::Read => Op::Read,
            OpName::Send => Op::Send,
            OpName::Fadd => Op::Fadd,
            OpName::Cas => Op::Cas,
        };
        let transport = match self.transport {
            TransportName::Rc => Transport::Rc,
            TransportName::Uc => Transport::Uc,
            TransportName::Ud => Transport::Ud,
        };
        Shape { inline: self.inline, blueflame, transport, ..Shape::new(op, self.size) }
    }
}

impl Circumstances {
    fn setting(&self) -> Setting {
        Setting {
            relaxed_ordering: !self.strict_ordering,
            aspm: self.aspm,
            events: self.events,
            device_memory: self.device_memory,
            dram: self.dram,
            emulated_atomics: self.emulated_atomics,
            switches: self.switches,
        }
    }
}

/// Sizes of regions and pages, which may be beyond 2 GiB.
fn parse_large(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        unit => return Err(format!("`{unit}` is no unit of size; use B, K, M, G or T, as in 2M")),
    };
    let number: u64 =
        digits.trim().parse().map_err(|_| format!("`{text}` is no size; use a number and a unit, as in 2M"))?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(|| format!("`{text}` is 0 or too large"))
}

/// Writes a picture or a table to a file.
fn write_file(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).during(|| format!("write {}", path.display()))
}

/// The heading of every page: which figures these are.
fn headline(profile: &Profile) -> String {
    let note = if profile.note.is_empty() { String::new() } else { format!("\n{}", profile.note) };
    format!("{}: {}; figures: {}{note}", profile.name, profile.title, profile.kind.label())
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let chosen = &options.chosen;
    match &options.question {
        None => figures::page(chosen),
        Some(Question::Latency(options)) => latency::run(chosen, options),
        Some(Question::Savings(_)) => figures::savings(chosen),
        Some(Question::Rate(options)) => rate::run(chosen, options),
        Some(Question::Atomics(options)) => atomics::run(chosen, options),
        Some(Question::Ceiling(options)) => atomics::ceiling(chosen, options),
        Some(Question::Compare(_)) => points::compare(chosen),
        Some(Question::Validate(options)) => points::validate(chosen, options),
        Some(Question::Parameters(options)) => figures::parameters(chosen, options),
        Some(Question::Profiles(_)) => figures::profiles(chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_sizes_are_read() {
        assert_eq!(parse_large("4096"), Ok(4096));
        assert_eq!(parse_large("2M"), Ok(2 << 20));
        assert_eq!(parse_large("16GiB"), Ok(16 << 30));
        for wrong in ["", "G", "2X", "0", "99999999T"] {
            assert!(parse_large(wrong).is_err(), "{wrong}");
        }
    }
}
