//! Whole fabrics, small enough to know what must come out: PFC that spreads, deadlocks, storms, failing links, spraying, collectives, and that one seed is one
//! run.

use super::model::{Balance, Model, Recovery};
use super::pause::Stuck;
use super::time::Ps;
use super::topology::{Link, Topology, Wire};
use super::validate::trial::{WIRE, profile};
use super::workload::Mix;
use super::workload::all_reduce::{AllReduce, Plan, Shape};
use super::workload::flow_list::{Flow, FlowList};
use super::world::{End, Fault, Nobody, World};
use crate::random::Random;

const SECOND: Ps = Ps(1_000_000_000_000);

fn flow(from: u32, to: u32, bytes: u64) -> Flow {
    Flow { start: Ps::ZERO, from, to, bytes }
}

fn mix(flows: Vec<Flow>) -> Mix {
    Mix::new(vec![Box::new(FlowList::new(flows, 3))])
}

fn world(topology: Topology, model: Model, control: &str) -> World {
    World::new(topology, model, profile(control, &[]).unwrap(), 1).unwrap()
}

/// Five switches in a ring with a host each; everybody sends to the second next. Shortest ways make a circle.
fn ring() -> (Topology, Vec<Flow>) {
    let mut topology = Topology { hosts: 5, switches: 5, rails: 1, layers: vec![0; 5], links: Vec::new() };
    for i in 0..5 {
        let link = |a, b| Link { a, b, bps: WIRE.bps, delay: WIRE.delay, loss_e7: 0 };
        topology.links.push(link(i, 5 + i));
        topology.links.push(link(5 + i, 5 + (i + 1) % 5));
    }
    (topology, (0..5).map(|i| flow(i, (i + 2) % 5, 20_000_000)).collect())
}

fn small_buffer() -> Model {
    let mut model = Model::reference();
    model.switch.buffer = 1 << 20;
    model
}

#[test]
fn a_ring_under_pfc_deadlocks_and_the_cycle_is_named() {
    let (topology, flows) = ring();
    let mut world = world(topology, small_buffer(), "none");
    match world.run(&mut mix(flows), SECOND, &mut Nobody) {
        End::Stuck(Stuck::Deadlock { priority: 3, cycle }) => {
            assert_eq!(cycle.len(), 5, "{cycle:?}");
            assert!(cycle.contains(&"leaf 0 -> leaf 1".to_owned()), "{cycle:?}");
            assert!(world.now() < Ps(20_000_000_000), "{}", world.now());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_the_circle_the_same_buffers_only_pause() {
    let (topology, mut flows) = ring();
    flows.pop();
    let mut world = world(topology, small_buffer(), "none");
    assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done);
    assert!(world.counters().pauses > 0);
    assert_eq!(world.counters().dropped(), 0);
}

#[test]
fn a_watchdog_breaks_the_deadlock_at_the_price_of_drops() {
    let (topology, flows) = ring();
    let mut model = small_buffer();
    model.switch.pfc.watchdog = Some(Ps::from_ns(200_000));
    model.host.timeout = Some(Ps::from_ns(500_000));
    model.host.retry_cnt = 1000;
    model.host.answer_duplicates = true;
    let mut world = world(topology, model, "none");
    assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done);
    assert!(world.counters().storms > 0 && world.counters().dropped_watchdog > 0);
}

/// A slow receiver stops its leaf, the leaf the spine, the spine the other leaf, and a flow to somebody else suffers.
#[test]
fn pauses_of_a_slow_host_spread_and_the_tree_tells_it() {
    let topology = Topology::leaf_spine(2, 2, 1, WIRE, WIRE);
    let mut world = world(topology, small_buffer(), "none");
    world.plan(Ps::ZERO, Fault::SlowHost { host: 2, bps: 10_000_000_000 });
    let flows = vec![flow(0, 2, 4_000_000), flow(1, 3, 4_000_000)];
    assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done);
    let names: Vec<(String, bool)> =
        world.pauses().spread().map(|(edge, _)| (world.link_name(edge.paused), edge.passed_on)).collect();
    for link in [
        ("leaf 1 -> host 2", false),
        ("spine 0 -> leaf 1", true),
        ("leaf 0 -> spine 0", true),
        ("host 0 -> leaf 0", true),
    ] {
        assert!(names.contains(&(link.0.to_owned(), link.1)), "{link:?} in {names:?}");
    }
    // The victim would have needed 0.34 ms alone.
    let victim = world.messages()[1];
    assert!(victim.acked.since(victim.posted) > Ps(600_000_000), "{}", victim.acked);
    assert_eq!(world.counters().dropped(), 0);
}

