//! Channels through a store that both sides can reach (memcached, etcd): each side has a box of numbered messages and a state beside it that says how many
//! it has sent and taken, and that it is alive. What differs between stores is behind [`Store`]. It may not lose a message without saying so: a message
//! that is counted as sent and is not there was lost by the store, and ends the channel.
//!
//! A task for each channel owns the connection to the store, so that giving up a call never leaves half an answer behind.

mod postman;

use super::{Channel, Identity, Listener, Patience, Pending, check_length};
use crate::error::FabricError;
use postman::{Postman, state_key};
use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// Messages sent and not yet taken.
const WINDOW: u64 = 32;
/// Messages looked for at once.
const LOOK_AHEAD: u64 = 8;
/// Peers that wait to be accepted.
const BACKLOG: usize = 64;

/// A connection to a store of keys and values. Futures may be dropped only where it says so.
pub(super) trait Store: Send + 'static {
    /// Whether it may forget values that have not expired.
    const FORGETS: bool;

    /// Puts a value that lives as long as it is renewed, if there is none; false if there is.
    fn claim(&mut self, key: &str, value: &[u8]) -> impl Future<Output = Result<bool, FabricError>> + Send;
    /// Puts values, the last one not before the others. A state lives as long as it is renewed; other values for a while.
    fn put(&mut self, items: &[(String, Vec<u8>)]) -> impl Future<Output = Result<(), FabricError>> + Send;
    /// Keeps a value that was put or claimed alive, and puts it again if it was forgotten.
    fn renew(&mut self, key: &str, value: &[u8]) -> impl Future<Output = Result<(), FabricError>> + Send;
    /// Values, in the order of the keys: the first is read first.
    fn get(&mut self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, FabricError>> + Send;
    /// Deletes values; those that are not there do no harm.
    fn delete(&mut self, keys: &[String]) -> impl Future<Output = Result<(), FabricError>> + Send;
    /// Opens a box for calls.
    fn open_calls(&mut self, calls: &str) -> impl Future<Output = Result<(), FabricError>> + Send;
    /// Puts a call into it.
    fn call(&mut self, calls: &str, id: &str) -> impl Future<Output = Result<(), FabricError>> + Send;
    /// Takes calls out of it. One may come twice.
    fn take_calls(&mut self, calls: &str) -> impl Future<Output = Result<Vec<String>, FabricError>> + Send;
    /// Names what [`Store::changed`] shall wait for: keys that begin so.
    fn watch(&mut self, prefix: &str) -> impl Future<Output = Result<(), FabricError>> + Send;
    /// Returns when something watched may have changed. `quiet` counts the looks that found nothing. May be dropped.
    fn changed(&mut self, quiet: u32) -> impl Future<Output = ()> + Send;
    /// The end: what lives only as long as it is renewed may go now.
    fn finish(&mut self) -> impl Future<Output = ()> + Send;
}

/// Makes connections to a store.
pub(super) trait Open: Clone + Send + Sync + 'static {
    /// What it connects to.
    type Store: Store;
    /// Connects.
    fn open(&self) -> impl Future<Output = Result<Self::Store, FabricError>> + Send;
    /// How people know the store.
    fn called(&self) -> String;
}

/// What both ends of a store's channels have in common.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// What we call ourselves; nothing proves it.
    pub(super) name: String,
    /// Whether everybody who reaches the store is on this host.
    pub(super) local: bool,
    pub(super) patience: Patience,
}

/// `host:port/service`: the parts.
pub(super) fn split(address: &str) -> Result<(&str, &str), FabricError> {
    let wrong = || {
        FabricError::misuse(format!(
            "`{address}` is no address of a mailbox: write host:port/service, such as 10.0.0.1:11211/storage"
        ))
    };
    let (store, service) = address.split_once('/').ok_or_else(wrong)?;
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if store.is_empty() || service.is_empty() || service.len() > 64 || !service.chars().all(fits) {
        return Err(FabricError::misuse(format!("`{address}`: a service has 1 to 64 letters, digits, `.`, `_`, `-`")));
    }
    Ok((store, service))
}

