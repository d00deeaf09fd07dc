//! The shared device between real processes: each test starts children (this same binary, told what to do line by line)
//! that open a device, move data, die and are replaced. Tests that need namespaces or other users need root and say so when
//! they are skipped.

mod child;
mod connection;
mod connections;
mod direct;
mod forks;
mod namespace;
mod parent;
mod reach;
mod signals;
mod xdp;

use std::os::unix::process::CommandExt;

use scalefabric_wire::frame::{Frame, Ip};

use parent::{Child, Device, is_root, skip};

/// Not a test by itself: what a child process runs.
#[test]
fn child() {
    if std::env::var_os(parent::CHILD).is_some() {
        child::run();
    }
}

/// Connects two children's QPs and moves data both ways.
#[track_caller]
fn exchange(a: &mut Child, b: &mut Child, seed: u32) {
    let (qa, qb) = (a.ask("qp"), b.ask("qp"));
    let word = |text: &str, n: usize| text.split(' ').nth(n).unwrap().to_owned();
    assert_eq!(a.ask(&format!("connect {} {}", word(&qb, 0), word(&qb, 3))), "ok");
    assert_eq!(b.ask(&format!("connect {} {}", word(&qa, 0), word(&qa, 3))), "ok");
    assert_eq!(a.ask(&format!("write {} {} {seed}", word(&qb, 1), word(&qb, 2))), "Success");
    assert_eq!(b.ask(&format!("check {seed}")), "ok");
    assert_eq!(b.ask(&format!("write {} {} {}", word(&qa, 1), word(&qa, 2), seed + 1)), "Success");
    assert_eq!(a.ask(&format!("check {}", seed + 1)), "ok");
}

fn number(text: &str, key: &str) -> u32 {
    let word = text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    word.unwrap_or_else(|| panic!("{text}: no {key}")).parse().unwrap()
}

