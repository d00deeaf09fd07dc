//! States of a QP: the way up and down, what each transition needs, what may be posted where.

use scalefabric_verbs::state::transition;
use scalefabric_verbs::{
    Errno, Mtu, PostError, QpAttr, QpAttrMask, QpState, QpType, Qpn, QueuePair, RecvWr, SendOp, SendWr, VerbsError,
};

use super::bench::{Bench, Path, Shape, refused};
use super::{Outcome, Stop, cases, ensure, same};

cases![
    a_qp_goes_through_its_states,
    a_transition_without_a_required_attribute_is_refused_and_changes_nothing,
    a_transition_that_does_not_exist_is_refused,
    values_beyond_the_port_are_refused_and_named,
    a_pkey_beyond_the_table_is_refused,
    a_path_mtu_above_the_ports_is_refused,
    attributes_read_back_as_they_were_set,
    sends_are_refused_before_rts,
    receives_are_refused_in_reset,
    a_qp_drains_and_goes_on,
];

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// Does it for each type that the device has.
fn for_each_type(bench: &Bench, test: impl Fn(QpType, &dyn QueuePair) -> Outcome) -> Outcome {
    let mut tested = 0;
    for qp_type in TYPES {
        match bench.end(&Shape::new(qp_type)) {
            Ok(end) => {
                test(qp_type, &*end.qp).map_err(|stop| match stop {
                    Stop::Fail(words) => Stop::Fail(format!("{qp_type}: {words}")),
                    skip => skip,
                })?;
                tested += 1;
            }
            Err(Stop::Skip(_)) => {}
            Err(fail) => return Err(fail),
        }
    }
    ensure!(tested > 0, "the device has no type of QP");
    Ok(())
}

fn a_qp_goes_through_its_states(bench: &Bench) -> Outcome {
    for_each_type(bench, |qp_type, qp| {
        same!(qp.query()?.0.qp_state, QpState::Reset, "the first state");
        let steps = bench.steps(qp_type, qp.qp_num(), Path::default());
        for ((attr, mask), state) in steps.iter().zip([QpState::Init, QpState::Rtr, QpState::Rts]) {
            qp.modify(attr, *mask)?;
            same!(qp.query()?.0.qp_state, state, "the state");
        }
        let (attr, mask) = QpAttr::error();
        qp.modify(&attr, mask)?;
        same!(qp.query()?.0.qp_state, QpState::Err, "the state");
        let (attr, mask) = QpAttr::reset();
        qp.modify(&attr, mask)?;
        same!(qp.query()?.0.qp_state, QpState::Reset, "the state");
        // And once more from the beginning.
        bench.connect(qp, qp.qp_num(), Path::default())?;
        Ok(())
    })
}

fn a_transition_without_a_required_attribute_is_refused_and_changes_nothing(bench: &Bench) -> Outcome {
    for_each_type(bench, |qp_type, qp| {
        let from = [QpState::Reset, QpState::Init, QpState::Rtr];
        let to = [QpState::Init, QpState::Rtr, QpState::Rts];
        let steps = bench.steps(qp_type, qp.qp_num(), Path::default());
        for (index, (attr, mask)) in steps.iter().enumerate() {
            let row = transition(qp_type, from[index], to[index]).expect("a row of the table");
            for (name, bit) in row.required.iter_names() {
                let error = refused(qp.modify(attr, mask.difference(bit)), Errno::EINVAL, name)?;
                ensure!(error.message.contains(name), "`{}` does not name {name}", error.message);
                same!(qp.query()?.0.qp_state, from[index], "the state after a refusal");
            }
            qp.modify(attr, *mask)?;
        }
        Ok(())
    })
}

fn a_transition_that_does_not_exist_is_refused(bench: &Bench) -> Outcome {
    for_each_type(bench, |qp_type, qp| {
        let steps = bench.steps(qp_type, qp.qp_num(), Path::default());
        let (rts, mask) = &steps[2];
        let error = refused(qp.modify(rts, *mask), Errno::EINVAL, "RESET to RTS")?;
        ensure!(error.message.contains("RTS"), "`{}` does not name the transition", error.message);
        same!(qp.query()?.0.qp_state, QpState::Reset, "the state after a refusal");
        Ok(())
    })
}

fn values_beyond_the_port_are_refused_and_named(bench: &Bench) -> Outcome {
    let fresh = || -> Result<_, Stop> {
        let end = bench.end(&Shape::new(QpType::Rc))?;
        let [(init, mask), rtr, _] = bench.steps(QpType::Rc, end.qp.qp_num(), Path::default());
        Ok((end, init, mask, rtr))
    };
    let (end, mut init, mask, _) = fresh()?;
    init.port_num = bench.attr.phys_port_cnt + 1;
    let error = refused(end.qp.modify(&init, mask), Errno::EINVAL, "a port that does not exist")?;
    ensure!(error.message.contains("port_num"), "`{}` does not name port_num", error.message);
    let (end, init, mask, (mut rtr, rtr_mask)) = fresh()?;
    end.qp.modify(&init, mask)?;
    let Ok(beyond) = u8::try_from(bench.port.gid_tbl_len) else { return Ok(()) };
    rtr.ah_attr.sgid_index = beyond;
    let error = refused(end.qp.modify(&rtr, rtr_mask), Errno::EINVAL, "a GID beyond the table")?;
    ensure!(error.message.contains("sgid_index"), "`{}` does not name sgid_index", error.message);
    Ok(())
}

