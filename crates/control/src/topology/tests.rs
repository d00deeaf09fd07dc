//! Topologies small enough to see through.

use super::*;
use scalefabric_fabric::ecmp::{EcmpHash, Flow};
use scalefabric_fabric::path::udp_source_port;
use std::collections::BTreeSet;

/// Two leaves, two spines, two cables from each leaf to each spine; two nodes a leaf with two NICs on two NUMA nodes, each on a rail.
const FILE: &str = r#"
    switch = [{ name = "leaf1", hash = { seed = 1 } }, { name = "leaf2", hash = { seed = 2 } },
              { name = "spine1", hash = { seed = 3 } }, { name = "spine2", hash = { seed = 4 } }]
    link = [{ between = ["leaf1:49", "spine1:1"] }, { between = ["leaf1:50", "spine1:2"] },
            { between = ["leaf1:51", "spine2:1"] }, { between = ["leaf1:52", "spine2:2"] },
            { between = ["leaf2:9", "spine1:9"] }, { between = ["leaf2:10", "spine1:10"] },
            { between = ["leaf2:11", "spine2:9"] }, { between = ["leaf2:12", "spine2:10"] }]
    port = [{ node = "a", device = "sf0", switch = "leaf1:1", rail = 0 }, { node = "a", device = "sf1", switch = "leaf2:1", rail = 1 },
            { node = "b", device = "sf0", switch = "leaf1:2", rail = 0 }, { node = "b", device = "sf1", switch = "leaf2:2", rail = 1 },
            { node = "c", device = "sf0", switch = "leaf2:3" }]
"#;

fn port(node: u8, device: u8) -> PortReport {
    PortReport {
        port_num: 1,
        up: true,
        speed_mbps: 100_000,
        addresses: vec![
            [10, 0, device, node].into(),
            std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, node.into()).into(),
        ],
        interface: format!("eth{device}"),
        neighbour: None,
    }
}

fn node(name: &str, number: u8, devices: u8) -> NodeReport {
    let nic = |device: u8| NicReport {
        device: format!("sf{device}"),
        numa_node: Some(device.into()),
        ports: vec![port(number, device)],
    };
    NodeReport { node: name.into(), nics: (0..devices).map(nic).collect() }
}

fn name(node: &str, device: u8) -> PortName {
    PortName { node: node.into(), device: format!("sf{device}"), port_num: 1 }
}

fn reports() -> Vec<NodeReport> {
    vec![node("a", 1, 2), node("b", 2, 2), node("c", 3, 1)]
}

fn topology() -> Topology {
    Topology::build(&TopologyFile::parse(FILE).unwrap(), &reports())
}

#[test]
fn every_way_of_equal_cost_is_found_and_its_label_leads_through_it() {
    let topology = topology();
    let (from, to) = (name("a", 0), name("c", 0));
    let ways = topology.ways(&from, &to);
    // Four cables up, and two down from each spine.
    assert_eq!(ways.len(), 8);
    let distinct: BTreeSet<_> = ways.iter().map(|way| way.exits.clone()).collect();
    assert_eq!(distinct.len(), 8);
    for way in &ways {
        let path = topology.path(way, &Wish { dscp: 26, ..Wish::default() }).unwrap();
        assert_eq!((path.device.as_str(), path.port_num, path.dscp), ("sf0", 1, 26));
        let flow = Flow::roce(path.sgid.to_ip(), path.dgid.to_ip(), udp_source_port(path.flow_label));
        // What the switches do, told from the numbers on their ports and their seeds alone.
        let up = EcmpHash { seed: 1, ..EcmpHash::default() }.choose(&flow, 4).unwrap();
        let spine = up / 2;
        let down = EcmpHash { seed: 3 + spine as u32, ..EcmpHash::default() }.choose(&flow, 2).unwrap();
        let exits: Vec<String> = way.exits.iter().map(ToString::to_string).collect();
        let expected = [format!("leaf1:{}", 49 + up), format!("spine{}:{}", spine + 1, 9 + down), "leaf2:3".into()];
        assert_eq!(exits, expected);
    }
}

#[test]
fn at_one_leaf_there_is_one_way_and_the_device_chooses_its_source_port() {
    let topology = topology();
    let ways = topology.ways(&name("a", 0), &name("b", 0));
    assert_eq!(ways.len(), 1);
    assert_eq!(ways[0].exits.iter().map(ToString::to_string).collect::<Vec<_>>(), ["leaf1:2"]);
    assert_eq!(topology.path(&ways[0], &Wish::default()).unwrap().flow_label, 0);
}

