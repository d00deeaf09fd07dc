//! The log of a connection's operations: what was asked for, in order, until it has ended. It is what makes rebuild exact: an operation's bytes and place
//! are known until its end is. A ring of fixed size: nothing is allocated once it is made.

use super::config::MAX_INLINE;
use super::operation::{MAX_PIECES, Operation, Remote, Source, Verb};
use crate::buffer::{Local, RemoteRange};
use crate::error::FabricError;
use crate::operation::{Outcome, Repeat};
use crate::session::LaneId;
use scalefabric_verbs::{RKey, SendFlags, SendOp, SendWr, Sge, Srqn, WcOpcode, WcStatus, WorkCompletion};
use std::sync::Arc;

/// An operation without what it borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send {
        imm: Option<u32>,
    },
    Write {
        imm: Option<u32>,
    },
    Read,
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// A WRITE of no bytes, posted to have a signal behind operations that have none.
    Probe,
}

impl Kind {
    /// It spends a receive of the peer.
    pub fn is_message(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { imm: Some(_) })
    }

    /// It counts against `max_rd_atomic`.
    pub fn is_rd_atomic(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// It may change something at the peer.
    pub fn changes_peer(self) -> bool {
        !matches!(self, Self::Read | Self::Probe)
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    fn completes_as(self) -> WcOpcode {
        match self {
            Self::Send { .. } => WcOpcode::Send,
            Self::Write { .. } | Self::Probe => WcOpcode::RdmaWrite,
            Self::Read => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }
}

/// Who is told how an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Who polls, and only if it failed.
    Quiet,
    /// Who polls, or the handler.
    Queue,
    /// Who waits for it: a cell.
    Cell(u32),
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not posted on any lane, or surely not executed there.
    Waiting,
    /// Posted.
    Posted,
    /// Its end is known.
    Ended(Outcome),
}

/// One entry.
pub(crate) struct Slot {
    pub kind: Kind,
    pub stage: Stage,
    pub report: Report,
    pub repeat: Repeat,
    pub context: u64,
    /// The lane it was posted on last.
    pub lane: LaneId,
    /// Its number among messages, if it is one; valid when posted.
    pub message: u64,
    /// Its first PSN and how many it takes; valid when posted.
    pub psn: u32,
    pub psns: u32,
    /// A completion with an error.
    pub failed: Option<WcStatus>,
    pub remote: Option<Remote>,
    /// The key it was posted with.
    pub rkey: u32,
    remote_addr: u64,
    pub length: u32,
    flags: SendFlags,
    signalled: bool,
    /// The rotation of local keys that its SGEs are from, and the device.
    pub keys: u32,
    pub domain: usize,
    /// XRC: the SRQ of the peer that it is for.
    xrc_srqn: Option<Srqn>,
    pieces: u8,
    sges: [Sge; MAX_PIECES],
    offsets: [usize; MAX_PIECES],
    holds: [Option<Arc<dyn Local>>; MAX_PIECES],
    inline_len: u16,
    inline: [u8; MAX_INLINE],
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            kind: Kind::Probe,
            stage: Stage::Waiting,
            report: Report::Quiet,
            repeat: Repeat::Never,
            context: 0,
            lane: LaneId(0),
            message: 0,
            psn: 0,
            psns: 0,
            failed: None,
            remote: None,
            rkey: 0,
            remote_addr: 0,
            length: 0,
            flags: SendFlags::empty(),
            signalled: false,
            keys: 0,
            domain: 0,
            xrc_srqn: None,
            pieces: 0,
            sges: [Sge::default(); MAX_PIECES],
            offsets: [0; MAX_PIECES],
            holds: [const { None }; MAX_PIECES],
            inline_len: 0,
            inline: [0; MAX_INLINE],
        }
    }
}

/// What the peer offers under a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// This, by a key that is good on the lane in use.
    Now(RemoteRange),
    /// Memory by the key of another lane: the one for this lane is on its way.
    Later,
    /// Nothing.
    Never,
}

/// Whether an operation knows where the peer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    Yes,
    /// It has to wait for the peer's word.
    Later,
    /// It is not offered, or too short.
    No,
}

/// What an operation must keep within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub max_inline: usize,
    pub max_rd_atomic: u8,
    /// Longest message that the peer's receives hold.
    pub peer_receive_bytes: u32,
    /// Counts rotations of local keys.
    pub keys: u32,
    /// The device whose keys are taken.
    pub domain: usize,
    /// XRC: the SRQ of the peer that is meant.
    pub xrc_srqn: Option<Srqn>,
}

