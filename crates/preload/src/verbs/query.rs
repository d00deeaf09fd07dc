//! Questions to a device and its ports. Each writes as much as the caller has room for: structures grew over the years.

use std::ffi::{c_char, c_int};

use scalefabric_ibv::abi;
use scalefabric_verbs::{AtomicCap, DeviceAttr, Errno, GidEntry, PortAttr, VerbsError};

use super::answer::{Outcome, or_minus, or_negative, stale, status};
use super::behind::behind;
use super::context::{self, Open};

/// Bytes that the *symbol* `ibv_query_port` writes: up to and with `flags`.
const SHORT_PORT_ATTR: usize = 48;

/// The open device of a context, or why there is none.
///
/// # Safety
/// `context` is null or a context of ours.
unsafe fn open<'a>(context: *mut abi::Context) -> Outcome<&'a Open> {
    if context.is_null() {
        return Err(stale("open device"));
    }
    // SAFETY: the caller's promise.
    unsafe { context::open(context) }
}

/// True for a context that must go to the real library.
fn foreign(context: *mut abi::Context) -> bool {
    // SAFETY: a context, or null.
    !context.is_null() && !unsafe { context::is_ours(context) }
}

/// Copies what both know of a structure; the rest of the caller's is zero.
unsafe fn give<T>(value: &T, into: *mut T, room: usize) {
    // SAFETY: the caller's structure has `room` bytes.
    unsafe {
        let known = room.min(size_of::<T>());
        into.cast::<u8>().write_bytes(0, room);
        into.cast::<u8>().copy_from_nonoverlapping((&raw const *value).cast(), known);
    }
}

fn need<T>(pointer: *mut T, what: &str) -> Outcome {
    if pointer.is_null() { Err(VerbsError::invalid(format!("{what} is null"))) } else { Ok(()) }
}

/// Ours are atomic with the processor's accesses, too, and so do all that ATOMIC_HCA promises. That is what every NIC says,
/// and what UCX asks for, to the number.
fn atomic_cap(cap: AtomicCap) -> u32 {
    match cap {
        AtomicCap::None => AtomicCap::None as u32,
        AtomicCap::Hca | AtomicCap::Glob => AtomicCap::Hca as u32,
    }
}

fn device_attr(attr: &DeviceAttr) -> abi::DeviceAttr {
    let mut fw_ver = [0 as c_char; 64];
    let text = attr.fw_ver.bytes().take(63);
    fw_ver.iter_mut().zip(text).for_each(|(to, from)| *to = from as c_char);
    let int = |value: u32| value.min(i32::MAX as u32) as c_int;
    abi::DeviceAttr {
        fw_ver,
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: int(attr.max_ee_rd_atom),
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: int(attr.max_ee_init_rd_atom),
        atomic_cap: atomic_cap(attr.atomic_cap),
        max_ee: int(attr.max_ee),
        max_rdd: int(attr.max_rdd),
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: int(attr.max_raw_ipv6_qp),
        max_raw_ethy_qp: int(attr.max_raw_ethy_qp),
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_fmr: int(attr.max_fmr),
        max_map_per_fmr: int(attr.max_map_per_fmr),
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

fn port_attr(attr: &PortAttr) -> abi::PortAttr {
    abi::PortAttr {
        state: attr.state as u32,
        max_mtu: attr.max_mtu as u32,
        active_mtu: attr.active_mtu as u32,
        gid_tbl_len: attr.gid_tbl_len as c_int,
        port_cap_flags: attr.port_cap_flags,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state,
        link_layer: attr.link_layer,
        flags: 0,
        port_cap_flags2: attr.port_cap_flags2,
        // A code of width and speed beyond `active_speed`, which our codes do not need.
        active_speed_ex: 0,
    }
}

/// The operation `query_device`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn query_device(context: *mut abi::Context, attr: *mut abi::DeviceAttr) -> c_int {
    status("ibv_query_device", || {
        need(attr, "device_attr")?;
        // SAFETY: a context of ours, or null; the program's structure.
        unsafe { *attr = device_attr(&open(context)?.verbs()?.query_device()?) };
        Ok(())
    })
}

/// `ibv_query_device`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut abi::Context, attr: *mut abi::DeviceAttr) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, *mut abi::DeviceAttr) -> c_int;
    if foreign(context) {
        return behind!(ibv_query_device as Query, (context, attr), else libc::ENODEV);
    }
    // SAFETY: passed on.
    unsafe { query_device(context, attr) }
}

