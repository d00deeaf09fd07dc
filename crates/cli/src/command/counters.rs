//! `sfab counters`: what a device has counted, with the sentence that explains each counter.

use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use clap::Args;
use scalefabric_transport::{Counter, DropReason};
use serde_json::json;

/// Counters of all devices, with what each means.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab counters                 those that are not 0
  sfab counters --all           all, with the meaning of each
  sfab counters --explain drop_bad_icrc")]
pub struct Options {
    /// Only this device
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Counters that are 0, too
    #[arg(long)]
    all: bool,
    /// JSON instead of lines
    #[arg(long)]
    json: bool,
    /// Only say what this counter means
    #[arg(long, value_name = "COUNTER")]
    explain: Option<String>,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if let Some(name) = &options.explain {
        let meaning = meaning(name).ok_or_else(|| {
            Failure::usage(format!("no counter is called `{name}`; `sfab counters --all` lists them"))
        })?;
        println!("{name}: {meaning}");
        return Ok(());
    }
    let mut ports = Vec::new();
    for context in software::open_all(&SoftwareOptions::default(), options.device.as_deref())? {
        let device = context.device().name;
        let count = context.query_device().during(|| format!("query device {device}"))?.phys_port_cnt;
        for port in 1..=count {
            let mut values = context.hw_counters(port).during(|| format!("read the counters of {device}"))?;
            values.retain(|(_, value)| options.all || *value > 0);
            ports.push((device.clone(), port, values));
        }
    }
    if options.json {
        let ports = ports.into_iter().map(|(device, port, values)| {
            let values: serde_json::Map<_, _> = values.into_iter().map(|(name, value)| (name, json!(value))).collect();
            json!({ "device": device, "port": port, "counters": values })
        });
        println!("{:#}", ports.collect::<serde_json::Value>());
        return Ok(());
    }
    for (device, port, values) in ports {
        println!("{device} port {port}");
        if values.is_empty() {
            println!("  all counters are 0");
        }
        for (name, value) in values {
            println!("  {name:<28} {value:>14}  {}", meaning(&name).unwrap_or_default());
        }
    }
    Ok(())
}

/// What a counter means.
fn meaning(name: &str) -> Option<&'static str> {
    let counter = Counter::ALL.iter().find(|counter| counter.label() == name).map(|counter| counter.explain());
    counter.or_else(|| DropReason::ALL.iter().find(|reason| reason.label() == name).map(|reason| reason.explain()))
}
