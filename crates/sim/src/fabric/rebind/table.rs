//! The table: static and moved binding for several numbers of nodes, over several seeds, beside what was reported; and how it changes when one thing of the
//! fabric, the traffic or the rule does. It runs what it is told on several threads; the same seeds give the same table with any number of them.

use super::super::plot::{self, Line};
use super::super::world::World;
use super::cluster::Cluster;
use super::{
    GAIN_TOLERANCE_PERCENT, Outcome, RATE_TOLERANCE_PERCENT, REPORTED, Setup, StaticPath, StaticPort, lockstep, packets,
};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How the figures are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The closed form ([`lockstep`]).
    Lockstep,
    /// Packet by packet ([`packets`]).
    Packets,
}

/// Figures of several seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (mut count, mut sum) = (0.0, 0.0);
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (count, sum, min, max) = (count + 1.0, sum + value, f64::min(min, value), f64::max(max, value));
        }
        if count == 0.0 { Self::default() } else { Self { mean: sum / count, min, max } }
    }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What differs from the stated fabric; empty: nothing.
    pub variant: String,
    /// How it was found.
    pub method: Method,
    /// Nodes.
    pub nodes: u32,
    /// Seeds.
    pub seeds: usize,
    /// AllReduce bandwidth of all nodes together if nobody moves QPs, Gb/s.
    pub fixed_gbps: Spread,
    /// The same if the rule does.
    pub moved_gbps: Spread,
    /// Mean moved over mean static, less one, per cent.
    pub gain_percent: f64,
    /// Moves until the rule rested, mean.
    pub moves: f64,
    /// Seeds in which it rested before the time was over.
    pub rested: usize,
    /// What was reported: static and moved; only of the stated fabric.
    pub reported_gbps: Option<(f64, f64)>,
}

impl Row {
    fn new(variant: &str, method: Method, nodes: u32, runs: &[(Outcome, Outcome)]) -> Self {
        let fixed_gbps = Spread::of(runs.iter().map(|(fixed, _)| fixed.gbps));
        let moved_gbps = Spread::of(runs.iter().map(|(_, moved)| moved.gbps));
        let reported = REPORTED.iter().find(|reported| reported.0 == nodes && variant.is_empty());
        Self {
            variant: variant.to_owned(),
            method,
            nodes,
            seeds: runs.len(),
            fixed_gbps,
            moved_gbps,
            gain_percent: (moved_gbps.mean / fixed_gbps.mean - 1.0) * 100.0,
            moves: Spread::of(runs.iter().map(|(_, moved)| moved.moves as f64)).mean,
            rested: runs.iter().filter(|(_, moved)| moved.rested).count(),
            reported_gbps: reported.map(|reported| (reported.1, reported.2)),
        }
    }

    /// The reported gain, per cent.
    pub fn reported_gain_percent(&self) -> Option<f64> {
        self.reported_gbps.map(|(fixed, moved)| (moved / fixed - 1.0) * 100.0)
    }

    /// Whether gain and rates are as near to the reported ones as they should be; none: nothing was reported.
    pub fn agrees(&self) -> Option<bool> {
        let (fixed, moved) = self.reported_gbps?;
        let near = |got: f64, expected: f64, percent: f64| (got / expected - 1.0).abs() * 100.0 <= percent;
        Some(
            near(self.moved_gbps.mean / self.fixed_gbps.mean, moved / fixed, GAIN_TOLERANCE_PERCENT)
                && near(self.fixed_gbps.mean, fixed, RATE_TOLERANCE_PERCENT)
                && near(self.moved_gbps.mean, moved, RATE_TOLERANCE_PERCENT),
        )
    }
}

/// A line that is to be made.
#[derive(Clone, Debug)]
pub struct Job {
    /// What differs; empty: nothing.
    pub variant: String,
    /// How.
    pub method: Method,
    /// With the first seed.
    pub setup: Setup,
    /// Seeds from the first on.
    pub seeds: u32,
}

/// Told while a table is made: how many runs are done, how many there are, and the fabric if one is simulated. False ends it.
pub type Watch<'a> = dyn Fn(usize, usize, Option<&World>) -> bool + Sync + 'a;

/// Makes lines on so many threads.
pub fn run(jobs: &[Job], threads: usize, watch: &Watch<'_>) -> Result<Vec<Row>, String> {
    // Each seed and binding by itself, the largest first.
    let mut tasks: Vec<(usize, u32, bool)> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        job.setup.check()?;
        tasks.extend((0..job.seeds).flat_map(|seed| [(index, seed, true), (index, seed, false)]));
    }
    tasks.sort_by_key(|(index, _, moved)| {
        (jobs[*index].method == Method::Lockstep, std::cmp::Reverse((jobs[*index].setup.nodes, *moved)))
    });
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<(usize, u32, bool, Outcome)>> = Mutex::new(Vec::new());
    let failure: Mutex<Option<String>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                while let Some(&(index, seed, moved)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut look = |world: Option<&World>| watch(done.load(Ordering::Relaxed), tasks.len(), world);
                    let result = if look(None) {
                        one(&jobs[index], seed, moved, &mut look)
                    } else {
                        Err("interrupted".to_owned())
                    };
                    done.fetch_add(1, Ordering::Relaxed);
                    match result {
                        Ok(outcome) => {
                            if let Ok(mut results) = results.lock() {
                                results.push((index, seed, moved, outcome));
                            }
                        }
                        Err(error) => {
                            if let Ok(mut failure) = failure.lock() {
                                failure.get_or_insert(error);
                            }
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(error);
    }
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(index, seed, moved, _)| (*index, *seed, *moved));
    let rows = jobs.iter().enumerate().map(|(index, job)| {
        let of_job: Vec<&Outcome> = results.iter().filter(|result| result.0 == index).map(|result| &result.3).collect();
        let pairs: Vec<(Outcome, Outcome)> =
            of_job.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Row::new(&job.variant, job.method, job.setup.nodes, &pairs)
    });
    Ok(rows.collect())
}

