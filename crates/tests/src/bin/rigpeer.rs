//! The software NIC's half of a conversation with a Linux kernel: makes one kind of RoCE traffic at a time, with fixed PSNs
//! and payload bytes, and prints one line for each completion.
//!
//! It says and prints exactly what the verbs program of the same name in the rig's guest does (`tests/rig/rigpeer.c`), so
//! that the two can be client and server of one another, and what is printed can be compared with the logs of two kernels
//! (`tests/golden/rxe/*.log`). Hand-shake, one text line each way over TCP, client first:
//! `rig1 qpn=N psn=N gid=32HEX mtu=N rkey=N va=N len=N`; the client ends with `bye`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use scalefabric_nic::options::Options;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, CompletionQueue, Context, Gid, MemoryRegion, Mtu, Provider, Psn, QKey,
    QpAttr, QpAttrMask, QpCap, QpInit, QpType, Qpn, QueuePair, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge,
    SharedReceiveQueue, SrqInit, UdAddress, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};

const RECEIVES: usize = 64;
const SLOT: usize = 65536 + 64;
const BUFFER: usize = 1 << 20;
const QKEY: QKey = QKey(0x1111_1111);
const IMM: u32 = 0xfeed_0001;

/// One side of a rig conversation on the software NIC.
#[derive(Parser)]
struct Arguments {
    /// Device; the first one that has the address if left out.
    #[arg(short)]
    device: Option<String>,
    /// Local IP address whose GID is used.
    #[arg(short = 'a')]
    address: std::net::IpAddr,
    /// TCP port of the hand-shake.
    #[arg(short = 't', default_value_t = 18515)]
    port: u16,
    /// Default length.
    #[arg(short, default_value_t = 64)]
    length: usize,
    /// Path MTU.
    #[arg(short, default_value_t = 1024)]
    mtu: u32,
    /// First PSN.
    #[arg(short, value_parser = number)]
    psn: Option<u32>,
    /// Server: post receives this many ms after RTS.
    #[arg(short = 'D', default_value_t = 0)]
    delay_ms: u64,
    /// RNR timer code.
    #[arg(short = 'R', default_value_t = 12)]
    min_rnr_timer: u8,
    /// ACK timeout code.
    #[arg(short = 'u', default_value_t = 17)]
    timeout: u8,
    /// Seconds, over all.
    #[arg(short = 'T', default_value_t = 60)]
    seconds: u64,
    /// rc, uc or ud.
    #[arg(short, default_value = "rc")]
    qp: String,
    /// Be the client of this host.
    #[arg(short)]
    connect: Option<String>,
    /// Operations, `send:64,write:4096,…`.
    #[arg(short, default_value = "send")]
    ops: String,
    /// Repetitions.
    #[arg(short = 'n', default_value_t = 1)]
    repeat: usize,
    /// Post everything, then wait.
    #[arg(short)]
    batch: bool,
    /// Receives are posted to an SRQ.
    #[arg(short = 'S')]
    shared: bool,
    /// Traffic class.
    #[arg(short = 'C', default_value = "0", value_parser = number)]
    traffic_class: u32,
    /// Faults, as `sfab demo --fault` takes them.
    #[arg(long)]
    fault: Option<String>,
    /// Write every packet to this pcapng file.
    #[arg(long)]
    capture: Option<std::path::PathBuf>,
}

impl Arguments {
    fn length_of_last(&self) -> usize {
        let last = self.ops.rsplit(',').next().and_then(|op| op.split_once(':'));
        last.and_then(|(_, length)| length.parse().ok()).unwrap_or(self.length)
    }
}

