//! Load for a connection, and its checker: numbered messages, each behind an atomic add. Everything once, in order, nothing lost.

use scalefabric_fabric::Outcome;
use scalefabric_fabric::endpoint::{Completion, Connection, Operation, Remote};
use scalefabric_fabric::pool::Buffer;
use scalefabric_tests::fabric::{PATIENCE, Pair, buffer, piece};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sends numbers until it is told to stop; they must all come, in order, once.
pub struct Load {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    longest_gap_ns: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Load {
    pub fn start(from: &Connection, to: &Connection, word: Arc<Buffer>, counter: Arc<Buffer>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let longest_gap_ns = Arc::new(AtomicU64::new(0));
        let sender = {
            let (from, stop) = (from.clone(), stop.clone());
            std::thread::spawn(move || send(&from, &word, &stop))
        };
        let receiver = {
            let (to, received, longest) = (to.clone(), received.clone(), longest_gap_ns.clone());
            std::thread::spawn(move || {
                let mut next = 0u64;
                let mut last = Instant::now();
                loop {
                    let message = to.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                    let bytes = message.to_vec().unwrap();
                    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    if number == u64::MAX {
                        return next;
                    }
                    assert_eq!(number, next, "lost, repeated or out of order");
                    next += 1;
                    let now = Instant::now();
                    longest.fetch_max((now - last).as_nanos() as u64, Ordering::Relaxed);
                    last = now;
                    received.store(next, Ordering::Relaxed);
                    // What was posted before a message is there when it comes.
                    assert!(counter.load_u64(0).unwrap() > number, "the add before message {number} is missing");
                }
            })
        };
        Self { stop, received, longest_gap_ns, sender, receiver }
    }

    pub fn wait_for(&self, more: u64) {
        let until = self.received.load(Ordering::Relaxed) + more;
        while self.received.load(Ordering::Relaxed) < until {
            assert!(!self.sender.is_finished() && !self.receiver.is_finished(), "the load has ended");
            std::thread::yield_now();
        }
    }

    /// The longest time between two messages since it was last asked.
    pub fn take_longest_gap(&self) -> Duration {
        Duration::from_nanos(self.longest_gap_ns.swap(0, Ordering::Relaxed))
    }

    /// How many were sent.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert_eq!(self.receiver.join().unwrap(), sent);
        sent
    }
}

fn send(from: &Connection, word: &Arc<Buffer>, stop: &AtomicBool) -> u64 {
    let mut number = 0u64;
    let mut done = 0u64;
    let (mut added, mut in_doubt) = (0u64, 0u64);
    let mut out = [Completion::default(); 16];
    while !stop.load(Ordering::Relaxed) {
        let bytes = number.to_le_bytes();
        let piece = piece(word, 0, 8);
        let pair = [
            Operation::fetch_add(&piece, Remote::Offered { id: 1, offset: 0 }, 1).context(u64::MAX),
            Operation::send(&bytes).context(number),
        ];
        from.post(&pair[..1]).unwrap();
        from.post(&pair[1..]).unwrap();
        number += 1;
        loop {
            // With enough under way it sleeps: a sender that spins takes the processor from who mends the connection.
            let full = number - done >= 12;
            let count = if full { from.wait(&mut out, Some(PATIENCE)).unwrap() } else { from.poll(&mut out).unwrap() };
            assert!(!full || count > 0, "completions are missing");
            for completion in &out[..count] {
                if completion.context == u64::MAX {
                    added += u64::from(completion.outcome.is_done());
                    in_doubt += u64::from(matches!(completion.outcome, Outcome::InDoubt(_)));
                } else {
                    assert!(completion.outcome.is_done(), "{completion:?}");
                    assert_eq!(completion.context, done, "completions are out of order");
                    done += 1;
                }
            }
            if number - done < 12 {
                break;
            }
        }
    }
    from.post(&[Operation::send(&u64::MAX.to_le_bytes()).quiet()]).unwrap();
    assert!(from.flush(Some(PATIENCE)).unwrap());
    loop {
        let count = from.poll(&mut out).unwrap();
        if count == 0 {
            break;
        }
        for completion in &out[..count] {
            if completion.context == u64::MAX {
                added += u64::from(completion.outcome.is_done());
                in_doubt += u64::from(matches!(completion.outcome, Outcome::InDoubt(_)));
            } else {
                assert!(completion.outcome.is_done());
                done += 1;
            }
        }
    }
    assert_eq!(done, number);
    assert_eq!(added + in_doubt, number, "an add was neither done nor in doubt");
    number
}

/// Load in both directions of a connection.
pub struct Loads {
    pub ways: [Load; 2],
    counters: [Arc<Buffer>; 2],
}

impl Loads {
    pub fn start(pair: &Pair, client: &Connection, server: &Connection) -> Self {
        let counters = [buffer(&pair.server, 8), buffer(&pair.client, 8)];
        server.lend(1, counters[0].clone(), 0, 8).unwrap();
        client.lend(1, counters[1].clone(), 0, 8).unwrap();
        for side in [client, server] {
            side.offered(1, Some(PATIENCE)).unwrap().unwrap();
        }
        let ways = [
            Load::start(client, server, buffer(&pair.client, 8), counters[0].clone()),
            Load::start(server, client, buffer(&pair.server, 8), counters[1].clone()),
        ];
        Self { ways, counters }
    }

    /// Waits until so many more have come, each way.
    pub fn wait_for(&self, more: u64) {
        self.ways.iter().for_each(|load| load.wait_for(more));
    }

    pub fn take_longest_gap(&self) -> Duration {
        self.ways.iter().map(Load::take_longest_gap).max().unwrap_or_default()
    }

    /// Stops, and looks whether everything came. Returns how many messages that were.
    pub fn end(self) -> u64 {
        let mut all = 0;
        for (load, counter) in self.ways.into_iter().zip(&self.counters) {
            let sent = load.end();
            // Each add had its effect exactly once, those in doubt included: on this backend none is repeated.
            assert_eq!(counter.load_u64(0).unwrap(), sent);
            all += sent;
        }
        all
    }
}
