//! XRC: an initiator names the SRQ, a target belongs to the domain.

use std::sync::Arc;

use scalefabric_verbs::*;

use crate::node::*;

struct Xrc {
    w: World,
    qps: [Arc<dyn QueuePair>; 2],
    srqs: [Arc<dyn SharedReceiveQueue>; 2],
    cqs: [Arc<dyn CompletionQueue>; 2],
    xrcd: Arc<dyn XrcDomain>,
}

fn xrc() -> Xrc {
    let w = World::new(2);
    let node = &w.nodes[1];
    let xrcd = node.ctx.open_xrcd().unwrap();
    let cqs = [(); 2].map(|()| node.ctx.create_cq(16, None, 0).unwrap());
    let srqs = [0, 1].map(|i: usize| {
        let init = SrqInit { max_wr: 8, max_sge: 1, srq_limit: 0, xrc: Some((xrcd.clone(), cqs[i].clone())) };
        node.pd.create_srq(&init).unwrap()
    });
    let qps = [w.nodes[0].qp(QpType::XrcSend), node.ctx.create_xrc_target(&xrcd).unwrap()];
    w.connect_these(&qps, |_, _, _| {});
    Xrc { w, qps, srqs, cqs, xrcd }
}

fn send_to(x: &Xrc, wr_id: u64, op: SendOp<'_>, mr: &Arc<dyn MemoryRegion>, length: u32, srqn: Srqn) {
    let sg_list = [sge(mr, 0, length)];
    x.qps[0].post_send(&[SendWr { sg_list: &sg_list, xrc_srqn: Some(srqn), ..SendWr::new(wr_id, op) }]).unwrap();
}

