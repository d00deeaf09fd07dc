//! Many threads on one NIC: pollers that outnumber the processors, and threads that share a queue pair.

use super::pair::{World, take, take_all};
use super::{Limits, Table, count, ratio};
use scalefabric_verbs::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Numbers of threads.
const THREADS: [u32; 5] = [1, 2, 4, 8, 16];

/// Requests under way of a thread.
const UNDER_WAY: usize = 8;

/// Runs as many threads, each of which does `work` until told to stop and counts; gives how many they did in a second.
fn rate(ms: u64, threads: u32, work: impl Fn(u32, &AtomicBool) -> u64 + Sync) -> f64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Barrier::new(threads as usize + 1);
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, done, start, work) = (&stop, &done, &start, &work);
            scope.spawn(move || {
                start.wait();
                done.fetch_add(work(thread, stop), Ordering::Relaxed);
            });
        }
        start.wait();
        let begin = Instant::now();
        std::thread::sleep(Duration::from_millis(ms));
        stop.store(true, Ordering::Relaxed);
        elapsed = begin.elapsed();
    });
    done.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64()
}

/// Keeps some WRITEs under way on a queue pair and its CQ; gives how many completed.
fn stream(queue_pair: &dyn QueuePair, cq: &dyn CompletionQueue, request: &[SendWr<'_>], stop: &AtomicBool) -> u64 {
    let mut room = [WorkCompletion::default(); 16];
    let (mut under_way, mut done) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        while under_way < UNDER_WAY {
            queue_pair.post_send(request).expect("post");
            under_way += 1;
        }
        let taken = take(cq, &mut room);
        under_way -= taken;
        done += taken as u64;
    }
    take_all(cq, under_way);
    done
}

/// Threads that each have a queue pair and a CQ, and poll without pause.
pub fn pollers(limits: &Limits) -> Table {
    let mut table = Table::new(
        "8 B WRITEs of T threads, each with a queue pair and a CQ of its own that it polls without pause",
        &["T", "WRITEs a second", "rate / that of 1"],
    );
    let mut first = None;
    for threads in THREADS {
        let world = World::new();
        let lanes: Vec<_> = (0..threads)
            .map(|_| {
                let cq = world.cq(64);
                (world.connected(1, &cq).remove(0), cq)
            })
            .collect();
        let request = [World::write(&*world.region)];
        let all = rate(limits.ms, threads, |thread, stop| {
            let (queue_pair, cq) = &lanes[thread as usize];
            stream(&**queue_pair, &**cq, &request, stop)
        });
        let first = *first.get_or_insert(all);
        table.row([count(threads), format!("{all:.0}"), ratio(all / first)]);
    }
    table
}

/// Threads that post to one queue pair, and poll its CQ.
pub fn on_one(limits: &Limits) -> Table {
    let mut table = Table::new(
        "8 B WRITEs of T threads that post to one queue pair and poll one CQ",
        &["T", "WRITEs a second", "rate / that of 1"],
    );
    let mut first = None;
    for threads in THREADS {
        let world = World::new();
        let cq = world.cq(1 << 10);
        let queue_pair = world.make(&cq, None, 256).expect("a queue pair");
        world.connect(&*queue_pair).expect("it is connected");
        let request = [World::write(&*world.region)];
        let under_way = AtomicU64::new(0);
        let all = rate(limits.ms, threads, |_, stop| {
            let mut room = [WorkCompletion::default(); 16];
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                // Room for each of the others, who may look at the same time.
                if under_way.load(Ordering::Relaxed) < UNDER_WAY as u64 * u64::from(threads) {
                    under_way.fetch_add(1, Ordering::Relaxed);
                    queue_pair.post_send(&request).expect("post");
                }
                let taken = take(&*cq, &mut room) as u64;
                under_way.fetch_sub(taken, Ordering::Relaxed);
                done += taken;
            }
            done
        });
        take_all(&*cq, under_way.load(Ordering::Relaxed) as usize);
        let first = *first.get_or_insert(all);
        table.row([count(threads), format!("{all:.0}"), ratio(all / first)]);
    }
    table
}
