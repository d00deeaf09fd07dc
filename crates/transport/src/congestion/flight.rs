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

    pub fn gone_back(&mut self) {
        self.sent = self.acked;
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