#[test]
fn processes_share_an_address_and_each_gets_its_own() {
    let device = Device::new("share", 81);
    let mut all: Vec<_> = (0..3).map(|_| Child::start(&device)).collect();
    let slots: Vec<_> = all.iter_mut().map(|c| number(&c.ask("open"), "slot")).collect();
    assert_eq!(slots, [1, 2, 3]);
    let [a, b, c] = &mut all[..] else { unreachable!() };
    exchange(a, b, 10);
    exchange(b, c, 20);
    exchange(c, a, 30);
    // Counters are the device's: everybody sees the same sum, whoever's requests they were. A busy machine may have made a
    // requester impatient, so there may be more than six.
    let sums: Vec<u64> = all.iter_mut().map(|c| c.ask("counter rx_write_requests").parse().unwrap()).collect();
    assert!(sums[0] >= 6 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}

#[test]
fn a_killed_member_leaves_the_others_working_and_its_slot_free() {
    let device = Device::new("kill", 82);
    let mut all: Vec<_> = (0..3).map(|_| Child::start(&device)).collect();
    all.iter_mut().for_each(|c| drop(c.ask("open")));
    let [_, b, c] = &mut all[..] else { unreachable!() };
    exchange(b, c, 1);
    all.remove(1).kill();
    let [a, c] = &mut all[..] else { unreachable!() };
    exchange(a, c, 40);
    let mut d = Child::start(&device);
    assert_eq!(number(&d.ask("open"), "slot"), 2);
    exchange(&mut d, c, 50);
    exchange(a, &mut d, 60);
}

#[test]
fn when_the_first_process_is_killed_another_serves_and_new_ones_join() {
    let device = Device::new("host", 83);
    let mut all: Vec<_> = (0..3).map(|_| Child::start(&device)).collect();
    all.iter_mut().for_each(|c| drop(c.ask("open")));
    all.remove(0).kill();
    let [b, c] = &mut all[..] else { unreachable!() };
    exchange(b, c, 70);
    let mut d = Child::start(&device);
    assert_eq!(number(&d.ask("open"), "slot"), 1);
    exchange(&mut d, b, 80);
    exchange(c, &mut d, 90);
}

#[test]
fn a_peer_that_was_killed_ends_in_retry_exceeded() {
    let device = Device::new("gone", 84);
    let (mut a, mut b) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    let (qa, qb) = (a.ask("qp"), b.ask("qp"));
    let word = |text: &str, n: usize| text.split(' ').nth(n).unwrap().to_owned();
    a.ask(&format!("connect {} {}", word(&qb, 0), word(&qb, 3)));
    b.ask(&format!("connect {} {}", word(&qa, 0), word(&qa, 3)));
    b.kill();
    // Until it has noticed, its WRITEs still reach the memory that it has mapped.
    parent::until("the slot is not free", || number(&a.ask("slots"), "alive") == 1);
    assert_eq!(a.ask(&format!("write {} {} 1", word(&qb, 1), word(&qb, 2))), "RetryExcErr");
}

#[test]
fn a_process_that_runs_another_program_has_left() {
    let device = Device::new("exec", 85);
    let (mut a, mut b) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    // Its pidfd stays silent, its connection ends.
    b.tell("exec");
    let mut c = Child::start(&device);
    parent::until("the slot is not free", || number(&a.ask("slots"), "alive") == 1);
    assert_eq!(number(&c.ask("open"), "slot"), 2);
    exchange(&mut a, &mut c, 5);
}

#[test]
fn a_forked_child_does_not_hide_the_death_of_its_parent() {
    let device = Device::new("fork", 86);
    let (mut a, mut b) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    let orphan: i32 = b.ask("fork").parse().unwrap();
    b.kill();
    parent::until("the slot is not free", || number(&a.ask("slots"), "alive") == 1);
    // SAFETY: plain system call; the process was forked by our own child for this test.
    unsafe { libc::kill(orphan, libc::SIGKILL) };
    let mut c = Child::start(&device);
    assert_eq!(number(&c.ask("open"), "slot"), 2);
    exchange(&mut a, &mut c, 6);
}

#[test]
fn forks_while_traffic_runs_leave_the_parent_alone_and_children_open_the_device_themselves() {
    let device = Device::new("forks", 88);
    let (mut a, mut b) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    let (qa, qb) = (a.ask("qp"), b.ask("qp"));
    let word = |text: &str, n: usize| text.split(' ').nth(n).unwrap().to_owned();
    assert_eq!(a.ask(&format!("connect {} {}", word(&qb, 0), word(&qb, 3))), "ok");
    assert_eq!(b.ask(&format!("connect {} {}", word(&qa, 0), word(&qa, 3))), "ok");
    let answer = a.ask(&format!("forks 200 {} {}", word(&qb, 1), word(&qb, 2)));
    let last = answer.strip_prefix("ok ").unwrap_or_else(|| panic!("{answer}")).to_owned();
    assert_eq!(b.ask(&format!("check {last}")), "ok");
    parent::until("slots are left over", || number(&b.ask("slots"), "alive") == 2);
    exchange(&mut a, &mut b, 7);
}

#[test]
fn a_forked_child_that_lives_on_leaves_address_and_meeting_point_free() {
    let device = Device::new("orphan", 89);
    let mut a = Child::start(&device);
    a.ask("open");
    let orphan: i32 = a.ask("fork").parse().unwrap();
    a.kill();
    // Nobody is left who could let it in: it must be the first.
    let mut b = Child::start(&device);
    let answer = b.ask("open");
    // SAFETY: plain system call; the process was forked by our own child for this test.
    unsafe { libc::kill(orphan, libc::SIGKILL) };
    assert_eq!(answer, "slot=1 host=1");
}

#[test]
fn a_tool_sees_what_each_process_has_and_is_no_member() {
    let device = Device::new("survey", 90);
    let mut tool = Child::start(&device);
    let nobody = tool.ask("survey");
    assert!(nobody.starts_with("silent=0 gids=1 state=Active writes=0"), "{nobody}");
    let (mut a, mut b) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    exchange(&mut a, &mut b, 3);
    let seen = tool.ask("survey");
    let (qa, qb): (Vec<_>, Vec<_>) =
        seen.split("; ").filter(|s| s.starts_with("qp ")).partition(|s| s.contains("slot=1"));
    assert_eq!((qa.len(), qb.len()), (1, 1), "{seen}");
    assert_eq!(number(qa[0], "lqpn"), number(qb[0], "rqpn"));
    assert_eq!((number(qa[0], "rqpn"), number(qa[0], "state")), (number(qb[0], "lqpn"), 3));
    assert!(seen.contains(&format!("slot=1 pid={0} own={0} comm=", a.pid())) && seen.contains(" host; "), "{seen}");
    assert!(seen.contains(&format!("slot=2 pid={0} own={0} comm=", b.pid())), "{seen}");
    assert!(seen.contains("mrlen=524288") && seen.contains("silent=0 gids=1 state=Active"), "{seen}");
    assert!(number(&seen, "writes") >= 2, "{seen}");
    assert_eq!(number(&a.ask("slots"), "alive"), 2, "the tool is no member");
    // One that is stopped is listed all the same, and does not hold up the others.
    b.stop();
    let seen = tool.ask("survey");
    b.resume();
    assert!(seen.contains(&format!("slot=2 pid=- own={}", b.pid())) && seen.contains("silent=1"), "{seen}");
    assert!(seen.contains("qp slot=1") && !seen.contains("qp slot=2"), "{seen}");
    exchange(&mut a, &mut b, 5);
}

#[test]
fn a_process_that_takes_a_message_and_ends_has_acknowledged_it() {
    let device = Device::new("exit", 91);
    let mut a = Child::start(&device);
    a.ask("open");
    for seed in 0..20 {
        let mut b = Child::start(&device);
        b.ask("open");
        let (qa, qb) = (a.ask("qp"), b.ask("qp"));
        let word = |text: &str, n: usize| text.split(' ').nth(n).unwrap().to_owned();
        assert_eq!(a.ask(&format!("connect {} {}", word(&qb, 0), word(&qb, 3))), "ok");
        assert_eq!(b.ask(&format!("connect {} {}", word(&qa, 0), word(&qa, 3))), "ok");
        assert_eq!(b.ask("receive-then exit"), "ready");
        assert_eq!(a.ask(&format!("send {seed}")), "Success", "round {seed}");
        assert!(b.ends_well());
    }
}

#[test]
fn a_process_ends_in_order_while_its_threads_use_the_device() {
    let device = Device::new("busy", 92);
    for _ in 0..30 {
        let mut b = Child::start(&device);
        assert_eq!(b.ask("open"), "slot=1 host=1");
        let qb = b.ask("qp");
        let word = |n: usize| qb.split(' ').nth(n).unwrap().to_owned();
        assert_eq!(b.ask(&format!("connect {} {}", word(0), word(3))), "ok");
        b.tell("exit-while-threads-run");
        assert!(b.ends_well());
    }
}

#[test]
fn a_process_in_a_pid_namespace_of_its_own_is_seen_with_the_number_that_the_tool_knows() {
    if !is_root() {
        return skip("it takes root to make a PID namespace");
    }
    let device = Device::new("pidns", 97);
    let (mut a, mut tool) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    let mut b = Child::start_by(&["unshare", "--pid", "--fork", "--kill-child"], &device);
    assert_eq!(number(&b.ask("open"), "slot"), 2);
    exchange(&mut a, &mut b, 4);
    let seen = tool.ask("survey");
    let member = seen.split("; ").find(|text| text.starts_with("member slot=2")).unwrap();
    assert_eq!(number(member, "own"), 1, "{seen}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", number(member, "pid"))).unwrap();
    assert!(status.contains(&format!("PPid:\t{}\n", b.pid())), "{seen}: {status}");
    // The other way round, a process that cannot be named is told by the number that it has for itself.
    let seen = b.ask("survey");
    assert!(seen.contains(&format!("member slot=1 pid=- own={}", a.pid())), "{seen}");
    drop(b);
    parent::until("the slot is not free", || number(&a.ask("slots"), "alive") == 1);
}

