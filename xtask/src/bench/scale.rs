//! `cargo xtask bench --scale`: how the software NIC grows with queue pairs, regions, threads and processes, as tables. The example
//! `scale` of nic measures.

use super::marks::Marks;
use crate::machine;
use crate::process::{self, Outcome, cargo};
use clap::Parser;
use serde_json::Value;

/// Options behind `--scale`.
#[derive(Parser)]
#[command(name = "cargo xtask bench --scale", no_binary_name = true)]
struct Options {
    /// Time of one measurement, ms.
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Only tables whose title has this word: queue pairs in turn, memory, made and ended, regions, pollers, threads, receive, processes, connections.
    #[arg(long)]
    only: Option<String>,
    /// The most queue pairs, and regions, of the tables that grow.
    #[arg(long, default_value_t = 100_000)]
    most: u32,
    /// Write the tables into docs/performance.md.
    #[arg(long, conflicts_with = "only")]
    page: bool,
}

const PAGE: Marks = Marks { page: "docs/performance.md", command: "cargo xtask bench --scale --page" };

/// A table as the example tells it.
struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The command.
pub fn run(arguments: &[String]) -> Outcome {
    let options = Options::try_parse_from(arguments).map_err(|error| error.to_string())?;
    process::run(cargo().args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "scalefabric-nic",
        "--example",
        "scale",
    ]))?;
    let mut command = std::process::Command::new(process::target_folder()?.join("release/examples/scale"));
    command.args(["--ms", &options.ms.to_string(), "--most", &options.most.to_string()]);
    if let Some(only) = &options.only {
        command.args(["--only", only]);
    }
    let told = process::output(&mut command)?;
    let tables = read(&told).ok_or_else(|| format!("`scale` told no tables:\n{told}"))?;
    for table in &tables {
        println!("{}\n", shown(table));
    }
    if options.page {
        let mut text = format!("`cargo xtask bench --scale --ms {}`. {}\n", options.ms, machine::description());
        tables.iter().for_each(|table| text += &format!("\n{}", written(table)));
        PAGE.write(&text)?;
    }
    Ok(())
}

fn read(told: &str) -> Option<Vec<Table>> {
    let document: Value = serde_json::from_str(told).ok()?;
    let words = |list: &Value| -> Option<Vec<String>> {
        list.as_array()?.iter().map(|word| Some(word.as_str()?.to_owned())).collect()
    };
    let table = |table: &Value| {
        let rows = table["rows"].as_array()?.iter().map(words).collect::<Option<_>>()?;
        Some(Table { title: table["title"].as_str()?.to_owned(), head: words(&table["head"])?, rows })
    };
    document["tables"].as_array()?.iter().map(table).collect()
}

/// For a terminal.
fn shown(table: &Table) -> String {
    let lines = || std::iter::once(&table.head).chain(&table.rows);
    let width = |column: usize| lines().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..table.head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = table.title.clone();
    for cells in lines() {
        let line: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        text += &format!("\n  {}", line.join("  "));
    }
    text
}

/// For the page.
fn written(table: &Table) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("**{}**\n\n{}|{}\n", table.title, line(&table.head), "---:|".repeat(table.head.len()));
    table.rows.iter().for_each(|row| text += &line(row));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_becomes_tables_for_the_terminal_and_the_page() {
        let told = r#"{"tables": [{"title": "t", "head": ["N", "ns"], "rows": [["1", "700"], ["10,000", "9"]]}]}"#;
        let tables = read(told).unwrap();
        assert_eq!(shown(&tables[0]), "t\n       N   ns\n       1  700\n  10,000    9");
        assert_eq!(written(&tables[0]), "**t**\n\n| N | ns |\n|---:|---:|\n| 1 | 700 |\n| 10,000 | 9 |\n");
        assert!(read("{}").is_none() && read(r#"{"tables": [{"title": "t"}]}"#).is_none());
    }
}
