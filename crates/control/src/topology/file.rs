//! The configuration file that says what LLDP cannot: how switches hash, how they are joined, which rail a port belongs to, and cables where there is no LLDP. It
//! reads and checks; it opens no file.

use super::report::{PortName, SwitchPort};
use scalefabric_fabric::ecmp::EcmpHash;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchEntry {
    /// Name, as LLDP says it.
    pub name: String,
    /// How it chooses among links of equal cost. Default: a stirred CRC-32 over addresses and ports, seed 0.
    #[serde(default)]
    pub hash: EcmpHash,
}

/// A link between two switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEntry {
    /// Its ends, each as `switch:port`.
    #[serde(deserialize_with = "ends")]
    pub between: [SwitchPort; 2],
    /// Speed, Gb/s. Default 100.
    #[serde(default = "hundred")]
    pub speed_gbps: u32,
}

/// A port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortEntry {
    /// Node.
    pub node: String,
    /// Device.
    pub device: String,
    /// Port, from 1. Default 1.
    #[serde(default = "one")]
    pub port: u8,
    /// Where its cable leads to, as `switch:port`; nothing: LLDP says so.
    #[serde(default, deserialize_with = "maybe_end")]
    pub switch: Option<SwitchPort>,
    /// Its rail, for fabrics that are built by rails: ports of one rail reach one another over one leaf.
    #[serde(default)]
    pub rail: Option<u32>,
}

impl PortEntry {
    /// Its name.
    pub fn name(&self) -> PortName {
        PortName { node: self.node.clone(), device: self.device.clone(), port_num: self.port }
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopologyFile {
    /// Switches.
    #[serde(rename = "switch")]
    pub switches: Vec<SwitchEntry>,
    /// Links between them.
    #[serde(rename = "link")]
    pub links: Vec<LinkEntry>,
    /// Ports of NICs.
    #[serde(rename = "port")]
    pub ports: Vec<PortEntry>,
}

impl TopologyFile {
    /// Reads and checks it. Errors name the place and the remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|e| format!("topology file: {e}"))?;
        file.check().map(|()| file)
    }

    fn check(&self) -> Result<(), String> {
        let mut switches = BTreeSet::new();
        for switch in &self.switches {
            if !switches.insert(&switch.name) {
                return Err(format!("topology file: switch `{}` stands there twice: leave one out", switch.name));
            }
        }
        let mut used = BTreeSet::new();
        let links = self.links.iter().flat_map(|link| &link.between);
        for end in links.chain(self.ports.iter().filter_map(|port| port.switch.as_ref())) {
            if !switches.contains(&end.switch) {
                return Err(format!("topology file: `{end}` names a switch that has no [[switch]] entry: add one"));
            }
            if !used.insert(end) {
                return Err(format!("topology file: two cables end in `{end}`: correct one of them"));
            }
        }
        let mut ports = BTreeSet::new();
        for port in &self.ports {
            if port.port == 0 {
                return Err(format!("topology file: port 0 of `{}/{}`: ports count from 1", port.node, port.device));
            }
            if !ports.insert(port.name()) {
                return Err(format!("topology file: port `{}` stands there twice: leave one out", port.name()));
            }
        }
        if let Some(link) = self.links.iter().find(|link| link.speed_gbps == 0) {
            return Err(format!("topology file: the link at `{}` has speed 0: leave it out", link.between[0]));
        }
        Ok(())
    }
}

fn hundred() -> u32 {
    100
}

fn one() -> u8 {
    1
}

fn end<E: serde::de::Error>(text: &str) -> Result<SwitchPort, E> {
    match text.split_once(':') {
        Some((switch, port)) if !switch.is_empty() && !port.is_empty() => {
            Ok(SwitchPort { switch: switch.into(), port: port.into() })
        }
        _ => Err(E::custom(format!("`{text}` is no end of a cable: write `switch:port`"))),
    }
}

fn ends<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[SwitchPort; 2], D::Error> {
    let [a, b] = <[String; 2]>::deserialize(deserializer)?;
    Ok([end(&a)?, end(&b)?])
}

fn maybe_end<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SwitchPort>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| end(&text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[switch]]
        name = "leaf1"
        hash = { mix = "xor16", seed = 7 }
        [[switch]]
        name = "spine1"
        [[link]]
        between = ["leaf1:49", "spine1:1"]
        speed_gbps = 400
        [[port]]
        node = "n1"
        device = "sf0"
        switch = "leaf1:1"
        rail = 0
    "#;

    #[test]
    fn a_good_file_is_read() {
        let file = TopologyFile::parse(GOOD).unwrap();
        assert_eq!(file.switches[0].hash.seed, 7);
        assert_eq!(file.links[0].between[1].to_string(), "spine1:1");
        assert_eq!(file.ports[0].name().to_string(), "n1/sf0/1");
        assert_eq!(TopologyFile::parse("").unwrap(), TopologyFile::default());
    }

    #[test]
    fn each_mistake_is_named_with_its_remedy() {
        let broken = |from: &str, to: &str| TopologyFile::parse(&GOOD.replace(from, to)).unwrap_err();
        assert!(broken("\"spine1\"", "\"leaf1\"").contains("twice"));
        assert!(broken("spine1:1", "spine2:1").contains("add one"));
        assert!(broken("leaf1:49", "leaf1:1").contains("two cables end in `leaf1:1`"));
        assert!(broken("leaf1:49", "leaf1").contains("write `switch:port`"));
        assert!(broken("= 400", "= 0").contains("speed 0"));
        assert!(broken("rail = 0", "port = 0").contains("count from 1"));
        assert!(broken("rail = 0", "rial = 0").contains("rial"));
    }
}