#[test]
fn a_pause_storm_stops_what_it_reaches_until_the_watchdog_or_its_end() {
    for watchdog in [None, Some(Ps::from_ns(300_000))] {
        let mut model = Model::roce();
        model.switch.pfc.watchdog = watchdog;
        let mut world = world(Topology::star(3, WIRE), model, "none");
        world.plan(Ps(10_000_000), Fault::Storm { host: 2, priority: 3, on: true });
        world.plan(Ps(2_000_000_000), Fault::Storm { host: 2, priority: 3, on: false });
        let end = world.run(&mut mix(vec![flow(0, 2, 4_000_000)]), SECOND, &mut Nobody);
        assert_eq!(end, End::Done);
        assert_eq!(world.counters().storms > 0, watchdog.is_some());
        let lost = world.counters().dropped_watchdog > 0;
        assert_eq!(lost, watchdog.is_some());
        if watchdog.is_none() {
            // Nothing passes before the storm ends.
            assert!(world.last_done() > Ps(2_000_000_000) && world.counters().resent == 0);
        }
    }
}

#[test]
fn a_pause_ends_with_its_quanta() {
    let mut model = Model::roce();
    model.switch.pfc.quanta = Some(1000);
    let mut world = world(Topology::star(3, WIRE), model, "none");
    world.plan(Ps(10_000_000), Fault::Storm { host: 2, priority: 3, on: true });
    // The storm is told again each half of 5.12 µs until it ends; the frame that ends it is lost with a link that fails for a moment.
    world.plan(Ps(50_000_000), Fault::Storm { host: 2, priority: 3, on: false });
    let end = world.run(&mut mix(vec![flow(0, 2, 1_000_000)]), SECOND, &mut Nobody);
    assert_eq!(end, End::Done);
    assert!(world.counters().pauses > 10, "{}", world.counters().pauses);
}

#[test]
fn a_failed_link_is_left_and_nothing_is_forgotten() {
    let topology = Topology::leaf_spine(2, 4, 2, WIRE, WIRE);
    // Links 0 to 7 are hosts'; 8 is leaf 0 - spine 0.
    let mut world = world(topology, Model::roce(), "dcqcn");
    world.plan(Ps(20_000_000), Fault::Link { link: 8, up: false });
    let flows: Vec<Flow> = (0..4).map(|i| flow(i, 4 + i, 8_000_000)).collect();
    assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done);
    let counters = world.counters();
    assert!(counters.dropped_down > 0 && counters.resent > 0 && counters.given_up == 0, "{counters:?}");
    assert!(world.messages().iter().all(|message| message.acked != Ps::NEVER));
}

#[test]
fn who_cannot_be_reached_any_more_is_given_up_after_the_retries() {
    let mut model = Model::roce();
    model.host.timeout = Some(Ps::from_ns(100_000));
    model.host.retry_cnt = 3;
    let mut world = world(Topology::star(3, WIRE), model, "none");
    world.plan(Ps(20_000_000), Fault::Link { link: 2, up: false });
    let flows = vec![flow(0, 2, 8_000_000), flow(0, 1, 8_000_000)];
    assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done);
    assert_eq!((world.counters().given_up, world.counters().timeouts), (1, 4));
    assert!(world.messages()[1].acked != Ps::NEVER && world.messages()[0].acked == Ps::NEVER);
}

