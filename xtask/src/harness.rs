//! Reading what Rust's test harness prints, line by line: how many tests passed, failed and skipped themselves, which failed
//! and what they said. It starts nothing and prints nothing.

use crate::totals::{Totals, result_line};

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its whole name, as `--exact` takes it; for a test binary that died, what cargo says of it.
    pub name: String,
    /// What it printed.
    pub said: Vec<String>,
}

/// The part of a test binary's output that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Tests,
    Successes,
    Failures,
}

/// What was read so far.
#[derive(Debug, Default)]
pub struct Harness {
    /// The numbers.
    pub totals: Totals,
    /// The failures, in the order of their end.
    pub failures: Vec<Failure>,
    /// A test binary ended by a signal: tests of it may not have run at all.
    pub has_died: bool,
    /// Tests of the present binary that skipped themselves; the harness counts them as passed.
    skipped: u64,
    part: Part,
    speaker: Option<usize>,
}

impl Harness {
    /// Takes a line; true if a person should see it. Hidden is what passed tests print, and that they passed.
    pub fn line(&mut self, text: &str) -> bool {
        let trimmed = text.trim();
        if let Some(mut counted) = result_line(text) {
            let skipped = std::mem::take(&mut self.skipped);
            counted.passed = counted.passed.saturating_sub(skipped);
            counted.skipped += skipped;
            self.totals += counted;
            (self.part, self.speaker) = (Part::Tests, None);
            return true;
        }
        if trimmed.starts_with("skipped:") {
            self.skipped += 1;
            return true;
        }
        if trimmed.starts_with("process didn't exit successfully") && trimmed.contains("(signal") {
            self.has_died = true;
            self.totals.failed += 1;
            self.failures.push(Failure { name: trimmed.to_owned(), said: Vec::new() });
            (self.part, self.speaker) = (Part::Tests, None);
            return true;
        }
        match text {
            "successes:" => self.part = Part::Successes,
            "failures:" => (self.part, self.speaker) = (Part::Failures, None),
            _ => {}
        }
        match self.part {
            Part::Tests => {
                let result = text.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "));
                if let Some((name, "FAILED")) = result {
                    self.failures.push(Failure { name: name.to_owned(), said: Vec::new() });
                }
                !matches!(result, Some((_, "ok")))
            }
            Part::Successes => false,
            Part::Failures => {
                let heading = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
                if let Some(name) = heading {
                    self.speaker = self.failures.iter().rposition(|failure| failure.name == name);
                } else if let Some(failure) = self.speaker.and_then(|index| self.failures.get_mut(index)) {
                    failure.said.push(text.to_owned());
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
     Running unittests src/lib.rs (target/debug/deps/a-0)

running 4 tests
test a::fine ... ok
test a::wrong ... FAILED
test a::slow has been running for over 60 seconds
test a::without ... ok
test a::slow ... ok

successes:

---- a::without stdout ----
skipped: not root

---- a::fine stdout ----
a word

successes:
    a::fine
    a::without

failures:

---- a::wrong stdout ----

thread 'a::wrong' panicked at src/lib.rs:3:9:
two are not three


failures:
    a::wrong

test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn numbers_names_and_words_are_read_and_what_passed_is_hidden() {
        let mut harness = Harness::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| harness.line(line)).collect();
        assert_eq!(harness.totals, Totals { passed: 2, failed: 1, skipped: 1 });
        assert_eq!(harness.failures.len(), 1);
        assert_eq!(harness.failures[0].name, "a::wrong");
        assert!(harness.failures[0].said.contains(&"two are not three".to_owned()), "{harness:?}");
        assert!(!harness.has_died);
        assert!(shown.contains(&"skipped: not root") && shown.contains(&"test a::wrong ... FAILED"), "{shown:?}");
        assert!(!shown.contains(&"a word") && !shown.contains(&"test a::fine ... ok"), "{shown:?}");
    }

    #[test]
    fn a_binary_that_dies_is_a_failure() {
        let mut harness = Harness::default();
        harness.line("test a::fine ... ok");
        harness
            .line("  process didn't exit successfully: `target/debug/deps/a-0` (signal: 11, SIGSEGV: invalid memory)");
        assert!(harness.has_died);
        assert_eq!((harness.totals.failed, harness.failures.len()), (1, 1));
    }
}
