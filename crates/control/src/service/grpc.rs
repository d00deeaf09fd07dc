//! The gRPC service. With certificates everybody has to show one, and an agent's is for the name of its node; without, it is on loopback only.

use super::access::{Access, is_for};
use super::session::{self, Session};
use super::{Registered, Shared, locked};
use crate::directory::{Change, Located, Query};
use crate::message;
use crate::proto::control::control_server::{Control, ControlServer};
use crate::proto::control::{self as proto, directory_change, from_agent};
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// Messages for an agent that may wait.
const WAITING: usize = 1024;
/// How long an agent may take to say who it is.
const HELLO: Duration = Duration::from_secs(10);
/// How long a silent connection is believed in.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Serves until told to end.
pub fn serve(
    shared: Arc<Shared>,
    access: Access,
    listener: TcpListener,
    mut ended: watch::Receiver<bool>,
) -> Result<impl Future<Output = ()> + Send + 'static, StoreError> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .tcp_nodelay(true);
    if let Some(tls) = &access.tls {
        let config = ServerTlsConfig::new()
            .identity(Identity::from_pem(&tls.certificate, &tls.key))
            .client_ca_root(Certificate::from_pem(&tls.client_ca));
        server = server.tls_config(config).map_err(|error| StoreError::Invalid(format!("tls: {error}")))?;
    }
    let service = ControlServer::new(Service { shared, proven: access.tls.is_some() });
    let router = server.add_service(service);
    Ok(async move {
        let ending = async move {
            let _ = ended.wait_for(|ended| *ended).await;
        };
        let _ = router.serve_with_incoming_shutdown(TcpIncoming::from(listener), ending).await;
    })
}

struct Service {
    shared: Arc<Shared>,
    /// Whether callers show certificates.
    proven: bool,
}

