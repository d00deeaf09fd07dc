//! How two processes meet that want to speak over XRC: who is there, which domain it is in, at which SRQ; then the initiator's QP for that domain, or the one that it has
//! already, or in place of one that has failed. Some messages over an exchange's channel, which stays open as long as the initiator lives. They hold no key.

use super::super::link::lock;
use super::super::service::near;
use super::line::Line;
use super::trunk::{Begun, Trunk, make_target, queue};
use super::{Inner, XrcDomain};
use crate::error::{FabricError, Fault};
use crate::exchange::{Channel, Exchange};
use crate::session::{LaneId, QpOffer};
use scalefabric_verbs::{Gid, PKey, QpAttr, Qpn, QueuePair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Version of the messages.
pub(super) const VERSION: u16 = 3;
/// How long each word may take.
const WORD: Duration = Duration::from_secs(5);
/// Target QPs by which one initiator comes in at a time: the one that it uses, and the one that it is about to use.
const MOST_HELD: usize = 2;
/// Longest name of a process or a domain, bytes.
const MAX_NAME: usize = 256;

/// Initiator: I am here.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    pub version: u16,
    pub from: String,
    /// For whom.
    pub tenant: String,
}

/// Member: this is where I am.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Welcome {
    pub version: u16,
    /// Node and process.
    pub from: String,
    /// The same for all processes that one QP may reach.
    pub domain: String,
    /// What the process offers, as policies name it.
    pub service: String,
    /// SRQ at which this process is reached.
    pub srq_num: u32,
    /// Longest message that its receives hold.
    pub receive_bytes: u32,
}

/// Initiator: how I come in.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub(super) enum Ask {
    /// By a new QP, which I want to reach at this address, if I say one.
    Make {
        qp: QpOffer,
        gid: Option<std::net::Ipv6Addr>,
        /// Beside the one by which I come in now, which I leave later.
        beside: bool,
    },
    /// By this target QP, which another process of the domain has made for me; likewise beside.
    Use { target: u32, beside: bool },
    /// By this one no more: nothing of mine is on its way to it. Stop it, so that all that has come by it is told before what comes by another.
    Leave { target: u32 },
    /// By a new QP, in place of this one, which has failed: stop it, and say what it had executed.
    Rebuild { target: u32, qp: QpOffer },
}

/// Member: come.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub(super) enum Answer {
    /// This is where I am.
    Welcome(Welcome),
    /// The target QP is there, and waits.
    Made { qp: QpOffer },
    /// The new target QP is there, and the old one executes nothing any more. `executed`: the PSN that it expected next, on backends that vouch for it.
    Rebuilt { qp: QpOffer, executed: Option<u32> },
    /// I have it, too.
    Ready,
    /// I do not know that QP: ask for a new one.
    Unknown,
    /// Not.
    Refused { reason: String },
}

pub(super) async fn say<T: Serialize>(channel: &mut Box<dyn Channel>, message: &T) -> Result<(), FabricError> {
    let bytes = serde_json::to_vec(message)
        .map_err(|error| FabricError::misuse(format!("a message cannot be written: {error}")))?;
    channel.send(&bytes).await
}

