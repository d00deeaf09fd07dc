//! UDP port against UDP port, on loopback addresses that belong to one test each.

use std::time::{Duration, Instant};

use super::*;

fn local(d: u8) -> LocalAddress {
    // Each test has addresses of its own, so that they can run side by side.
    LocalAddress { ip: socket::own_loopback(d), ifindex: 1 }
}

/// There is one IPv6 loopback address, so tests that use it take turns.
static V6: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The turn, once no other process has the address.
fn turn_of_v6() -> std::sync::MutexGuard<'static, ()> {
    let turn = V6.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let start = Instant::now();
    while let Err(e) = socket::open_receive(v6(), ReceiveOptions { reuse_port: false, ..Default::default() }) {
        assert!(start.elapsed() < Duration::from_secs(60), "[::1]:4791 is in use; end the program that has it: {e}");
        std::thread::sleep(Duration::from_millis(50));
    }
    turn
}

fn v6() -> LocalAddress {
    LocalAddress { ip: std::net::Ipv6Addr::LOCALHOST.into(), ifindex: 1 }
}

fn port(locals: &[LocalAddress]) -> UdpPort {
    UdpPort::alone(locals, ReceiveOptions::default(), UdpOptions::default()).unwrap()
}

fn train<'a>(port: &UdpPort, from: LocalAddress, to: LocalAddress, segment: usize, bytes: &'a [u8]) -> Train<'a> {
    Train {
        src: from.ip,
        src_port: port.source_port(from.ip, 7),
        dst: to.ip,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        segment,
        bytes,
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Got {
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    ip_id: u16,
    bytes: Vec<u8>,
}

fn take(port: &mut UdpPort, max: usize, got: &mut Vec<Got>) -> usize {
    port.receive(max, &mut |d| {
        got.push(Got {
            src: d.src,
            src_port: d.src_port,
            dst: d.dst,
            traffic_class: d.traffic_class,
            hop_limit: d.hop_limit,
            flow_label: d.flow_label,
            ip_id: d.ip_id,
            bytes: d.bytes.to_vec(),
        });
    })
}

fn wait_for(port: &mut UdpPort, count: usize) -> Vec<Got> {
    let (mut got, start) = (Vec::new(), Instant::now());
    while got.len() < count && start.elapsed() < Duration::from_secs(10) {
        take(port, 64, &mut got);
    }
    got
}

fn drops(port: &mut UdpPort) -> Vec<(DropReason, u64)> {
    let mut all = Vec::new();
    port.take_drops(&mut |reason, n| all.push((reason, n)));
    all
}

/// Bytes in which no two datagrams are alike.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 + i % 251 * 3) as u8).collect()
}

#[test]
fn a_datagram_over_ipv6_without_udp_checksum_arrives() {
    const UDP_NO_CHECK6_TX: i32 = 101;
    use std::os::fd::AsRawFd;
    let _turn = turn_of_v6();
    let mut right = port(&[v6()]);
    // As Linux's rxe and most hardware send.
    let sender = std::net::UdpSocket::bind("[::1]:0").unwrap();
    socket::set(sender.as_raw_fd(), libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, &1i32).unwrap();
    sender.send_to(&[7; 40], "[::1]:4791").unwrap();
    let got = wait_for(&mut right, 1);
    assert_eq!(got.iter().map(|d| d.bytes.clone()).collect::<Vec<_>>(), [[7; 40]]);
}

#[test]
fn a_train_arrives_as_the_datagrams_it_was_made_of() {
    let (a, b) = (local(1), local(2));
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let bytes = pattern(15 * 4112 + 100);
    let sent = train(&left, a, b, 4112, &bytes);
    assert_eq!(left.send(&sent), Sent::Done);
    left.flush();
    let got = wait_for(&mut right, 16);
    assert_eq!(got.len(), 16);
    for (i, datagram) in got.iter().enumerate() {
        assert_eq!(datagram.bytes, bytes[i * 4112..bytes.len().min((i + 1) * 4112)], "datagram {i}");
        assert_eq!((datagram.src, datagram.dst, datagram.src_port), (a.ip, b.ip, sent.src_port));
        assert_eq!(usize::from(datagram.ip_id), i, "the identification is the place in the train");
        assert_eq!(datagram.hop_limit, 64);
    }
    assert_eq!(drops(&mut left), []);
}