impl Slot {
    /// Takes an operation in. On error the slot is as unused as before.
    pub fn fill(&mut self, operation: &Operation<'_>, bounds: &Bounds) -> Result<(), FabricError> {
        let (kind, source, remote) = match operation.verb {
            Verb::Send { source, imm } => (Kind::Send { imm }, source, None),
            Verb::Write { source, remote, imm } => (Kind::Write { imm }, source, Some(remote)),
            Verb::Read { into, remote } => (Kind::Read, Source::Pieces(into), Some(remote)),
            Verb::CompareSwap { old, remote, compare, swap } => {
                (Kind::CompareSwap { compare, swap }, old.into(), Some(remote))
            }
            Verb::FetchAdd { old, remote, add } => (Kind::FetchAdd { add }, old.into(), Some(remote)),
        };
        (self.pieces, self.inline_len, self.length) = (0, 0, 0);
        (self.keys, self.domain, self.xrc_srqn) = (bounds.keys, bounds.domain, bounds.xrc_srqn);
        self.flags = SendFlags::empty();
        match source {
            Source::Bytes(bytes) => {
                if bytes.len() > bounds.max_inline {
                    return Err(FabricError::misuse(format!(
                        "{} plain bytes are more than the {} that are sent inline: put them into registered memory",
                        bytes.len(),
                        bounds.max_inline
                    )));
                }
                self.inline[..bytes.len()].copy_from_slice(bytes);
                self.inline_len = bytes.len() as u16;
                self.length = bytes.len() as u32;
                if !bytes.is_empty() {
                    self.flags |= SendFlags::INLINE;
                }
            }
            Source::Pieces(pieces) => self.gather(pieces, bounds.domain)?,
        }
        self.check(kind, remote, bounds)?;
        self.flags.set(SendFlags::FENCE, operation.fence);
        self.flags.set(SendFlags::SOLICITED, operation.solicited);
        (self.kind, self.remote, self.stage, self.failed) = (kind, remote, Stage::Waiting, None);
        (self.repeat, self.context) = (operation.repeat, operation.context);
        self.report = if operation.quiet { Report::Quiet } else { Report::Queue };
        Ok(())
    }

    /// An operation of no bytes and no effect, which nobody hears of.
    pub fn fill_probe(&mut self, bounds: &Bounds) {
        (self.keys, self.domain, self.xrc_srqn) = (bounds.keys, bounds.domain, bounds.xrc_srqn);
        (self.pieces, self.inline_len, self.length, self.flags) = (0, 0, 0, SendFlags::empty());
        (self.kind, self.remote, self.stage, self.failed) = (Kind::Probe, None, Stage::Waiting, None);
        (self.repeat, self.context, self.report) = (Repeat::Idempotent, 0, Report::Quiet);
    }

    fn gather(&mut self, pieces: &[super::Piece], domain: usize) -> Result<(), FabricError> {
        if pieces.len() > MAX_PIECES {
            return Err(FabricError::misuse(format!("{} pieces are more than {MAX_PIECES}", pieces.len())));
        }
        let mut total = 0u64;
        for (index, piece) in pieces.iter().enumerate() {
            let sge = piece.memory.sge_on(domain, piece.offset, piece.length).ok_or_else(|| {
                FabricError::misuse(format!(
                    "{} bytes at {} are not within the memory, which has {}{}",
                    piece.length,
                    piece.offset,
                    piece.memory.len(),
                    if domain == 0 {
                        ""
                    } else {
                        ", or it is not registered with the device that the connection is on"
                    }
                ))
            })?;
            total += u64::from(sge.length);
            (self.sges[index], self.offsets[index]) = (sge, piece.offset);
        }
        if total > 1 << 31 {
            return Err(FabricError::misuse(format!("{total} bytes are more than a message can have, 2^31")));
        }
        for (hold, piece) in self.holds.iter_mut().zip(pieces) {
            *hold = Some(piece.memory.clone());
        }
        (self.pieces, self.length) = (pieces.len() as u8, total as u32);
        Ok(())
    }

    fn check(&mut self, kind: Kind, remote: Option<Remote>, bounds: &Bounds) -> Result<(), FabricError> {
        let wrong = if kind.is_rd_atomic() && bounds.max_rd_atomic == 0 {
            Some("READs and atomics are not possible: one of the sides has max_rd_atomic 0".to_owned())
        } else if kind.is_atomic() && self.length != 8 {
            Some(format!("an atomic returns 8 bytes, the piece has {}", self.length))
        } else if matches!(kind, Kind::Send { .. }) && self.length > bounds.peer_receive_bytes {
            Some(format!(
                "a message of {} bytes is longer than the peer's receives, {}: make them larger there, or WRITE",
                self.length, bounds.peer_receive_bytes
            ))
        } else if let Some(Remote::Range(range)) = remote
            && u64::from(self.length) > range.length
        {
            Some(format!("{} bytes do not fit the peer's range of {}", self.length, range.length))
        } else {
            None
        };
        match wrong {
            None => Ok(()),
            Some(wrong) => {
                self.release();
                Err(FabricError::misuse(wrong))
            }
        }
    }

