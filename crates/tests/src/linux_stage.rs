//! Linux as a stage: one node of a script is the kernel's rxe in the rig's guest, with real packets on a real wire; the
//! others are played by the stages that we have, in virtual time. So the script is the judge of Linux exactly as it is of
//! us: as responder when Linux is the node that is asked, as requester when it is the one that asks.
//!
//! The kernel's answers take time. After every statement the stage asks the guest's program whether it has come so far
//! (`fence`, whose answer travels behind the packets), until such a round brings nothing new.

pub mod guest;
pub mod rules;
pub mod table;
pub mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use scalefabric_transport::Config;
use scalefabric_verbs::{
    AccessFlags, EventType, MigState, Mtu, OpKind, QKey, QpAttr, QpAttrMask, QpState, QpType, RKey, VerbsError,
    WcFlags, WcOpcode, WcStatus, WorkCompletion,
};
use scalefabric_wire::{Gid, PKey, Psn, Qpn, Srqn};

use crate::script::Queue;
use crate::stage::{Done, Packet, Piece, PlainSend, QpSpec, RegionInfo, Stage, Subject, Target};
use guest::Guest;
use wire::Wire;

/// Longest time that the stage really waits when a script lets time pass.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Rounds of waiting for something that the script says will come, and how long each is.
const PATIENCE: u32 = 60;
const LONG_PATIENCE: u32 = 150;
const A_WHILE: Duration = Duration::from_millis(10);

/// `timeout` of a Linux QP whose script has left it at its default of 14, which is 67 ms: a slow machine would not have
/// answered by then. In a script that never lets time pass it is 17 s, in another 0.5 s, for which is waited.
const PATIENT_TIMEOUT: u8 = 22;
const SHORT_TIMEOUT: u8 = 17;
const DEFAULT_TIMEOUT: u8 = 14;

/// Rights and flags that Linux 6.1 knows.
const LINUX_ACCESS: u32 = 0x1f;

/// Where an object of the script lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the stage that plays the other nodes, by its number there.
    Here(usize),
    /// In the guest, by its number there.
    There(usize),
}

/// The stage.
pub struct LinuxStage<'a> {
    here: Box<dyn Stage>,
    guest: RefCell<Guest>,
    wire: &'a mut Wire,
    /// Number of the node that is Linux.
    subject: usize,
    patient: bool,
    never: &'a [EventType],
    nodes: Vec<Place>,
    regions: Vec<Place>,
    region_info: BTreeMap<usize, RegionInfo>,
    windows: Vec<Place>,
    window_keys: BTreeMap<usize, u32>,
    srqs: Vec<Place>,
    qps: Vec<Place>,
    qpns: BTreeMap<usize, Qpn>,
    done: BTreeMap<(Target, Queue), Vec<Done>>,
    events: Vec<(Subject, EventType)>,
    sent: Vec<Packet>,
}

impl<'a> LinuxStage<'a> {
    /// A play in which node number `subject` is Linux and `here` plays the others. `patient`: the script does not let time
    /// pass; `never`: events that Linux never raises.
    pub fn new(
        here: Box<dyn Stage>,
        address: SocketAddr,
        wire: &'a mut Wire,
        subject: usize,
        patient: bool,
        never: &'a [EventType],
    ) -> std::io::Result<Self> {
        Ok(Self {
            here,
            guest: RefCell::new(Guest::connect(address)?),
            wire,
            subject,
            patient,
            never,
            nodes: Vec::new(),
            regions: Vec::new(),
            region_info: BTreeMap::new(),
            windows: Vec::new(),
            window_keys: BTreeMap::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            qpns: BTreeMap::new(),
            done: BTreeMap::new(),
            events: Vec::new(),
            sent: Vec::new(),
        })
    }

    fn ask(&self, question: &str) -> Result<String, String> {
        self.guest.borrow_mut().ask(question).map_err(|refusal| refusal.to_string())
    }

