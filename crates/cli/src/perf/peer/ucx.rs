//! UCX: `ucx_perftest` over TCP on the loopback, or over what `UCX_TLS` says.

use super::pair::{Pair, free_port};
use super::{Job, Run, Told};
use crate::perf::exchange::Verb;
use std::process::Command;

/// Its test for ours.
fn test(job: &Job) -> &'static str {
    match (job.verb, job.is_latency) {
        (Verb::Write, true) => "ucp_put_lat",
        (Verb::Write, false) => "ucp_put_bw",
        // Its READs and atomics are there and back, one at a time, as our latency is.
        (Verb::Read, _) => "ucp_get",
        (Verb::Send, true) => "tag_lat",
        (Verb::Send, false) => "tag_bw",
        (Verb::FetchAdd, _) => "ucp_fadd",
        (Verb::CompareSwap, _) => "ucp_cswap",
    }
}

/// One run.
pub fn runs(job: &Job) -> Result<Vec<Run>, &'static str> {
    let port = free_port().to_string();
    let tls = std::env::var("UCX_TLS").unwrap_or_else(|_| "tcp".to_owned());
    let command = || {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_TLS", &tls).env("UCX_WARN_UNUSED_ENV_VARS", "n").env("UCX_LOG_LEVEL", "error");
        if std::env::var_os("UCX_NET_DEVICES").is_none() && tls.contains("tcp") {
            command.env("UCX_NET_DEVICES", "lo");
        }
        command.args(["-p", &port]);
        command
    };
    let (server, mut client) = (command(), command());
    let count = job.count(if job.is_latency { 12.0 } else { 4.0 });
    let warmup = (count / 10).clamp(10, 10_000);
    client.args(["-t", test(job), "-s", &job.size.to_string(), "-n", &count.to_string(), "-w", &warmup.to_string()]);
    if !job.is_latency {
        client.args(["-O", &job.tx_depth.to_string()]);
    }
    client.args(["-f", "-v", "127.0.0.1"]);
    Ok(vec![Run { name: format!("UCX {tls}, {}", test(job)), pair: Pair { server, client }, read }])
}

/// The last line of numbers: iterations; latency: percentile, average, overall, in µs; bandwidth and message rate: average, overall.
fn read(text: &str, job: &Job) -> Option<Told> {
    let numbers = |line: &str| -> Option<Vec<f64>> { line.split(',').map(|cell| cell.trim().parse().ok()).collect() };
    let row = text.lines().rev().filter_map(numbers).find(|row| row.len() >= 8)?;
    let [_, median, _, overall, _, megabytes, _, rate] = row[..8] else { return None };
    if job.is_latency {
        return Some(Told { p50_us: Some(median), mean_us: Some(overall), ..Told::default() });
    }
    // Its megabytes are 2^20 bytes.
    let gigabits = megabytes * f64::from(1 << 20) * 8.0 / 1e9;
    Some(Told { average_gbits: Some(gigabits), messages_per_s: Some(rate), ..Told::default() })
}

#[cfg(test)]
mod tests {
    use super::super::job_for_tests;
    use super::*;

    const SAID: &str = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n10000,9.500,10.1,10.2,0.8,1000.0,98000,97000\n";

    #[test]
    fn its_last_line_of_numbers_is_read() {
        let told = read(SAID, &job_for_tests(Verb::Write, true, 8)).unwrap();
        assert_eq!((told.p50_us, told.mean_us), (Some(9.5), Some(10.2)));
        let told = read(SAID, &job_for_tests(Verb::Write, false, 8)).unwrap();
        assert_eq!(told.messages_per_s, Some(97_000.0));
        assert!((told.average_gbits.unwrap() - 8.388_608).abs() < 1e-6);
        assert_eq!(read("nothing\n", &job_for_tests(Verb::Write, false, 8)), None);
    }
}
