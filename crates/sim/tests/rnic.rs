//! Properties of the NIC timing model: sums are exact, an operation that meets nobody takes its closed form, the same seed gives the same bytes, and more of
//! what hurts never helps. Each property is tried over random profiles, shapes and loads; a failure prints the number that repeats it.

use scalefabric_sim::random::Random;
use scalefabric_sim::rnic::load::{Issue, Memory, Registers, Responder, Target};
use scalefabric_sim::rnic::path::total_ps;
use scalefabric_sim::rnic::{Key, Kind, Load, Op, Path, Profile, Setting, Shape, Transport, curve, engine, profile};

const CASES: u64 = 300;

/// A profile of the crate with some latencies changed to anything.
fn some_profile(random: &mut Random) -> Profile {
    let all = profile::all();
    let mut profile = random.pick(&all).clone();
    let latencies: Vec<Key> = Key::ALL
        .iter()
        .copied()
        .filter(|key| {
            let row = key.row().key;
            // Times of which only latency is made; those that keep a part busy would let an operation meet its predecessor.
            row.ends_with("_ns")
                && !row.contains("stall")
                && !row.contains("line")
                && !row.contains("engine")
                && !row.contains("hot_read")
                && !row.contains("handle")
                && !row.contains("segment")
                && !row.contains("unit_ns")
                && !row.contains("dram")
                && !["nic.read_ns", "nic.write_ns", "nic.unacknowledged_ns", "nic.atomic_ns", "nic.responder_ns"]
                    .contains(&row)
        })
        .collect();
    for _ in 0..random.below(6) {
        let key = *random.pick(&latencies);
        profile.set(key, random.below(5_000_000) as f64 / 1000.0, "random").unwrap();
    }
    for (key, values) in [
        (Key::BusGeneration, vec![3.0, 4.0, 5.0, 6.0]),
        (Key::BusMaxPayload, vec![128.0, 256.0, 512.0]),
        (Key::WireMtu, vec![1024.0, 4096.0]),
    ] {
        profile.set(key, *random.pick(&values), "random").unwrap();
    }
    profile
}

fn some_shape(random: &mut Random) -> Shape {
    let op = *random.pick(&Op::ALL);
    let inline = !op.is_answered() && random.chance(300_000);
    let bytes = if inline { random.range(1, 220) } else { random.range(1, 4096) } as u32;
    let transport = if op == Op::Write && random.chance(200_000) { Transport::Uc } else { Transport::Rc };
    Shape { inline, blueflame: random.chance(500_000), transport, ..Shape::new(op, bytes) }
}

fn some_setting(random: &mut Random) -> Setting {
    Setting {
        relaxed_ordering: random.chance(500_000),
        aspm: random.chance(500_000),
        events: random.chance(500_000),
        device_memory: random.chance(500_000),
        dram: random.chance(500_000),
        emulated_atomics: false,
        switches: random.below(4) as u32,
    }
}

#[test]
fn components_add_up_to_the_latency_exactly() {
    for case in 0..CASES * 10 {
        let mut random = Random::new(case, 1);
        let (profile, shape, setting) = (some_profile(&mut random), some_shape(&mut random), some_setting(&mut random));
        let path = Path::new(&profile, shape, setting);
        let components = path.components();
        assert_eq!(total_ps(&components), path.latency_ps(), "case {case}: {shape:?} {setting:?}");
        assert!(components.iter().all(|component| component.ps > 0), "case {case}");
        let mut names: Vec<&str> = components.iter().map(|component| component.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), components.len(), "case {case}: a name stands twice in {components:?}");
    }
}

#[test]
fn an_operation_that_meets_nobody_takes_its_closed_form_exactly() {
    for case in 0..CASES {
        let mut random = Random::new(case, 2);
        let (profile, shape, setting) = (some_profile(&mut random), some_shape(&mut random), some_setting(&mut random));
        let load = Load { operations: 50, seed: case, ..Load::one(shape, setting) };
        let outcome = engine::run(&profile, &load).unwrap();
        let expected = Path::new(&profile, shape, setting).latency_ps();
        assert_eq!(outcome.latency_ps, expected, "case {case}: {} {shape:?} {setting:?}", profile.name);
    }
}

