//! How a large operation is divided over rails, and what each rail is found to carry. Pure: no connection is known here.

/// Stripes begin at multiples of this, so that no page and no MTU is cut without need.
pub const UNIT: u64 = 4096;

/// A stripe is not shorter than this: below it the work for an operation outweighs what the second rail gives.
pub const LEAST: u64 = 64 << 10;

/// A piece of an operation on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Which rail.
    pub rail: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes; not 0.
    pub length: u64,
}

/// Divides `length` bytes by weight. Rails whose weight is 0, below 0 or no number get nothing; with no weight at all everything is the first rail's.
/// A rail whose share is below [`LEAST`] gets nothing, the lightest first. The stripes cover every byte once, in order of rails.
pub fn split(length: u64, weights: &[f64]) -> Vec<Stripe> {
    let mut weights: Vec<f64> =
        weights.iter().map(|weight| if weight.is_finite() && *weight > 0.0 { *weight } else { 0.0 }).collect();
    loop {
        let total: f64 = weights.iter().sum();
        let lightest =
            (0..weights.len()).filter(|rail| weights[*rail] > 0.0).min_by(|a, b| weights[*a].total_cmp(&weights[*b]));
        match lightest {
            Some(rail)
                if weights.iter().filter(|weight| **weight > 0.0).count() > 1
                    && length as f64 * weights[rail] / total < LEAST as f64 =>
            {
                weights[rail] = 0.0
            }
            Some(_) => return cut(length, &weights, total),
            None => return if length == 0 { Vec::new() } else { vec![Stripe { rail: 0, offset: 0, length }] },
        }
    }
}

/// Cuts at the unit that is nearest to each rail's share of what lies before it.
fn cut(length: u64, weights: &[f64], total: f64) -> Vec<Stripe> {
    let last = weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
    let (mut stripes, mut offset, mut before) = (Vec::with_capacity(weights.len()), 0, 0.0);
    for (rail, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        before += weight;
        let ideal = (length as f64 * (before / total) / UNIT as f64).round() as u64 * UNIT;
        let end = if rail == last { length } else { ideal.clamp(offset, length) };
        if end > offset {
            stripes.push(Stripe { rail, offset, length: end - offset });
        }
        offset = end;
    }
    stripes
}

/// What a rail is found to carry: a mean in which each stripe counts one eighth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    bytes_per_second: Option<f64>,
}

impl Estimate {
    /// A stripe took so long. One that took no time says nothing.
    pub fn observe(&mut self, bytes: u64, seconds: f64) {
        if bytes == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let new = bytes as f64 / seconds;
        self.bytes_per_second = Some(self.bytes_per_second.map_or(new, |old| old + (new - old) / 8.0));
    }

    /// Bytes per second, if any stripe was seen.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.bytes_per_second
    }
}

/// The weights to divide by: what was measured once every rail that is up has been, before that what was expected. `None`: a rail that is gone.
pub fn weights(rails: &[Option<(f64, Estimate)>]) -> Vec<f64> {
    let all_measured = rails.iter().flatten().all(|(_, estimate)| estimate.bytes_per_second.is_some());
    let weight = |(expected, estimate): &(f64, Estimate)| match estimate.bytes_per_second {
        Some(measured) if all_measured => measured,
        _ => *expected,
    };
    rails.iter().map(|rail| rail.as_ref().map_or(0.0, weight)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_follow_weights_and_light_rails_are_left_out() {
        let mib = 1 << 20;
        let stripe = |rail, offset, length| Stripe { rail, offset, length };
        assert_eq!(split(4 * mib, &[1.0, 1.0]), [stripe(0, 0, 2 * mib), stripe(1, 2 * mib, 2 * mib)]);
        assert_eq!(split(4 * mib, &[3.0, 1.0]), [stripe(0, 0, 3 * mib), stripe(1, 3 * mib, mib)]);
        assert_eq!(split(2 * LEAST, &[1.0, 1.0]), [stripe(0, 0, LEAST), stripe(1, LEAST, LEAST)]);
        assert_eq!(split(2 * LEAST - 1, &[1.0, 1.01]), [stripe(1, 0, 2 * LEAST - 1)]);
        assert_eq!(split(mib, &[0.0, f64::NAN, 1.0]), [stripe(2, 0, mib)]);
        assert_eq!(split(mib, &[0.0, -1.0]), [stripe(0, 0, mib)]);
    }

    #[test]
    fn a_rail_is_weighed_by_what_was_measured_when_all_were() {
        let mut fast = Estimate::default();
        fast.observe(1000, 1.0);
        fast.observe(0, 1.0);
        fast.observe(5, 0.0);
        let unknown = Estimate::default();
        assert_eq!(weights(&[Some((1.0, fast)), Some((2.0, unknown)), None]), [1.0, 2.0, 0.0]);
        let mut slow = Estimate::default();
        slow.observe(100, 1.0);
        assert_eq!(weights(&[Some((1.0, fast)), Some((2.0, slow)), None]), [1000.0, 100.0, 0.0]);
        slow.observe(900, 1.0);
        assert_eq!(slow.bytes_per_second(), Some(200.0));
    }

    proptest! {
        #[test]
        fn every_byte_is_carried_once(length in 0u64..1 << 32, weights in prop::collection::vec(-1.0f64..1e12, 1..6)) {
            let mut next = 0;
            for stripe in split(length, &weights) {
                prop_assert_eq!(stripe.offset, next);
                prop_assert!(stripe.length > 0 && stripe.offset % UNIT == 0);
                next += stripe.length;
            }
            prop_assert_eq!(next, length);
        }
    }
}
