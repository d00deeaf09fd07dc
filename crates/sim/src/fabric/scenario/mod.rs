//! Scenarios: what a file asks for, checked before anything runs, and the runs that follow from it. Every error names the file and the field, and the line
//! where it stands; a fabric that cannot work is refused here.

pub mod file;
mod model;
mod place;
pub mod quantity;
mod topology;
mod traffic;

use super::model::Model;
use super::time::Ps;
use super::topology::Topology;
use super::workload::Mix;
use super::world::{Fault, World};
use file::File;
use place::line_of;
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
