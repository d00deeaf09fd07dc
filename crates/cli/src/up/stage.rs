//! The play of `sfab up`: control, agents and workloads are started one after the other and waited for; traffic runs; a port is made hot; control is watched; the end.

use super::crew::{Crew, Heard, Start};
use super::event::{END, HEAT, Said, Tallies, Tally};
use super::plan::{HOT, Plan, Traffic};
use super::screen::{Ending, Heat, Screen};
use super::usage::Usage;
use super::watch::View;
use super::{Options, Store, etcd, http, netns, relay};
use crate::failure::{During, Failure};
use scalefabric_sim::switch::body::Forwarder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long everything may take to come up.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the traffic may take to end.
const LAST_OPERATIONS: Duration = Duration::from_secs(90);

/// How often control is looked at: on a terminal people want to see it move.
const LOOK: Duration = Duration::from_millis(500);

/// How long the traffic runs before a port is made hot.
const STEADY: Duration = Duration::from_secs(4);

/// How often agents tell loads, ms: so long that a large WRITE more or less does not matter.
const LOAD_INTERVAL_MS: u64 = 250;

/// A servant that has ended so often within a while cannot run here: it is not started once more.
const MOST_ENDS: (usize, Duration) = (5, Duration::from_secs(60));

/// Control's name among the processes.
const CONTROL: &str = "control";

/// How long control may be away before that is the end.
const AWAY: Duration = Duration::from_secs(60);

/// Looks in a row at which the hot port must be relieved.
const COOL_LOOKS: u32 = 2;

/// Everything is up.
pub struct Stage {
    plan: Plan,
    crew: Crew,
    hear: Receiver<Heard>,
    control: SocketAddr,
    /// Nodes' places by their workloads.
    workloads: BTreeMap<usize, usize>,
    /// Control, agents and relays, and when those before them ended: without them traffic flows, and they are started again.
    servants: BTreeMap<usize, Vec<Instant>>,
    /// How often control was started again.
    controls: u64,
    said: BTreeMap<usize, Told>,
    _switches: Option<Forwarder>,
}

/// What a workload has said.
#[derive(Default)]
struct Told {
    serving: bool,
    ready: bool,
    done: bool,
    tallies: Tallies,
    moves: u64,
    rebuilds: u64,
}

/// When control answered last, and whether people know that it does not.
struct Contact {
    seen: Instant,
    is_away: bool,
}

impl Contact {
    /// Control was looked at: people hear when it falls silent and when it is back. An error if it is silent for too long.
    fn take(&mut self, looked: &Result<(), Failure>, screen: &mut Screen) -> Result<(), Failure> {
        match looked {
            Ok(()) => {
                self.seen = Instant::now();
                if std::mem::take(&mut self.is_away) {
                    screen.event("Control answers again.", &json!({ "event": "control-back" }));
                }
            }
            Err(failure) if self.seen.elapsed() > AWAY => {
                return Err(Failure::failed(format!(
                    "control has not answered for {AWAY:?} ({failure}): is its process stopped? Operations did not need it"
                )));
            }
            Err(failure) if !std::mem::replace(&mut self.is_away, true) => {
                let event = json!({ "event": "control-away", "why": failure.to_string() });
                screen
                    .event("Control does not answer. Traffic goes on; what it knew last stays on the screen.", &event);
            }
            Err(_) => {}
        }
        Ok(())
    }
}

/// Why the play is over.
enum Over {
    Time,
    Interrupted,
}

