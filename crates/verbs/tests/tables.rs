//! Snapshots of every table of the contract, so that a change of one row is seen in review, and what must hold for all
//! rows. A changed table is accepted with `UPDATE_SNAPSHOTS=1 cargo test -p scalefabric-verbs`.

use std::fmt::Write as _;
use std::path::PathBuf;

use proptest::prelude::*;
use scalefabric_verbs::event::EVENTS;
use scalefabric_verbs::operation::OPERATIONS;
use scalefabric_verbs::state::{STATES, TRANSITIONS, transition};
use scalefabric_verbs::work_completion::{Produced, STATUSES};
use scalefabric_verbs::*;

/// Compares `text` with the stored snapshot `name`.
fn snapshot(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("the snapshot can be written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (old, new)) in stored.lines().zip(text.lines()).enumerate() {
        assert_eq!(old, new, "{}:{}: the table differs from its snapshot", path.display(), number + 1);
    }
    assert_eq!(stored.lines().count(), text.lines().count(), "{}: the table grew or shrank", path.display());
}

fn names(mask: QpAttrMask) -> String {
    mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

#[test]
fn transitions_are_those_of_the_snapshot() {
    let mut text = String::new();
    for row in TRANSITIONS {
        writeln!(text, "{row}: required [{}] optional [{}]", names(row.required), names(row.optional)).unwrap();
    }
    snapshot("transitions.txt", &text);
}

#[test]
fn states_are_those_of_the_snapshot() {
    let mut text = String::new();
    for row in STATES {
        writeln!(
            text,
            "{}: post_send {:?}, post_recv {:?}, receives {}, sends {}",
            row.state, row.post_send, row.post_recv, row.receives, row.sends
        )
        .unwrap();
    }
    snapshot("states.txt", &text);
}

#[test]
fn operations_are_those_of_the_snapshot() {
    let mut text = String::new();
    for row in OPERATIONS {
        let types: Vec<_> = row.types.iter().map(|t| t.as_str()).collect();
        writeln!(
            text,
            "{} {}: {} sgl {:?} fixed_length {:?} remote {} consumes_receive {} rd_atomic {} local {} completes as {}",
            row.kind as u32,
            row.name,
            types.join(" "),
            row.sgl,
            row.fixed_length,
            row.remote,
            row.consumes_receive,
            row.rd_atomic,
            row.local,
            row.completes_as
        )
        .unwrap();
    }
    snapshot("operations.txt", &text);
}

#[test]
fn statuses_are_those_of_the_snapshot() {
    let mut text = String::new();
    for row in STATUSES {
        writeln!(text, "{} {} \"{}\" {:?}", row.status.to_raw(), row.name, row.text, row.produced).unwrap();
    }
    snapshot("statuses.txt", &text);
}

#[test]
fn events_are_those_of_the_snapshot() {
    let mut text = String::new();
    for row in EVENTS {
        writeln!(text, "{} {} \"{}\" {:?}", row.event_type.to_raw(), row.name, row.text, row.produced).unwrap();
    }
    snapshot("events.txt", &text);
}

/// Texts that programs compare and scripts grep for: those of libibverbs, one by one.
#[test]
fn status_texts_are_those_of_libibverbs() {
    let texts = [
        "success",
        "local length error",
        "local QP operation error",
        "local EE context operation error",
        "local protection error",
        "Work Request Flushed Error",
        "memory management operation error",
        "bad response error",
        "local access error",
        "remote invalid request error",
        "remote access error",
        "remote operation error",
        "transport retry counter exceeded",
        "RNR retry counter exceeded",
        "local RDD violation error",
        "remote invalid RD request",
        "aborted error",
        "invalid EE context number",
        "invalid EE context state",
        "fatal error",
        "response timeout error",
        "general error",
        "TM error",
        "TM software rendezvous",
    ];
    assert_eq!(texts.len(), 24);
    for (raw, text) in texts.into_iter().enumerate() {
        let status = WcStatus::from_raw(raw as u32).unwrap();
        assert_eq!((status.to_raw(), status.as_str()), (raw as u32, text));
    }
    assert_eq!(WcStatus::from_raw(24), None);
}

#[test]
fn numbers_of_the_tables_are_their_places() {
    for (place, row) in STATUSES.iter().enumerate() {
        assert_eq!(row.status as usize, place);
        assert!(!row.cause.is_empty() && !row.look_at.is_empty());
    }
    for (place, row) in EVENTS.iter().enumerate() {
        assert_eq!(row.event_type as usize, place);
        assert!(!row.cause.is_empty() && !row.remedy.is_empty());
    }
    for (place, row) in STATES.iter().enumerate() {
        assert_eq!(row.state as usize, place);
    }
    for row in OPERATIONS {
        assert_eq!(row.kind.rule().kind, row.kind);
        assert_eq!(OpKind::from_raw(row.kind as u32), Some(row.kind));
    }
    for opcode in WcOpcode::ALL {
        assert_eq!(WcOpcode::from_raw(opcode.to_raw()), Some(opcode));
    }
    assert_eq!(OpKind::from_raw(10), None, "TSO is not RDMA");
    assert_eq!(WcOpcode::from_raw(7), None, "TSO is not RDMA");
}

#[test]
fn statuses_of_reliable_datagram_and_tag_matching_are_not_produced() {
    let not: Vec<_> = STATUSES.iter().filter(|row| row.produced != Produced::Yes).map(|row| row.name).collect();
    assert_eq!(
        not,
        [
            "LOC_EEC_OP_ERR",
            "LOC_RDD_VIOL_ERR",
            "REM_INV_RD_REQ_ERR",
            "REM_ABORT_ERR",
            "INV_EECN_ERR",
            "INV_EEC_STATE_ERR",
            "RESP_TIMEOUT_ERR",
            "GENERAL_ERR",
            "TM_ERR",
            "TM_RNDV_INCOMPLETE"
        ]
    );
}

#[test]
fn no_transition_stands_twice_and_no_attribute_is_both_required_and_optional() {
    for (place, row) in TRANSITIONS.iter().enumerate() {
        assert!(
            !TRANSITIONS[..place].iter().any(|r| (r.qp_type, r.from, r.to) == (row.qp_type, row.from, row.to)),
            "{row}"
        );
        assert!((row.required & row.optional).is_empty(), "{row}");
        assert!(!(row.required | row.optional).contains(QpAttrMask::STATE), "{row}");
    }
}

#[test]
fn every_state_leads_to_reset_and_to_err() {
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            let reachable = from != QpState::Sqe || !qp_type.is_reliable();
            for to in [QpState::Reset, QpState::Err] {
                assert_eq!(transition(qp_type, from, to).is_some(), reachable, "{qp_type} {from} -> {to}");
                if reachable {
                    assert!(check_transition(qp_type, from, to, QpAttrMask::STATE).is_ok());
                }
            }
        }
    }
}

