//! The examples of `examples/sim`: each is read, fits its fabric and asks a question; those that take a moment are run, some of them smaller than they stand
//! there, and answer it.

use scalefabric_sim::fabric::report::{Report, comparison};
use scalefabric_sim::fabric::runner::run_all;
use scalefabric_sim::fabric::scenario::{Scenario, read};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim")
}

fn scenarios(name: &str, changes: &[&str]) -> Vec<Scenario> {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    read(&folder().join(format!("{name}.toml")), &changes).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn run(name: &str, changes: &[&str], jobs: usize) -> Vec<Report> {
    let results = run_all(&scenarios(name, changes), jobs, &|_, _| true, &|_, _| {});
    results.into_iter().map(|result| result.unwrap_or_else(|refusal| panic!("{refusal}"))).collect()
}

fn figure(report: &Report, name: &str) -> f64 {
    let found = report.figures.iter().find(|figure| figure.name == name);
    found.unwrap_or_else(|| panic!("no {name:?} in {:?}", report.figures)).value
}

#[test]
fn every_example_is_read_and_asks_a_question() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let scenarios = read(&path, &[]).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert!(scenarios[0].question.as_ref().is_some_and(|question| question.len() > 20), "{}", path.display());
        names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    let page = std::fs::read_to_string(folder().join("../../docs/sim.md")).unwrap();
    for name in names {
        assert!(page.contains(&format!("`{name}.toml`")), "docs/sim.md does not tell of {name}");
    }
}

#[test]
fn one_slow_nic_slows_all() {
    let reports = run("slow-nic", &["workload.0.bytes=16MB"], 2);
    let times: Vec<f64> = reports.iter().map(|report| figure(report, "AllReduce time, mean")).collect();
    assert!(times[0] < times[1] && times[1] < times[2] && times[3] > 4.0 * times[0], "{times:?}");
    assert!(reports.iter().all(|report| report.end == "done" && report.counter("dropped") == 0));
}

#[test]
fn a_failed_link_stalls_and_is_recovered_from() {
    let report = &run("link-failure", &["workload.0.bytes=16MB", "fault.0.at=200us"], 1)[0];
    assert_eq!(report.end, "done");
    assert!(report.counter("dropped_link_down") > 0 && report.counter("given_up") == 0, "{:?}", report.counters);
}

#[test]
fn a_storm_pauses_others_and_a_watchdog_ends_that() {
    let reports = run("pause-storm", &["workload.0.bytes=200KB"], 2);
    let [without, with] = reports.as_slice() else { panic!("{} runs", reports.len()) };
    assert!(without.counter("pfc_storms") == 0 && with.counter("pfc_storms") > 0);
    assert!(without.pauses.iter().any(|pause| pause.because_of == "the host itself"), "{:?}", without.pauses);
}

#[test]
fn reads_and_writes_are_told_apart() {
    let report = &run("storage", &[], 1)[0];
    assert_eq!(report.end, "done");
    assert!(figure(report, "reads") > 1.5 * figure(report, "writes"));
    assert!(figure(report, "read time, p99") >= figure(report, "read time, p50"));
}

#[test]
fn threads_and_repetition_change_no_byte() {
    let files = |jobs| {
        let reports = run("spray", &["workload.0.bytes=500KB", "topology.k=4"], jobs);
        reports.iter().map(|report| report.files(true).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(files(1), files(3));
}

#[test]
fn an_observer_may_end_a_run() {
    let scenario = &scenarios("incast", &["workload.0.bytes=100MB"])[0];
    let results = run_all(std::slice::from_ref(scenario), 1, &|_, _| false, &|_, _| {});
    assert_eq!(results[0].as_ref().unwrap().end, "time is up");
}

#[test]
fn a_table_of_a_sweep_names_each_run_by_what_differs() {
    let table = comparison(&run("ecn-400g", &["until=20us"], 2));
    for kmin in [50, 200, 800, 1600] {
        for metres in ["5.0 ", "300.0 "] {
            assert!(table.contains(&format!("kmin={kmin}KB cable_m={metres}")), "{table}");
        }
    }
    assert!(!table.contains("kmax"), "all runs have the same: {table}");
}
