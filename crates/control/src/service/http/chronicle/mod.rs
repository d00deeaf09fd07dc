//! The chronicle: what a replica remembers so that people can look at the fabric: events with their why, and how loaded every port was in the last ten
//! minutes. It listens to what the replica hears anyway, decides nothing, stores nothing, and may be lost.
//!
//! Memory is bounded: [`log::KEPT`] events, [`recording::COLUMNS`] seconds of at most [`recording::MAX_PORTS`] ports, and for each end of a connection some
//! 100 bytes, so that a move is noticed: 10 MB for 100,000.

mod known;
pub mod log;
pub mod recording;
mod told;

use crate::directory::Change;
use crate::directory::feed::{Health, Told};
use crate::keys;
use crate::rebalance::{Settings, driver};
use crate::service::{REBALANCE, Shared};
use crate::store::Entry;
use crate::topology::PortName;
use known::Known;
use log::{Happening, Kind, Log};
use recording::{Column, Recording};
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::ConnectionId;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use told::Diary;

/// Samples of a column.
const SAMPLES: u32 = 4;
/// A load that is older says nothing of this second.
const STALE: Duration = Duration::from_secs(3);

/// What a second looked like, as text for every reader.
pub type Second = Arc<str>;

/// The chronicle.
#[derive(Debug)]
pub struct Chronicle {
    /// What happened.
    pub log: Log,
    inner: Mutex<Inner>,
    second: watch::Sender<Option<Second>>,
}

#[derive(Debug, Default)]
struct Inner {
    known: Known,
    recording: Recording,
    diary: Diary,
    settings: Settings,
    leader: Option<String>,
    /// Ports that are judged to be hot; none while nobody judges.
    hot: BTreeSet<PortName>,
    /// Those that were told to be hot last.
    told_hot: BTreeSet<PortName>,
    /// Whether what is known began with a listing: only what changes after it is news.
    begun: bool,
}

/// How a tenant uses the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Ends of its connections.
    pub ends: u32,
    /// Bits a second that they send, of those that agents speak of: the 64 busiest of each node.
    pub tx_bps: f64,
}

