//! A NIC in the simulation with its memory, and how its queue pairs are connected. The NIC is the one that ships, driven by
//! hand; only its port is ours.

use std::sync::Arc;

use scalefabric_nic::{ManualNic, NicConfig, PortConfig};
use scalefabric_transport::Time;
use scalefabric_verbs::{
    AccessFlags, AddressVector, BindMw, CompletionQueue, Context, Gid, MemoryRegion, MemoryWindow, MwType,
    ProtectionDomain, Psn, QKey, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, QueuePair, RKey, SendFlags,
    SharedReceiveQueue, SrqInit, VerbsError, WcStatus, WorkCompletion, XrcDomain,
};

use crate::ledger::TARGET_LEN;
use crate::wire::{SimWire, address};
use crate::workload::ConnectionPlan;

/// Bytes between the pieces of an arena that belong to nobody.
pub const GUARD: usize = 64;
/// Bytes that forged packets may change.
const GRANTED_LEN: usize = 64;
/// Bytes of a window.
const WINDOW_LEN: usize = 64;
/// Bytes of the regions that nothing may touch.
pub const FORBIDDEN_LEN: usize = 256;
/// What stands in memory that nobody may read.
pub const SECRET: [u8; 8] = *b"\xd5SECRET\xd5";
/// Q_Key of all datagram QPs.
pub const QKEY: QKey = QKey(0x5f5f);

/// Memory that peers may not touch, or not in that way.
#[derive(Debug)]
pub struct Forbidden {
    /// What it is called when it was touched.
    pub name: &'static str,
    /// Its key.
    pub rkey: RKey,
    /// Where it is in the arena.
    pub offset: usize,
    /// Whether a peer may read it.
    pub readable: bool,
    #[allow(dead_code)] // Keeps the region.
    region: Arc<dyn MemoryRegion>,
    #[allow(dead_code)] // Keeps the window.
    window: Option<Arc<dyn MemoryWindow>>,
}

/// A NIC and what it holds.
#[derive(Debug)]
pub struct Station {
    /// The NIC.
    pub nic: ManualNic,
    /// Its device.
    pub context: Arc<dyn Context>,
    /// Where everything belongs.
    pub pd: Arc<dyn ProtectionDomain>,
    #[allow(dead_code)] // Keeps the other domain.
    other_pd: Arc<dyn ProtectionDomain>,
    /// Send completions.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Receive completions.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// All memory that peers may name, in one piece without remote rights.
    pub arena: Arc<dyn MemoryRegion>,
    /// The word that all flows add to.
    pub shared: Arc<dyn MemoryRegion>,
    /// Memory that forged packets may change: that they do shows that the others are refused for the right reason.
    pub granted: (Arc<dyn MemoryRegion>, usize),
    /// What attackers try to reach.
    pub forbidden: Vec<Forbidden>,
    used: usize,
}

const CQ_ENTRIES: u32 = 512;

/// Every right that plain memory can grant: FLUSH to persistence needs a mapped file.
pub fn everything() -> AccessFlags {
    (AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE).difference(AccessFlags::FLUSH_PERSISTENT)
}

impl Station {
    /// NIC number `index` on the wire, with room for the targets of `flows` flows.
    pub fn new(wire: &SimWire, index: usize, v6: bool, seed: u64, flows: usize) -> Result<Self, VerbsError> {
        let gid = Gid::from_ip(address(index, v6));
        let mut config = NicConfig::new(format!("sim{index}"), vec![PortConfig::new(format!("sim{index}"), vec![gid])]);
        config.attr.max_qp = 64;
        config.attr.max_cq = 16;
        config.attr.max_srq = 16;
        config.attr.max_mr = 128;
        config.attr.max_mw = 16;
        config.seed = seed;
        // A wire that damages packets must not be believed because 16 of 32 bits fit.
        config.solve_ip_ids = false;
        let nic = ManualNic::new(config, vec![Box::new(wire.port(index))], seed ^ (index as u64) << 56)?;
        let context = nic.context();
        let (pd, other_pd) = (context.alloc_pd()?, context.alloc_pd()?);
        let length = flows * (TARGET_LEN + GUARD) + 8 * (FORBIDDEN_LEN + WINDOW_LEN + GUARD) + 4 * GUARD;
        let arena = pd.alloc_mr(length, AccessFlags::LOCAL_WRITE)?;
        let mut station = Self {
            send_cq: context.create_cq(CQ_ENTRIES, None, 0)?,
            recv_cq: context.create_cq(CQ_ENTRIES, None, 0)?,
            shared: arena.clone(),
            granted: (arena.clone(), 0),
            forbidden: Vec::new(),
            used: GUARD,
            nic,
            context,
            pd,
            other_pd,
            arena,
        };
        let everything = everything();
        let pd = station.pd.clone();
        (station.shared, _) = station.carve(&pd, 8, everything)?;
        station.granted = station.carve(&pd, GRANTED_LEN, everything)?;
        let other = station.other_pd.clone();
        let rows = [
            ("a region without remote rights", pd.clone(), AccessFlags::LOCAL_WRITE, false),
            ("a region of another protection domain", other, everything, false),
            ("a region that may only be read", pd, AccessFlags::REMOTE_READ, true),
        ];
        for (name, pd, access, readable) in rows {
            let (region, offset) = station.carve(&pd, FORBIDDEN_LEN, access)?;
            if !readable {
                station.hide(offset)?;
            }
            station.forbidden.push(Forbidden { name, rkey: region.rkey(), offset, readable, region, window: None });
        }
        Ok(station)
    }

