//! What was measured and published, as points: rdma_bench on ConnectX-3 and Connect-IB, SMART on ConnectX-6, comments of public benchmarks, product briefs.
//! The tables are in `*.csv` beside this file; how a row becomes a load stands here, assumptions included.

use super::super::atomic::{self, Design};
use super::super::curve;
use super::super::engine;
use super::super::load::{Issue, Load, Registers, Responder, Target};
use super::super::parameter::Key;
use super::super::path::{Path, total_ps};
use super::super::profile::{Kind, Profile};
use super::super::savings;
use super::super::shape::{Op, Setting, Shape, Transport};
use super::table::{Row, Table};
use super::{Expected, Model, Point, Role};
use Expected::{About, Within};
use Role::{Fitted, Predicted};

const SMART_OUTSTANDING: &str = "SMART raw data, outstanding (rnic_cx6_owr_smart.csv)";
const SMART_DOORBELL: &str = "SMART raw data, doorbells (rnic_cx6_doorbell_smart.csv)";
const BENCH: &str = "rdma_bench (rnic_qp_scaling_rdma_bench.csv)";
const SEQUENCER: &str = "rdma_bench ws-sequencer (rnic_points.csv)";
const COMMENTS: &str = "public benchmark's comments (rnic_points.csv)";
const POINTS: &str = "rnic_points.csv";
const MEMORY: &str = "literature from memory, not verified (congestion.md 6)";

fn point(name: String, profile: &'static str, expected: f64, role: Role, source: &'static str, model: Model) -> Point {
    let expected = About(expected);
    Point { name, profile, kind: Kind::Measured, unit: "M/s", expected, role, source, excuse: None, model }
}

fn rate(load: Load) -> Model {
    Box::new(move |profile| Ok(engine::run(profile, &load)?.mops()))
}

/// `excuse` for points by name; none may be left over.
fn excuse(points: &mut [Point], excuses: &[(&'static str, &'static str)]) {
    for (name, why) in excuses {
        let point = points.iter_mut().find(|point| point.name == *name);
        point.unwrap_or_else(|| panic!("there is no point `{name}` to excuse")).excuse = Some(*why);
    }
}

/// The measured points.
pub fn points() -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    points.extend(Table::of(include_str!("rnic_cx6_owr_smart.csv")).rows().map(outstanding));
    points.extend(Table::of(include_str!("rnic_cx6_doorbell_smart.csv")).rows().map(doorbell));
    points.extend(Table::of(include_str!("rnic_qp_scaling_rdma_bench.csv")).rows().map(bench));
    points.extend(two_nics());
    points.extend(sequencer());
    points.extend(inbound());
    points.extend(atomics());
    points.extend(lines());
    points.extend(components());
    excuse(&mut points, EXCUSES);
    points
}

/// Points that contradict other measured points, by name, and why.
const EXCUSES: &[(&str, &str)] = &[
    (
        "cib netapp-0e5759a-swarm-48_byte_read_90_vms 48 B 84 QPs",
        "the same table has 49.5 M/s for 40 B on as many QPs; this row is of another commit, with 90 virtual machines",
    ),
    (
        "cib netapp-d77b26e-swarm-32B_read-90_vms-28_threads 32 B 168 QPs",
        "the same table has 47.7 M/s on 154 QPs; this row is of another commit, with 90 virtual machines and two threads a core",
    ),
    (
        "cib sequencer 5 cores, batched",
        "five QPs of 17.6 M/s each, as one core reaches, would give 88; the five cores share the sequencer's counter, which is no part of the NIC",
    ),
    (
        "cx6 READ multiplexed_qp_2 8 threads",
        "0.8 M/s for each QP, where the same table has 1.06 to 1.2 with 16 to 32 threads, two to a QP all the same",
    ),
    (
        "cx6 READ multiplexed_qp_2 72 threads",
        "more than the 21.4 M/s that the same doorbells and threads carry with a QP for each thread and one lock less",
    ),
    (
        "cx6 READ 64 B anywhere",
        "SMART has 111 M/s (8 B), and the same author 121 from device memory; 64 B more on the bus do not explain it",
    ),
    ("READ peak, NIC not named", "the NIC is not named; SMART's READ peak on a named ConnectX-6 is 111 M/s"),
    ("WRITE peak, NIC not named", "the NIC is not named; SMART's WRITE peak on a named ConnectX-6 is 92.7 M/s"),
    (
        "cx6 latency of the product brief",
        "a vendor's figure without method; the measured parts (Zambre'19) add up to more even without a switch",
    ),
];

