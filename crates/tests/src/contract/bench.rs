//! What the cases stand on: an open device, ends of connections on it (both on the same device: every device reaches
//! itself), and waiting that gives up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_verbs::*;

use super::{Outcome, Stop, ensure};

/// What the suite runs on.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Device; the first one if left out.
    pub device: Option<String>,
    /// Port.
    pub port_num: u8,
    /// GID index; the first RoCEv2 one of an IPv4 address if left out.
    pub gid_index: Option<u8>,
    /// Name of the driver, for what is known of it.
    pub driver: String,
}

/// After this, something has not happened and will not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// All rights that a region can give.
pub(crate) const ALL_RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE.union(PEER_RIGHTS);
/// What peers may do.
pub(crate) const PEER_RIGHTS: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// An open device.
pub struct Bench {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) context: Arc<dyn Context>,
    pub(crate) attr: DeviceAttr,
    pub(crate) port: PortAttr,
    pub(crate) port_num: u8,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) driver: String,
}

/// One end of a connection: a QP with a CQ and a region of its own.
pub(crate) struct End {
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) mr: Arc<dyn MemoryRegion>,
}

/// How an end is made.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) srq: Option<Arc<dyn SharedReceiveQueue>>,
    pub(crate) pd: Option<Arc<dyn ProtectionDomain>>,
    pub(crate) sq_sig_all: bool,
    pub(crate) bytes: usize,
}

impl Shape {
    pub(crate) fn new(qp_type: QpType) -> Self {
        let receives = if qp_type.has_recv_queue() { 64 } else { 0 };
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: receives,
            max_send_sge: 3,
            max_recv_sge: if receives > 0 { 3 } else { 0 },
            max_inline_data: 0,
        };
        Self { qp_type, cap, srq: None, pd: None, sq_sig_all: true, bytes: 1 << 17 }
    }
}

/// How a connection behaves.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) access: AccessFlags,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self { access: PEER_RIGHTS, timeout: 17, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 6 }
    }
}

pub(crate) const QKEY: QKey = QKey(0x1111_1111);
const FIRST_PSN: Psn = Psn::new(0x12_3456);

impl Bench {
    /// Opens the device.
    pub fn open(provider: Arc<dyn Provider>, options: &Options) -> Result<Self, VerbsError> {
        let name = match &options.device {
            Some(name) => name.clone(),
            None => provider.devices()?.first().map(|device| device.name.clone()).unwrap_or_default(),
        };
        let context = provider.open(&name)?;
        let attr = context.query_device()?;
        let port_num = options.port_num.max(1);
        let port = context.query_port(port_num)?;
        let table = context.query_gid_table()?;
        let usable = |entry: &&GidEntry| entry.port_num == port_num && entry.gid_type == GidType::RoceV2;
        let chosen = match options.gid_index {
            Some(index) => {
                let index = u32::from(index);
                table.iter().find(|entry| entry.port_num == port_num && entry.gid_index == index)
            }
            None => table.iter().filter(usable).find(|entry| entry.gid.is_ipv4()),
        };
        let chosen = chosen.or_else(|| table.iter().find(usable)).ok_or_else(|| {
            VerbsError::environment(Errno::EADDRNOTAVAIL, format!("port {port_num} of {name} has no RoCEv2 GID"))
        })?;
        let (gid_index, gid) = (chosen.gid_index as u8, chosen.gid);
        Ok(Self { provider, context, attr, port, port_num, gid_index, gid, driver: options.driver.clone() })
    }

    pub(crate) fn name(&self) -> String {
        self.context.device().name
    }

    /// The way to ourselves.
    pub(crate) fn way(&self) -> AddressVector {
        AddressVector::new(self.port_num, self.gid_index, self.gid)
    }

    /// Makes an end. A type that the device does not have skips the case.
    pub(crate) fn end(&self, shape: &Shape) -> Result<End, Stop> {
        let pd = match &shape.pd {
            Some(pd) => pd.clone(),
            None => self.context.alloc_pd()?,
        };
        let cq = self.context.create_cq(256, None, 0)?;
        let init = QpInit {
            qp_type: shape.qp_type,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: shape.srq.clone(),
            cap: shape.cap,
            sq_sig_all: shape.sq_sig_all,
        };
        let qp = pd.create_qp(&init).map_err(|error| match error.errno {
            Errno::EOPNOTSUPP => Stop::Skip(format!("{error}")),
            _ => error.into(),
        })?;
        let mr = pd.alloc_mr(shape.bytes, ALL_RIGHTS)?;
        Ok(End { pd, cq, qp, mr })
    }

    /// Two ends of a type, connected with one another.
    pub(crate) fn pair(&self, qp_type: QpType) -> Result<(End, End), Stop> {
        self.pair_with(&Shape::new(qp_type), Path::default())
    }

    pub(crate) fn pair_with(&self, shape: &Shape, path: Path) -> Result<(End, End), Stop> {
        let (one, other) = (self.end(shape)?, self.end(shape)?);
        self.connect(&*one.qp, other.qp.qp_num(), path)?;
        self.connect(&*other.qp, one.qp.qp_num(), path)?;
        Ok((one, other))
    }

