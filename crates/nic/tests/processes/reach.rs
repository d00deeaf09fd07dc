//! The side of a child in the tests of the same-host path: one RC QP with every right, memory that the NIC allocated or that the
//! process has by itself, and requests that are told one by one or go on without end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_nic::provider::SoftwareContext;
use scalefabric_verbs::*;

use crate::child::blank;

const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Bytes of each region.
pub const BYTES: usize = 1 << 20;
/// Where the atomics' word lies; below it the blocks of the storm.
pub const WORD: u64 = BYTES as u64 - 8;
/// Words of a storm's blocks: few, so that many are written, or so many that a process is nearly always in the middle of one.
pub const SMALL: usize = 96;
pub const LARGE: usize = 60_000;

pub struct End {
    context: Arc<SoftwareContext>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    /// Source of what it writes, place of what it reads.
    local: Arc<dyn MemoryRegion>,
    /// What peers reach.
    target: Arc<dyn MemoryRegion>,
    /// Whose memory `target` is.
    place: Place,
}

/// Where the target lies.
enum Place {
    /// In memory that the NIC allocated with it.
    Region,
    /// In memory that the process has by itself.
    Own { _bytes: Vec<u64> },
    /// In memory that neighbours map, over which it was registered.
    Shared(Arc<dyn SharedMemory>),
}

/// A value whose halves belong together: a word that is torn is none.
fn token(value: u32) -> u64 {
    u64::from(value) << 32 | u64::from(!value)
}

fn is_token(word: u64) -> bool {
    word == 0 || (word >> 32) as u32 == !(word as u32)
}

impl End {
    pub fn new(context: &Arc<SoftwareContext>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None, 0).unwrap();
        let cap = QpCap { max_send_wr: 128, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
        let qp = pd.create_qp(&init).unwrap();
        let local = pd.alloc_mr(BYTES, RIGHTS).unwrap();
        let target = pd.alloc_mr(BYTES, RIGHTS).unwrap();
        Self { context: context.clone(), pd, cq, qp, local, target, place: Place::Region }
    }

