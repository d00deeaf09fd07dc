//! A memory node that writes its port's counters into a slot every 5 ms, and compute nodes that READ the slot and slow down when the node is busy. Two processes; no control
//! plane is needed.
//!
//! ```sh
//! cargo run --release --example publisher -- memory 127.0.0.1:7600      # says each second what publishing costs
//! cargo run --release --example publisher -- compute 127.0.0.1:7600     # works on it for 10 s, and says what it saw
//! ```

use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Operation, Piece, Remote, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{Buffer, PageKind, Pool, PoolConfig};
use scalefabric_fabric::remote::Far;
use scalefabric_fabric::remote::publish::{
    Beat, Follower, Pace, Publisher, PublisherLoop, Reader, STANDARD, slot_bytes, standard,
};
use scalefabric_nic::provider::SoftwareProvider;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
const SLOT: usize = slot_bytes(STANDARD.len());
/// What is lent under these numbers.
const COUNTERS: u32 = 1;
const DATA: u32 = 2;
const BLOCK: usize = 64 << 10;
/// What a port is taken to carry: a software port has no line rate.
const PORT_BPS: u64 = 10_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["memory", address] => memory(address),
        ["compute", address] => compute(address),
        _ => Err("memory ADDRESS:PORT, or compute ADDRESS:PORT".into()),
    }
}

fn fabric(listen: Option<&str>) -> Result<(Fabric, Pool), Box<dyn Error>> {
    let provider = Arc::new(SoftwareProvider::from_environment()?);
    let device = std::env::var("SCALEFABRIC_DEVICE").unwrap_or_else(|_| "sflo".into());
    let mut builder = Fabric::builder(provider).device(device).config(Config::default()).exchange(Arc::new(Tcp::new()));
    if let Some(address) = listen {
        builder = builder.listen_at(format!("tcp://{address}"));
    }
    let fabric = builder.build()?;
    let config = PoolConfig { initial_bytes: 4 << 20, best_pages: PageKind::Plain, ..PoolConfig::default() };
    let pool = Pool::new(&fabric.protection_domains(), config)?;
    Ok((fabric, pool))
}

fn memory(address: &str) -> Result<(), Box<dyn Error>> {
    let (fabric, pool) = fabric(Some(address))?;
    let (slot, data) = (Arc::new(pool.alloc(SLOT)?), Arc::new(pool.alloc(BLOCK)?));
    let publisher = Publisher::new(slot.clone(), 0, STANDARD.len())?;
    let publishing = PublisherLoop::start(Beat::new(fabric.context().clone(), 1, &STANDARD, publisher)?, None)?;
    let listener = fabric.listen("memory")?;
    let mut connections: Vec<Connection> = Vec::new();
    let (mut before, mut told) = (publishing.tally(), Instant::now());
    loop {
        if let Some(connection) = listener.accept(Some(Duration::from_millis(100)))? {
            connection.lend(COUNTERS, slot.clone(), 0, SLOT)?;
            connection.lend(DATA, data.clone(), 0, BLOCK)?;
            connections.push(connection);
        }
        connections.retain(|connection| connection.closed().is_none());
        if told.elapsed() >= Duration::from_secs(1) {
            let (now, elapsed) = (publishing.tally(), told.elapsed().as_secs_f64());
            let (count, spent) = (now.published - before.published, now.spent_ns - before.spent_ns);
            println!(
                "{:.0} snapshots/s, {:.1} us each, {:.2} % of a core; {} readers",
                count as f64 / elapsed,
                spent as f64 / 1e3 / count.max(1) as f64,
                spent as f64 / 1e7 / elapsed,
                connections.len()
            );
            (before, told) = (now, Instant::now());
        }
    }
}

fn compute(address: &str) -> Result<(), Box<dyn Error>> {
    let (fabric, pool) = fabric(None)?;
    let connection = fabric.connect(&Target::at(format!("tcp://{address}"), "memory"))?;
    for lent in [COUNTERS, DATA] {
        connection.offered(lent, Some(PATIENCE))?.ok_or("nothing was lent")?;
    }
    let far = Far::new(&connection, Remote::Offered { id: COUNTERS, offset: 0 }, SLOT as u64, &pool);
    let reader = Reader::new(far, 0, STANDARD.len())?;
    let follower = Follower::start(reader, standard(PORT_BPS), Pace::default(), None)?;
    let local: Arc<Buffer> = Arc::new(pool.alloc(BLOCK)?);
    let (mut done, mut paused, begun) = (0u64, Duration::ZERO, Instant::now());
    while begun.elapsed() < Duration::from_secs(10) {
        let pause = follower.pause();
        if !pause.is_zero() {
            std::thread::sleep(pause);
            paused += pause;
        }
        let outcome = connection
            .execute(Operation::read(&Piece::new(local.clone(), 0, BLOCK), Remote::Offered { id: DATA, offset: 0 }))?;
        if !outcome.is_done() {
            return Err(format!("a READ failed: {outcome:?}").into());
        }
        done += 1;
    }
    println!("{done} READs of {BLOCK} bytes, {paused:?} of pauses; {:?}", follower.tally());
    Ok(())
}
