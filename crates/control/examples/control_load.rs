//! A load for control: many simulated agents in one process, each on a connection of its own, tell connections, loads and changes, while others look
//! up and watch. Control runs in a process apart, whose CPU time and memory are read from /proc. `cargo xtask bench --control` runs it.
//!
//! It prints figures; it judges only what is promised as a number: one core, 512 MiB, a look-up's p99 below 5 ms, a watcher told within a second.

use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::proto::control::control_client::ControlClient;
use scalefabric_control::proto::control::{self as proto, directory_change, from_agent, to_agent};
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::{Embedded, Etcd, Store, etcd};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Plan {
    agents: usize,
    connections: usize,
    seconds: u64,
    /// Look-ups a second.
    lookups: u64,
    /// Changed connections a second, over all agents.
    changes: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("serve") => serve(&arguments[1..]),
        _ => drive(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("control_load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// The control process: until its standard input ends.
fn serve(arguments: &[String]) -> Result<bool, Failure> {
    let [place] = arguments else { return Err("serve takes a file or an address of etcd".into()) };
    runtime()?.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(Machine::default());
        let store: Arc<dyn Store> = if place.starts_with("http") {
            Arc::new(Etcd::new(&etcd::Settings::new(vec![place.clone()]))?)
        } else {
            Arc::new(Embedded::open(Path::new(place), Arc::clone(&clock))?)
        };
        let replica = Replica::start(Settings::local("load"), store, clock).await?;
        replica.ready().await?;
        println!("{}", replica.grpc);
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
        replica.stop().await;
        Ok(true)
    })
}

fn drive(arguments: &[String]) -> Result<bool, Failure> {
    let mut plan = Plan { agents: 512, connections: 100_000, seconds: 10, lookups: 500, changes: 512 };
    let mut etcd = None;
    for argument in arguments {
        let (name, value) = argument.split_once('=').ok_or("options look like --agents=512")?;
        match name {
            "--agents" => plan.agents = value.parse()?,
            "--connections" => plan.connections = value.parse()?,
            "--seconds" => plan.seconds = value.parse()?,
            "--lookups" => plan.lookups = value.parse()?,
            "--changes" => plan.changes = value.parse()?,
            "--etcd" => etcd = Some(value.to_owned()),
            _ => {
                return Err(format!(
                    "`{name}` is not known: --agents, --connections, --seconds, --lookups, --changes, --etcd"
                )
                .into());
            }
        }
    }
    let folder = std::env::temp_dir().join(format!("sfab-control-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let place = etcd.unwrap_or_else(|| folder.join("store").display().to_string());
    let outcome = Control::start(&place).and_then(|control| runtime()?.block_on(measure(plan, &control)));
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// The control process as its load sees it.
struct Control {
    child: Child,
    address: String,
}

impl Control {
    fn start(place: &str) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", place])
            // As `sfab control` does for itself.
            .env("MALLOC_ARENA_MAX", "4")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Self { child, address: line.trim().to_owned() })
    }

    /// CPU time of all its threads.
    fn cpu(&self) -> Result<Duration, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = stat.rsplit_once(')').ok_or("stat")?.1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // utime and stime, fields 14 and 15, in ticks of 10 ms.
        let ticks: u64 =
            fields.get(11).ok_or("stat")?.parse::<u64>()? + fields.get(12).ok_or("stat")?.parse::<u64>()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Resident size, MiB: `VmRSS` now, `VmHWM` at most so far.
    fn mib(&self, field: &str) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with(field)).ok_or("status")?;
        let kib: u64 = line.split_whitespace().nth(1).ok_or("status")?.parse()?;
        Ok(kib / 1024)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs something on a thread and a runtime of its own, so that what it measures does not wait for the simulated agents of this process.
fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> std::thread::JoinHandle<Result<T, Failure>> {
    std::thread::spawn(move || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}

async fn channel(address: &str) -> Result<Channel, Failure> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?)
}

fn connection(agent: usize, number: usize, generation: u64) -> proto::Connection {
    let path = |port_num: u32| proto::Path {
        device: "sf0".into(),
        port_num,
        sgid: vec![agent as u8; 16],
        dgid: vec![number as u8; 16],
        flow_label: number as u32 & 0xf_ffff,
        dscp: 26,
    };
    proto::Connection {
        id: Some(proto::ConnectionId { origin: format!("node{agent}/4711"), serial: number as u64 }),
        tenant: format!("tenant{}", number % 16),
        service: format!("service{}", number % 64),
        qp_num: (number as u32 * 7 + generation as u32) & 0xff_ffff,
        peer_qp_num: number as u32,
        path: Some(path(1 + (generation % 2) as u32)),
        alternatives: vec![path(1), path(2)],
        state: proto::ConnectionState::Up.into(),
        generation,
        handle: number as u32 + 1,
        process: "4711".into(),
    }
}

/// When a change was told, by node and generation.
type Told = Arc<Mutex<HashMap<(usize, u64), Instant>>>;

struct Agent {
    number: usize,
    connections: usize,
    taken: Arc<AtomicU64>,
    told: Told,
    /// Nanoseconds between two changes.
    every: Duration,
    steady: watch::Receiver<bool>,
}

impl Agent {
    async fn run(mut self, address: String) -> Result<(), Failure> {
        let (out, queue) = mpsc::channel(64);
        let port = |port_num| proto::Port {
            device: "sf0".into(),
            port_num,
            gids: vec![vec![port_num as u8; 16]],
            rate_mbps: 100_000,
            numa_node: -1,
            active: true,
        };
        let hello = proto::Hello {
            node: format!("node{}", self.number),
            version: "load".into(),
            incarnation: 1,
            ports: vec![port(1), port(2)],
            neighbours: Vec::new(),
        };
        send(&out, from_agent::Message::Hello(hello)).await?;
        let mut client = ControlClient::new(channel(&address).await?);
        let mut answers = client.join(ReceiverStream::new(queue)).await?.into_inner();
        let connections = (0..self.connections).map(|number| connection(self.number, number, 1)).collect();
        let mut serial = 1;
        let whole = proto::Report { serial, whole: true, connections, ..proto::Report::default() };
        send(&out, from_agent::Message::Report(whole)).await?;
        // Not all in the same moment.
        tokio::time::sleep(Duration::from_millis(self.number as u64 % 100)).await;
        let mut loads = tokio::time::interval(Duration::from_millis(100));
        // Agents know nothing of one another: their changes come at any time, and what was not told before the load is steady is not told all at once when it is.
        let phase = self.every.mul_f64(self.number as f64 * 0.618_034 % 1.0);
        let mut changes = tokio::time::interval_at(tokio::time::Instant::now() + phase, self.every);
        changes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut generation = 1;
        let mut first = true;
        loop {
            tokio::select! {
                answer = answers.message() => match answer?.and_then(|answer| answer.message) {
                    Some(to_agent::Message::Ping(ping)) => {
                        send(&out, from_agent::Message::Pong(proto::Pong { nonce: ping.nonce })).await?;
                    }
                    Some(to_agent::Message::Taken(_)) => {
                        if std::mem::take(&mut first) {
                            self.taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Some(_) => {}
                    None => return Err("control ended the stream".into()),
                },
                _ = loads.tick() => {
                    let load = proto::Load {
                        interval_us: 100_000,
                        tx_bytes: vec![1_000_000, 10],
                        rx_bytes: vec![10, 1_000_000],
                        ..proto::Load::default()
                    };
                    if send(&out, from_agent::Message::Load(load)).await.is_err() {
                        // Control says why.
                        while answers.message().await?.is_some() {}
                        return Err("control ended the stream".into());
                    }
                }
                _ = changes.tick(), if *self.steady.borrow_and_update() => {
                    generation += 1;
                    serial += 1;
                    let number = generation as usize % self.connections.max(1);
                    let changed = connection(self.number, number, generation);
                    self.told.lock().map_err(|_| "lock")?.insert((self.number, generation), Instant::now());
                    let report = proto::Report { serial, connections: vec![changed], ..proto::Report::default() };
                    send(&out, from_agent::Message::Report(report)).await?;
                }
            }
        }
    }
}

async fn send(out: &mpsc::Sender<proto::FromAgent>, message: from_agent::Message) -> Result<(), Failure> {
    Ok(out.send(proto::FromAgent { message: Some(message) }).await?)
}

/// A watcher: how long after it was told each change arrived.
async fn watch_changes(
    address: String,
    told: Told,
    mut end: watch::Receiver<bool>,
    delays: Arc<Mutex<Vec<Duration>>>,
) -> Result<(), Failure> {
    let mut client = ControlClient::new(channel(&address).await?);
    let mut stream = client.watch(proto::WatchRequest::default()).await?.into_inner();
    loop {
        let change = tokio::select! {
            change = stream.message() => change?,
            _ = end.wait_for(|end| *end) => return Ok(()),
        };
        let Some(change) = change else { return Ok(()) };
        let Some(directory_change::Change::Connection(located)) = change.change else { continue };
        let agent = located.node.trim_start_matches("node").parse::<usize>()?;
        let generation = located.connection.map_or(0, |connection| connection.generation);
        if let Some(at) = told.lock().map_err(|_| "lock")?.remove(&(agent, generation)) {
            delays.lock().map_err(|_| "lock")?.push(at.elapsed());
        }
    }
}

/// Look-ups of every kind, at a steady rate whether answers are slow or not: a slow answer does not hide the next ones.
async fn look_up(
    address: String,
    plan: Plan,
    end: Arc<AtomicBool>,
    times: Arc<Mutex<Vec<Duration>>>,
) -> Result<(), Failure> {
    let channel = channel(&address).await?;
    let mut tick = tokio::time::interval(Duration::from_nanos(1_000_000_000 / plan.lookups.max(1)));
    let mut number: usize = 0;
    while !end.load(Ordering::Relaxed) {
        tick.tick().await;
        number = number.wrapping_mul(25_214_903_917).wrapping_add(11) % (1 << 30);
        let mut request = proto::FindConnectionsRequest { limit: 20, ..Default::default() };
        match number % 4 {
            0 => request.node = Some(format!("node{}", number % plan.agents)),
            1 => request.qp_num = Some((number % plan.connections.max(1)) as u32),
            2 => {
                request.tenant = Some(format!("tenant{}", number % 16));
                request.service = Some(format!("service{}", number % 64));
            }
            _ => {
                request.device = Some("sf0".into());
                request.port_num = Some(1);
                request.node = Some(format!("node{}", number % plan.agents));
            }
        }
        let (mut client, times) = (ControlClient::new(channel.clone()), Arc::clone(&times));
        tokio::spawn(async move {
            let began = Instant::now();
            if client.find_connections(request).await.is_ok()
                && let Ok(mut times) = times.lock()
            {
                times.push(began.elapsed());
            }
        });
    }
    Ok(())
}

async fn measure(plan: Plan, control: &Control) -> Result<bool, Failure> {
    println!("{plan:?}");
    let (taken, told) = (Arc::new(AtomicU64::new(0)), Told::default());
    let (steady, steadily) = watch::channel(false);
    let began = Instant::now();
    let mut failures = tokio::task::JoinSet::new();
    for number in 0..plan.agents {
        let agent = Agent {
            number,
            connections: plan.connections / plan.agents + usize::from(number < plan.connections % plan.agents),
            taken: Arc::clone(&taken),
            told: Arc::clone(&told),
            every: Duration::from_nanos(1_000_000_000 * plan.agents as u64 / plan.changes.max(1)),
            steady: steadily.clone(),
        };
        failures.spawn(agent.run(control.address.clone()));
    }
    while taken.load(Ordering::Relaxed) < plan.agents as u64 {
        tokio::select! {
            Some(failed) = failures.join_next() => failed??,
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        if began.elapsed() > Duration::from_secs(600) {
            return Err("not all was taken within ten minutes".into());
        }
    }
    let all = began.elapsed();
    println!(
        "all told and stored after {:.1} s, for which control used {:.1} s of CPU",
        all.as_secs_f64(),
        control.cpu()?.as_secs_f64()
    );
    let (delays, times) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
    let end = Arc::new(AtomicBool::new(false));
    let (over, is_over) = watch::channel(false);
    let watching = apart(watch_changes(control.address.clone(), Arc::clone(&told), is_over, Arc::clone(&delays)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    steady.send_replace(true);
    let looking = apart(look_up(control.address.clone(), plan, Arc::clone(&end), Arc::clone(&times)));
    let (cpu, from) = (control.cpu()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(plan.seconds)).await;
    let cores = (control.cpu()? - cpu).as_secs_f64() / from.elapsed().as_secs_f64();
    steady.send_replace(false);
    end.store(true, Ordering::Relaxed);
    looking.join().map_err(|_| "the look-ups ended with a panic")??;
    tokio::time::sleep(Duration::from_secs(1)).await;
    over.send_replace(true);
    watching.join().map_err(|_| "the watcher ended with a panic")??;
    // An agent that was cut off while it was measured is a failure, however good the figures are.
    while let Some(ended) = failures.try_join_next() {
        ended??;
    }
    failures.abort_all();
    let mut times = std::mem::take(&mut *times.lock().map_err(|_| "lock")?);
    let mut delays: Vec<Duration> = std::mem::take(&mut *delays.lock().map_err(|_: std::sync::PoisonError<_>| "lock")?);
    let unheard = told.lock().map_err(|_| "lock")?.len();
    let (now, peak) = (control.mib("VmRSS:")?, control.mib("VmHWM:")?);
    let lookup = row("look-ups", &mut times);
    let watch = row("watcher told after", &mut delays);
    println!("changes not heard of by the watcher: {unheard}");
    println!("control: {cores:.2} cores, {now} MiB resident, {peak} MiB at most");
    let fits = cores <= 1.0
        && peak <= 512
        && lookup < Duration::from_millis(5)
        && watch < Duration::from_secs(1)
        && unheard == 0;
    println!(
        "{}",
        if fits { "within one core, 512 MiB, 5 ms and 1 s" } else { "BEYOND one core, 512 MiB, 5 ms or 1 s" }
    );
    Ok(fits)
}

/// Prints a row; gives the p99.
fn row(name: &str, times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let at = |permille: usize| {
        times.get((times.len() * permille / 1000).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{name:<20} {:>7}   p50 {:>8.2} ms   p99 {:>8.2} ms   most {:>8.2} ms",
        times.len(),
        ms(at(500)),
        ms(at(990)),
        ms(at(1000))
    );
    at(990)
}
