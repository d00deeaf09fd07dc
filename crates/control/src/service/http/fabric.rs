//! What the fabric is and does: services, nodes, loads, this replica, orders by an operator, and a stream of changes.

use super::asked::{Asked, Given, Named};
use super::connections::json as located;
use super::{Ending, Failure};
use crate::directory::feed::Health;
use crate::directory::{Change, NodeRecord};
use crate::load::Loads;
use crate::message::{self, Answer};
use crate::service::{ReplicaRecord, Shared};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream, Sse};
use axum::{Extension, Json};
use scalefabric_fabric::directory::{ConnectionId, Order, ServiceAddress};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// How long an operator waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which services.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichServices {
    /// Only this one.
    service: Option<String>,
    /// Only at this node.
    node: Option<String>,
}

/// Where services can be reached.
#[utoipa::path(get, path = "/v1/services", params(WhichServices), responses(
    (status = 200, description = "Addresses", body = Vec<Object>)
))]
pub async fn services(
    State(shared): State<Arc<Shared>>,
    Asked(which): Asked<WhichServices>,
) -> Result<Json<Vec<ServiceAddress>>, Failure> {
    let found = match &which.service {
        Some(service) => shared.index.service(service),
        None => shared.index.services().0,
    };
    let fits = |address: &&Arc<ServiceAddress>| which.node.as_ref().is_none_or(|node| *node == address.node);
    Ok(Json(found.iter().filter(fits).map(|address| (**address).clone()).collect()))
}

/// All nodes whose agents live.
#[utoipa::path(get, path = "/v1/nodes", responses((status = 200, description = "Nodes", body = Vec<NodeRecord>)))]
pub async fn nodes(State(shared): State<Arc<Shared>>) -> Json<Vec<NodeRecord>> {
    Json(shared.index.nodes().iter().map(|node| (**node).clone()).collect())
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{node}", params(("node" = String, Path, description = "Its name")), responses(
    (status = 200, description = "The node", body = NodeRecord),
    (status = 404, description = "No agent of that name lives", body = Failure)
))]
pub async fn node(State(shared): State<Arc<Shared>>, Named(node): Named<String>) -> Result<Json<NodeRecord>, Failure> {
    let found = shared.index.node(&node);
    let (record, _) = found.ok_or_else(|| Failure::not_found(format!("no agent of a node {node:?} lives")))?;
    Ok(Json((*record).clone()))
}

/// Whose loads.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichLoads {
    /// Only those of this node.
    node: Option<String>,
}

/// What ports and connections carry, by node.
#[utoipa::path(get, path = "/v1/loads", params(WhichLoads), responses(
    (status = 200, description = "Loads by node", body = Loads)
))]
pub async fn loads(State(shared): State<Arc<Shared>>, Asked(which): Asked<WhichLoads>) -> Result<Json<Loads>, Failure> {
    let now = shared.clock.now();
    Ok(Json(match which.node {
        Some(node) => shared.loads.of_node(&node, now).map(|load| (node, load)).into_iter().collect(),
        None => shared.loads.snapshot(false, now),
    }))
}

/// This replica.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Status {
    /// Its name.
    replica: String,
    /// Version of the software.
    version: &'static str,
    /// `etcd` or `embedded`.
    store: &'static str,
    /// `in-sync`, `starting`, `away` or `broken`.
    health: &'static str,
    /// Why, if it is not in sync.
    reason: Option<String>,
    /// Revision of the store that this replica shows.
    revision: u64,
    /// How much there is.
    size: crate::directory::Size,
    /// Agents that have joined this replica.
    joined: usize,
    /// Its fencing token, if it has the duty to rebalance.
    token: Option<u64>,
    /// All replicas that live.
    replicas: Vec<ReplicaRecord>,
}

/// How the store is, and why.
pub fn health(shared: &Shared) -> (&'static str, Option<String>) {
    match &*shared.feed.health().borrow() {
        Health::Starting => ("starting", None),
        Health::InSync => ("in-sync", None),
        Health::Away(why) => ("away", Some(why.clone())),
        Health::Broken(why) => ("broken", Some(why.clone())),
    }
}

/// This replica and what it sees.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, description = "State", body = Status)))]
pub async fn status(State(shared): State<Arc<Shared>>) -> Json<Status> {
    let (health, reason) = health(&shared);
    Json(Status {
        replica: shared.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        store: shared.store.kind(),
        health,
        reason,
        revision: shared.index.revision().0,
        size: shared.index.size(),
        joined: shared.joined().len(),
        token: shared.rebalance.held().borrow().map(|token| token.0),
        replicas: shared.replica_records(),
    })
}

