//! `cargo xtask bench --peers`: our figures as ratios to what others do, and to what the machine does, on this machine in one run. Each
//! row measures ours and theirs one after the other; the rows take turns, repetition after repetition; the ratio that counts is the median
//! of the repetitions' ratios. What cannot be measured here is named with its reason.

mod lab;
mod page;
mod rows;

use crate::machine;
use crate::process::Outcome;
use clap::Parser;
use lab::Lab;
use serde_json::{Value, json};

/// Options behind `--peers`.
#[derive(Parser)]
#[command(name = "cargo xtask bench --peers", no_binary_name = true)]
pub struct Options {
    /// Repetitions; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Length of one measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only rows whose name has this; may be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Install what is missing (root, Debian or Ubuntu; UCX 1.22 from PyPI into target/).
    #[arg(long)]
    install: bool,
    /// Write the tables into docs/performance.md.
    #[arg(long)]
    page: bool,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Use the products of target/debug: to try a row, not to judge it.
    #[arg(long, conflicts_with = "page")]
    debug: bool,
    /// Measure what is built already.
    #[arg(long)]
    no_build: bool,
    /// Name the rows and end.
    #[arg(long)]
    list: bool,
}

/// What two things took, or did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Ours.
    pub ours: f64,
    /// Theirs.
    pub theirs: f64,
    /// Processor seconds for 10^9 bytes, both ends: ours and theirs, where both tell.
    pub cpu: [Option<f64>; 2],
}

/// Measures a row once; or says why it cannot be.
pub type Measure = Box<dyn Fn(&Lab) -> Result<Sample, String>>;

/// Which ratios are good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Floor, and aim: above it.
    AtLeast(f64, f64),
    /// Floor, and aim: below it.
    AtMost(f64, f64),
    /// Only to be known.
    None,
}

/// A figure.
pub struct Row {
    /// What is compared, ours / theirs.
    pub name: String,
    /// Unit of both.
    pub unit: &'static str,
    /// Which ratios are good.
    pub goal: Goal,
    /// How it is measured.
    pub measure: Measure,
}

/// A row with what was measured.
pub struct Measured {
    name: String,
    unit: &'static str,
    goal: Goal,
    samples: Vec<Sample>,
    skipped: Option<String>,
}

/// The command.
pub fn run(arguments: &[String]) -> Outcome {
    let options = Options::try_parse_from(arguments).map_err(|error| error.to_string())?;
    if options.install {
        lab::install()?;
    }
    let rows: Vec<Row> = rows::all(&lab::ucx_versions()).into_iter().filter(|row| options.wants(&row.name)).collect();
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if !options.no_build {
        crate::products::build(options.debug)?;
    }
    let lab = Lab::new(options.seconds, options.debug)?;
    let measured = measure(&lab, &rows, options.repeat);
    if options.json {
        let rows: Vec<Value> = measured.iter().map(Measured::as_json).collect();
        println!("{:#}", json!({ "machine": machine::description(), "rows": rows }));
    } else {
        println!("\n{}", table(&measured));
        println!("Ours / theirs; median of {} repetitions, least to most. {}", options.repeat, machine::description());
    }
    if options.page {
        page::write(&measured, &machine::description(), &command(&options))?;
    }
    Ok(())
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }
}

fn command(options: &Options) -> String {
    format!("cargo xtask bench --peers --repeat {} --seconds {}", options.repeat, options.seconds)
}

fn measure(lab: &Lab, rows: &[Row], repeat: u32) -> Vec<Measured> {
    let empty = |row: &Row| Measured {
        name: row.name.clone(),
        unit: row.unit,
        goal: row.goal,
        samples: Vec::new(),
        skipped: None,
    };
    let mut all: Vec<Measured> = rows.iter().map(empty).collect();
    for repetition in 1..=repeat {
        for (row, measured) in rows.iter().zip(&mut all).filter(|(_, measured)| measured.skipped.is_none()) {
            eprintln!("[{repetition}/{repeat}] {}", row.name);
            match (row.measure)(lab) {
                Ok(sample) if sample.ours > 0.0 && sample.theirs > 0.0 => {
                    // So that a run that is ended early has told what it knew.
                    let [ours, theirs] = [sample.ours, sample.theirs].map(short);
                    eprintln!("    {ours}, {theirs} {}: {}", row.unit, short(sample.ours / sample.theirs));
                    measured.samples.push(sample);
                }
                Ok(sample) => measured.skipped = Some(format!("nothing was measured: {sample:?}")),
                Err(why) => {
                    eprintln!("    skipped: {why}");
                    measured.skipped = Some(why);
                }
            }
        }
    }
    all
}

/// Median; 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        even if even % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

