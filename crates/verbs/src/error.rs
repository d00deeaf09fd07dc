//! Errors of the verbs. Each carries the `errno` that libibverbs would give, and a sentence that says what was wrong,
//! with its value, and what to do. A failed completion is not an error of this kind: it is protocol.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// The `errno` values that verbs use, by their Linux numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, clippy::upper_case_acronyms)]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    EINTR = 4,
    EIO = 5,
    ENXIO = 6,
    EBADF = 9,
    EAGAIN = 11,
    ENOMEM = 12,
    EACCES = 13,
    EFAULT = 14,
    EBUSY = 16,
    EEXIST = 17,
    ENODEV = 19,
    EINVAL = 22,
    ENOSPC = 28,
    ENOSYS = 38,
    ENODATA = 61,
    EPROTO = 71,
    EPROTONOSUPPORT = 93,
    EOPNOTSUPP = 95,
    EAFNOSUPPORT = 97,
    EADDRINUSE = 98,
    EADDRNOTAVAIL = 99,
    ENETDOWN = 100,
    ENETUNREACH = 101,
    ECONNRESET = 104,
    EISCONN = 106,
    ENOTCONN = 107,
    ETIMEDOUT = 110,
    ECONNREFUSED = 111,
    EHOSTUNREACH = 113,
    EALREADY = 114,
}

impl Errno {
    /// The Linux number, as C functions return it.
    pub const fn to_raw(self) -> i32 {
        self as i32
    }

    /// The errno of a Linux number, if it is one that verbs use.
    pub const fn from_raw(raw: i32) -> Option<Self> {
        Some(match raw {
            1 => Self::EPERM,
            2 => Self::ENOENT,
            4 => Self::EINTR,
            5 => Self::EIO,
            6 => Self::ENXIO,
            9 => Self::EBADF,
            11 => Self::EAGAIN,
            12 => Self::ENOMEM,
            13 => Self::EACCES,
            14 => Self::EFAULT,
            16 => Self::EBUSY,
            17 => Self::EEXIST,
            19 => Self::ENODEV,
            22 => Self::EINVAL,
            28 => Self::ENOSPC,
            38 => Self::ENOSYS,
            61 => Self::ENODATA,
            71 => Self::EPROTO,
            93 => Self::EPROTONOSUPPORT,
            95 => Self::EOPNOTSUPP,
            97 => Self::EAFNOSUPPORT,
            98 => Self::EADDRINUSE,
            99 => Self::EADDRNOTAVAIL,
            100 => Self::ENETDOWN,
            101 => Self::ENETUNREACH,
            104 => Self::ECONNRESET,
            106 => Self::EISCONN,
            107 => Self::ENOTCONN,
            110 => Self::ETIMEDOUT,
            111 => Self::ECONNREFUSED,
            113 => Self::EHOSTUNREACH,
            114 => Self::EALREADY,
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
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

    /// The peer did something that the protocol forbids.
    pub fn peer(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, blame: Blame::PeerMisbehaved, message: message.into() }
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

impl From<PostError> for VerbsError {
    /// The chain's index goes into the message; blame is the caller's, but for a full queue or exhausted memory.
    fn from(error: PostError) -> Self {
        let blame = match error.errno {
            Errno::ENOMEM | Errno::EFAULT | Errno::ENODEV | Errno::EIO => Blame::Environment,
            _ => Blame::ApiMisuse,
        };
        Self {
            errno: error.errno,
            blame,
            message: format!("work request {} of the chain: {}", error.index, error.reason),
        }
    }
}
