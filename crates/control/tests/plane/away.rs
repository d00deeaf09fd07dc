//! Control away, the agent away, both away: what is known is still answered, no call waits, and everything is told when they are back.

use crate::world::{self, World, eventually, record, service};
use scalefabric_control::service::Settings;
use scalefabric_fabric::Directory;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_control_addresses_are_remembered_and_news_is_told_when_it_is_back() {
    let mut world = World::new().await;
    let (one, two) = (world.agent("node1").await, world.agent("node2").await);
    let (server, client) = (world.process(&one), world.process(&two));
    server.offer(service("files", "tcp://10.0.0.1:1"));
    eventually("it is resolved", || client.resolve("files").len() == 1).await;
    let mut settings = Settings::local("control1");
    settings.grpc = world.replica().grpc;
    world.stop().await;
    eventually("the agents notice", || one.agent.state().replica.is_none() && two.agent.state().replica.is_none())
        .await;
    assert_eq!(client.resolve("files").len(), 1);
    // A new process of the node hears it from its agent.
    let late = world::process_at(&two.socket, None);
    eventually("the agent remembers", || late.resolve("files").len() == 1).await;
    server.publish(record("node1/1", 1, 0x100));
    world.start(settings).await;
    let index = &world.replica().shared.index;
    eventually("the news is told", || index.size().connections == 1).await;
    eventually("the service is still there", || index.size().services == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_control_there_a_process_hears_its_word_and_not_what_the_agent_remembers() {
    let world = World::new().await;
    let (one, folder) = (world.agent("node1").await, world::Folder::new());
    let before = world.process(&one);
    before.offer(service("files", "tcp://10.0.0.1:1"));
    {
        let two = world.agent_in("node2", &folder, world.address()).await;
        let client = world::process_at(&two.socket, None);
        eventually("it is resolved", || client.resolve("files").len() == 1).await;
        let memory = folder.file("node2.memory");
        let is_kept = || std::fs::read_to_string(&memory).is_ok_and(|text| text.contains("tcp://10.0.0.1:1"));
        eventually("the agent has written it down", is_kept).await;
    }
    drop(before);
    let index = &world.replica().shared.index;
    eventually("it is gone", || index.size().services == 0).await;
    let after = world.process(&one);
    after.offer(service("files", "tcp://10.0.0.1:2"));
    eventually("the other is there", || index.size().services == 1).await;
    let two = world.agent_in("node2", &folder, world.address()).await;
    let client = world::process_at(&two.socket, None);
    loop {
        let found = client.resolve("files");
        if !found.is_empty() {
            assert_eq!(found[0].exchange, "tcp://10.0.0.1:2", "{found:?}");
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_agent_and_control_a_new_process_remembers_from_its_file() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let memory = world.folder.file("own.memory");
    {
        let server = world.process(&node);
        let client = world::process_at(&node.socket, Some(memory.clone()));
        server.offer(service("files", "tcp://10.0.0.1:1"));
        eventually("it is resolved", || client.resolve("files").len() == 1).await;
        eventually("it is in the file", || std::fs::read_to_string(&memory).is_ok_and(|text| text.contains("files")))
            .await;
    }
    drop(node);
    let nowhere = world.folder.file("no.sock");
    let alone = world::process_at(&nowhere, Some(memory));
    assert_eq!(
        alone.resolve("files").iter().map(|one| one.exchange.as_str()).collect::<Vec<_>>(),
        ["tcp://10.0.0.1:1"]
    );
    assert!(alone.resolve("else").is_empty() && alone.may_connect("red", "files").is_ok() && !alone.is_linked());
    // What is told to nobody is no error.
    alone.publish(record("node1/1", 1, 0x100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_starts_again_hears_everything_again() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    for serial in 0..300 {
        process.publish(record("node1/1", serial, 0x100));
    }
    let index = &world.replica().shared.index;
    eventually("all are there", || index.size().connections == 300).await;
    drop(node);
    // Closed while nobody listens.
    let mut closed = record("node1/1", 0, 0x100);
    closed.state = scalefabric_fabric::directory::ConnectionState::Closed;
    process.publish(closed);
    let _node = world.agent("node1").await;
    eventually("the closed one is gone and the others are there", || index.size().connections == 299).await;
}
