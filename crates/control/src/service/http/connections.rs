//! Looking connections up.

use super::Failure;
use super::asked::Asked;
use crate::directory::{Located, Query};
use crate::load::ConnectionLoad;
use crate::rebalance::node_of;
use crate::service::Shared;
use axum::Json;
use axum::extract::State;
use scalefabric_fabric::directory::ConnectionId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Which connections; all that is given must fit.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// Node that has an end of it.
    node: Option<String>,
    /// QP number at that end, decimal or 0x….
    qp_num: Option<String>,
    /// Tenant; empty: none.
    tenant: Option<String>,
    /// Service that it was made for.
    service: Option<String>,
    /// Device of the path in use.
    device: Option<String>,
    /// Port of the path in use, from 1.
    port_num: Option<u8>,
    /// The one that this process made, such as `node3/4711`; with `serial`, alone or with `node`.
    origin: Option<String>,
    /// Its number.
    serial: Option<u64>,
    /// At most so many, 1 to 10000. Default 100.
    limit: Option<usize>,
    /// Begin after this: `next` of the page before.
    after: Option<String>,
}

/// A page of connections.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Page {
    /// Records, each with its node and process, and with `load` if its agent speaks of it: the 64 busiest of each node.
    #[schema(value_type = Vec<Object>)]
    connections: Vec<Value>,
    /// Give it as `after` for the next page; none: this is the last.
    next: Option<String>,
    /// Revision of the store that the page shows at least.
    revision: u64,
}

/// Connections by node, QP number, tenant, service and port.
#[utoipa::path(get, path = "/v1/connections", params(Which), responses(
    (status = 200, description = "A page, in order of node and process", body = Page),
    (status = 400, description = "A parameter is wrong", body = Failure)
))]
pub async fn find(State(shared): State<Arc<Shared>>, Asked(which): Asked<Which>) -> Result<Json<Page>, Failure> {
    let qp_num = which.qp_num.as_deref().map(number).transpose()?;
    if which.port_num == Some(0) {
        return Err(Failure::bad("port_num: 1 to 255"));
    }
    if which.limit.is_some_and(|limit| !(1..=crate::directory::MAX_LIMIT).contains(&limit)) {
        return Err(Failure::bad(format!("limit: 1 to {}", crate::directory::MAX_LIMIT)));
    }
    if let (Some(origin), Some(serial)) = (&which.origin, which.serial) {
        let id = ConnectionId { origin: origin.clone(), serial };
        let node = which.node.as_deref().filter(|node| !node.is_empty()).unwrap_or(node_of(&id));
        let ends = shared.index.ends(node, &id);
        let revision = shared.index.revision().0;
        return Ok(Json(Page { connections: with_loads(&shared, &ends), next: None, revision }));
    }
    if which.origin.is_some() || which.serial.is_some() {
        return Err(Failure::bad("a connection has an `origin` and a `serial`: give both or none"));
    }
    let found = shared.index.find(&Query {
        node: which.node,
        qp_num,
        tenant: which.tenant,
        service: which.service,
        device: which.device,
        port_num: which.port_num,
        limit: which.limit.unwrap_or_default(),
        after: which.after.unwrap_or_default(),
    });
    let connections = with_loads(&shared, &found.connections);
    Ok(Json(Page { connections, next: found.next, revision: found.revision.0 }))
}

/// Ends with what they carry, as far as their agents speak of it.
fn with_loads(shared: &Shared, ends: &[Located]) -> Vec<Value> {
    let now = shared.clock.now();
    let mut loads: HashMap<&str, HashMap<(String, u64), ConnectionLoad>> = HashMap::new();
    ends.iter()
        .map(|one| {
            let mut value = json(one);
            let of_node = loads.entry(&one.node).or_insert_with(|| {
                let load = shared.loads.of_node(&one.node, now).unwrap_or_default();
                load.connections.into_iter().map(|load| ((load.origin.clone(), load.serial), load)).collect()
            });
            if let Some(load) = of_node.get(&(one.record.id.origin.clone(), one.record.id.serial)) {
                value["load"] = serde_json::json!({
                    "tx_bps": load.tx_bps,
                    "rx_bps": load.rx_bps,
                    "retransmit_ratio": load.retransmit_ratio,
                    "age_ms": load.age_ms,
                });
            }
            value
        })
        .collect()
}

fn number(text: &str) -> Result<u32, Failure> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().filter(|number| *number < 1 << 24);
    number.ok_or_else(|| Failure::bad(format!("qp_num: {text:?} is no number of 24 bits")))
}

/// An end of a connection.
pub fn json(located: &Located) -> Value {
    let mut value = serde_json::to_value(&*located.record).unwrap_or_default();
    value["node"] = Value::from(&*located.node);
    value["process"] = Value::from(&*located.process);
    value
}
