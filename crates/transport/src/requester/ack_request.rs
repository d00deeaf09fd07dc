//! When a requester sets AckReq (clause 9.7.5.1.1 leaves it to the implementation, but for what must not be forgotten).
//!
//! Pluggable: [`AckRequest::decide`] is the only place that knows the rule.

/// The policy and what it remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckRequest {
    /// Packets since the last one that asked.
    since: u32,
}

/// What the policy is told of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occasion {
    /// It ends its message: without an ACK the WQE would not complete before the timer runs out.
    pub ends_message: bool,
    /// Nothing may follow it before an ACK comes (window full, credits used up).
    pub nothing_follows: bool,
    /// Packets between two requests, at most; 0 counts as 1.
    pub interval: u32,
}

impl AckRequest {
    /// Whether the packet asks for an ACK.
    pub fn decide(&self, occasion: Occasion) -> bool {
        occasion.ends_message || occasion.nothing_follows || self.since + 1 >= occasion.interval
    }

    /// Whether the peer owes an answer to something, of `outstanding` packets that it has not acknowledged: not if all of them left after the last one that asked.
    pub fn is_owed(&self, outstanding: u32) -> bool {
        outstanding > self.since
    }

    /// The packet left.
    pub fn sent(&mut self, asked: bool) {
        self.since = if asked { 0 } else { self.since + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_packet_and_every_last_one_asks() {
        let mut policy = AckRequest::default();
        let mut asked = alloc::vec::Vec::new();
        for n in 0..10 {
            let ask = policy.decide(Occasion { ends_message: n == 9, nothing_follows: n == 1, interval: 4 });
            policy.sent(ask);
            if ask {
                asked.push(n);
            }
        }
        assert_eq!(asked, [1, 5, 9]);
    }

    #[test]
    fn an_answer_is_owed_from_a_packet_that_asked_to_its_acknowledgement() {
        let mut policy = AckRequest::default();
        policy.sent(false);
        policy.sent(false);
        assert!(!policy.is_owed(2), "nobody asked");
        policy.sent(true);
        policy.sent(false);
        assert!(policy.is_owed(4) && policy.is_owed(2) && !policy.is_owed(1), "what asked is acknowledged");
    }
}
