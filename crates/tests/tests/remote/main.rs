//! Helpers for far memory over connections of the software NIC: the same rules that their own tests check within a process, here with a real peer between.

use scalefabric_fabric::Local;
use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Listener, Remote, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{Buffer, Pool};
use scalefabric_fabric::remote::rpc::{self, Caller, Line, Server};
use scalefabric_fabric::remote::{
    Cells, Far, Fence, Lease, LeaseTerm, MailboxOwner, MailboxSender, RingReader, RingWriter, SlotShape, StripedLocks,
    Table, TableOwner, TableShape, Taken,
};
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::fabric::pool;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// After this, something has not happened and will not.
const PATIENCE: Duration = Duration::from_secs(30);

/// The device of this process: an address of its own, so that tests of other processes do not meet it.
fn provider() -> Arc<SoftwareProvider> {
    static PROVIDER: OnceLock<Arc<SoftwareProvider>> = OnceLock::new();
    let make = || {
        let pid = std::process::id();
        let address =
            IpAddr::from(Ipv4Addr::new(127, 70 + (pid >> 14) as u8 % 20, (pid >> 6) as u8, (pid << 2) as u8 | 1));
        let port = PortOptions { interface: "lo".into(), addresses: vec![address] };
        let device = DeviceOptions { name: "sfremote".into(), ports: vec![port], ..DeviceOptions::default() };
        Arc::new(SoftwareProvider::new(Options { devices: vec![device], ..Options::default() }))
    };
    PROVIDER.get_or_init(make).clone()
}

/// Two fabrics, each with a pool.
struct Stage {
    server: Fabric,
    client: Fabric,
    listener: Listener,
    server_pool: Pool,
    client_pool: Pool,
}

impl Stage {
    fn new(config: &Config) -> Self {
        let build = |node: &str| {
            Fabric::builder(provider())
                .device("sfremote")
                .node(node)
                .config(config.clone())
                .exchange(Arc::new(Tcp::new()))
        };
        let server = build("server").listen_at("tcp://127.0.0.1:0").build().unwrap();
        let client = build("client").build().unwrap();
        let listener = server.listen("memory").unwrap();
        let (server_pool, client_pool) = (pool(&server), pool(&client));
        Self { server, client, listener, server_pool, client_pool }
    }

    /// The client's side, and the server's.
    fn connect(&self) -> (Connection, Connection) {
        let target = Target::Address { exchange: self.server.addresses()[0].clone(), service: "memory".into() };
        let client = self.client.connect(&target).unwrap();
        (client, self.listener.accept(Some(PATIENCE)).unwrap().expect("the peer is connected"))
    }

    /// The server's memory, zeroed, and the client's view of it over a connection of its own.
    fn memory(&self, bytes: u64) -> (Arc<Buffer>, impl Fn() -> (Far, Connection) + '_) {
        let buffer = Arc::new(self.server_pool.alloc_aligned(bytes as usize, 64).unwrap());
        buffer.zero(0, bytes as usize).unwrap();
        let range = buffer.remote(0, bytes as usize).expect("peers may use it");
        let far = move || {
            let (client, server) = self.connect();
            server.offer(1, range).unwrap();
            client.offered(1, Some(PATIENCE)).unwrap().expect("it was offered");
            (Far::new(&client, Remote::Offered { id: 1, offset: 0 }, bytes, &self.client_pool), server)
        };
        (buffer, far)
    }
}