    /// Looks up where the peer's memory is now.
    pub fn resolve_remote(&mut self, offered: impl Fn(u32) -> Offered) -> Resolved {
        let range = match self.remote {
            None => {
                (self.remote_addr, self.rkey) = (0, 0);
                return Resolved::Yes;
            }
            Some(Remote::Range(range)) => Some(range),
            Some(Remote::Offered { id, offset }) => match offered(id) {
                Offered::Now(range) => range.part(offset, u64::from(self.length)),
                Offered::Later => return Resolved::Later,
                Offered::Never => None,
            },
        };
        let Some(range) = range else { return Resolved::No };
        (self.remote_addr, self.rkey) = (range.addr, range.rkey);
        Resolved::Yes
    }

    /// Names its local memory by the keys of now: those that it was filled with were made anew since, or are another device's. False: it is not registered
    /// with this device.
    pub fn renew_local(&mut self, keys: u32, domain: usize) -> bool {
        for index in 0..usize::from(self.pieces) {
            let (offset, length) = (self.offsets[index], self.sges[index].length as usize);
            match self.holds[index].as_ref().and_then(|memory| memory.sge_on(domain, offset, length)) {
                Some(sge) => self.sges[index] = sge,
                None if domain != self.domain => return false,
                None => {}
            }
        }
        (self.keys, self.domain) = (keys, domain);
        true
    }

    /// It is about to be posted.
    pub fn mark(&mut self, lane: LaneId, message: u64, psn: u32, psns: u32, signalled: bool) {
        (self.stage, self.lane, self.failed) = (Stage::Posted, lane, None);
        (self.message, self.psn, self.psns, self.signalled) = (message, psn, psns, signalled);
    }

    /// The work request that posts it.
    pub fn work_request(&self, wr_id: u64) -> SendWr<'_> {
        let (remote_addr, rkey) = (self.remote_addr, RKey(self.rkey));
        let op = match self.kind {
            Kind::Send { imm: None } => SendOp::Send,
            Kind::Send { imm: Some(imm) } => SendOp::SendWithImm { imm },
            Kind::Write { imm: None } | Kind::Probe => SendOp::Write { remote_addr, rkey },
            Kind::Write { imm: Some(imm) } => SendOp::WriteWithImm { remote_addr, rkey, imm },
            Kind::Read => SendOp::Read { remote_addr, rkey },
            Kind::CompareSwap { compare, swap } => SendOp::CompareSwap { remote_addr, rkey, compare, swap },
            Kind::FetchAdd { add } => SendOp::FetchAdd { remote_addr, rkey, add },
        };
        let mut wr = SendWr::new(wr_id, op);
        wr.flags = self.flags;
        wr.flags.set(SendFlags::SIGNALED, self.signalled);
        wr.sg_list = &self.sges[..usize::from(self.pieces)];
        wr.inline_data = &self.inline[..usize::from(self.inline_len)];
        wr.xrc_srqn = self.xrc_srqn;
        wr
    }

    /// The completion that an operation without a signal would have had.
    pub fn success(&self) -> WorkCompletion {
        WorkCompletion {
            status: WcStatus::Success,
            opcode: self.kind.completes_as(),
            byte_len: self.length,
            ..WorkCompletion::default()
        }
    }

    /// Lets go of memory.
    pub fn release(&mut self) {
        for hold in &mut self.holds[..MAX_PIECES] {
            if hold.is_none() {
                break;
            }
            *hold = None;
        }
    }

    /// It is to have a signal after all.
    pub fn signal(&mut self) {
        self.signalled = true;
    }

    pub fn signalled(&self) -> bool {
        self.signalled
    }
}

/// The ring.
pub(crate) struct Log {
    slots: Box<[Slot]>,
    /// Numbers of entries count up for ever: the oldest that has not ended, and the next.
    pub head: u64,
    pub tail: u64,
}

impl Log {
    pub fn new(depth: u32) -> Self {
        Self { slots: (0..depth.max(1)).map(|_| Slot::default()).collect(), head: 0, tail: 0 }
    }

    pub fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    pub fn room(&self) -> usize {
        self.slots.len() - self.len()
    }

    pub fn get(&self, number: u64) -> &Slot {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }

    pub fn get_mut(&mut self, number: u64) -> &mut Slot {
        let index = (number % self.slots.len() as u64) as usize;
        &mut self.slots[index]
    }

    pub fn contains(&self, number: u64) -> bool {
        (self.head..self.tail).contains(&number)
    }
}
