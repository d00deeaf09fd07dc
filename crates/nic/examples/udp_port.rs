//! What a UDP port carries without any protocol above it: the ceiling for everything else. Loopback, two threads.
//!
//! `cargo run --release -p scalefabric-nic --example udp_port`

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use scalefabric_nic::port::udp::{LocalAddress, ReceiveOptions, UdpOptions, UdpPort};
use scalefabric_nic::port::{Port, Sent, Train};

fn port(last: u8) -> (UdpPort, IpAddr) {
    let ip: IpAddr = Ipv4Addr::new(127, 76, 0, last).into();
    let local = LocalAddress { ip, ifindex: 1 };
    let port = UdpPort::alone(&[local], ReceiveOptions::default(), UdpOptions::default());
    (port.expect("a loopback address of this example"), ip)
}

fn train<'a>(port: &UdpPort, src: IpAddr, dst: IpAddr, segment: usize, bytes: &'a [u8]) -> Train<'a> {
    let src_port = port.source_port(src, 1);
    Train { src, src_port, dst, traffic_class: 0, hop_limit: 64, flow_label: 0, segment, bytes }
}

/// Gigabits of payload and millions of datagrams a second, with at most 2 MiB under way.
fn bandwidth(segment: usize, count: usize) {
    let ((mut a, src), (mut b, dst)) = (port(1), port(2));
    let bytes = vec![0x5a; segment * count];
    let train = train(&a, src, dst, segment, &bytes);
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let got = b.receive(256, &mut |d| {
                    std::hint::black_box(d.bytes);
                });
                if got > 0 {
                    received.fetch_add(got as u64, Ordering::Release);
                }
            }
        });
        let window = ((2 << 20) / segment).max(count) as u64;
        let (mut sent, start) = (0u64, Instant::now());
        let (mut best, mut mark, mut marked) = (0u64, start, 0);
        while start.elapsed() < Duration::from_secs(2) {
            if sent + count as u64 > received.load(Ordering::Acquire) + window {
                std::hint::spin_loop();
                continue;
            }
            if a.send(&train) == Sent::Done {
                sent += count as u64;
            }
            a.flush();
            if mark.elapsed() >= Duration::from_millis(5) {
                let now = received.load(Ordering::Acquire);
                best = best.max((now - marked) * 1_000_000_000 / mark.elapsed().as_nanos() as u64);
                (mark, marked) = (Instant::now(), now);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let total = received.load(Ordering::Acquire) as f64 / seconds;
        stop.store(true, Ordering::Relaxed);
        let gbps = |rate: f64| rate * segment as f64 * 8.0 / 1e9;
        println!(
            "{segment:5} B x {count:3}: {:6.1} Gb/s ({:5.2} M/s); best 5 ms {:6.1} Gb/s",
            gbps(total),
            total / 1e6,
            gbps(best as f64)
        );
    });
}

/// Processor time of a datagram, sent and received in turn by one thread: the best window of 200 trains, which a busy machine
/// disturbs least.
fn cost(segment: usize, count: usize) {
    let ((mut a, src), (mut b, dst)) = (port(5), port(6));
    let bytes = vec![0x5a; segment * count];
    let train = train(&a, src, dst, segment, &bytes);
    let (mut best_send, mut best_receive) = (f64::MAX, f64::MAX);
    for _ in 0..40 {
        let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..50 {
            let start = Instant::now();
            for _ in 0..4 {
                a.send(&train);
            }
            a.flush();
            sending += start.elapsed();
            let (start, mut got) = (Instant::now(), 0);
            while got < 4 * count && start.elapsed() < Duration::from_secs(1) {
                got += b.receive(256, &mut |d| {
                    std::hint::black_box(d.bytes);
                });
            }
            receiving += start.elapsed();
        }
        let each = |time: Duration| time.as_nanos() as f64 / (200 * count) as f64;
        (best_send, best_receive) = (best_send.min(each(sending)), best_receive.min(each(receiving)));
    }
    let gbps = segment as f64 * 8.0 / (best_send + best_receive);
    println!(
        "{segment:5} B x {count:3}: send {best_send:6.0} ns + receive {best_receive:6.0} ns each; one core {gbps:5.1} Gb/s"
    );
}

/// Round trips of a small datagram, both sides polling.
fn latency(segment: usize) {
    let ((mut a, src), (mut b, dst)) = (port(3), port(4));
    let bytes = vec![1; segment];
    let (there, back) = (train(&a, src, dst, segment, &bytes), train(&b, dst, src, segment, &bytes));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if b.receive(8, &mut |_| {}) > 0 {
                    b.send(&back);
                    b.flush();
                }
            }
        });
        let mut times = Vec::with_capacity(20_000);
        for _ in 0..20_000 {
            let start = Instant::now();
            a.send(&there);
            a.flush();
            while a.receive(8, &mut |_| {}) == 0 {
                if start.elapsed() > Duration::from_secs(1) {
                    break;
                }
            }
            times.push(start.elapsed().as_nanos());
        }
        stop.store(true, Ordering::Relaxed);
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100] as f64 / 1e3;
        println!("{segment:5} B round trip: best 2 % {:.2} µs, median {:.2} µs, 99 % {:.2} µs", at(2), at(50), at(99));
    });
}

fn main() {
    for (segment, count) in [(4112, 15), (4112, 1), (1040, 62), (1040, 1), (40, 64), (40, 1)] {
        cost(segment, count);
    }
    bandwidth(4112, 15);
    bandwidth(1040, 62);
    bandwidth(40, 64);
    bandwidth(4112, 1);
    latency(40);
    latency(4112);
}
