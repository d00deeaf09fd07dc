//! Orders: from the replica through the agent to the process and back; by an old token refused; carried out once.

use crate::world::{World, eventually, id, path, record};
use scalefabric_control::client::AgentDirectory;
use scalefabric_control::message::Answer;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{FencingToken, Order, OrderResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

fn order(serial: u64, token: u64) -> Order {
    Order::Move { connection: id("node1/1", serial), path: path(2), token: FencingToken(token), reason: "hot".into() }
}

/// Answers every order as done; counts.
fn obedient(process: AgentDirectory) -> (Arc<AtomicU32>, Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let (count, end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, ended) = (Arc::clone(&count), Arc::clone(&end));
    let thread = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            while let Some((id, _)) = process.next_order() {
                let generation = u64::from(counted.fetch_add(1, Ordering::Relaxed)) + 2;
                process.answer(id, OrderResult::Done { generation, pause_us: 40 });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    (count, end, thread)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_reaches_the_process_and_its_answer_comes_back() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    for serial in 0..64 {
        process.publish(record("node1/1", serial, 0x100));
    }
    let shared = &world.replica().shared;
    eventually("the connections are there", || shared.index.size().connections == 64).await;
    let mut held = shared.rebalance.held();
    let token = held.wait_for(Option::is_some).await.expect("it runs").expect("just seen");
    assert_eq!(shared.token().await, Ok(Some(token)));
    let (count, end, thread) = obedient(process);
    let orders: Vec<(String, Order)> = (0..64).map(|serial| ("node1".into(), order(serial, token.0))).collect();
    let answers = shared.orders.send(&orders, "test", PATIENCE).await.expect("the store is there");
    let done = |answer: &Option<Answer>| matches!(answer, Some(Answer::Answered { outcome: OrderResult::Done { .. } }));
    assert!(answers.iter().all(done), "{answers:?}");
    assert_eq!(count.load(Ordering::Relaxed), 64);
    // One with an older token is refused before it reaches anybody.
    let old = [("node1".to_owned(), order(0, token.0 - 1))];
    let answers = shared.orders.send(&old, "test", PATIENCE).await.expect("the store is there");
    assert_eq!(answers, [Some(Answer::Answered { outcome: OrderResult::Fenced { highest: token } })]);
    // One for a connection that nobody has is answered, too.
    let nobody = [("node1".to_owned(), order(99, token.0))];
    let answers = shared.orders.send(&nobody, "test", PATIENCE).await.expect("the store is there");
    assert!(matches!(answers[0], Some(Answer::NotHere { .. })), "{answers:?}");
    assert_eq!(count.load(Ordering::Relaxed), 64);
    end.store(true, Ordering::Relaxed);
    thread.join().expect("it ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_waits_is_carried_out_once_by_whichever_replica_comes_back() {
    let mut world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    process.publish(record("node1/1", 1, 0x100));
    let shared = Arc::clone(&world.replica().shared);
    eventually("the connection is there", || shared.index.size().connections == 1).await;
    // Given, and delivered to a process that does not answer yet.
    let token = 1 << 60;
    let orders = [("node1".to_owned(), order(1, token))];
    let none = shared.orders.send(&orders, "test", Duration::from_millis(300)).await.expect("the store is there");
    assert_eq!(none, [None]);
    drop(shared);
    let address = world.replica().grpc;
    world.stop().await;
    // The process answers while nobody is there to hear it: who delivers the order again gets that answer.
    let (count, end, thread) = obedient(process);
    eventually("it was carried out", || count.load(Ordering::Relaxed) == 1).await;
    let mut settings = scalefabric_control::service::Settings::local("control1");
    settings.grpc = address;
    world.start(settings).await;
    let shared = &world.replica().shared;
    eventually("the agent is back", || shared.joined() == ["node1"]).await;
    let mut stored = Vec::new();
    for _ in 0..6000 {
        let (entries, _) = shared.store.list(scalefabric_control::keys::ORDERS).await.expect("the store is there");
        stored = entries.iter().map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).collect();
        if stored.iter().all(|order| order.contains("\"answer\"")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(stored.len() == 1 && stored[0].contains("\"done\""), "{stored:?}");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    end.store(true, Ordering::Relaxed);
    thread.join().expect("it ended");
}
