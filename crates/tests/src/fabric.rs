//! Two fabrics of this process that reach one another over a device of two ports on the loopback, and memory for them: what tests and benchmarks of
//! connections stand on.

use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Listener, Piece, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::pool::{Buffer, PageKind, Pool, PoolConfig, Zeroing};
use scalefabric_fabric::{Local, RemoteRange};
use scalefabric_nic::PortChange;
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions, RequestPath};
use scalefabric_nic::port::faults::FaultSpec;
use scalefabric_nic::provider::{SoftwareContext, SoftwareProvider};
use scalefabric_verbs::{AccessFlags, MemoryRegion, Sge};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// After this, something has not happened and will not.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The device of this process: with addresses of its own and not shared, so that tests of other processes, which call theirs by the same name, do not meet it.
pub fn provider() -> Arc<SoftwareProvider> {
    static PROVIDER: OnceLock<Arc<SoftwareProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| provider_with(None)).clone()
}

/// The same, with faults; for a process that has no other.
pub fn provider_with(faults: Option<FaultSpec>) -> Arc<SoftwareProvider> {
    make(0, faults)
}

/// Another device of this process, so that what becomes of its ports is nobody else's affair. `number`: 1 or 2.
pub fn provider_apart(number: u8) -> Arc<SoftwareProvider> {
    make(number, None)
}

/// Two devices of this process, `rail1` and `rail2`, with a port each.
pub fn provider_of_two() -> Arc<SoftwareProvider> {
    let device = |number| DeviceOptions {
        name: format!("rail{}", number + 1),
        ports: vec![port(number, 3)],
        ..DeviceOptions::default()
    };
    let devices = vec![device(0), device(1)];
    Arc::new(SoftwareProvider::new(Options {
        devices,
        automatic: false,
        share: false,
        path: path(),
        ..Options::default()
    }))
}

/// A device of this name with one port, beside all others of this process. `n`: 1 or 2.
pub fn provider_named(name: &str, n: u8, faults: Option<FaultSpec>) -> Arc<SoftwareProvider> {
    let device = DeviceOptions { name: name.to_owned(), ports: vec![port(3, n)], ..DeviceOptions::default() };
    let options =
        Options { devices: vec![device], automatic: false, share: false, faults, path: path(), ..Options::default() };
    Arc::new(SoftwareProvider::new(options))
}

fn make(number: u8, faults: Option<FaultSpec>) -> Arc<SoftwareProvider> {
    let name = if number == 0 { "pair".to_owned() } else { format!("pair{number}") };
    let device = DeviceOptions { name, ports: vec![port(number, 1), port(number, 2)], ..DeviceOptions::default() };
    let options =
        Options { devices: vec![device], automatic: false, share: false, faults, path: path(), ..Options::default() };
    Arc::new(SoftwareProvider::new(options))
}

/// The way of the requests of these devices: that of everybody, unless `SCALEFABRIC_PATH` says otherwise, by which the same tests are seen on the other one.
fn path() -> RequestPath {
    std::env::var("SCALEFABRIC_PATH").ok().and_then(|name| RequestPath::named(&name)).unwrap_or_default()
}

/// A port with an address of this process's own. `number`: 0 to 3; `n`: 1 to 3.
fn port(number: u8, n: u8) -> PortOptions {
    let id = std::process::id();
    let series = [100, 150, 200, 1][usize::from(number)] + (id >> 14) as u8 % 50;
    let address = IpAddr::from(Ipv4Addr::new(127, series, (id >> 6) as u8, (id << 2) as u8 | n));
    PortOptions { interface: "lo".into(), addresses: vec![address] }
}

/// Two fabrics, one of which listens.
#[derive(Debug)]
pub struct Pair {
    /// Listens.
    pub server: Fabric,
    /// Connects.
    pub client: Fabric,
    /// Its service.
    pub listener: Listener,
}

