//! The files of the tree: what stands where, and what is in it, as the kernel writes it (Documentation/ABI of Linux,
//! sysfs-class-infiniband).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scalefabric_verbs::{DeviceInfo, Gid, PortState};

use super::state::{self, Device, Port};

/// A thing in the tree, under its absolute path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A file with this text.
    File(String),
    /// A symbolic link to this path.
    Link(String),
    /// A character device with this number (`makedev`).
    Node(u64),
}

/// Paths and what stands there. Folders are those of the paths.
pub type Entries = BTreeMap<String, Entry>;

/// Major number of uverbs devices (IB_UVERBS_MAJOR), and the minor number of the first.
const UVERBS: (u32, u32) = (231, 192);
/// A misc device of a number that Linux leaves to programs.
const RDMA_CM: (u32, u32) = (10, 120);

/// The number of `/dev/infiniband/rdma_cm`.
pub fn rdma_cm_device() -> u64 {
    libc::makedev(RDMA_CM.0, RDMA_CM.1)
}

/// The number of a uverbs node.
pub fn uverbs_device(index: u32) -> u64 {
    libc::makedev(UVERBS.0, UVERBS.1 + index)
}

/// What does not belong to one device.
pub fn shared(into: &mut Entries) {
    let mut file = |path: &str, text: &str| into.insert(path.to_owned(), Entry::File(format!("{text}\n")));
    file("/sys/class/infiniband_verbs/abi_version", "6");
    file("/sys/class/misc/rdma_cm/abi_version", "4");
    file("/sys/class/misc/rdma_cm/dev", &format!("{}:{}", RDMA_CM.0, RDMA_CM.1));
    into.insert("/dev/infiniband/rdma_cm".to_owned(), Entry::Node(rdma_cm_device()));
}

/// A device's links in the classes, and its node.
pub fn links(device: &DeviceInfo, into: &mut Entries) {
    let (name, uverbs) = (&device.name, state::uverbs(device.index));
    let mut link = |path: String, target: String| into.insert(path, Entry::Link(target));
    link(
        format!("/sys/class/infiniband/{name}"),
        format!("../../devices/virtual/scalefabric/{name}/infiniband/{name}"),
    );
    link(
        format!("/sys/class/infiniband_verbs/{uverbs}"),
        format!("../../devices/virtual/scalefabric/{name}/infiniband_verbs/{uverbs}"),
    );
    into.insert(format!("/dev/infiniband/{uverbs}"), Entry::Node(uverbs_device(device.index)));
}

