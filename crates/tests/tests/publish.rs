//! The publisher loop on the live NIC: a memory node stores its counters into a slot as fast as it can, and every five milliseconds, while a compute node READs the slot one-sided. Nothing torn
//! is taken for a snapshot. What it costs is printed, not judged: `cargo test -p scalefabric-tests --test publish -- --nocapture`.

use scalefabric_fabric::remote::publish::{Beat, PERIOD_MS, Publisher, Snapshot, Unreadable, slot_bytes};
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const COUNTERS: usize = 32;

struct Scene {
    context: Arc<dyn Context>,
    published: Arc<dyn MemoryRegion>,
    read: Arc<dyn MemoryRegion>,
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    _peer: Arc<dyn QueuePair>,
}

impl Scene {
    /// Two QPs of one device on a loopback address of its own, connected with one another.
    fn new(last: u8) -> Self {
        let pid = std::process::id();
        let address = [127, 64 + (pid >> 8 & 0x3f) as u8, pid as u8, last].into();
        let port = PortOptions { interface: "lo".into(), addresses: vec![address] };
        let name = format!("publish{last}-{pid}");
        let devices = vec![DeviceOptions { name: name.clone(), ports: vec![port], ..DeviceOptions::default() }];
        let context = SoftwareProvider::new(Options { devices, ..Options::default() }).open(&name).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None, 0).unwrap();
        let region = |access| pd.alloc_mr(slot_bytes(COUNTERS), access).unwrap();
        let published = region(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
        let read = region(AccessFlags::LOCAL_WRITE);
        let make = || {
            let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let (send_cq, recv_cq) = (cq.clone(), cq.clone());
            pd.create_qp(&QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true }).unwrap()
        };
        let (qp, peer) = (make(), make());
        for (one, other) in [(&qp, &peer), (&peer, &qp)] {
            let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_READ);
            one.modify(&attr, mask).unwrap();
            let av = AddressVector::new(1, 0, context.query_gid(1, 0).unwrap());
            let (attr, mask) = QpAttr::rtr(QpType::Rc, other.qp_num(), Psn::new(0), Mtu::Mtu1024, av);
            one.modify(&attr, mask).unwrap();
            let (attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(0));
            one.modify(&attr, mask).unwrap();
        }
        Self { context, published, read, qp, cq, _peer: peer }
    }

    fn read(&self) -> Result<Snapshot, Unreadable> {
        let mut bytes = vec![0; slot_bytes(COUNTERS)];
        let list = [Sge { addr: self.read.addr(), length: bytes.len() as u32, lkey: self.read.lkey() }];
        let op = SendOp::Read { remote_addr: self.published.addr(), rkey: self.published.rkey() };
        self.qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(1, op) }]).unwrap();
        let (mut out, start) = ([blank()], Instant::now());
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "no completion");
        }
        assert_eq!(out[0].status, WcStatus::Success);
        self.read.read(0, &mut bytes).unwrap();
        Snapshot::parse(&bytes, COUNTERS)
    }
}

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

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_snapshot_that_is_read_is_whole_however_fast_it_is_written() {
    let scene = Scene::new(91);
    assert_eq!(scene.read(), Err(Unreadable::Empty));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (region, stop) = (scene.published.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut publisher = Publisher::new(region, 0, COUNTERS).unwrap();
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                publisher.publish(number, &[number; COUNTERS]).unwrap();
            }
            number
        })
    };
    let (mut whole, mut torn, mut last) = (0, 0, 0);
    let start = Instant::now();
    while whole < 1_000 {
        assert!(start.elapsed() < Duration::from_secs(120), "{whole} whole, {torn} torn");
        match scene.read() {
            Ok(snapshot) => {
                assert!(snapshot.values.iter().all(|&value| value == snapshot.serial), "{snapshot:?}");
                assert!(snapshot.serial >= last);
                (last, whole) = (snapshot.serial, whole + 1);
            }
            Err(Unreadable::Torn | Unreadable::Empty) => torn += 1,
            Err(Unreadable::Foreign) => panic!("a foreign slot"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    println!("{whole} snapshots whole, {torn} torn and told, {} written", writer.join().unwrap());
}

#[test]
fn counters_of_the_nic_are_seen_to_grow_by_reading_them() {
    let scene = Scene::new(92);
    let counters = scene.context.hw_counters(1).unwrap();
    let place = counters.iter().position(|(name, _)| name == "rx_read_requests").unwrap();
    let first = place.min(counters.len() - COUNTERS);
    let names: Vec<&str> = counters[first..first + COUNTERS].iter().map(|(name, _)| name.as_str()).collect();
    let publisher = Publisher::new(scene.published.clone(), 0, COUNTERS).unwrap();
    let mut beat = Beat::new(scene.context.clone(), 1, &names, publisher).unwrap();
    let (before, start) = (thread_time(), Instant::now());
    let mut seen = Vec::new();
    let rounds = 40;
    let mut publishing = Duration::ZERO;
    for _ in 0..rounds {
        let at = thread_time();
        beat.publish(start.elapsed().as_nanos() as u64).unwrap();
        publishing += thread_time() - at;
        seen.push(scene.read().unwrap().values[place - first]);
        std::thread::sleep(Duration::from_millis(PERIOD_MS));
    }
    // Each READ is itself counted before the next is made.
    assert!(seen.windows(2).all(|pair| pair[1] > pair[0]), "{seen:?}");
    let each = publishing / rounds;
    let share = each.as_secs_f64() / (PERIOD_MS as f64 / 1e3) * 100.0;
    println!(
        "publishing costs {each:?} of processor each time, {share:.3} % of a core every {PERIOD_MS} ms; with reading {:?}",
        (thread_time() - before) / rounds
    );
    let unknown = Publisher::new(scene.published.clone(), 0, 1).unwrap();
    assert!(Beat::new(scene.context.clone(), 1, &["no_such_counter"], unknown).is_err());
}