pub(super) async fn hear<T: DeserializeOwned>(channel: &mut Box<dyn Channel>) -> Result<T, FabricError> {
    let bytes = tokio::time::timeout(WORD, channel.receive())
        .await
        .map_err(|_| FabricError::unreachable("the peer said nothing in time: try again"))??;
    read(&bytes)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FabricError> {
    serde_json::from_slice(bytes).map_err(|error| {
        FabricError::peer(format!("not a message of XRC pools ({error}): is something else at this address?"))
    })
}

/// A word for which nobody waits.
async fn hear_some_time<T: DeserializeOwned>(channel: &mut Box<dyn Channel>) -> Result<T, FabricError> {
    read(&channel.receive().await?)
}

pub(super) fn check(version: u16, names: &[&str]) -> Result<(), FabricError> {
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
    exchange: Arc<dyn Exchange>,
    address: &str,
) -> Result<(Arc<Trunk>, Arc<Line>), FabricError> {
    let shared = &inner.shared;
    let line = Arc::new(Line::open(exchange, address, &shared.origin, &shared.config.tenant).await?);
    let pkey = shared.directory.may_connect(&shared.config.tenant, &line.welcome.service)?;
    // Two who look at once must not both find nothing.
    let _turn = inner.turn.lock().await;
    let key = (line.welcome.domain.clone(), pkey);
    let known = lock(&inner.trunks).get(&key).cloned().unwrap_or_default();
    for trunk in known.into_iter().filter(|trunk| trunk.is_open()) {
        match line.ask(&Ask::Use { target: trunk.target(), beside: false }).await? {
            Answer::Ready => {
                trunk.add(&line);
                return Ok((trunk, line));
            }
            Answer::Unknown => {}
            answer => return Err(refused(answer)),
        }
    }
    let (channel, cq) = queue(shared)?;
    let begun = Begun::new(shared, near(address), pkey, &cq)?;
    let make = Ask::Make { qp: begun.offer.clone(), gid: None, beside: false };
    let target = match line.ask(&make).await? {
        Answer::Made { qp } => qp,
        answer => return Err(refused(answer)),
    };
    target.check()?;
    let made = begun.ready(shared, &target, LaneId(1))?;
    let place = (target.qp_num, pkey, near(address));
    let trunk = Trunk::new(inner, (channel, cq), made, place, &line.welcome.service);
    trunk.add(&line);
    let mut trunks = lock(&inner.trunks);
    let of_domain = trunks.entry(key).or_default();
    of_domain.retain(|trunk| trunk.is_open());
    of_domain.push(trunk.clone());
    Ok((trunk, line))
}

pub(super) fn refused(answer: Answer) -> FabricError {
    match answer {
        Answer::Refused { reason } => FabricError::peer(format!("the peer refuses: {reason}")),
        _ => FabricError::peer("the peer's answer does not fit what was asked: it is another version"),
    }
}

/// A member's side, until the initiator is gone.
pub(super) async fn serve(inner: Weak<Inner>, mut channel: Box<dyn Channel>) {
    let Ok(hello) = hear::<Hello>(&mut channel).await else { return };
    if check(hello.version, &[&hello.from, &hello.tenant]).is_err() {
        return;
    }
    let Some(welcome) = inner.upgrade().map(|inner| inner.welcome(&hello.tenant)) else { return };
    let (welcome, pkey) = match welcome {
        Ok(welcome) => welcome,
        Err(error) => {
            let _ = say(&mut channel, &Answer::Refused { reason: error.message }).await;
            return;
        }
    };
    if say(&mut channel, &Answer::Welcome(welcome)).await.is_err() {
        return;
    }
    let mut held: Vec<Target> = Vec::new();
    loop {
        // The first word comes at once; then its end is what counts, and what it asks when a QP has failed or takes another path.
        let ask = if held.is_empty() { hear::<Ask>(&mut channel).await } else { hear_some_time(&mut channel).await };
        let Ok(ask) = ask else { return };
        let Some(inner) = inner.upgrade() else { return };
        let is_beside = matches!(ask, Ask::Make { beside: true, .. } | Ask::Use { beside: true, .. });
        let (answer, target) = if is_beside && held.len() >= MOST_HELD {
            (Answer::Refused { reason: "leave one of the QPs first".into() }, None)
        } else {
            inner.answer(&ask, &hello.from, pkey)
        };
        if let Some(number) = target {
            if !is_beside {
                held.clear();
            }
            held.push(Target { inner: Arc::downgrade(&inner), number });
        }
        if let Ask::Leave { target } = ask {
            held.retain(|known| known.number != target);
        }
        drop(inner);
        if say(&mut channel, &answer).await.is_err() {
            return;
        }
    }
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
    /// What is told to whom comes for a tenant, and the partition that it is in; refused by policy.
    fn welcome(&self, tenant: &str) -> Result<(Welcome, PKey), FabricError> {
        self.shared.directory.may_serve(&self.shared.config.tenant, &self.service)?;
        let pkey = self.shared.directory.may_connect(tenant, &self.service)?;
        let welcome = Welcome {
            version: VERSION,
            from: self.shared.origin.clone(),
            domain: self.domain.clone(),
            service: self.service.clone(),
            srq_num: self.receives.srq.srq_num().get(),
            receive_bytes: self.receives.bytes,
        };
        Ok((welcome, pkey))
    }

    fn answer(&self, ask: &Ask, from: &str, pkey: PKey) -> (Answer, Option<u32>) {
        let answered = match ask {
            Ask::Make { qp, gid, .. } => {
                let wanted = gid.map(|gid| Gid(gid.octets()));
                self.make(qp, wanted, pkey).map(|(made, qp)| (made, Answer::Made { qp }))
            }
            Ask::Leave { target } => {
                return match self.stop(*target, from) {
                    Ok(_) => (Answer::Ready, None),
                    Err(error) => (Answer::Refused { reason: error.message }, None),
                };
            }
            Ask::Rebuild { target, qp } => self.stop(*target, from).and_then(|executed| {
                let (made, qp) = self.make(qp, None, pkey)?;
                Ok((made, Answer::Rebuilt { qp, executed }))
            }),
            Ask::Use { target, .. } => match self.open(*target) {
                Some(qp) => self.is_in(&qp, pkey).map(|()| (qp, Answer::Ready)),
                None => return (Answer::Unknown, None),
            },
        };
        let (qp, answer) = match answered {
            Ok(answered) => answered,
            Err(error) => return (Answer::Refused { reason: error.message }, None),
        };
        let number = qp.qp_num().get();
        lock(&self.targets).entry(number).or_insert((qp, 0)).1 += 1;
        lock(&self.names).insert(number, from.into());
        (answer, Some(number))
    }

    fn make(
        &self,
        qp: &QpOffer,
        wanted: Option<Gid>,
        pkey: PKey,
    ) -> Result<(Arc<dyn QueuePair>, QpOffer), FabricError> {
        qp.check()?;
        make_target(&self.shared, &self.xrcd, (qp, wanted), pkey)
    }

    /// Takes a target to ERR; what it had executed, if the backend vouches for that and it is still there.
    fn stop(&self, target: u32, from: &str) -> Result<Option<u32>, FabricError> {
        if lock(&self.names).get(&target).is_some_and(|owner| **owner != *from) {
            return Err(FabricError::misuse(format!("QP {target:#x} leads in for another process")));
        }
        let Some(qp) = self.open(target) else { return Ok(None) };
        let (attr, mask) = QpAttr::error();
        qp.modify(&attr, mask)?;
        let vouches = self.shared.hub().context.rq_psn_is_executed_prefix();
        Ok(if vouches { qp.query().ok().map(|(attr, _)| attr.rq_psn.get()) } else { None })
    }

    /// Whether a target is in this partition.
    fn is_in(&self, qp: &Arc<dyn QueuePair>, pkey: PKey) -> Result<(), FabricError> {
        let attr = qp.query()?.0;
        if self.shared.hub().context.query_pkey(attr.port_num, attr.pkey_index)? == pkey {
            return Ok(());
        }
        Err(FabricError::new(Fault::NoAuthority, "the QP is in another partition"))
    }

    fn open(&self, target: u32) -> Option<Arc<dyn QueuePair>> {
        if target > 0xff_ffff {
            return None;
        }
        let known = lock(&self.targets).get(&target).map(|(qp, _)| qp.clone());
        let xrcd: &Arc<dyn XrcDomain> = &self.xrcd;
        known.or_else(|| self.shared.hub().context.open_qp(xrcd, Qpn::new(target)).ok())
    }

    fn let_go(&self, number: u32) {
        let mut targets = lock(&self.targets);
        if let Some((_, users)) = targets.get_mut(&number) {
            *users -= 1;
            if *users == 0 {
                let gone = targets.remove(&number);
                drop(targets);
                // What came by it is somebody's message: it is told who that was before the number is forgotten.
                let _ = self.poll(&mut lock(&self.came));
                lock(&self.names).remove(&number);
                // Others of the domain may have it still; then only our handle goes.
                if let Some((qp, _)) = gone {
                    let _ = qp.destroy();
                }
            }
        }
    }
}
