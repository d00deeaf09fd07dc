//! How fast the simulator is: scenarios of the literature and a fabric of ten thousand hosts, in switch forwards per second of processor time. Nothing here
//! asserts anything; the figures are printed.

use super::model::Model;
use super::time::Ps;
use super::topology::{Topology, Wire};
use super::validate::trial::{WIRE, flows, profile};
use super::workload::Mix;
use super::workload::flow_list::{Flow, FlowList};
use super::workload::sizes::Sizes;
use super::world::{Nobody, World};
use crate::random::Random;
use scalefabric_transport::congestion::Profile;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Speed {
    /// The scenario.
    pub name: String,
    /// Events.
    pub events: u64,
    /// Packets passed on by switches, data and ACKs.
    pub forwards: u64,
    /// Seconds of processor time.
    pub cpu_s: f64,
    /// What the reference simulator did on the same: thousand forwards a second of processor time; 0: not known.
    pub reference_kfps: f64,
}

impl Speed {
    /// Thousand forwards per second of processor time.
    pub fn kfps(&self) -> f64 {
        self.forwards as f64 / self.cpu_s.max(1e-9) / 1e3
    }
}

/// Processor time of this thread, in seconds; 0 where the kernel does not tell.
pub fn cpu_seconds() -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0.0, |ns| ns as f64 / 1e9)
}

/// The most memory that the process has used, in MiB; 0 where the kernel does not tell.
pub fn peak_memory_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// A scenario: its name, and what runs it.
pub type Case = (&'static str, fn() -> Result<Speed, String>);

/// All scenarios, the short ones first. `ten-thousand` takes minutes.
pub const CASES: &[Case] = &[
    ("perm128", || perm128("none")),
    ("perm128-dcqcn", || perm128("dcqcn-reference")),
    ("perm128-hpcc", || perm128("hpcc")),
    ("perm128-hpcc-pint", || perm128("hpcc-pint")),
    ("incast16-hpcc", || {
        let flows = flows(include_str!("../../reference/incast16.csv"), "incast16.csv", 17)?;
        measure("incast16 HPCC", Topology::star(17, WIRE), flows, "hpcc", Ps::NEVER, 200.0)
    }),
    ("fb-star32-hpcc", || {
        let flows = flows(include_str!("../../reference/fb_star32.csv"), "fb_star32.csv", 32)?;
        measure("FB_Hadoop, star of 32, HPCC", Topology::star(32, WIRE), flows, "hpcc", Ps::NEVER, 255.0)
    }),
    ("ws-star32-hpcc", || web_search("hpcc", 214.0)),
    ("ws-star32-dcqcn", || web_search("dcqcn-reference", 214.0)),
    ("ws-star32-timely", || web_search("timely", 175.0)),
    ("ws-leaf-spine64", || {
        let topology = Topology::leaf_spine(4, 16, 4, WIRE, Wire { bps: 400_000_000_000, ..WIRE });
        let sizes = Sizes::named("web-search").ok_or("no such sizes")?;
        let mut random = Random::new(1, 7);
        let flows = FlowList::open_loop(64, WIRE.bps, 0.5, &sizes, Ps::ZERO, Ps(10_000_000_000), &mut random);
        measure("WebSearch, leaf-spine of 64, HPCC", topology, flows, "hpcc", Ps::NEVER, 253.0)
    }),
    ("fb-fat320-hpcc", || {
        let topology = Topology::from_csv(include_str!("../../reference/fat320.csv"), "fat320.csv")?;
        let mut flows = flows(include_str!("../../reference/fb3_fat320.csv"), "fb3_fat320.csv", topology.hosts)?;
        flows.retain(|flow| flow.start < Ps(1_000_000_000));
        measure("FB_Hadoop, fat tree of 320, HPCC", topology, flows, "hpcc", Ps::NEVER, 204.0)
    }),
    ("ten-thousand", || {
        let topology = Topology::leaf_spine(250, 40, 20, WIRE, Wire { bps: 400_000_000_000, ..WIRE });
        let sizes = Sizes::named("web-search").ok_or("no such sizes")?;
        let mut random = Random::new(1, 7);
        let end = Ps(1_000_000_000);
        let flows = FlowList::open_loop(10_000, WIRE.bps, 0.5, &sizes, Ps::ZERO, end, &mut random);
        // A spine with 250 ports of 400G is a chassis: reserve and headroom of its ports alone take 38 MB.
        let mut model = Model::reference();
        model.switch.buffer = 128 << 20;
        let name = "WebSearch 50 %, 10,000 hosts, 1 ms, DCQCN";
        measure_with(model, name, topology, flows, "dcqcn-reference", end, 0.0)
    }),
];

fn perm128(control: &str) -> Result<Speed, String> {
    let topology = Topology::from_csv(include_str!("../../reference/ft128.csv"), "ft128.csv")?;
    let flows = flows(include_str!("../../reference/perm128.csv"), "perm128.csv", topology.hosts)?;
    measure(&format!("permutation, fat tree of 128, {control}"), topology, flows, control, Ps::NEVER, 230.0)
}

fn web_search(control: &str, reference: f64) -> Result<Speed, String> {
    let flows = flows(include_str!("../../reference/ws_star32.csv"), "ws_star32.csv", 32)?;
    measure(
        &format!("WebSearch, star of 32, {control}"),
        Topology::star(32, WIRE),
        flows,
        control,
        Ps::NEVER,
        reference,
    )
}

fn measure(
    name: &str,
    topology: Topology,
    flows: Vec<Flow>,
    control: &str,
    until: Ps,
    reference_kfps: f64,
) -> Result<Speed, String> {
    measure_with(Model::reference(), name, topology, flows, control, until, reference_kfps)
}

fn measure_with(
    model: Model,
    name: &str,
    topology: Topology,
    flows: Vec<Flow>,
    control: &str,
    until: Ps,
    reference_kfps: f64,
) -> Result<Speed, String> {
    let profile: Profile = profile(control, &[])?;
    let before = cpu_seconds();
    let mut world = World::new(topology, model, profile, 1)?;
    let mut mix = Mix::new(vec![Box::new(FlowList::new(flows, 3))]);
    world.run(&mut mix, until, &mut Nobody);
    let counters = world.counters();
    Ok(Speed {
        name: name.to_owned(),
        events: counters.events,
        forwards: counters.forwards,
        cpu_s: cpu_seconds() - before,
        reference_kfps,
    })
}
