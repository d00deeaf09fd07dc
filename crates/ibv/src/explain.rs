//! From an `errno` to the attribute that caused it. The kernel and the drivers say only a number; here the call's own
//! arguments are held against the contract's tables and the device's limits, and what does not fit is named. Nothing is
//! checked before the call: the device decides, this explains.

use std::fs;

use scalefabric_verbs::{
    AccessFlags, AddressVector, Blame, DeviceAttr, DeviceLimits, Errno, QpAttr, QpAttrMask, QpInit, QpState, QpType,
    VerbsError, check_ah, check_modify, check_values,
};

/// The errno of the contract; what it does not have becomes the nearest, and the message keeps the number.
fn errno(raw: i32) -> Errno {
    match raw {
        libc::EMFILE | libc::ENFILE | libc::E2BIG => Errno::ENOMEM,
        libc::ENOTSUP | libc::ENOTTY => Errno::EOPNOTSUPP,
        libc::EPROTONOSUPPORT | libc::ENOSYS => Errno::EOPNOTSUPP,
        libc::ERANGE | libc::EMSGSIZE => Errno::EINVAL,
        raw => Errno::from_raw(raw).unwrap_or(Errno::EIO),
    }
}

fn error(raw: i32, message: String) -> VerbsError {
    let errno = errno(raw);
    let blame = match errno {
        Errno::EINVAL | Errno::EBUSY | Errno::EOPNOTSUPP | Errno::EFAULT | Errno::EPERM | Errno::EEXIST => {
            Blame::ApiMisuse
        }
        _ => Blame::Environment,
    };
    VerbsError { errno, blame, message }
}

/// What a number means for verbs in general, and what to do.
fn meaning(raw: i32) -> &'static str {
    match raw {
        libc::EPERM | libc::EACCES => "no permission: the user needs read and write access to /dev/infiniband/uverbs*",
        libc::ENOENT => "there is no such object: it may have been destroyed",
        libc::ENODEV | libc::EIO | libc::ENXIO => "the device is gone or being reset: close it and open it again",
        libc::EAGAIN => "the device is busy: try again",
        libc::ENOMEM => "no memory, or the device has no more of these: see its limits (sfab devices -v)",
        libc::EFAULT => "an address that is not mapped, or not with the rights needed",
        libc::EBUSY => "something still uses it: destroy what was made of it first",
        libc::EINVAL => "the device refuses an argument",
        libc::ENOSPC => "the device has no room for more",
        libc::EMFILE | libc::ENFILE => "no descriptor is left: raise RLIMIT_NOFILE (ulimit -n)",
        libc::ENOSYS | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOTTY => {
            "this device, its driver or this libibverbs does not have it"
        }
        libc::ETIMEDOUT => "the device did not answer in time",
        _ => "see errno(3)",
    }
}

/// A call that failed for a reason that its arguments do not show.
pub(crate) fn failed(what: &str, raw: i32) -> VerbsError {
    let text = std::io::Error::from_raw_os_error(raw);
    error(raw, format!("cannot {what}: {}: {text}", meaning(raw)))
}

/// A reason with an errno of C.
fn because(what: &str, raw: i32, reason: impl core::fmt::Display) -> VerbsError {
    error(raw, format!("cannot {what}: {reason}"))
}

/// What libibverbs, the driver or the device does not have.
pub(crate) fn unsupported(what: &str) -> VerbsError {
    VerbsError::misuse(
        Errno::EOPNOTSUPP,
        format!("{what}: this device, its driver or this libibverbs does not have it"),
    )
}

/// `ibv_open_device`.
pub(crate) fn open(name: &str, raw: i32) -> VerbsError {
    match raw {
        libc::ENOENT => because(
            &format!("open {name}"),
            raw,
            "its file /dev/infiniband/uverbs* is not there: in a container, hand it in (--device); else load ib_uverbs",
        ),
        raw => failed(&format!("open {name}"), raw),
    }
}

/// A soft limit of the process in bytes; `None` is unlimited.
fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure that is ours.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes that the process has pinned (`VmPin`) and locked (`VmLck`): both count.
fn pinned() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    (kilobytes("VmPin:") + kilobytes("VmLck:")) * 1024
}