fn some_load(random: &mut Random) -> Load {
    let shape = Shape { blueflame: false, ..some_shape(random) };
    let setting = Setting { emulated_atomics: random.chance(100_000), ..some_setting(random) };
    let batch = random.range(1, 4) as u32;
    let signal_every = random.range(1, 4) as u32;
    Load {
        threads: random.range(1, 24) as u32,
        qps: random.range(1, 300) as u32,
        depth: 12 * random.range(1, 4) as u32,
        issue: *random.pick(&[Issue::Window, Issue::Round]),
        batch,
        signal_every,
        registers: *random.pick(&[Registers::Own, Registers::Default]),
        responder: *random.pick(&[Responder::Peer, Responder::Mirror, Responder::Only]),
        memory: Memory { regions: random.range(1, 2000), region_bytes: 1 << random.range(12, 30), page_bytes: 4096 },
        target: Target { hot_ppm: random.below(1_000_000) as u32, hot_lines: random.range(1, 8), lines: 1 << 16 },
        operations: 500,
        seed: random.next(),
        ..Load::one(shape, setting)
    }
}

#[test]
fn the_same_seed_gives_the_same_result_and_every_load_ends() {
    let (mut different, mut random) = (0, Random::new(3, 3));
    for case in 0..40 {
        let (profile, load) = (some_profile(&mut random), some_load(&mut random));
        let run =
            |load: &Load| engine::run(&profile, load).unwrap_or_else(|error| panic!("case {case}: {error} {load:?}"));
        let first = run(&load);
        assert_eq!(first, run(&load), "case {case}: {load:?}");
        assert!(first.operations >= 500 && first.elapsed_ps > 0, "case {case}: {load:?} {first:?}");
        different += u32::from(run(&Load { seed: load.seed + 1, ..load }) != first);
    }
    assert!(different > 10, "the seed changes nothing");
}

#[test]
fn more_time_anywhere_never_shortens_a_latency() {
    for case in 0..CASES {
        let mut random = Random::new(case, 4);
        let (mut profile, shape, setting) =
            (some_profile(&mut random), some_shape(&mut random), some_setting(&mut random));
        let before = Path::new(&profile, shape, setting).latency_ps();
        let key = *random.pick(Key::ALL);
        if key.row().unit() != "ns" {
            continue;
        }
        let longer = (profile.value(key) + 50.0).min(key.row().high);
        profile.set(key, longer, "test").unwrap();
        let after = Path::new(&profile, shape, setting).latency_ps();
        assert!(after >= before, "case {case}: {} made it {after} from {before}", key.row().key);
    }
}

#[test]
fn deeper_queues_never_lower_the_rate_below_the_knee_and_more_data_never_raise_it() {
    let profile = Profile::named("cx6", Kind::Measured).unwrap();
    let load = curve::steady(Shape::new(Op::Read, 8), Setting::default());
    let mops = |axis, values: &[u64]| -> Vec<f64> {
        curve::along(&profile, &load, axis, values).unwrap().iter().map(|(_, outcome)| outcome.mops()).collect()
    };
    let depths = mops(curve::Axis::Depth, &[4, 6, 8, 10]);
    assert!(depths.windows(2).all(|pair| pair[1] >= pair[0] * 0.99), "{depths:?}");
    let sizes = mops(curve::Axis::Bytes, &[8, 64, 256, 512, 4096]);
    assert!(sizes.windows(2).all(|pair| pair[1] <= pair[0] * 1.01), "{sizes:?}");
}

#[test]
fn loads_that_make_no_sense_are_refused_with_the_remedy() {
    let profile = Profile::named("cx6", Kind::Course).unwrap();
    let one = Load::one(Shape::new(Op::Write, 8), Setting::default());
    let refused = |load: Load, part: &str| {
        let error = engine::run(&profile, &load).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    refused(Load { threads: 0, ..one }, "threads is 0; expected 1 to");
    refused(Load { qps: 0, ..one }, "QPs is 0");
    refused(Load { batch: 8, ..one }, "needs a depth of as many");
    refused(Load { depth: 8, signal_every: 8, batch: 4, ..one }, "depth must be at least 11");
    refused(Load { depth: 9, batch: 2, issue: Issue::Round, ..one }, "multiple of batch");
    refused(Load { threads: 4096, depth: 65536, ..one }, "under way");
    refused(Load { memory: Memory { page_bytes: 0, ..one.memory }, ..one }, "above 0");
    refused(Load { target: Target { hot_lines: 0, ..one.target }, ..one }, "at least one line");
    let blueflame = Shape { blueflame: true, ..one.shape };
    refused(Load { shape: blueflame, depth: 8, batch: 2, ..one }, "BlueFlame carries one WQE");
    refused(Load { shape: Shape { inline: true, bytes: 1000, ..one.shape }, ..one }, "nic.inline_bytes");
}