impl Pair {
    /// With connections of this kind.
    pub fn new(config: &Config) -> Self {
        Self::on(&provider(), config)
    }

    /// On this provider's devices.
    pub fn on(provider: &Arc<SoftwareProvider>, config: &Config) -> Self {
        let devices = &provider.options().devices;
        let build = |node: &str| {
            let builder = Fabric::builder(provider.clone()).device(devices[0].name.clone()).node(node);
            let builder = devices[1..].iter().fold(builder, |builder, device| builder.also(device.name.clone()));
            builder.config(config.clone()).exchange(Arc::new(Tcp::new()))
        };
        let server = build("server").listen_at("tcp://127.0.0.1:0").build().unwrap();
        let client = build("client").build().unwrap();
        let listener = server.listen("echo").unwrap();
        Self { server, client, listener }
    }

    /// A connection: the side that connected, and the other.
    pub fn connect(&self) -> (Connection, Connection) {
        let client = self.client.connect(&self.target()).unwrap();
        let server = self.listener.accept(Some(PATIENCE)).unwrap().expect("the peer is connected");
        (client, server)
    }

    /// Takes a port of the device down, or up again, for both.
    pub fn set_port(&self, port_num: u8, up: bool) {
        let context = self.client.context().as_any().downcast_ref::<SoftwareContext>().expect("a software device");
        let change = if up { PortChange::Up } else { PortChange::Down };
        context.core().change_port(port_num, &change).unwrap();
    }

    /// Where the server is.
    pub fn target(&self) -> Target {
        Target::at(self.server.addresses()[0].clone(), "echo")
    }
}

/// A pool for what peers use, registered with every device of the fabric.
pub fn pool(fabric: &Fabric) -> Pool {
    let config = PoolConfig {
        initial_bytes: 4 << 20,
        arena_bytes: 4 << 20,
        best_pages: PageKind::Plain,
        zeroing: Zeroing::OnAlloc,
        ..PoolConfig::default()
    };
    Pool::new(&fabric.protection_domains(), config).unwrap()
}

/// Memory of its own pool, zero.
pub fn buffer(fabric: &Fabric, length: usize) -> Arc<Buffer> {
    Arc::new(pool(fabric).alloc_aligned(length, 4096).unwrap())
}

/// A piece of a pool's memory.
pub fn piece(buffer: &Arc<Buffer>, offset: usize, length: usize) -> Piece {
    Piece::new(buffer.clone() as Arc<dyn Local>, offset, length)
}

/// A plain region.
#[derive(Debug)]
pub struct Region(pub Arc<dyn MemoryRegion>);

impl Region {
    /// With every right that peers can have.
    pub fn new(fabric: &Fabric, length: usize) -> Arc<Self> {
        let rights = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        Arc::new(Self(fabric.protection_domain().alloc_mr(length, rights).unwrap()))
    }

    /// A piece of it.
    pub fn piece(self: &Arc<Self>, offset: usize, length: usize) -> Piece {
        Piece::new(self.clone(), offset, length)
    }

    /// All of it, for a peer.
    pub fn range(&self) -> RemoteRange {
        self.remote(0, self.len()).unwrap()
    }

    /// A copy of what is there.
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read(offset, &mut bytes).unwrap();
        bytes
    }
}

impl Local for Region {
    fn len(&self) -> usize {
        self.0.length()
    }

    fn sge(&self, offset: usize, length: usize) -> Option<Sge> {
        let end = offset.checked_add(length)?;
        let length = u32::try_from(length).ok()?;
        (end <= self.len()).then(|| Sge { addr: self.0.addr() + offset as u64, length, lkey: self.0.lkey() })
    }

    fn remote(&self, offset: usize, length: usize) -> Option<RemoteRange> {
        let end = offset.checked_add(length)?;
        (end <= self.len()).then(|| RemoteRange {
            addr: self.0.addr() + offset as u64,
            length: length as u64,
            rkey: self.0.rkey().0,
        })
    }
}
