//! Messages of the protocol into the fabric's words and back. What comes from outside is checked here, once: whoever holds a
//! [`ConnectionRecord`] that came through this file need not ask whether its DSCP has 6 bits.

use crate::proto::control as proto;
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{
    ConnectionId, ConnectionRecord, ConnectionState, FencingToken, Holdings, Order, OrderResult, ServiceAddress,
};
use scalefabric_verbs::Gid;
use std::collections::BTreeMap;
use std::fmt;

/// Longest name of a node, tenant, service, device or origin, bytes.
pub const MAX_NAME: usize = 255;
/// Most alternatives of a connection, and paths of a service.
pub const MAX_PATHS: usize = 64;

/// What is wrong with a message, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for tonic::Status {
    fn from(malformed: Malformed) -> Self {
        Self::invalid_argument(malformed.0)
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(why.into()))
}

/// A name that somebody chose: no control characters, not too long; empty only where that means none.
pub fn name(what: &str, text: &str, may_be_empty: bool) -> Result<String, Malformed> {
    if text.len() > MAX_NAME || text.chars().any(char::is_control) || (text.is_empty() && !may_be_empty) {
        let least = u8::from(!may_be_empty);
        return wrong(format!("{what}: {least} to {MAX_NAME} bytes without control characters, not {text:?}"));
    }
    Ok(text.to_owned())
}

/// A node's name: a DNS label or several, so that a certificate can be for it.
pub fn node_name(text: &str) -> Result<String, Malformed> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let ends = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let fits = !bytes.is_empty()
        && bytes.len() <= 63
        && bytes.iter().all(|byte| good(*byte))
        && bytes.first().is_some_and(|byte| ends(*byte))
        && bytes.last().is_some_and(|byte| ends(*byte));
    if fits {
        Ok(text.to_owned())
    } else {
        wrong(format!(
            "a node is called {text:?}; a name has 1 to 63 of a-z, 0-9, `.` and `-` and begins and ends with a letter or digit"
        ))
    }
}

fn gid(bytes: &[u8]) -> Result<Gid, Malformed> {
    match bytes.try_into() {
        Ok(bytes) => Ok(Gid(bytes)),
        Err(_) => wrong(format!("a GID of {} bytes; it has 16", bytes.len())),
    }
}

/// A number of fewer bits than the protocol's field.
fn bits(what: &str, value: u32, bits: u32) -> Result<u32, Malformed> {
    if u64::from(value) < 1 << bits { Ok(value) } else { wrong(format!("{what} is {value}; it has {bits} bits")) }
}

/// Reads a path.
pub fn path(path: &proto::Path) -> Result<Path, Malformed> {
    let port_num = match u8::try_from(path.port_num) {
        Ok(port_num @ 1..) => port_num,
        _ => return wrong(format!("port {}; ports count from 1 to 255", path.port_num)),
    };
    Ok(Path {
        device: name("device", &path.device, false)?,
        port_num,
        sgid: gid(&path.sgid)?,
        dgid: gid(&path.dgid)?,
        flow_label: bits("flow_label", path.flow_label, 20)?,
        dscp: bits("dscp", path.dscp, 6)? as u8,
    })
}

/// Writes a path.
pub fn path_message(path: &Path) -> proto::Path {
    proto::Path {
        device: path.device.clone(),
        port_num: path.port_num.into(),
        sgid: path.sgid.0.to_vec(),
        dgid: path.dgid.0.to_vec(),
        flow_label: path.flow_label,
        dscp: path.dscp.into(),
    }
}

fn paths(paths: &[proto::Path]) -> Result<Vec<Path>, Malformed> {
    if paths.len() > MAX_PATHS {
        return wrong(format!("{} paths; at most {MAX_PATHS}", paths.len()));
    }
    paths.iter().map(path).collect()
}

/// Reads a connection's name.
pub fn connection_id(id: Option<&proto::ConnectionId>) -> Result<ConnectionId, Malformed> {
    let Some(id) = id else { return wrong("a connection without its id") };
    Ok(ConnectionId { origin: name("origin", &id.origin, false)?, serial: id.serial })
}

