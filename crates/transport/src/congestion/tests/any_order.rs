//! No order of events leads a controller out of its bounds: the rate stays between 1 bit/s and the line's, the window above 0,
//! and what is to be waited for comes.

use alloc::vec::Vec;

use proptest::prelude::*;

use crate::congestion::{Controller, Event, Hop, Loss, Moment, PROFILES, Profile, Route, Telemetry};

#[derive(Clone, Debug)]
enum Step {
    Sent(u32),
    Ack { bytes: u32, rtt_ps: Option<u64>, hops: Vec<Hop> },
    Pint(u8),
    Cnp,
    Nak,
    Timeout,
    Withdrawn,
    Timer,
}

fn hop() -> impl Strategy<Value = Hop> {
    // What hostile or broken switches write, too: clocks that go back, no rate, any queue.
    (0..3u32, prop_oneof![Just(0u64), Just(100_000_000_000), any::<u64>()], any::<u64>(), any::<u64>(), any::<u64>())
        .prop_map(|(node, rate_bps, at_ps, tx_bytes, queue_bytes)| Hop { node, rate_bps, at_ps, tx_bytes, queue_bytes })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..70_000u32).prop_map(Step::Sent),
        4 => (0..70_000u32, prop::option::of(prop_oneof![0..10_000_000_000u64, any::<u64>()]), prop::collection::vec(hop(), 0..10))
            .prop_map(|(bytes, rtt_ps, hops)| Step::Ack { bytes, rtt_ps, hops }),
        1 => any::<u8>().prop_map(Step::Pint),
        2 => Just(Step::Cnp),
        1 => Just(Step::Nak),
        1 => Just(Step::Timeout),
        1 => Just(Step::Withdrawn),
        1 => Just(Step::Timer),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_leads_out_of_bounds(
        profile in 0..PROFILES.len(),
        line in prop_oneof![Just(1_000_000_000u64), Just(25_000_000_000), Just(100_000_000_000), Just(800_000_000_000)],
        window in any::<bool>(),
        steps in prop::collection::vec((step(), prop_oneof![0..100_000u64, 0..1_000_000_000u64, 0..100_000_000_000_000u64]), 1..200),
    ) {
        let route = Route { line_rate_bps: line, base_rtt_ps: 12_240_000, packet_bytes: 1000, hops: 5 };
        let mut profile = Profile::named(PROFILES[profile].name, line).unwrap();
        let _ = profile.set("window", f64::from(u8::from(window)));
        profile.check(&route).unwrap();
        let mut c = profile.controller(&route, 0);
        let mut now = Moment(0);
        for (step, pause) in steps {
            now = now.after(pause);
            match &step {
                // Who asks before it sends.
                Step::Sent(bytes) => {
                    now = now.max(c.next_send());
                    c.handle(now, Event::Sent { flight_bytes: *bytes, wire_bytes: bytes + 48 });
                }
                Step::Ack { bytes, rtt_ps, hops } => c.handle(now, Event::Ack {
                    flight_bytes: *bytes, rtt_ps: *rtt_ps, ecn_echo: false, telemetry: Telemetry::Hops(hops),
                }),
                Step::Pint(code) => c.handle(now, Event::Ack {
                    flight_bytes: 1000, rtt_ps: None, ecn_echo: true, telemetry: Telemetry::Pint(*code),
                }),
                Step::Cnp => c.handle(now, Event::Cnp),
                Step::Nak => c.handle(now, Event::Lost(Loss::Nak)),
                Step::Timeout => c.handle(now, Event::Lost(Loss::Timeout)),
                Step::Withdrawn => c.handle(now, Event::Withdrawn),
                Step::Timer => c.handle(now, Event::Timer),
            }
            prop_assert!((1..=line).contains(&c.rate_bps()), "{step:?}: rate {}", c.rate_bps());
            prop_assert!(c.window_bytes() > 0, "{step:?}: window 0");
            // What waits comes: a full packet at 1000 bit/s takes 0.6 s, the longest of these 9 minutes.
            let wait = c.next_send().since(now);
            prop_assert!(wait <= 70_048 * 8 * 1_000_000_000_000 / 1_000, "{step:?}: waits {wait} ps");
            // What is due was done.
            prop_assert!(c.next_timer().is_none_or(|at| at > now), "{step:?}: {:?} at {now:?}", c.next_timer());
        }
        // The loss of everything is not for ever: after calm the rate rises again.
        if !matches!(profile, Profile::None | Profile::Hpcc(_)) {
            // Nothing of before is under way.
            c.handle(now, Event::Withdrawn);
            let mut low = c.rate_bps();
            for turn in 0..200 {
                now = now.after(1_000_000_000);
                c.handle(now, Event::Sent { flight_bytes: 1000, wire_bytes: 1048 });
                c.handle(now, Event::Ack { flight_bytes: 1000, rtt_ps: Some(13_000_000), ecn_echo: false, telemetry: Telemetry::None });
                // Swift's rate is its window over the newest RTT: what RTT was before says nothing.
                low = if turn == 0 { c.rate_bps() } else { low };
            }
            prop_assert!(c.rate_bps() > low || low >= line / 2, "{} stays at {low}", profile.algorithm());
        }
    }
}