    fn numbers(&self, question: &str) -> Result<Vec<u64>, String> {
        self.guest.borrow_mut().numbers(question).map_err(|refusal| refusal.to_string())
    }

    fn is_there(&self, node: usize) -> bool {
        node == self.subject
    }

    fn node_here(&self, node: usize) -> usize {
        match self.nodes[node] {
            Place::Here(n) | Place::There(n) => n,
        }
    }

    fn find(places: &[Place], wanted: Place) -> Option<usize> {
        places.iter().position(|place| *place == wanted)
    }

    /// The number on this stage of a node of the inner one.
    fn outer_node(&self, inner: usize) -> usize {
        Self::find(&self.nodes, Place::Here(inner)).expect("every node of the inner stage was made here")
    }

    /// Asks the guest until it has nothing new to say.
    fn settle(&mut self) {
        for round in 0..200 {
            let mut lines = Vec::new();
            let _ = self.guest.borrow_mut().ask_with("fence", &mut |line| lines.push(line.to_owned()));
            let mut moved = !lines.is_empty();
            for line in lines {
                self.take(&line);
            }
            let sent = &mut self.sent;
            self.wire.receive(&mut |packet| {
                moved = true;
                sent.push(packet);
            });
            if !moved && round > 0 {
                return;
            }
        }
        panic!("Linux never comes to rest");
    }

    /// A line of an answer to `fence`.
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match words[0] {
            "wc" => {
                let place = Place::There(number(2) as usize);
                let queue = if words[3] == "s" { Queue::Send } else { Queue::Recv };
                let Some(qp) = Self::find(&self.qps, place) else { return };
                let mut wc = WorkCompletion { wr_id: number(4), ..WorkCompletion::default() };
                wc.status = WcStatus::from_raw(number(5) as u32).unwrap_or(WcStatus::GeneralErr);
                wc.opcode = WcOpcode::from_raw(number(6) as u32).unwrap_or(WcOpcode::Send);
                wc.byte_len = number(7) as u32;
                wc.imm = number(8) as u32;
                wc.invalidated_rkey = RKey(number(9) as u32);
                wc.qp_num = Qpn::new(number(10) as u32);
                wc.src_qp = Qpn::new(number(11) as u32);
                wc.flags = WcFlags::from_bits_truncate(number(12) as u32);
                self.done.entry((Target::Qp(qp), queue)).or_default().push(Done { wc, solicited: None });
            }
            "ev" => {
                let Some(event) = EventType::from_raw(number(1) as u32) else { return };
                let place = Place::There(number(3) as usize);
                let subject = match words[2] {
                    "q" => Self::find(&self.qps, place).map(Subject::Qp),
                    "s" => Self::find(&self.srqs, place).map(Subject::Srq),
                    _ => None,
                };
                // What happens to the device (its GID table fills) is the rig's business, not the script's.
                if let Some(subject) = subject {
                    self.events.push((subject, event));
                }
            }
            _ => panic!("the guest says '{line}'"),
        }
    }

    fn gid_text(&self, gid: Gid) -> String {
        guest::hex(&self.wire.swap(gid).0)
    }
}

fn pieces_text(text: &mut String, pieces: &[Piece]) {
    for piece in pieces {
        let _ = write!(text, " {} {} {}", piece.addr, piece.length, piece.lkey);
    }
}

