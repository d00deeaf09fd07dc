//! The fabric simulator allocates nothing for a packet: a counting allocator watches fabrics that have warmed up. A permutation over a fat tree, whose flows collide and pause
//! each other, under each controller with something of its own; an incast that PFC alone holds, also on a fabric one link of which is down; and flows that come and go. One
//! test in its own program, since the allocator counts for all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use scalefabric_sim::fabric::scenario::parse;
use scalefabric_sim::fabric::time::Ps;
use scalefabric_sim::fabric::world::{Counters, Observer, World};

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
const PERMUTATION: &str = "until = '1500us'
[topology]
kind = 'fat-tree'
k = 4
[[workload]]
kind = 'permutation'
bytes = '100MB'
";

/// Fifteen to one: what PFC holds back, it holds back in the leaves, and in turn.
const INCAST: &str = "until = '1500us'
[topology]
kind = 'leaf-spine'
leaves = 4
hosts_per_leaf = 4
spines = 2
[switch]
buffer = '2MiB'
[[workload]]
kind = 'incast'
bytes = '100MB'
";

/// Ways are computed anew only after the run: until then each packet at the leaf that sees the link down is sent by another one.
const LINK_DOWN: &str = "until = '1500us'
[topology]
kind = 'leaf-spine'
leaves = 4
hosts_per_leaf = 4
spines = 2
[switch]
reconvergence = '1s'
[[fault]]
kind = 'link-down'
at = '10us'
a = 16
b = 20
[[workload]]
kind = 'permutation'
bytes = '100MB'
";

/// A collective of many messages over QPs that stay.
const ALL_REDUCE: &str = "until = '1500us'
[topology]
kind = 'star'
hosts = 16
[[workload]]
kind = 'all-reduce'
bytes = '1MB'
buckets = 4
overlap = 2
iterations = 1000
";

/// A QP for each flow: a place that was in use before brings its room with it.
const FLOWS: &str = "until = '1500us'
[topology]
kind = 'star'
hosts = 16
[[workload]]
kind = 'open-loop'
sizes = 'fb-hadoop'
load = 0.5
duration = '2ms'
";

/// Counts from `FROM` on.
struct Watch {
    before: Counters,
}

const FROM: Ps = Ps(1_000_000_000);

impl Observer for Watch {
    fn sample(&mut self, world: &World) {
        if world.now() >= FROM && !WATCHED.swap(true, Ordering::Relaxed) {
            self.before = *world.counters();
        }
    }
}

/// Allocations, and what the fabric has counted meanwhile.
struct Count {
    name: String,
    allocations: u64,
    forwards: u64,
    pauses: u64,
}

fn count(name: &str, text: &str, algorithm: &str) -> Count {
    let changes = [format!("congestion.algorithm=\"{algorithm}\"")];
    let scenarios = parse(text, "here", "steady", Path::new("."), &changes).unwrap();
    let mut world = scenarios[0].world().unwrap();
    let mut traffic = scenarios[0].traffic(&world).unwrap();
    // Messages without end would be a list that grows.
    world.forget_messages();
    world.sample_every(Ps(10_000_000));
    let mut watch = Watch { before: Counters::default() };
    CALLS.store(0, Ordering::Relaxed);
    world.run(&mut traffic, scenarios[0].until, &mut watch);
    WATCHED.store(false, Ordering::Relaxed);
    let now = world.counters();
    Count {
        name: format!("{name}, {algorithm}"),
        allocations: CALLS.load(Ordering::Relaxed),
        forwards: now.forwards - watch.before.forwards,
        pauses: now.pauses - watch.before.pauses,
    }
}

#[test]
fn a_packet_allocates_nothing() {
    let of = |name: &str, text: &str, algorithms: &[&str]| -> Vec<Count> {
        algorithms.iter().map(|algorithm| count(name, text, algorithm)).collect()
    };
    let mut counts = of("permutation", PERMUTATION, &["none", "dcqcn", "hpcc", "hpcc-pint", "swift", "timely"]);
    counts.extend(of("incast", INCAST, &["none"]));
    counts.extend(of("a link is down", LINK_DOWN, &["none"]));
    counts.extend(of("AllReduce", ALL_REDUCE, &["none", "dcqcn"]));
    counts.extend(of("flows", FLOWS, &["dcqcn", "hpcc"]));
    for Count { name, allocations, forwards, pauses } in &counts {
        eprintln!(
            "{name}: {allocations} allocations for {forwards} packets that switches passed on and {pauses} pauses"
        );
    }
    for Count { name, allocations, forwards, pauses } in counts {
        assert!(forwards > 3_000, "{name}: {forwards}");
        if name.ends_with(", none") && !name.starts_with("AllReduce") {
            assert!(pauses > 100, "{name}: {pauses} pauses");
        }
        // A queue may still grow beyond what it was, once in a while; packets come by the thousand.
        assert!(allocations <= 8, "{name}: {allocations} allocations for {forwards} packets and {pauses} pauses");
    }
}
