//! Where somebody waits for the end of one operation: a place for its outcome, and who is to be woken. A place is free again when the outcome was taken, or when the
//! operation ends of which nobody wants to know any more.

use crate::operation::Outcome;
use std::task::Waker;

#[derive(Default)]
struct Cell {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Nobody waits any more: free it when the operation ends.
    abandoned: bool,
}

/// A place for each operation that may be outstanding.
pub(crate) struct Cells {
    cells: Vec<Cell>,
    free: Vec<u32>,
}

impl Cells {
    pub fn new(count: u32) -> Self {
        Self { cells: (0..count).map(|_| Cell::default()).collect(), free: (0..count).rev().collect() }
    }

    /// A free place, if there is one.
    pub fn claim(&mut self) -> Option<u32> {
        let index = self.free.pop()?;
        self.cells[index as usize] = Cell::default();
        Some(index)
    }

    /// Nothing was posted for it.
    pub fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    /// The operation has ended.
    pub fn fill(&mut self, index: u32, outcome: Outcome) {
        let cell = &mut self.cells[index as usize];
        if cell.abandoned {
            cell.abandoned = false;
            self.free.push(index);
            return;
        }
        cell.outcome = Some(outcome);
        if let Some(waker) = cell.waker.take() {
            waker.wake();
        }
    }

    /// The outcome, if it is there; the place is free then.
    pub fn take(&mut self, index: u32) -> Option<Outcome> {
        let outcome = self.cells[index as usize].outcome.take()?;
        self.free.push(index);
        Some(outcome)
    }

    /// Who is to be woken when the operation ends.
    pub fn watch(&mut self, index: u32, waker: &Waker) {
        let cell = &mut self.cells[index as usize];
        match &mut cell.waker {
            Some(old) if old.will_wake(waker) => {}
            old => *old = Some(waker.clone()),
        }
    }

    /// Nobody waits for it any more.
    pub fn abandon(&mut self, index: u32) {
        if self.take(index).is_none() {
            let cell = &mut self.cells[index as usize];
            (cell.abandoned, cell.waker) = (true, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::WcStatus;

    #[test]
    fn a_place_is_free_again_when_its_outcome_was_taken_or_is_not_wanted() {
        let mut cells = Cells::new(2);
        let (a, b) = (cells.claim().unwrap(), cells.claim().unwrap());
        assert_eq!(cells.claim(), None);
        assert!(cells.take(a).is_none());
        cells.fill(a, Outcome::NotDone(WcStatus::WrFlushErr));
        assert!(cells.take(a).is_some());
        // Free before its operation has ended only for who asks; the place is not.
        cells.abandon(b);
        assert_eq!((cells.claim(), cells.claim()), (Some(a), None));
        cells.fill(b, Outcome::NotDone(WcStatus::WrFlushErr));
        assert_eq!(cells.claim(), Some(b));
        assert!(cells.take(b).is_none());
    }
}
