//! The data path allocates nothing in steady state: a counting allocator watches posts, turns and polls of a pair of NICs
//! that have warmed up. One test in its own program, since the allocator counts for all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use scalefabric_nic::port::Port;
use scalefabric_nic::port::memory::MemoryWire;
use scalefabric_nic::{ManualNic, NicConfig, PortConfig};
use scalefabric_transport::Time;
use scalefabric_verbs::*;

struct Counting;

static WATCHED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn note() {
    if WATCHED.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Side {
    nic: ManualNic,
    cq: Arc<dyn CompletionQueue>,
    qps: Vec<Arc<dyn QueuePair>>,
    mr: Arc<dyn MemoryRegion>,
    ah: Arc<dyn AddressHandle>,
}

fn ip(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

fn sides() -> [Side; 2] {
    let wire = MemoryWire::new();
    let sides = [1, 2].map(|n| {
        let config = NicConfig::new("sim", vec![PortConfig::new("wire", vec![Gid::from_ip(ip(n))])]);
        let port: Box<dyn Port> = Box::new(wire.port(&[ip(n)]));
        let nic = ManualNic::new(config, vec![port], 1).unwrap();
        let ctx = nic.context();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(256, None, 0).unwrap();
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC;
        let mr = pd.alloc_mr(1 << 20, access).unwrap();
        let ah = pd.create_ah(&AddressVector::new(1, 0, Gid::from_ip(ip(3 - n)))).unwrap();
        let qps = TYPES.map(|qp_type| {
            pd.create_qp(&QpInit {
                qp_type,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 32 },
                sq_sig_all: true,
            })
            .unwrap()
        });
        Side { nic, cq, qps: qps.to_vec(), mr, ah }
    });
    for n in 0..2 {
        for (i, qp_type) in TYPES.into_iter().enumerate() {
            let (me, peer) = (&sides[n].qps[i], &sides[1 - n].qps[i]);
            let steps = match qp_type {
                QpType::Ud => [QpAttr::init_ud(1, QKey(7)), QpAttr::rtr_ud(), QpAttr::rts(QpType::Ud, Psn::new(0))],
                _ => {
                    let av = AddressVector::new(1, 0, Gid::from_ip(ip(2 - n as u8)));
                    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
                    [
                        QpAttr::init(qp_type, 1, access),
                        QpAttr::rtr(qp_type, peer.qp_num(), Psn::new(0), Mtu::Mtu1024, av),
                        QpAttr::rts(qp_type, Psn::new(0)),
                    ]
                }
            };
            for (mut attr, mask) in steps {
                (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (4, 4);
                me.modify(&attr, mask).unwrap();
            }
        }
    }
    sides
}

/// One round of every operation, each way, with messages of one and of many packets; returns its completions.
fn round(sides: &[Side; 2], now: &mut u64, out: &mut [WorkCompletion]) -> usize {
    for n in 0..2 {
        let (me, peer) = (&sides[n], &sides[1 - n]);
        let lkey = me.mr.lkey();
        let (remote_addr, rkey) = (peer.mr.addr() + (512 << 10), peer.mr.rkey());
        for (i, qp) in peer.qps.iter().enumerate() {
            let sg_list = [Sge { addr: peer.mr.addr() + ((i as u64) << 15), length: 32_000, lkey: peer.mr.lkey() }];
            let wr = RecvWr { wr_id: 0, sg_list: &sg_list };
            qp.post_recv(&[wr, wr]).unwrap();
        }
        for length in [8, 20_000] {
            let sg_list = [Sge { addr: me.mr.addr() + (256 << 10), length, lkey }];
            let eight = [Sge { length: 8, ..sg_list[0] }];
            let wr = |op| SendWr { sg_list: &sg_list, ..SendWr::new(1, op) };
            let add = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
            me.qps[0]
                .post_send(&[
                    wr(SendOp::Send),
                    wr(SendOp::Write { remote_addr, rkey }),
                    wr(SendOp::Read { remote_addr, rkey }),
                    SendWr { sg_list: &eight, ..SendWr::new(1, add) },
                ])
                .unwrap();
            me.qps[1].post_send(&[wr(SendOp::Send), wr(SendOp::Write { remote_addr, rkey })]).unwrap();
            let ud = UdAddress { ah: &*me.ah, remote_qpn: peer.qps[2].qp_num(), remote_qkey: QKey(7) };
            let datagram = SendWr { sg_list: &eight, ud: Some(ud), ..SendWr::new(1, SendOp::Send) };
            me.qps[2].post_send(&[datagram]).unwrap();
        }
    }
    let mut done = 0;
    for _ in 0..200 {
        *now += 1_000;
        for side in sides {
            side.nic.turn(Time(*now));
            let count = side.cq.poll(out).unwrap();
            assert!(out[..count].iter().all(|wc| wc.status == WcStatus::Success));
            done += count;
        }
        if done == 2 * (14 + 6) {
            break;
        }
    }
    done
}

#[test]
fn posting_turning_and_polling_allocate_nothing_once_warm() {
    let sides = sides();
    let blank = WorkCompletion {
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
    };
    let mut out = [blank; 64];
    let mut now = 1_000_000;
    for _ in 0..20 {
        assert_eq!(round(&sides, &mut now, &mut out), 40);
    }
    WATCHED.store(true, Ordering::Relaxed);
    // A twin that can fail: the watch sees a single boxed byte.
    drop(std::hint::black_box(Box::new(std::hint::black_box(1u8))));
    let seen = CALLS.swap(0, Ordering::Relaxed);
    let mut all = 0;
    for _ in 0..50 {
        all += round(&sides, &mut now, &mut out);
    }
    WATCHED.store(false, Ordering::Relaxed);
    assert_eq!((seen, all), (1, 50 * 40));
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "allocations in steady state");
}
