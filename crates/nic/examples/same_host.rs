//! What the same-host path costs: WRITEs between two processes of a device as ratios to a raw cache-line hand-over, to `memcpy` and to the raw
//! `process_vm_writev`, all in one run, interleaved, medians of ratios. `cargo xtask bench --same-host` starts it.

use scalefabric_nic::options::{DeviceOptions, Options as NicOptions, PortOptions, RequestPath};
use scalefabric_nic::provider::{SoftwareContext, SoftwareProvider};
use scalefabric_verbs::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What it is told.
struct Options {
    /// Interleaved repetitions; the median of their ratios counts. Default 9.
    repeat: usize,
    /// Length of one measurement, ms. Default 100.
    ms: u64,
    /// Measure nothing: do so many 8-byte WRITEs, each with its poll, in `measured`, for callgrind (`--toggle-collect=*measured*`).
    count: Option<u64>,
    /// Be the second process, on this address.
    target: Option<String>,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self { repeat: 9, ms: 100, count: None, target: None };
        let usage = |what: String| -> ! {
            eprintln!("same_host: {what}; it takes --repeat N, --ms N and --count N");
            std::process::exit(2);
        };
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let value = words.next().unwrap_or_else(|| usage(format!("{name} lacks a value")));
            let number = || value.parse().ok().filter(|&n| n > 0).unwrap_or_else(|| usage(format!("{name} {value}")));
            match name.as_str() {
                "--repeat" => options.repeat = number() as usize,
                "--ms" => options.ms = number(),
                "--count" => options.count = Some(number()),
                "--target" => options.target = Some(value),
                _ => usage(format!("{name} is not known")),
            }
        }
        options
    }
}

const BYTES: usize = 4 << 20;
const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

/// One end of a connection, with memory of the NIC and memory of its own.
struct End {
    context: Arc<SoftwareContext>,
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    mapped: Arc<dyn MemoryRegion>,
    plain: Arc<dyn MemoryRegion>,
    _own: Vec<u64>,
}

/// What one end tells the other: number of its QP, then key and address of each region.
struct Far {
    qpn: u32,
    mapped: (RKey, u64),
    plain: (RKey, u64),
}

impl Far {
    fn parse(line: &str) -> Self {
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let region = |n: usize| (RKey(words[n] as u32), words[n + 1]);
        Self { qpn: words[0] as u32, mapped: region(1), plain: region(3) }
    }
}

impl End {
    fn open(address: &str) -> Self {
        let port = PortOptions { interface: "lo".into(), addresses: vec![address.parse().expect("an address")] };
        let devices = vec![DeviceOptions { name: "samehost".into(), ports: vec![port], ..DeviceOptions::default() }];
        let options = NicOptions { devices, automatic: false, path: RequestPath::Auto, ..NicOptions::default() };
        let context = SoftwareProvider::new(options).open_software("samehost").expect("the device opens");
        let pd = context.alloc_pd().expect("a PD");
        let cq = context.create_cq(1024, None, 0).expect("a CQ");
        let cap = QpCap { max_send_wr: 256, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: false };
        let qp = pd.create_qp(&init).expect("a QP");
        let mapped = pd.alloc_mr(BYTES, RIGHTS).expect("memory");
        let mut own = vec![1u64; BYTES / 8];
        let at = own.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector lives as long as the region, and nobody looks into it.
        let plain = unsafe { pd.reg_mr(at, BYTES, at as u64, RIGHTS) }.expect("memory");
        Self { context, qp, cq, mapped, plain, _own: own }
    }

    fn describe(&self) -> String {
        let (qpn, mapped, plain) = (self.qp.qp_num().get(), &self.mapped, &self.plain);
        format!("{qpn} {} {} {} {}", mapped.rkey().0, mapped.addr(), plain.rkey().0, plain.addr())
    }