/// An operator's order.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WantedOrder {
    /// Node that has the connection's end, or whose keys are to be rotated.
    node: String,
    /// What.
    order: OrderKind,
    /// Why, for people.
    reason: String,
}

/// What an operator may order.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum OrderKind {
    /// Take this path.
    Move {
        /// Which connection.
        #[schema(value_type = Object)]
        connection: ConnectionId,
        /// Where to.
        #[schema(value_type = Object)]
        path: scalefabric_fabric::Path,
    },
    /// Close it.
    Close {
        /// Which connection.
        #[schema(value_type = Object)]
        connection: ConnectionId,
    },
    /// New keys for all memory that the node lends.
    RotateKeys {
        /// How long old and new keys are both good, milliseconds.
        overlap_ms: u64,
    },
}

/// Orders a move, a close or new keys, and waits for the answer, at most 10 s.
#[utoipa::path(post, path = "/v1/orders", request_body = WantedOrder, responses(
    (status = 200, description = "How it ended; null: no answer in time, it may still be carried out", body = Object),
    (status = 400, description = "The order is wrong", body = Failure),
    (status = 503, description = "No replica has the duty to rebalance now, whose token orders carry", body = Failure)
))]
pub async fn order(
    State(shared): State<Arc<Shared>>,
    Given(wanted): Given<WantedOrder>,
) -> Result<Json<Option<Answer>>, Failure> {
    let bad = |error: message::Malformed| Failure::bad(error.to_string());
    let node = message::node_name(&wanted.node).map_err(bad)?;
    let reason = message::name("reason", &wanted.reason, false).map_err(bad)?;
    if shared.index.node(&node).is_none() {
        return Err(Failure::not_found(format!("no agent of a node {node:?} lives")));
    }
    let token = shared
        .token()
        .await?
        .ok_or_else(|| Failure::unavailable("no replica has the duty to rebalance now: try again in a few seconds"))?;
    let order = match wanted.order {
        OrderKind::Move { connection, path } => Order::Move { connection, path, token, reason },
        OrderKind::Close { connection } => Order::Close { connection, token, reason },
        OrderKind::RotateKeys { overlap_ms } => Order::RotateKeys { token, overlap_ms, tenant: None },
    };
    // Through the same checks as an order from the wire.
    message::order(&message::order_message("operator", &order)).map_err(bad)?;
    let answers = shared.orders.send(&[(node, order)], "operator", PATIENCE).await?;
    Ok(Json(answers.into_iter().next().flatten()))
}

/// Changes of the directory as they happen (server-sent events), for programs that keep a copy: `connection`, `connection-gone`, `service`, `service-gone`, `node`,
/// `node-gone`; `all`: read again. What happens, in sentences, is at `/v1/events`.
#[utoipa::path(get, path = "/v1/changes", responses(
    (status = 200, description = "A stream", content_type = "text/event-stream")
))]
pub async fn changes(
    State(shared): State<Arc<Shared>>,
    Extension(mut ending): Extension<Ending>,
) -> Sse<KeepAliveStream<ReceiverStream<Result<Event, Infallible>>>> {
    let (out, stream) = mpsc::channel(256);
    let mut changes = shared.index.changes();
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                next = changes.next() => next,
                () = out.closed() => return,
                () = ending.comes() => return,
            };
            let batch = match next {
                Some(Ok(batch)) => batch,
                // Too slow: everything may have changed.
                Some(Err(_)) => Arc::new((shared.index.revision(), vec![Change::All])),
                None => return,
            };
            for change in &batch.1 {
                let (kind, data) = told(change);
                let event = Event::default().event(kind).id(batch.0.0.to_string()).data(data.to_string());
                if out.send(Ok(event)).await.is_err() {
                    return;
                }
            }
        }
    });
    Sse::new(ReceiverStream::new(stream)).keep_alive(KeepAlive::default())
}

fn told(change: &Change) -> (&'static str, Value) {
    match change {
        Change::Connection(one) => ("connection", located(one)),
        Change::ConnectionGone { node, process, id } => {
            ("connection-gone", json!({ "node": &**node, "process": &**process, "id": id }))
        }
        Change::Service(address) => ("service", json!(&**address)),
        Change::ServiceGone { service, node, exchange } => {
            ("service-gone", json!({ "service": service, "node": node, "exchange": exchange }))
        }
        Change::Node(node) => ("node", json!(&**node)),
        Change::NodeGone(node) => ("node-gone", json!({ "node": node })),
        Change::All => ("all", Value::Null),
    }
}
