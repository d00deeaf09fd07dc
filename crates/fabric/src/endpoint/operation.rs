//! What an application asks a connection to do. An operation borrows what it names until it is posted; the connection copies small bytes and keeps
//! larger memory alive by its handle, so that it can post the operation again when a QP has failed. It posts nothing itself.

use crate::buffer::{Local, RemoteRange};
use crate::operation::Repeat;
use std::sync::Arc;

/// A piece of registered memory, held as long as an operation needs it.
#[derive(Clone)]
pub struct Piece {
    pub(crate) memory: Arc<dyn Local>,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Piece {
    /// `offset .. offset + length` of registered memory. Whether it lies inside is looked at when it is posted.
    pub fn new(memory: Arc<dyn Local>, offset: usize, length: usize) -> Self {
        Self { memory, offset, length }
    }

    /// All of it.
    pub fn whole(memory: Arc<dyn Local>) -> Self {
        let length = memory.len();
        Self { memory, offset: 0, length }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Piece").field("offset", &self.offset).field("length", &self.length).finish_non_exhaustive()
    }
}

/// Local bytes of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Bytes that are copied when they are posted: at most [`super::Config::max_inline`] of them.
    Bytes(&'a [u8]),
    /// Registered memory: at most [`MAX_PIECES`] pieces. What is gathered is small enough for inline data is still sent from the memory.
    Pieces(&'a [Piece]),
}

/// Most pieces of an operation.
pub const MAX_PIECES: usize = 4;

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a [Piece]> for Source<'a> {
    fn from(pieces: &'a [Piece]) -> Self {
        Self::Pieces(pieces)
    }
}

impl<'a> From<&'a Piece> for Source<'a> {
    fn from(piece: &'a Piece) -> Self {
        Self::Pieces(std::slice::from_ref(piece))
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub enum Remote {
    /// By address and key. It does not follow a rotation of the peer's keys.
    Range(RemoteRange),
    /// What the peer has offered under a number ([`super::Connection::offer`]); the key is looked up each time the operation is posted, so that it
    /// follows rotations.
    Offered {
        /// The offer's number.
        id: u32,
        /// First byte within it.
        offset: u64,
    },
}

impl From<RemoteRange> for Remote {
    fn from(range: RemoteRange) -> Self {
        Self::Range(range)
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Verb<'a> {
    /// SEND, with immediate data if given.
    Send { source: Source<'a>, imm: Option<u32> },
    /// RDMA WRITE, with immediate data if given (then the peer spends a receive on it).
    Write { source: Source<'a>, remote: Remote, imm: Option<u32> },
    /// RDMA READ into local pieces.
    Read { into: &'a [Piece], remote: Remote },
    /// 8-byte compare and swap; the old value goes into the piece.
    CompareSwap { old: &'a Piece, remote: Remote, compare: u64, swap: u64 },
    /// 8-byte fetch and add; the old value goes into the piece.
    FetchAdd { old: &'a Piece, remote: Remote, add: u64 },
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What.
    pub verb: Verb<'a>,
    /// Returned with the completion. Default 0.
    pub context: u64,
    /// What becomes of it when nobody can say whether it was carried out. Default [`Repeat::Never`]; a READ is repeated in any case.
    pub repeat: Repeat,
    /// Wait until all READs and atomics before it are complete. Default false.
    pub fence: bool,
    /// Wake a receiver that waits for solicited events only. Default false.
    pub solicited: bool,
    /// Only a failure is reported. It may then leave without a signal; its memory is held until a later operation completes. Default false.
    pub quiet: bool,
}

impl<'a> Operation<'a> {
    /// An operation with defaults.
    pub fn new(verb: Verb<'a>) -> Self {
        Self { verb, context: 0, repeat: Repeat::Never, fence: false, solicited: false, quiet: false }
    }

    /// SEND.
    pub fn send(source: impl Into<Source<'a>>) -> Self {
        Self::new(Verb::Send { source: source.into(), imm: None })
    }

    /// SEND with 4 bytes of immediate data.
    pub fn send_with_imm(source: impl Into<Source<'a>>, imm: u32) -> Self {
        Self::new(Verb::Send { source: source.into(), imm: Some(imm) })
    }

    /// RDMA WRITE.
    pub fn write(source: impl Into<Source<'a>>, remote: impl Into<Remote>) -> Self {
        Self::new(Verb::Write { source: source.into(), remote: remote.into(), imm: None })
    }

    /// RDMA WRITE with immediate.
    pub fn write_with_imm(source: impl Into<Source<'a>>, remote: impl Into<Remote>, imm: u32) -> Self {
        Self::new(Verb::Write { source: source.into(), remote: remote.into(), imm: Some(imm) })
    }

    /// RDMA READ.
    pub fn read(into: &'a Piece, remote: impl Into<Remote>) -> Self {
        Self::new(Verb::Read { into: std::slice::from_ref(into), remote: remote.into() })
    }

    /// Compare and swap of 8 bytes. The remote range must have 8 bytes, at a multiple of 8.
    pub fn compare_swap(old: &'a Piece, remote: impl Into<Remote>, compare: u64, swap: u64) -> Self {
        Self::new(Verb::CompareSwap { old, remote: remote.into(), compare, swap })
    }

    /// Fetch and add of 8 bytes.
    pub fn fetch_add(old: &'a Piece, remote: impl Into<Remote>, add: u64) -> Self {
        Self::new(Verb::FetchAdd { old, remote: remote.into(), add })
    }

    /// With this context in its completion.
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// May be repeated.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.repeat = Repeat::Idempotent;
        self
    }

    /// After all READs and atomics before it.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// With a solicited event.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Without a completion of its own unless it fails.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }
}
