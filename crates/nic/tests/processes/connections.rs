//! rdma_cm between processes: connect, accept, reject, disconnect, datagram services, groups, and what is left of a process that
//! is killed.

use scalefabric_nic::options::Options;
use scalefabric_nic::provider::SoftwareProvider;

use crate::connection::Application;
use crate::parent::{Child, Device};

/// One side of a test: a child process, or this process itself.
trait Side {
    fn cm(&mut self, words: &str) -> String;

    fn ok(&mut self, words: &str) {
        assert_eq!(self.cm(words), "ok", "{words}");
    }

    /// The next event must be this one; gives its text.
    fn event(&mut self, name: &str) -> String {
        let event = self.cm("event 20000");
        assert!(event.starts_with(&format!("{name} ")), "{name} expected: {event}");
        event
    }

    fn quiet(&mut self) {
        assert_eq!(self.cm("event 300"), "none");
    }
}

impl Side for Child {
    fn cm(&mut self, words: &str) -> String {
        self.ask(&format!("cm {words}"))
    }
}

impl Side for Application {
    fn cm(&mut self, words: &str) -> String {
        self.answer(&words.split(' ').collect::<Vec<_>>())
    }
}

fn field<'a>(event: &'a str, key: &str) -> &'a str {
    let found = event.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("{event}: no {key}"))
}

/// A listener on a port of an address; gives its identifier and the port.
fn listen(side: &mut dyn Side, space: &str, ip: &str) -> (String, String) {
    let id = side.cm(&format!("id {space} 5"));
    side.ok(&format!("bind {id} {ip} 0"));
    side.ok(&format!("listen {id} 4"));
    let local = side.cm(&format!("local {id}"));
    let port = local.rsplit_once(':').expect("an address with a port").1.to_owned();
    (id, port)
}

/// An identifier with a route, and a QP.
fn resolve(side: &mut dyn Side, space: &str, ip: &str, port: &str) -> String {
    let id = side.cm(&format!("id {space} 7"));
    side.ok(&format!("resolve {id} {ip} {port}"));
    assert_eq!(field(&side.event("AddrResolved"), "id"), id);
    side.ok(&format!("route {id}"));
    side.event("RouteResolved");
    side.ok(&format!("qp {id}"));
    id
}

/// Connects; gives both identifiers.
fn establish(server: &mut dyn Side, client: &mut dyn Side, ip: &str, port: &str) -> (String, String) {
    let id = resolve(client, "tcp", ip, port);
    client.ok(&format!("connect {id} hello"));
    let request = server.event("ConnectRequest");
    assert_eq!(field(&request, "data"), "\"hello\"/56", "padded to what a REQ carries");
    assert_eq!(
        (field(&request, "uid"), field(&request, "rr")),
        ("5", "2"),
        "the peer's initiator depth is ours to serve"
    );
    assert!(request.contains(" id=3 ") && request.ends_with("retry=6 rnr=5"), "{request}");
    let other = request.split(' ').find_map(|w| w.strip_prefix("id=")).unwrap().to_owned();
    server.ok(&format!("qp {other}"));
    server.ok(&format!("accept {other} welcome"));
    let response = client.event("ConnectResponse");
    assert_eq!(field(&response, "data"), "\"welcome\"/196");
    client.ok(&format!("finish {id}"));
    let established = server.event("Established");
    assert_eq!(field(&established, "uid"), (other.parse::<u32>().unwrap() + 1000).to_string());
    (other, id)
}

fn talk(server: &mut dyn Side, client: &mut dyn Side, (other, id): &(String, String)) {
    assert_eq!(client.cm(&format!("send {id} ping")), "Success");
    assert_eq!(server.cm(&format!("recv {other}")), "Success ping");
    assert_eq!(server.cm(&format!("send {other} pong")), "Success");
    assert_eq!(client.cm(&format!("recv {id}")), "Success pong");
}

fn part(server: &mut dyn Side, client: &mut dyn Side, (other, id): &(String, String)) {
    client.ok(&format!("disconnect {id}"));
    client.event("Disconnected");
    server.event("Disconnected");
    server.ok(&format!("disconnect {other}"));
    client.event("TimewaitExit");
    server.event("TimewaitExit");
    client.quiet();
    server.quiet();
    // ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_RESPONSE, DISCONNECTED, TIMEWAIT_EXIT; ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT.
    assert_eq!((client.cm(&format!("destroy {id}")), server.cm(&format!("destroy {other}"))), ("5".into(), "3".into()));
}

fn whole_life(server: &mut dyn Side, client: &mut dyn Side, ip: &str) {
    let (listener, port) = listen(server, "tcp", ip);
    let pair = establish(server, client, ip, &port);
    talk(server, client, &pair);
    part(server, client, &pair);
    // Refused by the application.
    let id = resolve(client, "tcp", ip, &port);
    client.ok(&format!("connect {id} again"));
    let request = server.event("ConnectRequest");
    let other = request.split(' ').find_map(|w| w.strip_prefix("id=")).unwrap().to_owned();
    server.ok(&format!("reject {other} no"));
    let rejected = client.event("Rejected");
    assert_eq!((field(&rejected, "status"), field(&rejected, "data")), ("28", "\"no\"/148"));
    client.cm(&format!("destroy {id}"));
    server.cm(&format!("destroy {other}"));
    // Refused because nobody is there: two requests were reported for the listener.
    assert_eq!(server.cm(&format!("destroy {listener}")), "2");
    let id = resolve(client, "tcp", ip, &port);
    client.ok(&format!("connect {id} anybody"));
    assert_eq!(field(&client.event("Rejected"), "status"), "8");
    client.cm(&format!("destroy {id}"));
}

fn pair(device: &Device) -> (Child, Child) {
    (Child::start(device), Child::start(device))
}

#[test]
fn two_processes_connect_talk_and_part() {
    let device = Device::new("cm", 101);
    let (mut server, mut client) = pair(&device);
    whole_life(&mut server, &mut client, device.address());
}

#[test]
fn one_process_connects_to_itself() {
    struct Both(Application);
    let device = Device::new("cmself", 102);
    let mut options = Options::default();
    options.read_toml(&device.config()).unwrap();
    let provider = SoftwareProvider::new(options);
    // Two channels of one process: two applications in it.
    let mut server = Both(Application::new(provider.clone()));
    let mut client = Both(Application::new(provider));
    whole_life(&mut server.0, &mut client.0, device.address());
}
