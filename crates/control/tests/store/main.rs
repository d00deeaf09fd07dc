//! One conformance suite for every store, the embedded one and etcd; and what only one of them can suffer: damaged files here, lost answers and
//! lost leaders there. etcd is started by the test as a child, on free ports; without it its half is skipped and says so.

mod damage;
mod etcd_server;
mod faults;
mod suite;

use scalefabric_control::clock::Manual;
use scalefabric_control::store::etcd::Settings;
use scalefabric_control::store::{Embedded, Etcd, Store};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A store and its time.
trait World: Send + Sync {
    fn store(&self) -> Arc<dyn Store>;
    /// Whether time passes only when it is told to.
    fn is_exact(&self) -> bool;
    /// Lets time pass for leases.
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A folder of the test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sfab-store-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct EmbeddedWorld {
    store: Arc<Embedded>,
    clock: Arc<Manual>,
    _folder: Folder,
}

impl EmbeddedWorld {
    fn new() -> Self {
        let folder = Folder::new();
        let clock = Arc::new(Manual::default());
        let store = Embedded::open(&folder.file("store"), Arc::clone(&clock) as _).expect("a new store");
        Self { store: Arc::new(store), clock, _folder: folder }
    }
}

impl World for EmbeddedWorld {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            // In small steps: a clock that leaps means that the process stood still.
            let step = Duration::from_millis(100);
            for _ in 0..time.as_millis().div_ceil(step.as_millis()) {
                self.clock.advance(step);
                self.store.expire().await.expect("the store looks at its leases");
            }
        })
    }
}

struct EtcdWorld(Arc<Etcd>);

impl World for EtcdWorld {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0) as _
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(tokio::time::sleep(time))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_store_conforms() {
    suite::run(&|| Box::new(EmbeddedWorld::new()) as Box<dyn World>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_conforms() {
    let Some(server) = etcd_server::Server::start() else { return };
    let count = AtomicU32::new(0);
    suite::run(&|| {
        // Each case has a part of the keys to itself.
        let root = format!("case{}/", count.fetch_add(1, Ordering::Relaxed));
        let settings = Settings { root, ..Settings::new(vec![server.address()]) };
        Box::new(EtcdWorld(Arc::new(Etcd::new(&settings).expect("an address")))) as Box<dyn World>
    })
    .await;
}