#[test]
fn small_trains_leave_at_the_flush_and_keep_their_order() {
    let (a, b) = (local(3), local(4));
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let big = pattern(3000);
    for i in 0..100u8 {
        let small = [i; 40];
        let t = train(&left, a, b, 40, &small);
        assert_eq!(left.send(&t), Sent::Done);
        if i == 50 {
            let t = train(&left, a, b, 1500, &big);
            assert_eq!(left.send(&t), Sent::Done, "a large one must not overtake the small ones");
        }
    }
    left.flush();
    let got = wait_for(&mut right, 102);
    let order: Vec<u8> = got.iter().filter(|d| d.bytes.len() == 40).map(|d| d.bytes[0]).collect();
    assert_eq!(order, (0..100).collect::<Vec<u8>>());
    assert_eq!(got.iter().position(|d| d.bytes.len() == 1500), Some(51));
}

#[test]
fn receive_gives_no_more_than_asked_and_loses_nothing() {
    let (a, b) = (local(5), local(6));
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let bytes = pattern(64 * 100);
    let t = train(&left, a, b, 100, &bytes);
    left.send(&t);
    left.flush();
    let (mut got, start) = (Vec::new(), Instant::now());
    while got.len() < 64 && start.elapsed() < Duration::from_secs(10) {
        assert!(take(&mut right, 5, &mut got) <= 5);
    }
    assert_eq!(got.iter().flat_map(|d| d.bytes.clone()).collect::<Vec<u8>>(), bytes);
}

#[test]
fn traffic_class_and_hop_limit_travel() {
    let _turn = turn_of_v6();
    for (n, (a, b)) in [(local(7), local(8)), (v6(), v6())].into_iter().enumerate() {
        let mut both = [port(&[a]), if n == 0 { port(&[b]) } else { port(&[local(9)]) }];
        let t = Train { traffic_class: 106, hop_limit: 3, flow_label: 0x12345, ..train(&both[0], a, b, 50, &[9; 50]) };
        both[0].send(&t);
        both[0].flush();
        let receiver = if n == 0 { 1 } else { 0 };
        let got = wait_for(&mut both[receiver], 1);
        assert_eq!((got[0].traffic_class, got[0].hop_limit), (0, 64), "{a:?}: nobody asked");
        both[receiver].tell_headers();
        both[receiver].refresh();
        both[0].send(&Train { bytes: &[8; 50], ..t });
        both[0].flush();
        let got = wait_for(&mut both[receiver], 1);
        assert_eq!((got[0].traffic_class, got[0].hop_limit), (106, 3), "{a:?}");
        assert_eq!((got[0].src, got[0].dst), (a.ip, b.ip));
        assert_eq!(got[0].flow_label, if n == 0 { 0 } else { 0x12345 });
        assert_eq!(drops(&mut both[0]), []);
    }
}

#[test]
fn what_the_kernel_refuses_is_counted() {
    let a = local(10);
    let mut left = port(&[a]);
    let none = LocalAddress { ip: "240.0.0.1".parse().unwrap(), ifindex: 1 };
    let bytes = pattern(120);
    let t = train(&left, a, none, 40, &bytes);
    assert_eq!(left.send(&t), Sent::Done);
    left.flush();
    assert_eq!(drops(&mut left), [(DropReason::EgressError, 3)]);
    assert_ne!(left.sockets().counters.last_send_errno.load(Ordering::Relaxed), 0);
    let gone = Train { src: local(11).ip, ..t };
    assert_eq!(left.send(&gone), Sent::Done);
    assert_eq!(drops(&mut left), [(DropReason::EgressError, 3)]);
    assert_eq!(drops(&mut left), []);
}

