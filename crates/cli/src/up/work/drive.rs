//! The active side of a workload: a thread for each connection that this node made, which does one kind of operation at its pace and compares what comes back.

use super::pace::Pace;
use super::serve::{LOOK, OFFER, PING_BYTES, answer, lend_all, read_seed};
use super::{MESSAGE_BYTES, Own, Stage};
use crate::demo::pattern;
use crate::failure::{During, Failure};
use crate::up::event::Said;
use crate::up::plan::{READ_BYTES, Traffic};
use scalefabric_fabric::FabricError;
use scalefabric_fabric::endpoint::{Operation, Piece, Remote};
use scalefabric_fabric::pool::Buffer;
use scalefabric_fabric::remote::rpc::{Caller, Line};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an operation, or an answer, may take: far longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of so many WRITEs of a stream one is read back.
const READ_BACK: u64 = 8;

/// Bytes that are read back at either end of a block.
const EDGE_BYTES: usize = 4096;

/// Bytes of a call.
const CALL_BYTES: usize = 64;

/// A connection's thread.
pub struct Driver {
    thread: JoinHandle<Result<(), FabricError>>,
    what: String,
}

impl Driver {
    /// Starts it. `number` tells its times from those of the others.
    pub fn start(stage: &Arc<Stage>, own: &Arc<Own>, number: usize) -> Result<Self, Failure> {
        let what = format!("{} to {}", own.line.traffic.name(), stage.plan.node(own.line.to));
        let (stage, own) = (stage.clone(), own.clone());
        let thread = std::thread::Builder::new()
            .name("drive".into())
            .spawn(move || {
                let driven = drive(&stage, &own, number);
                if let Err(error) = &driven {
                    own.failed(&stage, &error.message);
                    super::tell(&Said::Failed { message: format!("{}: {}", own.line.traffic.name(), error.message) });
                }
                driven
            })
            .during(|| "start a thread")?;
        Ok(Self { thread, what })
    }

    /// Waits for its end.
    pub fn join(self) -> Result<(), Failure> {
        let Self { thread, what } = self;
        thread.join().map_err(|_| Failure::failed(format!("{what}: its thread panicked")))?.during(|| what)
    }
}

fn drive(stage: &Stage, own: &Own, number: usize) -> Result<(), FabricError> {
    let mut work = Work::new(stage, own)?;
    let mut pace = Pace::new(own.line.rate_mhz, number, stage.begun.elapsed());
    while !stage.stops() {
        let rate_mhz = if stage.is_hot() { own.line.hot_rate_mhz } else { own.line.rate_mhz };
        pace.set_rate(rate_mhz, stage.begun.elapsed());
        match pace.take(stage.begun.elapsed()) {
            Some(early) => std::thread::sleep(early.min(LOOK)),
            None => work.step()?,
        }
    }
    Ok(())
}

/// What a kind of traffic does.
enum Kind {
    Stream { block: Arc<Buffer>, edge: Arc<Buffer> },
    Read { into: Arc<Buffer>, expected: Vec<u8> },
    Atomic { old: Arc<Buffer> },
    PingPong { memory: Arc<Buffer> },
    Call { caller: Caller },
}

struct Work<'a> {
    stage: &'a Stage,
    own: &'a Own,
    kind: Kind,
    /// Operations so far.
    number: u64,
}

/// Memory of the peer.
fn there(offset: u64) -> Remote {
    Remote::Offered { id: OFFER, offset }
}

impl<'a> Work<'a> {
    fn new(stage: &'a Stage, own: &'a Own) -> Result<Self, FabricError> {
        let alloc = |bytes: usize| Ok::<_, FabricError>(Arc::new(stage.pool.alloc(bytes)?));
        let kind = match own.line.traffic {
            Traffic::Stream => {
                let mut bytes = vec![0; stage.plan.block_bytes as usize];
                pattern::fill(pattern::scramble(own.connection.id().serial), 0, &mut bytes);
                let block = alloc(bytes.len())?;
                block.write(0, &bytes)?;
                Kind::Stream { block, edge: alloc(EDGE_BYTES)? }
            }
            Traffic::Read => {
                let mut expected = vec![0; READ_BYTES as usize];
                pattern::fill(read_seed(own.line.to), 0, &mut expected);
                Kind::Read { into: alloc(expected.len())?, expected }
            }
            Traffic::Atomic => Kind::Atomic { old: alloc(8)? },
            Traffic::PingPong => {
                let memory = alloc(PING_BYTES)?;
                lend_all(&own.connection, &memory)?;
                Kind::PingPong { memory }
            }
            Traffic::Call => {
                let line = Line::new(&own.connection, &stage.pool, MESSAGE_BYTES as usize);
                Kind::Call { caller: Caller::new(Arc::new(line), 1)? }
            }
        };
        if !matches!(kind, Kind::Call { .. }) && own.connection.offered(OFFER, Some(PATIENCE))?.is_none() {
            return Err(FabricError::peer(format!("the peer lends no memory within {PATIENCE:?}")));
        }
        Ok(Self { stage, own, kind, number: 0 })
    }

