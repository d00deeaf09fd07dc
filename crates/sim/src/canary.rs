//! Canaries: rules that are broken on purpose, to see that the checkers notice. A canary changes packets on the wire as a
//! broken NIC would have sent or understood them; the packet then gets a right ICRC, so that only the checkers can tell.

use std::collections::HashMap;

use scalefabric_wire::Qpn;
use scalefabric_wire::opcode::{Operation, Position, Service};
use scalefabric_wire::packet::{Headers, Packet};

use crate::station::SECRET;

/// Which rule is broken. Each is meant for one checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A WRITE is acknowledged and never carried out. For the bytes checker.
    AcknowledgeUnwritten,
    /// One byte of a payload is damaged before the ICRC is made. For the bytes checker.
    DamagePayload,
    /// Two messages change places. For the order checker.
    SwapMessages,
    /// A FETCH ADD is carried out twice. For the exactly-once checker.
    RepeatAtomic,
    /// A completion is forgotten. For the progress checker. (The harness does it: no packet is involved.)
    ForgetCompletion,
    /// A READ brings bytes that nobody may read. For the isolation checker.
    LeakSecret,
    /// A WRITE touches memory beyond what its key grants. For the isolation checker. (The harness does it.)
    WriteAnywhere,
}

impl Rule {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::AcknowledgeUnwritten,
        Self::DamagePayload,
        Self::SwapMessages,
        Self::RepeatAtomic,
        Self::ForgetCompletion,
        Self::LeakSecret,
        Self::WriteAnywhere,
    ];
}

/// A broken rule and how far it has got.
#[derive(Debug)]
pub struct Canary {
    /// The rule.
    pub rule: Rule,
    /// Occasions until it strikes.
    skip: u32,
    /// The last message of each QP.
    kept: HashMap<(usize, Qpn), Vec<u8>>,
}

impl Canary {
    /// Breaks `rule` after `skip` occasions, and then at every third: what it changes may be lost, or not be looked at
    /// because it is a repetition.
    pub fn new(rule: Rule, skip: u32) -> Self {
        Self { rule, skip, kept: HashMap::new() }
    }

    /// An occasion; true if it is the one. For rules that the harness breaks.
    pub fn occasion(&mut self, rule: Rule) -> bool {
        if self.rule != rule {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.skip = 2;
        true
    }

    /// Looks at a packet to a NIC, and maybe changes it; true if it did.
    pub fn touch(&mut self, to: usize, bytes: &mut Vec<u8>) -> bool {
        let Ok(packet) = Packet::parse(bytes) else { return false };
        let Packet { headers, payload, .. } = packet;
        let info = headers.bth.opcode.info();
        if info.service as u8 != Service::Rc as u8 {
            return false;
        }
        let only = info.position as u8 == Position::Only as u8;
        match (self.rule, info.operation) {
            (Rule::AcknowledgeUnwritten, Operation::Write)
                if only && !payload.is_empty() && self.occasion(Rule::AcknowledgeUnwritten) =>
            {
                // A WRITE of nothing at the same PSN: acknowledged as the real one would have been.
                let mut headers = headers;
                headers.reth = headers.reth.map(|reth| scalefabric_wire::packet::Reth { dma_len: 0, ..reth });
                rewrite(bytes, headers, &[]);
                true
            }
            (Rule::DamagePayload, Operation::Send | Operation::ReadResponse)
                if payload.len() > 8 && self.occasion(Rule::DamagePayload) =>
            {
                let at = headers.len() + 3;
                bytes[at] ^= 0x10;
                true
            }
            (Rule::LeakSecret, Operation::ReadResponse) if payload.len() >= 16 && self.occasion(Rule::LeakSecret) => {
                let start = headers.len();
                bytes[start + 5..start + 5 + SECRET.len()].copy_from_slice(&SECRET);
                true
            }
            (Rule::SwapMessages, Operation::Send) if only && payload.len() >= 8 => self.swap(to, bytes, headers),
            (Rule::RepeatAtomic, Operation::FetchAdd) if self.occasion(Rule::RepeatAtomic) => {
                // Carried out twice is as if twice as much were added.
                let mut headers = headers;
                if let Some(eth) = &mut headers.atomic_eth {
                    eth.swap_or_add = eth.swap_or_add.wrapping_mul(2);
                }
                rewrite(bytes, headers, &[]);
                true
            }
            _ => false,
        }
    }

    /// Puts the payload of an earlier message into a later one of the same QP: one message comes twice and another not at
    /// all.
    fn swap(&mut self, to: usize, bytes: &mut Vec<u8>, headers: Headers) -> bool {
        let key = (to, headers.bth.dest_qp);
        let own = Packet::parse(bytes).map(|packet| packet.payload.to_vec()).unwrap_or_default();
        match self.kept.insert(key, own) {
            Some(earlier) if self.occasion(Rule::SwapMessages) => {
                rewrite(bytes, headers, &earlier);
                true
            }
            _ => false,
        }
    }
}

/// Makes the packet anew; the ICRC is made by whoever called the canary.
fn rewrite(bytes: &mut Vec<u8>, headers: Headers, payload: &[u8]) {
    let packet = Packet { headers, payload, icrc: 0 };
    let mut out = vec![0; packet.len()];
    if packet.emit(&mut out).is_ok() {
        *bytes = out;
    }
}
