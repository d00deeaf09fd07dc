//! The exchange through etcd, for fabrics that have one: the mailbox with its keys under a lease, and a watch instead of polling. When a process dies its
//! keys go with its lease, and the peer notices. Beyond the host it wants TLS to etcd; who may read etcd's keys can still read messages, unless
//! they are sealed ([`super::Sealed`]).

use super::etcd_api::{
    Client as Api, Compare, DeleteRangeRequest, EtcdTls, Operation, Outcome, PutRequest, RangeRequest, RequestOp,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchResponse, endpoint,
};
use super::mailbox::{self, Open, Store, Terms};
use super::tcp::within;
use super::{Channel, Exchange, Listener, Patience, Pending, place};
use crate::certificate::Credentials;
use crate::error::FabricError;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

/// How long a watch may be silent before we look all the same.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// etcd. Addresses are `host:port/service`.
#[derive(Clone, Debug)]
pub struct Etcd {
    terms: Terms,
    insecure: bool,
    credentials: Option<Credentials>,
}

impl Etcd {
    /// `name` is what peers see; nothing proves it.
    pub fn new(name: impl Into<String>) -> Self {
        let terms = Terms { name: name.into(), local: true, patience: Patience::default() };
        Self { terms, insecure: false, credentials: None }
    }

    /// With another patience. The lease is as long as its `silence`.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.terms.patience = patience;
        self
    }

    /// Speaks TLS with etcd and shows it this certificate. etcd's own must be for the host that is dialled.
    #[must_use]
    pub fn with_tls(mut self, credentials: &Credentials) -> Self {
        self.credentials = Some(credentials.clone());
        self
    }

    /// Allows an etcd on another host without TLS: who reads packets on the way reads messages. Harmless below [`super::Sealed`].
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    async fn prepare(&self, server: &str) -> Result<(Server, Terms), FabricError> {
        let local = place::resolve(server).await?.iter().all(|address| place::is_loopback(address.ip()));
        if !local && !self.insecure && self.credentials.is_none() {
            return Err(FabricError::misuse(format!(
                "etcd://{server} is on another host and would be asked without encryption, and messages carry keys: give certificates (Etcd::with_tls), \
                 or seal the exchange (Sealed over Etcd::insecure())"
            )));
        }
        let scheme = if self.credentials.is_some() { "https" } else { "http" };
        let wrong = |error| {
            FabricError::misuse(format!(
                "`{server}` is no address of an etcd, or its certificates cannot be used: {error}"
            ))
        };
        let tls = self.credentials.as_ref().map(|credentials| EtcdTls {
            ca: credentials.authorities_pem.clone(),
            identity: Some((credentials.certificate_pem.clone(), credentials.key_pem.clone())),
        });
        let Patience { dial, silence, .. } = self.terms.patience;
        let endpoint = endpoint(format!("{scheme}://{server}"), tls.as_ref(), dial, silence / 2).map_err(wrong)?;
        let terms = Terms { local, ..self.terms.clone() };
        Ok((Server { endpoint, address: server.to_owned(), patience: terms.patience }, terms))
    }
}

impl Exchange for Etcd {
    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let (address, service) = mailbox::split(address)?;
            let (server, terms) = self.prepare(address).await?;
            mailbox::listen(server, address, service, terms).await
        })
    }

    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        Box::pin(async move {
            let (server, service) = mailbox::split(address)?;
            let (server, terms) = self.prepare(server).await?;
            within(terms.patience.dial, address, mailbox::dial(server, service, terms)).await
        })
    }
}

#[derive(Clone)]
struct Server {
    endpoint: Endpoint,
    address: String,
    patience: Patience,
}

impl Open for Server {
    type Store = Client;

    async fn open(&self) -> Result<Client, FabricError> {
        let called = self.called();
        let away = |error: tonic::transport::Error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            FabricError::unreachable(format!(
                "{} does not answer ({error}{cause}): is it running, and do its certificates fit?",
                self.called()
            ))
        };
        let api = Api::new(self.endpoint.connect().await.map_err(away)?);
        let granted = api.grant(self.patience.silence.as_secs().max(3) as i64, 0).await;
        let lease = granted.map_err(|status| failed(&called, &status))?.id;
        Ok(Client { api, called, lease, patience: self.patience, prefix: String::new(), watch: None })
    }

    fn called(&self) -> String {
        format!("etcd at {}", self.address)
    }
}

/// What went wrong with a server that is called so.
fn failed(called: &str, status: &Status) -> FabricError {
    if let Some(cause) = std::error::Error::source(status) {
        return FabricError::unreachable(format!("{called} cannot be reached ({cause}): is it running? Dial again"));
    }
    let text = format!("{called} refuses ({:?}: {})", status.code(), status.message());
    match status.code() {
        tonic::Code::Unauthenticated | tonic::Code::PermissionDenied => FabricError::misuse(format!(
            "{text}: give this node a certificate or a role that may write keys that begin with sfab/"
        )),
        _ => FabricError::unreachable(format!("{text}: is it running, and has it a leader? Dial again")),
    }
}

struct Client {
    api: Api,
    called: String,
    lease: i64,
    patience: Patience,
    prefix: String,
    watch: Option<Streaming<WatchResponse>>,
}

