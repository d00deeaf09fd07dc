//! The tenants' rules: read, and replaced as a whole, so that nobody ever acts on half of them.

use super::Failure;
use super::asked::Given;
use crate::keys;
use crate::order::json;
use crate::service::Shared;
use crate::tenant::Tenants;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

fn key() -> String {
    format!("{}{}", keys::TENANTS, keys::TENANT_RULES)
}

/// The rules; without any, everybody may connect to everything.
#[utoipa::path(get, path = "/v1/tenants", responses((status = 200, description = "Rules", body = Object)))]
pub async fn look(State(shared): State<Arc<Shared>>) -> Result<Json<Tenants>, Failure> {
    let Some(entry) = shared.store.get(&key()).await? else { return Ok(Json(Tenants::default())) };
    let rules = serde_json::from_slice(&entry.value);
    rules.map(Json).map_err(|error| Failure::unavailable(format!("the rules cannot be read by this version: {error}")))
}

/// Replaces the rules. They count on every node as soon as its agent hears of them.
#[utoipa::path(put, path = "/v1/tenants", request_body = Object, responses(
    (status = 200, description = "Stored", body = Object),
    (status = 400, description = "The rules contradict one another, or cannot be enforced", body = Failure)
))]
pub async fn set(State(shared): State<Arc<Shared>>, Given(rules): Given<Tenants>) -> Result<Json<Tenants>, Failure> {
    rules.check().map_err(Failure::bad)?;
    shared.store.put(&key(), json(&rules)?, None).await?;
    Ok(Json(rules))
}
