//! When an ACK leaves in a datagram of its own behind the one request of a turn, and when it closes that request's train (D16).
//!
//! A train of two costs either end about 0.3 µs more than a lone datagram, and its receiver works on the ACK before its application sees the request; a second
//! datagram costs a system call, in a time in which an application that plays ping-pong waits anyway. So the ACK goes apart where nobody waits for it. Whether somebody
//! does at the other end is not known here, but the two applications of a ping-pong mostly do the same: if this one posts while its last request is
//! unacknowledged, it does not wait for ACKs, and neither does its peer. ACKs that close trains come with the requests that would show it, so now and then one goes apart to find
//! out. No packet and no QP is known here.

/// Requests that leave alone, each with an ACK in its train, before one goes apart to find out; and at most, since each that found out nothing doubles them: who waits for
/// ACKs has one late, and, if it looks at memory while others take packets in, now and then a whole wake of the worker.
const TRY_AFTER: (u16, u16) = (64, 1 << 14);

/// Requests for which it is believed that nobody waits for ACKs: one that is late, or was overtaken, is no news.
const BELIEF: u8 = 64;

/// What a QP's application was seen to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habit {
    /// Requests for which it is still believed that nobody waits.
    belief: u8,
    /// Requests until one goes apart to find out, and how many that were from the last one.
    left: u16,
    interval: u16,
}

impl Default for Habit {
    fn default() -> Self {
        Self { belief: 0, left: TRY_AFTER.0, interval: TRY_AFTER.0 }
    }
}

impl Habit {
    /// A request of one packet is about to leave and nothing else, but for an ACK. `under_way`: packets of requests that are not acknowledged, with that one. True if
    /// the ACK is to leave behind it, in a datagram of its own.
    pub fn goes_apart(&mut self, under_way: u32) -> bool {
        match under_way {
            // It was posted though the one before it is unacknowledged.
            2 => *self = Self { belief: BELIEF, ..Self::default() },
            1 if self.belief > 0 => self.belief -= 1,
            1 if self.left > 1 => {
                self.left -= 1;
                return false;
            }
            1 => {
                self.interval = (self.interval * 2).min(TRY_AFTER.1);
                self.left = self.interval;
            }
            // Many under way: what matters is what each costs.
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `count` requests of an application and its twin, how many went apart. `waits`: each posts when its last request is acknowledged; else when
    /// the other's request is there, which comes before the ACK if that went apart.
    fn ping_pong(waits: bool, count: usize) -> usize {
        let mut habits = [Habit::default(); 2];
        let mut last_apart = false;
        (0..count)
            .filter(|n| {
                let under_way = if last_apart && !waits { 2 } else { 1 };
                last_apart = habits[n % 2].goes_apart(under_way);
                last_apart
            })
            .count()
    }

    #[test]
    fn who_does_not_wait_for_acks_gets_them_apart() {
        let apart = ping_pong(false, 10_000);
        assert!((9_800..10_000).contains(&apart), "{apart}");
    }

    #[test]
    fn who_waits_for_acks_gets_them_with_the_request() {
        let apart = |count| ping_pong(true, count);
        assert_eq!((apart(126), apart(1_000), apart(100_000)), (0, 6, 20), "ever fewer, to find out");
    }

    #[test]
    fn an_ack_that_was_early_once_changes_nothing_and_a_new_habit_is_noticed() {
        let mut habit = Habit::default();
        assert!(habit.goes_apart(2) && habit.goes_apart(1) && habit.goes_apart(2));
        assert_eq!((0..1_000).filter(|_| habit.goes_apart(1)).count(), usize::from(BELIEF) + 3);
    }

    #[test]
    fn a_stream_keeps_its_trains() {
        let mut habit = Habit::default();
        assert!(habit.goes_apart(2));
        assert!((3..100).all(|under_way| !habit.goes_apart(under_way)) && !habit.goes_apart(0));
    }
}
