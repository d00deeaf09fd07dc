//! How the software NIC grows: with queue pairs, regions, threads and processes. `cargo xtask bench --scale` starts it and prints what it
//! measures; it prints one JSON document of tables.
//!
//! Each process has a device of its own on the loopback without a progress thread, and queue pairs that are connected to themselves: requester,
//! wire, responder and completer are all paid by the thread that posts and polls. What it costs is processor time of that thread,
//! which others on the machine do not change much; rates of several threads are by the wall clock.

mod connections;
mod pair;
mod processes;
mod queue_pairs;
mod regions;
mod threads;

use clap::Parser;
use serde_json::{Value, json};

#[derive(Parser)]
struct Options {
    /// Time of one measurement, ms.
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Only tables whose title has this word.
    #[arg(long)]
    only: Option<String>,
    /// The most queue pairs, and regions, of the tables that grow.
    #[arg(long, default_value_t = 100_000)]
    most: u32,
    /// Be one of several processes that make and end so many queue pairs when a line comes.
    #[arg(long, hide = true)]
    open: Option<u32>,
    /// Be one of several processes that send when a line comes.
    #[arg(long, hide = true)]
    send: bool,
}

/// A table: title, heads of the columns, rows.
pub struct Table {
    title: &'static str,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(title: &'static str, head: &[&'static str]) -> Self {
        Self { title, head: head.to_vec(), rows: Vec::new() }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn as_json(&self) -> Value {
        json!({ "title": self.title, "head": self.head, "rows": self.rows })
    }
}

/// `10,000`.
pub fn count(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Two digits behind the point.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// A table's beginning: what its title must have to be wanted, and how it is made.
type Make = (&'static str, fn(&Limits) -> Table);

/// How long, and how many at most.
pub struct Limits {
    /// Time of one measurement, ms.
    pub ms: u64,
    /// The most of each.
    pub most: u32,
}

const TABLES: [Make; 9] = [
    // First: what other tables gave back would hide what it takes.
    ("memory of idle queue pairs", queue_pairs::memory),
    ("queue pairs in turn", queue_pairs::in_turn),
    ("queue pairs made and ended", processes::made_and_ended),
    ("regions", regions::growing),
    ("pollers", threads::pollers),
    ("threads on one queue pair", threads::on_one),
    ("shared receive queue", queue_pairs::shared_receives),
    ("processes", processes::sending),
    ("connections of rdma_cm", connections::beside_idle),
];

fn main() {
    let options = Options::parse();
    if let Some(count) = options.open {
        return processes::open(count);
    }
    let limits = Limits { ms: options.ms, most: options.most };
    if options.send {
        return processes::send(&limits);
    }
    let is_wanted = |title: &str| options.only.as_ref().is_none_or(|only| title.contains(only.as_str()));
    let tables: Vec<Value> =
        TABLES.iter().filter(|(title, _)| is_wanted(title)).map(|(_, make)| make(&limits).as_json()).collect();
    println!("{}", json!({ "tables": tables }));
}
