//! The fabric of a scenario: nodes, links, those that differ, and what goes wrong during the run.

use super::super::time::Ps;
use super::super::topology::{Topology, Wire};
use super::super::world::Fault;
use super::file::{FaultKind, TopologyKind};
use super::{Refusal, Scenario};

impl Scenario {
    fn count(&self, value: Option<u32>, field: &str, least: u32, most: u32) -> Result<u32, Refusal> {
        let place = format!("topology.{field}");
        let value = self.need(value, &place, &format!("a number from {least} to {most}, for this kind"))?;
        self.within(value, &place, least, most)
    }

    pub(super) fn build_topology(&mut self) -> Result<(), Refusal> {
        let table = self.file.topology.clone();
        let port = table.port_delay.map_or(Ps::from_ns(300), |time| time.0);
        let cable = |metres: f64| port + Ps((metres.max(0.0) * 5_000.0) as u64);
        for (both, place) in [
            (table.delay.is_some() && table.cable_m.is_some(), "topology.cable_m"),
            (table.up_delay.is_some() && table.up_cable_m.is_some(), "topology.up_cable_m"),
        ] {
            if both {
                return Err(self.refuse(place, "a length and a delay are both given; give one"));
            }
        }
        let delay = table.delay.map(|time| time.0).or(table.cable_m.map(cable)).unwrap_or(Ps::from_ns(1_000));
        let up_delay = table.up_delay.map(|time| time.0).or(table.up_cable_m.map(cable)).unwrap_or(delay);
        let bps = table.rate.map_or(100_000_000_000, |rate| rate.0);
        let wire = Wire { bps, delay };
        let up = Wire { bps: table.up_rate.map_or(bps, |rate| rate.0), delay: up_delay };
        self.topology = match table.kind {
            TopologyKind::Star => Topology::star(self.count(table.hosts, "hosts", 2, 4_096)?, wire),
            TopologyKind::Dumbbell => Topology::dumbbell(self.count(table.hosts, "hosts", 2, 4_096)?, wire, up),
            TopologyKind::LeafSpine => Topology::leaf_spine(
                self.count(table.leaves, "leaves", 1, 4_096)?,
                self.count(table.hosts_per_leaf, "hosts_per_leaf", 1, 1_024)?,
                self.count(table.spines, "spines", 0, 1_024)?,
                wire,
                up,
            ),
            TopologyKind::FatTree => {
                let k = self.count(table.k, "k", 2, 64)?;
                if k % 2 != 0 {
                    return Err(self.refuse("topology.k", &format!("is {k}; expected an even number")));
                }
                Topology::fat_tree(k, wire, up)
            }
            TopologyKind::Rails => {
                let servers = self.count(table.servers, "servers", 1, 8_192)?;
                Topology::rails(
                    servers,
                    self.within(table.rails.unwrap_or(8), "topology.rails", 1, 64)?,
                    self.within(table.servers_per_group.unwrap_or(servers), "topology.servers_per_group", 1, servers)?,
                    self.count(table.spines, "spines", 0, 1_024)?,
                    wire,
                    up,
                )
            }
            TopologyKind::Pods => Topology::pods(
                self.count(table.pods, "pods", 1, 4_096)?,
                self.count(table.leaves, "leaves", 1, 1_024)?,
                self.count(table.hosts_per_leaf, "hosts_per_leaf", 1, 1_024)?,
                self.within(table.planes.unwrap_or(4), "topology.planes", 1, 64)?,
                self.count(table.spines, "spines", 0, 1_024)?,
                wire,
                up,
            ),
            TopologyKind::Csv => {
                let file = self.need(table.file, "topology.file", "the name of a table")?;
                let (text, shown) = self.table("topology.file", &file)?;
                Topology::from_csv(&text, &shown).map_err(Refusal)?
            }
        };
        if self.topology.hosts > 200_000 {
            return Err(self.refuse(
                "topology.kind",
                &format!("gives {} hosts; at most 200000 are modelled", self.topology.hosts),
            ));
        }
        for (index, table) in self.file.link.clone().iter().enumerate() {
            let link = self.find_link(table.host, table.a, table.b, &format!("link[{index}]"))?;
            let loss = self.part(table.loss.unwrap_or(0.0), &format!("link[{index}].loss"), 1.0)?;
            let link = &mut self.topology.links[link as usize];
            link.bps = table.rate.map_or(link.bps, |rate| rate.0);
            link.delay = table.delay.map_or(link.delay, |time| time.0);
            link.loss_e7 = (loss * 1e7).round() as u32;
        }
        Ok(())
    }

