//! DCQCN's rules, one by one (`congestion.md` §1.1).

use crate::congestion::dcqcn::{Dcqcn, Parameters};
use crate::congestion::{Controller, Event, Loss, Moment};

use super::{G, STAR, US, at, run_timers, sent};

fn reference() -> Dcqcn {
    Dcqcn::new(Parameters::reference(STAR.line_rate_bps), &STAR, 0)
}

#[test]
fn before_the_first_cnp_it_is_at_line_rate_and_asks_for_no_timer() {
    let mut c = reference();
    c.handle(at(5), sent(1000));
    assert_eq!((c.rate_bps(), c.window_bytes(), c.next_timer()), (100 * G, u64::MAX, None));
}

#[test]
fn the_first_cnp_halves_the_rate_at_the_end_of_its_period_and_keeps_the_target() {
    let mut c = reference();
    c.handle(at(100), Event::Cnp);
    assert_eq!(c.rate_bps(), 100 * G);
    // 4 us and 1 ns: behind the fourth update of alpha.
    assert_eq!(c.next_timer(), Some(Moment(104 * US + 1_000)));
    run_timers(&mut c, at(104).after(1_000));
    let alpha = (255.0f64 / 256.0).powi(4);
    assert!((c.alpha(at(104)) - alpha).abs() < 1e-12, "{}", c.alpha(at(104)));
    assert_eq!(c.rate_bps(), (1e11 * (1.0 - alpha / 2.0)) as u64);
    assert_eq!(c.target_bps(), 100 * G, "the timer has raised nothing yet");
}

#[test]
fn alpha_follows_intervals_with_and_without_cnps() {
    let mut c = reference();
    c.handle(at(0), Event::Cnp);
    // The first CNP sets alpha to 1 and does not count for the first interval.
    c.handle(Moment(1_500_000), Event::Cnp);
    assert!((c.alpha(Moment(1_500_000)) - 255.0 / 256.0).abs() < 1e-12);
    // The second one counts in the interval that ends at 2 us.
    c.handle(Moment(2_500_000), Event::Cnp);
    let after = 255.0 / 256.0 * (255.0 / 256.0) + 1.0 / 256.0;
    assert!((c.alpha(Moment(2_500_000)) - after).abs() < 1e-12);
}

#[test]
fn recovery_goes_half_way_then_the_target_rises_then_it_rises_fast() {
    let mut c = reference();
    c.handle(at(0), Event::Cnp);
    run_timers(&mut c, at(5));
    let cut = c.rate_bps();
    // A second cut before the timer has raised anything leaves the target at the line; with a lower one it can be seen to rise.
    run_timers(&mut c, at(305));
    let first = c.rate_bps();
    assert!(first.abs_diff(cut / 2 + 50 * G) <= 1, "fast recovery: half way");
    c.handle(at(306), Event::Cnp);
    run_timers(&mut c, at(309));
    assert_eq!(c.target_bps(), first, "the timer had raised the rate: the target is the rate before the cut");
    run_timers(&mut c, at(620));
    assert_eq!(c.target_bps(), first, "one period of fast recovery");
    run_timers(&mut c, at(920));
    assert_eq!(c.target_bps(), first + G / 50, "20 Mb/s");
    run_timers(&mut c, at(1220));
    assert_eq!(c.target_bps(), first + G / 50 + G / 5, "200 Mb/s");
}

#[test]
fn it_reaches_the_line_and_then_nothing_is_due() {
    let mut c = reference();
    c.handle(at(0), Event::Cnp);
    run_timers(&mut c, at(1_000_000));
    assert_eq!((c.rate_bps(), c.target_bps(), c.next_timer()), (100 * G, 100 * G, None));
}

#[test]
fn a_late_timer_gives_what_timers_in_time_give() {
    let (mut woken, mut slept) = (reference(), reference());
    for c in [&mut woken, &mut slept] {
        for us in [0, 3, 7, 50, 51, 52, 400] {
            c.handle(at(us), Event::Cnp);
        }
    }
    run_timers(&mut woken, at(5_000));
    woken.handle(at(5_000), Event::Timer);
    slept.handle(at(5_000), Event::Timer);
    assert_eq!(woken, slept);
}

#[test]
fn the_paper_cuts_at_each_cnp_and_alpha_follows() {
    let mut c = Dcqcn::new(Parameters::paper(40 * G), &crate::congestion::Route { line_rate_bps: 40 * G, ..STAR }, 0);
    c.handle(at(0), Event::Cnp);
    assert_eq!((c.rate_bps(), c.target_bps()), (20 * G, 40 * G));
    assert!((c.alpha(at(0)) - 1.0).abs() < 1e-12, "(1 - g) * 1 + g");
    c.handle(at(50), Event::Cnp);
    assert_eq!((c.rate_bps(), c.target_bps()), (10 * G, 20 * G));
    // 55 us without a CNP.
    run_timers(&mut c, at(105));
    assert!((c.alpha(at(105)) - 255.0 / 256.0).abs() < 1e-12);
    assert_eq!(c.rate_bps(), 15 * G, "the timer's first period");
    // Five periods are fast recovery; the sixth raises the target by 40 Mb/s.
    run_timers(&mut c, at(50 + 5 * 55));
    assert_eq!(c.target_bps(), 20 * G);
    run_timers(&mut c, at(50 + 6 * 55));
    assert_eq!(c.target_bps(), 20 * G + G / 25);
}

