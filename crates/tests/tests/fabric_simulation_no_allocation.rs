//! The fabric simulator allocates nothing for a packet: a counting allocator watches a permutation over a fat tree that has warmed up, under each controller with
//! something of its own: without control, DCQCN (timers, CNPs, marks), HPCC (records on packets), Swift. One test in its own program, since the allocator counts for
//! all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use scalefabric_sim::fabric::scenario::parse;
use scalefabric_sim::fabric::time::Ps;
use scalefabric_sim::fabric::world::{Observer, World};

struct Counting;

static WATCHED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn note() {
    if WATCHED.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One flow a host, longer than the run; deep enough in it, queues and free lists have the size that they will have.
const SCENARIO: &str = "until = '1500us'
[topology]
kind = 'fat-tree'
k = 4
rate = '100G'
delay = '1us'
[[workload]]
kind = 'permutation'
bytes = '100MB'
";

/// Counts from `from` on.
struct Watch {
    from: Ps,
    forwards: u64,
}

impl Observer for Watch {
    fn sample(&mut self, world: &World) {
        if world.now() >= self.from && !WATCHED.swap(true, Ordering::Relaxed) {
            self.forwards = world.counters().forwards;
        }
    }
}

/// Allocations, and packets that switches passed on while they were counted.
fn count(algorithm: &str) -> (u64, u64) {
    let changes = [format!("congestion.algorithm=\"{algorithm}\"")];
    let scenarios = parse(SCENARIO, "here", "steady", Path::new("."), &changes).unwrap();
    let mut world = scenarios[0].world().unwrap();
    let mut traffic = scenarios[0].traffic(&world).unwrap();
    world.sample_every(Ps(10_000_000));
    let mut watch = Watch { from: Ps(1_000_000_000), forwards: 0 };
    CALLS.store(0, Ordering::Relaxed);
    world.run(&mut traffic, scenarios[0].until, &mut watch);
    WATCHED.store(false, Ordering::Relaxed);
    (CALLS.load(Ordering::Relaxed), world.counters().forwards - watch.forwards)
}

#[test]
fn a_packet_allocates_nothing() {
    let counts = ["none", "dcqcn", "hpcc", "hpcc-pint", "swift"].map(|algorithm| (algorithm, count(algorithm)));
    for (algorithm, (allocations, forwards)) in counts {
        eprintln!("{algorithm}: {allocations} allocations for {forwards} packets that switches passed on");
    }
    for (algorithm, (allocations, forwards)) in counts {
        assert!(forwards > 10_000, "{algorithm}: {forwards}");
        // A queue may still grow beyond what it was, once in a while; packets come by the ten thousand.
        assert!(allocations <= 8, "{algorithm}: {allocations} allocations for {forwards} packets");
    }
}
