//! The table of what Linux does otherwise than the scripts say: `rig/linux-differs.txt`. A row names a play (script and
//! node), what the message of the difference contains, and who is right; a play has as many rows as differences, in their
//! order. A play that differs elsewhere fails, and so does one that does not differ where the table says so: it says no more
//! and no less than what is.

use std::collections::BTreeMap;

use scalefabric_verbs::EventType;
use scalefabric_verbs::event::EVENTS;

use crate::runner::Excuse;

/// Who is right about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// The script: the standard says so.
    Script,
    /// Both: the standard leaves it open.
    Both,
    /// Linux: the script asks for more than the standard.
    Linux,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the message of the difference contains, white space aside.
    pub message: String,
    /// Nothing behind the difference can be compared.
    pub ends: bool,
    /// What Linux does.
    pub does: String,
    /// Clause of the standard.
    pub clause: String,
    /// Who is right.
    pub right: Right,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Rows by script and node.
    pub plays: BTreeMap<(String, String), Vec<Row>>,
    /// Events that Linux never raises.
    pub never: Vec<EventType>,
}

impl Table {
    /// Reads it: `script node | text of the message | what Linux does | clause | script, both or linux`. `end:` before the
    /// text: the play ends there. `* never | EVENT | …` is about all plays. Lines that begin with `#` and empty ones are for
    /// the reader.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
            let columns: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [play, message, does, clause, right] = columns[..] else {
                return Err(wrong("a row has five columns, separated by ' | '"));
            };
            let right = match right {
                "script" => Right::Script,
                "both" => Right::Both,
                "linux" => Right::Linux,
                _ => return Err(wrong("the last column says who is right: script, both or linux")),
            };
            let (script, node) = play.split_once(' ').ok_or_else(|| wrong("the first column is 'script node'"))?;
            if script == "*" {
                let event = EVENTS.iter().find(|info| info.name == message);
                table.never.push(event.ok_or_else(|| wrong("this is no event"))?.event_type);
                continue;
            }
            let (ends, message) = match message.strip_prefix("end:") {
                Some(rest) => (true, rest.trim()),
                None => (false, message),
            };
            let row = Row { message: message.into(), ends, does: does.into(), clause: clause.into(), right };
            table.plays.entry((script.into(), node.trim().into())).or_default().push(row);
        }
        Ok(table)
    }

    /// The rows of a play.
    pub fn of(&self, script: &str, node: &str) -> &[Row] {
        self.plays.get(&(script.to_owned(), node.to_owned())).map_or(&[], Vec::as_slice)
    }
}

/// A message in one line.
pub fn flat(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Judges the differences of one play.
pub struct Judge<'a> {
    rest: &'a [Row],
}

impl<'a> Judge<'a> {
    /// By the rows of the play.
    pub const fn new(rows: &'a [Row]) -> Self {
        Self { rest: rows }
    }

    /// Whether the next row says so.
    pub fn excuse(&mut self, message: &str) -> Excuse {
        let Some((row, rest)) = self.rest.split_first() else { return Excuse::None };
        if !flat(message).contains(&row.message) {
            return Excuse::None;
        }
        self.rest = rest;
        if row.ends { Excuse::End } else { Excuse::GoOn }
    }

    /// The first row that says of a difference that was not there.
    pub fn unused(&self) -> Option<&'a Row> {
        self.rest.first()
    }
}

#[cfg(test)]
mod tests {
    use super::{Judge, Right, Table};
    use crate::library::scripts;
    use crate::linux_stage::rules::{left_out, nodes};
    use crate::runner::Excuse;

    const ROWS: &str =
        "uc_loss b | found 3 | counts otherwise | 9.8 | both\nuc_loss b | end: none left | x | 9 | script\n";

    #[test]
    fn differences_are_excused_in_the_order_of_the_rows_and_no_others() {
        let table = Table::parse(ROWS).unwrap();
        let rows = table.of("uc_loss", "b");
        assert_eq!(rows[0].right, Right::Both);
        let mut judge = Judge::new(rows);
        assert_eq!(judge.excuse("expected 2,\n  found 4"), Excuse::None);
        assert_eq!(judge.excuse("expected 2,\n  found 3"), Excuse::GoOn);
        assert_eq!(judge.excuse("expected 2, found 3"), Excuse::None, "once");
        assert_eq!(judge.unused(), Some(&rows[1]));
        assert_eq!(judge.excuse("none left"), Excuse::End);
        assert_eq!(judge.unused(), None);
        assert_eq!(Judge::new(table.of("uc_loss", "a")).excuse("found 3"), Excuse::None);
    }

    #[test]
    fn a_row_that_is_not_one_is_refused() {
        assert!(Table::parse("uc_loss b | found 3 | both").unwrap_err().contains("five columns"));
        assert!(Table::parse("uc_loss b | a | b | c | we").unwrap_err().contains("who is right"));
        assert!(Table::parse("* never | NOTHING | b | c | both").unwrap_err().contains("no event"));
    }

    /// Rows of the real table name plays that are really played.
    #[test]
    fn every_row_names_a_play() {
        let table = Table::parse(include_str!("../../rig/linux-differs.txt")).unwrap();
        let scripts = scripts().unwrap();
        for (script, node) in table.plays.keys() {
            let entry = scripts.iter().find(|entry| entry.name == *script);
            let entry = entry.unwrap_or_else(|| panic!("no script is called {script}"));
            assert!(nodes(&entry.script).contains(node), "{script} has no node {node}");
            assert_eq!(left_out(&entry.script, node), None, "{script} {node} is left out by a rule");
        }
    }
}
