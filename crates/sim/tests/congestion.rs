//! Congestion control on the machine: three senders, each in a network namespace of its own, write through one switch to one receiver whose link is slow and whose queue marks.
//! Each controller must hold the queue that an uncontrolled sender fills, and share the link fairly. Everything is judged by what the queue has counted: bytes, marks, and what
//! waited for how long behind a link of that rate; never by how fast this machine was. Needs root.

use scalefabric_fabric::ecmp::EcmpHash;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_sim::switch::body::Forwarder;
use scalefabric_sim::switch::queue::{Bottleneck, Marking, Statistics};
use scalefabric_sim::switch::tun::Tun;
use scalefabric_sim::switch::{HostId, Network};
use scalefabric_verbs::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CHILD: &str = "SCALEFABRIC_CONGESTION_CHILD";
const SENDERS: usize = 3;
/// Bytes of a message, and messages that a sender has posted.
const BYTES: usize = 32_768;
const DEPTH: u64 = 16;

/// Namespaces and addresses are the same for each test: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Not a test by itself: what a process in a namespace runs.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        End::open().serve();
    }
}

/// One process with a QP for each peer, told what to do line by line.
struct End {
    context: Arc<dyn Context>,
    qps: Vec<Arc<dyn QueuePair>>,
    cq: Arc<dyn CompletionQueue>,
    mr: Arc<dyn MemoryRegion>,
}

impl End {
    fn open() -> Self {
        let provider = SoftwareProvider::from_environment().unwrap();
        let context = provider.open("slow").unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, None, 0).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let mr = pd.alloc_mr(BYTES, access).unwrap();
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qp = || {
            let (send_cq, recv_cq) = (cq.clone(), cq.clone());
            let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
            pd.create_qp(&init).unwrap()
        };
        let qps = (0..SENDERS).map(|_| qp()).collect();
        Self { context, qps, cq, mr }
    }

    fn serve(&self) {
        let numbers: Vec<String> = self.qps.iter().map(|qp| qp.qp_num().get().to_string()).collect();
        println!("@{} {} {}", numbers.join(","), self.mr.rkey().0, self.mr.addr());
        let (tell, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        while let Ok(line) = lines.recv() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |n: usize| words[n].parse::<u64>().unwrap();
            let done = match words[0] {
                "connect" => self.connect(number(1) as usize, Qpn::new(number(2) as u32), words[3].parse().unwrap()),
                "write" => {
                    self.flood(&lines, |remote_addr, rkey| SendOp::Write { remote_addr, rkey }, number(1), number(2))
                }
                "read" => {
                    self.flood(&lines, |remote_addr, rkey| SendOp::Read { remote_addr, rkey }, number(1), number(2))
                }
                "algorithm" => self.qps[0].congestion().map_or("none", |state| state.algorithm).into(),
                other => panic!("{other}"),
            };
            println!("@{done}");
        }
    }

    fn connect(&self, which: usize, peer: Qpn, address: IpAddr) -> String {
        let qp = &self.qps[which];
        let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ);
        qp.modify(&attr, mask).unwrap();
        let table = self.context.query_gid_table().unwrap();
        let own = table.iter().find(|entry| entry.gid.is_ipv4()).unwrap();
        let av = AddressVector::new(1, own.gid_index as u8, Gid::from_ip(address));
        let (mut attr, mask) = QpAttr::rtr(QpType::Rc, peer, Psn::new(0), Mtu::Mtu1024, av);
        attr.max_dest_rd_atomic = 16;
        qp.modify(&attr, mask).unwrap();
        let (mut attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(0));
        attr.max_rd_atomic = 16;
        // 2 s: on a busy machine nobody is lost because it is slow.
        attr.timeout = 19;
        qp.modify(&attr, mask).unwrap();
        "ok".into()
    }

    /// Keeps the QP busy until a line comes.
    fn flood(
        &self,
        lines: &Receiver<String>,
        op: impl Fn(u64, RKey) -> SendOp<'static>,
        rkey: u64,
        remote_addr: u64,
    ) -> String {
        println!("@going");
        let list = [Sge { addr: self.mr.addr(), length: BYTES as u32, lkey: self.mr.lkey() }];
        let (mut posted, mut done) = (0u64, 0u64);
        let mut out = [blank(); 16];
        let mut stop = false;
        while !stop || done < posted {
            while !stop && posted - done < DEPTH {
                let wr = SendWr { sg_list: &list, ..SendWr::new(posted, op(remote_addr, RKey(rkey as u32))) };
                self.qps[0].post_send(&[wr]).unwrap();
                posted += 1;
            }
            let n = self.cq.poll(&mut out).unwrap();
            for wc in &out[..n] {
                assert_eq!(wc.status, WcStatus::Success);
            }
            done += n as u64;
            if n == 0 {
                // The senders share the processors with the switch.
                std::thread::sleep(Duration::from_micros(200));
            }
            stop |= !matches!(lines.try_recv(), Err(TryRecvError::Empty));
        }
        done.to_string()
    }
}

