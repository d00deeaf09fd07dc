//! The passive side of a workload: offers a service for each kind of traffic, lends memory to those who connect, answers ping-pongs and calls.

use super::{MESSAGE_BYTES, Stage};
use crate::demo::pattern;
use crate::failure::{During, Failure};
use crate::up::plan::{READ_BYTES, Traffic, service};
use scalefabric_fabric::endpoint::{Connection, Fabric, Listener, Operation, Remote};
use scalefabric_fabric::pool::Buffer;
use scalefabric_fabric::remote::rpc::{Line, Server};
use scalefabric_fabric::{FabricError, Fault, Local};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The number under which memory is offered on every connection.
pub const OFFER: u32 = 1;

/// How often a thread that waits looks whether it should end.
pub const LOOK: Duration = Duration::from_millis(200);

/// Bytes of a ping.
pub const PING_BYTES: usize = 8;

/// The seed of the bytes that a node lets others read.
pub fn read_seed(place: usize) -> u64 {
    pattern::scramble(0x7265_6164 + place as u64)
}

/// What a call is answered with.
pub fn answer(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|byte| !byte).collect()
}

/// The services; they are withdrawn when this is dropped.
#[derive(Debug)]
pub struct Services {
    _threads: Vec<JoinHandle<()>>,
}

impl Services {
    /// Offers all of them.
    pub fn offer(stage: &Arc<Stage>, fabric: &Fabric, node: &str) -> Result<Self, Failure> {
        let page = Arc::new(stage.pool.alloc(READ_BYTES as usize).during(|| "memory to be read")?);
        let mut bytes = vec![0; READ_BYTES as usize];
        pattern::fill(read_seed(stage.place), 0, &mut bytes);
        page.write(0, &bytes).during(|| "fill the memory to be read")?;
        let mut threads = Vec::new();
        for traffic in Traffic::ALL {
            let listener = fabric.listen(&service(node, traffic)).during(|| "offer a service")?;
            let host = Host { stage: stage.clone(), traffic, page: page.clone() };
            threads.push(std::thread::spawn(move || host.run(&listener)));
        }
        Ok(Self { _threads: threads })
    }
}

/// One service.
struct Host {
    stage: Arc<Stage>,
    traffic: Traffic,
    page: Arc<Buffer>,
}

/// What a connection needs for as long as it is there.
enum Kept {
    Memory { connection: Connection },
    Echo(JoinHandle<()>),
    Calls { connection: Connection, _server: Server },
}

impl Host {
    /// Takes connections in for as long as the process lives: others may still be at it when this node has ended.
    fn run(&self, listener: &Listener) {
        let mut kept = Vec::new();
        loop {
            match listener.accept(Some(LOOK)) {
                Ok(Some(connection)) => match self.take(&connection) {
                    Ok(one) => kept.push(one),
                    Err(error) => self.stage.complain(format!("a connection that came: {}", error.message)),
                },
                Ok(None) => {}
                Err(_) => return,
            }
            kept.retain(|one| match one {
                Kept::Memory { connection } | Kept::Calls { connection, .. } => connection.closed().is_none(),
                Kept::Echo(thread) => !thread.is_finished(),
            });
        }
    }

    fn take(&self, connection: &Connection) -> Result<Kept, FabricError> {
        let pool = &self.stage.pool;
        let lend = |bytes: usize| {
            let buffer = Arc::new(pool.alloc(bytes)?);
            buffer.zero(0, bytes)?;
            lend_all(connection, &buffer)?;
            Ok::<_, FabricError>(buffer)
        };
        match self.traffic {
            Traffic::Stream => {
                lend(self.stage.plan.block_bytes as usize)?;
                Ok(Kept::Memory { connection: connection.clone() })
            }
            Traffic::Atomic => {
                lend(8)?;
                Ok(Kept::Memory { connection: connection.clone() })
            }
            Traffic::Read => {
                lend_all(connection, &self.page)?;
                Ok(Kept::Memory { connection: connection.clone() })
            }
            Traffic::PingPong => {
                let buffer = lend(PING_BYTES)?;
                let (stage, connection) = (self.stage.clone(), connection.clone());
                Ok(Kept::Echo(std::thread::spawn(move || {
                    if let Err(error) = echo(&connection, &buffer)
                        && error.fault != Fault::Closed
                    {
                        stage.complain(format!("the answering side of a ping-pong: {}", error.message));
                    }
                })))
            }
            Traffic::Call => {
                let line = Arc::new(Line::new(connection, pool, MESSAGE_BYTES as usize));
                let server = Server::new(line, 1, |request| Ok(answer(&request.body)))?;
                Ok(Kept::Calls { connection: connection.clone(), _server: server })
            }
        }
    }
}

/// Lets the peer use a buffer; its keys may be rotated meanwhile.
pub fn lend_all(connection: &Connection, buffer: &Arc<Buffer>) -> Result<(), FabricError> {
    connection.lend(OFFER, buffer.clone(), 0, buffer.len())
}

/// Sends back every ping until the connection is closed.
fn echo(connection: &Connection, buffer: &Buffer) -> Result<(), FabricError> {
    // A ping may come before the memory that the answer goes to is lent.
    while connection.offered(OFFER, Some(LOOK))?.is_none() {}
    loop {
        let Some(ping) = connection.receive(Some(LOOK))? else { continue };
        let imm = ping.imm().unwrap_or_default();
        drop(ping);
        let mut bytes = [0; PING_BYTES];
        buffer.read(0, &mut bytes)?;
        let back = Operation::write_with_imm(&bytes, Remote::Offered { id: OFFER, offset: 0 }, imm);
        let outcome = connection.execute(back)?;
        if !outcome.is_done() {
            return Err(FabricError::peer(format!("a ping was not sent back: {outcome:?}")));
        }
    }
}
