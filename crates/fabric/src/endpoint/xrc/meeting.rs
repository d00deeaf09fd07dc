//! How two processes meet that want to speak over XRC: who is there, which domain it is in, at which SRQ; then the initiator's QP for that domain, or the one that it has
//! already. Five messages over an exchange's channel, which stays open as long as the initiator lives. They hold no key.

use super::super::link::lock;
use super::super::service::near;
use super::trunk::{Begun, Trunk, make_target};
use super::{Inner, XrcDomain};
use crate::error::FabricError;
use crate::exchange::{Channel, Exchange};
use crate::session::QpOffer;
use scalefabric_verbs::{Qpn, QueuePair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Version of the messages.
const VERSION: u16 = 1;
/// How long each word may take.
const WORD: Duration = Duration::from_secs(5);
/// Longest name of a process or a domain, bytes.
const MAX_NAME: usize = 256;

/// Initiator: I am here.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u16,
    from: String,
}

/// Member: this is where I am.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in super::super) struct Welcome {
    version: u16,
    /// Node and process.
    pub from: String,
    /// The same for all processes that one QP may reach.
    domain: String,
    /// SRQ at which this process is reached.
    pub srq_num: u32,
    /// Longest message that its receives hold.
    pub receive_bytes: u32,
}

/// Initiator: how I come in.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
enum Ask {
    /// By a new QP.
    Make { qp: QpOffer },
    /// By this target QP, which another process of the domain has made for me.
    Use { target: u32 },
}

/// Member: come.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
enum Answer {
    /// The target QP is there, and waits.
    Made { qp: QpOffer },
    /// I have it, too.
    Ready,
    /// I do not know that QP: ask for a new one.
    Unknown,
    /// Not.
    Refused { reason: String },
}

async fn say<T: Serialize>(channel: &mut Box<dyn Channel>, message: &T) -> Result<(), FabricError> {
    let bytes = serde_json::to_vec(message)
        .map_err(|error| FabricError::misuse(format!("a message cannot be written: {error}")))?;
    channel.send(&bytes).await
}

async fn hear<T: DeserializeOwned>(channel: &mut Box<dyn Channel>) -> Result<T, FabricError> {
    let bytes = tokio::time::timeout(WORD, channel.receive())
        .await
        .map_err(|_| FabricError::unreachable("the peer said nothing in time: try again"))??;
    serde_json::from_slice(&bytes).map_err(|error| {
        FabricError::peer(format!("not a message of XRC pools ({error}): is something else at this address?"))
    })
}

fn check(version: u16, names: &[&str]) -> Result<(), FabricError> {
    if version != VERSION {
        return Err(FabricError::peer(format!(
            "the peer speaks version {version} of the messages of XRC pools, this side {VERSION}: update the older one"
        )));
    }
    if names.iter().any(|name| name.len() > MAX_NAME) {
        return Err(FabricError::peer(format!("a name of more than {MAX_NAME} bytes")));
    }
    Ok(())
}

/// The initiator's side.
pub(super) async fn meet(
    inner: &Arc<Inner>,
    exchange: &dyn Exchange,
    address: &str,
) -> Result<(Arc<Trunk>, Welcome, Box<dyn Channel>), FabricError> {
    let mut channel = exchange.dial(address).await?;
    say(&mut channel, &Hello { version: VERSION, from: inner.shared.origin.clone() }).await?;
    let welcome: Welcome = hear(&mut channel).await?;
    check(welcome.version, &[&welcome.from, &welcome.domain])?;
    if welcome.srq_num > 0xff_ffff {
        return Err(FabricError::peer(format!("SRQ {:#x} has more than 24 bits", welcome.srq_num)));
    }
    // Two who look at once must not both find nothing.
    let _turn = inner.turn.lock().await;
    let known = lock(&inner.trunks).get(&welcome.domain).cloned().unwrap_or_default();
    for trunk in known.into_iter().filter(|trunk| trunk.is_open()) {
        say(&mut channel, &Ask::Use { target: trunk.target }).await?;
        match hear(&mut channel).await? {
            Answer::Ready => return Ok((trunk, welcome, channel)),
            Answer::Unknown => {}
            answer => return Err(refused(answer)),
        }
    }
    let begun = Begun::new(&inner.shared, near(address))?;
    say(&mut channel, &Ask::Make { qp: begun.offer.clone() }).await?;
    let target = match hear(&mut channel).await? {
        Answer::Made { qp } => qp,
        answer => return Err(refused(answer)),
    };
    target.check()?;
    let trunk = Arc::new(begun.ready(&inner.shared, &target)?);
    let mut trunks = lock(&inner.trunks);
    let of_domain = trunks.entry(welcome.domain.clone()).or_default();
    of_domain.retain(|trunk| trunk.is_open());
    of_domain.push(trunk.clone());
    Ok((trunk, welcome, channel))
}

