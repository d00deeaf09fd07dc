//! The exchange through rdma_cm: for fabrics where nothing but RDMA connects the peers. The communication manager brings up an RC QP, its private data carries
//! the greeting and a name, and messages are SENDs on that QP. RoCE hides nothing: beyond the host it must be allowed, or sealed
//! ([`super::Sealed`]). The QP is the exchange's own; it never carries data.

use super::cm_channel::{CmLink, Messenger, greeting, hear_greeting};
use super::tcp::within;
use super::{Channel, Exchange, Identity, Listener, Patience, Pending, place};
use crate::error::{FabricError, Fault};
use scalefabric_verbs::cm::reject_reason;
use scalefabric_verbs::{
    CmAddr, CmEvent, CmEventType, CmId, ConnParam, Context, Ece, EventParam, PortSpace, Provider, QpState, QpType,
};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// Requests that wait to be taken.
const BACKLOG: u32 = 64;

/// rdma_cm of a provider. Addresses are `ip:port` of RDMA devices; port 0 takes a free one when listening.
#[derive(Clone, Debug)]
pub struct RdmaCm {
    provider: Arc<dyn Provider>,
    contexts: Arc<Mutex<HashMap<String, Arc<dyn Context>>>>,
    name: String,
    patience: Patience,
    insecure: bool,
}

impl RdmaCm {
    /// `name` (at most 40 bytes of it) is what peers see; nothing proves it.
    pub fn new(provider: Arc<dyn Provider>, name: impl Into<String>) -> Self {
        Self { provider, contexts: Arc::default(), name: name.into(), patience: Patience::default(), insecure: false }
    }

    /// With another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Allows addresses that leave this host: who reads packets on the way reads messages. Harmless below [`super::Sealed`].
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    async fn address(&self, text: &str, listens: bool) -> Result<SocketAddr, FabricError> {
        let address = place::resolve(text).await?[0];
        let stays = if listens { place::is_loopback(address.ip()) } else { place::is_own(address.ip()) };
        if stays || self.insecure {
            return Ok(address);
        }
        Err(FabricError::misuse(format!(
            "rdma-cm://{address} leaves this host without encryption, and messages carry keys: seal the exchange (Sealed over RdmaCm::insecure()), or use tls://"
        )))
    }

    fn context(&self, id: &dyn CmId) -> Result<Arc<dyn Context>, FabricError> {
        let device = id
            .query_addr()
            .device
            .ok_or_else(|| FabricError::environment("the identifier is bound to no device: give the address of one"))?;
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&device.name) {
            return Ok(context.clone());
        }
        let context = self.provider.open(&device.name)?;
        contexts.insert(device.name, context.clone());
        Ok(context)
    }

    fn param(&self, messenger: &Messenger) -> ConnParam {
        ConnParam {
            private_data: greeting(&self.name),
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num: messenger.qp_num(),
            ..ConnParam::default()
        }
    }

    async fn reach(&self, address: SocketAddr) -> Result<CmMessages, FabricError> {
        let link = CmLink::new(&*self.provider, None)?;
        let id = link.id();
        let limit_ms = self.patience.dial.as_millis() as u32;
        id.resolve_addr(None, CmAddr::Ip(address), limit_ms)?;
        expect(link.event().await?, CmEventType::AddrResolved, address)?;
        id.resolve_route(limit_ms)?;
        expect(link.event().await?, CmEventType::RouteResolved, address)?;
        let messenger = Messenger::new(&self.context(&**id)?)?;
        messenger.bring(&**id, QpState::Init)?;
        messenger.post_all_receives()?;
        id.connect(&self.param(&messenger))?;
        let response = expect(link.event().await?, CmEventType::ConnectResponse, address)?;
        let name = hear_greeting(private_data(&response), address)?;
        messenger.bring(&**id, QpState::Rtr)?;
        messenger.bring(&**id, QpState::Rts)?;
        id.accept(None, None, Ece::default())?;
        Ok(CmMessages::start(link, messenger, name, address, self.patience))
    }

    /// A request: brings up a QP and waits until the peer has done so, too.
    async fn take(&self, request: CmEvent) -> Result<CmMessages, FabricError> {
        let id = request.request.clone().ok_or_else(|| {
            FabricError::peer("a request without an identifier: report it to whoever makes the backend")
        })?;
        let peer = match id.query_addr().peer {
            Some(CmAddr::Ip(peer)) => peer,
            _ => SocketAddr::from(([0, 0, 0, 0], 0)),
        };
        let link = CmLink::new(&*self.provider, Some(id))?;
        let id = link.id();
        let name = match hear_greeting(private_data(&request), peer) {
            Ok(name) => name,
            Err(error) => {
                let _ = id.reject(b"SFABXCH: another protocol", reject_reason::CONSUMER_DEFINED);
                return Err(error);
            }
        };
        let messenger = Messenger::new(&self.context(&**id)?)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            messenger.bring(&**id, state)?;
        }
        messenger.post_all_receives()?;
        id.accept(Some(&self.param(&messenger)), Some(1), Ece::default())?;
        expect(link.event().await?, CmEventType::Established, peer)?;
        Ok(CmMessages::start(link, messenger, name, peer, self.patience))
    }
}

fn private_data(event: &CmEvent) -> &[u8] {
    match &event.param {
        EventParam::Conn(said) => &said.private_data,
        EventParam::Ud(_) => &[],
    }
}

