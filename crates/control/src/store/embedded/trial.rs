//! A file that is opened on trial: redb marks and repairs what it opens before it knows whether it can be read, so what it writes meanwhile is held in memory and
//! reaches the file, in the same order, only when the whole store was read and accepted. A store that is refused is left as it was to the byte.

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is held is found again by pages of so many bytes.
const PAGE: u64 = 4096;

/// A file that was not accepted yet, or was.
#[derive(Clone, Debug)]
pub struct Trial(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    file: FileBackend,
    accepted: AtomicBool,
    held: Mutex<Held>,
}

/// What the file would be.
#[derive(Debug)]
struct Held {
    length: u64,
    /// So much of the file itself still counts; what comes behind was cut off, and is zero.
    kept: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
    /// The same, as it is to be done.
    work: Vec<Work>,
}

#[derive(Debug)]
enum Work {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

impl Trial {
    /// Of a file that is there.
    pub fn of(path: &Path) -> Result<Self, redb::DatabaseError> {
        let file = FileBackend::new(OpenOptions::new().read(true).write(true).open(path)?)?;
        let length = file.len()?;
        let held = Held { length, kept: length, pages: BTreeMap::new(), work: Vec::new() };
        Ok(Self(Arc::new(Shared { file, accepted: AtomicBool::new(false), held: Mutex::new(held) })))
    }

    /// The file is well: does what was held back, and from now on everything at once.
    pub fn accept(&self) -> io::Result<()> {
        let Some(mut held) = self.0.trial() else { return Ok(()) };
        for work in std::mem::take(&mut held.work) {
            match work {
                Work::Write(offset, data) => self.0.file.write(offset, &data)?,
                Work::SetLen(length) => self.0.file.set_len(length)?,
                Work::Sync => self.0.file.sync_data()?,
            }
        }
        held.pages.clear();
        self.0.accepted.store(true, Ordering::Release);
        Ok(())
    }
}

impl Shared {
    /// What is held, as long as the file is not accepted.
    fn trial(&self) -> Option<MutexGuard<'_, Held>> {
        if self.accepted.load(Ordering::Acquire) {
            return None;
        }
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.accepted.load(Ordering::Acquire)).then_some(held)
    }
}

impl Held {
    fn read(&self, file: &FileBackend, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.length);
        let end =
            end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before what should be read"))?;
        let from_file = self.kept.clamp(offset, end) - offset;
        let (there, cut) = out.split_at_mut(from_file as usize);
        if !there.is_empty() {
            file.read(offset, there)?;
        }
        cut.fill(0);
        for (number, page) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let at = number * PAGE;
            let (from, to) = (at.max(offset), (at + PAGE).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - at) as usize..(to - at) as usize]);
        }
        Ok(())
    }

    fn write(&mut self, file: &FileBackend, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        self.length = self.length.max(end);
        for number in offset / PAGE..end.div_ceil(PAGE) {
            let at = number * PAGE;
            if !self.pages.contains_key(&number) {
                let mut page = vec![0; PAGE as usize].into_boxed_slice();
                let there = self.length.min(at + PAGE) - at;
                self.read(file, at, &mut page[..there as usize])?;
                self.pages.insert(number, page);
            }
            let Some(page) = self.pages.get_mut(&number) else { continue };
            let (from, to) = (at.max(offset), (at + PAGE).min(end));
            page[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        self.work.push(Work::Write(offset, data.to_vec()));
        Ok(())
    }

    fn set_len(&mut self, length: u64) {
        if length < self.length {
            self.kept = self.kept.min(length);
            drop(self.pages.split_off(&length.div_ceil(PAGE)));
            if let Some(page) = self.pages.get_mut(&(length / PAGE)) {
                page[(length % PAGE) as usize..].fill(0);
            }
        }
        self.length = length;
        self.work.push(Work::SetLen(length));
    }
}

type Range = Bound<u64>;

impl StorageBackend for Trial {
    fn len(&self) -> io::Result<u64> {
        self.0.trial().map_or_else(|| self.0.file.len(), |held| Ok(held.length))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.trial() {
            Some(held) => held.read(&self.0.file, offset, out),
            None => self.0.file.read(offset, out),
        }
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        match self.0.trial() {
            Some(mut held) => held.set_len(length),
            None => self.0.file.set_len(length)?,
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.0.trial() {
            Some(mut held) => held.work.push(Work::Sync),
            None => self.0.file.sync_data()?,
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.trial() {
            Some(mut held) => held.write(&self.0.file, offset, data),
            None => self.0.file.write(offset, data),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Range, end: Range) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Range, end: Range) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Range, end: Range) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Range, end: Range) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Range, end: Range) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Range, end: Range) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern, the same each time.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn what_is_held_reads_as_the_file_would_and_then_is_the_file() {
        let path = std::env::temp_dir().join(format!("sfab-trial-{}", std::process::id()));
        for seed in 0..50u64 {
            let mut dice = seed;
            let first: Vec<u8> = (0..20_000).map(|_| next(&mut dice) as u8).collect();
            std::fs::write(&path, &first).unwrap();
            let (trial, mut model) = (Trial::of(&path).unwrap(), first.clone());
            for _ in 0..60 {
                match next(&mut dice) % 8 {
                    0 => {
                        let length = next(&mut dice) as usize % 40_000;
                        model.resize(length, 0);
                        trial.set_len(length as u64).unwrap();
                    }
                    1 => trial.sync_data().unwrap(),
                    2..5 => {
                        let (at, count) = (next(&mut dice) as usize % 30_000, next(&mut dice) as usize % 9_000);
                        let data: Vec<u8> = (0..count).map(|_| next(&mut dice) as u8).collect();
                        model.resize(model.len().max(if count == 0 { 0 } else { at + count }), 0);
                        if count > 0 {
                            model[at..at + count].copy_from_slice(&data);
                            trial.write(at as u64, &data).unwrap();
                        }
                    }
                    _ => {
                        let (at, count) = (next(&mut dice) as usize % 40_000, next(&mut dice) as usize % 9_000);
                        let mut out = vec![7; count];
                        let read = trial.read(at as u64, &mut out);
                        match model.get(at..at + count) {
                            Some(expected) => assert!(read.is_ok() && out == expected, "seed {seed}"),
                            None => assert!(read.is_err(), "seed {seed}"),
                        }
                    }
                }
                assert_eq!(trial.len().unwrap(), model.len() as u64);
            }
            assert!(std::fs::read(&path).unwrap() == first, "seed {seed}: the file was changed before it was accepted");
            trial.accept().unwrap();
            assert!(std::fs::read(&path).unwrap() == model, "seed {seed}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
