//! The table of what Linux does otherwise than the scripts say: `rig/linux-differs.txt`. A row names a play (script and
//! node), what its report must contain, and who is right. A play that is in the table and agrees fails as one does that
//! is not and differs: the table says no more and no less than what is so.

use std::collections::BTreeMap;

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
    /// What the report of the play must contain.
    pub report: String,
    /// What Linux does.
    pub does: String,
    /// Clause of the standard.
    pub clause: String,
    /// Who is right.
    pub right: Right,
}

/// The table, by script and node.
pub type Table = BTreeMap<(String, String), Row>;

/// Reads it: `script node | text of the report | what Linux does | clause | script, both or linux`. Lines that begin with
/// `#` and empty ones are for the reader.
pub fn parse(text: &str) -> Result<Table, String> {
    let mut table = Table::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
        let columns: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [play, report, does, clause, right] = columns[..] else {
            return Err(wrong("a row has five columns, separated by ' | '"));
        };
        let (script, node) = play.split_once(' ').ok_or_else(|| wrong("the first column is 'script node'"))?;
        let right = match right {
            "script" => Right::Script,
            "both" => Right::Both,
            "linux" => Right::Linux,
            _ => return Err(wrong("the last column says who is right: script, both or linux")),
        };
        let row = Row { report: report.into(), does: does.into(), clause: clause.into(), right };
        if table.insert((script.into(), node.trim().into()), row).is_some() {
            return Err(wrong("this play has a row already"));
        }
    }
    Ok(table)
}

/// What a play means in the light of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the script says, and no row says otherwise.
    Agrees,
    /// Otherwise, as the row says.
    Differs,
    /// Otherwise, and no row says so, or another one.
    UnexpectedDifference,
    /// As the script says, though a row says otherwise.
    UnexpectedAgreement,
}

/// Judges a play by its report (`None`: it agreed).
pub fn judge(row: Option<&Row>, report: Option<&str>) -> Verdict {
    match (row, report) {
        (None, None) => Verdict::Agrees,
        (Some(_), None) => Verdict::UnexpectedAgreement,
        (Some(row), Some(report)) if report.contains(&row.report) => Verdict::Differs,
        _ => Verdict::UnexpectedDifference,
    }
}

#[cfg(test)]
mod tests {
    use super::{Right, Verdict, judge, parse};
    use crate::library::scripts;
    use crate::linux_stage::rules::{left_out, nodes};

    const ROW: &str = "uc_loss b | found 3 | counts otherwise | 9.8 | both\n";

    #[test]
    fn agreement_and_difference_are_judged_by_the_table() {
        let table = parse(ROW).unwrap();
        let row = table.values().next();
        assert_eq!(row.unwrap().right, Right::Both);
        assert_eq!(judge(row, Some("expected 2, found 3")), Verdict::Differs);
        assert_eq!(judge(row, Some("expected 2, found 4")), Verdict::UnexpectedDifference);
        assert_eq!(judge(row, None), Verdict::UnexpectedAgreement);
        assert_eq!(judge(None, None), Verdict::Agrees);
        assert_eq!(judge(None, Some("anything")), Verdict::UnexpectedDifference);
    }

    #[test]
    fn a_row_that_is_not_one_is_refused() {
        assert!(parse("uc_loss b | found 3 | both").unwrap_err().contains("five columns"));
        assert!(parse("uc_loss b | a | b | c | we").unwrap_err().contains("who is right"));
        assert!(parse(&ROW.repeat(2)).unwrap_err().contains("a row already"));
    }

    /// Rows of the real table name plays that are really played.
    #[test]
    fn every_row_names_a_play() {
        let table = parse(include_str!("../../rig/linux-differs.txt")).unwrap();
        let scripts = scripts().unwrap();
        for (script, node) in table.keys() {
            let entry = scripts.iter().find(|entry| entry.name == *script);
            let entry = entry.unwrap_or_else(|| panic!("no script is called {script}"));
            assert!(nodes(&entry.script).contains(node), "{script} has no node {node}");
            assert_eq!(left_out(&entry.script, node), None, "{script} {node} is left out by a rule");
        }
    }
}
