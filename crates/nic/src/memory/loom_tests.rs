//! Every interleaving of a deregistration with a turn of the engine, and with an application thread that copies, within
//! loom's bounds: nobody touches memory after the deregistration has returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};

use loom::thread;
use scalefabric_verbs::{AccessFlags, MwType};

use super::region::Pins;
use super::table::{Entry, kind};
use super::{MemoryTable, PdId, Seed};
use crate::ring::atomic::Ordering;

/// A table with one region of memory that does not exist: nothing is copied here. Its slot and key.
fn table_with_region() -> (Arc<MemoryTable>, super::Accessor, u32, u32) {
    let (table, accessor) = MemoryTable::new(Seed([1, 2, 3, 4]), 2);
    let window = table.allocate_window(PdId(1), MwType::Type1).expect("room");
    let key = window.rkey().0;
    let slot = table.slot_of(key);
    // The handle would free it.
    std::mem::forget(window);
    let entry: &Entry = table.entry(slot);
    entry.kind.store(kind::REGION, Ordering::Relaxed);
    MemoryTable::fill(entry, PdId(1), std::ptr::null_mut(), 8, 0, AccessFlags::empty());
    (table, accessor, slot, key)
}

/// What `deregister` does; then the memory is gone.
fn deregister(table: &MemoryTable, slot: u32, pins: Option<&Pins>, gone: &AtomicBool) {
    table.revoke(slot);
    assert!(table.quiesce_with(slot, || pins.is_some_and(Pins::any)));
    gone.store(true, StdOrdering::SeqCst);
}

#[test]
fn loom_a_turn_never_touches_what_is_deregistered() {
    loom::model(|| {
        let (table, mut accessor, slot, key) = table_with_region();
        // Not one of loom's: it only sees the order in which things happen.
        let gone = Arc::new(AtomicBool::new(false));
        let engine = thread::spawn({
            let gone = gone.clone();
            move || {
                for _ in 0..2 {
                    let access = accessor.enter();
                    if access.table().find(key).is_some() {
                        thread::yield_now();
                        assert!(!gone.load(StdOrdering::SeqCst), "touched after deregistration");
                    }
                    drop(access);
                }
            }
        });
        deregister(&table, slot, None, &gone);
        engine.join().expect("no panic");
    });
}

#[test]
fn loom_a_pinned_copy_is_waited_for() {
    loom::model(|| {
        let (table, _accessor, slot, key) = table_with_region();
        let (gone, pins) = (Arc::new(AtomicBool::new(false)), Arc::new(Pins::new()));
        let application = thread::spawn({
            let (table, gone, pins) = (table.clone(), gone.clone(), pins.clone());
            move || {
                // As `Region::with_bytes` does it.
                let entry = table.entry(slot);
                pins.add();
                if entry.key.load(Ordering::Acquire) == key {
                    thread::yield_now();
                    assert!(!gone.load(StdOrdering::SeqCst), "touched after deregistration");
                }
                pins.sub();
            }
        });
        deregister(&table, slot, Some(&pins), &gone);
        application.join().expect("no panic");
    });
}