fn number(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

/// What the hand-shake tells.
#[derive(Clone, Copy, Debug)]
struct Identity {
    qpn: u32,
    psn: u32,
    gid: Gid,
    mtu: u32,
    rkey: u32,
    va: u64,
    length: u64,
}

impl Identity {
    fn line(&self) -> String {
        let gid: String = self.gid.0.iter().map(|b| format!("{b:02x}")).collect();
        format!(
            "rig1 qpn={} psn={} gid={gid} mtu={} rkey={} va={} len={}\n",
            self.qpn, self.psn, self.mtu, self.rkey, self.va, self.length
        )
    }

    fn parse(line: &str) -> Result<Self, String> {
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .ok_or_else(|| format!("hand-shake line without {name}: {line:?}"))
        };
        let integer =
            |name: &str| field(name)?.parse::<u64>().map_err(|e| format!("hand-shake field {name}: {e}: {line:?}"));
        let hex = field("gid")?;
        let mut gid = [0; 16];
        for (i, byte) in gid.iter_mut().enumerate() {
            let pair = hex.get(2 * i..2 * i + 2).ok_or_else(|| format!("hand-shake GID too short: {hex}"))?;
            *byte = u8::from_str_radix(pair, 16).map_err(|e| format!("hand-shake GID {hex}: {e}"))?;
        }
        Ok(Self {
            qpn: integer("qpn")? as u32,
            psn: integer("psn")? as u32,
            gid: Gid(gid),
            mtu: integer("mtu")? as u32,
            rkey: integer("rkey")? as u32,
            va: integer("va")?,
            length: integer("len")?,
        })
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
    })
}

fn payload(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + seed) as u8).collect()
}

fn status_text(status: WcStatus) -> &'static str {
    status.as_str()
}

fn mtu(bytes: u32) -> Mtu {
    match bytes {
        4096.. => Mtu::Mtu4096,
        2048.. => Mtu::Mtu2048,
        1024.. => Mtu::Mtu1024,
        512.. => Mtu::Mtu512,
        _ => Mtu::Mtu256,
    }
}

struct Side {
    arguments: Arguments,
    qp_type: QpType,
    qp: Arc<dyn QueuePair>,
    srq: Option<Arc<dyn SharedReceiveQueue>>,
    send_cq: Arc<dyn CompletionQueue>,
    recv_cq: Arc<dyn CompletionQueue>,
    /// What the peer writes and reads.
    buffer: Arc<dyn MemoryRegion>,
    receives: Arc<dyn MemoryRegion>,
    local: Arc<dyn MemoryRegion>,
    ah: Option<Arc<dyn AddressHandle>>,
    peer: Identity,
    tcp: BufReader<TcpStream>,
    deadline: Instant,
}

type Failure = Box<dyn std::error::Error>;

