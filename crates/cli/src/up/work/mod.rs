//! The workload of a node of `sfab up`: one process that offers the node's services, connects to those of the others as the directory names them, and
//! drives all kinds of traffic at the pace that the plan says. It checks what it moves. It knows nothing of ports beyond where a connection begins: who moves
//! connections is control.

mod drive;
mod pace;
mod serve;

use super::event::{END, HEAT, Said, Tallies, Tally};
use super::plan::{Ground, Line, Plan, Traffic, service};
use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use crate::terminal::say;
use drive::Driver;
use scalefabric_control::client::{AgentDirectory, Settings};
use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Target, Waiting};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{PageKind, Pool, PoolConfig};
use scalefabric_fabric::{Directory, Path};
use scalefabric_verbs::Gid;
use serve::Services;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the others may take to come.
const PATIENCE: Duration = Duration::from_secs(90);

/// How often it is looked whether the work is over.
const TELL: Duration = Duration::from_millis(50);

/// The longest message: a call and its answer.
pub const MESSAGE_BYTES: u32 = 512;

/// Things that went wrong and are told, at most.
const TOLD: u64 = 5;

/// What all threads of the workload share.
#[derive(Debug)]
pub struct Stage {
    plan: Plan,
    place: usize,
    /// Where times of the pace are counted from.
    begun: Instant,
    hot: AtomicBool,
    stop: AtomicBool,
    wrong: AtomicU64,
    pool: Pool,
}

