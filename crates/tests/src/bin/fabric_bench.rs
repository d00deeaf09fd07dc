//! What the fabric library costs: a fabric endpoint against raw verbs, and verbs through `Provider` against the software NIC called directly. All in one
//! process and one thread, interleaved, so that a busy machine disturbs both sides of a ratio alike; medians of ratios are printed. `cargo xtask bench --fabric`
//! starts it.

use clap::Parser;
use scalefabric_fabric::endpoint::{Completion, Config, Operation, Waiting};
use scalefabric_fabric::session::Strategy;
use scalefabric_nic::objects::{CqObject, QpObject};
use scalefabric_tests::crowd::Crowd;
use scalefabric_tests::fabric::{Pair, Region, provider};
use scalefabric_verbs::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Options {
    /// Interleaved repetitions; the median of their ratios counts.
    #[arg(long, default_value_t = 21)]
    repeat: usize,
    /// Round trips of 8 bytes in a repetition.
    #[arg(long, default_value_t = 2000)]
    trips: u32,
    /// WRITEs of 1 MiB in a repetition.
    #[arg(long, default_value_t = 64)]
    writes: u32,
    /// Connections that are moved off a hot port at once; 0: none.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How often they are moved in each way.
    #[arg(long, default_value_t = 20)]
    moves: u64,
}

const MIB: usize = 1 << 20;
const WINDOW: u32 = 8;

/// One end of a raw connection.
struct Raw {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    mr: Arc<dyn MemoryRegion>,
}

/// Polls and posts as `dyn`, or on the NIC's own types.
trait Calls {
    fn post_send(&self, wr: &SendWr<'_>);
    fn post_recv(&self, wr: &RecvWr<'_>);
    fn poll(&self, out: &mut [WorkCompletion]) -> usize;
}

struct Through<'a>(&'a Raw);

impl Calls for Through<'_> {
    #[inline]
    fn post_send(&self, wr: &SendWr<'_>) {
        self.0.qp.post_send(std::slice::from_ref(wr)).expect("posted");
    }
    #[inline]
    fn post_recv(&self, wr: &RecvWr<'_>) {
        self.0.qp.post_recv(std::slice::from_ref(wr)).expect("posted");
    }
    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        self.0.cq.poll(out).expect("polled")
    }
}

struct Direct<'a> {
    qp: &'a QpObject,
    cq: &'a CqObject,
}

impl<'a> Direct<'a> {
    fn new(raw: &'a Raw) -> Self {
        let qp = raw.qp.as_any().downcast_ref().expect("a QP of the software NIC");
        let cq = raw.cq.as_any().downcast_ref().expect("a CQ of the software NIC");
        Self { qp, cq }
    }
}

impl Calls for Direct<'_> {
    #[inline]
    fn post_send(&self, wr: &SendWr<'_>) {
        QueuePair::post_send(self.qp, std::slice::from_ref(wr)).expect("posted");
    }
    #[inline]
    fn post_recv(&self, wr: &RecvWr<'_>) {
        QueuePair::post_recv(self.qp, std::slice::from_ref(wr)).expect("posted");
    }
    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        CompletionQueue::poll(self.cq, out).expect("polled")
    }
}

fn raw_pair() -> [Raw; 2] {
    let context = Provider::open(&*provider(), "pair").expect("the device opens");
    let pd = context.alloc_pd().expect("a PD");
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let ends = [0, 1].map(|_| {
        let cq = context.create_cq(1024, None, 0).expect("a CQ");
        let cap = QpCap { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 4, max_recv_sge: 1, max_inline_data: 220 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: false };
        Raw { qp: pd.create_qp(&init).expect("a QP"), cq, mr: pd.alloc_mr(2 * MIB, rights).expect("memory") }
    });
    let port = context.query_port(1).expect("a port");
    let table = context.query_gid_table().expect("GIDs");
    let gid = table.iter().find(|entry| entry.port_num == 1).expect("a GID");
    for n in 0..2 {
        let av = AddressVector::new(1, gid.gid_index as u8, gid.gid);
        for (attr, mask) in [
            QpAttr::init(QpType::Rc, 1, rights),
            QpAttr::rtr(QpType::Rc, ends[1 - n].qp.qp_num(), Psn::new(7), port.active_mtu, av),
            QpAttr::rts(QpType::Rc, Psn::new(7)),
        ] {
            ends[n].qp.modify(&attr, mask).expect("modified");
        }
        for slot in 0..128 {
            receive(&Through(&ends[n]), &ends[n], slot);
        }
    }
    ends
}

