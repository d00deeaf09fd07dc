//! `cargo xtask bench --instructions`: what the data path costs in instructions, beside what is kept in docs/instructions.md. callgrind
//! counts, so the machine's load does not matter; another compiler or processor family does.
//!
//! One run of the example `instructions` of `nic` for each number of idle queue pairs; callgrind's report says what each of its
//! functions `measured_*` cost with all that it called.

use super::callgrind;
use super::marks::Marks;
use crate::process::{self, Outcome, cargo};
use clap::Parser;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Options behind `--instructions`.
#[derive(Parser)]
#[command(name = "cargo xtask bench --instructions", no_binary_name = true)]
struct Options {
    /// Fail if a figure is more than 3 % above the one that is kept; as CI does.
    #[arg(long, conflicts_with = "renew")]
    check: bool,
    /// Keep what is counted now in docs/instructions.md.
    #[arg(long)]
    renew: bool,
    /// Only figures whose words have this, such as `requester`; may be repeated.
    #[arg(long)]
    only: Vec<String>,
}

/// What is counted: the function of the example, what it is in words, and the unit.
const FIGURES: [(&str, &str); 19] = [
    ("requester_write_8", "requester: packet of an 8 B WRITE, one a turn"),
    ("requester_write_8_list", "requester: packet of an 8 B WRITE, 8 a turn"),
    ("requester_send_8", "requester: packet of an 8 B SEND, one a turn"),
    ("requester_write_4096", "requester: packet of 4 KiB, 16 a turn"),
    ("responder_write_8", "responder: packet of an 8 B WRITE, one a turn"),
    ("responder_write_8_list", "responder: packet of an 8 B WRITE, 8 a turn"),
    ("responder_send_8", "responder: packet of an 8 B SEND, one a turn"),
    ("responder_write_4096", "responder: packet of 4 KiB, 16 a turn"),
    ("completer_write_8", "completer: retired WRITE, one an ACK"),
    ("completer_write_8_list", "completer: retired WRITE, 8 an ACK"),
    ("completer_send_8", "completer: retired SEND, one an ACK"),
    ("completer_write_65536", "completer: retired WRITE of 64 KiB"),
    ("post_send", "`post_send`: WR, one a call"),
    ("post_send_inline", "`post_send`: inline WR, one a call"),
    ("post_send_list", "`post_send`: WR, 32 a call"),
    ("post_recv", "`post_recv`: WR, one a call"),
    ("poll_one", "`poll` that takes one completion"),
    ("poll_empty", "`poll` that finds nothing, and its turn"),
    ("turn_empty", "turn with nothing to do"),
];

/// Idle connected queue pairs beside the busy one: a column each. What the columns differ by is what idle ones cost.
const IDLE: [u32; 2] = [0, 1000];

/// How much more a figure may be than the one that is kept, in per cent, and, for the small ones, in instructions.
const PERCENT: f64 = 3.0;
const FEW: f64 = 8.0;

/// The same under another compiler than the one of the page.
const OTHER_COMPILER_PERCENT: f64 = 15.0;

const PAGE: &str = "docs/instructions.md";
const MARKS: Marks = Marks { page: PAGE, command: "cargo xtask bench --instructions --renew" };

/// Figures by their words: a number for each column.
type Counts = BTreeMap<String, Vec<f64>>;

/// The command.
pub fn run(arguments: &[String]) -> Outcome {
    let options = Options::try_parse_from(arguments).map_err(|error| error.to_string())?;
    if !callgrind() {
        return Ok(());
    }
    let mut tables = Kept::read_all(&MARKS.read()?);
    let build = ["build", "--release", "--quiet", "--package", "scalefabric-nic", "--example", "instructions"];
    process::run(cargo().args(build))?;
    let program = process::target_folder()?.join("release/examples/instructions");
    let mut now = Counts::new();
    for idle in IDLE {
        for (name, count) in count(&program, idle)? {
            now.entry(name).or_default().push(count);
        }
    }
    let is_wanted = |words: &str| options.only.is_empty() || options.only.iter().any(|only| words.contains(only));
    now.retain(|words, _| is_wanted(words));
    let built_with = built_with()?;
    let at = tables.iter().position(|kept| kind(&kept.built_with) == kind(&built_with));
    let of_this_kind = at.map(|at| &tables[at]);
    println!("{}", table(of_this_kind.map_or(&Counts::new(), |kept| &kept.counts), &now));
    if options.renew {
        let mut fresh = Kept { counts: now, built_with };
        let old = at.map(|at| std::mem::take(&mut tables[at].counts)).unwrap_or_default();
        for (words, numbers) in old.into_iter().filter(|(words, _)| !is_wanted(words)) {
            fresh.counts.insert(words, numbers);
        }
        match at {
            Some(at) => tables[at] = fresh,
            None => tables.push(fresh),
        }
        return MARKS.write(&written(&tables));
    }
    let Some(kept) = of_this_kind else {
        println!("not judged: {PAGE} has no figures of this kind of processor ({built_with}); --renew adds them");
        return Ok(());
    };
    let percent = if kept.built_with == built_with { PERCENT } else { OTHER_COMPILER_PERCENT };
    let (worse, better) = judge(&kept.counts, &now, percent);
    if !better.is_empty() {
        println!("fewer than {PAGE} has; keep it that way with `cargo xtask bench --instructions --renew`:\n{better}");
    }
    if worse.is_empty() {
        return Ok(());
    }
    let told = format!(
        "more instructions than {PAGE} has, and more than {percent} % are a regression:\n{worse}If the change is meant, say why in \
         its commit and keep the new figures: cargo xtask bench --instructions --renew"
    );
    if options.check {
        return Err(told);
    }
    println!("{told}");
    Ok(())
}

