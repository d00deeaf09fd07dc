//! `sfab demo --rails 2`: two devices of two ports each in this process, many connections, one port hot. The balancing rule decides which connections leave
//! it, the connections move while their data flows, and a checker looks at every message. In the end a port goes down and returns.
//!
//! The ports stand on the loopback. A software port has no line rate, so each is taken to carry half of what the machine moves without a pace.

mod ledger;
mod load;
mod meter;
mod port_failure;
mod report;

use crate::demo::Options;
use crate::failure::{During, Failure};
use crate::software::{self, RAIL_DEVICES};
use clap::Args;
use load::{DEPTH, Load, MESSAGE_BYTES, UNPACED};
use meter::{Meter, RAILS};
use report::{Moved, Outcome, RailReport};
use scalefabric_fabric::Path;
use scalefabric_fabric::balance::{self, History, Plan, Policy, Snapshot, Wishes};
use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{Pool, PoolConfig};
use scalefabric_fabric::session::Change;
use scalefabric_verbs::{Context, Gid, Provider};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two rounds of the rule.
const ROUND: Duration = Duration::from_millis(100);

/// How long the machine is measured.
const CALIBRATION: Duration = Duration::from_millis(600);

/// After so many rounds a port should have become hot.
const PATIENT_ROUNDS: usize = 60;

/// Rounds after the moves: enough for the rule to see what they did, and to move again if that was not enough.
const ROUNDS_AFTER: usize = 15;

/// Those of them that the utilisation afterwards is the mean of.
const ROUNDS_SHOWN: usize = 8;

/// What the hot port is asked to carry at first, share of its capacity.
const HOT: f64 = 0.9;

/// Of so many connections one begins on the cool port.
const ONE_COOL_OF: usize = 8;

/// How long a port must have been up again before its connections come home.
const RETURN_AFTER: Duration = Duration::from_millis(300);

/// How long anything may take that should take no time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options of this kind of demo.
#[derive(Args, Clone, Debug)]
pub struct RailOptions {
    /// Instead: connections between two devices of two ports each leave a hot port while their data flows
    #[arg(long, value_name = "2", value_parser = clap::value_parser!(u8).range(2..=2),
        conflicts_with_all = ["listen", "connect", "netns", "device", "size", "iterations", "transport", "gid_index"])]
    pub rails: Option<u8>,
    /// With --rails: connections, each a QP on either side
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=512))]
    pub connections: u16,
    /// With --rails: what a port is taken to carry, Mb/s (default: half of what this machine moves)
    #[arg(long, value_name = "MBPS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub port_rate: Option<u64>,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.backend != crate::backend::Backend::Software {
        return Err(Failure::usage("--rails makes its own devices of the software NIC: leave out --backend"));
    }
    let provider = software::rails(&software::SoftwareOptions {
        faults: options.fault.clone(),
        seed: options.seed,
        capture: options.capture.clone(),
        ..software::SoftwareOptions::default()
    })?;
    let stage = Stage::new(&provider, options.rails.connections.into())?;
    let report = stage.play(options)?;
    report.print(options.json);
    if report.is_good() { Ok(()) } else { Err(Failure::told(Failure::failed("the verdict is bad"))) }
}

/// Two fabrics and their connections.
struct Stage {
    near: Fabric,
    far: Fabric,
    ends: Vec<(Connection, Connection)>,
    /// GIDs of the near device's ports, and of the far one's.
    gids: [[Gid; RAILS]; 2],
}

