//! Waiting for what comes by itself. The bound is that of a machine that is very busy; nothing is measured by it.

use std::time::{Duration, Instant};

/// After this, something has not happened and will not.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until it is so; a test that waits in vain fails and says what for.
#[track_caller]
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_or(is_so, || what.to_owned());
}

/// The same, for a test that can say more about why it waits in vain.
#[track_caller]
pub fn eventually_or(mut is_so: impl FnMut() -> bool, what: impl FnOnce() -> String) {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() >= PATIENCE {
            panic!("it never came: {}", what());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
