//! A device without a progress thread, queue pairs that are connected to themselves, and how long a thread was on a processor.

use scalefabric_nic::options::{DeviceOptions, Options, PortOptions};
use scalefabric_nic::provider::{SoftwareContext, SoftwareProvider};
use scalefabric_verbs::*;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rights of all memory and queue pairs here.
pub const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// Requests that each queue pair's queues hold.
pub const DEPTH: u32 = 16;

/// After this, something has not happened and will not.
const PATIENCE: Duration = Duration::from_secs(60);

/// An open device with what all queue pairs of a measurement share.
pub struct World {
    /// The device.
    pub context: Arc<SoftwareContext>,
    /// The domain.
    pub domain: Arc<dyn ProtectionDomain>,
    /// Memory to write from and to, for those that need no more.
    pub region: Arc<dyn MemoryRegion>,
    path: AddressVector,
    mtu: Mtu,
}

/// An address of this process alone, one of three.
pub fn own_address(number: u8) -> Ipv4Addr {
    let id = std::process::id();
    Ipv4Addr::new(127, 205 + (id >> 14) as u8 % 50, (id >> 6) as u8, (id << 2) as u8 | number)
}

impl World {
    /// A device of this process alone.
    pub fn new() -> Self {
        let address = IpAddr::from(own_address(1));
        let port = PortOptions { interface: "lo".into(), addresses: vec![address] };
        let device = DeviceOptions { name: "scale".into(), ports: vec![port], ..DeviceOptions::default() };
        let options =
            Options { devices: vec![device], automatic: false, share: false, worker: false, ..Options::default() };
        let context = SoftwareProvider::new(options).open_software("scale").expect("the device opens");
        let domain = context.alloc_pd().expect("a domain");
        let region = domain.alloc_mr(1 << 16, RIGHTS).expect("memory");
        let path = AddressVector::new(1, 0, context.query_gid(1, 0).expect("a GID"));
        let mtu = context.query_port(1).expect("a port").active_mtu;
        Self { context, domain, region, path, mtu }
    }

    /// A CQ.
    pub fn cq(&self, entries: u32) -> Arc<dyn CompletionQueue> {
        self.context.create_cq(entries, None, 0).expect("a CQ")
    }

    /// A queue pair in RESET.
    pub fn make(
        &self,
        cq: &Arc<dyn CompletionQueue>,
        srq: Option<&Arc<dyn SharedReceiveQueue>>,
        depth: u32,
    ) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.domain.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: srq.cloned(),
            cap: QpCap { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 },
            sq_sig_all: true,
        })
    }

    /// Connects a queue pair to itself.
    pub fn connect(&self, queue_pair: &dyn QueuePair) -> Result<(), VerbsError> {
        for (mut attr, mask) in [
            QpAttr::init(QpType::Rc, 1, RIGHTS),
            QpAttr::rtr(QpType::Rc, queue_pair.qp_num(), Psn::new(0), self.mtu, self.path),
            QpAttr::rts(QpType::Rc, Psn::new(0)),
        ] {
            // 2 s: a busy machine lets a process wait.
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (19, 7, 7);
            queue_pair.modify(&attr, mask)?;
        }
        Ok(())
    }

    /// So many, connected.
    pub fn connected(&self, count: u32, cq: &Arc<dyn CompletionQueue>) -> Vec<Arc<dyn QueuePair>> {
        let one = |_| {
            let queue_pair = self.make(cq, None, DEPTH).expect("a queue pair");
            self.connect(&*queue_pair).expect("it is connected");
            queue_pair
        };
        (0..count).map(one).collect()
    }

    /// An 8-byte WRITE into a region.
    pub fn write(region: &dyn MemoryRegion) -> SendWr<'static> {
        let mut request = SendWr::new(0, SendOp::Write { remote_addr: region.addr(), rkey: region.rkey() });
        (request.flags, request.inline_data) = (SendFlags::INLINE, &[7; 8]);
        request
    }
}

/// Takes completions, all good; gives how many came.
pub fn take(cq: &dyn CompletionQueue, room: &mut [WorkCompletion]) -> usize {
    let count = cq.poll(room).expect("poll");
    for completion in &room[..count] {
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
    }
    count
}

/// Takes as many as are still to come.
pub fn take_all(cq: &dyn CompletionQueue, mut count: usize) {
    let mut room = [WorkCompletion::default(); 64];
    let begin = Instant::now();
    while count > 0 {
        count -= take(cq, &mut room);
        assert!(begin.elapsed() < PATIENCE, "{count} completions are missing");
    }
}

/// Time that this thread was on a processor.
pub fn on_processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Does something again and again for a time; gives processor time of one, ns.
pub fn cost_ns(ms: u64, mut each: impl FnMut() -> usize) -> f64 {
    let (begin, before) = (Instant::now(), on_processor());
    let mut done = 0;
    while begin.elapsed() < Duration::from_millis(ms) {
        done += each();
    }
    (on_processor() - before).as_nanos() as f64 / done.max(1) as f64
}

/// Resident memory that no file stands behind, bytes.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}
