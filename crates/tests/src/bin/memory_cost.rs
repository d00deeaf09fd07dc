//! What it costs to have memory ready for an operation: registering it each time, taking it from the pool, finding it in the cache; on the software NIC, on
//! a device of libibverbs, or on pages pinned by `io_uring`. All ways take turns in one run, so that ratios hold where times do not.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use scalefabric_fabric::cache::{Cache, CacheConfig, Watching};
use scalefabric_fabric::pool::{Pool, PoolConfig};
use scalefabric_ibv::IbvProvider;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::pinned::PinnedDomain;
use scalefabric_verbs::{AccessFlags, Context, ProtectionDomain, Provider};
use serde::Serialize;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Backend {
    /// The software NIC
    Software,
    /// A device of libibverbs
    Ibv,
    /// No device: pages pinned by io_uring
    Pinned,
}

/// What it costs to have memory ready for an operation.
#[derive(Parser)]
struct Arguments {
    /// Whose memory
    #[arg(long, value_enum, default_value = "software")]
    backend: Backend,
    /// Device; default the first
    #[arg(long)]
    device: Option<String>,
    /// Rounds; each takes every way once, and the median counts
    #[arg(long, default_value_t = 9)]
    repeat: usize,
    /// Largest size, bytes; the pool has four times as much, at least 64 MiB
    #[arg(long, default_value_t = 16 << 20)]
    largest: usize,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The ways to have memory ready.
const WAYS: [&str; 5] = ["register each time", "same, batched", "pool", "pool and copy", "cache"];

/// Pieces of a list.
const MANY: usize = 16;

#[derive(Serialize)]
struct Row {
    bytes: usize,
    /// Median of the rounds, ns an operation, in the order of `ways`.
    ns: Vec<f64>,
    /// Over registering each time.
    ratio: Vec<f64>,
}

#[derive(Serialize)]
struct Report {
    backend: String,
    device: String,
    ways: [&'static str; 5],
    rows: Vec<Row>,
    /// ns to allocate and free 64 bytes in one thread.
    allocation_ns: f64,
    /// The same with two threads at once, a thread.
    allocation_of_two_ns: f64,
    /// ns to find 4 KiB in the cache and give it back, each of these figures a median over rounds and places in the code.
    hit_ns: f64,
    /// ns of the question to the kernel alone, which every hit asks.
    question_ns: f64,
    /// ns of a hit beside the question: the median of the differences.
    hit_beside_question_ns: f64,
    /// ns of a hit of a cache whose application tells what goes away, so that nobody is asked.
    hit_promised_ns: f64,
    /// The hit, the question and the hit without one, by a function that returns behind them.
    behind_a_return_ns: [f64; 3],
    /// The same for each of 16 pieces that are asked for as a list.
    hit_of_many_ns: f64,
    /// ns of a system call that does nothing, for scale.
    system_call_ns: f64,
    pool: Vec<String>,
    watching: String,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory_cost: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A protection domain, the device's name, and what keeps it open.
type Opened = (Arc<dyn ProtectionDomain>, String, Option<Arc<dyn Context>>);

fn open(arguments: &Arguments) -> Result<Opened, String> {
    let provider: Box<dyn Provider> = match arguments.backend {
        Backend::Pinned => {
            let device = PinnedDomain::open().map_err(|error| format!("io_uring: {error}"))?;
            return Ok((device, "io_uring".into(), None));
        }
        Backend::Software => Box::new(SoftwareProvider::from_environment().map_err(|error| error.to_string())?),
        Backend::Ibv => Box::new(IbvProvider::new().map_err(|error| error.to_string())?),
    };
    let devices = provider.devices().map_err(|error| error.to_string())?;
    let first = devices.first().map(|device| device.name.clone());
    let name = arguments.device.clone().or(first).ok_or("there is no device")?;
    let context = provider.open(&name).map_err(|error| error.to_string())?;
    let pd = context.alloc_pd().map_err(|error| error.to_string())?;
    Ok((pd, name, Some(context)))
}

/// ns for one of `count` runs.
fn time(count: usize, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| run());
    start.elapsed().as_nanos() as f64 / count as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(arguments: &Arguments) -> Result<(), String> {
    let (pd, device, _context) = open(arguments)?;
    let text = |error: scalefabric_fabric::FabricError| error.to_string();
    let pds = [Arc::clone(&pd)];
    let bytes = (arguments.largest * 4).max(64 << 20);
    let pool = Pool::new(&pds, PoolConfig { initial_bytes: bytes, limit_bytes: bytes, ..PoolConfig::default() })
        .map_err(text)?;
    let cache = Cache::new(&pds, CacheConfig::default()).map_err(text)?;
    let batched =
        Cache::new(&pds, CacheConfig { watching: Watching::Never, ..CacheConfig::default() }).map_err(text)?;
    // The application's own memory, there and written to.
    let mut own = vec![1_u8; arguments.largest + 4096];
    let at = own.as_mut_ptr();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;

    let register = |bytes: usize| {
        // SAFETY: `own` outlives every registration, and no peer is told a key.
        let region = unsafe { pd.reg_mr(at, bytes, at as u64, access) }.expect("registration");
        region.destroy().expect("deregistration");
    };
    let through = |cache: &Cache, bytes: usize| {
        // SAFETY: likewise.
        drop(unsafe { cache.region(at, bytes) }.expect("registration"));
    };
    let nothing = || {
        // SAFETY: takes nothing and always succeeds.
        std::hint::black_box(unsafe { libc::getppid() });
    };
    let source = vec![2_u8; arguments.largest];

    let sizes = [4096, 65_536, 1 << 20, 16 << 20].into_iter().filter(|bytes| *bytes <= arguments.largest);
    let mut rows = Vec::new();
    for bytes in sizes {
        let few = (64 << 20) / bytes.max(65_536);
        let many = 20_000;
        let mut ns: [Vec<f64>; 5] = Default::default();
        for round in 0..=arguments.repeat {
            let taken = [
                time(few.min(200), || register(bytes)),
                time(few.min(200), || through(&batched, bytes)),
                time(many, || drop(pool.alloc(bytes).expect("allocation"))),
                time(few.min(200), || {
                    pool.alloc(bytes).and_then(|buffer| buffer.write(0, &source[..bytes])).expect("copy")
                }),
                time(many, || through(&cache, bytes)),
            ];
            batched.flush();
            // The first round fills what is empty.
            if round > 0 {
                ns.iter_mut().zip(taken).for_each(|(all, one)| all.push(one));
            }
        }
        let ns: Vec<f64> = ns.iter_mut().map(|all| median(all)).collect();
        let ratio = ns.iter().map(|ns_of_way| ns_of_way / ns[0]).collect();
        rows.push(Row { bytes, ns, ratio });
    }

    let repeated = |run: &dyn Fn() -> f64| median(&mut (0..arguments.repeat).map(|_| run()).collect::<Vec<f64>>());
    let allocation = || time(200_000, || drop(pool.alloc(64).expect("allocation")));
    let of_two = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(allocation);
            (allocation() + other.join().expect("a thread of the benchmark")) / 2.0
        })
    };
    let pieces: Vec<(*mut u8, usize)> = (0..MANY).map(|n| (at.wrapping_add(n * 256), 256)).collect();
    let many = || {
        let mut regions = Vec::with_capacity(MANY);
        let run = || {
            // SAFETY: `own` outlives every registration, and no peer is told a key.
            unsafe { cache.regions(&pieces, &mut regions) }.expect("registration");
            regions.clear();
        };
        time(10_000, run) / MANY as f64
    };
    let promised =
        Cache::new(&pds, CacheConfig { watching: Watching::Promised, ..CacheConfig::default() }).map_err(text)?;
    let mut hits = Hits::default();
    for _ in 0..arguments.repeat {
        hits.take::<0>(&cache, &promised, at);
        hits.take::<1>(&cache, &promised, at);
        hits.take::<2>(&cache, &promised, at);
        hits.take::<3>(&cache, &promised, at);
        hits.take::<4>(&cache, &promised, at);
    }
    promised.forget(at, own.len());
    let report = cache.report();
    let report = Report {
        backend: format!("{:?}", arguments.backend).to_lowercase(),
        device,
        ways: WAYS,
        rows,
        allocation_ns: repeated(&allocation),
        allocation_of_two_ns: repeated(&of_two),
        hit_ns: median(&mut hits.hit),
        question_ns: median(&mut hits.question),
        hit_beside_question_ns: median(&mut hits.beside),
        hit_promised_ns: median(&mut hits.promised),
        behind_a_return_ns: hits.returned.each_mut().map(|all| median(all)),
        hit_of_many_ns: repeated(&many),
        system_call_ns: repeated(&|| time(100_000, nothing)),
        pool: pool.report().arenas.iter().map(ToString::to_string).collect(),
        watching: report.reason.unwrap_or_else(|| report.watching.to_string()),
    };
    drop(own);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?);
    } else {
        print(&report);
    }
    Ok(())
}

