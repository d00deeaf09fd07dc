//! The congestion controller of a QP on the live path: it gives the controller picoseconds where the transport has
//! nanoseconds, and tells the requester what holds its next packet back.
//!
//! A QP without control has none of this: a null pointer is all that it costs.

use alloc::boxed::Box;

use crate::congestion::int::Records;
use crate::congestion::{Control, Controller, Event, Moment, Profile, Route, Telemetry};
use crate::requester::segment::PACKET_COST;
use crate::time::Time;
use scalefabric_wire::Psn;

/// Picoseconds of a controller's life after which it begins anew: half of what a [`Moment`] can tell, 106 days.
const LIFE_PS: u64 = 1 << 63;

/// Packets that one READ request asks for at most, if a controller is there: what it asks for comes as fast as the peer
/// likes, so the parts are what the window can hold back.
pub(crate) const READ_STRIDE: u32 = 16;

/// ACKs without telemetry after which a controller that needs it is believed to be blind. The first of a connection have none,
/// because the peer must have said that it reads it.
const PATIENCE: u32 = 64;

/// Whether the controller lets a packet go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Now. `ask`: the window is full behind it, or the pace is so slow that every packet should bring news.
    Granted { ask: bool },
    /// When something is acknowledged.
    WindowFull,
    /// Not before; then ask again.
    NotBefore(Time),
}

/// A controller with what it was made from.
#[derive(Debug)]
pub(crate) struct Controlled {
    profile: Profile,
    route: Route,
    fallback: Profile,
    burst_bytes: u64,
    controller: Control,
    /// When the controller's time began.
    epoch: Option<Time>,
    /// What came with the response that is being looked at.
    heard: Option<Records>,
    /// ACKs in a row that brought no telemetry to a controller that needs it.
    silent: u32,
    /// The first packet that left with room for it.
    first_with_room: Option<Psn>,
    /// That one was answered.
    room_was_answered: bool,
}

impl Controlled {
    /// `None` for [`Profile::None`]. `burst_bytes`: see [`crate::congestion::Pace::sent`].
    pub fn new(profile: &Profile, fallback: &Profile, route: &Route, burst_bytes: u64) -> Option<Box<Self>> {
        (*profile != Profile::None).then(|| {
            Box::new(Self {
                profile: *profile,
                fallback: *fallback,
                route: *route,
                burst_bytes,
                controller: profile.controller(route, burst_bytes),
                epoch: None,
                heard: None,
                silent: 0,
                first_with_room: None,
                room_was_answered: false,
            })
        })
    }

    /// As new, for packets of `pmtu` bytes.
    pub fn restart(&mut self, pmtu: u32) {
        self.route.packet_bytes = pmtu + PACKET_COST;
        self.controller = self.profile.controller(&self.route, self.burst_bytes);
        self.epoch = None;
        self.heard = None;
        self.silent = 0;
        self.first_with_room = None;
        self.room_was_answered = false;
    }

    /// The controller.
    pub fn controller(&self) -> &Control {
        &self.controller
    }

