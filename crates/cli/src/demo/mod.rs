//! `sfab demo`: two processes, each with its own software NIC, move data and compare every byte.
//!
//! The parent ([`parent`]) starts a target and an initiator: this same program with `--listen` and `--connect`. Those two
//! options also serve two machines by hand. The two meet over TCP ([`exchange`]), make and connect queue pairs
//! ([`endpoint`]), and go through a plan ([`step`]) of operations and sizes.

mod atomics;
pub mod endpoint;
mod event;
pub mod exchange;
mod initiator;
pub mod namespace;
mod parent;
pub mod pattern;
mod rails;
#[cfg(test)]
mod rehearsal;
mod report;
pub mod step;
mod target;

use crate::backend::Backend;
use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use crate::units;
use clap::Args;
use endpoint::Side;
use event::{Event, Reporter};
use exchange::{Link, Message, VERSION};
use initiator::Initiator;
use scalefabric_verbs::Context;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use step::{Plan, REGION_BYTES, Step, Transport};
use target::Target;

/// Sizes without `--size`: a word, a page, a train of packets, many trains.
const SIZES: &[u32] = &[8, 4096, 65536, 1 << 20];

/// Local ACK timeout, 4.096 µs x 2^16 = 268 ms: longer than a busy machine lets a process wait.
const ACK_TIMEOUT: u8 = 16;

/// The same with faults, 4.096 µs x 2^13 = 34 ms: a lost tail is seen earlier, and 7 retries still last long enough.
const ACK_TIMEOUT_WITH_FAULTS: u8 = 13;

/// Two processes on this machine move data by RDMA and compare every byte.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  sfab demo                               two processes on the loopback device
  sfab demo --fault drop=1%               the same data arrives intact over a lossy wire
  sudo sfab demo --netns                  two network namespaces as two hosts
  sfab demo --size 64K --iterations 500   one size, more messages
  sfab demo --listen 0.0.0.0:7000         this machine is the target of another one,
  sfab demo --connect 10.0.0.1:7000       which runs this
  sfab demo --backend ibv --device rxe0   on a device of libibverbs
  sfab demo --rails 2                     connections leave a hot port while data flows")]
pub struct Options {
    /// Who makes the objects
    #[arg(long, value_enum, default_value = "software")]
    pub backend: Backend,
    /// Device (default: the loopback device; with --netns the link between the namespaces)
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Port of the device, from 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub port: u8,
    /// Index in the GID table (default: the first IPv4 address)
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
    /// Message size, such as 8, 64K, 1M; may be repeated
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub size: Vec<u32>,
    /// Messages for latency, and again for bandwidth (default: by size)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub iterations: Option<u32>,
    /// Only this transport; may be repeated
    #[arg(long, value_name = "RC|UC|UD", value_parser = parse_transport)]
    pub transport: Vec<Transport>,
    /// Faults on the wire: drop, dup, reorder, corrupt, delay, ce, as in drop=1% or drop packet=17; may be repeated
    #[arg(long, value_name = "KIND=RATE")]
    pub fault: Vec<String>,
    /// Seed of the faults and of the bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write what passes the initiator's port to this pcapng file
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Between two network namespaces joined by a veth pair, made and removed here (root)
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    pub netns: bool,
    /// MTU of that veth pair; the path MTU follows from it
    #[arg(long, value_name = "BYTES", default_value_t = 9000, value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub netns_mtu: u32,
    /// One JSON document instead of the table
    #[arg(long)]
    pub json: bool,
    /// Only the target: wait here for an initiator
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Only the initiator: connect to a target
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub connect: Option<String>,
    #[command(flatten)]
    pub rails: rails::RailOptions,
    /// Tell events as JSON lines to a parent process
    #[arg(long, hide = true)]
    pub events: bool,
    /// Choose the device by its network interface
    #[arg(long, hide = true)]
    pub interface: Option<String>,
}

fn parse_transport(text: &str) -> Result<Transport, String> {
    match text.to_ascii_uppercase().as_str() {
        "RC" => Ok(Transport::Rc),
        "UC" => Ok(Transport::Uc),
        "UD" => Ok(Transport::Ud),
        _ => Err("the demo knows RC, UC and UD".to_owned()),
    }
}

impl Options {
    /// The options that a child process needs, too.
    fn for_child(&self, is_initiator: bool) -> Vec<String> {
        let mut arguments =
            vec!["--port".to_owned(), self.port.to_string(), "--seed".to_owned(), self.seed.to_string()];
        let mut give = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        give("--backend", self.backend.name().to_owned());
        for size in &self.size {
            give("--size", size.to_string());
        }
        for transport in &self.transport {
            give("--transport", transport.name().to_owned());
        }
        for fault in &self.fault {
            give("--fault", fault.clone());
        }
        if let Some(device) = &self.device {
            give("--device", device.clone());
        }
        if let Some(index) = self.gid_index {
            give("--gid-index", index.to_string());
        }
        if let Some(iterations) = self.iterations {
            give("--iterations", iterations.to_string());
        }
        if let (Some(file), true) = (&self.capture, is_initiator) {
            give("--capture", file.display().to_string());
        }
        arguments
    }

    fn sizes(&self) -> &[u32] {
        if self.size.is_empty() { SIZES } else { &self.size }
    }

    fn transports(&self) -> &[Transport] {
        if self.transport.is_empty() { &[Transport::Rc, Transport::Uc, Transport::Ud] } else { &self.transport }
    }

