//! A first transfer: two queue pairs of this process, connected to each other over the loopback device, and one RDMA
//! WRITE from the memory of the one into the memory of the other.
//!
//! Run it with `cargo run --example first_transfer`. Two hosts differ in one thing only: they must tell each other what
//! `connect` needs (`sfab demo` does that over TCP).

use std::error::Error;
use std::sync::Arc;

use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::{
    AccessFlags, AddressVector, Context, Gid, MemoryRegion, Provider, Psn, QpAttrMask, QpCap, QpInit, QpState, QpType,
    QueuePair, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

fn main() -> Result<(), Box<dyn Error>> {
    // A device, and a protection domain on it: queue pairs reach only memory of their own domain.
    let provider = SoftwareProvider::from_environment()?;
    let context = provider.open("sflo")?;
    let domain = context.alloc_pd()?;
    let completions = context.create_cq(16, None, 0)?;

    // Two queue pairs, connected to each other.
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Arc::clone(&completions), Arc::clone(&completions));
    let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
    let (near, far) = (domain.create_qp(&init)?, domain.create_qp(&init)?);
    let gid = context.query_gid(1, 0)?;
    connect(&*context, &*near, &*far, gid)?;
    connect(&*context, &*far, &*near, gid)?;

    // Memory on both sides. The far side lets peers write.
    let source = domain.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
    let target = domain.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    source.write(0, b"hello, remote memory")?;
    write(&*near, &*source, &*target, 20)?;

    // The completion says that the bytes are there: the far side did nothing.
    let mut done = [WorkCompletion::default()];
    while completions.poll(&mut done)? == 0 {}
    assert_eq!(done[0].status, WcStatus::Success);
    let mut found = [0; 20];
    target.read(0, &mut found)?;
    println!("{}", String::from_utf8_lossy(&found));
    Ok(())
}

/// Posts one RDMA WRITE of `length` bytes.
fn write(
    queue_pair: &dyn QueuePair,
    source: &dyn MemoryRegion,
    target: &dyn MemoryRegion,
    length: u32,
) -> Result<(), Box<dyn Error>> {
    let sge = [Sge { addr: source.addr(), length, lkey: source.lkey() }];
    let mut request = SendWr::new(1, SendOp::Write { remote_addr: target.addr(), rkey: target.rkey() });
    request.flags = SendFlags::SIGNALED;
    request.sg_list = &sge;
    queue_pair.post_send(&[request])?;
    Ok(())
}

/// Takes a queue pair from RESET to RTS, connected to the peer's.
fn connect(context: &dyn Context, own: &dyn QueuePair, peer: &dyn QueuePair, gid: Gid) -> Result<(), Box<dyn Error>> {
    use QpAttrMask as Mask;
    let (mut attr, _) = own.query()?;
    attr.qp_state = QpState::Init;
    attr.port_num = 1;
    attr.qp_access_flags = AccessFlags::REMOTE_WRITE;
    own.modify(&attr, Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS)?;

    attr.qp_state = QpState::Rtr;
    attr.ah_attr = AddressVector {
        dgid: gid,
        sgid_index: 0,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        sl: 0,
        static_rate: 0,
        port_num: 1,
    };
    attr.path_mtu = context.query_port(1)?.active_mtu;
    attr.dest_qp_num = peer.qp_num();
    attr.rq_psn = Psn::new(100);
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    own.modify(
        &attr,
        Mask::STATE
            | Mask::AV
            | Mask::PATH_MTU
            | Mask::DEST_QPN
            | Mask::RQ_PSN
            | Mask::MAX_DEST_RD_ATOMIC
            | Mask::MIN_RNR_TIMER,
    )?;

    attr.qp_state = QpState::Rts;
    attr.sq_psn = Psn::new(100);
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    own.modify(
        &attr,
        Mask::STATE | Mask::SQ_PSN | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC,
    )?;
    Ok(())
}
