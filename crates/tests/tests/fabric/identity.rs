//! Who may take a connection up again: the peer of first contact, over TLS by its certificate's name, over TCP by the process that it said it was. Others are told
//! so, and the connection does not notice.

use scalefabric_fabric::Fault;
use scalefabric_fabric::certificate::Authority;
use scalefabric_fabric::directory::ConnectionId;
use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Injected, Listener, Operation, Target};
use scalefabric_fabric::exchange::{Channel, Exchange, Tcp, Tls};
use scalefabric_fabric::session::{Body, LaneId, Message, VERSION};
use scalefabric_tests::fabric::{PATIENCE, provider};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn fabric(node: &str, exchange: Arc<dyn Exchange>, listen: Option<&str>) -> Fabric {
    let mut config = Config { depth: 16, receives: 16, receive_bytes: 64, ..Config::default() };
    config.patience.backoff_max_ns = 20_000_000;
    let builder = Fabric::builder(provider()).device("pair").node(node).config(config).exchange(exchange);
    match listen {
        Some(address) => builder.listen_at(address).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

fn connect(client: &Fabric, target: &str, listener: &Listener) -> (Connection, Connection) {
    let connection = client.connect(&Target::at(target, "memory")).unwrap();
    (connection, listener.accept(Some(PATIENCE)).unwrap().expect("the peer is connected"))
}

#[track_caller]
fn data_flows(from: &Connection, to: &Connection) {
    assert!(from.execute(Operation::send(b"still here")).unwrap().is_done());
    assert_eq!(to.receive(Some(PATIENCE)).unwrap().unwrap().to_vec().unwrap(), b"still here");
}

/// Says one thing on a channel of its own, and returns the answer.
fn say(exchange: &dyn Exchange, address: &str, connection: &ConnectionId, from: &str, body: Body) -> Body {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut channel: Box<dyn Channel> = exchange.dial(address).await.unwrap();
        let message = Message { version: VERSION, connection: connection.clone(), from: from.into(), body };
        channel.send(&message.emit().unwrap()).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, channel.receive()).await.expect("an answer");
        Message::parse(&answer.unwrap()).unwrap().body
    })
}

fn refused(answer: &Body, names: [&str; 2]) {
    let Body::Close { reason } = answer else { panic!("{answer:?}") };
    assert!(reason.contains("refused") && names.iter().all(|name| reason.contains(name)), "{reason}");
}

#[test]
fn over_tls_only_the_name_of_first_contact_takes_a_connection_up() {
    let authority = Authority::new("test").unwrap();
    let tls = |name: &str| Arc::new(Tls::new(&authority.issue(name, &[]).unwrap()).unwrap());
    let server = fabric("server", tls("server"), Some("tls://127.0.0.1:0"));
    let client = fabric("client", tls("client"), None);
    let listener = server.listen("memory").unwrap();
    let address = server.addresses()[0].clone();
    let (ours, theirs) = connect(&client, &address, &listener);
    assert_eq!(theirs.peer().unwrap().name, "client");
    // Another node of the same authority, which even says that it is the same process.
    let place = address.strip_prefix("tls://").unwrap();
    let from = ours.id().origin.clone();
    for body in [Body::Close { reason: "away with it".into() }, Body::Commit { lane: LaneId(1) }] {
        refused(&say(&*tls("intruder"), place, ours.id(), &from, body), ["`client`", "`intruder`"]);
    }
    assert_eq!(theirs.statistics().refused, 2);
    assert_eq!((theirs.closed(), theirs.peer().unwrap().name), (None, "client".into()));
    data_flows(&ours, &theirs);
    // The real one may.
    ours.inject(Injected::ChannelLost).unwrap();
    let begun = Instant::now();
    while theirs.statistics().redialled == 0 {
        assert!(begun.elapsed() < PATIENCE, "it was not dialled again");
        std::thread::sleep(Duration::from_millis(2));
    }
    data_flows(&ours, &theirs);
    assert_eq!(theirs.statistics().refused, 2);
}

#[test]
fn over_tcp_only_the_process_of_first_contact_takes_a_connection_up() {
    let server = fabric("server", Arc::new(Tcp::new()), Some("tcp://127.0.0.1:0"));
    let client = fabric("client", Arc::new(Tcp::new()), None);
    let listener = server.listen("memory").unwrap();
    let address = server.addresses()[0].clone();
    let (ours, theirs) = connect(&client, &address, &listener);
    let place = address.strip_prefix("tcp://").unwrap();
    let body = Body::Close { reason: "away with it".into() };
    refused(&say(&Tcp::new(), place, ours.id(), "intruder/1", body), ["client/", "intruder/1"]);
    assert_eq!((theirs.statistics().refused, theirs.closed()), (1, None));
    data_flows(&ours, &theirs);
    data_flows(&theirs, &ours);
}

/// Carries bytes to wherever it is told, so that an address can become another's.
struct Forwarder {
    address: SocketAddr,
    target: Arc<Mutex<String>>,
}

impl Forwarder {
    fn new(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let to = target.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(to.lock().unwrap().as_str());
                let Ok(far) = far else { continue };
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Self { address, target }
    }
}

#[test]
fn another_process_at_the_peers_address_is_refused_while_data_flows_and_ends_the_connection_when_the_peer_is_gone() {
    let tcp = || Arc::new(Tcp::new());
    let server = fabric("server", tcp(), Some("tcp://127.0.0.1:0"));
    let other = fabric("other", tcp(), Some("tcp://127.0.0.1:0"));
    let _offered = other.listen("memory").unwrap();
    let client = fabric("client", tcp(), None);
    let listener = server.listen("memory").unwrap();
    let place = |fabric: &Fabric| fabric.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let forwarder = Forwarder::new(&place(&server));
    let (ours, theirs) = connect(&client, &format!("tcp://{}", forwarder.address), &listener);
    data_flows(&ours, &theirs);
    // The address is another's from now on.
    *forwarder.target.lock().unwrap() = place(&other);
    ours.inject(Injected::ChannelLost).unwrap();
    let begun = Instant::now();
    while ours.statistics().refused == 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", ours.closed());
        std::thread::sleep(Duration::from_millis(2));
    }
    data_flows(&ours, &theirs);
    assert_eq!((ours.closed(), ours.statistics().rebuilds), (None, 0));
    // And the peer goes.
    drop((theirs, listener, server));
    let begun = Instant::now();
    let error = loop {
        let _ = ours.execute(Operation::send(b"who is there"));
        if let Some(error) = ours.closed() {
            break error;
        }
        assert!(begun.elapsed() < PATIENCE, "it never ended");
    };
    assert_eq!(error.fault, Fault::Closed);
    assert!(error.message.contains("server/") && error.message.contains("other/"), "{error}");
}
