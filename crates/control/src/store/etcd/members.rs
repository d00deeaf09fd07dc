//! The members of an etcd and the patience with them: a call goes to the member that answered last, and from one that fails to the next, until it
//! is answered or its time is over. It decides nothing about what may be sent twice; its callers do.

use super::failure::Failed;
use super::{Settings, StoreError};
use crate::proto::etcd::{kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status};

/// Between two attempts: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long one member may take to answer. etcd itself gives up after about 7 s.
const ONE_ANSWER: Duration = Duration::from_secs(4);
/// How long a silent connection is believed in.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Longest answer, bytes: a page of the largest values.
const LONGEST: usize = 256 * 1024 * 1024;

/// The members.
#[derive(Clone, Debug)]
pub struct Members {
    channels: Arc<[Channel]>,
    current: Arc<AtomicUsize>,
    patience: Duration,
}

impl Members {
    /// Connects when first asked.
    pub fn new(settings: &Settings) -> Result<Self, StoreError> {
        let channel = |address: &String| {
            let wrong = |why: &dyn std::fmt::Display| {
                StoreError::Invalid(format!(
                    "`{address}` is no address of etcd ({why}); one looks like `http://10.0.0.1:2379`"
                ))
            };
            let mut endpoint = Endpoint::from_shared(address.clone())
                .map_err(|error| wrong(&error))?
                .connect_timeout(Duration::from_secs(2))
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .keep_alive_while_idle(true);
            if let Some(tls) = &settings.tls {
                let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
                if let Some((certificate, key)) = &tls.identity {
                    config = config.identity(Identity::from_pem(certificate, key));
                }
                endpoint = endpoint.tls_config(config).map_err(|error| wrong(&error))?;
            }
            Ok(endpoint.connect_lazy())
        };
        let channels: Arc<[Channel]> = settings.endpoints.iter().map(channel).collect::<Result<_, StoreError>>()?;
        if channels.is_empty() {
            return Err(StoreError::Invalid("no address of etcd is given".into()));
        }
        Ok(Self { channels, current: Arc::default(), patience: settings.patience })
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
    fn channel(&self) -> Channel {
        self.members.channels[self.member % self.members.channels.len()].clone()
    }

    /// Keys and values at the member in turn.
    pub fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel()).max_decoding_message_size(LONGEST)
    }

    /// Leases.
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel())
    }

    /// Watches.
    pub fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel()).max_decoding_message_size(LONGEST)
    }

    /// A request that a member without a leader refuses at once, instead of waiting.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request
    }

    /// Waits for an answer, not for ever.
    pub async fn bounded<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failed> {
        match tokio::time::timeout(ONE_ANSWER, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
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