#[test]
fn a_second_user_is_told_who_holds_the_address_and_what_to_do() {
    if !is_root() {
        return skip("it takes root to become another user");
    }
    let device = Device::new("user", 87);
    let mut a = Child::start(&device);
    a.ask("open");
    let mut b = Child::start_with(&device, |command| {
        command.uid(65_534).gid(65_534);
    });
    let answer = b.ask("open");
    assert!(answer.starts_with("error EADDRINUSE"), "{answer}");
    for part in [device.address(), "user 0 (root)", "within one user", "ip netns", "addresses"] {
        assert!(answer.contains(part), "{part:?} is missing: {answer}");
    }
    // And who may see it is told the process, too.
    let mut c = Child::start_with(&device, |command| {
        command.env("SCALEFABRIC_SHARE", "0");
    });
    let answer = c.ask("open");
    assert!(answer.contains(&format!("process {}", a.pid())), "{answer}");
}

#[test]
fn addresses_come_and_go_with_stable_indexes_in_every_member() {
    if !is_root() {
        return skip("it takes root to make a network namespace");
    }
    let (namespace, other) = (namespace::Namespace::new("gid"), namespace::Namespace::new("far"));
    namespace.ip(&format!("link add d0 type veth peer name d0 netns {}", other.name()));
    other.ip("link set d0 up");
    namespace.ip("addr add 10.9.1.1/24 dev d0");
    namespace.ip("addr add 10.9.2.1/24 dev d0");
    namespace.ip("link set d0 addrgenmode none up");
    let device = Device::automatic("sf0");
    let mut all: Vec<_> = (0..2).map(|_| Child::start_in(&namespace, &device)).collect();
    all.iter_mut().for_each(|c| drop(c.ask("open")));
    for c in &mut all {
        // The carrier may come a moment after the first look.
        parent::until("no carrier", || c.ask("port") == "Active Mtu1024");
        while c.ask("event 1") != "none" {}
        assert_eq!(c.ask("gids"), "0=10.9.1.1 1=10.9.2.1");
    }
    namespace.ip("addr del 10.9.1.1/24 dev d0");
    for c in &mut all {
        assert_eq!(c.ask("event 10000"), "GidChange Port(1)");
    }
    namespace.ip("addr add 10.9.3.1/24 dev d0");
    for c in &mut all {
        assert_eq!(c.ask("event 10000"), "GidChange Port(1)");
        assert!(c.ask("gids").ends_with("2=10.9.3.1"), "slot 0 stays empty");
    }
    namespace.ip("addr add 10.9.1.1/24 dev d0");
    for c in &mut all {
        assert_eq!(c.ask("event 10000"), "GidChange Port(1)");
        assert!(c.ask("gids").contains("0=10.9.1.1"), "back at its old place");
    }
    namespace.ip("link set d0 mtu 1400");
    for c in &mut all {
        parent::until("the MTU is not followed", || c.ask("port") == "Active Mtu1024");
    }
    namespace.ip("link set d0 mtu 600");
    for c in &mut all {
        parent::until("the MTU is not followed", || c.ask("port") == "Active Mtu256");
    }
    namespace.ip("link set d0 down");
    for c in &mut all {
        assert_eq!(c.ask("event 10000"), "PortErr Port(1)");
        assert!(c.ask("port").starts_with("Down"));
    }
    namespace.ip("link set d0 up");
    for c in &mut all {
        assert_eq!(c.ask("event 10000"), "PortActive Port(1)");
    }
}