fn a_pkey_beyond_the_table_is_refused(bench: &Bench) -> Outcome {
    let end = bench.end(&Shape::new(QpType::Rc))?;
    let [(mut init, mask), ..] = bench.steps(QpType::Rc, end.qp.qp_num(), Path::default());
    init.pkey_index = bench.port.pkey_tbl_len;
    let error = refused(end.qp.modify(&init, mask), Errno::EINVAL, "a P_Key beyond the table")?;
    ensure!(error.message.contains("pkey_index"), "`{}` does not name pkey_index", error.message);
    Ok(())
}

fn a_path_mtu_above_the_ports_is_refused(bench: &Bench) -> Outcome {
    if bench.port.active_mtu == Mtu::Mtu4096 {
        return Err(Stop::Skip("the port has the largest MTU: none is above it".to_owned()));
    }
    let end = bench.end(&Shape::new(QpType::Rc))?;
    let [(init, mask), (mut rtr, rtr_mask), _] = bench.steps(QpType::Rc, end.qp.qp_num(), Path::default());
    end.qp.modify(&init, mask)?;
    rtr.path_mtu = Mtu::Mtu4096;
    let error = refused(end.qp.modify(&rtr, rtr_mask), Errno::EINVAL, "a path MTU above the port's")?;
    ensure!(error.message.contains("path_mtu"), "`{}` does not name path_mtu", error.message);
    Ok(())
}

fn attributes_read_back_as_they_were_set(bench: &Bench) -> Outcome {
    let end = bench.end(&Shape::new(QpType::Rc))?;
    bench.connect(&*end.qp, end.qp.qp_num(), Path { timeout: 15, retry_cnt: 5, rnr_retry: 3, ..Path::default() })?;
    let (attr, info) = end.qp.query()?;
    same!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (15, 5, 3), "timeout and retries");
    same!(attr.dest_qp_num, end.qp.qp_num(), "the peer");
    same!(attr.path_mtu, bench.port.active_mtu, "the path MTU");
    same!(attr.port_num, bench.port_num, "the port");
    same!(attr.ah_attr.dgid, bench.gid, "the destination");
    same!(attr.ah_attr.sgid_index, bench.gid_index, "the source");
    same!(info.qp_type, QpType::Rc, "the type");
    ensure!(info.cap.max_send_wr >= 64 && info.cap.max_recv_sge >= 3, "less than asked for: {:?}", info.cap);
    Ok(())
}

fn must_refuse(posted: Result<(), PostError>, state: QpState) -> Outcome {
    match posted {
        Ok(()) => Err(Stop::Fail(format!("posting is accepted in {state}"))),
        Err(error) => {
            same!((error.index, error.errno), (0, Errno::EINVAL), format!("the error in {state}"));
            Ok(())
        }
    }
}

fn sends_are_refused_before_rts(bench: &Bench) -> Outcome {
    let end = bench.end(&Shape::new(QpType::Rc))?;
    let wr = [SendWr::new(1, SendOp::Send)];
    let states = [QpState::Reset, QpState::Init, QpState::Rtr];
    for ((attr, mask), state) in bench.steps(QpType::Rc, end.qp.qp_num(), Path::default()).iter().zip(states) {
        must_refuse(end.qp.post_send(&wr), state)?;
        end.qp.modify(attr, *mask)?;
    }
    end.nothing()
}

fn receives_are_refused_in_reset(bench: &Bench) -> Outcome {
    let end = bench.end(&Shape::new(QpType::Rc))?;
    must_refuse(end.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]), QpState::Reset)?;
    let [(attr, mask), ..] = bench.steps(QpType::Rc, Qpn::new(0), Path::default());
    end.qp.modify(&attr, mask)?;
    end.receive(2, 0, 64)
}

fn a_qp_drains_and_goes_on(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    other.receive(1, 0, 64)?;
    let (attr, mask) = QpAttr::sqd(false);
    let drained: Result<(), VerbsError> = one.qp.modify(&attr, mask);
    super::bench::or_skip(drained)?;
    // Queued, and not begun.
    one.send(2, SendOp::Send, &[one.sge(0, 8)])?;
    other.nothing()?;
    let (attr, mask) = QpAttr::resume();
    one.qp.modify(&attr, mask | QpAttrMask::empty())?;
    one.good(2)?;
    other.good(1)?;
    Ok(())
}