impl Measured {
    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.samples.iter().map(|sample| sample.ours / sample.theirs)
    }

    fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    /// Ours could not be measured, where it should have been.
    fn has_failed(&self) -> bool {
        self.skipped.as_ref().is_some_and(|why| why.contains("sfab perf"))
    }

    /// In one word.
    fn verdict(&self) -> &'static str {
        let ratio = self.ratio();
        match self.goal {
            _ if self.has_failed() => "FAILED",
            _ if self.skipped.is_some() => "skipped",
            Goal::None => "",
            Goal::AtLeast(_, aim) if ratio >= aim => "aim",
            Goal::AtMost(_, aim) if ratio <= aim => "aim",
            Goal::AtLeast(floor, _) if ratio >= floor => "floor",
            Goal::AtMost(floor, _) if ratio <= floor => "floor",
            _ => "MISSED",
        }
    }

    fn spread(&self) -> String {
        let least = self.ratios().fold(f64::INFINITY, f64::min);
        format!("{} to {}", short(least), short(self.ratios().fold(0.0, f64::max)))
    }

    fn goal(&self) -> [String; 2] {
        match self.goal {
            Goal::AtLeast(floor, aim) => [floor, aim].map(|value| format!(">= {value}")),
            Goal::AtMost(floor, aim) => [floor, aim].map(|value| format!("<= {value}")),
            Goal::None => [String::new(), String::new()],
        }
    }

    /// Processor time of both, if both tell.
    fn cpu(&self) -> String {
        let of = |which: usize| {
            let values: Vec<f64> = self.samples.iter().filter_map(|sample| sample.cpu[which]).collect();
            if values.is_empty() { "-".to_owned() } else { short(median(values.into_iter())) }
        };
        if self.samples.iter().any(|sample| sample.cpu != [None, None]) {
            format!("{}, {}", of(0), of(1))
        } else {
            String::new()
        }
    }

    /// Cells of a row of the table.
    fn cells(&self) -> [String; 9] {
        let name = self.name.clone();
        if let Some(why) = &self.skipped {
            let [floor, aim] = self.goal();
            let empty = String::new;
            return [
                name,
                empty(),
                empty(),
                empty(),
                floor,
                aim,
                format!("{}: {why}", self.verdict()),
                empty(),
                empty(),
            ];
        }
        let ours = median(self.samples.iter().map(|sample| sample.ours));
        let theirs = median(self.samples.iter().map(|sample| sample.theirs));
        let [floor, aim] = self.goal();
        let values = format!("{}, {} {}", short(ours), short(theirs), self.unit);
        [
            name,
            values,
            short(self.ratio()),
            self.spread(),
            floor,
            aim,
            self.verdict().to_owned(),
            self.cpu(),
            String::new(),
        ]
    }

    fn as_json(&self) -> Value {
        let samples: Vec<Value> = self
            .samples
            .iter()
            .map(|sample| json!({ "ours": sample.ours, "theirs": sample.theirs, "cpu_s_per_gb": sample.cpu }))
            .collect();
        let [floor, aim] = self.goal();
        json!({
            "name": self.name, "unit": self.unit, "floor": floor, "aim": aim, "ratio": self.ratio(), "verdict": self.verdict(),
            "skipped": self.skipped, "samples": samples,
        })
    }
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn table(measured: &[Measured]) -> String {
    let head = ["ours / theirs", "ours, theirs", "ratio", "spread", "floor", "aim", "", "CPU s/GB"].map(str::to_owned);
    let mut rows = vec![head.to_vec()];
    rows.extend(measured.iter().map(|row| row.cells()[..8].to_vec()));
    // The reason of a skipped row is as long as it is.
    let is_wide = |row: &[String], column: usize| {
        column == 6 && (row[column].starts_with("skipped") || row[column].starts_with("FAILED"))
    };
    let mut widths = [0; 8];
    for row in &rows {
        for (column, cell) in row.iter().enumerate().filter(|(column, _)| !is_wide(row, *column)) {
            widths[column] = widths[column].max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(goal: Goal, pairs: &[(f64, f64)]) -> Measured {
        let samples =
            pairs.iter().map(|(ours, theirs)| Sample { ours: *ours, theirs: *theirs, cpu: [None, None] }).collect();
        Measured { name: "a / b".to_owned(), unit: "us", goal, samples, skipped: None }
    }

    #[test]
    fn the_ratio_is_the_median_of_what_was_measured_side_by_side() {
        let measured = row(Goal::AtMost(2.0, 1.3), &[(1.0, 1.0), (30.0, 10.0), (12.0, 10.0)]);
        assert!((measured.ratio() - 1.2).abs() < 1e-9);
        assert_eq!(measured.spread(), "1.00 to 3.00");
        assert_eq!(measured.verdict(), "aim");
    }

    #[test]
    fn a_verdict_is_the_best_that_is_reached() {
        let of = |goal, ratio| row(goal, &[(ratio, 1.0)]).verdict();
        assert_eq!(
            [1.3, 1.4, 2.0, 2.1].map(|ratio| of(Goal::AtMost(2.0, 1.3), ratio)),
            ["aim", "floor", "floor", "MISSED"]
        );
        assert_eq!(
            [0.9, 0.85, 0.8, 0.7].map(|ratio| of(Goal::AtLeast(0.8, 0.9), ratio)),
            ["aim", "floor", "floor", "MISSED"]
        );
        assert_eq!(of(Goal::None, 7.0), "");
        let skipped = Measured { skipped: Some("no root".to_owned()), ..row(Goal::AtLeast(1.0, 2.0), &[]) };
        assert_eq!(skipped.verdict(), "skipped");
        assert!(table(&[skipped]).contains("skipped: no root"));
    }

    #[test]
    fn the_options_are_read_and_nonsense_is_refused() {
        let read = |words: &str| Options::try_parse_from(words.split_whitespace());
        let options = read("--repeat 3 --seconds 0.5 --only UDP --install --page").unwrap();
        assert!(
            options.repeat == 3
                && options.install
                && options.page
                && options.wants("UDP, 8 B")
                && !options.wants("same host")
        );
        assert!(read("--repeat 0").is_err() && read("--colour").is_err());
    }
}
