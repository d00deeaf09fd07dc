//! Ranges of QP attributes and address vectors, checked against what the device and its ports have now.
//!
//! [`check_values`] looks at those fields whose mask bit is set, and at nothing else. Whether a bit may be set at all is
//! the business of [`crate::state`]. Every message names the value, the range and what to do.

use alloc::format;
use alloc::string::String;

use scalefabric_wire::{Gid, PKey};

use crate::attribute::{AddressVector, MigState, Mtu, QpAttr, QpAttrMask};
use crate::error::VerbsError;
use crate::state::{QpState, QpType};

/// What values are checked against: the device's limits and the present contents of its port tables.
pub trait DeviceLimits {
    /// Number of ports; they are numbered from 1.
    fn port_count(&self) -> u8;
    /// MTU that the port has now.
    fn active_mtu(&self, port_num: u8) -> Mtu;
    /// P_Key at an index of a port's table; `None` beyond it. 0 is an empty slot.
    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey>;
    /// GID at an index of a port's table; `None` beyond it, zero for an empty slot.
    fn gid(&self, port_num: u8, index: u8) -> Option<Gid>;
    /// READs and atomics that a QP can take from its peer (`max_qp_rd_atom`).
    fn max_qp_rd_atom(&self) -> u32;
    /// READs and atomics that a QP can have outstanding itself (`max_qp_init_rd_atom`).
    fn max_qp_init_rd_atom(&self) -> u32;
}

/// Checks the values of the attributes that `mask` names. `current` holds what the QP has now: a P_Key index, say, is
/// checked against the port that the QP will have after the call.
///
/// In RESET no value is looked at; the table has refused the bits already.
pub fn check_values(
    qp_type: QpType,
    current: &QpAttr,
    attr: &QpAttr,
    mask: QpAttrMask,
    limits: &dyn DeviceLimits,
) -> Result<(), VerbsError> {
    // In SQD a new vector alone takes the QP to its port; elsewhere the port is what INIT or this call says.
    let follows = current.qp_state == QpState::Sqd && mask.contains(QpAttrMask::AV);
    let port = match (mask.contains(QpAttrMask::PORT), follows) {
        (true, _) => attr.port_num,
        (false, true) => attr.ah_attr.port_num,
        (false, false) => current.port_num,
    };
    if mask.contains(QpAttrMask::PORT) {
        check_port("port_num", attr.port_num, limits)?;
    }
    if mask.contains(QpAttrMask::PKEY_INDEX) {
        check_pkey("pkey_index", port, attr.pkey_index, limits)?;
    }
    if mask.contains(QpAttrMask::ACCESS_FLAGS) {
        attr.qp_access_flags.check_qp()?;
    }
    let connected = !current.ah_attr.dgid.is_zero();
    if mask.contains(QpAttrMask::AV) {
        check_address_vector("ah_attr", &attr.ah_attr, qp_type, limits)?;
        if attr.ah_attr.port_num != port {
            return Err(VerbsError::invalid(format!(
                "ah_attr.port_num {} is not the QP's port {port}: give the port of the transition to INIT",
                attr.ah_attr.port_num
            )));
        }
    } else if port != current.port_num && connected {
        let moved = AddressVector { port_num: port, ..current.ah_attr };
        check_address_vector("ah_attr, which stays,", &moved, qp_type, limits)?;
    }
    if port != current.port_num && connected && !mask.contains(QpAttrMask::PATH_MTU) {
        check_mtu("path_mtu, which stays,", current.path_mtu, port, limits)?;
    }
    if mask.contains(QpAttrMask::ALT_PATH) {
        check_alternate_path(qp_type, attr, limits)?;
        let mtu = if mask.contains(QpAttrMask::PATH_MTU) { attr.path_mtu } else { current.path_mtu };
        check_mtu("path_mtu", mtu, attr.alt_port_num, limits)?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        check_mtu("path_mtu", attr.path_mtu, port, limits)?;
    }
    let below = [
        (QpAttrMask::TIMEOUT, "timeout", attr.timeout, 31, "4.096 us x 2^timeout; 14 is 67 ms, 0 waits for ever"),
        (QpAttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7, "it is a count; 7 is the usual choice"),
        (QpAttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7, "7 retries for ever"),
        (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31, "it is a timer code; 12 is 0.64 ms"),
    ];
    for (bit, name, value, max, hint) in below {
        if mask.contains(bit) && value > max {
            return Err(VerbsError::invalid(format!("{name} {value} is out of range 0 to {max}: {hint}")));
        }
    }
    let depth = [
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic,
            limits.max_qp_init_rd_atom(),
            "max_qp_init_rd_atom",
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic,
            limits.max_qp_rd_atom(),
            "max_qp_rd_atom",
        ),
    ];
    for (bit, name, value, max, limit) in depth {
        if mask.contains(bit) && u32::from(value) > max {
            return Err(VerbsError::invalid(format!(
                "{name} {value} is more than the device's {limit} {max}: use {max} or less"
            )));
        }
    }
    if mask.contains(QpAttrMask::PATH_MIG_STATE) {
        check_migration(current, attr, mask)?;
    }
    if mask.contains(QpAttrMask::CUR_STATE)
        && !matches!(attr.cur_qp_state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    {
        return Err(VerbsError::invalid(format!(
            "cur_qp_state {} makes no sense here: only RTR, RTS, SQD and SQE can be given",
            attr.cur_qp_state
        )));
    }
    Ok(())
}