    fn connect(&self, far: &Far) {
        let gid = self.context.query_gid(1, 0).expect("a GID");
        let mtu = self.context.query_port(1).expect("a port").active_mtu;
        for (attr, mask) in [
            QpAttr::init(QpType::Rc, 1, RIGHTS),
            QpAttr::rtr(QpType::Rc, Qpn::new(far.qpn), Psn::new(7), mtu, AddressVector::new(1, 0, gid)),
            QpAttr::rts(QpType::Rc, Psn::new(7)),
        ] {
            self.qp.modify(&attr, mask).expect("modified");
        }
    }

    /// The first word of the memory that the peer writes, as a program in C polls it.
    #[inline]
    fn word(&self) -> u64 {
        // SAFETY: the region lives, its first word is aligned, and it is only looked at by atomic accesses.
        unsafe { AtomicU64::from_ptr(self.mapped.addr() as usize as *mut u64) }.load(Ordering::Acquire)
    }

    #[inline]
    fn write_word(&self, word: u64, to: (RKey, u64)) {
        let bytes = word.to_ne_bytes();
        let mut wr = SendWr::new(1, SendOp::Write { remote_addr: to.1, rkey: to.0 });
        wr.inline_data = &bytes;
        wr.flags = SendFlags::INLINE | SendFlags::SIGNALED;
        self.qp.post_send(std::slice::from_ref(&wr)).expect("posted");
    }

    /// Polls until a completion has come. The caller keeps the place for it, as a program in C does.
    #[inline]
    fn reap(&self, out: &mut [WorkCompletion; 16]) {
        loop {
            let count = self.cq.poll(out).expect("polled");
            if count > 0 {
                assert!(out[..count].iter().all(|wc| wc.status == WcStatus::Success), "{:?}", out[0].status);
                return;
            }
        }
    }

    /// One way of an 8-byte WRITE, ns: the median of batches of round trips.
    fn ping_pong(&self, far: &Far, time: Duration) -> f64 {
        let mut word = self.mapped.load_u64(0).expect("loaded");
        let (mut batches, mut out) = (Vec::new(), [WorkCompletion::default(); 16]);
        let begun = Instant::now();
        while begun.elapsed() < time {
            let batch = Instant::now();
            for _ in 0..200 {
                word += 1;
                self.write_word(word, far.mapped);
                self.reap(&mut out);
                while self.word() != word {
                    std::hint::spin_loop();
                }
            }
            batches.push(batch.elapsed().as_nanos() as f64 / 400.0);
        }
        median(&mut batches)
    }

    /// Bytes a second of WRITEs of `size`, one after the other.
    fn stream(&self, size: usize, from: &Arc<dyn MemoryRegion>, to: (RKey, u64), time: Duration) -> f64 {
        let list = [Sge { addr: from.addr() + 4096, length: size as u32, lkey: from.lkey() }];
        let mut wr = SendWr::new(1, SendOp::Write { remote_addr: to.1 + 4096, rkey: to.0 });
        wr.sg_list = &list;
        wr.flags = SendFlags::SIGNALED;
        let mut out = [WorkCompletion::default(); 16];
        rate(size, time, || {
            self.qp.post_send(std::slice::from_ref(&wr)).expect("posted");
            self.reap(&mut out);
        })
    }

    /// 8-byte WRITEs a second, `chain` to a call.
    fn messages(&self, chain: usize, to: (RKey, u64), time: Duration) -> f64 {
        let bytes = [7; 8];
        let mut wr = SendWr::new(1, SendOp::Write { remote_addr: to.1 + 4096, rkey: to.0 });
        wr.inline_data = &bytes;
        wr.flags = SendFlags::INLINE;
        let mut all = vec![wr; chain];
        all[chain - 1].flags |= SendFlags::SIGNALED;
        let mut out = [WorkCompletion::default(); 16];
        rate(chain, time, || {
            self.qp.post_send(&all).expect("posted");
            self.reap(&mut out);
        })
    }