/// What hits of 4 KiB take.
#[derive(Default)]
struct Hits {
    hit: Vec<f64>,
    question: Vec<f64>,
    beside: Vec<f64>,
    promised: Vec<f64>,
    returned: [Vec<f64>; 3],
}

impl Hits {
    /// One round at one place in the code. Where a loop around a system call stands decides, from one start of the program to the next, whether the processor
    /// mispredicts its branch each time (100 ns on some), so there are several places.
    #[inline(never)]
    fn take<const PLACE: usize>(&mut self, cache: &Cache, promised: &Cache, at: *mut u8) {
        const COUNT: usize = 20_000;
        std::hint::black_box(PLACE);
        let question = time(COUNT, || assert!(cache.ask_kernel()));
        let hit = time(COUNT, || find(cache, at));
        self.promised.push(time(COUNT, || find(promised, at)));
        self.question.push(question);
        self.hit.push(hit);
        self.beside.push(hit - question);
        self.returned[0].push(time(COUNT, || find_and_return::<PLACE>(cache, at)));
        self.returned[1].push(time(COUNT, || ask_and_return::<PLACE>(cache)));
        self.returned[2].push(time(COUNT, || find_and_return::<PLACE>(promised, at)));
    }
}

#[inline(always)]
fn find(cache: &Cache, at: *mut u8) {
    // SAFETY: what is there outlives every registration, and no peer is told a key.
    drop(std::hint::black_box(unsafe { cache.region(at, 4096) }).expect("registration"));
}

