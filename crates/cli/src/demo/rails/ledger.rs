//! The checker of numbered messages: what was lost, what came twice, what came too late, what is not what was sent. It knows nothing of connections.

use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::AddAssign;

/// What is wrong with a stream; all zero: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Messages that came whole and when it was their turn.
    pub in_order: u64,
    /// Messages that were sent and did not come.
    pub lost: u64,
    /// Messages that came again.
    pub duplicated: u64,
    /// Messages that came after a later one.
    pub reordered: u64,
    /// Messages whose bytes or number are not what was sent.
    pub damaged: u64,
    /// Operations that the application was told an error of.
    pub failed: u64,
}

impl Findings {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        *self == Self { in_order: self.in_order, ..Self::default() }
    }
}

impl AddAssign for Findings {
    fn add_assign(&mut self, other: Self) {
        self.in_order += other.in_order;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.damaged += other.damaged;
        self.failed += other.failed;
    }
}

/// One stream, numbered from 0.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    missing: BTreeSet<u64>,
    findings: Findings,
}

/// No message can be so far ahead of the one that is due: so many are never under way.
const WINDOW: u64 = 4096;

impl Ledger {
    /// A message came whole.
    pub fn take(&mut self, number: u64) {
        match number {
            _ if number == self.next => {
                self.next += 1;
                self.findings.in_order += 1;
            }
            _ if number >= self.next.saturating_add(WINDOW) => self.findings.damaged += 1,
            _ if number > self.next => {
                self.missing.extend(self.next..number);
                self.next = number + 1;
                self.findings.in_order += 1;
            }
            _ if self.missing.remove(&number) => self.findings.reordered += 1,
            _ => self.findings.duplicated += 1,
        }
    }

    /// A message came whose bytes are wrong.
    pub fn take_damaged(&mut self) {
        self.findings.damaged += 1;
    }

    /// The number that is due.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// What was found, when so many were sent in all and nothing more will come.
    pub fn close(&self, sent: u64) -> Findings {
        Findings { lost: self.missing.len() as u64 + sent.saturating_sub(self.next), ..self.findings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(numbers: &[u64], sent: u64) -> Findings {
        let mut ledger = Ledger::default();
        numbers.iter().for_each(|number| ledger.take(*number));
        ledger.close(sent)
    }

    #[test]
    fn a_whole_stream_is_clean() {
        assert!(after(&[0, 1, 2, 3], 4).is_clean());
        assert_eq!(after(&[0, 1, 2, 3], 4).in_order, 4);
    }

    #[test]
    fn each_thing_that_can_go_wrong_is_told_apart() {
        let clean = |in_order| Findings { in_order, ..Findings::default() };
        assert_eq!(after(&[0, 2, 3], 4), Findings { lost: 1, ..clean(3) });
        assert_eq!(after(&[0, 1, 2], 4), Findings { lost: 1, ..clean(3) });
        assert_eq!(after(&[0, 1, 1, 2], 3), Findings { duplicated: 1, ..clean(3) });
        assert_eq!(after(&[0, 2, 1, 3], 4), Findings { reordered: 1, ..clean(3) });
        assert_eq!(after(&[0, 2, 1, 1], 3), Findings { reordered: 1, duplicated: 1, ..clean(2) });
        assert_eq!(after(&[0, u64::MAX], 1), Findings { damaged: 1, ..clean(1) });
    }
}