/// The compiler and the kind of processor, on which counts depend.
fn built_with() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = process::output(Command::new(rustc).arg("--version"))?;
    let version = version.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    // The C library's copies and the CRCs are other instructions on another maker's processor.
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let maker = known.lines().find_map(|line| line.strip_prefix("vendor_id")?.split(':').nth(1)).unwrap_or("").trim();
    Ok(format!("{version}, {}-{maker}", std::env::consts::ARCH).trim_end_matches('-').to_owned())
}

/// The kind of processor of [`built_with`].
fn kind(built_with: &str) -> Option<&str> {
    built_with.split_whitespace().next_back()
}

/// Runs the example beside so many idle queue pairs; gives instructions per unit of each figure.
fn count(program: &Path, idle: u32) -> Result<Vec<(String, f64)>, String> {
    let report = program.with_extension(format!("{idle}.callgrind"));
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--quiet"])
        .arg(format!("--callgrind-out-file={}", report.display()))
        .arg(program)
        .arg(idle.to_string())
        .stdin(Stdio::null());
    let printed = process::output(&mut command)?;
    let text = fs::read_to_string(&report).map_err(|error| format!("{}: {error}", report.display()))?;
    let _ = fs::remove_file(&report);
    let costs = inclusive(&text);
    FIGURES
        .iter()
        .map(|(name, words)| {
            let units =
                printed.lines().find_map(|line| line.strip_prefix("measured_")?.strip_prefix(name)?.strip_prefix(' '));
            let units: f64 = units
                .and_then(|units| units.parse().ok())
                .filter(|units| *units > 0.0)
                .ok_or(format!("the example did not do {name}"))?;
            let cost = costs.get(*name).ok_or(format!("callgrind saw no call of measured_{name}"))?;
            Ok(((*words).to_owned(), *cost as f64 / units))
        })
        .collect()
}

/// What each function `measured_NAME` cost with all that it called, by NAME, of a report of callgrind: a line `cfn=FUNCTION`, a line
/// `calls=…`, and a line with the place of the call and its cost.
fn inclusive(report: &str) -> BTreeMap<String, u64> {
    let mut costs = BTreeMap::new();
    let mut called = None;
    let mut lines = report.lines();
    while let Some(line) = lines.next() {
        if let Some(function) = line.strip_prefix("cfn=") {
            called = function.split("measured_").nth(1).map(|name| {
                let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
                name[..end].to_owned()
            });
        } else if line.starts_with("calls=") {
            let cost = lines.next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            if let (Some(name), Some(cost)) = (called.take(), cost) {
                *costs.entry(name).or_default() += cost;
            }
        }
    }
    costs
}

/// What the page has of one kind of processor.
struct Kept {
    built_with: String,
    counts: Counts,
}

impl Kept {
    /// All tables of the page.
    fn read_all(text: &str) -> Vec<Self> {
        let begins: Vec<usize> = text.match_indices("Counted with ").map(|(at, _)| at).collect();
        let ends = begins.iter().copied().skip(1).chain([text.len()]);
        begins.iter().zip(ends).map(|(&begin, end)| Self::read(&text[begin..end])).collect()
    }

    fn read(table: &str) -> Self {
        let built_with = table.lines().find_map(|line| line.strip_prefix("Counted with ")?.strip_suffix('.'));
        let mut counts = Counts::new();
        for line in table.lines() {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let numbers: Option<Vec<f64>> =
                cells.iter().skip(1).map(|cell| cell.replace(',', "").parse().ok()).collect();
            if let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) {
                counts.insert(cells[0].to_owned(), numbers);
            }
        }
        Self { built_with: built_with.unwrap_or_default().to_owned(), counts }
    }
}

/// A line for each figure that is more than the kept one by more than it may, and for each that is less by as much.
fn judge(kept: &Counts, now: &Counts, percent: f64) -> (String, String) {
    let (mut worse, mut better) = (String::new(), String::new());
    for (words, numbers) in now {
        let Some(old) = kept.get(words) else {
            worse += &format!("  {words}: {PAGE} has no such row\n");
            continue;
        };
        for ((new, old), idle) in numbers.iter().zip(old).zip(IDLE) {
            let allowed = (old * percent / 100.0).max(FEW);
            let beside = if idle == 0 { String::new() } else { format!(" beside {idle} idle queue pairs") };
            let line = format!("  {words}{beside}: {new:.0}, kept {old:.0} ({:+.1} %)\n", (new / old - 1.0) * 100.0);
            if *new > old + allowed {
                worse += &line;
            } else if *new < old - allowed {
                better += &line;
            }
        }
    }
    (worse, better)
}

