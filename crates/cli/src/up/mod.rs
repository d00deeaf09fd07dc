//! `sfab up`: the whole of it on this machine. Control with its store, nodes of two ports each as processes (an agent and a workload), a mixed workload that is
//! resolved through control, and a port that becomes hot and is relieved by control's orders, which come through the agents. Everything it makes bears its own
//! number and is gone when it ends, whatever the end is.

mod crew;
mod etcd;
mod event;
mod http;
mod keeper;
mod netns;
pub mod part;
mod plan;
mod relay;
mod screen;
mod stage;
mod usage;
mod watch;
mod work;

use crate::failure::{During, Failure};
use clap::{Args, ValueEnum};
use crew::Heard;
use plan::{BLOCK_BYTES, Ground, Plan};
use serde_json::json;
use stage::Stage;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::sync::mpsc::channel;

/// What a port is taken to carry if nothing else is said, Mb/s.
const PORT_RATE_MBPS: u64 = 400;

/// Where control keeps its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// A file, in this process's folder
    Embedded,
    /// An etcd that is started for it
    Etcd,
}

/// A whole fabric on this machine: control, nodes, agents, traffic, and a hot port that control relieves.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  sfab up                        four nodes of two ports on the loopback, until Ctrl-C
  sfab up --nodes 8 --port-rate 200
  sudo sfab up --netns           a network namespace for each node, joined by software switches
  sfab up --store etcd           control's state in an etcd of its own
  sfab up --for 60 --until-relieved --json     for a script: JSON lines, exit code 1 if anything failed

It uses some 50 to 100 % of a core with the default rate; --port-rate makes it more or less. It clashes with nothing that runs here: addresses, ports and files
are its own. Ctrl-C, SIGTERM and SIGHUP end it and leave nothing behind, and so does SIGKILL.")]
pub struct Options {
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(3..=16))]
    nodes: u8,
    /// Ports of each node; with one nothing can be relieved, and none is made hot
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    ports: u8,
    /// Where control keeps its state
    #[arg(long, value_enum, default_value = "embedded")]
    store: Store,
    /// A network namespace for each node, joined by software switches (root)
    #[arg(long)]
    netns: bool,
    /// What a port is taken to carry, Mb/s: a software port has no line rate, so this one paces the traffic and tells what is hot
    #[arg(long, value_name = "MBPS", default_value_t = PORT_RATE_MBPS, value_parser = clap::value_parser!(u64).range(20..=100_000))]
    port_rate: u64,
    /// Bytes of a WRITE of a stream
    #[arg(long, value_name = "SIZE", default_value_t = BLOCK_BYTES, value_parser = parse_block)]
    block: u32,
    /// Where people and scripts find control [default: a free port of the loopback]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// End by itself, so long after everything is up
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// End as soon as control has relieved the hot port
    #[arg(long)]
    until_relieved: bool,
    /// Only addresses and the end
    #[arg(long)]
    quiet: bool,
    /// JSON lines instead of a table
    #[arg(long)]
    json: bool,
}

fn parse_block(text: &str) -> Result<u32, String> {
    let bytes = crate::units::parse_size(text)?;
    if (8192..=1 << 24).contains(&bytes) { Ok(bytes) } else { Err("8K to 16M".to_owned()) }
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.netns {
        netns::check()?;
    }
    if options.store == Store::Etcd {
        etcd::check()?;
    }
    if options.until_relieved && options.ports == 1 {
        return Err(Failure::usage("--until-relieved: with --ports 1 no port is made hot, so none is relieved"));
    }
    if let Some(http) = options.http.filter(|http| !http.ip().is_loopback()) {
        return Err(Failure::usage(format!(
            "--http {http}: without certificates control listens on the loopback only"
        )));
    }
    let (speak, hear) = channel();
    let interrupt = speak.clone();
    ctrlc::set_handler(move || {
        let _ = interrupt.send(Heard::Interrupt);
    })
    .during(|| "handle Ctrl-C")?;
    let folders = std::env::temp_dir();
    keeper::remove_orphans(&folders);
    let number = std::process::id();
    let plan = Plan {
        nodes: options.nodes.into(),
        ports: options.ports,
        port_rate_mbps: options.port_rate,
        block_bytes: options.block,
        ground: if options.netns { Ground::Namespaces(number) } else { Ground::Loopback(number) },
        folder: folders.join(format!("{}{number}", keeper::FOLDER)),
    };
    let mut crew = crew::Crew::new(speak)?;
    // Nobody else may look into it or put anything there.
    let made = std::fs::DirBuilder::new().mode(0o700).create(&plan.folder);
    made.during(|| format!("make the folder {}", plan.folder.display()))?;
    crew.keep(keeper::Charge::Folder(plan.folder.clone()))?;
    let text = json!(plan).to_string();
    std::fs::write(plan.file(), text).during(|| format!("write {}", plan.file().display()))?;
    let mut screen = screen::Screen::new(options.json, options.quiet);
    let mut stage = Stage::set(options, plan, crew, hear, &mut screen)?;
    stage.play(options, &mut screen)
}