/// Everything of a device. As with hardware, the RDMA device and its node stand below the device that they belong to, which
/// for us is a virtual one; what the interface's own hardware says of its place in the machine is said there, too.
pub fn device(device: &Device, hardware: impl Fn(&str) -> Option<String>, into: &mut Entries) {
    let (name, uverbs) = (&device.name, device.uverbs());
    let top = format!("/sys/devices/virtual/scalefabric/{name}");
    let (ib, node) = (format!("{top}/infiniband/{name}"), format!("{top}/infiniband_verbs/{uverbs}"));
    let mut put = |path: String, text: &str| into.insert(path, Entry::File(format!("{text}\n")));
    put(format!("{top}/uevent"), "DRIVER=scalefabric");
    put(format!("{top}/modalias"), "platform:scalefabric");
    let fallback = |file: &str| match file {
        "numa_node" => Some("-1".to_owned()),
        "vendor" => Some(format!("0x{:04x}", device.attr.vendor_id & 0xffff)),
        "device" => Some(format!("0x{:04x}", device.attr.vendor_part_id & 0xffff)),
        _ => None,
    };
    for file in HARDWARE {
        if let Some(text) = hardware(file).or_else(|| fallback(file)) {
            put(format!("{top}/{file}"), text.trim_end());
        }
    }
    let (major, minor) = (UVERBS.0, UVERBS.1 + device.index);
    put(format!("{node}/ibdev"), name);
    put(format!("{node}/abi_version"), "1");
    put(format!("{node}/dev"), &format!("{major}:{minor}"));
    put(format!("{node}/uevent"), &format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{uverbs}\nDEVMODE=0666"));
    put(format!("{ib}/node_type"), "1: CA");
    put(format!("{ib}/node_guid"), &guid(device.attr.node_guid));
    put(format!("{ib}/sys_image_guid"), &guid(device.attr.sys_image_guid));
    put(format!("{ib}/node_desc"), name);
    put(format!("{ib}/fw_ver"), &device.attr.fw_ver);
    put(format!("{ib}/hw_rev"), &format!("{:x}", device.attr.hw_ver));
    put(format!("{ib}/hca_type"), "scaleFabric");
    put(format!("{ib}/board_id"), "scaleFabric software NIC");
    put(format!("{ib}/uevent"), &format!("NAME={name}"));
    for (number, port) in (1..).zip(&device.ports) {
        port_files(&format!("{ib}/ports/{number}"), port, &mut put);
    }
    let mut link = |path: String, target: String| into.insert(path, Entry::Link(target));
    link(format!("{ib}/device"), "../..".to_owned());
    link(format!("{node}/device"), "../..".to_owned());
    link(format!("{ib}/subsystem"), "../../../../../class/infiniband".to_owned());
    link(format!("{node}/subsystem"), "../../../../../class/infiniband_verbs".to_owned());
    for port in device.ports.iter().filter(|port| port.ifindex != 0) {
        link(format!("{top}/net/{0}", port.interface), format!("/sys/class/net/{0}", port.interface));
    }
}

/// Files of the interface's hardware that say where it is in the machine, and what it is.
pub const HARDWARE: [&str; 5] = ["numa_node", "local_cpus", "local_cpulist", "vendor", "device"];

/// True for files whose text changes all the time.
pub fn is_counter(path: &str) -> bool {
    path.contains("/counters/") || path.contains("/hw_counters/")
}

fn guid(guid: u64) -> String {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (guid >> shift) as u16);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

fn gid(gid: Gid) -> String {
    let mut text = String::with_capacity(39);
    for (index, pair) in gid.0.chunks_exact(2).enumerate() {
        let _ = write!(text, "{}{:02x}{:02x}", if index == 0 { "" } else { ":" }, pair[0], pair[1]);
    }
    text
}

fn port_files(at: &str, port: &Port, put: &mut impl FnMut(String, &str) -> Option<Entry>) {
    let is_active = port.state == PortState::Active;
    put(format!("{at}/state"), if is_active { "4: ACTIVE" } else { "1: DOWN" });
    put(format!("{at}/phys_state"), if is_active { "5: LinkUp" } else { "3: Disabled" });
    put(format!("{at}/rate"), &rate(port.width_and_speed));
    put(format!("{at}/link_layer"), "Ethernet");
    // CM_SUP and IP_BASED_GIDS.
    put(format!("{at}/cap_mask"), "0x04010000");
    for (file, text) in [("lid", "0x0"), ("lid_mask_count", "0"), ("sm_lid", "0x0"), ("sm_sl", "0"), ("has_smi", "0")] {
        put(format!("{at}/{file}"), text);
    }
    for index in 0..port.gid_table_len {
        let there = port.gids.iter().find(|(at, _)| *at == index).map(|(_, gid)| *gid);
        put(format!("{at}/gids/{index}"), &gid(there.unwrap_or(Gid::ZERO)));
        // The kernel answers EINVAL for the attributes of an empty slot: here there are none.
        if there.is_some() {
            put(format!("{at}/gid_attrs/types/{index}"), "RoCE v2");
            put(format!("{at}/gid_attrs/ndevs/{index}"), &port.interface);
        }
    }
    for (index, pkey) in port.pkeys.iter().enumerate() {
        put(format!("{at}/pkeys/{index}"), &format!("0x{:04x}", pkey.0));
    }
    for (name, value) in standard_counters(port) {
        put(format!("{at}/counters/{name}"), &value.to_string());
    }
    for (name, value) in &port.counters {
        put(format!("{at}/hw_counters/{name}"), &value.to_string());
    }
    put(format!("{at}/hw_counters/lifespan"), "10");
}

/// Counters that every port has (PortCounters and PortCountersExtended, clause 16.1.3). Data are counted in words.
fn standard_counters(port: &Port) -> [(&'static str, u64); 21] {
    let of = |name: &str| port.counter(name);
    [
        ("port_xmit_data", of("sent_bytes") / 4),
        ("port_rcv_data", of("rcvd_bytes") / 4),
        ("port_xmit_packets", of("sent_pkts")),
        ("port_rcv_packets", of("rcvd_pkts")),
        ("unicast_xmit_packets", of("sent_pkts")),
        ("unicast_rcv_packets", of("rcvd_pkts")),
        ("multicast_xmit_packets", 0),
        ("multicast_rcv_packets", 0),
        ("symbol_error", 0),
        ("link_error_recovery", 0),
        ("link_downed", of("link_downed")),
        ("port_rcv_errors", of("drop_truncated") + of("drop_bad_icrc") + of("drop_malformed")),
        ("port_rcv_remote_physical_errors", 0),
        ("port_rcv_switch_relay_errors", 0),
        ("port_xmit_discards", of("drop_egress_error")),
        ("port_xmit_constraint_errors", 0),
        ("port_rcv_constraint_errors", of("drop_bad_pkey")),
        ("local_link_integrity_errors", 0),
        ("excessive_buffer_overrun_errors", of("drop_mailbox_full")),
        ("VL15_dropped", 0),
        ("port_xmit_wait", 0),
    ]
}

/// A rate as the kernel prints it: the speed of a lane in tenths of Gb/s, its name, and how many lanes.
fn rate((width, speed): (u8, u8)) -> String {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        _ => 2,
    };
    let (tenths, name) = match speed {
        1 => (25, ""),
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        _ => (1000, " NDR"),
    };
    let all = tenths * lanes;
    let half = if all % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})", all / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::state::Port;
    use scalefabric_nic::config::default_attr;
    use scalefabric_verbs::{Mtu, PKey};

    fn one() -> Device {
        let port = Port {
            interface: "eth0".into(),
            ifindex: 2,
            state: PortState::Active,
            width_and_speed: (2, 32),
            active_mtu: Mtu::Mtu1024,
            gid_table_len: 4,
            gids: vec![(1, Gid::from_ip([10, 0, 0, 1].into()))],
            pkeys: vec![PKey::DEFAULT],
            counters: vec![("sent_bytes".into(), 400), ("drop_bad_icrc".into(), 3)],
        };
        Device { name: "sf0".into(), index: 3, attr: default_attr(0x0011_2233_4455_6677, 1), ports: vec![port] }
    }

    #[test]
    fn a_port_reads_as_the_kernel_writes_it() {
        let mut entries = Entries::new();
        device(&one(), |_| None, &mut entries);
        let info = DeviceInfo { name: "sf0".into(), index: 3, node_guid: 0, interfaces: vec![] };
        links(&info, &mut entries);
        let at = "/sys/devices/virtual/scalefabric/sf0/infiniband/sf0";
        let text = |path: &str| match &entries.get(&format!("{at}/{path}")) {
            Some(Entry::File(text)) => text.trim_end().to_owned(),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(text("node_guid"), "0011:2233:4455:6677");
        assert_eq!(text("ports/1/rate"), "100 Gb/sec (4X EDR)");
        assert_eq!(text("ports/1/state"), "4: ACTIVE");
        assert_eq!(text("ports/1/gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000");
        assert_eq!(text("ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(text("ports/1/gid_attrs/types/1"), "RoCE v2");
        assert_eq!(text("ports/1/gid_attrs/ndevs/1"), "eth0");
        assert_eq!(text("ports/1/pkeys/0"), "0xffff");
        assert_eq!(text("ports/1/counters/port_xmit_data"), "100");
        assert_eq!(text("ports/1/counters/port_rcv_errors"), "3");
        assert_eq!(text("ports/1/hw_counters/drop_bad_icrc"), "3");
        assert!(!entries.contains_key(&format!("{at}/ports/1/gid_attrs/types/0")));
        assert_eq!(entries["/dev/infiniband/uverbs3"], Entry::Node(libc::makedev(231, 195)));
        assert_eq!(entries["/sys/devices/virtual/scalefabric/sf0/net/eth0"], Entry::Link("/sys/class/net/eth0".into()));
    }

    #[test]
    fn rates_have_their_halves_and_names() {
        assert_eq!(rate((1, 1)), "2.5 Gb/sec (1X)");
        assert_eq!(rate((2, 1)), "10 Gb/sec (4X)");
        assert_eq!(rate((1, 32)), "25 Gb/sec (1X EDR)");
        assert_eq!(rate((2, 128)), "400 Gb/sec (4X NDR)");
    }
}