#[inline(never)]
fn find_and_return<const PLACE: usize>(cache: &Cache, at: *mut u8) {
    std::hint::black_box(PLACE);
    find(cache, at);
}

#[inline(never)]
fn ask_and_return<const PLACE: usize>(cache: &Cache) {
    std::hint::black_box(PLACE);
    assert!(cache.ask_kernel());
}

fn print(report: &Report) {
    println!("memory ready for one operation, {} ({})", report.device, report.backend);
    print!("{:>10}", "bytes");
    report.ways.iter().for_each(|way| print!("{way:>22}"));
    println!();
    for row in &report.rows {
        print!("{:>10}", row.bytes);
        for (ns, ratio) in row.ns.iter().zip(&row.ratio) {
            print!("{:>22}", format!("{:.2} us {:>6.3}", ns / 1000.0, ratio));
        }
        println!();
    }
    println!(
        "allocation {:.0} ns, with two threads {:.0} ns each; hit {:.0} ns, of which {:.0} ns are the question to the kernel and {:.0} ns the rest; of a list of {MANY} {:.0} ns each; a system call {:.0} ns",
        report.allocation_ns,
        report.allocation_of_two_ns,
        report.hit_ns,
        report.question_ns,
        report.hit_beside_question_ns,
        report.hit_of_many_ns,
        report.system_call_ns
    );
    let [hit, question, promised] = report.behind_a_return_ns;
    println!(
        "hit where the application tells what goes away {:.0} ns; by a function that returns behind it: hit {hit:.0} ns, question {question:.0} ns, hit without a question {promised:.0} ns",
        report.hit_promised_ns
    );
    report.pool.iter().for_each(|arena| println!("pool: {arena}"));
    println!("cache: {}", report.watching);
}
