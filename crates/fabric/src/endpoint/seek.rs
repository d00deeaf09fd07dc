//! Waiting for a connection that is being made, and connecting to a service by its name: where it can be reached the directory says, and what it remembers may be old. Addresses are tried in its order,
//! the next one beside those before it when they are slow, new ones as they are heard of; the first that is up is taken, the others are closed. It makes no QP
//! itself, and never decides who may connect.

use super::connection::Connection;
use super::link::{Link, Told};
use super::service::{Keeper, Shared};
use crate::error::{FabricError, Fault};
use crate::path::Path;
use crate::session::Input;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long an address is tried alone before the next one is tried beside it. A QP is brought up within a few round trips.
const ALONE: Duration = Duration::from_millis(250);
/// How often the directory is asked for addresses that were not known before.
const LOOK: Duration = Duration::from_millis(50);
/// How long an answer of the directory is waited for as long as it knows no address at all.
const ANSWER: Duration = Duration::from_secs(2);

/// A connection on its way. Who drops it wants it no more: it is closed, however far it has come.
pub(super) struct Attempt {
    up: oneshot::Receiver<Result<Connection, FabricError>>,
    link: Option<Arc<Link>>,
}

impl Attempt {
    pub fn new(up: oneshot::Receiver<Result<Connection, FabricError>>, link: Arc<Link>) -> Self {
        Self { up, link: Some(link) }
    }

    /// Waits until data can flow.
    pub async fn wait(mut self) -> Result<Connection, FabricError> {
        let outcome = (&mut self.up).await;
        self.link = None;
        outcome.unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            let reason = "nobody waits for it any more".into();
            let _ = link.tell.send(Told::Input(Input::Close { reason, order: None }));
        }
    }
}

pub(super) fn gone() -> FabricError {
    FabricError::environment("the fabric's thread is gone")
}

/// Looks for the service until a connection is up, all addresses have failed, or whoever asked is gone.
pub(super) async fn seek(
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
    service: String,
    path: Option<Path>,
    mut outcome: oneshot::Sender<Result<Connection, FabricError>>,
) {
    let found = tokio::select! {
        found = find(&shared, &keeper, &service, path) => found,
        () = outcome.closed() => return,
    };
    let _ = outcome.send(found);
}

async fn find(
    shared: &Arc<Shared>,
    keeper: &Arc<Keeper>,
    service: &str,
    path: Option<Path>,
) -> Result<Connection, FabricError> {
    let begun = Instant::now();
    let mut tried = BTreeSet::new();
    let mut under_way: JoinSet<Result<Connection, FabricError>> = JoinSet::new();
    let mut newest = begun;
    let mut last = None;
    loop {
        let mut places = shared.directory.resolve(service);
        places.retain(|place| !tried.contains(&place.exchange));
        if (under_way.is_empty() || newest.elapsed() >= ALONE)
            && let Some(place) = places.into_iter().next()
        {
            let way = path.clone().or_else(|| place.paths.into_iter().next());
            tried.insert(place.exchange.clone());
            newest = Instant::now();
            let during = format!("cannot connect to `{service}` at {}", place.exchange);
            match shared.connect(keeper, &place.exchange, service, way) {
                Ok(up) => drop(under_way.spawn(async move { up.wait().await.map_err(|error| error.during(during)) })),
                // It may not be made to any address.
                Err(error) if error.fault == Fault::NoAuthority => return Err(error),
                Err(error) => last = Some(error.during(during)),
            }
            continue;
        }
        if under_way.is_empty() {
            if let Some(error) = last {
                return Err(error);
            }
            if !shared.directory.may_learn(service) || begun.elapsed() >= ANSWER {
                return Err(FabricError::unreachable(format!(
                    "nobody is known to offer the service `{service}`: start who offers it, correct the name, or name an exchange's address"
                )));
            }
        }
        tokio::select! {
            Some(ended) = under_way.join_next(), if !under_way.is_empty() => match ended {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = Some(error),
                Err(_) => last = Some(gone()),
            },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
