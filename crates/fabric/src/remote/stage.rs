//! An area for tests in this process: words that threads share, and faults on demand. What it does with bytes is what a NIC may do: words are whole, more is not.

use super::{Area, Failure, Home};
use crate::error::FabricError;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of both sides.
#[derive(Debug)]
pub struct Stage {
    words: Vec<AtomicU64>,
    /// What the next atomics suffer: done (`true`) or not done, and in doubt either way.
    doubts: Mutex<VecDeque<bool>>,
}

impl Stage {
    pub fn new(bytes: usize) -> Self {
        Self { words: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(), doubts: Mutex::default() }
    }

    /// The next atomic is in doubt: done or not.
    pub fn doubt(&self, done: bool) {
        self.doubts.lock().unwrap().push_back(done);
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, FabricError> {
        let word = self.words.get(offset as usize / 8).filter(|_| offset.is_multiple_of(8));
        word.ok_or_else(|| FabricError::misuse(format!("no word at {offset}")))
    }

    fn atomic(&self, done: impl Fn() -> u64) -> Result<u64, Failure> {
        match self.doubts.lock().unwrap().pop_front() {
            None => Ok(done()),
            Some(is_done) => {
                if is_done {
                    done();
                }
                Err(Failure::in_doubt(FabricError::unreachable("the stage is in doubt")))
            }
        }
    }

    fn bytes(&self, offset: usize, length: usize) -> Result<std::ops::Range<usize>, FabricError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.words.len() * 8);
        Ok(offset..end.ok_or_else(|| FabricError::misuse(format!("{length} bytes at {offset}: outside the stage")))?)
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        let places = self.bytes(offset, out.len())?;
        for (byte, at) in out.iter_mut().zip(places) {
            *byte = self.words[at / 8].load(Ordering::Acquire).to_ne_bytes()[at % 8];
        }
        Ok(())
    }

    fn copy_in(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        for (byte, at) in data.iter().zip(self.bytes(offset, data.len())?) {
            let change = |word: u64| {
                let mut bytes = word.to_ne_bytes();
                bytes[at % 8] = *byte;
                Some(u64::from_ne_bytes(bytes))
            };
            let _ = self.words[at / 8].fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        }
        Ok(())
    }
}

impl Area for Stage {
    fn length(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        Ok(self.copy_out(offset as usize, out)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        Ok(self.copy_in(offset as usize, data)?)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Failure> {
        let word = self.word(offset)?;
        self.atomic(|| word.fetch_add(add, Ordering::AcqRel))
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Failure> {
        let word = self.word(offset)?;
        self.atomic(|| {
            word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|found| found)
        })
    }
}

impl Area for &Stage {
    fn length(&self) -> u64 {
        Area::length(*self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        Area::read(*self, offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        Area::write(*self, offset, data)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Failure> {
        Area::fetch_add(*self, offset, add)
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Failure> {
        Area::compare_swap(*self, offset, compare, swap)
    }
}

impl Home for Stage {
    fn length(&self) -> usize {
        self.words.len() * 8
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        self.copy_out(offset, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        self.copy_in(offset, data)
    }

    fn load_u64(&self, offset: usize) -> Result<u64, FabricError> {
        Ok(self.word(offset as u64)?.load(Ordering::Acquire))
    }

    fn store_u64(&self, offset: usize, value: u64) -> Result<(), FabricError> {
        self.word(offset as u64)?.store(value, Ordering::Release);
        Ok(())
    }
}
