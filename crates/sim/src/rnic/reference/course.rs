//! What engineers are taught about NICs, as points. Ranges are taken as they are written; `~` means [`super::TOLERANCE`]. Where the course contradicts
//! itself, the excuse says so.

use super::super::atomic::{self, Design};
use super::super::cache::Cache;
use super::super::curve::{self, Axis};
use super::super::engine;
use super::super::load::Memory;
use super::super::parameter::Key;
use super::super::path::{Path, total_ps};
use super::super::profile::{Kind, Profile};
use super::super::savings;
use super::super::shape::{Op, Setting, Shape, Transport};
use super::{Expected, Model, Point, Role};
use Expected::{About, Within};
use Role::{Fitted, Predicted};

const LATENCY: &str = "course, latency";
const DOORBELL: &str = "course, doorbell, WQE, CQE";
const CACHES: &str = "course, caches";
const GENERATIONS: &str = "course, generations";
const PERFTEST: &str = "course, perftest";

fn point(
    name: &str,
    profile: &'static str,
    unit: &'static str,
    expected: Expected,
    role: Role,
    source: &'static str,
    model: Model,
) -> Point {
    Point { name: name.to_owned(), profile, kind: Kind::Course, unit, expected, role, source, excuse: None, model }
}

fn latency(op: Op) -> Model {
    Box::new(move |profile| Ok(savings::latency_ns(profile, Shape::new(op, 8), Setting::default()) / 1000.0))
}

fn key(key: Key) -> Model {
    Box::new(move |profile| Ok(profile.value(key)))
}

fn hot_line(profile: &Profile) -> Result<f64, String> {
    Ok(atomic::simulate(profile, &Design::one_line(Op::Cas, Setting::default()), 1)?.mops())
}

fn spread(profile: &Profile) -> Result<f64, String> {
    Ok(atomic::simulate(profile, &Design::spread(Op::Cas, Setting::default()), 1)?.mops())
}

/// The course's points.
pub fn points() -> Vec<Point> {
    let mut points = latencies();
    points.extend(doorbells());
    points.extend(caches());
    points.extend(generations());
    points.extend(perftest());
    points
}

fn latencies() -> Vec<Point> {
    let atomic_over_read = Box::new(|profile: &Profile| {
        let of = |op| savings::latency_ns(profile, Shape::new(op, 8), Setting::default());
        Ok((of(Op::Cas) - of(Op::Read)) / 1000.0)
    });
    let mut over_read = point("CAS above READ", "cx6", "us", About(1.0), Predicted, LATENCY, atomic_over_read);
    over_read.excuse = Some(
        "the course contradicts itself: its own parts of a CAS add 0.2-0.3 us (atomic unit) to what a READ has, and its READ of 1.5-2 us leaves no room for 1 us within 2-3 us at both ends",
    );
    let post_and_fetch = Box::new(|profile: &Profile| {
        let path = Path::new(profile, Shape::new(Op::Cas, 8), Setting::default());
        Ok((path.build_ps() + path.ring_ps() + path.schedule_ps() + path.fetch_ps()) as f64 / 1e6)
    });
    let mut post = point("CAS, post and WQE fetch", "cx6", "us", About(0.1), Predicted, LATENCY, post_and_fetch);
    post.excuse = Some(
        "the course contradicts itself: its doorbell takes 0.08-0.15 us and its DMA of the WQE 0.08 us, which is more than 0.1 us together",
    );
    let event = Box::new(|profile: &Profile| {
        let of =
            |events| savings::latency_ns(profile, Shape::new(Op::Write, 8), Setting { events, ..Setting::default() });
        Ok((of(true) - of(false)) / 1000.0)
    });
    let network = Box::new(|profile: &Profile| {
        let path = Path::new(profile, Shape::new(Op::Cas, 8), Setting::default());
        let nics = profile.ps(Key::NicTransmit) + 2 * profile.ps(Key::NicReceive);
        Ok((2 * path.hop_ps() + nics) as f64 / 1e6)
    });
    let polling = Box::new(|profile: &Profile| Ok(profile.value(Key::CqeWrite) + profile.value(Key::CpuPoll)));
    vec![
        point("SEND/RECV 8 B", "cx6", "us", About(3.0), Fitted, LATENCY, latency(Op::Send)),
        point("WRITE 8 B", "cx6", "us", About(2.0), Predicted, LATENCY, latency(Op::Write)),
        point("READ 8 B", "cx6", "us", Within(1.5, 2.0), Fitted, LATENCY, latency(Op::Read)),
        point("CAS", "cx6", "us", Within(2.0, 3.0), Predicted, LATENCY, latency(Op::Cas)),
        point("CAS on ConnectX-5", "cx5", "us", Within(2.0, 3.0), Predicted, LATENCY, latency(Op::Cas)),
        point("CAS, atomic unit", "cx6", "ns", Within(200.0, 300.0), Fitted, LATENCY, key(Key::AtomicUnit)),
        point("CAS, host memory", "cx6", "ns", Within(100.0, 200.0), Fitted, LATENCY, key(Key::AtomicMemory)),
        point("CAS, network", "cx6", "us", Within(1.0, 2.0), Predicted, LATENCY, network),
        point("CQE and polling", "cx6", "ns", About(100.0), Fitted, LATENCY, polling),
        point("event above polling", "cx6", "us", Within(5.0, 10.0), Fitted, LATENCY, event),
        post,
        over_read,
    ]
}

