//! The Rust twin of `crates/tests/door/door.c`: the same queue pair, the same loops, through the contract instead of through
//! the C door. `cargo xtask bench --door` counts the instructions of both under callgrind.
//!
//! Usage: `door KIND COUNT`, kinds as in the C program. Prints operations and calls of poll within the loop. Nothing here
//! measures time.
//!
//! What is posted there by `ibv_wr_*` is posted here by `post_send_whole`, which is that call's own promise; what is taken
//! there one by one is taken here one by one: the door is compared, not the shape of a call.

use std::sync::Arc;

use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::{
    AccessFlags, AddressVector, CompletionQueue, Provider, Psn, QpAttr, QpCap, QpInit, QpType, QueuePair, RecvWr,
    SendFlags, SendOp, SendWr, Sge, VerbsError, WcStatus, WorkCompletion,
};

/// As in the C program.
const CHAIN: usize = 32;
const DEPTH: u32 = 64;
const WARM: u64 = 256;

struct Loop {
    queue_pair: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    polls: u64,
    /// Posted whole or not at all.
    whole: bool,
    /// Completions that are taken at once.
    at_once: usize,
}

impl Loop {
    #[inline]
    fn post(&self, chain: &[SendWr<'_>]) {
        let outcome =
            if self.whole { self.queue_pair.post_send_whole(chain) } else { self.queue_pair.post_send(chain) };
        outcome.expect("post requests");
    }

    fn take(&mut self, mut count: usize) {
        let mut done = [WorkCompletion::default(); 16];
        while count > 0 {
            let got = self.cq.poll(&mut done[..self.at_once]).expect("poll");
            self.polls += 1;
            for completion in &done[..got] {
                assert_eq!(completion.status, WcStatus::Success);
            }
            count -= got;
        }
    }
}

/// One message at a time.
#[inline(never)]
fn measured_single(a: &mut Loop, count: u64, send: &SendWr<'_>, receive: Option<&RecvWr<'_>>) {
    for _ in 0..count {
        if let Some(receive) = receive {
            a.queue_pair.post_recv(std::slice::from_ref(receive)).expect("post a receive");
        }
        a.post(std::slice::from_ref(send));
        a.take(if receive.is_some() { 2 } else { 1 });
    }
}

/// Chains, of which so many requests are signalled.
#[inline(never)]
fn measured_chain(a: &mut Loop, count: u64, chain: &[SendWr<'_>], signalled: usize) {
    for _ in (0..count).step_by(CHAIN) {
        a.post(chain);
        a.take(signalled);
    }
}

/// A completion queue in which nothing is.
#[inline(never)]
fn measured_poll(a: &mut Loop, count: u64) {
    let mut done = [WorkCompletion::default(); 1];
    for _ in 0..count {
        assert_eq!(a.cq.poll(&mut done).expect("poll"), 0);
    }
    a.polls += count;
}

fn run(kind: &str, count: u64) -> Result<u64, VerbsError> {
    let context = SoftwareProvider::from_environment()?.open("sflo")?;
    let domain = context.alloc_pd()?;
    let cq = context.create_cq(4 * DEPTH, None, 0)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = domain.alloc_mr(1 << 16, access)?;
    let queue_pair = domain.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(&cq),
        recv_cq: Arc::clone(&cq),
        srq: None,
        cap: QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 },
        sq_sig_all: false,
    })?;
    let path = AddressVector::new(1, 0, context.query_gid(1, 0)?);
    let mtu = context.query_port(1)?.active_mtu;
    let steps = [
        QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_WRITE),
        QpAttr::rtr(QpType::Rc, queue_pair.qp_num(), Psn::new(0), mtu, path),
        QpAttr::rts(QpType::Rc, Psn::new(0)),
    ];
    for (mut attr, mask) in steps {
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (20, 7, 7);
        queue_pair.modify(&attr, mask)?;
    }

    let size = if kind.contains("64") { 64 } else { 8 };
    let is_send = kind.contains("send");
    let sge = [Sge { addr: region.addr(), length: size, lkey: region.lkey() }];
    let into = [Sge { addr: region.addr() + 8192, length: 64, lkey: region.lkey() }];
    let bytes = [0; 64];
    let op =
        if is_send { SendOp::Send } else { SendOp::Write { remote_addr: region.addr() + 4096, rkey: region.rkey() } };
    let mut request = SendWr::new(0, op);
    if kind.contains("inline") {
        request.flags = SendFlags::INLINE;
        request.inline_data = &bytes[..size as usize];
    } else {
        request.sg_list = &sge;
    }
    let is_chain = kind.contains("chain");
    let signalled = if is_chain && kind.contains("ex-") { CHAIN } else { 1 };
    let mut chain = [request; CHAIN];
    chain[CHAIN - signalled..].iter_mut().for_each(|request| request.flags |= SendFlags::SIGNALED);
    let receive = RecvWr { wr_id: 0, sg_list: &into };

    let at_once = if kind.contains("ex-") { 1 } else { 16 };
    let mut a = Loop { queue_pair, cq, polls: 0, whole: kind.contains("wr-"), at_once };
    for n in [WARM, count] {
        a.polls = 0;
        if kind.contains("poll") {
            measured_poll(&mut a, n);
        } else if is_chain {
            measured_chain(&mut a, n, &chain, signalled);
        } else {
            measured_single(&mut a, n, &chain[CHAIN - 1], is_send.then_some(&receive));
        }
    }
    Ok(a.polls)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (kind, count) = (arguments.next(), arguments.next().and_then(|text| text.parse().ok()));
    let (Some(kind), Some(count)) = (kind, count) else {
        eprintln!("usage: door KIND COUNT");
        std::process::exit(2);
    };
    match run(&kind, count) {
        Ok(polls) => println!("{count} {polls}"),
        Err(error) => {
            eprintln!("door: {error}");
            std::process::exit(1);
        }
    }
}
