//! The congestion controllers' parameters as a page: `docs/congestion.md`, and the pieces of which `sfab sim parameters` makes its tables. Everything comes from the
//! tables that the controllers are made from.

use scalefabric_transport::congestion::{Named, PROFILES, Parameter, Profile};
use std::fmt::Write;

/// Rates at which defaults are shown, Gb/s.
pub const RATES: [f64; 5] = [1.0, 10.0, 25.0, 100.0, 400.0];
/// Their names.
pub const HEADS: [&str; 5] = ["1 Gb/s", "10 Gb/s", "25 Gb/s", "100 Gb/s", "400 Gb/s"];

/// Gb/s as bit/s.
pub fn bps(gbps: f64) -> u64 {
    (gbps * 1e9) as u64
}

/// A value with its unit as short as it can be told.
pub fn value(row: &Parameter, value: f64) -> String {
    let scaled = |steps: &[(f64, &str)]| {
        let (by, unit) = steps.iter().rev().find(|(by, _)| value >= *by).unwrap_or(&steps[0]);
        let number = (value / by * 1e4).round() / 1e4;
        format!("{number} {unit}")
    };
    match row.unit() {
        _ if value == 0.0 => "0".to_owned(),
        "ns" => scaled(&[(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")]),
        "bit/s" => scaled(&[(1.0, "bit/s"), (1e3, "kb/s"), (1e6, "Mb/s"), (1e9, "Gb/s"), (1e12, "Tb/s")]),
        "bytes" => scaled(&[(1.0, "B"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")]),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

/// Profiles of one algorithm have one table of parameters.
fn families() -> Vec<(&'static str, Vec<&'static Named>)> {
    let mut families: Vec<(&'static str, Vec<&'static Named>)> = Vec::new();
    for have in PROFILES {
        let Ok(profile) = Profile::named(have.name, bps(RATES[0])) else { continue };
        let algorithm = profile.algorithm();
        match families.iter_mut().find(|(family, _)| *family == algorithm) {
            Some((_, members)) => members.push(have),
            None => families.push((algorithm, vec![have])),
        }
    }
    families
}

/// `docs/congestion.md`.
pub fn page() -> String {
    let mut out = "# Congestion controllers and their parameters\n\n\
        Printed by `sfab sim parameters --markdown` from the tables that the code reads; a test holds the two together. Set them in\n\
        [configuration](configuration.md) or a [scenario](sim.md). Which to take and why: [decisions/congestion.md](decisions/congestion.md).\n\n\
        | controller | |\n|---|---|\n"
        .to_owned();
    for have in PROFILES {
        let _ = writeln!(out, "| `{}` | {} |", have.name, have.meaning);
    }
    for (family, members) in families().into_iter().filter(|(family, _)| *family != "none") {
        let _ = writeln!(out, "\n## {}\n", family.to_uppercase());
        let _ = writeln!(out, "| default of | parameter | {} |", HEADS.join(" | "));
        let _ = writeln!(out, "|---|---|{}", "---|".repeat(RATES.len()));
        let table = Profile::named(members[0].name, bps(RATES[0])).map_or(&[][..], |profile| profile.table());
        for row in table {
            let defaults = |name: &str| -> Vec<String> {
                let at = |rate: &f64| Profile::named(name, bps(*rate)).ok().and_then(|profile| profile.get(row.name));
                RATES.iter().map(|rate| at(rate).map_or_else(String::new, |number| value(row, number))).collect()
            };
            let mut by_values: Vec<(Vec<String>, Vec<String>)> = Vec::new();
            for member in &members {
                let values = defaults(member.name);
                match by_values.iter_mut().find(|(have, _)| *have == values) {
                    Some((_, names)) => names.push(format!("`{}`", member.name)),
                    None => by_values.push((values, vec![format!("`{}`", member.name)])),
                }
            }
            for (values, names) in by_values {
                let names = if names.len() == members.len() { "all".to_owned() } else { names.join(", ") };
                let _ = writeln!(out, "| {names} | `{}` | {} |", row.name, values.join(" | "));
            }
        }
        let _ = writeln!(
            out,
            "\n| parameter | unit | from | to | what it is; at its extremes | source |\n|---|---|---|---|---|---|"
        );
        for row in table {
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} | {} {} | {} |",
                row.name,
                row.unit(),
                value(row, row.least),
                value(row, row.most),
                row.meaning,
                row.extremes,
                row.source
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_command_prints() {
        let stored = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/congestion.md");
        if std::fs::read_to_string(stored).unwrap_or_default() != page() {
            let right = std::env::temp_dir().join("congestion.md");
            std::fs::write(&right, page()).unwrap();
            panic!(
                "docs/congestion.md is stale: take {} (sfab sim parameters --markdown prints it, too)",
                right.display()
            );
        }
    }

    #[test]
    fn values_are_told_with_their_unit() {
        let dcqcn = Profile::named("dcqcn", bps(100.0)).unwrap();
        let row = |name: &str| dcqcn.table().iter().find(|row| row.name == name).unwrap();
        assert_eq!(value(row("rpg_time_reset_ns"), 7_500_000.0), "7.5 ms");
        assert_eq!(value(row("rpg_ai_rate_bps"), 20_000_000.0), "20 Mb/s");
        assert_eq!(value(row("rpg_byte_reset"), 32_767.0), "32767 B");
        assert_eq!(value(row("clamp_tgt_rate"), 1.0), "1");
    }
}
