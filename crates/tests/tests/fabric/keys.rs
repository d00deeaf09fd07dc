//! New keys while traffic runs: the honest peer notices nothing, who shows an old key is refused; on demand, on schedule and by order; and no key in any text.

use scalefabric_fabric::directory::{
    ConnectionId, ConnectionRecord, Directory, FencingToken, Order, OrderId, OrderResult, ServiceAddress,
};
use scalefabric_fabric::endpoint::{Completion, Config, Connection, Fabric, Injected, Operation, Remote, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{Buffer, PageKind, Pool, PoolConfig, Zeroing};
use scalefabric_fabric::remote::{Area, Far};
use scalefabric_fabric::session::{Action, Body, Change, Input, MemoryOffer, Message, Strategy, VERSION};
use scalefabric_fabric::{FabricError, Fault, Local, Outcome};
use scalefabric_tests::fabric::{PATIENCE, Pair, piece, pool, provider};
use scalefabric_verbs::{AccessFlags, PKey, WcStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub fn config() -> Config {
    Config { depth: 64, receives: 64, receive_bytes: 64, ..Config::default() }
}

pub fn pool_for_windows(fabric: &Fabric) -> Pool {
    let (initial_bytes, best_pages) = (4 << 20, PageKind::Plain);
    let access = PoolConfig::default().access | AccessFlags::MW_BIND;
    let config = PoolConfig { initial_bytes, best_pages, access, zeroing: Zeroing::OnAlloc, ..PoolConfig::default() };
    Pool::new(&fabric.protection_domains(), config).unwrap()
}

/// QPs fail and connections move while the peer reads and writes what it was lent by windows: each time they are bound anew, and no honest operation fails.
#[test]
fn windows_follow_their_connection_through_rebuilds_and_moves() {
    let pair = Pair::new(&Config { lend_by_windows: true, retransmit_permille: 1000, ..config() });
    let (client, server) = pair.connect();
    let (theirs, ours) = (pool_for_windows(&pair.server), pool(&pair.client));
    pair.server.rotate_keys_of(&theirs);
    let (memory, local) = (buffer(&theirs), buffer(&ours));
    server.lend(1, memory.clone(), 0, 4096).unwrap();
    // What was never offered is refused at once; from the first offer on, keys follow.
    client.offered(1, Some(PATIENCE)).unwrap().expect("the window is bound in time");
    let mut adds = 0;
    for n in 0..40u64 {
        match n % 4 {
            0 => client.inject(Injected::QpError).unwrap(),
            1 => {
                let path = server.record().unwrap().alternatives.first().cloned().unwrap();
                let change = Change {
                    path,
                    peer_path: None,
                    strategy: Some(Strategy::MakeBeforeBreak),
                    token: FencingToken(n),
                    reason: "test".into(),
                };
                drop(server.begin_move(change).unwrap());
            }
            2 => {
                pair.server.rotate_keys(PATIENCE).unwrap();
            }
            _ => server.inject(Injected::QpError).unwrap(),
        }
        for _ in 0..5 {
            let outcome = client.execute(Operation::fetch_add(&piece(&local, 0, 8), lent(0), 1)).unwrap();
            // The value may be lost with a QP; the add is not.
            assert!(matches!(outcome, Outcome::Done(_) | Outcome::InDoubt(_)), "{n}: {outcome:?}");
            adds += 1;
            let from = piece(&local, 64, 64);
            let write = Operation::write(&from, lent(64)).idempotent();
            assert!(client.execute(write).unwrap().is_done(), "{n}");
        }
    }
    assert_eq!(memory.load_u64(0).unwrap(), adds);
    assert!(server.statistics().rebuilds > 0 && server.statistics().moves > 0, "{:?}", server.statistics());
}

pub fn buffer(pool: &Pool) -> Arc<Buffer> {
    Arc::new(pool.alloc_aligned(4096, 4096).unwrap())
}

pub fn lent(offset: u64) -> Remote {
    Remote::Offered { id: 1, offset }
}

/// READs, WRITEs and adds on what was lent, many at once, some without a signal, until it is told to stop; returns how many adds were done.
fn load(connection: &Connection, local: &Arc<Buffer>, stop: &AtomicBool, done: &AtomicU64) -> u64 {
    let mut out = [Completion::default(); 16];
    let (mut adds, mut ended, mut posted) = (0u64, 0u64, 0u64);
    let mut take = |ended: &mut u64| {
        let count = connection.poll(&mut out).unwrap();
        for completion in &out[..count] {
            assert!(completion.outcome.is_done(), "an honest operation failed: {completion:?}");
        }
        *ended += count as u64;
    };
    while !stop.load(Ordering::Relaxed) {
        let (into, from, old) = (piece(local, 0, 512), piece(local, 1024, 512), piece(local, 2048, 8));
        let round = [
            Operation::write(&from, lent(1024)).idempotent().quiet(),
            Operation::read(&into, lent(2048)),
            Operation::fetch_add(&old, lent(0), 1),
            Operation::write(&from, lent(1024)).idempotent(),
        ];
        for operation in &round {
            connection.post(std::slice::from_ref(operation)).unwrap();
        }
        (adds, posted) = (adds + 1, posted + 3);
        while posted - ended > 30 {
            take(&mut ended);
        }
        done.store(adds, Ordering::Relaxed);
    }
    while ended < posted {
        assert!(connection.flush(Some(PATIENCE)).unwrap());
        take(&mut ended);
    }
    adds
}

#[test]
fn keys_made_anew_under_load_fail_no_honest_operation_and_shut_out_who_shows_an_old_one() {
    made_anew_under_load(false);
}

/// The registration stays: its own key is the same all the while, and nobody was told it.
#[test]
fn windows_bound_anew_under_load_fail_no_honest_operation_and_shut_out_who_shows_an_old_key() {
    made_anew_under_load(true);
}

fn made_anew_under_load(by_windows: bool) {
    let pair = Pair::new(&Config { lend_by_windows: by_windows, ..config() });
    let (client, server) = pair.connect();
    let theirs = if by_windows { pool_for_windows(&pair.server) } else { pool(&pair.server) };
    let ours = pool(&pair.client);
    pair.server.rotate_keys_of(&theirs);
    pair.client.rotate_keys_of(&ours);
    let memory = buffer(&theirs);
    server.lend(1, memory.clone(), 0, 4096).unwrap();
    let mut keys = vec![client.offered(1, Some(PATIENCE)).unwrap().unwrap()];
    let of_registration = memory.remote(0, 4096).unwrap().rkey;
    let local = buffer(&ours);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let loading = {
        let (client, local, stop, done) = (client.clone(), local.clone(), stop.clone(), done.clone());
        std::thread::spawn(move || load(&client, &local, &stop, &done))
    };
    for _ in 0..50 {
        let before = done.load(Ordering::Relaxed);
        // Keys of what is lent, and those by which the one who uses it names its own memory.
        let rotation = pair.server.rotate_keys(PATIENCE).unwrap();
        assert_eq!((rotation.peers, rotation.late), (1, 0), "{rotation:?}");
        assert!(rotation.keys >= 1);
        assert_eq!(pair.client.rotate_keys(PATIENCE).unwrap().peers, 0);
        keys.push(client.offered(1, Some(PATIENCE)).unwrap().unwrap());
        while done.load(Ordering::Relaxed) < before + 5 {
            assert!(!loading.is_finished(), "the load has ended");
            std::thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let adds = loading.join().unwrap();
    assert_eq!(memory.load_u64(0).unwrap(), adds);
    assert_eq!((client.statistics().rebuilds, server.statistics().rebuilds), (0, 0));
    assert_eq!(theirs.report().old_registrations, 0);
    assert_eq!(pair.server.last_rotation().0, 50);
    // The same bytes under a key of their own each time; only the last opens them.
    for (number, two) in (1..).zip(keys.windows(2)) {
        assert!(two[0].addr == two[1].addr, "other bytes after rotation {number}");
        assert!(two[0].rkey != two[1].rkey, "the same key after rotation {number}");
    }
    let (last, old) = keys.split_last().unwrap();
    let raw = |range| client.execute(Operation::read(&piece(&local, 0, 64), range)).unwrap();
    assert!(raw(*last).is_done());
    for range in [old[0], old[old.len() - 1]] {
        assert!(matches!(raw(range), Outcome::NotDone(WcStatus::RemAccessErr)));
    }
    assert_eq!(memory.remote(0, 4096).unwrap().rkey == of_registration, by_windows);
    if by_windows {
        assert!(keys.iter().all(|key| key.rkey != of_registration));
        // A window is its QP's, and that was made anew.
        assert!(matches!(raw(*last), Outcome::NotDone(WcStatus::RemAccessErr)));
    }
    assert!(raw(client.offered(1, Some(PATIENCE)).unwrap().unwrap()).is_done());
    assert!(client.execute(Operation::read(&piece(&local, 0, 64), lent(0))).unwrap().is_done());
}

#[test]
fn an_idle_peer_whose_last_writes_have_no_signal_is_not_waited_for_until_the_overlap_ends() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let pool = pool(&pair.server);
    pair.server.rotate_keys_of(&pool);
    server.lend(1, buffer(&pool), 0, 4096).unwrap();
    client.offered(1, Some(PATIENCE)).unwrap().unwrap();
    client.post(&[Operation::write(b"quiet", lent(8)).quiet()]).unwrap();
    // The overlap is an hour: only the peer's word ends it.
    let rotation = pair.server.rotate_keys(Duration::from_secs(3600)).unwrap();
    assert_eq!((rotation.peers, rotation.late), (1, 0));
}

#[test]
fn a_peer_with_something_on_its_way_at_the_end_of_the_overlap_is_late_and_goes_on_with_new_keys() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let (theirs, ours) = (pool(&pair.server), pool(&pair.client));
    pair.server.rotate_keys_of(&theirs);
    server.lend(1, buffer(&theirs), 0, 4096).unwrap();
    let old = client.offered(1, Some(PATIENCE)).unwrap().unwrap();
    // One message more than the server has receives: it stays on its way until somebody takes one.
    for _ in 0..=config().receives {
        client.post(&[Operation::send(b"not taken").quiet()]).unwrap();
    }
    let rotation = pair.server.rotate_keys(Duration::from_millis(20)).unwrap();
    assert_eq!((rotation.peers, rotation.late), (1, 1));
    assert_ne!(client.offered(1, Some(PATIENCE)).unwrap().unwrap(), old);
    for _ in 0..=config().receives {
        assert!(server.receive(Some(PATIENCE)).unwrap().is_some());
    }
    let local = buffer(&ours);
    assert!(client.execute(Operation::read(&piece(&local, 0, 64), lent(0))).unwrap().is_done());
    assert_eq!(client.statistics().rebuilds, 0);
}

#[test]
fn a_rotation_in_a_hurry_does_not_wait_for_the_overlap_of_one_that_runs() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let theirs = pool(&pair.server);
    pair.server.rotate_keys_of(&theirs);
    server.lend(1, buffer(&theirs), 0, 4096).unwrap();
    let first = client.offered(1, Some(PATIENCE)).unwrap().unwrap();
    for _ in 0..=config().receives {
        client.post(&[Operation::send(b"not taken").quiet()]).unwrap();
    }
    let fabric = pair.server.clone();
    let patient = std::thread::spawn(move || fabric.rotate_keys(Duration::from_secs(3600)).unwrap());
    while client.offered(1, Some(PATIENCE)).unwrap().unwrap() == first {
        std::thread::yield_now();
    }
    // Its peer is not done with the old key, and will not be; something new is lent meanwhile, which shortens nothing.
    server.lend(2, buffer(&theirs), 0, 64).unwrap();
    client.offered(2, Some(PATIENCE)).unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!patient.is_finished());
    assert_eq!(pair.server.rotate_keys(Duration::ZERO).unwrap().peers, 1);
    assert_eq!(patient.join().unwrap().late, 1);
    assert_eq!((pair.server.last_rotation().0, theirs.report().old_registrations), (2, 0));
}

