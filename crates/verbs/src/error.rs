//! Errors of the verbs. Each carries the `errno` that libibverbs would give, and a sentence that says what was wrong,
//! with its value, and what to do. A failed completion is not an error of this kind: it is protocol.

use alloc::string::String;
use core::fmt;

/// The `errno` values that verbs use, by their Linux numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, clippy::upper_case_acronyms)]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    EIO = 5,
    ENXIO = 6,
    EAGAIN = 11,
    ENOMEM = 12,
    EACCES = 13,
    EFAULT = 14,
    EBUSY = 16,
    EEXIST = 17,
    ENODEV = 19,
    EINVAL = 22,
    ENOSPC = 28,
    EPROTONOSUPPORT = 93,
    EOPNOTSUPP = 95,
    EADDRINUSE = 98,
    EADDRNOTAVAIL = 99,
    ENETDOWN = 100,
    ETIMEDOUT = 110,
}

/// Who must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The caller: the call itself is wrong.
    ApiMisuse,
    /// The machine: memory, descriptors, interfaces, another process.
    Environment,
    /// The peer.
    PeerMisbehaved,
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsError {
    /// What libibverbs would return.
    pub errno: Errno,
    /// Who must act.
    pub blame: Blame,
    /// What was wrong, with its value, and what to do.
    pub message: String,
}

impl VerbsError {
    /// A call that is wrong.
    pub fn misuse(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, blame: Blame::ApiMisuse, message: message.into() }
    }

    /// `EINVAL` with a reason.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::misuse(Errno::EINVAL, message)
    }

    /// The machine does not give what is needed.
    pub fn environment(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, blame: Blame::Environment, message: message.into() }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.errno)
    }
}

impl core::error::Error for VerbsError {}

/// A chain that could not be posted whole: WRs before `index` are posted, that one and later ones are not (`bad_wr`).
/// No allocation: posting is the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Index of the WR at fault.
    pub index: usize,
    /// What libibverbs would return.
    pub errno: Errno,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "work request {} of the chain: {} ({:?})", self.index, self.reason, self.errno)
    }
}

impl core::error::Error for PostError {}
