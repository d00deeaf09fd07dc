//! A network namespace for each node, whose interfaces lead into software switches of this process: one for each rail, joined by two links over a third. The
//! namespaces are removed by the crew; the interfaces and the switches are gone with this process.

use super::crew::Crew;
use super::keeper::Charge;
use super::plan::Plan;
use crate::demo::namespace::{ip, is_root};
use crate::failure::{During, Failure};
use scalefabric_fabric::ecmp::EcmpHash;
use scalefabric_sim::switch::Network;
use scalefabric_sim::switch::body::Forwarder;
use scalefabric_sim::switch::tun::Tun;
use std::collections::BTreeMap;

/// MTU of the interfaces: two packets of 4096 bytes fit, and a burst is not cut into many pieces.
const MTU: &str = "9000";

/// Links between the switch of a rail and the one that joins them.
const UPLINKS: u16 = 2;
/// The first of them; below are the nodes.
const FIRST_UPLINK: u16 = 100;

/// Says what is missing, before anything is started.
pub fn check() -> Result<(), Failure> {
    if is_root() {
        return Ok(());
    }
    Err(Failure::usage("--netns makes network namespaces, which needs root: run it with sudo, or leave --netns out"))
}

/// Makes them. They forward for as long as the forwarder lives.
pub fn build(plan: &Plan, crew: &mut Crew) -> Result<Forwarder, Failure> {
    let mut network = Network::new();
    let rails: Vec<_> = (1..=plan.ports)
        .map(|seed| network.add_switch(EcmpHash { seed: seed.into(), ..EcmpHash::default() }))
        .collect();
    let spine = network.add_switch(EcmpHash { seed: 0, ..EcmpHash::default() });
    for (rail, &switch) in (0..).zip(&rails) {
        for link in 0..UPLINKS {
            network.link((switch, FIRST_UPLINK + link), (spine, rail * UPLINKS + link));
        }
    }
    let mut hosts = BTreeMap::new();
    for place in 0..plan.nodes {
        let namespace = plan.namespace(place);
        crew.keep(Charge::Namespace(namespace.clone()))?;
        ip(&["netns", "add", &namespace])?;
        ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
        for (port_num, &switch) in (1..).zip(&rails) {
            let (name, address) = (plan.interface(place, port_num), plan.address(place, port_num));
            let tun = Tun::create(&name).during(|| format!("make the interface {name} (/dev/net/tun)"))?;
            ip(&["link", "set", "dev", &name, "netns", &namespace])?;
            ip(&["-n", &namespace, "address", "add", &format!("{address}/32"), "dev", &name])?;
            ip(&["-n", &namespace, "link", "set", "dev", &name, "mtu", MTU, "up"])?;
            // What leaves with a port's address leaves by its interface.
            let table = (100 + u32::from(port_num)).to_string();
            ip(&["-n", &namespace, "route", "add", "default", "dev", &name, "table", &table])?;
            ip(&["-n", &namespace, "rule", "add", "from", &address.to_string(), "lookup", &table])?;
            if port_num == 1 {
                ip(&["-n", &namespace, "route", "add", "default", "dev", &name, "src", &address.to_string()])?;
            }
            hosts.insert(network.attach((switch, place as u16), &[address]), tun);
        }
    }
    Forwarder::start(network, hosts).during(|| "start the software switches")
}
