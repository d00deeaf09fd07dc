//! The tables of a report: columns with a name, a unit and a type. Each is written as CSV and as Parquet from the same columns, so that the two cannot tell
//! different things.

use super::super::time::Ps;
use super::{Report, fct, slowdown};
use std::fmt::Write;

/// The cells of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Whole numbers.
    Whole(Vec<u64>),
    /// Numbers; in CSV with so many digits behind the point.
    Number(Vec<f64>, usize),
    /// Numbers that may be missing.
    Maybe(Vec<Option<f64>>, usize),
    /// True or false.
    Truth(Vec<bool>),
    /// Names without commas.
    Text(Vec<String>),
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name, which ends in the unit where there is one.
    pub name: &'static str,
    /// The unit: `ns`, `us`, `bytes`, `Gbit/s`, or `1` for what is counted or a ratio.
    pub unit: &'static str,
    /// The cells.
    pub cells: Cells,
}

/// A table. All columns are equally long.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Name of its file, without what tells the format.
    pub name: &'static str,
    /// The columns.
    pub columns: Vec<Column>,
}

impl Table {
    /// Rows.
    pub fn rows(&self) -> usize {
        match self.columns.first().map(|column| &column.cells) {
            None => 0,
            Some(Cells::Whole(cells)) => cells.len(),
            Some(Cells::Number(cells, _)) => cells.len(),
            Some(Cells::Maybe(cells, _)) => cells.len(),
            Some(Cells::Truth(cells)) => cells.len(),
            Some(Cells::Text(cells)) => cells.len(),
        }
    }

    /// As CSV: a line of names, then a line for each row; a cell that is missing is empty.
    pub fn csv(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name).collect();
        let mut out = names.join(",") + "\n";
        for row in 0..self.rows() {
            for (n, column) in self.columns.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                let _ = match &column.cells {
                    Cells::Whole(cells) => write!(out, "{}", cells[row]),
                    Cells::Number(cells, digits) => write!(out, "{:.*}", *digits, cells[row]),
                    Cells::Maybe(cells, digits) => match cells[row] {
                        Some(number) => write!(out, "{number:.*}", *digits),
                        None => Ok(()),
                    },
                    Cells::Truth(cells) => write!(out, "{}", cells[row]),
                    Cells::Text(cells) => write!(out, "{}", cells[row]),
                };
            }
            out.push('\n');
        }
        out
    }
}

fn column(name: &'static str, unit: &'static str, cells: Cells) -> Column {
    Column { name, unit, cells }
}

/// One row of a table, cell by cell.
macro_rules! cells {
    ($kind:ident, $rows:expr, $row:ident => $value:expr $(, $digits:literal)?) => {
        Cells::$kind($rows.iter().map(|$row| $value).collect() $(, $digits)?)
    };
}

impl Report {
    /// The tables: flows if there were any, samples, pauses.
    pub fn tables(&self) -> Vec<Table> {
        let ended: Vec<_> = self.messages.iter().filter(|message| message.acked != Ps::NEVER).collect();
        let flows = Table {
            name: "flows",
            columns: vec![
                column("src", "1", cells!(Whole, ended, flow => flow.from.into())),
                column("dst", "1", cells!(Whole, ended, flow => flow.to.into())),
                column("size_bytes", "bytes", cells!(Whole, ended, flow => flow.bytes)),
                column("start_ns", "ns", cells!(Whole, ended, flow => flow.posted.as_ns())),
                column("fct_ns", "ns", cells!(Whole, ended, flow => fct(flow).as_ns())),
                column("ideal_ns", "ns", cells!(Whole, ended, flow => flow.ideal.as_ns())),
                column("slowdown", "1", cells!(Number, ended, flow => slowdown(flow), 4)),
            ],
        };
        let samples = Table {
            name: "samples",
            columns: vec![
                column("t_ns", "ns", cells!(Whole, self.samples, look => look.at.as_ns())),
                column("worst_queue_bytes", "bytes", cells!(Whole, self.samples, look => look.worst_queue.into())),
                column("queued_bytes", "bytes", cells!(Whole, self.samples, look => look.queued)),
                column("goodput_gbps", "Gbit/s", cells!(Number, self.samples, look => look.goodput_gbps, 3)),
                column("active_qps", "1", cells!(Whole, self.samples, look => look.active.into())),
                column("jain", "1", cells!(Maybe, self.samples, look => look.jain, 5)),
                column("paused_ports", "1", cells!(Whole, self.samples, look => look.paused.into())),
            ],
        };
        let pauses = Table {
            name: "pauses",
            columns: vec![
                column("paused", "1", cells!(Text, self.pauses, pause => pause.paused.clone())),
                column("because_of", "1", cells!(Text, self.pauses, pause => pause.because_of.clone())),
                column("passed_on", "1", cells!(Truth, self.pauses, pause => pause.passed_on)),
                column("times", "1", cells!(Whole, self.pauses, pause => pause.times)),
                column("paused_us", "us", cells!(Number, self.pauses, pause => pause.paused_us, 3)),
            ],
        };
        let mut tables = vec![samples, pauses];
        if self.flows.ended > 0 {
            tables.push(flows);
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_written_with_its_digits_and_a_missing_cell_is_empty() {
        let table = Table {
            name: "t",
            columns: vec![
                column("n", "1", Cells::Whole(vec![1, u64::MAX])),
                column("x_ns", "ns", Cells::Number(vec![0.5, 2.0], 3)),
                column("j", "1", Cells::Maybe(vec![None, Some(0.25)], 5)),
                column("yes", "1", Cells::Truth(vec![true, false])),
                column("who", "1", Cells::Text(vec!["a -> b".to_owned(), String::new()])),
            ],
        };
        assert_eq!(table.csv(), "n,x_ns,j,yes,who\n1,0.500,,true,a -> b\n18446744073709551615,2.000,0.25000,false,\n");
    }
}