/// Writes a connection's name.
pub fn connection_id_message(id: &ConnectionId) -> proto::ConnectionId {
    proto::ConnectionId { origin: id.origin.clone(), serial: id.serial }
}

/// Reads a connection.
pub fn connection(message: &proto::Connection) -> Result<ConnectionRecord, Malformed> {
    let Some(in_use) = &message.path else { return wrong("a connection without its path") };
    let state = match message.state() {
        proto::ConnectionState::Connecting => ConnectionState::Connecting,
        proto::ConnectionState::Up => ConnectionState::Up,
        proto::ConnectionState::Moving => ConnectionState::Moving,
        proto::ConnectionState::Rebuilding => ConnectionState::Rebuilding,
        proto::ConnectionState::Closed => ConnectionState::Closed,
        proto::ConnectionState::Unspecified => return wrong(format!("state {} of a connection", message.state)),
    };
    Ok(ConnectionRecord {
        id: connection_id(message.id.as_ref())?,
        tenant: name("tenant", &message.tenant, true)?,
        service: name("service", &message.service, true)?,
        qp_num: bits("qp_num", message.qp_num, 24)?,
        peer_qp_num: bits("peer_qp_num", message.peer_qp_num, 24)?,
        path: path(in_use)?,
        alternatives: paths(&message.alternatives)?,
        state,
        generation: message.generation,
    })
}

/// Writes a connection.
pub fn connection_message(record: &ConnectionRecord) -> proto::Connection {
    let state = match record.state {
        ConnectionState::Connecting => proto::ConnectionState::Connecting,
        ConnectionState::Up => proto::ConnectionState::Up,
        ConnectionState::Moving => proto::ConnectionState::Moving,
        ConnectionState::Rebuilding => proto::ConnectionState::Rebuilding,
        ConnectionState::Closed => proto::ConnectionState::Closed,
    };
    proto::Connection {
        id: Some(connection_id_message(&record.id)),
        tenant: record.tenant.clone(),
        service: record.service.clone(),
        qp_num: record.qp_num,
        peer_qp_num: record.peer_qp_num,
        path: Some(path_message(&record.path)),
        alternatives: record.alternatives.iter().map(path_message).collect(),
        state: state.into(),
        generation: record.generation,
        handle: 0,
        process: String::new(),
    }
}

/// Most tenants of a message.
pub const MAX_TENANTS: usize = 4096;

/// Reads what tenants have.
pub fn holdings(message: &proto::Holdings) -> Result<BTreeMap<String, Holdings>, Malformed> {
    if message.tenants.len() > MAX_TENANTS {
        return wrong(format!("{} tenants; at most {MAX_TENANTS}", message.tenants.len()));
    }
    let one = |one: &proto::TenantHoldings| {
        let holdings = Holdings { qps: one.qps, mrs: one.mrs, memory_bytes: one.memory };
        Ok((name("tenant", &one.tenant, false)?, holdings))
    };
    message.tenants.iter().map(one).collect()
}

/// Writes what tenants have.
pub fn holdings_message(all: &BTreeMap<String, Holdings>) -> proto::Holdings {
    let one = |(tenant, holdings): (&String, &Holdings)| proto::TenantHoldings {
        tenant: tenant.clone(),
        qps: holdings.qps,
        mrs: holdings.mrs,
        memory: holdings.memory_bytes,
    };
    proto::Holdings { tenants: all.iter().map(one).collect() }
}

/// Reads a service's address.
pub fn service(message: &proto::Service) -> Result<ServiceAddress, Malformed> {
    Ok(ServiceAddress {
        service: name("service", &message.service, false)?,
        node: node_name(&message.node)?,
        exchange: name("exchange", &message.exchange, false)?,
        paths: paths(&message.paths)?,
    })
}

/// Writes a service's address.
pub fn service_message(address: &ServiceAddress) -> proto::Service {
    proto::Service {
        service: address.service.clone(),
        node: address.node.clone(),
        exchange: address.exchange.clone(),
        paths: address.paths.iter().map(path_message).collect(),
    }
}

