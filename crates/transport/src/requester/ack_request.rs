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
}
