//! Ports over AF_XDP: two namespaces are two hosts, joined by a veth pair whose driver runs XDP programs. What the kernel of this machine
//! cannot do is skipped and said.

use std::time::Duration;

use scalefabric_wire::frame::{Frame, Ip};

use crate::namespace::{Capture, Namespace};
use crate::parent::{Child, Device, is_root, skip, until};
use crate::{exchange, number};

const MTU: u32 = 4200;

/// Two hosts: their namespaces, with IPv4 and IPv6 addresses on `v0`.
fn hosts(name: &str, net: u8) -> Option<[Namespace; 2]> {
    if !is_root() {
        skip("it takes root to make network namespaces");
        return None;
    }
    let all = [Namespace::new(&format!("{name}-l")), Namespace::new(&format!("{name}-r"))];
    all[0].ip(&format!("link add v0 mtu {MTU} type veth peer name v0 mtu {MTU} netns {}", all[1].name()));
    for (side, namespace) in all.iter().enumerate() {
        // No link-local address, so that the first GID is the same on both.
        namespace.ip("link set v0 addrgenmode none");
        namespace.ip(&format!("addr add {} dev v0", v4(net, side) + "/24"));
        namespace.ip(&format!("addr add {} dev v0 nodad", v6(net, side) + "/64"));
        namespace.ip("link set v0 up");
    }
    for side in [0, 1] {
        until("the kernels do not find each other by IPv6", || finds(&all[side], &v6(net, 1 - side)));
    }
    Some(all)
}

/// Whether a host's kernel finds the other's MAC address, which it then forgets. For up to a second after `link set up` a kernel has no route
/// for the group to which neighbours are asked for, and they ask once in a second.
fn finds(host: &Namespace, other: &str) -> bool {
    let probe = format!("exec 3>/dev/udp/{other}/9; echo >&3");
    host.run(&["bash", "-c", &probe]);
    std::thread::sleep(Duration::from_millis(20));
    let found = host.run(&["ip", "neigh", "show", "to", other]).contains("lladdr");
    host.ip("neigh flush dev v0");
    found
}

fn v4(net: u8, side: usize) -> String {
    format!("10.8.{net}.{}", side + 1)
}

fn v6(net: u8, side: usize) -> String {
    format!("fd00:8:{net}::{}", side + 1)
}

fn device(sockets: &str) -> Device {
    Device::configured("sf0", &format!("receive_buffer = 4194304\npath = \"wire\"\nsockets = \"{sockets}\"\n"))
}

/// Opens the device and uses an address of it; false where the kernel cannot, which is said.
fn open(child: &mut Child, ip: &str) -> bool {
    let answer = child.ask("open");
    if answer.starts_with("error ENOSYS") || answer.starts_with("error EOPNOTSUPP") {
        skip(&answer);
        return false;
    }
    assert!(answer.starts_with("slot="), "{answer}");
    until("no carrier", || child.ask("port") == "Active Mtu4096" && child.ask("addresses").contains(ip));
    assert_eq!(child.ask(&format!("use {ip}")), "ok");
    true
}

fn counter(child: &mut Child, name: &str) -> u64 {
    child.ask(&format!("counter {name}")).parse().unwrap()
}

/// Packets that must have gone by AF_XDP when two patterns of 256 KiB went there and back: the first ones may have found no neighbour.
const MANY: u64 = 40;

/// A READ whose responses are many packets, and atomics whose sum must be right.
fn reads_and_atomics(a: &mut Child, b: &mut Child) {
    let (of_a, of_b) = (a.ask("end make"), b.ask("end make"));
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (wa, wb) = (words(&of_a), words(&of_b));
    assert_eq!(a.ask(&format!("end connect {} {}", wb[0], wb[3])), "ok");
    assert_eq!(b.ask(&format!("end connect {} {}", wa[0], wa[3])), "ok");
    let target = format!("{} {}", wb[1], wb[2]);
    assert_eq!(a.ask(&format!("end write {target} 100000 7")), "Success");
    assert_eq!(a.ask(&format!("end read {target} 100000")), "Success 7 1");
    assert_eq!(b.ask("end store 0 40"), "ok");
    assert_eq!(a.ask(&format!("end fadd {target} 2")), "Success 40");
    assert_eq!(b.ask("end load 0"), "42");
}

