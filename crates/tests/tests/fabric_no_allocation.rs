//! The data path of a connection allocates nothing in steady state: a counting allocator watches a thread that posts, polls and receives. One test in its own
//! program, since the allocator is the program's.

use scalefabric_fabric::endpoint::{Completion, Config, Operation, Waiting};
use scalefabric_tests::fabric::{Pair, Region};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// What this thread allocated while it was watched; `None` while it is not.
    static CALLS: Cell<Option<u64>> = const { Cell::new(None) };
}

fn note() {
    let _ = CALLS.try_with(|calls| calls.set(calls.get().map(|count| count + 1)));
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

fn watched(mut work: impl FnMut()) -> u64 {
    CALLS.set(Some(0));
    work();
    CALLS.take().unwrap_or_default()
}

#[test]
fn posting_polling_and_receiving_allocate_nothing_in_steady_state() {
    let pair = Pair::new(&Config { waiting: Waiting::Busy, ..Config::default() });
    let (client, server) = pair.connect();
    let (local, remote) = (Region::new(&pair.client, 1 << 16), Region::new(&pair.server, 1 << 16));
    let (piece, word, range) = (local.piece(0, 10_000), local.piece(0, 8), remote.range());
    let mut out = [Completion::default(); 64];
    let mut round = || {
        let bytes = [3u8; 32];
        let batch = [
            Operation::send(&bytes),
            Operation::write(&piece, range),
            Operation::read(&piece, range),
            Operation::fetch_add(&word, range, 1),
            Operation::send_with_imm(&bytes, 9).quiet(),
            Operation::write_with_imm(&piece, range, 4),
        ];
        assert_eq!(client.try_post(&batch).unwrap(), batch.len());
        for _ in 0..3 {
            let message = server.receive(None).unwrap().unwrap();
            let mut copy = [0; 32];
            message.read(0, &mut copy[..if message.is_write() { 0 } else { 32 }]).unwrap();
        }
        let mut ended = 0;
        while ended < batch.len() - 1 {
            ended += client.wait(&mut out, None).unwrap();
        }
        assert!(client.execute(Operation::send(&bytes)).unwrap().is_done());
        drop(server.receive(None).unwrap());
    };
    for _ in 0..300 {
        round();
    }
    let calls = watched(|| {
        for _ in 0..300 {
            round();
        }
    });
    assert_eq!(calls, 0, "300 rounds allocated {calls} times");
    // The counter counts.
    assert!(watched(|| drop(std::hint::black_box(vec![1u8]))) > 0);
}
