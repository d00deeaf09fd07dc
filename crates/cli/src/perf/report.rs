//! What a measurement shows: who measured with whom and how, a table for each kind of test, and what the numbers mean; or all of it as JSON.

use crate::perf::client::{Bandwidth, Measured, Timing, Way};
use crate::perf::exchange::{PROGRAM_VERSION, SideInfo};
use crate::table::{Align, Table};
use crate::terminal::{print, say};
use crate::units;
use serde_json::{Value, json};
use std::time::Duration;

/// Prints it for people.
pub fn tables(measured: &Measured, gbits: bool) {
    say!("{}", head(measured));
    for (name, side) in [("client", &measured.client), ("server", &measured.server)] {
        say!("{name}: {} port {}, GID {} (index {})", side.device, side.port_num, side.gid, side.gid_index);
    }
    if let Some(count) = measured.direct_requests.filter(|count| *count > 0) {
        say!("same host: {count} requests were executed by their requester, without packets");
    }
    if measured.rows.iter().any(|row| row.bandwidth.is_some()) {
        say!("");
        print(format_args!("{}", bandwidths(measured, gbits)));
        for sentence in of_bandwidth(measured) {
            say!("{sentence}");
        }
    }
    if measured.rows.iter().any(|row| row.latency.is_some()) {
        say!("");
        print(format_args!("{}", latencies(measured)));
        for sentence in of_latency(measured) {
            say!("{sentence}");
        }
    }
}

fn head(measured: &Measured) -> String {
    let plan = &measured.plan;
    let mut text = format!("{} over {}", plan.verb.name(), plan.transport.name());
    let mut add = |is_so: bool, what: String| {
        if is_so {
            text += &format!(", {what}");
        }
    };
    add(true, if plan.qps == 1 { "1 queue pair".to_owned() } else { format!("{} queue pairs", plan.qps) });
    add(measured.rows.iter().any(|row| row.bandwidth.is_some()), format!("depth {}", plan.tx_depth));
    add(plan.post_list > 1, format!("lists of {}", plan.post_list));
    add(plan.signal_every > 1, format!("a completion for {} sends", plan.signal_every));
    add(plan.inline_bytes > 0, format!("inline up to {} B", plan.inline_bytes));
    add(plan.both_directions, "both directions".to_owned());
    add(true, if plan.events { "events".to_owned() } else { "polling".to_owned() });
    add(plan.rdma_cm, "rdma_cm".to_owned());
    add(plan.reads_data, "data read".to_owned());
    add(plan.waits_for_completion, "completions waited for".to_owned());
    add(plan.memory == crate::perf::exchange::Memory::Heap, "memory of the heap".to_owned());
    add(true, format!("path MTU {}", measured.path_mtu));
    text
}

fn bandwidths(measured: &Measured, gbits: bool) -> Table {
    let right = Align::Right;
    let (peak, average) = if gbits { ("peak Gb/s", "average Gb/s") } else { ("peak MiB/s", "average MiB/s") };
    let mut columns =
        vec![("size", right), ("messages", right), (peak, right), (average, right), ("messages/s", right)];
    columns.extend([("client CPU s/GB", right), ("server CPU s/GB", right)]);
    let has_losses = measured.rows.iter().any(|row| row.bandwidth.is_some_and(|bandwidth| bandwidth.lost != Some(0)));
    if has_losses {
        columns.push(("lost", right));
    }
    let mut table = Table::new(&columns);
    for row in &measured.rows {
        let Some(bandwidth) = &row.bandwidth else { continue };
        let mut cells = cells(row.size, bandwidth, gbits);
        if has_losses {
            cells.push(bandwidth.lost.map_or("unknown".to_owned(), |lost| lost.to_string()));
        }
        table.row(cells);
    }
    table
}

