//! What happened on the wire, and what each requester has heard: the facts by which the progress checker judges whether a
//! requester was as patient as it promised.

use scalefabric_wire::opcode::{Operation, Service};
use scalefabric_wire::packet::{Headers, Syndrome};
use scalefabric_wire::{Psn, Qpn};

use crate::pattern::Fault;

/// What one responder-to-requester direction of a QP has heard, for the judgement on retry limits. Index: NIC and QPN of
/// the requester.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Requester.
    pub nic: usize,
    /// Its QP.
    pub qpn: Qpn,
    /// Its peer's NIC and QP.
    peer: (usize, Qpn),
    /// Path MTU, bytes.
    mtu: u32,
    /// Newest PSN that a delivered answer has acknowledged.
    newest: Psn,
    /// Newest PSN that was asked for.
    asked: Psn,
    /// PSNs of READs and atomics that were sent and not answered yet: first and last.
    owed: Vec<(Psn, Psn)>,
    /// When an answer last got the requester further.
    pub progress_ns: u64,
    /// Answers since then that did not: NAKs, repetitions, answers out of order.
    pub fruitless: u32,
    /// RNR NAKs since then.
    pub rnr_naks: u32,
    /// What could have been said before the last progress, and when that was: answers that come together are judged one
    /// after the other by the requester, but seen together here.
    before: Option<(u64, Patience)>,
}

/// What a requester has borne.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Patience {
    /// ns without progress.
    pub silence_ns: u64,
    /// Answers that did not help.
    pub fruitless: u32,
    /// RNR NAKs.
    pub rnr_naks: u32,
}

impl Heard {
    /// A requester that has heard nothing and begins with `psn`.
    pub fn new(nic: usize, qpn: Qpn, peer: (usize, Qpn), mtu: u32, psn: Psn) -> Self {
        let newest = psn.sub(1);
        Self {
            nic,
            qpn,
            peer,
            mtu,
            newest,
            asked: newest,
            owed: Vec::new(),
            progress_ns: 0,
            fruitless: 0,
            rnr_naks: 0,
            before: None,
        }
    }

    fn patience_at(&self, now: u64) -> Patience {
        let silence_ns = now.saturating_sub(self.progress_ns);
        Patience { silence_ns, fruitless: self.fruitless, rnr_naks: self.rnr_naks }
    }

    /// What the requester may have borne when it gave up at `now`: at worst the sum of what was before and after a
    /// progress of the same moment.
    pub fn patience(&self, now: u64) -> Patience {
        let after = self.patience_at(now);
        match self.before {
            Some((at, before)) if at == now => Patience {
                silence_ns: before.silence_ns.max(after.silence_ns),
                fruitless: before.fruitless.max(after.fruitless),
                rnr_naks: before.rnr_naks.max(after.rnr_naks),
            },
            _ => after,
        }
    }
}

/// What happened on the wire.
#[derive(Debug, Default)]
pub struct Tally {
    /// Packets that arrived.
    pub delivered: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// How often each kind of fault struck.
    pub faults: [u64; Fault::ALL.len()],
    /// Which QPs have heard what.
    pub heard: Vec<Heard>,
    /// Order, kind and time of all deliveries, mixed into one number: equal for equal runs.
    pub fingerprint: u64,
    /// Forged packets that arrived.
    pub forged: u64,
    /// A READ response or SEND that carried bytes that nobody may read: the isolation checker's evidence.
    pub leaks: u64,
}

