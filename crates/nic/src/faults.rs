//! Faults of the device itself (D8): ports that go down, GIDs that go away, QPs and verbs that fail, receives that are not
//! found. What is to happen is a [`FaultSpec`]; the engine asks here at each of its steps, and only if there is one. Chances
//! come from the seed, times are those of the turns, so the same run has the same faults.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_transport::Time;
use scalefabric_verbs::{Errno, Gid, Qpn, VerbsError, WcStatus};

use crate::port::capture::Capture;
use crate::port::faults::{DeviceKind, DeviceRule, FaultSpec, QpSelect, Random, Verb};

/// What the faults of a process know of its QPs: which speaks first, and to whom. Engine and ports are behind one lock, so
/// this one is never waited for.
#[derive(Debug, Default)]
pub struct QpWatch(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    /// By index, the lower 16 bits of the number.
    qps: HashMap<u16, QpFacts>,
    /// To which QP of which address a QP of ours sends.
    peers: HashMap<(u32, IpAddr), u16>,
    made: u32,
}

#[derive(Clone, Copy, Debug)]
struct QpFacts {
    qpn: Qpn,
    /// The n-th of the process, from 1.
    nth: u32,
    /// It sent a request before it got one, or the other way round.
    speaks_first: Option<bool>,
    /// Its first packet, either way.
    began_ns: Option<u64>,
}

const ACK_ETC: std::ops::RangeInclusive<u8> = 0x0d..=0x12;
const CNP: u8 = 0x81;
const UD: u8 = 0x60;

/// True for requests: all opcodes but READ responses, ACKs, atomic ACKs and CNPs.
fn is_request(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|&opcode| opcode != CNP && !ACK_ETC.contains(&(opcode & 0x1f)))
}

fn qpn_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes: [u8; 3] = bytes.get(at..at + 3)?.try_into().ok()?;
    Some(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
}

impl QpWatch {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn made(&self, qpn: Qpn) {
        let mut watched = self.lock();
        watched.made += 1;
        let facts = QpFacts { qpn, nth: watched.made, speaks_first: None, began_ns: None };
        watched.qps.insert(qpn.get() as u16, facts);
    }

    pub(crate) fn removed(&self, qpn: Qpn) {
        let mut watched = self.lock();
        let index = qpn.get() as u16;
        watched.qps.remove(&index);
        watched.peers.retain(|_, of| *of != index);
    }

    /// The engine sends a packet of a QP.
    fn sends(&self, index: u16, dest: Qpn, to: IpAddr, request: bool, now_ns: u64) {
        let mut watched = self.lock();
        watched.peers.insert((dest.get(), to), index);
        if let Some(facts) = watched.qps.get_mut(&index) {
            facts.began_ns.get_or_insert(now_ns);
            if request {
                facts.speaks_first.get_or_insert(true);
            }
        }
    }

    /// A packet came in: the index of the QP that it is for, if it is of this process.
    pub(crate) fn received(&self, bytes: &[u8], now_ns: u64) -> Option<u16> {
        let dest = qpn_at(bytes, 5)?;
        let mut watched = self.lock();
        let facts = watched.qps.get_mut(&(dest as u16)).filter(|facts| facts.qpn.get() == dest)?;
        facts.began_ns.get_or_insert(now_ns);
        if is_request(bytes) {
            facts.speaks_first.get_or_insert(false);
        }
        Some(dest as u16)
    }

    /// The index of the QP that sends a packet.
    pub(crate) fn sender(&self, bytes: &[u8], to: IpAddr) -> Option<u16> {
        if bytes.first().is_some_and(|&opcode| opcode & 0xe0 == UD) {
            // Behind the BTH a datagram has the Q_Key and its sender's QP.
            return qpn_at(bytes, 12 + 5).map(|qpn| qpn as u16);
        }
        self.lock().peers.get(&(qpn_at(bytes, 5)?, to)).copied()
    }

    /// True if the selection means this QP.
    pub fn selects(&self, which: QpSelect, index: u16) -> bool {
        self.lock().qps.get(&index).is_some_and(|facts| facts.is(which))
    }

    fn began(&self, index: u16) -> Option<u64> {
        self.lock().qps.get(&index)?.began_ns
    }

    fn indexes(&self) -> Vec<u16> {
        let mut all: Vec<_> = self.lock().qps.keys().copied().collect();
        all.sort_unstable();
        all
    }
}