/// `ibv_reg_mr` and its relatives.
pub(crate) fn reg_mr(length: usize, access: AccessFlags, attr: Option<&DeviceAttr>, raw: i32) -> VerbsError {
    let what = format!("register {length} bytes");
    if raw == libc::EINVAL
        && let Err(wrong) = access.check_mr()
    {
        return because(&what, raw, wrong.message);
    }
    if let Some(attr) = attr
        && length as u64 > attr.max_mr_size
    {
        return because(&what, raw, format!("the device allows {} in one region (`max_mr_size`)", attr.max_mr_size));
    }
    match raw {
        libc::ENOMEM | libc::EPERM => match memlock_limit() {
            Some(limit) if (length as u64).saturating_add(pinned()) > limit => because(
                &what,
                raw,
                format!(
                    "RLIMIT_MEMLOCK is {limit} bytes, of which {} are in use: raise it (ulimit -l unlimited, memlock in \
                     limits.conf, LimitMEMLOCK of the unit, --ulimit memlock=-1 of the container)",
                    pinned()
                ),
            ),
            _ => failed(&what, raw),
        },
        libc::EFAULT => {
            let rights = if access.contains(AccessFlags::LOCAL_WRITE) { "writable" } else { "readable" };
            because(&what, raw, format!("the range is not mapped and {rights} throughout"))
        }
        libc::EINVAL if access.contains(AccessFlags::ON_DEMAND) => {
            because(&what, raw, "ON_DEMAND: the device has no on-demand paging for it (query_device, `odp`)")
        }
        libc::EINVAL if access.contains(AccessFlags::HUGETLB) => {
            because(&what, raw, "HUGETLB: the range does not consist of whole huge pages")
        }
        raw => failed(&what, raw),
    }
}

/// The first limit that a request is beyond.
fn beyond(limits: &[(&str, u32, u32, &str)]) -> Option<String> {
    limits
        .iter()
        .find(|(_, asked, allowed, _)| asked > allowed)
        .map(|(name, asked, allowed, limit)| format!("{name} is {asked}; the device allows {allowed} (`{limit}`)"))
}

/// `ibv_create_cq`.
pub(crate) fn create_cq(cqe: u32, vector: u32, attr: Option<&DeviceAttr>, raw: i32) -> VerbsError {
    let what = format!("make a completion queue of {cqe} entries");
    let Some(attr) = attr else { return failed(&what, raw) };
    if cqe == 0 {
        return because(&what, raw, "cqe is 0: a queue has one entry at least");
    }
    if vector >= attr.num_comp_vectors {
        let count = attr.num_comp_vectors;
        return because(&what, raw, format!("comp_vector is {vector}; the device has {count}, numbered from 0"));
    }
    match beyond(&[("cqe", cqe, attr.max_cqe, "max_cqe")]) {
        Some(reason) => because(&what, raw, reason),
        None => failed(&what, raw),
    }
}

/// `ibv_create_srq`.
pub(crate) fn create_srq(max_wr: u32, max_sge: u32, attr: Option<&DeviceAttr>, raw: i32) -> VerbsError {
    let what = "make a shared receive queue";
    let Some(attr) = attr else { return failed(what, raw) };
    if attr.max_srq == 0 {
        return error(libc::EOPNOTSUPP, format!("cannot {what}: the device has none (`max_srq` is 0)"));
    }
    if max_wr == 0 {
        return because(what, raw, "max_wr is 0: a queue has room for one WR at least");
    }
    let limits =
        [("max_wr", max_wr, attr.max_srq_wr, "max_srq_wr"), ("max_sge", max_sge, attr.max_srq_sge, "max_srq_sge")];
    beyond(&limits).map_or_else(|| failed(what, raw), |reason| because(what, raw, reason))
}