impl Tally {
    /// Counts a fault.
    pub fn strike(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// Kinds of fault that struck.
    pub fn kinds(&self) -> usize {
        self.faults.iter().filter(|&&count| count > 0).count()
    }

    /// What a requester has heard.
    pub fn heard(&self, nic: usize, qpn: Qpn) -> Option<&Heard> {
        self.heard.iter().find(|heard| heard.nic == nic && heard.qpn == qpn)
    }

    /// An answer reaches a requester. `waits`: its port is blocked, so that it may have sent more than the wire has seen.
    pub(super) fn hear(&mut self, nic: usize, headers: &Headers, now_ns: u64, waits: bool) {
        let info = headers.bth.opcode.info();
        let response =
            matches!(info.operation, Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse);
        if !response || !matches!(info.service, Service::Rc | Service::Xrc) {
            return;
        }
        let qpn = headers.bth.dest_qp;
        let Some(heard) = self.heard.iter_mut().find(|heard| heard.nic == nic && heard.qpn == qpn) else { return };
        // A NAK acknowledges what comes before it, and asks for a repetition all the same.
        let syndrome = headers.aeth.map(|aeth| aeth.syndrome);
        let nak = matches!(syndrome, Some(Syndrome::Nak(_)));
        let rnr = matches!(syndrome, Some(Syndrome::RnrNak(_)));
        if heard.asked.is_before(headers.bth.psn) {
            // An answer to what was never asked (clause 9.7.5.1.1): not looked at. But a forged request may have brought about a NAK for one that waits
            // at its port, and to its requester that is lost.
            heard.fruitless += u32::from(waits && nak);
            return;
        }
        let mut acknowledged = headers.bth.psn.sub(u32::from(nak || rnr));
        heard.rnr_naks += u32::from(rnr);
        // An answer that leaves out what a READ or an atomic still owes says that it was lost: an implied NAK (clause
        // 9.7.5.1.3). It acknowledges what was before that, and nothing else.
        let own = matches!(info.operation, Operation::ReadResponse | Operation::AtomicAcknowledge);
        let newest = heard.newest;
        let missing = heard.owed.iter().find_map(|&(first, last)| {
            let from = if newest.is_before(first) { first } else { newest.next() };
            let before = if own { acknowledged.sub(1) } else { acknowledged };
            (!last.is_before(from) && !before.is_before(from)).then_some(from)
        });
        if let Some(missing) = missing {
            acknowledged = missing.sub(1);
        }
        if newest.is_before(acknowledged) {
            let mut before = heard.patience_at(now_ns);
            if let Some((at, earlier)) = heard.before
                && at == now_ns
            {
                before.silence_ns = before.silence_ns.max(earlier.silence_ns);
                before.fruitless = before.fruitless.max(earlier.fruitless);
                before.rnr_naks = before.rnr_naks.max(earlier.rnr_naks);
            }
            heard.before = Some((now_ns, before));
            heard.newest = acknowledged;
            heard.owed.retain(|&(_, last)| acknowledged.is_before(last));
            heard.progress_ns = now_ns;
            heard.fruitless = u32::from(nak || missing.is_some());
            if !rnr {
                heard.rnr_naks = 0;
            }
        } else {
            heard.fruitless += 1;
        }
    }

    /// A requester sends.
    pub(super) fn ask(&mut self, from: usize, to: usize, headers: &Headers) {
        let bth = &headers.bth;
        let peer = (to, bth.dest_qp);
        let Some(heard) = self.heard.iter_mut().find(|heard| heard.nic == from && heard.peer == peer) else { return };
        let info = bth.opcode.info();
        if matches!(
            info.operation,
            Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse | Operation::Cnp
        ) {
            return;
        }
        let packets = match (info.operation, headers.reth) {
            (Operation::ReadRequest, Some(reth)) => reth.dma_len.div_ceil(heard.mtu).max(1),
            _ => 1,
        };
        let last = bth.psn.add(packets - 1);
        if heard.asked.is_before(last) {
            heard.asked = last;
        }
        let owes = info.service as u8 != Service::Uc as u8
            && matches!(
                info.operation,
                Operation::ReadRequest
                    | Operation::CompareSwap
                    | Operation::FetchAdd
                    | Operation::AtomicWrite
                    | Operation::Flush
            );
        // A repetition begins in the middle of the first one, and ends where that ended.
        if owes && heard.newest.is_before(last) && !heard.owed.iter().any(|&(_, end)| end == last) {
            heard.owed.push((bth.psn, last));
        }
    }
}