    fn find_link(&self, host: Option<u32>, a: Option<u32>, b: Option<u32>, place: &str) -> Result<u32, Refusal> {
        let found = match (host, a, b) {
            (Some(host), None, None) if host < self.topology.hosts => {
                self.topology.links.iter().position(|link| link.a == host || link.b == host)
            }
            (None, Some(a), Some(b)) => {
                self.topology.links.iter().position(|link| (link.a, link.b) == (a, b) || (link.a, link.b) == (b, a))
            }
            (Some(host), None, None) => {
                let hosts = self.topology.hosts;
                return Err(
                    self.refuse(&format!("{place}.host"), &format!("is {host}; there are {hosts} hosts from 0 on"))
                );
            }
            _ => return Err(self.refuse(&format!("{place}.host"), "expected either host, or a and b")),
        };
        match found {
            Some(link) => Ok(link as u32),
            None => Err(self.refuse(&format!("{place}.a"), "there is no such link")),
        }
    }

    pub(super) fn build_faults(&mut self) -> Result<(), Refusal> {
        for (index, table) in self.file.fault.clone().iter().enumerate() {
            let place = |field: &str| format!("fault[{index}].{field}");
            let host = || -> Result<u32, Refusal> {
                let host = self.need(table.host, &place("host"), "a host, for this kind")?;
                self.within(host, &place("host"), 0, self.topology.hosts - 1)
            };
            let link = || self.find_link(table.host, table.a, table.b, &format!("fault[{index}]"));
            let (begin, end) = match table.kind {
                FaultKind::LinkDown => {
                    let link = link()?;
                    (Fault::Link { link, up: false }, Fault::Link { link, up: true })
                }
                FaultKind::LinkUp => {
                    let link = link()?;
                    (Fault::Link { link, up: true }, Fault::Link { link, up: false })
                }
                FaultKind::Loss => {
                    let (link, loss) = (link()?, self.need(table.loss, &place("loss"), "a part from 0 to 1")?);
                    let loss = self.part(loss, &place("loss"), 1.0)?;
                    (Fault::Loss { link, loss_e7: (loss * 1e7).round() as u32 }, Fault::Loss { link, loss_e7: 0 })
                }
                FaultKind::SlowHost => {
                    let bps = self.need(table.rate, &place("rate"), "what the host takes in, such as \"20G\"")?.0;
                    if bps == 0 {
                        return Err(self.refuse(&place("rate"), "is 0: nothing would ever arrive"));
                    }
                    (Fault::SlowHost { host: host()?, bps }, Fault::SlowHost { host: host()?, bps: 0 })
                }
                FaultKind::PfcStorm => {
                    let priority = table.priority.unwrap_or(3);
                    if priority > 7 {
                        return Err(self.refuse(&place("priority"), "expected 0 to 7"));
                    }
                    let storm = |on| -> Result<Fault, Refusal> { Ok(Fault::Storm { host: host()?, priority, on }) };
                    (storm(true)?, storm(false)?)
                }
            };
            let at = table.at.0;
            let until = table.duration.map(|time| at + time.0);
            self.faults.push((at, begin));
            if let Some(until) = until {
                self.faults.push((until, end));
            }
        }
        Ok(())
    }
}
