//! One side of a demo: its open device, its memory, and queue pairs that it connects to the peer's. Written against the
//! verbs contract alone: nothing here knows which backend it runs on.

use crate::demo::exchange::PeerInfo;
use crate::demo::pattern;
use crate::demo::step::{MAX_SLOTS, Transport};
use crate::failure::{During, Failure};
use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, CompletionQueue, Context, Gid, MemoryRegion, Mtu, PortAttr, PortState,
    ProtectionDomain, Psn, QKey, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, Qpn, QueuePair, RKey, WcStatus,
    WorkCompletion,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Q_Key of the demo's datagram queue pairs.
const QKEY: QKey = QKey(0x1e_4791);

/// Bytes of a slot in the small region, which holds markers and credits.
pub const SMALL_SLOT: u64 = 64;

/// How long a port may take to come up.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// Inline bytes asked for.
const INLINE_BYTES: u32 = 64;

/// An open device with memory.
pub struct Side {
    /// The device.
    pub context: Arc<dyn Context>,
    /// Port in use, from 1.
    pub port_num: u8,
    /// Index of the GID in use.
    pub gid_index: u8,
    /// The GID in use.
    pub gid: Gid,
    /// Path MTU of the port.
    pub path_mtu: Mtu,
    /// Messages go to and from here.
    pub region: Arc<dyn MemoryRegion>,
    /// Markers and credits go to and from here.
    pub small: Arc<dyn MemoryRegion>,
    domain: Arc<dyn ProtectionDomain>,
    ack_timeout: u8,
}

/// A queue pair with its completion queues.
pub struct Endpoint {
    /// The queue pair.
    pub queue_pair: Arc<dyn QueuePair>,
    /// Send completions.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Receive completions.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// What this side tells the peer.
    pub local: PeerInfo,
    /// Inline bytes a send may have.
    pub inline_bytes: u32,
    /// Sends that may be outstanding.
    pub send_depth: u32,
    /// Where datagrams go, once connected.
    pub datagram_path: Option<Arc<dyn AddressHandle>>,
}

impl Side {
    /// Registers `region_bytes` of memory on the port. `ack_timeout` is the exponent of `ibv_qp_attr`.
    pub fn new(
        context: Arc<dyn Context>,
        port_num: u8,
        gid_index: Option<u8>,
        region_bytes: u64,
        ack_timeout: u8,
    ) -> Result<Self, Failure> {
        let port = active_port(context.as_ref(), port_num)?;
        let (gid_index, gid) = choose_gid(context.as_ref(), port_num, gid_index)?;
        let domain = context.alloc_pd().during(|| "make a protection domain")?;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let length = usize::try_from(region_bytes).during(|| "size of the region")?;
        let region = domain.alloc_mr(length, access).during(|| format!("register {region_bytes} bytes"))?;
        let small_bytes = 2 * MAX_SLOTS as usize * SMALL_SLOT as usize;
        let small = domain.alloc_mr(small_bytes, AccessFlags::LOCAL_WRITE).during(|| "register the small region")?;
        Ok(Self { context, port_num, gid_index, gid, path_mtu: port.active_mtu, region, small, domain, ack_timeout })
    }

