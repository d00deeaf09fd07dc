//! Events: the stream of what happens, which a reader takes up again where it was, and what is kept of the past. A slow reader holds nobody up: it is told what it
//! missed.

use super::asked::Asked;
use super::chronicle::Chronicle;
use super::chronicle::log::{Gap, Happening, KEPT, Kind};
use super::{Ending, Failure};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream, Sse};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Which events.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichStream {
    /// Go on after this event's `id`; the header `Last-Event-ID` wins. Default: only what comes.
    after: Option<String>,
    /// Begin with so many of the past, at most 10,000. Default 0.
    recent: Option<u64>,
    /// With `true` also `second`, once a second: how loaded every port is, as in `/v1/overview`. They have no `id` and are not kept.
    #[serde(default)]
    seconds: bool,
}

/// What happens, as it happens (server-sent events): each is called by its kind, such as `connection-moved`, and has an `id` to go on after. `gap`: events were missed, `lost` of
/// them; unknown if this is another run of control.
#[utoipa::path(get, path = "/v1/events", params(WhichStream), responses(
    (status = 200, description = "A stream of events", content_type = "text/event-stream", body = Happening),
    (status = 400, description = "A parameter is wrong", body = Failure)
))]
pub async fn stream(
    Extension(chronicle): Extension<Arc<Chronicle>>,
    Extension(mut ending): Extension<Ending>,
    headers: HeaderMap,
    Asked(which): Asked<WhichStream>,
) -> Result<Sse<KeepAliveStream<ReceiverStream<Result<Event, Infallible>>>>, Failure> {
    if which.recent.is_some_and(|recent| recent > KEPT as u64) {
        return Err(Failure::bad(format!("recent: 0 to {KEPT}")));
    }
    let named = headers.get("last-event-id").and_then(|value| value.to_str().ok()).or(which.after.as_deref());
    let last = chronicle.log.last();
    let (from, strange) = match named {
        Some(id) => chronicle.log.place(id).map_or((0, true), |serial| (serial.min(last), false)),
        None => (last - which.recent.unwrap_or(0).min(last), false),
    };
    let (out, stream) = mpsc::channel(64);
    tokio::spawn(async move {
        let reader = Reader { chronicle, out, serial: from, seconds: which.seconds };
        tokio::select! {
            () = ending.comes() => {}
            _ = reader.run(strange) => {}
        }
    });
    Ok(Sse::new(ReceiverStream::new(stream)).keep_alive(KeepAlive::default()))
}

/// The reader has gone.
struct Gone;

struct Reader {
    chronicle: Arc<Chronicle>,
    out: mpsc::Sender<Result<Event, Infallible>>,
    /// The last event that was sent.
    serial: u64,
    seconds: bool,
}

impl Reader {
    async fn run(mut self, strange: bool) -> Result<(), Gone> {
        let mut seconds = self.chronicle.seconds();
        if strange {
            self.send(Event::default().event("gap").data(json!(Gap { lost: None }).to_string())).await?;
        }
        loop {
            let (kept, gap, mut told) = self.chronicle.log.after(self.serial);
            if let Some(gap) = gap.filter(|_| !strange || self.serial > 0) {
                self.send(Event::default().event("gap").data(json!(gap).to_string())).await?;
            }
            for happening in kept {
                self.tell(&happening).await?;
            }
            loop {
                tokio::select! {
                    () = self.out.closed() => return Err(Gone),
                    next = told.recv() => match next {
                        Ok(happening) => self.tell(&happening).await?,
                        // Too slow: the log has what was not told, or says how much it has not.
                        Err(RecvError::Lagged(_)) => break,
                        Err(RecvError::Closed) => return Ok(()),
                    },
                    Ok(()) = seconds.changed(), if self.seconds => {
                        let second = seconds.borrow_and_update().clone();
                        if let Some(second) = second {
                            self.send(Event::default().event("second").data(&*second)).await?;
                        }
                    }
                }
            }
        }
    }

    async fn tell(&mut self, happening: &Happening) -> Result<(), Gone> {
        self.serial = happening.serial;
        let id = self.chronicle.log.id(happening.serial);
        let data = json!(happening).to_string();
        self.send(Event::default().event(happening.kind.name()).id(id).data(data)).await
    }

    async fn send(&self, event: Event) -> Result<(), Gone> {
        self.out.send(Ok(event)).await.map_err(|_| Gone)
    }
}

/// Which events of the past.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichPast {
    /// Only these kinds, with commas between them, such as `connection-moved,port-down`.
    kinds: Option<String>,
    /// Only about this node.
    node: Option<String>,
    /// Only about the connection that this process made, such as `node3/4711`; with `serial`.
    origin: Option<String>,
    /// Its number.
    serial: Option<u64>,
    /// At most so many, the newest first, 1 to 10000. Default 100.
    limit: Option<usize>,
}

/// Events of the past, the newest first, of the last 10,000 that this replica saw.
#[utoipa::path(get, path = "/v1/events/recent", params(WhichPast), responses(
    (status = 200, description = "Events", body = Object),
    (status = 400, description = "A parameter is wrong", body = Failure)
))]
pub async fn recent(
    Extension(chronicle): Extension<Arc<Chronicle>>,
    Asked(which): Asked<WhichPast>,
) -> Result<Json<Value>, Failure> {
    let limit = which.limit.unwrap_or(100);
    if !(1..=KEPT).contains(&limit) {
        return Err(Failure::bad(format!("limit: 1 to {KEPT}")));
    }
    if which.serial.is_some() != which.origin.is_some() {
        return Err(Failure::bad("a connection has an `origin` and a `serial`: give both or none"));
    }
    let kinds =
        which.kinds.as_deref().map(|kinds| kinds.split(',').map(kind).collect::<Result<Vec<_>, _>>()).transpose()?;
    let fits = |event: &Happening| {
        let of_connection = |id: &scalefabric_fabric::directory::ConnectionId| {
            Some(&id.origin) == which.origin.as_ref() && Some(id.serial) == which.serial
        };
        kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
            && which.node.as_ref().is_none_or(|node| event.node.as_ref() == Some(node))
            && (which.origin.is_none() || event.connection.as_ref().is_some_and(of_connection))
    };
    let events = chronicle.log.newest(limit, fits);
    let last = chronicle.log.id(chronicle.log.last());
    Ok(Json(json!({ "last": last, "events": events.iter().map(|event| json!(**event)).collect::<Vec<_>>() })))
}

fn kind(name: &str) -> Result<Kind, Failure> {
    let parsed = serde_json::from_value(Value::from(name.trim()));
    parsed.map_err(|_| Failure::bad(format!("kinds: {name:?} is no kind of event; they are in /openapi.json")))
}