/// `ibv_create_qp`.
pub(crate) fn create_qp(init: &QpInit, attr: Option<&DeviceAttr>, driver: &str, raw: i32) -> VerbsError {
    let what = format!("make a {} QP", init.qp_type);
    let Some(attr) = attr else { return failed(&what, raw) };
    let cap = &init.cap;
    let limits = [
        ("max_send_wr", cap.max_send_wr, attr.max_qp_wr, "max_qp_wr"),
        ("max_recv_wr", cap.max_recv_wr, attr.max_qp_wr, "max_qp_wr"),
        ("max_send_sge", cap.max_send_sge, attr.max_sge, "max_sge"),
        ("max_recv_sge", cap.max_recv_sge, attr.max_sge, "max_sge"),
    ];
    if let Some(reason) = beyond(&limits) {
        return because(&what, raw, reason);
    }
    if attr.max_inline_data > 0 && cap.max_inline_data > attr.max_inline_data {
        let (asked, allowed) = (cap.max_inline_data, attr.max_inline_data);
        return because(&what, raw, format!("max_inline_data is {asked}; the driver {driver} allows {allowed}"));
    }
    match (init.qp_type, errno(raw)) {
        (QpType::XrcRecv, _) => because(&what, raw, "an XRC target belongs to a domain: use create_xrc_target"),
        (_, Errno::EINVAL | Errno::EOPNOTSUPP) if !crate::vendor::has_type(driver, init.qp_type) => {
            error(libc::EOPNOTSUPP, format!("cannot {what}: the driver {driver} does not have this type"))
        }
        (_, Errno::ENOMEM) => because(
            &what,
            raw,
            format!(
                "no memory for its queues, or all {} QPs of the device are in use (`max_qp`); drivers also count SGEs and \
                 inline bytes against the room of a WQE: ask for fewer",
                attr.max_qp
            ),
        ),
        _ => failed(&what, raw),
    }
}

/// `ibv_create_ah`.
pub(crate) fn create_ah(av: &AddressVector, limits: &dyn DeviceLimits, raw: i32) -> VerbsError {
    let what = "make an address handle";
    match check_ah(av, limits) {
        Err(wrong) => because(what, raw, wrong.message),
        Ok(()) if matches!(raw, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT) => {
            because(what, raw, unreachable(av, limits))
        }
        Ok(()) => failed(what, raw),
    }
}

/// The kernel looks up the MAC address of a RoCE path when it is given: what to do when there is none.
fn unreachable(av: &AddressVector, limits: &dyn DeviceLimits) -> String {
    let from = limits.gid(av.port_num, av.sgid_index).map_or_else(String::new, |gid| format!(" from {gid}"));
    format!(
        "no neighbour answers for {}{from}: ping it from this host; both must be in one subnet or have a route",
        av.dgid
    )
}

/// What is known of a QP whose `modify` failed.
pub(crate) struct Modify<'a> {
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) current: Option<&'a QpAttr>,
    pub(crate) attr: &'a QpAttr,
    pub(crate) mask: QpAttrMask,
}

