//! libfabric over TCP: `fi_pingpong`, which comes with it and sends, and the programs of fabtests for one-sided operations.

use super::pair::{Pair, free_port, is_installed};
use super::{Job, Run, Told};
use crate::perf::exchange::Verb;
use std::process::Command;

/// Its program for ours.
pub fn program(job: &Job) -> &'static str {
    match (job.verb, job.is_latency) {
        (Verb::Send, true) if is_installed("fi_rdm_pingpong") => "fi_rdm_pingpong",
        (Verb::Send, _) => "fi_pingpong",
        (Verb::Write, true) => "fi_rma_pingpong",
        (Verb::Write | Verb::Read, _) => "fi_rma_bw",
        (Verb::FetchAdd | Verb::CompareSwap, _) => "fi_rdm_atomic",
    }
}

/// How its program is had.
pub fn install(job: &Job) -> &'static str {
    match job.verb {
        Verb::Send => "install the package libfabric-bin",
        _ => "it is one of libfabric's fabtests, which few distributions have: build them from its source (fabtests/)",
    }
}

/// One run.
pub fn runs(job: &Job) -> Result<Vec<Run>, &'static str> {
    if job.verb == Verb::Send && !job.is_latency {
        return Err("fi_pingpong has one message under way: it has latency only");
    }
    let (name, count, port) = (program(job), job.count(20.0).to_string(), free_port().to_string());
    let mut pair = Pair { server: Command::new(name), client: Command::new(name) };
    for command in [&mut pair.server, &mut pair.client] {
        command.args(["-p", "tcp", "-S", &job.size.to_string(), "-I", &count]);
        match (name, job.verb) {
            ("fi_pingpong", _) => drop(command.args(["-e", "rdm"])),
            ("fi_rma_bw", Verb::Read) => drop(command.args(["-e", "rdm", "-o", "read"])),
            ("fi_rma_bw", _) => drop(command.args(["-e", "rdm", "-o", "write"])),
            ("fi_rdm_atomic", Verb::FetchAdd) => drop(command.args(["-o", "fetch_sum"])),
            ("fi_rdm_atomic", _) => drop(command.args(["-o", "cswap"])),
            _ => {}
        }
    }
    // Its own port is the server's source and the client's destination.
    pair.server.args(["-B", &port]);
    pair.client.args(["-P", &port, "127.0.0.1"]);
    Ok(vec![Run { name: format!("libfabric tcp, {name}"), pair, read }])
}

/// The row below the head that has `usec/xfer`.
fn read(text: &str, job: &Job) -> Option<Told> {
    let mut lines = text.lines().skip_while(|line| !line.contains("usec/xfer"));
    let head: Vec<&str> = lines.next()?.split_whitespace().collect();
    let row: Vec<&str> = lines.find(|line| !line.trim().is_empty())?.split_whitespace().collect();
    let value = |name: &str| -> Option<f64> {
        row.get(head.iter().position(|word| *word == name)?)?.trim_end_matches('s').parse().ok()
    };
    if job.is_latency {
        return Some(Told { mean_us: Some(value("usec/xfer")?), ..Told::default() });
    }
    let megabytes = value("MB/sec")?;
    let rate = value("Mxfers/sec").map(|millions| millions * 1e6);
    Some(Told { average_gbits: Some(megabytes * 8.0 / 1e3), messages_per_s: rate, ..Told::default() })
}

#[cfg(test)]
mod tests {
    use super::super::job_for_tests;
    use super::*;

    #[test]
    fn its_table_is_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64      1k      =1k      125k        0.02s      7.35       8.70       0.11\n";
        let told = read(text, &job_for_tests(Verb::Send, true, 64)).unwrap();
        assert_eq!(told.mean_us, Some(8.7));
        let told = read(text, &job_for_tests(Verb::Write, false, 64)).unwrap();
        assert!((told.average_gbits.unwrap() - 0.0588).abs() < 1e-9);
        assert_eq!(told.messages_per_s, Some(110_000.0));
    }
}
