//! iperf3: TCP on one connection, with copying and with `sendfile` (`-Z`). It has no latency test.

use super::pair::{Pair, free_port};
use super::{Job, Run, Told};
use crate::perf::exchange::Verb;
use serde_json::Value;
use std::process::Command;

/// Longest block that it writes at a time.
const LONGEST: u32 = 1 << 20;

/// With its own block size when messages are larger than that, and without copying.
pub fn runs(job: &Job) -> Result<Vec<Run>, &'static str> {
    if job.is_latency {
        return Err("it has no latency test");
    }
    if job.verb != Verb::Write && job.verb != Verb::Send {
        return Err("it only sends");
    }
    let block = job.size.clamp(1, LONGEST).to_string();
    let kinds: [(String, Vec<&str>); 3] = [
        ("iperf3 TCP".to_owned(), vec![]),
        (format!("iperf3 TCP -l {block}"), vec!["-l", &block]),
        ("iperf3 TCP -Z".to_owned(), vec!["-Z"]),
    ];
    Ok(kinds.into_iter().map(|(name, more)| Run { name, pair: pair(job, &more), read }).collect())
}

fn pair(job: &Job, more: &[&str]) -> Pair {
    let port = free_port().to_string();
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
    let mut client = Command::new("iperf3");
    let seconds = job.seconds.unwrap_or(1.0).max(0.1);
    client.args(["-c", "127.0.0.1", "-p", &port, "-J", "-t", &format!("{}", seconds.ceil())]).args(more);
    Pair { server, client }
}

fn read(text: &str, _job: &Job) -> Option<Told> {
    let told: Value = serde_json::from_str(text).ok()?;
    let end = &told["end"];
    let bits = end["sum_received"]["bits_per_second"].as_f64()?;
    let busy = |name: &str| Some(end["cpu_utilization_percent"][name].as_f64()? / 100.0 / (bits / 8e9));
    Some(Told {
        average_gbits: Some(bits / 1e9),
        client_cpu_s_per_gb: busy("host_total"),
        server_cpu_s_per_gb: busy("remote_total"),
        ..Told::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::job_for_tests;
    use super::*;

    #[test]
    fn its_document_is_read() {
        let text = r#"{"end":{"sum_received":{"bits_per_second":16e9},"cpu_utilization_percent":{"host_total":50.0,"remote_total":100.0}}}"#;
        let told = read(text, &job_for_tests(Verb::Write, false, 8)).unwrap();
        assert_eq!(told.average_gbits, Some(16.0));
        assert_eq!((told.client_cpu_s_per_gb, told.server_cpu_s_per_gb), (Some(0.25), Some(0.5)));
        assert_eq!(read("{\"error\":\"unable to connect\"}", &job_for_tests(Verb::Write, false, 8)), None);
    }

    #[test]
    fn it_has_no_latency_and_no_reads() {
        assert!(runs(&job_for_tests(Verb::Write, true, 8)).is_err());
        assert!(runs(&job_for_tests(Verb::Read, false, 8)).is_err());
        assert_eq!(runs(&job_for_tests(Verb::Write, false, 1 << 23)).unwrap().len(), 3);
    }
}
