//! Members of one device in one process: each stands for a process, and leaves by being dropped.

use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use scalefabric_verbs::DeviceInfo;

use super::*;
use crate::discovery::PortPlan;
use crate::port::udp::{UdpOptions, UdpPort};
use crate::port::{Port, Train};

fn plan(name: &str, address: IpAddr) -> DevicePlan {
    DevicePlan {
        info: DeviceInfo {
            name: format!("{name}-{}", std::process::id()),
            node_guid: 1,
            index: 0,
            interfaces: vec!["lo".into()],
        },
        ports: vec![PortPlan { interface: "lo".into(), addresses: vec![address], reserved_bytes: 0 }],
    }
}

/// A member that does its duty in a thread, with a UDP port.
struct Member {
    membership: Arc<Membership>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    port: UdpPort,
}

impl Member {
    fn new(plan: &DevicePlan) -> Self {
        Self::try_new(plan).unwrap()
    }

    fn try_new(plan: &DevicePlan) -> Result<Self, VerbsError> {
        let membership = Membership::open(plan, ReceiveOptions { buffer_bytes: 1 << 20, reuse_port: true }, true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (duty, stopped) = (membership.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                duty.serve(clock::now());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let options = UdpOptions { slot: membership.slot(), source_ports: 2, ..UdpOptions::default() };
        let port = UdpPort::new(membership.sockets(0).clone(), membership.neighbours(0), options);
        Ok(Self { membership, stop, thread: Some(thread), port })
    }

    fn slot(&self) -> u8 {
        self.membership.slot()
    }

    /// What has come in: the slot it was meant for and its number.
    fn take(&mut self) -> Vec<(u8, u8)> {
        self.membership.sockets(0).look_everywhere();
        let mut got = Vec::new();
        while self.port.receive(64, &mut |d| got.push((d.bytes[5], d.bytes[8]))) > 0 {}
        got
    }

    fn send(&mut self, ip: IpAddr, slots: &[u8], number: u8) {
        for &slot in slots {
            let mut bytes = [0; 40];
            (bytes[5], bytes[8]) = (slot, number);
            let train = Train {
                src: ip,
                src_port: self.port.source_port(ip, 3),
                dst: ip,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
                segment: 40,
                bytes: &bytes,
            };
            self.port.send(&train);
            self.port.flush();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn each_member_gets_the_datagrams_of_its_slot() {
    let ip = socket::own_loopback(41);
    let plan = plan("steer", ip);
    let mut members: Vec<_> = (0..4).map(|_| Member::new(&plan)).collect();
    assert_eq!(members.iter().map(Member::slot).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(members[0].membership.is_host() && !members[3].membership.is_host());
    for number in 0..20 {
        members[1].send(ip, &[1, 2, 3, 4], number);
    }
    for member in &mut members {
        let slot = member.slot();
        let expected: Vec<_> = (0..20).map(|number| (slot, number)).collect();
        assert_eq!(member.take(), expected);
    }
}

#[test]
fn a_datagram_for_qp_1_reaches_exactly_one_member() {
    let ip = socket::own_loopback(42);
    let plan = plan("gsi", ip);
    let (mut a, mut b) = (Member::new(&plan), Member::new(&plan));
    a.send(ip, &[0], 7);
    let got = [b.take(), a.take()].concat();
    assert_eq!(got, [(0, 7)]);
}

#[test]
fn a_slot_that_was_left_is_drained_and_given_out_again() {
    let ip = socket::own_loopback(43);
    let plan = plan("reuse", ip);
    let (mut a, b, c) = (Member::new(&plan), Member::new(&plan), Member::new(&plan));
    assert_eq!((b.slot(), c.slot()), (2, 3));
    let generation = a.membership.segment().slot(2).generation.load(Ordering::Relaxed);
    drop(b);
    until("the slot is not free", || a.membership.segment().slot(2).state() == SlotState::Free);
    a.send(ip, &[2], 1);
    let mut d = Member::new(&plan);
    assert_eq!(d.slot(), 2);
    assert_eq!(d.take(), [], "what was meant for the last one is thrown away");
    assert!(a.membership.segment().slot(2).generation.load(Ordering::Relaxed) > generation);
    a.send(ip, &[2, 3], 2);
    assert_eq!(d.take(), [(2, 2)]);
    let mut c = c;
    assert_eq!(c.take(), [(3, 2)]);
}

#[test]
fn when_the_host_goes_another_takes_over_and_steering_stays_right() {
    let ip = socket::own_loopback(44);
    let plan = plan("takeover", ip);
    let (a, b, c) = (Member::new(&plan), Member::new(&plan), Member::new(&plan));
    drop(a);
    until("nobody took over", || b.membership.is_host() || c.membership.is_host());
    assert!(b.membership.is_host() != c.membership.is_host());
    let mut all = [b, c, Member::new(&plan), Member::new(&plan)];
    assert_eq!(all.iter().map(Member::slot).collect::<Vec<_>>(), [2, 3, 1, 4]);
    all[0].send(ip, &[1, 2, 3, 4], 9);
    for member in &mut all {
        let slot = member.slot();
        assert_eq!(member.take(), [(slot, 9)]);
    }
    // And once more, from the bottom of the list.
    let [b, c, d, mut e] = all;
    drop((b, c));
    until("nobody took over", || d.membership.is_host() || e.membership.is_host());
    let mut f = Member::new(&plan);
    e.send(ip, &[4, f.slot()], 5);
    assert_eq!((e.take(), f.take()), (vec![(4, 5)], vec![(2, 5)]));
}

#[test]
fn the_last_one_closes_the_addresses() {
    let ip = socket::own_loopback(45);
    let plan = plan("last", ip);
    let (a, b) = (Member::new(&plan), Member::new(&plan));
    drop(a);
    drop(b);
    let local = LocalAddress { ip, ifindex: 1 };
    let alone = ReceiveOptions { reuse_port: false, ..ReceiveOptions::default() };
    until("the address is still held", || socket::open_receive(local, alone).is_ok());
    assert_eq!(Member::new(&plan).slot(), 1);
}

#[test]
fn an_address_that_another_program_holds_is_refused_with_its_name() {
    let ip = socket::own_loopback(46);
    let local = LocalAddress { ip, ifindex: 1 };
    // With SO_REUSEPORT and the same user binding would succeed: it must be noticed all the same.
    let _foreign = socket::open_receive(local, ReceiveOptions::default()).unwrap();
    let error = Member::try_new(&plan("foreign", ip)).err().unwrap();
    assert_eq!(error.errno, Errno::EADDRINUSE);
    assert!(
        error.message.contains(&ip.to_string()) && error.message.contains(&std::process::id().to_string()),
        "{error}"
    );
}

#[test]
fn a_pkey_set_by_one_is_seen_by_all() {
    let plan = plan("pkey", socket::own_loopback(47));
    let (a, b) = (Member::new(&plan), Member::new(&plan));
    b.membership.set_pkey(0, 2, PKey(0x8123)).unwrap();
    assert_eq!(a.membership.segment().port(0).read().pkeys[2], PKey(0x8123));
    let error = b.membership.set_pkey(0, 64, PKey(1)).unwrap_err();
    assert!(error.message.contains("64"), "{error}");
}

#[test]
fn only_what_differs_is_told_and_what_goes_goes_first() {
    let gid = |n: u8| Gid::from_ip(Ipv4Addr::new(10, 0, 0, n).into());
    let mut old = PortTables { state: PortState::Active, ..PortTables::default() };
    old.set_gids(&[gid(1), gid(2)]);
    assert_eq!(changes(&old, &old), []);
    let mut new = PortTables { state: PortState::Down, ..old.clone() };
    new.set_gids(&[gid(2), gid(3)]);
    new.pkeys[1] = PKey(0x8005);
    assert_eq!(
        changes(&old, &new),
        [
            PortChange::RemoveGid { gid: gid(1) },
            PortChange::AddGid { gid: gid(3), index: Some(2) },
            PortChange::SetPKey { index: 1, pkey: PKey(0x8005) },
            PortChange::Down,
        ]
    );
}

#[test]
fn a_process_without_sharing_has_one_socket_and_no_neighbours() {
    let plan = plan("alone", socket::own_loopback(48));
    let receive = ReceiveOptions { buffer_bytes: 1 << 20, reuse_port: true };
    let alone = Membership::open(&plan, receive, false).unwrap();
    assert_eq!((alone.slot(), alone.sockets(0).addresses()[0].receive.len()), (1, 1));
    assert!(alone.neighbours(0).is_none());
    let second = Membership::open(&plan, receive, false).unwrap_err();
    assert_eq!(second.errno, Errno::EADDRINUSE);
}
