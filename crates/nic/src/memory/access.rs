//! What the engine does with memory during a turn: look up, check, copy.

use scalefabric_transport::host::{AccessFault, AtomicOp, LocalFault, RemoteAccess};
use scalefabric_verbs::{AccessFlags, FlushLevel, FlushPlacement, Qpn, RKey, Sge, WcStatus};

use super::table::PdId;
use super::window::Bind;

/// The engine's way into the table. There is one, so there is one turn at a time.
#[derive(Debug)]
pub struct Accessor {}

impl Accessor {
    /// Begins a turn. Everything that is deregistered from now on waits until the [`Access`] is dropped, so drop it at
    /// the end of the turn, and deregister nothing while you hold it.
    pub fn enter(&mut self) -> Access<'_> {
        todo!()
    }
}

/// On whose behalf memory is touched: the local QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// PD of the QP (of the XRC SRQ for an XRC target).
    pub pd: PdId,
    /// The QP, for windows of type 2.
    pub qpn: Qpn,
}

/// Memory during one turn.
#[derive(Debug)]
pub struct Access<'t> {
    _accessor: &'t mut Accessor,
}

impl Access<'_> {
    /// Checks that an SGE names bytes of the PD that may be read, or written if `write`. A length of 0 passes.
    pub fn check_local(&self, _pd: PdId, _sge: &Sge, _write: bool) -> Result<(), LocalFault> {
        todo!()
    }

    /// Fills `out` with the SGL's bytes from `offset`. The SGL must be long enough; else `OutOfBounds`.
    pub fn gather(
        &self,
        _pd: PdId,
        _sges: impl Iterator<Item = Sge>,
        _offset: u32,
        _out: &mut [u8],
    ) -> Result<(), LocalFault> {
        todo!()
    }

    /// Writes `data` into the SGL's bytes from `offset`.
    pub fn scatter(
        &self,
        _pd: PdId,
        _sges: impl Iterator<Item = Sge>,
        _offset: u32,
        _data: &[u8],
    ) -> Result<(), LocalFault> {
        todo!()
    }

    /// Checks a peer's access without doing it: key, PD, window's QP, rights, bounds, in this order. Length 0 passes.
    pub fn check_remote(&self, _peer: Peer, _access: &RemoteAccess) -> Result<(), AccessFault> {
        todo!()
    }

    /// Checks and writes. Bytes become visible in the order of their addresses; aligned 8-byte words never tear.
    pub fn write_remote(&self, _peer: Peer, _access: &RemoteAccess, _data: &[u8]) -> Result<(), AccessFault> {
        todo!()
    }

    /// Checks and reads `out.len()` bytes at `access.va`.
    pub fn read_remote(&self, _peer: Peer, _access: &RemoteAccess, _out: &mut [u8]) -> Result<(), AccessFault> {
        todo!()
    }

    /// Checks and does an atomic, atomic also for this host's processors; returns the old value (0 for `Write`).
    pub fn atomic_remote(&self, _peer: Peer, _access: &RemoteAccess, _op: AtomicOp) -> Result<u64, AccessFault> {
        todo!()
    }

    /// Checks and flushes.
    pub fn flush_remote(
        &self,
        _peer: Peer,
        _access: &RemoteAccess,
        _placement: FlushPlacement,
        _level: FlushLevel,
    ) -> Result<(), AccessFault> {
        todo!()
    }

    /// SEND with invalidate: the window's rkey stops working.
    pub fn invalidate_remote(&self, _peer: Peer, _rkey: RKey) -> Result<(), AccessFault> {
        todo!()
    }

    /// LOCAL_INV: `LocProtErr` or `LocQpOpErr` if it cannot be.
    pub fn invalidate_local(&self, _peer: Peer, _rkey: RKey) -> Result<(), WcStatus> {
        todo!()
    }

    /// Executes a bind: `MwBindErr` if it is not allowed. `qp_access`: bind is allowed whatever the QP's own rights.
    pub fn bind(&self, _peer: Peer, _bind: &Bind) -> Result<(), WcStatus> {
        let _ = AccessFlags::empty();
        todo!()
    }
}
