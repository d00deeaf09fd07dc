//! Tenants on several nodes: what their quotas count is counted together, a quota that was exceeded on two nodes at once gives nothing more until it is kept again, and what is
//! seen of it over HTTP is what is counted.

use crate::http::call;
use crate::world::{World, eventually};
use scalefabric_control::client::AgentDirectory;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{Holdings, Limit};

const RULES: &str =
    r#"{"tenant":[{"name":"red","pkey":"0x8011","services":["kv"],"quota":{"qps":4,"mrs":10,"memory_bytes":8192}}]}"#;

fn holds(qps: u64) -> Holdings {
    Holdings { qps, mrs: qps, memory_bytes: 1024 * qps }
}

fn elsewhere(process: &AgentDirectory) -> Option<u64> {
    process.allowance("red").qps.map(|qps| qps.elsewhere)
}

/// What may still be made in a process that has so many.
fn room(process: &AgentDirectory, here: u64) -> u64 {
    let Limit { most, elsewhere } = process.allowance("red").qps.expect("there is a quota");
    most.saturating_sub(here + elsewhere)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_two_nodes_exceeded_at_once_gives_nothing_more_until_it_is_kept() {
    let world = World::new().await;
    let (one, two) = (world.agent("node1").await, world.agent("node2").await);
    let (here, beside, far) = (world.process(&one), world.process(&one), world.process(&two));
    let http = world.replica().http.expect("it has HTTP");
    assert_eq!(call(http, "PUT /v1/tenants", "Content-Type: application/json\r\n", RULES).await.0, 200);
    let all = [&here, &beside, &far];
    eventually("the quota is known everywhere", || all.iter().all(|one| elsewhere(one) == Some(0))).await;
    // Nobody asks before it makes something: both find room, and together they have more than they may.
    assert!(room(&here, 3) >= 1 && room(&far, 3) >= 1);
    here.holds("red", holds(3));
    far.holds("red", holds(3));
    eventually("each has heard of the other", || elsewhere(&here) == Some(3) && elsewhere(&far) == Some(3)).await;
    // That is all that it can be exceeded by: nothing more is given, on no node.
    assert_eq!((room(&here, 3), room(&far, 3)), (0, 0));
    beside.holds("red", holds(1));
    eventually("a process of the same node is elsewhere, too", || {
        elsewhere(&here) == Some(4) && elsewhere(&far) == Some(4) && elsewhere(&beside) == Some(6)
    })
    .await;
    let (_, seen) = call(http, "GET /v1/tenants/use", "", "").await;
    let red = &seen["tenants"][0];
    assert_eq!(
        (&red["name"], &red["holds"]["qps"], &red["holds"]["memory_bytes"]),
        (&"red".into(), &7.into(), &7168.into())
    );
    // One more than is allowed is not enough, and the last of it is.
    far.holds("red", holds(0));
    eventually("it is given back", || elsewhere(&here) == Some(1)).await;
    assert_eq!((room(&here, 3), room(&here, 2)), (0, 1));
    drop(beside);
    eventually("who ends gives everything back", || elsewhere(&here) == Some(0) && elsewhere(&far) == Some(3)).await;
    assert_eq!((room(&here, 3), room(&far, 0)), (1, 1));
    // So does a node that goes.
    drop((here, one));
    eventually("nothing is left elsewhere", || elsewhere(&far) == Some(0)).await;
    let (_, seen) = call(http, "GET /v1/tenants/use", "", "").await;
    assert_eq!(seen["tenants"][0]["holds"]["qps"], 0);
}
