//! The fabric of a scenario: nodes, links, those that differ, and what goes wrong during the run.

use super::super::time::Ps;
use super::super::topology::{MOST_BPS, MOST_DELAY, Topology, Wire};
use super::super::world::Fault;
use super::file::{FaultKind, TopologyKind};
use super::quantity::{Speed, Time};
use super::{Refusal, Scenario};

/// A fifth of a second of fibre, m.
const MOST_CABLE_M: f64 = 40_000_000.0;

impl Scenario {
    fn count(&self, value: Option<u32>, field: &str, least: u32, most: u32) -> Result<u32, Refusal> {
        let place = format!("topology.{field}");
        let value = self.need(value, &place, &format!("a number from {least} to {most}, for this kind"))?;
        self.within(value, &place, least, most)
    }

    pub(super) fn build_topology(&mut self) -> Result<(), Refusal> {
        let table = self.file.topology.clone();
        let port = self.delay(table.port_delay, "topology.port_delay")?.unwrap_or(Ps::from_ns(300));
        for (both, place) in [
            (table.delay.is_some() && table.cable_m.is_some(), "topology.cable_m"),
            (table.up_delay.is_some() && table.up_cable_m.is_some(), "topology.up_cable_m"),
        ] {
            if both {
                return Err(self.refuse(place, "a length and a delay are both given; give one"));
            }
        }
        let cable = |metres: Option<f64>, place: &str| {
            let metres = metres.map(|metres| self.part(metres, place, MOST_CABLE_M)).transpose()?;
            Ok(metres.map(|metres| port + Ps((metres * 5_000.0) as u64)))
        };
        let delay = self.delay(table.delay, "topology.delay")?.or(cable(table.cable_m, "topology.cable_m")?);
        let up_delay = self.delay(table.up_delay, "topology.up_delay")?;
        let up_delay = up_delay.or(cable(table.up_cable_m, "topology.up_cable_m")?);
        let delay = delay.unwrap_or(Ps::from_ns(1_000));
        let bps = self.rate(table.rate, "topology.rate")?.unwrap_or(100_000_000_000);
        let wire = Wire { bps, delay };
        let up_bps = self.rate(table.up_rate, "topology.up_rate")?.unwrap_or(bps);
        let up = Wire { bps: up_bps, delay: up_delay.unwrap_or(delay) };
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
            let rate = self.rate(table.rate, &format!("link[{index}].rate"))?;
            let delay = self.delay(table.delay, &format!("link[{index}].delay"))?;
            let link = &mut self.topology.links[link as usize];
            link.bps = rate.unwrap_or(link.bps);
            link.delay = delay.unwrap_or(link.delay);
            link.loss_e7 = (loss * 1e7).round() as u32;
        }
        Ok(())
    }

    /// The rate of a link, or of a host behind it.
    pub(super) fn rate(&self, rate: Option<Speed>, place: &str) -> Result<Option<u64>, Refusal> {
        let wrong = match rate.map(|rate| rate.0) {
            Some(0) => "is 0: nothing would ever pass; expected \"1Kbps\" to \"3.2T\"".to_owned(),
            Some(bps @ 1..1_000) => format!("is {bps} b/s; expected \"1Kbps\" to \"3.2T\""),
            Some(bps) if bps > MOST_BPS => format!("is {bps} b/s; at most 3.2 Tb/s are modelled"),
            other => return Ok(other),
        };
        Err(self.refuse(place, &wrong))
    }

    fn delay(&self, delay: Option<Time>, place: &str) -> Result<Option<Ps>, Refusal> {
        match delay.map(|delay| delay.0) {
            Some(delay) if delay > MOST_DELAY => {
                Err(self.refuse(place, &format!("is {delay}; at most 1 s is modelled")))
            }
            other => Ok(other),
        }
    }

    /// What no single field shows.
    pub(super) fn check_topology(&self) -> Result<(), Refusal> {
        let table = &self.file.topology;
        let place = match (self.topology.hosts, table.spines) {
            (0 | 1, _) if table.hosts_per_leaf.is_some() => "topology.hosts_per_leaf",
            (0 | 1, _) if table.servers.is_some() => "topology.servers",
            (_, Some(0)) => "topology.spines",
            _ => "topology.kind",
        };
        self.topology.check().map_err(|wrong| self.refuse(place, &wrong.message))
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
                    let rate = self.rate(table.rate, &place("rate"))?;
                    let bps = self.need(rate, &place("rate"), "what the host takes in, such as \"20G\"")?;
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