/// `ibv_modify_qp`: the contract's table of transitions, then its ranges.
pub(crate) fn modify_qp(call: &Modify<'_>, limits: &dyn DeviceLimits, driver: &str, raw: i32) -> VerbsError {
    let Modify { qp_type, state, current, attr, mask } = *call;
    let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { state };
    let what = format!("modify the {qp_type} QP ({state} -> {to})");
    if let Err(wrong) = check_modify(qp_type, state, attr, mask) {
        return because(&what, raw, wrong.message);
    }
    let base = QpAttr { qp_state: state, ..*current.unwrap_or(attr) };
    if let Err(wrong) = check_values(qp_type, &base, attr, mask, limits) {
        return because(&what, raw, wrong.message);
    }
    if matches!(raw, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT) && mask.contains(QpAttrMask::AV) {
        return because(&what, raw, unreachable(&attr.ah_attr, limits));
    }
    let quirk = crate::vendor::of_driver(driver).map_or("", |vendor| vendor.modify_note);
    let text = std::io::Error::from_raw_os_error(raw);
    let note = if quirk.is_empty() { String::new() } else { format!("; of {driver} is known: {quirk}") };
    error(
        raw,
        format!("cannot {what}: {}: every attribute of {mask:?} is right by the standard{note}: {text}", meaning(raw)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::{Gid, Mtu, PKey, Psn, Qpn};

    struct OnePort;
    impl DeviceLimits for OnePort {
        fn port_count(&self) -> u8 {
            1
        }
        fn active_mtu(&self, _port_num: u8) -> Mtu {
            Mtu::Mtu1024
        }
        fn pkey(&self, _port_num: u8, index: u16) -> Option<PKey> {
            (index == 0).then_some(PKey(0xffff))
        }
        fn gid(&self, _port_num: u8, index: u8) -> Option<Gid> {
            (index == 0).then(|| Gid::from_ip("10.0.0.1".parse().expect("an address")))
        }
        fn max_qp_rd_atom(&self) -> u32 {
            16
        }
        fn max_qp_init_rd_atom(&self) -> u32 {
            16
        }
    }

    fn to_rtr(change: impl FnOnce(&mut QpAttr)) -> (QpAttr, QpAttrMask) {
        let peer = Gid::from_ip("10.0.0.2".parse().expect("an address"));
        let av = AddressVector::new(1, 0, peer);
        let (mut attr, mask) = QpAttr::rtr(QpType::Rc, Qpn::new(17), Psn::new(0), Mtu::Mtu1024, av);
        change(&mut attr);
        (attr, mask)
    }

    fn explained(attr: &QpAttr, mask: QpAttrMask, raw: i32) -> VerbsError {
        let call = Modify { qp_type: QpType::Rc, state: QpState::Init, current: None, attr, mask };
        modify_qp(&call, &OnePort, "rxe", raw)
    }

    #[test]
    fn a_missing_attribute_of_modify_is_named() {
        let (attr, mask) = to_rtr(|_| ());
        let error = explained(&attr, mask.difference(QpAttrMask::RQ_PSN), libc::EINVAL);
        assert_eq!(error.errno, Errno::EINVAL);
        assert!(error.message.contains("missing RQ_PSN"), "{error}");
    }

    #[test]
    fn a_wrong_value_of_modify_is_named_with_its_limit() {
        let (attr, mask) = to_rtr(|attr| attr.path_mtu = Mtu::Mtu4096);
        let error = explained(&attr, mask, libc::EINVAL);
        assert!(error.message.contains("path_mtu 4096 is larger than the active MTU 1024"), "{error}");
    }

    #[test]
    fn a_path_without_a_neighbour_names_both_ends() {
        let (attr, mask) = to_rtr(|_| ());
        let error = explained(&attr, mask, libc::EHOSTUNREACH);
        assert_eq!((error.errno, error.blame), (Errno::EHOSTUNREACH, Blame::Environment));
        assert!(error.message.contains("no neighbour answers for"), "{error}");
        assert!(error.message.contains("10.0.0.1"), "{error}");
    }

    #[test]
    fn what_is_right_by_the_standard_is_said_to_be() {
        let (attr, mask) = to_rtr(|_| ());
        assert!(explained(&attr, mask, libc::EINVAL).message.contains("right by the standard"));
    }

    #[test]
    fn a_region_beyond_the_locked_memory_names_the_limit() {
        let limit = memlock_limit();
        let error = reg_mr(usize::MAX / 2, AccessFlags::LOCAL_WRITE, None, libc::ENOMEM);
        assert_eq!(error.errno, Errno::ENOMEM);
        if let Some(limit) = limit {
            assert!(error.message.contains(&format!("RLIMIT_MEMLOCK is {limit} bytes")), "{error}");
        } else {
            assert!(!error.message.contains("RLIMIT_MEMLOCK"), "unlimited: {error}");
        }
    }

    #[test]
    fn rights_that_contradict_each_other_are_named() {
        let error = reg_mr(4096, AccessFlags::REMOTE_WRITE, None, libc::EINVAL);
        assert!(error.message.contains("needs LOCAL_WRITE"), "{error}");
        let error = reg_mr(4096, AccessFlags::LOCAL_WRITE, None, libc::EFAULT);
        assert!(error.message.contains("not mapped and writable"), "{error}");
    }

    #[test]
    fn limits_are_named_with_both_numbers() {
        let attr =
            DeviceAttr { max_cqe: 100, num_comp_vectors: 1, max_srq: 1, max_srq_wr: 10, ..DeviceAttr::default() };
        let error = create_cq(101, 0, Some(&attr), libc::EINVAL);
        assert!(error.message.contains("cqe is 101; the device allows 100 (`max_cqe`)"), "{error}");
        let error = create_cq(1, 1, Some(&attr), libc::EINVAL);
        assert!(error.message.contains("comp_vector is 1; the device has 1"), "{error}");
        let error = create_srq(11, 0, Some(&attr), libc::EINVAL);
        assert!(error.message.contains("max_wr is 11; the device allows 10"), "{error}");
        let none = DeviceAttr { max_srq: 0, ..attr };
        assert_eq!(create_srq(1, 1, Some(&none), libc::EINVAL).errno, Errno::EOPNOTSUPP);
    }

    #[test]
    fn an_errno_of_no_verb_keeps_its_number_in_words() {
        let error = failed("do something", libc::EXDEV);
        assert_eq!(error.errno, Errno::EIO);
        assert!(error.message.contains("os error 18"), "{error}");
    }
}
