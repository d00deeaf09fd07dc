//! An area over a connection: each call posts one operation and waits for its end. Buffers for what is fetched come from the pool. It decides nothing about repeats but what
//! the operations' meaning says: READs and WRITEs of the same bytes may be done twice, atomics may not.

use super::{Area, Failure};
use crate::buffer::Local;
use crate::endpoint::{Connection, MAX_INLINE, Operation, Piece, Remote};
use crate::error::FabricError;
use crate::operation::Outcome;
use crate::pool::{Buffer, Pool};
use scalefabric_verbs::WcStatus;
use std::sync::Arc;

/// A range of the peer's memory.
///
/// Calls wait for the connection, so that it must not have a handler for completions (`on_completion`) that somebody else's operations need in order.
#[derive(Clone, Debug)]
pub struct Far {
    connection: Connection,
    remote: Remote,
    length: u64,
    pool: Pool,
}

impl Far {
    /// What the peer has offered under a number ([`Connection::offer`]), or a range by its key. `length` bytes of it are used.
    pub fn new(connection: &Connection, remote: impl Into<Remote>, length: u64, pool: &Pool) -> Self {
        Self { connection: connection.clone(), remote: remote.into(), length, pool: pool.clone() }
    }

    fn at(&self, offset: u64, length: usize) -> Result<Remote, FabricError> {
        let outside =
            || FabricError::misuse(format!("{length} bytes at {offset} of a far area of {}: outside it", self.length));
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(outside());
        }
        Ok(match self.remote {
            Remote::Range(range) => Remote::Range(range.part(offset, length as u64).ok_or_else(outside)?),
            Remote::Offered { id, offset: first } => {
                Remote::Offered { id, offset: first.checked_add(offset).ok_or_else(outside)? }
            }
        })
    }

    fn word(&self, offset: u64) -> Result<(Remote, Arc<Buffer>), FabricError> {
        if !offset.is_multiple_of(8) {
            return Err(FabricError::misuse(format!("an atomic at {offset}: words begin at multiples of 8")));
        }
        Ok((self.at(offset, 8)?, Arc::new(self.pool.alloc_aligned(8, 8)?)))
    }

    fn execute(&self, operation: Operation<'_>) -> Result<(), Failure> {
        match self.connection.execute(operation)? {
            Outcome::Done(_) => Ok(()),
            Outcome::NotDone(status) => Err(Failure::not_done(ended(status))),
            Outcome::InDoubt(status) => Err(Failure::in_doubt(ended(status))),
        }
    }
}

fn ended(status: WcStatus) -> FabricError {
    match status {
        WcStatus::RemAccessErr => FabricError::peer(
            "the peer refuses access: its key is old, the range is outside, or the access was not granted; ask for its offer again",
        ),
        WcStatus::RemInvReqErr => FabricError::peer(
            "the peer cannot do that: atomics want words of 8 bytes at multiples of 8, and memory that allows them",
        ),
        status => FabricError::unreachable(format!(
            "the operation ended with {status:?}: the connection is being rebuilt or closed"
        )),
    }
}

impl Area for Far {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        let remote = self.at(offset, out.len())?;
        let buffer = Arc::new(self.pool.alloc(out.len())?);
        let piece = Piece::new(buffer.clone() as Arc<dyn Local>, 0, out.len());
        self.execute(Operation::read(&piece, remote))?;
        Ok(buffer.read(0, out)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let remote = self.at(offset, data.len())?;
        if data.len() <= MAX_INLINE {
            return self.execute(Operation::write(data, remote).idempotent());
        }
        let buffer = Arc::new(self.pool.alloc(data.len())?);
        buffer.write(0, data)?;
        let piece = Piece::new(buffer as Arc<dyn Local>, 0, data.len());
        self.execute(Operation::write(&piece, remote).idempotent())
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Failure> {
        let (remote, buffer) = self.word(offset)?;
        let piece = Piece::new(buffer.clone() as Arc<dyn Local>, 0, 8);
        self.execute(Operation::fetch_add(&piece, remote, add))?;
        Ok(buffer.load_u64(0)?)
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Failure> {
        let (remote, buffer) = self.word(offset)?;
        let piece = Piece::new(buffer.clone() as Arc<dyn Local>, 0, 8);
        self.execute(Operation::compare_swap(&piece, remote, compare, swap))?;
        Ok(buffer.load_u64(0)?)
    }
}
