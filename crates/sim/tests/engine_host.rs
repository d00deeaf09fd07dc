//! The whole engine as a host of the simulated fabric: the same scenarios as on light hosts, with real bytes, PSNs and ICRCs, and the same times within what is stated.

use scalefabric_sim::fabric::report::Report;
use scalefabric_sim::fabric::runner::run;
use scalefabric_sim::fabric::scenario::{Scenario, parse};
use std::path::Path;

/// How far completion times may differ. Headers of a WRITE (16 and 4 bytes) and whole nanoseconds of the engine's clock are in it.
const TOLERANCE: f64 = 0.02;
/// The same under DCQCN, where chance marks packets and a CNP a little earlier or later changes who is told to slow down.
const BY_CHANCE: f64 = 0.25;

fn scenario(kind: &str, algorithm: &str, rest: &str) -> Scenario {
    let text = format!(
        "[topology]\nkind = \"star\"\nhosts = 5\n[host]\nkind = \"{kind}\"\n[congestion]\nalgorithm = \"{algorithm}\"\n{rest}"
    );
    parse(&text, "t.toml", "t", Path::new(""), &[]).unwrap_or_else(|refusal| panic!("{refusal}")).remove(0)
}

fn report(kind: &str, algorithm: &str, rest: &str) -> Report {
    run(&scenario(kind, algorithm, rest), &mut |_| true).unwrap_or_else(|refusal| panic!("{refusal}"))
}

const INCAST: &str = "[[workload]]\nkind = \"incast\"\nbytes = \"2MB\"\n";

#[test]
fn an_incast_of_four_takes_as_long_on_both_kinds_of_hosts() {
    for algorithm in ["none", "dcqcn-paper", "swift"] {
        let [light, engine] = ["light", "engine"].map(|kind| report(kind, algorithm, INCAST));
        assert!(light.end == "done" && engine.end == "done", "{algorithm}: {} {}", light.end, engine.end);
        assert_eq!((light.flows.ended, engine.flows.ended, engine.counter("dropped")), (4, 4, 0));
        for (name, light, engine) in [
            ("first", light.flows.min_us, engine.flows.min_us),
            ("mean", light.flows.mean_us, engine.flows.mean_us),
            ("last", light.flows.max_us, engine.flows.max_us),
        ] {
            let tolerance = if algorithm == "dcqcn-paper" { BY_CHANCE } else { TOLERANCE };
            assert!((engine / light - 1.0).abs() < tolerance, "{algorithm}, {name}: {light} µs, engine {engine} µs");
        }
    }
}

#[test]
fn an_engine_repairs_what_the_fabric_loses_and_every_byte_arrives() {
    let lossy = format!("{INCAST}[[link]]\nhost = 4\nloss = 0.001\n");
    let report = report("engine", "none", &lossy);
    assert!(
        report.end == "done" && report.counter("dropped_lost_on_wire") > 0,
        "{}: {:?}",
        report.end,
        report.counters
    );
    assert_eq!((report.flows.ended, report.counter("given_up")), (4, 0));
}

#[test]
fn collectives_run_on_engines_and_the_same_seed_gives_the_same_bytes() {
    let ring = "[[workload]]\nkind = \"all-reduce\"\nbytes = \"1MB\"\n";
    let files = || report("engine", "dcqcn", ring).files(true).unwrap();
    let first = files();
    assert_eq!(first, files());
    let figure =
        |kind| report(kind, "dcqcn", ring).figures.iter().find(|f| f.name == "AllReduce time, mean").unwrap().value;
    let (light, engine): (f64, f64) = (figure("light"), figure("engine"));
    assert!((engine / light - 1.0).abs() < TOLERANCE, "{light} µs, engine {engine} µs");
}

#[test]
fn what_engines_cannot_do_is_refused_with_its_line() {
    let with = |change: &str| {
        let text = format!("[topology]\nkind = \"star\"\nhosts = 5\n[host]\nkind = \"engine\"\n{change}\n{INCAST}");
        parse(&text, "t.toml", "t", Path::new(""), &[]).unwrap_err().0
    };
    for (change, expected) in [
        ("qp_rate = \"1G\"", "t.toml:6: host.qp_rate: counts only with kind = \"light\""),
        ("mtu = 1000", "t.toml:6: host.mtu"),
        ("[congestion]\nalgorithm = \"hpcc\"", "t.toml:5: host.kind"),
        ("[congestion]\nalgorithm = \"hpcc-pint\"", "t.toml:5: host.kind"),
    ] {
        let message = with(change);
        assert!(message.contains(expected), "{message}");
    }
}