impl Stage {
    /// Starts everything.
    pub fn set(
        options: &Options,
        plan: Plan,
        mut crew: Crew,
        hear: Receiver<Heard>,
        screen: &mut Screen,
    ) -> Result<Self, Failure> {
        let switches = if options.netns { Some(netns::build(&plan, &mut crew)?) } else { None };
        let (servant, agents, control) = start_control(options, &plan, &mut crew, &hear)?;
        let mut servants = BTreeMap::from([(servant, Vec::new())]);
        let socket = plan.folder.join("control.sock");
        if options.netns {
            relay::from_socket(&socket, agents)?;
        }
        let mut workloads = BTreeMap::new();
        for place in 0..plan.nodes {
            let node = plan.node(place);
            let nic = plan.nic_file(place);
            std::fs::write(&nic, plan.nic_text(place)).during(|| format!("write {}", nic.display()))?;
            let name = plan.namespace(place);
            let namespace = options.netns.then_some(name.as_str());
            let mut start = |who: String, arguments: Vec<OsString>| {
                let (namespace, nic) = (namespace.map(str::to_owned), Some(nic.clone()));
                crew.start(Start { who, namespace, nic, program: None, arguments })
            };
            if options.netns {
                let arguments = words(&["up-part", "relay", &agents.to_string()], [&*socket]);
                servants.insert(start(format!("the relay of {node}"), arguments)?, Vec::new());
            }
            let mut arguments = words(&["agent", "--json", "--node", &node, "--control"], []);
            arguments.extend(words(&[&format!("http://{agents}"), "--socket"], [&*plan.socket(place)]));
            arguments.extend(words(&["--port-rate", &plan.port_rate_mbps.to_string()], []));
            servants.insert(start(format!("the agent of {node}"), arguments)?, Vec::new());
            let mut arguments = words(&["up-part", "work"], [&*plan.file()]);
            arguments.push(place.to_string().into());
            let workload = start(format!("the workload of {node}"), arguments)?;
            workloads.insert(workload, place);
        }
        for one in crew.running() {
            screen.event("", &json!({ "event": "process", "who": one.who(), "pid": one.pid() }));
        }
        let said = workloads.keys().map(|place| (*place, Told::default())).collect();
        let mut stage = Self { plan, crew, hear, control, workloads, servants, controls: 0, said, _switches: switches };
        stage.come_up(screen)?;
        stage.tell_addresses(options, screen, agents);
        Ok(stage)
    }

    /// Waits until all connections are up and control knows it.
    fn come_up(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut view = View::default();
        loop {
            let all_ready = self.said.values().all(|told| told.ready);
            if all_ready {
                view.look(&self.plan, self.control)?;
                if view.nodes.len() == self.plan.nodes && view.connections == self.plan.connections() {
                    return Ok(());
                }
            }
            if Instant::now() >= deadline {
                let waits = |told: &&Told| !told.ready;
                let missing = self.said.values().filter(waits).count();
                return Err(Failure::failed(format!(
                    "after {PATIENCE:?} {missing} of {} workloads are not ready, and control sees {} nodes and {} of {} connections",
                    self.plan.nodes,
                    view.nodes.len(),
                    view.connections,
                    self.plan.connections(),
                )));
            }
            if self.hear(Duration::from_millis(100), screen)?.is_some() {
                return Err(Failure::interrupted());
            }
        }
    }

    fn tell_addresses(&self, options: &Options, screen: &mut Screen, agents: SocketAddr) {
        let http = format!("http://{}", self.control);
        let has_dashboard = http::get(self.control, "/dashboard/").is_ok_and(|(status, _)| status == 200);
        let dashboard = has_dashboard.then(|| format!("{http}/dashboard/"));
        let (plan, connections) = (&self.plan, self.plan.connections());
        let namespaces: Vec<String> =
            if options.netns { (0..plan.nodes).map(|place| plan.namespace(place)).collect() } else { Vec::new() };
        let mut sentence = String::new();
        if let Some(dashboard) = &dashboard {
            sentence += &format!("Dashboard  {dashboard}\n");
        }
        sentence += &format!(
            "Control    {http}/v1/status, agents at {agents}, state in {}",
            match options.store {
                Store::Embedded => "a file",
                Store::Etcd => "etcd",
            }
        );
        let event = json!({
            "event": "up", "http": http, "dashboard": dashboard, "agents": agents.to_string(), "nodes": plan.nodes, "ports": plan.ports,
            "connections": connections, "port_rate_mbps": plan.port_rate_mbps, "folder": plan.folder, "namespaces": namespaces,
        });
        screen.address(&sentence, &event);
        let ground =
            if options.netns { "in namespaces of their own, joined by software switches" } else { "on the loopback" };
        let sentence = format!(
            "{} nodes of {} ports {ground}, each an agent and a workload; {connections} connections. A port is taken to carry {} Mb/s.",
            plan.nodes, plan.ports, plan.port_rate_mbps
        );
        screen.event(&sentence, &json!({ "event": "traffic" }));
    }

