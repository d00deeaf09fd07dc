//! The send queue's ring.

use scalefabric_transport::host::{SendWqe, WqeOp};
use scalefabric_verbs::{AddressVector, QKey, Qpn, SendFlags, Sge, Srqn};

use super::Refusal;
use crate::memory::Bind;

/// Sizes of a send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRingConfig {
    /// WRs, at least; rounded up to a power of two. At least 1.
    pub max_wr: u32,
    /// SGEs in a WR.
    pub max_sge: u32,
    /// Inline bytes in a WR.
    pub max_inline: u32,
    /// Whether WRs carry a datagram's address.
    pub ud: bool,
}

/// Where a WR's bytes are.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here: copied into the ring.
    Inline(&'a [u8]),
}

/// A send WR as the ring takes it.
#[derive(Clone, Copy, Debug)]
pub struct SendEntry<'a> {
    /// From the WR.
    pub wr_id: u64,
    /// Operation.
    pub op: WqeOp,
    /// Flags, with SIGNALED already set for `sq_sig_all`.
    pub flags: SendFlags,
    /// Bytes.
    pub data: SendData<'a>,
    /// UD: where it goes.
    pub ud: Option<(AddressVector, Qpn, QKey)>,
    /// XRC: the peer's SRQ.
    pub xrc_srqn: Option<Srqn>,
    /// With [`WqeOp::BindMw`]: the bind.
    pub bind: Option<Bind>,
}

/// The ring.
#[derive(Debug)]
pub struct SendRing {}

impl SendRing {
    /// An empty ring.
    pub fn new(_config: SendRingConfig) -> Self {
        todo!()
    }
    /// WRs it holds.
    pub fn capacity(&self) -> u32 {
        todo!()
    }
    /// SGEs a WR may have; at least what was asked for.
    pub fn max_sge(&self) -> u32 {
        todo!()
    }
    /// Inline bytes a WR may have; at least what was asked for.
    pub fn max_inline(&self) -> u32 {
        todo!()
    }
    /// Takes the posting side's lock. What is posted becomes visible to the engine with [`SendPoster::ring_doorbell`] or
    /// when the poster is dropped.
    pub fn poster(&self) -> SendPoster<'_> {
        todo!()
    }
    /// Engine: the WQE at `index`, or `None` if it is not posted yet.
    pub fn wqe(&self, _index: u32) -> Option<SendWqe> {
        todo!()
    }
    /// Engine: true if its bytes are inline.
    pub fn is_inline(&self, _index: u32) -> bool {
        todo!()
    }
    /// Engine: its SGEs; none if its bytes are inline.
    pub fn sges(&self, _index: u32) -> impl Iterator<Item = Sge> + '_ {
        std::iter::empty()
    }
    /// Engine: copies inline bytes from `offset`.
    pub fn copy_inline(&self, _index: u32, _offset: u32, _out: &mut [u8]) {
        todo!()
    }
    /// Engine: the bind of a BIND_MW WQE.
    pub fn bind(&self, _index: u32) -> Option<Bind> {
        todo!()
    }
    /// Engine: everything before `next` is done with.
    pub fn retire(&self, _next: u32) {
        todo!()
    }
    /// Index of the oldest WQE that is not retired.
    pub fn oldest(&self) -> u32 {
        todo!()
    }
    /// Index that the next posted WQE will have, as published.
    pub fn posted(&self) -> u32 {
        todo!()
    }
    /// Forgets everything; both counters start at 0 again (QP to RESET). The caller holds the engine's lock.
    pub fn reset(&self) {
        todo!()
    }
}

/// The posting side, while it holds the ring's lock.
#[derive(Debug)]
pub struct SendPoster<'r> {
    _ring: &'r SendRing,
}

impl SendPoster<'_> {
    /// Writes a WQE; returns its index.
    pub fn post(&mut self, _entry: &SendEntry<'_>) -> Result<u32, Refusal> {
        todo!()
    }
    /// Makes everything posted so far visible to the engine.
    pub fn ring_doorbell(&mut self) {
        todo!()
    }
}
