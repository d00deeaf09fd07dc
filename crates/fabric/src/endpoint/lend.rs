//! Memory that a connection's peer may use, and new keys for it while traffic runs: memory is registered anew, peers are told the new keys, and the old
//! ones are withdrawn when nobody uses them any more or the overlap is over. It prints no key, in no error and no log, and it posts nothing.
//!
//! Keys are those of pools ([`Pool::rotate_keys`]); who lends other memory rotates its keys himself and says so to [`super::Builder::rotate_with`].

use super::connection::Connection;
use super::fabric::Fabric;
use super::link::{Link, Told, lock};
use super::service::Shared;
use super::wait::block_on_for;
use super::window;
use crate::buffer::{Local, RemoteRange};
use crate::directory::{FencingToken, OrderResult};
use crate::error::{FabricError, Fault};
use crate::pool::Pool;
use crate::session::{Input, MAX_OFFERS, MemoryOffer};
use scalefabric_verbs::MemoryRegion;
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long after the overlap a connection's task may take to say that it is over: a guard, since it always does.
const GRACE: Duration = Duration::from_secs(1);

/// How often a rotation that waits looks whether another hurries it.
const LOOK: Duration = Duration::from_millis(20);

/// How long a peer may take to hear a single offer's keys before the ones that it replaces may go.
pub(super) const OFFER_OVERLAP: Duration = Duration::from_secs(1);

/// Memory that the peer was lent under a number: offered anew whenever its keys are.
pub(crate) struct Loan {
    pub id: u32,
    /// Its key is a window's.
    pub by_window: bool,
    memory: Arc<dyn Local>,
    domain: usize,
    offset: usize,
    length: usize,
}

impl Loan {
    /// As peers know it by the keys of each of the fabric's devices; those that it is not registered with are left out. `None`: not with the first either.
    pub fn offers(&self, devices: usize) -> Option<Vec<MemoryOffer>> {
        let range = |device: usize| self.memory.remote_on(self.domain + device, self.offset, self.length);
        range(0)?;
        let offer =
            |device: usize| Some(MemoryOffer { id: self.id, domain: device as u8, lane: None, range: range(device)? });
        Some((0..devices).filter_map(offer).collect())
    }

    /// The registration with one of the fabric's devices, and the range within it.
    pub fn region(&self, device: usize) -> Option<(Arc<dyn MemoryRegion>, RemoteRange)> {
        let domain = self.domain + device;
        Some((self.memory.region_on(domain)?, self.memory.remote_on(domain, self.offset, self.length)?))
    }
}

/// What a rotation of keys did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rotation {
    /// Registrations that were made anew.
    pub keys: u64,
    /// Connections whose peers were told new keys.
    pub peers: u64,
    /// Of those: peers that had not said by the end of the overlap that they use no old key any more. What they still had on its way with one is
    /// refused, and posted again with a new one if they have heard it by then.
    pub late: u64,
}

/// What a fabric knows of rotation.
#[derive(Debug, Default)]
pub(crate) struct Rotating {
    pools: Mutex<Vec<Pool>>,
    /// One at a time: the old keys of one rotation must be gone before the next.
    turn: Mutex<()>,
    /// When the old keys of the rotation that runs must be gone: who waits for the turn with a shorter overlap brings it forward.
    until: Mutex<Option<Instant>>,
    last: Mutex<(u64, Option<Result<Rotation, FabricError>>)>,
}

impl Link {
    /// Changes what is offered to the peer, and tells it. The answer: whether the peer said that it uses no earlier key any more (`true`), or the
    /// overlap has passed (`false`).
    fn change_offers(
        &self,
        overlap: Duration,
        change: impl FnOnce(&mut Vec<MemoryOffer>),
    ) -> Result<oneshot::Receiver<bool>, FabricError> {
        self.check_trust()?;
        let mut offers = lock(&self.offers);
        let mut all = offers.clone();
        change(&mut all);
        if all.len() > MAX_OFFERS {
            return Err(FabricError::misuse(format!(
                "{} offers are more than a connection has, {MAX_OFFERS}",
                all.len()
            )));
        }
        offers.clone_from(&all);
        let (revoked, told) = oneshot::channel();
        let overlap_ns = u64::try_from(overlap.as_nanos()).unwrap_or(u64::MAX);
        // Still locked: who changes them later also tells it later.
        self.tell
            .send(Told::Offer(Input::Offer { offers: all, overlap_ns }, revoked))
            .map_err(|_| self.closed_error())?;
        Ok(told)
    }

