//! perftest on the same device, unmodified, by `sfab run`: what the C door and another program's loop make of it.

use super::pair::{Pair, free_port, own};
use super::{Job, Run, Told};
use crate::perf::exchange::Verb;
use std::process::Command;

/// Its program for ours.
pub fn program(job: &Job) -> &'static str {
    match (job.verb, job.is_latency) {
        (Verb::Write, true) => "ib_write_lat",
        (Verb::Write, false) => "ib_write_bw",
        (Verb::Read, true) => "ib_read_lat",
        (Verb::Read, false) => "ib_read_bw",
        (Verb::Send, true) => "ib_send_lat",
        (Verb::Send, false) => "ib_send_bw",
        (Verb::FetchAdd | Verb::CompareSwap, true) => "ib_atomic_lat",
        (Verb::FetchAdd | Verb::CompareSwap, false) => "ib_atomic_bw",
    }
}

/// One run with the same options: the letters are the same.
pub fn runs(job: &Job) -> Result<Vec<Run>, &'static str> {
    let port = free_port().to_string();
    let command = || {
        let mut command = own();
        command.arg("run");
        if let Some(path) = &job.path {
            command.args(["--path", path]);
        }
        command.args(["--", program(job), "-F", "-p", &port, "-d", &job.device.0, "-x", &job.device.1.to_string()]);
        if job.verb != Verb::FetchAdd && job.verb != Verb::CompareSwap {
            command.args(["-s", &job.size.to_string(), "-c", job.transport.name()]);
        } else {
            command.args(["-A", if job.verb == Verb::FetchAdd { "FETCH_AND_ADD" } else { "CMP_AND_SWAP" }]);
        }
        options(&mut command, job);
        command
    };
    let server = command();
    let mut client = command();
    client.arg("127.0.0.1");
    Ok(vec![Run { name: format!("perftest {}", program(job)), pair: Pair { server, client }, read }])
}

fn options(command: &mut Command, job: &Job) {
    let mut give = |name: &str, value: String| {
        command.args([name, &value]);
    };
    match job.seconds {
        Some(seconds) => give("-D", format!("{}", seconds.ceil() as u64)),
        None => give("-n", job.messages.max(5).to_string()),
    }
    if let Some(bytes) = job.mtu {
        give("-m", bytes.to_string());
    }
    if !job.is_latency {
        give("-q", job.qps.to_string());
        give("-t", job.tx_depth.to_string());
        if job.post_list > 1 {
            give("-l", job.post_list.to_string());
        }
        command.arg("--report_gbits");
    }
    if job.events {
        command.arg("-e");
    }
    if job.rdma_cm {
        command.arg("-R");
    }
}

/// The row below the head that has `#bytes`.
fn read(text: &str, job: &Job) -> Option<Told> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let head = lines.next()?;
    let row: Vec<f64> = lines
        .filter_map(|line| line.split_whitespace().map(|cell| cell.parse().ok()).collect::<Option<Vec<f64>>>())
        .find(|row| row.len() >= 4)?;
    if !job.is_latency {
        let [_, _, _, gigabits, ..] = row[..] else { return None };
        return Some(Told {
            average_gbits: Some(gigabits),
            messages_per_s: row.get(4).map(|millions| millions * 1e6),
            ..Told::default()
        });
    }
    // By count: bytes, iterations, least, most, typical, average. By time: bytes, iterations, average.
    if head.contains("t_typical") {
        return Some(Told { p50_us: Some(*row.get(4)?), mean_us: Some(*row.get(5)?), ..Told::default() });
    }
    Some(Told { mean_us: Some(*row.get(2)?), ..Told::default() })
}

#[cfg(test)]
mod tests {
    use super::super::job_for_tests;
    use super::*;

    #[test]
    fn it_goes_the_way_that_was_asked_for() {
        let job = Job { path: Some("wire".to_owned()), ..job_for_tests(Verb::Write, false, 8) };
        let pair = &runs(&job).expect("it has WRITEs")[0].pair;
        for command in [&pair.server, &pair.client] {
            let words: Vec<_> = command.get_args().take(5).collect();
            assert_eq!(words, ["run", "--path", "wire", "--", "ib_write_bw"]);
        }
    }

    #[test]
    fn its_tables_are_read() {
        let lat = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 2       1000          3.10           9.00         3.70               3.80             0.20            5.00                    9.00   \n---\n";
        let told = read(lat, &job_for_tests(Verb::Write, true, 2)).unwrap();
        assert_eq!((told.p50_us, told.mean_us), (Some(3.7), Some(3.8)));
        let timed = " #bytes        #iterations       t_avg[usec]    tps average\n 2  100000  3.9  256410.2\n";
        assert_eq!(read(timed, &job_for_tests(Verb::Write, true, 2)).unwrap().mean_us, Some(3.9));
        let bw = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536      5000             28.50              27.25              0.052\n";
        let told = read(bw, &job_for_tests(Verb::Write, false, 65536)).unwrap();
        assert_eq!((told.average_gbits, told.messages_per_s), (Some(27.25), Some(52_000.0)));
    }
}