    /// What it was made from.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    fn moment(&mut self, now: Time) -> Moment {
        let epoch = *self.epoch.get_or_insert(now);
        let ps = now.since(epoch).saturating_mul(1_000);
        if ps < LIFE_PS {
            return Moment(ps);
        }
        self.controller = self.profile.controller(&self.route, self.burst_bytes);
        self.epoch = Some(now);
        Moment(0)
    }

    /// The time of a moment, not before it.
    fn time(&self, moment: Moment) -> Time {
        self.epoch.unwrap_or_default().after(moment.0.div_ceil(1_000))
    }

    /// Tells the controller.
    pub fn handle(&mut self, now: Time, event: Event<'_>) {
        let moment = self.moment(now);
        self.controller.handle(moment, event);
    }

    /// Whether packets shall have room for telemetry.
    pub fn wants_telemetry(&self) -> bool {
        self.profile.needs_telemetry()
    }

    /// What came with the response that is being looked at.
    pub fn hear(&mut self, records: Option<&Records>) {
        self.heard = records.copied();
    }

    /// A packet leaves with room for telemetry.
    pub fn leaves_with_room(&mut self, psn: Psn) {
        self.first_with_room.get_or_insert(psn);
    }

    /// Whether an answer, if it brings no telemetry, is a sign that none will come: it could have brought some, and everything before `acked` is
    /// answered. `peer_reads`: the peer has said that it reads trailers; what left before it did so had no room.
    pub fn is_silent(&mut self, acked: Psn, peer_reads: bool, has_room: bool) -> bool {
        self.room_was_answered |= self.first_with_room.is_some_and(|first| first.is_before(acked));
        has_room && (!peer_reads || self.room_was_answered)
    }

    /// Tells the controller of an ACK, with what came with it. One that needs telemetry and hears none for long is replaced: then true comes back.
    /// `counts`: see [`Self::is_silent`].
    pub fn acknowledged(
        &mut self,
        now: Time,
        flight_bytes: u32,
        rtt_ps: Option<u64>,
        ecn_echo: bool,
        counts: bool,
    ) -> bool {
        let heard = self.heard.take();
        let hops = heard.as_ref().map_or(&[][..], Records::hops);
        let telemetry = if hops.is_empty() { Telemetry::None } else { Telemetry::Hops(hops) };
        let mut replaced = false;
        if self.profile.needs_telemetry() {
            self.silent = if hops.is_empty() { self.silent + u32::from(counts) } else { 0 };
            if self.silent >= PATIENCE {
                replaced = true;
                self.profile = self.fallback;
                self.controller = self.profile.controller(&self.route, self.burst_bytes);
                self.epoch = None;
                self.silent = 0;
            }
        }
        self.handle(now, Event::Ack { flight_bytes, rtt_ps, ecn_echo, telemetry });
        replaced
    }

    /// Whether a packet that adds `bytes` to the flight may leave. `ack_interval`: packets of which one asks for an ACK.
    pub fn permission(&mut self, now: Time, inflight: u32, bytes: u32, ack_interval: u32) -> Permission {
        if let Permission::NotBefore(at) = self.pace(now) {
            return Permission::NotBefore(at);
        }
        let window = self.controller.window_bytes();
        if inflight > 0 && u64::from(inflight) >= window {
            return Permission::WindowFull;
        }
        let after = u64::from(inflight) + u64::from(bytes);
        // An interval of packets that takes longer than a few round trips would leave the controller without news.
        let bits = u128::from(bytes) * u128::from(ack_interval) * 8_000_000_000_000;
        let patience = u128::from(self.controller.rate_bps()) * u128::from(self.route.base_rtt_ps) * 4;
        Permission::Granted { ask: after >= window || bits > patience }
    }

    /// Whether the pace lets the next packet go.
    pub fn pace(&mut self, now: Time) -> Permission {
        let moment = self.moment(now);
        if self.controller.next_timer().is_some_and(|at| at <= moment) {
            self.controller.handle(moment, Event::Timer);
        }
        let next = self.controller.next_send();
        if next <= moment {
            return Permission::Granted { ask: false };
        }
        // Until then the rate may rise by itself.
        let look = self.controller.next_timer().map_or(next, |timer| timer.min(next));
        Permission::NotBefore(self.time(look))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route { line_rate_bps: 1_000_000_000, base_rtt_ps: 100_000_000, packet_bytes: 1152, hops: 1 };

    fn controlled(name: &str, burst_bytes: u64) -> Box<Controlled> {
        let profile = Profile::named(name, ROUTE.line_rate_bps).unwrap();
        let fallback = Profile::named("dcqcn", ROUTE.line_rate_bps).unwrap();
        Controlled::new(&profile, &fallback, &ROUTE, burst_bytes).unwrap()
    }

    #[test]
    fn no_profile_is_no_controller() {
        assert!(Controlled::new(&Profile::None, &Profile::None, &ROUTE, 0).is_none());
    }

    #[test]
    fn the_pace_is_that_of_the_rate_in_nanoseconds() {
        let mut control = controlled("dcqcn", 0);
        let start = Time(77_000_000_000);
        assert_eq!(control.permission(start, 0, 1152, 16), Permission::Granted { ask: false });
        control.handle(start, Event::Sent { flight_bytes: 1152, wire_bytes: 1152 });
        // 9216 bits at 1 Gb/s.
        assert_eq!(control.permission(start, 1152, 1152, 16), Permission::NotBefore(start.after(9216)));
        assert_eq!(control.permission(start.after(9216), 1152, 1152, 16), Permission::Granted { ask: false });
    }

    #[test]
    fn a_full_window_waits_for_an_ack_and_the_packet_that_fills_it_asks_for_one() {
        let mut control = controlled("hpcc", 1 << 20);
        let window = control.controller().window_bytes() as u32;
        assert_eq!(window, 12_500, "100 us at 1 Gb/s");
        let now = Time(5);
        assert_eq!(control.permission(now, 0, 1152, 4), Permission::Granted { ask: false });
        assert_eq!(control.permission(now, window - 1152, 1152, 4), Permission::Granted { ask: true });
        assert_eq!(control.permission(now, window, 1152, 4), Permission::WindowFull);
    }

    #[test]
    fn a_controller_that_lived_too_long_begins_anew() {
        let mut control = controlled("dcqcn", 0);
        control.handle(Time(1), Event::Cnp);
        // A hundred microseconds later, the firmware's four stretched to 1 Gb/s, it is slower.
        control.handle(Time(200_000), Event::Sent { flight_bytes: 1, wire_bytes: 1 });
        assert!(control.controller().rate_bps() < ROUTE.line_rate_bps);
        let late = Time(1 + (1 << 63) / 1000 + 1);
        assert_eq!(control.permission(late, 0, 1152, 16), Permission::Granted { ask: false });
        assert_eq!(control.controller().rate_bps(), ROUTE.line_rate_bps);
        control.handle(late, Event::Sent { flight_bytes: 1152, wire_bytes: 1152 });
        assert_eq!(control.permission(late, 0, 1152, 16), Permission::NotBefore(late.after(9216)));
    }
}