fn saving(what: &'static str, of: &'static str) -> Model {
    Box::new(move |profile| {
        let rows = savings::all(profile, Setting::default(), 1)?;
        let row = rows.iter().find(|row| row.what.starts_with(what) && row.of == of).ok_or("no such row")?;
        Ok(row.saved_ns())
    })
}

fn doorbells() -> Vec<Point> {
    let write = Shape::new(Op::Write, 8);
    let ring = Box::new(|profile: &Profile| {
        Ok([Key::DoorbellMmio, Key::DoorbellFence, Key::DoorbellSchedule].map(|key| profile.value(key)).iter().sum())
    });
    let each = Box::new(move |profile: &Profile| {
        let ring = profile.value(Key::DoorbellMmio) + profile.value(Key::DoorbellFence);
        Ok(profile.value(Key::CpuPost) + ring / f64::from(savings::BATCH))
    });
    let throughput = Box::new(move |profile: &Profile| {
        let interval = |batch, every| savings::interval_ns(profile, write, Setting::default(), batch, every);
        Ok(interval(1, 1)? / interval(savings::BATCH, savings::BATCH)?)
    });
    let shorter = |last: bool| -> Model {
        Box::new(move |profile: &Profile| {
            let pick = |pair: (f64, f64)| if last { pair.1 } else { pair.0 };
            let of = |batched| pick(savings::batch_latency_ns(profile, write, Setting::default(), batched));
            Ok(100.0 * (1.0 - of(true) / of(false)))
        })
    };
    let uc = Box::new(|profile: &Profile| {
        let rate = |transport| {
            let shape = Shape { transport, ..Shape::new(Op::Write, 8) };
            Ok::<_, String>(engine::run(profile, &curve::steady(shape, Setting::default()))?.mops())
        };
        Ok(100.0 * (rate(Transport::Uc)? / rate(Transport::Rc)? - 1.0))
    });
    let bus = Box::new(|profile: &Profile| Ok(super::super::shape::bus_bytes_per_ns(profile)));
    let tuned = Box::new(|profile: &Profile| {
        let of = |tuned: bool| {
            let setting = Setting { relaxed_ordering: tuned, aspm: !tuned, ..Setting::default() };
            savings::latency_ns(profile, Shape::new(Op::Read, 8), setting)
        };
        Ok(100.0 * (1.0 - of(true) / of(false)))
    });
    vec![
        point("doorbell", "cx6", "ns", Within(80.0, 150.0), Fitted, DOORBELL, ring),
        point("each of a batch of 8", "cx6", "ns", Within(10.0, 20.0), Fitted, DOORBELL, each),
        point("batch of 8, throughput", "cx6", "times", Within(5.0, 10.0), Predicted, DOORBELL, throughput),
        // "~30 %" does not say of which: the mean of eight must gain less than that, the last of eight more.
        point(
            "batch of 8, mean latency shorter by at most ~30 %",
            "cx6",
            "%",
            Within(15.0, 34.5),
            Predicted,
            DOORBELL,
            shorter(false),
        ),
        point(
            "batch of 8, last latency shorter by at least ~30 %",
            "cx6",
            "%",
            Within(25.5, 45.0),
            Predicted,
            DOORBELL,
            shorter(true),
        ),
        point("inline saves", "cx6", "ns", About(80.0), Fitted, DOORBELL, saving("inline", "latency")),
        point(
            "unsignalled saves",
            "cx6",
            "ns",
            About(50.0),
            Fitted,
            DOORBELL,
            saving("unsignalled", "a thread's time for each"),
        ),
        point("huge pages save", "cx6", "ns", About(100.0), Fitted, DOORBELL, saving("2 MiB pages", "READ latency")),
        point("UC saves", "cx6", "ns", About(50.0), Fitted, DOORBELL, saving("UC instead of RC, ACK", "latency")),
        point("UC faster", "cx6", "%", Within(5.0, 10.0), Fitted, DOORBELL, uc),
        point("PCIe 5 x16", "cx7", "GB/s", About(64.0), Predicted, DOORBELL, bus),
        point("PCIe 5 tuning", "cx7", "%", About(40.0), Fitted, GENERATIONS, tuned),
    ]
}

