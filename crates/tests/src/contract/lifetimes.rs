//! Objects and what hangs on them: a parent that is in use is EBUSY, a handle keeps its parents alive, nothing is used after
//! it was destroyed.

use scalefabric_verbs::{Errno, Gid, MwType, QpInit, QpType, SendOp, SrqInit, VerbsError};

use super::bench::{ALL_RIGHTS, Bench, Shape, or_skip, refused};
use super::{Outcome, Stop, cases, ensure};

cases![
    a_protection_domain_is_busy_while_anything_is_made_of_it,
    a_completion_queue_is_busy_while_a_qp_uses_it,
    a_channel_is_busy_while_a_completion_queue_uses_it,
    a_shared_receive_queue_is_busy_while_a_qp_uses_it,
    an_xrc_domain_is_busy_while_a_queue_uses_it,
    a_qp_in_a_group_is_busy,
    what_was_destroyed_is_stale,
    a_handle_keeps_its_parents_alive,
];

/// Busy with a child, free without it.
fn busy(
    parent: &dyn Fn() -> Result<(), VerbsError>,
    child: &dyn Fn() -> Result<(), VerbsError>,
    what: &str,
) -> Outcome {
    refused(parent(), Errno::EBUSY, what)?;
    child()?;
    Ok(())
}

fn a_protection_domain_is_busy_while_anything_is_made_of_it(bench: &Bench) -> Outcome {
    let pd = bench.context.alloc_pd()?;
    let destroy = || pd.destroy();
    let mr = pd.alloc_mr(4096, ALL_RIGHTS)?;
    busy(&destroy, &|| mr.destroy(), "a domain with a region")?;
    let ah = pd.create_ah(&bench.way())?;
    busy(&destroy, &|| ah.destroy(), "a domain with an address handle")?;
    if let Ok(mw) = pd.alloc_mw(MwType::Type2) {
        busy(&destroy, &|| mw.destroy(), "a domain with a window")?;
    }
    if bench.attr.max_srq > 0 {
        let srq = pd.create_srq(&SrqInit { max_wr: 4, max_sge: 1, srq_limit: 0, xrc: None })?;
        busy(&destroy, &|| srq.destroy(), "a domain with a shared receive queue")?;
    }
    let shape = Shape { pd: Some(pd.clone()), ..Shape::new(QpType::Ud) };
    let end = bench.end(&shape)?;
    end.mr.destroy()?;
    busy(&destroy, &|| end.qp.destroy(), "a domain with a QP")?;
    pd.destroy()?;
    Ok(())
}

fn a_completion_queue_is_busy_while_a_qp_uses_it(bench: &Bench) -> Outcome {
    let end = bench.end(&Shape::new(QpType::Ud))?;
    busy(&|| end.cq.destroy(), &|| end.qp.destroy(), "a completion queue with a QP")?;
    end.cq.destroy()?;
    Ok(())
}

fn a_channel_is_busy_while_a_completion_queue_uses_it(bench: &Bench) -> Outcome {
    let channel = bench.context.create_comp_channel()?;
    ensure!(channel.fd() >= 0, "no descriptor");
    let cq = bench.context.create_cq(4, Some(channel.clone()), 0)?;
    busy(&|| channel.destroy(), &|| cq.destroy(), "a channel with a completion queue")?;
    channel.destroy()?;
    Ok(())
}

fn a_shared_receive_queue_is_busy_while_a_qp_uses_it(bench: &Bench) -> Outcome {
    if bench.attr.max_srq == 0 {
        return Err(Stop::Skip("the device has no shared receive queues".to_owned()));
    }
    let pd = bench.context.alloc_pd()?;
    let srq = pd.create_srq(&SrqInit { max_wr: 4, max_sge: 1, srq_limit: 0, xrc: None })?;
    let mut shape = Shape::new(QpType::Rc);
    (shape.pd, shape.srq) = (Some(pd), Some(srq.clone()));
    (shape.cap.max_recv_wr, shape.cap.max_recv_sge) = (0, 0);
    let end = bench.end(&shape)?;
    busy(&|| srq.destroy(), &|| end.qp.destroy(), "a shared receive queue with a QP")?;
    srq.destroy()?;
    Ok(())
}

fn an_xrc_domain_is_busy_while_a_queue_uses_it(bench: &Bench) -> Outcome {
    let xrcd = or_skip(bench.context.open_xrcd())?;
    let target = bench.context.create_xrc_target(&xrcd)?;
    busy(&|| xrcd.destroy(), &|| target.destroy(), "an XRC domain with a QP")?;
    xrcd.destroy()?;
    Ok(())
}

/// A group of the port's IP version that nobody else uses.
pub(super) fn group(bench: &Bench) -> Gid {
    let address = if bench.gid.is_ipv4() { "239.77.1.9" } else { "ff15::77:109" };
    Gid::from_ip(address.parse().expect("an address"))
}

fn a_qp_in_a_group_is_busy(bench: &Bench) -> Outcome {
    if bench.attr.max_mcast_grp == 0 {
        return Err(Stop::Skip("the device has no multicast (max_mcast_grp is 0)".to_owned()));
    }
    let end = bench.end(&Shape::new(QpType::Ud))?;
    bench.connect(&*end.qp, end.qp.qp_num(), super::bench::Path::default())?;
    let group = group(bench);
    or_skip(end.qp.attach_mcast(group))?;
    busy(&|| end.qp.destroy(), &|| end.qp.detach_mcast(group), "a QP in a group")?;
    refused(end.qp.detach_mcast(group), Errno::EINVAL, "leaving a group twice")?;
    end.qp.destroy()?;
    Ok(())
}

fn what_was_destroyed_is_stale(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    one.qp.destroy()?;
    refused(one.qp.destroy(), Errno::EINVAL, "destroying a QP twice")?;
    refused(one.qp.query(), Errno::EINVAL, "asking a QP that was destroyed")?;
    let posted = one.qp.post_send(&[scalefabric_verbs::SendWr::new(1, SendOp::Send)]);
    ensure!(posted.is_err_and(|error| error.errno == Errno::EINVAL), "posting to a QP that was destroyed");
    one.cq.destroy()?;
    refused(one.cq.destroy(), Errno::EINVAL, "destroying a completion queue twice")?;
    one.mr.destroy()?;
    refused(one.mr.destroy(), Errno::EINVAL, "destroying a region twice")?;
    one.pd.destroy()?;
    refused(one.pd.alloc_mr(64, ALL_RIGHTS), Errno::EINVAL, "making a region of a domain that was destroyed")?;
    drop(other);
    Ok(())
}

fn a_handle_keeps_its_parents_alive(bench: &Bench) -> Outcome {
    let (qp, mr);
    {
        let context = bench.provider.open(&bench.name())?;
        let pd = context.alloc_pd()?;
        let queue = context.create_cq(16, None, 0)?;
        let shape = Shape::new(QpType::Rc);
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: queue.clone(),
            recv_cq: queue.clone(),
            srq: None,
            cap: shape.cap,
            sq_sig_all: true,
        };
        qp = pd.create_qp(&init)?;
        mr = pd.alloc_mr(4096, ALL_RIGHTS)?;
    }
    bench.connect(&*qp, qp.qp_num(), super::bench::Path::default())?;
    mr.write(0, b"still here")?;
    drop(mr);
    qp.destroy()?;
    Ok(())
}
