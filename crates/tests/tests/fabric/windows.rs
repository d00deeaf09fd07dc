//! Keys of windows beside a channel that is late: what the peer says of one round of offers is heard after the next round was begun.

use super::keys::{buffer, config, lent, pool_for_windows};
use scalefabric_fabric::endpoint::{Config, Fabric, Operation, Remote, Target};
use scalefabric_fabric::exchange::{Channel, Exchange, Identity, Listener, Pending, Tcp};
use scalefabric_tests::fabric::{PATIENCE, Pair, piece, pool, provider};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// TCP whose accepted channels are held at two places: see [`Held`].
#[derive(Debug)]
struct Holding {
    tcp: Tcp,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    /// The peer's word about its keys has come.
    has_come: Mutex<Sender<()>>,
    /// It may be heard.
    go: Mutex<Receiver<()>>,
    /// Operations of the peer that have ended, and whether it has stopped.
    done: AtomicU64,
    stopped: AtomicBool,
}

/// The task of the connection stands still when the peer says for the first time that it uses no old key; and the second round of offers leaves only when the peer
/// has used the keys of the first for a while longer.
#[derive(Debug)]
struct Held {
    inner: Box<dyn Channel>,
    gate: Arc<Gate>,
    heard: Option<Vec<u8>>,
    taken: u32,
    offered: u32,
}

impl Exchange for Holding {
    fn scheme(&self) -> &'static str {
        self.tcp.scheme()
    }
    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let inner = self.tcp.listen(address).await?;
            Ok(Box::new(HoldingPeers { inner, gate: self.gate.clone() }) as Box<dyn Listener>)
        })
    }
    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        self.tcp.dial(address)
    }
}

#[derive(Debug)]
struct HoldingPeers {
    inner: Box<dyn Listener>,
    gate: Arc<Gate>,
}

impl Listener for HoldingPeers {
    fn address(&self) -> String {
        self.inner.address()
    }
    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>> {
        Box::pin(async move {
            let (inner, gate) = (self.inner.accept().await?, self.gate.clone());
            Ok(Box::new(Held { inner, gate, heard: None, taken: 0, offered: 0 }) as Box<dyn Channel>)
        })
    }
}

impl Channel for Held {
    fn peer(&self) -> Identity {
        self.inner.peer()
    }
    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()> {
        if says(message, "memory") {
            self.offered += 1;
            let (gate, before, begun) = (&self.gate, self.gate.done.load(Ordering::Relaxed), Instant::now());
            while self.offered == 2
                && !gate.stopped.load(Ordering::Relaxed)
                && gate.done.load(Ordering::Relaxed) < before + 20
                && begun.elapsed() < PATIENCE
            {
                std::thread::yield_now();
            }
        }
        self.inner.send(message)
    }
    fn receive(&mut self) -> Pending<'_, Vec<u8>> {
        Box::pin(async move {
            if let Some(message) = self.heard.take() {
                return Ok(message);
            }
            let message = self.inner.receive().await?;
            self.taken += u32::from(says(&message, "memory-taken"));
            if self.taken == 1 && says(&message, "memory-taken") {
                // Kept here: this future may be given up.
                self.heard = Some(message.clone());
                self.gate.has_come.lock().unwrap().send(()).unwrap();
                self.gate.go.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                // What was told meanwhile is heard first.
                tokio::task::yield_now().await;
            }
            self.heard = None;
            Ok(message)
        })
    }
}

fn says(message: &[u8], what: &str) -> bool {
    String::from_utf8_lossy(message).contains(&format!("\"say\":\"{what}\""))
}

/// The first round of offers was heard late; a rotation begins, and only then comes the word about the first round. It is no word about the keys that the rotation replaces.
#[test]
fn a_late_word_about_an_earlier_round_takes_no_window_away_that_is_in_use() {
    let ((has_come, come), (let_go, go)) = (channel(), channel());
    let (has_come, go) = (Mutex::new(has_come), Mutex::new(go));
    let gate = Arc::new(Gate { has_come, go, done: AtomicU64::new(0), stopped: AtomicBool::new(false) });
    let build = |node: &str| {
        let exchange = Arc::new(Holding { tcp: Tcp::new(), gate: gate.clone() });
        let config = Config { lend_by_windows: true, retransmit_permille: 1000, ..config() };
        Fabric::builder(provider()).device("pair").node(node).config(config).exchange(exchange)
    };
    let server = build("server").listen_at("tcp://127.0.0.1:0").build().unwrap();
    let client = build("client").build().unwrap();
    let listener = server.listen("memory").unwrap();
    let near = client.connect(&Target::at(server.addresses()[0].clone(), "memory")).unwrap();
    let far = listener.accept(Some(PATIENCE)).unwrap().unwrap();
    let (theirs, ours) = (pool_for_windows(&server), pool(&client));
    server.rotate_keys_of(&theirs);
    far.lend(1, buffer(&theirs), 0, 4096).unwrap();
    near.offered(1, Some(PATIENCE)).unwrap().expect("the window is bound in time");
    let reading = {
        let (near, gate, local) = (near.clone(), gate.clone(), buffer(&ours));
        std::thread::spawn(move || {
            let mut failed = None;
            while failed.is_none() && !gate.stopped.load(Ordering::Relaxed) {
                let outcome = near.execute(Operation::read(&piece(&local, 0, 64), lent(0))).unwrap();
                failed = (!outcome.is_done()).then_some(outcome);
                gate.done.fetch_add(1, Ordering::Relaxed);
            }
            gate.stopped.store(true, Ordering::Relaxed);
            failed
        })
    };
    come.recv_timeout(PATIENCE).unwrap();
    let rotating = {
        let server = server.clone();
        std::thread::spawn(move || server.rotate_keys(PATIENCE).unwrap())
    };
    // The rotation has told the connection's task by then; if it has not, nothing is seen, and nothing fails.
    std::thread::sleep(Duration::from_millis(100));
    let_go.send(()).unwrap();
    let rotation = rotating.join().unwrap();
    assert_eq!((rotation.peers, rotation.late), (1, 0), "{rotation:?}");
    gate.stopped.store(true, Ordering::Relaxed);
    assert_eq!(reading.join().unwrap(), None, "an honest READ failed");
    assert_eq!((near.statistics().rebuilds, far.statistics().rebuilds), (0, 0));
}

/// Windows are asked for faster than they can be bound: their binds wait behind messages that nobody takes.
#[test]
fn windows_that_are_asked_for_while_others_are_being_bound_break_nothing() {
    let pair = Pair::new(&Config { lend_by_windows: true, retransmit_permille: 1000, ..config() });
    let (client, server) = pair.connect();
    let (theirs, ours) = (pool_for_windows(&pair.server), pool(&pair.client));
    for _ in 0..config().receives + 8 {
        server.post(&[Operation::send(b"not taken").quiet()]).unwrap();
    }
    for id in 1..=8 {
        server.lend(id, buffer(&theirs), 0, 4096).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..config().receives + 8 {
        assert!(client.receive(Some(PATIENCE)).unwrap().is_some());
    }
    let local = buffer(&ours);
    for id in 1..=8 {
        client.offered(id, Some(PATIENCE)).unwrap().expect("the window is bound in time");
        let into = piece(&local, 0, 64);
        let read = Operation::read(&into, Remote::Offered { id, offset: 0 });
        assert!(client.execute(read).unwrap().is_done());
    }
    assert_eq!((client.statistics().rebuilds, server.statistics().rebuilds), (0, 0));
}