#[test]
fn without_gso_a_train_leaves_in_pieces_with_new_icrcs() {
    let (a, b) = (local(12), local(13));
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let mut bytes = pattern(5 * 100);
    let t = train(&left, a, b, 100, &[]);
    for (i, datagram) in bytes.chunks_mut(100).enumerate() {
        reseal(datagram, &t, i as u16);
    }
    let t = Train { bytes: &bytes, ..t };
    let socket = left.pools[0].by_port(t.src_port);
    // What a path without GSO makes the kernel answer.
    left.lose(socket, 0, &t, Outcome::GsoRefused);
    assert_eq!(left.max_train(), 1);
    assert_eq!(left.sockets().counters.gso_refused.load(Ordering::Relaxed), 1);
    let got = wait_for(&mut right, 5);
    for (i, datagram) in got.iter().enumerate() {
        let mut expected = bytes[i * 100..(i + 1) * 100].to_vec();
        reseal(&mut expected, &t, 0);
        assert_eq!(datagram.bytes, expected);
        assert_eq!(datagram.ip_id, 0);
    }
    assert_eq!(drops(&mut left), []);
}

#[test]
fn flows_spread_over_source_ports_and_stay_on_theirs() {
    let a = local(14);
    let left = port(&[a]);
    let ports: Vec<u16> = (0..64).map(|flow| left.source_port(a.ip, flow)).collect();
    assert!(ports.iter().all(|&p| p >= socket::FIRST_SOURCE_PORT));
    let distinct: std::collections::HashSet<_> = ports.iter().collect();
    assert_eq!(distinct.len(), UdpOptions::default().source_ports);
    assert_eq!(ports, (0..64).map(|flow| left.source_port(a.ip, flow)).collect::<Vec<u16>>());
}

#[test]
fn a_named_source_port_is_used_by_several_ports_of_one_address_up_to_a_limit() {
    let (a, b) = (local(24), local(25));
    // Two processes of one device: the second one alone may not open the address again, so it has no receive sockets.
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let neighbour = send::Pool::open(a, 8, 0, 1 << 20).unwrap();
    let of = |pool: &send::Pool| pool.sockets.iter().map(|s| s.source_port).collect::<Vec<_>>();
    let spread = [of(&neighbour), of(&left.pools[0])].concat();
    let mut free = (socket::FIRST_SOURCE_PORT..=u16::MAX).filter(|p| !spread.contains(p));
    let chosen = free.next().unwrap();
    assert_eq!(left.named_source_port(a.ip, chosen), Some(chosen));
    neighbour.name(chosen).unwrap();
    // Also one that the other spreads its flows over, and one that it has itself.
    for wanted in [neighbour.sockets[0].source_port, left.pools[0].sockets[0].source_port] {
        assert_eq!(left.named_source_port(a.ip, wanted), Some(wanted));
    }
    let t = Train { src_port: chosen, ..train(&left, a, b, 20, &[7; 40]) };
    assert_eq!(left.send(&t), Sent::Done);
    left.flush();
    let got = wait_for(&mut right, 2);
    assert_eq!(got.iter().map(|d| d.src_port).collect::<Vec<_>>(), [chosen; 2]);
    let named = free.by_ref().take(256).filter(|&wanted| left.named_source_port(a.ip, wanted).is_some()).count();
    assert_eq!((named, left.sockets().counters.unnamed.load(Ordering::Relaxed)), (62, 256 - 62));
    assert_eq!(left.named_source_port(a.ip, chosen), Some(chosen));
    assert_eq!(left.named_source_port(b.ip, chosen), None);
    // A pool of another process still finds source ports of its own.
    let third = send::Pool::open(a, 8, 0, 1 << 20).unwrap();
    assert!(of(&third).iter().all(|p| !spread.contains(p)));
}

