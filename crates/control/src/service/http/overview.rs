//! The fabric at a glance: who is there, on which ports, behind which switch, how loaded, and who uses it. It only looks.

use super::Failure;
use super::asked::Asked;
use super::chronicle::{Chronicle, column_json, date_ms, now_ms, recording};
use super::fabric::health;
use crate::service::Shared;
use crate::tenant::Tenants;
use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::sync::Arc;

/// All that a page needs to begin with: nodes and ports with the switches behind them, the newest second (as the stream's `second`), settings, store, lead.
/// Ports of `tx`, `rx`, `flags` and `connections` are in the order of the nodes and of their ports; flags: 1 up, 2 hot, 4 drained; utilisations in
/// thousandths, -1: nobody told.
#[utoipa::path(get, path = "/v1/overview", responses((status = 200, description = "The fabric", body = Object)))]
pub async fn overview(
    State(shared): State<Arc<Shared>>,
    Extension(chronicle): Extension<Arc<Chronicle>>,
) -> Json<Value> {
    let layout = chronicle.layout();
    let nodes: Vec<Value> = layout
        .of_node
        .keys()
        .filter_map(|name| shared.index.node(name))
        .map(|(node, _)| {
            let ports = node.ports.iter().enumerate().map(|(place, port)| {
                let link = node.neighbours.iter().find(|link| usize::try_from(link.port) == Ok(place));
                json!({
                    "device": port.device,
                    "port_num": port.port_num,
                    "rate_mbps": port.rate_mbps,
                    "numa_node": port.numa_node,
                    "switch": link.map(|link| &link.chassis),
                    "switch_port": link.map(|link| &link.port_id),
                })
            });
            json!({
                "node": node.node,
                "version": node.version,
                "replica": node.replica,
                "ports": ports.collect::<Vec<_>>(),
            })
        })
        .collect();
    let settings = chronicle.settings();
    let (state, reason) = health(&shared);
    let token = shared.rebalance.held().borrow().map(|token| token.0);
    let latest = chronicle.latest().filter(|column| column.layout.number == layout.number);
    Json(json!({
        "replica": shared.name,
        "version": env!("CARGO_PKG_VERSION"),
        "now_ms": now_ms(&shared),
        "date_ms": date_ms(),
        "store": { "kind": shared.store.kind(), "health": state, "reason": reason },
        "leader": chronicle.leader(),
        "token": token,
        "replicas": shared.replica_records(),
        "rebalance": {
            "freeze": settings.freeze,
            "dry_run": settings.dry_run,
            "pinned": settings.pinned.len(),
            "drained": settings.drained,
            "moves": settings.moves.len(),
            "hot_permille": settings.policy.hot_permille,
            "cool_permille": settings.policy.cool_permille,
        },
        "services": shared.index.size().services,
        "last_event": chronicle.log.id(chronicle.log.last()),
        "layout": layout.number,
        "left_out": layout.left_out,
        "nodes": nodes,
        "second": latest.map(|column| column_json(&column, &shared)),
    }))
}

/// The tenants' rules with what each has: what its quotas count, on all nodes together, as their agents tell; ends of connections; and what they send as far as agents speak
/// of it (the 64 busiest connections of each node).
#[utoipa::path(get, path = "/v1/tenants/use", responses(
    (status = 200, description = "Tenants in order of name; those without rules have none", body = Object),
    (status = 503, description = "The store is away", body = Failure)
))]
pub async fn tenants(
    State(shared): State<Arc<Shared>>,
    Extension(chronicle): Extension<Arc<Chronicle>>,
) -> Result<Json<Value>, Failure> {
    let Json(rules) = super::tenants::look(State(Arc::clone(&shared))).await?;
    let mut uses = chronicle.tenants(&shared);
    let holdings = shared.holdings();
    for name in rules.tenants.iter().map(|tenant| &tenant.name).chain(holdings.keys()) {
        uses.entry(name.clone()).or_default();
    }
    let tenants: Vec<Value> = uses
        .into_iter()
        .map(|(name, used)| {
            let rule = rules.find(&name);
            json!({
                "name": name,
                "holds": holdings.get(&name).copied().unwrap_or_default(),
                "ends": used.ends,
                "tx_bps": used.tx_bps,
                "pkey": rule.map(|rule| rule.pkey),
                "services": rule.map(|rule| &rule.services),
                "nodes": rule.map(|rule| &rule.nodes),
                "quota": rule.map(|rule| rule.quota),
            })
        })
        .collect();
    let Tenants { allow, .. } = rules;
    Ok(Json(json!({ "tenants": tenants, "allow": allow })))
}

