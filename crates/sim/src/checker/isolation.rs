//! Isolation: no packet touches memory that its key, PD and rights do not grant, and none carries away what may not be read.

use super::{Checker, Event, Remains, Violation};
use crate::ledger::Ledger;
use crate::wire::Tally;

/// The checker.
#[derive(Debug, Default)]
pub struct Isolation;

impl Checker for Isolation {
    fn see(&mut self, _ledger: &Ledger, tally: &Tally, _event: &Event<'_>) -> Result<(), Violation> {
        leaks(tally)
    }

    fn end(&mut self, _ledger: &Ledger, tally: &Tally, remains: &Remains) -> Result<(), Violation> {
        match remains.touched.first() {
            Some(what) => Err(Violation { checker: "isolation", what: what.clone() }),
            None => leaks(tally),
        }
    }
}

fn leaks(tally: &Tally) -> Result<(), Violation> {
    if tally.leaks > 0 {
        let what = format!("{} packets carried bytes that nobody may read", tally.leaks);
        return Err(Violation { checker: "isolation", what });
    }
    Ok(())
}
