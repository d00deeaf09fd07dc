//! PINT for HPCC: a switch keeps the utilisation of each port itself, and a packet carries one byte, the code of the fullest
//! port that it crossed (SIGCOMM 2020, §4.3). Codes are a logarithmic scale, so that one byte spans four decades within 5 %.

use super::moment::Moment;

/// Ratio of two neighbouring codes.
const STEP: f64 = 1.05;
/// Utilisation of code 1. Code 0 is a packet that no switch wrote on.
const LEAST: f64 = 0.01;

const SCALE: [f64; 256] = {
    let mut scale = [0.0; 256];
    let (mut code, mut value) = (1, LEAST);
    while code < 256 {
        scale[code] = value;
        value *= STEP;
        code += 1;
    }
    scale
};

/// What a code means; 1 is a full link.
pub fn utilisation(code: u8) -> f64 {
    SCALE[usize::from(code)]
}

/// The smallest code that means at least `utilisation`; the largest there is for what is beyond.
pub fn code(utilisation: f64) -> u8 {
    let at = SCALE[1..].partition_point(|value| *value < utilisation);
    (at + 1).min(255) as u8
}

/// What a switch remembers of a port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Port {
    rate_bps: u64,
    base_rtt_ps: u64,
    last: Moment,
    utilisation: f64,
}

impl Port {
    /// A port of `rate_bps` in a network whose longest base RTT is `base_rtt_ps`.
    pub fn new(rate_bps: u64, base_rtt_ps: u64) -> Self {
        Self { rate_bps: rate_bps.max(1), base_rtt_ps: base_rtt_ps.max(1), last: Moment(0), utilisation: 0.0 }
    }

    /// A packet of `bytes` leaves, and `queue_bytes` wait behind it. `code`: what it carries; returns what it carries from now on.
    pub fn forward(&mut self, now: Moment, bytes: u32, queue_bytes: u64, carried: u8) -> u8 {
        let whole = self.base_rtt_ps as f64;
        let tau = now.since(self.last).min(self.base_rtt_ps) as f64;
        self.last = now;
        let capacity = self.rate_bps as f64 / 8e12 * whole;
        self.utilisation = self.utilisation * (1.0 - tau / whole)
            + f64::from(bytes) / capacity
            + queue_bytes as f64 / capacity * (tau / whole);
        carried.max(code(self.utilisation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_within_a_step_of_what_it_stands_for() {
        let mut value = 0.011;
        while value < 1000.0 {
            let back = utilisation(code(value));
            assert!(back >= value && back <= value * STEP * 1.000_001, "{value} came back as {back}");
            value *= 1.013;
        }
        assert_eq!((code(0.0), code(1e9)), (1, 255));
        assert_eq!(utilisation(0), 0.0);
    }

    #[test]
    fn a_port_that_sends_all_the_time_is_full_and_a_queue_shows_beyond() {
        // 100 Gb/s, 1000 bytes each 80 ns.
        let mut port = Port::new(100_000_000_000, 4_000_000);
        let mut now = Moment(0);
        let mut seen = 0;
        for _ in 0..1000 {
            now = now.after(80_000);
            seen = port.forward(now, 1000, 0, 0);
        }
        assert!((0.98..1.06).contains(&utilisation(seen)), "{}", utilisation(seen));
        // Half the bandwidth-delay product waits: 50 % more.
        for _ in 0..1000 {
            now = now.after(80_000);
            seen = port.forward(now, 1000, 25_000, 0);
        }
        assert!((1.48..1.58).contains(&utilisation(seen)), "{}", utilisation(seen));
        assert_eq!(port.forward(now.after(80_000), 1000, 0, 200), 200, "a fuller port before it stays");
    }
}
