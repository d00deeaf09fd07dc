//! Two connections over two ports as one: large transfers are striped and exact, what comes after them comes after them, and one rail may go.

use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::{Config, Operation};
use scalefabric_fabric::rail::{Rail, Rails, Span};
use scalefabric_fabric::{Fault, Repeat};
use scalefabric_tests::fabric::{PATIENCE, Pair, Region};
use std::sync::Arc;

const LENGTH: usize = 3 << 20;

fn span(region: &Arc<Region>, offset: usize, length: usize) -> Span {
    Span { memory: region.clone(), offset, length }
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8 ^ (n >> 12) as u8 ^ seed).collect()
}

#[test]
fn large_transfers_are_striped_whole_in_order_and_outlive_a_rail() {
    let pair = Pair::new(&Config { depth: 32, receives: 32, ..Config::default() });
    let ends = [pair.connect(), pair.connect()];
    let other = ends[1].0.record().unwrap().alternatives.first().cloned().unwrap();
    let moved = ends[1].0.move_to(other, FencingToken(1), "a rail of its own").unwrap();
    assert!(matches!(moved, OrderResult::Done { .. }), "{moved:?}");
    let rails = |near: bool| {
        let connection = |n: usize| if near { ends[n].0.clone() } else { ends[n].1.clone() };
        Rails::new((0..2).map(|n| Rail { connection: connection(n), domain: 0, expected: 1.0 }).collect()).unwrap()
    };
    let (near, far) = (rails(true), rails(false));
    let (local, remote) = (Region::new(&pair.client, LENGTH), Region::new(&pair.server, LENGTH));
    far.offer(9, &*remote).unwrap();
    assert!(near.offered(9, Some(PATIENCE)).unwrap());

    for round in 0..4u8 {
        let bytes = pattern(round, LENGTH);
        local.0.write(0, &bytes).unwrap();
        let outcome = near.write(&span(&local, 0, LENGTH), 9, 0, Repeat::Never).unwrap();
        assert!(outcome.is_done(), "{outcome:?}");
        // What is sent after it finds it there.
        near.ordered().unwrap().post(&[Operation::send(&[round])]).unwrap();
        let message = far.ordered().unwrap().receive(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(message.to_vec().unwrap(), [round]);
        assert!(remote.bytes(0, LENGTH) == bytes, "round {round}: bytes differ");
    }
    assert!(near.measured().iter().all(Option::is_some), "a rail was not used: {:?}", near.measured());

    let bytes = pattern(77, LENGTH);
    remote.0.write(0, &bytes).unwrap();
    assert!(near.read(&span(&local, 0, LENGTH), 9, 0).unwrap().is_done());
    assert!(local.bytes(0, LENGTH) == bytes, "what was read differs");
    // Small and at odd places: one rail, and nothing beside it.
    local.0.write(0, &[0xee; 100]).unwrap();
    assert!(near.write(&span(&local, 3, 50), 9, 1001, Repeat::Never).unwrap().is_done());
    assert_eq!(remote.bytes(1000, 52), [&bytes[1000..1001], &[0xee; 50], &bytes[1051..1052]].concat());

    ends[0].0.close(Some(PATIENCE)).unwrap();
    let bytes = pattern(99, LENGTH);
    local.0.write(0, &bytes).unwrap();
    assert!(near.write(&span(&local, 0, LENGTH), 9, 0, Repeat::Idempotent).unwrap().is_done());
    assert!(remote.bytes(0, LENGTH) == bytes, "the rail that is left did not carry all");
    ends[1].0.close(Some(PATIENCE)).unwrap();
    let error = near.write(&span(&local, 0, LENGTH), 9, 0, Repeat::Idempotent).unwrap_err();
    assert_eq!(error.fault, Fault::Closed);
}
