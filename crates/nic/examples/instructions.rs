//! What the data path costs in instructions: two NICs driven by hand over a pipe in memory, for callgrind. `cargo xtask bench
//! --instructions` runs it under valgrind, takes from callgrind's report what each function `measured_*` and all it called cost,
//! and divides by the units printed here.
//!
//! Usage: `instructions IDLE`, where IDLE is how many connected queue pairs stand idle on each NIC beside the busy one. Prints lines
//! `NAME UNITS`. Nothing here measures time, and nothing depends on it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use scalefabric_nic::manual::ManualNic;
use scalefabric_nic::port::{Datagram, Port, Sent, Train};
use scalefabric_nic::{Core, CountersHandle, NicConfig, NicContext, PortConfig, PortCounters};
use scalefabric_transport::Time;
use scalefabric_verbs::{
    AccessFlags, AddressVector, CompletionQueue, Context, Gid, MemoryRegion, Psn, QpAttr, QpCap, QpInit, QpType, Qpn,
    QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, VerbsError, WcStatus, WorkCompletion,
};

/// Work requests to a doorbell. All their packets fit in what may be unacknowledged.
const LIST: usize = 8;

/// Work requests of a long list, for the cost of posting alone.
const LONG_LIST: usize = 32;

/// Times that each thing is done.
const ROUNDS: usize = 200;

/// Bytes of a message of 16 packets.
const LARGE: u32 = 65_536;

/// One direction of the pipe: datagrams one after the other, without allocation once it has grown.
#[derive(Default)]
struct Lane {
    bytes: Vec<u8>,
    lengths: Vec<(usize, u16)>,
    taken: usize,
    at: usize,
}

struct Pipe {
    own: IpAddr,
    other: IpAddr,
    out: Arc<Mutex<Lane>>,
    into: Arc<Mutex<Lane>>,
}

impl Port for Pipe {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut lane = self.into.lock().expect("one thread");
        let lane = &mut *lane;
        let end = lane.lengths.len().min(lane.taken + max);
        let count = end - lane.taken;
        for (length, ip_id) in &lane.lengths[lane.taken..end] {
            sink(&Datagram {
                src: self.other,
                src_port: 0xc000,
                dst: self.own,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
                ip_id: *ip_id,
                bytes: &lane.bytes[lane.at..lane.at + length],
            });
            lane.at += length;
        }
        lane.taken = end;
        if lane.taken == lane.lengths.len() {
            lane.bytes.clear();
            lane.lengths.clear();
            (lane.taken, lane.at) = (0, 0);
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut lane = self.out.lock().expect("one thread");
        for (index, bytes) in train.bytes.chunks(train.segment.max(1)).enumerate() {
            lane.bytes.extend_from_slice(bytes);
            lane.lengths.push((bytes.len(), index as u16));
        }
        Sent::Done
    }

    fn source_port(&self, _src: IpAddr, _flow: u32) -> u16 {
        0xc000
    }
}

/// A NIC with a queue pair that works, and others that do not.
struct Side {
    nic: ManualNic,
    queue_pair: Arc<dyn QueuePair>,
    send_cq: Arc<dyn CompletionQueue>,
    recv_cq: Arc<dyn CompletionQueue>,
    region: Arc<dyn MemoryRegion>,
    /// Idle ones, kept.
    _idle: Vec<Arc<dyn QueuePair>>,
}

fn side(nic: ManualNic, idle: u32, to: IpAddr) -> Result<Side, VerbsError> {
    let context = nic.context();
    let domain = context.alloc_pd()?;
    let send_cq = context.create_cq(1024, None, 0)?;
    let recv_cq = context.create_cq(1024, None, 0)?;
    let region = domain.alloc_mr(LARGE as usize, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    let init = |depth| QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(&send_cq),
        recv_cq: Arc::clone(&recv_cq),
        srq: None,
        cap: QpCap { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 },
        sq_sig_all: false,
    };
    let queue_pair = domain.create_qp(&init(512))?;
    let mut quiet = Vec::with_capacity(idle as usize);
    for _ in 0..idle {
        let one = domain.create_qp(&init(1))?;
        connect(&*context, &*one, one.qp_num(), to)?;
        quiet.push(one);
    }
    Ok(Side { nic, queue_pair, send_cq, recv_cq, region, _idle: quiet })
}

