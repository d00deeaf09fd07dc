//! The members of an etcd and the patience with them: a call goes to the member that answered last, and from one that fails to the next, until it
//! is answered or its time is over. It decides nothing about what may be sent twice; its callers do.

use super::failure::Failed;
use super::{Settings, StoreError};
use scalefabric_fabric::exchange::etcd_api::{Client, endpoint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// Between two attempts: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long one member may take to answer. etcd itself gives up after about 7 s.
const ONE_ANSWER: Duration = Duration::from_secs(4);
/// How long a silent connection is believed in.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);

/// The members.
#[derive(Clone, Debug)]
pub struct Members {
    clients: Arc<[Client]>,
    current: Arc<AtomicUsize>,
    patience: Duration,
}

impl Members {
    /// Connects when first asked.
    pub fn new(settings: &Settings) -> Result<Self, StoreError> {
        let client = |address: &String| {
            let wrong = |why: &dyn std::fmt::Display| {
                StoreError::Invalid(format!(
                    "`{address}` is no address of etcd ({why}); one looks like `http://10.0.0.1:2379`"
                ))
            };
            let member = endpoint(address.as_str(), settings.tls.as_ref(), CONNECT, KEEP_ALIVE);
            Ok(Client::new(member.map_err(|error| wrong(&error))?.connect_lazy()))
        };
        let clients: Arc<[Client]> = settings.endpoints.iter().map(client).collect::<Result<_, StoreError>>()?;
        if clients.is_empty() {
            return Err(StoreError::Invalid("no address of etcd is given".into()));
        }
        Ok(Self { clients, current: Arc::default(), patience: settings.patience })
    }

    /// A call begins.
    pub fn attempt(&self) -> Attempt<'_> {
        Attempt { members: self, began: Instant::now(), pause: PAUSE.0, member: self.current.load(Ordering::Relaxed) }
    }
}

/// A call and its attempts.
pub struct Attempt<'a> {
    members: &'a Members,
    began: Instant,
    pause: Duration,
    member: usize,
}

impl Attempt<'_> {
    /// The member in turn.
    pub fn member(&self) -> &Client {
        &self.members.clients[self.member % self.members.clients.len()]
    }

    /// Waits for an answer, not for ever.
    pub async fn bounded<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Failed> {
        match tokio::time::timeout(ONE_ANSWER, call).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Failed::InDoubt(format!("etcd did not answer within {ONE_ANSWER:?}"))),
        }
    }

    /// Goes to the next member after a pause if what failed may pass and there is patience left; else that failure as an error.
    pub async fn again(&mut self, failed: Failed) -> Result<(), StoreError> {
        let passing = matches!(failed, Failed::NotDone(_) | Failed::InDoubt(_));
        if !passing || self.began.elapsed() + self.pause > self.members.patience {
            return Err(failed.error(None));
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
        self.member = self.member.wrapping_add(1);
        self.members.current.store(self.member, Ordering::Relaxed);
        Ok(())
    }
}
