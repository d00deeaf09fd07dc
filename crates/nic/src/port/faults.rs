//! Faults (D8): a port around a port that drops, duplicates, reorders, corrupts, delays or marks datagrams, by chance or by
//! number, the same way each time for the same seed.
//!
//! What comes in is faulted here as a wire would have done it. What goes out is cut out of its train for that: a datagram
//! that no longer stands at its place has another IPv4 identification, so its ICRC is made anew, and what the peer counts
//! as damaged is only what was meant to be. Costs a copy and an allocation for each datagram that is held back; without
//! rules the port should not be there at all.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scalefabric_transport::DropReason;

use super::capture::{Tape, Way};
use super::udp::reseal;
use super::{Datagram, Port, Sent, Train};
use crate::faults::QpWatch;

mod spec;

pub use spec::{DeviceKind, DeviceRule, Direction, FaultSpec, Kind, QpSelect, Rule, SpecError, Verb, When};

/// How often each fault struck, both directions together.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct FaultCounters {
    pub dropped: AtomicU64,
    pub duplicated: AtomicU64,
    pub reordered: AtomicU64,
    pub corrupted: AtomicU64,
    pub delayed: AtomicU64,
    pub marked: AtomicU64,
}

impl FaultCounters {
    /// Name and value of each.
    pub fn all(&self) -> [(&'static str, u64); 6] {
        let value = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [
            ("fault_dropped", value(&self.dropped)),
            ("fault_duplicated", value(&self.duplicated)),
            ("fault_reordered", value(&self.reordered)),
            ("fault_corrupted", value(&self.corrupted)),
            ("fault_delayed", value(&self.delayed)),
            ("fault_marked", value(&self.marked)),
        ]
    }
}

/// SplitMix64: small, and the same everywhere.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl When {
    /// Whether the `seen`-th one, from 1, is meant.
    pub(crate) fn strikes(self, seen: u64, random: &mut Random) -> bool {
        match self {
            Self::Always => true,
            Self::Chance(parts) => random.below(1_000_000_000) < u64::from(parts),
            Self::Packets(first, last) => (first..=last).contains(&seen),
            Self::Every(n) => seen.is_multiple_of(n),
        }
    }
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// What is to be done with one datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Verdict {
    drop: bool,
    duplicate: bool,
    mark: bool,
    corrupt: Option<u64>,
    delay_ns: u64,
    reorder: Option<(u32, u64)>,
}

impl Verdict {
    fn is_held(&self) -> bool {
        self.delay_ns > 0 || self.reorder.is_some()
    }

    /// What happened, for the capture.
    fn comment(&self) -> String {
        let mut words = Vec::new();
        if self.drop {
            return "fault: dropped".into();
        }
        if self.mark {
            words.push("marked CE".to_owned());
        }
        if let Some(bit) = self.corrupt {
            words.push(format!("corrupted (bit {bit})"));
        }
        if self.duplicate {
            words.push("duplicated".to_owned());
        }
        if self.delay_ns > 0 {
            words.push(format!("delayed {} ns", self.delay_ns));
        }
        if let Some((by, _)) = self.reorder {
            words.push(format!("put behind {by} others"));
        }
        if words.is_empty() { String::new() } else { format!("fault: {}", words.join(", ")) }
    }
}

/// A datagram that is held back.
#[derive(Debug)]
struct Held {
    due_ns: u64,
    /// It also comes when the direction's count reaches this.
    after: u64,
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    ip_id: u16,
    bytes: Box<[u8]>,
}

impl Held {
    fn datagram(&self) -> Datagram<'_> {
        Datagram {
            src: self.src,
            src_port: self.src_port,
            dst: self.dst,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            ip_id: self.ip_id,
            bytes: &self.bytes,
        }
    }
}

/// The rules of one direction, and what is held back in it.
#[derive(Debug)]
struct Lane {
    rules: Vec<(Rule, u64)>,
    random: Random,
    /// Datagrams that were let through.
    passed: u64,
    held: Vec<Held>,
    counters: Arc<FaultCounters>,
}