// proves: object XRC shared receive queue; object XRC domain
#[test]
fn one_initiator_reaches_each_srq_of_the_domain() {
    let mut x = xrc();
    let (src, dst) = (x.w.nodes[0].mr(4096), x.w.nodes[1].mr(8192));
    src.write(0, &pattern(1, 4096)).unwrap();
    for (i, srq) in x.srqs.iter().enumerate() {
        srq.post_recv(&[RecvWr { wr_id: i as u64, sg_list: &[sge(&dst, 4096 * i, 4096)] }]).unwrap();
    }
    send_to(&x, 1, SendOp::Send, &src, 3000, x.srqs[1].srq_num());
    send_to(&x, 2, SendOp::SendWithImm { imm: 4 }, &src, 10, x.srqs[0].srq_num());
    x.w.settle();
    assert_eq!(outcome(&x.w.nodes[0].poll()), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let got = x.cqs.each_ref().map(poll);
    assert_eq!(outcome(&got[0]), [(0, WcStatus::Success)]);
    assert_eq!(outcome(&got[1]), [(1, WcStatus::Success)]);
    assert_eq!((got[0][0].imm, got[0][0].qp_num, got[1][0].byte_len), (4, x.qps[1].qp_num(), 3000));
    assert_eq!(read(&dst, 4096, 3000), pattern(1, 3000));
}

// proves: operation XRC_SEND rdma-write
#[test]
fn one_sided_operations_use_the_pd_of_the_srq() {
    let mut x = xrc();
    let (local, remote) = (x.w.nodes[0].mr(4096), x.w.nodes[1].mr(4096));
    local.write(0, &pattern(2, 100)).unwrap();
    let (remote_addr, rkey) = (remote.addr(), remote.rkey());
    let srqn = x.srqs[0].srq_num();
    send_to(&x, 1, SendOp::Write { remote_addr, rkey }, &local, 100, srqn);
    send_to(&x, 2, SendOp::FetchAdd { remote_addr: remote_addr + 1024, rkey, add: 3 }, &local, 8, srqn);
    x.w.settle();
    assert_eq!(outcome(&x.w.nodes[0].poll()), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(read(&remote, 0, 100), pattern(2, 100));
    assert_eq!(remote.load_u64(1024).unwrap(), 3);

    let foreign = x.w.nodes[1].ctx.alloc_pd().unwrap().alloc_mr(4096, ALL_ACCESS).unwrap();
    let op = SendOp::Write { remote_addr: foreign.addr(), rkey: foreign.rkey() };
    send_to(&x, 3, op, &local, 100, srqn);
    x.w.settle();
    assert_eq!(outcome(&x.w.nodes[0].poll()), [(3, WcStatus::RemAccessErr)]);
}

#[test]
fn an_srq_of_another_domain_is_out_of_reach() {
    let mut x = xrc();
    let node = &x.w.nodes[1];
    let other = node.ctx.open_xrcd().unwrap();
    let init = SrqInit { max_wr: 8, max_sge: 1, srq_limit: 0, xrc: Some((other, x.cqs[0].clone())) };
    let srq = node.pd.create_srq(&init).unwrap();
    let src = x.w.nodes[0].mr(64);
    send_to(&x, 1, SendOp::Send, &src, 8, srq.srq_num());
    x.w.settle();
    let done = x.w.nodes[0].poll();
    assert_eq!(done.len(), 1);
    assert!(matches!(done[0].status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr), "{done:?}");
}

#[test]
fn an_xrc_request_must_name_an_srq() {
    let x = xrc();
    let error = x.qps[0].post_send(&[SendWr::new(1, SendOp::Send)]).unwrap_err();
    assert_eq!((error.index, error.errno), (0, Errno::EINVAL));
}

#[test]
fn a_domain_in_use_is_busy() {
    let x = xrc();
    assert_eq!(x.xrcd.destroy().unwrap_err().errno, Errno::EBUSY);
    x.qps[1].destroy().unwrap();
    let Xrc { srqs, xrcd, qps, cqs, w } = x;
    drop((qps, srqs));
    xrcd.destroy().unwrap();
    drop((cqs, w));
}

#[test]
fn a_file_names_a_domain_within_the_process() {
    use std::os::fd::AsRawFd;
    let w = World::new(1);
    let (core, ctx) = (w.nodes[0].nic.core().clone(), &w.nodes[0].ctx);
    let other = scalefabric_nic::NicContext::new(&core).unwrap();
    let path = std::env::temp_dir().join(format!("scalefabric-xrcd-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let again = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let by = |file: &std::fs::File, create, exclusive| XrcdInit { fd: Some(file.as_raw_fd()), create, exclusive };
    assert_eq!(ctx.open_xrcd_with(&by(&file, false, false)).unwrap_err().errno, Errno::EAGAIN, "nobody made it");
    let first = ctx.open_xrcd_with(&by(&file, true, true)).unwrap();
    assert_eq!(other.open_xrcd_with(&by(&again, true, true)).unwrap_err().errno, Errno::EINVAL, "it is there");
    let second = other.open_xrcd_with(&by(&again, false, false)).unwrap();
    // A QP of one and a handle of it by the other: the same QP, the same domain.
    let qp = ctx.create_xrc_target(&first).unwrap();
    let opened = other.open_qp(&second, qp.qp_num()).unwrap();
    assert_eq!((opened.qp_num(), opened.qp_type()), (qp.qp_num(), QpType::XrcRecv));
    let (attr, mask) = QpAttr::init(QpType::XrcRecv, 1, AccessFlags::REMOTE_WRITE);
    opened.modify(&attr, mask).unwrap();
    assert_eq!(qp.query().unwrap().0.qp_state, QpState::Init);
    // A handle goes; QP and domain stay for the other.
    qp.destroy().unwrap();
    assert_eq!(qp.query().unwrap_err().errno, Errno::EINVAL);
    first.destroy().unwrap();
    assert_eq!(first.destroy().unwrap_err().errno, Errno::EINVAL, "a stale handle");
    assert_eq!(opened.query().unwrap().0.qp_state, QpState::Init);
    assert_eq!(second.destroy().unwrap_err().errno, Errno::EBUSY);
    let number = opened.qp_num();
    opened.destroy().unwrap();
    assert_eq!(other.open_qp(&second, number).unwrap_err().errno, Errno::EINVAL, "destroyed with its last handle");
    drop(opened);
    second.destroy().unwrap();
    // The name is free again.
    assert_eq!(ctx.open_xrcd_with(&by(&file, false, false)).unwrap_err().errno, Errno::EAGAIN);
    assert!(ctx.open_xrcd_with(&by(&file, true, true)).is_ok());
    assert_eq!(
        ctx.open_xrcd_with(&XrcdInit { fd: Some(99_999), ..XrcdInit::default() }).unwrap_err().errno,
        Errno::EBADF
    );
}

#[test]
fn a_target_is_opened_through_its_own_domain_and_tells_all_who_did() {
    let mut x = xrc();
    let number = x.qps[1].qp_num();
    let ctx = scalefabric_nic::NicContext::new(x.w.nodes[1].nic.core()).unwrap();
    let stranger = ctx.open_xrcd().unwrap();
    assert_eq!(ctx.open_qp(&stranger, number).unwrap_err().errno, Errno::EINVAL);
    let opened = ctx.open_qp(&x.xrcd, number).unwrap();
    // A WRITE with a bad key: QP_ACCESS_ERR for whoever has the QP open.
    let (src, srqn) = (x.w.nodes[0].mr(64), x.srqs[0].srq_num());
    send_to(&x, 1, SendOp::Write { remote_addr: 0, rkey: RKey(0x1234_5678) }, &src, 8, srqn);
    x.w.settle();
    let subject = EventSubject::QueuePair(number);
    let want = AsyncEvent { event_type: EventType::QpAccessErr, subject };
    assert!(x.w.nodes[1].events().contains(&want));
    let next = || ctx.get_async_event(Some(std::time::Duration::ZERO)).unwrap();
    let heard: Vec<_> = std::iter::from_fn(next).collect();
    assert!(heard.contains(&want), "{heard:?}");
    drop(opened);
    assert_eq!(x.qps[1].query().unwrap().0.qp_state, QpState::Err, "it lives for its maker");
}