impl QpFacts {
    fn is(&self, which: QpSelect) -> bool {
        match which {
            QpSelect::Number(qpn) => self.qpn == qpn,
            QpSelect::Client => self.speaks_first == Some(true),
            QpSelect::Server => self.speaks_first == Some(false),
            QpSelect::Nth(nth) => self.nth == nth,
        }
    }
}

/// How often each fault of the device struck.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct DeviceFaultCounters {
    pub port_down: AtomicU64,
    pub gid_change: AtomicU64,
    pub device_fatal: AtomicU64,
    pub qp_error: AtomicU64,
    pub wc: AtomicU64,
    pub rnr: AtomicU64,
    pub verb: AtomicU64,
}

impl DeviceFaultCounters {
    /// Name and value of each.
    pub fn all(&self) -> [(&'static str, u64); 7] {
        let value = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [
            ("fault_port_down", value(&self.port_down)),
            ("fault_gid_change", value(&self.gid_change)),
            ("fault_device_fatal", value(&self.device_fatal)),
            ("fault_qp_error", value(&self.qp_error)),
            ("fault_wc", value(&self.wc)),
            ("fault_rnr", value(&self.rnr)),
            ("fault_verb", value(&self.verb)),
        ]
    }
}

/// All that a process needs for the faults of one device.
#[derive(Clone, Debug)]
pub struct FaultSetup {
    /// What is to happen.
    pub spec: FaultSpec,
    /// The same that the ports have.
    pub watch: Arc<QpWatch>,
    /// Where it is noted.
    pub capture: Option<Arc<Capture>>,
    /// How often it happened.
    pub counters: Arc<DeviceFaultCounters>,
}

impl FaultSetup {
    /// For this specification.
    pub fn new(spec: &FaultSpec, capture: Option<Arc<Capture>>) -> Self {
        Self { spec: spec.clone(), watch: Arc::default(), capture, counters: Arc::default() }
    }

