//! What runs in a namespace: one process with a QP for each peer, which keeps them busy with WRITEs or READs while it is told to. It judges nothing.

use crate::rig::SENDERS;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::*;
use std::io::BufRead;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Bytes of a message, and messages that a QP has posted.
const BYTES: usize = 32_768;
const DEPTH: u64 = 16;

/// One process with a QP for each peer, told what to do line by line.
pub struct End {
    context: Arc<dyn Context>,
    qps: Vec<Arc<dyn QueuePair>>,
    cq: Arc<dyn CompletionQueue>,
    mr: Arc<dyn MemoryRegion>,
}

impl End {
    /// With what the configuration says.
    pub fn open() -> Self {
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

    /// Does what the lines on standard input say, until they end.
    pub fn serve(&self) {
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
                    let places = places(&words[1..]);
                    self.flood(&lines, &places, |(rkey, remote_addr)| SendOp::Write { remote_addr, rkey })
                }
                "read" => {
                    let places = places(&words[1..]);
                    self.flood(&lines, &places, |(rkey, remote_addr)| SendOp::Read { remote_addr, rkey })
                }
                "algorithm" => self.qps[number(1) as usize].congestion().map_or("none", |state| state.algorithm).into(),
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
        // An address that the kernel made of nothing leads nowhere.
        let is_own = |gid: &Gid| gid.is_ipv4() == address.is_ipv4() && gid.0[0] != 0xfe;
        let own = table.iter().find(|entry| is_own(&entry.gid)).unwrap();
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

    /// Keeps the first QPs busy, one for each place, until a line comes.
    fn flood(&self, lines: &Receiver<String>, places: &[Place], op: impl Fn(Place) -> SendOp<'static>) -> String {
        println!("@going");
        let list = [Sge { addr: self.mr.addr(), length: BYTES as u32, lkey: self.mr.lkey() }];
        let mut open = vec![0_u64; places.len()];
        let (mut done, mut stop, mut out) = (0_u64, false, [blank(); 16]);
        while !stop || open.iter().any(|open| *open > 0) {
            for (which, (place, open)) in places.iter().zip(&mut open).enumerate() {
                while !stop && *open < DEPTH {
                    let wr = SendWr { sg_list: &list, ..SendWr::new(which as u64, op(*place)) };
                    self.qps[which].post_send(&[wr]).unwrap();
                    *open += 1;
                }
            }
            let n = self.cq.poll(&mut out).unwrap();
            for wc in &out[..n] {
                assert_eq!(wc.status, WcStatus::Success);
                open[wc.wr_id as usize] -= 1;
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

/// A peer's memory.
type Place = (RKey, u64);

/// Pairs of key and address.
fn places(words: &[&str]) -> Vec<Place> {
    let number = |word: &str| word.parse::<u64>().unwrap();
    words.chunks_exact(2).map(|pair| (RKey(number(pair[0]) as u32), number(pair[1]))).collect()
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