/// Reads an order and its name.
pub fn order(message: &proto::Order) -> Result<(String, Order), Malformed> {
    use proto::order::Order as Kind;
    let token = FencingToken(message.token);
    let order = match &message.order {
        Some(Kind::Move(asked)) => {
            let Some(to) = &asked.path else { return wrong("an order to move without its path") };
            Order::Move {
                connection: connection_id(asked.connection.as_ref())?,
                path: path(to)?,
                token,
                reason: asked.reason.clone(),
            }
        }
        Some(Kind::RotateKeys(asked)) => {
            let tenant = match asked.tenant.as_str() {
                "" => None,
                tenant => Some(name("tenant", tenant, false)?),
            };
            Order::RotateKeys { token, overlap_ms: asked.overlap_ms, tenant }
        }
        Some(Kind::Close(asked)) => {
            Order::Close { connection: connection_id(asked.connection.as_ref())?, token, reason: asked.reason.clone() }
        }
        None => return wrong("an order of a kind that this agent does not know: use the control's version of `sfab`"),
    };
    Ok((name("order", &message.id, false)?, order))
}

/// Writes an order.
pub fn order_message(id: &str, order: &Order) -> proto::Order {
    use proto::order::Order as Kind;
    let (token, kind) = match order {
        Order::Move { connection, path, token, reason } => {
            let connection = Some(connection_id_message(connection));
            (token, Kind::Move(proto::Move { connection, path: Some(path_message(path)), reason: reason.clone() }))
        }
        Order::RotateKeys { token, overlap_ms, tenant } => {
            let tenant = tenant.clone().unwrap_or_default();
            (token, Kind::RotateKeys(proto::RotateKeys { overlap_ms: *overlap_ms, tenant }))
        }
        Order::Close { connection, token, reason } => {
            let connection = Some(connection_id_message(connection));
            (token, Kind::Close(proto::Close { connection, reason: reason.clone() }))
        }
    };
    proto::Order { id: id.to_owned(), token: token.0, order: Some(kind) }
}

/// How an order ended, as control hears it: what a process answered, or that nobody was there to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answer {
    /// A process answered.
    Answered {
        /// What.
        outcome: OrderResult,
    },
    /// The connection is not there, or its process does not answer. Nothing was done that the agent knows of.
    NotHere {
        /// Why.
        reason: String,
    },
}

/// Reads an answer.
pub fn answer(message: &proto::OrderAnswer) -> Result<Answer, Malformed> {
    use proto::order_answer::Result as Kind;
    let outcome = match &message.result {
        Some(Kind::Done(done)) => OrderResult::Done { generation: done.generation, pause_us: done.pause_us },
        Some(Kind::Rotated(done)) => OrderResult::Rotated { keys: done.keys, peers: done.peers, late: done.late },
        Some(Kind::RolledBack(back)) => OrderResult::RolledBack { reason: back.reason.clone() },
        Some(Kind::Fenced(fenced)) => OrderResult::Fenced { highest: FencingToken(fenced.highest) },
        Some(Kind::NotHere(not)) => return Ok(Answer::NotHere { reason: not.reason.clone() }),
        None => return wrong("an answer that says nothing"),
    };
    Ok(Answer::Answered { outcome })
}

/// Writes an answer.
pub fn answer_message(id: &str, answer: &Answer) -> proto::OrderAnswer {
    use proto::order_answer::Result as Kind;
    let kind = match answer {
        Answer::Answered { outcome: OrderResult::Done { generation, pause_us } } => {
            Kind::Done(proto::Done { generation: *generation, pause_us: *pause_us })
        }
        Answer::Answered { outcome: OrderResult::Rotated { keys, peers, late } } => {
            Kind::Rotated(proto::Rotated { keys: *keys, peers: *peers, late: *late })
        }
        Answer::Answered { outcome: OrderResult::RolledBack { reason } } => {
            Kind::RolledBack(proto::RolledBack { reason: reason.clone() })
        }
        Answer::Answered { outcome: OrderResult::Fenced { highest } } => {
            Kind::Fenced(proto::Fenced { highest: highest.0 })
        }
        Answer::NotHere { reason } => Kind::NotHere(proto::NotHere { reason: reason.clone() }),
    };
    proto::OrderAnswer { id: id.to_owned(), result: Some(kind) }
}
