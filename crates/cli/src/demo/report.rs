//! What a demo shows at the end: the table, the counters that changed, and the verdict; or all of it as JSON.

use crate::demo::Options;
use crate::demo::event::Measured;
use crate::terminal;
use crate::terminal::say;
use crate::units;
use serde_json::json;
use std::time::Duration;

/// Collects what the two processes say.
pub struct Report {
    json: bool,
    faults: Vec<String>,
    ports: Vec<(String, String, String, u32)>,
    rows: Vec<Measured>,
    counters: Vec<(String, Vec<(String, u64)>)>,
    head_shown: bool,
}

impl Report {
    /// An empty report.
    pub fn new(options: &Options) -> Self {
        Self {
            json: options.json,
            faults: options.fault.clone(),
            ports: Vec::new(),
            rows: Vec::new(),
            counters: Vec::new(),
            head_shown: false,
        }
    }

    /// The port that a side uses.
    pub fn port(&mut self, side: &str, device: &str, gid: &str, path_mtu: u32) {
        self.ports.push((side.to_owned(), device.to_owned(), gid.to_owned(), path_mtu));
    }

    /// Counters that changed at a side.
    pub fn counters(&mut self, side: &str, values: Vec<(String, u64)>) {
        self.counters.push((side.to_owned(), values));
    }

    /// A row is complete.
    pub fn row(&mut self, measured: Measured) {
        self.rows.push(measured);
    }

    /// Shows a row as soon as it is measured. Columns are fixed, since later rows are not known yet.
    pub fn stream(&mut self, measured: &Measured) {
        if !std::mem::replace(&mut self.head_shown, true) {
            for (side, device, gid, path_mtu) in &self.ports {
                say!("{side:<10} {device}, GID {gid}, path MTU {path_mtu}");
            }
            say!("");
            say!("{}", line(&["operation", "size", "median", "p99", "bandwidth", "rate", "verified"]));
        }
        say!("{}", line(&cells(measured).each_ref().map(String::as_str)));
    }

    /// Prints what is left to say.
    pub fn print(&self) {
        if self.json {
            say!("{:#}", self.as_json());
            return;
        }
        say!("");
        say!("Latency on RC is from post to completion, on UC and UD half of there and back.");
        if !self.faults.is_empty() {
            say!("Faults: {}.", self.faults.join(", "));
        }
        for (side, values) in &self.counters {
            let whose = if self.counters.len() > 1 { format!("Counters of the {side}") } else { "Counters".to_owned() };
            say!("{whose}, change during the demo:");
            for (name, value) in values {
                say!("  {name:<32} {value}");
            }
        }
        let messages: u64 = self.rows.iter().map(|row| row.messages).sum();
        let lost: u64 = self.rows.iter().map(|row| row.lost).sum();
        let bytes: u64 = self.rows.iter().map(|row| row.verified_bytes).sum();
        let mut sentence = format!("{messages} messages sent, {bytes} bytes compared, all equal");
        if lost > 0 {
            sentence += &format!("; {lost} datagrams or unreliable messages lost on the way, which UC and UD allow");
        }
        say!("{}: {sentence}.", terminal::verdict(true, "ok"));
    }

    fn as_json(&self) -> serde_json::Value {
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|(side, device, gid, path_mtu)| json!({ "side": side, "device": device, "gid": gid, "path_mtu": path_mtu }))
            .collect();
        let counters: serde_json::Map<String, serde_json::Value> = self
            .counters
            .iter()
            .map(|(side, values)| {
                let values: serde_json::Map<_, _> = values.iter().map(|(n, v)| (n.clone(), json!(v))).collect();
                (side.clone(), values.into())
            })
            .collect();
        json!({ "verified": true, "ports": ports, "faults": self.faults, "rows": self.rows, "counters": counters })
    }
}

fn line(cells: &[&str; 7]) -> String {
    let [operation, size, median, p99, bandwidth, messages, verified] = cells;
    format!("{operation:<17} {size:>8} {median:>10} {p99:>10} {bandwidth:>11} {messages:>10}  {verified}")
}

fn cells(row: &Measured) -> [String; 7] {
    let elapsed = Duration::from_nanos(row.elapsed_ns);
    let latency = |ns| if ns == 0 { "-".to_owned() } else { units::micros(Duration::from_nanos(ns)) };
    let verified = if row.lost == 0 { "all".to_owned() } else { format!("all but {} lost", row.lost) };
    [
        format!("{} {}", row.transport.name(), row.operation.name()),
        units::size(row.size.into()),
        latency(row.latency_median_ns),
        latency(row.latency_p99_ns),
        units::bandwidth(row.streamed * u64::from(row.size), elapsed),
        units::message_rate(row.streamed, elapsed),
        verified,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_a_terminal() {
        let widest = [
            "RC WRITE_WITH_IMM",
            "1023 KiB",
            "9999999 us",
            "9999999 us",
            "100.00 Gb/s",
            "999.9 k/s",
            "all but 99 lost",
        ];
        assert!(line(&widest).chars().count() <= 92);
    }
}