fn one(job: &Job, seed: u32, moved: bool, look: &mut dyn FnMut(Option<&World>) -> bool) -> Result<Outcome, String> {
    let setup = Setup { seed: job.setup.seed + u64::from(seed), ..job.setup.clone() };
    let cluster = Cluster::new(&setup)?;
    match (job.method, moved) {
        (Method::Lockstep, false) => Ok(lockstep::fixed(&cluster)),
        (Method::Lockstep, true) => Ok(lockstep::moved(&cluster)),
        (Method::Packets, moved) => packets::run(&cluster, moved, &mut |world| look(Some(world))),
    }
}

/// A variant: what differs, and how a setup becomes it.
pub type Variant = (&'static str, fn(&mut Setup));

/// What is changed, one at a time, to see on what the gain depends.
pub const VARIANTS: &[Variant] = &[
    ("as stated", |_| {}),
    ("oversubscription 4:1", |setup| setup.spines = 1),
    ("oversubscription 1:1", |setup| setup.spines = 4),
    ("2 QPs to a neighbour", |setup| per_qp(setup, 2)),
    ("4 QPs", |setup| per_qp(setup, 4)),
    ("16 QPs", |setup| per_qp(setup, 16)),
    ("32 QPs", |setup| per_qp(setup, 32)),
    ("ring in the order of nodes", |setup| setup.shuffled = false),
    ("ports in turn", |setup| setup.port = StaticPort::InTurn),
    ("a source port for each QP", |setup| setup.path = StaticPath::Own),
    ("nodes offer 20 % less", |setup| setup.qp_bps = setup.qp_bps / 5 * 4),
    ("nodes offer 20 % more", |setup| setup.qp_bps = setup.qp_bps / 5 * 6),
    ("hot above 60 %, filled to 50 %", |setup| thresholds(setup, 600, 500)),
    ("hot above 80 %, filled to 70 %", |setup| thresholds(setup, 800, 700)),
    ("hot above 90 %, filled to 85 %", |setup| thresholds(setup, 900, 850)),
    ("hot after one sample", |setup| setup.policy.samples = 1),
    ("the rule sees NICs only", |setup| setup.sees_switches = false),
];

/// So many QPs that offer together what the stated ones do.
fn per_qp(setup: &mut Setup, qps: u32) {
    setup.qp_bps = setup.qp_bps * u64::from(setup.qps) / u64::from(qps);
    setup.qps = qps;
}

fn thresholds(setup: &mut Setup, hot: u32, cool: u32) {
    (setup.policy.hot_permille, setup.policy.cool_permille, setup.policy.fill_permille) = (hot, cool, cool);
}

/// The table as text, at most 100 columns.
pub fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    let width = rows.iter().map(|row| row.variant.chars().count()).max().unwrap_or(0);
    let gap = if width == 0 { 0 } else { width + 2 };
    let _ = writeln!(
        out,
        "{:<gap$}{:>5} {:>5} {:>17} {:>17} {:>7} {:>9} {:>10} {:>6}",
        "", "nodes", "seeds", "static Gb/s", "moved Gb/s", "gain", "reported", "agrees", "moves"
    );
    for row in rows {
        let spread = |spread: &Spread| format!("{:.0} ({:.0}..{:.0})", spread.mean, spread.min, spread.max);
        let reported = row.reported_gain_percent().map_or_else(|| "-".to_owned(), |gain| format!("{gain:.1} %"));
        let agrees = match row.agrees() {
            None => "-",
            Some(true) => "yes",
            Some(false) => "DIFFERS",
        };
        let _ = writeln!(
            out,
            "{:<gap$}{:>5} {:>5} {:>17} {:>17} {:>5.1} % {:>9} {:>10} {:>6.0}{}",
            row.variant,
            row.nodes,
            row.seeds,
            spread(&row.fixed_gbps),
            spread(&row.moved_gbps),
            row.gain_percent,
            reported,
            agrees,
            row.moves,
            if row.rested < row.seeds { format!("  {} did not rest", row.seeds - row.rested) } else { String::new() }
        );
    }
    out
}

/// The picture: bandwidth per node over nodes, both bindings, and what was reported.
pub fn picture(rows: &[Row]) -> String {
    let of = |name: &str, value: fn(&Row) -> f64| Line {
        name: name.to_owned(),
        points: rows.iter().map(|row| (f64::from(row.nodes), value(row) / f64::from(row.nodes))).collect(),
    };
    let reported = |name: &str, value: fn(&(u32, f64, f64)) -> f64| Line {
        name: name.to_owned(),
        points: REPORTED.iter().map(|row| (f64::from(row.0), value(row) / f64::from(row.0))).collect(),
    };
    let lines = [
        of("static", |row| row.fixed_gbps.mean),
        of("moved", |row| row.moved_gbps.mean),
        reported("static, reported", |row| row.1),
        reported("moved, reported", |row| row.2),
    ];
    plot::lines("AllReduce bandwidth per node", "nodes", "Gb/s per node", &lines, true)
}
