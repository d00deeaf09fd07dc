//! How a call fails: a status, a sentence, and nothing of the inside. The shape is that of RFC 9457 (`application/problem+json`).

use crate::store::StoreError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A failed call.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Failure {
    /// HTTP status.
    status: u16,
    /// Its name.
    title: &'static str,
    /// What was wrong, and what to do.
    detail: String,
}

impl Failure {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Failed");
        Self { status: status.as_u16(), title, detail: detail.into() }
    }

    /// 400.
    pub fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A body that cannot be taken: 413 if it is too long, 415 if it is said to be no JSON, else 400.
    pub fn of_body(status: StatusCode, detail: impl Into<String>) -> Self {
        let kept = [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNSUPPORTED_MEDIA_TYPE];
        Self::new(if kept.contains(&status) { status } else { StatusCode::BAD_REQUEST }, detail)
    }

    /// 401.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// 403.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// 404.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 405.
    pub fn no_such_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this is there, but not for this method; `/openapi.json` says for which",
        )
    }

    /// 412.
    pub fn changed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, detail)
    }

    /// 503.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::NotDone(_) => Self::unavailable(error.to_string()),
            StoreError::Invalid(why) => Self::bad(why),
            other => Self::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