fn cells(size: u32, bandwidth: &Bandwidth, gbits: bool) -> Vec<String> {
    let (peak, average) = if gbits {
        (format!("{:.3}", bandwidth.peak_gbits), format!("{:.3}", bandwidth.average_gbits))
    } else {
        (format!("{:.2}", bandwidth.peak_mib_s), format!("{:.2}", bandwidth.average_mib_s))
    };
    let rate = units::message_rate(bandwidth.messages_per_s as u64, Duration::from_secs(1));
    vec![
        units::size(size.into()),
        bandwidth.messages.to_string(),
        peak,
        average,
        rate,
        processor_time(bandwidth.client_cpu_s_per_gb),
        processor_time(bandwidth.server_cpu_s_per_gb),
    ]
}

fn processor_time(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.3}") } else { format!("{seconds:.0}") }
}

fn of_bandwidth(measured: &Measured) -> Vec<String> {
    let plan = &measured.plan;
    let mut told = vec!["Peak: the best 5 ms. GB: 10^9 bytes; CPU: user and system, all threads. Closed loop: a slow peer slows the sender.".to_owned()];
    if measured.rows.iter().any(|row| row.bandwidth.is_some_and(|bandwidth| bandwidth.server_cpu_is_shared)) {
        told.push("The server served others at the same time: its CPU time is theirs, too.".to_owned());
    }
    if plan.both_directions {
        told.push("Both directions together.".to_owned());
    }
    if measured.rows.iter().any(|row| row.bandwidth.is_some_and(|bandwidth| bandwidth.lost.is_none())) {
        told.push("UC WRITEs: what left this end; whether it arrived, neither end knows.".to_owned());
    }
    told
}