#[test]
fn what_is_taken_back_is_offered_no_more_and_what_cannot_be_lent_is_refused() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let (theirs, ours) = (pool(&pair.server), pool(&pair.client));
    let memory = buffer(&theirs);
    assert_eq!(server.lend(1, memory.clone(), 4000, 97).unwrap_err().fault, Fault::Misuse);
    server.lend(1, memory.clone(), 4000, 96).unwrap();
    assert_eq!(client.offered(1, Some(PATIENCE)).unwrap().unwrap().length, 96);
    assert_eq!(pair.server.rotate_keys(Duration::ZERO).unwrap_err().fault, Fault::Misuse);
    server.take_back(1).unwrap();
    let begun = Instant::now();
    while client.offered(1, Some(Duration::ZERO)).unwrap().is_some() {
        assert!(begun.elapsed() < PATIENCE, "it is offered still");
        std::thread::yield_now();
    }
    let local = buffer(&ours);
    let outcome = client.execute(Operation::read(&piece(&local, 0, 8), lent(0))).unwrap();
    assert!(matches!(outcome, Outcome::NotDone(WcStatus::RemAccessErr)), "{outcome:?}");
    // Nothing was sent: the connection is as it was.
    assert_eq!(client.statistics().rebuilds, 0);
}

#[test]
fn a_schedule_makes_keys_anew_by_itself() {
    let scheduled = Config {
        rotate_every: Some(Duration::from_millis(100)),
        rotate_overlap: Duration::from_millis(50),
        ..config()
    };
    let pair = Pair::new(&scheduled);
    let (client, server) = pair.connect();
    let pool = pool(&pair.server);
    pair.server.rotate_keys_of(&pool);
    server.lend(1, buffer(&pool), 0, 4096).unwrap();
    let first = client.offered(1, Some(PATIENCE)).unwrap().unwrap();
    let begun = Instant::now();
    while client.offered(1, Some(PATIENCE)).unwrap().unwrap() == first || pair.server.last_rotation().0 < 2 {
        assert!(begun.elapsed() < PATIENCE, "the key is the first still");
        std::thread::sleep(Duration::from_millis(5));
    }
    let wrong =
        Config { rotate_every: Some(Duration::from_secs(1)), rotate_overlap: Duration::from_secs(1), ..config() };
    let refused = Fabric::builder(provider()).device("pair").config(wrong).build().unwrap_err();
    assert_eq!(refused.fault, Fault::Misuse);
}

