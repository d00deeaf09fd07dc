//! Scenarios: what a file asks for, checked before anything runs, and the runs that follow from it. Every error names the file and the field, and the line
//! where it stands; a fabric that cannot work is refused here.

pub mod file;
pub mod quantity;
mod traffic;

use super::engine::MOST_HOSTS;
use super::model::{EngineModel, Marking, Model, Notification, Recovery};
use super::time::{Ps, Rate};
use super::topology::{Topology, Wire};
use super::workload::Mix;
use super::world::{Fault, World};
use file::{BalanceName, FaultKind, File, HostKind, ModelName, RecoveryName, TopologyKind};
use scalefabric_transport::congestion::Profile;
use scalefabric_verbs::Mtu;
use std::path::{Path, PathBuf};

/// Time that a scenario without `until` may take.
const LONGEST: Ps = Ps(10_000_000_000_000);

/// Something that a file asks for and that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name of the file, without its ending.
    pub name: String,
    /// What is asked.
    pub question: Option<String>,
    /// The values of the sweep that this run has, as "field = value".
    pub point: Vec<(String, String)>,
    /// Seed.
    pub seed: u64,
    /// Ends then.
    pub until: Ps,
    /// Sampling interval.
    pub sample: Ps,
    /// The fabric.
    pub topology: Topology,
    /// What is assumed.
    pub model: Model,
    /// Congestion control.
    pub profile: Profile,
    /// Its name.
    pub algorithm: String,
    /// What goes wrong.
    pub faults: Vec<(Ps, Fault)>,
    file: File,
    folder: PathBuf,
    path: String,
    text: String,
}

/// Where a field stands: the line of `table.field`, 0 if it is not in the text.
fn line_of(text: &str, place: &str) -> usize {
    let (table, field) = place.rsplit_once('.').unwrap_or(("", place));
    let (table, wanted) = match table.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().unwrap_or(0)),
        None => (table, 0),
    };
    let (mut inside, mut seen, mut head) = (table.is_empty(), 0, 0);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            let name = line.trim_matches(|c| "[] ".contains(c)).split(']').next().unwrap_or("");
            inside = name == table && (!line.starts_with("[[") || seen == wanted);
            seen += usize::from(name == table);
            if inside {
                head = number + 1;
            }
        } else if inside && line.split('=').next().is_some_and(|name| name.trim().trim_matches('"') == field) {
            return number + 1;
        }
    }
    head
}

/// All runs that a file asks for: one, or one for each point of its sweep. `changes` are "table.field=value" of the command line.
pub fn read(path: &Path, changes: &[String]) -> Result<Vec<Scenario>, Refusal> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Refusal(format!("{shown} cannot be read: {error}")))?;
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    parse(&text, &shown, &name, &folder, changes)
}

/// As [`read`], from text.
pub fn parse(text: &str, path: &str, name: &str, folder: &Path, changes: &[String]) -> Result<Vec<Scenario>, Refusal> {
    let refuse = |message: String| Refusal(format!("{path}: {}", message.trim_end()));
    // First as it stands, so that errors have lines.
    let file: File = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let mut table: toml::Table = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
    table.remove("sweep");
    for change in changes {
        let (key, value) =
            change.split_once('=').ok_or_else(|| Refusal(format!("--set {change:?}: expected table.field=value")))?;
        let value: toml::Value = toml::from_str::<toml::Table>(&format!("v = {value}"))
            .ok()
            .and_then(|mut table| table.remove("v"))
            .unwrap_or_else(|| toml::Value::String(value.to_owned()));
        set(&mut table, key.trim(), value).map_err(|error| Refusal(format!("--set {change:?}: {error}")))?;
    }
    let mut points: Vec<Vec<(String, toml::Value)>> = vec![Vec::new()];
    // A change of the command line takes the place of what the sweep would try.
    let changed: Vec<&str> = changes.iter().filter_map(|change| Some(change.split_once('=')?.0.trim())).collect();
    for (key, values) in file.sweep.iter().filter(|(key, _)| !changed.contains(&key.as_str())) {
        if values.is_empty() {
            return Err(refuse(format!("sweep.\"{key}\" has no values")));
        }
        points = points
            .iter()
            .flat_map(|point| {
                values.iter().map(|value| {
                    let mut longer = point.clone();
                    longer.push((key.clone(), value.clone()));
                    longer
                })
            })
            .collect();
    }
    if points.len() > 10_000 {
        return Err(refuse(format!("sweep: {} combinations; at most 10000 run at once", points.len())));
    }
    let mut scenarios = Vec::with_capacity(points.len());
    for point in points {
        let mut table = table.clone();
        let shown: Vec<(String, String)> = point
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect();
        for (key, value) in point {
            set(&mut table, &key, value).map_err(|error| refuse(format!("sweep.\"{key}\": {error}")))?;
        }
        let file: File = if shown.is_empty() && changes.is_empty() {
            file.clone()
        } else {
            table.try_into().map_err(|error: toml::de::Error| refuse(format!("with {shown:?}: {}", error.message())))?
        };
        let scenario = Scenario::build(file, text, path, name, folder, shown)?;
        scenarios.push(scenario);
    }
    Ok(scenarios)
}

