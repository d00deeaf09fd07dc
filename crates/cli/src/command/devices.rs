//! `sfab devices`: what `ibv_devinfo -v` shows, field by field, for the software NIC.

use crate::command::gids::groups;
use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use crate::terminal::say;
use clap::Args;
use scalefabric_verbs::{Context, DeviceAttr, GidEntry, Mtu, OdpCaps, OdpTransport, PortAttr, PortState};
use serde_json::{Map, Value, json};

/// Devices with their limits, ports and GIDs, as ibv_devinfo -v shows them.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sfab devices\n  sfab devices --device sf0 --json\n  sfab devices --list\n  sfab devices --personality connectx-6"
)]
pub struct Options {
    /// Only this device
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Only names and interfaces, one line a device; opens nothing
    #[arg(long, conflicts_with = "device")]
    list: bool,
    /// As this other NIC would look; see sfab personalities
    #[arg(long, value_name = "NAME")]
    personality: Option<String>,
    /// JSON instead of lines
    #[arg(long)]
    json: bool,
}

/// Names of the bits of `device_cap_flags` (`enum ibv_device_cap_flags`).
const CAPABILITIES: &[(u32, &str)] = &[
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (29, "MANAGED_FLOW_STEERING"),
];

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.list {
        return list(options.json);
    }
    let mut all = Vec::new();
    let personality = options.personality.clone();
    let software = SoftwareOptions { personality, ..SoftwareOptions::default() };
    for context in software::open_all(&software, options.device.as_deref())? {
        let described = describe(context.as_ref())?;
        if options.json {
            all.push(described);
        } else {
            say!("hca_id:\t{}", context.device().name);
            show(&described, 1);
            say!("");
        }
    }
    if options.json {
        say!("{:#}", Value::from(all));
    }
    Ok(())
}

fn list(as_json: bool) -> Result<(), Failure> {
    let devices = software::provider(&SoftwareOptions::default())?.devices().during(|| "list the devices")?;
    if as_json {
        let devices = devices.iter().map(|d| json!({ "name": d.name, "interfaces": d.interfaces }));
        say!("{:#}", devices.collect::<Value>());
        return Ok(());
    }
    for device in devices {
        say!("{:<16} {}", device.name, device.interfaces.join(" "));
    }
    Ok(())
}

/// One device as an ordered tree; text and JSON are two views of it.
fn describe(context: &dyn Context) -> Result<Value, Failure> {
    let info = context.device();
    let name = &info.name;
    let attr = context.query_device().during(|| format!("query device {name}"))?;
    let gids = context.query_gid_table().during(|| format!("read the GID table of {name}"))?;
    let mut ports = Vec::new();
    for port_num in 1..=attr.phys_port_cnt {
        let port = context.query_port(port_num).during(|| format!("query port {port_num} of {name}"))?;
        let pkey = context.query_pkey(port_num, 0).during(|| format!("read P_Key 0 of port {port_num} of {name}"))?;
        let interface = info.interfaces.get(usize::from(port_num) - 1).cloned().unwrap_or_default();
        let mut fields = port_fields(port_num, &interface, &port, pkey.0, &gids);
        if let (Some(sockets), Value::Object(fields)) = (software::sockets(context, port_num), &mut fields) {
            fields.insert("sockets".to_owned(), sockets.into());
        }
        if let Value::Object(fields) = &mut fields {
            for index in 1..port.pkey_tbl_len {
                let pkey = context.query_pkey(port_num, index).during(|| format!("read P_Key {index} of {name}"))?;
                if pkey.0 != 0 {
                    fields.insert(format!("PKey[{index:>3}]"), json!(format!("{:#06x}", pkey.0)));
                }
            }
        }
        ports.push(fields);
    }
    let mut fields = device_fields(&attr);
    fields.insert("hca_id".to_owned(), json!(name));
    if let Some(same_host) = software::same_host(context) {
        fields.insert("same_host".to_owned(), same_host);
    }
    fields.insert("ports".to_owned(), ports.into());
    Ok(fields.into())
}

