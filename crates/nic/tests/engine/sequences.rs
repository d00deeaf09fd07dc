//! Calls in any order. A string of bytes says which verbs are called on two NICs of two ports: QPs come, change their states
//! (SQD, migration), are posted to and go; windows, groups, ports and memory change under them. Errors are allowed everywhere.
//! What must hold whatever the order:
//!
//! - a WR completes once, in the order of its queue, and none that was not posted does;
//! - a QP in ERR gives everything back that was posted to it, and one that is reset or destroyed nothing;
//! - the NICs come to rest, and everything can be destroyed in the end.
//!
//! The fuzz target `sequences` plays the same; here the bytes come from seeds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use scalefabric_nic::PortChange;
use scalefabric_verbs::*;

use crate::node::*;

/// QPs that a NIC has at a time, at most: their completions fit its CQ.
const QPS: usize = 4;

/// The bytes, read one by one; zeros behind their end.
struct Tape<'b>(&'b [u8]);

impl Tape<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    fn one<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }
}

/// A QP, and what was posted to it and is not complete.
struct Posted {
    qp: Arc<dyn QueuePair>,
    send: VecDeque<u64>,
    recv: VecDeque<u64>,
    groups: Vec<Gid>,
}

impl Posted {
    fn new(qp: Arc<dyn QueuePair>) -> Self {
        Self { qp, send: VecDeque::new(), recv: VecDeque::new(), groups: Vec::new() }
    }
}

/// What a test has on one NIC.
#[derive(Default)]
struct Side {
    qps: Vec<Posted>,
    mrs: Vec<Arc<dyn MemoryRegion>>,
    mws: Vec<Arc<dyn MemoryWindow>>,
    ahs: Vec<Arc<dyn AddressHandle>>,
}

struct Play<'b> {
    w: World,
    tape: Tape<'b>,
    sides: [Side; 2],
    /// The next WR's number; receives are odd.
    next: u64,
    tally: Tally,
}

/// Completions by status, so that a test that completes nothing is noticed.
pub type Tally = BTreeMap<String, usize>;

/// Plays the bytes; gives what completed.
///
/// # Panics
/// If something does not hold.
pub fn play(bytes: &[u8]) -> Tally {
    let w = World::with(2, 2, |_| {});
    let mut play = Play { w, tape: Tape(bytes), sides: Default::default(), next: 2, tally: Tally::new() };
    for n in 0..2 {
        for _ in 0..2 {
            play.add(n);
        }
    }
    // Two pairs that are connected, so that not every string of bytes has to find the way there.
    for qp_type in [QpType::Rc, [QpType::Rc, QpType::Uc][play.tape.below(2)]] {
        let qps = play.w.connect(qp_type);
        qps.into_iter().enumerate().for_each(|(n, qp)| play.sides[n].qps.push(Posted::new(qp)));
    }
    while !play.tape.0.is_empty() {
        let n = play.tape.below(2);
        play.step(n);
        play.look();
    }
    play.finish()
}

