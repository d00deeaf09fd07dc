//! New keys for people and scripts: order a rotation, see what came of it, set the schedule. No key is ever shown.

use super::Failure;
use super::asked::{Given, Named};
use crate::rotation::{self, RotationRecord, Schedule, Scope};
use crate::service::Shared;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A rotation that is wanted.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// `"all"`, `{"node": "node3"}` or `{"tenant": "red"}`.
    scope: Scope,
    /// How long old and new keys are both good at most, ms. Default: the schedule's. 0: old ones are refused at once.
    overlap_ms: Option<u64>,
    /// Why, for people.
    #[serde(default)]
    reason: String,
}

/// The schedule and the last rotations.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Rotations {
    /// The schedule.
    schedule: Schedule,
    /// The last rotations, the newest first.
    rotations: Vec<RotationRecord>,
}

/// Orders new keys. They are made while traffic runs; `GET /v1/rotate/{serial}` shows what came of it.
#[utoipa::path(post, path = "/v1/rotate", request_body = Wanted, responses(
    (status = 202, description = "The rotation has begun", body = RotationRecord),
    (status = 400, description = "It cannot be", body = Failure),
    (status = 404, description = "No agent of such a node lives, or there is no such tenant", body = Failure),
    (status = 503, description = "No replica has the duty whose token orders carry", body = Failure)
))]
pub async fn rotate(
    State(shared): State<Arc<Shared>>,
    Given(wanted): Given<Wanted>,
) -> Result<(StatusCode, Json<RotationRecord>), Failure> {
    wanted.scope.check().map_err(|error| Failure::bad(error.to_string()))?;
    let reason =
        crate::message::name("reason", &wanted.reason, true).map_err(|error| Failure::bad(error.to_string()))?;
    let overlap_ms = match wanted.overlap_ms {
        Some(overlap_ms) => overlap_ms,
        None => rotation::schedule(&shared).await?.overlap_ms,
    };
    if let Scope::Node(node) = &wanted.scope
        && shared.index.node(node).is_none()
    {
        return Err(Failure::not_found(format!("no agent of a node {node:?} lives")));
    }
    if let Scope::Tenant(tenant) = &wanted.scope
        && !shared.holdings().contains_key(tenant)
        && super::tenants::look(State(Arc::clone(&shared))).await?.0.find(tenant).is_none()
    {
        return Err(Failure::not_found(format!(
            "there is no tenant `{tenant}`: it has no rules, and nothing anywhere"
        )));
    }
    let begun = rotation::begin(&shared, wanted.scope, overlap_ms, "operator", &reason).await?;
    let record = begun.ok_or_else(|| {
        Failure::unavailable(
            "no replica has the duty to give orders now, or no node is there: try again in a few seconds",
        )
    })?;
    Ok((StatusCode::ACCEPTED, Json(record)))
}

/// The schedule and the last rotations.
#[utoipa::path(get, path = "/v1/rotate", responses((status = 200, description = "Rotations", body = Rotations)))]
pub async fn rotations(State(shared): State<Arc<Shared>>) -> Result<Json<Rotations>, Failure> {
    let schedule = rotation::schedule(&shared).await?;
    Ok(Json(Rotations { schedule, rotations: rotation::recent(&shared).await? }))
}

/// One rotation.
#[utoipa::path(get, path = "/v1/rotate/{serial}", params(("serial" = u64, Path, description = "Its number")), responses(
    (status = 200, description = "The rotation", body = RotationRecord),
    (status = 404, description = "It is not known any more", body = Failure)
))]
pub async fn one(
    State(shared): State<Arc<Shared>>,
    Named(serial): Named<u64>,
) -> Result<Json<RotationRecord>, Failure> {
    let found = rotation::look(&shared, serial).await?;
    found.map(Json).ok_or_else(|| Failure::not_found(format!("rotation {serial} is not known, or not any more")))
}

/// Another schedule; it counts from now.
#[utoipa::path(put, path = "/v1/rotate/schedule", request_body = Schedule, responses(
    (status = 200, description = "Stored", body = Schedule),
    (status = 400, description = "It contradicts itself", body = Failure)
))]
pub async fn set_schedule(
    State(shared): State<Arc<Shared>>,
    Given(schedule): Given<Schedule>,
) -> Result<Json<Schedule>, Failure> {
    rotation::set_schedule(&shared, &schedule).await?;
    Ok(Json(schedule))
}