fn guid(value: u64) -> String {
    groups(u128::from(value).to_be_bytes())[20..].to_owned()
}

fn device_fields(attr: &DeviceAttr) -> Map<String, Value> {
    let fields = [
        ("transport", json!("InfiniBand (0)")),
        ("fw_ver", json!(attr.fw_ver)),
        ("node_guid", json!(guid(attr.node_guid))),
        ("sys_image_guid", json!(guid(attr.sys_image_guid))),
        ("vendor_id", json!(format!("{:#06x}", attr.vendor_id))),
        ("vendor_part_id", json!(attr.vendor_part_id)),
        ("hw_ver", json!(format!("{:#X}", attr.hw_ver))),
        ("phys_port_cnt", json!(attr.phys_port_cnt)),
        ("max_mr_size", json!(format!("{:#x}", attr.max_mr_size))),
        ("page_size_cap", json!(format!("{:#x}", attr.page_size_cap))),
        ("max_qp", json!(attr.max_qp)),
        ("max_qp_wr", json!(attr.max_qp_wr)),
        ("device_cap_flags", json!(format!("{:#010x}", attr.device_cap_flags))),
        ("capabilities", json!(capabilities(attr.device_cap_flags))),
        ("max_sge", json!(attr.max_sge)),
        ("max_sge_rd", json!(attr.max_sge_rd)),
        ("max_cq", json!(attr.max_cq)),
        ("max_cqe", json!(attr.max_cqe)),
        ("max_mr", json!(attr.max_mr)),
        ("max_pd", json!(attr.max_pd)),
        ("max_qp_rd_atom", json!(attr.max_qp_rd_atom)),
        ("max_ee_rd_atom", json!(attr.max_ee_rd_atom)),
        ("max_res_rd_atom", json!(attr.max_res_rd_atom)),
        ("max_qp_init_rd_atom", json!(attr.max_qp_init_rd_atom)),
        ("max_ee_init_rd_atom", json!(attr.max_ee_init_rd_atom)),
        (
            "atomic_cap",
            json!(format!("ATOMIC_{} ({})", format!("{:?}", attr.atomic_cap).to_uppercase(), attr.atomic_cap as u32)),
        ),
        ("max_ee", json!(attr.max_ee)),
        ("max_rdd", json!(attr.max_rdd)),
        ("max_mw", json!(attr.max_mw)),
        ("max_raw_ipv6_qp", json!(attr.max_raw_ipv6_qp)),
        ("max_raw_ethy_qp", json!(attr.max_raw_ethy_qp)),
        ("max_mcast_grp", json!(attr.max_mcast_grp)),
        ("max_mcast_qp_attach", json!(attr.max_mcast_qp_attach)),
        ("max_total_mcast_qp_attach", json!(attr.max_total_mcast_qp_attach)),
        ("max_ah", json!(attr.max_ah)),
        ("max_fmr", json!(attr.max_fmr)),
        ("max_map_per_fmr", json!(attr.max_map_per_fmr)),
        ("max_srq", json!(attr.max_srq)),
        ("max_srq_wr", json!(attr.max_srq_wr)),
        ("max_srq_sge", json!(attr.max_srq_sge)),
        ("max_pkeys", json!(attr.max_pkeys)),
        ("local_ca_ack_delay", json!(attr.local_ca_ack_delay)),
        ("max_inline_data", json!(attr.max_inline_data)),
        ("num_comp_vectors", json!(attr.num_comp_vectors)),
        ("max_dm_size", json!(attr.max_dm_size)),
        ("odp", json!(on_demand(&attr.odp))),
        ("hca_core_clock", json!(format!("{} kHz", attr.hca_core_clock))),
        ("completion_timestamp_mask", json!(format!("{:#x}", attr.completion_timestamp_mask))),
        ("max_cq_count", json!(attr.max_cq_count)),
        ("max_cq_period", json!(attr.max_cq_period)),
        ("rate_limit_kbps", json!(format!("{} to {}", attr.rate_limit_min, attr.rate_limit_max))),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What on-demand paging can do, a line for each transport.
fn on_demand(odp: &OdpCaps) -> Vec<String> {
    let names = |flags: OdpTransport| flags.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
    let general = odp.general.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
    let parts = [
        ("general", general),
        ("rc", names(odp.rc)),
        ("uc", names(odp.uc)),
        ("ud", names(odp.ud)),
        ("xrc", names(odp.xrc)),
    ];
    parts.map(|(name, flags)| format!("odp {name}: {}", if flags.is_empty() { "no support" } else { &flags })).into()
}

fn port_fields(port_num: u8, interface: &str, port: &PortAttr, pkey: u16, gids: &[GidEntry]) -> Value {
    let of_port = gids.iter().filter(|entry| entry.port_num == port_num);
    let gids: Vec<String> =
        of_port.map(|entry| format!("GID[{:3}]: {}, RoCE v2", entry.gid_index, groups(entry.gid.0))).collect();
    json!({
        "port": port_num,
        "interface": interface,
        "state": state(port.state),
        "max_mtu": mtu(port.max_mtu),
        "active_mtu": mtu(port.active_mtu),
        "sm_lid": port.sm_lid,
        "port_lid": port.lid,
        "port_lmc": format!("{:#04x}", port.lmc),
        "link_layer": if port.link_layer == 2 { "Ethernet" } else { "Unspecified" },
        "max_msg_sz": format!("{:#x}", port.max_msg_sz),
        "port_cap_flags": format!("{:#010x}", port.port_cap_flags),
        "port_cap_flags2": format!("{:#06x}", port.port_cap_flags2),
        "max_vl_num": port.max_vl_num,
        "bad_pkey_cntr": format!("{:#x}", port.bad_pkey_cntr),
        "qkey_viol_cntr": format!("{:#x}", port.qkey_viol_cntr),
        "sm_sl": port.sm_sl,
        "pkey_tbl_len": port.pkey_tbl_len,
        "gid_tbl_len": port.gid_tbl_len,
        "subnet_timeout": port.subnet_timeout,
        "init_type_reply": port.init_type_reply,
        "active_width": width(port.active_width),
        "active_speed": format!("{} Gbps ({})", f64::from(port.active_speed_ex) / 1000.0, port.active_speed),
        "phys_state": phys_state(port.phys_state),
        "PKey[  0]": format!("{pkey:#06x}"),
        "gids": gids,
    })
}

fn capabilities(flags: u32) -> Vec<String> {
    let named = CAPABILITIES.iter().filter(|(bit, _)| flags & (1 << bit) != 0);
    named.map(|(_, name)| (*name).to_owned()).collect()
}

fn state(state: PortState) -> String {
    let name = match state {
        PortState::Nop => "NOP",
        PortState::Down => "DOWN",
        PortState::Init => "INIT",
        PortState::Armed => "ARMED",
        PortState::Active => "ACTIVE",
        PortState::ActiveDefer => "ACTIVE_DEFER",
    };
    format!("PORT_{name} ({})", state as u32)
}

fn mtu(mtu: Mtu) -> String {
    format!("{} ({})", mtu.bytes(), mtu as u32)
}

fn width(width: u8) -> String {
    let lanes = match width {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "?",
    };
    format!("{lanes}X ({width})")
}

fn phys_state(state: u8) -> String {
    let name = match state {
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        4 => "PORT_CONFIGURATION_TRAINNING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVERY",
        7 => "PHY_TEST",
        _ => "invalid physical state",
    };
    format!("{name} ({state})")
}

/// Prints the tree with tabs, as ibv_devinfo does.
fn show(value: &Value, depth: usize) {
    let tabs = "\t".repeat(depth);
    let Value::Object(fields) = value else { return };
    for (name, field) in fields {
        match (name.as_str(), field) {
            ("hca_id" | "port", _) => {}
            ("same_host", same_host) => {
                say!("{tabs}{:<28}{}", "same_host:", path_told(same_host));
                same_host_lines(same_host).iter().for_each(|line| say!("{tabs}\t{line}"));
            }
            ("ports", Value::Array(ports)) => {
                for port in ports {
                    say!("{tabs}\tport:\t{}", port["port"]);
                    show(port, depth + 2);
                }
            }
            (_, Value::Array(lines)) => lines.iter().for_each(|line| say!("{tabs}\t{}", plain(line))),
            _ => say!("{tabs}{:<28}{}", format!("{name}:"), plain(field)),
        }
    }
}

/// A process's way to QPs of this host.
fn path_told(way: &Value) -> String {
    match (way["path"].as_str(), way["because"].as_str()) {
        (Some("wire"), Some(why)) => format!("wire: {why}"),
        (Some("direct"), _) => "direct: the requester executes one-sided requests; others are packets".to_owned(),
        _ => "unknown: it did not answer within 100 ms; is it stopped?".to_owned(),
    }
}

/// Each process that has the device open: its way, and what of the others it reaches only by packets.
fn same_host_lines(same_host: &Value) -> Vec<String> {
    let who = |one: &Value| match (one["pid"].as_u64(), one["slot"].as_u64().unwrap_or_default()) {
        (Some(pid), slot) => format!("process {pid} (slot {slot})"),
        (None, slot) => format!("slot {slot}"),
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let refusals = |of: &str, way: &Value, lines: &mut Vec<String>| {
        for other in list(&way["neighbours"]) {
            for (key, what) in [("no_mapping", "memory of the NIC"), ("no_process_vm", "other memory")] {
                if let Some(why) = other[key].as_str() {
                    lines.push(format!("{of}{what} of {} by packets: {why}", who(&other)));
                }
            }
        }
    };
    let mut lines = Vec::new();
    refusals("", same_host, &mut lines);
    for process in list(&same_host["processes"]) {
        let (name, way) = (who(&process), &process["same_host"]);
        let comm = process["comm"].as_str().filter(|comm| !comm.is_empty()).unwrap_or("?");
        lines.push(format!("{name}, {comm}: {}", path_told(way)));
        refusals(&format!("{name}: "), way, &mut lines);
    }
    lines
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_four_groups() {
        assert_eq!(guid(0x0200_0000_0000_0001), "0200:0000:0000:0001");
    }

    #[test]
    fn the_way_to_this_host_of_each_process_is_a_line() {
        let other = json!({ "slot": 1, "pid": 70, "no_mapping": null, "no_process_vm": "Operation not permitted" });
        let direct = json!({ "path": "direct", "because": null, "neighbours": [other] });
        let wire = json!({ "path": "wire", "because": "faults happen to packets", "neighbours": [] });
        let processes = json!([
            { "slot": 1, "pid": 70, "comm": "rping", "same_host": wire },
            { "slot": 2, "pid": null, "comm": "", "same_host": direct.clone() },
            { "slot": 3, "pid": 71, "comm": "x", "same_host": null },
        ]);
        let mut same_host = direct;
        same_host["processes"] = processes;
        let lines = same_host_lines(&same_host);
        assert_eq!(lines[0], "other memory of process 70 (slot 1) by packets: Operation not permitted");
        assert_eq!(lines[1], "process 70 (slot 1), rping: wire: faults happen to packets");
        assert!(lines[2].starts_with("slot 2, ?: direct"), "{}", lines[2]);
        assert_eq!(lines[3], "slot 2: other memory of process 70 (slot 1) by packets: Operation not permitted");
        assert!(lines[4].contains("did not answer") && lines.len() == 5, "{lines:?}");
    }

    #[test]
    fn each_capability_bit_has_one_name() {
        assert_eq!(capabilities(1 << 20 | 1 << 24), ["XRC", "MEM_WINDOW_TYPE_2B"]);
        let mut bits: Vec<u32> = CAPABILITIES.iter().map(|(bit, _)| *bit).collect();
        bits.dedup();
        assert_eq!(bits.len(), CAPABILITIES.len());
    }
}