#[inline]
fn receive(calls: &impl Calls, raw: &Raw, slot: u64) {
    let sge = [Sge { addr: raw.mr.addr() + slot * 4096, length: 4096, lkey: raw.mr.lkey() }];
    calls.post_recv(&RecvWr { wr_id: slot, sg_list: &sge });
}

/// Waits for a message and for the end of the SEND before it; posts the receive again.
#[inline]
fn await_message(calls: &impl Calls, raw: &Raw) {
    let mut out = [WorkCompletion::default(); 4];
    loop {
        let count = calls.poll(&mut out);
        for wc in &out[..count] {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode.is_receive() {
                let mut bytes = [0; 8];
                raw.mr.read(wc.wr_id as usize * 4096, &mut bytes).expect("read");
                receive(calls, raw, wc.wr_id);
                return;
            }
        }
    }
}

fn raw_latency(ends: &[Raw; 2], calls: &[impl Calls; 2], trips: u32) -> Duration {
    let bytes = 7u64.to_le_bytes();
    let mut wr = SendWr::new(1, SendOp::Send);
    wr.inline_data = &bytes;
    wr.flags = SendFlags::INLINE | SendFlags::SIGNALED;
    let begun = Instant::now();
    for _ in 0..trips {
        for n in 0..2 {
            calls[n].post_send(&wr);
            await_message(&calls[1 - n], &ends[1 - n]);
        }
    }
    begun.elapsed()
}

fn raw_bandwidth(ends: &[Raw; 2], calls: &impl Calls, writes: u32) -> Duration {
    let sge = [Sge { addr: ends[0].mr.addr() + MIB as u64, length: MIB as u32, lkey: ends[0].mr.lkey() }];
    let remote = &ends[1].mr;
    let op = SendOp::Write { remote_addr: remote.addr() + MIB as u64, rkey: remote.rkey() };
    let mut wr = SendWr::new(2, op);
    (wr.sg_list, wr.flags) = (&sge, SendFlags::SIGNALED);
    let mut out = [WorkCompletion::default(); 16];
    let (mut posted, mut done) = (0, 0);
    let begun = Instant::now();
    while done < writes {
        while posted < writes && posted - done < WINDOW {
            calls.post_send(&wr);
            posted += 1;
        }
        let count = calls.poll(&mut out);
        done += out[..count].iter().filter(|wc| wc.opcode == WcOpcode::RdmaWrite).count() as u32;
    }
    begun.elapsed()
}

struct Endpoints {
    client: scalefabric_fabric::endpoint::Connection,
    server: scalefabric_fabric::endpoint::Connection,
    local: Arc<Region>,
    remote: Arc<Region>,
    _pair: Pair,
}

impl Endpoints {
    fn new() -> Self {
        let config = Config { waiting: Waiting::Busy, receives: 128, ..Config::default() };
        let pair = Pair::new(&config);
        let (client, server) = pair.connect();
        let (local, remote) = (Region::new(&pair.client, MIB), Region::new(&pair.server, MIB));
        Self { client, server, local, remote, _pair: pair }
    }

    fn latency(&self, trips: u32) -> Duration {
        let bytes = 7u64.to_le_bytes();
        let ends = [&self.client, &self.server];
        let mut out = [Completion::default(); 4];
        let begun = Instant::now();
        for _ in 0..trips {
            for n in 0..2 {
                ends[n].try_post(&[Operation::send(&bytes)]).expect("posted");
                let message = loop {
                    if let Some(message) = ends[1 - n].try_receive().expect("received") {
                        break message;
                    }
                };
                let mut bytes = [0; 8];
                message.read(0, &mut bytes).expect("read");
                drop(message);
                ends[n].poll(&mut out).expect("polled");
            }
        }
        begun.elapsed()
    }

