//! Reports as text for a terminal: a page for one run, a table for several.

use super::Report;
use std::fmt::Write;

impl Report {
    /// A page of text, at most 100 columns.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        line(format!(
            "{}: {} hosts, {} switches, {}, seed {}",
            self.title(),
            self.hosts,
            self.switches,
            self.algorithm,
            self.seed
        ));
        line(format!(
            "{} after {:.1} µs; goodput {:.2} Gb/s{}",
            self.end,
            self.simulated_us,
            self.goodput_gbps,
            self.jain.map_or_else(String::new, |jain| format!("; Jain {jain:.4}"))
        ));
        if self.flows.begun > 0 {
            let flows = &self.flows;
            line(format!("\nflows: {} of {} ended", flows.ended, flows.begun));
            line(format!(
                "{:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
                "", "min", "p50", "mean", "p95", "p99", "max"
            ));
            line(format!(
                "{:>12} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>10.2}",
                "FCT µs", flows.min_us, flows.p50_us, flows.mean_us, flows.p95_us, flows.p99_us, flows.max_us
            ));
            line(format!(
                "{:>12} {:>10} {:>10.3} {:>10} {:>10.3} {:>10.3}",
                "slowdown", "", flows.slowdown_p50, "", flows.slowdown_p95, flows.slowdown_p99
            ));
            if flows.bins.len() > 1 {
                line(format!(
                    "\n{:>12} {:>10} {:>10} {:>10} {:>10}   slowdown by size",
                    "up to", "flows", "p50", "p95", "p99"
                ));
                for bin in &flows.bins {
                    line(format!(
                        "{:>12} {:>10} {:>10.3} {:>10.3} {:>10.3}",
                        bytes(bin.max_bytes as f64),
                        bin.flows,
                        bin.p50,
                        bin.p95,
                        bin.p99
                    ));
                }
            }
        }
        if !self.figures.is_empty() {
            line(String::new());
            for figure in &self.figures {
                line(format!("{:<36} {:>14.3} {}", figure.name, figure.value, figure.unit));
            }
        }
        line(format!("\n{:<44} {:>12} {:>12} {:>12}", "fullest queues", "peak", "mean", "link used"));
        for queue in self.queues.iter().filter(|queue| queue.peak_bytes > 0).take(4) {
            line(format!(
                "{:<44} {:>12} {:>12} {:>11.1}%",
                queue.port,
                bytes(f64::from(queue.peak_bytes)),
                bytes(queue.mean_bytes),
                queue.utilisation * 100.0
            ));
        }
        let layers: Vec<String> =
            self.utilisation.iter().map(|(name, part)| format!("{name} {:.1}%", part * 100.0)).collect();
        line(format!("links used: {}", layers.join(", ")));
        if !self.pauses.is_empty() {
            line(format!(
                "\nPFC: {} pauses, {:.1} µs stopped; how they spread:",
                self.counter("pfc_pauses"),
                self.paused_us
            ));
            for pause in self.pauses.iter().take(6) {
                let why = if pause.passed_on { "passed on from" } else { "queue at" };
                line(format!(
                    "  {:<32} {:>6} x {:>10.1} µs  {why} {}",
                    pause.paused, pause.times, pause.paused_us, pause.because_of
                ));
            }
            if self.pauses.len() > 6 {
                line(format!("  … and {} more (--json has all)", self.pauses.len() - 6));
            }
        }
        let told: Vec<String> = self
            .counters
            .iter()
            .filter(|(name, value)| *value > 0 && !matches!(*name, "events" | "pfc_pauses" | "pfc_resumes"))
            .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
            .collect();
        line(format!("\n{}", told.join(", ")));
        out
    }
}

/// Bytes for people.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1e3 => format!("{b:.0} B"),
        b if b < 1e6 => format!("{:.2} kB", b / 1e3),
        b if b < 1e9 => format!("{:.2} MB", b / 1e6),
        b => format!("{:.2} GB", b / 1e9),
    }
}

/// What tells each run from the others: its scenario and the values of its point, without those that all runs have. In a table of another
/// width the end would be cut off, and that is where the values are.
fn names(reports: &[Report]) -> Vec<String> {
    let is_one_scenario = reports.windows(2).all(|pair| pair[0].scenario == pair[1].scenario);
    let is_common = |value: &(String, String)| reports.iter().all(|report| report.point.contains(value));
    let name = |report: &Report| {
        let own = report.point.iter().filter(|value| !is_common(value));
        let own = own.map(|(key, value)| format!("{}={value}", key.rsplit('.').next().unwrap_or(key)));
        let scenario = Some(report.scenario.clone()).filter(|_| !is_one_scenario);
        let parts: Vec<String> = scenario.into_iter().chain(own).collect();
        if parts.is_empty() { format!("{} {}", report.scenario, report.algorithm) } else { parts.join(" ") }
    };
    reports.iter().map(name).collect()
}

/// One row for each run.
pub fn comparison(reports: &[Report]) -> String {
    let mut out = String::new();
    let names = names(reports);
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(3);
    let head = ["Gb/s", "makespan µs", "slow p50", "slow p99", "Jain", "peak queue", "pauses", "drops"];
    let _ = writeln!(
        out,
        "{:<width$} {:>8} {:>12} {:>8} {:>8} {:>7} {:>11} {:>7} {:>7}",
        "run", head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]
    );
    for (report, name) in reports.iter().zip(names) {
        let peak = report.queues.first().map_or(0, |queue| queue.peak_bytes);
        let slow = |value: f64| if report.flows.ended == 0 { "-".to_owned() } else { format!("{value:.2}") };
        let _ = writeln!(
            out,
            "{name:<width$} {:>8.2} {:>12.1} {:>8} {:>8} {:>7} {:>11} {:>7} {:>7}{}",
            report.goodput_gbps,
            report.makespan_us,
            slow(report.flows.slowdown_p50),
            slow(report.flows.slowdown_p99),
            report.jain.map_or_else(|| "-".to_owned(), |jain| format!("{jain:.3}")),
            bytes(f64::from(peak)),
            report.counter("pfc_pauses"),
            report.counter("dropped"),
            if report.stuck { "  stuck" } else { "" }
        );
    }
    out
}