    /// Keys are told to whom cryptography proves, to this host, and to whom the configuration trusts.
    fn check_trust(&self) -> Result<(), FabricError> {
        let trusted = self.config.trust_unproven_peers;
        let peer = lock(&self.peer).identity().cloned();
        if let Some(peer) = peer.filter(|peer| !trusted && !peer.proven && !peer.local) {
            return Err(FabricError::new(
                Fault::NoAuthority,
                format!(
                    "keys are not told to `{}`: it is on another host and nothing proves its name; use an exchange with certificates, or \
                     `trust_unproven_peers` where nobody else can reach the network",
                    peer.name
                ),
            ));
        }
        Ok(())
    }

    /// These in place of what was offered under the same numbers; all that is offered then.
    pub fn replace_offers(&self, new: &[MemoryOffer]) -> Vec<MemoryOffer> {
        let mut offers = lock(&self.offers);
        put(&mut offers, new);
        offers.clone()
    }

    fn put_offers(&self, new: &[MemoryOffer], overlap: Duration) -> Result<oneshot::Receiver<bool>, FabricError> {
        self.change_offers(overlap, |all| put(all, new))
    }

    /// Tells the peer the present keys of what it was lent, if any are new to it.
    fn offer_anew(&self, overlap: Duration) -> Result<Option<oneshot::Receiver<bool>>, FabricError> {
        // Whoever lends at this moment comes before, and is offered anew, or after, and has the new key.
        let loans = lock(&self.loans);
        let known = lock(&self.offers).clone();
        let offers: Vec<MemoryOffer> = loans
            .iter()
            .filter(|loan| !loan.by_window)
            .filter_map(|loan| loan.offers(self.docks.len()))
            .filter(|offers| offers.iter().any(|offer| !known.contains(offer)))
            .flatten()
            .collect();
        if offers.is_empty() {
            return Ok(None);
        }
        self.put_offers(&offers, overlap).map(Some)
    }
}

/// These in place of what was offered under the same numbers, by whatever keys.
fn put(all: &mut Vec<MemoryOffer>, new: &[MemoryOffer]) {
    all.retain(|old| !new.iter().any(|new| new.id == old.id));
    all.extend_from_slice(new);
}

impl Connection {
    /// Lets the peer use memory, under a number that both applications agree on; in place of what was offered under it before. [`Fault::NoAuthority`]
    /// for a peer on another host whose name nothing proves ([`super::Config::trust_unproven_peers`]). Its key stays as it is, and is that of the fabric's first
    /// device: [`Connection::lend`] follows rotations and moves to another device.
    pub fn offer(&self, id: u32, range: RemoteRange) -> Result<(), FabricError> {
        let mut loans = lock(&self.link().loans);
        self.link().put_offers(&[MemoryOffer { id, domain: 0, lane: None, range }], OFFER_OVERLAP)?;
        loans.retain(|loan| loan.id != id);
        Ok(())
    }

    /// As [`Connection::offer`], of `offset .. offset + length` of local memory that peers may use, and offers it anew whenever its keys are made anew
    /// ([`Fabric::rotate_keys`]). The connection keeps the memory until it is taken back, or until the connection is gone. Misuse outside the memory,
    /// and for memory that is not registered for peers.
    pub fn lend(&self, id: u32, memory: Arc<dyn Local>, offset: usize, length: usize) -> Result<(), FabricError> {
        self.lend_on(0, id, memory, offset, length)
    }

    /// As [`Connection::lend`], of memory that is registered with several protection domains (rails): the index of that of this fabric's first device.
    pub fn lend_on(
        &self,
        domain: usize,
        id: u32,
        memory: Arc<dyn Local>,
        offset: usize,
        length: usize,
    ) -> Result<(), FabricError> {
        let bytes = memory.len();
        let hubs = &self.link().hubs;
        let by_window = self.link().config.lend_by_windows
            && hubs.all().iter().all(|hub| hub.has_windows())
            && (0..hubs.all().len()).all(|device| memory.region_on(domain + device).is_some());
        let loan = Loan { id, by_window, memory, domain, offset, length };
        let mut loans = lock(&self.link().loans);
        let offers = loan.offers(self.link().docks.len()).ok_or_else(|| {
            FabricError::misuse(format!(
                "{length} bytes at {offset} of memory of {bytes} cannot be lent: they are outside, or the memory is not registered for peers with \
                 domain {domain}"
            ))
        })?;
        if !by_window {
            self.link().put_offers(&offers, OFFER_OVERLAP)?;
        } else if loans.len() >= MAX_OFFERS {
            return Err(FabricError::misuse(format!("more loans than a connection has, {MAX_OFFERS}")));
        } else {
            self.link().check_trust()?;
        }
        loans.retain(|loan| loan.id != id);
        loans.push(loan);
        drop(loans);
        // Its key is told when it is bound.
        if by_window { window::ask_to_bind(self.link(), None) } else { Ok(()) }
    }

