//! The figures of `cargo xtask bench --peers` as data: what is compared, which ratios are good, how it is measured.

use super::lab::{Lab, Ucx, Way};
use super::{Goal, Measure, Row, Sample};
use serde_json::Value;

/// A UCX that is at least this is what floors and aims are against; older ones are only to be known.
const UCX: (u32, u32) = (1, 22);

/// All rows; those of UCX once for each version that is there.
pub fn all(ucx: &[Ucx]) -> Vec<Row> {
    let mut rows = same_host(ucx);
    rows.extend(network(ucx));
    rows.extend(door());
    rows.extend(many());
    rows
}

fn row(name: &str, unit: &'static str, goal: Goal, measure: impl Fn(&Lab) -> Result<Sample, String> + 'static) -> Row {
    Row { name: name.to_owned(), unit, goal, measure: Box::new(measure) as Measure }
}

const fn sample(ours: f64, theirs: f64) -> Sample {
    Sample { ours, theirs, cpu: [None, None] }
}

/// A number of a JSON document by its path.
fn at(value: &Value, path: &[&str]) -> Result<f64, String> {
    let found = path.iter().fold(value, |value, name| &value[*name]);
    found.as_f64().ok_or_else(|| format!("no {} in {value}", path.join(".")))
}

fn median_us(result: &Value) -> Result<f64, String> {
    at(result, &["latency", "p50_us"])
}

fn gbits(result: &Value) -> Result<f64, String> {
    at(result, &["bandwidth", "average_gbits"])
}

fn rate(result: &Value) -> Result<f64, String> {
    at(result, &["bandwidth", "messages_per_s"])
}

/// What is compared with another program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    Latency,
    Bandwidth,
    Rate,
}

impl Figure {
    const fn unit(self) -> &'static str {
        match self {
            Self::Latency => "us",
            Self::Bandwidth => "Gb/s",
            Self::Rate => "/s",
        }
    }

    /// Of ours and of another's, as both are told by `--peer`.
    fn of(self, told: &Value, other: &Value) -> Option<(f64, f64)> {
        let names: &[&str] = match self {
            Self::Latency => &["p50_us", "mean_us"],
            Self::Bandwidth => &["average_gbits"],
            Self::Rate => &["messages_per_s"],
        };
        names.iter().find_map(|name| Some((told[name].as_f64()?, other[name].as_f64()?)))
    }
}

/// Ours beside one or several others; against the best of them.
fn beside(
    lab: &Lab,
    way: Way,
    words: &str,
    peer: &str,
    ucx: Option<(&Ucx, &str)>,
    figure: Figure,
) -> Result<Sample, String> {
    if way == Way::Host {
        lab.has_host_path()?;
    }
    let (own, others) = lab.beside(way, words, peer, ucx)?;
    let mut best: Option<Sample> = None;
    for other in &others {
        let result = &other["result"];
        let Some((ours, theirs)) = figure.of(&own, result) else { continue };
        let both = |told: &Value| Some(told["client_cpu_s_per_gb"].as_f64()? + told["server_cpu_s_per_gb"].as_f64()?);
        let is_better =
            best.is_none_or(|best| if figure == Figure::Latency { theirs < best.theirs } else { theirs > best.theirs });
        if is_better {
            best = Some(Sample { ours, theirs, cpu: [both(&own), both(result)] });
        }
    }
    best.ok_or_else(|| format!("{peer} tells no such figure"))
}

/// A row for each UCX.
fn with_ucx(
    name: &str,
    ucx: &[Ucx],
    way: Way,
    tls: &'static str,
    words: &'static str,
    figure: Figure,
    goal: Goal,
) -> Vec<Row> {
    if ucx.is_empty() {
        let why = "`ucx_perftest` is missing; install the package ucx-utils, or let --install do it";
        return vec![row(&format!("{name} / UCX {tls}"), figure.unit(), goal, move |_| Err(why.to_owned()))];
    }
    let of = |ucx: &Ucx| {
        let (ucx, version) = (ucx.clone(), ucx.version.clone());
        let is_judged = is_at_least(&version, UCX);
        let goal = if is_judged { goal } else { Goal::None };
        row(&format!("{name} / UCX {version} {tls}"), figure.unit(), goal, move |lab| {
            beside(lab, way, words, "ucx", Some((&ucx, tls)), figure)
        })
    };
    let mut rows: Vec<Row> = ucx.iter().map(of).collect();
    if rows.iter().all(|row| row.goal == Goal::None) {
        let why = format!("UCX {}.{} is not installed: let --install do it", UCX.0, UCX.1);
        rows.push(row(&format!("{name} / UCX {}.{} {tls}", UCX.0, UCX.1), figure.unit(), goal, move |_| {
            Err(why.clone())
        }));
    }
    rows
}