fn refused(answer: Answer) -> FabricError {
    match answer {
        Answer::Refused { reason } => FabricError::peer(format!("the peer refuses: {reason}")),
        _ => FabricError::peer("the peer's answer does not fit what was asked: it is another version"),
    }
}

/// A member's side, until the initiator is gone.
pub(super) async fn serve(inner: Weak<Inner>, mut channel: Box<dyn Channel>) {
    let Ok(hello) = hear::<Hello>(&mut channel).await else { return };
    if check(hello.version, &[&hello.from]).is_err() {
        return;
    }
    let Some(welcome) = inner.upgrade().map(|inner| Welcome {
        version: VERSION,
        from: inner.shared.origin.clone(),
        domain: inner.domain.clone(),
        srq_num: inner.receives.srq.srq_num().get(),
        receive_bytes: inner.receives.bytes,
    }) else {
        return;
    };
    if say(&mut channel, &welcome).await.is_err() {
        return;
    }
    let mut held = None;
    while held.is_none() {
        let Ok(ask) = hear::<Ask>(&mut channel).await else { return };
        let Some(inner) = inner.upgrade() else { return };
        let (answer, target) = inner.answer(&ask, &hello.from);
        held = target.map(|target| Target { inner: Arc::downgrade(&inner), number: target });
        drop(inner);
        if say(&mut channel, &answer).await.is_err() {
            return;
        }
    }
    // Nothing more is said; its end is what counts.
    while channel.receive().await.is_ok() {}
    drop(held);
}

/// Our hold on a target QP.
struct Target {
    inner: Weak<Inner>,
    number: u32,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.let_go(self.number);
        }
    }
}

impl Inner {
    fn answer(&self, ask: &Ask, from: &str) -> (Answer, Option<u32>) {
        let (qp, answer) = match ask {
            Ask::Make { qp } => match qp.check().and_then(|()| make_target(&self.shared, &self.xrcd, qp)) {
                Ok((qp, offer)) => (qp, Answer::Made { qp: offer }),
                Err(error) => return (Answer::Refused { reason: error.message }, None),
            },
            Ask::Use { target } => match self.open(*target) {
                Some(qp) => (qp, Answer::Ready),
                None => return (Answer::Unknown, None),
            },
        };
        let number = qp.qp_num().get();
        lock(&self.targets).entry(number).or_insert((qp, 0)).1 += 1;
        lock(&self.names).insert(number, from.to_owned());
        (answer, Some(number))
    }

    fn open(&self, target: u32) -> Option<Arc<dyn QueuePair>> {
        if target > 0xff_ffff {
            return None;
        }
        let known = lock(&self.targets).get(&target).map(|(qp, _)| qp.clone());
        let xrcd: &Arc<dyn XrcDomain> = &self.xrcd;
        known.or_else(|| self.shared.hub.context.open_qp(xrcd, Qpn::new(target)).ok())
    }

    fn let_go(&self, number: u32) {
        let mut targets = lock(&self.targets);
        if let Some((_, users)) = targets.get_mut(&number) {
            *users -= 1;
            if *users == 0 {
                let gone = targets.remove(&number);
                drop(targets);
                lock(&self.names).remove(&number);
                // Others of the domain may have it still; then only our handle goes.
                if let Some((qp, _)) = gone {
                    let _ = qp.destroy();
                }
            }
        }
    }
}
