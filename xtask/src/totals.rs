//! Counting tests: reads what `cargo test` prints, one line at a time, and adds up.

use std::ops::AddAssign;

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passed.
    pub passed: u64,
    /// Failed, or could not be built or started.
    pub failed: u64,
    /// Ignored, or skipped with a reason.
    pub skipped: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The numbers of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`.
pub fn result_line(line: &str) -> Option<Totals> {
    let rest = line.trim().strip_prefix("test result:")?;
    let mut totals = Totals::default();
    for part in rest.split(['.', ';']) {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse() else { continue };
        match what {
            "passed" => totals.passed = number,
            "failed" => totals.failed = number,
            "ignored" => totals.skipped = number,
            _ => {}
        }
    }
    Some(totals)
}

/// The numbers of the line `clients: 3 passed, 0 failed, 1 skipped`.
pub fn clients_line(line: &str) -> Option<Totals> {
    let rest = line.strip_prefix("clients: ")?;
    let mut totals = Totals::default();
    for part in rest.split(", ") {
        let (number, what) = part.split_once(' ')?;
        let number = number.parse().ok()?;
        match what {
            "passed" => totals.passed = number,
            "failed" => totals.failed = number,
            "skipped" => totals.skipped = number,
            _ => return None,
        }
    }
    Some(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_counted() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.10s";
        assert_eq!(result_line(line), Some(Totals { passed: 12, failed: 1, skipped: 2 }));
        assert_eq!(result_line("test engine::a ... ok"), None);
    }

    #[test]
    fn the_clients_are_counted() {
        assert_eq!(
            clients_line("clients: 30 passed, 1 failed, 2 skipped"),
            Some(Totals { passed: 30, failed: 1, skipped: 2 })
        );
        assert_eq!(clients_line("clients: no case"), None);
    }

    #[test]
    fn totals_print_in_the_promised_form() {
        let mut totals = Totals { passed: 3, failed: 0, skipped: 1 };
        totals += Totals { passed: 2, ..Totals::default() };
        assert_eq!(totals.to_string(), "5 passed, 0 failed, 1 skipped");
    }
}
