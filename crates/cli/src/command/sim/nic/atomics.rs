//! `sfab sim nic atomics` and `ceiling`: rates of CAS and FADD anywhere and on hot lines, what helps, and whether a design fits.

use super::{Chosen, Circumstances, OpName, headline};
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::terminal::say;
use clap::Args;
use scalefabric_sim::rnic::atomic::{self, Design};
use scalefabric_sim::rnic::{Op, Profile, Setting};
use serde_json::json;

/// Rate of CAS or FADD anywhere, on one hot line, and with padding, stripes and leases.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    design: DesignOptions,
}

/// Whether offered operations are too much for a design, and what to do.
#[derive(Args)]
pub struct CeilingOptions {
    /// Operations a second, as in 3M, 500k
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    offered: f64,
    #[command(flatten)]
    design: DesignOptions,
}

#[derive(Args)]
struct DesignOptions {
    /// cas or fadd
    #[arg(long, value_enum, default_value_t = OpName::Cas)]
    op: OpName,
    /// Share of operations that go to the hot words, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    hot_share: f64,
    /// Hot words of 8 bytes, next to each other unless padded
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    words: u64,
    /// A cache line for each hot word
    #[arg(long)]
    padded: bool,
    /// Divide each hot word into so many, each on a line
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 12))]
    stripes: Option<u64>,
    /// One atomic for so many operations
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    lease: Option<u64>,
    #[command(flatten)]
    circumstances: Circumstances,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        unit => return Err(format!("`{unit}` is no unit of rate; use k, M or G, as in 3M")),
    };
    let rate = digits.parse::<f64>().ok().map(|number| number * factor).filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("`{text}` is no rate; use a number above 0 and a unit, as in 3M"))
}

impl DesignOptions {
    fn design(&self) -> Result<Design, Failure> {
        let op = match self.op {
            OpName::Cas => Op::Cas,
            OpName::Fadd => Op::Fadd,
            _ => return Err(Failure::usage("--op is cas or fadd here")),
        };
        if !(0.0..=1.0).contains(&self.hot_share) {
            return Err(Failure::usage(format!("--hot-share is {}; expected 0 to 1", self.hot_share)));
        }
        Ok(Design {
            op,
            hot_share: self.hot_share,
            hot_words: self.words,
            padded: self.padded,
            stripes: self.stripes.unwrap_or(1),
            lease: self.lease.unwrap_or(1),
            setting: self.circumstances.setting(),
        })
    }
}

struct Row {
    what: String,
    ceiling: atomic::Ceiling,
    simulated_mops: f64,
    latency_us: f64,
}

fn row(profile: &Profile, what: String, design: &Design, seed: u64) -> Result<Row, Failure> {
    let outcome = atomic::simulate(profile, design, seed).map_err(Failure::usage)?;
    let simulated_mops = outcome.mops() * design.lease as f64;
    let ceiling = atomic::ceiling(profile, design);
    Ok(Row { what, ceiling, simulated_mops, latency_us: outcome.latency_ps as f64 / 1e6 })
}

fn rows(profile: &Profile, options: &DesignOptions, seed: u64) -> Result<Vec<Row>, Failure> {
    let asked = options.design()?;
    let (stripes, lease) = (options.stripes.unwrap_or(8), options.lease.unwrap_or(16));
    let (words, share) = (asked.hot_words, asked.hot_share);
    let bare = Design { padded: false, stripes: 1, lease: 1, ..asked };
    let device = Setting { device_memory: true, ..asked.setting };
    let place = match words {
        1 => "on one word".to_owned(),
        words => format!("on {words} words side by side"),
    };
    let hot = format!("{:.0} % {place}", share * 100.0);
    let mut designs = vec![
        ("anywhere".to_owned(), Design { hot_share: 0.0, ..bare }),
        ("all on one line".to_owned(), Design { hot_share: 1.0, hot_words: 1, ..bare }),
    ];
    if (words, share) != (1, 1.0) {
        designs.push((hot.clone(), bare));
    }
    if words > 1 {
        designs.push((format!("{hot}, padded"), Design { padded: true, ..bare }));
    }
    designs.push((format!("{hot}, {stripes} stripes"), Design { stripes, ..bare }));
    designs.push((format!("{hot}, lease of {lease}"), Design { lease, ..bare }));
    designs.push((format!("{hot}, {stripes} stripes, lease of {lease}"), Design { stripes, lease, ..bare }));
    designs.push((format!("{hot}, device memory"), Design { setting: device, ..bare }));
    designs.into_iter().map(|(what, design)| row(profile, what, &design, seed)).collect()
}

