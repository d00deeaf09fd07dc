//! Sixty-four connections on a hot port are all ordered to the other one at once, under load, there and back, in every way. How long that takes is the benchmark's
//! affair (`cargo xtask bench --fabric`); here all of them arrive and nothing is lost, repeated or reordered.

use scalefabric_fabric::endpoint::Config;
use scalefabric_fabric::session::Strategy;
use scalefabric_tests::crowd::Crowd;
use scalefabric_tests::eventually;
use scalefabric_tests::fabric::Pair;

const CONNECTIONS: usize = 64;

#[test]
fn sixty_four_connections_leave_a_hot_port_at_once_in_every_way_and_lose_nothing() {
    // On a machine that is busy otherwise there are losses, and moves on their account are not what is counted here.
    let mut config =
        Config { depth: 16, receives: 32, receive_bytes: 64, retransmit_permille: 1000, ..Config::default() };
    // And a step that takes long is not taken back.
    config.patience.step_ns = 30_000_000_000;
    let pair = Pair::new(&config);
    let crowd = Crowd::start(&pair, CONNECTIONS);
    let ways = [None, Some(Strategy::DrainedVector), Some(Strategy::AlternatePath), Some(Strategy::MakeBeforeBreak)];
    let mut token = 0;
    for way in ways {
        for port in [2, 1] {
            crowd.wait_for(500);
            token += 1;
            crowd.move_all(port, way, token);
            assert_eq!(crowd.ports(), [port; CONNECTIONS]);
        }
    }
    for (client, server) in &crowd.ends {
        // The side that did not order hears of the end of a hand-over by the last word, and the one that did has answered by then.
        eventually("both sides have counted the moves", || {
            [client, server].iter().all(|side| side.statistics().moves >= 2 * ways.len() as u64)
        });
        for side in [client, server] {
            let statistics = side.statistics();
            assert_eq!((statistics.moves, statistics.rebuilds), (2 * ways.len() as u64, 0), "{statistics:?}");
        }
    }
    assert!(crowd.end() > 0);
}
