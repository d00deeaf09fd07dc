//! The names that the libraries define: all public functions of libibverbs under their nodes, hooks of libc without one, and
//! nothing else.

use super::sfab;
use scalefabric_tests::products::libraries;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const SYMBOLS: &str = include_str!("../../../ibv/abi/symbols.txt");
const PRIVATE: &str = include_str!("../../../preload/abi/private.txt");
const HOOKS: &str = include_str!("../../../preload/abi/hooks.txt");

/// Names that a library defines, with their node, or `""`; `@` marks one that is not the default.
fn defined(path: &Path) -> BTreeSet<(String, String)> {
    let output = Command::new("nm").args(["--dynamic", "--defined-only", "-P"]).arg(path).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, kind) = (words.next()?, words.next()?);
        // Nodes are absolute symbols.
        (kind != "A").then(|| match name.split_once('@') {
            Some((name, node)) => (name.to_owned(), node.trim_start_matches('@').to_owned()),
            None => (name.to_owned(), String::new()),
        })
    });
    rows.collect()
}

fn words(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|l| l.split_whitespace().collect())
}

/// Public functions and their node.
fn public() -> BTreeMap<&'static str, &'static str> {
    words(SYMBOLS).map(|row| (row[0], row[1])).collect()
}

#[test]
fn the_engine_defines_the_public_functions_the_hooks_and_nothing_else() {
    if sfab().is_none() {
        return;
    }
    let defined = defined(&libraries().unwrap().join("libscalefabric-preload.so"));
    let mut wanted: BTreeSet<(String, String)> =
        public().into_iter().map(|(name, node)| (name.to_owned(), node.to_owned())).collect();
    // It stands in whatever private node the distribution has: without one it satisfies all.
    wanted.insert(("ibv_query_gid_type".to_owned(), String::new()));
    wanted.extend(words(HOOKS).map(|row| (row[0].to_owned(), String::new())));
    // By these the other products call it.
    let own = |(name, _): &&(String, String)| !name.starts_with("scalefabric_") && !name.starts_with("sfab_");
    let missing: Vec<_> = wanted.difference(&defined).collect();
    let extra: Vec<_> = defined.difference(&wanted).filter(own).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}\ntoo many: {extra:?}");
}

#[test]
fn the_drop_in_defines_the_public_functions_and_the_private_ones_of_all_releases() {
    if sfab().is_none() {
        return;
    }
    let defined = defined(&libraries().unwrap().join("dropin/libibverbs.so.1"));
    let mut wanted: BTreeSet<(String, String)> =
        public().into_iter().map(|(name, node)| (name.to_owned(), node.to_owned())).collect();
    wanted.insert(("scalefabric_dropin".to_owned(), "IBVERBS_1.0".to_owned()));
    let (nodes, names): (Vec<_>, Vec<_>) = words(PRIVATE).partition(|row| row[0] == "nodes");
    for number in &nodes[0][1..] {
        let node = format!("IBVERBS_PRIVATE_{number}");
        wanted.extend(names.iter().map(|row| (row[0].to_owned(), node.clone())));
        wanted.insert((format!("verbs_register_driver_{number}"), node));
    }
    let missing: Vec<_> = wanted.difference(&defined).collect();
    let extra: Vec<_> = defined.difference(&wanted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}\ntoo many: {extra:?}");
}

/// A public function that we lack would run in the real library with a context of ours. One that providers call is missed
/// when the drop-in stands below them.
#[test]
fn the_installed_libibverbs_has_no_function_that_we_lack() {
    if sfab().is_none() {
        return;
    }
    let machine = format!("/usr/lib/{}-linux-gnu/libibverbs.so.1", std::env::consts::ARCH);
    let Some(path) = [machine.as_str(), "/usr/lib64/libibverbs.so.1"].into_iter().map(Path::new).find(|p| p.exists())
    else {
        println!("skipped: no libibverbs is installed; install the package libibverbs1");
        return;
    };
    let ours = defined(&libraries().unwrap().join("dropin/libibverbs.so.1"));
    let public = public();
    let lacking: Vec<_> = defined(path)
        .into_iter()
        // Functions that IBVERBS_1.0 and 1.1 both have.
        .filter(|(name, node)| {
            let is_old = node == "IBVERBS_1.0" && public.get(name.as_str()) == Some(&"IBVERBS_1.1");
            !is_old && !ours.contains(&(name.clone(), node.clone()))
        })
        .collect();
    assert!(lacking.is_empty(), "{}: {lacking:?}", path.display());
}

#[test]
fn the_engine_needs_no_libibverbs_and_the_drop_in_needs_the_engine() {
    if sfab().is_none() {
        return;
    }
    let needed = |path: &str| {
        let output = Command::new("readelf").arg("-d").arg(libraries().unwrap().join(path)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let engine = needed("libscalefabric-preload.so");
    assert!(engine.contains("[libscalefabric-preload.so]") && !engine.contains("libibverbs"), "{engine}");
    let thin = needed("dropin/libibverbs.so.1");
    assert!(thin.contains("NEEDED") && thin.contains("[libscalefabric-preload.so]"), "{thin}");
    assert!(thin.contains("soname: [libibverbs.so.1]") && thin.contains("$ORIGIN/.."), "{thin}");
}