impl Client {
    fn put_op(&self, key: &str, value: &[u8]) -> RequestOp {
        Operation::Put(PutRequest { key: key.as_bytes().to_vec(), value: value.to_vec(), lease: self.lease }).into()
    }

    async fn within<T>(&self, ask: impl Future<Output = Result<T, Status>>) -> Result<T, FabricError> {
        let ask = async { ask.await.map_err(|status| failed(&self.called, &status)) };
        within(self.patience.send, &self.called, ask).await
    }

    async fn txn(&self, compare: Vec<Compare>, success: Vec<RequestOp>) -> Result<TxnResponse, FabricError> {
        self.within(self.api.txn(TxnRequest { compare, success, failure: Vec::new() })).await
    }

    /// Watches keys that begin so; it watches when this returns.
    async fn begin_watch(&self, prefix: &str) -> Result<Streaming<WatchResponse>, FabricError> {
        let begun = self.within(async {
            let mut answers = self.api.watch(WatchCreateRequest::prefixed(prefix)).await?;
            let first = answers.message().await?;
            Ok((answers, first))
        });
        match begun.await? {
            (answers, Some(WatchResponse { created: true, canceled: false, .. })) => Ok(answers),
            _ => Err(FabricError::unreachable(format!("{} gives no watch: dial again", self.called))),
        }
    }
}

impl Store for Client {
    const FORGETS: bool = false;

    async fn claim(&mut self, key: &str, value: &[u8]) -> Result<bool, FabricError> {
        Ok(self.txn(vec![Compare::unchanged(key, 0)], vec![self.put_op(key, value)]).await?.succeeded)
    }

    async fn put(&mut self, items: &[(String, Vec<u8>)]) -> Result<(), FabricError> {
        let puts = items.iter().map(|(key, value)| self.put_op(key, value)).collect();
        self.txn(Vec::new(), puts).await.map(drop)
    }

    async fn renew(&mut self, _key: &str, _value: &[u8]) -> Result<(), FabricError> {
        if self.within(self.api.keep_alive(self.lease)).await? {
            return Ok(());
        }
        Err(FabricError::unreachable(format!(
            "our lease in {} has expired (this process, or etcd, was away for more than {:?}): dial again",
            self.called, self.patience.silence
        )))
    }

    async fn get(&mut self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, FabricError> {
        let ranges = keys.iter().map(|key| Operation::Range(RangeRequest::of(key.as_str())).into()).collect();
        let answer = self.txn(Vec::new(), ranges).await?;
        let value = |answer| match answer {
            Some(Outcome::Range(mut range)) => range.kvs.pop().map(|found| found.value),
            _ => None,
        };
        Ok(answer.responses.into_iter().map(|answer| value(answer.response)).collect())
    }

    async fn delete(&mut self, keys: &[String]) -> Result<(), FabricError> {
        let delete = |key: &String| DeleteRangeRequest { key: key.as_bytes().to_vec(), range_end: Vec::new() };
        let deletes = keys.iter().map(|key| Operation::Delete(delete(key)).into()).collect();
        self.txn(Vec::new(), deletes).await.map(drop)
    }

    async fn open_calls(&mut self, _calls: &str) -> Result<(), FabricError> {
        Ok(())
    }

    async fn call(&mut self, calls: &str, id: &str) -> Result<(), FabricError> {
        self.put(&[(format!("{calls}/{id}"), id.as_bytes().to_vec())]).await
    }

    async fn take_calls(&mut self, calls: &str) -> Result<Vec<String>, FabricError> {
        let found = self.within(self.api.range(RangeRequest::prefixed(format!("{calls}/")))).await?;
        let keys: Vec<String> = found.kvs.iter().map(|call| String::from_utf8_lossy(&call.key).into_owned()).collect();
        if !keys.is_empty() {
            self.delete(&keys).await?;
        }
        Ok(found.kvs.iter().map(|call| String::from_utf8_lossy(&call.value).into_owned()).collect())
    }

    async fn watch(&mut self, prefix: &str) -> Result<(), FabricError> {
        prefix.clone_into(&mut self.prefix);
        self.watch = Some(self.begin_watch(prefix).await?);
        Ok(())
    }

    async fn changed(&mut self, _quiet: u32) {
        if self.watch.is_none() {
            self.watch = self.begin_watch(&self.prefix).await.ok();
            if self.watch.is_none() {
                sleep(LOOK_AGAIN).await;
            }
            // Something may have changed while nobody watched.
            return;
        }
        let Some(watch) = &mut self.watch else { return };
        match timeout(LOOK_AGAIN, watch.message()).await {
            Ok(Ok(Some(WatchResponse { canceled: false, .. }))) | Err(_) => {}
            // Compacted, or the server has changed: watch anew.
            _ => self.watch = None,
        }
    }

    async fn finish(&mut self) {
        let _ = timeout(self.patience.dial, self.api.revoke(self.lease)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    #[test]
    fn a_server_on_another_host_wants_tls() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(Etcd::new("node1").dial("192.0.2.7:2379/storage")).unwrap_err();
        assert_eq!(error.fault, Fault::Misuse);
        assert!(error.message.contains("with_tls"), "{error}");
    }
}