    fn note(&self, text: &str) {
        if let Some(capture) = &self.capture {
            capture.note(&format!("fault: {text}"));
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A rule, and what has become of it.
#[derive(Debug)]
struct Active {
    rule: DeviceRule,
    seen: u64,
    /// It has struck, or begun.
    begun: bool,
    ended: bool,
    /// GID that is to come back.
    gid: Gid,
}

/// What the engine has to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    PortDown(u8),
    PortUp(u8),
    /// The rule whose GID goes.
    GidGoes {
        rule: usize,
        port: u8,
        index: u8,
    },
    GidReturns {
        port: u8,
        index: u8,
        gid: Gid,
    },
    DeviceFatal,
    QpError(u16),
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    Lost,
    /// Its WR ends with this status.
    Ends(WcStatus),
}

/// The engine's side.
#[derive(Debug)]
pub(crate) struct DeviceFaults {
    setup: FaultSetup,
    rules: Vec<Active>,
    random: Random,
    opened: Time,
    /// QPs that a packet has doomed.
    failing: Vec<u16>,
}

impl DeviceFaults {
    pub(crate) fn new(setup: FaultSetup, opened: Time) -> Self {
        let of_engine = |rule: &&DeviceRule| !matches!(rule.kind, DeviceKind::Verb { .. });
        let active = |&rule: &DeviceRule| Active { rule, seen: 0, begun: false, ended: false, gid: Gid::ZERO };
        let rules = setup.spec.device.iter().filter(of_engine).map(active).collect();
        let random = Random(setup.spec.seed ^ 0xde71ce);
        Self { setup, rules, random, opened, failing: Vec::new() }
    }

    pub(crate) fn watch(&self) -> &QpWatch {
        &self.setup.watch
    }

    /// A QP sends a packet: what becomes of it.
    pub(crate) fn sending(&mut self, now: Time, index: u16, dest: Qpn, to: IpAddr, opcode: u8) -> Fate {
        let request = is_request(&[opcode]);
        self.setup.watch.sends(index, dest, to, request, now.0);
        if self.failing.contains(&index) {
            return Fate::Lost;
        }
        // What fails is a send WR, so only requests count.
        if !request {
            return Fate::Sent;
        }
        let Self { setup, rules, random, opened, failing } = self;
        for active in rules.iter_mut() {
            let status = match active.rule.kind {
                DeviceKind::Wc { status } => Some(status),
                DeviceKind::QpError if active.rule.at_ns.is_none() && active.rule.after_ns.is_none() => None,
                _ => continue,
            };
            if !active.is_time(now, *opened, setup.watch.began(index)) || !active.means(&setup.watch, index) {
                continue;
            }
            active.seen += 1;
            if !active.rule.when.strikes(active.seen, random) {
                continue;
            }
            let Some(status) = status else {
                failing.push(index);
                return Fate::Lost;
            };
            count(&setup.counters.wc);
            setup.note(&format!("packet {} of QP index {index} is not sent: its WR ends with {status}", active.seen));
            return Fate::Ends(status);
        }
        Fate::Sent
    }

    /// A message of a peer takes a receive. True if none is found, although one may be there.
    pub(crate) fn taking_recv(&mut self, now: Time, index: u16) -> bool {
        let Self { setup, rules, random, opened, .. } = self;
        for active in rules.iter_mut().filter(|active| active.rule.kind == DeviceKind::Rnr) {
            if !active.is_time(now, *opened, setup.watch.began(index)) || !active.means(&setup.watch, index) {
                continue;
            }
            active.seen += 1;
            if active.rule.when.strikes(active.seen, random) {
                count(&setup.counters.rnr);
                setup.note(&format!("receive {} of QP index {index} not found", active.seen));
                return true;
            }
        }
        false
    }

    /// A QP that failed since the last time.
    pub(crate) fn take_failing(&mut self) -> Option<u16> {
        let index = self.failing.pop()?;
        self.tell_qp_error(index);
        Some(index)
    }

    fn tell_qp_error(&self, index: u16) {
        count(&self.setup.counters.qp_error);
        self.setup.note(&format!("QP index {index} goes to ERR"));
    }

    /// What is due by time.
    pub(crate) fn due(&mut self, now: Time) -> Vec<Act> {
        let mut acts = Vec::new();
        for at in 0..self.rules.len() {
            let active = &self.rules[at];
            let rule = active.rule;
            let begins = rule.at_ns.map(|ns| self.opened.after(ns));
            match rule.kind {
                DeviceKind::PortDown | DeviceKind::GidChange { .. } | DeviceKind::DeviceFatal => {
                    let Some(begins) = begins else { continue };
                    if !active.begun && begins <= now {
                        acts.push(self.begin(at));
                    }
                    let active = &mut self.rules[at];
                    let ends = rule.for_ns.map(|ns| begins.after(ns));
                    if active.begun && !active.ended && ends.is_some_and(|ends| ends <= now) {
                        active.ended = true;
                        acts.extend(self.end(at));
                    }
                }
                DeviceKind::QpError if rule.after_ns.is_some() || rule.at_ns.is_some() => {
                    acts.extend(self.qp_errors(at, now, begins));
                }
                _ => {}
            }
        }
        acts
    }

    fn begin(&mut self, at: usize) -> Act {
        let rule = self.rules[at].rule;
        self.rules[at].begun = true;
        match rule.kind {
            DeviceKind::PortDown => {
                count(&self.setup.counters.port_down);
                self.setup.note(&format!("port {} down", rule.port));
                Act::PortDown(rule.port)
            }
            DeviceKind::GidChange { index } => {
                count(&self.setup.counters.gid_change);
                self.setup.note(&format!("GID {index} of port {} goes", rule.port));
                Act::GidGoes { rule: at, port: rule.port, index }
            }
            _ => {
                count(&self.setup.counters.device_fatal);
                self.setup.note("device fatal");
                Act::DeviceFatal
            }
        }
    }

    fn end(&mut self, at: usize) -> Option<Act> {
        let Active { rule, gid, .. } = self.rules[at];
        match rule.kind {
            DeviceKind::PortDown => {
                self.setup.note(&format!("port {} up again", rule.port));
                Some(Act::PortUp(rule.port))
            }
            DeviceKind::GidChange { index } => {
                self.setup.note(&format!("GID {index} of port {} is back", rule.port));
                Some(Act::GidReturns { port: rule.port, index, gid })
            }
            _ => None,
        }
    }

    /// QPs that a timed rule fails now, each once.
    fn qp_errors(&mut self, at: usize, now: Time, begins: Option<Time>) -> Vec<Act> {
        let rule = self.rules[at].rule;
        if self.rules[at].ended || begins.is_some_and(|begins| begins > now) {
            return Vec::new();
        }
        let watch = self.setup.watch.clone();
        let is_due = |index: u16| match rule.after_ns {
            Some(after) => watch.began(index).is_some_and(|began| began.saturating_add(after) <= now.0),
            None => true,
        };
        let struck: Vec<u16> = watch
            .indexes()
            .into_iter()
            .filter(|&index| rule.qp.is_none_or(|which| watch.selects(which, index)) && is_due(index))
            .collect();
        // `at` is one moment; `after` is one for each QP, and the rule is done when it has found one.
        self.rules[at].ended = rule.after_ns.is_none() || !struck.is_empty();
        struck.iter().for_each(|&index| self.tell_qp_error(index));
        struck.into_iter().map(Act::QpError).collect()
    }

    /// The GID that a rule took away.
    pub(crate) fn took_gid(&mut self, rule: usize, gid: Gid) {
        self.rules[rule].gid = gid;
    }

    /// When [`DeviceFaults::due`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let of = |active: &Active| {
            let rule = &active.rule;
            if active.ended {
                return None;
            }
            let begins = rule.at_ns.map(|ns| self.opened.after(ns));
            match rule.kind {
                DeviceKind::PortDown | DeviceKind::GidChange { .. } | DeviceKind::DeviceFatal if active.begun => {
                    begins?.0.checked_add(rule.for_ns?).map(Time)
                }
                DeviceKind::PortDown | DeviceKind::GidChange { .. } | DeviceKind::DeviceFatal => begins,
                DeviceKind::QpError => match rule.after_ns {
                    None => begins,
                    Some(after) => {
                        let began = self.setup.watch.indexes().into_iter().filter_map(|i| self.setup.watch.began(i));
                        began.map(|began| Time(began.saturating_add(after))).min()
                    }
                },
                _ => None,
            }
        };
        self.rules.iter().filter_map(of).min()
    }
}

impl Active {
    fn is_time(&self, now: Time, opened: Time, began: Option<u64>) -> bool {
        let since_open = now.since(opened);
        let begins = self.rule.at_ns.unwrap_or(0);
        let open = since_open >= begins && self.rule.for_ns.is_none_or(|ns| since_open < begins.saturating_add(ns));
        open && self.rule.after_ns.is_none_or(|ns| began.is_some_and(|began| began.saturating_add(ns) <= now.0))
    }

