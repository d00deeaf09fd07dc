//! The contract's own tests on this machine's backends: the software NIC by its Rust API, and the same NIC through its C door
//! and crate `ibv`. On a Linux kernel's rxe they run in the rig (`cargo xtask interop`).

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;

use scalefabric_nic::options::{DeviceOptions, Options as NicOptions, PortOptions, RequestPath};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::contract::{self, DEVIATIONS, Options};
use scalefabric_tests::products;
use scalefabric_transport::Counter;
use scalefabric_verbs::Provider as _;

/// A loopback address of this process: tests of several checkouts may run side by side.
fn own_loopback(last: u8) -> IpAddr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 128 + (pid >> 8 & 0x3f) as u8, pid as u8, last).into()
}

#[test]
fn every_case_has_a_name_of_its_own_and_deviations_name_cases() {
    let mut names: Vec<&str> = contract::all().map(|case| case.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for (driver, case, why) in DEVIATIONS {
        assert!(names.contains(case), "{driver}: there is no case {case}");
        assert!(scalefabric_ibv::vendor::of_driver(driver).is_some() && !why.is_empty(), "{driver}");
    }
}

#[test]
fn the_software_backend_keeps_the_contract_on_the_same_host() {
    let executed = software_backend("sfcontract", 77, RequestPath::Auto);
    assert!(executed > 8, "only {executed} requests went without packets: it is the other path that was tested");
}

#[test]
fn the_software_backend_keeps_the_contract_by_packets() {
    assert_eq!(software_backend("sfcontractw", 79, RequestPath::Wire), 0);
}

/// Plays the suite; gives the requests that were executed without packets.
fn software_backend(name: &str, last: u8, path: RequestPath) -> u64 {
    let port = PortOptions { interface: "lo".into(), addresses: vec![own_loopback(last)] };
    let device = DeviceOptions { name: name.into(), ports: vec![port], ..DeviceOptions::default() };
    let options = NicOptions { devices: vec![device], path, ..NicOptions::default() };
    let suite = Options { device: Some(name.into()), port_num: 1, ..Options::default() };
    let provider = Arc::new(SoftwareProvider::new(options));
    // Counters live as long as somebody has the device open.
    let context = provider.open(name).expect("the device opens");
    let totals = contract::run(provider, &suite, "").expect("the device opens");
    assert_eq!(totals.failed, 0);
    // Our own NIC has everything that the suite asks for; only, the loopback's MTU is the largest, and none is above it.
    assert_eq!((totals.skipped, totals.known), (1, 0));
    let counters = context.hw_counters(1).expect("counters");
    counters.iter().find(|(label, _)| label == Counter::DirectRequests.label()).expect("it is counted").1
}

#[test]
fn the_c_door_keeps_the_contract_through_libibverbs_functions() {
    c_door("sfdoor", 78, "auto");
}

#[test]
fn the_c_door_keeps_the_contract_by_packets() {
    c_door("sfdoorw", 80, "wire");
}

fn c_door(name: &str, last: u8, path: &str) {
    let sfab = match products::sfab() {
        Ok(sfab) => sfab,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let config = std::env::temp_dir().join(format!("scalefabric-contract-{}-{path}.toml", std::process::id()));
    let address = own_loopback(last);
    let text =
        format!("[[device]]\nname = \"{name}\"\n[[device.port]]\ninterface = \"lo\"\naddresses = [\"{address}\"]\n");
    std::fs::write(&config, text).expect("a configuration");
    let output = Command::new(sfab)
        .args(["run", "--path", path, "--config"])
        .arg(&config)
        .args(["--device", name, "--", env!("CARGO_BIN_EXE_contract"), "--backend", "ibv", "--device", name])
        .args(["--at-least", "70"])
        .output()
        .expect("sfab runs");
    let _ = std::fs::remove_file(&config);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains(&format!("{name}, driver scalefabric")), "it is our NIC that was tested: {out}");
}