type Outgoing<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl Control for Service {
    type JoinStream = Outgoing<proto::ToAgent>;
    type WatchStream = Outgoing<proto::DirectoryChange>;

    async fn join(&self, request: Request<Streaming<proto::FromAgent>>) -> Result<Response<Self::JoinStream>, Status> {
        let certificates = request.peer_certs();
        let mut inbound = request.into_inner();
        let first = tokio::time::timeout(HELLO, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no Hello came"))??;
        let Some(proto::FromAgent { message: Some(from_agent::Message::Hello(hello)) }) = first else {
            return Err(Status::invalid_argument("the first message must be Hello"));
        };
        let record = session::hello(&hello, &self.shared.name)?;
        if self.proven {
            let own = certificates.as_ref().and_then(|chain| chain.first());
            if !own.is_some_and(|certificate| is_for(certificate, &record.node)) {
                return Err(Status::permission_denied(format!(
                    "the certificate is not for `{}`: give the agent one with that name as subject alternative name",
                    record.node
                )));
            }
        }
        let (out, stream) = mpsc::channel(WAITING);
        let node = record.node.clone();
        let (notes, noted) = mpsc::channel(WAITING);
        let session = Session::begin(Arc::clone(&self.shared), record, out).await?;
        let revision = session.revision();
        let registered = Registered { revision, notes, wants: BTreeSet::new() };
        {
            let mut sessions = locked(&self.shared.sessions);
            if sessions.get(&node).is_some_and(|other| other.revision > revision) {
                return Err(Status::aborted("another agent of this node has joined"));
            }
            sessions.insert(node.clone(), registered);
        }
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            session.run(inbound, noted).await;
            let mut sessions = locked(&shared.sessions);
            if sessions.get(&node).is_some_and(|registered| registered.revision == revision) {
                sessions.remove(&node);
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn find_connections(
        &self,
        request: Request<proto::FindConnectionsRequest>,
    ) -> Result<Response<proto::FindConnectionsResponse>, Status> {
        let asked = request.into_inner();
        let port_num = asked.port_num.map(u8::try_from).transpose();
        let query = Query {
            node: asked.node,
            qp_num: asked.qp_num,
            tenant: asked.tenant,
            service: asked.service,
            device: asked.device,
            port_num: port_num.map_err(|_| Status::invalid_argument("port_num: ports count from 1 to 255"))?,
            limit: asked.limit as usize,
            after: asked.after,
        };
        let found = self.shared.index.find(&query);
        Ok(Response::new(proto::FindConnectionsResponse {
            connections: found.connections.iter().map(located).collect(),
            next: found.next.unwrap_or_default(),
            revision: found.revision.0,
        }))
    }

    async fn find_services(
        &self,
        request: Request<proto::FindServicesRequest>,
    ) -> Result<Response<proto::FindServicesResponse>, Status> {
        let asked = request.into_inner();
        let index = &self.shared.index;
        let found = match &asked.service {
            Some(service) => index.service(service),
            None => index.services().0,
        };
        let fits = |address: &&Arc<_>| {
            let address: &scalefabric_fabric::directory::ServiceAddress = address;
            asked.node.as_ref().is_none_or(|node| *node == address.node)
        };
        Ok(Response::new(proto::FindServicesResponse {
            services: found.iter().filter(fits).map(|address| message::service_message(address)).collect(),
            revision: index.revision().0,
        }))
    }

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let node = request.into_inner().node;
        let (out, stream) = mpsc::channel(WAITING);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let _ = watch_directory(&shared, node.as_deref(), &out).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// The reader has gone.
struct Gone;

type Out = mpsc::Sender<Result<proto::DirectoryChange, Status>>;

async fn tell(out: &Out, revision: u64, change: directory_change::Change) -> Result<(), Gone> {
    let change = proto::DirectoryChange { revision, change: Some(change) };
    out.send(Ok(change)).await.map_err(|_| Gone)
}

async fn watch_directory(shared: &Shared, node: Option<&str>, out: &Out) -> Result<(), Gone> {
    loop {
        let (there, revision, mut changes) = shared.index.snapshot(node);
        for change in there.iter().filter_map(told) {
            tell(out, revision.0, change).await?;
        }
        tell(out, revision.0, directory_change::Change::InSync(proto::InSync {})).await?;
        'following: loop {
            let next = tokio::select! {
                next = changes.next() => next,
                () = out.closed() => return Err(Gone),
            };
            let Some(next) = next else { return Ok(()) };
            let Ok(batch) = next else { break 'following };
            for change in &batch.1 {
                if matches!(change, Change::All) {
                    break 'following;
                }
                if node.is_none_or(|node| is_of(change, node))
                    && let Some(change) = told(change)
                {
                    tell(out, batch.0.0, change).await?;
                }
            }
        }
        tell(out, revision.0, directory_change::Change::StartAgain(proto::StartAgain {})).await?;
    }
}

fn is_of(change: &Change, node: &str) -> bool {
    match change {
        Change::Connection(located) => *located.node == *node,
        Change::ConnectionGone { node: of, .. } => **of == *node,
        Change::Service(address) => address.node == node,
        Change::ServiceGone { node: of, .. } | Change::NodeGone(of) => of == node,
        Change::Node(of) => of.node == node,
        Change::All => true,
    }
}

fn told(change: &Change) -> Option<directory_change::Change> {
    use directory_change::Change as Told;
    Some(match change {
        Change::Connection(one) => Told::Connection(located(one)),
        Change::ConnectionGone { node, process, id } => Told::ConnectionGone(proto::LocatedConnectionId {
            node: node.to_string(),
            id: Some(message::connection_id_message(id)),
            process: process.to_string(),
        }),
        Change::Service(address) => Told::Service(message::service_message(address)),
        Change::ServiceGone { service, node, exchange } => {
            let (service, node, exchange) = (service.clone(), node.clone(), exchange.clone());
            Told::ServiceGone(proto::ServiceGone { service, node, exchange })
        }
        Change::Node(_) | Change::NodeGone(_) | Change::All => return None,
    })
}

fn located(located: &Located) -> proto::LocatedConnection {
    let mut connection = message::connection_message(&located.record);
    connection.process = located.process.to_string();
    proto::LocatedConnection { node: located.node.to_string(), connection: Some(connection) }
}
