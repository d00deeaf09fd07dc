//! One seed from beginning to end, and the line that repeats it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::canary::Canary;
use crate::pattern::Pattern;
use crate::world::{MIN_KINDS, MIN_PACKETS, Outcome, Stop, World};

/// A run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Seed.
    pub seed: u64,
    /// Name of the pattern.
    pub pattern: &'static str,
    /// Which checker saw it; `harness` if the run could not be set up or was too tame, `panic` if something panicked.
    pub checker: &'static str,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, pattern, checker, what } = self;
        write!(f, "cargo xtask sim --seed {seed} --pattern {pattern}  # {checker}: {}", what.replace('\n', " "))
    }
}

/// Runs a seed under a pattern, with a rule broken on purpose if a canary is given.
pub fn run(seed: u64, pattern: &'static Pattern, canary: Option<Canary>) -> Result<Outcome, Failure> {
    run_with(seed, pattern, canary, false)
}

/// As [`run`], and prints what the wire carries if `trace` is set.
pub fn run_with(seed: u64, pattern: &'static Pattern, canary: Option<Canary>, trace: bool) -> Result<Outcome, Failure> {
    let failure = |checker, what| Failure { seed, pattern: pattern.name, checker, what };
    let attempt = AssertUnwindSafe(|| {
        let mut world = World::new(seed, pattern, canary)?;
        if trace {
            world.trace();
        }
        world.run()
    });
    let outcome = match catch_unwind(attempt) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(Stop::Violation(violation))) => return Err(failure(violation.checker, violation.what)),
        Ok(Err(Stop::Verb(what))) => return Err(failure("harness", what)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            return Err(failure("panic", text.unwrap_or_else(|| "a panic without a message".to_owned())));
        }
    };
    let kinds = outcome.faults.iter().filter(|&&count| count > 0).count();
    let main = pattern.main.is_none_or(|main| outcome.faults[main as usize] > 0);
    if outcome.packets < MIN_PACKETS || kinds < MIN_KINDS || !main {
        let what = format!("too tame: {} packets and {kinds} kinds of fault", outcome.packets);
        return Err(failure("harness", what));
    }
    Ok(outcome)
}