fn connect(context: &dyn Context, queue_pair: &dyn QueuePair, peer: Qpn, to: IpAddr) -> Result<(), VerbsError> {
    let path = AddressVector::new(1, 0, Gid::from_ip(to));
    let mtu = context.query_port(1)?.active_mtu;
    let rights = AccessFlags::REMOTE_WRITE;
    for (mut attr, mask) in [
        QpAttr::init(QpType::Rc, 1, rights),
        QpAttr::rtr(QpType::Rc, peer, Psn::new(1), mtu, path),
        QpAttr::rts(QpType::Rc, Psn::new(1)),
    ] {
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
        queue_pair.modify(&attr, mask)?;
    }
    Ok(())
}

/// A function of a name of its own, so that callgrind can tell what it cost; equal ones would be folded into one but for the name
/// inside.
macro_rules! measured {
    ($name:ident, $call:expr, $($argument:ident: $kind:ty),*) => {{
        #[inline(never)]
        fn $name($($argument: $kind),*) -> usize {
            std::hint::black_box(stringify!($name));
            $call
        }
        Part { name: stringify!($name), call: $name, units: 0 }
    }};
}

/// A part of the data path, and how many units of it were done: packets, messages, calls.
struct Part<F> {
    name: &'static str,
    call: F,
    units: usize,
}

impl<F> Part<F> {
    fn print(&self) {
        println!("{} {}", self.name, self.units);
    }
}

