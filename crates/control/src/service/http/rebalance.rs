//! Rebalancing for people and scripts: the settings, which stand in the store and hold for all replicas, and what this replica has decided and why.

use super::Failure;
use super::asked::Asked;
use crate::order::json as stored;
use crate::rebalance::Settings;
use crate::rebalance::driver::SETTINGS;
use crate::service::Shared;
use crate::store::{Revision, StoreError};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderName};
use scalefabric_fabric::directory::ConnectionId;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Which decisions.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichDecisions {
    /// Only those about the connection that this process made, such as `node3/4711`; with `serial`.
    origin: Option<String>,
    /// Its number.
    serial: Option<u64>,
    /// At most so many, the newest first, 1 to 1000. Default 100.
    limit: Option<usize>,
}

/// Why did connections move? The last decisions of this replica with all that they were made from; those of others are at the replica that had the duty then.
#[utoipa::path(get, path = "/v1/rebalance/decisions", params(WhichDecisions), responses(
    (status = 200, description = "Decisions, the newest first", body = Object),
    (status = 400, description = "A parameter is wrong", body = Failure)
))]
pub async fn decisions(
    State(shared): State<Arc<Shared>>,
    Asked(which): Asked<WhichDecisions>,
) -> Result<Json<Value>, Failure> {
    let about = match (which.origin, which.serial) {
        (Some(origin), Some(serial)) => Some(ConnectionId { origin, serial }),
        (None, None) => None,
        _ => return Err(Failure::bad("a connection has an `origin` and a `serial`: give both or none")),
    };
    let limit = which.limit.unwrap_or(100);
    if !(1..=1_000).contains(&limit) {
        return Err(Failure::bad("limit: 1 to 1000"));
    }
    let decisions = shared.rebalancing.decisions(about.as_ref(), limit);
    let round = shared.rebalancing.last_round();
    let token = shared.rebalance.held().borrow().map(|token| token.0);
    Ok(Json(json!({
        "replica": shared.name,
        "token": token,
        "now_ms": super::chronicle::now_ms(&shared),
        "last_round": { "at_ms": round.at_ms, "moves": round.moves, "refusals": round.refusals, "doubts": round.doubts },
        "decisions": decisions,
    })))
}

/// The settings. Their `ETag` names them for `If-Match`.
#[utoipa::path(get, path = "/v1/rebalance", responses((status = 200, description = "Settings", body = Object)))]
pub async fn settings(State(shared): State<Arc<Shared>>) -> Result<Tagged, Failure> {
    let (settings, revision) = match shared.store.get(SETTINGS).await? {
        Some(entry) => {
            let settings = Settings::from_json(&entry.value);
            (settings.map_err(|error| StoreError::Broken(error.message))?, entry.revision)
        }
        None => (Settings::default(), Revision(0)),
    };
    Ok(tagged(settings, revision))
}

/// Other settings: rules, freeze, dry run, pinned connections, drained ports, wished moves. They replace the old ones whole, and hold within a second or two. With
/// `If-Match` and the `ETag` of those that were read, only if nobody has changed them since.
#[utoipa::path(put, path = "/v1/rebalance", request_body = Object, responses(
    (status = 200, description = "Settings as they are now", body = Object),
    (status = 400, description = "They contradict themselves", body = Failure),
    (status = 412, description = "Somebody has changed them since they were read", body = Failure)
))]
pub async fn set(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Tagged, Failure> {
    let body = body.map_err(|error| Failure::of_body(error.status(), error.body_text()))?;
    let settings = Settings::from_json(&body).map_err(|error| Failure::bad(error.message))?;
    let value = stored(&settings)?;
    let revision = match headers.get(IF_MATCH) {
        None => shared.store.put(SETTINGS, value, None).await?,
        Some(tag) => {
            let read = tag.to_str().ok().and_then(|tag| tag.trim().trim_matches('"').parse().ok());
            let read = read.ok_or_else(|| Failure::bad("If-Match: give the ETag of `GET /v1/rebalance`"))?;
            let swapped = shared.store.compare_and_swap(SETTINGS, Revision(read), value, None).await?;
            swapped.ok_or_else(|| Failure::changed("somebody has changed the settings since: read them again"))?
        }
    };
    Ok(tagged(settings, revision))
}

/// Settings with the tag that names them.
type Tagged = ([(HeaderName, String); 1], Json<Settings>);

fn tagged(settings: Settings, revision: Revision) -> Tagged {
    ([(ETAG, format!("\"{}\"", revision.0))], Json(settings))
}
