//! The signal handlers that turn a fault inside our copy routines into an error return, and nothing else.

/// Makes sure that this thread may touch registered memory now: our SIGSEGV and SIGBUS handlers stand in front of
/// whatever the application installed, and this thread does not block the two signals.
///
/// Call it before each turn of the engine. `now_ns` is any monotonic clock: the handlers are looked at again (two system
/// calls) when more than a millisecond has passed since the last look. An application that replaces the handler inside
/// that millisecond, and unmaps memory inside it too, gets the signal.
pub fn ensure(_now_ns: u64) {
    todo!()
}