fn listener_key(service: &str) -> String {
    format!("sfab/{service}/listener")
}

fn calls_key(listener: &str) -> String {
    format!("sfab/{listener}/calls")
}

/// A number that nobody else takes.
fn fresh_id() -> Result<String, FabricError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| FabricError::environment(format!("the kernel gives no random bytes: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// What each side tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    sent: u64,
    taken: u64,
    closed: bool,
    name: String,
}

impl State {
    fn emit(&self) -> Vec<u8> {
        let end = if self.closed { "closed" } else { "open" };
        format!("{} {} {end} {}", self.sent, self.taken, self.name).into_bytes()
    }

    fn parse(bytes: &[u8]) -> Result<Self, FabricError> {
        let parsed = || {
            let mut words = std::str::from_utf8(bytes).ok()?.splitn(4, ' ');
            let (sent, taken) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let closed = match words.next()? {
                "closed" => true,
                "open" => false,
                _ => return None,
            };
            Some(Self { sent, taken, closed, name: words.next()?.to_owned() })
        };
        parsed().ok_or_else(|| {
            FabricError::peer("the peer's state in the store cannot be read: is it a scaleFabric of this version?")
        })
    }
}

/// Waits for peers at a service's name.
pub(super) async fn listen<O: Open>(
    open: O,
    store_address: &str,
    service: &str,
    terms: Terms,
) -> Result<Box<dyn Listener>, FabricError> {
    let limit = terms.patience.dial;
    let id = fresh_id()?;
    let first = super::tcp::within(limit, store_address, claim(&open, service, &id)).await?;
    let (peers, waiting) = mpsc::channel(BACKLOG);
    let address = format!("{store_address}/{service}");
    let task = tokio::spawn(hear(open, first, service.to_owned(), id, terms, peers));
    Ok(Box::new(Peers { address, waiting, task: task.abort_handle() }))
}

async fn claim<O: Open>(open: &O, service: &str, id: &str) -> Result<O::Store, FabricError> {
    let mut store = open.open().await?;
    let key = listener_key(service);
    // Calls first: whoever finds the listener must be able to call.
    store.open_calls(&calls_key(id)).await?;
    if !store.claim(&key, id.as_bytes()).await? && store.get(&[key]).await?[0].as_deref() != Some(id.as_bytes()) {
        return Err(FabricError::environment(format!(
            "the service `{service}` is taken by another listener in {}: stop it, choose another name, or wait until the claim of one that died has expired",
            open.called()
        )));
    }
    store.watch(&calls_key(id)).await?;
    Ok(store)
}

/// The listener's task: renews the claim, answers calls, and comes back when the store was away.
async fn hear<O: Open>(
    open: O,
    mut store: O::Store,
    service: String,
    id: String,
    terms: Terms,
    peers: mpsc::Sender<Result<Mailbox, FabricError>>,
) {
    let key = listener_key(&service);
    let mut pause = Duration::from_millis(50);
    loop {
        let error = tokio::select! {
            error = answer_calls(&open, &mut store, &key, &id, &terms, &peers) => error,
            // Nobody accepts any more: the service is withdrawn.
            () = peers.closed() => {
                if let Ok(mut store) = timeout(terms.patience.dial, open.open()).await.unwrap_or_else(|_| Err(FabricError::unreachable("late"))) {
                    let _ = timeout(terms.patience.dial, store.delete(&[key])).await;
                }
                store.finish().await;
                return;
            }
        };
        if peers.send(Err(error)).await.is_err() {
            return;
        }
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
            if peers.is_closed() {
                return;
            }
            if let Ok(Ok(again)) = timeout(terms.patience.dial, claim(&open, &service, &id)).await {
                store = again;
                pause = Duration::from_millis(50);
                break;
            }
        }
    }
}

