//! One case from start to verdict.

use super::case::Case;
use super::layout::{Kind, Place};
use super::side::Side;
use super::{judge, pyverbs};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Looks at a server that find it at rest before it counts as ready, and how long this may take: some never rest.
const LOOKS: u32 = 6;
const REST: Duration = Duration::from_secs(10);

/// What all cases of a run share.
#[derive(Debug)]
pub struct Rig {
    /// The program `sfab`.
    pub sfab: PathBuf,
    /// Where outputs are kept, a folder for each case.
    pub scratch: PathBuf,
    /// The unpacked tests of rdma-core, if there are any.
    pub pyverbs: Option<PathBuf>,
    /// Which of them may be skipped.
    pub skips: pyverbs::Skips,
    /// What `{port}` starts from; each case has a port of its own.
    pub first_port: u16,
    /// Seconds are multiplied by this: a machine may be busy.
    pub patience: u64,
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All as it must be.
    Passed,
    /// It cannot run here: why.
    Skipped(String),
    /// What was wrong, one sentence each; then the last lines of both outputs.
    Failed(Vec<String>, String),
}

/// A case's result.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `name@layout`.
    pub id: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

impl Rig {
    /// Runs one case; `index` chooses its port.
    pub fn run(&self, case: &Case, index: u16) -> Outcome {
        let started = Instant::now();
        let verdict = match self.verdict(case, index) {
            Ok(verdict) => verdict,
            Err(sentence) => match sentence.strip_prefix("skipped: ") {
                Some(why) => Verdict::Skipped(why.to_owned()),
                None => Verdict::Failed(vec![sentence], String::new()),
            },
        };
        Outcome { id: case.id(), verdict, took: started.elapsed() }
    }

    fn verdict(&self, case: &Case, index: u16) -> Result<Verdict, String> {
        let what = &case.what;
        if let Some(program) = missing(case) {
            return Ok(Verdict::Skipped(format!("`{program}` is missing")));
        }
        if what.pyverbs && self.pyverbs.is_none() {
            return Ok(Verdict::Skipped("the tests of python3-pyverbs are missing".to_owned()));
        }
        let folder = self.scratch.join(case.id().replace(['/', ' '], "_"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let place = Place::new(case.kind, &what.mtu)?;
        let stage = Stage::new(self, case, &place, &folder, index);
        stage.play()
    }
}

/// A case on its place.
struct Stage<'a> {
    rig: &'a Rig,
    case: &'a Case,
    place: &'a Place,
    folder: &'a Path,
    words: BTreeMap<String, String>,
    environment: Vec<(String, String)>,
    end: Instant,
}

impl<'a> Stage<'a> {
    fn new(rig: &'a Rig, case: &'a Case, place: &'a Place, folder: &'a Path, index: u16) -> Self {
        let mut words: BTreeMap<String, String> =
            place.words().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let shown = |path: &Path| path.display().to_string();
        words.insert("tmp".to_owned(), shown(folder));
        words.insert("sfab".to_owned(), shown(&rig.sfab));
        words.insert("libraries".to_owned(), shown(&rig.sfab.with_file_name("scalefabric")));
        words.insert("cases".to_owned(), shown(&super::folder()));
        words.insert("port".to_owned(), (rig.first_port + index).to_string());
        words.insert("pyverbs".to_owned(), rig.pyverbs.as_deref().map_or_else(String::new, shown));
        words.insert("on_server".to_owned(), place.on_server());
        words.insert("on_client".to_owned(), place.on_client());
        let mut stage = Self {
            rig,
            case,
            place,
            folder,
            words,
            environment: Vec::new(),
            end: Instant::now() + Duration::from_secs(case.what.seconds * rig.patience),
        };
        // A script finds the same words as variables.
        for (name, value) in &stage.words {
            stage.environment.push((name.to_uppercase(), value.clone()));
        }
        for (name, value) in &case.what.env {
            stage.environment.push((name.clone(), stage.fill(value)));
        }
        stage
    }

    /// The text with its placeholders filled.
    fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.words {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }

