//! A lock that expires, and a token that tells its holders apart. No two clocks are compared: a holder counts from when it *asked*, by its own clock; who wants the lease
//! counts from when it *saw* it last change, by its own. The holder stops earlier than anybody else may begin, as long as no clock runs faster than
//! another by more than the term's margin. Time is an argument.
//!
//! The word is `epoch (32) | holder (16) | renewals (16)`; holder 0: free. Each taking raises the epoch, which is the fencing token: who guards
//! something refuses lower ones ([`Fence`]), and then even a holder that does not know yet that it is late does no harm.

use super::cell::CELL_BYTES;
use super::lock::{look, replace};
use super::{Area, Failure};
use crate::directory::FencingToken;
use crate::error::{FabricError, Fault};
use std::time::Duration;

/// How long a lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    /// From a renewal on, as those see it who want the lease. Default 1 s. Short terms cost more renewals, long ones let a dead holder's
    /// lease lie longer.
    pub term: Duration,
    /// By how much earlier the holder itself stops. Default a tenth of the term: enough for clocks that differ by 10 % in speed. 0 trusts the
    /// clocks to run alike; the whole term would never let anybody hold it.
    pub margin: Duration,
}

impl Default for LeaseTerm {
    fn default() -> Self {
        Self { term: Duration::from_secs(1), margin: Duration::from_millis(100) }
    }
}

/// What came of asking for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// We hold it until then, by the clock that was asked with.
    Held {
        /// Higher than that of every holder before.
        token: FencingToken,
        /// When we must have stopped, unless renewed.
        until: Duration,
    },
    /// Another holds it, or may. Asking again before then is useless.
    NotYet {
        /// When it expires, unless its holder renews it.
        until: Duration,
    },
}

/// One side's view of a lease in the first word of an area. All who want it have an object of their own, with a `holder` of their own.
#[derive(Debug)]
pub struct Lease<A> {
    area: A,
    offset: u64,
    holder: u16,
    term: LeaseTerm,
    /// What we saw last that was not ours, and when we first saw it.
    seen: Option<(u64, Duration)>,
    /// Our word and when we must have stopped.
    held: Option<(u64, Duration)>,
}

fn word(epoch: u64, holder: u16, renewals: u16) -> u64 {
    epoch << 32 | u64::from(holder) << 16 | u64::from(renewals)
}

fn epoch_of(word: u64) -> u64 {
    word >> 32
}

fn holder_of(word: u64) -> u16 {
    (word >> 16) as u16
}

impl<A: Area> Lease<A> {
    /// The lease in cell `index` of an area of zeroed memory. `holder` is not 0 and nobody else's.
    pub fn new(area: A, index: u64, holder: u16, term: LeaseTerm) -> Result<Self, FabricError> {
        if holder == 0 || term.margin >= term.term || index >= area.length() / CELL_BYTES {
            return Err(FabricError::misuse(format!(
                "holder {holder}, cell {index}, margin {:?} of {:?}: a holder is not 0, a cell lies in the area, and a margin is shorter than the term",
                term.margin, term.term
            )));
        }
        Ok(Self { area, offset: index * CELL_BYTES, holder, term, seen: None, held: None })
    }

    /// Asks for it. `now` is read from a clock that never goes back, before the call.
    pub fn try_take(&mut self, now: Duration) -> Result<Taken, FabricError> {
        if let Some((held, until)) = self.held
            && now < until
        {
            return Ok(Taken::Held { token: FencingToken(epoch_of(held)), until });
        }
        self.held = None;
        let found = look(&self.area, self.offset)?;
        if holder_of(found) != 0 {
            let since = match self.seen {
                Some((seen, since)) if seen == found => since,
                _ => now,
            };
            self.seen = Some((found, since));
            let until = since + self.term.term;
            if now < until {
                return Ok(Taken::NotYet { until });
            }
        }
        let epoch = epoch_of(found) + 1;
        if epoch > u64::from(u32::MAX) {
            return Err(FabricError::misuse("the lease was taken 2^32 times, its tokens are used up: make a new one"));
        }
        let ours = word(epoch, self.holder, 0);
        if replace(&self.area, self.offset, found, ours)? {
            let until = now + (self.term.term - self.term.margin);
            self.held = Some((ours, until));
            return Ok(Taken::Held { token: FencingToken(epoch), until });
        }
        // Another was faster: its time begins when we see it, which is the next time.
        Ok(Taken::NotYet { until: now + self.term.term })
    }

