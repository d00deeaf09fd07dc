//! What callers ask, taken apart: the query and the body of a call as types, and a sentence for who asked wrongly. It checks the shape; what the values mean, each call checks.

use super::Failure;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The query of a call; 400 if a parameter is not known, missing or of another kind.
#[derive(Clone, Copy, Debug)]
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query.map(|axum::extract::Query(asked)| Self(asked)).map_err(|error| Failure::bad(error.body_text()))
    }
}

/// A part of the path of a call; 400 if it is of another kind.
#[derive(Clone, Copy, Debug)]
pub struct Named<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(name)| Self(name)).map_err(|error| Failure::bad(error.body_text()))
    }
}

/// The JSON body of a call, an object: a list would be taken for the fields in their order, and an empty one for the defaults of all. 400 if it is none, 413 if it is too long, 415
/// if it is said to be something else.
#[derive(Clone, Copy, Debug)]
pub struct Given<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Given<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let body = axum::Json::<Map<String, Value>>::from_request(request, state).await;
        let axum::Json(object) = body.map_err(|error| Failure::of_body(error.status(), error.body_text()))?;
        serde_json::from_value(object.into()).map(Self).map_err(|error| Failure::bad(error.to_string()))
    }
}