#[test]
fn two_hosts_over_af_xdp_exchange_data_by_ipv4_and_ipv6() {
    let Some(hosts) = hosts("xdp", 1) else { return };
    let device = device("xdp");
    let [mut a, mut b] = hosts.each_ref().map(|host| Child::start_in(host, &device));
    if !open(&mut a, &v4(1, 0)) || !open(&mut b, &v4(1, 1)) {
        return;
    }
    assert_eq!(a.ask("sockets"), "AF_XDP, copy mode");
    exchange(&mut a, &mut b, 1);
    exchange(&mut a, &mut b, 3);
    let by_v4 = counter(&mut b, "rx_xdp_packets");
    assert!(by_v4 > MANY, "{by_v4} packets came by AF_XDP");
    reads_and_atomics(&mut a, &mut b);
    for (child, side) in [(&mut a, 0), (&mut b, 1)] {
        assert_eq!(child.ask(&format!("use {}", v6(1, side))), "ok");
    }
    exchange(&mut a, &mut b, 5);
    exchange(&mut a, &mut b, 7);
    for child in [&mut a, &mut b] {
        let (sent, received) = (counter(child, "tx_xdp_packets"), counter(child, "rx_xdp_packets"));
        assert!(sent > by_v4 && received > by_v4 + MANY, "{sent} left and {received} came by AF_XDP, {by_v4} by IPv4");
        for none in ["solved_ip_ids", "drop_bad_icrc", "drop_malformed", "drop_truncated", "rx_socket_overflow"] {
            assert_eq!(counter(child, none), 0, "{none}");
        }
    }
}

#[test]
fn one_side_over_af_xdp_and_the_other_over_udp_see_the_same_packets() {
    let Some(hosts) = hosts("mix", 2) else { return };
    let (xdp, udp) = (device("xdp"), device("udp"));
    let (mut a, mut b) = (Child::start_in(&hosts[0], &xdp), Child::start_in(&hosts[1], &udp));
    if !open(&mut a, &v4(2, 0)) || !open(&mut b, &v4(2, 1)) {
        return;
    }
    exchange(&mut a, &mut b, 1);
    // What passes an AF_XDP socket no capture sees; at the other end it is a packet like any other.
    let Some(capture) = Capture::start(&hosts[1], "v0") else {
        return skip("tcpdump is not installed");
    };
    exchange(&mut a, &mut b, 3);
    let file = capture.finish();
    let mut reader = scalefabric_wire::pcap::Reader::new(&file).unwrap();
    let (mut ours, mut theirs, mut highest) = (0, 0, 0);
    while let Some(record) = reader.next() {
        // A super-packet of the UDP side is one record, which is no packet.
        let record = record.unwrap();
        let Ok(frame) = Frame::parse(reader.link(), record.data) else { continue };
        let Ip::V4(ip) = frame.ip else { panic!("{:?}", frame.ip) };
        // Both sides' headers are alike: not to be fragmented, 64 hops, no class.
        assert_eq!((ip.flags_and_offset, ip.ttl, ip.traffic_class), (0x4000, 64, 0));
        assert_eq!(ip.checksum, ip.right_checksum());
        if frame.ip.src().to_string() == v4(2, 0) {
            assert!(frame.icrc_ok(), "packet {ours}: the ICRC does not fit the header that was on the wire");
            assert_eq!(frame.udp.checksum, 0);
            highest = highest.max(ip.id);
            ours += 1;
        } else {
            theirs += 1;
        }
    }
    assert!(ours > MANY && theirs > 0 && highest > 0 && highest < 64, "{ours} and {theirs}, highest ID {highest}");
    for (child, side) in [(&mut a, 0), (&mut b, 1)] {
        assert_eq!(child.ask(&format!("use {}", v6(2, side))), "ok");
    }
    exchange(&mut a, &mut b, 5);
    exchange(&mut a, &mut b, 7);
    assert!(counter(&mut a, "tx_xdp_packets") > 2 * MANY);
    assert_eq!(counter(&mut b, "drop_bad_icrc"), 0);
}

