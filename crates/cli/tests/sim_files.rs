//! The files of `sfab sim run --out` from outside.

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
