//! Control is killed and stays away: no operation fails, and new connections are made from what is remembered. When it is back it hears what has happened.

use crate::world::{Host, Node, Traffic, call, offered, runtime};
use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::{Embedded, Store};
use scalefabric_fabric::Directory;
use scalefabric_fabric::endpoint::{Config, Operation, Target};
use scalefabric_tests::fabric::Region;
use scalefabric_tests::{Folder, eventually};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Seconds for which control is away, if not 5.
const SECONDS: &str = "SCALEFABRIC_TEST_AWAY_SECONDS";
/// In the control process: its store, and its two addresses.
const CHILD: &str = "SCALEFABRIC_TEST_CONTROL";

/// The control process: this program once more.
struct ControlProcess {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl ControlProcess {
    fn start(folder: &Folder, addresses: Option<(SocketAddr, SocketAddr)>) -> Self {
        let (grpc, http) = addresses.unwrap_or_else(|| {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            (any, any)
        });
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["away::control_process", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, format!("{} {grpc} {http}", folder.join("store").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a control process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let told = lines.map_while(Result::ok).find_map(|line| {
            let (_, told) = line.split_once("control serves ")?;
            let (grpc, http) = told.split_once(' ')?;
            Some((grpc.parse().ok()?, http.trim().parse().ok()?))
        });
        let (grpc, http) = told.expect("it serves");
        Self { child, grpc, http }
    }

    /// As if the machine had lost its power, but for the store's file.
    fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its end");
    }
}

impl Drop for ControlProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "what the control process runs; it is no test"]
fn control_process() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let parts: Vec<&str> = told.split(' ').collect();
    let [store, grpc, http] = parts[..] else { panic!("{CHILD}={told}") };
    runtime().block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(Machine::default());
        let store: Arc<dyn Store> = Arc::new(Embedded::open(store.as_ref(), Arc::clone(&clock)).expect("a store"));
        let mut settings = Settings::local("control1");
        settings.grpc = grpc.parse().expect("an address");
        settings.http = Some(http.parse().expect("an address"));
        let replica = Replica::start(settings, store, clock).await.expect("a replica");
        replica.ready().await.expect("it serves");
        println!("\ncontrol serves {} {}", replica.grpc, replica.http.expect("it has HTTP"));
        // Until the parent ends, if it does not kill first.
        let _ = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await;
    });
}

#[test]
fn control_is_killed_and_no_operation_fails() {
    let away = std::env::var(SECONDS).map_or(5, |seconds| seconds.parse().expect("seconds"));
    let (runtime, folder) = (runtime(), Folder::new("control"));
    let mut control = ControlProcess::start(&folder, None);
    let address = format!("http://{}", control.grpc);
    let nodes = [0, 1].map(|number| Node::start(&runtime, &folder, number, &address));
    let directories = [0, 1].map(|n| nodes[n].directory(&folder.join(["client", "server"][n])));
    let server = nodes[1].fabric(directories[1].clone(), Config::default());
    let client = nodes[0].fabric(directories[0].clone(), Config::default());
    let _host = Host::new(&server, server.listen("store").expect("a service"));
    let service = Target::Service("store".into());
    eventually("the service is resolved", || !directories[0].resolve("store").is_empty());
    let connect = || client.connect(&service).expect("a connection");
    let first: Vec<_> = (0..2).map(|_| connect()).map(|one| (offered(&one), one)).collect();
    let known =
        |http| call(http, "GET /v1/connections?node=node1&service=store&limit=1000", "").1["connections"].clone();
    eventually("both are in the directory", || known(control.http).as_array().map(Vec::len) == Some(2));
    let traffic = Traffic::start(&client, first.into_iter().map(|(remote, one)| (one, remote)).collect(), 4 << 20);

    control.kill();
    let killed = Instant::now();
    let before = traffic.done.load(Ordering::Relaxed);
    eventually("agents notice", || nodes.iter().all(|node| node.agent.state().replica.is_none()));
    let region = Region::new(&client, 64);
    let mut made = Vec::new();
    while killed.elapsed() < Duration::from_secs(away) || made.len() < 3 {
        // From what is remembered; used at once.
        let connection = connect();
        let remote = offered(&connection);
        let outcome = connection.execute(Operation::write(&region.piece(0, 64), remote)).expect("it is open");
        assert!(outcome.is_done(), "{outcome:?}");
        made.push(connection);
        std::thread::sleep(Duration::from_millis(100));
    }
    let during = traffic.done.load(Ordering::Relaxed) - before;
    assert!(during > 0, "data flows without control");

    let control = ControlProcess::start(&folder, Some((control.grpc, control.http)));
    let all = 2 + made.len();
    eventually("control hears of what was made meanwhile", || {
        known(control.http).as_array().map(Vec::len) == Some(all.min(1000))
    });
    let (connections, failures) = traffic.stop();
    assert_eq!(failures, Vec::<String>::new());
    println!("control was away for {away} s: {during} operations and {} new connections, 0 failed", made.len());
    drop((connections, made));
}