/// Sets "table.field", or "workload.0.field" in a list of tables.
fn set(table: &mut toml::Table, key: &str, value: toml::Value) -> Result<(), String> {
    let (first, rest) = match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
            return Ok(());
        }
        Some(parts) => parts,
    };
    let inner = table.entry(first).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    match inner {
        toml::Value::Table(inner) => set(inner, rest, value),
        toml::Value::Array(list) => {
            let (index, rest) = rest.split_once('.').unwrap_or((rest, ""));
            let item = index.parse::<usize>().ok().and_then(|index| list.get_mut(index));
            match item {
                Some(toml::Value::Table(inner)) => set(inner, rest, value),
                _ => Err(format!("{first:?} has no entry {index:?}; write {first}.0.field for the first")),
            }
        }
        _ => Err(format!("{first:?} is no table")),
    }
}

impl Scenario {
    fn build(
        file: File,
        text: &str,
        path: &str,
        name: &str,
        folder: &Path,
        point: Vec<(String, String)>,
    ) -> Result<Self, Refusal> {
        let mut scenario = Self {
            name: name.to_owned(),
            question: file.question.clone(),
            point,
            seed: file.seed.unwrap_or(1),
            until: file.until.map_or(LONGEST, |time| time.0),
            sample: file.output.sample.map_or(Ps::from_ns(10_000), |time| time.0),
            topology: Topology::default(),
            model: Model::roce(),
            profile: Profile::None,
            algorithm: String::new(),
            faults: Vec::new(),
            file,
            folder: folder.to_owned(),
            path: path.to_owned(),
            text: text.to_owned(),
        };
        scenario.build_topology()?;
        scenario.build_model()?;
        scenario.build_profile()?;
        scenario.build_faults()?;
        scenario.topology.check().map_err(|error| scenario.refuse("topology.kind", &error))?;
        // Whether buffers and parameters fit is seen by building it all once.
        let world = scenario.world()?;
        scenario.traffic(&world)?;
        Ok(scenario)
    }

    /// An error at a field.
    fn refuse(&self, place: &str, message: &str) -> Refusal {
        let mut shown = self.path.clone();
        // The field itself, its line in the sweep, or what holds it: a table in one line, or the table's head.
        let key = format!("\"{}\"", place.replace('[', ".").replace(']', ""));
        let is_swept = self.point.iter().any(|(other, _)| key.trim_matches('"') == other);
        let in_sweep = self.text.lines().position(|line| is_swept && line.trim_start().starts_with(&key));
        let mut line = in_sweep.map_or_else(|| line_of(&self.text, place), |line| line + 1);
        let mut outer = place;
        while let (0, Some((holder, _))) = (line, outer.rsplit_once('.')) {
            outer = holder;
            line = line_of(&self.text, outer);
        }
        if line > 0 {
            shown += &format!(":{line}");
        }
        let point: Vec<String> = self.point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let with = if point.is_empty() { String::new() } else { format!(" (with {})", point.join(", ")) };
        Refusal(format!("{shown}: {place}: {message}{with}"))
    }

