//! Something that does one thing at a time, first come, first served; and the logarithm by which locks get slower, the same on every machine.

/// A server with its queue, told by the time when it will be free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Free from this time on, in picoseconds.
    pub free: u64,
    /// Time that it was busy, in picoseconds.
    pub busy: u64,
}

impl Server {
    /// Who comes `at` is served for `service`: the time at which that begins.
    pub fn start(&mut self, at: u64, service: u64) -> u64 {
        let start = at.max(self.free);
        self.free = start + service;
        self.busy += service;
        start
    }

    /// The same: the time at which it ends.
    pub fn take(&mut self, at: u64, service: u64) -> u64 {
        self.start(at, service) + service
    }
}

/// ln k by its series, with nothing but the four operations: the library's may differ in the last bit from machine to machine. 0 for 0 and 1.
pub fn logarithm(k: u32) -> f64 {
    if k < 2 {
        return 0.0;
    }
    let doublings = k.ilog2();
    let rest = f64::from(k) / f64::from(1u32 << doublings);
    let z = (rest - 1.0) / (rest + 1.0);
    let (mut power, mut sum) = (z, 0.0);
    for odd in (1..30).step_by(2) {
        sum += power / f64::from(odd);
        power *= z * z;
    }
    f64::from(doublings) * std::f64::consts::LN_2 + 2.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_second_waits_for_the_first() {
        let mut server = Server::default();
        assert_eq!(server.start(10, 5), 10);
        assert_eq!(server.start(11, 5), 15);
        assert_eq!(server.take(100, 5), 105);
        assert_eq!(server.busy, 15);
    }

    #[test]
    fn the_logarithm_is_the_logarithm() {
        for k in [1u32, 2, 3, 5, 7, 16, 96, 4095, u32::MAX] {
            assert!((logarithm(k) - f64::from(k).ln()).abs() < 1e-9, "{k}");
        }
    }
}
