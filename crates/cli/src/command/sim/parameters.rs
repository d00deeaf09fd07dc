//! `sfab sim parameters`: every congestion controller with its parameters: unit, default for a link's rate, bounds, what happens at the extremes, source.

use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::terminal::{print, say};
use clap::Args;
use scalefabric_sim::fabric::parameters::{HEADS, RATES, bps, page, value};
use scalefabric_transport::congestion::{PROFILES, Profile};
use serde_json::json;

/// Congestion controllers and their parameters, with defaults for links of 1, 10, 25, 100 and 400 Gb/s.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim parameters                      the controllers
  sfab sim parameters dcqcn                its parameters at five rates
  sfab sim parameters swift --explain      with meaning, bounds, extremes and source
  sfab sim parameters hpcc --rate 0.2      defaults for a link of 200 Mb/s")]
pub struct Options {
    /// A controller; without one, all are listed
    profile: Option<String>,
    /// Defaults for a link of this rate only, Gb/s
    #[arg(long, value_name = "GBPS")]
    rate: Option<f64>,
    /// Meaning, bounds, what happens at the extremes, and where the default is from
    #[arg(long, requires = "profile")]
    explain: bool,
    /// Prints JSON
    #[arg(long, conflicts_with_all = ["explain", "markdown"])]
    json: bool,
    /// Prints docs/congestion.md
    #[arg(long, hide = true, exclusive = true)]
    markdown: bool,
}

fn named(name: &str, gbps: f64) -> Result<Profile, Failure> {
    Profile::named(name, bps(gbps)).map_err(|error| Failure::usage(error.to_string()))
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.markdown {
        print(format_args!("{}", page()));
        return Ok(());
    }
    if let Some(rate) = options.rate
        && !(0.001..=10_000.0).contains(&rate)
    {
        return Err(Failure::usage(format!("--rate is {rate}: 0.001 to 10000 (Gb/s) is possible")));
    }
    let rates = options.rate.map_or_else(|| RATES.to_vec(), |rate| vec![rate]);
    let Some(name) = &options.profile else { return list(options, &rates) };
    let profile = named(name, rates[0])?;
    if options.json {
        say!("{:#}", one(name, &rates)?);
        return Ok(());
    }
    let about = PROFILES.iter().find(|have| have.name == name).map_or("", |have| have.meaning);
    say!("{name}: {about}\n");
    let mut heads = vec![("parameter", Align::Left), ("unit", Align::Left)];
    match options.rate {
        Some(_) => heads.push(("default", Align::Right)),
        None => heads.extend(HEADS.map(|head| (head, Align::Right))),
    }
    let mut table = Table::new(&heads);
    for row in profile.table() {
        let mut cells = vec![row.name.to_owned(), row.unit().to_owned()];
        for rate in &rates {
            cells.push(value(row, named(name, *rate)?.get(row.name).unwrap_or_default()));
        }
        table.row(cells);
    }
    print(format_args!("{table}"));
    if options.explain {
        for row in profile.table() {
            let bounds = (value(row, row.least), value(row, row.most));
            say!("\n{}, {} to {}", row.name, bounds.0, bounds.1);
            say!("  {}\n  {}\n  Default: {}", row.meaning, row.extremes, row.source);
        }
    }
    Ok(())
}

fn one(name: &str, rates: &[f64]) -> Result<serde_json::Value, Failure> {
    let mut rows = Vec::new();
    for row in named(name, rates[0])?.table() {
        let mut defaults = serde_json::Map::new();
        for rate in rates {
            defaults.insert(format!("{rate}"), json!(named(name, *rate)?.get(row.name)));
        }
        rows.push(json!({
            "name": row.name, "unit": row.unit(), "default_by_gbps": defaults, "least": row.least, "most": row.most,
            "meaning": row.meaning, "extremes": row.extremes, "source": row.source,
        }));
    }
    Ok(json!({ "profile": name, "parameters": rows }))
}

fn list(options: &Options, rates: &[f64]) -> Result<(), Failure> {
    if options.json {
        let all = PROFILES.iter().map(|have| one(have.name, rates)).collect::<Result<Vec<_>, _>>()?;
        say!("{:#}", serde_json::Value::Array(all));
        return Ok(());
    }
    let mut table = Table::new(&[("controller", Align::Left), ("", Align::Left)]);
    PROFILES.iter().for_each(|have| table.row(vec![have.name.to_owned(), have.meaning.to_owned()]));
    print(format_args!("{table}"));
    say!("\n`sfab sim parameters NAME` has the parameters. Default: none on the live NIC, dcqcn in simulated fabrics;");
    say!("docs/decisions/congestion.md says why, and what to take where.");
    Ok(())
}