#[test]
fn an_address_can_come_and_go_while_the_port_runs() {
    let (a, b, c) = (local(15), local(16), local(17));
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let sockets = right.sockets().clone();
    let mut addresses = sockets.addresses();
    let receive = ReceiveOptions { reuse_port: false, ..ReceiveOptions::default() };
    let more = AddressSockets { local: c, receive: vec![Arc::new(socket::open_receive(c, receive).unwrap())] };
    addresses.push(more);
    sockets.set_addresses(addresses.clone()).unwrap();
    let t = train(&left, a, c, 30, &[1; 30]);
    left.send(&t);
    left.flush();
    assert_eq!(wait_for(&mut right, 1)[0].dst, c.ip);
    assert!(right.pool(c.ip).is_some());
    addresses.retain(|address| address.local != b);
    sockets.set_addresses(addresses).unwrap();
    take(&mut right, 1, &mut Vec::new());
    assert!(right.pool(b.ip).is_none());
    // Nobody holds the address any more: it can be bound again.
    drop(socket::open_receive(b, receive).unwrap());
}

#[test]
fn every_member_of_a_group_gets_its_datagrams() {
    let (a, b) = (local(18), local(19));
    let (mut left, mut right) = (port(&[a]), port(&[b]));
    let group: IpAddr = "239.77.0.1".parse().unwrap();
    left.join(group).unwrap();
    right.join(group).unwrap();
    let to = LocalAddress { ip: group, ifindex: 1 };
    let t = train(&left, a, to, 44, &[0xff; 44]);
    left.send(&t);
    left.flush();
    for port in [&mut left, &mut right] {
        let got = wait_for(port, 1);
        assert_eq!((got.len(), got[0].dst, got[0].src), (1, group, a.ip));
    }
    right.leave(group).unwrap();
    let t = train(&left, a, to, 44, &[0xff; 44]);
    left.send(&t);
    left.flush();
    assert_eq!(wait_for(&mut left, 1).len(), 1);
    assert_eq!(take(&mut right, 9, &mut Vec::new()), 0);
    assert!(right.leave(group).is_err());
}

struct Boxes(Vec<(u8, Descriptor)>);

impl Neighbours for Boxes {
    fn mailbox(&self, slot: u8) -> Option<RawFd> {
        self.0.iter().find(|(s, _)| *s == slot).map(|(_, fd)| fd.as_raw_fd())
    }
}

#[test]
fn a_datagram_for_another_slot_is_handed_over_and_one_for_nobody_stays() {
    let (a, b) = (local(20), local(21));
    let (x, y) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let mut left = port(&[a]);
    let alone = port(&[b]);
    let boxes = Arc::new(Boxes(vec![(2, Descriptor::keep(x.into()))]));
    let mut first = UdpPort::new(alone.sockets().clone(), Some(boxes), UdpOptions { slot: 1, ..UdpOptions::default() });
    let mut second = UdpPort::new(
        Sockets::new(Some(Descriptor::keep(y.into()))).unwrap(),
        None,
        UdpOptions { slot: 2, ..UdpOptions::default() },
    );
    let mut bytes = Vec::new();
    for slot in [1u8, 2, 3, 0] {
        let mut datagram = [0x40 + slot; 24];
        datagram[5] = slot;
        bytes.extend_from_slice(&datagram);
    }
    let t = train(&left, a, b, 24, &bytes);
    left.send(&t);
    left.flush();
    let got = wait_for(&mut first, 3);
    let slots = |got: &[Got]| got.iter().map(|d| (d.bytes[5], d.ip_id)).collect::<Vec<_>>();
    assert_eq!(slots(&got), [(1, 0), (3, 2), (0, 3)]);
    let got = wait_for(&mut second, 1);
    assert_eq!(slots(&got), [(2, 1)]);
    assert_eq!((got[0].src, got[0].dst, got[0].src_port), (a.ip, b.ip, t.src_port));
    assert_eq!(first.sockets().counters.handed_over.load(Ordering::Relaxed), 1);
    assert_eq!(second.sockets().counters.taken_over.load(Ordering::Relaxed), 1);
}