    pub fn answer(&mut self, words: &[&str]) -> String {
        let number = |n: usize| words[n].parse::<u64>().unwrap();
        match words[0] {
            "make" => self.describe(),
            "region" => {
                self.target = self.pd.alloc_mr(BYTES, RIGHTS).unwrap();
                self.place = Place::Region;
                self.describe()
            }
            // The process's own memory instead of what the NIC allocated.
            "own" => {
                let mut own = vec![0u64; BYTES / 8];
                let at = own.as_mut_ptr().cast::<u8>();
                // SAFETY: the vector lives as long as the region, and is touched by the region's own calls only.
                self.target = unsafe { self.pd.reg_mr(at, BYTES, at as u64, RIGHTS) }.unwrap();
                self.place = Place::Own { _bytes: own };
                self.describe()
            }
            // Memory that neighbours map, as pools have it.
            "shared" => {
                self.register_shared();
                self.describe()
            }
            "connect" => self.connect(number(1) as u32, words[2]),
            // rkey, address, length, value
            "write" => {
                self.local.write(0, &vec![number(4) as u8; number(3) as usize]).unwrap();
                let op = SendOp::Write { remote_addr: number(2), rkey: RKey(number(1) as u32) };
                self.request(op, number(3) as u32)
            }
            // rkey, address, length
            "read" => {
                let op = SendOp::Read { remote_addr: number(2), rkey: RKey(number(1) as u32) };
                let status = self.request(op, number(3) as u32);
                let mut bytes = vec![0; number(3) as usize];
                self.local.read(0, &mut bytes).unwrap();
                let same = bytes.iter().all(|byte| *byte == bytes[0]);
                format!("{status} {} {}", bytes[0], u8::from(same))
            }
            // rkey, address, what to add
            "fadd" => {
                let op = SendOp::FetchAdd { remote_addr: number(2), rkey: RKey(number(1) as u32), add: number(3) };
                let status = self.request(op, 8);
                format!("{status} {}", self.local.load_u64(0).unwrap())
            }
            "load" => self.target.load_u64(number(1) as usize).unwrap().to_string(),
            "store" => {
                self.target.store_u64(number(1) as usize, number(2)).unwrap();
                "ok".into()
            }
            // A fresh region in place of the target; how long it took to be rid of the old one, ms.
            "renew" => {
                let begun = Instant::now();
                self.target.destroy().unwrap();
                let took = begun.elapsed().as_millis();
                match std::mem::replace(&mut self.place, Place::Region) {
                    Place::Shared(memory) => {
                        drop(memory);
                        self.register_shared();
                    }
                    Place::Region | Place::Own { .. } => self.target = self.pd.alloc_mr(BYTES, RIGHTS).unwrap(),
                }
                let mut bytes = vec![1; BYTES];
                self.target.read(0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0), "a fresh region is not empty");
                format!("{took} {} {}", self.target.rkey().0, self.target.addr())
            }
            "psn" => {
                let attr = self.qp.query().unwrap().0;
                format!("{} {} {:?}", attr.sq_psn.get(), attr.rq_psn.get(), attr.qp_state)
            }
            "err" => {
                self.qp.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
                "ok".into()
            }
            "blocks" => self.check_blocks(),
            "refuse-process-vm" => refuse_process_vm(),
            "same-host" => {
                let report = self.context.same_host();
                let reasons = report.neighbours.iter().map(|n| n.no_process_vm.clone().unwrap_or_default());
                format!("{:?} {}", report.packets_because, reasons.collect::<Vec<_>>().join(","))
            }
            "zero" => {
                let mut bytes = vec![1; BYTES];
                self.target.read(0, &mut bytes).unwrap();
                let wrong = bytes.iter().position(|byte| *byte != 0);
                wrong.map_or_else(|| "ok".into(), |at| format!("byte {at} is {}", bytes[at]))
            }
            // rkey, address of the region, seed, words of a block: without end
            "storm" => self.storm(RKey(number(1) as u32), number(2), number(3), number(4) as usize),
            other => panic!("{other}?"),
        }
    }

    fn register_shared(&mut self) {
        let memory = self.pd.alloc_shared(BYTES).unwrap();
        let at = std::ptr::with_exposed_provenance_mut(memory.addr());
        // SAFETY: the memory is kept beside the region, and nobody has a reference to its bytes.
        self.target = unsafe { self.pd.reg_mr(at, BYTES, memory.addr() as u64, RIGHTS) }.unwrap();
        self.place = Place::Shared(memory);
    }

    fn describe(&self) -> String {
        let gid = self.context.query_gid(1, 0).unwrap();
        let (qpn, rkey) = (self.qp.qp_num().get(), self.target.rkey().0);
        format!("{qpn} {rkey} {} {}", self.target.addr(), gid.to_ip())
    }

    fn connect(&self, qpn: u32, ip: &str) -> String {
        let av = AddressVector::new(1, 0, Gid::from_ip(ip.parse().unwrap()));
        let mtu = self.context.query_port(1).unwrap().active_mtu;
        if self.qp.query().unwrap().0.qp_state != QpState::Reset {
            self.qp.modify(&QpAttr::default(), QpAttrMask::STATE).unwrap();
        }
        for (mut attr, mask) in [
            QpAttr::init(QpType::Rc, 1, RIGHTS),
            QpAttr::rtr(QpType::Rc, Qpn::new(qpn), Psn::new(7), mtu, av),
            QpAttr::rts(QpType::Rc, Psn::new(7)),
        ] {
            attr.max_rd_atomic = 8;
            attr.max_dest_rd_atomic = 8;
            (attr.timeout, attr.retry_cnt) = (12, 5);
            self.qp.modify(&attr, mask).unwrap();
        }
        "ok".into()
    }

    fn post(&self, wr_id: u64, op: SendOp<'_>, length: u32) {
        let list = [Sge { addr: self.local.addr(), length, lkey: self.local.lkey() }];
        self.qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(wr_id, op) }]).unwrap();
    }

    fn wait(&self) -> WcStatus {
        let mut out = [blank()];
        let begun = Instant::now();
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(30), "no completion");
        }
        out[0].status
    }

    fn request(&self, op: SendOp<'_>, length: u32) -> String {
        self.post(1, op, length);
        format!("{:?}", self.wait())
    }

    /// Blocks of one value, sums, and readings of blocks, one after the other; says nothing unless something is wrong, and ends when its QP does.
    fn storm(&self, rkey: RKey, base: u64, seed: u64, words: usize) -> ! {
        println!("@ready");
        let mut random = seed;
        let mut below = move |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        loop {
            let blocks = (WORD / (words as u64 * 8)).min(64);
            let block = base + below(blocks) * (words as u64 * 8);
            let value = token(below(1 << 31) as u32);
            let status = match below(4) {
                0 | 1 => {
                    let bytes = value.to_ne_bytes().repeat(words);
                    self.local.write(0, &bytes).unwrap();
                    self.request(SendOp::Write { remote_addr: block, rkey }, bytes.len() as u32)
                }
                2 => {
                    let status = self.request(SendOp::Read { remote_addr: block, rkey }, words as u32 * 8);
                    let read = if status == "Success" { words } else { 0 };
                    for word in 0..read {
                        let word = self.local.load_u64(word * 8).unwrap();
                        assert!(is_token(word), "a word was torn: {word:#x}");
                    }
                    status
                }
                _ => self.request(SendOp::FetchAdd { remote_addr: base + WORD, rkey, add: 1 }, 8),
            };
            if status != "Success" {
                println!("@{status}");
                std::process::exit(0);
            }
        }
    }

    /// No word of the blocks is torn.
    fn check_blocks(&self) -> String {
        for word in 0..WORD as usize / 8 {
            let word = self.target.load_u64(word * 8).unwrap();
            if !is_token(word) {
                return format!("a word was torn: {word:#x}");
            }
        }
        "ok".into()
    }
}

/// The kernel refuses `process_vm_readv` and `process_vm_writev` with EPERM from now on, as it does where a process may not trace another.
fn refuse_process_vm() -> String {
    let statement = |code: u16, k: u32, jt: u8, jf: u8| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        // The number of the system call.
        statement(0x20, 0, 0, 0),
        statement(0x15, libc::SYS_process_vm_readv as u32, 1, 0),
        statement(0x15, libc::SYS_process_vm_writev as u32, 0, 1),
        statement(0x06, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(0x06, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a valid program of that length. All threads get it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const filter,
            ) == 0
    };
    if done { "ok".into() } else { format!("error {}", std::io::Error::last_os_error()) }
}