    /// The shell line that runs a command on a side.
    fn line(&self, command: &str, side: &str, own: &str) -> String {
        let command = self.fill(command);
        match command.strip_prefix("! ") {
            Some(plain) => format!("exec {side}sh -c '{}'", plain.replace('\'', r"'\''")),
            None => {
                let options = self.fill(&format!("{} {own}", self.case.what.run));
                format!("exec {side}{} run {} -- {command}", self.rig.sfab.display(), options.trim())
            }
        }
    }

    fn start(&self, name: &str, line: &str) -> Result<Side, String> {
        let note = self.folder.join(format!("{name}.command"));
        std::fs::write(&note, format!("{line}\n")).map_err(|error| format!("{}: {error}", note.display()))?;
        Side::start(line, &self.environment, self.folder, self.folder.join(format!("{name}.out")))
    }

    fn play(&self) -> Result<Verdict, String> {
        let what = &self.case.what;
        let mut wrong = Vec::new();
        let mut sides: Vec<(&'static str, Side)> = Vec::new();
        if !what.before.is_empty() {
            let mut before = self.start("before", &self.shell(&what.before))?;
            before.wait(self.end);
            wrong.extend(judge::exit("what comes before", before.code(), 0));
            sides.push(("before", before));
        }
        if wrong.is_empty() && !what.script.is_empty() {
            let mut script =
                self.start("script", &format!("exec bash {}/{}", self.words["cases"], self.fill(&what.script)))?;
            script.wait(self.end);
            let text = script.text();
            if script.code() == Some(77) {
                let why = text.lines().last().unwrap_or("it says so").trim();
                return Ok(Verdict::Skipped(why.trim_start_matches("skipped: ").to_owned()));
            }
            wrong.extend(judge::exit("the script", script.code(), 0));
            wrong.extend(judge::output("the script", &text, &what.client_has, &self.allowed()));
            sides.push(("script", script));
        }
        if wrong.is_empty() && what.script.is_empty() {
            wrong.extend(self.converse(&mut sides)?);
        }
        if wrong.is_empty() && !what.after.is_empty() {
            let mut after = self.start("after", &self.shell(&what.after))?;
            after.wait(self.end);
            wrong.extend(judge::exit("what comes after", after.code(), 0));
            wrong.extend(judge::output(
                "what comes after",
                &after.text(),
                &self.filled(&what.after_has),
                &self.allowed(),
            ));
            sides.push(("after", after));
        }
        if wrong.is_empty() {
            return Ok(Verdict::Passed);
        }
        Ok(Verdict::Failed(wrong, self.last_lines(&sides)))
    }

    /// The server, then the client; gives what was wrong.
    fn converse(&self, sides: &mut Vec<(&'static str, Side)>) -> Result<Vec<String>, String> {
        let what = &self.case.what;
        let mut wrong = Vec::new();
        let mut server = None;
        if !what.server.is_empty() {
            let mut side = self.start("server", &self.line(&what.server, &self.place.on_server(), &what.run_server))?;
            side.settle(program(&what.server), LOOKS, self.end.min(Instant::now() + REST));
            // It may have slept on its way there: what is known for certain is known from its port.
            while what.is_called() && !self.is_open(&side) && side.has_ended().is_none() && Instant::now() < self.end {
                std::thread::sleep(Duration::from_millis(20));
            }
            server = Some(side);
        }
        let mut client = self.start("client", &self.line(&what.client, &self.place.on_client(), &what.run_client))?;
        client.wait(self.end);
        if let Some(server) = &mut server {
            let client_failed = client.code() != Some(what.client_exit);
            if !what.server_stays && !client_failed {
                server.wait(self.end);
            }
            if server.has_ended().is_none() && (what.server_stays || client_failed) {
                server.signal("INT");
                server.wait(Instant::now() + Duration::from_secs(2));
            }
            if !what.server_stays {
                wrong.extend(judge::exit("the server", server.code(), what.server_exit));
            }
            wrong.extend(judge::output("the server", &server.text(), &self.filled(&what.server_has), &self.allowed()));
        }
        wrong.extend(judge::exit("the client", client.code(), what.client_exit));
        let text = client.text();
        if what.pyverbs {
            // A failed test is named below, with its reason; the exit code only repeats it.
            wrong.clear();
            wrong.extend(pyverbs::judge(&text, &self.rig.skips));
        } else {
            wrong.extend(judge::output("the client", &text, &self.filled(&what.client_has), &self.allowed()));
            wrong.extend(judge::rows(what, &text));
        }
        sides.extend(server.map(|server| ("server", server)));
        sides.push(("client", client));
        Ok(wrong)
    }

    /// True if the server can be called: by TCP or UDP on its port, or by rdma_cm.
    fn is_open(&self, side: &Side) -> bool {
        let port = &self.words["port"];
        if port.parse().is_ok_and(|port| side.listens(port)) {
            return true;
        }
        let line = format!("{}{} res", self.place.on_server(), self.rig.sfab.display());
        let Ok(output) = Command::new("sh").args(["-c", &line]).output() else { return false };
        let text = String::from_utf8_lossy(&output.stdout);
        let own = format!(":{port} ");
        text.lines().any(|line| line.contains("LISTEN") && (line.contains(&own) || !self.case.what.has_port()))
    }

    fn shell(&self, text: &str) -> String {
        format!("{}sh -ec '{}'", self.place.on_server(), self.fill(text).replace('\'', r"'\''"))
    }

    fn filled(&self, texts: &[String]) -> Vec<String> {
        texts.iter().map(|text| self.fill(text)).collect()
    }

    fn allowed(&self) -> Vec<String> {
        self.filled(&self.case.what.allow)
    }

    /// The end of each output, and the commands.
    fn last_lines(&self, sides: &[(&'static str, Side)]) -> String {
        let mut text = String::new();
        for (name, side) in sides {
            let command = std::fs::read_to_string(self.folder.join(format!("{name}.command"))).unwrap_or_default();
            let _ = writeln!(text, "  {name}: {}", command.trim());
            let printed = side.text();
            let lines: Vec<&str> = printed.lines().collect();
            let many = if self.case.what.pyverbs { 40 } else { 12 };
            for line in &lines[lines.len().saturating_sub(many)..] {
                let _ = writeln!(text, "    | {line}");
            }
        }
        let _ = writeln!(text, "  whole outputs: {}", self.folder.display());
        let _ = writeln!(text, "  again: cargo xtask clients {}", self.case.id());
        text
    }
}

/// The first word of a command that is neither an assignment nor `!`.
fn program(command: &str) -> &str {
    let command = command.trim_start_matches("! ").trim_start_matches("exec env ");
    let word = command.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
    word.rsplit('/').next().unwrap_or_default()
}

/// The first program that is not on this machine.
fn missing(case: &Case) -> Option<String> {
    let what = &case.what;
    let commands = [what.server.as_str(), what.client.as_str()];
    let plain = commands.into_iter().filter(|command| !command.is_empty() && !command.starts_with("! "));
    let named = plain.map(|command| command.split_whitespace().next().unwrap_or_default());
    let root: Vec<&str> = if case.kind == Kind::Veth { vec!["ip"] } else { Vec::new() };
    named.chain(what.needs.iter().map(String::as_str)).chain(root).find(|program| !is_there(program)).map(str::to_owned)
}

/// True if the program can be started from here.
pub fn is_there(program: &str) -> bool {
    if program.contains('{') {
        return true;
    }
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    folders.into_iter().any(|folder| folder.join(program).is_file())
}

/// Unpacks the tests that the package python3-pyverbs brings among its documents; `None` if it is not installed.
pub fn unpack_pyverbs(scratch: &Path) -> Option<PathBuf> {
    let packed =
        [PathBuf::from("/usr/share/doc/rdma-core/tests"), scratch.join("package/usr/share/doc/rdma-core/tests")];
    let packed = packed.into_iter().find(|folder| folder.join("run_tests.py").is_file())?;
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir() {
        return None;
    }
    let target = scratch.join("pyverbs");
    let _ = std::fs::remove_dir_all(&target);
    let copied = Command::new("cp").arg("-r").arg(packed).arg(&target).status().is_ok_and(|status| status.success());
    let unpack = "find . -name '*.gz' -exec gunzip -f {} +";
    let unpacked = Command::new("sh").args(["-c", unpack]).current_dir(&target).status();
    (copied && unpacked.is_ok_and(|status| status.success())).then_some(target)
}