    fn need<T>(&self, value: Option<T>, place: &str, what: &str) -> Result<T, Refusal> {
        value.ok_or_else(|| self.refuse(place, &format!("is missing; expected {what}")))
    }

    fn within(&self, value: u32, place: &str, least: u32, most: u32) -> Result<u32, Refusal> {
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(self.refuse(place, &format!("is {value}; expected {least} to {most}")))
    }

    fn part(&self, value: f64, place: &str, most: f64) -> Result<f64, Refusal> {
        if value >= 0.0 && value <= most {
            return Ok(value);
        }
        Err(self.refuse(place, &format!("is {value}; expected 0 to {most}")))
    }

    fn count(&self, value: Option<u32>, field: &str, least: u32, most: u32) -> Result<u32, Refusal> {
        let place = format!("topology.{field}");
        let value = self.need(value, &place, &format!("a number from {least} to {most}, for this kind"))?;
        self.within(value, &place, least, most)
    }

    fn build_topology(&mut self) -> Result<(), Refusal> {
        let table = self.file.topology.clone();
        let port = table.port_delay.map_or(Ps::from_ns(300), |time| time.0);
        let cable = |metres: f64| port + Ps((metres.max(0.0) * 5_000.0) as u64);
        for (both, place) in [
            (table.delay.is_some() && table.cable_m.is_some(), "topology.cable_m"),
            (table.up_delay.is_some() && table.up_cable_m.is_some(), "topology.up_cable_m"),
        ] {
            if both {
                return Err(self.refuse(place, "a length and a delay are both given; give one"));
            }
        }
        let delay = table.delay.map(|time| time.0).or(table.cable_m.map(cable)).unwrap_or(Ps::from_ns(1_000));
        let up_delay = table.up_delay.map(|time| time.0).or(table.up_cable_m.map(cable)).unwrap_or(delay);
        let bps = table.rate.map_or(100_000_000_000, |rate| rate.0);
        let wire = Wire { bps, delay };
        let up = Wire { bps: table.up_rate.map_or(bps, |rate| rate.0), delay: up_delay };
        self.topology = match table.kind {
            TopologyKind::Star => Topology::star(self.count(table.hosts, "hosts", 2, 4_096)?, wire),
            TopologyKind::Dumbbell => Topology::dumbbell(self.count(table.hosts, "hosts", 2, 4_096)?, wire, up),
            TopologyKind::LeafSpine => Topology::leaf_spine(
                self.count(table.leaves, "leaves", 1, 4_096)?,
                self.count(table.hosts_per_leaf, "hosts_per_leaf", 1, 1_024)?,
                self.count(table.spines, "spines", 0, 1_024)?,
                wire,
                up,
            ),
            TopologyKind::FatTree => {
                let k = self.count(table.k, "k", 2, 64)?;
                if k % 2 != 0 {
                    return Err(self.refuse("topology.k", &format!("is {k}; expected an even number")));
                }
                Topology::fat_tree(k, wire, up)
            }
            TopologyKind::Rails => {
                let servers = self.count(table.servers, "servers", 1, 8_192)?;
                Topology::rails(
                    servers,
                    self.within(table.rails.unwrap_or(8), "topology.rails", 1, 64)?,
                    self.within(table.servers_per_group.unwrap_or(servers), "topology.servers_per_group", 1, servers)?,
                    self.count(table.spines, "spines", 0, 1_024)?,
                    wire,
                    up,
                )
            }
            TopologyKind::Pods => Topology::pods(
                self.count(table.pods, "pods", 1, 4_096)?,
                self.count(table.leaves, "leaves", 1, 1_024)?,
                self.count(table.hosts_per_leaf, "hosts_per_leaf", 1, 1_024)?,
                self.within(table.planes.unwrap_or(4), "topology.planes", 1, 64)?,
                self.count(table.spines, "spines", 0, 1_024)?,
                wire,
                up,
            ),
            TopologyKind::Csv => {
                let file = self.need(table.file, "topology.file", "the name of a table")?;
                let (text, shown) = self.table("topology.file", &file)?;
                Topology::from_csv(&text, &shown).map_err(Refusal)?
            }
        };
        if self.topology.hosts > 200_000 {
            return Err(self.refuse(
                "topology.kind",
                &format!("gives {} hosts; at most 200000 are modelled", self.topology.hosts),
            ));
        }
        for (index, table) in self.file.link.clone().iter().enumerate() {
            let link = self.find_link(table.host, table.a, table.b, &format!("link[{index}]"))?;
            let loss = self.part(table.loss.unwrap_or(0.0), &format!("link[{index}].loss"), 1.0)?;
            let link = &mut self.topology.links[link as usize];
            link.bps = table.rate.map_or(link.bps, |rate| rate.0);
            link.delay = table.delay.map_or(link.delay, |time| time.0);
            link.loss_e7 = (loss * 1e7).round() as u32;
        }
        Ok(())
    }

