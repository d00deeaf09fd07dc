//! `cargo xtask interop`: the software NIC and a Linux kernel's rxe talk to one another, both ways round, in a rig of one
//! virtual machine and one network namespace (`crates/tests/rig`): with a program that says exactly what is asked of it, by
//! rdma_cm, with the programs of Debian, ours under `sfab run`, and with our own programs in the guest. Needs root and a
//! Debian 12 host, whose packages the rig installs; a machine that cannot have the rig skips it and says why.

use crate::dialogues;
use crate::machine;
use crate::process::{self, Outcome, cargo, root};
use crate::totals::Totals;
use clap::Args;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `interop`.
#[derive(Args, Default)]
pub struct Options {
    /// Only these: beginnings of names, such as `rc-send v6 cm rping ib_write_bw-loss contract`; default all.
    names: Vec<String>,
    /// A few of each kind: what every change must pass.
    #[arg(long)]
    short: bool,
    /// The dialogue scripts instead, with Linux as one of their nodes; `names` are words of their names.
    #[arg(long)]
    dialogues: bool,
    /// With `--dialogues`: print every difference as the beginning of a row for `linux-differs.txt`, and excuse it.
    #[arg(long, requires = "dialogues")]
    rows: bool,
    /// Run nothing: write the results of the last whole run into the tables of docs/interop.md.
    #[arg(long, conflicts_with_all = ["names", "short", "dialogues"])]
    page: bool,
    /// Install no packages; if some are missing, skip everything.
    #[arg(long)]
    no_install: bool,
}

/// A script of the rig that ends with this code has written into `$RIG_SKIPPED` what this machine lacks.
const SKIPPED: i32 = 77;

/// The file with the results of a run that is not the whole.
const RESULTS_OF_SOME: &str = "results-of-some";

/// If no more conversations than so many failed, they are tried again.
const TRIED_AGAIN: u64 = 4;

/// When a guest is ended that nobody ended. All conversations take ten minutes on two idle cores.
const LIFE_SECONDS: &str = "7200";

/// How it ended.
enum Ended {
    /// Some failed, or none.
    Played(Totals),
    /// The machine cannot have the rig: what it lacks.
    Skipped(String),
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    if options.page {
        let rows = read(&process::target_folder()?.join("rig/results"))?;
        return write_page(&root().join("docs/interop.md"), &rows);
    }
    match play(options)? {
        Ended::Played(totals) if totals.failed == 0 => {
            println!("interop: {totals}");
            Ok(())
        }
        Ended::Played(totals) => Err(format!("interop: {totals}: see above")),
        Ended::Skipped(why) => {
            println!("skipped: {why}");
            println!("interop: {}", Totals { skipped: 1, ..Totals::default() });
            Ok(())
        }
    }
}

/// The short part, as a part of `cargo xtask test`.
pub fn test(install: bool) -> Totals {
    println!("==> cargo xtask interop --short");
    let short = |names| play(&Options { names, short: true, no_install: !install, ..Options::default() });
    match short(Vec::new()) {
        Ok(Ended::Played(totals)) if (1..=TRIED_AGAIN).contains(&totals.failed) => again(totals, short),
        Ok(Ended::Played(totals)) => totals,
        Ok(Ended::Skipped(why)) => {
            println!("skipped: {why}");
            Totals { skipped: 1, ..Totals::default() }
        }
        Err(message) => {
            println!("    FAILED: {message}");
            Totals { failed: 1, ..Totals::default() }
        }
    }
}

/// The conversations that failed, once more; `first` is how all ended.
fn again(first: Totals, short: impl Fn(Vec<String>) -> Result<Ended, String>) -> Totals {
    let rows = process::target_folder().and_then(|target| read(&target.join("rig").join(RESULTS_OF_SOME)));
    let names: Vec<String> =
        rows.into_iter().flatten().filter(|row| row.verdict == "FAIL").map(|row| row.name).collect();
    println!("==> again: {}", names.join(" "));
    match short(names) {
        Ok(Ended::Played(second)) => {
            let mended = first.failed.saturating_sub(second.failed);
            Totals { passed: first.passed + mended, failed: first.failed - mended, ..first }
        }
        _ => first,
    }
}

/// The places of a run.
struct Rig {
    /// The scripts.
    scripts: PathBuf,
    /// Guest, state and results.
    work: PathBuf,
    /// Where cargo builds.
    target: PathBuf,
}