/// SMART posts each operation singly, `depth` of them, and waits for all; a thread has its own QP and doorbell.
fn smart(op: Op, threads: u32, depth: u32) -> Load {
    let shape = Shape { blueflame: true, ..Shape::new(op, 8) };
    let one = Load::one(shape, Setting::default());
    Load { threads, qps: threads, depth, issue: Issue::Round, ..one }
}

fn op_of(name: &str) -> Op {
    if name.starts_with("WRITE") { Op::Write } else { Op::Read }
}

fn outstanding(row: Row<'_>) -> Point {
    let (threads, depth) = (row.count("threads"), row.count("depth_per_thread"));
    let role = if [12, 48, 96].contains(&threads) { Fitted } else { Predicted };
    let name = format!("cx6 {} {threads} threads x {depth}", row.text("op"));
    let load = smart(op_of(row.text("op")), threads, depth);
    point(name, "cx6", row.number("Mops"), role, SMART_OUTSTANDING, rate(load))
}

fn doorbell(row: Row<'_>) -> Point {
    let (scheme, threads) = (row.text("scheme"), row.count("threads"));
    let load = smart(op_of(scheme), threads, row.count("depth_per_thread"));
    let (_, scheme_name) = scheme.split_once(' ').expect("operation and scheme");
    let load = match scheme_name {
        "per_thread_qp_default_doorbells" => Load { registers: Registers::Default, ..load },
        "per_thread_doorbell" => load,
        "shared_qp" => Load { qps: 1, registers: Registers::Default, ..load },
        "multiplexed_qp_2" => Load { qps: threads.div_ceil(2), registers: Registers::Default, ..load },
        other => panic!("unknown scheme {other}"),
    };
    let fitted: &[u32] = match scheme_name {
        "per_thread_qp_default_doorbells" if load.shape.op == Op::Read => &[32, 64, 96],
        "shared_qp" => &[8, 96],
        "multiplexed_qp_2" => &[16, 32],
        _ => &[],
    };
    let role = if fitted.contains(&threads) { Fitted } else { Predicted };
    point(format!("cx6 {scheme} {threads} threads"), "cx6", row.number("Mops"), role, SMART_DOORBELL, rate(load))
}

/// rdma_bench's swarm: all hosts ask and answer alike.
fn bench(row: Row<'_>) -> Point {
    let file = row.text("sweep_file");
    let profile = if file.starts_with("apt") { "cx3" } else { "cib" };
    let number = |marks: &[&str]| -> Option<u32> {
        let places = marks.iter().filter_map(|mark| file.find(mark).map(|at| &file[..at]));
        places.map(|before| before.rsplit('-').next().unwrap_or_default()).find_map(|digits| digits.parse().ok())
    };
    let named = number(&["_byte", "B_read", "b_reads"]);
    let bytes = if row.count("payload") > 0 { row.count("payload") } else { named.expect("payload in the name") };
    let op = if file.contains("write") { Op::Write } else { Op::Read };
    let transport = if file.contains("uc_write") { Transport::Uc } else { Transport::Rc };
    let shape = Shape { transport, inline: op == Op::Write, blueflame: true, ..Shape::new(op, bytes) };
    let signalled = file.contains("allsig");
    let depth = row.count("window");
    let every = if signalled { 1 } else { row.count("unsig_batch").min(depth / 2).max(1) };
    let (threads, qps) = (row.count("threads_per_machine"), row.count("qps_per_nic"));
    let load = Load {
        threads,
        qps,
        depth,
        signal_every: every,
        responder: Responder::Mirror,
        ..Load::one(shape, Setting::default())
    };
    let swarm = file.contains("swarm");
    let fitted = match (profile, swarm, op) {
        ("cx3", ..) => {
            let machines = row.count("machines");
            let spread = file.contains("varnum") && ((machines == 11 && [88, 264, 792].contains(&qps)) || qps == 144);
            spread || (file.contains("varsize") && [8, 232, 264].contains(&bytes))
        }
        (_, true, Op::Write) => qps == 84,
        (_, true, _) => false,
        _ => {
            (file.contains("varnum") && [154, 308, 616, 1386].contains(&qps))
                || (file.contains("varsize") && [8, 392].contains(&bytes))
        }
    };
    let role = if fitted { Fitted } else { Predicted };
    let name = format!("{profile} {file} {bytes} B {qps} QPs");
    point(name, profile, row.number("best_Mops_per_machine"), role, BENCH, rate(load))
}