impl Chronicle {
    /// Empty. `run` tells it from those of other runs.
    pub fn new(run: String) -> Self {
        Self { log: Log::new(run), inner: Mutex::default(), second: watch::Sender::new(None) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest second and those to come.
    pub fn seconds(&self) -> watch::Receiver<Option<Second>> {
        self.second.subscribe()
    }

    /// Runs until it is dropped.
    pub async fn run(&self, shared: &Shared) {
        let mut news = shared.feed.listen();
        let mut health = shared.feed.health();
        let mut ticks = tokio::time::interval(Duration::from_millis(recording::INTERVAL_MS) / SAMPLES);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticked = 0;
        let mut before = health.borrow_and_update().clone();
        // The feed's first listing may have been told before anybody listened.
        for prefix in [keys::LEADERS, keys::HOT, keys::REBALANCE, keys::TENANTS, keys::REPLICAS, keys::ORDERS] {
            if let Ok((entries, _)) = shared.store.list(prefix).await {
                self.inner().seed(&entries);
            }
        }
        loop {
            let (all, revision, mut changes) = shared.index.snapshot(None);
            self.begin(shared, &all, revision.0 > 0);
            loop {
                tokio::select! {
                    biased;
                    _ = ticks.tick() => {
                        ticked += 1;
                        self.sample(shared, ticked % SAMPLES == 0);
                    }
                    Ok(()) = health.changed() => {
                        let now = health.borrow_and_update().clone();
                        self.note_health(shared, &before, &now);
                        before = now;
                    }
                    told = news.recv() => match told {
                        Ok(told) => self.hear(shared, &told),
                        Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return,
                    },
                    next = changes.next() => match next {
                        Some(Ok(batch)) if !batch.1.iter().any(|change| matches!(change, Change::All)) => {
                            self.learn(shared, &batch.1);
                        }
                        Some(_) => break,
                        None => return,
                    }
                }
            }
        }
    }

    fn note(&self, shared: &Shared, happening: Happening) {
        self.log.note(happening, now_ms(shared), date_ms());
    }

    /// Everything that is there. What differs from what was known is news, but for the first time.
    fn begin(&self, shared: &Shared, all: &[Change], listed: bool) {
        let mut inner = self.inner();
        let news = inner.known.replace(all);
        let known = std::mem::replace(&mut inner.begun, listed);
        inner.relay_out();
        if known {
            self.tell(shared, &mut inner, news);
        }
    }

    fn learn(&self, shared: &Shared, changes: &[Change]) {
        let mut inner = self.inner();
        let mut news = Vec::new();
        let mut nodes = false;
        for change in changes {
            nodes |= matches!(change, Change::Node(_) | Change::NodeGone(_));
            inner.known.learn(change, &mut news);
        }
        if nodes {
            inner.relay_out();
        }
        self.tell(shared, &mut inner, news);
    }

    fn tell(&self, shared: &Shared, inner: &mut Inner, news: Vec<known::News>) {
        for one in news {
            if matches!(one, known::News::Moved { .. }) {
                inner.recording.note_move();
            }
            let known = &inner.known;
            let why = |id: &ConnectionId, from: &Path, to: &Path| inner.diary.why(shared, known, id, from, to);
            self.note(shared, one.happening(why));
        }
    }

    fn note_health(&self, shared: &Shared, before: &Health, now: &Health) {
        let was_away = matches!(before, Health::Away(_) | Health::Broken(_));
        match now {
            Health::Away(why) | Health::Broken(why) if !was_away => {
                self.note(shared, Happening::new(Kind::StoreAway, format!("the store is away: {why}")));
            }
            Health::InSync if was_away => {
                self.note(shared, Happening::new(Kind::StoreBack, "the store is back: what is shown is what it has"));
            }
            _ => {}
        }
    }

    /// What the store told of all that the directory does not hold.
    fn hear(&self, shared: &Shared, told: &Told) {
        let mut inner = self.inner();
        match told {
            Told::Listing(entries, _) => {
                let mut news = inner.seed(entries);
                // Nobody judges now.
                if !entries.iter().any(|entry| entry.key == keys::HOT) {
                    inner.set_hot(BTreeSet::new());
                }
                let judged = entries.iter().find(|entry| entry.key == keys::HOT);
                news.extend(judged.map(|entry| inner.hear_hot(&entry.value)).unwrap_or_default());
                if inner.begun {
                    news.into_iter().for_each(|happening| self.note(shared, happening));
                }
            }
            Told::Events(events) => {
                for event in events.iter() {
                    match event {
                        crate::store::Event::Put(entry) if entry.key == keys::HOT => {
                            let turned = inner.hear_hot(&entry.value);
                            turned.into_iter().for_each(|happening| self.note(shared, happening));
                        }
                        // Who judged has ended. What was hot last is remembered: whoever judges next tells what is other.
                        crate::store::Event::Delete { key, .. } if key == keys::HOT => {
                            inner.set_hot(BTreeSet::new());
                        }
                        _ => {}
                    }
                    let news = match event {
                        crate::store::Event::Put(entry) => {
                            let own = inner.hear_put(&entry.key, &entry.value);
                            own.or_else(|| inner.diary.hear(&entry.key, &entry.value))
                        }
                        crate::store::Event::Delete { key, .. } => {
                            if duty(key).is_some_and(|duty| duty == REBALANCE) {
                                inner.leader = None;
                            }
                            inner.diary.hear_delete(key)
                        }
                    };
                    if let Some(happening) = news {
                        self.note(shared, happening);
                    }
                }
            }
        }
    }

    fn sample(&self, shared: &Shared, close: bool) {
        let mut inner = self.inner();
        let now = shared.clock.now();
        shared.loads.each(now, |node, load, age| {
            if age < STALE {
                inner.recording.sample(node, &load.ports);
            }
        });
        if close {
            let Inner { recording, known, .. } = &mut *inner;
            let (nodes, ends) = (known.nodes().len(), known.ends());
            let column = recording.close_column(now_ms(shared), nodes, ends, |port| known.at_port(port));
            drop(inner);
            self.second.send_replace(Some(column_json(&column, shared).to_string().into()));
        }
    }

    /// The settings as the store told them last.
    pub fn settings(&self) -> Settings {
        self.inner().settings.clone()
    }

    /// The replica that has the duty to rebalance.
    pub fn leader(&self) -> Option<String> {
        self.inner().leader.clone()
    }

    /// The newest column, if a second has passed.
    pub fn latest(&self) -> Option<Arc<Column>> {
        self.inner().recording.latest()
    }

    /// Who stands where now.
    pub fn layout(&self) -> Arc<recording::Layout> {
        Arc::clone(self.inner().recording.layout())
    }

    /// Columns since a moment, the oldest first.
    pub fn columns(&self, since_ms: u64) -> Vec<Arc<Column>> {
        self.inner().recording.since(since_ms).cloned().collect()
    }

    /// The column of a moment.
    pub fn moment(&self, at_ms: u64) -> Option<Arc<Column>> {
        self.inner().recording.moment(at_ms)
    }

    /// How each tenant uses the fabric; the empty name: those of none.
    pub fn tenants(&self, shared: &Shared) -> BTreeMap<String, Use> {
        let inner = self.inner();
        let mut tenants = inner.known.tenants();
        shared.loads.each(shared.clock.now(), |node, load, age| {
            if age < STALE {
                for one in &load.connections {
                    if let Some(tenant) = inner.known.tenant_of(node, &one.origin, one.serial) {
                        tenants.entry(tenant.to_owned()).or_default().tx_bps += one.tx_bps;
                    }
                }
            }
        });
        tenants
    }
}

impl Inner {
    /// Nodes or ports are others.
    fn relay_out(&mut self) {
        self.recording.set_nodes(self.known.nodes());
        self.recording.set_drained(&self.settings.drained);
        self.recording.set_hot(&self.hot);
    }

    fn set_hot(&mut self, hot: BTreeSet<PortName>) {
        self.recording.set_hot(&hot);
        self.hot = hot;
    }

    /// Which ports were judged to be hot; gives those that have become so, or are so no longer.
    fn hear_hot(&mut self, value: &[u8]) -> Vec<Happening> {
        let Ok(fresh) = serde_json::from_slice::<BTreeSet<PortName>>(value) else { return Vec::new() };
        let before = std::mem::replace(&mut self.told_hot, fresh.clone());
        self.set_hot(fresh);
        let policy = &self.settings.policy;
        let turned = |port: &PortName, hot: bool| {
            let limit = if hot { policy.hot_permille } else { policy.cool_permille };
            let (kind, word) = if hot { (Kind::PortHot, "above") } else { (Kind::PortCool, "at or below") };
            let text = format!("{port} has been {word} {}.{} % for long enough", limit / 10, limit % 10);
            Happening::new(kind, text).of_port(port.clone())
        };
        let became = self.hot.difference(&before).map(|port| turned(port, true));
        became.chain(before.difference(&self.hot).map(|port| turned(port, false))).collect()
    }

    /// What a listing shows; gives what differs from what was known.
    fn seed(&mut self, entries: &[Entry]) -> Vec<Happening> {
        let mut news = self.diary.seed(entries);
        news.extend(entries.iter().filter_map(|entry| self.hear_put(&entry.key, &entry.value)));
        news
    }

    /// Settings and the lead, which the chronicle itself needs.
    fn hear_put(&mut self, key: &str, value: &[u8]) -> Option<Happening> {
        if key == driver::SETTINGS {
            let fresh = Settings::from_json(value).ok()?;
            let text = told::settings_changes(&self.settings, &fresh);
            let changed = self.settings != fresh;
            self.settings = fresh;
            self.recording.set_drained(&self.settings.drained);
            return changed.then(|| Happening::new(Kind::SettingsChanged, text));
        }
        let duty = duty(key).filter(|duty| duty == REBALANCE)?;
        let leader = String::from_utf8_lossy(value).into_owned();
        if self.leader.as_deref() == Some(leader.as_str()) {
            return None;
        }
        let text = format!("{leader} has the duty to {duty}");
        self.leader = Some(leader);
        Some(Happening::new(Kind::LeaderChanged, text))
    }
}

/// A column as readers get it. Utilisations are thousandths; -1: nobody told.
pub fn column_json(column: &Column, shared: &Shared) -> Value {
    let known = |permille: &u16| if *permille == recording::UNKNOWN { -1 } else { i32::from(*permille) };
    let age = now_ms(shared).saturating_sub(column.at_ms);
    json!({
        "at_ms": column.at_ms,
        "date_ms": date_ms().saturating_sub(age),
        "layout": column.layout.number,
        "tx": column.tx.iter().map(known).collect::<Vec<_>>(),
        "rx": column.rx.iter().map(known).collect::<Vec<_>>(),
        "flags": &*column.flags,
        "connections": &*column.connections,
        "summary": column.summary,
    })
}

/// The replica's clock, ms: that of the decider.
pub fn now_ms(shared: &Shared) -> u64 {
    u64::try_from(shared.clock.now().as_millis()).unwrap_or(u64::MAX)
}

/// The date, milliseconds since 1970: for people only, nothing is decided by it.
pub fn date_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The duty that a key is about.
fn duty(key: &str) -> Option<String> {
    key.starts_with(keys::LEADERS).then(|| keys::parts(key)?.into_iter().next()).flatten()
}

/// Name of a port.
fn port_name(node: &str, path: &Path) -> PortName {
    PortName { node: node.to_owned(), device: path.device.clone(), port_num: path.port_num }
}