/// The operation `query_device_ex`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const abi::QueryDeviceExInput,
    attr: *mut abi::DeviceAttrEx,
    attr_size: usize,
) -> c_int {
    status("ibv_query_device_ex", || {
        need(attr, "attr")?;
        // SAFETY: the program's structure, or null.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(VerbsError::invalid("comp_mask of the input has bits that nobody knows: it must be 0"));
        }
        if attr_size < std::mem::offset_of!(abi::DeviceAttrEx, odp_caps) {
            return Err(VerbsError::invalid(format!("{attr_size} bytes do not hold an ibv_device_attr_ex")));
        }
        // SAFETY: a context of ours, or null.
        let device = unsafe { open(context)? }.verbs()?.query_device()?;
        // RC, UC and UD: bits 2, 3 and 4 of `supported_qpts`.
        let qpts = if device.rate_limit_max > 0 { 0b1_1100 } else { 0 };
        let all = abi::DeviceAttrEx {
            orig_attr: device_attr(&device),
            comp_mask: 0,
            odp_caps: abi::OdpCaps {
                general_caps: device.odp.general.bits(),
                rc_odp_caps: device.odp.rc.bits(),
                uc_odp_caps: device.odp.uc.bits(),
                ud_odp_caps: device.odp.ud.bits(),
            },
            completion_timestamp_mask: device.completion_timestamp_mask,
            hca_core_clock: device.hca_core_clock,
            device_cap_flags_ex: u64::from(device.device_cap_flags),
            tso_caps: abi::TsoCaps::default(),
            rss_caps: abi::RssCaps::default(),
            max_wq_type_rq: 0,
            packet_pacing_caps: abi::PacketPacingCaps {
                qp_rate_limit_min: device.rate_limit_min,
                qp_rate_limit_max: device.rate_limit_max,
                supported_qpts: qpts,
            },
            raw_packet_caps: 0,
            tm_caps: abi::TmCaps::default(),
            cq_mod_caps: abi::CqModerationCaps {
                max_cq_count: device.max_cq_count,
                max_cq_period: device.max_cq_period,
            },
            max_dm_size: device.max_dm_size,
            pci_atomic_caps: abi::PciAtomicCaps::default(),
            xrc_odp_caps: device.odp.xrc.bits(),
            phys_port_cnt_ex: u32::from(device.phys_port_cnt),
        };
        // SAFETY: the program says how much room there is.
        unsafe { give(&all, attr, attr_size) };
        Ok(())
    })
}

/// The operation `query_port`, which writes as much as the program's headers know.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port_num: u8,
    attr: *mut abi::PortAttr,
    attr_size: usize,
) -> c_int {
    status("ibv_query_port", || {
        need(attr, "port_attr")?;
        // SAFETY: a context of ours, or null; the program says how much room there is.
        unsafe { give(&port_attr(&open(context)?.verbs()?.query_port(port_num)?), attr, attr_size) };
        Ok(())
    })
}

/// The operation `query_port` of old contexts: 48 bytes.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn query_port_short(context: *mut abi::Context, port_num: u8, attr: *mut abi::PortAttr) -> c_int {
    // SAFETY: passed on.
    unsafe { query_port(context, port_num, attr, SHORT_PORT_ATTR) }
}

/// `ibv_query_port`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut abi::Context, port_num: u8, attr: *mut abi::PortAttr) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u8, *mut abi::PortAttr) -> c_int;
    if foreign(context) {
        return behind!(ibv_query_port as Query, (context, port_num, attr), else libc::ENODEV);
    }
    // SAFETY: passed on.
    unsafe { query_port_short(context, port_num, attr) }
}