    fn region_bytes(&self) -> u64 {
        self.sizes().iter().map(|size| Step::stride(*size)).max().unwrap_or(0).max(REGION_BYTES)
    }
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    // What is wrong with the faults is said here, once, and not by each child.
    software::check_faults(&options.fault)?;
    let asked = SoftwareOptions {
        faults: options.fault.clone(),
        capture: options.capture.clone(),
        ..SoftwareOptions::default()
    };
    options.backend.check(&asked)?;
    if let Some(file) = &options.capture {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
        opened.map_err(|error| Failure::usage(format!("--capture {}: cannot be written: {error}", file.display())))?;
    }
    if options.rails.rails.is_some() {
        return rails::run(options);
    }
    if options.listen.is_none() && options.connect.is_none() {
        return parent::run(options);
    }
    if options.events {
        end_with_parent();
    }
    let reporter = Reporter::new(options.events);
    match one_side(options, &reporter) {
        Ok(()) => {
            // By now the device is closed and a capture is written to its end.
            reporter.tell(&Event::Done);
            Ok(())
        }
        Err(failure) if options.events => {
            // The parent tells it; here it would be told twice.
            reporter.tell(&Event::Failed { message: failure.to_string(), is_usage: failure.is_usage() });
            Err(Failure::told(failure))
        }
        Err(failure) => Err(failure),
    }
}

/// A child of a parent that is gone has nobody to report to. The parent holds the other end of our standard input.
fn end_with_parent() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {}
        std::process::exit(1);
    });
}

fn one_side(options: &Options, reporter: &Reporter) -> Result<(), Failure> {
    let software = SoftwareOptions {
        faults: options.fault.clone(),
        seed: options.seed,
        capture: options.capture.clone(),
        ..SoftwareOptions::default()
    };
    let interface = options.interface.as_deref().unwrap_or("lo");
    let (provider, name) = options.backend.open(&software, options.device.as_deref(), interface)?;
    let context = provider.open(&name).during(|| format!("open device {name}"))?;
    let ports = context.query_device().during(|| format!("query device {name}"))?.phys_port_cnt;
    if options.port > ports {
        let count = if ports == 1 { "one port".to_owned() } else { format!("ports 1 to {ports}") };
        return Err(Failure::usage(format!("--port {}: device {name} has {count}", options.port)));
    }
    let before = context.hw_counters(options.port).during(|| "read the counters")?;
    match (&options.listen, &options.connect) {
        (Some(address), _) => listen(options, reporter, &context, address)?,
        (_, Some(address)) => connect(options, reporter, &context, address)?,
        _ => {}
    }
    let after = context.hw_counters(options.port).during(|| "read the counters")?;
    reporter.tell(&Event::Counters { values: changed(&before, &after) });
    Ok(())
}

fn listen(options: &Options, reporter: &Reporter, context: &Arc<dyn Context>, address: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).during(|| format!("listen on {address}"))?;
    let bound = listener.local_addr().during(|| "own address")?;
    reporter.tell(&Event::Listening { address: bound.to_string() });
    let (stream, _) = listener.accept().during(|| "wait for the initiator")?;
    let mut link = Link::new(stream)?;
    let region_bytes = match link.receive(Duration::from_secs(30), "its greeting")? {
        Message::Hello { version: VERSION, region_bytes } if region_bytes <= 1 << 32 => region_bytes,
        Message::Hello { version, .. } => {
            link.send(&Message::Hello { version: VERSION, region_bytes: 0 })?;
            return Err(Failure::failed(format!(
                "the initiator speaks version {version} of the exchange, not {VERSION}"
            )));
        }
        other => return Err(exchange::unexpected("a greeting", &other)),
    };
    let side = open_side(options, reporter, context, region_bytes)?;
    link.send(&Message::Hello { version: VERSION, region_bytes })?;
    Target::new(&side, link).serve()
}

fn connect(options: &Options, reporter: &Reporter, context: &Arc<dyn Context>, address: &str) -> Result<(), Failure> {
    let stream =
        TcpStream::connect(address).during(|| format!("connect to the target at {address}: is it running?"))?;
    let side = open_side(options, reporter, context, options.region_bytes())?;
    let plan = Plan {
        sizes: options.sizes(),
        iterations: options.iterations,
        transports: options.transports(),
        path_mtu: side.path_mtu.bytes(),
        seed: options.seed,
    };
    let rows = plan.rows();
    reporter.tell(&Event::Plan { rows: rows.len() });
    Initiator::new(&side, Link::new(stream)?, reporter)?.run(&rows)
}

fn open_side(
    options: &Options,
    reporter: &Reporter,
    context: &Arc<dyn Context>,
    region_bytes: u64,
) -> Result<Side, Failure> {
    let timeout = if options.fault.is_empty() { ACK_TIMEOUT } else { ACK_TIMEOUT_WITH_FAULTS };
    let side = Side::new(Arc::clone(context), options.port, options.gid_index, region_bytes, timeout)?;
    reporter.tell(&Event::Port {
        device: context.device().name,
        gid: side.gid.to_ip().to_string(),
        path_mtu: side.path_mtu.bytes(),
    });
    Ok(side)
}

fn changed(before: &[(String, u64)], after: &[(String, u64)]) -> Vec<(String, u64)> {
    let old = |name: &str| before.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value);
    let differences = after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(old(name))));
    differences.filter(|(_, change)| *change > 0).collect()
}