#[test]
fn a_collective_whose_sender_gave_up_is_told_as_such() {
    let mut model = Model::roce();
    model.host.timeout = Some(Ps::from_ns(100_000));
    model.host.retry_cnt = 2;
    let mut world = world(Topology::star(4, WIRE), model, "none");
    world.plan(Ps(20_000_000), Fault::Link { link: 2, up: false });
    let mut mix = Mix::new(vec![Box::new(AllReduce::new(all_reduce(Shape::Ring, 4, 16_000_000, 1, 1)))]);
    match world.run(&mut mix, SECOND, &mut Nobody) {
        End::Stuck(stuck @ Stuck::GaveUp { qps: 1.. }) => assert!(stuck.to_string().contains("host.retry_cnt")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_timer_a_lost_last_packet_is_told_as_such() {
    let mut topology = Topology::star(2, WIRE);
    topology.links[0].loss_e7 = 10_000_000;
    let mut world = world(topology, Model::reference(), "none");
    match world.run(&mut mix(vec![flow(0, 1, 1000)]), SECOND, &mut Nobody) {
        End::Stuck(stuck @ Stuck::Lost { messages: 1, .. }) => {
            assert!(stuck.to_string().contains("1000 B from host 0 to host 1"), "{stuck}");
        }
        other => panic!("{other:?}"),
    }
}

/// A permutation on a fat tree: hashing collides, spraying and adaptive choice do not.
#[test]
fn spreading_packets_over_ways_beats_hashing() {
    let makespan = |balance: Balance| {
        let mut model = Model::roce();
        model.switch.balance = balance;
        model.host.recovery = Recovery::Selective { reorder: 256 };
        let flows = FlowList::permutation(16, 4_000_000, Ps::ZERO, &mut Random::new(4, 0));
        let mut world = world(Topology::fat_tree(4, WIRE, WIRE), model, "none");
        assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done, "{balance:?}");
        assert_eq!(world.counters().dropped(), 0);
        world.last_done()
    };
    let [hash, spray, adaptive] = [Balance::Hash, Balance::Spray, Balance::Adaptive].map(makespan);
    assert!(spray < hash && adaptive < hash, "{hash} {spray} {adaptive}");
}

#[test]
fn selective_repeat_sends_again_only_what_is_missing() {
    let resent = |recovery: Recovery| {
        let mut model = Model::roce();
        model.host.recovery = recovery;
        let mut topology = Topology::star(2, WIRE);
        topology.links[0].loss_e7 = 20_000;
        let mut world = world(topology, model, "none");
        assert_eq!(world.run(&mut mix(vec![flow(0, 1, 40_000_000)]), SECOND, &mut Nobody), End::Done);
        assert!(world.messages()[0].delivered != Ps::NEVER);
        (world.counters().resent, world.counters().dropped_lost)
    };
    let (back, _) = resent(Recovery::GoBackN);
    let (selective, lost) = resent(Recovery::Selective { reorder: 3 });
    assert!(selective <= 2 * lost + 8 && back > 4 * selective, "{back} {selective} {lost}");
}

fn all_reduce(shape: Shape, members: u32, bytes: u64, buckets: u32, channels: usize) -> Plan {
    Plan {
        channels: vec![(0..members).collect(); channels],
        bytes,
        buckets,
        overlap: 2,
        iterations: 2,
        shape,
        start: Ps::ZERO,
        priority: 3,
        binding: None,
    }
}

#[test]
fn a_ring_all_reduce_moves_what_it_must_at_the_speed_of_the_links() {
    let bytes = 32_000_000;
    let plan = all_reduce(Shape::Ring, 8, bytes, 4, 2);
    let mut world = world(Topology::star(8, WIRE), Model::roce(), "none");
    let mut mix = Mix::new(vec![Box::new(AllReduce::new(plan))]);
    assert_eq!(world.run(&mut mix, SECOND, &mut Nobody), End::Done);
    // 2 iterations, 8 members, 14 steps of an eighth.
    assert_eq!(world.counters().delivered_bytes, 2 * 8 * 14 * bytes / 8);
    let figures = mix.jobs()[0].figures();
    let bus = figures.iter().find(|figure| figure.name.starts_with("bus")).unwrap().value;
    assert!((80.0..98.0).contains(&bus), "{bus}");
}

#[test]
fn a_tree_all_reduce_sends_everything_up_and_down_once() {
    for members in [2, 3, 7, 8] {
        let plan = all_reduce(Shape::Tree { piece: 100_000 }, members, 1_600_000, 2, 1);
        let mut world = world(Topology::star(members, WIRE), Model::roce(), "none");
        let mut mix = Mix::new(vec![Box::new(AllReduce::new(plan))]);
        assert_eq!(world.run(&mut mix, SECOND, &mut Nobody), End::Done);
        assert_eq!(world.counters().delivered_bytes, 2 * 2 * u64::from(members - 1) * 1_600_000, "{members}");
        assert_eq!(mix.jobs()[0].figures()[0].value, 2.0);
    }
}

#[test]
fn one_seed_is_one_run() {
    let run = |seed: u64| {
        let sizes = super::workload::sizes::Sizes::named("fb-hadoop").unwrap();
        let topology = Topology::leaf_spine(4, 4, 2, WIRE, Wire { bps: 400_000_000_000, ..WIRE });
        let mut random = Random::new(seed, 0);
        let flows = FlowList::open_loop(16, WIRE.bps, 0.6, &sizes, Ps::ZERO, Ps(1_000_000_000), &mut random);
        let mut world = World::new(topology, Model::roce(), profile("dcqcn", &[]).unwrap(), seed).unwrap();
        assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done);
        let times: Vec<Ps> = world.messages().iter().map(|message| message.acked).collect();
        (*world.counters(), times)
    };
    let first = run(5);
    assert!(first.0.marked > 0, "chance was used: {:?}", first.0);
    assert_eq!(first, run(5));
    assert_ne!(first.1, run(6).1);
}

/// Whatever a run does, packets and bytes of buffers are all given back.
#[test]
fn nothing_is_left_when_all_is_done() {
    for control in ["none", "dcqcn", "timely-scaled", "hpcc", "hpcc-pint", "swift"] {
        let mut model = Model::roce();
        model.host.timeout = Some(Ps::from_ns(300_000));
        model.host.retry_cnt = 1000;
        let mut topology = Topology::leaf_spine(2, 4, 2, WIRE, WIRE);
        topology.links.iter_mut().for_each(|link| link.loss_e7 = 2_000);
        let flows = FlowList::incast(0..8, 7, 500_000, Ps::ZERO);
        let mut world = world(topology, model, control);
        assert_eq!(world.run(&mut mix(flows), SECOND, &mut Nobody), End::Done, "{control}");
        // What is on its way when the last message ends still arrives.
        while let Some(left) = world.drain_for_test() {
            assert!(left < 100_000, "{control}");
        }
        assert_eq!((world.packets_in_use(), world.buffers_in_use()), (0, 0), "{control}");
    }
}

#[test]
fn buffers_below_headroom_are_refused() {
    let mut model = Model::reference();
    model.switch.buffer = 100_000;
    let error = World::new(Topology::star(8, WIRE), model, profile("none", &[]).unwrap(), 1).err().unwrap();
    assert!(error.contains("leaf 0 has a buffer of 100000 B") && error.contains("give it more"), "{error}");
}
