//! A process that works for a tenant: it finds its peers through the agent of its node, is held to the tenant's quotas, lends memory whose keys are made anew while it is used,
//! and connects to those that the tenants' rules allow.
//!
//! With `sfab control` and `sfab agent` running, and the rules of docs/configuration.md put into control:
//!
//! ```sh
//! cargo run --example tenant -- serve red kv                # lends memory to who may connect
//! cargo run --example tenant -- use red kv 10               # writes and reads it for 10 s, and says how that went
//! cargo run --example tenant -- use blue kv                 # is refused: the rules do not allow it
//! cargo run --example tenant -- have red 10 1048576         # how many QPs and regions of so many bytes the tenant may have
//! ```
//!
//! `SCALEFABRIC_AGENT` is the path of the agent's socket, `SCALEFABRIC_DEVICE` the device (default: that of the loopback), `NODE` the node's name if the host's is not the
//! agent's.

use scalefabric_control::client::{AgentDirectory, Settings};
use scalefabric_fabric::Directory;
use scalefabric_fabric::endpoint::{Completion, Config, Connection, Fabric, Operation, Piece, Remote, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{Buffer, PageKind, Pool, PoolConfig};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::AccessFlags;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long this program waits for anything.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are lent, and of a WRITE.
const LENT: usize = 1 << 20;
const BLOCK: usize = 64 << 10;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
    let done = match arguments[..] {
        ["serve", tenant, service] => serve(tenant, service),
        ["use", tenant, service] => make_use(tenant, service, 3),
        ["use", tenant, service, seconds] => {
            number(seconds).map_or_else(|e| Err(e.into()), |n| make_use(tenant, service, n))
        }
        ["have", tenant, count, bytes] => match (number(count), number(bytes)) {
            (Ok(count), Ok(bytes)) => have(tenant, count, bytes as usize),
            (Err(wrong), _) | (_, Err(wrong)) => Err(wrong.into()),
        },
        _ => Err("serve TENANT SERVICE, use TENANT SERVICE [SECONDS], or have TENANT COUNT BYTES".into()),
    };
    if let Err(error) = done {
        eprintln!("tenant: {error}");
        std::process::exit(1);
    }
}

/// A fabric that works for the tenant, once the agent has told its rules.
fn fabric(tenant: &str) -> Result<(Fabric, Arc<AgentDirectory>), Box<dyn Error>> {
    let directory = Arc::new(AgentDirectory::new(&Settings { memory: None, ..Settings::default() })?);
    wait_until("the agent answers", || directory.is_linked())?;
    let provider = Arc::new(SoftwareProvider::from_environment()?);
    let config = Config { tenant: tenant.into(), ..Config::default() };
    let device = std::env::var("SCALEFABRIC_DEVICE").unwrap_or_else(|_| "sflo".into());
    let mut builder = Fabric::builder(provider).device(device).config(config).exchange(Arc::new(Tcp::new()));
    if let Some(node) = directory.node() {
        builder = builder.node(node);
    }
    let fabric = builder.listen_at("tcp://127.0.0.1:0").directory(directory.clone()).build()?;
    Ok((fabric, directory))
}

/// Memory of the tenant. Its keys are made anew when control orders it (`POST /v1/rotate`), or on a schedule.
fn pool(fabric: &Fabric, bytes: usize) -> Result<Pool, Box<dyn Error>> {
    let config = PoolConfig { initial_bytes: bytes, best_pages: PageKind::Plain, ..PoolConfig::default() };
    let pool = Pool::new(&fabric.protection_domains(), config)?;
    fabric.rotate_keys_of(&pool);
    Ok(pool)
}