/// Room for a completion.
fn blank() -> WorkCompletion {
    WorkCompletion {
        wr_id: 0,
        status: WcStatus::GeneralErr,
        opcode: WcOpcode::Send,
        vendor_err: 0,
        byte_len: 0,
        imm: 0,
        invalidated_rkey: RKey(0),
        qp_num: Qpn::new(0),
        src_qp: Qpn::new(0),
        flags: WcFlags::empty(),
        pkey_index: 0,
        sl: 0,
        timestamp_ns: 0,
    }
}

/// A process in a namespace.
struct Peer {
    process: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
    qpns: Vec<u32>,
    rkey: u32,
    addr: u64,
}

impl Peer {
    fn start(namespace: &str, config: &std::path::Path) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, "1").env("SCALEFABRIC_CONFIG", config).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut peer = Self { process, answers, qpns: Vec::new(), rkey: 0, addr: 0 };
        let hello = peer.answer();
        let words: Vec<&str> = hello.split(' ').collect();
        peer.qpns = words[0].split(',').map(|word| word.parse().unwrap()).collect();
        (peer.rkey, peer.addr) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        peer
    }

    fn say(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the process in the namespace has ended");
            // The test harness of the child prints before it.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().into();
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A namespace whose only way out leads into the switch.
struct Namespace(String);

impl Namespace {
    fn new(tun: &Tun, address: IpAddr) -> Self {
        let namespace = Self(format!("ns-{}", tun.name()));
        ip(&["netns", "add", &namespace.0]);
        ip(&["link", "set", "dev", tun.name(), "netns", &namespace.0]);
        ip(&["-n", &namespace.0, "addr", "add", &format!("{address}/24"), "dev", tun.name()]);
        ip(&["-n", &namespace.0, "link", "set", "dev", tun.name(), "mtu", "1500", "txqueuelen", "10000", "up"]);
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().unwrap();
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// 200 Mb/s, so that the processors are not what is slow; room for all that three senders may have in flight.
const SLOW: Bottleneck = Bottleneck {
    rate_bps: 200_000_000,
    buffer_bytes: 8 << 20,
    marking: Some(Marking { kmin: 40_000, kmax: 160_000, most: 0.2 }),
    seed: 1,
};

/// What the queue has counted of the bytes between two marks.
const WARM_UP: u64 = 24_000_000;
const MEASURED: u64 = 24_000_000;

struct Rig {
    senders: Vec<Peer>,
    receiver: Peer,
    forwarder: Forwarder,
    slow: HostId,
    _spaces: Vec<Namespace>,
    configs: Vec<std::path::PathBuf>,
}

impl Rig {
    /// `None` where there are no namespaces or interfaces to be made. `congestion`: lines of TOML.
    fn build(tag: &str, congestion: &str) -> Option<Self> {
        // A process's folder belongs to its effective user.
        if std::fs::metadata("/proc/self").map_or(1, |folder| folder.uid()) != 0 {
            eprintln!("skipped: makes network namespaces, which needs root");
            return None;
        }
        let mut network = Network::new();
        let switch = network.add_switch(EcmpHash::default());
        let (mut hosts, mut spaces, mut configs, mut addresses) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let mut slow = None;
        for n in 0..=SENDERS {
            let tun = match Tun::create(&format!("sfc{tag}{n}-{}", std::process::id() % 1_000_000)) {
                Ok(tun) => tun,
                Err(e) => {
                    eprintln!("skipped: no tun interfaces here: {e}");
                    return None;
                }
            };
            let address = IpAddr::from([10, 77, 4, n as u8 + 1]);
            spaces.push(Namespace::new(&tun, address));
            let path = std::env::temp_dir().join(format!("{}.toml", tun.name()));
            let device = format!("[[device]]\nname = \"slow\"\n[[device.port]]\ninterface = \"{}\"\n", tun.name());
            std::fs::write(&path, format!("{congestion}\n{device}")).unwrap();
            configs.push(path);
            let host = network.attach((switch, n as u16), &[address]);
            addresses.push(address);
            hosts.insert(host, tun);
            slow = Some(host);
        }
        let slow = slow?;
        let forwarder = Forwarder::start_with(network, hosts, BTreeMap::from([(slow, SLOW)])).unwrap();
        let peer = |n: usize| Peer::start(&spaces[n].0, &configs[n]);
        let mut senders: Vec<Peer> = (0..SENDERS).map(peer).collect();
        let mut receiver = peer(SENDERS);
        for (n, sender) in senders.iter_mut().enumerate() {
            let (theirs, ours) = (receiver.qpns[n], sender.qpns[0]);
            assert_eq!(sender.ask(&format!("connect 0 {theirs} {}", addresses[SENDERS])), "ok");
            assert_eq!(receiver.ask(&format!("connect {n} {ours} {}", addresses[n])), "ok");
        }
        Some(Self { senders, receiver, forwarder, slow, _spaces: spaces, configs })
    }

    /// Waits until the queue has passed so many bytes.
    fn pass(&self, bytes: u64) -> Statistics {
        let start = Instant::now();
        loop {
            let seen = self.forwarder.statistics(self.slow);
            if seen.bytes >= bytes {
                return seen;
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "only {} of {bytes} bytes passed: {seen:?}",
                seen.bytes
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All write at once; what the queue saw when they had found their rates.
    fn run(&mut self) -> Statistics {
        let (rkey, addr) = (self.receiver.rkey, self.receiver.addr);
        for sender in &mut self.senders {
            assert_eq!(sender.ask(&format!("write {rkey} {addr}")), "going");
        }
        self.pass(WARM_UP);
        self.forwarder.take_statistics(self.slow);
        let seen = self.pass(MEASURED);
        for sender in &mut self.senders {
            sender.say("stop");
        }
        for sender in &mut self.senders {
            assert!(sender.answer().parse::<u64>().unwrap() > 0);
        }
        eprintln!(
            "queue: mean {:.0} B, most {} B, {:.2} % marked, {} lost, fairness {:.3}",
            seen.mean_bytes(),
            seen.most_bytes,
            100.0 * seen.marked_part(),
            seen.dropped,
            seen.fairness()
        );
        seen
    }

    /// What controls the first sender.
    fn algorithm(&mut self) -> String {
        self.senders[0].ask("algorithm")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.configs.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Runs one controller and judges it.
fn holds_the_queue(tag: &str, algorithm: &str, congestion: &str, mean_bytes: f64) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(mut rig) = Rig::build(tag, congestion) else { return };
    assert_eq!(rig.algorithm(), algorithm);
    let seen = rig.run();
    assert_eq!(seen.dropped, 0, "{seen:?}");
    assert!(seen.mean_bytes() < mean_bytes, "{} bytes on average: {seen:?}", seen.mean_bytes());
    assert!(seen.fairness() > 0.8, "{}: {seen:?}", seen.fairness());
}

#[test]
fn without_control_the_queue_is_as_long_as_the_windows() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(mut rig) = Rig::build("n", "") else { return };
    assert_eq!(rig.algorithm(), "none");
    let seen = rig.run();
    // Three times 16 messages of 32 KiB.
    assert!(seen.mean_bytes() > 700_000.0, "{} bytes on average: {seen:?}", seen.mean_bytes());
    assert_eq!(seen.marked, 0, "who listens to nobody does not say that it can be marked");
}

#[test]
fn dcqcn_holds_the_queue_and_shares_the_link() {
    // The firmware's timers are for links on which a packet takes less than a microsecond: here it takes 40, and alpha would be
    // forgotten between two CNPs.
    let congestion = "[congestion]\nalgorithm = \"dcqcn\"\nline_rate_gbps = 1\n\
         [congestion.parameters]\nrpg_ai_rate_bps = 1000000\nrpg_hai_rate_bps = 5000000\nrpg_time_reset_ns = 2000000\n\
         rpg_byte_reset = 1000000\ndce_tcp_rtt_ns = 100000\nrate_reduce_monitor_period_ns = 200000";
    holds_the_queue("d", "dcqcn", congestion, 300_000.0);
}

#[test]
fn dcqcn_with_the_papers_timers_holds_the_queue_and_shares_the_link() {
    let congestion = "[congestion]\nalgorithm = \"dcqcn-paper\"\nline_rate_gbps = 1\n\
         parameters = { rpg_ai_rate_bps = 1000000, rpg_hai_rate_bps = 1000000, rpg_time_reset_ns = 2000000 }";
    holds_the_queue("p", "dcqcn", congestion, 300_000.0);
}

#[test]
fn timely_holds_the_queue_and_shares_the_link() {
    let congestion = "[congestion]\nalgorithm = \"timely-scaled\"\nline_rate_gbps = 1\nbase_rtt_us = 1000";
    holds_the_queue("t", "timely", congestion, 300_000.0);
}

#[test]
fn swift_holds_the_queue_and_shares_the_link() {
    let congestion = "[congestion]\nalgorithm = \"swift\"\nline_rate_gbps = 1\nbase_rtt_us = 1000\n\
         parameters = { base_target_ns = 3000000, fs_range_ns = 3000000 }";
    holds_the_queue("s", "swift", congestion, 300_000.0);
}

#[test]
fn hpcc_holds_the_queue_and_shares_the_link() {
    // The increase is what makes rates equal: 40 Mb/s in each round trip, or the second that is measured is over before they are on a busy machine.
    let congestion = "[congestion]\nalgorithm = \"hpcc\"\ntelemetry = true\nline_rate_gbps = 1\nbase_rtt_us = 1000\n\
         parameters = { ai_rate_bps = 40000000 }";
    holds_the_queue("h", "hpcc", congestion, 300_000.0);
}
