//! New keys from the order to the memory: HTTP, a replica, an agent, a process with a real fabric, and its peer, which goes on as if nothing had been.

use scalefabric_control::agent::ports::{PortCounters, PortSource};
use scalefabric_control::agent::{self, Agent};
use scalefabric_control::client::{self, AgentDirectory};
use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::directory::PortRecord;
use scalefabric_control::rotation::{self, RotationState, Scope};
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::Embedded;
use scalefabric_fabric::Local;
use scalefabric_fabric::endpoint::{Config, Fabric, Operation, Piece, Remote, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_tests::fabric::{PATIENCE, pool, provider};
use scalefabric_tests::{Folder, eventually};
use std::sync::Arc;
use std::time::Duration;

/// No port is of interest here.
struct Nothing;

impl PortSource for Nothing {
    fn ports(&mut self) -> Vec<PortRecord> {
        Vec::new()
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        Vec::new()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_to_rotate_reaches_the_memory_that_a_process_lends() {
    let folder = Folder::new("rotation");
    let clock: Arc<dyn Clock> = Arc::new(Machine::default());
    let store = Arc::new(Embedded::open(&folder.join("store"), clock.clone()).unwrap());
    let replica = Replica::start(Settings::local("control1"), store, clock.clone()).await.unwrap();
    replica.ready().await.unwrap();
    let socket = folder.join("agent.sock");
    let settings = agent::Settings {
        node: "memory1".into(),
        control: vec![format!("http://{}", replica.grpc)],
        tls: None,
        socket: socket.clone(),
        any_user: false,
        memory: None,
        neighbours: Vec::new(),
        lldpctl: None,
    };
    let agent = Agent::start(settings, Box::new(Nothing), clock).unwrap();
    eventually("the agent has joined", || agent.state().replica.is_some());
    let settings = client::Settings { socket, memory: None, ..client::Settings::default() };
    let directory = Arc::new(AgentDirectory::new(&settings).unwrap());
    eventually("the process is there", || agent.state().processes == 1);

    let config = Config { depth: 16, receives: 16, ..Config::default() };
    let build = |node: &str| {
        let builder = Fabric::builder(provider()).device("pair").node(node).config(config.clone());
        builder.exchange(Arc::new(Tcp::new()))
    };
    let server = build("memory1").listen_at("tcp://127.0.0.1:0").directory(directory).build().unwrap();
    let listener = server.listen("memory").unwrap();
    let compute = build("compute1").build().unwrap();
    let connection = compute.connect(&Target::at(server.addresses()[0].clone(), "memory")).unwrap();
    let accepted = listener.accept(Some(PATIENCE)).unwrap().unwrap();
    let (theirs, ours) = (pool(&server), pool(&compute));
    server.rotate_keys_of(&theirs);
    accepted.lend(1, Arc::new(theirs.alloc(4096).unwrap()), 0, 4096).unwrap();
    let old = connection.offered(1, Some(PATIENCE)).unwrap().unwrap();

    let shared = &replica.shared;
    let mut held = shared.rebalance.held();
    held.wait_for(Option::is_some).await.unwrap();
    eventually("the node is there", || shared.index.node("memory1").is_some());
    let begun = rotation::begin(shared, Scope::Node("memory1".into()), 30_000, "test", "an audit").await.unwrap();
    let serial = begun.expect("somebody gives orders").serial;
    let mut record = rotation::look(shared, serial).await.unwrap().unwrap();
    for _ in 0..6000 {
        if record.state != RotationState::Running {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        record = rotation::look(shared, serial).await.unwrap().unwrap();
    }
    assert_eq!(record.state, RotationState::Done, "{record:?}");
    let text = serde_json::to_string(&record).unwrap();
    assert!(text.contains(r#""result":"rotated","keys":1,"peers":1,"late":0"#), "{text}");
    let new = connection.offered(1, Some(PATIENCE)).unwrap().unwrap();
    assert_ne!(new, old);
    assert!(!text.contains(&old.rkey.to_string()) && !text.contains(&new.rkey.to_string()), "{text}");

    let local = Piece::whole(Arc::new(ours.alloc(64).unwrap()) as Arc<dyn Local>);
    let read = |remote: Remote| connection.execute(Operation::read(&local, remote)).unwrap().is_done();
    assert!(read(Remote::Offered { id: 1, offset: 0 }));
    assert!(!read(old.part(0, 64).unwrap().into()));
    assert!(read(Remote::Offered { id: 1, offset: 0 }));
    // The process hears of no order any more before its replica goes.
    drop((connection, accepted, listener, server, compute));
    replica.stop().await;
}