impl Lane {
    fn new(spec: &FaultSpec, direction: Direction, counters: &Arc<FaultCounters>) -> Self {
        let mine = |rule: &&Rule| rule.direction == direction || rule.direction == Direction::Both;
        Self {
            rules: spec.rules.iter().filter(mine).map(|&rule| (rule, 0)).collect(),
            random: Random(spec.seed ^ if direction == Direction::Send { 0x5e4d } else { 0 }),
            passed: 0,
            held: Vec::new(),
            counters: counters.clone(),
        }
    }

    /// `local`: the QP of this process that it goes to or comes from, if a rule asks for it.
    fn judge(&mut self, bytes: &[u8], local: Option<(&QpWatch, u16)>) -> Verdict {
        let mut verdict = Verdict::default();
        let count = |n: &AtomicU64| n.fetch_add(1, Ordering::Relaxed);
        let counters = &self.counters;
        for (rule, seen) in &mut self.rules {
            let selected = match rule.qp {
                None => true,
                Some(QpSelect::Number(qp)) => bytes.get(5..8) == Some(&qp.get().to_be_bytes()[1..]),
                Some(which) => local.is_some_and(|(watch, index)| watch.selects(which, index)),
            };
            if !selected {
                continue;
            }
            *seen += 1;
            if !rule.when.strikes(*seen, &mut self.random) {
                continue;
            }
            match rule.kind {
                Kind::Drop => {
                    count(&counters.dropped);
                    return Verdict { drop: true, ..Verdict::default() };
                }
                Kind::Duplicate => {
                    count(&counters.duplicated);
                    verdict.duplicate = true;
                }
                Kind::Reorder { by, limit_ns } => {
                    count(&counters.reordered);
                    verdict.reorder = Some((by, limit_ns));
                }
                Kind::Corrupt => {
                    count(&counters.corrupted);
                    // Behind the BTH, so that it is the ICRC that finds it, and no masked bit is hit.
                    let (from, to) = if bytes.len() > 12 { (12, bytes.len()) } else { (0, bytes.len().max(1)) };
                    verdict.corrupt = Some(from as u64 * 8 + self.random.below((to - from) as u64 * 8));
                }
                Kind::Delay { ns } => {
                    count(&counters.delayed);
                    verdict.delay_ns = verdict.delay_ns.saturating_add(ns);
                }
                Kind::Mark => {
                    count(&counters.marked);
                    verdict.mark = true;
                }
            }
        }
        verdict
    }

    /// Holds a datagram back.
    fn hold(&mut self, now_ns: u64, verdict: &Verdict, datagram: &Datagram<'_>) {
        let (by, limit_ns) = verdict.reorder.map_or((u64::MAX, 0), |(by, limit)| (u64::from(by), limit));
        self.held.push(Held {
            due_ns: now_ns.saturating_add(verdict.delay_ns).saturating_add(limit_ns),
            // A delayed one waits for its time, however many pass.
            after: if verdict.delay_ns > 0 { u64::MAX } else { self.passed.saturating_add(by) },
            src: datagram.src,
            src_port: datagram.src_port,
            dst: datagram.dst,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            ip_id: datagram.ip_id,
            bytes: datagram.bytes.into(),
        });
    }

    /// Takes the next one whose time or turn has come, oldest first.
    fn release(&mut self, now_ns: u64) -> Option<Held> {
        let ready = |held: &(usize, &Held)| held.1.due_ns <= now_ns || held.1.after <= self.passed;
        let (index, _) = self.held.iter().enumerate().filter(ready).min_by_key(|(i, held)| (held.due_ns, *i))?;
        Some(self.held.remove(index))
    }

    fn deadline(&self) -> Option<u64> {
        self.held.iter().map(|held| if held.after <= self.passed { 0 } else { held.due_ns }).min()
    }
}

fn turn_bit(bytes: &mut [u8], bit: u64) {
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}

/// A port with faults.
#[derive(Debug)]
pub struct FaultPort<P> {
    inner: P,
    now_ns: u64,
    receiving: Lane,
    sending: Lane,
    counters: Arc<FaultCounters>,
    tape: Option<Tape>,
    watch: Option<Arc<QpWatch>>,
    drops: u64,
    scratch: Vec<u8>,
}