#[test]
fn the_byte_counter_raises_the_rate_without_time() {
    let mut p = Parameters::connectx(STAR.line_rate_bps);
    p.rpg_byte_reset = 10_480;
    let mut c = Dcqcn::new(p, &STAR, 0);
    c.handle(at(0), Event::Cnp);
    run_timers(&mut c, at(5));
    let (cut, target) = (c.rate_bps(), c.target_bps());
    for _ in 0..9 {
        c.handle(at(6), sent(1000));
    }
    assert_eq!(c.rate_bps(), cut);
    c.handle(at(6), sent(1000));
    assert!(c.rate_bps().abs_diff(cut / 2 + target / 2) <= 1, "10 packets of 1048 bytes");
    // The byte counter alone never leads to hyper increase: the target is at the line anyway, so cut again to see it.
    c.handle(at(7), Event::Cnp);
    run_timers(&mut c, at(12));
    let low = c.target_bps();
    assert!(low < 100 * G, "bytes had raised the rate: the target came down");
    for _ in 0..30 {
        c.handle(at(13), sent(1000));
    }
    assert_eq!(c.target_bps(), low + 2 * 20_000_000, "three periods: one of recovery, two of active increase");
}

#[test]
fn a_cut_leaves_what_min_dec_fac_says_and_the_least_rate() {
    let mut p = Parameters::reference(STAR.line_rate_bps);
    p.rpg_gd = 10;
    p.rpg_min_dec_fac = 60.0;
    let mut c = Dcqcn::new(p, &STAR, 0);
    c.handle(at(0), Event::Cnp);
    run_timers(&mut c, at(5));
    assert_eq!(c.rate_bps(), 60 * G);
    for us in 0..200 {
        c.handle(at(6 + us), Event::Cnp);
    }
    assert_eq!(c.rate_bps(), G, "1 Gb/s at 100 Gb/s");
}

#[test]
fn a_loss_counts_as_a_mark_and_the_window_follows_the_rate_where_there_is_one() {
    let mut p = Parameters::reference(STAR.line_rate_bps);
    p.window = true;
    let mut c = Dcqcn::new(p, &STAR, 0);
    assert_eq!(c.window_bytes(), 52_000);
    c.handle(at(0), Event::Lost(Loss::Nak));
    run_timers(&mut c, at(5));
    assert_eq!(c.window_bytes(), 52_000 * c.rate_bps() / (100 * G));
}

#[test]
fn from_25_gbps_on_increases_scale_with_the_line_and_the_timers_stay() {
    for (rate, ai, hai) in [(25, 5, 50), (100, 20, 200), (400, 80, 800), (800, 160, 1600)] {
        let p = Parameters::connectx(rate * G);
        assert_eq!((p.rpg_ai_rate_bps, p.rpg_hai_rate_bps), (ai * 1_000_000, hai * 1_000_000), "{rate} Gb/s");
        assert_eq!((p.rpg_time_reset_ns, p.rpg_byte_reset, p.rpg_threshold), (300_000, 32_767, 1));
        assert_eq!(
            (p.dce_tcp_rtt_ns, p.rate_reduce_monitor_period_ns, p.min_time_between_cnps_ns),
            (1_000, 4_000, 4_000)
        );
    }
    let p = Parameters::paper(40 * G);
    assert_eq!((p.rpg_threshold, p.rpg_byte_reset, p.rpg_ai_rate_bps), (5, 10_000_000, 40_000_000));
    assert_eq!((p.dce_tcp_rtt_ns, p.rpg_time_reset_ns, p.min_time_between_cnps_ns), (55_000, 55_000, 50_000));
}

#[test]
fn below_25_gbps_times_are_stretched_so_that_as_many_packets_pass_in_them() {
    let times = |p: &Parameters| {
        [p.dce_tcp_rtt_ns, p.rate_reduce_monitor_period_ns, p.rpg_time_reset_ns, p.min_time_between_cnps_ns]
    };
    let whole = Parameters::connectx(25 * G);
    for (rate, factor) in [(5 * G / 2, 10), (G, 25), (G / 5, 125)] {
        let slow = Parameters::connectx(rate);
        assert_eq!(times(&slow), times(&whole).map(|ns| ns * factor));
        assert_eq!(slow.rpg_ai_rate_bps, whole.rpg_ai_rate_bps / factor);
        assert_eq!(slow.rpg_byte_reset, whole.rpg_byte_reset, "bytes are packets already");
    }
    assert_eq!(
        times(&Parameters::reference(G)),
        [1_000, 4_000, 300_000, 0],
        "as the simulator that it is compared with"
    );
    assert_eq!(Parameters::paper(G).min_time_between_cnps_ns, 50_000);
}