fn latencies(measured: &Measured) -> Table {
    let names = ["size", "samples", "min us", "typical", "p90", "p99", "p99.9", "max", "mean", "stdev"];
    let mut columns: Vec<(&'static str, Align)> = names.map(|name| (name, Align::Right)).to_vec();
    let has_losses = measured.rows.iter().any(|row| row.latency.is_some_and(|timing| timing.lost > 0));
    if has_losses {
        columns.push(("lost", Align::Right));
    }
    let mut table = Table::new(&columns);
    for row in &measured.rows {
        let Some(timing) = &row.latency else { continue };
        let mut cells = vec![units::size(row.size.into())];
        match &timing.latency {
            None => cells.extend(["0".to_owned()]),
            Some(told) => {
                cells.push(told.samples.to_string());
                let times = [
                    told.min_us,
                    told.p50_us,
                    told.p90_us,
                    told.p99_us,
                    told.p999_us,
                    told.max_us,
                    told.mean_us,
                    told.stdev_us,
                ];
                cells.extend(times.map(microseconds));
            }
        }
        if has_losses {
            cells.resize(names.len(), String::new());
            cells.push(timing.lost.to_string());
        }
        table.row(cells);
    }
    table
}

fn microseconds(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.2}"),
        us if us < 10_000.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

fn of_latency(measured: &Measured) -> Vec<String> {
    let Some(timing) = measured.rows.iter().find_map(|row| row.latency.as_ref()) else { return Vec::new() };
    let way = match timing.of {
        Way::OneWay => "One way: half of there and back.",
        Way::RoundTrip => "Round trip: there and back.",
    };
    let clock = format!("Reading the clock costs {:.0} ns, once a sample, not subtracted.", measured.clock_ns);
    vec![format!("{way} {}", loop_of(measured, timing)), clock]
}

fn loop_of(measured: &Measured, timing: &Timing) -> String {
    let Some(rate) = measured.rate else {
        return "Closed loop: the next message waits for the answer to the last one, so pauses are told once, not for all that they delay."
            .to_owned();
    };
    let was = timing.operations_per_s;
    let reached = if was < 0.95 * rate { " The rate was not reached: times include the queue that grew." } else { "" };
    format!(
        "Open loop: {rate} operations a second asked for, {was:.0} done; times count from the intended start.{reached}"
    )
}

/// The same for programs.
pub fn json(measured: &Measured) -> Value {
    let plan = &measured.plan;
    json!({
        "program": "sfab perf",
        "version": PROGRAM_VERSION,
        "server_version": measured.server_version,
        "verb": plan.verb,
        "transport": plan.transport,
        "loop": if measured.rate.is_some() { "open" } else { "closed" },
        "rate": measured.rate,
        "client": side(&measured.client),
        "server": side(&measured.server),
        "options": {
            "qps": plan.qps, "tx_depth": plan.tx_depth, "rx_depth": plan.rx_depth, "post_list": plan.post_list,
            "cq_mod": plan.signal_every, "inline_bytes": plan.inline_bytes, "both_directions": plan.both_directions,
            "events": plan.events, "rdma_cm": plan.rdma_cm, "path_mtu": measured.path_mtu,
            "reads_data": plan.reads_data, "waits_for_completion": plan.waits_for_completion, "memory": plan.memory,
        },
        "clock_overhead_ns": measured.clock_ns,
        "direct_requests": measured.direct_requests,
        "results": measured.rows,
    })
}

fn side(side: &SideInfo) -> Value {
    json!({
        "device": side.device, "port": side.port_num, "gid": side.gid, "gid_index": side.gid_index,
        "port_mtu": side.path_mtu, "inline_bytes": side.inline_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::step::Transport;
    use crate::perf::client::Row;
    use crate::perf::exchange::{Memory, Plan, Verb};
    use crate::perf::histogram::Times;

    fn measured() -> Measured {
        let side = SideInfo {
            device: "sflo".to_owned(),
            port_num: 1,
            gid: "127.0.0.1".to_owned(),
            gid_index: 1,
            path_mtu: 4096,
            inline_bytes: 220,
            rkey: 0xdead_beef,
            addr: 0,
            stride: 4096,
            areas: 1,
            qps: vec![(1, 2)],
            cm_port: None,
        };
        let bandwidth = Bandwidth {
            messages: 999_999_999,
            lost: Some(12_345_678),
            seconds: 1.0,
            average_gbits: 399.999,
            peak_gbits: 400.0,
            average_mib_s: 47_683.0,
            peak_mib_s: 47_683.7,
            messages_per_s: 99_999_999.0,
            client_cpu_s_per_gb: 9999.0,
            server_cpu_s_per_gb: 9.999,
            client_rss_bytes: 1,
            server_rss_bytes: 1,
            server_cpu_is_shared: true,
        };
        let mut times = Times::default();
        (1..10_000).for_each(|n| times.record(Duration::from_micros(n * 100)));
        let timing =
            Timing { latency: times.latency(2), of: Way::OneWay, lost: 3, seconds: 1.0, operations_per_s: 900.0 };
        let plan = Plan {
            verb: Verb::FetchAdd,
            transport: Transport::Rc,
            largest: 8,
            qps: 16_384,
            tx_depth: 128,
            rx_depth: 512,
            post_list: 32,
            signal_every: 32,
            inline_bytes: 220,
            both_directions: true,
            events: true,
            path_mtu: None,
            rdma_cm: true,
            reads_data: true,
            waits_for_completion: true,
            memory: Memory::Heap,
        };
        Measured {
            plan,
            client: side.clone(),
            server: side,
            server_version: "1.2.3".to_owned(),
            path_mtu: 4096,
            rate: Some(1000.0),
            clock_ns: 31.4,
            direct_requests: Some(7),
            rows: vec![Row { size: 1_048_575, bandwidth: Some(bandwidth), latency: Some(timing) }],
        }
    }

    #[test]
    fn tables_fit_a_terminal() {
        let measured = measured();
        for table in [bandwidths(&measured, true), bandwidths(&measured, false), latencies(&measured)] {
            for line in table.to_string().lines() {
                assert!(line.chars().count() <= 110, "{}: {line}", line.chars().count());
            }
        }
    }

    #[test]
    fn a_rate_that_was_not_reached_is_told() {
        let measured = measured();
        let told = of_latency(&measured).join("\n");
        assert!(told.contains("Open loop") && told.contains("not reached") && told.contains("31 ns"), "{told}");
        let closed = Measured { rate: None, ..measured };
        assert!(of_latency(&closed).join("\n").contains("Closed loop"));
    }

    #[test]
    fn no_key_leaves_in_json() {
        let text = json(&measured()).to_string();
        assert!(!text.contains("rkey") && !text.contains(&0xdead_beefu32.to_string()), "{text}");
    }
}
