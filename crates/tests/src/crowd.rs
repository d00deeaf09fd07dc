//! Many connections under load, by two threads in all, and a checker: each sends numbered messages one way, and each number comes once, in order. Tests and
//! benchmarks of moves stand on it.

use crate::fabric::{PATIENCE, Pair};
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::{Completion, Connection, Operation};
use scalefabric_fabric::session::{Change, Strategy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Messages of a connection that are under way at a time.
const WINDOW: u64 = 8;

/// Connections that send.
#[derive(Debug)]
pub struct Crowd {
    /// The sides that connected, and the others.
    pub ends: Vec<(Connection, Connection)>,
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Crowd {
    /// Connects so many, and begins.
    pub fn start(pair: &Pair, count: usize) -> Self {
        let ends: Vec<_> = (0..count).map(|_| pair.connect()).collect();
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let near: Vec<Connection> = ends.iter().map(|(client, _)| client.clone()).collect();
        let far: Vec<Connection> = ends.iter().map(|(_, server)| server.clone()).collect();
        let sender = {
            let stop = stop.clone();
            std::thread::spawn(move || send(&near, &stop))
        };
        let receiver = {
            let received = received.clone();
            std::thread::spawn(move || receive(&far, &received))
        };
        Self { ends, stop, received, sender, receiver }
    }

    /// Waits until so many more messages have come.
    pub fn wait_for(&self, more: u64) {
        let until = self.received.load(Ordering::Relaxed) + more;
        let begun = Instant::now();
        while self.received.load(Ordering::Relaxed) < until {
            assert!(!self.sender.is_finished() && !self.receiver.is_finished(), "the load has ended");
            assert!(begun.elapsed() < PATIENCE, "messages do not come");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Orders every connection to this port at once, waits until all are there, and says how long that took and the longest pause of one. The order is the
    /// decision: what is done before it (the choice of the connections) is not counted.
    pub fn move_all(&self, port_num: u8, strategy: Option<Strategy>, token: u64) -> (Duration, Duration) {
        let to = |client: &Connection| -> Path {
            let record = client.record().expect("it is up");
            record.alternatives.into_iter().find(|path| path.port_num == port_num).expect("the other port")
        };
        let changes: Vec<Change> = (self.ends.iter())
            .map(|(client, _)| Change {
                path: to(client),
                peer_path: None,
                strategy,
                token: FencingToken(token),
                reason: "the port is hot".into(),
            })
            .collect();
        let begun = Instant::now();
        let moving: Vec<_> = (self.ends.iter().zip(changes))
            .map(|((client, _), change)| client.begin_move(change).expect("it is open"))
            .collect();
        let mut longest_us = 0;
        for moving in moving {
            match moving.wait().expect("it is open") {
                OrderResult::Done { pause_us, .. } => longest_us = longest_us.max(pause_us),
                other => panic!("a connection did not move: {other:?}"),
            }
        }
        (begun.elapsed(), Duration::from_micros(longest_us))
    }

    /// On which port the sending sides are.
    pub fn ports(&self) -> Vec<u8> {
        self.ends.iter().map(|(client, _)| client.record().expect("it is up").path.port_num).collect()
    }

    /// Stops, and looks whether everything came. Returns how many messages that were.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("the sending thread");
        assert_eq!(self.receiver.join().expect("the receiving thread"), sent, "messages are missing");
        sent
    }
}

fn send(connections: &[Connection], stop: &AtomicBool) -> u64 {
    let mut posted = vec![0u64; connections.len()];
    let mut done = vec![0u64; connections.len()];
    let mut out = [Completion::default(); 16];
    let mut ending = false;
    loop {
        ending |= stop.load(Ordering::Relaxed);
        let mut any = false;
        for (index, connection) in connections.iter().enumerate() {
            while !ending && posted[index] - done[index] < WINDOW {
                let bytes = posted[index].to_le_bytes();
                if connection.try_post(&[Operation::send(&bytes)]).expect("it is open") == 0 {
                    break;
                }
                (posted[index], any) = (posted[index] + 1, true);
            }
            let count = connection.poll(&mut out).expect("it is open");
            for completion in &out[..count] {
                assert!(completion.outcome.is_done(), "{completion:?}");
            }
            (done[index], any) = (done[index] + count as u64, any || count > 0);
        }
        if ending && done == posted {
            break;
        }
        if !any {
            // Who moves connections wants the processor, too.
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    for connection in connections {
        connection.post(&[Operation::send(&u64::MAX.to_le_bytes()).quiet()]).expect("it is open");
        assert!(connection.flush(Some(PATIENCE)).expect("it is open"));
    }
    posted.iter().sum()
}

fn receive(connections: &[Connection], received: &AtomicU64) -> u64 {
    let mut next = vec![Some(0u64); connections.len()];
    let mut all = 0;
    while next.iter().any(Option::is_some) {
        let mut any = false;
        for (connection, next) in connections.iter().zip(&mut next) {
            while let Some(expected) = *next
                && let Some(message) = connection.try_receive().expect("it is open")
            {
                let mut bytes = [0; 8];
                message.read(0, &mut bytes).expect("eight bytes");
                let number = u64::from_le_bytes(bytes);
                any = true;
                if number == u64::MAX {
                    *next = None;
                    break;
                }
                assert_eq!(number, expected, "lost, repeated or out of order");
                (*next, all) = (Some(expected + 1), all + 1);
            }
        }
        received.store(all, Ordering::Relaxed);
        if !any {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    all
}