fn play(options: &Options) -> Result<Ended, String> {
    if !machine::is_root() {
        return Ok(Ended::Skipped("the rig makes a tap and network namespaces: run it as root".to_owned()));
    }
    let target = process::target_folder()?;
    let rig = Rig { scripts: root().join("crates/tests/rig"), work: target.join("rig"), target };
    fs::create_dir_all(&rig.work).map_err(|error| format!("{}: {error}", rig.work.display()))?;
    let mut image = rig.script("build-image.sh");
    image.env("RIG_INSTALL", if options.no_install { "" } else { "1" });
    if let Some(why) = rig.step("the guest: a Debian kernel and a small root file system", &mut image)? {
        return Ok(Ended::Skipped(why));
    }
    if options.dialogues {
        dialogues::run(&rig.scripts, &rig.work, &rig.target, &options.names, options.rows)?;
        return Ok(Ended::Played(Totals { passed: 1, ..Totals::default() }));
    }
    process::step("the software NIC's programs, and the contract's tests", || {
        let build = [
            "build",
            "--quiet",
            "--package",
            "scalefabric-tests",
            "--bin",
            "rigpeer",
            "--bin",
            "contract",
            "--bin",
            "memory_cost",
        ];
        process::run(cargo().args(build))?;
        crate::products::build(false)
    })?;
    let is_whole = options.names.is_empty() && !options.short;
    let results = rig.work.join(if is_whole { "results" } else { RESULTS_OF_SOME });
    fs::write(&results, "").map_err(|error| format!("{}: {error}", results.display()))?;
    let mut outcomes = Vec::new();
    for (name, mtu) in [("conversations", "1500"), ("conversations with large packets", "9000")] {
        if options.short && mtu != "1500" {
            break;
        }
        // A failed conversation is in the results; what else fails leaves them short, and is told below.
        match rig.step(name, &mut rig.conversations(mtu, options, &results)) {
            Ok(None) => outcomes.push(Ok(())),
            Ok(Some(why)) => return Ok(Ended::Skipped(why)),
            Err(message) => outcomes.push(Err(message)),
        }
    }
    let rows = read(&results)?;
    let count = |failed: bool| rows.iter().filter(|row| (row.verdict == "FAIL") == failed).count() as u64;
    let totals = Totals { passed: count(false), failed: count(true), skipped: 0 };
    if totals.failed == 0 {
        outcomes.into_iter().collect::<Outcome>()?;
    }
    if totals.passed + totals.failed == 0 {
        return Err("no conversation has such a name".to_owned());
    }
    Ok(Ended::Played(totals))
}

impl Rig {
    fn script(&self, name: &str) -> Command {
        let mut command = Command::new("bash");
        command.arg(self.scripts.join(name)).env("RIG_WORK", &self.work).env("RIG_SKIPPED", self.work.join("skipped"));
        command
    }

    /// Runs a script as a step; gives what the machine lacks, if that was the end of it.
    fn step(&self, name: &str, command: &mut Command) -> Result<Option<String>, String> {
        let reason = self.work.join("skipped");
        let _ = fs::remove_file(&reason);
        let mut skipped = None;
        process::step(name, || {
            let line = process::shown(command);
            let status = command.status().map_err(|error| format!("`{line}` could not be started: {error}"))?;
            if status.code() == Some(SKIPPED) {
                let why = fs::read_to_string(&reason).unwrap_or_else(|_| "the rig does not say why".to_owned());
                skipped = Some(why.trim().replace('\n', "; "));
                return Ok(());
            }
            if status.success() { Ok(()) } else { Err(format!("`{line}` ended with {status}")) }
        })?;
        Ok(skipped)
    }

    /// The rig with a cable of that MTU, and what is said over it.
    fn conversations(&self, mtu: &str, options: &Options, results: &Path) -> Command {
        let mut command = self.script("boot.sh");
        command.args(["run", "-n", "1", "-p", "1", "-m", mtu]).arg(self.scripts.join("conversations.sh"));
        command.env("RIG_NAME", format!("rig-{}", std::process::id())).env("MTU", mtu).env("RIG_LIFE", LIFE_SECONDS);
        command.env("RIGPEER", self.target.join("debug/rigpeer")).env("CONTRACT", self.target.join("debug/contract"));
        command.env("MEMORY", self.target.join("debug/memory_cost"));
        command.env("SFAB", self.target.join("release/sfab")).env("RIGCM", self.work.join("rigcm"));
        let golden = root().join("crates/tests/golden/rxe");
        command.env("CMGOLDEN", golden.join("rigcm.log")).env("GOLDEN", golden);
        command.env("RESULTS", results);
        command.env("ONLY", options.names.join(" ")).env("SHORT", if options.short { "1" } else { "" });
        command
    }
}