/// Rows in the order of [`FIGURES`].
fn rows(counts: &Counts) -> impl Iterator<Item = (&'static str, &Vec<f64>)> {
    FIGURES.iter().filter_map(|(_, words)| Some((*words, counts.get(*words)?)))
}

/// For the terminal: now, kept, and the change.
fn table(kept: &Counts, now: &Counts) -> String {
    let mut text = format!("{:<48}", "instructions");
    for idle in IDLE {
        text += &format!(
            " {:>26}",
            if idle == 0 { "alone (kept)".to_owned() } else { format!("beside {idle} idle (kept)") }
        );
    }
    for (words, numbers) in rows(now) {
        text += &format!("\n{words:<48}");
        for (column, new) in numbers.iter().enumerate() {
            let old = kept.get(words).and_then(|old| old.get(column));
            let old = old.map_or("new".to_owned(), |old| format!("{old:.0}, {:+.1} %", (new / old - 1.0) * 100.0));
            text += &format!(" {:>26}", format!("{new:.0} ({old})"));
        }
    }
    text
}

/// For the page.
fn written(tables: &[Kept]) -> String {
    let mut text = String::new();
    for kept in tables {
        text += &format!("Counted with {}.\n\n| instructions | alone |", kept.built_with);
        let beside = IDLE.iter().filter(|idle| **idle > 0);
        beside.for_each(|idle| text += &format!(" beside {} idle queue pairs |", thousands(f64::from(*idle))));
        text += &format!("\n|---|{}", "---:|".repeat(IDLE.len()));
        for (words, numbers) in rows(&kept.counts) {
            text += &format!("\n| {words} |");
            numbers.iter().for_each(|number| text += &format!(" {} |", thousands(*number)));
        }
        text += "\n\n";
    }
    text
}

/// `1,234`.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(words: &str, numbers: [f64; 2]) -> Counts {
        Counts::from([(words.to_owned(), numbers.to_vec())])
    }

    #[test]
    fn a_report_is_added_up_over_all_places_of_a_call() {
        let report = "fn=instructions::main\n10 5\ncfn=instructions::World::carry::measured_poll_one\ncalls=3 20\n11 300\n\
                      cfn=instructions::other\ncalls=1 30\n12 7777\n12 1\n\nfn=instructions::more\n\
                      cfn=instructions::World::carry::measured_poll_one\ncalls=1 20\n40 50\n\
                      cfn=instructions::measured_poll_one_more\ncalls=1 20\n41 9\n";
        let costs = inclusive(report);
        assert_eq!((costs["poll_one"], costs["poll_one_more"], costs.len()), (350, 9, 2));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let words = FIGURES[0].1;
        let kept = |kind: &str, numbers| Kept {
            built_with: format!("rustc 1.95.0, x86_64-{kind}"),
            counts: counts(words, numbers),
        };
        let page = written(&[kept("AuthenticAMD", [1234.4, 56.0]), kept("GenuineIntel", [7.0, 8.0])]);
        assert!(page.contains("| 1,234 | 56 |"), "{page}");
        let tables = Kept::read_all(&page);
        let kinds: Vec<_> = tables.iter().map(|kept| kind(&kept.built_with)).collect();
        assert_eq!(kinds, [Some("x86_64-AuthenticAMD"), Some("x86_64-GenuineIntel")]);
        assert_eq!(tables[0].counts, counts(words, [1234.0, 56.0]));
        assert_eq!(tables[1].counts, counts(words, [7.0, 8.0]));
        assert!(Kept::read_all("Not counted yet.").is_empty());
    }

    #[test]
    fn three_per_cent_more_are_well_and_a_little_more_is_not() {
        let kept = counts("x", [1000.0, 1000.0]);
        let judged = |numbers| judge(&kept, &counts("x", numbers), PERCENT);
        assert_eq!(judged([1030.0, 970.0]), (String::new(), String::new()));
        let (worse, better) = judged([1031.0, 969.0]);
        assert!(worse.contains("x: 1031, kept 1000 (+3.1 %)"), "{worse}");
        assert!(better.contains("beside 1000 idle queue pairs: 969"), "{better}");
        assert_eq!(judge(&counts("x", [50.0, 50.0]), &counts("x", [58.0, 50.0]), PERCENT).0, "", "a few are nothing");
        assert!(judge(&kept, &counts("y", [1.0, 1.0]), PERCENT).0.contains("no such row"));
    }

    #[test]
    fn every_figure_has_words_of_its_own() {
        let mut words: Vec<&str> = FIGURES.iter().map(|(_, words)| *words).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), FIGURES.len());
    }
}
