//! rdma_cm between processes: connect, accept, reject, disconnect, datagram services, groups, and what is left of a process that
//! is killed.

use scalefabric_nic::options::Options;
use scalefabric_nic::provider::SoftwareProvider;

use crate::connection::Application;
use crate::namespace::Namespace;
use crate::parent::{Child, Device, is_root, skip, until};

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
fn a_tool_sees_listeners_and_connections() {
    let device = Device::new("cmres", 96);
    let (mut server, mut client) = pair(&device);
    let (_, port) = listen(&mut server, "tcp", device.address());
    let _pair = establish(&mut server, &mut client, device.address(), &port);
    let seen = Child::start(&device).ask("survey");
    let of = |state: u32| -> Vec<&str> {
        let part = format!(" state={state} ps=262 ");
        seen.split("; ").filter(|text| text.starts_with("cm ") && text.contains(&part)).collect()
    };
    // Both sides are on the device that has the address.
    assert_eq!((of(8).len(), of(5).len()), (1, 2), "{seen}");
    let qp = seen.split("; ").find(|text| text.starts_with("qp ")).unwrap();
    assert_eq!((field(of(5)[0], "lqpn"), field(of(5)[0], "rqpn")), (field(qp, "lqpn"), field(qp, "rqpn")), "{seen}");
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

/// Asks for a datagram service, and sends to it what the answer says.
fn datagrams(server: &mut dyn Side, client: &mut dyn Side, ip: &str) {
    let (listener, port) = listen(server, "udp", ip);
    let id = resolve(client, "udp", ip, &port);
    client.ok(&format!("connect {id} who"));
    let request = server.event("ConnectRequest");
    assert_eq!(field(&request, "data"), "\"who\"/180");
    let other = field(&request, "id").to_owned();
    server.ok(&format!("qp {other}"));
    server.ok(&format!("accept {other} me"));
    let established = client.event("Established");
    assert_eq!((field(&established, "data"), field(&established, "qkey")), ("\"me\"/136", "0x1234567"));
    assert_eq!(client.cm(&format!("send {id} datagram")), "Success");
    assert_eq!(server.cm(&format!("recv {other}")), "Success datagram");
    client.cm(&format!("destroy {id}"));
    server.cm(&format!("destroy {other}"));
    // Refused, and nobody there.
    let id = resolve(client, "udp", ip, &port);
    client.ok(&format!("connect {id} who"));
    let other = field(&server.event("ConnectRequest"), "id").to_owned();
    server.ok(&format!("reject {other} no"));
    assert_eq!(field(&client.event("Unreachable"), "status"), "2");
    client.cm(&format!("destroy {id}"));
    server.cm(&format!("destroy {other}"));
    server.cm(&format!("destroy {listener}"));
    let id = resolve(client, "udp", ip, &port);
    client.ok(&format!("connect {id} who"));
    assert_eq!(field(&client.event("Unreachable"), "status"), "1");
    client.cm(&format!("destroy {id}"));
}

#[test]
fn a_datagram_service_is_found_and_used() {
    let device = Device::new("sidr", 103);
    let (mut server, mut client) = pair(&device);
    datagrams(&mut server, &mut client, device.address());
}

#[test]
fn the_peer_of_a_killed_process_is_told_once_and_its_port_is_free() {
    let device = Device::new("cmkill", 104);
    let (mut server, mut client) = pair(&device);
    let ip = device.address();
    let (_, port) = listen(&mut server, "tcp", ip);
    let (_, id) = establish(&mut server, &mut client, ip, &port);
    server.kill();
    client.event("Disconnected");
    client.event("TimewaitExit");
    client.quiet();
    client.cm(&format!("destroy {id}"));
    let again = client.cm("id tcp 5");
    client.ok(&format!("bind {again} {ip} {port}"));
    client.ok(&format!("listen {again} 1"));
    // And the other way round: the one that served the device was killed first, now its successor is left alone.
    let mut server = client;
    let mut client = Child::start(&device);
    let pair = establish(&mut server, &mut client, ip, &port);
    client.kill();
    server.event("Disconnected");
    server.cm(&format!("destroy {}", pair.0));
}

#[test]
fn a_service_that_is_opened_again_gets_the_request_that_came_between() {
    let device = Device::new("cmgap", 110);
    let (mut server, mut client) = pair(&device);
    let ip = device.address();
    for space in ["tcp", "udp"] {
        let (mut listener, port) = listen(&mut server, space, ip);
        // Either process may find the request in the socket of QP 1: often enough that both do.
        for _ in 0..12 {
            let id = resolve(&mut client, space, ip, &port);
            server.cm(&format!("destroy {listener}"));
            client.ok(&format!("connect {id} x"));
            std::thread::sleep(std::time::Duration::from_millis(60));
            listener = server.cm(&format!("id {space} 5"));
            server.ok(&format!("bind {listener} {ip} {port}"));
            server.ok(&format!("listen {listener} 4"));
            let request = server.event("ConnectRequest");
            assert_eq!(field(&request, "uid"), "5");
            server.cm(&format!("destroy {}", field(&request, "id")));
            client.cm(&format!("destroy {id}"));
        }
        server.cm(&format!("destroy {listener}"));
    }
}

#[test]
fn a_process_that_ends_tells_its_peers() {
    let device = Device::new("cmend", 105);
    let (mut server, mut client) = pair(&device);
    let (_, port) = listen(&mut server, "tcp", device.address());
    let (other, _) = establish(&mut server, &mut client, device.address(), &port);
    client.leave();
    server.event("Disconnected");
    server.event("TimewaitExit");
    server.quiet();
    server.cm(&format!("destroy {other}"));
}

#[test]
fn ports_belong_to_one_process_and_a_full_backlog_refuses() {
    let device = Device::new("cmport", 106);
    let (mut server, mut client) = pair(&device);
    let ip = device.address();
    let (listener, port) = listen(&mut server, "tcp", ip);
    let id = client.cm("id tcp 9");
    let taken = client.cm(&format!("bind {id} {ip} {port}"));
    assert!(taken.starts_with("error EADDRINUSE") && taken.contains(&port), "{taken}");
    let absent = client.cm(&format!("bind {id} 192.0.2.77 0"));
    assert!(absent.starts_with("error EADDRNOTAVAIL"), "{absent}");
    // Four may wait, one of five is refused: either process may take a request in, so that they need not come in their order. Each says its name.
    let mut ids: Vec<String> = (0..5).map(|_| resolve(&mut client, "tcp", ip, &port)).collect();
    ids.iter().for_each(|id| client.ok(&format!("connect {id} request-{id}")));
    let rejected = client.event("Rejected");
    assert_eq!(field(&rejected, "status"), "28");
    ids.retain(|id| id != field(&rejected, "id"));
    assert_eq!(ids.len(), 4, "{rejected}");
    // Taken from the queue, they make room.
    let seen = server.event("ConnectRequest");
    ids.retain(|id| !field(&seen, "data").starts_with(&format!("\"request-{id}\"")));
    assert_eq!(ids.len(), 3, "{seen}");
    ids.push(resolve(&mut client, "tcp", ip, &port));
    client.ok(&format!("connect {} y", ids[3]));
    // Destroying the listener refuses those that nobody has seen; the one that was seen lives on.
    assert_eq!(server.cm(&format!("destroy {listener}")), "1");
    let mut refused: Vec<String> = (0..4).map(|_| field(&client.event("Rejected"), "id").to_owned()).collect();
    refused.sort_unstable();
    assert_eq!(refused, ids);
    server.quiet();
    client.quiet();
}

#[test]
fn an_ack_timeout_that_was_set_is_what_the_qp_gets() {
    let device = Device::new("cmack", 107);
    let (mut server, mut client) = pair(&device);
    let ip = device.address();
    let (_, port) = listen(&mut server, "tcp", ip);
    let id = resolve(&mut client, "tcp", ip, &port);
    client.ok(&format!("timeout {id} 9"));
    client.ok(&format!("connect {id} x"));
    let other = field(&server.event("ConnectRequest"), "id").to_owned();
    assert_eq!(server.cm(&format!("attributes {other} rts")), "timeout=17 port=1");
    server.ok(&format!("qp {other}"));
    server.ok(&format!("accept {other} x"));
    client.event("ConnectResponse");
    assert_eq!(client.cm(&format!("attributes {id} rts")), "timeout=9 port=1");
}

#[test]
fn an_address_that_nobody_has_is_an_event_and_not_an_error() {
    let device = Device::new("cmroute", 108);
    let mut client = Child::start(&device);
    let id = client.cm("id tcp 3");
    // The kernel lets nobody send there.
    client.ok(&format!("resolve {id} 255.255.255.255 7"));
    let event = client.event("AddrError");
    assert!(field(&event, "status").starts_with('-'), "{event}");
}

#[test]
fn two_namespaces_are_two_hosts_for_the_connection_manager_too() {
    if !is_root() {
        return skip("namespaces need root");
    }
    let (left, right) = (Namespace::new("cml"), Namespace::new("cmr"));
    left.ip(&format!("link add veth0 type veth peer name veth0 netns {}", right.name()));
    for (namespace, last) in [(&left, 1), (&right, 2)] {
        namespace.ip(&format!("addr add 10.88.0.{last}/24 dev veth0"));
        namespace.ip(&format!("addr add fd88::{last}/64 dev veth0 nodad"));
        namespace.ip("link set veth0 up");
    }
    let device = Device::automatic("sf0");
    let (mut server, mut client) = (Child::start_in(&left, &device), Child::start_in(&right, &device));
    until("the link is not up", || server.ask("open").starts_with("slot") && server.ask("port").starts_with("Active"));
    until("the link is not up", || client.ask("open").starts_with("slot") && client.ask("port").starts_with("Active"));
    for ip in ["10.88.0.1", "fd88::1"] {
        whole_life(&mut server, &mut client, ip);
        datagrams(&mut server, &mut client, ip);
    }
    // A listener on any address is found by both.
    let any = server.cm("id tcp 5");
    server.ok(&format!("bind {any} :: 7174"));
    server.ok(&format!("listen {any} 4"));
    for ip in ["10.88.0.1", "fd88::1"] {
        let pair = establish(&mut server, &mut client, ip, "7174");
        talk(&mut server, &mut client, &pair);
        part(&mut server, &mut client, &pair);
    }
    // Link-local addresses name their interface.
    let scoped = link_local(&left);
    let pair = establish(&mut server, &mut client, &scoped, "7174");
    talk(&mut server, &mut client, &pair);
    part(&mut server, &mut client, &pair);
    multicast(&mut server, &mut client);
    // An address that goes away is told to those who use it.
    let id = client.cm("id tcp 6");
    client.ok(&format!("bind {id} fd88::2 0"));
    right.ip("addr del fd88::2/64 dev veth0");
    assert_eq!(field(&client.event("AddrChange"), "id"), id);
    client.quiet();
}

/// The link-local address of `veth0` there, as the other side calls it.
fn link_local(namespace: &Namespace) -> String {
    let output = std::process::Command::new("ip")
        .args(["-n", namespace.name(), "-6", "-o", "addr", "show", "dev", "veth0", "scope", "link"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let address = text.split_whitespace().find(|word| word.starts_with("fe80")).unwrap().to_owned();
    format!("{}%veth0", address.split('/').next().unwrap())
}

fn multicast(server: &mut Child, client: &mut Child) {
    for (group, mine, theirs) in [("239.88.0.7", "10.88.0.1", "10.88.0.2"), ("ff15::88", "fd88::1", "fd88::2")] {
        let mut ids = Vec::new();
        for (side, ip) in [(&mut *server, mine), (&mut *client, theirs)] {
            let id = side.cm("id udp 4");
            side.ok(&format!("bind {id} {ip} 0"));
            side.ok(&format!("qp {id}"));
            let join = side.cm(&format!("join {id} {group}"));
            let event = side.event("MulticastJoin");
            assert_eq!((field(&event, "id"), field(&event, "uid"), field(&event, "qkey")), (&*join, "77", "0x1234567"));
            side.ok(&format!("attach {id}"));
            ids.push((id, join));
        }
        assert_eq!(server.cm(&format!("send {} all", ids[0].0)), "Success");
        assert_eq!(client.cm(&format!("recv {}", ids[1].0)), "Success all");
        for (side, (id, join)) in [&mut *server, &mut *client].into_iter().zip(&ids) {
            side.ok(&format!("detach {id}"));
            assert_eq!(side.cm(&format!("leave {id} {join}")), "1");
            assert_eq!(side.cm(&format!("destroy {id}")), "1");
        }
    }
}

#[test]
fn a_device_that_fails_is_removed_from_its_identifiers() {
    let device = Device::new("cmgone", 109);
    let mut options = Options::default();
    options.read_toml(&device.config()).unwrap();
    let provider = SoftwareProvider::new(options.clone());
    let (mut server, mut client) = (Application::new(provider.clone()), Application::new(provider.clone()));
    let (_, port) = listen(&mut server, "tcp", device.address());
    let (other, id) = establish(&mut server, &mut client, device.address(), &port);
    provider.open_software(&options.devices[0].name).unwrap().core().fail_device();
    assert_eq!(field(&client.event("DeviceRemoval"), "id"), id);
    let both = [
        field(&server.event("DeviceRemoval"), "id").to_owned(),
        field(&server.event("DeviceRemoval"), "id").to_owned(),
    ];
    assert!(both.contains(&other), "the listener and its connection: {both:?}");
    assert!(client.cm(&format!("route {id}")).starts_with("error EIO"));
    client.quiet();
    // ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_RESPONSE, DEVICE_REMOVAL.
    assert_eq!(client.cm(&format!("destroy {id}")), "4");
}