#[test]
fn one_process_has_the_interface_and_others_of_its_device_go_on_with_udp() {
    let Some(hosts) = hosts("own", 3) else { return };
    let (strict, lenient) = (device("xdp"), device("xdp-or-udp"));
    let (mut a, mut far) = (Child::start_in(&hosts[0], &strict), Child::start_in(&hosts[1], &lenient));
    if !open(&mut a, &v4(3, 0)) || !open(&mut far, &v4(3, 1)) {
        return;
    }
    let refused = Child::start_in(&hosts[0], &strict).ask("open");
    assert!(refused.starts_with("error EBUSY interface v0") && refused.contains("one process"), "{refused}");
    let mut b = Child::start_in(&hosts[0], &lenient);
    assert!(open(&mut b, &v4(3, 0)));
    assert_eq!((a.ask("sockets"), b.ask("sockets")), ("AF_XDP, copy mode".into(), "UDP".into()));
    assert!(b.ask("problems").contains("one process"), "{}", b.ask("problems"));
    exchange(&mut b, &mut far, 1);
    exchange(&mut a, &mut far, 3);
    // To the same host: by the kernel.
    let by_udp = counter(&mut a, "tx_xdp_by_udp");
    exchange(&mut a, &mut b, 5);
    assert!(counter(&mut a, "tx_xdp_by_udp") >= by_udp + 64);
    // The program goes with its process, however that ends.
    a.kill();
    let mut next = Child::start_in(&hosts[0], &strict);
    until("the program is still there", || number(&next.ask("retry"), "slot") > 0);
    assert_eq!(next.ask("sockets"), "AF_XDP, copy mode");
    next.ask(&format!("use {}", v4(3, 0)));
    exchange(&mut next, &mut far, 7);
}

#[test]
fn an_address_that_comes_later_is_served_by_af_xdp_too() {
    let Some(hosts) = hosts("late", 4) else { return };
    let device = device("xdp");
    let [mut a, mut b] = hosts.each_ref().map(|host| Child::start_in(host, &device));
    if !open(&mut a, &v4(4, 0)) || !open(&mut b, &v4(4, 1)) {
        return;
    }
    hosts[1].ip("addr add 10.8.44.1/24 dev v0");
    hosts[0].ip("addr add 10.8.44.2/24 dev v0");
    for (child, ip) in [(&mut a, "10.8.44.2"), (&mut b, "10.8.44.1")] {
        until("the address is not followed", || child.ask("addresses").contains(ip));
        assert_eq!(child.ask(&format!("use {ip}")), "ok");
    }
    exchange(&mut a, &mut b, 1);
    exchange(&mut a, &mut b, 3);
    let received = counter(&mut b, "rx_xdp_packets");
    assert!(received > MANY, "{received} packets came by AF_XDP");
}

#[test]
fn without_the_right_to_it_or_on_the_loopback_the_error_says_what_to_do() {
    let Some(hosts) = hosts("not", 5) else { return };
    let on_loopback = Device::configured("sflo", "sockets = \"xdp\"\n");
    let answer = Child::start_in(&hosts[0], &on_loopback).ask("open");
    assert!(answer.starts_with("error EOPNOTSUPP interface lo") && answer.contains("sockets = \"udp\""), "{answer}");
    if std::process::Command::new("setpriv").arg("--version").output().is_err() {
        return skip("setpriv is not installed");
    }
    let words = ["ip", "netns", "exec", hosts[0].name(), "setpriv", "--reuid=65534", "--clear-groups"];
    let answer = Child::start_by(&words, &device("xdp")).ask("open");
    if answer.starts_with("error ENOSYS") {
        return skip(&answer);
    }
    assert!(answer.starts_with("error EPERM interface v0") && answer.contains("CAP_BPF"), "{answer}");
    let answer = Child::start_by(&words, &device("xdp-or-udp")).ask("open");
    assert!(answer.starts_with("slot="), "{answer}");
}
