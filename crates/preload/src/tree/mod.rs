//! The files under `/sys/class/infiniband` and `/dev/infiniband`, made from the live state of the devices.
//!
//! They stand in a folder of this user's, made when a program first looks for one of them, and brought up to date as it looks
//! again; the hooks lead paths there. Real files are needed: programs list them, change into them, and hand descriptors of
//! folders about. Programs that `sfab run` started share the folder with their children (SCALEFABRIC_TREE); others have one
//! each. Whoever made it removes it at its end.

mod content;
mod folder;
pub mod state;

pub use content::{rdma_cm_device, uverbs_device};
pub use folder::{leave, root};

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use scalefabric_nic::provider::SoftwareProvider;

use crate::hooks::path::Purpose;
use content::{Entries, Entry};

/// How long what was seen counts as present, for all but counters.
const FRESH: Duration = Duration::from_millis(250);

/// Nodes that plain files stand for.
const NODES: usize = 256;
static NODE_COUNT: AtomicU32 = AtomicU32::new(0);
/// Device and inode of a file, and the number of the node it stands for.
static NODE_TABLE: [[AtomicU64; 3]; NODES] = [const { [const { AtomicU64::new(0) }; 3] }; NODES];

/// True once a file stands for a node.
#[inline]
pub fn has_nodes() -> bool {
    NODE_COUNT.load(Ordering::Relaxed) != 0
}

/// The node that a file stands for.
pub fn node(device: u64, inode: u64) -> Option<u64> {
    let count = (NODE_COUNT.load(Ordering::Acquire) as usize).min(NODES);
    let known = NODE_TABLE[..count]
        .iter()
        .find(|row| row[1].load(Ordering::Relaxed) == inode && row[0].load(Ordering::Relaxed) == device);
    known.map(|row| row[2].load(Ordering::Relaxed))
}

/// True if a file of this number, on whatever device, stands for a node.
pub fn is_node_inode(inode: u64) -> bool {
    let count = (NODE_COUNT.load(Ordering::Acquire) as usize).min(NODES);
    NODE_TABLE[..count].iter().any(|row| row[1].load(Ordering::Relaxed) == inode)
}

/// Under the lock of the state.
fn remember_node((device, inode): (u64, u64), number: u64) {
    let count = NODE_COUNT.load(Ordering::Relaxed) as usize;
    if count < NODES && node(device, inode).is_none() {
        for (cell, value) in NODE_TABLE[count].iter().zip([device, inode, number]) {
            cell.store(value, Ordering::Relaxed);
        }
        NODE_COUNT.store(count as u32 + 1, Ordering::Release);
    }
}

/// True if a name below `/dev/infiniband` is that of a node of ours, not of a real one that stands beside it.
pub fn is_device_node(name: &[u8]) -> bool {
    let Some(mut held) = State::lock() else { return false };
    let path = format!("/dev/infiniband/{}", String::from_utf8_lossy(name));
    matches!(held.get().made.get(&path), Some(Entry::Node(_)))
}

/// Where a path of ours leads: the tree is there, and up to date. `None` if there is no tree; the path then leads where it
/// always did.
pub fn ready(path: &[u8], purpose: Purpose) -> Option<CString> {
    let path = std::str::from_utf8(path).ok()?;
    if let Some(mut held) = State::lock() {
        held.get().bring_up_to_date(path, purpose);
    }
    let root = root()?;
    CString::new([root, path.as_bytes()].concat()).ok()
}

/// What this process has put into the tree.
#[derive(Default)]
struct State {
    provider: Option<SoftwareProvider>,
    made: Entries,
    /// When each part was last looked at.
    seen: HashMap<String, Instant>,
}

/// The process that holds the state's lock; 0: nobody. In a forked child the holder may be a thread that does not exist: it
/// has another process number, and its state is left behind.
static HOLDER: AtomicI32 = AtomicI32::new(0);

struct Shared(UnsafeCell<Option<Box<State>>>);

// SAFETY: it is reached through `Held` only, of which there is one at a time.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(None));

/// The state, locked.
struct Held(());