/// Which part of the time line.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichTime {
    /// With the ports of this node.
    node: Option<String>,
    /// Only what came at or after this, milliseconds of the replica's clock. Default: all that is kept, ten minutes.
    since_ms: Option<u64>,
}

/// The last ten minutes, a second a value: the busiest direction of any port, ports that are hot or down, ends of connections, moves, bits a second sent; with a
/// node what each of its ports sent and received, thousandths, -1: nobody told.
#[utoipa::path(get, path = "/v1/timeline", params(WhichTime), responses(
    (status = 200, description = "The time line", body = Object),
    (status = 404, description = "No such node is recorded", body = Failure)
))]
pub async fn timeline(
    State(shared): State<Arc<Shared>>,
    Extension(chronicle): Extension<Arc<Chronicle>>,
    Asked(which): Asked<WhichTime>,
) -> Result<Json<Value>, Failure> {
    let columns = chronicle.columns(which.since_ms.unwrap_or_default());
    let row =
        |of: fn(&recording::Summary) -> Value| columns.iter().map(|column| of(&column.summary)).collect::<Vec<_>>();
    let mut answer = json!({
        "now_ms": now_ms(&shared),
        "date_ms": date_ms(),
        "interval_ms": recording::INTERVAL_MS,
        "at_ms": columns.iter().map(|column| column.at_ms).collect::<Vec<_>>(),
        "busiest": row(|summary| summary.busiest.into()),
        "hot": row(|summary| summary.hot.into()),
        "down": row(|summary| summary.down.into()),
        "ends": row(|summary| summary.ends.into()),
        "moves": row(|summary| summary.moves.into()),
        "tx_bps": row(|summary| summary.tx_bps.round().into()),
    });
    if let Some(node) = &which.node {
        let layout = chronicle.layout();
        let (first, count) = *layout
            .of_node
            .get(node)
            .ok_or_else(|| Failure::not_found(format!("no ports of a node {node:?} are recorded")))?;
        let ports = layout.ports[first..first + count].iter().map(|port| {
            let values = |of: fn(&recording::Column) -> &[u16]| -> Vec<i32> {
                let at = |column: &Arc<recording::Column>| {
                    let place = column.layout.place(&port.node, &port.device, port.port_num);
                    let value = place.map_or(recording::UNKNOWN, |place| of(column)[place]);
                    if value == recording::UNKNOWN { -1 } else { value.into() }
                };
                columns.iter().map(at).collect()
            };
            json!({
                "device": port.device,
                "port_num": port.port_num,
                "tx": values(|column| &column.tx),
                "rx": values(|column| &column.rx),
            })
        });
        answer["ports"] = ports.collect();
    }
    Ok(Json(answer))
}

/// Which moment.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichMoment {
    /// Milliseconds of the replica's clock, such as `at_ms` of an event.
    at_ms: u64,
}

/// How loaded every port was at a moment of the last ten minutes: a `second` with the names of its ports, since there may be others now.
#[utoipa::path(get, path = "/v1/timeline/moment", params(WhichMoment), responses(
    (status = 200, description = "The second that had ended then", body = Object),
    (status = 404, description = "Nothing is recorded yet", body = Failure)
))]
pub async fn moment(
    State(shared): State<Arc<Shared>>,
    Extension(chronicle): Extension<Arc<Chronicle>>,
    Asked(which): Asked<WhichMoment>,
) -> Result<Json<Value>, Failure> {
    let column = chronicle.moment(which.at_ms);
    let column = column.ok_or_else(|| Failure::not_found("nothing is recorded yet: ask again in a second"))?;
    let mut answer = column_json(&column, &shared);
    answer["ports"] = column.layout.ports.iter().map(ToString::to_string).collect();
    Ok(Json(answer))
}