/// Checks an address vector as an AH or a UD destination uses it: groups are allowed.
pub fn check_ah(av: &AddressVector, limits: &dyn DeviceLimits) -> Result<(), VerbsError> {
    check_address_vector("ah_attr", av, QpType::Ud, limits)
}

fn check_port(name: &str, port_num: u8, limits: &dyn DeviceLimits) -> Result<(), VerbsError> {
    let count = limits.port_count();
    if port_num == 0 || port_num > count {
        return Err(VerbsError::invalid(format!(
            "{name} {port_num} does not exist: the device has {count} port(s), numbered from 1"
        )));
    }
    Ok(())
}

fn check_pkey(name: &str, port: u8, index: u16, limits: &dyn DeviceLimits) -> Result<(), VerbsError> {
    match limits.pkey(port, index) {
        None => Err(VerbsError::invalid(format!(
            "{name} {index} is beyond the P_Key table of port {port}: query_port tells its pkey_tbl_len, 0 is always there"
        ))),
        // An index whose slot is empty or invalid now is accepted, as on hardware: the table may be filled later, and
        // until then the QP's packets are refused (clause 10.9.2).
        Some(_) => Ok(()),
    }
}

fn check_address_vector(
    name: &str,
    av: &AddressVector,
    qp_type: QpType,
    limits: &dyn DeviceLimits,
) -> Result<(), VerbsError> {
    check_port(&format!("{name}.port_num"), av.port_num, limits)?;
    if av.dgid.is_zero() {
        return Err(VerbsError::invalid(format!(
            "{name}.dgid is zero: RoCE has no LIDs, every path is global; give the peer's GID (is_global = 1 in C)"
        )));
    }
    if av.dgid.is_multicast() && qp_type.is_connected() {
        return Err(VerbsError::invalid(format!(
            "{name}.dgid {} is a multicast group: a {qp_type} QP has one peer; use UD for groups",
            av.dgid
        )));
    }
    match limits.gid(av.port_num, av.sgid_index) {
        None => Err(VerbsError::invalid(format!(
            "{name}.sgid_index {} is beyond the GID table of port {}: query_gid_table lists those in use",
            av.sgid_index, av.port_num
        ))),
        Some(gid) if gid.is_zero() => Err(VerbsError::invalid(format!(
            "{name}.sgid_index {} of port {} is empty: query_gid_table lists those in use",
            av.sgid_index, av.port_num
        ))),
        Some(gid) if gid.is_ipv4() != av.dgid.is_ipv4() => Err(VerbsError::invalid(format!(
            "{name}.dgid {} and the source GID {gid} at sgid_index {} are not of one IP version: choose a source index of \
             the destination's version",
            av.dgid, av.sgid_index
        ))),
        Some(_) => check_address_fields(name, av),
    }
}

/// The small fields of an address vector.
fn check_address_fields(name: &str, av: &AddressVector) -> Result<(), VerbsError> {
    if av.flow_label > 0xf_ffff {
        return Err(VerbsError::invalid(format!(
            "{name}.flow_label {:#x} has more than 20 bits: use 0 to 0xfffff",
            av.flow_label
        )));
    }
    if av.sl > 15 {
        return Err(VerbsError::invalid(format!("{name}.sl {} is out of range 0 to 15 (RoCE uses 0 to 7)", av.sl)));
    }
    Ok(())
}

fn check_mtu(name: &str, mtu: Mtu, port: u8, limits: &dyn DeviceLimits) -> Result<(), VerbsError> {
    let active = limits.active_mtu(port);
    if mtu <= active {
        return Ok(());
    }
    Err(VerbsError::invalid(format!(
        "{name} {} is larger than the active MTU {} of port {port}: use {} or less, or raise the interface's MTU at both \
         ends",
        mtu.bytes(),
        active.bytes(),
        active.bytes(),
    )))
}

fn check_alternate_path(qp_type: QpType, attr: &QpAttr, limits: &dyn DeviceLimits) -> Result<(), VerbsError> {
    check_port("alt_port_num", attr.alt_port_num, limits)?;
    check_pkey("alt_pkey_index", attr.alt_port_num, attr.alt_pkey_index, limits)?;
    check_address_vector("alt_ah_attr", &attr.alt_ah_attr, qp_type, limits)?;
    if attr.alt_timeout > 31 {
        return Err(VerbsError::invalid(format!(
            "alt_timeout {} is out of range 0 to 31: 4.096 us x 2^alt_timeout",
            attr.alt_timeout
        )));
    }
    if attr.alt_ah_attr.port_num != attr.alt_port_num {
        return Err(VerbsError::invalid(format!(
            "alt_port_num {} and alt_ah_attr.port_num {} differ: give the same port twice",
            attr.alt_port_num, attr.alt_ah_attr.port_num
        )));
    }
    Ok(())
}

/// What a consumer may set: REARM when an alternate path is loaded, MIGRATED at any time (clause 17.2.8.1).
fn check_migration(current: &QpAttr, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
    let problem: Option<String> = match attr.path_mig_state {
        MigState::Armed => Some(String::from("ARMED is reached by both sides' REARM, not by modify: set REARM")),
        MigState::Rearm if !mask.contains(QpAttrMask::ALT_PATH) && current.alt_port_num == 0 => {
            Some(String::from("REARM without an alternate path: load one with ALT_PATH, before or in the same call"))
        }
        MigState::Rearm | MigState::Migrated => None,
    };
    match problem {
        Some(text) => Err(VerbsError::invalid(format!("path_mig_state: {text}"))),
        None => Ok(()),
    }
}
