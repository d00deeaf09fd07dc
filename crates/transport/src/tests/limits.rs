//! What holds packets back: window, PSN space, pace (D5); and when an ACK is asked for.

use scalefabric_verbs::QpType;
use scalefabric_verbs::WcStatus::*;

use super::{Dialogue, WRITE};
use crate::counter::Counter;
use crate::queue_pair::{Config, Next};
use crate::testing::Packet;

fn asks(packets: &[Packet]) -> alloc::vec::Vec<bool> {
    packets.iter().map(|p| p.headers.bth.ack_req).collect()
}

#[test]
fn no_more_than_the_window_is_on_its_way_and_the_packet_that_fills_it_asks() {
    let config = Config { max_inflight_bytes: 4 * (1024 + 128), ..Config::default() };
    let mut d = Dialogue::new(QpType::Rc, config, |_| ());
    d.post(1, WRITE, 100 * 1024);
    assert_eq!(asks(&d.sends()), [false, false, false, true]);
    assert_eq!(d.next(), Next::Idle);
    d.ack(1);
    assert_eq!(asks(&d.sends()), [false, true]);
}

#[test]
fn a_window_smaller_than_a_packet_still_lets_one_through() {
    let config = Config { max_inflight_bytes: 1, ..Config::default() };
    let mut d = Dialogue::new(QpType::Rc, config, |_| ());
    d.post(1, WRITE, 2048);
    assert_eq!(asks(&d.sends()), [true]);
    d.ack(0);
    assert_eq!(asks(&d.sends()), [true]);
    d.ack(1);
    assert_eq!(d.completions(), [(1, Success)]);
}

#[test]
fn every_nth_packet_and_each_end_of_message_asks_for_an_ack() {
    let config = Config { ack_req_interval: 3, ..Config::default() };
    let mut d = Dialogue::new(QpType::Rc, config, |_| ());
    d.post(1, WRITE, 5 * 1024);
    d.post(2, WRITE, 8);
    assert_eq!(asks(&d.sends()), [false, false, true, false, true, true]);
}

#[test]
fn the_budget_is_kept_and_more_is_announced() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 3 * 1024);
    assert_eq!(d.next(), Next::Ready);
    assert_eq!(d.side.transmit(2), Next::Ready);
    assert_eq!(d.side.host.wire.len(), 2);
    assert_eq!(d.side.transmit(2), Next::Idle);
    assert_eq!(d.side.host.wire.len(), 3);
}

#[test]
fn a_rate_spreads_packets_in_time() {
    // IBV_RATE_2_5_GBPS.
    let mut d = Dialogue::rc(|attr| attr.ah_attr.static_rate = 2);
    d.side.host.now = crate::Time(1_000_000_000);
    d.post(1, WRITE, 900_000);
    d.side.transmit(2000);
    let burst = d.side.host.wire.len();
    assert!((56..60).contains(&burst), "64 KiB leave at once, not {burst} packets");
    let Next::At(at) = d.next() else { panic!("it waits for its time") };
    d.side.host.now = at;
    d.side.transmit(2000);
    assert_eq!(d.side.host.wire.len(), burst + 1);
    // A packet of 1152 bytes takes 3.7 us at 2.5 Gb/s.
    d.side.host.now = at.after(3686 * 100);
    d.side.transmit(2000);
    let more = d.side.host.wire.len() - burst - 1;
    assert!((56..60).contains(&more), "the burst again after a pause, not {more}");
}

#[test]
fn at_a_pace_slower_than_the_ack_timer_every_packet_asks() {
    // 16 packets of 1152 bytes at 1 Mb/s take 147 ms; timeout code 14 is 67 ms.
    let mut d = Dialogue::rc(|_| ());
    d.side.qp.ctx.attr.rate_limit = 1000;
    d.side.host.now = crate::Time(1_000_000_000);
    d.post(1, WRITE, 4096);
    d.side.transmit(100);
    assert_eq!(asks(&d.side.host.wire.drain(..).collect::<alloc::vec::Vec<_>>()), [true; 4]);
    // At 10 Mb/s they take 15 ms, and the interval is kept.
    let mut d = Dialogue::rc(|_| ());
    d.side.qp.ctx.attr.rate_limit = 10_000;
    d.side.host.now = crate::Time(1_000_000_000);
    d.post(1, WRITE, 4096);
    d.side.transmit(100);
    assert_eq!(asks(&d.side.host.wire.drain(..).collect::<alloc::vec::Vec<_>>()), [false, false, false, true]);
}

#[test]
fn a_queue_pair_is_small() {
    let size = core::mem::size_of::<crate::QueuePair>();
    assert!(size <= 2048, "an idle QP has {size} bytes");
}

#[test]
fn nothing_is_sent_twice_without_a_reason() {
    let mut d = Dialogue::rc(|_| ());
    for wr_id in 0..100 {
        d.post(wr_id, WRITE, 3000);
    }
    let sent = d.sends().len() as u32;
    d.ack(sent - 1);
    assert_eq!(d.side.host.counter(Counter::RetransmittedPackets), 0);
}

#[test]
fn the_largest_read_at_the_smallest_mtu_fits_into_the_psn_space() {
    let config = Config { max_inflight_bytes: u32::MAX, ..Config::default() };
    let mut d = Dialogue::new(QpType::Rc, config, |attr| attr.path_mtu = scalefabric_verbs::Mtu::Mtu256);
    let op = super::READ;
    for wr_id in 1..=2 {
        let wqe =
            crate::SendWqe { index: 0, wr_id, op, flags: super::SIGNALED, length: 1 << 31, ud: None, xrc_srqn: None };
        d.side.host.post_wqe(wqe, &[]);
    }
    let sent = d.sends();
    assert_eq!(sent.len(), 1, "two halves would be half of all PSNs: the other side of the circle");
    assert_eq!(sent[0].headers.reth.unwrap().dma_len, 1 << 30);
}
