//! Two QPs and the wire between them: [`Side`], [`Link`], and what a test may do to a packet on its way ([`Fate`]).

use alloc::collections::VecDeque;

use scalefabric_verbs::{AccessFlags, MigState, Mtu, QKey, QpAttr, QpAttrMask, QpState, QpType, Qpn};
use scalefabric_wire::Psn;

use super::{Packet, TestHost};
use crate::queue_pair::{Config, Next, QueuePair};
use crate::time::Time;

/// A QP and its world.
#[derive(Debug)]
pub struct Side {
    /// The QP.
    pub qp: QueuePair,
    /// Its world.
    pub host: TestHost,
}

impl Side {
    /// A QP in RESET. Its QPN is made from `number`, its memory has `bytes` bytes.
    pub fn new(qp_type: QpType, number: u8, bytes: usize, config: Config) -> Self {
        let qpn = Qpn::new(0x0100 + u32::from(number));
        Self { qp: QueuePair::new(qp_type, qpn, config), host: TestHost::new(number, bytes) }
    }

    /// Modifies the QP and, if that worked, tells the host its paths, as a NIC does.
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), scalefabric_verbs::VerbsError> {
        self.qp.modify(&mut self.host, attr, mask)?;
        if mask.contains(QpAttrMask::AV) {
            self.host.paths[0] = Some(self.qp.query().ah_attr);
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            self.host.paths[1] = Some(self.qp.query().alt_ah_attr);
        }
        Ok(())
    }

    /// Goes to a state, with no other attribute.
    pub fn to_state(&mut self, state: QpState) {
        let attr = QpAttr { qp_state: state, ..self.qp.query() };
        self.modify(&attr, QpAttrMask::STATE).expect("the transition is legal");
    }

    /// Sends at most `budget` packets onto the host's wire.
    pub fn transmit(&mut self, budget: usize) -> Next {
        self.qp.transmit(&mut self.host, budget)
    }

    /// Takes one packet.
    pub fn receive(&mut self, packet: &Packet) {
        self.qp.receive(&mut self.host, &packet.incoming());
    }

    /// RESET to RTS with `attr` for everything that the transitions want.
    pub fn bring_up(&mut self, attr: &QpAttr) {
        use QpAttrMask as M;
        let qp_type = self.qp.qp_type();
        let (init, rtr, rts) = match qp_type {
            QpType::Ud => (M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN),
            QpType::Uc => {
                (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN, M::SQ_PSN)
            }
            _ => {
                let mut rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
                if qp_type != QpType::XrcSend {
                    rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
                }
                let mut rts = M::SQ_PSN | M::TIMEOUT;
                if qp_type != QpType::XrcRecv {
                    rts |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
                }
                (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, rtr, rts)
            }
        };
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            let attr = QpAttr { qp_state: state, ..*attr };
            self.modify(&attr, mask | M::STATE).expect("the transition is legal");
        }
    }
}

/// What happens to a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fate {
    Arrives,
    Lost,
    Doubled,
    /// Stays behind those that come after it until the wire is empty or `n` packets have passed.
    Late(usize),
}

/// Two sides and the wire between them.
#[derive(Debug)]
pub struct Link {
    /// Side a.
    pub a: Side,
    /// Side b.
    pub b: Side,
    /// Packets on the way to b and to a, with how many must pass them.
    flying: [VecDeque<(usize, Packet)>; 2],
}

/// Attributes that suit most tests: path MTU 1024, timeout code 14, 7 retries, RNR for ever, 4 READs.
pub fn attributes() -> QpAttr {
    let mut attr = QueuePair::new(QpType::Rc, Qpn::new(2), Config::default()).query();
    attr.path_mtu = Mtu::Mtu1024;
    attr.path_mig_state = MigState::Migrated;
    attr.qp_access_flags = AccessFlags::REMOTE | AccessFlags::LOCAL_WRITE;
    attr.qkey = QKey(0x1234);
    attr.port_num = 1;
    attr.max_rd_atomic = 4;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.sq_psn = Psn::new(0x00ff_fff0);
    attr.rq_psn = Psn::new(0x00ff_fff0);
    attr
}