type Turn = Part<fn(&ManualNic, Time) -> usize>;
type Post = Part<fn(&dyn QueuePair, &[SendWr<'_>]) -> usize>;
type PostRecv = Part<fn(&dyn QueuePair, &[RecvWr<'_>]) -> usize>;
type Poll = Part<fn(&dyn CompletionQueue, &mut [WorkCompletion]) -> usize>;

macro_rules! turn {
    ($name:ident) => {{
        let part: Turn = measured!($name, usize::from(nic.turn(now).ready), nic: &ManualNic, now: Time);
        part
    }};
}

/// What a message goes through.
struct Walk {
    requester: Turn,
    responder: Turn,
    completer: Turn,
}

/// Two NICs and what lies between them.
struct World {
    sides: [Side; 2],
    lanes: [Arc<Mutex<Lane>>; 2],
    now: u64,
}

fn queued(lane: &Mutex<Lane>) -> usize {
    let lane = lane.lock().expect("one thread");
    lane.lengths.len() - lane.taken
}

const ADDRESSES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

fn pipe(own: usize, lanes: &[Arc<Mutex<Lane>>; 2]) -> (NicConfig, Box<dyn Port>) {
    let (out, into) = (Arc::clone(&lanes[own]), Arc::clone(&lanes[1 - own]));
    let port = Pipe { own: ADDRESSES[own], other: ADDRESSES[1 - own], out, into };
    let ports = vec![PortConfig::new("pipe", vec![Gid::from_ip(ADDRESSES[own])])];
    (NicConfig::new("pipe", ports), Box::new(port))
}

impl World {
    fn new(idle: u32) -> Result<Self, VerbsError> {
        let lanes = [Arc::new(Mutex::new(Lane::default())), Arc::new(Mutex::new(Lane::default()))];
        let make = |own: usize| {
            let (config, port) = pipe(own, &lanes);
            side(ManualNic::new(config, vec![port], own as u64 + 1)?, idle, ADDRESSES[1 - own])
        };
        let sides = [make(0)?, make(1)?];
        for (own, other) in [(0, 1), (1, 0)] {
            let (own, other): (&Side, &Side) = (&sides[own], &sides[other]);
            let to = if std::ptr::eq(own, &sides[0]) { ADDRESSES[1] } else { ADDRESSES[0] };
            connect(&*own.nic.context(), &*own.queue_pair, other.queue_pair.qp_num(), to)?;
        }
        let mut world = Self { sides, lanes, now: 0 };
        world.settle();
        Ok(world)
    }

    /// Turns both until nothing moves: what setting up left behind is not measured.
    fn settle(&mut self) {
        loop {
            self.now += 1000;
            let turns = self.sides.each_ref().map(|side| side.nic.turn(Time(self.now)));
            if turns.iter().all(|turn| !turn.progressed && !turn.ready) {
                return;
            }
        }
    }

    fn post(&self, chain: &[SendWr<'_>]) -> Result<(), VerbsError> {
        self.sides[0].queue_pair.post_send(chain).map_err(|error| VerbsError::invalid(error.to_string()))
    }

    /// Lists of messages of `size` bytes go from one NIC to the other.
    fn carry(&mut self, walk: &mut Walk, op: SendOp<'static>, size: u32, list: usize) -> Result<(), VerbsError> {
        let sge = [Sge { addr: self.sides[0].region.addr(), length: size, lkey: self.sides[0].region.lkey() }];
        let mut request = SendWr::new(0, op);
        request.sg_list = &sge;
        let mut chain = vec![request; list];
        if let Some(last) = chain.last_mut() {
            last.flags = SendFlags::SIGNALED;
        }
        let into = [Sge { addr: self.sides[1].region.addr(), length: size, lkey: self.sides[1].region.lkey() }];
        let receives = vec![RecvWr { wr_id: 0, sg_list: &into }; list];
        let mut completions = [WorkCompletion::default(); 16];
        for _ in 0..ROUNDS {
            if matches!(op, SendOp::Send) {
                let posted = self.sides[1].queue_pair.post_recv(&receives);
                posted.map_err(|error| VerbsError::invalid(error.to_string()))?;
            }
            self.post(&chain)?;
            self.now += 1000;
            let now = Time(self.now);
            let [a, b] = &self.sides;
            // Until everything has left: else the completer's turn would send the rest.
            while (walk.requester.call)(&a.nic, now) > 0 {}
            walk.requester.units += queued(&self.lanes[0]);
            walk.responder.units += queued(&self.lanes[0]);
            while queued(&self.lanes[0]) > 0 {
                (walk.responder.call)(&b.nic, now);
            }
            while queued(&self.lanes[1]) > 0 {
                (walk.completer.call)(&a.nic, now);
            }
            walk.completer.units += list;
            let count = a.send_cq.poll(&mut completions)?;
            assert_eq!((count, completions[0].status), (1, WcStatus::Success), "the list is acknowledged");
            while b.recv_cq.poll(&mut completions)? > 0 {}
        }
        Ok(())
    }

    fn walks(&mut self) -> Result<(), VerbsError> {
        let (remote_addr, rkey) = (self.sides[1].region.addr(), self.sides[1].region.rkey());
        let write = SendOp::Write { remote_addr, rkey };
        let mut runs = [
            (
                write,
                8,
                1,
                Walk {
                    requester: turn!(measured_requester_write_8),
                    responder: turn!(measured_responder_write_8),
                    completer: turn!(measured_completer_write_8),
                },
            ),
            (
                write,
                8,
                LIST,
                Walk {
                    requester: turn!(measured_requester_write_8_list),
                    responder: turn!(measured_responder_write_8_list),
                    completer: turn!(measured_completer_write_8_list),
                },
            ),
            (
                SendOp::Send,
                8,
                1,
                Walk {
                    requester: turn!(measured_requester_send_8),
                    responder: turn!(measured_responder_send_8),
                    completer: turn!(measured_completer_send_8),
                },
            ),
            (
                write,
                LARGE,
                1,
                Walk {
                    requester: turn!(measured_requester_write_4096),
                    responder: turn!(measured_responder_write_4096),
                    completer: turn!(measured_completer_write_65536),
                },
            ),
        ];
        for (op, size, list, walk) in &mut runs {
            self.carry(walk, *op, *size, *list)?;
            [&walk.requester, &walk.responder, &walk.completer].into_iter().for_each(Part::print);
        }
        Ok(())
    }

    /// A turn in which nothing is to be done.
    fn nothing(&mut self) {
        let mut part: Turn = turn!(measured_turn_empty);
        self.settle();
        for _ in 0..ROUNDS {
            self.now += 1000;
            (part.call)(&self.sides[0].nic, Time(self.now));
            part.units += 1;
        }
        part.print();
    }

    /// Posting and polling alone: the engine takes its turns in between.
    fn calls(&mut self) -> Result<(), VerbsError> {
        let mut one: Post = measured!(measured_post_send, usize::from(qp.post_send(list).is_ok()), qp: &dyn QueuePair, list: &[SendWr<'_>]);
        let mut inline: Post = measured!(measured_post_send_inline, usize::from(qp.post_send(list).is_ok()), qp: &dyn QueuePair, list: &[SendWr<'_>]);
        let mut many: Post = measured!(measured_post_send_list, usize::from(qp.post_send(list).is_ok()), qp: &dyn QueuePair, list: &[SendWr<'_>]);
        let mut receive: PostRecv = measured!(measured_post_recv, usize::from(qp.post_recv(list).is_ok()), qp: &dyn QueuePair, list: &[RecvWr<'_>]);
        let mut poll: Poll = measured!(measured_poll_one, cq.poll(out).unwrap_or(0), cq: &dyn CompletionQueue, out: &mut [WorkCompletion]);
        let (remote_addr, rkey) = (self.sides[1].region.addr(), self.sides[1].region.rkey());
        let sge = [Sge { addr: self.sides[0].region.addr(), length: 8, lkey: self.sides[0].region.lkey() }];
        let mut request = SendWr::new(0, SendOp::Write { remote_addr, rkey });
        request.flags = SendFlags::SIGNALED;
        let mut short = request;
        (short.flags, short.inline_data) = (SendFlags::SIGNALED | SendFlags::INLINE, &[7; 8]);
        request.sg_list = &sge;
        let list = [request; LONG_LIST];
        let into = [Sge { addr: self.sides[1].region.addr(), length: 8, lkey: self.sides[1].region.lkey() }];
        let receives = [RecvWr { wr_id: 0, sg_list: &into }];
        let mut out = [WorkCompletion::default(); 16];
        for round in 0..ROUNDS {
            let queue_pair = Arc::clone(&self.sides[0].queue_pair);
            let mut posted = 0;
            for (part, list) in [(&mut one, &[request][..]), (&mut inline, &[short]), (&mut many, &list)] {
                assert_eq!((part.call)(&*queue_pair, list), 1, "the queue has room");
                part.units += list.len();
                posted += list.len();
            }
            // As many as the queue holds.
            if round < LONG_LIST {
                assert_eq!((receive.call)(&*self.sides[1].queue_pair, &receives), 1, "the queue has room");
                receive.units += 1;
            }
            self.settle();
            for _ in 0..posted {
                assert_eq!((poll.call)(&*self.sides[0].send_cq, &mut out[..1]), 1, "one is taken at a time");
                poll.units += 1;
            }
        }
        one.print();
        inline.print();
        many.print();
        receive.print();
        poll.print();
        Ok(())
    }
}

/// A poll that finds nothing turns the engine: that of a NIC whose callers drive it.
fn empty_polls(idle: u32) -> Result<(), VerbsError> {
    let lanes = [Arc::new(Mutex::new(Lane::default())), Arc::new(Mutex::new(Lane::default()))];
    let (config, port) = pipe(0, &lanes);
    let counters = vec![Arc::new(PortCounters::default()) as CountersHandle];
    let context = NicContext::new(&Core::new(config, vec![port], counters)?)?;
    let (domain, cq) = (context.alloc_pd()?, context.create_cq(64, None, 0)?);
    let mut quiet = Vec::new();
    for _ in 0..=idle {
        let one = domain.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            cap: QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: false,
        })?;
        connect(&*context, &*one, one.qp_num(), ADDRESSES[1])?;
        quiet.push(one);
    }
    let mut out = [WorkCompletion::default(); 16];
    let mut poll: Poll =
        measured!(measured_poll_empty, cq.poll(out).unwrap_or(1), cq: &dyn CompletionQueue, out: &mut [WorkCompletion]);
    for _ in 0..ROUNDS {
        cq.poll(&mut out)?;
    }
    for _ in 0..ROUNDS {
        assert_eq!((poll.call)(&*cq, &mut out), 0, "nothing completes");
        poll.units += 1;
    }
    poll.print();
    Ok(())
}

fn run(idle: u32) -> Result<(), VerbsError> {
    let mut world = World::new(idle)?;
    world.walks()?;
    world.calls()?;
    world.nothing();
    drop(world);
    empty_polls(idle)
}

fn main() {
    let Some(idle) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: instructions IDLE");
        std::process::exit(2);
    };
    if let Err(error) = run(idle) {
        eprintln!("instructions: {error}");
        std::process::exit(1);
    }
}
