//! Names and rates: what needs no device.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use scalefabric_verbs::attribute::{NodeType, PortState};
use scalefabric_verbs::event::EVENTS;
use scalefabric_verbs::work_completion::STATUSES;

type Names = OnceLock<HashMap<i64, CString>>;

/// The name of a number, as C wants it.
fn name(names: &'static Names, number: i64, all: impl Fn() -> Vec<(i64, &'static str)>) -> *const c_char {
    let names = names.get_or_init(|| {
        all().into_iter().filter_map(|(number, text)| Some((number, CString::new(text).ok()?))).collect()
    });
    names.get(&number).map_or(c"unknown".as_ptr(), |text| text.as_ptr())
}

/// `ibv_node_type_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    use NodeType::{Ca, Rnic, Router, Switch, Unspecified, Usnic, UsnicUdp};
    static NAMES: Names = OnceLock::new();
    name(&NAMES, i64::from(node_type), || {
        [Ca, Switch, Router, Rnic, Usnic, UsnicUdp, Unspecified].map(|node| (node as i64, node.as_str())).to_vec()
    })
}

/// `ibv_port_state_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: u32) -> *const c_char {
    static NAMES: Names = OnceLock::new();
    name(&NAMES, i64::from(state), || {
        (0..6).filter_map(|raw| Some((i64::from(raw), PortState::from_raw(raw)?.as_str()))).collect()
    })
}

/// `ibv_event_type_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    static NAMES: Names = OnceLock::new();
    name(&NAMES, i64::from(event), || EVENTS.iter().map(|e| (e.event_type as i64, e.text)).collect())
}

/// `ibv_wc_status_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    static NAMES: Names = OnceLock::new();
    name(&NAMES, i64::from(status), || STATUSES.iter().map(|s| (s.status as i64, s.text)).collect())
}

/// `enum ibv_rate`, multiples of 2.5 Gb/s (none for rates that are not), and Mb/s.
const RATES: &[(c_int, Option<c_int>, c_int)] = &[
    (2, Some(1), 2_500),
    (3, Some(4), 10_000),
    (4, Some(12), 30_000),
    (5, Some(2), 5_000),
    (6, Some(8), 20_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `ibv_rate_to_mult`, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate).and_then(|row| row.1).unwrap_or(-1)
}

/// `mult_to_ibv_rate`, or 0 (`IBV_RATE_MAX`).
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|row| row.1 == Some(mult)).map_or(0, |row| row.0)
}

/// `ibv_rate_to_mbps`, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate`, or 0 (`IBV_RATE_MAX`).
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|row| row.2 == mbps).map_or(0, |row| row.0)
}

/// `ibv_register_driver`, of the time before 2005: a provider of that kind has nothing to do with us.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_register_driver(name: *const c_char, init: *mut std::ffi::c_void) {
    type Register = unsafe extern "C" fn(*const c_char, *mut std::ffi::c_void);
    super::behind::behind!(ibv_register_driver as Register, (name, init), else ());
}