/// Ends with the error of the store.
async fn answer_calls<O: Open>(
    open: &O,
    store: &mut O::Store,
    key: &str,
    id: &str,
    terms: &Terms,
    peers: &mpsc::Sender<Result<Mailbox, FabricError>>,
) -> FabricError {
    let mut answered = HashSet::new();
    let mut quiet = 0;
    let mut renewed = Instant::now();
    loop {
        if renewed.elapsed() >= terms.patience.silence / 4 {
            renewed = Instant::now();
            if let Err(error) = store.renew(key, id.as_bytes()).await {
                return error;
            }
        }
        let calls = match store.take_calls(&calls_key(id)).await {
            Ok(calls) => calls,
            Err(error) => return error,
        };
        quiet = if calls.is_empty() { quiet + 1 } else { 0 };
        for call in calls {
            if answered.insert(call.clone()) {
                let (open, terms, peers) = (open.clone(), terms.clone(), peers.clone());
                tokio::spawn(async move {
                    let limit = terms.patience.dial;
                    let came =
                        super::tcp::within(limit, &open.called(), Mailbox::open(&open, call, Role::Listener, terms))
                            .await;
                    // A caller that has given up meanwhile is nobody.
                    if let Some(came) = came.transpose() {
                        let _ = peers.send(came).await;
                    }
                });
            }
        }
        if answered.len() > 4096 {
            answered.clear();
        }
        let rest = (terms.patience.silence / 4).saturating_sub(renewed.elapsed());
        let _ = timeout(rest, store.changed(quiet)).await;
    }
}

/// Reaches who listens at a service's name.
pub(super) async fn dial<O: Open>(open: O, service: &str, terms: Terms) -> Result<Box<dyn Channel>, FabricError> {
    let mut store = open.open().await?;
    let Some(listener) = store.get(&[listener_key(service)]).await?.remove(0) else {
        return Err(FabricError::unreachable(format!(
            "nobody listens as `{service}` in {}: is the peer started?",
            open.called()
        )));
    };
    let listener = String::from_utf8_lossy(&listener).into_owned();
    let id = fresh_id()?;
    let mailbox = Mailbox::open(&open, id.clone(), Role::Dialler, terms).await?;
    let mut mailbox =
        mailbox.ok_or_else(|| FabricError::peer("the channel was closed before it was used: dial again"))?;
    store.call(&calls_key(&listener), &id).await?;
    mailbox.until_met().await?;
    Ok(Box::new(mailbox))
}

struct Peers {
    address: String,
    waiting: mpsc::Receiver<Result<Mailbox, FabricError>>,
    task: tokio::task::AbortHandle,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers")
            .field("address", &self.address)
            .field("over", &self.task.is_finished())
            .finish_non_exhaustive()
    }
}