/// Every pair of states that the table does not have is refused, and the message says where one can go.
#[test]
fn transitions_that_do_not_exist_are_refused_by_name() {
    let mut refused = 0;
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                if transition(qp_type, from, to).is_none() {
                    let error = check_transition(qp_type, from, to, QpAttrMask::STATE).unwrap_err();
                    assert_eq!(error.errno, Errno::EINVAL);
                    assert!(error.message.contains(from.as_str()), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(refused + TRANSITIONS.len(), 5 * 7 * 7);
}

#[test]
fn a_wrong_belief_about_the_state_is_refused() {
    let attr = QpAttr { qp_state: QpState::Rts, cur_qp_state: QpState::Rts, ..QpAttr::default() };
    let mask = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
    assert_eq!(check_modify(QpType::Ud, QpState::Rts, &attr, mask), Ok(QpState::Rts));
    let error = check_modify(QpType::Ud, QpState::Sqe, &attr, mask).unwrap_err();
    assert!(error.message.contains("CUR_STATE says RTS, but the QP is in SQE"), "{error}");
    let attr = QpAttr { cur_qp_state: QpState::Sqe, ..attr };
    assert_eq!(check_modify(QpType::Ud, QpState::Sqe, &attr, mask), Ok(QpState::Rts));
}

#[test]
fn attributes_without_state_stay_in_the_state() {
    let attr = QpAttr { qp_state: QpState::Err, min_rnr_timer: 5, ..QpAttr::default() };
    assert_eq!(check_modify(QpType::Rc, QpState::Rts, &attr, QpAttrMask::MIN_RNR_TIMER), Ok(QpState::Rts));
    let error = check_modify(QpType::Rc, QpState::Rtr, &attr, QpAttrMask::MIN_RNR_TIMER).unwrap_err();
    assert!(error.message.contains("RTR"), "{error}");
}

#[test]
fn ready_made_attributes_pass_their_own_table() {
    for qp_type in QpType::ALL {
        let av = AddressVector::new(1, 0, Gid::from_ip("10.0.0.2".parse().unwrap()));
        let init = match qp_type {
            QpType::Ud => QpAttr::init_ud(1, QKey(7)),
            _ => QpAttr::init(qp_type, 1, AccessFlags::REMOTE_WRITE),
        };
        let rtr = match qp_type {
            QpType::Ud => QpAttr::rtr_ud(),
            _ => QpAttr::rtr(qp_type, Qpn::new(17), Psn::new(1), Mtu::Mtu1024, av),
        };
        let steps = [
            init,
            rtr,
            QpAttr::rts(qp_type, Psn::new(2)),
            QpAttr::sqd(true),
            QpAttr::resume(),
            QpAttr::error(),
            QpAttr::reset(),
        ];
        let mut state = QpState::Reset;
        for (attr, mask) in steps {
            let to = check_modify(qp_type, state, &attr, mask).unwrap();
            check_values(qp_type, &QpAttr::default(), &attr, mask, &Limits).unwrap();
            state = to;
        }
        assert_eq!(state, QpState::Reset);
    }
}

/// A device with two ports: port 1 has MTU 1024 and GIDs 0 (IPv4) and 1 (IPv6), index 2 is empty.
struct Limits;

impl DeviceLimits for Limits {
    fn port_count(&self) -> u8 {
        2
    }
    fn active_mtu(&self, port_num: u8) -> Mtu {
        if port_num == 1 { Mtu::Mtu1024 } else { Mtu::Mtu4096 }
    }
    fn pkey(&self, _port_num: u8, index: u16) -> Option<PKey> {
        [PKey::DEFAULT, PKey(0)].get(usize::from(index)).copied()
    }
    fn gid(&self, _port_num: u8, index: u8) -> Option<Gid> {
        match index {
            0 => Some(Gid::from_ip("10.0.0.1".parse().unwrap())),
            1 => Some(Gid::from_ip("fd00::1".parse().unwrap())),
            2 => Some(Gid::ZERO),
            _ => None,
        }
    }
    fn max_qp_rd_atom(&self) -> u32 {
        32
    }
    fn max_qp_init_rd_atom(&self) -> u32 {
        16
    }
}

/// A QP whose every field is at the end of its range, for port 1.
fn at_the_edge() -> QpAttr {
    let av = AddressVector {
        flow_label: 0xf_ffff,
        sl: 15,
        ..AddressVector::new(1, 0, Gid::from_ip("10.0.0.2".parse().unwrap()))
    };
    QpAttr {
        qp_state: QpState::Rts,
        cur_qp_state: QpState::Rts,
        path_mtu: Mtu::Mtu1024,
        path_mig_state: MigState::Rearm,
        dest_qp_num: Qpn::new(2),
        qp_access_flags: AccessFlags::all(),
        ah_attr: av,
        alt_ah_attr: AddressVector { port_num: 2, ..av },
        pkey_index: 1,
        alt_pkey_index: 1,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 32,
        min_rnr_timer: 31,
        port_num: 1,
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        alt_port_num: 2,
        alt_timeout: 31,
        ..QpAttr::default()
    }
}

#[test]
fn values_at_the_edge_pass_and_one_step_beyond_fail_by_name() {
    type Change = fn(&mut QpAttr);
    let beyond: &[(&str, QpAttrMask, Change)] = &[
        ("port_num 3", QpAttrMask::PORT, |a| a.port_num = 3),
        ("port_num 0", QpAttrMask::PORT, |a| a.port_num = 0),
        ("pkey_index 2", QpAttrMask::PKEY_INDEX, |a| a.pkey_index = 2),
        ("0x400", QpAttrMask::ACCESS_FLAGS, |a| a.qp_access_flags = AccessFlags::from_bits_retain(0x400)),
        ("timeout 32", QpAttrMask::TIMEOUT, |a| a.timeout = 32),
        ("retry_cnt 8", QpAttrMask::RETRY_CNT, |a| a.retry_cnt = 8),
        ("rnr_retry 8", QpAttrMask::RNR_RETRY, |a| a.rnr_retry = 8),
        ("min_rnr_timer 32", QpAttrMask::MIN_RNR_TIMER, |a| a.min_rnr_timer = 32),
        ("max_rd_atomic 17", QpAttrMask::MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic = 17),
        ("max_dest_rd_atomic 33", QpAttrMask::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 33),
        ("path_mtu 2048", QpAttrMask::PATH_MTU.union(QpAttrMask::AV), |a| a.path_mtu = Mtu::Mtu2048),
        ("dgid is zero", QpAttrMask::AV, |a| a.ah_attr.dgid = Gid::ZERO),
        ("dgid 224", QpAttrMask::AV, |a| a.ah_attr.dgid = Gid::from_ip("224.0.0.9".parse().unwrap())),
        ("sgid_index 3", QpAttrMask::AV, |a| a.ah_attr.sgid_index = 3),
        ("sgid_index 2 of port 1 is empty", QpAttrMask::AV, |a| a.ah_attr.sgid_index = 2),
        ("not of one IP version", QpAttrMask::AV, |a| a.ah_attr.sgid_index = 1),
        ("flow_label 0x100000", QpAttrMask::AV, |a| a.ah_attr.flow_label = 0x10_0000),
        ("sl 16", QpAttrMask::AV, |a| a.ah_attr.sl = 16),
        ("ah_attr.port_num 3", QpAttrMask::AV, |a| a.ah_attr.port_num = 3),
        ("ah_attr.port_num 2 is not the QP's port 1", QpAttrMask::AV, |a| {
            a.ah_attr = AddressVector { port_num: 2, ..a.alt_ah_attr };
        }),
        ("alt_port_num 0", QpAttrMask::ALT_PATH, |a| a.alt_port_num = 0),
        ("differ", QpAttrMask::ALT_PATH, |a| a.alt_port_num = 1),
        ("alt_pkey_index 2", QpAttrMask::ALT_PATH, |a| a.alt_pkey_index = 2),
        ("alt_timeout 32", QpAttrMask::ALT_PATH, |a| a.alt_timeout = 32),
        ("alt_ah_attr.dgid", QpAttrMask::ALT_PATH, |a| a.alt_ah_attr.dgid = Gid::ZERO),
        ("ARMED", QpAttrMask::PATH_MIG_STATE, |a| a.path_mig_state = MigState::Armed),
        ("without an alternate path", QpAttrMask::PATH_MIG_STATE, |_| {}),
        ("cur_qp_state", QpAttrMask::CUR_STATE, |a| a.cur_qp_state = QpState::Init),
    ];
    let current = QpAttr::default();
    let everything = QpAttrMask::all();
    check_values(QpType::Rc, &current, &at_the_edge(), everything, &Limits).unwrap();
    for (text, mask, change) in beyond {
        let mut attr = at_the_edge();
        change(&mut attr);
        let error = check_values(QpType::Rc, &current, &attr, *mask, &Limits).unwrap_err();
        let text = text.replace("dgid 224", "dgid ::ffff:224");
        assert!(error.message.contains(&text), "expected '{text}' in '{error}'");
        assert_eq!(error.blame, Blame::ApiMisuse);
    }
    let group = AddressVector::new(1, 0, Gid::from_ip("224.0.0.9".parse().unwrap()));
    check_ah(&group, &Limits).expect("a datagram may go to a group");
}

#[test]
fn a_path_mtu_must_fit_each_port_that_the_qp_uses_or_may_come_to_use() {
    // Port 1 carries 1024, port 2 carries 4096.
    let av = |port_num| AddressVector::new(port_num, 0, Gid::from_ip("10.0.0.2".parse().unwrap()));
    let on_two = |qp_state, path_mtu| QpAttr { qp_state, path_mtu, port_num: 2, ah_attr: av(2), ..QpAttr::default() };
    let attr = QpAttr { port_num: 1, ah_attr: av(1), alt_port_num: 1, alt_ah_attr: av(1), ..QpAttr::default() };
    for (state, mask) in [
        (QpState::Rts, QpAttrMask::ALT_PATH),
        (QpState::Sqd, QpAttrMask::PORT),
        (QpState::Sqd, QpAttrMask::AV),
        (QpState::Sqd, QpAttrMask::PORT | QpAttrMask::AV),
    ] {
        check_values(QpType::Rc, &on_two(state, Mtu::Mtu1024), &attr, mask, &Limits).unwrap();
        let error = check_values(QpType::Rc, &on_two(state, Mtu::Mtu2048), &attr, mask, &Limits).unwrap_err();
        assert!(error.message.contains("2048") && error.message.contains("of port 1"), "{mask:?}: {error}");
    }
}

#[test]
fn remote_writes_need_local_write() {
    for remote in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        assert!(remote.check_mr().unwrap_err().message.contains("LOCAL_WRITE"));
        (remote | AccessFlags::LOCAL_WRITE).check_mr().unwrap();
    }
    AccessFlags::REMOTE_READ.check_mr().unwrap();
}

#[test]
fn unknown_access_bits_are_refused_unless_optional() {
    assert_eq!(AccessFlags::from_raw(0x0010_0001), Ok(AccessFlags::RELAXED_ORDERING | AccessFlags::LOCAL_WRITE));
    assert_eq!(AccessFlags::from_raw(0x2000_0001), Ok(AccessFlags::LOCAL_WRITE));
    assert!(AccessFlags::from_raw(0x401).unwrap_err().message.contains("0x400"));
    assert!(AccessFlags::from_raw(0x4000_0000).is_err());
}

#[test]
fn unknown_send_flags_are_refused() {
    assert_eq!(SendFlags::from_raw(0xf), Ok(SendFlags::all()));
    assert!(SendFlags::from_raw(0x10).unwrap_err().message.contains("0x10"));
}

#[test]
fn a_window_takes_remote_rights_only() {
    (AccessFlags::REMOTE_READ | AccessFlags::ZERO_BASED).check_mw().unwrap();
    assert!(AccessFlags::LOCAL_WRITE.check_mw().unwrap_err().message.contains("LOCAL_WRITE"));
}

#[test]
fn operations_belong_to_their_qp_types() {
    let of = |t| OPERATIONS.iter().filter(|row| op_allowed(t, row.kind)).count();
    assert_eq!((of(QpType::Rc), of(QpType::Uc), of(QpType::Ud)), (12, 6, 2));
    assert_eq!((of(QpType::XrcSend), of(QpType::XrcRecv)), (12, 0));
    assert!(!op_allowed(QpType::Uc, OpKind::Read));
    assert!(!op_allowed(QpType::Uc, OpKind::SendWithInv));
}

fn any_row() -> impl Strategy<Value = &'static Transition> {
    (0..TRANSITIONS.len()).prop_map(|place| &TRANSITIONS[place])
}