fn expect(event: CmEvent, wanted: CmEventType, peer: SocketAddr) -> Result<CmEvent, FabricError> {
    if event.event == wanted && event.status == 0 {
        return Ok(event);
    }
    Err(match event.event {
        CmEventType::Rejected if event.status == i32::from(reject_reason::INVALID_SERVICE_ID) => {
            FabricError::unreachable(format!(
                "nobody listens at rdma-cm://{peer}: is the peer started, and is this its port?"
            ))
        }
        CmEventType::Rejected => FabricError::peer(format!(
            "rdma-cm://{peer} rejects the connection (reason {}): is it a scaleFabric of this version?",
            event.status
        )),
        CmEventType::AddrError | CmEventType::RouteError => FabricError::unreachable(format!(
            "no RDMA device of this host leads to {peer} (error {}): check the address, and the routes",
            -event.status
        )),
        other => FabricError::unreachable(format!(
            "rdma-cm://{peer} cannot be reached ({other:?}, {}): dial again",
            event.status
        )),
    })
}

/// What befell one peer ends no listener: a request that was given up makes the verbs on its identifier fail.
fn of_one_peer(error: FabricError) -> FabricError {
    match error.fault {
        Fault::Peer | Fault::Unreachable => error,
        _ => FabricError {
            fault: Fault::Unreachable,
            ..error.during("a peer that came could not be connected (it may have given up)")
        },
    }
}

impl Exchange for RdmaCm {
    fn scheme(&self) -> &'static str {
        "rdma-cm"
    }

    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let address = self.address(address, true).await?;
            let link = CmLink::new(&*self.provider, None)?;
            link.id()
                .bind_addr(CmAddr::Ip(address))
                .map_err(|error| FabricError::from(error).during(format!("cannot listen on rdma-cm://{address}")))?;
            link.id().listen(BACKLOG)?;
            let Some(CmAddr::Ip(address)) = link.id().query_addr().local else {
                return Err(FabricError::environment(
                    "the communication manager does not say where it listens: report it to whoever makes the backend",
                ));
            };
            Ok(Box::new(CmPeers { exchange: self.clone(), address, link, proving: JoinSet::new() })
                as Box<dyn Listener>)
        })
    }

    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        Box::pin(async move {
            let channel =
                within(self.patience.dial, address, async { self.reach(self.address(address, false).await?).await })
                    .await?;
            Ok(Box::new(channel) as Box<dyn Channel>)
        })
    }
}

struct CmPeers {
    exchange: RdmaCm,
    address: SocketAddr,
    link: CmLink,
    proving: JoinSet<Result<CmMessages, FabricError>>,
}

impl fmt::Debug for CmPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmPeers").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener for CmPeers {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>> {
        Box::pin(async move {
            loop {
                tokio::select! {
                    Some(done) = self.proving.join_next() => {
                        let channel = done.unwrap_or_else(|error| Err(FabricError::peer(format!("a peer's connection ended early: {error}"))))?;
                        return Ok(Box::new(channel) as Box<dyn Channel>);
                    }
                    event = self.link.event() => {
                        let event = event?;
                        if event.event == CmEventType::ConnectRequest {
                            let exchange = self.exchange.clone();
                            self.proving.spawn(async move {
                                within(exchange.patience.dial, "rdma-cm", exchange.take(event)).await.map_err(of_one_peer)
                            });
                        } else if event.event == CmEventType::DeviceRemoval {
                            return Err(FabricError::environment(format!("the device of rdma-cm://{} is gone: listen on another", self.address)));
                        }
                    }
                }
            }
        })
    }
}

/// What the application holds of a channel.
struct CmMessages {
    peer: Identity,
    called: SocketAddr,
    patience: Patience,
    outgoing: tokio::sync::mpsc::Sender<super::cm_channel::Outgoing>,
    incoming: tokio::sync::mpsc::Receiver<Result<Vec<u8>, FabricError>>,
    over: Option<FabricError>,
}

impl CmMessages {
    fn start(link: CmLink, messenger: Messenger, name: String, called: SocketAddr, patience: Patience) -> Self {
        let (outgoing, from_application) = tokio::sync::mpsc::channel(1);
        let (to_application, incoming) = tokio::sync::mpsc::channel(1);
        tokio::spawn(super::cm_channel::work(link, messenger, called, patience, from_application, to_application));
        let peer = Identity { name, proven: false, local: place::is_own(called.ip()) };
        Self { peer, called, patience, outgoing, incoming, over: None }
    }
}

impl fmt::Debug for CmMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmMessages").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Channel for CmMessages {
    fn peer(&self) -> Identity {
        self.peer.clone()
    }

    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()> {
        Box::pin(async move {
            super::check_length(message)?;
            let broken = || {
                FabricError::unreachable(format!(
                    "the channel to {} is broken, `receive` says why: dial again",
                    self.called
                ))
            };
            let post = async {
                let (done, result) = tokio::sync::oneshot::channel();
                self.outgoing.send((message.to_vec(), done)).await.map_err(|_| broken())?;
                result.await.map_err(|_| broken())?
            };
            tokio::time::timeout(self.patience.send, post).await.unwrap_or_else(|_| {
                Err(FabricError::new(
                    Fault::Unreachable,
                    format!("{} took no message for {:?}: dial again", self.called, self.patience.send),
                ))
            })
        })
    }

    fn receive(&mut self) -> Pending<'_, Vec<u8>> {
        Box::pin(async move {
            if let Some(error) = &self.over {
                return Err(error.clone());
            }
            let ended = || Err(FabricError::unreachable("the channel's task has ended: dial again"));
            let result = self.incoming.recv().await.unwrap_or_else(ended);
            self.over = result.as_ref().err().cloned();
            result
        })
    }
}

/// What rdma_cm connects here.
pub(super) const SPACE: (PortSpace, QpType) = (PortSpace::Tcp, QpType::Rc);