impl Stage {
    fn new(provider: &Arc<dyn Provider>, count: usize) -> Result<Self, Failure> {
        let config = Config {
            depth: DEPTH as u32,
            receives: 4 * DEPTH as u32,
            receive_bytes: MESSAGE_BYTES as u32,
            return_after: RETURN_AFTER,
            ..Config::default()
        };
        let build = |name: &str| {
            Fabric::builder(provider.clone())
                .device(name)
                .node(name)
                .config(config.clone())
                .exchange(Arc::new(Tcp::new()))
        };
        let far = build(RAIL_DEVICES[1]).listen_at("tcp://127.0.0.1:0").build().during(|| "the far side")?;
        let near = build(RAIL_DEVICES[0]).build().during(|| "the near side")?;
        let gids = [gids_of(&**near.context())?, gids_of(&**far.context())?];
        let listener = far.listen("rails").during(|| "offer the service")?;
        let address = far.addresses().into_iter().next().unwrap_or_default();
        let target = Target::at(address, "rails");
        let mut stage = Self { near, far, ends: Vec::new(), gids };
        for number in 0..count {
            let near = stage.near.connect(&target).during(|| format!("connection {}", number + 1))?;
            let far = listener.accept(Some(PATIENCE)).during(|| "accept")?;
            let far = far.ok_or_else(|| Failure::failed("a connection is up at one side only"))?;
            stage.ends.push((near, far));
        }
        // Connections come up on whichever ports reach the peer; the demo begins with a clear picture.
        let home = |number: usize| if number % ONE_COOL_OF == ONE_COOL_OF - 1 { 2 } else { 1 };
        let orders: Vec<_> = (0..count).map(|number| (number, home(number))).collect();
        let placed = stage.carry_out(&orders, FencingToken(1), "where the demo begins")?;
        match placed.refused.first() {
            Some(reason) => Err(Failure::failed(format!("a connection could not be put where it begins: {reason}"))),
            None => Ok(stage),
        }
    }

    /// Begins all the moves, then waits for all of them.
    fn carry_out(&self, orders: &[(usize, usize)], token: FencingToken, reason: &str) -> Result<Moved, Failure> {
        let begun = Instant::now();
        let mut moving = Vec::new();
        for &(number, rail) in orders {
            let path = |side: usize| Path {
                device: RAIL_DEVICES[side].to_owned(),
                port_num: rail as u8,
                sgid: self.gids[side][rail - 1],
                dgid: self.gids[1 - side][rail - 1],
                flow_label: 0,
                dscp: 0,
            };
            let change =
                Change { path: path(0), peer_path: Some(path(1)), strategy: None, token, reason: reason.to_owned() };
            moving.push(self.ends[number].0.begin_move(change).during(|| "order a move")?);
        }
        let mut moved = Moved { ordered: orders.len(), ..Moved::default() };
        for moving in moving {
            match moving.wait().during(|| "wait for a move")? {
                OrderResult::Done { pause_us, .. } => moved.pauses_us.push(pause_us),
                // No answer to a move.
                OrderResult::Rotated { .. } => {}
                OrderResult::RolledBack { reason } => moved.refused.push(reason),
                OrderResult::Fenced { highest } => moved.refused.push(format!("fenced by token {}", highest.0)),
            }
        }
        moved.elapsed = begun.elapsed();
        moved.pauses_us.sort_unstable();
        Ok(moved)
    }

    fn on_rails(&self) -> [usize; RAILS] {
        let mut count = [0; RAILS];
        for record in self.ends.iter().filter_map(|(near, _)| near.record()) {
            if let Some(slot) = count.get_mut(usize::from(record.path.port_num).wrapping_sub(1)) {
                *slot += 1;
            }
        }
        count
    }

    /// The two acts: hot, and after the moves.
    fn play(&self, options: &Options) -> Result<RailReport, Failure> {
        let pool_bytes = self.ends.len() * MESSAGE_BYTES * DEPTH as usize * 2;
        let pool_config = PoolConfig { initial_bytes: pool_bytes, ..PoolConfig::default() };
        let pool = Pool::new(&[self.near.protection_domain().clone()], pool_config).during(|| "memory")?;
        let load = Load::start(&self.ends, &pool, options.seed)?;
        let contexts = [self.near.context().clone(), self.far.context().clone()];
        let mut meter = Meter::new(contexts, &self.ends, &load)?;
        let (machine_bps, capacity_bps) = calibrate(&load, options.rails.port_rate)?;
        self.set_pace(&load, capacity_bps);
        std::thread::sleep(ROUND);
        meter.sample(capacity_bps)?;
        load.take_longest_gap();

        let policy = Policy { return_ms: 1000, ..Policy::default() };
        let mut history = History::default();
        let connections_before = self.on_rails();
        let mut report = RailReport::new(machine_bps, capacity_bps, MESSAGE_BYTES);
        let mut rounds_left = PATIENT_ROUNDS;
        let mut outcome = Outcome::NeverHot;
        let mut utilisation = Vec::new();
        while rounds_left > 0 {
            rounds_left -= 1;
            std::thread::sleep(ROUND);
            load.check()?;
            let sample = meter.sample(capacity_bps)?;
            utilisation.push(sample.utilisation_permille());
            let snapshot = Snapshot { now_ms: sample.now_ms, ports: &sample.ports, connections: &sample.connections };
            let mut plan = balance::plan(&snapshot, &policy, &Wishes::default(), history);
            report.doubts += plan.doubts.len();
            if !plan.moves.is_empty() {
                if outcome == Outcome::NeverHot {
                    report.gap_before = load.take_longest_gap();
                    report.before = report::side(&utilisation, connections_before);
                    rounds_left = ROUNDS_AFTER;
                    outcome = Outcome::StillHot;
                }
                let token = FencingToken(2 + report.rounds.len() as u64);
                report.rounds.push(self.follow(&plan, token)?);
                // What is measured while they move is neither before nor after.
                utilisation.clear();
            }
            history = std::mem::take(&mut plan.history);
        }
        report.gap_after = load.take_longest_gap();
        let shown = utilisation.len().saturating_sub(ROUNDS_SHOWN);
        report.after = report::side(&utilisation[shown..], self.on_rails());
        report.outcome = match outcome {
            Outcome::StillHot if report.after.iter().all(|rail| rail.permille <= policy.hot_permille.into()) => {
                Outcome::Relieved
            }
            outcome => outcome,
        };
        report.set_statistics(self.ends.iter().map(|(near, _)| near.statistics()));
        report.failure = self.fail_port(&load)?;
        report.findings = load.end()?;
        Ok(report)
    }

