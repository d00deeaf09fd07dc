//! A memory node that publishes how busy its port is, and compute nodes that READ it over their connection: while the node is busy they pause and queue for its locks;
//! when it is calm they go on as before.

use crate::{Device, PATIENCE, connect};
use scalefabric_fabric::Local;
use scalefabric_fabric::endpoint::{Config, Remote};
use scalefabric_fabric::remote::publish::{
    Beat, Follower, LockStrategy, Pace, Publisher, PublisherLoop, Reader, STANDARD, slot_bytes, standard,
};
use scalefabric_fabric::remote::{Area, Far, StripedLocks};
use scalefabric_tests::eventually;
use scalefabric_tests::fabric::pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bits per second that the port is said to have: far less than the load makes, far more than looking at the slot does.
const CAPACITY_BPS: u64 = 40_000_000;

const PIECE: usize = 64 << 10;

#[test]
fn a_busy_memory_node_makes_its_readers_back_off_and_queue_for_locks_until_it_is_calm() {
    let device = Device::new(10);
    let config = Config { depth: 32, receives: 16, ..Config::default() };
    let (node, compute) = (device.fabric("memory", &config), device.fabric("compute", &config));
    let listener = node.listen("service").unwrap();
    let (theirs, ours) = (pool(&node), pool(&compute));
    let slot = Arc::new(theirs.alloc(slot_bytes(STANDARD.len())).unwrap());
    let data = Arc::new(theirs.alloc_aligned(PIECE, 4096).unwrap());
    let offers: [(u32, Arc<dyn Local>, usize); 2] =
        [(1, slot.clone(), slot_bytes(STANDARD.len())), (2, data.clone(), PIECE)];
    let far = |id: u32, length: usize| {
        let (connection, accepted) = connect(&compute, &node, &listener);
        for (id, memory, length) in &offers {
            accepted.lend(*id, memory.clone(), 0, *length).unwrap();
        }
        connection.offered(id, Some(PATIENCE)).unwrap().unwrap();
        (Far::new(&connection, Remote::Offered { id, offset: 0 }, length as u64, &ours), accepted)
    };
    // Looked at before anything is published, it says nothing.
    let (area, _looks) = far(1, slot_bytes(STANDARD.len()));
    let mut reader = Reader::new(area, 0, STANDARD.len()).unwrap();
    assert_eq!(reader.read().unwrap(), None);
    let publisher = Publisher::new(slot, 0, STANDARD.len()).unwrap();
    let beat = Beat::new(node.context().clone(), 1, &STANDARD, publisher).unwrap();
    let publishing = PublisherLoop::start(beat, None).unwrap();
    let follower = Follower::start(reader, standard(CAPACITY_BPS), Pace::default(), None).unwrap();
    eventually("the node is felt", || follower.tally().felt >= 3);
    eventually("it is calm", || follower.pause().is_zero() && follower.lock_strategy() == LockStrategy::Spin);

    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for holder in 1..=2 {
            let (area, accepted) = far(2, PIECE);
            let (follower, stop, reads) = (&follower, &stop, &reads);
            scope.spawn(move || {
                let area = Arc::new(follower.paced(area));
                let locks = StripedLocks::new(area.clone(), holder).unwrap();
                let mut bytes = vec![0; PIECE - 64];
                while !stop.load(Ordering::Relaxed) {
                    let guard = locks.lock_by(b"the data", follower.lock_strategy(), u32::MAX).unwrap().unwrap();
                    guard.unlock().unwrap();
                    Area::read(&area, 64, &mut bytes).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                drop(accepted);
            });
        }
        eventually("they pause and queue", || {
            !follower.pause().is_zero() && follower.lock_strategy() == LockStrategy::Queue
        });
        // The longer it is busy the longer they pause, and they never stop.
        eventually("they pause longer", || follower.tally().longest_pause_ns >= 160_000);
        let before = reads.load(Ordering::Relaxed);
        eventually("they go on", || reads.load(Ordering::Relaxed) > before + 2);
        stop.store(true, Ordering::Relaxed);
    });
    eventually("it is calm again", || follower.pause().is_zero() && follower.lock_strategy() == LockStrategy::Spin);
    let (published, seen) = (publishing.tally(), follower.tally());
    assert_eq!((published.failed, seen.failed), (0, 0));
    println!(
        "published {} times, {:?} each; {} looks, {} of which said how the node was; longest pause {:?}; {} reads",
        published.published,
        Duration::from_nanos(published.spent_ns / published.published.max(1)),
        seen.looks,
        seen.felt,
        Duration::from_nanos(seen.longest_pause_ns),
        reads.load(Ordering::Relaxed)
    );
}
