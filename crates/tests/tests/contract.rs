//! The contract's own tests on this machine's backends: the software NIC by its Rust API, and the same NIC through its C door
//! and crate `ibv`. On a Linux kernel's rxe they run in the rig (`cargo xtask interop`).

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;

use scalefabric_nic::options::{DeviceOptions, Options as NicOptions, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::contract::{self, DEVIATIONS, Options};
use scalefabric_tests::products;

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
fn the_software_backend_keeps_the_contract() {
    let port = PortOptions { interface: "lo".into(), addresses: vec![own_loopback(77)] };
    let device = DeviceOptions { name: "sfcontract".into(), ports: vec![port], ..DeviceOptions::default() };
    let options = NicOptions { devices: vec![device], ..NicOptions::default() };
    let suite = Options { device: Some("sfcontract".into()), port_num: 1, ..Options::default() };
    let totals = contract::run(Arc::new(SoftwareProvider::new(options)), &suite, "").expect("the device opens");
    assert_eq!(totals.failed, 0);
    // Our own NIC has everything that the suite asks for; only, the loopback's MTU is the largest, and none is above it.
    assert_eq!((totals.skipped, totals.known), (1, 0));
}

#[test]
fn the_c_door_keeps_the_contract_through_libibverbs_functions() {
    let sfab = match products::sfab() {
        Ok(sfab) => sfab,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let config = std::env::temp_dir().join(format!("scalefabric-contract-{}.toml", std::process::id()));
    let address = own_loopback(78);
    let text =
        format!("[[device]]\nname = \"sfdoor\"\n[[device.port]]\ninterface = \"lo\"\naddresses = [\"{address}\"]\n");
    std::fs::write(&config, text).expect("a configuration");
    let output = Command::new(sfab)
        .args(["run", "--config"])
        .arg(&config)
        .args(["--device", "sfdoor", "--", env!("CARGO_BIN_EXE_contract"), "--backend", "ibv", "--device", "sfdoor"])
        .args(["--at-least", "70"])
        .output()
        .expect("sfab runs");
    let _ = std::fs::remove_file(&config);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("sfdoor, driver scalefabric"), "it is our NIC that was tested: {out}");
}