    /// Offers nothing under this number any more. A peer that keeps the rules cannot use it from then on; one that does not is kept out by the next
    /// rotation of keys, which makes the key that it was told void.
    pub fn take_back(&self, id: u32) -> Result<(), FabricError> {
        let mut loans = lock(&self.link().loans);
        self.link().change_offers(OFFER_OVERLAP, |all| all.retain(|offer| offer.id != id))?;
        loans.retain(|loan| loan.id != id);
        Ok(())
    }

    /// Offers memory anew, with new keys of the caller's own making, and waits until the peer uses no old one any more, or `overlap` has passed: then the
    /// old keys may be withdrawn. True: the peer said so.
    pub fn rotate(&self, offers: &[MemoryOffer], overlap: Duration) -> Result<bool, FabricError> {
        let revoked = self.link().put_offers(offers, overlap)?;
        // Without an answer: the connection was closed, and its old keys are of no use to the peer any more.
        Ok(block_on_for(revoked, Some(overlap.saturating_add(GRACE))).is_some_and(|taken| taken.unwrap_or(true)))
    }

    /// What the peer has offered under a number, with the key of now; waits for it; `None` when `timeout` passes.
    pub fn offered(&self, id: u32, timeout: Option<Duration>) -> Result<Option<RemoteRange>, FabricError> {
        self.wait_for(timeout, || {
            let sender = lock(&self.link().sender);
            match (sender.offered(id), &sender.closed) {
                (Some(range), _) => Ok(Some(range)),
                (None, Some(error)) => Err(error.clone()),
                (None, None) => Ok(None),
            }
        })
    }
}

impl Fabric {
    /// Keys of this pool's memory are made anew with each rotation. The fabric keeps the pool. A pool belongs to the rotation of one fabric: two
    /// would withdraw one another's keys too early. What was offered of the pool by its range ([`Connection::offer`]) does not follow.
    pub fn rotate_keys_of(&self, pool: &Pool) {
        let mut pools = lock(&self.shared().rotating.pools);
        if !pools.iter().any(|known| known.is_same(pool)) {
            pools.push(pool.clone());
        }
    }

    /// Makes all keys of memory anew that peers were lent: registers it anew, tells the peers, waits until nothing uses an old key any more, at most
    /// for `overlap`, and withdraws the old keys; one that runs already ends by then, too. Traffic runs on. Who still shows an old key then is refused (`REM_ACCESS_ERR`).
    ///
    /// `overlap` should be longer than a channel to a peer may be away: a peer that has not heard the new keys is refused, too. Zero: at once, for
    /// a key that is known to others; operations that are under way may fail. It blocks: not to be called from a handler. Misuse if no pool takes
    /// part.
    pub fn rotate_keys(&self, overlap: Duration) -> Result<Rotation, FabricError> {
        rotate(self.shared(), overlap)
    }

    /// How many rotations there have been, on demand, on schedule and by order, and what the last one did.
    pub fn last_rotation(&self) -> (u64, Option<Result<Rotation, FabricError>>) {
        lock(&self.shared().rotating.last).clone()
    }
}

fn rotate(shared: &Shared, overlap: Duration) -> Result<Rotation, FabricError> {
    let rotating = &shared.rotating;
    let wanted = Instant::now().checked_add(overlap);
    let _turn = loop {
        match rotating.turn.try_lock() {
            Ok(turn) => break turn,
            Err(TryLockError::Poisoned(turn)) => break turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                rotating.hurry(wanted);
                std::thread::sleep(LOOK);
            }
        }
    };
    *lock(&rotating.until) = Instant::now().checked_add(overlap);
    let pools = lock(&rotating.pools).clone();
    if pools.is_empty() {
        return Err(FabricError::misuse(
            "no memory takes part in the rotation of keys: name its pool to `Fabric::rotate_keys_of`, or rotate keys of your own with \
             `Builder::rotate_with`",
        ));
    }
    let done = rotate_pools(rotating, &shared.live_links(), &pools, overlap);
    let mut last = lock(&rotating.last);
    *last = (last.0 + 1, Some(done.clone()));
    done
}

impl Rotating {
    /// The rotation that runs now, if one does, ends no later than this; `None`: never.
    fn hurry(&self, wanted: Option<Instant>) {
        let mut until = lock(&self.until);
        *until = match (*until, wanted) {
            (Some(until), Some(wanted)) => Some(until.min(wanted)),
            (until, wanted) => until.or(wanted),
        };
    }

    /// How long the old keys of the rotation that runs may still be good.
    fn left(&self) -> Duration {
        lock(&self.until).map_or(LOOK, |until| until.saturating_duration_since(Instant::now()))
    }
}

