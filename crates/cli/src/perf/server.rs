//! `sfab perf server`: serves clients, each on a thread of its own, until it is ended. What a client asks for is checked before anything is
//! made for it; what a client does wrong ends that client's service and nothing else.

use crate::failure::{During, Failure};
use crate::perf::bandwidth::{self, done_of};
use crate::perf::connection::{Connection, layout};
use crate::perf::device::{DeviceOptions, Devices};
use crate::perf::exchange::{
    self, FarResult, Link, Message, PORT, Plan, Sent, SideInfo, Step, Verb, greeted, unexpected,
};
use crate::perf::latency;
use crate::perf::processor;
use crate::perf::rdma_cm::{Listening, Managed};
use crate::perf::watch::Watch;
use crate::terminal::say;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long a client may take for one line when a line is due.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client may take between two measurements: it may be writing its last ones down.
const BETWEEN: Duration = Duration::from_secs(120);

/// Clients at once.
const MOST_CLIENTS: u32 = 64;

/// Memory of all clients together, bytes.
const MOST_MEMORY: u64 = 4 << 30;

/// The other end of measurements; it takes all else from its clients.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sfab perf server                          all addresses, port 18515, until Ctrl-C
  sfab perf server --listen 10.0.0.1:7000   one address and another port
  sfab perf server --once                   ends after one client: for scripts
  sfab perf server --backend ibv -d rxe0    on a device of libibverbs

Nothing but the device and CPUs is said here: sizes, depths, transport and the rest come from the client. A server lets who reaches it
measure; it keeps no secrets and asks for none: let it listen where you trust those who reach it.")]
pub struct Options {
    /// Where to listen; port 0 takes a free one [default: all addresses, port 18515]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Port to listen on, if --listen does not name one
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// End after one client, with 1 if it could not be served
    #[arg(long)]
    once: bool,
    /// One JSON line for each client instead of a sentence
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// What threads share.
struct Shared {
    devices: Devices,
    cpu: Option<usize>,
    numa: Option<usize>,
    clients: AtomicU32,
    memory: AtomicU64,
}

/// Memory that a client has, given back when it goes.
struct Reserved<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.shared.memory.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A place among the clients, given back when it goes.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let (cpu, numa) = (options.device.cpu, options.device.numa);
    if cpu.is_some() || numa.is_some() {
        // Wrong ones are told now, on a thread that is not needed afterwards.
        let tried = std::thread::spawn(move || processor::pin(cpu, numa)).join();
        tried.map_err(|_| Failure::failed("the thread that tried --cpu and --numa ended"))??;
    }
    let devices = Devices::new(&options.device)?;
    let shared = Arc::new(Shared { devices, cpu, numa, clients: AtomicU32::new(0), memory: AtomicU64::new(0) });
    let listener = listen(options)?;
    let at = listener.local_addr().during(|| "own address")?;
    if options.json {
        say!("{}", json!({ "event": "listening", "listening": at.to_string(), "version": exchange::PROGRAM_VERSION }));
    } else {
        say!("listening on {at}; Ctrl-C ends it");
    }
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // A client that has gone again, or a moment without descriptors: neither ends a server.
            Err(error) => {
                eprintln!("sfab: accept: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let is_json = options.json;
        let shared = Arc::clone(&shared);
        if options.once {
            return one(&shared, stream, is_json).map_err(Failure::told);
        }
        std::thread::spawn(move || drop(one(&shared, stream, is_json)));
    }
}

fn listen(options: &Options) -> Result<TcpListener, Failure> {
    let Some(text) = &options.listen else {
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let addresses = any.map(|address| SocketAddr::new(address, options.port));
        return TcpListener::bind(&addresses[..]).during(|| format!("listen on port {}", options.port));
    };
    let addresses = super::resolve(text, options.port, "--listen")?;
    TcpListener::bind(&addresses[..]).during(|| format!("listen on {text}"))
}

/// Serves one client and tells how it went.
fn one(shared: &Arc<Shared>, stream: TcpStream, is_json: bool) -> Result<(), Failure> {
    let peer = stream.peer_addr().map_or_else(
        |_| "somebody".to_owned(),
        |address| SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
    );
    let begins = |plan: &Plan| {
        if is_json {
            say!("{}", json!({ "event": "begins", "client": peer, "asked": plan }));
        } else {
            say!("{peer}: {} over {}, {} queue pair(s)", plan.verb.name(), plan.transport.name(), plan.qps);
        }
    };
    let outcome = serve(shared, stream, &begins);
    match (&outcome, is_json) {
        (_, true) => {
            let error = outcome.as_ref().err().map(ToString::to_string);
            say!("{}", json!({ "event": "ends", "client": peer, "error": error }));
        }
        (Ok(()), false) => say!("{peer}: done"),
        (Err(failure), false) => eprintln!("sfab: {peer}: {failure}"),
    }
    outcome
}

fn serve(shared: &Arc<Shared>, stream: TcpStream, begins: &dyn Fn(&Plan)) -> Result<(), Failure> {
    let local = stream.local_addr().during(|| "own address")?.ip();
    keep_alive(&stream);
    let mut link = Link::new(stream)?;
    let outcome = serve_link(shared, &mut link, local, begins);
    if let Err(failure) = &outcome {
        let _ = link.send(&Message::Trouble(failure.to_string()));
    }
    outcome
}

/// A client whose host is gone is noticed after some seconds, not never.
fn keep_alive(stream: &TcpStream) {
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

fn serve_link(shared: &Arc<Shared>, link: &mut Link, local: IpAddr, begins: &dyn Fn(&Plan)) -> Result<(), Failure> {
    let greeting = link.receive(PATIENCE, "its greeting")?;
    link.send(&exchange::hello())?;
    greeted(greeting)?;
    let _place = Place(Arc::clone(shared));
    if shared.clients.fetch_add(1, Ordering::Relaxed) >= MOST_CLIENTS {
        return Err(Failure::failed(format!("this server has {MOST_CLIENTS} clients already: try again later")));
    }
    let plan = match link.receive(PATIENCE, "its plan")? {
        Message::Plan(plan) => plan,
        other => return Err(unexpected("a plan", &other)),
    };
    plan.check().map_err(Failure::failed)?;
    let _reserved = reserve(shared, &plan)?;
    processor::pin(shared.cpu, shared.numa)?;
    let device = shared.devices.open(local).map_err(|failure| failure.during("the server"))?;
    // What the client sends inline is its own affair; our answers go inline as far as our device does that.
    let limits = device.context.query_device().during(|| "query the device")?;
    let inline_bytes = plan.inline_bytes.min(limits.max_inline_data);
    let plan = Plan { inline_bytes, ..plan };
    let mut connection = Connection::new(&device, &plan).map_err(|failure| failure.during("the server"))?;
    let _managed = meet(link, &mut connection)?;
    begins(&plan);
    loop {
        let step = match link.receive(BETWEEN, "the next step")? {
            Message::Step(step) => step,
            Message::Finish => return Ok(()),
            other => return Err(unexpected("a step", &other)),
        };
        plan.check_step(&step).map_err(Failure::failed)?;
        let before = processor::time_used();
        let result = serve_step(&connection, &step, link)?;
        let cpu = processor::time_used().saturating_sub(before);
        let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        let is_shared = shared.clients.load(Ordering::Relaxed) > 1;
        let rss_bytes = processor::resident_bytes();
        link.send(&Message::Result(FarResult { cpu_ns, rss_bytes, is_shared, ..result }))?;
    }
}

fn reserve<'a>(shared: &'a Shared, plan: &Plan) -> Result<Reserved<'a>, Failure> {
    let (stride, areas) = layout(plan);
    let bytes = 2 * stride * u64::from(areas);
    let before = shared.memory.fetch_add(bytes, Ordering::Relaxed);
    let reserved = Reserved { shared, bytes };
    if before + bytes <= MOST_MEMORY {
        return Ok(reserved);
    }
    Err(Failure::failed(format!(
        "this server gives its clients {MOST_MEMORY} bytes in all, {before} are taken and {bytes} are asked for: use smaller messages, or \
         wait for the others"
    )))
}