    /// Runs until it is told to end or its time is over, and says how it was.
    pub fn play(&mut self, options: &Options, screen: &mut Screen) -> Result<(), Failure> {
        let begun = Instant::now();
        let until = options.seconds.map(Duration::from_secs);
        let steady = until.map_or(STEADY, |until| STEADY.min(until / 4));
        let mut usage = Usage::new(&self.pids());
        let (mut contact, mut controls) = (Contact { seen: Instant::now(), is_away: false }, 0);
        let mut view = View::default();
        let mut heated: Option<Instant> = None;
        let mut heat = Heat::None;
        let mut cool = 0;
        let over = loop {
            let after = begun.elapsed();
            if until.is_some_and(|until| after >= until) {
                break Over::Time;
            }
            if self.plan.can_heat() && heated.is_none() && after >= steady {
                heated = Some(Instant::now());
                heat = Heat::Hot;
                self.make_hot(screen);
            }
            // While it is away traffic flows, and what was seen last stays on the screen.
            if self.controls > controls {
                controls = self.controls;
                view.begin_anew();
            }
            let looked = view.look(&self.plan, self.control);
            contact.take(&looked, screen)?;
            if let (Some(since), Heat::Hot) = (heated, heat) {
                cool = if looked.is_ok() && view.is_relieved() { cool + 1 } else { 0 };
                if cool == COOL_LOOKS {
                    heat = Heat::Relieved(since.elapsed());
                    let event = json!({ "event": "relieved", "after_s": since.elapsed().as_secs_f64() });
                    screen.event("Control has relieved the hot port.", &event);
                }
            }
            screen.show(&self.plan, &view, heat, usage.lately(&self.pids()), after);
            if options.until_relieved && matches!(heat, Heat::Relieved(_)) {
                break Over::Time;
            }
            if self.hear(LOOK, screen)?.is_some() {
                break Over::Interrupted;
            }
        };
        let cores = usage.mean(&self.pids());
        // Who ends it before its traffic had time to begin has not seen that some of it does not flow.
        let had_time = begun.elapsed() >= steady;
        self.end_traffic(screen)?;
        // A port that was hot for a moment only, when the end came, is nobody's fault.
        let unrelieved = heat == Heat::Hot && matches!(over, Over::Time);
        self.conclude(screen, heat, cores, unrelieved, had_time)
    }

    fn conclude(
        &self,
        screen: &mut Screen,
        heat: Heat,
        cores: f64,
        unrelieved: bool,
        had_time: bool,
    ) -> Result<(), Failure> {
        let mut tallies = Tallies::new();
        for told in self.said.values() {
            for (traffic, tally) in &told.tallies {
                *tallies.entry(*traffic).or_default() += *tally;
            }
        }
        let idle: Vec<&str> = Traffic::ALL
            .into_iter()
            .filter(|traffic| tallies.get(traffic).is_none_or(|tally| tally.operations == 0))
            .map(Traffic::name)
            .collect();
        let wrong = |tally: &Tally| tally.failed + tally.damaged > 0;
        let good = !unrelieved && (idle.is_empty() || !had_time) && !tallies.values().any(wrong);
        let sum = |of: fn(&Told) -> u64| self.said.values().map(of).sum();
        screen.end(&Ending {
            good,
            tallies: &tallies,
            heat,
            rebuilds: sum(|told| told.rebuilds),
            moves: sum(|told| told.moves),
            cores,
        });
        if good { Ok(()) } else { Err(Failure::told(Failure::failed("the verdict is bad"))) }
    }

    fn make_hot(&mut self, screen: &mut Screen) {
        let workload = self.workloads.iter().find(|(_, place)| **place == HOT.0).map(|(workload, _)| *workload);
        if let Some(workload) = workload {
            self.crew.tell(workload, HEAT);
        }
        let node = self.plan.node(HOT.0);
        let sentence = format!("{node} port {} is made hot.", HOT.1);
        screen.event(&sentence, &json!({ "event": "hot", "node": node, "port": HOT.1 }));
    }

    /// Ends the traffic of all, and hears what they found. A second Ctrl-C does not wait for it.
    fn end_traffic(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        let workloads: Vec<usize> = self.workloads.keys().copied().collect();
        workloads.iter().for_each(|workload| self.crew.tell(*workload, END));
        let deadline = Instant::now() + LAST_OPERATIONS;
        while !self.said.values().all(|told| told.done) {
            if Instant::now() >= deadline {
                return Err(Failure::failed(format!("operations have not ended within {LAST_OPERATIONS:?}")));
            }
            if self.hear(Duration::from_millis(100), screen)?.is_some() {
                return Err(Failure::interrupted());
            }
        }
        Ok(())
    }

    fn pids(&self) -> Vec<u32> {
        self.crew.running().map(super::crew::Running::pid).collect()
    }

    /// A process has ended. One that only serves is started again, and people hear of it; any other should not have.
    fn take_end(&mut self, place: usize, screen: &mut Screen) -> Result<(), Failure> {
        let obituary = self.crew.obituary(place);
        let Some(mut ends) = self.servants.remove(&place) else { return Err(obituary) };
        let (most, within) = MOST_ENDS;
        ends.retain(|end| end.elapsed() < within);
        ends.push(Instant::now());
        if ends.len() > most {
            let count = ends.len();
            return Err(Failure::failed(format!(
                "{obituary}\nIt has ended {count} times within {within:?}, and is not started once more."
            )));
        }
        let who = self.crew.who(place).to_owned();
        self.controls += u64::from(who == CONTROL);
        let again = self.crew.start_again(place)?;
        self.servants.insert(again, ends);
        let pid = self.crew.pid(again);
        let sentence = format!("{obituary}\nTraffic goes on without it. It is started again.");
        screen.address(&sentence, &json!({ "event": "restarted", "who": who, "why": obituary.to_string() }));
        screen.event("", &json!({ "event": "process", "who": who, "pid": pid }));
        Ok(())
    }