    /// Fills a forbidden piece with what nobody may read.
    fn hide(&self, offset: usize) -> Result<(), VerbsError> {
        for at in (0..FORBIDDEN_LEN).step_by(SECRET.len()) {
            self.arena.write(offset + at, &SECRET)?;
        }
        Ok(())
    }

    /// Binds a window to the first bytes of a region; what lies behind them in the same region is forbidden.
    pub fn bind_window(&mut self, qp: &dyn QueuePair) -> Result<(), VerbsError> {
        let pd = self.pd.clone();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let (region, offset) = self.carve(&pd, WINDOW_LEN + FORBIDDEN_LEN, access)?;
        let window = pd.alloc_mw(MwType::Type1)?;
        let bind = BindMw {
            mw: &*window,
            rkey: RKey(0),
            mr: Some(&*region),
            addr: region.addr(),
            length: WINDOW_LEN as u64,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
        };
        qp.bind_mw(0, SendFlags::SIGNALED, &bind)?;
        self.nic.turn(Time(0));
        let mut wc = [WorkCompletion::default()];
        if self.send_cq.poll(&mut wc)? != 1 || wc[0].status != WcStatus::Success {
            return Err(VerbsError::invalid(format!("the window was not bound: {:?}", wc[0].status)));
        }
        let (rkey, offset) = (window.rkey(), offset + WINDOW_LEN);
        self.hide(offset)?;
        let name = "memory behind a window";
        self.forbidden.push(Forbidden { name, rkey, offset, readable: false, region, window: Some(window) });
        Ok(())
    }

    /// Registers the next free piece of the arena.
    pub fn carve(
        &mut self,
        pd: &Arc<dyn ProtectionDomain>,
        length: usize,
        access: AccessFlags,
    ) -> Result<(Arc<dyn MemoryRegion>, usize), VerbsError> {
        let offset = self.used;
        self.used += (length + GUARD).next_multiple_of(GUARD);
        assert!(self.used <= self.arena.length(), "the arena was made large enough for what a plan can ask");
        let address = self.arena.addr() + offset as u64;
        // SAFETY: the range lies inside the arena, which `self` keeps registered and mapped at least as long as the station
        // keeps the pieces; nobody has references to its bytes. WHY: two regions over the same bytes are what lets a
        // checker see what a peer must not reach.
        let region = unsafe { pd.reg_mr(address as *mut u8, length, address, access) }?;
        Ok((region, offset))
    }

    /// What is wrong with memory that nothing may have changed.
    pub fn touched(&self, index: usize, out: &mut Vec<String>) -> Result<(), VerbsError> {
        let mut bytes = [0; FORBIDDEN_LEN];
        for forbidden in &self.forbidden {
            self.arena.read(forbidden.offset, &mut bytes)?;
            let intact =
                |(at, &byte): (usize, &u8)| byte == if forbidden.readable { 0 } else { SECRET[at % SECRET.len()] };
            if let Some(at) = bytes.iter().enumerate().position(|pair| !intact(pair)) {
                out.push(format!("NIC {index}: byte {at} of {} was changed", forbidden.name));
            }
        }
        Ok(())
    }

    /// Whether a forged packet has changed what it may change.
    pub fn was_reached(&self) -> Result<bool, VerbsError> {
        let mut bytes = [0; GRANTED_LEN];
        self.arena.read(self.granted.1, &mut bytes)?;
        Ok(bytes != [0; GRANTED_LEN])
    }

    /// Looks at the bytes between the pieces of the arena.
    pub fn guards(&self, index: usize, pieces: &[(usize, usize)], out: &mut Vec<String>) -> Result<(), VerbsError> {
        let mut bytes = vec![0; self.used];
        self.arena.read(0, &mut bytes)?;
        for forbidden in &self.forbidden {
            bytes[forbidden.offset..forbidden.offset + FORBIDDEN_LEN].fill(0);
        }
        for &(offset, length) in pieces {
            bytes[offset..offset + length].fill(0);
        }
        bytes[self.granted.1..self.granted.1 + GRANTED_LEN].fill(0);
        // The shared word comes first.
        bytes[GUARD..GUARD + 8].fill(0);
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            out.push(format!("NIC {index}: byte {at} of its arena, which belongs to nobody, was changed"));
        }
        Ok(())
    }
}

