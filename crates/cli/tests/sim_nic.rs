//! `sfab sim nic` from outside: what it prints, and which exit code wrong input gets.

use serde_json::Value;
use std::process::{Command, Output};

fn nic(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sfab")).args(["sim", "nic"]).args(arguments).output().expect("sfab starts")
}

fn json(arguments: &[&str]) -> Value {
    let output = nic(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn components_of_a_latency_add_up() {
    for kind in ["course", "measured"] {
        let told = json(&["latency", "--op", "cas", "--kind", kind, "--json"]);
        let parts = told["components"].as_array().unwrap().iter().map(|part| part["ps"].as_u64().unwrap());
        assert_eq!(Some(parts.sum()), told["total_ps"].as_u64());
    }
}

#[test]
fn the_same_seed_prints_the_same_bytes() {
    let run = |seed| nic(&["rate", "--by", "qps", "--values", "4K", "--op", "read", "--json", "--seed", seed]).stdout;
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn a_ceiling_says_what_to_do() {
    let told = json(&["ceiling", "--offered", "3M", "--kind", "course", "--json"]);
    assert_eq!(told["limit"], "hot cache lines");
    assert!(told["utilisation_percent"].as_f64().unwrap() > 100.0);
    assert!(!told["advice"].as_array().unwrap().is_empty());
}

#[test]
fn a_profile_of_ones_own_is_taken_and_a_wrong_one_refused_with_its_line() {
    let file = std::env::temp_dir().join(format!("sfab-nic-{}.toml", std::process::id()));
    let path = file.to_str().unwrap();
    let text = |field: &str| {
        format!(
            "base = \"cx6-measured\"\nname = \"mine\"\ntitle = \"t\"\n[values.bus]\n{field} = {{ value = 900, source = \"own\" }}\n"
        )
    };
    std::fs::write(&file, text("read_ns")).unwrap();
    assert_eq!(json(&["latency", "--profile-file", path, "--json"])["profile"], "mine");
    std::fs::write(&file, text("read_nanos")).unwrap();
    let refused = nic(&["latency", "--profile-file", path]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains(":5: there is no parameter `bus.read_nanos`; expected one of"), "{told}");
}

#[test]
fn wrong_use_is_told_and_exits_with_2() {
    for (arguments, part) in [
        (&["--profile", "cx9"][..], "there are: cx3 (course)"),
        (&["rate", "--batch", "99"], "needs a depth of as many"),
        (&["latency", "--op", "read", "--inline"], "cannot be inline"),
        (&["ceiling", "--offered", "3X"], "no unit of rate"),
        (&["validate", "--only", "nothing like it"], "no reference point"),
    ] {
        let output = nic(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(part), "{arguments:?}: {told}");
    }
}

#[test]
fn points_are_validated_and_pictures_written() {
    let told = json(&["validate", "--only", "course, generations", "--json"]);
    assert_eq!(told["failed"], 0);
    assert!(told["points"].as_array().unwrap().len() > 15);
    let file = std::env::temp_dir().join(format!("sfab-nic-{}.svg", std::process::id()));
    assert!(nic(&["latency", "--plot", file.to_str().unwrap()]).status.success());
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("fetch the WQE"));
}
