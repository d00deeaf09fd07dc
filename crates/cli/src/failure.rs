//! How a command fails: with a sentence that says what was wrong, where, and what to do, and with an exit code.

use scalefabric_verbs::VerbsError;
use std::fmt;
use std::process::ExitCode;

/// Why a command could not do its work.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usage,
    Failed,
    /// Somebody else tells it.
    Told,
    Interrupted,
}

impl Failure {
    /// The command line or an input file is wrong: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into() }
    }

    /// The work failed: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, message: message.into() }
    }

    /// Ctrl-C: exit code 130, as shells expect, and no message.
    pub fn interrupted() -> Self {
        Self { kind: Kind::Interrupted, message: "interrupted".to_owned() }
    }

    /// A failure that has been told already: only the exit code is left to give.
    pub fn told(failure: Self) -> Self {
        Self { kind: Kind::Told, ..failure }
    }

    /// True if the command line or an input file is wrong.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// True if there is something to print.
    pub fn is_to_be_told(&self) -> bool {
        matches!(self.kind, Kind::Usage | Kind::Failed)
    }

    /// The same failure, with what was being done in front.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// 2 for wrong use, 130 for Ctrl-C, 1 for all else.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Usage => 2,
            Kind::Interrupted => 130,
            Kind::Failed | Kind::Told => 1,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        Self::failed(error.to_string())
    }
}

/// Adds to any error what was being done.
pub trait During<T> {
    /// `what` is put in front of the error's own sentence.
    fn during<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T, Failure> {
        self.map_err(|error| Failure::failed(format!("{}: {error}", what())))
    }
}