impl Listener for Peers {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>> {
        Box::pin(async move {
            let ended = || FabricError::environment("the listener's task has ended: listen again");
            let mailbox = self.waiting.recv().await.ok_or_else(ended)??;
            Ok(Box::new(mailbox) as Box<dyn Channel>)
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Dialler,
    Listener,
}

/// A message, and where to say that it is in the store.
type Letter = (Vec<u8>, oneshot::Sender<Result<(), FabricError>>);

/// One end of a channel: what the application holds of it.
struct Mailbox {
    peer: Identity,
    patience: Patience,
    outgoing: mpsc::Sender<Letter>,
    incoming: mpsc::Receiver<Result<Vec<u8>, FabricError>>,
    met: Option<oneshot::Receiver<String>>,
    over: Option<FabricError>,
}

impl Mailbox {
    /// Puts our state into the store and starts the task. For a listener, `None` if the caller has gone.
    async fn open<O: Open>(open: &O, id: String, role: Role, terms: Terms) -> Result<Option<Self>, FabricError> {
        let mut store = open.open().await?;
        let (mine, theirs) = match role {
            Role::Dialler => (format!("sfab/{id}/d"), format!("sfab/{id}/l")),
            Role::Listener => (format!("sfab/{id}/l"), format!("sfab/{id}/d")),
        };
        let mut peer = None;
        if role == Role::Listener {
            match store.get(&[state_key(&theirs)]).await?.remove(0).map(|bytes| State::parse(&bytes)).transpose()? {
                Some(state) if !state.closed => peer = Some(state),
                _ => return Ok(None),
            }
        }
        let state = State { sent: 0, taken: 0, closed: false, name: terms.name.clone() };
        store.watch(&theirs).await?;
        store.put(&[(state_key(&mine), state.emit())]).await?;
        let (outgoing, from_application) = mpsc::channel(1);
        let (to_application, incoming) = mpsc::channel(WINDOW as usize);
        let (meet, met) = oneshot::channel();
        let name = peer.as_ref().map(|peer| peer.name.clone()).unwrap_or_default();
        let postman = Postman {
            called: open.called(),
            silence: terms.patience.silence,
            store,
            mine,
            theirs,
            state,
            peer,
            absent: None,
            meet: Some(meet),
            to_application,
            renewed: Instant::now(),
        };
        tokio::spawn(postman.work(from_application));
        let peer = Identity { name, proven: false, local: terms.local };
        Ok(Some(Self { peer, patience: terms.patience, outgoing, incoming, met: Some(met), over: None }))
    }

    async fn until_met(&mut self) -> Result<(), FabricError> {
        let Some(met) = self.met.take() else { return Ok(()) };
        match met.await {
            Ok(name) => {
                self.peer.name = name;
                Ok(())
            }
            Err(_) => match self.incoming.recv().await {
                Some(Err(error)) => Err(error),
                _ => Err(FabricError::unreachable("the channel broke while it was made: dial again")),
            },
        }
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), FabricError> {
        check_length(message)?;
        let broken = || FabricError::unreachable("the channel is broken, `receive` says why: dial again");
        let post = async {
            let (done, result) = oneshot::channel();
            self.outgoing.send((message.to_vec(), done)).await.map_err(|_| broken())?;
            result.await.map_err(|_| broken())?
        };
        timeout(self.patience.send, post).await.unwrap_or_else(|_| {
            Err(FabricError::unreachable(format!("the peer took no message for {:?}: dial again", self.patience.send)))
        })
    }

    async fn receive(&mut self) -> Result<Vec<u8>, FabricError> {
        if let Some(error) = &self.over {
            return Err(error.clone());
        }
        let next = self.incoming.recv().await;
        let result = next.unwrap_or_else(|| Err(FabricError::unreachable("the channel's task has ended: dial again")));
        self.over = result.as_ref().err().cloned();
        result
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Channel for Mailbox {
    fn peer(&self) -> Identity {
        self.peer.clone()
    }

    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()> {
        Box::pin(self.send(message))
    }

    fn receive(&mut self) -> Pending<'_, Vec<u8>> {
        Box::pin(self.receive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    #[test]
    fn an_address_names_a_store_and_a_service() {
        assert_eq!(split("10.0.0.1:11211/storage").unwrap(), ("10.0.0.1:11211", "storage"));
        for wrong in ["10.0.0.1:11211", "/storage", "a:1/", "a:1/b c", "a:1/b/c", "a:1/b\r\n"] {
            assert_eq!(split(wrong).unwrap_err().fault, Fault::Misuse, "{wrong}");
        }
    }

    #[test]
    fn a_state_comes_back_and_another_text_is_the_peers_fault() {
        let state = State { sent: 7, taken: 3, closed: true, name: "node 3".into() };
        assert_eq!(State::parse(&state.emit()).unwrap(), state);
        for wrong in [&b""[..], b"1 2 open", b"1 2 shut x", b"-1 2 open x", b"\xff"] {
            assert_eq!(State::parse(wrong).unwrap_err().fault, Fault::Peer);
        }
    }
}
