//! The notification point of DCQCN: which marked packet is answered with a CNP.
//!
//! One CNP in an interval for each QP says all that the sender wants to know (SIGCOMM 2015, §3.1: 50 µs in the paper; 4 µs,
//! `MIN_TIME_BETWEEN_CNPS`, in ConnectX firmware). It knows no packet and no time unit: `now` and the interval have the same.

/// When the last CNP of a QP left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationPoint {
    last: Option<u64>,
}

impl NotificationPoint {
    /// A marked packet came at `now`: whether it is answered. The first one is, at once.
    pub fn wants(&self, now: u64, interval: u64) -> bool {
        self.last.is_none_or(|last| now.saturating_sub(last) >= interval)
    }

    /// A CNP left.
    pub fn sent(&mut self, now: u64) {
        self.last = Some(now);
    }

    /// Both at once, for who can always send.
    pub fn marked(&mut self, now: u64, interval: u64) -> bool {
        let wants = self.wants(now, interval);
        if wants {
            self.sent(now);
        }
        wants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_notification_leaves_in_an_interval_and_the_first_at_once() {
        let mut point = NotificationPoint::default();
        let answered: alloc::vec::Vec<u64> = (0..200).filter(|&us| point.marked(us, 50)).collect();
        assert_eq!(answered, [0, 50, 100, 150]);
        // A pause makes up for nothing.
        assert!(point.marked(1000, 50) && !point.marked(1001, 50) && !point.marked(1049, 50) && point.marked(1050, 50));
    }

    #[test]
    fn what_could_not_leave_is_asked_for_again() {
        let point = NotificationPoint::default();
        assert!(point.wants(7, 50) && point.wants(8, 50));
    }
}
