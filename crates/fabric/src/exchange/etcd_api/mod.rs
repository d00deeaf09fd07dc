//! The client of etcd's API, version 3, as far as we use it: messages and seven calls, for the exchange through etcd and for the control plane's store, which share
//! nothing else. It retries nothing and decides nothing: what a refusal means, and whether to ask again, is for who calls. The messages are in `message`.

mod message;

pub use message::*;

use message::{CompactionRequest, LeaseGrantRequest, LeaseRequest, WatchRequest};
use prost::Message;
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Longest answer, bytes: a page of the largest values.
const LONGEST: usize = 256 * 1024 * 1024;

/// Certificates for etcd, PEM. Prints nothing of them.
#[derive(Clone)]
pub struct EtcdTls {
    /// Who signs etcd's certificates.
    pub ca: String,
    /// Own certificate and key, if etcd asks for one.
    pub identity: Option<(String, String)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// A member at an address such as `http://10.0.0.1:2379`; `https` with certificates. `connect`: how long connecting may take; `silence`: for how long a connection is believed
/// in that says nothing, also one on which nothing is asked.
pub fn endpoint(
    address: impl Into<String>,
    tls: Option<&EtcdTls>,
    connect: Duration,
    silence: Duration,
) -> Result<Endpoint, Error> {
    let mut endpoint = Endpoint::from_shared(address.into())?
        .connect_timeout(connect)
        .http2_keep_alive_interval(silence)
        .keep_alive_timeout(silence)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    if let Some(tls) = tls {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        endpoint = endpoint.tls_config(config)?;
    }
    Ok(endpoint)
}

/// Calls on one member. A member without a leader refuses at once, instead of letting callers wait. A call that failed for the connection's sake has the transport's error as its
/// [`std::error::Error::source`]; one that etcd refused has none.
#[derive(Clone, Debug)]
pub struct Client(Channel);

impl Client {
    /// On a connection.
    pub fn new(channel: Channel) -> Self {
        Self(channel)
    }

    async fn ready(&self) -> Result<tonic::client::Grpc<Channel>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone()).max_decoding_message_size(LONGEST);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    async fn unary<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        question: Q,
    ) -> Result<A, Status> {
        let path = PathAndQuery::from_static(path);
        let answer = self.ready().await?.unary(request(question), path, ProstCodec::<Q, A>::default()).await?;
        Ok(answer.into_inner())
    }

    async fn streaming<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status> {
        let path = PathAndQuery::from_static(path);
        let answer = self.ready().await?.streaming(request(questions), path, ProstCodec::<Q, A>::default()).await?;
        Ok(answer.into_inner())
    }

    /// Reads.
    pub async fn range(&self, asked: RangeRequest) -> Result<RangeResponse, Status> {
        self.unary("/etcdserverpb.KV/Range", asked).await
    }

    /// Carries a transaction out.
    pub async fn txn(&self, asked: TxnRequest) -> Result<TxnResponse, Status> {
        self.unary("/etcdserverpb.KV/Txn", asked).await
    }

    /// Forgets what was before a revision.
    pub async fn compact(&self, revision: i64) -> Result<(), Status> {
        self.unary::<_, Ignored>("/etcdserverpb.KV/Compact", CompactionRequest { revision }).await.map(drop)
    }

    /// A lease of so many seconds. `id` is the number that it shall have; 0: etcd chooses.
    pub async fn grant(&self, ttl: i64, id: i64) -> Result<LeaseResponse, Status> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl, id }).await
    }

    /// Ends a lease, and everything that hangs on it.
    pub async fn revoke(&self, id: i64) -> Result<(), Status> {
        self.unary::<_, Ignored>("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id }).await.map(drop)
    }

    /// Renews a lease; false: it has ended.
    pub async fn keep_alive(&self, id: i64) -> Result<bool, Status> {
        let asked = tokio_stream::once(LeaseRequest { id });
        let mut answers = self.streaming("/etcdserverpb.Lease/LeaseKeepAlive", asked).await?;
        let answer: Option<LeaseResponse> = answers.message().await?;
        let answer = answer.ok_or_else(|| Status::unavailable("etcd closed the stream of leases"))?;
        Ok(answer.ttl > 0)
    }

    /// Watches. The first answer says that it was created.
    pub async fn watch(&self, create: WatchCreateRequest) -> Result<Streaming<WatchResponse>, Status> {
        // The request's side stays open: closing it would end the watch.
        let asked = tokio_stream::once(WatchRequest { create: Some(create) }).chain(tokio_stream::pending());
        self.streaming("/etcdserverpb.Watch/Watch", asked).await
    }
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}
