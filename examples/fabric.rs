//! Two fabrics that find each other over TCP on this host, and a connection that survives: messages, one-sided operations on memory that the peer offers,
//! and a QP that is made anew while nobody notices.
//!
//! Run it with `cargo run --example fabric`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use scalefabric_fabric::Local;
use scalefabric_fabric::RemoteRange;
use scalefabric_fabric::endpoint::{Config, Fabric, Operation, Piece, Remote, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::{AccessFlags, MemoryRegion, Sge};

/// How long this program waits for anything.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// Memory of one's own, as connections want it. The pool has better.
struct Region(Arc<dyn MemoryRegion>);

impl Local for Region {
    fn len(&self) -> usize {
        self.0.length()
    }

    fn sge(&self, offset: usize, length: usize) -> Option<Sge> {
        let inside = offset.checked_add(length)? <= self.len();
        inside.then(|| Sge { addr: self.0.addr() + offset as u64, length: length as u32, lkey: self.0.lkey() })
    }

    fn remote(&self, offset: usize, length: usize) -> Option<RemoteRange> {
        let inside = offset.checked_add(length)? <= self.len();
        let addr = self.0.addr() + offset as u64;
        inside.then(|| RemoteRange { addr, length: length as u64, rkey: self.0.rkey().0 })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let provider = Arc::new(SoftwareProvider::from_environment()?);
    let build =
        || Fabric::builder(provider.clone()).device("sflo").config(Config::default()).exchange(Arc::new(Tcp::new()));

    // One side listens, the other connects. Both are in this process only to keep the example short.
    let server = build().listen_at("tcp://127.0.0.1:0").build()?;
    let listener = server.listen("greeting")?;
    let client = build().build()?;
    let near = client.connect(&Target::at(server.addresses()[0].clone(), "greeting"))?;
    let far = listener.accept(PATIENCE)?.ok_or("nobody connected")?;

    // A message: small bytes are copied when they are posted.
    near.execute(Operation::send(b"hello"))?;
    let message = far.receive(PATIENCE)?.ok_or("no message")?;
    println!("received {:?}", String::from_utf8_lossy(&message.to_vec()?));

    // Memory that the peer may use, under a number that both sides know.
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let memory = Region(server.protection_domain().alloc_mr(4096, rights)?);
    far.offer(1, memory.remote(0, 4096).ok_or("no range")?)?;
    near.offered(1, PATIENCE)?.ok_or("nothing was offered")?;

    // The QP fails and is made anew; the WRITE and the READ know nothing of it.
    near.rebuild("to show it")?;
    near.execute(Operation::write(b"written from afar", Remote::Offered { id: 1, offset: 0 }))?;
    let copy = Arc::new(Region(client.protection_domain().alloc_mr(64, rights)?));
    near.execute(Operation::read(&Piece::new(copy.clone(), 0, 17), Remote::Offered { id: 1, offset: 0 }))?;
    let mut bytes = [0; 17];
    copy.0.read(0, &mut bytes)?;
    println!("read back {:?} after {} rebuild", String::from_utf8_lossy(&bytes), near.statistics().rebuilds);

    near.close(PATIENCE)?;
    Ok(())
}