/// Lends memory to everybody who may connect, until Ctrl-C.
fn serve(tenant: &str, service: &str) -> Result<(), Box<dyn Error>> {
    let (fabric, _directory) = fabric(tenant)?;
    let pool = pool(&fabric, 2 * LENT)?;
    let memory = Arc::new(pool.alloc(LENT)?);
    let listener = fabric.listen(service)?;
    println!("`{service}` of tenant `{tenant}`, at {}", fabric.addresses().join(" "));
    let (mut connections, mut rotations) = (Vec::new(), 0);
    loop {
        if let Some(connection) = listener.accept(Some(Duration::from_millis(200)))? {
            println!("connected: {}", connection.peer().map_or_else(String::new, |peer| peer.name));
            connection.lend(1, memory.clone(), 0, LENT)?;
            connections.push(connection);
        }
        connections.retain(|connection: &Connection| connection.closed().is_none());
        let (count, last) = fabric.last_rotation();
        if count > rotations {
            println!("keys were made anew, {count} times by now: {last:?}");
            rotations = count;
        }
    }
}

/// Writes to what is lent and reads it back; shows the key of before, when there is a new one, and says what became of that.
fn make_use(tenant: &str, service: &str, seconds: u64) -> Result<(), Box<dyn Error>> {
    let (fabric, directory) = fabric(tenant)?;
    wait_until("the service is known", || !directory.resolve(service).is_empty())?;
    let connection = fabric.connect(&Target::Service(service.into()))?;
    let first = connection.offered(1, Some(PATIENCE))?.ok_or("nothing was lent")?;
    let pool = pool(&fabric, 4 * BLOCK)?;
    let local = Arc::new(pool.alloc(2 * BLOCK)?);
    let lent = |offset: usize| Remote::Offered { id: 1, offset: offset as u64 };
    let piece = |buffer: &Arc<Buffer>, at: usize| Piece::new(buffer.clone(), at, BLOCK);
    let (mut done, mut failed, mut posted, begun) = (0u64, 0u64, 0u64, Instant::now());
    let mut out = [Completion::default(); 16];
    while begun.elapsed() < Duration::from_secs(seconds) || posted > done + failed {
        if begun.elapsed() < Duration::from_secs(seconds) && posted - done - failed < 16 {
            let at = posted as usize * BLOCK % LENT;
            let (from, into) = (piece(&local, 0), piece(&local, BLOCK));
            let write = Operation::write(&from, lent(at)).idempotent();
            posted += connection.try_post(&[write, Operation::read(&into, lent(at))])? as u64;
        }
        let count = connection.wait(&mut out, Some(Duration::from_millis(10)))?;
        for completion in &out[..count] {
            if completion.outcome.is_done() {
                done += 1;
            } else {
                failed += 1;
                eprintln!("failed: {:?}", completion.outcome);
            }
        }
    }
    let (elapsed, statistics) = (begun.elapsed().as_secs_f64(), connection.statistics());
    let gbps = done as f64 * BLOCK as f64 * 8.0 / elapsed / 1e9;
    println!("{done} operations in {elapsed:.1} s, {gbps:.3} Gb/s, {failed} failed, {} rebuilds", statistics.rebuilds);
    let now = connection.offered(1, Some(PATIENCE))?.ok_or("nothing is lent any more")?;
    if now != first {
        let outcome = connection.execute(Operation::read(&piece(&local, BLOCK), Remote::Range(first)))?;
        println!("the first key, which was made anew since: {outcome:?}");
    }
    connection.close(Some(PATIENCE))?;
    if failed > 0 { Err("operations failed".into()) } else { Ok(()) }
}

/// Takes regions until it has so many, or is refused; then QPs of connections to itself.
fn have(tenant: &str, count: u64, bytes: usize) -> Result<(), Box<dyn Error>> {
    let (fabric, directory) = fabric(tenant)?;
    println!("before: {:?}", directory.held(tenant));
    let mut regions = Vec::new();
    for _ in 0..count {
        match fabric.protection_domain().alloc_mr(bytes, AccessFlags::LOCAL_WRITE) {
            Ok(region) => regions.push(region),
            Err(refused) => {
                println!("region {}: {refused}", regions.len() + 1);
                break;
            }
        }
    }
    println!("with {} regions of {bytes} bytes: {:?}", regions.len(), directory.held(tenant));
    Ok(())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not after {PATIENCE:?}: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
