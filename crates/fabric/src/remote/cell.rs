//! Typed atomics in far memory, each in a cache line of its own, so that two of them never wait for one another in the owner's caches. Only atomics touch
//! them, reading included: a READ is not atomic against an atomic (clause 9.4.5).

use super::{Area, Failure};
use crate::error::FabricError;
use std::marker::PhantomData;

/// Bytes of a cell, of which 8 count.
pub const CELL_BYTES: u64 = 64;

/// What fits into a word.
pub trait Word: Copy + Send + Sync {
    /// As bits.
    fn to_bits(self) -> u64;
    /// From bits.
    fn from_bits(bits: u64) -> Self;
}

impl Word for u64 {
    fn to_bits(self) -> u64 {
        self
    }

    fn from_bits(bits: u64) -> Self {
        bits
    }
}

impl Word for i64 {
    fn to_bits(self) -> u64 {
        self as u64
    }

    fn from_bits(bits: u64) -> Self {
        bits as i64
    }
}

/// A row of cells from the beginning of an area. The owner provides zeroed memory at a multiple of 64.
#[derive(Clone, Debug)]
pub struct Cells<A, T> {
    area: A,
    word: PhantomData<fn() -> T>,
}

impl<A: Area, T: Word> Cells<A, T> {
    /// As many as the area has room for.
    pub fn new(area: A) -> Self {
        Self { area, word: PhantomData }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.area.length() / CELL_BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them; misuse beyond the last.
    pub fn cell(&self, index: u64) -> Result<Cell<'_, A, T>, FabricError> {
        if index >= self.len() {
            return Err(FabricError::misuse(format!("cell {index} of {}: the area has no more", self.len())));
        }
        Ok(Cell { area: &self.area, offset: index * CELL_BYTES, word: PhantomData })
    }
}

/// A word in far memory.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a, A, T> {
    area: &'a A,
    offset: u64,
    word: PhantomData<fn() -> T>,
}

impl<A: Area, T: Word> Cell<'_, A, T> {
    /// Its value, by adding nothing.
    pub fn load(&self) -> Result<T, Failure> {
        // Adding nothing twice is as good as once: a doubt is no doubt.
        loop {
            match self.area.fetch_add(self.offset, 0) {
                Ok(bits) => return Ok(T::from_bits(bits)),
                Err(failure) if failure.in_doubt => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Adds, wrapping; gives the value before. When in doubt, the value before is lost and it may have been added once.
    pub fn fetch_add(&self, add: T) -> Result<T, Failure> {
        self.area.fetch_add(self.offset, add.to_bits()).map(T::from_bits)
    }

    /// Replaces the value if it is `compare`; gives the value before: it was replaced if that is `compare`.
    pub fn compare_swap(&self, compare: T, swap: T) -> Result<T, Failure> {
        self.area.compare_swap(self.offset, compare.to_bits(), swap.to_bits()).map(T::from_bits)
    }

    /// Replaces the value; gives the value before. Takes two operations, more while others change it.
    pub fn swap(&self, value: T) -> Result<T, Failure> {
        let mut guess = self.load()?.to_bits();
        loop {
            match self.area.compare_swap(self.offset, guess, value.to_bits())? {
                found if found == guess => return Ok(T::from_bits(found)),
                found => guess = found,
            }
        }
    }

    /// Replaces the value.
    pub fn store(&self, value: T) -> Result<(), Failure> {
        self.swap(value).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;
    use crate::remote::stage::Stage;
    use std::sync::{Arc, Barrier, Mutex};

    #[test]
    fn a_counter_is_linearizable() {
        let area = Arc::new(Stage::new(128));
        let start = Barrier::new(4);
        // Each thread notes what it got; values that are all different and without gaps are an order that fits what each saw, if it rises in each.
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let cells: Cells<_, u64> = Cells::new(area.clone());
                    let cell = cells.cell(1).unwrap();
                    start.wait();
                    let mine: Vec<u64> = (0..500).map(|_| cell.fetch_add(1).unwrap()).collect();
                    assert!(mine.is_sorted_by(|a, b| a < b), "a thread saw time go back");
                    seen.lock().unwrap().extend(mine);
                });
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..2000));
        assert_eq!(area.fetch_add(64, 0).unwrap(), 2000);
        assert_eq!(area.fetch_add(0, 0).unwrap(), 0);
    }

    #[test]
    fn signed_values_and_swaps() {
        let cells: Cells<_, i64> = Cells::new(Stage::new(64));
        let cell = cells.cell(0).unwrap();
        assert_eq!(cell.fetch_add(-5).unwrap(), 0);
        assert_eq!(cell.load().unwrap(), -5);
        assert_eq!(cell.compare_swap(-4, 1).unwrap(), -5);
        assert_eq!(cell.compare_swap(-5, 1).unwrap(), -5);
        assert_eq!(cell.swap(i64::MIN).unwrap(), 1);
        assert_eq!(cell.load().unwrap(), i64::MIN);
        assert_eq!(cells.cell(1).unwrap_err().fault, Fault::Misuse);
    }

    #[test]
    fn a_load_in_doubt_is_repeated_and_an_addition_is_not() {
        let area = Stage::new(64);
        area.doubt(true);
        let cells: Cells<_, u64> = Cells::new(&area);
        let cell = cells.cell(0).unwrap();
        assert!(cell.fetch_add(1).unwrap_err().in_doubt);
        area.doubt(false);
        assert!(cell.fetch_add(1).unwrap_err().in_doubt);
        area.doubt(true);
        assert_eq!(cell.load().unwrap(), 1);
    }
}