#[test]
fn the_best_ports_are_on_one_rail_and_near_the_wished_numa_node() {
    let topology = topology();
    let best = |numa_node| {
        let choices = topology.paths("a", "b", &Wish { numa_node, ..Wish::default() });
        // Two pairs on a rail over one leaf, two pairs across with 8 ways each.
        assert_eq!(choices.len(), 2 + 16);
        assert!(choices[2..].iter().all(|choice| choice.way.exits.len() == 3));
        choices[0].path.device.clone()
    };
    assert_eq!(best(None), "sf0");
    assert_eq!(best(Some(0)), "sf0");
    assert_eq!(best(Some(1)), "sf1");
}

#[test]
fn a_port_that_is_down_has_no_ways() {
    let mut reports = reports();
    reports[0].nics[0].ports[0].up = false;
    let topology = Topology::build(&TopologyFile::parse(FILE).unwrap(), &reports);
    assert_eq!(topology.ways(&name("a", 0), &name("c", 0)), []);
    assert_eq!(topology.ways(&name("a", 1), &name("c", 0)).len(), 1);
}

#[test]
fn without_cables_ip_finds_the_way_and_without_a_common_family_there_is_no_path() {
    let mut reports = reports();
    let topology = Topology::build(&TopologyFile::default(), &reports);
    let ways = topology.ways(&name("a", 0), &name("c", 0));
    assert_eq!((ways.len(), ways[0].exits.len()), (1, 0));
    assert!(topology.path(&ways[0], &Wish::default()).is_some());
    // A link-local address does not reach a global one.
    reports[2].nics[0].ports[0].addresses = vec!["fd00::3".parse().unwrap()];
    let topology = Topology::build(&TopologyFile::default(), &reports);
    assert_eq!(topology.paths("a", "c", &Wish::default()), []);
}

#[test]
fn lldp_is_believed_and_the_difference_is_found() {
    let mut reports = reports();
    let seen = SwitchPort { switch: "leaf2".into(), port: "7".into() };
    reports[0].nics[0].ports[0].neighbour = Some(seen.clone());
    let topology = Topology::build(&TopologyFile::parse(FILE).unwrap(), &reports);
    let written = SwitchPort { switch: "leaf1".into(), port: "1".into() };
    let expected = Finding::CableDiffers { port: name("a", 0), file: written, lldp: seen };
    assert_eq!(topology.findings(), [expected]);
    assert_eq!(topology.ways(&name("a", 0), &name("c", 0)).len(), 1);
}

#[test]
fn an_unknown_switch_two_at_one_port_and_twins_are_found() {
    let mut reports = reports();
    reports[0].nics[0].ports[0].neighbour = Some(SwitchPort { switch: "leaf9".into(), port: "1".into() });
    reports[1].nics[0].ports[0].neighbour = Some(SwitchPort { switch: "leaf9".into(), port: "1".into() });
    reports[1].nics[1].ports[0].addresses = reports[0].nics[1].ports[0].addresses.clone();
    reports.push(node("c", 9, 1));
    let topology = Topology::build(&TopologyFile::default(), &reports);
    let text: Vec<String> = topology.findings().iter().map(ToString::to_string).collect();
    let has = |part: &str| text.iter().any(|line| line.contains(part));
    assert!(has("leaf9 is not in the topology file"), "{text:?}");
    assert!(has("a/sf0/1 and b/sf0/1 both say that they are at leaf9:1"), "{text:?}");
    assert!(has("a/sf1/1 and b/sf1/1 both have 10.0.1.1"), "{text:?}");
    assert!(has("two agents call themselves c"), "{text:?}");
}

#[test]
fn planes_are_what_cables_join() {
    let text =
        FILE.replace("{ between = [\"leaf2:9\", \"spine1:9\"] }, { between = [\"leaf2:10\", \"spine1:10\"] },", "");
    let text =
        text.replace("{ between = [\"leaf2:11\", \"spine2:9\"] }, { between = [\"leaf2:12\", \"spine2:10\"] }", "");
    let topology = Topology::build(&TopologyFile::parse(&text).unwrap(), &reports());
    assert_eq!(topology.plane(&name("a", 0)), Some(0));
    assert_eq!(topology.plane(&name("a", 1)), Some(1));
    assert_eq!(topology.plane(&name("b", 1)), Some(1));
    assert_eq!(topology.ways(&name("a", 0), &name("c", 0)), []);
    assert_eq!(self::topology().plane(&name("a", 1)), Some(0));
}

#[test]
fn switches_count_their_ports_as_people_do() {
    let mut names = ["swp10", "swp2", "swp2s10", "swp2s9", "eth1"];
    names.sort_by_key(|name| natural(name));
    assert_eq!(names, ["eth1", "swp2", "swp2s9", "swp2s10", "swp10"]);
}