proptest! {
    #[test]
    fn required_and_any_optional_attributes_are_accepted(row in any_row(), chosen in any::<u32>()) {
        let mask = row.required | (row.optional & QpAttrMask::from_bits_retain(chosen));
        prop_assert!(check_transition(row.qp_type, row.from, row.to, mask).is_ok());
        prop_assert!(check_transition(row.qp_type, row.from, row.to, mask | QpAttrMask::STATE).is_ok());
    }

    #[test]
    fn each_missing_attribute_is_named(row in any_row(), chosen in any::<u32>()) {
        let optional = row.optional & QpAttrMask::from_bits_retain(chosen);
        for (name, bit) in row.required.iter_names() {
            let error = check_transition(row.qp_type, row.from, row.to, (row.required - bit) | optional).unwrap_err();
            prop_assert_eq!(error.errno, Errno::EINVAL);
            prop_assert!(error.message.contains(&format!("missing {name}:")), "{}", error);
            prop_assert!(error.message.contains(&row.to_string()), "{}", error);
        }
    }

    #[test]
    fn each_forbidden_attribute_is_named(row in any_row(), chosen in any::<u32>()) {
        let optional = row.optional & QpAttrMask::from_bits_retain(chosen);
        for (name, bit) in (QpAttrMask::all() - row.required - row.optional - QpAttrMask::STATE).iter_names() {
            let error = check_transition(row.qp_type, row.from, row.to, row.required | optional | bit).unwrap_err();
            prop_assert!(error.message.contains(&format!("{name} cannot be changed here")), "{}", error);
        }
        let unknown = QpAttrMask::from_bits_retain(1 << 30);
        let error = check_transition(row.qp_type, row.from, row.to, row.required | optional | unknown).unwrap_err();
        prop_assert!(error.message.contains("0x40000000"), "{}", error);
    }
}