impl Stage for LinuxStage<'_> {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn judges_errno_only(&self) -> bool {
        true
    }

    fn counts(&self, node: usize) -> bool {
        !self.is_there(node)
    }

    fn never_raises(&self, subject: Subject, event: EventType) -> bool {
        let there = match subject {
            Subject::Qp(qp) => matches!(self.qps[qp], Place::There(_)),
            Subject::Srq(srq) => matches!(self.srqs[srq], Place::There(_)),
            Subject::Node(node) => self.is_there(node),
        };
        there && self.never.contains(&event)
    }

    fn wait(&mut self, attempt: u32) -> bool {
        if attempt >= if self.patient { PATIENCE } else { LONG_PATIENCE } {
            return false;
        }
        std::thread::sleep(A_WHILE);
        true
    }

    fn add_node(&mut self, ports: &[Gid], pkeys: &[PKey], config: &Config) -> usize {
        if self.nodes.len() == self.subject {
            self.nodes.push(Place::There(0));
            let host = ports[0].0[15];
            self.wire.begin(host);
            for v6 in [false, true] {
                let gid = guest::hex(&Gid::from_ip(wire::address(wire::GUEST, v6)).0);
                self.ask(&format!("gid {gid}")).expect("the rig has given the guest its addresses");
            }
        } else {
            let inner = self.here.add_node(ports, pkeys, config);
            self.nodes.push(Place::Here(inner));
        }
        self.nodes.len() - 1
    }

    fn add_region(&mut self, node: usize, pd: u32, bytes: &[u8], access: AccessFlags) -> Result<usize, String> {
        let place = if self.is_there(node) {
            let made = self.numbers(&format!("mr {pd} {} {}", bytes.len(), access.bits() & LINUX_ACCESS))?;
            self.ask(&format!("write {} {}", made[0], guest::hex(bytes)))?;
            let info =
                RegionInfo { addr: made[1], len: bytes.len() as u64, lkey: made[2] as u32, rkey: made[3] as u32 };
            self.region_info.insert(self.regions.len(), info);
            Place::There(made[0] as usize)
        } else {
            Place::Here(self.here.add_region(self.node_here(node), pd, bytes, access)?)
        };
        self.regions.push(place);
        Ok(self.regions.len() - 1)
    }

    fn region(&self, region: usize) -> RegionInfo {
        match self.regions[region] {
            Place::Here(inner) => self.here.region(inner),
            Place::There(_) => self.region_info[&region],
        }
    }

    fn read(&self, region: usize, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        match self.regions[region] {
            Place::Here(inner) => self.here.read(inner, offset, length),
            Place::There(n) => Ok(guest::bytes(&self.ask(&format!("read {n} {offset} {length}"))?)),
        }
    }

    fn gone(&mut self, region: usize) -> Result<(), String> {
        match self.regions[region] {
            Place::Here(inner) => self.here.gone(inner),
            Place::There(_) => Err("Linux pins registered memory: it cannot go away".into()),
        }
    }

    fn dereg(&mut self, region: usize) -> Result<(), String> {
        match self.regions[region] {
            Place::Here(inner) => self.here.dereg(inner),
            Place::There(n) => self.ask(&format!("dereg {n}")).map(|_| ()),
        }
    }

    fn add_window(&mut self, node: usize, pd: u32) -> Result<usize, String> {
        let place = if self.is_there(node) {
            let made = self.numbers(&format!("mw {pd}"))?;
            self.window_keys.insert(self.windows.len(), made[1] as u32);
            Place::There(made[0] as usize)
        } else {
            Place::Here(self.here.add_window(self.node_here(node), pd)?)
        };
        self.windows.push(place);
        Ok(self.windows.len() - 1)
    }

    fn window_rkey(&self, window: usize, tag: u8) -> u32 {
        match self.windows[window] {
            Place::Here(inner) => self.here.window_rkey(inner, tag),
            Place::There(_) => self.window_keys[&window] & !0xff | u32::from(tag),
        }
    }

    fn add_srq(&mut self, node: usize, pd: u32, xrc: bool, limit: u32) -> Result<usize, String> {
        let place = if self.is_there(node) {
            Place::There(self.numbers(&format!("srq {pd} {limit}"))?[0] as usize)
        } else {
            Place::Here(self.here.add_srq(self.node_here(node), pd, xrc, limit)?)
        };
        self.srqs.push(place);
        Ok(self.srqs.len() - 1)
    }

    fn srqn(&self, srq: usize) -> Srqn {
        match self.srqs[srq] {
            Place::Here(inner) => self.here.srqn(inner),
            Place::There(_) => Srqn::new(0),
        }
    }

    fn arm(&mut self, srq: usize, limit: u32) -> Result<(), String> {
        match self.srqs[srq] {
            Place::Here(inner) => self.here.arm(inner, limit),
            Place::There(n) => self.ask(&format!("arm {n} {limit}")).map(|_| ()),
        }
    }

    fn add_qp(&mut self, spec: &QpSpec) -> Result<usize, String> {
        let inner_srq = |place: Place| match place {
            Place::Here(n) | Place::There(n) => n,
        };
        let srq = spec.srq.map(|srq| inner_srq(self.srqs[srq]));
        let place = if self.is_there(spec.node) {
            let srq = srq.map_or(-1, |srq| srq as i64);
            let (sends, recvs, cq) = (spec.max_send_wr, spec.max_recv_wr, spec.cq.unwrap_or(256));
            let (kind, all) = (spec.qp_type as u32, u8::from(spec.sig_all));
            let made = self.numbers(&format!("qp {kind} {} {srq} {all} {sends} {recvs} {cq}", spec.pd))?;
            self.qpns.insert(self.qps.len(), Qpn::new(made[1] as u32));
            Place::There(made[0] as usize)
        } else {
            let spec = QpSpec { node: self.node_here(spec.node), srq, ..*spec };
            Place::Here(self.here.add_qp(&spec)?)
        };
        self.qps.push(place);
        Ok(self.qps.len() - 1)
    }

    fn qpn(&self, qp: usize) -> Qpn {
        match self.qps[qp] {
            Place::Here(inner) => self.here.qpn(inner),
            Place::There(_) => self.qpns[&qp],
        }
    }

    fn modify(&mut self, qp: usize, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let n = match self.qps[qp] {
            Place::Here(inner) => return self.here.modify(inner, attr, mask),
            Place::There(n) => n,
        };
        let timeout = match attr.timeout {
            DEFAULT_TIMEOUT if self.patient => PATIENT_TIMEOUT,
            DEFAULT_TIMEOUT => SHORT_TIMEOUT,
            timeout => timeout,
        };
        let av = &attr.ah_attr;
        let dgid = if mask.contains(QpAttrMask::AV) { self.gid_text(av.dgid) } else { "-".into() };
        let question = format!(
            "modify {n} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {timeout} {} {} {dgid} {} {} {}",
            mask.bits(),
            attr.qp_state as u32,
            attr.cur_qp_state as u32,
            attr.path_mtu as u32,
            attr.path_mig_state as u32,
            attr.qkey.0,
            attr.rq_psn.get(),
            attr.sq_psn.get(),
            attr.dest_qp_num.get(),
            attr.qp_access_flags.bits() & LINUX_ACCESS,
            attr.pkey_index,
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.min_rnr_timer,
            attr.port_num,
            attr.retry_cnt,
            attr.rnr_retry,
            av.traffic_class,
            av.hop_limit,
            av.flow_label,
        );
        self.ask(&question).map(|_| ()).map_err(VerbsError::invalid)
    }

    fn query(&self, qp: usize) -> QpAttr {
        let n = match self.qps[qp] {
            Place::Here(inner) => return self.here.query(inner),
            Place::There(n) => n,
        };
        let a = self.numbers(&format!("query {n}")).expect("a QP that is not destroyed can be queried");
        QpAttr {
            qp_state: QpState::from_raw(a[0] as u32).unwrap_or(QpState::Err),
            path_mtu: Mtu::from_raw(a[1] as u32).unwrap_or(Mtu::Mtu1024),
            path_mig_state: MigState::from_raw(a[2] as u32).unwrap_or(MigState::Migrated),
            qkey: QKey(a[3] as u32),
            rq_psn: Psn::new(a[4] as u32),
            sq_psn: Psn::new(a[5] as u32),
            dest_qp_num: Qpn::new(a[6] as u32),
            pkey_index: a[7] as u16,
            sq_draining: a[8] != 0,
            max_rd_atomic: a[9] as u8,
            max_dest_rd_atomic: a[10] as u8,
            min_rnr_timer: a[11] as u8,
            port_num: a[12] as u8,
            timeout: a[13] as u8,
            retry_cnt: a[14] as u8,
            rnr_retry: a[15] as u8,
            ..QpAttr::default()
        }
    }

    fn destroy(&mut self, qp: usize) -> Result<(), String> {
        match self.qps[qp] {
            Place::Here(inner) => self.here.destroy(inner),
            Place::There(n) => self.ask(&format!("destroy {n}")).map(|_| ()),
        }
    }

    fn attach(&mut self, qp: usize, group: Gid) -> Result<(), String> {
        match self.qps[qp] {
            Place::Here(inner) => self.here.attach(inner, group),
            Place::There(n) => self.ask(&format!("attach {n} {}", guest::hex(&group.0))).map(|_| ()),
        }
    }

    fn detach(&mut self, qp: usize, group: Gid) -> Result<(), String> {
        match self.qps[qp] {
            Place::Here(inner) => self.here.detach(inner, group),
            Place::There(n) => self.ask(&format!("detach {n} {}", guest::hex(&group.0))).map(|_| ()),
        }
    }

    fn members(&self, group: Gid) -> Vec<usize> {
        self.here.members(group).into_iter().map(|inner| self.outer_node(inner)).collect()
    }

    fn post_send(&mut self, qp: usize, wr: &PlainSend) -> Result<(), String> {
        let inner = |place: Place| match place {
            Place::Here(n) | Place::There(n) => n,
        };
        let bind = wr.bind.map(|bind| crate::stage::Bind {
            window: inner(self.windows[bind.window]),
            region: bind.region.map(|region| inner(self.regions[region])),
            ..bind
        });
        let n = match self.qps[qp] {
            Place::Here(n) => return self.here.post_send(n, &PlainSend { bind, ..wr.clone() }),
            Place::There(n) => n,
        };
        if matches!(wr.kind, OpKind::Flush | OpKind::AtomicWrite) {
            return Err("Linux 6.1 has neither FLUSH nor ATOMIC WRITE".into());
        }
        let (a, b) = if wr.kind == OpKind::FetchAdd { (wr.add, 0) } else { (wr.compare, wr.swap) };
        let (dgid, qpn, qkey) = match wr.ud {
            Some((gid, qpn, qkey)) => (self.gid_text(gid), qpn.get(), qkey),
            None => ("-".into(), 0, 0),
        };
        let mut question = format!(
            "send {n} {} {} {} {} {} {} {} {a} {b} {dgid} {qpn} {qkey}",
            wr.wr,
            wr.kind as u32,
            wr.flags.bits(),
            wr.remote_addr,
            wr.rkey,
            wr.imm,
            wr.inv,
        );
        match bind {
            None => question += " 0 0 0 0 0 0",
            Some(bind) => {
                let region = bind.region.unwrap_or(0);
                let (access, length) = (bind.access.bits() & LINUX_ACCESS, bind.length);
                let _ = write!(question, " {} {region} {} {length} {access} {}", bind.window, bind.addr, bind.rkey);
            }
        }
        pieces_text(&mut question, &wr.pieces);
        self.ask(&question).map(|_| ())
    }

    fn post_recv(&mut self, target: Target, wr: u64, pieces: &[Piece]) -> Result<(), String> {
        let (kind, place) = match target {
            Target::Qp(qp) => ('q', self.qps[qp]),
            Target::Srq(srq) => ('s', self.srqs[srq]),
        };
        match place {
            Place::Here(inner) => {
                let target = if kind == 'q' { Target::Qp(inner) } else { Target::Srq(inner) };
                self.here.post_recv(target, wr, pieces)
            }
            Place::There(n) => {
                let mut question = format!("recv {kind} {n} {wr}");
                pieces_text(&mut question, pieces);
                self.ask(&question).map(|_| ())
            }
        }
    }

    fn turn(&mut self, out: &mut Vec<(usize, Packet)>) {
        self.settle();
        let now = self.here.now();
        out.extend(self.sent.drain(..).map(|packet| (self.subject, Packet { at: now, ..packet })));
        let mut inner = Vec::new();
        self.here.turn(&mut inner);
        out.extend(inner.into_iter().map(|(node, packet)| (self.outer_node(node), packet)));
        for (subject, event) in self.here.events() {
            let place = match subject {
                Subject::Qp(n) => Self::find(&self.qps, Place::Here(n)).map(Subject::Qp),
                Subject::Srq(n) => Self::find(&self.srqs, Place::Here(n)).map(Subject::Srq),
                Subject::Node(n) => Some(Subject::Node(self.outer_node(n))),
            };
            self.events.extend(place.map(|subject| (subject, event)));
        }
    }

    fn deliver(&mut self, node: usize, packets: &[Packet]) {
        match self.nodes[node] {
            Place::Here(inner) => self.here.deliver(inner, packets),
            Place::There(_) => {
                for packet in packets {
                    self.wire.send(packet);
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.here.now()
    }

    fn next_deadline(&mut self) -> Option<u64> {
        self.here.next_deadline()
    }

    fn set_now(&mut self, ns: u64) {
        let passes = Duration::from_nanos(ns.saturating_sub(self.here.now()));
        std::thread::sleep(passes.min(LONGEST_WAIT));
        self.here.set_now(ns);
    }

    fn poll(&mut self, target: Target, queue: Queue) -> Vec<Done> {
        let place = match target {
            Target::Qp(qp) => self.qps[qp],
            Target::Srq(srq) => self.srqs[srq],
        };
        match (place, target) {
            (Place::Here(inner), Target::Qp(_)) => self.here.poll(Target::Qp(inner), queue),
            (Place::Here(inner), Target::Srq(_)) => self.here.poll(Target::Srq(inner), queue),
            (Place::There(_), _) => self.done.remove(&(target, queue)).unwrap_or_default(),
        }
    }

    fn events(&mut self) -> Vec<(Subject, EventType)> {
        std::mem::take(&mut self.events)
    }

    fn counter(&self, node: usize, label: &str) -> u64 {
        match self.nodes[node] {
            Place::Here(inner) => self.here.counter(inner, label),
            Place::There(_) => 0,
        }
    }

    fn set_pkey(&mut self, node: usize, port: u8, index: u16, value: PKey) {
        if let Place::Here(inner) = self.nodes[node] {
            self.here.set_pkey(inner, port, index, value);
        }
    }

    fn change_port(&mut self, node: usize, port: u8, change: &str) -> Result<(), String> {
        match self.nodes[node] {
            Place::Here(inner) => self.here.change_port(inner, port, change),
            Place::There(_) => Err("the guest's port stays as it is".into()),
        }
    }

    fn fail(&mut self, qp: usize, status: WcStatus) -> Result<(), String> {
        match self.qps[qp] {
            Place::Here(inner) => self.here.fail(inner, status),
            Place::There(_) => Err("nobody makes a QP of Linux fail".into()),
        }
    }

    fn fail_device(&mut self, node: usize) -> Result<(), String> {
        match self.nodes[node] {
            Place::Here(inner) => self.here.fail_device(inner),
            Place::There(_) => Err("nobody makes a device of Linux fail".into()),
        }
    }
}

/// True if a QP type is one of Linux's rxe.
pub const fn linux_has(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::Rc | QpType::Uc | QpType::Ud)
}
