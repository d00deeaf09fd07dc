//! The two threads of a cache: the reader, which hears what the kernel tells, and the sweeper, which deregisters in batches and looks where threads are.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use scalefabric_verbs::MemoryRegion;

use super::core::{Core, Source};
use super::entry::Entry;

/// How long fewer registrations than a batch wait for more.
const LINGER: Duration = Duration::from_millis(10);
/// How soon threads are looked at.
const SOON: Duration = Duration::from_millis(1);
/// How rarely threads are looked at in the end, when one never is where it can be seen.
const LONGEST: Duration = Duration::from_secs(1);

/// Hears what the kernel tells, until told to stop. It neither allocates nor frees while it runs.
pub(super) fn read(core: &Core) {
    /// If the reader ever ends, nothing that is kept can be trusted.
    struct End<'c>(&'c Core);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.break_down();
        }
    }
    let Source::Kernel { watch, .. } = &core.source else { return };
    let _end = End(core);
    while watch.wait() {
        core.hear(watch);
    }
}

/// Deregisters what was given back or lost, until told to stop.
pub(super) fn sweep(core: &Core) {
    let mut pause = SOON;
    loop {
        let mut state = core.lock();
        loop {
            if state.must_stop {
                return;
            }
            if state.is_idle() {
                pause = SOON;
                state = core.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.removed.len() >= core.config.batch {
                break;
            }
            let wait = if state.quarantine.is_empty() { LINGER } else { pause };
            let (after, waited) = core.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() {
                break;
            }
        }
        let taken: Vec<Arc<Entry>> = state.removed.drain(..).collect();
        state.reserve();
        while let Some((start, end)) = state.strays.pop() {
            core.unwatch(&state, start, end);
        }
        drop(state);
        core.deregister(taken);
        pause = if core.look_at_threads() { SOON } else { (pause * 2).min(LONGEST) };
    }
}

impl Core {
    /// The last handle of a dead entry is gone.
    pub fn give_back(&self, entry: Arc<Entry>) {
        if self.config.batch <= 1 {
            return self.deregister(vec![entry]);
        }
        let mut state = self.lock();
        state.removed.push(entry);
        state.reserve();
        let waiting = state.removed.len();
        // More than the sweeper gets rid of: who gives back helps.
        let taken: Vec<Arc<Entry>> = if waiting >= 4 * self.config.batch {
            let taken = state.removed.drain(waiting - self.config.batch..).collect();
            state.reserve();
            taken
        } else {
            Vec::new()
        };
        drop(state);
        if waiting == 1 || waiting == self.config.batch {
            self.work.notify_one();
        }
        self.deregister(taken);
    }

    /// Deregisters those that nobody uses any more; the others come back with their last handle.
    pub fn deregister(&self, entries: Vec<Arc<Entry>>) {
        if entries.is_empty() {
            return;
        }
        let mut finds = 0;
        let mut stuck: Vec<Arc<dyn MemoryRegion>> = std::mem::take(&mut self.lock().stuck);
        for entry in &entries {
            let regions = entry.claim();
            finds += if regions.is_empty() { 0 } else { entry.finds() };
            stuck.extend(regions);
        }
        let made = stuck.len();
        stuck.retain(|region| region.destroy().is_err());
        let gone = (made - stuck.len()) as u64;
        let mut state = self.lock();
        state.counts.deregistered += gone;
        state.counts.finds += finds;
        state.stuck.append(&mut stuck);
        for entry in entries.iter().filter(|entry| entry.is_watched) {
            self.unwatch(&state, entry.start, entry.end);
        }
    }

    /// Looks for threads that may still be discarding memory. True: there are none, or some were found elsewhere.
    fn look_at_threads(&self) -> bool {
        if self.lock().quarantine.is_empty() {
            return true;
        }
        let threads = all_threads();
        let (serial, unseen) = self.lock().quarantine.threads_to_see(|| threads);
        let marked: BTreeSet<u32> = {
            let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
            marks.retain(|mark| mark.strong_count() > 0);
            let seen =
                marks.iter().filter_map(Weak::upgrade).filter(|mark| mark.serial.load(Ordering::Acquire) >= serial);
            seen.map(|mark| mark.thread).collect()
        };
        let elsewhere: Vec<u32> =
            unseen.into_iter().filter(|thread| marked.contains(thread) || is_elsewhere(*thread)).collect();
        let mut state = self.lock();
        elsewhere.iter().for_each(|thread| state.quarantine.saw_elsewhere(*thread));
        !elsewhere.is_empty()
    }
}

/// All threads of the process, but the one that asks. Where they cannot be listed there is one that never is seen.
fn all_threads() -> BTreeSet<u32> {
    let Ok(folder) = fs::read_dir("/proc/self/task") else { return BTreeSet::from([0]) };
    let own = super::watch::thread_id();
    folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|id| *id != own).collect()
}

/// Whether a thread is gone, or sleeps in a call that discards no memory. One that runs may be anywhere.
fn is_elsewhere(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    let folder = format!("/proc/self/task/{thread}");
    let call = match fs::read_to_string(format!("{folder}/syscall")) {
        Ok(text) => text,
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
    };
    // A worker of io_uring may be asked to discard, and its calls have no number; but it can be seen waiting for work.
    if fs::read_to_string(format!("{folder}/comm")).is_ok_and(|name| name.starts_with("iou-wrk")) {
        return fs::read_to_string(format!("{folder}/wchan")).is_ok_and(|place| place.starts_with("io_wq_worker"));
    }
    let Some(number) = call.split_whitespace().next().and_then(|word| word.parse::<i64>().ok()) else { return false };
    ![libc::SYS_madvise, libc::SYS_process_madvise].contains(&number)
}