impl Play<'_> {
    /// A region and an address handle.
    fn add(&mut self, n: usize) {
        let (node, side) = (&self.w.nodes[n], &mut self.sides[n]);
        if side.mrs.len() < 4 {
            side.mrs.push(node.mr(8192));
        }
        let to = [gid(2 - n as u8), group()][side.ahs.len() % 2];
        if side.ahs.len() < 4 {
            side.ahs.extend(node.pd.create_ah(&AddressVector::new(1, 0, to)));
        }
    }

    fn step(&mut self, n: usize) {
        match self.tape.byte() % 24 {
            0 | 1 => self.create(n),
            2 => self.destroy(n),
            3..=6 => self.advance_state(n),
            7 => self.modify(n, |t| QpAttr::sqd(t.byte() & 1 == 1)),
            8 => self.modify(n, |_| QpAttr::resume()),
            9 => match self.tape.byte() & 3 {
                0 => self.modify(n, |_| QpAttr::reset()),
                1 => self.modify(n, |_| QpAttr::error()),
                _ => self.post_recv(n),
            },
            10 | 11 => self.post_recv(n),
            12..=15 => self.post_send(n),
            16 => drop(self.w.nodes[n].nic.turn(scalefabric_transport::Time(self.w.now))),
            17 => self.w.settle(),
            18 => {
                let ns = 1 << (10 + self.tape.below(18));
                self.w.advance(ns);
            }
            19 => {
                let port = 1 + self.tape.below(2) as u8;
                let change = if self.tape.byte() & 1 == 0 { PortChange::Down } else { PortChange::Up };
                let _ = self.w.nodes[n].nic.change_port(port, change);
            }
            20 => self.migrate(n),
            21 => self.group(n),
            22 => self.window(n),
            _ => self.memory(n),
        }
    }

    fn create(&mut self, n: usize) {
        let qp_type = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud][self.tape.below(4)];
        if self.sides[n].qps.len() < QPS {
            let qp = self.w.nodes[n].qp(qp_type);
            self.sides[n].qps.push(Posted::new(qp));
        }
    }

    fn destroy(&mut self, n: usize) {
        let which = self.tape.below(self.sides[n].qps.len());
        let Some(posted) = self.sides[n].qps.get(which) else { return };
        match posted.qp.destroy() {
            Ok(()) => drop(self.sides[n].qps.remove(which)),
            Err(error) => assert!(!posted.groups.is_empty(), "{error:?}"),
        }
    }

    /// Along the usual way: INIT, RTR, RTS; to a QP of the other NIC.
    fn advance_state(&mut self, n: usize) {
        let which = self.tape.below(self.sides[n].qps.len());
        let peer = self.tape.one(&self.sides[1 - n].qps).map(|posted| posted.qp.qp_num());
        let odd = self.tape.byte();
        let Some(Posted { qp, send, recv, .. }) = self.sides[n].qps.get_mut(which) else { return };
        let Ok((now, _)) = qp.query() else { return };
        let qp_type = qp.qp_type();
        let psn = Psn::new(0xff_fffc);
        let av = AddressVector::new(1, 0, gid(2 - n as u8));
        let (mut attr, mask) = match (now.qp_state, qp_type) {
            (QpState::Reset, QpType::Ud) => QpAttr::init_ud(1, QKey(7)),
            (QpState::Reset, _) => QpAttr::init(qp_type, 1, AccessFlags::REMOTE),
            (QpState::Init, QpType::Ud) => QpAttr::rtr_ud(),
            (QpState::Init, _) => QpAttr::rtr(qp_type, peer.unwrap_or(Qpn::new(0x1_0001)), psn, Mtu::Mtu1024, av),
            (QpState::Rtr, _) => QpAttr::rts(qp_type, psn),
            (QpState::Sqe, _) => QpAttr::resume(),
            (QpState::Err, _) => QpAttr::reset(),
            _ => return,
        };
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (2, 2);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1 + odd % 12, odd % 4, odd % 8);
        attr.qp_access_flags -= AccessFlags::FLUSH_PERSISTENT;
        if qp.modify(&attr, mask).is_ok() && attr.qp_state == QpState::Reset {
            send.clear();
            recv.clear();
        }
    }

    fn modify(&mut self, n: usize, make: impl Fn(&mut Tape<'_>) -> (QpAttr, QpAttrMask)) {
        let which = self.tape.below(self.sides[n].qps.len());
        let (attr, mask) = make(&mut self.tape);
        let Some(posted) = self.sides[n].qps.get_mut(which) else { return };
        if posted.qp.modify(&attr, mask).is_ok() && attr.qp_state == QpState::Reset {
            posted.send.clear();
            posted.recv.clear();
        }
    }

    fn post_recv(&mut self, n: usize) {
        let which = self.tape.below(self.sides[n].qps.len());
        let length = [0, 40, 100, 4096][self.tape.below(4)];
        let Side { qps, mrs, .. } = &mut self.sides[n];
        let (Some(posted), Some(mr)) = (qps.get_mut(which), self.tape.one(mrs)) else { return };
        let wr_id = self.next | 1;
        self.next += 2;
        if posted.qp.post_recv(&[RecvWr { wr_id, sg_list: &[sge(mr, 0, length)] }]).is_ok() {
            posted.recv.push_back(wr_id);
        }
    }

    fn post_send(&mut self, n: usize) {
        let [mine, theirs] = {
            let (a, b) = self.sides.split_at_mut(1);
            if n == 0 { [&mut a[0], &mut b[0]] } else { [&mut b[0], &mut a[0]] }
        };
        let tape = &mut self.tape;
        let Some(posted) = mine.qps.get_mut(tape.below(QPS)) else { return };
        let target = tape.one(&theirs.mrs);
        let odd = tape.byte();
        let remote_addr = target.map_or(0x1000, |mr| mr.addr() + u64::from(odd & 0x18));
        // Now and then a key of nobody, or of a window.
        let rkey = match (odd >> 5, theirs.mws.first()) {
            (0, _) => RKey(0x1234_5678),
            (1, Some(mw)) => mw.rkey(),
            _ => target.map_or(RKey(0), |mr| mr.rkey()),
        };
        let own_window = mine.mws.first();
        let own_region = tape.one(&mine.mrs);
        let mut length = [0, 1, 100, 1024, 1025, 5000][tape.below(6)];
        let op = match tape.byte() % 12 {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendWithImm { imm: 9 },
            3 | 4 => SendOp::Write { remote_addr, rkey },
            5 => SendOp::WriteWithImm { remote_addr, rkey, imm: 8 },
            6 | 7 => SendOp::Read { remote_addr, rkey },
            8 => {
                length = 8;
                SendOp::FetchAdd { remote_addr, rkey, add: 1 }
            }
            9 => SendOp::SendWithInv { invalidate_rkey: rkey },
            10 => SendOp::LocalInv { rkey: own_window.map_or(rkey, |mw| mw.rkey()) },
            _ => match (own_window, own_region) {
                (Some(mw), Some(mr)) => SendOp::BindMw(BindMw {
                    mw: &**mw,
                    rkey: RKey(mw.rkey().0 & !0xff | u32::from(odd)),
                    mr: Some(&**mr),
                    addr: mr.addr(),
                    length: 64,
                    access: AccessFlags::REMOTE_WRITE,
                }),
                _ => SendOp::Send,
            },
        };
        let Some(mr) = own_region else { return };
        let sg_list = [sge(mr, 0, length)];
        let bare = matches!(op, SendOp::LocalInv { .. } | SendOp::BindMw(_));
        let remote_qpn = match odd % 3 {
            0 => Qpn::MULTICAST,
            _ => theirs.qps.first().map_or(Qpn::new(0x1_0001), |posted| posted.qp.qp_num()),
        };
        let ud = mine.ahs.get(usize::from(odd.is_multiple_of(3))).map(|ah| UdAddress {
            ah: &**ah,
            remote_qpn,
            remote_qkey: QKey(7),
        });
        let wr_id = self.next & !1;
        self.next += 2;
        let wr = SendWr {
            sg_list: if bare { &[] } else { &sg_list },
            flags: if odd & 4 == 0 { SendFlags::empty() } else { SendFlags::FENCE },
            ud: ud.filter(|_| posted.qp.qp_type() == QpType::Ud),
            ..SendWr::new(wr_id, op)
        };
        if posted.qp.post_send(&[wr]).is_ok() {
            posted.send.push_back(wr_id);
        }
    }

    /// Loads the second port as the alternate path, or goes there.
    fn migrate(&mut self, n: usize) {
        let go = self.tape.byte() & 1 == 1;
        let Some(Posted { qp, .. }) = self.tape.one(&self.sides[n].qps) else { return };
        let state = if go { MigState::Migrated } else { MigState::Rearm };
        let alternate = Gid::from_ip(ip(2 - n as u8, 2));
        let attr = QpAttr {
            alt_ah_attr: AddressVector::new(2, 0, alternate),
            alt_port_num: 2,
            alt_timeout: 3,
            path_mig_state: state,
            qp_state: QpState::Rts,
            ..QpAttr::default()
        };
        let path = if go { QpAttrMask::empty() } else { QpAttrMask::ALT_PATH };
        let _ = qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::PATH_MIG_STATE | path);
    }

    fn group(&mut self, n: usize) {
        let which = self.tape.below(self.sides[n].qps.len());
        let Some(posted) = self.sides[n].qps.get_mut(which) else { return };
        if posted.groups.is_empty() {
            if posted.qp.attach_mcast(group()).is_ok() {
                posted.groups.push(group());
            }
        } else {
            posted.qp.detach_mcast(group()).expect("it is attached");
            posted.groups.clear();
        }
    }

    fn window(&mut self, n: usize) {
        let side = &mut self.sides[n];
        match side.mws.pop() {
            // One that is in use stays.
            Some(mw) if mw.destroy().is_err() => side.mws.push(mw),
            Some(_) => {}
            None => side.mws.extend(self.w.nodes[n].pd.alloc_mw(MwType::Type2)),
        }
    }

    fn memory(&mut self, n: usize) {
        if self.tape.byte() & 1 == 0 {
            return self.add(n);
        }
        let which = self.tape.below(self.sides[n].mrs.len());
        let side = &mut self.sides[n];
        if side.mrs.get(which).is_some_and(|mr| mr.destroy().is_ok()) {
            side.mrs.remove(which);
        }
    }

    /// Takes the completions: each must be the next of its queue.
    fn look(&mut self) {
        for n in 0..2 {
            for wc in self.w.nodes[n].poll() {
                let of = |posted: &&mut Posted| posted.qp.qp_num() == wc.qp_num;
                let posted = self.sides[n].qps.iter_mut().find(of);
                let posted = posted.unwrap_or_else(|| panic!("{wc:?}: there is no such QP"));
                *self.tally.entry(format!("{:?}", wc.status)).or_default() += 1;
                let queue = if wc.wr_id & 1 == 1 { &mut posted.recv } else { &mut posted.send };
                assert_eq!(queue.pop_front(), Some(wc.wr_id), "{wc:?}: not the next one");
            }
        }
    }

    fn finish(mut self) -> Tally {
        for n in 0..2 {
            for posted in &self.sides[n].qps {
                let _ = posted.qp.modify(&QpAttr::error().0, QpAttrMask::STATE);
            }
        }
        self.w.settle();
        self.look();
        for n in 0..2 {
            for Posted { qp, send, recv, groups } in self.sides[n].qps.drain(..) {
                let state = qp.query().unwrap().0.qp_state;
                assert!(send.is_empty() && recv.is_empty(), "{state:?}: {send:?} and {recv:?} never completed");
                groups.iter().for_each(|&group| qp.detach_mcast(group).unwrap());
                qp.destroy().unwrap();
            }
            let side = std::mem::take(&mut self.sides[n]);
            side.mws.iter().for_each(|mw| mw.destroy().unwrap());
            side.mrs.iter().for_each(|mr| mr.destroy().unwrap());
            drop(side);
            self.w.nodes[n].cq.destroy().unwrap();
            self.w.nodes[n].pd.destroy().unwrap();
        }
        self.tally
    }
}