/// Two ConnectX-6 in a host, 32 threads. How deep its queues were is not said: 128 a QP, 16,384 in all at most, make READ agree. Both NICs
/// are taken as loaded alike, by all threads.
fn two_nics() -> Vec<Point> {
    let of = |op, qps: u32, expected: f64, role| {
        let all = (128 * qps).min(16_384);
        let shape = Shape { blueflame: true, ..Shape::new(op, 8) };
        let load = Load { threads: 32, qps, depth: all / 32, signal_every: 16, ..Load::one(shape, Setting::default()) };
        let model: Model = Box::new(move |profile| Ok(2.0 * engine::run(profile, &load)?.mops()));
        point(format!("two cx6 {} {qps} QPs", op.label().to_uppercase()), "cx6", expected, role, COMMENTS, model)
    };
    vec![
        of(Op::Write, 32, 123.0, Predicted),
        of(Op::Write, 64, 121.0, Predicted),
        of(Op::Write, 512, 122.0, Predicted),
        of(Op::Write, 4096, 111.0, Predicted),
        of(Op::Write, 16_384, 105.0, Fitted),
        of(Op::Read, 32, 83.0, Predicted),
        of(Op::Read, 64, 55.0, Fitted),
        of(Op::Read, 512, 42.0, Fitted),
        of(Op::Read, 4096, 21.0, Fitted),
    ]
}

/// A sequencer over UD: each core answers by SENDs of 8 B inline.
fn sequencer() -> Vec<Point> {
    let of = |name: &str, threads, qps, batch, expected: f64, role| {
        let shape = Shape { inline: true, blueflame: batch == 1, transport: Transport::Ud, ..Shape::new(Op::Send, 8) };
        let one = Load::one(shape, Setting::default());
        let load = Load { threads, qps, depth: 64, batch, signal_every: 16, operations: 10_000, ..one };
        point(format!("cib sequencer {name}"), "cib", expected, role, SEQUENCER, rate(load))
    };
    vec![
        of("1 core", 1, 1, 1, 6.80, Predicted),
        of("1 core, batched", 1, 1, 16, 17.6, Fitted),
        of("1 core, batched, 3 QPs", 1, 3, 16, 27.4, Predicted),
        of("5 cores", 5, 5, 1, 16.65, Fitted),
        of("5 cores, batched", 5, 5, 16, 69.5, Predicted),
        of("5 cores, batched, 3 QPs each", 5, 15, 16, 97.5, Predicted),
    ]
}

/// Requesters enough, and one Connect-IB that answers.
fn inbound() -> Vec<Point> {
    let load = |qps| {
        let one = Load::one(Shape::new(Op::Read, 8), Setting::default());
        Load { threads: 64, qps, depth: 64, responder: Responder::Only, operations: 20_000, ..one }
    };
    let misses =
        move |profile: &Profile| Ok(engine::run(profile, &load(2240))?.miss_ppm("responder contexts") as f64 / 1e6);
    let few = point("cib inbound READ 140 QPs".to_owned(), "cib", 94.6, Fitted, POINTS, rate(load(140)));
    let many = point("cib inbound READ 2,240 contexts".to_owned(), "cib", 20.1, Fitted, POINTS, rate(load(2240)));
    let name = "cib reads of contexts an operation, 2,240 contexts".to_owned();
    let mut reads = point(name, "cib", 0.54, Fitted, POINTS, Box::new(misses));
    reads.unit = "";
    vec![few, many, reads]
}

/// `ib_atomic_bw`: one QP, as many under way as it may have.
pub fn atomic_bw(profile: &Profile) -> Result<f64, String> {
    let one = Load::one(Shape::new(Op::Fadd, 8), Setting::default());
    Ok(engine::run(profile, &Load { depth: 128, batch: 4, signal_every: 4, ..one })?.mops())
}

fn atomics() -> Vec<Point> {
    let design = |name: &str, profile, expected, role, source, design: Design| {
        let model: Model = Box::new(move |profile| Ok(atomic::simulate(profile, &design, 1)?.mops()));
        point(name.to_owned(), profile, expected, role, source, model)
    };
    let host = Setting::default();
    let dram = Setting { dram: true, ..host };
    let device = Setting { device_memory: true, ..host };
    vec![
        design("cx3 atomics, last-level cache", "cx3", 2.7, Fitted, POINTS, Design::spread(Op::Cas, host)),
        design("cx3 atomics, DRAM", "cx3", 1.8, Fitted, POINTS, Design::spread(Op::Cas, dram)),
        design("cx6 CAS one address", "cx6", 2.04, Fitted, COMMENTS, Design::one_line(Op::Cas, host)),
        design("cx6 FAA one address", "cx6", 2.17, Fitted, COMMENTS, Design::one_line(Op::Fadd, host)),
        design("cx6 CAS one address, device memory", "cx6", 8.65, Fitted, COMMENTS, Design::one_line(Op::Cas, device)),
        design("cx6 FAA one address, device memory", "cx6", 8.27, Fitted, COMMENTS, Design::one_line(Op::Fadd, device)),
        design("CAS spread, NIC not named", "cx6", 48.0, Fitted, COMMENTS, Design::spread(Op::Cas, host)),
        design("FAA spread, NIC not named", "cx6", 48.0, Fitted, COMMENTS, Design::spread(Op::Fadd, host)),
        point(
            "cx6 ib_atomic_bw".to_owned(),
            "cx6",
            7.32,
            Fitted,
            "perftest, explained as 16 / 2.19 us (rnic_points.csv)",
            Box::new(atomic_bw),
        ),
    ]
}

