//! Controllers against their rules, step by step; against what the reference simulators gave, on a star of hosts
//! ([`star`]); and against every order of events.

mod any_order;
mod dcqcn;
mod hpcc;
mod parameters;
mod reference;
mod star;
mod swift;
mod timely;

use super::{Control, Controller, Event, Moment, Profile, Route, Telemetry};

/// 100 Gb/s in one switch, links of 1 µs, packets of 1000 bytes: the star of the reference runs.
pub(super) const STAR: Route =
    Route { line_rate_bps: 100_000_000_000, base_rtt_ps: 4_160_000, packet_bytes: 1000, hops: 1 };

pub(super) const US: u64 = 1_000_000;
pub(super) const G: u64 = 1_000_000_000;

pub(super) fn at(us: u64) -> Moment {
    Moment(us * US)
}

pub(super) fn ack(flight_bytes: u32, rtt_us: u64) -> Event<'static> {
    Event::Ack { flight_bytes, rtt_ps: Some(rtt_us * US), ecn_echo: false, telemetry: Telemetry::None }
}

pub(super) fn sent(bytes: u32) -> Event<'static> {
    Event::Sent { flight_bytes: bytes, wire_bytes: bytes + 48 }
}

/// Wakes a controller whenever it wants to be woken, until `end`.
pub(super) fn run_timers(controller: &mut impl Controller, end: Moment) {
    while let Some(at) = controller.next_timer().filter(|at| *at <= end) {
        controller.handle(at, Event::Timer);
    }
}

pub(super) fn named(name: &str, route: &Route) -> Control {
    let profile = Profile::named(name, route.line_rate_bps).unwrap();
    profile.check(route).unwrap();
    profile.controller(route, 0)
}

#[test]
fn no_control_holds_nothing_back() {
    let mut none = named("none", &STAR);
    none.handle(at(1), sent(1000));
    none.handle(at(2), Event::Cnp);
    assert_eq!(
        (none.rate_bps(), none.window_bytes(), none.next_send(), none.next_timer()),
        (100 * G, u64::MAX, Moment(0), None)
    );
}

#[test]
fn the_bandwidth_delay_product_is_that_of_the_reference_star() {
    assert_eq!(STAR.bdp_bytes(), 52_000);
    assert_eq!(Route { base_rtt_ps: 0, ..STAR }.bdp_bytes(), 1000, "one packet at least");
}
