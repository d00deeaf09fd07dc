//! The side of a child: opens the device and does what it is told, answering each line with one that begins with `@`.

use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_nic::provider::{SoftwareContext, SoftwareProvider};
use scalefabric_verbs::*;

use crate::connection::Application;
use crate::reach::End;

const BYTES: usize = 256 << 10;

#[derive(Clone)]
pub struct Qp {
    pub qp: Arc<dyn QueuePair>,
    pub cq: Arc<dyn CompletionQueue>,
    pub mr: Arc<dyn MemoryRegion>,
}

#[derive(Default)]
pub struct Child {
    pub context: Option<Arc<SoftwareContext>>,
    pub qp: Option<Qp>,
    pub gid_index: u8,
    pub application: Option<Application>,
    pub end: Option<End>,
}

pub fn run() {
    let mut child = Child::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        println!("@{}", child.answer(&words));
    }
}

fn pattern(seed: u32) -> Vec<u8> {
    (0..BYTES).map(|i| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed * 77) as u8 ^ (i >> 8) as u8).collect()
}

/// Which way each process's requests go, as a process that is no member sees it, and how many of each QP went without packets.
fn ways() -> String {
    let name = std::env::var(crate::parent::CHILD).unwrap();
    let survey = SoftwareProvider::from_environment().and_then(|p| p.survey(&name)).unwrap();
    let mut text = String::new();
    for member in &survey.members {
        let Some(resources) = &member.resources else { continue };
        let way = &resources.same_host;
        let refused: Vec<&str> = way.neighbours.iter().filter_map(|other| other.no_process_vm.as_deref()).collect();
        let executed: Vec<u64> = resources.qps.iter().map(|qp| qp.direct_requests).collect();
        let because = way.packets_because.as_deref().unwrap_or("-");
        text += &format!("slot={} because={because} refused={refused:?} executed={executed:?}; ", member.slot);
    }
    text
}

/// What a process that is no member sees: who there is, and each QP, region and the number of other things.
fn survey() -> String {
    let name = std::env::var(crate::parent::CHILD).unwrap();
    let survey = SoftwareProvider::from_environment().and_then(|p| p.survey(&name)).unwrap();
    let mut text = String::new();
    for member in &survey.members {
        let host = if member.is_host { " host" } else { "" };
        let pid = member.pid.map_or("-".into(), |pid| pid.to_string());
        text += &format!("member slot={} pid={pid} own={} comm={}{host}; ", member.slot, member.own_pid, member.comm);
    }
    for (member, qp) in survey.all(|r| &r.qps) {
        let rqpn = qp.rqpn.unwrap_or(0);
        text += &format!("qp slot={} lqpn={} rqpn={rqpn} state={}; ", member.slot, qp.lqpn, qp.state);
        assert!(survey.all(|r| &r.pds).any(|(_, pd)| Some(pd.pdn) == qp.pdn && pd.ctxn == qp.ctxn && pd.users >= 2));
        assert!(survey.all(|r| &r.cqs).any(|(_, cq)| Some(cq.cqn) == qp.send_cqn && cq.users >= 2 && cq.cqe > 0));
        assert!(survey.all(|r| &r.ctxs).any(|(_, ctx)| ctx.ctxn == qp.ctxn));
    }
    for (member, mr) in survey.all(|r| &r.mrs) {
        text += &format!("mr slot={} mrlen={} key={}; ", member.slot, mr.mrlen, mr.key);
    }
    for (member, id) in survey.all(|r| &r.cm_ids) {
        let (lqpn, rqpn) = (id.lqpn.unwrap_or(0), id.rqpn.unwrap_or(0));
        text += &format!("cm slot={} state={} ps={} lqpn={lqpn} rqpn={rqpn}; ", member.slot, id.state, id.ps);
    }
    let port = &survey.ports().unwrap()[0];
    let writes = port.counters.iter().find(|(name, _)| name == "rx_write_requests").unwrap().1;
    text + &format!(
        "silent={} gids={} state={:?} writes={writes}",
        survey.silent().count(),
        port.gids.len(),
        port.state
    )
}