fn group() -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(239, 1, 1, 1).into())
}

/// SplitMix64.
#[cfg(test)]
fn bytes_of(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

/// The seeds: those of `SCALEFABRIC_SEQUENCES`, as `first..end`, or some hundred.
#[cfg(test)]
fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("SCALEFABRIC_SEQUENCES").unwrap_or_default();
    match wanted.split_once("..").map(|(first, end)| (first.parse(), end.parse())) {
        Some((Ok(first), Ok(end))) => first..end,
        _ => 0..500,
    }
}

#[test]
fn calls_in_any_order_complete_once_and_in_order() {
    let mut all = Tally::new();
    let seeds = seeds();
    let many = seeds.end - seeds.start >= 400;
    for seed in seeds {
        let again =
            format!("SCALEFABRIC_SEQUENCES={seed}..{} cargo test -p scalefabric-nic --test engine sequences", seed + 1);
        let played = std::panic::catch_unwind(|| play(&bytes_of(seed, 1500)));
        let tally = played.unwrap_or_else(|_| panic!("again: {again}"));
        tally.into_iter().for_each(|(status, count)| *all.entry(status).or_default() += count);
    }
    let statuses = ["Success", "WrFlushErr", "RemAccessErr", "RetryExcErr", "RemInvReqErr"];
    assert!(!many || statuses.iter().all(|status| all.contains_key(*status)), "too few ways were gone: {all:?}");
    println!("{all:?}");
}