    /// The attributes that take a QP through its states.
    pub(crate) fn steps(&self, qp_type: QpType, peer: Qpn, path: Path) -> [(QpAttr, QpAttrMask); 3] {
        if qp_type == QpType::Ud {
            return [QpAttr::init_ud(self.port_num, QKEY), QpAttr::rtr_ud(), QpAttr::rts(qp_type, FIRST_PSN)];
        }
        let depth = |limit: u32| limit.min(8) as u8;
        let (mut rtr, rtr_mask) = QpAttr::rtr(qp_type, peer, FIRST_PSN, self.port.active_mtu, self.way());
        rtr.max_dest_rd_atomic = depth(self.attr.max_qp_rd_atom);
        rtr.min_rnr_timer = path.min_rnr_timer;
        let (mut rts, rts_mask) = QpAttr::rts(qp_type, FIRST_PSN);
        rts.max_rd_atomic = depth(self.attr.max_qp_init_rd_atom);
        (rts.timeout, rts.retry_cnt, rts.rnr_retry) = (path.timeout, path.retry_cnt, path.rnr_retry);
        let init = QpAttr::init(qp_type, self.port_num, path.access);
        [init, (rtr, rtr_mask), (rts, rts_mask)]
    }

    /// Takes a QP to RTS.
    pub(crate) fn connect(&self, qp: &dyn QueuePair, peer: Qpn, path: Path) -> Result<(), VerbsError> {
        for (attr, mask) in self.steps(qp.qp_type(), peer, path) {
            qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    /// MTU in bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.port.active_mtu.bytes() as usize
    }
}

impl End {
    pub(crate) fn sge(&self, offset: u64, length: usize) -> Sge {
        Sge { addr: self.mr.addr() + offset, length: length as u32, lkey: self.mr.lkey() }
    }

    /// Fills bytes of the region so that no two cases look alike.
    pub(crate) fn fill(&self, offset: usize, length: usize, seed: u8) -> Result<Vec<u8>, VerbsError> {
        let bytes: Vec<u8> = (0..length).map(|index| (index as u8).wrapping_mul(7).wrapping_add(seed)).collect();
        self.mr.write(offset, &bytes)?;
        Ok(bytes)
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, VerbsError> {
        let mut bytes = vec![0; length];
        self.mr.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Posts a receive of one SGE.
    pub(crate) fn receive(&self, wr_id: u64, offset: u64, length: usize) -> Outcome {
        let list = [self.sge(offset, length)];
        let list = if length == 0 { &list[..0] } else { &list[..] };
        Ok(self.qp.post_recv(&[RecvWr { wr_id, sg_list: list }])?)
    }

    /// Posts one send WR over a list.
    pub(crate) fn send(&self, wr_id: u64, op: SendOp<'_>, list: &[Sge]) -> Outcome {
        let mut wr = SendWr::new(wr_id, op);
        wr.flags = SendFlags::SIGNALED;
        wr.sg_list = list;
        Ok(self.qp.post_send(&[wr])?)
    }

    /// The next completion.
    pub(crate) fn next(&self) -> Result<WorkCompletion, Stop> {
        next_of(&*self.cq)
    }

    /// The next completion, which must be good.
    pub(crate) fn good(&self, wr_id: u64) -> Result<WorkCompletion, Stop> {
        let wc = self.next()?;
        ensure!(wc.status == WcStatus::Success, "WR {} ended with {}: {}", wc.wr_id, wc.status, wc.status.look_at());
        ensure!(wc.wr_id == wr_id, "completion of WR {}, not {wr_id}", wc.wr_id);
        Ok(wc)
    }

    /// The next completion, which must end so.
    pub(crate) fn bad(&self, wr_id: u64, status: WcStatus) -> Result<WorkCompletion, Stop> {
        let wc = self.next()?;
        ensure!(wc.status == status, "WR {} ended with {}, not {status}", wc.wr_id, wc.status);
        ensure!(wc.wr_id == wr_id, "completion of WR {}, not {wr_id}", wc.wr_id);
        Ok(wc)
    }

    /// Nothing may come within a short while.
    pub(crate) fn nothing(&self) -> Outcome {
        let mut one = [WorkCompletion::default()];
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            ensure!(self.cq.poll(&mut one)? == 0, "a completion that nothing called for: {:?}", one[0]);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        Ok(self.qp.query()?.0.qp_state)
    }

    /// Waits until the QP is in a state: errors take it there when they are noticed.
    pub(crate) fn reaches(&self, state: QpState) -> Outcome {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.state()?;
            if now == state {
                return Ok(());
            }
            ensure!(Instant::now() < until, "the QP is in {now}, not in {state}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The next completion of a queue.
pub(crate) fn next_of(cq: &dyn CompletionQueue) -> Result<WorkCompletion, Stop> {
    let mut one = [WorkCompletion::default()];
    let until = Instant::now() + PATIENCE;
    loop {
        if cq.poll(&mut one)? == 1 {
            return Ok(one[0]);
        }
        ensure!(Instant::now() < until, "no completion within {} s", PATIENCE.as_secs());
        std::thread::yield_now();
    }
}

/// The error that a call must give.
pub(crate) fn refused<T>(result: Result<T, VerbsError>, errno: Errno, what: &str) -> Result<VerbsError, Stop> {
    match result {
        Ok(_) => Err(Stop::Fail(format!("{what}: accepted, though it must be refused with {errno}"))),
        Err(error) if error.errno == errno => {
            ensure!(error.message.len() > 10, "{what}: `{}` says nothing", error.message);
            Ok(error)
        }
        Err(error) => Err(Stop::Fail(format!("{what}: {error}, though the errno is {errno}"))),
    }
}

/// Skips the case where the device does not have something.
pub(crate) fn or_skip<T>(result: Result<T, VerbsError>) -> Result<T, Stop> {
    result.map_err(|error| match error.errno {
        Errno::EOPNOTSUPP | Errno::ENOSYS => Stop::Skip(error.message),
        _ => error.into(),
    })
}
