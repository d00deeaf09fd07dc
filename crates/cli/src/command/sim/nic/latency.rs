//! `sfab sim nic latency`: where the time of one operation passes.

use super::{Chosen, Circumstances, Operation, headline, parse_large, write_file};
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::terminal::say;
use clap::Args;
use scalefabric_sim::rnic::load::Memory;
use scalefabric_sim::rnic::path::{self, Component};
use scalefabric_sim::rnic::{Op, Path, Profile, Setting, Shape, svg};
use serde_json::json;
use std::path::PathBuf;

/// Latency of one operation, split into its components.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    operation: Operation,
    /// The CPU writes the WQE to the BAR
    #[arg(long)]
    blueflame: bool,
    #[command(flatten)]
    circumstances: Circumstances,
    /// Until the data are in the responder's memory (half of a ping-pong) instead of until the completion; WRITE and SEND
    #[arg(long)]
    arrival: bool,
    /// Pages of the responder's region, as in 4K, 2M: adds what missed translations cost at random
    #[arg(long, value_name = "SIZE", value_parser = parse_large)]
    page_size: Option<u64>,
    /// Size of that region
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_large)]
    region_size: u64,
    /// Write a picture
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Columns that the bar has.
const BAR: u64 = 36;

/// Table of components, each with a bar where its time lies.
pub fn table(components: &[Component]) -> Table {
    let total = path::total_ps(components).max(1);
    let mut table = Table::new(&[
        ("component", Align::Left),
        ("where", Align::Left),
        ("ns", Align::Right),
        ("%", Align::Right),
        ("", Align::Left),
    ]);
    let mut begun = 0;
    for component in components {
        let (from, to) = (begun * BAR / total, (begun + component.ps) * BAR / total);
        let bar = " ".repeat(from as usize) + if to > from { "" } else { "|" } + &"#".repeat((to - from) as usize);
        let share = component.ps as f64 * 100.0 / total as f64;
        let ns = component.ps as f64 / 1000.0;
        let place = component.place.label().to_owned();
        table.row(vec![component.name.to_owned(), place, format!("{ns:.1}"), format!("{share:.1}"), bar]);
        begun += component.ps;
    }
    table.row(vec!["sum".to_owned(), String::new(), format!("{:.1}", begun as f64 / 1000.0), "100.0".to_owned()]);
    table
}

/// A shape in words.
pub fn words(shape: &Shape) -> String {
    let mut words = format!("{} {} B", shape.op.label().to_uppercase(), shape.bytes);
    for (yes, word) in [(shape.inline, " inline"), (shape.blueflame, " by BlueFlame")] {
        words += if yes { word } else { "" };
    }
    words
}

fn components(profile: &Profile, shape: Shape, setting: Setting, options: &Options, seed: u64) -> Vec<Component> {
    let way = Path::new(profile, shape, setting);
    let mut components = if options.arrival { way.arrival() } else { way.components() };
    if let Some(page_bytes) = options.page_size {
        let memory = Memory { regions: 1, region_bytes: options.region_size, page_bytes };
        components.extend(way.translation(memory, seed));
    }
    components
}

/// The command.
pub fn run(chosen: &Chosen, options: &Options) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let (shape, setting) = (options.operation.shape(options.blueflame), options.circumstances.setting());
    shape.check(&profile).map_err(Failure::usage)?;
    if options.arrival && !matches!(shape.op, Op::Write | Op::Send) {
        return Err(Failure::usage("--arrival is for WRITE and SEND: the data of others arrive at the requester"));
    }
    let components = components(&profile, shape, setting, options, chosen.seed);
    let until = if options.arrival { "until the responder sees the data" } else { "until the completion is seen" };
    let title = format!("{} ({}): {}, {until}", profile.name, profile.kind.label(), words(&shape));
    if let Some(file) = &options.plot {
        write_file(file, &svg::bars(&title, &components))?;
    }
    if chosen.json {
        let parts =
            components.iter().map(|part| json!({ "name": part.name, "place": part.place.label(), "ps": part.ps }));
        say!(
            "{:#}",
            json!({
                "profile": profile.name, "kind": profile.kind.label(), "op": shape.op.label(), "bytes": shape.bytes,
                "inline": shape.inline, "blueflame": shape.blueflame, "until": until,
                "components": parts.collect::<Vec<_>>(), "total_ps": path::total_ps(&components),
            })
        );
        return Ok(());
    }
    say!("{}\n{}, {until}\n", headline(&profile), words(&shape));
    crate::terminal::print(format_args!("{}", table(&components)));
    Ok(())
}
