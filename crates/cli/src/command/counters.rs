//! `sfab counters`: what a device has counted, with the sentence that explains each counter.

use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use crate::terminal::say;
use clap::Args;
use scalefabric_transport::{Counter, DropReason};
use serde_json::json;

/// Counters of all devices, with what each means. They live as long as some process has the device open.
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
    /// Print docs/counters.md
    #[arg(long, hide = true)]
    page: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.page {
        crate::terminal::print(format_args!("{}", page()));
        return Ok(());
    }
    if let Some(name) = &options.explain {
        let meaning = meaning(name).ok_or_else(|| {
            Failure::usage(format!("no counter is called `{name}`; `sfab counters --all` lists them"))
        })?;
        say!("{name}: {meaning}");
        return Ok(());
    }
    let mut ports = Vec::new();
    for survey in software::surveys(&SoftwareOptions::default(), options.device.as_deref())? {
        let device = survey.plan.info.name.clone();
        for port in survey.ports().during(|| format!("read the counters of {device}"))? {
            let mut values = port.counters;
            values.retain(|(_, value)| options.all || *value > 0);
            ports.push((device.clone(), port.port_num, values, survey.members.len()));
        }
    }
    if options.json {
        let ports = ports.into_iter().map(|(device, port, values, processes)| {
            let values: serde_json::Map<_, _> = values.into_iter().map(|(name, value)| (name, json!(value))).collect();
            json!({ "device": device, "port": port, "processes": processes, "counters": values })
        });
        say!("{:#}", ports.collect::<serde_json::Value>());
        return Ok(());
    }
    for (device, port, values, processes) in ports {
        say!("{device} port {port}");
        if processes == 0 {
            say!("  no process has it open: counters begin with the first process and end with the last");
        } else if values.is_empty() {
            say!("  all counters are 0");
        }
        for (name, value) in values {
            say!("  {name:<28} {value:>14}  {}", meaning(&name).unwrap_or_default());
        }
    }
    Ok(())
}

/// Counters of a process's own sockets and faults, which are no part of the protocol's table.
const OF_THE_PROCESS: &[(&str, &str)] = &[
    (
        "rx_socket_overflow",
        "Datagrams for which the kernel had no room: the process was too slow or net.core.rmem_max too small.",
    ),
    ("rx_socket_errors", "Errors of receive calls, such as ICMP answers to what was sent."),
    ("tx_gso_refused", "Times a path refused a train, so that its datagrams leave one at a time."),
    (
        "tx_source_port_refused",
        "Flows whose flow label named a UDP source port and that got another one: 64 were named already, or another program has it.",
    ),
    ("rx_handed_over", "Datagrams that came here and belonged to a neighbour process: passed on."),
    ("rx_taken_over", "Datagrams that a neighbour process passed on to this one."),
    ("rx_xdp_packets", "Packets that came by AF_XDP sockets (sockets = \"xdp\")."),
    ("tx_xdp_packets", "Packets that left by AF_XDP sockets."),
    (
        "tx_xdp_by_udp",
        "Packets of a port with AF_XDP that the kernel sent by UDP sockets: to this host, by another interface, or no MAC address was known yet.",
    ),
    ("fault_dropped", "Datagrams dropped by --fault in this process."),
    ("fault_duplicated", "Datagrams duplicated by --fault in this process."),
    ("fault_reordered", "Datagrams reordered by --fault in this process."),
    ("fault_corrupted", "Datagrams damaged by --fault in this process."),
    ("fault_delayed", "Datagrams delayed by --fault in this process."),
    ("fault_marked", "Datagrams marked congestion-experienced by --fault in this process."),
    ("fault_port_down", "Times that --fault port-down took a port down in this process."),
    ("fault_gid_change", "Times that --fault gid-change took a GID away in this process."),
    ("fault_device_fatal", "Times that --fault device-fatal killed the device in this process."),
    ("fault_qp_error", "QPs that --fault qp-error put into ERR in this process."),
    ("fault_wc", "Send work requests that --fault wc let end with a status in this process."),
    ("fault_rnr", "Receives that --fault rnr did not find in this process."),
    ("fault_verb", "Verbs that --fault let fail in this process."),
];

/// What a counter means.
fn meaning(name: &str) -> Option<&'static str> {
    let counter = Counter::ALL.iter().find(|counter| counter.label() == name).map(|counter| counter.explain());
    let reason = || DropReason::ALL.iter().find(|reason| reason.label() == name).map(|reason| reason.explain());
    let own = || OF_THE_PROCESS.iter().find(|(own, _)| *own == name).map(|(_, meaning)| *meaning);
    counter.or_else(reason).or_else(own)
}

/// The page of the documentation: all counters, from the table that the code counts by.
fn page() -> String {
    let mut text = String::from(
        "# Counters\n\nGenerated by `cargo xtask capabilities` from `crates/transport/src/counter.rs`. `sfab counters` shows \
         their values. Names in\nparentheses are the drivers of Linux that count the same under that name.\n\n\
         ## Why packets are dropped\n\n| counter | meaning |\n|---|---|\n",
    );
    for reason in DropReason::ALL {
        text += &format!("| `{}` | {} |\n", reason.label(), reason.explain());
    }
    text += "\n## What happened\n\n| counter | meaning |\n|---|---|\n";
    for counter in Counter::ALL {
        text += &format!("| `{}` | {} |\n", counter.label(), counter.explain());
    }
    text += "\n## Of one process: its sockets and faults\n\n| counter | meaning |\n|---|---|\n";
    for (name, meaning) in OF_THE_PROCESS {
        text += &format!("| `{name}` | {meaning} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_the_documentation_is_fresh() {
        let stored = include_str!("../../../../docs/counters.md");
        assert!(stored == super::page(), "docs/counters.md is stale: run `cargo xtask capabilities`");
    }
}
