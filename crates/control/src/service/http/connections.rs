//! Looking connections up.

use super::Failure;
use crate::directory::{Located, Query};
use crate::service::Shared;
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    /// At most so many, 1 to 10000. Default 100.
    limit: Option<usize>,
    /// Begin after this: `next` of the page before.
    after: Option<String>,
}

/// A page of connections.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Page {
    /// Records, each with its node and process.
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
pub async fn find(
    State(shared): State<Arc<Shared>>,
    which: Result<axum::extract::Query<Which>, QueryRejection>,
) -> Result<Json<Page>, Failure> {
    let axum::extract::Query(which) = which.map_err(|error| Failure::bad(error.body_text()))?;
    let qp_num = which.qp_num.as_deref().map(number).transpose()?;
    if which.limit.is_some_and(|limit| !(1..=crate::directory::MAX_LIMIT).contains(&limit)) {
        return Err(Failure::bad(format!("limit: 1 to {}", crate::directory::MAX_LIMIT)));
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
    let connections = found.connections.iter().map(json).collect();
    Ok(Json(Page { connections, next: found.next, revision: found.revision.0 }))
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