    /// Makes a queue pair in INIT and says what the peer must know of it.
    pub fn endpoint(&self, transport: Transport) -> Result<Endpoint, Failure> {
        let limits = self.context.query_device().during(|| "query the device")?;
        let depth = (2 * MAX_SLOTS).min(limits.max_qp_wr);
        let cqe = (2 * depth).min(limits.max_cqe);
        let make_cq = || self.context.create_cq(cqe, None, 0).during(|| format!("make a CQ of {cqe} entries"));
        let (send_cq, recv_cq) = (make_cq()?, make_cq()?);
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES.min(limits.max_inline_data),
        };
        let qp_type = match transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        };
        let init = QpInit {
            qp_type,
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            srq: None,
            cap,
            sq_sig_all: false,
        };
        let name = transport.name();
        let queue_pair = self.domain.create_qp(&init).during(|| format!("make an {name} queue pair"))?;
        let (mut attr, made) = queue_pair.query().during(|| "query the queue pair")?;
        attr.qp_state = QpState::Init;
        attr.port_num = self.port_num;
        attr.pkey_index = 0;
        attr.qkey = QKEY;
        attr.qp_access_flags = self.peer_rights(transport);
        let mut mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
        mask |= if transport == Transport::Ud { QpAttrMask::QKEY } else { QpAttrMask::ACCESS_FLAGS };
        queue_pair.modify(&attr, mask).during(|| format!("{name} queue pair to INIT"))?;
        let local = PeerInfo {
            transport,
            qpn: queue_pair.qp_num().get(),
            psn: random_psn(queue_pair.qp_num()).get(),
            gid: self.gid.to_ip().to_string(),
            path_mtu: self.path_mtu.bytes(),
            qkey: QKEY.0,
            rkey: self.region.rkey().0,
            addr: self.region.addr(),
            length: self.region.length() as u64,
        };
        let inline_bytes = made.cap.max_inline_data;
        let send_depth = made.cap.max_send_wr;
        Ok(Endpoint { queue_pair, send_cq, recv_cq, local, inline_bytes, send_depth, datagram_path: None })
    }

    fn peer_rights(&self, transport: Transport) -> AccessFlags {
        match transport {
            Transport::Rc => AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
            Transport::Uc => AccessFlags::REMOTE_WRITE,
            Transport::Ud => AccessFlags::empty(),
        }
    }

    /// Takes the endpoint to RTR and RTS with what the peer said.
    pub fn connect(&self, endpoint: &mut Endpoint, peer: &PeerInfo) -> Result<(), Failure> {
        let transport = endpoint.local.transport;
        if peer.transport != transport {
            let (ours, theirs) = (transport.name(), peer.transport.name());
            return Err(Failure::failed(format!(
                "the peer offers an {theirs} queue pair where an {ours} one must come"
            )));
        }
        let address: IpAddr = peer.gid.parse().during(|| format!("the peer's GID `{}`", peer.gid))?;
        let path = AddressVector {
            dgid: Gid::from_ip(address),
            sgid_index: self.gid_index,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            static_rate: 0,
            port_num: self.port_num,
        };
        let limits = self.context.query_device().during(|| "query the device")?;
        let (mut attr, _) = endpoint.queue_pair.query().during(|| "query the queue pair")?;
        attr.path_mtu = mtu_of(peer.path_mtu.min(self.path_mtu.bytes()));
        attr.ah_attr = path;
        attr.dest_qp_num = Qpn::new(peer.qpn);
        attr.rq_psn = Psn::new(peer.psn);
        attr.sq_psn = Psn::new(endpoint.local.psn);
        attr.max_rd_atomic = limits.max_qp_init_rd_atom.min(16) as u8;
        attr.max_dest_rd_atomic = limits.max_qp_rd_atom.min(16) as u8;
        attr.min_rnr_timer = 12;
        attr.timeout = self.ack_timeout;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        let (to_rtr, to_rts) = masks(transport);
        self.step_to(endpoint, &mut attr, QpState::Rtr, to_rtr)?;
        self.step_to(endpoint, &mut attr, QpState::Rts, to_rts)?;
        if transport == Transport::Ud {
            let handle = self.domain.create_ah(&path).during(|| format!("make an address handle to {address}"))?;
            endpoint.datagram_path = Some(handle);
        }
        Ok(())
    }

    fn step_to(&self, endpoint: &Endpoint, attr: &mut QpAttr, to: QpState, mask: QpAttrMask) -> Result<(), Failure> {
        attr.qp_state = to;
        let name = endpoint.local.transport.name();
        endpoint.queue_pair.modify(attr, mask | QpAttrMask::STATE).during(|| format!("{name} queue pair to {to:?}"))
    }

    /// Fills the first `bytes` of the region with the byte that means "nothing arrived".
    pub fn clear(&self, bytes: usize) -> Result<(), Failure> {
        let blank = [pattern::UNTOUCHED; 65536];
        let mut offset = 0;
        while offset < bytes {
            let length = blank.len().min(bytes - offset);
            self.region.write(offset, &blank[..length]).during(|| "clear the region")?;
            offset += length;
        }
        Ok(())
    }

    /// The peer's key, as a type.
    pub const fn rkey_of(peer: &PeerInfo) -> RKey {
        RKey(peer.rkey)
    }
}

