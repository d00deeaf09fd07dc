//! Processes that are stopped, go on, and are killed at any time.

use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use crate::parent::{Child, Device, is_root, skip, until};
use crate::{exchange, number};

fn word(text: &str, n: usize) -> String {
    text.split(' ').nth(n).unwrap().to_owned()
}

/// Connects fresh QPs; the rkey and the address of the second one's region.
fn connect(a: &mut Child, b: &mut Child, timeout: u8, retries: u8) -> String {
    let (qa, qb) = (a.ask("qp"), b.ask("qp"));
    for (from, to) in [(&mut *a, &qb), (&mut *b, &qa)] {
        assert_eq!(from.ask(&format!("connect {} {} {timeout} {retries}", word(to, 0), word(to, 3))), "ok");
    }
    format!("{} {}", word(&qb, 1), word(&qb, 2))
}

/// The target stands still under traffic, three times; the requester is patient enough, and everything arrives.
fn a_pause_is_survived(a: &mut Child, b: &mut Child) {
    // 8 times 134 ms.
    let target = connect(a, b, 15, 7);
    for round in 1..=3 {
        a.tell(&format!("writes {} {target}", 40 * round));
        std::thread::sleep(Duration::from_millis(7 * round));
        b.stop();
        std::thread::sleep(Duration::from_millis(300));
        b.resume();
        assert_eq!(a.answer(), "ok");
        assert_eq!(b.ask(&format!("check {}", 40 * round - 1)), "ok");
    }
}

/// The requester is not patient enough. Afterwards both go on with new QPs.
fn a_pause_is_too_long(a: &mut Child, b: &mut Child) {
    // 4 times 1 ms.
    let target = connect(a, b, 8, 3);
    b.stop();
    assert_eq!(a.ask(&format!("writes 100 {target}")), "RetryExcErr");
    b.resume();
    exchange(a, b, 9);
}

#[test]
fn a_stopped_target_of_the_same_device_is_waited_for_as_the_attributes_say() {
    let device = Device::new("stop", 93);
    // By packets: without them a target that is stopped is written to all the same (direct.rs).
    let start = || {
        Child::start_with(&device, |command| {
            command.env("SCALEFABRIC_PATH", "wire");
        })
    };
    let (mut a, mut b) = (start(), start());
    a.ask("open");
    b.ask("open");
    a_pause_is_survived(&mut a, &mut b);
    a_pause_is_too_long(&mut a, &mut b);
    // The one that serves the others may stand still as well.
    a_pause_is_survived(&mut b, &mut a);
}

#[test]
fn a_stopped_target_in_another_namespace_is_waited_for_as_the_attributes_say() {
    if !is_root() {
        return skip("it takes root to make network namespaces");
    }
    let (left, right) = (Namespace::new("stl"), Namespace::new("str"));
    left.ip(&format!("link add s0 mtu 4200 type veth peer name s0 mtu 4200 netns {}", right.name()));
    for (namespace, address) in [(&left, "10.7.0.1/24"), (&right, "10.7.0.2/24")] {
        namespace.ip(&format!("addr add {address} dev s0"));
        namespace.ip("link set s0 up");
    }
    let device = Device::automatic("sf0");
    let (mut a, mut b) = (Child::start_in(&left, &device), Child::start_in(&right, &device));
    for (child, ip) in [(&mut a, "10.7.0.1"), (&mut b, "10.7.0.2")] {
        child.ask("open");
        until("no carrier", || child.ask("port") == "Active Mtu4096" && child.ask("gids").contains(ip));
        child.ask(&format!("use {ip}"));
    }
    a_pause_is_survived(&mut a, &mut b);
    a_pause_is_too_long(&mut a, &mut b);
}

/// What the tool sees is two processes, each with one QP and one region, and nothing else.
fn only_two_are_left(tool: &mut Child, a: &Child, b: &Child) {
    let mut seen = String::new();
    until("something is left over", || {
        seen = tool.ask("survey");
        let count = |what: &str| seen.split("; ").filter(|part| part.starts_with(what)).count();
        (count("member"), count("qp"), count("mr")) == (2, 2, 2) && seen.contains("silent=0")
    });
    assert!(seen.contains(&format!("own={} ", a.pid())) && seen.contains(&format!("own={} ", b.pid())), "{seen}");
}

#[test]
fn two_go_on_while_a_third_is_killed_at_any_moment_200_times() {
    let device = Device::new("kills", 94);
    let (mut a, mut b, mut tool) = (Child::start(&device), Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    let target = connect(&mut a, &mut b, 14, 7);
    let mut random = u64::from(std::process::id()) | 1;
    println!("begins with {random}");
    a.tell(&format!("writes 3000 {target}"));
    for _ in 0..200 {
        let mut third = Child::start(&device);
        third.tell("live");
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 25_000));
        third.kill();
    }
    assert_eq!(a.answer(), "ok");
    assert_eq!(b.ask("check 2999"), "ok");
    only_two_are_left(&mut tool, &a, &b);
    let mut next = Child::start(&device);
    assert_eq!(number(&next.ask("open"), "slot"), 3);
    exchange(&mut a, &mut next, 1);
    exchange(&mut next, &mut b, 2);
}

#[test]
fn the_one_that_serves_is_killed_under_traffic_again_and_again() {
    let device = Device::new("hosts", 95);
    let mut tool = Child::start(&device);
    let (mut a, mut b) = (Child::start(&device), Child::start(&device));
    a.ask("open");
    b.ask("open");
    for round in 0..20 {
        let mut c = Child::start(&device);
        assert!(c.ask("open").starts_with("slot="), "round {round}");
        let target = connect(&mut b, &mut c, 14, 7);
        b.tell(&format!("writes 30 {target}"));
        a.kill();
        assert_eq!(b.answer(), "ok", "round {round}");
        assert_eq!(c.ask("check 29"), "ok", "round {round}");
        (a, b) = (b, c);
    }
    only_two_are_left(&mut tool, &a, &b);
}

/// The threads of a process that are the NIC's, with the signals that each blocks.
fn own_threads(pid: u32) -> Vec<u64> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").starts_with("sf-") {
            let status = read("status");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or("0");
            all.push(u64::from_str_radix(mask.trim(), 16).unwrap());
        }
    }
    all
}

#[test]
fn a_thread_starts_with_the_first_opening_and_takes_no_signal() {
    let device = Device::new("sigs", 98);
    let mut a = Child::start(&device);
    a.ask("survey");
    assert!(own_threads(a.pid()).is_empty(), "looking at a device starts no thread");
    a.ask("open");
    // A thread has its name only when it has begun to run.
    let deadline = Instant::now() + Duration::from_secs(10);
    while own_threads(a.pid()).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let masks = own_threads(a.pid());
    assert_eq!(masks.len(), 1);
    let application = [1, 2, 3, 10, 12, 13, 14, 15, 17, 18, 20, 23, 27, 28, 29, 34, 64];
    for signal in application {
        assert!(masks[0] >> (signal - 1) & 1 == 1, "signal {signal} may run on the NIC's thread: {:x}", masks[0]);
    }
    a.ask("open");
    assert_eq!(own_threads(a.pid()).len(), 1, "a second opening shares it");
}