/// The command `atomics`.
pub fn run(chosen: &Chosen, options: &Options) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let rows = rows(&profile, &options.design, chosen.seed)?;
    if chosen.json {
        let rows = rows.iter().map(|row| {
            json!({
                "design": row.what, "ceiling_mops": row.ceiling.mops, "simulated_mops": row.simulated_mops,
                "limit": row.ceiling.limit, "latency_us": row.latency_us,
            })
        });
        let rows: Vec<_> = rows.collect();
        say!("{:#}", json!({ "profile": profile.name, "kind": profile.kind.label(), "designs": rows }));
        return Ok(());
    }
    say!("{}\nOperations a second that atomics carry, 36 threads with 32 under way each\n", headline(&profile));
    let mut table = Table::new(&[
        ("design", Align::Left),
        ("ceiling M/s", Align::Right),
        ("simulated M/s", Align::Right),
        ("limit", Align::Left),
        ("mean us", Align::Right),
    ]);
    for row in rows {
        table.row(vec![
            row.what,
            format!("{:.2}", row.ceiling.mops),
            format!("{:.2}", row.simulated_mops),
            row.ceiling.limit.to_owned(),
            format!("{:.1}", row.latency_us),
        ]);
    }
    crate::terminal::print(format_args!("{table}"));
    Ok(())
}

/// The command `ceiling`.
pub fn ceiling(chosen: &Chosen, options: &CeilingOptions) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let design = options.design.design()?;
    let ceiling = atomic::ceiling(&profile, &design);
    let offered = options.offered / 1e6;
    let used = 100.0 * offered / ceiling.mops;
    let advice = atomic::advice(&profile, &design, offered);
    if chosen.json {
        say!(
            "{:#}",
            json!({
                "profile": profile.name, "kind": profile.kind.label(), "offered_mops": offered, "ceiling_mops": ceiling.mops,
                "limit": ceiling.limit, "unit_mops": ceiling.unit_mops, "line_mops": ceiling.line_mops,
                "utilisation_percent": used, "advice": advice,
            })
        );
        return Ok(());
    }
    say!("{}\n", headline(&profile));
    say!(
        "offered      {offered:.2} M/s, {:.0} % of it on {} cache lines",
        design.hot_share * 100.0,
        design.hot_lines()
    );
    say!("ceiling      {:.2} M/s, by {}", ceiling.mops, ceiling.limit);
    say!("             the unit carries {:.2} M/s, one line {:.2} M/s", ceiling.unit_mops, ceiling.line_mops);
    let verdict = match used {
        used if used > 100.0 => "too much: queues grow without end",
        used if used > 70.0 => "near the ceiling: queues are long",
        _ => "there is room",
    };
    say!("utilisation  {used:.0} %: {verdict}");
    if !advice.is_empty() {
        say!("\nwhat to do (at most 70 % of the ceiling is called enough)");
        advice.iter().for_each(|line| say!("  {line}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        assert_eq!(parse_rate("3M"), Ok(3e6));
        assert_eq!(parse_rate("0.5M"), Ok(5e5));
        assert_eq!(parse_rate("250k"), Ok(250e3));
        for wrong in ["", "M", "-1", "0", "3X", "inf", "nan"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
