//! `sfab agent`: the node's part of the control plane, until Ctrl-C or SIGTERM.

use crate::failure::{During, Failure};
use crate::software::{self, DeviceSurvey, SoftwareOptions};
use crate::terminal::say;
use clap::Args;
use scalefabric_control::agent::ports::{PortCounters, PortSource, place_pkeys};
use scalefabric_control::agent::{Agent, State};
use scalefabric_control::clock::Machine;
use scalefabric_control::config;
use scalefabric_control::directory::PortRecord;
use scalefabric_transport::Counter;
use scalefabric_verbs::{PKey, PortState};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The agent of a node: it tells control which connections and services the node's processes have and what its ports carry, and brings orders to the
/// processes. They work on without it.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab agent                                     control on this host
  sfab agent --node node3 --control https://control-1:7480 --config /etc/scalefabric/agent.toml
  SCALEFABRIC_AGENT=/tmp/agent.sock sfab agent   the same variable tells processes where it is

It looks at the software NIC's devices without joining them. Off this host it needs certificates: docs/configuration.md.")]
pub struct Options {
    /// Configuration file (TOML); what is given here wins over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the node [default: the host's]
    #[arg(long)]
    node: Option<String>,
    /// Address of a replica of control; may be given several times [default: http://127.0.0.1:7480]
    #[arg(long, value_name = "URL")]
    control: Vec<String>,
    /// Socket for the processes of the node [default: $SCALEFABRIC_AGENT, else /run/scalefabric/agent.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What every port is taken to carry, Mb/s, whatever its device says: software ports have no line rate, and others may be limited on their way
    #[arg(long, value_name = "MBPS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    port_rate: Option<u64>,
    /// JSON lines instead of sentences
    #[arg(long)]
    json: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let wrong = |error: config::Wrong| Failure::usage(error.to_string());
    let mut file: config::Agent = match &options.config {
        Some(path) => config::read(path).map_err(wrong)?,
        None => config::Agent::default(),
    };
    file.node = options.node.clone().or(file.node);
    file.socket = options.socket.clone().or(file.socket);
    if !options.control.is_empty() {
        file.control.clone_from(&options.control);
    }
    let settings = file.settings().map_err(wrong)?;
    // One thread is enough, and the node has other work.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().during(|| "start the agent's thread")?;
    runtime.block_on(async {
        let mut ending = Box::pin(super::ending::asked());
        let (node, socket) = (settings.node.clone(), settings.socket.clone());
        let ports = Surveyed { rate_mbps: options.port_rate, devices: Vec::new(), left: BTreeMap::new() };
        let agent = Agent::start(settings, Box::new(ports), Arc::new(Machine::default()))
            .map_err(|error| Failure::usage(error.to_string()))?;
        if options.json {
            say!("{}", json!({ "event": "listening", "node": node, "socket": socket }));
        } else {
            say!("agent of `{node}`; processes: {}", socket.display());
        }
        loop {
            tell(options.json, &agent.state());
            tokio::select! {
                () = &mut ending => return Ok(()),
                () = agent.changed() => {}
            }
        }
    })
}

fn tell(as_json: bool, state: &State) {
    if as_json {
        say!("{}", json!({ "event": "control", "replica": state.replica, "trouble": state.trouble }));
    } else if let Some(replica) = &state.replica {
        say!("joined `{replica}`");
    } else if let Some(trouble) = &state.trouble {
        say!("no control: {trouble}");
    }
}

/// The devices of the software NIC, looked at from outside. Tables and counters are shared memory, which is read without asking anybody; which device is shared
/// where is looked at with the ports.
struct Surveyed {
    /// What is said of each port, if it is not what its device says.
    rate_mbps: Option<u64>,
    devices: Vec<DeviceSurvey>,
    /// Places of P_Key tables, by device, that P_Keys have left.
    left: BTreeMap<String, BTreeSet<usize>>,
}

/// What the agent counts, in the order of [`PortCounters`].
const COUNTED: [Counter; 4] =
    [Counter::SentBytes, Counter::ReceivedBytes, Counter::RetransmittedPackets, Counter::EcnMarked];

impl Surveyed {
    fn look(&mut self) {
        // Without devices there are no ports; the agent still serves.
        self.devices = software::port_surveys(&SoftwareOptions::default()).unwrap_or_default();
    }
}

impl PortSource for Surveyed {
    fn ports(&mut self) -> Vec<PortRecord> {
        self.look();
        let mut records = Vec::new();
        for device in &self.devices {
            for port in device.ports().unwrap_or_default() {
                records.push(PortRecord {
                    device: device.plan.info.name.clone(),
                    port_num: port.port_num,
                    gids: port.gids.iter().map(|(_, gid)| gid.0.into()).collect(),
                    rate_mbps: self.rate_mbps.unwrap_or(port.speed_mbps.into()),
                    numa_node: numa_node(&port.interface),
                    active: port.state == PortState::Active,
                });
            }
        }
        records
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        let counted = self.devices.iter().flat_map(|device| device.counted(COUNTED));
        counted
            .map(|[tx_bytes, rx_bytes, retransmitted, marked]| PortCounters {
                tx_bytes,
                rx_bytes,
                retransmitted,
                marked,
            })
            .collect()
    }

    fn interfaces(&mut self) -> Vec<String> {
        let ports = self.devices.iter().flat_map(|device| &device.plan.ports);
        ports.map(|port| port.interface.clone()).collect()
    }

    fn set_pkeys(&mut self, pkeys: &[PKey]) -> Result<(), String> {
        // Looked at anew, for whoever opens a device that nobody had open begins with the default table. The ports' counters are of the devices that were
        // listed with them.
        let devices = software::port_surveys(&SoftwareOptions::default()).map_err(|error| error.to_string())?;
        for device in &devices {
            let name = &device.plan.info.name;
            if !device.is_open() {
                self.left.remove(name);
                continue;
            }
            // All ports of a device have the same table, which is set here.
            let ports = device.ports().map_err(|error| error.message)?;
            let Some(first) = ports.first() else { continue };
            let table = place_pkeys(&first.pkeys, pkeys, self.left.entry(name.clone()).or_default());
            if ports.iter().any(|port| port.pkeys != table) {
                software::set_pkeys(&SoftwareOptions::default(), name, &table).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// The NUMA node of a network interface's device, if the kernel says so; virtual interfaces have none.
fn numa_node(interface: &str) -> Option<u16> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/device/numa_node")).ok()?;
    text.trim().parse().ok()
}
