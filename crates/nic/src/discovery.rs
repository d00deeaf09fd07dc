//! Which devices there are: one for each usable network interface (`sf0`, `sf1`, … in the order of the interfaces' indexes),
//! the loopback (`sflo`), and what the configuration adds. And what an interface means for a port: its GIDs, MTU and state.
//!
//! Pure: interfaces and options come in, plans go out. Nothing is opened here.

use std::net::IpAddr;

use scalefabric_transport::congestion::int;
use scalefabric_verbs::{DeviceInfo, Errno, Mtu, PortState, VerbsError};

use crate::netlink::Interface;
use crate::options::{Options, PortOptions};

/// Name of the loopback's device.
pub const LOOPBACK: &str = "sflo";

/// A port that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Name of its interface.
    pub interface: String,
    /// The only addresses it uses; empty: all.
    pub addresses: Vec<IpAddr>,
    /// Bytes that stand behind each packet and make the path MTU smaller: room for telemetry.
    pub reserved_bytes: u32,
}

/// A device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// What verbs say about it.
    pub info: DeviceInfo,
    /// Its ports.
    pub ports: Vec<PortPlan>,
}

/// EUI-64 of an Ethernet address, as in IPv6's interface identifiers (RFC 4291, appendix A).
pub fn eui64(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// A GUID for what has no Ethernet address: the same each time for the same host and name, different for different ones.
fn made_up_guid(host: &str, name: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in host.bytes().chain([0]).chain(name.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    // Locally administered, unicast.
    (hash & 0xfcff_ffff_ffff_ffff) | 0x0200_0000_0000_0000
}

/// What distinguishes this machine: its machine ID, or its host name.
fn host_identity() -> String {
    ["/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok().filter(|text| !text.trim().is_empty()))
        .unwrap_or_default()
}

fn guid(interface: Option<&Interface>, host: &str, name: &str) -> u64 {
    match interface.and_then(|i| i.mac) {
        Some(mac) if mac != [0; 6] => eui64(mac),
        _ => made_up_guid(host, name),
    }
}

/// All devices, in a stable order: by interface index, then the loopback, then those of the configuration.
pub fn devices(interfaces: &[Interface], options: &Options) -> Vec<DevicePlan> {
    let host = host_identity();
    let mut plans: Vec<DevicePlan> = Vec::new();
    let mut add = |name: String, ports: Vec<PortPlan>| {
        let first = interfaces.iter().find(|i| i.name == ports[0].interface);
        let configured = ports.iter().any(|p| !p.addresses.is_empty()) || ports.len() > 1;
        // Two devices may stand on one interface: only the plain one has the interface's own GUID.
        let node_guid = if configured { made_up_guid(&host, &name) } else { guid(first, &host, &name) };
        let info =
            DeviceInfo { node_guid, index: 0, interfaces: ports.iter().map(|p| p.interface.clone()).collect(), name };
        match plans.iter_mut().find(|plan| plan.info.name == info.name) {
            Some(plan) => *plan = DevicePlan { info, ports },
            None => plans.push(DevicePlan { info, ports }),
        }
    };
    if options.automatic {
        let whole =
            |i: &Interface| vec![PortPlan { interface: i.name.clone(), addresses: Vec::new(), reserved_bytes: 0 }];
        // An interface whose whole belongs to a configured device has no device of its own: both would want its addresses.
        // The others keep their numbers.
        let configured = |i: &Interface| {
            let mut ports = options.devices.iter().flat_map(|d| &d.ports);
            ports.any(|p| p.interface == i.name && p.addresses.is_empty())
        };
        for (n, interface) in interfaces.iter().filter(|i| i.is_usable() && !i.is_loopback()).enumerate() {
            if !configured(interface) {
                add(format!("sf{n}"), whole(interface));
            }
        }
        if let Some(loopback) = interfaces.iter().find(|i| i.is_loopback() && !configured(i)) {
            add(LOOPBACK.into(), whole(loopback));
        }
    }
    for device in &options.devices {
        let ports = device.ports.iter().map(|p: &PortOptions| PortPlan {
            interface: p.interface.clone(),
            addresses: p.addresses.clone(),
            reserved_bytes: 0,
        });
        add(device.name.clone(), ports.collect());
    }
    for (index, plan) in plans.iter_mut().enumerate() {
        plan.info.index = index as u32;
        // What was wrong with the configuration was said when it was read.
        if options.congestion(&plan.info.name).is_ok_and(|congestion| congestion.has_telemetry()) {
            plan.ports.iter_mut().for_each(|port| port.reserved_bytes = int::LEN as u32);
        }
    }
    // Numbers are those that a process sees which has them all.
    plans.retain(|plan| options.only.as_ref().is_none_or(|only| plan.info.name == *only));
    plans
}

/// The addresses of a port now, in the order in which a fresh GID table lists them: IPv6 link-local, IPv4, other IPv6.
pub fn addresses(plan: &PortPlan, interface: &Interface) -> Vec<IpAddr> {
    if !plan.addresses.is_empty() {
        let there = |ip: &&IpAddr| {
            interface.addresses.iter().any(|a| a.ip == **ip || (interface.is_loopback() && a.covers(**ip)))
        };
        return plan.addresses.iter().filter(there).copied().collect();
    }
    let mut all = interface.addresses.clone();
    all.sort_by_key(|a| {
        if a.is_link_local() {
            0
        } else if a.ip.is_ipv4() {
            1
        } else {
            2
        }
    });
    all.dedup_by_key(|a| a.ip);
    all.into_iter().map(|a| a.ip).collect()
}

/// What an interface makes of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Index of the interface, 0 if it is gone.
    pub ifindex: u32,
    /// Usable addresses.
    pub addresses: Vec<IpAddr>,
    /// ACTIVE or DOWN.
    pub state: PortState,
    /// The largest path MTU that fits.
    pub mtu: Mtu,
    /// Mb/s, 0 unknown.
    pub speed_mbps: u32,
}

/// What the interfaces say about a port now.
pub fn facts(plan: &PortPlan, interfaces: &[Interface]) -> PortFacts {
    match interfaces.iter().find(|i| i.name == plan.interface) {
        Some(interface) => {
            let fitting = mtu(interface.mtu.saturating_sub(plan.reserved_bytes));
            PortFacts {
                ifindex: interface.index,
                addresses: addresses(plan, interface),
                state: match (interface.is_up(), fitting) {
                    (true, Some(_)) => PortState::Active,
                    _ => PortState::Down,
                },
                mtu: fitting.unwrap_or(Mtu::Mtu256),
                speed_mbps: interface.speed_mbps().unwrap_or(0),
            }
        }
        None => {
            PortFacts { ifindex: 0, addresses: Vec::new(), state: PortState::Down, mtu: Mtu::Mtu256, speed_mbps: 0 }
        }
    }
}

/// The largest path MTU whose packets fit an interface, with the longest headers that Linux reckons with: IPv6 40, UDP 8,
/// BTH 12, XRCETH 4, AtomicETH 28, ICRC 4. `None` if not even 256 bytes fit.
pub fn mtu(interface_mtu: u32) -> Option<Mtu> {
    const HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;
    [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512, Mtu::Mtu256]
        .into_iter()
        .find(|mtu| mtu.bytes() + HEADERS <= interface_mtu)
}

/// The plan of a device by name, or an error that names those that exist.
pub fn find(plans: Vec<DevicePlan>, name: &str) -> Result<DevicePlan, VerbsError> {
    let names: Vec<_> = plans.iter().map(|p| p.info.name.as_str()).collect();
    let list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    plans.into_iter().find(|p| p.info.name == name).ok_or_else(|| {
        VerbsError::environment(
            Errno::ENODEV,
            format!("there is no device {name:?}; devices here: {list} (one for each network interface)"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Address;
    use crate::options::DeviceOptions;

    fn interface(index: u32, name: &str, kind: u16, addresses: &[&str]) -> Interface {
        let ip = |text: &&str| Address { ip: text.parse().unwrap(), prefix_len: if kind == 772 { 8 } else { 64 } };
        Interface {
            index,
            name: name.into(),
            kind,
            flags: if kind == 772 { 0x1_0009 } else { 0x1_0001 },
            mtu: 1500,
            oper_state: 6,
            mac: Some([2, 0xfc, 0, 0, 0, index as u8]),
            master: None,
            addresses: addresses.iter().map(ip).collect(),
        }
    }

    fn host() -> Vec<Interface> {
        vec![
            Interface { mac: Some([0; 6]), ..interface(1, "lo", 772, &["127.0.0.1", "::1"]) },
            interface(2, "eth0", 1, &["10.0.0.1", "fd00::1", "fe80::1"]),
            Interface { master: Some(9), ..interface(3, "slave", 1, &[]) },
            interface(4, "sit0", 776, &[]),
            interface(7, "eth1", 1, &[]),
        ]
    }

    #[test]
    fn each_usable_interface_is_a_device_and_so_is_the_loopback() {
        let plans = devices(&host(), &Options::default());
        let names: Vec<_> = plans.iter().map(|p| (p.info.name.as_str(), p.ports[0].interface.as_str())).collect();
        assert_eq!(names, [("sf0", "eth0"), ("sf1", "eth1"), ("sflo", "lo")]);
        assert_eq!(plans[0].info.node_guid, 0x00fc_00ff_fe00_0002);
        assert_ne!(plans[2].info.node_guid, 0);
        assert_eq!(plans, devices(&host(), &Options::default()), "names and GUIDs are the same each time");
        assert!(find(plans, "mlx5_0").unwrap_err().message.contains("sf0, sf1, sflo"));
    }

    #[test]
    fn a_device_with_two_ports_comes_from_the_configuration() {
        let port = |name: &str| PortOptions { interface: name.into(), addresses: vec![] };
        let pair =
            DeviceOptions { name: "pair".into(), ports: vec![port("eth0"), port("eth1")], ..DeviceOptions::default() };
        let plans = devices(&host(), &Options { devices: vec![pair], ..Options::default() });
        let names: Vec<_> = plans.iter().map(|p| p.info.name.as_str()).collect();
        assert_eq!(
            names,
            ["sflo", "pair"],
            "eth0 and eth1 have no devices of their own: both would want the addresses"
        );
        assert_eq!(plans[1].info.interfaces, ["eth0", "eth1"]);
        assert_eq!(plans[1].info.index, 1);
        assert_ne!(plans[1].info.node_guid, plans[0].info.node_guid);
    }

    #[test]
    fn an_interface_of_which_a_device_takes_one_address_keeps_its_own_device_and_the_others_their_numbers() {
        let port = |name: &str, addresses: Vec<IpAddr>| PortOptions { interface: name.into(), addresses };
        let part = DeviceOptions {
            name: "part".into(),
            ports: vec![port("eth1", vec!["10.9.9.9".parse().unwrap()])],
            ..DeviceOptions::default()
        };
        let whole =
            DeviceOptions { name: "whole".into(), ports: vec![port("eth0", vec![])], ..DeviceOptions::default() };
        let plans = devices(&host(), &Options { devices: vec![part, whole], ..Options::default() });
        let names: Vec<_> = plans.iter().map(|p| p.info.name.as_str()).collect();
        assert_eq!(names, ["sf1", "sflo", "part", "whole"]);
    }

    #[test]
    fn the_only_device_keeps_its_number() {
        let plans = devices(&host(), &Options { only: Some("sflo".into()), ..Options::default() });
        assert_eq!((plans.len(), plans[0].info.name.as_str(), plans[0].info.index), (1, "sflo", 2));
    }

    #[test]
    fn a_fresh_table_lists_link_local_then_ipv4_then_the_rest() {
        let plan = PortPlan { interface: "eth0".into(), addresses: vec![], reserved_bytes: 0 };
        let text: Vec<_> = facts(&plan, &host()).addresses.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["fe80::1", "10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn named_addresses_must_be_there_and_the_loopback_has_a_network_of_them() {
        let there = |interface: &str, ips: [&str; 2]| {
            let plan = PortPlan {
                interface: interface.into(),
                addresses: ips.map(|ip| ip.parse().unwrap()).to_vec(),
                reserved_bytes: 0,
            };
            facts(&plan, &host()).addresses.len()
        };
        assert_eq!(there("lo", ["127.0.0.2", "127.1.2.3"]), 2);
        assert_eq!(there("eth0", ["10.0.0.1", "10.0.0.2"]), 1);
        assert_eq!(there("gone", ["10.0.0.1", "10.0.0.2"]), 0);
    }

    #[test]
    fn mtu_and_its_twin_one_byte_below() {
        assert_eq!(mtu(1500), Some(Mtu::Mtu1024));
        assert_eq!(mtu(4200), Some(Mtu::Mtu4096));
        assert_eq!((mtu(4192), mtu(4191)), (Some(Mtu::Mtu4096), Some(Mtu::Mtu2048)));
        assert_eq!((mtu(352), mtu(351)), (Some(Mtu::Mtu256), None));
        assert_eq!(mtu(65536), Some(Mtu::Mtu4096));
    }

    #[test]
    fn an_interface_that_is_down_or_gone_is_a_port_that_is_down() {
        let plan = PortPlan { interface: "eth0".into(), addresses: vec![], reserved_bytes: 0 };
        assert_eq!(facts(&plan, &host()).state, PortState::Active);
        let mut down = host();
        down[1].flags = 1;
        assert_eq!(facts(&plan, &down).state, PortState::Down);
        down[1].flags = 0x1_0001;
        down[1].oper_state = 5;
        assert_eq!(facts(&plan, &down).state, PortState::Down, "dormant: waits to be authenticated");
        assert_eq!(facts(&plan, &[]).state, PortState::Down);
    }
}