    /// WRITEs of 8 bytes, each with the poll that finds its completion.
    #[inline(never)]
    fn measured(&self, far: &Far, count: u64) {
        let mut out = [WorkCompletion::default(); 16];
        for word in 0..count {
            self.write_word(word, far.mapped);
            self.reap(&mut out);
        }
    }

    /// The second process: it answers each word by the same word, until its input says to stop.
    fn serve(&self) {
        println!("{}", self.describe());
        let mut lines = std::io::stdin().lock().lines();
        let far = Far::parse(&lines.next().expect("a line").expect("text"));
        self.connect(&far);
        println!("ready");
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(AtomicBool::new(false));
        let (told, pause) = (stop.clone(), asked.clone());
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                match line.as_deref() {
                    Ok("run") => pause.store(true, Ordering::SeqCst),
                    Ok("rest") => pause.store(false, Ordering::SeqCst),
                    _ => break,
                }
            }
            told.store(true, Ordering::SeqCst);
        });
        drop(lines);
        pin(1);
        let (mut last, mut out) = (0, [WorkCompletion::default(); 16]);
        while !stop.load(Ordering::Relaxed) {
            if !asked.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            let word = self.word();
            if word == last {
                std::hint::spin_loop();
                continue;
            }
            last = word;
            self.write_word(word, far.mapped);
            self.reap(&mut out);
        }
    }
}

/// So many units a call, a second: the median of short stretches.
fn rate(units: usize, time: Duration, mut call: impl FnMut()) -> f64 {
    let mut rates = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let stretch = Instant::now();
        let mut calls = 0;
        while stretch.elapsed() < Duration::from_millis(1) {
            for _ in 0..8 {
                call();
            }
            calls += 8;
        }
        rates.push((calls * units) as f64 / stretch.elapsed().as_secs_f64());
    }
    median(&mut rates)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Puts this thread on a processor, if there are two: two that hand a word over must not share one.
fn pin(processor: usize) {
    // SAFETY: no pointers are passed. Not the processors that this thread may use: its maker is pinned, too.
    if unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } > processor as libc::c_long {
        // SAFETY: all-zero is an empty set, which is large enough for the kernel to read.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

#[repr(align(128))]
struct Line(AtomicU64);

/// One way of a word between two threads, ns.
fn hand_over(time: Duration) -> f64 {
    let lines = Arc::new([Line(AtomicU64::new(0)), Line(AtomicU64::new(0))]);
    let other = lines.clone();
    let echo = std::thread::spawn(move || {
        pin(1);
        let mut last = 0;
        loop {
            let word = other[0].0.load(Ordering::Acquire);
            if word == u64::MAX {
                return;
            }
            if word != last {
                last = word;
                other[1].0.store(word, Ordering::Release);
            } else {
                std::hint::spin_loop();
            }
        }
    });
    let mut batches = Vec::new();
    let (begun, mut word) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let batch = Instant::now();
        for _ in 0..200 {
            word += 1;
            lines[0].0.store(word, Ordering::Release);
            while lines[1].0.load(Ordering::Acquire) != word {
                std::hint::spin_loop();
            }
        }
        batches.push(batch.elapsed().as_nanos() as f64 / 400.0);
    }
    lines[0].0.store(u64::MAX, Ordering::Release);
    echo.join().expect("no panic");
    median(&mut batches)
}

/// Bytes a second of `memcpy`.
fn copy(size: usize, time: Duration) -> f64 {
    let (from, mut to) = (vec![3u8; size], vec![0u8; size]);
    rate(size, time, || {
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
    })
}