fn connect(arguments: &Arguments, deadline: Instant) -> Result<TcpStream, Failure> {
    let Some(host) = &arguments.connect else {
        let listener = TcpListener::bind(("::", arguments.port))?;
        listener.set_nonblocking(true)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(stream);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) => return Err(format!("nobody connected: {e}").into()),
            }
        }
    };
    loop {
        match TcpStream::connect((host.as_str(), arguments.port)) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > deadline => return Err(format!("connect {host}:{}: {e}", arguments.port).into()),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn find_gid(provider: &SoftwareProvider, arguments: &Arguments) -> Result<(Arc<dyn Context>, u8, u8, Gid), Failure> {
    let wanted = Gid::from_ip(arguments.address);
    for device in provider.devices()? {
        if arguments.device.as_ref().is_some_and(|name| *name != device.name) {
            continue;
        }
        let context = provider.open(&device.name)?;
        if let Some(entry) = context.query_gid_table()?.into_iter().find(|entry| entry.gid == wanted) {
            return Ok((context, entry.port_num, entry.gid_index as u8, wanted));
        }
    }
    Err(format!("no device has a GID for {}", arguments.address).into())
}

impl Side {
    fn set_up(arguments: Arguments) -> Result<Self, Failure> {
        let deadline = Instant::now() + Duration::from_secs(arguments.seconds);
        let faults = arguments.fault.as_deref().map(str::parse).transpose()?;
        let provider =
            SoftwareProvider::new(Options { faults, capture: arguments.capture.clone(), ..Options::default() });
        let (context, port_num, gid_index, gid) = find_gid(&provider, &arguments)?;
        let qp_type = match arguments.qp.as_str() {
            "uc" => QpType::Uc,
            "ud" => QpType::Ud,
            _ => QpType::Rc,
        };
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let pd = context.alloc_pd()?;
        let buffer = pd.alloc_mr(BUFFER, all)?;
        let receives = pd.alloc_mr(RECEIVES * SLOT, AccessFlags::LOCAL_WRITE)?;
        let local = pd.alloc_mr(BUFFER, AccessFlags::LOCAL_WRITE)?;
        let send_cq = context.create_cq(256, None, 0)?;
        let recv_cq = context.create_cq(256, None, 0)?;
        let init = SrqInit { max_wr: RECEIVES as u32, max_sge: 1, srq_limit: 0, xrc: None };
        let srq = arguments.shared.then(|| pd.create_srq(&init)).transpose()?;
        let qp = pd.create_qp(&QpInit {
            qp_type,
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            srq: srq.clone(),
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sq_sig_all: false,
        })?;
        let client = arguments.connect.is_some();
        let me = Identity {
            qpn: qp.qp_num().get(),
            psn: arguments.psn.unwrap_or(if client { 0x10_0000 } else { 0x20_0000 }),
            gid,
            mtu: arguments.mtu,
            rkey: buffer.rkey().0,
            va: buffer.addr(),
            length: BUFFER as u64,
        };
        let stream = connect(&arguments, deadline)?;
        stream.set_read_timeout(Some(Duration::from_secs(arguments.seconds)))?;
        let mut tcp = BufReader::new(stream);
        // INIT before the hand-shake, so that the peer may send as soon as it has our line.
        let (attr, mask) =
            if qp_type == QpType::Ud { QpAttr::init_ud(port_num, QKEY) } else { QpAttr::init(qp_type, port_num, all) };
        qp.modify(&attr, mask)?;
        if client {
            tcp.get_mut().write_all(me.line().as_bytes())?;
        }
        let mut line = String::new();
        tcp.read_line(&mut line)?;
        let peer = Identity::parse(&line)?;
        let path_mtu = peer.mtu.min(arguments.mtu);
        let mut av = AddressVector::new(port_num, gid_index, peer.gid);
        av.traffic_class = arguments.traffic_class as u8;
        let mut attr = QpAttr {
            qp_state: scalefabric_verbs::QpState::Rtr,
            path_mtu: mtu(path_mtu),
            dest_qp_num: Qpn::new(peer.qpn),
            rq_psn: Psn::new(peer.psn),
            max_dest_rd_atomic: 4,
            min_rnr_timer: arguments.min_rnr_timer,
            ah_attr: av,
            ..QpAttr::default()
        };
        let connected = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        let reliable = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        qp.modify(
            &attr,
            match qp_type {
                QpType::Ud => QpAttrMask::STATE,
                QpType::Uc => QpAttrMask::STATE | connected,
                _ => QpAttrMask::STATE | connected | reliable,
            },
        )?;
        attr.qp_state = scalefabric_verbs::QpState::Rts;
        attr.sq_psn = Psn::new(me.psn);
        attr.timeout = arguments.timeout;
        attr.max_rd_atomic = 4;
        let reliable =
            QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
        let base = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        qp.modify(&attr, if qp_type == QpType::Rc { base | reliable } else { base })?;
        let ah = if qp_type == QpType::Ud { Some(pd.create_ah(&av)?) } else { None };
        println!(
            "local qpn={:#08x} psn={:#08x}  remote qpn={:#08x} psn={:#08x}  qp={} pmtu={path_mtu} gid={gid_index}",
            me.qpn, me.psn, peer.qpn, peer.psn, arguments.qp
        );
        let mut side =
            Self { arguments, qp_type, qp, srq, send_cq, recv_cq, buffer, receives, local, ah, peer, tcp, deadline };
        if client {
            side.post_receives()?;
        } else if side.arguments.delay_ms > 0 {
            side.tcp.get_mut().write_all(me.line().as_bytes())?;
            std::thread::sleep(Duration::from_millis(side.arguments.delay_ms));
            side.post_receives()?;
        } else {
            side.post_receives()?;
            side.tcp.get_mut().write_all(me.line().as_bytes())?;
        }
        Ok(side)
    }

    fn post_receives(&self) -> Result<(), Failure> {
        for i in 0..RECEIVES {
            let sge =
                Sge { addr: self.receives.addr() + (i * SLOT) as u64, length: SLOT as u32, lkey: self.receives.lkey() };
            let wr = [RecvWr { wr_id: i as u64, sg_list: &[sge] }];
            match &self.srq {
                Some(srq) => srq.post_recv(&wr)?,
                None => self.qp.post_recv(&wr)?,
            }
        }
        Ok(())
    }

    /// Posts operation `k`; returns its length and where its bytes lie.
    fn post(&self, k: usize, name: &str, length: usize, offset: usize) -> Result<usize, Failure> {
        let atomic = matches!(name, "cas" | "faa");
        let length = if atomic { 8 } else { length };
        let bytes = payload(length, k);
        self.local.write(offset, &bytes)?;
        let sge = Sge { addr: self.local.addr() + offset as u64, length: length as u32, lkey: self.local.lkey() };
        let sges = if length > 0 { std::slice::from_ref(&sge) } else { &[] };
        let rkey = RKey(self.peer.rkey);
        let remote_addr = self.peer.va + offset as u64;
        let atomic_addr = self.peer.va + self.peer.length - 8;
        let imm = IMM + k as u32;
        let mut flags = SendFlags::SIGNALED;
        let op = match name {
            "send" => SendOp::Send,
            "send_imm" => SendOp::SendWithImm { imm },
            "send_se" => {
                flags |= SendFlags::SOLICITED;
                SendOp::Send
            }
            "send_inl" => {
                flags |= SendFlags::INLINE;
                SendOp::Send
            }
            "send_inv" => SendOp::SendWithInv { invalidate_rkey: rkey },
            "write" => SendOp::Write { remote_addr, rkey },
            "write_imm" => SendOp::WriteWithImm { remote_addr, rkey, imm },
            "read" => SendOp::Read { remote_addr, rkey },
            "bad_rkey" => SendOp::Write { remote_addr, rkey: RKey(rkey.0 ^ 0xff) },
            "bad_len" => SendOp::Write { remote_addr: self.peer.va + self.peer.length - 4, rkey },
            "cas" => SendOp::CompareSwap { remote_addr: atomic_addr, rkey, compare: 0, swap: 0x1122_3344_5566_7788 },
            "faa" => SendOp::FetchAdd { remote_addr: atomic_addr, rkey, add: 0x0101_0101_0101_0101 },
            other => return Err(format!("unknown operation {other}").into()),
        };
        let mut wr = SendWr::new(k as u64, op);
        wr.flags = flags;
        if flags.contains(SendFlags::INLINE) {
            wr.inline_data = &bytes;
        } else {
            wr.sg_list = sges;
        }
        if let Some(ah) = &self.ah {
            wr.ud = Some(UdAddress { ah: &**ah, remote_qpn: Qpn::new(self.peer.qpn), remote_qkey: QKEY });
        }
        self.qp.post_send(&[wr])?;
        Ok(length)
    }

    fn poll(&self, cq: &Arc<dyn CompletionQueue>) -> Result<Option<WorkCompletion>, Failure> {
        let mut out = [WorkCompletion::default()];
        let n = cq.poll(&mut out)?;
        Ok((n == 1).then_some(out[0]))
    }

    fn wait(&self, lengths: &[(usize, usize, String)], printed: &mut usize) -> Result<bool, Failure> {
        loop {
            if let Some(wc) = self.poll(&self.send_cq)? {
                let (offset, length, name) = &lengths[wc.wr_id as usize];
                *printed += 1;
                // In a batch the guest's program knows only the length of the last operation.
                let shown = if self.arguments.batch { self.arguments.length_of_last() } else { *length };
                println!("wc op={} status={} len={shown}", wc.wr_id, status_text(wc.status));
                if wc.status != WcStatus::Success {
                    return Ok(false);
                }
                if !self.arguments.batch && name == "read" {
                    let mut bytes = vec![0; *length];
                    self.local.read(*offset, &mut bytes)?;
                    println!("read crc32={:08x}", crc32(&bytes));
                }
                if !self.arguments.batch && matches!(name.as_str(), "cas" | "faa") {
                    println!("atomic old={:016x}", self.local.load_u64(*offset)?);
                }
                return Ok(true);
            }
            if Instant::now() > self.deadline {
                return Err(format!("out of time with {} of {} completions", printed, lengths.len()).into());
            }
            std::thread::yield_now();
        }
    }

    fn run_client(&mut self) -> Result<bool, Failure> {
        let ops: Vec<String> = self.arguments.ops.split(',').map(str::to_owned).collect();
        let (mut posted, mut done, mut offset, mut good) = (Vec::new(), 0, 0, true);
        'all: for _ in 0..self.arguments.repeat {
            for op in &ops {
                let (name, length) = match op.split_once(':') {
                    Some((name, length)) => (name, length.parse()?),
                    None => (op.as_str(), self.arguments.length),
                };
                if offset + length > BUFFER {
                    offset = 0;
                }
                let length = self.post(posted.len(), name, length, offset)?;
                posted.push((offset, length, name.to_owned()));
                offset += (length + 63) & !63;
                if !self.arguments.batch && !self.wait(&posted, &mut done)? {
                    good = false;
                    break 'all;
                }
            }
        }
        while good && done < posted.len() {
            good = self.wait(&posted, &mut done)?;
        }
        self.tcp.get_mut().write_all(b"bye\n")?;
        let mut line = String::new();
        let _ = self.tcp.read_line(&mut line);
        Ok(good)
    }

    fn run_server(&mut self) -> Result<bool, Failure> {
        self.tcp.get_ref().set_nonblocking(true)?;
        let header = if self.qp_type == QpType::Ud { 40 } else { 0 };
        let (mut received, mut flushed, mut end) = (0, 0, None);
        while end.is_none_or(|end| Instant::now() < end) {
            while let Some(wc) = self.poll(&self.recv_cq)? {
                if wc.status == WcStatus::WrFlushErr {
                    flushed += 1;
                    continue;
                }
                let imm = if wc.flags.contains(WcFlags::WITH_IMM) { wc.imm } else { 0 };
                let (status, length) = (status_text(wc.status), wc.byte_len as usize);
                print!("recv {received} status={status} opcode={} len={length} imm={imm:08x}", wc.opcode as u32);
                received += 1;
                if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv && length >= header {
                    let mut bytes = vec![0; length];
                    self.receives.read(wc.wr_id as usize * SLOT, &mut bytes)?;
                    print!(" crc32={:08x}", crc32(&bytes[header..]));
                }
                println!();
            }
            let mut line = String::new();
            if end.is_none() {
                match self.tcp.read_line(&mut line) {
                    Ok(0) => println!("peer left"),
                    Ok(_) => {}
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                        if Instant::now() > self.deadline {
                            return Err("server out of time".into());
                        }
                        std::thread::yield_now();
                        continue;
                    }
                    Err(e) => return Err(e.into()),
                }
                end = Some(Instant::now() + Duration::from_millis(200));
            }
        }
        if flushed > 0 {
            println!("receives flushed: {flushed}");
        }
        let mut head = vec![0; 65536];
        self.buffer.read(0, &mut head)?;
        println!("buffer first 64 KiB crc32={:08x} last8={:016x}", crc32(&head), self.buffer.load_u64(BUFFER - 8)?);
        if self.tcp.get_mut().write_all(b"bye\n").is_err() {
            println!("peer gone");
        }
        Ok(true)
    }
}

fn run() -> Result<bool, Failure> {
    let mut side = Side::set_up(Arguments::parse())?;
    let good = if side.arguments.connect.is_some() { side.run_client()? } else { side.run_server()? };
    println!("end {}", if good { "ok" } else { "with error completion" });
    Ok(good)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("rigpeer: {error}");
            ExitCode::from(2)
        }
    }
}