/// `ibv_query_port_speed`: units of 100 Mb/s.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut abi::Context, port_num: u32, speed: *mut u64) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u32, *mut u64) -> c_int;
    if foreign(context) {
        return behind!(ibv_query_port_speed as Query, (context, port_num, speed), else libc::EOPNOTSUPP);
    }
    status("ibv_query_port_speed", || {
        need(speed, "port_speed")?;
        // SAFETY: a context of ours, or null.
        let attr = unsafe { open(context)? }.verbs()?.query_port(port(port_num)?)?;
        let mbps = if attr.active_speed_ex > 0 { attr.active_speed_ex } else { 100_000 };
        // SAFETY: the program's word.
        unsafe { *speed = u64::from(mbps / 100) };
        Ok(())
    })
}

fn port(number: u32) -> Outcome<u8> {
    u8::try_from(number).map_err(|_| VerbsError::invalid(format!("port {number} does not exist")))
}

/// `ibv_query_gid`: an empty slot is success and a zero GID; beyond the table -1.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut abi::Context,
    port_num: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u8, c_int, *mut [u8; 16]) -> c_int;
    if foreign(context) {
        return behind!(ibv_query_gid as Query, (context, port_num, index, gid), else -1);
    }
    or_minus("ibv_query_gid", || {
        need(gid, "gid")?;
        let index = u32::try_from(index).map_err(|_| VerbsError::invalid(format!("GID index {index} is negative")))?;
        // SAFETY: a context of ours, or null; the program's 16 bytes.
        unsafe { *gid = open(context)?.verbs()?.query_gid(port_num, index)?.0 };
        Ok(0)
    })
}

/// `ibv_query_gid_type`, of the private node: what `ibv_devinfo` and pyverbs ask. 0 is RoCEv1, 1 is RoCEv2.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut abi::Context,
    port_num: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u8, u32, *mut u32) -> c_int;
    if foreign(context) {
        return behind!(ibv_query_gid_type as Query, (context, port_num, index, gid_type), else -1);
    }
    or_minus("ibv_query_gid_type", || {
        need(gid_type, "type")?;
        // SAFETY: a context of ours, or null.
        unsafe { open(context)? }.verbs()?.query_gid(port_num, index)?;
        // SAFETY: the program's word.
        unsafe { *gid_type = 1 };
        Ok(0)
    })
}

fn gid_entry(entry: &GidEntry) -> abi::GidEntry {
    abi::GidEntry {
        gid: entry.gid.0,
        gid_index: entry.gid_index,
        port_num: u32::from(entry.port_num),
        gid_type: entry.gid_type as u32,
        ndev_ifindex: entry.ndev_ifindex,
    }
}

/// `_ibv_query_gid_ex`: `ENODATA` for an empty slot.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::Context,
    port_num: u32,
    gid_index: u32,
    entry: *mut abi::GidEntry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u32, u32, *mut abi::GidEntry, u32, usize) -> c_int;
    if foreign(context) {
        return behind!(
            _ibv_query_gid_ex as Query,
            (context, port_num, gid_index, entry, flags, entry_size),
            else libc::EOPNOTSUPP
        );
    }
    status("ibv_query_gid_ex", || {
        need(entry, "entry")?;
        check_gid_flags(flags)?;
        // SAFETY: a context of ours, or null.
        let open = unsafe { open(context)? };
        let port_num = port(port_num)?;
        let gid = open.verbs()?.query_gid(port_num, gid_index)?;
        let table = open.verbs()?.query_gid_table()?;
        let found = table.iter().find(|e| e.port_num == port_num && e.gid_index == gid_index);
        let Some(found) = found.filter(|_| !gid.is_zero()) else {
            return Err(VerbsError::misuse(Errno::ENODATA, format!("GID index {gid_index} is empty")));
        };
        // SAFETY: the program says how much room there is.
        unsafe { give(&gid_entry(found), entry, entry_size) };
        Ok(())
    })
}

