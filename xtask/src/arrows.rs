//! The arrows between the rooms: which crate may depend on which. The table is the one of ARCHITECTURE.md; `cargo
//! metadata` says what is so. An arrow that is not in the table fails the check, whoever drew it.

use crate::process::{Outcome, cargo, output};
use serde_json::Value;

/// Crate, and what it may depend on, development dependencies included. Names without the `scalefabric-` prefix.
const ALLOWED: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("verbs", &["wire"]),
    ("transport", &["wire", "verbs"]),
    ("nic", &["wire", "verbs", "transport"]),
    ("ibv", &["verbs"]),
    ("fabric", &["verbs"]),
    ("control", &["wire", "verbs", "fabric"]),
    ("preload", &["verbs", "nic", "ibv"]),
    ("preload-audit", &[]),
    ("rdmacm", &["ibv"]),
    ("sim", &["wire", "verbs", "transport", "nic", "fabric"]),
    ("ops", &["verbs", "nic", "ibv", "fabric", "control"]),
    ("k8s", &["ops", "control"]),
    ("cli", &["wire", "verbs", "transport", "nic", "ibv", "fabric", "control", "preload", "sim", "ops", "k8s"]),
    (
        "tests",
        &["wire", "verbs", "transport", "nic", "ibv", "fabric", "control", "preload", "sim", "ops", "k8s", "cli"],
    ),
    ("xtask", &[]),
];

/// Crates from elsewhere that the innermost rooms may use. They are `no_std` rooms: each addition is a decision.
const OUTSIDE: &[(&str, &[&str])] =
    &[("wire", &["bitflags", "crc32fast"]), ("verbs", &["bitflags"]), ("transport", &["bitflags"])];

/// Compares `cargo metadata` with the tables.
pub fn check() -> Outcome {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--quiet"]))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata is not JSON: {e}"))?;
    let wrong = violations(&metadata);
    if wrong.is_empty() { Ok(()) } else { Err(format!("\n      {}", wrong.join("\n      "))) }
}

fn violations(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let full = package["name"].as_str().unwrap_or_default();
        let Some(name) = full.strip_prefix("scalefabric-") else {
            wrong.push(format!("package `{full}`: a package of this workspace is called scalefabric-<crate>"));
            continue;
        };
        let Some((_, allowed)) = ALLOWED.iter().find(|(room, _)| *room == name) else {
            wrong
                .push(format!("crate `{name}` is not in the table: add it to ARCHITECTURE.md and xtask/src/arrows.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            let is_normal = dependency["kind"].is_null();
            if let Some(room) = target.strip_prefix("scalefabric-") {
                if !allowed.contains(&room) {
                    wrong.push(format!("arrow {name} -> {room} is not allowed; {name} may use {allowed:?}"));
                }
            } else if is_normal
                && let Some((_, outside)) = OUTSIDE.iter().find(|(room, _)| *room == name)
                && !outside.contains(&target)
            {
                wrong.push(format!(
                    "{name} may not depend on `{target}`: it is a no_std room that uses only {outside:?}"
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[&str]) -> Value {
        let dependencies: Vec<Value> = dependencies.iter().map(|d| json!({ "name": d, "kind": null })).collect();
        json!({ "packages": [{ "name": name, "dependencies": dependencies }] })
    }

    #[test]
    fn an_arrow_of_the_table_is_allowed() {
        assert!(violations(&package("scalefabric-nic", &["scalefabric-transport", "libc"])).is_empty());
    }

    #[test]
    fn an_arrow_against_the_table_is_refused() {
        assert_eq!(violations(&package("scalefabric-transport", &["scalefabric-nic"])).len(), 1);
        assert_eq!(violations(&package("scalefabric-xtask", &["scalefabric-wire"])).len(), 1);
    }

    #[test]
    fn a_no_std_room_takes_no_new_crate_from_elsewhere() {
        assert_eq!(violations(&package("scalefabric-transport", &["rand"])).len(), 1);
    }

    #[test]
    fn a_crate_that_nobody_drew_is_refused() {
        assert_eq!(violations(&package("scalefabric-helpers", &[])).len(), 1);
    }
}
