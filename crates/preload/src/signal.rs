//! Signals that arrive while a call of a program waits. The kernel would begin the call again or end it with `EINTR`, as the
//! handler says; we sleep in `ppoll`, which always ends, and ask what the handlers say.

use scalefabric_verbs::{Errno, VerbsError};

/// Whether each handler of the process asks for interrupted calls to go on (`SA_RESTART`).
pub fn handlers_restart() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: zeros are a value of this struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks; `action` lives through the call.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        asked != 0
            || action.sa_sigaction == libc::SIG_DFL
            || action.sa_sigaction == libc::SIG_IGN
            || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// What a wait without end does when a signal ended it: begin again (`Ok`), or give `EINTR` to the program.
pub fn interrupted() -> Result<(), VerbsError> {
    if handlers_restart() {
        return Ok(());
    }
    Err(VerbsError::environment(
        Errno::EINTR,
        "a signal arrived, and its handler does not ask for calls to begin again",
    ))
}