    fn bandwidth(&self, writes: u32) -> Duration {
        let (piece, range) = (self.local.piece(0, MIB), self.remote.range());
        let mut out = [Completion::default(); 16];
        while self.client.poll(&mut out).expect("polled") > 0 {}
        let (mut posted, mut done) = (0, 0);
        let begun = Instant::now();
        while done < writes {
            while posted < writes && posted - done < WINDOW {
                posted += self.client.try_post(&[Operation::write(&piece, range)]).expect("posted") as u32;
            }
            done += self.client.poll(&mut out).expect("polled") as u32;
        }
        begun.elapsed()
    }
}

/// From the order to the last connection on the other port, under load.
fn moves(connections: usize, count: u64) {
    let config = Config { depth: 16, receives: 32, receive_bytes: 64, retransmit_permille: 1000, ..Config::default() };
    let pair = Pair::new(&config);
    let crowd = Crowd::start(&pair, connections);
    let mut token = 0;
    for (name, way) in [
        ("best", None),
        ("new vectors", Some(Strategy::DrainedVector)),
        ("alternate paths", Some(Strategy::AlternatePath)),
        ("second QPs", Some(Strategy::MakeBeforeBreak)),
    ] {
        let (mut all, mut longest) = (Vec::new(), Vec::new());
        for n in 0..count.next_multiple_of(2) {
            crowd.wait_for(10 * connections as u64);
            token += 1;
            let (took, pause) = crowd.move_all(2 - (n % 2) as u8, way, token);
            all.push(took.as_secs_f64() * 1e3);
            longest.push(pause.as_secs_f64() * 1e3);
        }
        let most = all.iter().copied().fold(0.0, f64::max);
        println!(
            "{connections} moves at once, {name:<15} {:.1} ms in the middle, {most:.1} ms at most, longest pause of one {:.1} ms (aim: 100 ms)",
            median(all),
            median(longest)
        );
    }
    crowd.end();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let options = Options::parse();
    if options.connections > 0 {
        moves(options.connections, options.moves);
    }
    let ends = raw_pair();
    let through = [Through(&ends[0]), Through(&ends[1])];
    let direct = [Direct::new(&ends[0]), Direct::new(&ends[1])];
    let fabric = Endpoints::new();
    let mut ratios: [Vec<f64>; 4] = Default::default();
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..=options.repeat {
        let raw = raw_latency(&ends, &through, options.trips).as_secs_f64();
        let ours = fabric.latency(options.trips).as_secs_f64();
        let straight = raw_latency(&ends, &direct, options.trips).as_secs_f64();
        let raw_write = raw_bandwidth(&ends, &through[0], options.writes).as_secs_f64();
        let our_write = fabric.bandwidth(options.writes).as_secs_f64();
        let straight_write = raw_bandwidth(&ends, &direct[0], options.writes).as_secs_f64();
        // The first round warms up.
        if round > 0 {
            let values = [ours / raw, raw_write / our_write, straight / raw, straight_write / raw_write];
            for (all, value) in ratios.iter_mut().zip(values) {
                all.push(value);
            }
            let half_trip = f64::from(options.trips) * 2.0;
            for (all, value) in times.iter_mut().zip([raw / half_trip, ours / half_trip, raw_write, our_write]) {
                all.push(value);
            }
        }
    }
    let [latency, bandwidth, hal_latency, hal_bandwidth] = ratios.map(median);
    let [raw, ours, raw_write, our_write] = times.map(median);
    let gib = |seconds: f64| f64::from(options.writes) / 1024.0 / seconds;
    println!(
        "8 B one way         raw {:.2} us, fabric {:.2} us: {latency:.3} of raw (aim: at most 1.1)",
        raw * 1e6,
        ours * 1e6
    );
    println!(
        "1 MiB WRITEs        raw {:.2} GiB/s, fabric {:.2} GiB/s: {bandwidth:.3} of raw (aim: at least 0.97)",
        gib(raw_write),
        gib(our_write)
    );
    println!("Provider, 8 B       {hal_latency:.3} of the backend called directly (aim: at least 0.97)");
    println!("Provider, 1 MiB     {hal_bandwidth:.3} of the backend called directly (aim: at least 0.97)");
}
