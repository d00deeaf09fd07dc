//! Cost of a packet in the engine, both sides and a wire in memory together: `cargo run --release --example turn_cost`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use scalefabric_nic::port::Port;
use scalefabric_nic::port::memory::MemoryWire;
use scalefabric_nic::{ManualNic, NicConfig, PortConfig};
use scalefabric_transport::{Counter, Time};
use scalefabric_verbs::*;

fn ip(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

struct Side {
    nic: ManualNic,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    mr: Arc<dyn MemoryRegion>,
}

fn pair() -> [Side; 2] {
    let wire = MemoryWire::new();
    let sides = [1, 2].map(|n| {
        let config = NicConfig::new("sim", vec![PortConfig::new("wire", vec![Gid::from_ip(ip(n))])]);
        let port: Box<dyn Port> = Box::new(wire.port(&[ip(n)]));
        let nic = ManualNic::new(config, vec![port], 1).unwrap();
        let ctx = nic.context();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(1024, None, 0).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let mr = pd.alloc_mr(1 << 20, access).unwrap();
        let qp = pd
            .create_qp(&QpInit {
                qp_type: QpType::Rc,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                cap: QpCap { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
                sq_sig_all: true,
            })
            .unwrap();
        Side { nic, cq, qp, mr }
    });
    for n in 0..2 {
        let av = AddressVector::new(1, 0, Gid::from_ip(ip(2 - n as u8)));
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        for (attr, mask) in [
            QpAttr::init(QpType::Rc, 1, access),
            QpAttr::rtr(QpType::Rc, sides[1 - n].qp.qp_num(), Psn::new(0), Mtu::Mtu4096, av),
            QpAttr::rts(QpType::Rc, Psn::new(0)),
        ] {
            sides[n].qp.modify(&attr, mask).unwrap();
        }
    }
    sides
}

fn run(name: &str, length: u32, batch: usize, rounds: usize, read: bool) {
    let [a, b] = pair();
    let sg_list = [Sge { addr: a.mr.addr(), length, lkey: a.mr.lkey() }];
    let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
    let op = if read { SendOp::Read { remote_addr, rkey } } else { SendOp::Write { remote_addr, rkey } };
    let chain = vec![SendWr { sg_list: &sg_list, ..SendWr::new(1, op) }; batch];
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
    };
    let mut out = vec![blank; 128];
    let (mut now, mut spent) = (0, [0u128; 4]);
    for _ in 0..rounds {
        let t = Instant::now();
        a.qp.post_send(&chain).unwrap();
        spent[0] += t.elapsed().as_nanos();
        let mut done = 0;
        while done < batch {
            now += 1000;
            let t = Instant::now();
            a.nic.turn(Time(now));
            spent[1] += t.elapsed().as_nanos();
            let t = Instant::now();
            b.nic.turn(Time(now));
            spent[2] += t.elapsed().as_nanos();
            let t = Instant::now();
            let count = a.cq.poll(&mut out).unwrap();
            assert!(out[..count].iter().all(|wc| wc.status == WcStatus::Success));
            done += count;
            spent[3] += t.elapsed().as_nanos();
        }
    }
    let packets = if read { &b } else { &a }.nic.counters(1).counter(Counter::SentPackets) as u128;
    let ops = (batch * rounds) as u128;
    println!(
        "{name:24} post {:4} ns/op, poll {:4} ns/op, requester {:5} ns/packet, responder {:5} ns/packet",
        spent[0] / ops,
        spent[3] / ops,
        spent[1] / packets,
        spent[2] / packets,
    );
}

fn main() {
    let rounds = |n: usize| std::env::args().nth(2).and_then(|d| d.parse::<usize>().ok()).map_or(n, |d| n / d);
    let only = std::env::args().nth(1);
    for (name, length, batch, count, read) in [
        ("write8x64", 8, 64, 4000, false),
        ("write8x1", 8, 1, 40_000, false),
        ("write64k", 65_536, 1, 3000, false),
        ("write1m", 1 << 20, 1, 300, false),
        ("read8x16", 8, 16, 4000, true),
        ("read1m", 1 << 20, 1, 300, true),
    ] {
        if only.as_deref().is_none_or(|o| o == name) {
            run(name, length, batch, rounds(count), read);
        }
    }
}