fn caches() -> Vec<Point> {
    let pages = |page_bytes: u64| -> Model {
        Box::new(move |_| Ok(Memory { regions: 1, region_bytes: 1 << 30, page_bytes }.pages() as f64))
    };
    let by_qps = |qps: u64| -> Model {
        Box::new(move |profile: &Profile| {
            let load = curve::steady(Shape::new(Op::Write, 8), Setting::default());
            let got = curve::along(profile, &load, Axis::Qps, &[48, qps])?;
            Ok(got[1].1.mops() / got[0].1.mops())
        })
    };
    let by_regions = |regions: u64| -> Model {
        Box::new(move |profile: &Profile| {
            let load = curve::steady(Shape::new(Op::Write, 8), Setting::default());
            let got = curve::along(profile, &load, Axis::Regions, &[1, regions])?;
            Ok(got[1].1.mops() / got[0].1.mops())
        })
    };
    let entries = Box::new(|profile: &Profile| Ok(Cache::new(profile.count(Key::MttEntries)).entries() as f64));
    vec![
        point(
            "MTT entries of 1 GiB, 4 KiB pages",
            "cx6",
            "",
            Within(262_144.0, 262_144.0),
            Predicted,
            CACHES,
            pages(1 << 12),
        ),
        point("MTT entries of 1 GiB, 2 MiB pages", "cx6", "", Within(512.0, 512.0), Predicted, CACHES, pages(1 << 21)),
        point("MTT entries of 1 GiB, 1 GiB pages", "cx6", "", Within(1.0, 1.0), Predicted, CACHES, pages(1 << 30)),
        point("MTT entries in the NIC", "cx6", "", Within(1e4, 5e5), Fitted, CACHES, entries),
        point("rate at 65,536 QPs, of that at 48", "cx6", "", Within(0.95, 1.05), Predicted, CACHES, by_qps(1 << 16)),
        point("rate at 200,000 QPs, of that at 48", "cx6", "", About(0.5), Fitted, CACHES, by_qps(200_000)),
        point("rate at 200 regions, of that at 1", "cx6", "", Within(0.95, 1.05), Predicted, CACHES, by_regions(200)),
        point("rate at 2,000 regions, of that at 1", "cx6", "", Within(0.0, 0.85), Predicted, CACHES, by_regions(2000)),
    ]
}