impl Stage {
    fn is_hot(&self) -> bool {
        self.hot.load(Ordering::Relaxed)
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Something is not as it must be.
    fn complain(&self, what: String) {
        if self.wrong.fetch_add(1, Ordering::Relaxed) < TOLD {
            tell(&Said::Wrong { what });
        }
    }
}

fn tell(said: &Said) {
    match serde_json::to_string(said) {
        Ok(line) => say!("{line}"),
        Err(error) => eprintln!("sfab: {error}"),
    }
}

/// A connection that this node made, and what was done on it. What it carries the fabric tells the directory by itself.
#[derive(Debug)]
pub struct Own {
    line: Line,
    connection: Connection,
    tally: Mutex<Tally>,
}

impl Own {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation that began then has ended well.
    fn done(&self, begun: Instant, sent: u64, received: u64) {
        let mut tally = self.tally();
        tally.operations += 1;
        tally.bytes += sent + received;
        tally.slowest_us = tally.slowest_us.max(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    fn failed(&self, stage: &Stage, what: impl std::fmt::Display) {
        self.tally().failed += 1;
        stage.complain(format!("{}: {what}", self.line.traffic.name()));
    }

    fn damaged(&self, stage: &Stage, what: impl std::fmt::Display) {
        self.tally().damaged += 1;
        stage.complain(format!("{}: {what}", self.line.traffic.name()));
    }
}

/// Runs the workload of a node until it is told to end, and then serves until its input ends.
pub fn run(plan: Plan, place: usize) -> Result<(), Failure> {
    let outcome = work(plan, place);
    if let Err(failure) = &outcome {
        tell(&Said::Failed { message: failure.to_string() });
    }
    outcome.map_err(Failure::told)
}

fn work(plan: Plan, place: usize) -> Result<(), Failure> {
    let node = plan.node(place);
    let settings = Settings { socket: plan.socket(place), memory: Some(plan.memory(place)), ..Settings::default() };
    let directory = Arc::new(AgentDirectory::new(&settings).during(|| "the directory")?);
    let fabric = build(&plan, place, &directory)?;
    let pool_config = PoolConfig {
        initial_bytes: 32 << 20,
        arena_bytes: 32 << 20,
        best_pages: PageKind::Transparent,
        ..PoolConfig::default()
    };
    let pool = Pool::new(&[fabric.protection_domain().clone()], pool_config).during(|| "memory")?;
    fabric.rotate_keys_of(&pool);
    let stage = Arc::new(Stage {
        plan,
        place,
        begun: Instant::now(),
        hot: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        wrong: AtomicU64::new(0),
        pool,
    });
    let services = Services::offer(&stage, &fabric, &node)?;
    tell(&Said::Serving);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().during(|| "start a thread to connect")?;
    let mut owns = Vec::new();
    for line in stage.plan.lines(place) {
        let connection = runtime.block_on(connect(&stage.plan, place, &line, &fabric, &directory))?;
        let own = Own { line, connection, tally: Mutex::default() };
        owns.push(Arc::new(own));
    }
    let drivers: Vec<Driver> =
        (0..).zip(&owns).map(|(number, own)| Driver::start(&stage, own, number)).collect::<Result<_, _>>()?;
    tell(&Said::Ready);
    let (of_teller, told) = (stage.clone(), owns.clone());
    let teller = std::thread::spawn(move || tell_tallies(&of_teller, &told));
    listen(&stage)?;
    stage.stop.store(true, Ordering::Relaxed);
    for driver in drivers {
        driver.join()?;
    }
    let _ = teller.join();
    let statistics = owns.iter().map(|own| own.connection.statistics());
    let (moves, rebuilds) =
        statistics.fold((0, 0), |(moves, rebuilds), one| (moves + one.moves, rebuilds + one.rebuilds));
    tell(&Said::Done { tallies: sum(&owns), moves, rebuilds });
    // The others may still be at it: their last operations find this side there.
    for line in std::io::stdin().lock().lines() {
        line.during(|| "read what is to be done")?;
    }
    drop(services);
    Ok(())
}

fn build(plan: &Plan, place: usize, directory: &Arc<AgentDirectory>) -> Result<Fabric, Failure> {
    let config = Config {
        depth: 64,
        receives: 64,
        receive_bytes: MESSAGE_BYTES,
        waiting: Waiting::Events,
        // Between namespaces of our own nobody else can be.
        trust_unproven_peers: true,
        ..Config::default()
    };
    // Nobody else can reach the namespaces; on the loopback nothing leaves the host.
    let exchange = match plan.ground {
        Ground::Loopback(_) => Tcp::new(),
        Ground::Namespaces(_) => Tcp::new().insecure(),
    };
    Fabric::builder(software::provider(&SoftwareOptions::default())?)
        .device(plan.device(place))
        .node(plan.node(place))
        .config(config)
        .exchange(Arc::new(exchange))
        .listen_at(format!("tcp://{}:0", plan.address(place, 1)))
        .directory(directory.clone())
        .build()
        .during(|| "the fabric")
}

/// Connects as soon as the directory knows where to.
async fn connect(
    plan: &Plan,
    place: usize,
    line: &Line,
    fabric: &Fabric,
    directory: &AgentDirectory,
) -> Result<Connection, Failure> {
    let name = service(&plan.node(line.to), line.traffic);
    let deadline = Instant::now() + PATIENCE;
    while directory.resolve(&name).is_empty() {
        if Instant::now() >= deadline {
            return Err(Failure::failed(format!("control does not know where `{name}` is after {PATIENCE:?}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let path = Path {
        device: plan.device(place),
        port_num: line.port_num,
        sgid: Gid::from_ip(plan.address(place, line.port_num)),
        dgid: Gid::from_ip(plan.address(line.to, line.port_num)),
        flow_label: 0,
        dscp: 0,
    };
    let target = Target::Service(name.clone());
    fabric.connect_on(&target, Some(path)).await.during(|| format!("connect to `{name}`"))
}

/// Does what it is told until it is told to end.
fn listen(stage: &Stage) -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        match line.during(|| "read what is to be done")?.as_str() {
            HEAT => stage.hot.store(true, Ordering::Relaxed),
            END => return Ok(()),
            other => return Err(Failure::usage(format!("`{other}` is nothing that a workload does"))),
        }
    }
    Err(Failure::failed("whoever started this workload is gone"))
}

fn sum(owns: &[Arc<Own>]) -> Tallies {
    let mut tallies: Tallies = Traffic::ALL.map(|traffic| (traffic, Tally::default())).into();
    for own in owns {
        *tallies.entry(own.line.traffic).or_default() += *own.tally();
    }
    tallies
}

/// Tells the parent what was done.
fn tell_tallies(stage: &Stage, owns: &[Arc<Own>]) {
    let mut rounds = 0u32;
    while !stage.stops() {
        std::thread::sleep(TELL);
        rounds += 1;
        if rounds.is_multiple_of(20) {
            tell(&Said::Tally { tallies: sum(owns) });
        }
    }
}