    /// The next operation.
    fn step(&mut self) -> Result<(), FabricError> {
        self.number += 1;
        match &self.kind {
            Kind::Stream { block, edge } => self.write_block(block, edge),
            Kind::Read { into, expected } => self.read(into, expected),
            Kind::Atomic { old } => self.add(old),
            Kind::PingPong { memory } => self.ping(memory),
            Kind::Call { caller } => {
                self.call(caller);
                Ok(())
            }
        }
    }

    /// Does an operation; false if it failed, which is noted.
    fn execute(&self, operation: Operation<'_>) -> Result<bool, FabricError> {
        let outcome = self.own.connection.execute(operation)?;
        if !outcome.is_done() {
            self.own.failed(self.stage, format_args!("operation {}: {outcome:?}", self.number));
        }
        Ok(outcome.is_done())
    }

    fn write_block(&self, block: &Arc<Buffer>, edge: &Arc<Buffer>) -> Result<(), FabricError> {
        let bytes = self.stage.plan.block_bytes as usize;
        let stamp = self.number.to_le_bytes();
        block.write(0, &stamp)?;
        block.write(bytes - stamp.len(), &stamp)?;
        let begun = Instant::now();
        if !self.execute(Operation::write(&Piece::new(block.clone(), 0, bytes), there(0)))? {
            return Ok(());
        }
        self.own.done(begun, bytes as u64, 0);
        if !self.number.is_multiple_of(READ_BACK) {
            return Ok(());
        }
        for offset in [0, bytes - EDGE_BYTES] {
            let piece = Piece::new(edge.clone(), 0, EDGE_BYTES);
            if !self.execute(Operation::read(&piece, there(offset as u64)))? {
                continue;
            }
            let (mut sent, mut found) = (vec![0; EDGE_BYTES], vec![0; EDGE_BYTES]);
            block.read(offset, &mut sent)?;
            edge.read(0, &mut found)?;
            if sent != found {
                self.own.damaged(self.stage, format_args!("WRITE {}: other bytes are there at {offset}", self.number));
            }
        }
        Ok(())
    }

    fn read(&self, into: &Arc<Buffer>, expected: &[u8]) -> Result<(), FabricError> {
        let begun = Instant::now();
        if !self.execute(Operation::read(&Piece::new(into.clone(), 0, expected.len()), there(0)))? {
            return Ok(());
        }
        self.own.done(begun, 0, expected.len() as u64);
        let mut found = vec![0; expected.len()];
        into.read(0, &mut found)?;
        if found != expected {
            self.own.damaged(self.stage, format_args!("READ {} brought other bytes", self.number));
        }
        // What comes next must come anew.
        into.zero(0, expected.len())
    }

    fn add(&self, old: &Arc<Buffer>) -> Result<(), FabricError> {
        let begun = Instant::now();
        if !self.execute(Operation::fetch_add(&Piece::new(old.clone(), 0, 8), there(0), 1))? {
            return Ok(());
        }
        self.own.done(begun, 8, 8);
        let found = old.load_u64(0)?;
        if found != self.number - 1 {
            let expected = self.number - 1;
            self.own.damaged(self.stage, format_args!("it was {found} and must have been {expected}"));
        }
        Ok(())
    }

    fn ping(&self, memory: &Buffer) -> Result<(), FabricError> {
        let begun = Instant::now();
        let ping = self.number.to_le_bytes();
        if !self.execute(Operation::write_with_imm(&ping, there(0), self.number as u32))? {
            return Ok(());
        }
        let Some(pong) = self.own.connection.receive(Some(PATIENCE))? else {
            self.own.failed(self.stage, format_args!("ping {} did not come back", self.number));
            return Ok(());
        };
        self.own.done(begun, PING_BYTES as u64, PING_BYTES as u64);
        let imm = pong.imm();
        drop(pong);
        let mut found = [0; PING_BYTES];
        memory.read(0, &mut found)?;
        if imm != Some(self.number as u32) || found != ping {
            self.own.damaged(self.stage, format_args!("ping {} came back as {imm:?}, {found:?}", self.number));
        }
        Ok(())
    }

    fn call(&self, caller: &Caller) {
        let mut body = [0; CALL_BYTES];
        pattern::fill(0, self.number, &mut body);
        let begun = Instant::now();
        match caller.call(1, &body, PATIENCE) {
            Ok(found) => {
                self.own.done(begun, CALL_BYTES as u64, CALL_BYTES as u64);
                if found != answer(&body) {
                    self.own.damaged(self.stage, format_args!("call {} has another answer", self.number));
                }
            }
            Err(error) => self.own.failed(self.stage, format_args!("call {}: {error}", self.number)),
        }
    }
}
