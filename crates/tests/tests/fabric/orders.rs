//! Orders to one connection that come faster than it can move: each is answered as what became of it, whatever else says the same.

use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::Config;
use scalefabric_fabric::session::{Change, Patience, Strategy};
use scalefabric_tests::fabric::Pair;

#[test]
fn each_of_many_orders_at_once_gets_its_own_answer() {
    // A machine that is busy is no reason to give up a move.
    let patience = Patience { step_ns: 60_000_000_000, ..Patience::default() };
    let pair = Pair::new(&Config { depth: 32, receives: 32, retransmit_permille: 1000, patience, ..Config::default() });
    let (client, server) = pair.connect();
    for (name, side) in [("leader", &client), ("follower", &server)] {
        let present = side.record().unwrap().path;
        let begun: Vec<_> = (0..200)
            .map(|n| {
                let change = Change {
                    path: Path { flow_label: 0x4002 + n, ..present.clone() },
                    peer_path: None,
                    strategy: Some(Strategy::MakeBeforeBreak),
                    // All of one authority.
                    token: FencingToken(1),
                    reason: "test".into(),
                };
                (change.path.flow_label, side.begin_move(change).unwrap())
            })
            .collect();
        let (mut last, mut refused) = (None, 0);
        for (label, moving) in begun {
            match moving.wait().unwrap() {
                OrderResult::Done { .. } => last = Some(label),
                OrderResult::RolledBack { reason } => {
                    assert!(reason.contains("16 orders wait"), "{name}: {reason}");
                    refused += 1;
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(refused > 0, "{name}: the orders came too slowly to wait for one another");
        // They are carried out in order: it is where the last one that was done leads.
        assert_eq!(side.record().unwrap().path.flow_label, last.expect("the first needs not wait"), "{name}");
    }
}
