//! `sfab devices`, `gids` and `counters` from outside, on whatever interfaces this machine has: the loopback is always there.

use serde_json::Value;
use std::process::Command;

fn json(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_sfab")).args(arguments).output().expect("sfab starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sfab")).args(arguments).output().expect("sfab starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_loopback_device_is_shown_as_ibv_devinfo_would() {
    let devices = json(&["devices", "--device", "sflo", "--json"]);
    let device = &devices[0];
    assert_eq!(device["hca_id"], "sflo");
    assert_eq!(device["ports"][0]["state"], "PORT_ACTIVE (4)");
    assert_eq!(device["ports"][0]["active_mtu"], "4096 (5)");
    assert_eq!(device["ports"][0]["link_layer"], "Ethernet");
    let shown = text(&["devices", "--device", "sflo"]);
    for field in ["hca_id:\tsflo", "max_qp:", "max_mr_size:", "port:\t1", "GID[  0]:", "PKey[  0]:"] {
        assert!(shown.contains(field), "{field} in {shown}");
    }
}

#[test]
fn the_way_to_this_host_is_told_with_its_reason() {
    let way = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sfab"));
        command.args(["devices", "--device", "sflo", "--json"]).args(arguments).envs(variables.iter().copied());
        let output = command.env_remove("SCALEFABRIC_CONFIG").output().expect("sfab starts");
        let devices: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        devices[0]["same_host"].clone()
    };
    assert_eq!(way(&[], &[])["path"], "direct");
    let reasons = [
        (("SCALEFABRIC_PATH", "wire"), "path is \"wire\""),
        (("SCALEFABRIC_FAULTS", "drop=1%"), "faults"),
        (("SCALEFABRIC_PERSONALITY", "connectx-5"), "personality"),
    ];
    for (variable, reason) in reasons {
        let told = way(&[variable], &[]);
        assert!(told["path"] == "wire" && told["because"].as_str().expect("a reason").contains(reason), "{told}");
    }
    assert_eq!(way(&[], &["--personality", "connectx-6"])["path"], "wire");
    assert!(text(&["devices", "--device", "sflo"]).contains("same_host:"));
}

#[test]
fn the_gid_of_the_loopback_is_its_address() {
    let gids = json(&["gids", "--device", "sflo", "--json"]);
    let entries = gids.as_array().expect("a list");
    assert!(entries.iter().any(|entry| entry["address"] == "127.0.0.1" && entry["interface"] == "lo"), "{gids}");
    assert!(text(&["gids", "--device", "sflo"]).contains("0000:0000:0000:0000:0000:ffff:7f00:0001"));
}

#[test]
fn each_counter_has_a_meaning() {
    let shown = text(&["counters", "--device", "sflo", "--all"]);
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    assert!(lines.len() > 20, "{shown}");
    for line in lines {
        assert!(line.split_whitespace().count() > 3, "`{line}` does not say what it means");
    }
}

#[test]
fn the_list_names_each_device_once() {
    let shown = text(&["devices", "--list"]);
    let mut names: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"sflo"), "{shown}");
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "{shown}");
}
