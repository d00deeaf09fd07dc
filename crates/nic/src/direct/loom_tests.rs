//! Every interleaving, within loom's bounds, of an accessor with an owner who revokes a key, closes a gate, or both: nothing is touched
//! after the owner has gone on, and what was executed is counted.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use scalefabric_verbs::{AccessFlags, Gid, Qpn};

use super::{Claim, Gate, Hazard, Terms};
use crate::memory::PdId;
use crate::ring::atomic::fence;

const KEY: u32 = 77;
const CLAIM: Claim = Claim { target: 1, entry: 5, qp: 9 };

fn terms(n: u32) -> Terms {
    Terms {
        qpn: Qpn::new(9),
        pd: PdId(n),
        access: AccessFlags::empty(),
        peer_qpn: Qpn::new(n),
        peer_gid: Gid::ZERO,
        sgid_index: 0,
        port_num: 1,
        max_dest_rd_atomic: 1,
        pkey_index: 0,
    }
}

struct World {
    hazard: Hazard,
    gate: Gate,
    key: AtomicU32,
    gone: std::sync::atomic::AtomicBool,
}

impl World {
    fn new() -> Arc<Self> {
        let gate = Gate::new();
        gate.open(&terms(1));
        let gone = std::sync::atomic::AtomicBool::new(false);
        Arc::new(Self { hazard: Hazard::new(), gate, key: AtomicU32::new(KEY), gone })
    }

    /// As `engine/direct.rs` does it. True if it touched.
    fn access(&self, generation: u32) -> bool {
        let _published = self.hazard.publish(CLAIM);
        if !self.gate.is_open(generation) || self.key.load(Ordering::Acquire) != KEY {
            return false;
        }
        assert!(!self.gone.load(std::sync::atomic::Ordering::SeqCst), "touched after it was taken away");
        thread::yield_now();
        assert!(!self.gone.load(std::sync::atomic::Ordering::SeqCst), "taken away while it was touched");
        self.gate.count(generation, 1);
        true
    }

    fn wait(&self) {
        fence(Ordering::SeqCst);
        let done = self.hazard.wait(
            |claim| claim == CLAIM,
            |_| {
                thread::yield_now();
                true
            },
        );
        assert!(done);
        self.gone.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_nothing_is_touched_after_a_deregistration() {
    model(|| {
        let world = World::new();
        let generation = world.gate.read().expect("open").generation;
        let accessor = thread::spawn({
            let world = world.clone();
            move || {
                world.access(generation);
                world.access(generation);
            }
        });
        world.key.store(0, Ordering::Release);
        world.wait();
        accessor.join().expect("no panic");
    });
}

#[test]
fn loom_what_was_executed_is_counted_when_the_gate_has_closed() {
    model(|| {
        let world = World::new();
        let generation = world.gate.read().expect("open").generation;
        let touched = Arc::new(AtomicU32::new(0));
        let accessor = thread::spawn({
            let (world, touched) = (world.clone(), touched.clone());
            move || {
                for _ in 0..2 {
                    if world.access(generation) {
                        touched.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        world.gate.close();
        world.wait();
        let counted = world.gate.executed_psns();
        accessor.join().expect("no panic");
        assert_eq!(counted, touched.load(Ordering::Relaxed), "known as soon as the gate is closed and nobody inside");
    });
}

#[test]
fn loom_terms_are_read_of_one_opening() {
    model(|| {
        let world = World::new();
        let seen = Arc::new(AtomicBool::new(false));
        let accessor = thread::spawn({
            let (world, seen) = (world.clone(), seen.clone());
            move || {
                if let Some(open) = world.gate.read() {
                    assert_eq!(open.terms, terms(open.terms.pd.0), "a mixture of two openings");
                    seen.store(true, Ordering::Relaxed);
                }
            }
        });
        world.gate.close();
        world.gate.open(&terms(2));
        accessor.join().expect("no panic");
    });
}
