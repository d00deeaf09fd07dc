//! Sent and acknowledged, as running sums: how a controller knows that a round trip is over.

/// The two sums. Going back takes what was sent back to what is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flight {
    sent: u64,
    acked: u64,
    /// What was sent when the present round began.
    round: u64,
}

impl Flight {
    pub fn sent(&mut self, bytes: u32) {
        self.sent += u64::from(bytes);
    }

    pub fn acked(&mut self, bytes: u32) {
        self.acked += u64::from(bytes);
        self.sent = self.sent.max(self.acked);
    }

    /// Nothing is under way any more: the present round is over with the first acknowledgement of what is sent from now on, and
    /// not only when as many bytes again have come as were under way.
    pub fn gone_back(&mut self) {
        self.sent = self.acked;
        self.round = self.round.min(self.sent);
    }

    /// True before the first round.
    pub fn is_first(&self) -> bool {
        self.round == 0
    }

    /// True if something is acknowledged that was sent since the round began.
    pub fn round_is_over(&self) -> bool {
        self.acked > self.round
    }

    /// A round begins: it is over when something is acknowledged that is sent from now on.
    pub fn begin_round(&mut self) {
        self.round = self.round.max(self.sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_whose_packets_are_gone_ends_with_the_first_that_comes() {
        let mut flight = Flight::default();
        flight.sent(1000);
        flight.acked(1000);
        flight.sent(100_000);
        flight.begin_round();
        flight.gone_back();
        assert!(!flight.round_is_over(), "nothing has come yet");
        flight.sent(1000);
        flight.acked(1000);
        assert!(flight.round_is_over());
        flight.begin_round();
        assert!(!flight.round_is_over());
    }
}