impl<P: Port> FaultPort<P> {
    /// Puts faults around a port. With a tape, what comes is recorded as it was on
    /// the wire and what goes as the engine sent it, with what was done to it.
    pub fn new(mut inner: P, spec: &FaultSpec, tape: Option<Tape>) -> Self {
        if tape.is_some() {
            inner.tell_headers();
        }
        let counters = Arc::new(FaultCounters::default());
        Self {
            inner,
            now_ns: 0,
            receiving: Lane::new(spec, Direction::Receive, &counters),
            sending: Lane::new(spec, Direction::Send, &counters),
            counters,
            tape,
            watch: None,
            drops: 0,
            scratch: Vec::new(),
        }
    }

    /// The same port, which knows the QPs of the process: rules for `client`, `server` and `#n` choose none without.
    pub fn with_watch(mut self, watch: &Arc<QpWatch>) -> Self {
        self.watch = Some(watch.clone());
        self
    }

    /// How often each fault struck.
    pub fn counters(&self) -> &Arc<FaultCounters> {
        &self.counters
    }

    /// Sends one datagram that is no longer at place `index` of its train; holds it if there is no room.
    fn send_single(&mut self, train: &Train<'_>, bytes: &[u8], index: usize, verdict: &Verdict) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(bytes);
        if index != 0 {
            reseal(&mut scratch, train, 0);
        }
        if let Some(bit) = verdict.corrupt {
            turn_bit(&mut scratch, bit);
        }
        let traffic_class = if verdict.mark { train.traffic_class | 3 } else { train.traffic_class };
        let single = Train { traffic_class, segment: scratch.len(), bytes: &scratch, ..*train };
        let held = Datagram {
            src: single.src,
            src_port: single.src_port,
            dst: single.dst,
            traffic_class,
            hop_limit: single.hop_limit,
            flow_label: single.flow_label,
            ip_id: 0,
            bytes: &scratch,
        };
        let copies = 1 + usize::from(verdict.duplicate);
        for _ in 0..copies {
            if verdict.is_held() {
                self.sending.hold(self.now_ns, verdict, &held);
            } else if self.inner.send(&single) == Sent::Blocked {
                self.sending.hold(self.now_ns, &Verdict::default(), &held);
            } else {
                self.sending.passed += 1;
            }
        }
        self.scratch = scratch;
    }

    /// Sends what was held back and is due.
    fn send_due(&mut self) {
        while let Some(held) = self.sending.release(self.now_ns) {
            let single = Train {
                src: held.src,
                src_port: held.src_port,
                dst: held.dst,
                traffic_class: held.traffic_class,
                hop_limit: held.hop_limit,
                flow_label: held.flow_label,
                segment: held.bytes.len(),
                bytes: &held.bytes,
            };
            if self.inner.send(&single) == Sent::Blocked {
                self.sending.held.insert(0, held);
                return;
            }
            self.sending.passed += 1;
        }
    }
}

