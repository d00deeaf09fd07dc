//! The topology as this replica decides by it: ports with the switches at the other ends of their cables, links between switches, what somebody should look at, and the ways
//! between two nodes. It is up to two seconds old. It only looks.

use super::Failure;
use super::asked::Asked;
use crate::message::node_name;
use crate::service::Shared;
use crate::topology::{Choice, Finding, Joint, PortName, SwitchPort, Vertex, Wish};
use axum::Json;
use axum::extract::State;
use scalefabric_fabric::Path;
use scalefabric_fabric::ecmp::EcmpHash;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

/// Most ways that are told at once.
const MOST: usize = 256;

/// A port of a NIC and its cable.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = TopologyPort)]
pub struct Port {
    /// Which: node, device and number.
    #[schema(value_type = Object)]
    port: PortName,
    /// Speed, Mb/s.
    speed_mbps: u32,
    /// RoCEv2 addresses.
    #[schema(value_type = Vec<String>)]
    addresses: Vec<IpAddr>,
    /// NUMA node of its NIC.
    numa_node: Option<u32>,
    /// Rail, if the file says so.
    rail: Option<u32>,
    /// The other end of its cable; `null`: neither LLDP nor the file says.
    #[schema(value_type = Option<Object>)]
    at: Option<SwitchPort>,
    /// Number of its plane: ports of one plane reach one another by cables.
    plane: Option<u32>,
}

/// A switch.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = TopologySwitch)]
pub struct Switch {
    /// Name.
    name: String,
    /// How it chooses among links of equal cost.
    #[schema(value_type = Object)]
    hash: EcmpHash,
}

/// A link between two switches.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = TopologyLink)]
pub struct Link {
    /// Its ends.
    #[schema(value_type = Vec<Object>)]
    between: [SwitchPort; 2],
    /// Speed, Mb/s.
    speed_mbps: u32,
}

/// Something that somebody should look at.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = TopologyFinding)]
pub struct Remark {
    /// What, and what to do.
    text: String,
    /// The same for programs.
    #[schema(value_type = Object)]
    #[serde(flatten)]
    finding: Finding,
}

/// The topology.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Topology)]
pub struct Seen {
    /// Ports in order of name.
    ports: Vec<Port>,
    /// Switches in order of name.
    switches: Vec<Switch>,
    /// Links between switches.
    links: Vec<Link>,
    /// What somebody should look at.
    findings: Vec<Remark>,
}

/// Ports, switches and cables: from LLDP where agents hear it, else from their configuration and the topology file.
#[utoipa::path(get, path = "/v1/topology", responses((status = 200, description = "The topology", body = Seen)))]
pub async fn look(State(shared): State<Arc<Shared>>) -> Json<Seen> {
    let topology = shared.rebalancing.topology();
    let graph = topology.graph();
    let (mut ports, mut switches) = (Vec::new(), Vec::new());
    for vertex in graph.node_weights() {
        match vertex {
            Vertex::Port { name, report, numa_node, rail } => ports.push(Port {
                port: name.clone(),
                speed_mbps: report.speed_mbps,
                addresses: report.addresses.clone(),
                numa_node: *numa_node,
                rail: *rail,
                at: topology.cable(name).cloned(),
                plane: topology.plane(name),
            }),
            Vertex::Switch { name, hash } => switches.push(Switch { name: name.clone(), hash: *hash }),
            Vertex::Node { .. } | Vertex::Nic { .. } => {}
        }
    }
    ports.sort_by(|a, b| a.port.cmp(&b.port));
    switches.sort_by(|a, b| a.name.cmp(&b.name));
    let link = |joint: &Joint| match joint {
        Joint::Trunk { ends, speed_mbps } => Some(Link { between: ends.clone(), speed_mbps: *speed_mbps }),
        _ => None,
    };
    let mut links: Vec<Link> = graph.edge_weights().filter_map(link).collect();
    links.sort_by(|a, b| a.between.cmp(&b.between));
    let remark = |finding: &Finding| Remark { text: finding.to_string(), finding: finding.clone() };
    let findings = topology.findings().iter().map(remark).collect();
    Json(Seen { ports, switches, links, findings })
}

/// Which ways.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichWays {
    /// Node where they begin.
    from: String,
    /// Node where they end.
    to: String,
    /// Near this NUMA node first.
    numa_node: Option<u32>,
    /// Only IPv6 with `true`, only IPv4 with `false`. Default: what both have.
    ipv6: Option<bool>,
    /// DSCP of the paths, 0 to 63. Default 0.
    dscp: Option<u8>,
    /// At most so many, 1 to 256. Default 16.
    limit: Option<usize>,
}

/// A way, and what verbs are told so that packets take it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Way)]
pub struct Led {
    /// Port where it begins.
    #[schema(value_type = Object)]
    from: PortName,
    /// Port where it ends.
    #[schema(value_type = Object)]
    to: PortName,
    /// Switch ports by which it leaves each switch; none: no cable of it is known, and IP finds the way or not.
    #[schema(value_type = Vec<Object>)]
    exits: Vec<SwitchPort>,
    /// Speed of its slowest cable, Mb/s.
    speed_mbps: u32,
    /// Device, port, addresses, flow label (from which the UDP source port follows) and DSCP.
    #[schema(value_type = Object)]
    path: Path,
}

/// Ways of equal cost between two nodes, the best first: on one rail, near the wished NUMA node, over few switches, fast.
#[utoipa::path(get, path = "/v1/topology/paths", params(WhichWays), responses(
    (status = 200, description = "Ways; none: no two ports of the nodes reach one another", body = Vec<Led>),
    (status = 404, description = "No agent of one of the nodes lives", body = Failure)
))]
pub async fn paths(
    State(shared): State<Arc<Shared>>,
    Asked(which): Asked<WhichWays>,
) -> Result<Json<Vec<Led>>, Failure> {
    for node in [&which.from, &which.to] {
        node_name(node).map_err(|error| Failure::bad(error.to_string()))?;
        if shared.index.node(node).is_none() {
            return Err(Failure::not_found(format!("no agent of a node {node:?} lives")));
        }
    }
    let dscp = which.dscp.unwrap_or(0);
    if dscp > 63 {
        return Err(Failure::bad("dscp: 0 to 63"));
    }
    let limit = which.limit.unwrap_or(16);
    if !(1..=MOST).contains(&limit) {
        return Err(Failure::bad(format!("limit: 1 to {MOST}")));
    }
    let wish = Wish { numa_node: which.numa_node, peer_numa_node: None, dscp, ipv6: which.ipv6 };
    let topology = shared.rebalancing.topology();
    // Among hundreds of links that is work: look-ups do not wait for it.
    let found = tokio::task::spawn_blocking(move || topology.paths(&which.from, &which.to, &wish)).await;
    let found = found.map_err(|_| Failure::unavailable("the ways could not be found: try again"))?;
    let led = |Choice { way, path }: Choice| Led {
        from: way.from,
        to: way.to,
        exits: way.exits,
        speed_mbps: way.speed_mbps,
        path,
    };
    Ok(Json(found.into_iter().take(limit).map(led).collect()))
}