    fn table(&self, place: &str, file: &str) -> Result<(String, String), Refusal> {
        let path = self.folder.join(file);
        let shown = path.display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok((text, shown)),
            Err(error) => Err(self.refuse(place, &format!("{shown} cannot be read: {error}"))),
        }
    }

    fn find_link(&self, host: Option<u32>, a: Option<u32>, b: Option<u32>, place: &str) -> Result<u32, Refusal> {
        let found = match (host, a, b) {
            (Some(host), None, None) if host < self.topology.hosts => {
                self.topology.links.iter().position(|link| link.a == host || link.b == host)
            }
            (None, Some(a), Some(b)) => {
                self.topology.links.iter().position(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a))
            }
            (Some(host), None, None) => {
                let hosts = self.topology.hosts;
                return Err(
                    self.refuse(&format!("{place}.host"), &format!("is {host}; there are {hosts} hosts from 0 on"))
                );
            }
            _ => return Err(self.refuse(&format!("{place}.host"), "expected either host, or a and b")),
        };
        match found {
            Some(link) => Ok(link as u32),
            None => Err(self.refuse(&format!("{place}.a"), "there is no such link")),
        }
    }

    fn build_model(&mut self) -> Result<(), Refusal> {
        let mut model = match self.file.model.unwrap_or(ModelName::Roce) {
            ModelName::Roce => Model::roce(),
            ModelName::Reference => Model::reference(),
        };
        let host = &self.file.host;
        if let Some(mtu) = host.mtu {
            model.host.mtu = self.within(mtu, "host.mtu", 64, 9_000)?;
        }
        if let Some(bytes) = host.header_bytes {
            model.host.header_bytes = self.within(bytes, "host.header_bytes", 0, 512)?;
        }
        if let Some(every) = host.ack_every {
            model.host.ack_every = self.within(every, "host.ack_every", 1, 1_024)?;
        }
        if let Some(timeout) = host.timeout {
            model.host.timeout = (timeout.0 != Ps::ZERO).then_some(timeout.0);
        }
        if let Some(count) = host.retry_cnt {
            model.host.retry_cnt = self.within(count, "host.retry_cnt", 0, 1_000)?;
        }
        match (host.recovery, host.reorder) {
            (Some(RecoveryName::Selective), reorder) => {
                let reorder = self.within(reorder.unwrap_or(64), "host.reorder", 1, 65_536)?;
                model.host.recovery = Recovery::Selective { reorder };
            }
            (_, Some(_)) => return Err(self.refuse("host.reorder", "counts only with recovery = \"selective\"")),
            _ => {}
        }
        if let Some(interval) = host.cnp_interval {
            model.host.notification = match interval.0 {
                Ps::ZERO => Notification::InAck,
                interval => Notification::Packets { interval },
            };
        }
        model.host.flight_limit = host.flight_limit.map_or(model.host.flight_limit, |size| size.0);
        if let Some(rate) = host.qp_rate {
            model.host.qp_rate = (rate.0 != 0).then_some(Rate::new(rate.0, false));
        }
        model.ns3_quantum = host.ns3_quantum.unwrap_or(model.ns3_quantum);
        self.build_switch(&mut model)?;
        let spread = model.switch.balance != super::model::Balance::Hash;
        if spread && model.host.recovery == Recovery::GoBackN {
            let message = "packets of a QP overtake each other, and go-back-N takes that for loss: set host.recovery = \"selective\"";
            return Err(self.refuse("switch.balance", message));
        }
        self.model = model;
        Ok(())
    }

    fn bits(&self, list: &[u8], place: &str) -> Result<u8, Refusal> {
        let mut bits = 0;
        for &priority in list {
            if priority > 7 {
                return Err(self.refuse(place, &format!("has {priority}; expected priorities from 0 to 7")));
            }
            bits |= 1 << priority;
        }
        Ok(bits)
    }

    fn build_switch(&self, model: &mut Model) -> Result<(), Refusal> {
        let table = &self.file.switch;
        let switch = &mut model.switch;
        switch.buffer = table.buffer.map_or(switch.buffer, |size| size.0);
        if switch.buffer > u64::from(u32::MAX) {
            return Err(self.refuse("switch.buffer", "is above 4 GiB"));
        }
        if let Some(list) = &table.pfc {
            switch.pfc.priorities = self.bits(list, "switch.pfc")?;
        }
        if let Some(alpha) = table.alpha {
            switch.pfc.alpha_1024 = (self.part(alpha, "switch.alpha", 64.0)? * 1024.0) as u32;
            if switch.pfc.alpha_1024 == 0 {
                return Err(self.refuse("switch.alpha", "is below 1/1024: every packet would cause a pause"));
            }
        }
        if let Some(alpha) = table.lossy_alpha {
            switch.lossy_alpha_1024 = (self.part(alpha, "switch.lossy_alpha", 64.0)? * 1024.0) as u32;
        }
        if let Some(headroom) = table.headroom {
            switch.pfc.headroom_delays = 0;
            switch.pfc.headroom_bytes = u32::try_from(headroom.0).unwrap_or(u32::MAX);
        }
        if let Some(size) = table.resume_below {
            switch.pfc.resume_below = u32::try_from(size.0).unwrap_or(u32::MAX);
        }
        if let Some(quanta) = table.quanta {
            switch.pfc.quanta = (quanta != 0).then_some(quanta);
        }
        if let Some(watchdog) = table.watchdog {
            switch.pfc.watchdog = (watchdog.0 != Ps::ZERO).then_some(watchdog.0);
        }
        let any = table.kmin.is_some() || table.kmax.is_some() || table.pmax.is_some() || table.ecn_scaled.is_some();
        match (table.ecn, any) {
            (Some(false), true) => return Err(self.refuse("switch.ecn", "is off, but thresholds are given")),
            (Some(false), false) => switch.marking = None,
            _ => {
                let old = switch.marking.unwrap_or(Marking { kmin: 100_000, kmax: 400_000, pmax: 0.2, scaled: true });
                // Thresholds of one's own are meant as they stand.
                let own = table.kmin.is_some() || table.kmax.is_some();
                let marking = Marking {
                    kmin: table.kmin.map_or(old.kmin, |size| size.0),
                    kmax: table.kmax.map_or(old.kmax, |size| size.0),
                    pmax: self.part(table.pmax.unwrap_or(old.pmax), "switch.pmax", 1.0)?,
                    scaled: table.ecn_scaled.unwrap_or(!own && old.scaled),
                };
                if marking.kmin > marking.kmax {
                    let message = format!("{} B is above kmax, {} B", marking.kmin, marking.kmax);
                    return Err(self.refuse("switch.kmin", &message));
                }
                switch.marking = Some(marking);
            }
        }
        if let Some(list) = &table.strict {
            switch.schedule.strict = self.bits(list, "switch.strict")?;
        }
        if let Some(weights) = &table.weights {
            switch.schedule.weights = weights
                .as_slice()
                .try_into()
                .map_err(|_| self.refuse("switch.weights", &format!("has {} values; expected 8", weights.len())))?;
            if weights.contains(&0) {
                return Err(self.refuse("switch.weights", "has 0: that priority would never send; expected 1 to 255"));
            }
        }
        use super::model::Balance;
        switch.balance = match table.balance {
            None => switch.balance,
            Some(BalanceName::Hash) => Balance::Hash,
            Some(BalanceName::Spray) => Balance::Spray,
            Some(BalanceName::Adaptive) => Balance::Adaptive,
        };
        switch.reconvergence = table.reconvergence.map_or(switch.reconvergence, |time| time.0);
        Ok(())
    }

    fn build_profile(&mut self) -> Result<(), Refusal> {
        let name = self.file.congestion.algorithm.clone().unwrap_or_else(|| "dcqcn".to_owned());
        let line = self.topology.links.iter().find(|link| link.a < self.topology.hosts || link.b < self.topology.hosts);
        let line = line.map_or(100_000_000_000, |link| link.bps);
        let mut profile =
            Profile::named(&name, line).map_err(|error| self.refuse("congestion.algorithm", &error.to_string()))?;
        for (parameter, value) in &self.file.congestion.set {
            let place = format!("congestion.set.{parameter}");
            let number = match value {
                toml::Value::Integer(number) => *number as f64,
                toml::Value::Float(number) => *number,
                toml::Value::Boolean(yes) => f64::from(u8::from(*yes)),
                other => return Err(self.refuse(&place, &format!("is {other}; expected a number, true or false"))),
            };
            profile.set(parameter, number).map_err(|error| self.refuse(&place, &error.to_string()))?;
        }
        // The receiver's part of the profile, unless the file says otherwise.
        let own = profile.cnp_interval_ns().filter(|_| self.file.host.cnp_interval.is_none());
        if let (Some(ns), Notification::Packets { interval }) = (own, &mut self.model.host.notification) {
            *interval = Ps::from_ns(ns);
        }
        self.profile = profile;
        self.algorithm = name;
        self.build_engine()
    }

    /// Hosts with the whole engine: what the light host only has is refused.
    fn build_engine(&mut self) -> Result<(), Refusal> {
        let host = &self.file.host;
        if host.kind != Some(HostKind::Engine) {
            return Ok(());
        }
        for (given, field) in [
            (host.header_bytes.is_some(), "header_bytes"),
            (host.recovery == Some(RecoveryName::Selective), "recovery"),
            (host.flight_limit.is_some(), "flight_limit"),
            (host.qp_rate.is_some(), "qp_rate"),
            (host.ns3_quantum.is_some(), "ns3_quantum"),
        ] {
            if given {
                return Err(self.refuse(&format!("host.{field}"), "counts only with kind = \"light\""));
            }
        }
        if self.model.host.notification == Notification::InAck {
            return Err(
                self.refuse("host.kind", "the engine sends CNPs of its own; model = \"reference\" has them in ACKs")
            );
        }
        if self.topology.hosts > MOST_HOSTS {
            let message = format!("there are {} hosts; engines run on at most {MOST_HOSTS}", self.topology.hosts);
            return Err(self.refuse("host.kind", &message));
        }
        if Mtu::from_bytes(self.model.host.mtu).is_none() {
            let message = format!("is {}; engines know 256, 512, 1024, 2048 and 4096", self.model.host.mtu);
            return Err(self.refuse("host.mtu", &message));
        }
        if self.profile.needs_telemetry() {
            let message = "switches here do not write the live trailer of telemetry: use \"light\" hosts for it";
            return Err(self.refuse("host.kind", message));
        }
        let parameters = self.file.congestion.set.keys();
        let parameters = parameters.filter_map(|name| Some((name.clone(), self.profile.get(name)?))).collect();
        self.model.host.engine = Some(EngineModel { algorithm: self.algorithm.clone(), parameters });
        Ok(())
    }

    fn build_faults(&mut self) -> Result<(), Refusal> {
        for (index, table) in self.file.fault.clone().iter().enumerate() {
            let place = |field: &str| format!("fault[{index}].{field}");
            let host = || -> Result<u32, Refusal> {
                let host = self.need(table.host, &place("host"), "a host, for this kind")?;
                self.within(host, &place("host"), 0, self.topology.hosts - 1)
            };
            let link = || self.find_link(table.host, table.a, table.b, &format!("fault[{index}]"));
            let (begin, end) = match table.kind {
                FaultKind::LinkDown => {
                    let link = link()?;
                    (Fault::Link { link, up: false }, Fault::Link { link, up: true })
                }
                FaultKind::LinkUp => {
                    let link = link()?;
                    (Fault::Link { link, up: true }, Fault::Link { link, up: false })
                }
                FaultKind::Loss => {
                    let (link, loss) = (link()?, self.need(table.loss, &place("loss"), "a part from 0 to 1")?);
                    let loss = self.part(loss, &place("loss"), 1.0)?;
                    (Fault::Loss { link, loss_e7: (loss * 1e7).round() as u32 }, Fault::Loss { link, loss_e7: 0 })
                }
                FaultKind::SlowHost => {
                    let bps = self.need(table.rate, &place("rate"), "what the host takes in, such as \"20G\"")?.0;
                    if bps == 0 {
                        return Err(self.refuse(&place("rate"), "is 0: nothing would ever arrive"));
                    }
                    (Fault::SlowHost { host: host()?, bps }, Fault::SlowHost { host: host()?, bps: 0 })
                }
                FaultKind::PfcStorm => {
                    let priority = table.priority.unwrap_or(3);
                    if priority > 7 {
                        return Err(self.refuse(&place("priority"), "expected 0 to 7"));
                    }
                    let storm = |on| -> Result<Fault, Refusal> { Ok(Fault::Storm { host: host()?, priority, on }) };
                    (storm(true)?, storm(false)?)
                }
            };
            let at = table.at.0;
            let until = table.duration.map(|time| at + time.0);
            self.faults.push((at, begin));
            if let Some(until) = until {
                self.faults.push((until, end));
            }
        }
        Ok(())
    }

    /// A number that changes when anything of the scenario does: file, point, changes of the command line, seed, version.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = self.seed;
        let version = env!("CARGO_PKG_VERSION");
        for byte in format!("{version}{:?}{:?}{:?}", self.file, self.profile, self.topology.links).bytes() {
            hash = crate::random::mix(hash ^ u64::from(byte));
        }
        // JSON numbers are exact up to 2^53.
        hash >> 11
    }

    /// The fabric at rest.
    pub fn world(&self) -> Result<World, Refusal> {
        let world = World::new(self.topology.clone(), self.model.clone(), self.profile, self.seed);
        let mut world = world.map_err(|error| self.refuse("switch.buffer", &error))?;
        world.check_profile().map_err(|error| self.refuse("congestion.algorithm", &error))?;
        for &(at, fault) in &self.faults {
            world.plan(at, fault);
        }
        Ok(world)
    }

    /// The traffic.
    pub fn traffic(&self, world: &World) -> Result<Mix, Refusal> {
        traffic::build(self, world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
seed = 3
model = "reference"

[topology]
kind = "star"
hosts = 17

[switch]
buffer = "32MiB"

[congestion]
algorithm = "none"

[[workload]]
kind = "incast"
bytes = "1MB"
"#;

    fn parsed(text: &str) -> Result<Vec<Scenario>, Refusal> {
        parse(text, "t.toml", "t", Path::new(""), &[])
    }

    #[test]
    fn a_good_file_is_one_run() {
        let scenarios = parsed(GOOD).unwrap();
        assert_eq!((scenarios.len(), scenarios[0].topology.hosts, scenarios[0].seed), (1, 17, 3));
    }

    #[test]
    fn what_is_wrong_is_told_with_line_field_and_what_was_expected() {
        for (from, to, expected) in [
            ("hosts = 17", "host = 17", &["line 7", "unknown field `host`", "hosts_per_leaf"][..]),
            ("hosts = 17", "hosts = \"many\"", &["line 7", "u32"]),
            ("hosts = 17", "hosts = 1", &["t.toml:7: topology.hosts: is 1; expected 2 to 4096"]),
            ("hosts = 17", "", &["t.toml:5: topology.hosts: is missing; expected a number from 2 to 4096"]),
            ("\"32MiB\"", "33554432", &["line 10", "a size with its unit"]),
            ("\"32MiB\"", "\"32Mib\"", &["line 10", "\"32Mib\": expected a size with its unit"]),
            ("\"32MiB\"", "\"64KiB\"", &["t.toml:10: switch.buffer", "reserve and headroom", "give it more"]),
            ("algorithm = \"none\"", "algorithm = \"cubic\"", &["t.toml:13: congestion.algorithm", "cubic", "hpcc"]),
            ("\"incast\"", "\"flood\"", &["line 16", "unknown variant `flood`", "incast"]),
            ("bytes = \"1MB\"", "", &["t.toml:15: workload[0].bytes: is missing"]),
            ("hosts = 17", "hosts = 17\nrate = \"0G\"", &["host 0 and leaf 0 has rate 0"]),
        ] {
            let message = parsed(&GOOD.replace(from, to)).unwrap_err().0;
            for part in expected {
                assert!(message.contains(part), "{to}: {message}");
            }
        }
    }

    #[test]
    fn a_sweep_is_every_combination_and_its_faults_are_told_with_the_point() {
        let sweep = "[sweep]\n\"congestion.algorithm\" = [\"none\", \"dcqcn\"]\n\"topology.hosts\" = [4, 8, 9]\n";
        let scenarios = parsed(&format!("{GOOD}{sweep}")).unwrap();
        assert_eq!(scenarios.len(), 6);
        assert_eq!((scenarios[5].algorithm.as_str(), scenarios[5].topology.hosts), ("dcqcn", 9));
        assert_eq!(scenarios[5].point[1], ("topology.hosts".to_owned(), "9".to_owned()));
        let message = parsed(&format!("{GOOD}[sweep]\n\"topology.hosts\" = [4, 1]\n")).unwrap_err().0;
        assert!(
            message.contains("t.toml:19: ") && message.contains("is 1") && message.contains("with topology.hosts = 1"),
            "{message}"
        );
        let message = parsed(&format!("{GOOD}[sweep]\n\"topology.size\" = [4]\n")).unwrap_err().0;
        assert!(message.contains("unknown field `size`"), "{message}");
    }

    #[test]
    fn changes_of_the_command_line_count() {
        let changes = ["topology.hosts=9".to_owned(), "workload.0.bytes=2MB".to_owned()];
        let scenarios = parse(GOOD, "t.toml", "t", Path::new(""), &changes).unwrap();
        assert_eq!(scenarios[0].topology.hosts, 9);
        let sweep = format!("{GOOD}[sweep]\n\"topology.hosts\" = [4, 8]\n\"seed\" = [1, 2, 3]\n");
        let scenarios = parse(&sweep, "t.toml", "t", Path::new(""), &changes).unwrap();
        assert_eq!((scenarios.len(), scenarios[2].topology.hosts), (3, 9));
        let wrong = ["workload.4.bytes=2MB".to_owned()];
        assert!(parse(GOOD, "t.toml", "t", Path::new(""), &wrong).unwrap_err().0.contains("workload.0.field"));
    }

    #[test]
    fn a_parameter_in_a_table_of_one_line_is_told_with_that_line() {
        let text = GOOD.replace("algorithm = \"none\"", "algorithm = \"dcqcn\"\nset = { rpg_foo = 1 }");
        let message = parsed(&text).unwrap_err().0;
        assert!(message.contains("t.toml:14: congestion.set.rpg_foo"), "{message}");
    }

    #[test]
    fn spraying_under_go_back_n_is_refused() {
        let text = GOOD.replace("buffer = \"32MiB\"", "balance = \"spray\"");
        assert!(parsed(&text).unwrap_err().0.contains("t.toml:10: switch.balance"));
        assert!(parsed(&format!("{text}\n[host]\nrecovery = \"selective\"\n")).is_ok());
    }
}
