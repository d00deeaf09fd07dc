//! `sfab sim` from outside: the files of a run, and the tables of parameters.

use std::process::Command;

#[test]
fn tables_are_written_as_csv_and_if_asked_for_as_parquet_too() {
    let folder = std::env::temp_dir().join(format!("sfab-sim-files-{}", std::process::id()));
    let run = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sfab"))
            .args(["sim", "run", "../../examples/sim/incast.toml", "--set", "topology.hosts=5"])
            .args(["--set", "workload.0.bytes=\"100KB\"", "--out"])
            .arg(&folder)
            .args(more)
            .output()
            .expect("sfab starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&[]);
    let there = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    for table in ["flows", "samples", "pauses"] {
        assert!(there(&format!("{table}.csv")).contains(&b'\n'), "{table}");
        assert!(there(&format!("{table}.parquet")).is_empty(), "{table}: nobody asked");
    }
    // A run without Parquet is not left out if Parquet is asked for; one with it is.
    run(&["--resume", "--parquet"]);
    for table in ["flows", "samples", "pauses"] {
        let bytes = there(&format!("{table}.parquet"));
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{table}");
    }
    std::fs::remove_file(folder.join("flows.parquet")).unwrap();
    run(&["--resume", "--parquet"]);
    assert!(there("flows.parquet").is_empty(), "it was there, and was run again");
    run(&["--parquet"]);
    assert!(!there("flows.parquet").is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn parameters_are_told_for_a_rate_for_programs_and_as_the_page() {
    let told = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sfab")).args(["sim", "parameters"]).args(words).output();
        let output = output.expect("sfab starts");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(told(&[]).contains("timely-scaled"));
    let explained = told(&["dcqcn", "--explain", "--rate", "2.5"]);
    let row = explained.lines().find(|line| line.starts_with("rpg_time_reset_ns")).unwrap();
    assert!(row.ends_with("3 ms") && explained.contains("rpg_time_reset_ns, 1 us to 10 s"), "{explained}");
    let json: serde_json::Value = serde_json::from_str(&told(&["dcqcn", "--json"])).unwrap();
    let rows = json["parameters"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "rpg_time_reset_ns").unwrap();
    assert_eq!((&row["unit"], &row["default_by_gbps"]["100"]), (&"ns".into(), &300_000.0.into()));
    assert_eq!(told(&["--markdown"]), include_str!("../../../docs/congestion.md"));
}
