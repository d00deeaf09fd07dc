//! How connections are made and how patient they are. Every field says its unit, default, and what happens at its ends. It decides nothing itself.

use crate::error::FabricError;
use crate::session::Patience;
use std::time::Duration;

/// How an application waits for completions and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Polls until it is there: the lowest latency, a whole core.
    Busy,
    /// Sleeps until the device tells: no core, a wake of some microseconds.
    Events,
    /// Polls so long, then sleeps.
    Adaptive(Duration),
}

/// What a connection is like. Both sides have their own; what must agree (MTU, READs outstanding) becomes the smaller of the two.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Operations that can be outstanding, posted or waiting. Default 256; 1: one at a time; at most the device's `max_qp_wr` less one.
    pub depth: u32,
    /// Bytes that are copied and sent as inline data. Default 220; at most that and the device's `max_inline_data`; 0: nothing is sent inline, and
    /// operations on plain bytes are refused.
    pub max_inline: u32,
    /// READs and atomics outstanding in each direction. Default 16; at most the device's limits and the peer's; 0: none can be posted.
    pub max_rd_atomic: u8,
    /// Receives posted for a connection that has its own. Default 256.
    pub receives: u32,
    /// Bytes of each of them: the longest message that can be received. Default 4096.
    pub receive_bytes: u32,
    /// Whether all connections of a fabric take their receives from one pool of this size. Default false: each has its own.
    pub share_receives: bool,
    /// How blocking calls wait. Default: 20 µs of polling, then sleep.
    pub waiting: Waiting,
    /// Local ACK timeout of the QP, 4.096 µs × 2^timeout. Default 14 (67 ms); 0 waits for ever and never notices a dead path.
    pub timeout: u8,
    /// Retries of the QP. Default 7, the most.
    pub retry_cnt: u8,
    /// RNR timer code asked of the peer. Default 1 (10 µs).
    pub min_rnr_timer: u8,
    /// DSCP, 6 bits. Default 0.
    pub dscp: u8,
    /// Name of the tenant. Default empty.
    pub tenant: String,
    /// Timeouts and back-off of the session.
    pub patience: Patience,
    /// How long a port must have been up again before connections that left it because it was down return to it. Default 10 s. 0: at once, and a port
    /// that flaps takes them with it each time; `Duration::MAX`: never.
    pub return_after: Duration,
    /// How often the keys of memory that peers were lent are made anew by themselves ([`super::Fabric::rotate_keys_of`] says of which). Default
    /// `None`: only on demand. Longer than `rotate_overlap`. Very short: each time all memory is registered anew, which pins its pages once more.
    pub rotate_every: Option<Duration>,
    /// How long old and new keys are both good at most, when keys are made anew by themselves. Default 10 s. Shorter than a channel to a peer may be
    /// away: that peer's operations are refused until it has heard the new keys. Very long: so long an old key is good in the worst case.
    pub rotate_overlap: Duration,
    /// Whether memory that is lent ([`super::Connection::lend`]) is opened by windows of type 2, where the device has them and the memory lets them be bound (a
    /// pool whose access has `MW_BIND`): a key is then good for one connection only, and making keys anew ([`super::Fabric::rotate_keys`]) binds windows
    /// instead of registering memory. After each rebuild, and each move to another QP, all are bound anew before the peer can use the memory. Default
    /// false: keys are those of registrations, which outlive QPs.
    pub lend_by_windows: bool,
    /// A connection that finds more than so many losses in a thousand packets, in three looks in a row, takes another source port, and if that does not
    /// help another port; not while a control plane balances. Default 10. 0: any loss counts; 1000 and more: never.
    pub retransmit_permille: u32,
    /// Whether keys of memory are told to peers on other hosts whose name no cryptography has proved. Default false.
    pub trust_unproven_peers: bool,
}

/// The most bytes of inline data that a connection copies.
pub const MAX_INLINE: usize = 220;

impl Default for Config {
    fn default() -> Self {
        Self {
            depth: 256,
            max_inline: MAX_INLINE as u32,
            max_rd_atomic: 16,
            receives: 256,
            receive_bytes: 4096,
            share_receives: false,
            waiting: Waiting::Adaptive(Duration::from_micros(20)),
            timeout: 14,
            retry_cnt: 7,
            min_rnr_timer: 1,
            dscp: 0,
            tenant: String::new(),
            patience: Patience::default(),
            return_after: Duration::from_secs(10),
            rotate_every: None,
            rotate_overlap: Duration::from_secs(10),
            lend_by_windows: false,
            retransmit_permille: 10,
            trust_unproven_peers: false,
        }
    }
}

impl Config {
    /// Looks at it before anything is made.
    pub(crate) fn check(&self, attr: &scalefabric_verbs::DeviceAttr) -> Result<(), FabricError> {
        let most = attr.max_qp_wr.saturating_sub(3);
        if self.depth == 0 || self.depth > most {
            return Err(FabricError::misuse(format!(
                "depth {} is not 1 to {most}, the device's max_qp_wr less 3",
                self.depth
            )));
        }
        if let Some(every) = self.rotate_every.filter(|every| *every <= self.rotate_overlap) {
            return Err(FabricError::misuse(format!(
                "rotate_every is {every:?} and rotate_overlap {:?}: the overlap must be the shorter one",
                self.rotate_overlap
            )));
        }
        if self.dscp > 63 {
            return Err(FabricError::misuse(format!("dscp {} has more than 6 bits", self.dscp)));
        }
        for (name, value, most) in
            [("timeout", self.timeout, 31), ("retry_cnt", self.retry_cnt, 7), ("min_rnr_timer", self.min_rnr_timer, 31)]
        {
            if value > most {
                return Err(FabricError::misuse(format!("{name} {value} is more than {most}")));
            }
        }
        Ok(())
    }
}