    /// Holds it longer: until the term after `now`, less the margin. [`Fault::NoAuthority`] if it was taken over, or had expired.
    pub fn renew(&mut self, now: Duration) -> Result<Duration, FabricError> {
        let lost = |how: &str| {
            FabricError::new(
                Fault::NoAuthority,
                format!("the lease is lost ({how}): stop what it guards, and ask for it again"),
            )
        };
        let Some((held, until)) = self.held.filter(|(_, until)| now < *until) else {
            self.held = None;
            return Err(lost("it had expired"));
        };
        // A number that comes round after 65,536 renewals: nobody watches one value so long without seeing others.
        let next = word(epoch_of(held), self.holder, (held as u16).wrapping_add(1));
        if !replace(&self.area, self.offset, held, next)? {
            self.held = None;
            return Err(lost("another has taken it over"));
        }
        let until = (now + (self.term.term - self.term.margin)).max(until);
        self.held = Some((next, until));
        Ok(until)
    }

    /// Gives it back, so that others need not wait. Nothing happens if it is not ours any more.
    pub fn release(&mut self) -> Result<(), FabricError> {
        let Some((held, _)) = self.held.take() else { return Ok(()) };
        replace(&self.area, self.offset, held, word(epoch_of(held), 0, 0)).map(drop)
    }

    /// Our token while we hold it.
    pub fn token(&self, now: Duration) -> Option<FencingToken> {
        self.held.filter(|(_, until)| now < *until).map(|(held, _)| FencingToken(epoch_of(held)))
    }
}

/// The highest token that was let in, in a cell beside what is guarded.
#[derive(Debug)]
pub struct Fence<A> {
    area: A,
    offset: u64,
}

impl<A: Area> Fence<A> {
    /// In cell `index` of an area of zeroed memory.
    pub fn new(area: A, index: u64) -> Result<Self, FabricError> {
        if index >= area.length() / CELL_BYTES {
            return Err(FabricError::misuse(format!("cell {index} lies outside the area")));
        }
        Ok(Self { area, offset: index * CELL_BYTES })
    }