impl Held {
    fn get(&mut self) -> &mut State {
        // SAFETY: HOLDER names this process, and this `Held` is the only one in it.
        unsafe { (*STATE.0.get()).get_or_insert_default() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

impl State {
    /// Waits for another thread. `None` if that takes unreasonably long: a signal handler may have interrupted the holder.
    fn lock() -> Option<Held> {
        let own = std::process::id() as i32;
        for round in 0..10_000 {
            match HOLDER.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Held(())),
                Err(other) if other != own => {
                    if HOLDER.compare_exchange(other, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        let held = Held(());
                        // SAFETY: `held` is the only one. What the parent's thread left half done is not touched.
                        std::mem::forget(unsafe { (*STATE.0.get()).take() });
                        return Some(held);
                    }
                }
                Err(_) if round < 100 => std::thread::yield_now(),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        None
    }

    /// Makes and refreshes what a look at `path` can see.
    fn bring_up_to_date(&mut self, path: &str, purpose: Purpose) {
        let part = part_of(path);
        let counts = purpose == Purpose::Read && content::is_counter(path);
        if !counts && self.seen.get(part).is_some_and(|seen| seen.elapsed() < FRESH) {
            return;
        }
        if folder::make().is_none() {
            return;
        }
        let provider = match self.provider.take().map_or_else(state::provider, Ok) {
            Ok(provider) => self.provider.insert(provider),
            Err(_) => return,
        };
        let Ok(plans) = provider.plans() else { return };
        let mut wanted = Entries::new();
        content::shared(&mut wanted);
        folder::real(&mut wanted);
        for plan in &plans {
            content::links(&plan.info, &mut wanted);
            let is_seen = part == "all" || part == plan.info.name || part == state::uverbs(plan.info.index);
            if is_seen && let Ok(device) = state::device(provider, plan) {
                let interface = plan.ports.first().map_or("", |port| &port.interface);
                let hardware =
                    |file: &str| std::fs::read_to_string(format!("/sys/class/net/{interface}/device/{file}")).ok();
                content::device(&device, hardware, &mut wanted);
            }
        }
        // What other parts have is left as it is, unless its device is gone.
        let is_there = |path: &str| {
            let name = path.strip_prefix("/sys/devices/virtual/scalefabric/")?.split('/').next()?;
            Some(
                part != "all"
                    && part != name
                    && plans.iter().any(|plan| plan.info.name == name && state::uverbs(plan.info.index) != part),
            )
        };
        self.made.retain(|path, _| {
            let stays = wanted.contains_key(path) || is_there(path).unwrap_or(false);
            if !stays {
                folder::remove(path);
            }
            stays
        });
        for (path, entry) in wanted {
            if self.made.get(&path) != Some(&entry) {
                if let Some(identity) = folder::put(&path, &entry)
                    && let Entry::Node(number) = entry
                {
                    remember_node(identity, number);
                }
                self.made.insert(path, entry);
            }
        }
        self.seen.insert(part.to_owned(), Instant::now());
    }
}

/// Which part of the tree a path lies in: a device by its name or its node's name, the nodes and links alone, or all.
fn part_of(path: &str) -> &str {
    if path.starts_with("/dev/") || path.starts_with("/sys/class/misc") {
        return "";
    }
    let places = ["/sys/class/infiniband/", "/sys/class/infiniband_verbs/", "/sys/devices/virtual/scalefabric/"];
    let below = places.iter().find_map(|place| path.strip_prefix(place));
    below
        .and_then(|rest| rest.split('/').next())
        .filter(|name| !name.is_empty() && !name.contains(['*', '?', '[']))
        .unwrap_or("all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_that_is_looked_at_is_made() {
        assert_eq!(part_of("/dev/infiniband/uverbs0"), "");
        assert_eq!(part_of("/sys/class/infiniband/sf0/ports/1/state"), "sf0");
        assert_eq!(part_of("/sys/class/infiniband_verbs/uverbs1/ibdev"), "uverbs1");
        assert_eq!(part_of("/sys/class/infiniband"), "all");
        assert_eq!(part_of("/sys/class/infiniband/*/ports"), "all");
    }
}