fn rotate_pools(
    rotating: &Rotating,
    links: &[Arc<Link>],
    pools: &[Pool],
    overlap: Duration,
) -> Result<Rotation, FabricError> {
    let mut done = Rotation::default();
    let mut failure = None;
    // Where every key is a window's, registrations stay.
    let by_windows = |link: &&Arc<Link>| {
        let loans = lock(&link.loans);
        !loans.is_empty() && loans.iter().all(|loan| loan.by_window)
    };
    let (windowed, plain): (Vec<_>, Vec<_>) = links.iter().partition(by_windows);
    let registers = windowed.is_empty() || plain.iter().any(|link| !lock(&link.loans).is_empty());
    for pool in pools.iter().filter(|pool| registers || !pool.lets_windows()) {
        match pool.rotate_keys() {
            Ok(made) => done.keys += made as u64,
            // The others' keys are new by now: what was begun is ended, and the failure told.
            Err(error) => failure = Some(error),
        }
    }
    let mut told = Vec::new();
    for link in windowed {
        let (revoked, answer) = oneshot::channel();
        done.keys += lock(&link.loans).len() as u64;
        if window::ask_to_bind(link, Some((overlap, revoked))).is_ok() {
            told.push(answer);
        }
    }
    for link in links {
        lock(&link.sender).renew_local_keys();
        // An error: it is closed, and its peer has lost the way to use any key.
        told.extend(link.offer_anew(overlap).ok().flatten());
    }
    done.peers = told.len() as u64;
    for mut revoked in told {
        let taken = loop {
            let left = rotating.left();
            let taken = block_on_for(&mut revoked, Some(left.min(LOOK)));
            if taken.is_some() || left.is_zero() {
                break taken;
            }
        };
        // Without an answer it is closed, and its peer has lost the way to use any key.
        done.late += u64::from(taken.is_none_or(|answer| answer == Ok(false)));
    }
    // Our own operations name the memory by its old local keys, which are the same registrations.
    while links.iter().any(|link| still_uses_old_keys(link)) && !rotating.left().is_zero() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for pool in pools {
        if let Err(error) = pool.retire_old() {
            failure = Some(error);
        }
    }
    failure.map_or(Ok(done), Err)
}

fn still_uses_old_keys(link: &Link) -> bool {
    {
        let mut sender = lock(&link.sender);
        if !sender.uses_old_keys() {
            return false;
        }
        // The last ones may have no signal, and nobody may poll.
        sender.settle();
    }
    let _ = link.drive();
    lock(&link.sender).uses_old_keys()
}

/// Carries an order out: everything, or, with a tenant, what this process lends to or for it.
pub(super) async fn carry_out(
    shared: Arc<Shared>,
    token: FencingToken,
    overlap: Duration,
    tenant: Option<String>,
) -> OrderResult {
    if tenant.is_some_and(|tenant| !shared.lends_for(&tenant)) {
        return OrderResult::Rotated { keys: 0, peers: 0, late: 0 };
    }
    // It registers memory anew and waits for peers.
    let done = tokio::task::spawn_blocking(move || rotate_all(&shared, token, overlap)).await;
    done.unwrap_or_else(|_| OrderResult::RolledBack { reason: "rotating keys panicked".into() })
}

/// Pools, and then what the application rotates itself.
fn rotate_all(shared: &Shared, token: FencingToken, overlap: Duration) -> OrderResult {
    let takes_part = !lock(&shared.rotating.pools).is_empty();
    let mut done = Rotation::default();
    if takes_part {
        match rotate(shared, overlap) {
            Ok(rotation) => done = rotation,
            Err(error) => return OrderResult::RolledBack { reason: error.message },
        }
    }
    let (mut keys, mut peers, mut late) = (done.keys, done.peers, done.late);
    match shared.rotate.as_ref().map(|rotate| rotate(token, overlap)) {
        None | Some(OrderResult::Done { .. }) => {}
        Some(OrderResult::Rotated { keys: own, peers: told, late: slow }) => {
            (keys, peers, late) = (keys + own, peers + told, late + slow);
        }
        Some(other) => return other,
    }
    OrderResult::Rotated { keys, peers, late }
}

/// Rotates every so often, until the fabric ends.
pub(super) async fn rotate_on_schedule(shared: Arc<Shared>, every: Duration) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first is due at once.
    tick.tick().await;
    loop {
        tick.tick().await;
        let (shared, overlap) = (shared.clone(), shared.config.rotate_overlap);
        let _ = tokio::task::spawn_blocking(move || rotate_all(&shared, FencingToken(0), overlap)).await;
    }
}

impl Shared {
    /// Connections that live.
    pub(super) fn live_links(&self) -> Vec<Arc<Link>> {
        lock(&self.known).iter().filter_map(Weak::upgrade).filter(|link| link.closed().is_none()).collect()
    }

    /// Whether this process works for the tenant, or lends memory to a connection that a peer made for it.
    fn lends_for(&self, tenant: &str) -> bool {
        self.config.tenant == tenant
            || self.live_links().iter().any(|link| link.peer_tenant == tenant && !lock(&link.loans).is_empty())
    }
}