impl<P: Port> Port for FaultPort<P> {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut given = 0;
        // One at a time, so that a datagram that is held back comes right behind those that overtake it.
        for _ in 0..max {
            while given < max
                && let Some(held) = self.receiving.release(self.now_ns)
            {
                self.receiving.passed += 1;
                given += 1;
                sink(&held.datagram());
            }
            if given >= max {
                break;
            }
            let Self { inner, receiving, tape, drops, scratch, now_ns, watch, .. } = self;
            let taken = inner.receive(1, &mut |datagram| {
                let local = watch.as_deref().and_then(|w| Some((w, w.received(datagram.bytes, *now_ns)?)));
                let verdict = receiving.judge(datagram.bytes, local);
                if let Some(tape) = tape {
                    tape.record(*now_ns, Way::In, datagram, &verdict.comment());
                }
                if verdict.drop {
                    *drops += 1;
                    return;
                }
                scratch.clear();
                scratch.extend_from_slice(datagram.bytes);
                if let Some(bit) = verdict.corrupt {
                    turn_bit(scratch, bit);
                }
                let traffic_class = datagram.traffic_class | if verdict.mark { 3 } else { 0 };
                let changed = Datagram { traffic_class, bytes: scratch, ..*datagram };
                if verdict.is_held() {
                    receiving.hold(*now_ns, &verdict, &changed);
                } else {
                    receiving.passed += 1;
                    given += 1;
                    sink(&changed);
                }
                if verdict.duplicate {
                    // The second copy comes right after, or with the first one's delay.
                    receiving.hold(*now_ns, &verdict, &changed);
                }
            });
            if taken == 0 && self.receiving.deadline().is_none_or(|due| due > self.now_ns) {
                break;
            }
        }
        given
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let idle = self.sending.rules.is_empty();
        if idle && self.tape.is_none() {
            return self.inner.send(train);
        }
        let segment = train.segment.max(1);
        let sent = if idle { self.inner.send(train) } else { Sent::Done };
        if sent == Sent::Blocked {
            return Sent::Blocked;
        }
        let Self { sending, watch, .. } = self;
        let judge = |bytes: &[u8]| {
            let local = watch.as_deref().and_then(|w| Some((w, w.sender(bytes, train.dst)?)));
            sending.judge(bytes, local)
        };
        let verdicts: Vec<Verdict> = train.bytes.chunks(segment).map(judge).collect();
        let whole = verdicts.iter().take_while(|v| **v == Verdict::default()).count();
        if let Some(tape) = &mut self.tape {
            for (index, (bytes, verdict)) in train.bytes.chunks(segment).zip(&verdicts).enumerate() {
                tape.record_sent(self.now_ns, train, index, bytes, &verdict.comment());
            }
        }
        if idle {
            return Sent::Done;
        }
        let head = train.bytes.len().min(whole * segment);
        if head > 0 {
            let front = Train { bytes: &train.bytes[..head], ..*train };
            if self.inner.send(&front) == Sent::Blocked {
                // The verdicts stand: the same datagrams must not be judged twice. So they wait here.
                for (index, bytes) in front.bytes.chunks(segment).enumerate() {
                    let mut copy = bytes.to_vec();
                    if index != 0 {
                        reseal(&mut copy, train, 0);
                    }
                    let datagram = Datagram {
                        src: train.src,
                        src_port: train.src_port,
                        dst: train.dst,
                        traffic_class: train.traffic_class,
                        hop_limit: train.hop_limit,
                        flow_label: train.flow_label,
                        ip_id: 0,
                        bytes: &copy,
                    };
                    self.sending.hold(self.now_ns, &Verdict::default(), &datagram);
                }
            } else {
                self.sending.passed += whole as u64;
            }
        }
        for (index, (bytes, verdict)) in train.bytes.chunks(segment).zip(&verdicts).enumerate().skip(whole) {
            if verdict.drop {
                self.drops += 1;
            } else {
                self.send_single(train, bytes, index, verdict);
            }
            self.send_due();
        }
        Sent::Done
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.inner.set_time(now_ns);
    }

    fn look_everywhere(&mut self) {
        self.inner.look_everywhere();
    }

    fn take_drops(&mut self, sink: &mut dyn FnMut(DropReason, u64)) {
        if self.drops != 0 {
            sink(DropReason::Fault, std::mem::take(&mut self.drops));
        }
        self.inner.take_drops(sink);
    }

    fn flush(&mut self) {
        self.send_due();
        self.inner.flush();
        if let Some(tape) = &mut self.tape {
            tape.flush(self.now_ns);
        }
    }

    fn source_port(&self, src: IpAddr, flow: u32) -> u16 {
        self.inner.source_port(src, flow)
    }

    fn named_source_port(&self, src: IpAddr, wanted: u16) -> Option<u16> {
        self.inner.named_source_port(src, wanted)
    }

    fn max_train(&self) -> usize {
        self.inner.max_train()
    }

    fn deadline(&self) -> Option<u64> {
        [self.receiving.deadline(), self.sending.deadline(), self.inner.deadline()].into_iter().flatten().min()
    }

    fn tell_headers(&mut self) {
        self.inner.tell_headers();
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.leave(group)
    }
}

#[cfg(test)]
mod tests;