fn generations() -> Vec<Point> {
    let line = |name, profile, low, high, role| {
        point(name, profile, "M/s", Within(low, high), role, GENERATIONS, Box::new(spread))
    };
    let hot =
        |name, profile, role| point(name, profile, "M/s", Within(1.0, 2.0), role, GENERATIONS, Box::new(hot_line));
    let one =
        |name, profile, expected, role| point(name, profile, "us", expected, role, GENERATIONS, latency(Op::Read));
    let emulated = Box::new(|profile: &Profile| {
        let of = |emulated_atomics| {
            let design = Design::spread(Op::Cas, Setting { emulated_atomics, ..Setting::default() });
            Ok::<_, String>(atomic::simulate(profile, &design, 1)?.mops())
        };
        Ok(of(true)? / of(false)?)
    });
    let named = atomic_bw();
    vec![
        line("ConnectX-3 atomics", "cx3", 0.5, 1.0, Fitted),
        point("ConnectX-4 atomics", "cx4", "M/s", About(1.0), Fitted, GENERATIONS, Box::new(spread)),
        point("ConnectX-5 atomics", "cx5", "M/s", About(1.5), Fitted, GENERATIONS, Box::new(spread)),
        line("ConnectX-6 atomics", "cx6", 5.0, 10.0, Fitted),
        line("ConnectX-7 atomics", "cx7", 15.0, 20.0, Fitted),
        named,
        hot("ConnectX-3 one hot line", "cx3", Predicted),
        hot("ConnectX-4 one hot line", "cx4", Predicted),
        hot("ConnectX-5 one hot line", "cx5", Predicted),
        hot("ConnectX-6 one hot line", "cx6", Fitted),
        hot("ConnectX-7 one hot line", "cx7", Predicted),
        one("ConnectX-3 one operation", "cx3", About(3.0), Fitted),
        one("ConnectX-4 one operation", "cx4", About(2.5), Fitted),
        one("ConnectX-5 one operation", "cx5", About(2.0), Fitted),
        one("ConnectX-6 one operation", "cx6", Within(1.5, 2.0), Fitted),
        one("ConnectX-7 one operation", "cx7", Within(1.0, 1.5), Fitted),
        point("emulated atomics, of the rate", "cx6", "", About(0.01), Fitted, GENERATIONS, emulated),
    ]
}

/// `ib_atomic_bw` on one QP.
fn atomic_bw() -> Point {
    let model = Box::new(|profile: &Profile| super::measured::atomic_bw(profile));
    point("ConnectX-6 ib_atomic_bw", "cx6", "M/s", About(7.32), Predicted, GENERATIONS, model)
}

fn perftest() -> Vec<Point> {
    let stream = |op| -> Model { Box::new(move |profile: &Profile| Ok(curve::stream_gbps(profile, op))) };
    let below =
        Box::new(|profile: &Profile| Ok(curve::stream_gbps(profile, Op::Send) - curve::stream_gbps(profile, Op::Read)));
    let half = |op| -> Model {
        Box::new(move |profile: &Profile| {
            let shape = Shape { inline: true, ..Shape::new(op, 8) };
            Ok(total_ps(&Path::new(profile, shape, Setting::default()).arrival()) as f64 / 1e6)
        })
    };
    let mut send_latency = point("ib_send_lat", "cx6", "us", Within(1.0, 2.0), Predicted, PERFTEST, half(Op::Send));
    send_latency.excuse = Some(
        "the course contradicts itself: SEND/RECV is about 3 us in its table of latencies, ib_send_lat 1-2 us here",
    );
    vec![
        point("ib_send_bw 100 GbE", "cx5", "Gb/s", Within(95.0, 98.0), Fitted, PERFTEST, stream(Op::Send)),
        point("ib_write_bw 100 GbE", "cx5", "Gb/s", Within(95.0, 98.0), Fitted, PERFTEST, stream(Op::Write)),
        point("ib_read_bw 100 GbE", "cx5", "Gb/s", Within(90.0, 95.0), Fitted, PERFTEST, stream(Op::Read)),
        point("ib_read_bw below ib_send_bw", "cx5", "Gb/s", Within(1.0, 3.0), Fitted, PERFTEST, below),
        point("ib_write_bw 200G", "cx6", "Gb/s", Within(180.0, 197.0), Predicted, PERFTEST, stream(Op::Write)),
        point("ib_write_bw 400G", "cx7", "Gb/s", Within(360.0, 395.0), Predicted, PERFTEST, stream(Op::Write)),
        point("ib_write_lat", "cx6", "us", Within(1.0, 2.0), Predicted, PERFTEST, half(Op::Write)),
        send_latency,
        point("ib_atomic_lat", "cx6", "us", About(2.0), Predicted, PERFTEST, latency(Op::Cas)),
        point("200G small READ", "cx6", "us", Within(1.0, 3.0), Predicted, PERFTEST, latency(Op::Read)),
        point("200G small WRITE", "cx6", "us", Within(1.0, 3.0), Predicted, PERFTEST, latency(Op::Write)),
    ]
}