#[test]
fn two_namespaces_are_two_hosts() {
    if !is_root() {
        return skip("it takes root to make network namespaces");
    }
    let (left, right) = (namespace::Namespace::new("left"), namespace::Namespace::new("right"));
    left.ip(&format!("link add v0 mtu 4200 type veth peer name v0 mtu 4200 netns {}", right.name()));
    for (namespace, address) in [(&left, "10.8.0.1/24"), (&right, "10.8.0.2/24")] {
        namespace.ip(&format!("addr add {address} dev v0"));
        namespace.ip("link set v0 up");
    }
    let device = Device::automatic("sf0");
    let (mut a, mut b) = (Child::start_in(&left, &device), Child::start_in(&right, &device));
    for (c, ip) in [(&mut a, "10.8.0.1"), (&mut b, "10.8.0.2")] {
        c.ask("open");
        // Beside it there is a link-local address, as soon as it has proved unique.
        parent::until("no carrier", || c.ask("port") == "Active Mtu4096" && c.ask("gids").contains(ip));
        c.ask(&format!("use {ip}"));
    }
    exchange(&mut a, &mut b, 3);
    assert_eq!(b.ask("counter solved_ip_ids"), "0", "every identification was predicted");
    // A device that takes no super-packets makes the kernel cut the trains: then what is on the wire can be looked at.
    for namespace in [&left, &right] {
        namespace.ip("link set v0 gso_max_segs 1");
    }
    let Some(capture) = namespace::Capture::start(&right, "v0") else {
        return skip("tcpdump is not installed");
    };
    exchange(&mut a, &mut b, 4);
    let file = capture.finish();
    let mut reader = scalefabric_wire::pcap::Reader::new(&file).unwrap();
    let (mut packets, mut highest) = (0, 0);
    while let Some(record) = reader.next() {
        let record = record.unwrap();
        let frame = Frame::parse(reader.link(), record.data).unwrap();
        assert!(frame.icrc_ok(), "packet {packets}: the ICRC does not fit the header that was on the wire");
        if let Ip::V4(ip) = &frame.ip {
            highest = highest.max(ip.id);
        }
        packets += 1;
    }
    assert!(packets > 64 && highest > 0 && highest < 128, "{packets} packets, highest identification {highest}");
    // What comes in pieces tells no place: the identification is solved for, and the packet is taken all the same.
    assert_eq!(b.ask("counter drop_bad_icrc"), "0");
}