impl Link {
    /// Two connected sides in RTS, with `bytes` of memory each. `change` may alter the attributes of both.
    pub fn new(types: (QpType, QpType), bytes: usize, config: Config, change: impl Fn(&mut QpAttr)) -> Self {
        let mut link = Self {
            a: Side::new(types.0, 1, bytes, config),
            b: Side::new(types.1, 2, bytes, config),
            flying: [VecDeque::new(), VecDeque::new()],
        };
        let (to_a, to_b) = (link.a.host.address(1), link.b.host.address(1));
        let mut attr = attributes();
        change(&mut attr);
        attr.ah_attr = to_b;
        attr.dest_qp_num = link.b.qp.qpn();
        link.a.bring_up(&attr);
        attr.ah_attr = to_a;
        attr.dest_qp_num = link.a.qp.qpn();
        link.b.bring_up(&attr);
        link
    }

    /// Two RC sides with 1 MiB each and the attributes of [`attributes`].
    pub fn rc() -> Self {
        Self::new((QpType::Rc, QpType::Rc), 1 << 20, Config::default(), |_| ())
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.a.host.now
    }

    /// Sets the time of both.
    pub fn set_now(&mut self, now: Time) {
        self.a.host.now = now;
        self.b.host.now = now;
    }

    /// One round: both send up to 16 packets, the wire delivers what is due by `fate` (asked once a packet, with true for
    /// packets from a), both end their batch. Returns false when nothing moved.
    pub fn round(&mut self, fate: &mut dyn FnMut(bool, &Packet) -> Fate) -> bool {
        let mut moved = false;
        for from_a in [true, false] {
            let way = usize::from(!from_a);
            {
                let side = if from_a { &mut self.a } else { &mut self.b };
                side.qp.transmit(&mut side.host, 16);
                while let Some(packet) = side.host.take_packet() {
                    moved = true;
                    match fate(from_a, &packet) {
                        Fate::Arrives => self.flying[way].push_back((0, packet)),
                        Fate::Lost => {}
                        Fate::Doubled => {
                            self.flying[way].push_back((0, packet.clone()));
                            self.flying[way].push_back((0, packet));
                        }
                        Fate::Late(n) => self.flying[way].push_back((n, packet)),
                    }
                }
            }
            let to = if from_a { &mut self.b } else { &mut self.a };
            let flying = &mut self.flying[way];
            let mut arrived = false;
            while !flying.is_empty() {
                // The first that needs nobody to pass it; if all wait, the first of all.
                let at = flying.iter().position(|(wait, _)| *wait == 0).unwrap_or(0);
                let (_, packet) = flying.remove(at).expect("at is in range");
                for (wait, _) in flying.iter_mut().take(at) {
                    *wait = wait.saturating_sub(1);
                }
                to.receive(&packet);
                arrived = true;
            }
            if arrived {
                moved = true;
                to.qp.end_of_batch(&mut to.host);
            }
        }
        moved
    }

    /// Rounds until nothing moves; then time jumps to the next deadline; until there is none or `end` is reached.
    pub fn run_until(&mut self, end: Time, fate: &mut dyn FnMut(bool, &Packet) -> Fate) {
        loop {
            while self.round(fate) {}
            let next = [self.a.next_time(), self.b.next_time()].into_iter().flatten().min();
            let Some(next) = next.filter(|t| *t <= end) else {
                self.set_now(end.max(self.now()));
                return;
            };
            self.set_now(next.max(self.now()));
            for side in [&mut self.a, &mut self.b] {
                if side.qp.deadline().is_some_and(|t| t <= next) {
                    side.qp.on_timer(&mut side.host);
                }
            }
        }
    }

    /// As [`Link::run_until`] on a perfect wire, for ten virtual seconds at most.
    pub fn run(&mut self) {
        let end = self.now().after(10_000_000_000);
        self.run_until(end, &mut |_, _| Fate::Arrives);
    }
}

impl Side {
    /// When this side next wants to run: its timer, or a paced packet.
    fn next_time(&mut self) -> Option<Time> {
        let paced = match self.qp.transmit(&mut self.host, 0) {
            Next::At(time) => Some(time),
            _ => None,
        };
        [self.qp.deadline(), paced].into_iter().flatten().min()
    }
}