/// The two QPs of a connection, and what belongs to them.
#[derive(Debug)]
pub struct Pair {
    /// The QPs.
    pub qps: [Arc<dyn QueuePair>; 2],
    /// SRQ of the second side, if it has one (XRC always).
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    #[allow(dead_code)] // Keeps the domain.
    xrcd: Option<Arc<dyn XrcDomain>>,
}

/// Receives posted to a queue at most.
pub const RECEIVES: u32 = 16;
/// SGEs of a WR.
pub const SGES: u32 = 3;

const CAP: QpCap =
    QpCap { max_send_wr: 16, max_recv_wr: RECEIVES, max_send_sge: SGES, max_recv_sge: SGES, max_inline_data: 64 };

impl Pair {
    /// Makes the QPs of a connection, in RESET.
    pub fn new(stations: &[Station], plan: &ConnectionPlan) -> Result<Self, VerbsError> {
        let [a, b] = plan.nics.map(|nic| &stations[nic]);
        let init = |station: &Station, qp_type, srq| QpInit {
            qp_type,
            send_cq: station.send_cq.clone(),
            recv_cq: station.recv_cq.clone(),
            srq,
            cap: CAP,
            sq_sig_all: plan.sq_sig_all,
        };
        let srq_init = SrqInit { max_wr: RECEIVES, max_sge: SGES, srq_limit: 0, xrc: None };
        if plan.qp_type == QpType::XrcSend {
            let xrcd = b.context.open_xrcd()?;
            let xrc = Some((xrcd.clone(), b.recv_cq.clone()));
            let srq = b.pd.create_srq(&SrqInit { xrc, ..srq_init })?;
            let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..CAP };
            let first = a.pd.create_qp(&QpInit { cap, ..init(a, QpType::XrcSend, None) })?;
            let second = b.context.create_xrc_target(&xrcd)?;
            return Ok(Self { qps: [first, second], srq: Some(srq), xrcd: Some(xrcd) });
        }
        let srq = if plan.srq { Some(b.pd.create_srq(&srq_init)?) } else { None };
        let first = a.pd.create_qp(&init(a, plan.qp_type, None))?;
        let second = b.pd.create_qp(&init(b, plan.qp_type, srq.clone()))?;
        Ok(Self { qps: [first, second], srq, xrcd: None })
    }

    /// Brings both QPs to RTS.
    pub fn connect(&self, plan: &ConnectionPlan, v6: bool) -> Result<(), VerbsError> {
        for side in 0..2 {
            bring_up(plan, side, &*self.qps[side], &*self.qps[1 - side], v6)?;
        }
        Ok(())
    }
}

/// The way from one side of a connection to the other.
pub fn path(plan: &ConnectionPlan, side: usize, v6: bool) -> AddressVector {
    AddressVector {
        dgid: Gid::from_ip(address(plan.nics[1 - side], v6)),
        sgid_index: 0,
        hop_limit: 64,
        // ECT(0), so that packets can be marked.
        traffic_class: 2,
        flow_label: 0,
        sl: 0,
        static_rate: 0,
        port_num: 1,
    }
}

fn bring_up(
    plan: &ConnectionPlan,
    side: usize,
    qp: &dyn QueuePair,
    peer: &dyn QueuePair,
    v6: bool,
) -> Result<(), VerbsError> {
    use QpAttrMask as M;
    let (fresh, _) = qp.query()?;
    let attr = QpAttr {
        path_mtu: plan.mtu,
        qkey: QKEY,
        rq_psn: Psn::new(plan.psns[1 - side]),
        sq_psn: Psn::new(plan.psns[side]),
        dest_qp_num: peer.qp_num(),
        qp_access_flags: AccessFlags::REMOTE,
        ah_attr: path(plan, side, v6),
        max_rd_atomic: plan.rd_atomic,
        max_dest_rd_atomic: plan.rd_atomic,
        min_rnr_timer: plan.min_rnr_timer,
        port_num: 1,
        timeout: plan.timeout,
        retry_cnt: plan.retry_cnt,
        rnr_retry: plan.rnr_retry,
        ..fresh
    };
    let kind = qp.qp_type();
    let responds = matches!(kind, QpType::Rc | QpType::XrcRecv);
    let requests = matches!(kind, QpType::Rc | QpType::XrcSend);
    let ud = kind == QpType::Ud;
    let init = M::PKEY_INDEX | M::PORT | if ud { M::QKEY } else { M::ACCESS_FLAGS };
    let mut rtr = if ud { M::empty() } else { M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN };
    if responds {
        rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    }
    let mut rts = M::SQ_PSN;
    if requests {
        rts |= M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    } else if responds {
        rts |= M::TIMEOUT;
    }
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        qp.modify(&QpAttr { qp_state: state, ..attr }, mask | M::STATE)?;
    }
    Ok(())
}