fn is_at_least(version: &str, wanted: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= wanted
}

/// A size of the copies that the yardstick makes.
#[derive(Clone, Copy)]
struct Size {
    words: &'static str,
    bytes: u64,
}

const SIZES: [Size; 2] = [Size { words: "64K", bytes: 64 << 10 }, Size { words: "1M", bytes: 1 << 20 }];

/// How often a measurement is taken again if the machine was another one before than behind it.
const ATTEMPTS: usize = 4;

/// What the machine may differ by, before to behind.
const STEADY: f64 = 1.15;

/// Ours between two looks at the yardstick: where the processors are threads of a host that moves them, a cache line takes 50 ns now and 600 a second
/// later, and a ratio of two moments would tell of that. Of several attempts the steadiest counts.
fn between_looks(
    look: impl Fn() -> Result<f64, String>,
    ours: impl Fn() -> Result<f64, String>,
) -> Result<Sample, String> {
    let mut best: Option<(f64, Sample)> = None;
    for _ in 0..ATTEMPTS {
        let (before, ours, behind) = (look()?, ours()?, look()?);
        let change = before.max(behind) / before.min(behind);
        if best.is_none_or(|(least, _)| change < least) {
            best = Some((change, sample(ours, f64::midpoint(before, behind))));
        }
        if change <= STEADY {
            break;
        }
    }
    best.map(|(_, sample)| sample).ok_or_else(|| "the yardstick told nothing".to_owned())
}

impl Size {
    fn name(self) -> String {
        self.words.replace('K', " KiB").replace('M', " MiB")
    }

    /// Gb/s of a copy of this size that takes so long.
    fn gbits(self, us: f64) -> f64 {
        self.bytes as f64 * 8.0 / us / 1e3
    }

    fn yardstick(self, lab: &Lab, name: &str) -> Result<f64, String> {
        lab.yardstick(|told| {
            let copies = told["copies"].as_array()?;
            copies.iter().find(|copy| copy["size"] == self.bytes)?[name].as_f64()
        })
    }
}

fn same_host(ucx: &[Ucx]) -> Vec<Row> {
    let mut rows =
        vec![row("same host, 8 B WRITE one way / cache line to another core", "us", Goal::AtMost(2.0, 1.3), |lab| {
            lab.has_host_path()?;
            between_looks(
                || lab.yardstick(|told| told["cache_line_one_way_us"].as_f64()),
                || median_us(&lab.perf(Way::Host, "write lat -s 8")?),
            )
        })];
    let posix = "posix,self";
    let name = "same host, 8 B WRITE one way";
    rows.extend(with_ucx(name, ucx, Way::Host, posix, "write lat -s 8", Figure::Latency, Goal::AtMost(1.5, 1.0)));
    for size in SIZES {
        let copies = [
            ("same host, {} WRITE / memcpy", "copy_us", "device"),
            ("same host through process_vm, {} WRITE / the raw call", "process_vm_writev_us", "heap"),
        ];
        for (name, yardstick, memory) in copies {
            let name = name.replace("{}", &size.name());
            rows.push(row(&name, "Gb/s", Goal::AtLeast(0.8, 0.9), move |lab| {
                lab.has_host_path()?;
                let words = format!("write bw -s {} -t 8 --memory {memory}", size.words);
                between_looks(
                    || Ok(size.gbits(size.yardstick(lab, yardstick)?)),
                    || gbits(&lab.perf(Way::Host, &words)?),
                )
            }));
        }
        let name = format!("same host, {} WRITE, delivered and read / shared memory", size.name());
        rows.push(row(&name, "Gb/s", Goal::AtLeast(0.8, 0.9), move |lab| {
            lab.has_host_path()?;
            let words = format!("write lat -s {} --read-data", size.words);
            between_looks(
                || Ok(size.gbits(size.yardstick(lab, "delivered_us")?)),
                || Ok(size.gbits(median_us(&lab.perf(Way::Host, &words)?)?)),
            )
        }));
    }
    // Theirs posts without lists and without completions, and gathers what it likes; ours gathers in lists.
    let (name, words) = ("same host, 8 B WRITE rate, lists of 32", "write bw -s 8 -t 512 -l 32 -I 8");
    rows.extend(with_ucx(name, ucx, Way::Host, posix, words, Figure::Rate, Goal::AtLeast(1.0, 2.0)));
    rows
}

