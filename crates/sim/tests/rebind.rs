//! The table of rebinding: small enough for each run of the tests. Packets and the closed form on 8 and 32 nodes (128 and more: docs/sim.md); the same seed gives the same bytes with any
//! number of threads.

use scalefabric_sim::fabric::rebind::Setup;
use scalefabric_sim::fabric::rebind::table::{Job, Method, Row, run, text};

fn rows(method: Method, nodes: &[u32], seeds: u32, threads: usize) -> Vec<Row> {
    let job = |nodes: &u32| Job { variant: String::new(), method, setup: Setup::new(*nodes, 1), seeds };
    let jobs: Vec<Job> = nodes.iter().map(job).collect();
    run(&jobs, threads, &|_, _, _| true).unwrap()
}

#[test]
fn the_closed_form_gives_the_reported_table() {
    let rows = rows(Method::Lockstep, &[8, 32], 32, 2);
    assert!(rows.iter().all(|row| row.agrees() == Some(true) && row.rested == row.seeds), "{}", text(&rows));
}

#[test]
fn packets_say_what_the_closed_form_says() {
    let (packets, closed) = (rows(Method::Packets, &[8, 32], 1, 2), rows(Method::Lockstep, &[8, 32], 1, 1));
    for (packets, closed) in packets.iter().zip(&closed) {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.15;
        assert!(near(packets.fixed_gbps.mean, closed.fixed_gbps.mean), "{packets:?} {closed:?}");
        assert!(near(packets.moved_gbps.mean, closed.moved_gbps.mean), "{packets:?} {closed:?}");
    }
}

#[test]
fn the_same_seeds_give_the_same_table_with_any_number_of_threads() {
    let bytes = |threads| format!("{:?}", rows(Method::Packets, &[8], 2, threads));
    assert_eq!(bytes(1), bytes(3));
}

#[test]
fn impossible_numbers_are_refused() {
    for (nodes, expected) in [(0, "0 nodes"), (12, "12 nodes"), (100, "100 nodes"), (10_000, "10000 nodes")] {
        assert!(Setup::new(nodes, 1).check().unwrap_err().contains(expected));
    }
    let setup = Setup { qps: 0, ..Setup::new(8, 1) };
    assert!(setup.check().unwrap_err().contains("QPs"));
}
