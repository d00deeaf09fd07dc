//! Connections that take their receives from one SRQ: with credits nobody meets an empty queue; without, RNR NAKs hold senders back and nothing is lost; a QP that fails
//! takes no receive with it.

use crate::{Device, PATIENCE, connect};
use scalefabric_fabric::endpoint::{Config, Connection, Injected, Operation};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RECEIVES: u32 = 128;

fn shared(receives: u32) -> Config {
    Config { depth: 64, receives, receive_bytes: 64, share_receives: true, ..Config::default() }
}

/// Numbers from a connection, in order, once.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Sends `count` numbers, never more than `credits` that the peer has not given back; each message of the peer gives back what it says.
fn send_with_credits(connection: &Connection, count: u64, mut credits: u64) {
    for next in 0..count {
        while credits == 0 {
            let grant = connection.receive(Some(PATIENCE)).unwrap().expect("credits");
            credits += number(&grant.to_vec().unwrap());
        }
        credits -= 1;
        connection.post(&[Operation::send(&next.to_le_bytes()).quiet()]).unwrap();
    }
    assert!(connection.flush(Some(PATIENCE)).unwrap());
}

#[test]
fn many_connections_with_credits_share_one_srq_and_never_meet_it_empty() {
    let device = Device::new(1);
    let server = device.fabric("server", &shared(RECEIVES));
    let client = device.fabric("client", &shared(RECEIVES));
    let listener = server.listen("service").unwrap();
    let pairs: Vec<_> = (0..24).map(|_| connect(&client, &server, &listener)).collect();
    let srqs = device.srqs();
    assert_eq!(srqs.len(), 2, "one for each side, whatever the number of connections");
    assert!(srqs.iter().all(|srq| srq.max_wr >= RECEIVES && srq.qpns.len() == 24), "{srqs:?}");
    let credits = u64::from(RECEIVES) / 24;
    let received = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (ours, theirs) in &pairs {
            let received = &received;
            scope.spawn(move || send_with_credits(ours, 300, credits));
            scope.spawn(move || {
                for next in 0..300 {
                    let message = theirs.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                    assert_eq!(number(&message.to_vec().unwrap()), next);
                    // The receive is free again before its credit is.
                    drop(message);
                    received.fetch_add(1, Ordering::Relaxed);
                    theirs.post(&[Operation::send(&1u64.to_le_bytes()).quiet()]).unwrap();
                }
            });
        }
    });
    assert_eq!(received.into_inner(), 24 * 300);
    // The clients' side holds credits that nobody took: they are as many as a connection may have.
    assert_eq!(device.counter(&server, "send_rnr_err"), 0);
}

#[test]
fn without_credits_rnr_naks_hold_senders_back_one_try_a_timer_each_and_nothing_is_lost() {
    let device = Device::new(2);
    // 655.36 µs: clause 9.7.5.2.8.
    let config = Config { min_rnr_timer: 13, ..shared(8) };
    let timer = Duration::from_nanos(1_920_000 / 3);
    let server = device.fabric("server", &config);
    let client = device.fabric("client", &Config { share_receives: false, ..config });
    let listener = server.listen("service").unwrap();
    let pairs: Vec<_> = (0..8).map(|_| connect(&client, &server, &listener)).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (ours, _) in &pairs {
            scope.spawn(move || {
                for next in 0..40u64 {
                    ours.post(&[Operation::send(&next.to_le_bytes()).quiet()]).unwrap();
                }
                assert!(ours.flush(Some(PATIENCE)).unwrap());
            });
        }
        // Only when the queue is empty for sure does anybody take messages.
        while device.counter(&server, "send_rnr_err") == 0 {
            assert!(begun.elapsed() < PATIENCE, "no RNR NAK");
            std::thread::sleep(Duration::from_millis(1));
        }
        for (_, theirs) in &pairs {
            scope.spawn(move || {
                for next in 0..40 {
                    let message = theirs.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                    assert_eq!(number(&message.to_vec().unwrap()), next);
                }
            });
        }
    });
    let naks = device.counter(&server, "send_rnr_err");
    // A QP that was told to wait tries once a timer, not more: no storm.
    let most = 8 * (begun.elapsed().as_nanos() / timer.as_nanos() + 2);
    println!("{naks} RNR NAKs in {:?}, {most} would be one a timer for each QP", begun.elapsed());
    assert!(naks > 0 && u128::from(naks) <= most, "{naks} of {most}");
    assert_eq!(pairs.iter().map(|(ours, _)| ours.statistics().rebuilds).sum::<u64>(), 0);
}

#[test]
fn qps_that_fail_leave_their_receives_in_the_srq() {
    let device = Device::new(3);
    let mut config = shared(64);
    config.patience.backoff_min_ns = 100_000;
    let server = device.fabric("server", &config);
    let client = device.fabric("client", &config);
    let listener = server.listen("service").unwrap();
    let pairs: Vec<_> = (0..8).map(|_| connect(&client, &server, &listener)).collect();
    let send = |connection: &Connection, number: u64| {
        connection.post(&[Operation::send(&number.to_le_bytes()).quiet()]).unwrap();
    };
    for round in 0..40u64 {
        for (ours, _) in &pairs {
            send(ours, round);
        }
        let failing = if round % 2 == 0 { &pairs[round as usize % 8].0 } else { &pairs[round as usize % 8].1 };
        let before = failing.statistics().rebuilds;
        failing.inject(Injected::QpError).unwrap();
        // The connection's task does it, and on a busy machine it comes late: two on one connection would count once.
        let injected = Instant::now();
        while failing.statistics().rebuilds == before && injected.elapsed() < Duration::from_millis(20) {
            failing.flush(Some(Duration::from_millis(1))).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        for (ours, theirs) in &pairs {
            // Somebody must post and look for an error to be seen.
            if round % 2 == 1 {
                send(theirs, round);
                assert!(theirs.flush(Some(PATIENCE)).unwrap());
            }
            assert!(ours.flush(Some(PATIENCE)).unwrap());
            let message = theirs.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
            assert_eq!(number(&message.to_vec().unwrap()), round);
            if round % 2 == 1 {
                assert!(ours.receive(Some(PATIENCE)).unwrap().is_some());
            }
        }
    }
    for (ours, theirs) in &pairs {
        for side in [ours, theirs] {
            assert!(side.flush(Some(PATIENCE)).unwrap());
        }
    }
    let rebuilds: Vec<u64> = pairs.iter().map(|(ours, _)| ours.statistics().rebuilds).collect();
    assert!(rebuilds.iter().sum::<u64>() >= 20, "{rebuilds:?}");
    // As many messages as there are receives are taken in although nobody looks at them: none is missing.
    for next in 0..64u64 {
        send(&pairs[next as usize % 8].0, next);
    }
    for (ours, _) in &pairs {
        assert!(ours.flush(Some(PATIENCE)).unwrap(), "a receive is lost");
    }
}