/// The attributes that RTR and RTS need, beside the state.
fn masks(transport: Transport) -> (QpAttrMask, QpAttrMask) {
    let connected = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    match transport {
        Transport::Rc => (
            connected | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
            QpAttrMask::SQ_PSN
                | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC,
        ),
        Transport::Uc => (connected, QpAttrMask::SQ_PSN),
        Transport::Ud => (QpAttrMask::empty(), QpAttrMask::SQ_PSN),
    }
}

/// Waits until the port is up: a new link takes a moment, up to a second, to say so.
pub fn active_port(context: &dyn Context, port_num: u8) -> Result<PortAttr, Failure> {
    let device = context.device().name;
    let begin = Instant::now();
    loop {
        let port = context.query_port(port_num).during(|| format!("query port {port_num} of device {device}"))?;
        if port.state == PortState::Active {
            return Ok(port);
        }
        if begin.elapsed() > PORT_PATIENCE {
            return Err(Failure::failed(format!(
                "port {port_num} of device {device} is down: bring its interface up (`ip link set NAME up`)"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The GID at the index, or the first IPv4 one of the port, or the first one of all.
pub fn choose_gid(context: &dyn Context, port_num: u8, index: Option<u8>) -> Result<(u8, Gid), Failure> {
    let device = context.device().name;
    let table = context.query_gid_table().during(|| format!("read the GID table of device {device}"))?;
    let of_port: Vec<_> = table.iter().filter(|entry| entry.port_num == port_num && entry.gid_index < 256).collect();
    let chosen = match index {
        Some(index) => of_port.iter().find(|entry| entry.gid_index == u32::from(index)),
        None => of_port.iter().find(|entry| entry.gid.is_ipv4()).or(of_port.first()),
    };
    match chosen {
        Some(entry) => Ok((entry.gid_index as u8, entry.gid)),
        None if index.is_some() => Err(Failure::usage(format!(
            "port {port_num} of device {device} has no GID at that index; `sfab gids` lists those it has"
        ))),
        None => Err(Failure::failed(format!(
            "port {port_num} of device {device} has no GID: give its network interface an address, then try again"
        ))),
    }
}

/// The largest path MTU that is not above `bytes`.
fn mtu_of(bytes: u32) -> Mtu {
    let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    all.into_iter().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Mtu::Mtu256)
}

/// A first PSN that nobody guesses, so that packets of an earlier connection are not taken for this one's.
pub fn random_psn(qpn: Qpn) -> Psn {
    use std::hash::{BuildHasher, RandomState};
    Psn::new(RandomState::new().hash_one(qpn.get()) as u32)
}

/// A completion that must have succeeded.
pub fn succeeded(completion: &WorkCompletion, what: impl std::fmt::Display) -> Result<(), Failure> {
    if completion.status == WcStatus::Success {
        return Ok(());
    }
    let hint = match completion.status {
        WcStatus::RetryExcErr => "the peer no longer answers: was its process ended, or is the path between you cut?",
        WcStatus::RnrRetryExcErr => "the peer posts no receives",
        WcStatus::WrFlushErr => "the queue pair had already failed: look for an earlier error",
        WcStatus::RemAccessErr => "the peer refused the key, the range or the right",
        _ => "`sfab counters` may tell more",
    };
    let (status, qpn) = (completion.status, completion.qp_num);
    Err(Failure::failed(format!("{what}: completion of QP {qpn} has status {status:?}: {hint}")))
}