/// Bytes a second of the raw `process_vm_writev` into the second process.
fn raw_call(pid: u32, to: u64, size: usize, time: Duration) -> f64 {
    let from = vec![3u8; size];
    rate(size, time, || {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: size };
        let remote = libc::iovec { iov_base: (to + 4096) as usize as *mut libc::c_void, iov_len: size };
        // SAFETY: the other process registered these bytes for being written to.
        let moved = unsafe { libc::process_vm_writev(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
        assert_eq!(moved, size as isize, "{}", std::io::Error::last_os_error());
    })
}

fn main() {
    let options = Options::parse();
    if let Some(address) = &options.target {
        return End::open(address).serve();
    }
    let id = std::process::id();
    let address = format!("127.{}.{}.{}", 150 + (id >> 16) % 50, (id >> 8) & 0xff, id & 0xff | 1);
    let end = End::open(&address);
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--target", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the second process starts");
    let mut orders = child.stdin.take().expect("piped");
    let mut answers = BufReader::new(child.stdout.take().expect("piped")).lines();
    let far = Far::parse(&answers.next().expect("a line").expect("text"));
    writeln!(orders, "{}", end.describe()).expect("told");
    assert_eq!(answers.next().expect("a line").expect("text"), "ready");
    end.connect(&far);
    pin(0);
    let (begun, mut out) = (Instant::now(), [WorkCompletion::default(); 16]);
    while end.context.hw_counters(1).expect("counters").iter().all(|(name, n)| name != "direct_requests" || *n == 0) {
        assert!(begun.elapsed() < Duration::from_secs(5), "the requests go as packets: {:?}", end.context.same_host());
        end.write_word(0, far.mapped);
        end.reap(&mut out);
    }
    if let Some(count) = options.count {
        end.measured(&far, count);
        drop(orders);
        child.wait().expect("the second process ends");
        return;
    }
    let time = Duration::from_millis(options.ms);
    let names = [
        "8 B WRITE one way / raw cache-line hand-over",
        "64 KiB WRITE / memcpy",
        "1 MiB WRITE / memcpy",
        "64 KiB WRITE through the kernel / raw process_vm_writev",
        "1 MiB WRITE through the kernel / raw process_vm_writev",
    ];
    let mut ratios = vec![Vec::new(); names.len()];
    let mut absolute = vec![Vec::new(); 8];
    for _ in 0..options.repeat {
        writeln!(orders, "run").expect("told");
        let ours = end.ping_pong(&far, time);
        writeln!(orders, "rest").expect("told");
        std::thread::sleep(Duration::from_millis(2));
        let raw = hand_over(time);
        ratios[0].push(ours / raw);
        absolute[0].push(ours);
        absolute[1].push(raw);
        for (n, size) in [64 << 10, 1 << 20].into_iter().enumerate() {
            let (ours, raw) = (end.stream(size, &end.mapped, far.mapped, time), copy(size, time));
            ratios[1 + n].push(ours / raw);
            absolute[2 + n].push(ours / 1e9);
            let (ours, raw) =
                (end.stream(size, &end.plain, far.plain, time), raw_call(child.id(), far.plain.1, size, time));
            ratios[3 + n].push(ours / raw);
            absolute[4 + n].push(ours / 1e9);
        }
        absolute[6].push(end.messages(1, far.mapped, time) / 1e6);
        absolute[7].push(end.messages(16, far.mapped, time) / 1e6);
    }
    println!("{:<58} {:>8} {:>8} {:>8}", "ratio", "median", "least", "most");
    for (name, values) in names.iter().zip(&mut ratios) {
        let middle = median(values);
        println!("{name:<58} {middle:>8.2} {:>8.2} {:>8.2}", values[0], values[values.len() - 1]);
    }
    let units = [
        ("8 B WRITE one way, ns", 0),
        ("raw cache-line hand-over, ns", 1),
        ("64 KiB WRITE, GB/s", 2),
        ("1 MiB WRITE, GB/s", 3),
        ("64 KiB WRITE through the kernel, GB/s", 4),
        ("1 MiB WRITE through the kernel, GB/s", 5),
        ("8 B WRITEs, one a call, M/s", 6),
        ("8 B WRITEs, 16 a call, M/s", 7),
    ];
    println!();
    for (name, n) in units {
        let values = &mut absolute[n];
        let middle = median(values);
        println!("{name:<58} {middle:>8.2} {:>8.2} {:>8.2}", values[0], values[values.len() - 1]);
    }
    drop(orders);
    let _ = child.wait();
}
