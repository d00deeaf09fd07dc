//! Errors of the fabric library: who must act, what was wrong, what to do. It holds no policy: what is tried again is decided where it is tried.

use scalefabric_verbs::{Blame, Errno, VerbsError};
use std::fmt;

/// What kind of thing went wrong, for programs. People read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The caller asked for something that cannot be: change the call.
    Misuse,
    /// This machine refuses: memory, limits, devices, files.
    Environment,
    /// The peer broke a rule, or refused.
    Peer,
    /// The peer is not there or did not answer in time. It may be tried again.
    Unreachable,
    /// A newer holder has taken over (fencing), or a policy forbids it.
    NoAuthority,
    /// The connection was closed, by whom the message says.
    Closed,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError {
    /// Kind.
    pub fault: Fault,
    /// The verbs' errno, where one is behind it.
    pub errno: Option<Errno>,
    /// What was wrong, with its value, and what to do.
    pub message: String,
}

impl FabricError {
    /// An error of this kind.
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, errno: None, message: message.into() }
    }

    /// The caller's fault.
    pub fn misuse(message: impl Into<String>) -> Self {
        Self::new(Fault::Misuse, message)
    }

    /// The machine's fault.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(Fault::Environment, message)
    }

    /// The peer's fault.
    pub fn peer(message: impl Into<String>) -> Self {
        Self::new(Fault::Peer, message)
    }

    /// Nobody answers.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Fault::Unreachable, message)
    }

    /// The same error, said in the context of what was being done.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FabricError {}

impl From<VerbsError> for FabricError {
    fn from(error: VerbsError) -> Self {
        let fault = match error.blame {
            Blame::ApiMisuse => Fault::Misuse,
            Blame::Environment => Fault::Environment,
            Blame::PeerMisbehaved => Fault::Peer,
        };
        Self { fault, errno: Some(error.errno), message: error.message }
    }
}