fn network(ucx: &[Ucx]) -> Vec<Row> {
    let mut rows = vec![row("UDP, 8 B WRITE one way / raw UDP", "us", Goal::AtMost(2.0, 1.3), |lab| {
        let ours = median_us(&lab.perf(Way::Wire, "write lat -s 8")?)?;
        Ok(sample(ours, lab.bench("raw UDP, one way")?))
    })];
    let latencies: [(&str, &'static str, Goal); 3] = [
        ("UDP, 8 B WRITE one way", "write lat -s 8", Goal::AtMost(0.5, 0.25)),
        ("UDP, 8 B READ", "read lat -s 8", Goal::AtMost(0.8, 0.6)),
        ("UDP, 8 B FETCH_ADD", "atomic lat", Goal::AtMost(0.8, 0.6)),
    ];
    for (name, words, goal) in latencies {
        rows.extend(with_ucx(name, ucx, Way::Wire, "tcp", words, Figure::Latency, goal));
    }
    let newest = ucx.first().cloned();
    rows.push(row(
        "UDP, 1 MiB WRITE / the best of iperf3, UCX, Open MPI",
        "Gb/s",
        Goal::AtLeast(0.8, 1.1),
        move |lab| {
            let ucx = newest.as_ref().map(|ucx| (ucx, "tcp"));
            let words = "write bw -s 1M -t 8";
            let others = ["iperf3", "ucx"].map(|peer| beside(lab, Way::Wire, words, peer, ucx, Figure::Bandwidth));
            let mpi = lab.open_mpi(&["bw", "1048576"]);
            let mut told: Vec<Sample> = others.iter().filter_map(|other| other.as_ref().ok().copied()).collect();
            if let (Ok(theirs), Some(first)) = (&mpi, told.first().copied()) {
                told.push(Sample { theirs: *theirs, cpu: [first.cpu[0], None], ..first });
            }
            let best = told.into_iter().max_by(|one, other| one.theirs.total_cmp(&other.theirs));
            best.ok_or_else(|| others.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; "))
        },
    ));
    rows.push(row("UDP, 1 MiB WRITE, path MTU 1024, veth of 1500 / iperf3", "Gb/s", Goal::AtLeast(0.6, 0.9), |lab| {
        between(lab, 1500, true, "write bw -s 1M -t 8 -m 1024")
    }));
    rows.push(row(
        "UDP without super-packets, 1 MiB WRITE / iperf3 without TSO and GSO",
        "Gb/s",
        Goal::AtLeast(0.35, 0.6),
        |lab| between(lab, 9000, false, "write bw -s 1M -t 8"),
    ));
    let name = "UDP, 8 B WRITE rate, lists of 32";
    let words = "write bw -s 8 -t 512 -l 32 -I 8";
    rows.extend(with_ucx(name, ucx, Way::Wire, "tcp", words, Figure::Rate, Goal::AtLeast(15.0, 40.0)));
    rows.push(row("UDP, 8 B WRITE rate, lists of 64 / Open MPI's puts", "/s", Goal::AtLeast(0.5, 1.0), |lab| {
        let theirs = lab.open_mpi(&["rate", "8"])?;
        let ours = rate(&lab.perf(Way::Wire, "write bw -s 8 -t 512 -l 64 -I 8")?)?;
        Ok(sample(ours, theirs))
    }));
    rows
}

/// Ours and iperf3's TCP between two namespaces.
fn between(lab: &Lab, mtu: u32, super_packets: bool, words: &str) -> Result<Sample, String> {
    let namespaces = lab.namespaces()?;
    namespaces.shape(mtu, super_packets)?;
    let theirs = lab.iperf3_between(namespaces)?;
    Ok(sample(gbits(&lab.perf_between(namespaces, words)?)?, theirs))
}

/// perftest on the software NIC, and ours: the same device, path, options and kind of memory.
fn door() -> Vec<Row> {
    let rows: [(&str, &'static str, Figure); 3] = [
        (
            "perftest through the C door, 64 KiB WRITE / the same from Rust",
            "write bw -s 64K --memory heap",
            Figure::Bandwidth,
        ),
        (
            "perftest through the C door, 8 B WRITE rate, lists of 32 / the same from Rust",
            "write bw -s 8 -l 32 --memory heap",
            Figure::Rate,
        ),
        (
            "perftest through the C door, speed of an 8 B WRITE / the same from Rust",
            "write lat -s 8 --memory heap -I 0 --wait-completion",
            Figure::Latency,
        ),
    ];
    let of = |(name, words, figure): (&str, &'static str, Figure)| {
        row(name, figure.unit(), Goal::AtLeast(0.95, 0.98), move |lab| {
            let told = beside(lab, Way::Wire, words, "perftest", None, figure)?;
            // Theirs is the one that goes through the door; of times, the inverse.
            let (ours, theirs) =
                if figure == Figure::Latency { (1.0 / told.theirs, 1.0 / told.ours) } else { (told.theirs, told.ours) };
            Ok(sample(ours, theirs))
        })
    };
    rows.map(of).into()
}

/// Many queue pairs against one.
fn many() -> Vec<Row> {
    const ONE: &str = "write bw -s 8 -t 16 -Q 4 -I 8 -q 1 --warmup 16";
    // Of each QP: the default would be ten million messages.
    const MANY: &str = "write bw -s 8 -t 16 -Q 4 -I 8 -q 10000 --warmup 16";
    let memory = |result: &Value| at(result, &["bandwidth", "server_rss_bytes"]);
    vec![
        row("8 B WRITE rate on 10,000 queue pairs in turn / on one", "/s", Goal::AtLeast(0.5, 0.8), |lab| {
            Ok(sample(rate(&lab.perf(Way::Wire, MANY)?)?, rate(&lab.perf(Way::Wire, ONE)?)?))
        }),
        row("memory of a connected queue pair of depth 16 / 8 KiB", "B", Goal::AtMost(1.0, 0.5), move |lab| {
            let (many, one) = (memory(&lab.perf(Way::Wire, MANY)?)?, memory(&lab.perf(Way::Wire, ONE)?)?);
            Ok(sample((many - one) / 9999.0, 8192.0))
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::PathBuf;

    fn ucx(version: &str) -> Ucx {
        Ucx { version: version.to_owned(), programs: PathBuf::new(), libraries: None }
    }

    #[test]
    fn every_figure_has_a_row_and_the_floor_is_against_the_new_ucx() {
        let rows = all(&[ucx("1.22"), ucx("1.13")]);
        let goal =
            |name: &str| rows.iter().find(|row| row.name.contains(name)).unwrap_or_else(|| panic!("{name}")).goal;
        assert_eq!(goal("8 B WRITE one way / UCX 1.22 tcp"), Goal::AtMost(0.5, 0.25));
        assert_eq!(goal("8 B WRITE one way / UCX 1.13 tcp"), Goal::None);
        assert_eq!(goal("1 MiB WRITE / memcpy"), Goal::AtLeast(0.8, 0.9));
        let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "two rows of one name");
        let old = all(&[ucx("1.13")]);
        assert!(old.iter().any(|row| row.name.contains("UCX 1.22") && row.goal != Goal::None), "named as missing");
        assert!(all(&[]).len() < rows.len());
    }

    #[test]
    fn medians_are_compared_with_medians_and_means_with_means() {
        let ours = json!({ "p50_us": 2.0, "mean_us": 3.0 });
        assert_eq!(Figure::Latency.of(&ours, &json!({ "p50_us": 4.0, "mean_us": 5.0 })), Some((2.0, 4.0)));
        assert_eq!(Figure::Latency.of(&ours, &json!({ "mean_us": 5.0 })), Some((3.0, 5.0)));
        assert_eq!(Figure::Rate.of(&ours, &ours), None);
    }

    #[test]
    fn a_copy_of_64_kib_in_2_us_is_262_gigabits() {
        assert!((SIZES[0].gbits(2.0) - 262.144).abs() < 1e-9);
    }
}