#[test]
fn a_counter_over_three_connections_is_linearizable() {
    let stage = Stage::new(&Config::default());
    let (_buffer, far) = stage.memory(128);
    let seen = Mutex::new(Vec::new());
    let sides: Vec<_> = (0..3).map(|_| far()).collect();
    std::thread::scope(|scope| {
        for (area, _server) in &sides {
            scope.spawn(|| {
                let cells: Cells<_, u64> = Cells::new(area.clone());
                let cell = cells.cell(1).unwrap();
                let mine: Vec<u64> = (0..200).map(|_| cell.fetch_add(1).unwrap()).collect();
                assert!(mine.is_sorted_by(|a, b| a < b), "a side saw time go back");
                seen.lock().unwrap().extend(mine);
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..600));
    let cells: Cells<_, u64> = Cells::new(sides[0].0.clone());
    assert_eq!(cells.cell(0).unwrap().load().unwrap(), 0);
    cells.cell(0).unwrap().store(77).unwrap();
    assert_eq!(cells.cell(0).unwrap().load().unwrap(), 77);
}

#[test]
fn a_lock_lets_one_in_at_a_time() {
    let stage = Stage::new(&Config::default());
    let (_buffer, far) = stage.memory(64);
    let inside = AtomicBool::new(false);
    let sides: Vec<_> = (0..3).map(|_| far()).collect();
    std::thread::scope(|scope| {
        for (holder, (area, _server)) in (1..).zip(&sides) {
            let inside = &inside;
            scope.spawn(move || {
                let locks = StripedLocks::new(area.clone(), holder).unwrap();
                for _ in 0..50 {
                    let guard = locks.lock(b"key", u32::MAX).unwrap().unwrap();
                    assert!(!inside.swap(true, Ordering::AcqRel), "two hold one lock");
                    assert!(inside.swap(false, Ordering::AcqRel));
                    guard.unlock().unwrap();
                }
            });
        }
    });
}

#[test]
fn a_lease_passes_from_a_holder_that_sleeps_and_the_fence_keeps_it_out() {
    let stage = Stage::new(&Config::default());
    let (_buffer, far) = stage.memory(128);
    let ((one, _a), (two, _b)) = (far(), far());
    let start = Instant::now();
    let term = LeaseTerm { term: Duration::from_millis(200), margin: Duration::from_millis(50) };
    let mut sleeper = Lease::new(one.clone(), 0, 1, term).unwrap();
    let Taken::Held { token: first, .. } = sleeper.try_take(start.elapsed()).unwrap() else { panic!("it is free") };
    let mut waker = Lease::new(two.clone(), 0, 2, term).unwrap();
    let second = loop {
        match waker.try_take(start.elapsed()).unwrap() {
            Taken::Held { token, .. } => break token,
            Taken::NotYet { until } => std::thread::sleep(until.saturating_sub(start.elapsed())),
        }
    };
    assert!(sleeper.token(start.elapsed()).is_none(), "both hold it");
    assert!(second > first);
    Fence::new(two, 1).unwrap().admit(second).unwrap();
    assert!(Fence::new(one, 1).unwrap().admit(first).is_err());
}

const SHAPE: SlotShape = SlotShape { slots: 16, slot_bytes: 1024 };

#[test]
fn a_ring_carries_everything_once_and_in_order() {
    let stage = Stage::new(&Config::default());
    let (buffer, far) = stage.memory(SHAPE.bytes());
    let (area, _server) = far();
    let mut reader = RingReader::new(buffer, SHAPE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = RingWriter::new(area, SHAPE).unwrap();
            for number in 0..500_u32 {
                while !writer.try_send(&vec![number as u8; number as usize * 2 % 992]).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..500_u32 {
            let came = loop {
                match reader.try_receive().unwrap() {
                    Some(came) => break came.message,
                    None => std::thread::yield_now(),
                }
            };
            assert!(came == vec![number as u8; number as usize * 2 % 992], "message {number}");
        }
    });
}

#[test]
fn a_mailbox_takes_from_many() {
    let stage = Stage::new(&Config::default());
    let (buffer, far) = stage.memory(SHAPE.bytes());
    let sides: Vec<_> = (0..3).map(|_| far()).collect();
    let mut owner = MailboxOwner::new(buffer, SHAPE).unwrap();
    std::thread::scope(|scope| {
        for (sender, (area, _server)) in (1..).zip(&sides) {
            scope.spawn(move || {
                let mut mailbox = MailboxSender::new(area.clone(), SHAPE, sender).unwrap();
                for number in 0..100_u32 {
                    while !mailbox.try_send(&number.to_le_bytes()).unwrap() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0_u32; 4];
        for _ in 0..300 {
            let came = loop {
                match owner.try_receive().unwrap() {
                    Some(came) => break came,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(u32::from_le_bytes(came.message.try_into().unwrap()), next[came.sender as usize]);
            next[came.sender as usize] += 1;
        }
    });
}

#[test]
fn a_bucket_that_is_being_written_is_never_read_in_half() {
    let shape = TableShape { buckets: 4, entries: 4, key_bytes: 8, value_bytes: 400, seed: 5 };
    let stage = Stage::new(&Config::default());
    let (buffer, far) = stage.memory(shape.bytes());
    let mut owner = TableOwner::new(buffer, shape).unwrap();
    let (area, _server) = far();
    let table = Table::new(area, shape).unwrap();
    assert_eq!(table.get(b"somebody").unwrap(), None);
    owner.insert(b"somebody", &[0; 400]).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut step = 0_u8;
            while !over.load(Ordering::Relaxed) {
                step = step.wrapping_add(1);
                owner.insert(b"somebody", &[step; 400]).unwrap();
            }
        });
        for _ in 0..300 {
            let value = table.get(b"somebody").unwrap().expect("it is always there");
            assert!(value.iter().all(|byte| *byte == value[0]), "torn: {value:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn calls_of_many_threads_and_tasks_get_their_own_answers() {
    let config = rpc::config(&Config::default());
    let stage = Stage::new(&config);
    let (client, server) = stage.connect();
    let longest = config.receive_bytes as usize;
    let answers = Server::new(Arc::new(Line::new(&server, &stage.server_pool, longest)), 2, |request| {
        Ok(request.body.iter().map(|byte| byte.wrapping_add(request.method as u8)).collect())
    })
    .unwrap();
    let caller =
        Caller::new(Arc::new(Line::new(&client, &stage.client_pool, longest)), rpc::RECEIVES as usize).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let caller = caller.clone();
            scope.spawn(move || {
                for number in 0..50_u8 {
                    let body = vec![number; 1 + usize::from(number) * 60];
                    let answer = caller.call(u32::from(thread), &body, PATIENCE).unwrap();
                    assert!(answer == vec![number.wrapping_add(thread); body.len()]);
                }
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        // More at once than there are receives.
        let tasks: Vec<_> = (0..1500_u32)
            .map(|number| tokio::spawn(caller.call_async(1, number.to_le_bytes().to_vec(), PATIENCE)))
            .collect();
        for (number, task) in (0..1500_u32).zip(tasks) {
            let expected: Vec<u8> = number.to_le_bytes().iter().map(|byte| byte.wrapping_add(1)).collect();
            assert_eq!(task.await.unwrap().unwrap(), expected);
        }
    });
    assert_eq!(answers.tally().handled, 1700);
}
