//! Many threads on one NIC whose callers drive it: objects come and go while others work, numbers are used again, and no
//! byte of one thread is seen by another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scalefabric_nic::port::Port;
use scalefabric_nic::port::memory::MemoryWire;
use scalefabric_nic::{Core, CountersHandle, NicConfig, NicContext, PortConfig, PortCounters};
use scalefabric_verbs::*;

use crate::node::*;

fn nic() -> Arc<dyn Context> {
    let wire = MemoryWire::new();
    let config = NicConfig::new("threads", vec![PortConfig::new("wire", vec![gid(1)])]);
    let ports = vec![Box::new(wire.port(&[ip(1, 1)])) as Box<dyn Port>];
    let counters = vec![Arc::new(PortCounters::default()) as CountersHandle];
    let core = Core::new(config, ports, counters).unwrap();
    NicContext::new(&core).unwrap()
}

/// Two QPs of one thread, connected to each other.
fn pair(pd: &Arc<dyn ProtectionDomain>, cq: &Arc<dyn CompletionQueue>) -> [Arc<dyn QueuePair>; 2] {
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
        sq_sig_all: true,
    };
    let qps = [pd.create_qp(&init).unwrap(), pd.create_qp(&init).unwrap()];
    for (me, peer) in [(&qps[0], &qps[1]), (&qps[1], &qps[0])] {
        let rtr = QpAttr::rtr(QpType::Rc, peer.qp_num(), Psn::new(0), Mtu::Mtu1024, AddressVector::new(1, 0, gid(1)));
        for (attr, mask) in [QpAttr::init(QpType::Rc, 1, ALL_ACCESS), rtr, QpAttr::rts(QpType::Rc, Psn::new(0))] {
            me.modify(&attr, mask).unwrap();
        }
    }
    qps
}

/// Polls until `count` completions came, all good.
fn take(cq: &Arc<dyn CompletionQueue>, count: usize) -> Vec<u64> {
    let mut got = Vec::new();
    let mut out = [blank(); 8];
    // A lost wake-up would hang: the poll below drives, so a bound in rounds is a bound in work.
    for _ in 0..10_000_000u64 {
        let n = cq.poll(&mut out).unwrap();
        for wc in &out[..n] {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            got.push(wc.wr_id);
        }
        if got.len() >= count {
            return got;
        }
        if n == 0 {
            std::thread::yield_now();
        }
    }
    panic!("{} of {count} completions came", got.len());
}

fn life(ctx: &Arc<dyn Context>, pd: &Arc<dyn ProtectionDomain>, seed: u8) {
    let cq = ctx.create_cq(64, None, 0).unwrap();
    let [a, b] = pair(pd, &cq);
    let (src, dst) = (pd.alloc_mr(8192, ALL_ACCESS).unwrap(), pd.alloc_mr(8192, ALL_ACCESS).unwrap());
    let bytes = pattern(seed, 8192);
    src.write(0, &bytes).unwrap();
    for round in 0..4 {
        recv(&b, 100, &dst, 0, 8192);
        send(&a, 1, SendOp::Send, &src, 0, 5000 + round);
        send(&a, 2, SendOp::Write { remote_addr: dst.addr() + 6000, rkey: dst.rkey() }, &src, 6000, 2192);
        let mut got = take(&cq, 3);
        got.sort_unstable();
        assert_eq!(got, [1, 2, 100]);
        assert_eq!(read(&dst, 0, 5000 + round as usize), bytes[..5000 + round as usize]);
        assert_eq!(read(&dst, 6000, 2192), bytes[6000..]);
        dst.write(0, &[0; 8192]).unwrap();
    }
    // By turns destroyed and dropped, with work still in the queues.
    recv(&b, 100, &dst, 0, 8192);
    if seed.is_multiple_of(2) {
        a.destroy().unwrap();
        dst.destroy().unwrap();
        b.destroy().unwrap();
        cq.destroy().unwrap();
    }
}

#[test]
fn threads_make_use_and_end_objects_side_by_side() {
    let ctx = nic();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let ctx = &ctx;
            scope.spawn(move || {
                let pd = ctx.alloc_pd().unwrap();
                for round in 0..40u8 {
                    life(ctx, &pd, thread.wrapping_mul(64) + round);
                }
                pd.destroy().unwrap();
            });
        }
    });
}

#[test]
fn destroying_twice_at_once_ends_one_object_and_no_other() {
    let ctx = nic();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(64, None, 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Somebody else's objects take the numbers that become free at once, and must stay.
        let other = scope.spawn(|| {
            let pd = ctx.alloc_pd().unwrap();
            while !stop.load(Ordering::SeqCst) {
                life(&ctx, &pd, 1);
            }
        });
        for _ in 0..200 {
            let [a, b] = pair(&pd, &cq);
            let results = std::thread::scope(|both| {
                let first = both.spawn(|| a.destroy().is_ok());
                let second = both.spawn(|| a.destroy().is_ok());
                [first.join().unwrap(), second.join().unwrap()]
            });
            assert_eq!(results.iter().filter(|&&ok| ok).count(), 1);
            b.destroy().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        other.join().unwrap();
    });
}
