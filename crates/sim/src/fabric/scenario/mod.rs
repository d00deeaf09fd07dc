//! Scenarios: what a file asks for, checked before anything runs, and the runs that follow from it. Every error names the file and the field, and the line
//! where it stands; a fabric that cannot work is refused here.

pub mod file;
mod model;
mod place;
pub mod quantity;
mod stranger;
mod topology;
mod traffic;

use super::model::Model;
use super::time::Ps;
use super::topology::Topology;
use super::workload::Mix;
use super::world::{Fault, World};
use file::File;
use place::{explain, in_words, line_at, line_of};
use scalefabric_transport::congestion::Profile;
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
    changes: Vec<String>,
}

/// The field that a change "table.field=value" is for.
fn key_of(change: &str) -> &str {
    change.split_once('=').map_or("", |(key, _)| key.trim())
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
    let refuse = |key: &str, message: String| {
        let line = line_at(text, &["sweep", key]);
        Refusal(format!("{path}:{line}: sweep.\"{key}\": {message}"))
    };
    // First as it stands, so that errors have lines.
    let file: File = toml::from_str(text).map_err(|error| explain(text, path, &error))?;
    let mut table: toml::Table = toml::from_str(text).map_err(|error| explain(text, path, &error))?;
    table.remove("sweep");
    for change in changes {
        let (key, value) =
            change.split_once('=').ok_or_else(|| Refusal(format!("--set {change:?}: expected table.field=value")))?;
        let value: toml::Value = toml::from_str::<toml::Table>(&format!("v = {value}"))
            .ok()
            .and_then(|mut table| table.remove("v"))
            .unwrap_or_else(|| toml::Value::String(value.to_owned()));
        let told = |error: String| Refusal(format!("--set {change:?}: {error}"));
        set(&mut table, key.trim(), value).map_err(told)?;
        read_table(&table).map_err(told)?;
    }
    let mut points: Vec<Vec<(String, toml::Value)>> = vec![Vec::new()];
    // A change of the command line takes the place of what the sweep would try.
    for (key, values) in file.sweep.iter().filter(|(key, _)| !changes.iter().any(|change| key_of(change) == *key)) {
        if values.is_empty() {
            return Err(refuse(key, "has no values; expected some, as [1, 2]".to_owned()));
        }
        // Each value by itself, so that the one that is wrong is told.
        for value in values {
            let mut table = table.clone();
            let told = |error: String| refuse(key, format!("{value}: {error}"));
            set(&mut table, key, value.clone()).map_err(told)?;
            read_table(&table).map_err(told)?;
        }
        if points.len().saturating_mul(values.len()) > MOST_POINTS {
            let message = format!("makes more than {MOST_POINTS} combinations, which is what may run at once");
            return Err(refuse(key, message));
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
    let mut scenarios = Vec::with_capacity(points.len());
    for point in points {
        let mut table = table.clone();
        let shown: Vec<(String, String)> = point
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect();
        for (key, value) in point {
            set(&mut table, &key, value).map_err(|error| refuse(&key, error))?;
        }
        let file = if shown.is_empty() && changes.is_empty() {
            file.clone()
        } else {
            read_table(&table).map_err(|error| Refusal(format!("{path}: with {shown:?}: {error}")))?
        };
        let source = Source { text, path, name, folder, changes };
        let scenario = Scenario::build(file, &source, shown)?;
        scenarios.push(scenario);
    }
    Ok(scenarios)
}

/// A file from its table; what is wrong, without a place.
fn read_table(table: &toml::Table) -> Result<File, String> {
    table.clone().try_into().map_err(|error: toml::de::Error| in_words(error.message()))
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
    if ["workload", "link", "fault"].contains(&first) && !table.contains_key(first) {
        return Err(format!("the file has no [[{first}]]"));
    }
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

/// Where a scenario comes from.
struct Source<'a> {
    text: &'a str,
    path: &'a str,
    name: &'a str,
    folder: &'a Path,
    changes: &'a [String],
}

/// Runs that one file may ask for.
const MOST_POINTS: usize = 10_000;

impl Scenario {
    fn build(file: File, source: &Source<'_>, point: Vec<(String, String)>) -> Result<Self, Refusal> {
        let mut scenario = Self {
            name: source.name.to_owned(),
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
            folder: source.folder.to_owned(),
            path: source.path.to_owned(),
            text: source.text.to_owned(),
            changes: source.changes.to_vec(),
        };
        if scenario.until == Ps::ZERO {
            return Err(scenario.refuse("until", "is 0: nothing would happen; expected a time above 0"));
        }
        if scenario.sample < Ps::from_ns(1) {
            let message = format!("is {}; expected 1ns or more", scenario.sample);
            return Err(scenario.refuse("output.sample", &message));
        }
        scenario.refuse_strangers()?;
        scenario.build_topology()?;
        scenario.build_model()?;
        scenario.build_profile()?;
        scenario.build_faults()?;
        scenario.check_topology()?;
        // Whether buffers and parameters fit is seen by building it all once.
        let world = scenario.world()?;
        scenario.traffic(&world)?;
        Ok(scenario)
    }

    /// The value does not stand in the file: the sweep or the command line has it.
    fn is_changed(&self, key: &str) -> bool {
        self.point.iter().any(|(other, _)| other == key) || self.changes.iter().any(|change| key_of(change) == key)
    }

    /// An error at a field.
    fn refuse(&self, place: &str, message: &str) -> Refusal {
        let key = place.replace('[', ".").replace(']', "");
        let point: Vec<String> = self.point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let with = if point.is_empty() { String::new() } else { format!(" (with {})", point.join(", ")) };
        if let Some(change) = self.changes.iter().rev().find(|change| key_of(change) == key) {
            return Refusal(format!("--set {change:?}: {place}: {message}{with}"));
        }
        // The field itself, its line in the sweep, or what holds it.
        let is_swept = self.point.iter().any(|(other, _)| *other == key);
        let line = if is_swept { line_at(&self.text, &["sweep", &key]) } else { line_of(&self.text, place) };
        let line = if line > 0 { format!(":{line}") } else { String::new() };
        Refusal(format!("{}{line}: {place}: {message}{with}", self.path))
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

    fn table(&self, place: &str, file: &str) -> Result<(String, String), Refusal> {
        let path = self.folder.join(file);
        let shown = path.display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok((text, shown)),
            Err(error) => Err(self.refuse(place, &format!("{shown} cannot be read: {error}"))),
        }
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
        let mut world = world.map_err(|error| self.refuse(self.what_fills_buffers(), &error))?;
        world.check_profile().map_err(|error| self.refuse("congestion.algorithm", &error))?;
        for &(at, fault) in &self.faults {
            world.plan(at, fault);
        }
        Ok(world)
    }

    /// Which field to look at when a buffer holds no more than reserve and headroom: the first that the file has.
    fn what_fills_buffers(&self) -> &'static str {
        let (switch, topology) = (&self.file.switch, &self.file.topology);
        let given = [
            (switch.buffer.is_some(), "switch.buffer"),
            (switch.headroom.is_some(), "switch.headroom"),
            (topology.cable_m.is_some(), "topology.cable_m"),
            (topology.up_cable_m.is_some(), "topology.up_cable_m"),
            (topology.delay.is_some(), "topology.delay"),
            (topology.up_delay.is_some(), "topology.up_delay"),
        ];
        given.iter().find(|(is_given, _)| *is_given).map_or("switch.buffer", |(_, place)| place)
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
            ("hosts = 17", "host = 17", &["t.toml:7: topology.host: unknown field `host`", "hosts_per_leaf"][..]),
            ("hosts = 17", "hosts = \"many\"", &["t.toml:7: topology.hosts: ", "\"many\", expected a whole number"]),
            ("hosts = 17", "hosts = 1", &["t.toml:7: topology.hosts: is 1; expected 2 to 4096"]),
            ("hosts = 17", "", &["t.toml:5: topology.hosts: is missing; expected a number from 2 to 4096"]),
            ("\"32MiB\"", "33554432", &["t.toml:10: switch.buffer: ", "a size with its unit"]),
            ("\"32MiB\"", "\"32Mib\"", &["t.toml:10: switch.buffer: \"32Mib\": expected a size with its unit"]),
            ("\"32MiB\"", "\"64KiB\"", &["t.toml:10: switch.buffer", "reserve and headroom", "give it more"]),
            ("algorithm = \"none\"", "algorithm = \"cubic\"", &["t.toml:13: congestion.algorithm", "cubic", "hpcc"]),
            ("\"incast\"", "\"flood\"", &["t.toml:16: workload[0].kind: unknown variant `flood`", "incast"]),
            ("bytes = \"1MB\"", "", &["t.toml:15: workload[0].bytes: is missing"]),
            ("hosts = 17", "hosts = 17\nrate = \"0G\"", &["t.toml:8: topology.rate: is 0"]),
            ("hosts = 17", "hosts = 17\nrate = \"4T\"", &["t.toml:8: topology.rate: ", "at most 3.2 Tb/s"]),
            ("hosts = 17", "hosts = 17\ndelay = \"2s\"", &["t.toml:8: topology.delay: is 2"]),
            ("hosts = 17", "hosts = 17\ncable_m = -3", &["t.toml:8: topology.cable_m: is -3; expected"]),
            (
                "hosts = 17",
                "hosts = 17\nspines = 3",
                &["t.toml:8: topology.spines: does not count with kind = \"star\""],
            ),
            ("hosts = 17", "hosts = 17\nhosts = 17", &["t.toml:8", "duplicate key"]),
            ("\"32MiB\"", "\"32MiB\"\nwatchdog = \"1ps\"", &["t.toml:11: switch.watchdog: "]),
            ("\"32MiB\"", "\"32MiB\"\nresume_below = \"64MiB\"", &["t.toml:11: switch.resume_below: "]),
            ("buffer = \"32MiB\"", "headroom = \"32MiB\"", &["t.toml:10: switch.headroom: leaf 0 has a buffer"]),
            (
                "bytes = \"1MB\"",
                "bytes = \"1MB\"\nload = 1",
                &["t.toml:18: workload[0].load: does not count with kind = \"incast\""],
            ),
            ("bytes = \"1MB\"", "bytes = \"4000GiB\"", &["t.toml:17: workload[0].bytes: ", "packets"]),
            ("bytes = \"1MB\"", "bytes = \"1MB\"\nstart = \"20000s\"", &["t.toml:18: workload[0].start: ", "10000s"]),
            ("seed = 3", "seed = -3", &["t.toml:2: seed: ", "a whole number, 0 or more"]),
            ("seed = 3", "until = \"0s\"", &["t.toml:2: until: is 0"]),
            ("seed = 3", "output.sample = \"0ns\"", &["t.toml:2: output.sample: "]),
            ("seed = 3", "host = 3", &["t.toml:2: host: ", "expected a table"]),
            (
                "[[workload]]\nkind = \"incast\"\nbytes = \"1MB\"",
                "",
                &["t.toml: workload is missing; expected a table"],
            ),
            ("\"1MB\"", "\"1MB\"\n[[link]]\nhost = 3\nrate = \"0G\"", &["t.toml:20: link[0].rate: is 0"]),
            ("\"1MB\"", "\"1MB\"\n[[link]]\nhost = 30", &["t.toml:19: link[0].host: is 30; there are 17"]),
            ("\"1MB\"", "\"1MB\"\n[[fault]]\nkind = \"loss\"\nhost = 3", &["t.toml:18: fault[0]: at is missing"]),
            (
                "\"1MB\"",
                "\"1MB\"\n[[fault]]\nkind = \"slow-host\"\nat = \"0s\"\nhost = 3\nrate = \"0G\"",
                &["t.toml:22: fault[0].rate: is 0"],
            ),
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
        assert!(message.contains("t.toml:19: sweep.\"topology.size\": 4: unknown field `size`"), "{message}");
        let message = parsed(&format!("{GOOD}[sweep]\nseed = [1, \"x\"]\n")).unwrap_err().0;
        assert!(
            message.contains("t.toml:19: sweep.\"seed\": \"x\": ") && message.contains("whole number"),
            "{message}"
        );
        let many: Vec<String> = (0..101).map(|n| n.to_string()).collect();
        let many = many.join(", ");
        let sweep =
            format!("[sweep]\nseed = [{many}]\n\"workload.0.start\" = [\"1us\"]\n\"host.ack_every\" = [{many}]\n");
        let message = parsed(&format!("{GOOD}{sweep}").replace("[0, 1", "[1, 1")).unwrap_err().0;
        assert!(message.contains("more than 10000 combinations"), "{message}");
    }

    #[test]
    fn changes_of_the_command_line_count() {
        let changes = ["topology.hosts=9".to_owned(), "workload.0.bytes=2MB".to_owned()];
        let scenarios = parse(GOOD, "t.toml", "t", Path::new(""), &changes).unwrap();
        assert_eq!(scenarios[0].topology.hosts, 9);
        let sweep = format!("{GOOD}[sweep]\n\"topology.hosts\" = [4, 8]\n\"seed\" = [1, 2, 3]\n");
        let scenarios = parse(&sweep, "t.toml", "t", Path::new(""), &changes).unwrap();
        assert_eq!((scenarios.len(), scenarios[2].topology.hosts), (3, 9));
        for (change, expected) in [
            ("workload.4.bytes=2MB", "workload.0.field"),
            (
                "topology.hosts=abc",
                "--set \"topology.hosts=abc\": invalid type: string \"abc\", expected a whole number",
            ),
            ("topology.hosts=1", "--set \"topology.hosts=1\": topology.hosts: is 1; expected 2"),
            ("fault.0.rate=1G", "the file has no [[fault]]"),
            ("hosts", "expected table.field=value"),
        ] {
            let message = parse(GOOD, "t.toml", "t", Path::new(""), &[change.to_owned()]).unwrap_err().0;
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn another_kind_leaves_fields_of_the_first_unused() {
        let text = GOOD
            .replace("\"star\"", "\"leaf-spine\"\nleaves = 2\nhosts_per_leaf = 4\nspines = 1")
            .replace("hosts = 17\n", "");
        let changes = ["topology.kind=star".to_owned(), "topology.hosts=4".to_owned()];
        assert_eq!(parse(&text, "t.toml", "t", Path::new(""), &changes).unwrap()[0].topology.hosts, 4);
        let message = parsed(&text.replace("spines = 1", "spines = 0")).unwrap_err().0;
        assert!(message.contains("t.toml:9: topology.spines: host 4 cannot be reached from host 0"), "{message}");
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