/// A line of the results: how one direction of one conversation ended.
struct Row {
    part: String,
    name: String,
    what: String,
    direction: String,
    verdict: String,
    words: String,
}

fn read(results: &Path) -> Result<Vec<Row>, String> {
    let text = fs::read_to_string(results)
        .map_err(|error| format!("{}: {error}: run `cargo xtask interop` first", results.display()))?;
    text.lines()
        .map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut field = || fields.next().ok_or_else(|| format!("{}: {line:?} is cut", results.display()));
            Ok(Row {
                part: field()?,
                name: field()?,
                what: field()?,
                direction: field()?,
                verdict: field()?,
                words: field()?,
            })
        })
        .collect()
}

/// The parts, their titles, and the columns of their tables.
const PARTS: [(&str, &str, &[&str]); 4] = [
    ("subjects", "By verbs, step by step", &["ours -> Linux", "Linux -> ours"]),
    ("cm", "By rdma_cm", &["ours -> Linux", "Linux -> ours"]),
    ("programs", "Programs of Debian", &["ours -> Linux", "Linux -> ours"]),
    ("guest", "Our programs on Linux's device", &["in the guest", "ours -> Linux", "Linux -> ours"]),
];
const BEGIN: &str = "<!-- made by `cargo xtask interop --page` -->";
const END: &str = "<!-- end -->";

fn write_page(path: &Path, rows: &[Row]) -> Outcome {
    let page = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lost = || format!("{}: the tables' place is lost: {BEGIN} … {END}", path.display());
    let (before, rest) = page.split_once(BEGIN).ok_or_else(lost)?;
    let (_, after) = rest.split_once(END).ok_or_else(lost)?;
    let page = format!("{before}{BEGIN}\n{}\n{END}{after}", tables(rows));
    fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))
}

/// The tables: a row for each conversation, a column for each direction.
fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    for (part, title, directions) in PARTS {
        let _ = write!(text, "\n### {title}\n\n| conversation | what |");
        for direction in directions {
            let _ = write!(text, " {direction} |");
        }
        let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(directions.len()));
        let mut names: Vec<&str> = Vec::new();
        for row in rows.iter().filter(|row| row.part == part) {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        for name in names {
            let of = || rows.iter().filter(|row| row.part == part && row.name == name);
            let what = of().next().map_or("", |row| row.what.as_str());
            let _ = write!(text, "| `{name}` | {} |", what.replace('|', "\\|"));
            for direction in directions {
                let row = of().find(|row| row.direction == *direction);
                let cell = match row.map(|row| (row.verdict.as_str(), row.words.as_str())) {
                    None => String::new(),
                    Some(("ok", _)) => "ok".to_owned(),
                    Some((verdict, words)) => format!("{verdict}: {words}"),
                };
                let _ = write!(text, " {} |", cell.replace('|', "\\|"));
            }
            let _ = writeln!(text);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_a_row_for_each_conversation() {
        let folder = std::env::temp_dir().join(format!("xtask-interop-{}", std::process::id()));
        let line = |words: [&str; 6]| words.join("\t") + "\n";
        let text = line(["subjects", "rc-send", "RC a|b", "ours -> Linux", "ok", "12 ms"])
            + &line(["subjects", "rc-send", "RC a|b", "Linux -> ours", "known", "Linux is wrong"])
            + &line(["guest", "contract", "", "in the guest", "FAIL", "three"]);
        fs::write(&folder, text).unwrap();
        let rows = read(&folder).unwrap();
        fs::remove_file(&folder).unwrap();
        let tables = tables(&rows);
        assert!(tables.contains("| `rc-send` | RC a\\|b | ok | known: Linux is wrong |\n"), "{tables}");
        assert!(tables.contains("| `contract` |  | FAIL: three |  |  |\n"), "{tables}");
    }

    #[test]
    fn a_line_that_is_cut_is_not_a_result() {
        let path = std::env::temp_dir().join(format!("xtask-interop-cut-{}", std::process::id()));
        fs::write(&path, "subjects\trc-send\tRC\tours -> Linux\n").unwrap();
        assert!(read(&path).is_err());
        fs::remove_file(&path).unwrap();
    }
}
