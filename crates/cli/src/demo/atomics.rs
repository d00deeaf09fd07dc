//! What the atomics of a step must return, computed beside the network: the target's word starts at 0 and each operation
//! sees the result of the one before it, exactly once.

use crate::demo::pattern::scramble;
use crate::demo::step::{Operation, Step};

/// One atomic operation with what it must return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Compare value (CMP_AND_SWP).
    pub compare: u64,
    /// Swap value, or the value to add.
    pub operand: u64,
    /// What the word held before.
    pub old: u64,
}

/// All operations of the step in order, and the word's last value.
pub fn expected(step: &Step) -> (Vec<Expected>, u64) {
    let mut word = 0u64;
    let mut all = Vec::with_capacity(step.count as usize);
    for index in 0..u64::from(step.count) {
        let operand = scramble(step.seed ^ index);
        let old = word;
        let mut compare = old;
        if step.operation == Operation::FetchAdd {
            word = word.wrapping_add(operand);
        } else if index % 8 == 7 {
            // One in eight must not swap.
            compare = !old;
        } else {
            word = operand;
        }
        all.push(Expected { compare, operand, old });
    }
    (all, word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::step::Transport;

    #[test]
    fn a_swap_repeated_or_lost_would_be_seen() {
        let step = Step {
            transport: Transport::Rc,
            operation: Operation::CompareSwap,
            size: 8,
            count: 16,
            window: 1,
            seed: 9,
        };
        let (all, last) = expected(&step);
        assert_eq!(all[7].old, all[6].operand);
        assert_eq!(all[8].old, all[6].operand, "the eighth does not swap");
        assert_eq!(last, all[14].operand);
        let (all, last) = expected(&Step { operation: Operation::FetchAdd, ..step });
        assert_eq!(last, all.iter().fold(0u64, |sum, e| sum.wrapping_add(e.operand)));
    }
}
