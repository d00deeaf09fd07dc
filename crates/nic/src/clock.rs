//! The clock of the live device: CLOCK_MONOTONIC in nanoseconds. The engine never reads it; whoever drives the engine
//! reads it once a turn and hands it in. The simulator and the tests hand in their own time. Who drives may also let others
//! onto the processor here, between two turns and with no lock held; the engine may not.

use std::time::{SystemTime, UNIX_EPOCH};

use scalefabric_transport::Time;

/// Nanoseconds of CLOCK_MONOTONIC, the same in all processes of a machine.
pub fn now() -> Time {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec that outlives the call, which writes nothing else. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    Time(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// The same clock as of the kernel's last tick, some milliseconds ago at most: a fifth of the cost, for what only wants to know that time passes.
#[inline]
pub fn coarse() -> Time {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut ts) };
    Time(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// Lets other threads onto the processor: a sender that nothing holds back would keep its receiver off it.
pub fn breathe() {
    std::thread::yield_now();
}

/// What has to be added to [`now`] to get nanoseconds since 1970, as the time of day is set at this moment.
pub fn epoch_offset_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    since_1970.saturating_sub(now().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let first = now();
        let second = now();
        assert!(second >= first && first.0 > 0);
        assert!(coarse() <= now(), "the last tick is not in the future");
    }
}