fn check_gid_flags(flags: u32) -> Outcome {
    if flags == 0 {
        return Ok(());
    }
    Err(VerbsError::misuse(Errno::EOPNOTSUPP, format!("flags {flags:#x}: none are known, they must be 0")))
}

/// `_ibv_query_gid_table`: how many entries there are, or a negative number of errno.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut abi::Context,
    entries: *mut abi::GidEntry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    type Query = unsafe extern "C" fn(*mut abi::Context, *mut abi::GidEntry, usize, u32, usize) -> isize;
    if foreign(context) {
        return behind!(
            _ibv_query_gid_table as Query,
            (context, entries, max_entries, flags, entry_size),
            else -(libc::EOPNOTSUPP as isize)
        );
    }
    or_negative("ibv_query_gid_table", || {
        check_gid_flags(flags)?;
        // SAFETY: a context of ours, or null.
        let table = unsafe { open(context)? }.verbs()?.query_gid_table()?;
        let there: Vec<_> = table.iter().filter(|entry| !entry.gid.is_zero()).collect();
        if there.len() > max_entries || (entries.is_null() && !there.is_empty()) {
            return Err(VerbsError::invalid(format!("{} GIDs do not fit {max_entries} entries", there.len())));
        }
        for (index, entry) in there.iter().enumerate() {
            // SAFETY: the program's array has that many entries of that size.
            unsafe { give(&gid_entry(entry), entries.byte_add(index * entry_size), entry_size) };
        }
        Ok(there.len() as isize)
    })
}

/// `ibv_query_pkey`, big-endian; -1 beyond the table.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut abi::Context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u8, c_int, *mut u16) -> c_int;
    if foreign(context) {
        return behind!(ibv_query_pkey as Query, (context, port_num, index, pkey), else -1);
    }
    or_minus("ibv_query_pkey", || {
        need(pkey, "pkey")?;
        let index = u16::try_from(index)
            .map_err(|_| VerbsError::invalid(format!("P_Key index {index} is beyond the table")))?;
        // SAFETY: a context of ours, or null; the program's word.
        unsafe { *pkey = open(context)?.verbs()?.query_pkey(port_num, index)?.0.to_be() };
        Ok(0)
    })
}

/// `ibv_get_pkey_index`, or -1.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut abi::Context, port_num: u8, pkey: u16) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, u8, u16) -> c_int;
    if foreign(context) {
        return behind!(ibv_get_pkey_index as Query, (context, port_num, pkey), else -1);
    }
    or_minus("ibv_get_pkey_index", || {
        // SAFETY: a context of ours, or null.
        let verbs = unsafe { open(context)? }.verbs()?;
        let length = verbs.query_port(port_num)?.pkey_tbl_len;
        for index in 0..length {
            if verbs.query_pkey(port_num, index)?.0.to_be() == pkey {
                return Ok(c_int::from(index));
            }
        }
        Err(VerbsError::invalid(format!("P_Key {:#06x} is not in the table of port {port_num}", u16::from_be(pkey))))
    })
}

/// The operation `query_rt_values`: the raw clock of completion timestamps.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn query_rt_values(context: *mut abi::Context, values: *mut abi::ValuesEx) -> c_int {
    const RAW_CLOCK: u32 = 1;
    status("ibv_query_rt_values_ex", || {
        need(values, "values")?;
        // SAFETY: the program's structure.
        let values = unsafe { &mut *values };
        if values.comp_mask & !RAW_CLOCK != 0 {
            return Err(VerbsError::invalid(format!("comp_mask {:#x}: only RAW_CLOCK 1 is known", values.comp_mask)));
        }
        if values.comp_mask & RAW_CLOCK != 0 {
            // SAFETY: a context of ours, or null.
            let raw = unsafe { open(context)? }.verbs()?.query_rt_values()?;
            // A raw clock is told in its own units, as `tv_nsec` of a time without seconds.
            values.raw_clock.tv_sec = 0;
            values.raw_clock.tv_nsec = raw as i64;
        }
        Ok(())
    })
}