/// Connects the queue pairs and fills the receive queues.
fn meet(link: &mut Link, connection: &mut Connection) -> Result<Option<Managed>, Failure> {
    let listening = if connection.plan.rdma_cm { Some(Listening::new(&connection.device)?) } else { None };
    link.send(&Message::Side(connection.info(listening.as_ref().map(|listening| listening.port))))?;
    let far: SideInfo = match link.receive(PATIENCE, "its queue pairs")? {
        Message::Side(far) => far,
        other => return Err(unexpected("queue pairs", &other)),
    };
    let managed = match listening {
        Some(listening) => Some(listening.accept(connection, &far)?),
        None => {
            connection.connect(&far)?;
            None
        }
    };
    if connection.plan.verb == Verb::Send {
        connection.post_receives()?;
    }
    link.send(&Message::Ready)?;
    match link.receive(PATIENCE, "its queue pairs to be ready")? {
        Message::Ready => Ok(managed),
        other => Err(unexpected("ready", &other)),
    }
}

fn serve_step(connection: &Connection, step: &Step, link: &mut Link) -> Result<FarResult, Failure> {
    let plan = &connection.plan;
    connection.clear_landing(&connection.lanes[0])?;
    link.send(&Message::Go)?;
    // Nothing of ours is needed: the device serves a target that sleeps.
    let is_passive = plan.events
        && plan.verb != Verb::Send
        && !plan.both_directions
        && !(step.is_latency && plan.verb == Verb::Write);
    if is_passive {
        done_of(sleep(link)?)?;
        return Ok(FarResult::default());
    }
    let mut watch = Watch::new(link);
    if step.is_latency {
        let (message, arrived) = latency::answer(connection, step, &mut watch)?;
        done_of(message)?;
        return Ok(FarResult { arrived, ..FarResult::default() });
    }
    let (mut sent, mut arrived) = (Sent::default(), 0);
    if plan.both_directions {
        let streamed = bandwidth::stream(connection, step, &mut watch, &mut |_, _| {})?;
        sent = streamed.sent;
        arrived = streamed.arrived;
    }
    let (message, more) = bandwidth::drive(connection, &mut watch)?;
    arrived += more;
    let messages = done_of(message)?;
    if plan.verb == Verb::Send {
        arrived = bandwidth::take_rest(connection, arrived, messages)?;
    }
    Ok(FarResult { sent, arrived, ..FarResult::default() })
}

/// Waits for the client's next line without polling anything.
fn sleep(link: &mut Link) -> Result<Message, Failure> {
    loop {
        if let Some(message) = link.try_receive()? {
            return Ok(message);
        }
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut waiting = [PollFd::new(link.stream(), PollFlags::IN)];
        match poll(&mut waiting, Some(&second)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::failed(format!("wait for the client: {error}"))),
        }
    }
}