/// 64 B on one line or anywhere, host or device memory; peaks of others.
fn lines() -> Vec<Point> {
    let load = |op, device_memory, target| {
        let setting = Setting { device_memory, ..Setting::default() };
        let one = Load::one(Shape::new(op, 64), setting);
        Load { threads: 48, qps: 96, depth: 12, batch: 4, signal_every: 4, target, operations: 10_000, ..one }
    };
    let of = |name: &str, expected, role, load| point(name.to_owned(), "cx6", expected, role, COMMENTS, rate(load));
    let brief =
        curve::steady(Shape { transport: Transport::Uc, inline: true, ..Shape::new(Op::Write, 8) }, Setting::default());
    let brief_latency = Box::new(|profile: &Profile| {
        let setting = Setting { switches: 0, ..Setting::default() };
        let shape = Shape { inline: true, blueflame: true, ..Shape::new(Op::Write, 8) };
        Ok(total_ps(&Path::new(profile, shape, setting).arrival()) as f64 / 1e6)
    });
    let product = "product brief (rnic_points.csv)";
    let mut latency =
        point("cx6 latency of the product brief".to_owned(), "cx6", 0.8, Predicted, product, brief_latency);
    (latency.unit, latency.expected) = ("us", Within(0.0, 0.8));
    vec![
        of("cx6 WRITE 64 B anywhere", 106.3, Predicted, load(Op::Write, false, Target::SPREAD)),
        of("cx6 WRITE 64 B anywhere, device memory", 93.8, Predicted, load(Op::Write, true, Target::SPREAD)),
        of("cx6 READ 64 B anywhere", 65.0, Predicted, load(Op::Read, false, Target::SPREAD)),
        of("cx6 READ 64 B anywhere, device memory", 121.0, Predicted, load(Op::Read, true, Target::SPREAD)),
        of("cx6 READ 64 B one address", 4.6, Fitted, load(Op::Read, false, Target::ONE_LINE)),
        of("READ peak, NIC not named", 135.0, Predicted, load(Op::Read, false, Target::SPREAD)),
        of("WRITE peak, NIC not named", 123.0, Predicted, load(Op::Write, false, Target::SPREAD)),
        point("cx6 messages of the product brief".to_owned(), "cx6", 215.0, Fitted, product, rate(brief)),
        latency,
    ]
}

fn components() -> Vec<Point> {
    let ns = |name: &str, profile, expected, role, source, model: Model| {
        let mut point = point(name.to_owned(), profile, expected, role, source, model);
        point.unit = "ns";
        point
    };
    let pio = Box::new(|profile: &Profile| {
        let parts = [Key::DoorbellMmio, Key::DoorbellFence, Key::DoorbellBlueFlame];
        Ok(parts.map(|key| profile.value(key)).iter().sum())
    });
    let key = |key: Key| -> Model { Box::new(move |profile| Ok(profile.value(key))) };
    let half = Box::new(|profile: &Profile| {
        let load = |qps| Load { qps, ..curve::steady(Shape::new(Op::Write, 8), Setting::default()) };
        Ok(engine::run(profile, &load(5000))?.mops() / engine::run(profile, &load(48))?.mops())
    });
    let mut connections = point("cx5 rate at 5,000 connections".to_owned(), "cx5", 0.5, Fitted, MEMORY, half);
    connections.unit = "of the rate at 48";
    let read = Box::new(|profile: &Profile| {
        let shape = Shape { blueflame: true, ..Shape::new(Op::Read, 8) };
        Ok(savings::latency_ns(profile, shape, Setting::default()))
    });
    vec![
        ns("cx4 PIO copy of 64 B", "cx4", 94.0, Fitted, MEMORY, pio),
        ns("cx4 root complex to memory", "cx4", 241.0, Fitted, MEMORY, key(Key::BusWrite)),
        ns("cx4 switch", "cx4", 108.0, Fitted, MEMORY, key(Key::WireSwitch)),
        ns("cx4 wire", "cx4", 275.0, Fitted, MEMORY, key(Key::WirePropagation)),
        ns("64 B DMA read", "cx6", 525.0, Fitted, MEMORY, key(Key::BusRead)),
        ns("cib READ latency", "cib", 1900.0, Fitted, "DCT notes (rnic_points.csv)", read),
        connections,
    ]
}