    /// Lets a token in, and shuts out all lower ones. [`Fault::NoAuthority`] for those that are shut out.
    pub fn admit(&self, token: FencingToken) -> Result<(), FabricError> {
        let mut highest = look(&self.area, self.offset)?;
        loop {
            if highest > token.0 {
                return Err(FabricError::new(
                    Fault::NoAuthority,
                    format!("token {} comes after token {highest}: another has taken over, stop", token.0),
                ));
            }
            if highest == token.0 {
                return Ok(());
            }
            match self.area.compare_swap(self.offset, highest, token.0) {
                Ok(found) if found == highest => return Ok(()),
                Ok(found) => highest = found,
                Err(Failure { in_doubt: true, .. }) => highest = look(&self.area, self.offset)?,
                Err(failure) => return Err(failure.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;
    use proptest::prelude::*;
    use std::sync::Arc;

    const MS: Duration = Duration::from_millis(1);

    fn lease(area: &Arc<Stage>, holder: u16) -> Lease<Arc<Stage>> {
        Lease::new(area.clone(), 0, holder, LeaseTerm { term: 100 * MS, margin: 20 * MS }).unwrap()
    }

    fn token(taken: Taken) -> u64 {
        match taken {
            Taken::Held { token, .. } => token.0,
            Taken::NotYet { until } => panic!("not before {until:?}"),
        }
    }

    #[test]
    fn a_lease_is_taken_renewed_lost_and_taken_over() {
        let area = Arc::new(Stage::new(128));
        let (mut one, mut two) = (lease(&area, 1), lease(&area, 2));
        assert_eq!(one.try_take(Duration::ZERO).unwrap(), Taken::Held { token: FencingToken(1), until: 80 * MS });
        // The clocks of the two have nothing in common.
        assert_eq!(two.try_take(5000 * MS).unwrap(), Taken::NotYet { until: 5100 * MS });
        assert_eq!(one.renew(60 * MS).unwrap(), 140 * MS);
        assert_eq!(two.try_take(5100 * MS).unwrap(), Taken::NotYet { until: 5200 * MS });
        assert_eq!(one.token(139 * MS), Some(FencingToken(1)));
        assert_eq!(one.token(140 * MS), None);
        assert_eq!(token(two.try_take(5200 * MS).unwrap()), 2);
        assert_eq!(one.renew(139 * MS).unwrap_err().fault, Fault::NoAuthority);
        two.release().unwrap();
        assert_eq!(token(one.try_take(200 * MS).unwrap()), 3);
        let fence = Fence::new(area, 1).unwrap();
        fence.admit(FencingToken(2)).unwrap();
        fence.admit(FencingToken(3)).unwrap();
        assert_eq!(fence.admit(FencingToken(2)).unwrap_err().fault, Fault::NoAuthority);
        fence.admit(FencingToken(3)).unwrap();
    }

    #[test]
    fn answers_that_were_lost_are_looked_up() {
        for done in [true, false] {
            let area = Arc::new(Stage::new(64));
            let mut one = lease(&area, 1);
            // The first atomic is the look, which is repeated by itself.
            area.doubt(done);
            area.doubt(done);
            assert_eq!(token(one.try_take(Duration::ZERO).unwrap()), 1);
            area.doubt(done);
            one.renew(10 * MS).unwrap();
            area.doubt(done);
            one.release().unwrap();
            assert_eq!(token(lease(&area, 2).try_take(Duration::ZERO).unwrap()), 2);
        }
    }

    proptest! {
        /// Two clocks of different speed and beginning, steps in any order: never do two believe that they hold it, and tokens rise.
        #[test]
        fn two_never_hold_it_at_once(
            steps in prop::collection::vec((0..2_usize, 0..3_u8, 0..40_u64), 1..200),
            begins in (0..1_000_000_u64, 0..1_000_000_u64),
            slower in 0..2_usize,
        ) {
            let area = Arc::new(Stage::new(64));
            let mut sides = [lease(&area, 1), lease(&area, 2)];
            let mut real_us = 0_u64;
            // One clock runs up to 20 % slower than the other.
            let clock = |side: usize, real_us: u64| {
                let begin = if side == 0 { begins.0 } else { begins.1 };
                let gone = if side == slower { real_us - real_us / 6 } else { real_us };
                Duration::from_micros(begin + gone)
            };
            let mut highest = 0;
            for (side, action, pause_ms) in steps {
                real_us += pause_ms * 1000;
                let now = clock(side, real_us);
                match action {
                    0 => if let Taken::Held { token, .. } = sides[side].try_take(now).unwrap() {
                        prop_assert!(token.0 >= highest);
                        highest = token.0;
                    },
                    1 => drop(sides[side].renew(now)),
                    _ => sides[side].release().unwrap(),
                }
                let held = (0..2).filter(|side| sides[*side].token(clock(*side, real_us)).is_some()).count();
                prop_assert!(held <= 1, "both hold the lease at {real_us} us");
            }
        }
    }

    /// The canary: without a margin, clocks that differ break it, and the checker above would see it.
    #[test]
    fn without_a_margin_different_clocks_let_two_hold_it() {
        let area = Arc::new(Stage::new(64));
        let term = LeaseTerm { term: 100 * MS, margin: Duration::ZERO };
        let mut slow = Lease::new(area.clone(), 0, 1, term).unwrap();
        let mut fast = Lease::new(area, 0, 2, term).unwrap();
        assert_eq!(token(slow.try_take(Duration::ZERO).unwrap()), 1);
        fast.try_take(Duration::ZERO).unwrap();
        assert_eq!(token(fast.try_take(100 * MS).unwrap()), 2);
        assert!(slow.token(84 * MS).is_some() && fast.token(100 * MS).is_some());
    }
}