    /// Connections want more or less, in four steps, so that few moves can do much. The first rail is asked for [`HOT`] of its capacity.
    fn set_pace(&self, load: &Load, capacity_bps: u64) {
        let weight = |number: usize| (number % 4 + 1) as u64;
        let on_first = |number: &usize| self.ends[*number].0.record().is_some_and(|record| record.path.port_num == 1);
        let weights: u64 = (0..self.ends.len()).filter(on_first).map(weight).sum();
        for (number, gauge) in load.gauges().iter().enumerate() {
            let rate = capacity_bps as f64 * HOT * weight(number) as f64 / weights.max(1) as f64;
            gauge.rate_bps.store(rate as u64, Ordering::Relaxed);
        }
    }

    /// Carries a plan out.
    fn follow(&self, plan: &Plan, token: FencingToken) -> Result<Moved, Failure> {
        let orders: Vec<_> = plan.moves.iter().map(|step| (step.connection.0 as usize, step.to.0 as usize)).collect();
        let mut moved = self.carry_out(&orders, token, "its port is hot")?;
        moved.at_least = plan.effort.at_least;
        Ok(moved)
    }
}

/// What the machine moves without a pace, and what each port is taken to carry, bits per second.
fn calibrate(load: &Load, port_rate: Option<u64>) -> Result<(Option<u64>, u64), Failure> {
    if let Some(mbps) = port_rate {
        return Ok((None, mbps * 1_000_000));
    }
    let checked = || load.gauges().iter().map(|gauge| gauge.checked.load(Ordering::Relaxed)).sum::<u64>();
    let set = |rate: u64| load.gauges().iter().for_each(|gauge| gauge.rate_bps.store(rate, Ordering::Relaxed));
    set(UNPACED);
    std::thread::sleep(CALIBRATION / 4);
    let (begun, before) = (Instant::now(), checked());
    std::thread::sleep(CALIBRATION);
    let bits = (checked() - before) * MESSAGE_BYTES as u64 * 8;
    set(0);
    load.check()?;
    let machine_bps = (bits as f64 / begun.elapsed().as_secs_f64()) as u64;
    if machine_bps < 1_000_000 {
        return Err(Failure::failed(
            "this machine moves less than 1 Mb/s now: give --port-rate, or try when it is idle",
        ));
    }
    std::thread::sleep(CALIBRATION / 4);
    Ok((Some(machine_bps), machine_bps / 2))
}

/// The GID of each port that its IPv4 address gives.
fn gids_of(context: &dyn Context) -> Result<[Gid; RAILS], Failure> {
    let table = context.query_gid_table().during(|| "read the GID table")?;
    let mut gids = [Gid::ZERO; RAILS];
    for (index, slot) in gids.iter_mut().enumerate() {
        let entry = table.iter().find(|entry| usize::from(entry.port_num) == index + 1 && entry.gid.is_ipv4());
        *slot = entry.ok_or_else(|| Failure::failed(format!("port {} has no IPv4 address", index + 1)))?.gid;
    }
    Ok(gids)
}