/// A directory that gives orders and hears their answers.
#[derive(Debug, Default)]
struct Orders {
    given: Mutex<Vec<Order>>,
    answers: Mutex<Vec<OrderResult>>,
}

impl Directory for Orders {
    fn publish(&self, _: ConnectionRecord) {}
    fn offer(&self, _: ServiceAddress) {}
    fn resolve(&self, _: &str) -> Vec<ServiceAddress> {
        Vec::new()
    }
    fn may_connect(&self, _: &str, _: &str) -> Result<PKey, FabricError> {
        Ok(PKey::DEFAULT)
    }
    fn next_order(&self) -> Option<(OrderId, Order)> {
        self.given.lock().unwrap().pop().map(|order| (OrderId(1), order))
    }
    fn answer(&self, _: OrderId, result: OrderResult) {
        self.answers.lock().unwrap().push(result);
    }
}

#[test]
fn an_order_makes_keys_anew_for_a_tenant_or_for_all_and_its_answer_says_what_was_done() {
    let orders = Arc::new(Orders::default());
    let build = |node: &str, tenant: &str| {
        let config = Config { tenant: tenant.into(), ..config() };
        Fabric::builder(provider()).device("pair").node(node).config(config).exchange(Arc::new(Tcp::new()))
    };
    let own = Arc::new(AtomicU64::new(0));
    let asked = own.clone();
    let server = build("server", "")
        .listen_at("tcp://127.0.0.1:0")
        .directory(orders.clone())
        .rotate_with(Arc::new(move |_, _| {
            asked.fetch_add(1, Ordering::Relaxed);
            OrderResult::Rotated { keys: 5, peers: 0, late: 0 }
        }))
        .build()
        .unwrap();
    let client = build("client", "red").build().unwrap();
    let listener = server.listen("memory").unwrap();
    let connection = client.connect(&Target::at(server.addresses()[0].clone(), "memory")).unwrap();
    let accepted = listener.accept(Some(PATIENCE)).unwrap().unwrap();
    let pool = pool(&server);
    server.rotate_keys_of(&pool);
    accepted.lend(1, buffer(&pool), 0, 4096).unwrap();
    let first = connection.offered(1, Some(PATIENCE)).unwrap().unwrap();
    let order = |tenant: Option<&str>| {
        let (token, tenant) = (FencingToken(1), tenant.map(str::to_owned));
        orders.given.lock().unwrap().push(Order::RotateKeys { token, overlap_ms: 30_000, tenant });
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "no answer");
            if let Some(answer) = orders.answers.lock().unwrap().pop() {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    // Nothing is lent to this tenant.
    assert_eq!(order(Some("blue")), OrderResult::Rotated { keys: 0, peers: 0, late: 0 });
    assert_eq!(connection.offered(1, Some(PATIENCE)).unwrap(), Some(first));
    for tenant in [Some("red"), None] {
        let before = connection.offered(1, Some(PATIENCE)).unwrap();
        // One arena, one domain, and five of the application's own.
        assert_eq!(order(tenant), OrderResult::Rotated { keys: 6, peers: 1, late: 0 });
        assert_ne!(connection.offered(1, Some(PATIENCE)).unwrap(), before);
    }
    assert_eq!(own.load(Ordering::Relaxed), 2);
}

#[test]
fn no_text_about_memory_connections_or_failures_shows_a_key() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let pool = pool(&pair.server);
    pair.server.rotate_keys_of(&pool);
    let memory = buffer(&pool);
    server.lend(1, memory.clone(), 0, 4096).unwrap();
    let range = client.offered(1, Some(PATIENCE)).unwrap().unwrap();
    let (id, offer) =
        (ConnectionId { origin: "a".into(), serial: 1 }, MemoryOffer { id: 1, domain: 0, lane: None, range });
    let body = Body::Memory { round: 1, offers: vec![offer] };
    let message = Message { version: VERSION, connection: id, from: "a".into(), body: body.clone() };
    let ours = self::pool(&pair.client);
    let far = Far::new(&client, range, 4096, &ours);
    let bytes = message.emit().unwrap();
    let key = range.rkey.to_string();
    let spoilt = |to: &str| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.contains(&key));
        Message::parse(text.replace(&key, to).as_bytes()).unwrap_err().message
    };
    pair.server.rotate_keys(PATIENCE).unwrap();
    let refused = far.write(0, &[1; 8]).unwrap_err();
    let raw = client.execute(Operation::write(&[1; 8], range)).unwrap();
    let region = pair.server.protection_domain().alloc_mr(64, scalefabric_verbs::AccessFlags::REMOTE_READ).unwrap();
    let texts = [
        format!("{range:?}"),
        format!("{:?}", range.part(1, 2)),
        format!("{offer:?} {body:?} {message:?}"),
        format!("{:?}", Action::TakeKeys { round: 1, offers: vec![offer] }),
        format!("{:?}", Input::Offer { offers: vec![offer], overlap_ns: 1 }),
        format!("{:?}", Operation::write(&[1; 8], range)),
        format!("{:?} {:?}", Remote::Range(range), piece(&memory, 0, 8)),
        format!("{far:?} {client:?} {server:?} {:?} {:?}", pair.server, pair.listener),
        format!("{pool:?} {memory:?}"),
        format!("{:?} {:?}", memory.sge(0, 8), memory.remote(0, 8)),
        format!("{:?}", pair.server.last_rotation()),
        format!("{refused:?} {refused} {raw:?}"),
        format!("{:?}", client.record()),
        // What cannot be read is not repeated: too large for a key by a digit, and a key in quotes.
        spoilt(&format!("{key}0000000000")),
        spoilt(&format!("\"{key}\"")),
    ];
    let present = memory.remote(0, 8).unwrap().rkey;
    let shown = |text: &str, key: u32| {
        // Keys are scattered over 32 bits; a short one could stand in a text by chance.
        let words = [key.to_string(), format!("{key:x}"), format!("{key:08x}"), format!("{key:X}")];
        words.iter().any(|word| word.len() >= 6 && text.contains(word.as_str()))
    };
    for text in &texts {
        for key in [range.rkey, present] {
            assert!(!shown(text, key), "{text}");
        }
    }
    assert!(!shown(&format!("{region:?} {:?}", region.lkey()), region.rkey().0));
    assert!(!shown(&format!("{region:?} {:?}", region.lkey()), region.lkey().0));
}