    /// Hears what is said until something is, or `patience` has passed. An error if a process has ended that should not; `Some` if the end is wanted.
    fn hear(&mut self, patience: Duration, screen: &mut Screen) -> Result<Option<()>, Failure> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.hear.recv_timeout(left) {
                Ok(Heard::Interrupt) => return Ok(Some(())),
                Ok(Heard::End(place)) if self.crew.is_missed(place) => self.take_end(place, screen)?,
                Ok(Heard::End(_)) => {}
                Ok(Heard::Line(place, line)) if self.workloads.contains_key(&place) => {
                    self.take(place, &line, screen)?
                }
                Ok(Heard::Line(..)) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::failed("every process is gone")),
            }
        }
    }

    fn take(&mut self, place: usize, line: &str, screen: &mut Screen) -> Result<(), Failure> {
        let who = self.crew.who(place).to_owned();
        let told = self.said.entry(place).or_default();
        match serde_json::from_str(line) {
            Ok(Said::Serving) => told.serving = true,
            Ok(Said::Ready) => told.ready = true,
            Ok(Said::Tally { tallies }) => told.tallies = tallies,
            Ok(Said::Wrong { what }) => {
                screen.address(&format!("{who}: {what}"), &json!({ "event": "wrong", "who": who, "what": what }));
            }
            Ok(Said::Done { tallies, moves, rebuilds }) => {
                (told.tallies, told.moves, told.rebuilds, told.done) = (tallies, moves, rebuilds, true);
            }
            Ok(Said::Failed { message }) => return Err(Failure::failed(format!("{who}: {message}"))),
            // Something else in the process has printed a line; it is among its last ones.
            Err(_) => {}
        }
        Ok(())
    }
}

/// Words, and paths behind them.
fn words<const N: usize>(words: &[&str], paths: [&Path; N]) -> Vec<OsString> {
    words.iter().map(OsString::from).chain(paths.map(OsString::from)).collect()
}

/// Starts control, and its store if it is a process; its place, where agents and where people find it. Should it be started again, it is at the same addresses.
fn start_control(
    options: &Options,
    plan: &Plan,
    crew: &mut Crew,
    hear: &Receiver<Heard>,
) -> Result<(usize, SocketAddr, SocketAddr), Failure> {
    let store = match options.store {
        Store::Embedded => format!("embedded = {}", json!(plan.folder.join("control.store"))),
        Store::Etcd => format!("etcd = [{}]", json!(etcd::start(crew, &plan.folder)?)),
    };
    let http = options.http.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let file = plan.folder.join("control.toml");
    let write = |agents: SocketAddr, http: SocketAddr| {
        let text = format!(
            "name = \"up\"\nlisten = \"{agents}\"\nhttp = \"{http}\"\nload_interval_ms = {LOAD_INTERVAL_MS}\n\n[store]\n{store}\n"
        );
        std::fs::write(&file, text).during(|| format!("write {}", file.display()))
    };
    write(SocketAddr::from(([127, 0, 0, 1], 0)), http)?;
    let arguments = words(&["control", "--json", "--config"], [&*file]);
    let start = Start { who: CONTROL.into(), namespace: None, nic: None, program: None, arguments };
    let control = crew.start(start)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match hear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Heard::Line(place, line)) if place == control => {
                let said: Value = serde_json::from_str(&line).unwrap_or_default();
                if said["event"] == "listening" {
                    let address = |key: &str| said[key].as_str().and_then(|text| text.parse().ok());
                    let (agents, http) = address("agents")
                        .zip(address("http"))
                        .ok_or_else(|| Failure::failed(format!("control says `{line}`")))?;
                    write(agents, http)?;
                    return Ok((control, agents, http));
                }
            }
            Ok(Heard::End(place)) if crew.is_missed(place) => return Err(crew.obituary(place)),
            Ok(Heard::Line(..) | Heard::End(_)) => {}
            Ok(Heard::Interrupt) => return Err(Failure::interrupted()),
            Err(_) => return Err(Failure::failed(format!("control does not listen after {PATIENCE:?}"))),
        }
    }
}