/// Room for a completion.
pub fn blank() -> WorkCompletion {
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

impl Child {
    pub fn context(&self) -> &Arc<SoftwareContext> {
        self.context.as_ref().expect("open first")
    }

    pub fn answer(&mut self, words: &[&str]) -> String {
        match *words {
            ["open"] => self.open(),
            ["qp"] => self.make_qp(),
            ["use", ip] => {
                let table = self.context().query_gid_table().unwrap();
                let entry = table.iter().find(|entry| entry.gid.to_ip().to_string() == ip).unwrap();
                self.gid_index = entry.gid_index as u8;
                "ok".into()
            }
            ["connect", qpn, gid] => self.connect(qpn.parse().unwrap(), gid, 12, 5),
            ["connect", qpn, gid, timeout, retries] => {
                self.connect(qpn.parse().unwrap(), gid, timeout.parse().unwrap(), retries.parse().unwrap())
            }
            ["writes", count, rkey, addr] => {
                let each = |seed| self.write(rkey.parse().unwrap(), addr.parse().unwrap(), seed);
                let statuses = (0..count.parse().unwrap()).map(each);
                statuses.into_iter().find(|status| status != "Success").unwrap_or_else(|| "ok".into())
            }
            ["live"] => self.live(),
            ["write", rkey, addr, seed] => {
                self.write(rkey.parse().unwrap(), addr.parse().unwrap(), seed.parse().unwrap())
            }
            ["check", seed] => self.check(seed.parse().unwrap()),
            ["gids"] => {
                let table = self.context().query_gid_table().unwrap();
                let v4 = table.iter().filter(|entry| entry.gid.is_ipv4());
                v4.map(|e| format!("{}={}", e.gid_index, e.gid.to_ip())).collect::<Vec<_>>().join(" ")
            }
            ["addresses"] => {
                let table = self.context().query_gid_table().unwrap();
                table.iter().map(|e| e.gid.to_ip().to_string()).collect::<Vec<_>>().join(" ")
            }
            ["sockets"] => self.context().sockets(1).unwrap().into(),
            ["problems"] => self.context().problems().join("; "),
            // As often as it takes.
            ["retry"] => match self.open() {
                answer if answer.starts_with("error EBUSY") => "slot=0".into(),
                answer => answer,
            },
            ["port"] => {
                let port = self.context().query_port(1).unwrap();
                format!("{:?} {:?}", port.state, port.active_mtu)
            }
            ["event", ms] => {
                let timeout = Duration::from_millis(ms.parse().unwrap());
                match self.context().get_async_event(Some(timeout)).unwrap() {
                    Some(event) => format!("{:?} {:?}", event.event_type, event.subject),
                    None => "none".into(),
                }
            }
            ["counter", name] => {
                let all = self.context().hw_counters(1).unwrap();
                all.iter().find(|(n, _)| n == name).unwrap().1.to_string()
            }
            ["slots"] => format!("alive={}", self.context().members()),
            ["survey"] => survey(),
            ["ways"] => ways(),
            ["send", seed] => self.post_and_wait(SendOp::Send, seed.parse().unwrap()),
            ["receive-then", how] => self.receive_then_exit(how),
            ["exit-while-threads-run"] => self.exit_while_threads_run(),
            ["cm", ref words @ ..] => {
                let fresh = || Application::new(SoftwareProvider::from_environment().unwrap());
                self.application.get_or_insert_with(fresh).answer(words)
            }
            ["end", ref words @ ..] => {
                let context = self.context().clone();
                self.end.get_or_insert_with(|| End::new(&context)).answer(words)
            }
            ["fork"] => self.fork(),
            ["forks", count, rkey, addr] => {
                let (count, rkey, addr) = (count.parse().unwrap(), rkey.to_owned(), addr.to_owned());
                crate::forks::run(self, count, &rkey, &addr)
            }
            ["exec"] => panic!("{}", std::process::Command::new("sleep").arg("30").exec()),
            _ => format!("error unknown {words:?}"),
        }
    }

    fn open(&mut self) -> String {
        let name = std::env::var(crate::parent::CHILD).unwrap();
        match SoftwareProvider::from_environment().and_then(|p| p.open_software(&name)) {
            Ok(context) => {
                let answer = format!("slot={} host={}", context.slot(), u8::from(context.is_host()));
                self.context = Some(context);
                answer
            }
            Err(error) => format!("error {:?} {}", error.errno, error.message),
        }
    }

    /// A fresh QP: its number, rkey, address, and our GID.
    fn make_qp(&mut self) -> String {
        let context = self.context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None, 0).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let mr = pd.alloc_mr(2 * BYTES, access).unwrap();
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
        };
        let qp = pd.create_qp(&init).unwrap();
        let gid = context.query_gid(1, u32::from(self.gid_index)).unwrap();
        let answer = format!("{} {} {} {}", qp.qp_num().get(), mr.rkey().0, mr.addr(), gid.to_ip());
        self.qp = Some(Qp { qp, cq, mr });
        answer
    }

    fn connect(&mut self, qpn: u32, gid: &str, timeout: u8, retry_cnt: u8) -> String {
        let mtu = self.context().query_port(1).unwrap().active_mtu;
        let qp = &self.qp.as_ref().unwrap().qp;
        let (mut attr, _) = qp.query().unwrap();
        attr.qp_state = QpState::Init;
        attr.port_num = 1;
        attr.pkey_index = 0;
        attr.qp_access_flags = AccessFlags::REMOTE_WRITE;
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        qp.modify(&attr, mask).unwrap();
        attr.qp_state = QpState::Rtr;
        attr.path_mtu = mtu;
        attr.dest_qp_num = Qpn::new(qpn);
        attr.rq_psn = Psn::new(0xff_fff0);
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.dgid = Gid::from_ip(gid.parse().unwrap());
        attr.ah_attr.sgid_index = self.gid_index;
        attr.ah_attr.hop_limit = 64;
        attr.ah_attr.port_num = 1;
        let mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER;
        qp.modify(&attr, mask).unwrap();
        attr.qp_state = QpState::Rts;
        attr.timeout = timeout;
        attr.retry_cnt = retry_cnt;
        attr.rnr_retry = 5;
        attr.sq_psn = Psn::new(0xff_fff0);
        attr.max_rd_atomic = 1;
        let mask = QpAttrMask::STATE
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        qp.modify(&attr, mask).unwrap();
        "ok".into()
    }

    /// Writes a pattern from the first half of our region into the second half of the peer's.
    pub fn write(&self, rkey: u32, addr: u64, seed: u32) -> String {
        let op = SendOp::Write { remote_addr: addr + BYTES as u64, rkey: RKey(rkey) };
        self.post_and_wait(op, seed)
    }

    /// Posts a pattern from the first half of our region and waits for its completion.
    fn post_and_wait(&self, op: SendOp<'_>, seed: u32) -> String {
        let Qp { qp, mr, .. } = self.qp.as_ref().unwrap();
        mr.write(0, &pattern(seed)).unwrap();
        let list = [Sge { addr: mr.addr(), length: BYTES as u32, lkey: mr.lkey() }];
        qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(1, op) }]).unwrap();
        self.wait_for_completion()
    }

    fn wait_for_completion(&self) -> String {
        let cq = &self.qp.as_ref().unwrap().cq;
        let mut out = [blank()];
        let start = Instant::now();
        while cq.poll(&mut out).unwrap() == 0 {
            if start.elapsed() > Duration::from_secs(30) {
                return "no completion".into();
            }
        }
        format!("{:?}", out[0].status)
    }

    /// Says that it is ready, polls for a message, and ends at once with everything as it is.
    fn receive_then_exit(&self, how: &str) -> String {
        let Qp { qp, mr, .. } = self.qp.as_ref().unwrap();
        let list = [Sge { addr: mr.addr() + BYTES as u64, length: BYTES as u32, lkey: mr.lkey() }];
        qp.post_recv(&[RecvWr { wr_id: 2, sg_list: &list }]).unwrap();
        println!("@ready");
        let status = self.wait_for_completion();
        // SAFETY: the two ways to end.
        unsafe {
            match how {
                "exit" => libc::exit(i32::from(status != "Success")),
                _ => libc::_exit(i32::from(status != "Success")),
            }
        }
    }

    /// Opens, makes, connects and moves data without end, in new objects each time.
    fn live(&mut self) -> String {
        loop {
            if self.context.is_none() {
                self.open();
            }
            let qp = self.make_qp();
            let words: Vec<&str> = qp.split(' ').collect();
            self.connect(words[0].parse().unwrap(), words[3], 12, 5);
            for seed in 0..3 {
                self.write(words[1].parse().unwrap(), words[2].parse().unwrap(), seed);
            }
            self.qp = None;
            self.context = None;
        }
    }

    /// Ends by `exit` while threads post, poll, make and destroy things.
    fn exit_while_threads_run(&self) -> String {
        let Qp { qp, cq, mr } = self.qp.clone().unwrap();
        let context = self.context().clone();
        std::thread::spawn(move || {
            loop {
                let list = [Sge { addr: mr.addr(), length: 4096, lkey: mr.lkey() }];
                let op = SendOp::Write { remote_addr: mr.addr() + BYTES as u64, rkey: mr.rkey() };
                let _ = qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(1, op) }]);
                let _ = cq.poll(&mut [blank()]);
            }
        });
        std::thread::spawn(move || {
            loop {
                let pd = context.alloc_pd().unwrap();
                let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE).unwrap();
                drop(context.create_cq(8, None, 0).unwrap());
                mr.destroy().unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        // SAFETY: the way that a C program ends.
        unsafe { libc::exit(0) }
    }

    fn check(&self, seed: u32) -> String {
        let mut got = vec![0; BYTES];
        self.qp.as_ref().unwrap().mr.read(BYTES, &mut got).unwrap();
        let wrong = got.iter().zip(pattern(seed)).position(|(a, b)| *a != b);
        wrong.map_or_else(|| "ok".into(), |at| format!("byte {at} differs"))
    }

    /// A child of the child that does nothing and holds all it inherited.
    fn fork(&self) -> String {
        // SAFETY: the forked process calls only async-signal-safe functions.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            },
            pid => pid.to_string(),
        }
    }
}