    fn means(&self, watch: &QpWatch, index: u16) -> bool {
        self.rule.qp.is_none_or(|which| watch.selects(which, index))
    }
}

/// Verbs that fail: asked without the engine's lock.
#[derive(Debug)]
pub(crate) struct VerbFaults {
    setup: FaultSetup,
    rules: Mutex<(Vec<(DeviceRule, u64)>, Random)>,
    opened: Time,
}

impl VerbFaults {
    pub(crate) fn new(setup: FaultSetup, opened: Time) -> Self {
        let of_verbs = |rule: &&DeviceRule| matches!(rule.kind, DeviceKind::Verb { .. });
        let rules = setup.spec.device.iter().filter(of_verbs).map(|&rule| (rule, 0)).collect();
        let random = Random(setup.spec.seed ^ 0x7e2b);
        Self { setup, rules: Mutex::new((rules, random)), opened }
    }

    /// A verb is called.
    pub(crate) fn check(&self, now: Time, called: Verb) -> Result<(), VerbsError> {
        let mut guard = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let (rules, random) = &mut *guard;
        for (rule, seen) in rules {
            let DeviceKind::Verb { verb, errno } = rule.kind else { continue };
            let since = now.since(self.opened);
            let begins = rule.at_ns.unwrap_or(0);
            if verb != called || since < begins || rule.for_ns.is_some_and(|ns| since >= begins.saturating_add(ns)) {
                continue;
            }
            *seen += 1;
            if rule.when.strikes(*seen, random) {
                count(&self.setup.counters.verb);
                self.setup.note(&format!("{} fails with {errno}", verb.as_str()));
                return Err(failed(verb, errno, *seen));
            }
        }
        Ok(())
    }
}

fn failed(verb: Verb, errno: Errno, call: u64) -> VerbsError {
    VerbsError::environment(errno, format!("fault injected: {} fails at call {call} (--fault)", verb.as_str()))
}
