//! `sfab sim nic` without a question, `savings`, `parameters` and `profiles`: what a profile says on one page, and what it is made of.

use super::{Chosen, headline, latency};
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::terminal::{print, say};
use clap::Args;
use scalefabric_sim::rnic::atomic::{self, Design};
use scalefabric_sim::rnic::savings::{self, Saving};
use scalefabric_sim::rnic::{Key, Op, Path, Profile, Setting, Shape, curve, profile};
use serde_json::json;

/// What batch 8, inline, BlueFlame, unsignalled, huge pages, UC and the bus's settings save.
#[derive(Args)]
pub struct SavingsOptions {}

/// Profiles of the crate, and what must be known about each.
#[derive(Args)]
pub struct ProfilesOptions {}

/// Every parameter of a profile: value, unit, source; with --explain also meaning and what its extremes do.
#[derive(Args)]
pub struct ParametersOptions {
    /// Only keys that have this in them, as in qpc
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// Meaning, range, and what happens at its ends
    #[arg(long)]
    explain: bool,
}

fn rows(chosen: &Chosen, profile: &Profile) -> Result<Vec<Saving>, Failure> {
    savings::all(profile, Setting::default(), chosen.seed).map_err(Failure::failed)
}

fn savings_table(rows: &[Saving]) -> Table {
    let mut table = Table::new(&[
        ("what", Align::Left),
        ("of", Align::Left),
        ("without ns", Align::Right),
        ("with ns", Align::Right),
        ("saves ns", Align::Right),
        ("%", Align::Right),
    ]);
    for row in rows {
        let percent = 100.0 * row.saved_ns() / row.without_ns;
        table.row(vec![
            row.what.to_owned(),
            row.of.to_owned(),
            format!("{:.1}", row.without_ns),
            format!("{:.1}", row.with_ns),
            format!("{:.1}", row.saved_ns()),
            format!("{percent:.0}"),
        ]);
    }
    table
}

/// The command `savings`.
pub fn savings(chosen: &Chosen) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let rows = rows(chosen, &profile)?;
    if chosen.json {
        let rows = rows.iter().map(|row| {
            json!({
                "what": row.what, "of": row.of, "without_ns": row.without_ns, "with_ns": row.with_ns,
                "saved_ns": row.saved_ns(),
            })
        });
        let rows: Vec<_> = rows.collect();
        say!("{:#}", json!({ "profile": profile.name, "kind": profile.kind.label(), "savings": rows }));
        return Ok(());
    }
    say!("{}\nA WRITE of 8 B, or a READ where it says so; one thing changed in each row\n", headline(&profile));
    print(format_args!("{}", savings_table(&rows)));
    Ok(())
}

/// The page without a question.
pub fn page(chosen: &Chosen) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let setting = Setting::default();
    let latencies: Vec<(Op, u64)> =
        Op::ALL.iter().map(|op| (*op, Path::new(&profile, Shape::new(*op, 8), setting).latency_ps())).collect();
    let ceilings =
        [("anywhere", Design::spread(Op::Cas, setting)), ("on one line", Design::one_line(Op::Cas, setting))]
            .map(|(what, design)| (what, atomic::ceiling(&profile, &design).mops));
    let streams = [Op::Write, Op::Read].map(|op| (op, curve::stream_gbps(&profile, op)));
    if chosen.json {
        let latencies: serde_json::Map<_, _> =
            latencies.iter().map(|(op, ps)| (op.label().to_owned(), json!(ps))).collect();
        let streams: serde_json::Map<_, _> =
            streams.iter().map(|(op, gbps)| (op.label().to_owned(), json!(gbps))).collect();
        let [(_, anywhere), (_, one_line)] = ceilings;
        say!(
            "{:#}",
            json!({
                "profile": profile.name, "kind": profile.kind.label(), "title": profile.title, "note": profile.note,
                "latency_ps": latencies, "stream_gbps": streams,
                "atomics_mops": { "anywhere": anywhere, "one_line": one_line },
            })
        );
        return Ok(());
    }
    say!("{}\n", headline(&profile));
    for (op, ps) in latencies {
        say!("{:<5} 8 B, alone     {:>8.2} us", op.label().to_uppercase(), ps as f64 / 1e6);
    }
    for (op, gbps) in streams {
        say!("{:<5} large, stream  {gbps:>8.1} Gb/s", op.label().to_uppercase());
    }
    for (what, mops) in ceilings {
        say!("{:<19}  {mops:>8.2} M/s", format!("atomics {what}"));
    }
    say!("\nwhere the time of a READ of 8 B passes");
    print(format_args!("{}", latency::table(&Path::new(&profile, Shape::new(Op::Read, 8), setting).components())));
    say!("\nwhat is saved");
    print(format_args!("{}", savings_table(&rows(chosen, &profile)?)));
    Ok(())
}

/// The command `parameters`.
pub fn parameters(chosen: &Chosen, options: &ParametersOptions) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let has = |key: &&Key| options.only.as_ref().is_none_or(|text| key.row().key.contains(text.as_str()));
    let keys: Vec<Key> = Key::ALL.iter().filter(has).copied().collect();
    if keys.is_empty() {
        let text = options.only.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("no parameter has `{text}` in its key; sfab sim nic parameters lists all")));
    }
    if chosen.json {
        let rows = keys.iter().map(|key| {
            let (row, figure) = (key.row(), profile.figure(*key));
            json!({
                "key": row.key, "value": figure.value, "unit": row.unit(), "source": figure.source, "low": row.low,
                "high": row.high, "meaning": row.meaning, "extremes": row.extremes,
            })
        });
        let rows: Vec<_> = rows.collect();
        say!("{:#}", json!({ "profile": profile.name, "kind": profile.kind.label(), "parameters": rows }));
        return Ok(());
    }
    say!("{}\n", headline(&profile));
    if options.explain {
        for key in keys {
            let (row, figure) = (key.row(), profile.figure(key));
            say!("{} = {} {}", row.key, figure.value, row.unit());
            say!("    {}", row.meaning);
            say!("    range: {}; {}", row.expectation(), row.extremes);
            say!("    source: {}", figure.source);
        }
        return Ok(());
    }
    let mut table =
        Table::new(&[("key", Align::Left), ("value", Align::Right), ("unit", Align::Left), ("source", Align::Left)]);
    for key in keys {
        let (row, figure) = (key.row(), profile.figure(key));
        table.row(vec![row.key.to_owned(), figure.value.to_string(), row.unit().to_owned(), figure.source.clone()]);
    }
    print(format_args!("{table}"));
    Ok(())
}

/// The command `profiles`.
pub fn profiles(chosen: &Chosen) -> Result<(), Failure> {
    let all = profile::all();
    if chosen.json {
        let rows = all.iter().map(|profile| {
            json!({ "name": profile.name, "kind": profile.kind.label(), "title": profile.title, "note": profile.note })
        });
        say!("{:#}", json!(rows.collect::<Vec<_>>()));
        return Ok(());
    }
    let mut table = Table::new(&[("name", Align::Left), ("kind", Align::Left), ("", Align::Left)]);
    for profile in &all {
        let note = if profile.note.is_empty() { String::new() } else { format!(". {}", profile.note) };
        let about = format!("{}{note}", profile.title);
        table.row(vec![profile.name.clone(), profile.kind.label().to_owned(), about]);
    }
    print(format_args!("{table}"));
    Ok(())
}
