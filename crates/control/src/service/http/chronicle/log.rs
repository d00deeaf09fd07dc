//! What happened, as an operator tells it: the last [`KEPT`] events in memory, each with a number, and a stream that a reader can take up again where it was.
//! Nothing here is stored: another replica, or this one after a restart, has a log of its own, which its name (`run`) tells apart.

use crate::topology::PortName;
use scalefabric_fabric::directory::ConnectionId;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;

/// Events that are kept. At most some 15 MB, 3 MB as they usually are.
pub const KEPT: usize = 10_000;
/// Events that a reader may be behind before it has to read the log.
const BEHIND: usize = 1024;
/// Longest sentence, bytes. What others wrote (the reason of an order) could be longer.
const SENTENCE: usize = 400;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = EventKind)]
pub enum Kind {
    /// A node's agent is new, or was started again.
    NodeJoined,
    /// Nothing was heard of a node's agent for its lease.
    NodeGone,
    /// A port can carry traffic.
    PortUp,
    /// A port can no longer carry traffic.
    PortDown,
    /// A port has been above the limit for long enough.
    PortHot,
    /// A hot port has been below the limit for long enough.
    PortCool,
    /// A connection has taken another path.
    ConnectionMoved,
    /// The QP of a connection has failed and is made anew.
    ConnectionRebuilding,
    /// An order is on its way.
    OrderGiven,
    /// An order was carried out.
    OrderDone,
    /// An order was not carried out; everything is as before.
    OrderFailed,
    /// The tenants' rules are others.
    TenantsChanged,
    /// The settings of rebalancing are others.
    SettingsChanged,
    /// The rotation of keys went on.
    KeysChanged,
    /// Another replica has the duty to rebalance, or none.
    LeaderChanged,
    /// A replica of control is new.
    ReplicaJoined,
    /// A replica of control is gone.
    ReplicaGone,
    /// The store cannot be reached: what is shown is how it was.
    StoreAway,
    /// The store can be reached.
    StoreBack,
}

impl Kind {
    /// As JSON and the stream name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeJoined => "node-joined",
            Self::NodeGone => "node-gone",
            Self::PortUp => "port-up",
            Self::PortDown => "port-down",
            Self::PortHot => "port-hot",
            Self::PortCool => "port-cool",
            Self::ConnectionMoved => "connection-moved",
            Self::ConnectionRebuilding => "connection-rebuilding",
            Self::OrderGiven => "order-given",
            Self::OrderDone => "order-done",
            Self::OrderFailed => "order-failed",
            Self::TenantsChanged => "tenants-changed",
            Self::SettingsChanged => "settings-changed",
            Self::KeysChanged => "keys-changed",
            Self::LeaderChanged => "leader-changed",
            Self::ReplicaJoined => "replica-joined",
            Self::ReplicaGone => "replica-gone",
            Self::StoreAway => "store-away",
            Self::StoreBack => "store-back",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Happening {
    /// Counts up from 1.
    pub serial: u64,
    /// When, milliseconds of this replica's clock: that of decisions and of the time line.
    pub at_ms: u64,
    /// When, milliseconds since 1970 by this host's date.
    pub date_ms: u64,
    /// What kind.
    pub kind: Kind,
    /// The same for people.
    pub text: String,
    /// Node that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Port that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub port: Option<PortName>,
    /// Connection that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub connection: Option<ConnectionId>,
    /// Port that a connection has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub from: Option<PortName>,
    /// Port that a connection has taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub to: Option<PortName>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Happening {
    /// Of this kind; the log adds number and time.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self {
            serial: 0,
            at_ms: 0,
            date_ms: 0,
            kind,
            text: text.into(),
            node: None,
            port: None,
            connection: None,
            from: None,
            to: None,
            why: None,
        }
    }

    /// About a node.
    pub fn of_node(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// About a port.
    pub fn of_port(mut self, port: PortName) -> Self {
        self.node = Some(port.node.clone());
        self.port = Some(port);
        self
    }

    /// About a connection.
    pub fn of_connection(mut self, id: &ConnectionId) -> Self {
        self.connection = Some(id.clone());
        self
    }
}

/// What a reader missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// How many events; unknown if the number was of another run of control.
    pub lost: Option<u64>,
}

/// The log.
#[derive(Debug)]
pub struct Log {
    run: String,
    kept: Mutex<Kept>,
    told: broadcast::Sender<Arc<Happening>>,
}

#[derive(Debug)]
struct Kept {
    events: VecDeque<Arc<Happening>>,
    next: u64,
}

impl Log {
    /// Empty. `run` tells it from those of other runs and replicas; it has no `-`.
    pub fn new(run: String) -> Self {
        let kept = Kept { events: VecDeque::new(), next: 1 };
        Self { run, kept: Mutex::new(kept), told: broadcast::Sender::new(BEHIND) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something, at a time of the replica's clock and of the date.
    pub fn note(&self, mut happening: Happening, at_ms: u64, date_ms: u64) {
        shorten(&mut happening.text);
        if let Some(why) = &mut happening.why {
            shorten(why);
        }
        let mut kept = self.kept();
        (happening.serial, happening.at_ms, happening.date_ms) = (kept.next, at_ms, date_ms);
        kept.next += 1;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        let happening = Arc::new(happening);
        kept.events.push_back(Arc::clone(&happening));
        // Under the lock, so that `after` and what is told then fit together.
        let _ = self.told.send(happening);
    }

    /// Name of an event's place, for `Last-Event-ID`.
    pub fn id(&self, serial: u64) -> String {
        format!("{}-{serial}", self.run)
    }

    /// The place that a reader names: `None` if it is of another run.
    pub fn place(&self, id: &str) -> Option<u64> {
        let (run, serial) = id.rsplit_once('-')?;
        (run == self.run).then(|| serial.parse().ok()).flatten()
    }

    /// Number of the last event, 0 for none.
    pub fn last(&self) -> u64 {
        self.kept().next - 1
    }

    /// All that are kept after a number, what is missing before them, and a stream of those that come then.
    pub fn after(&self, serial: u64) -> (Vec<Arc<Happening>>, Option<Gap>, broadcast::Receiver<Arc<Happening>>) {
        let kept = self.kept();
        let first = kept.events.front().map_or(kept.next, |event| event.serial);
        let gap = (serial + 1 < first).then(|| Gap { lost: Some(first - serial - 1) });
        let skip = usize::try_from((serial + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let events = kept.events.iter().skip(skip).cloned().collect();
        (events, gap, self.told.subscribe())
    }

    /// The newest that fit, the newest first.
    pub fn newest(&self, most: usize, fits: impl Fn(&Happening) -> bool) -> Vec<Arc<Happening>> {
        self.kept().events.iter().rev().filter(|event| fits(event)).take(most).cloned().collect()
    }
}

fn shorten(text: &mut String) {
    if text.len() > SENTENCE {
        let end = (0..=SENTENCE).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(log: &Log, text: &str) {
        log.note(Happening::new(Kind::NodeJoined, text), 1, 2);
    }

    #[test]
    fn a_reader_goes_on_where_it_was_without_a_gap_or_a_repetition() {
        let log = Log::new("r".into());
        (0..5).for_each(|_| note(&log, "x"));
        let (events, gap, mut told) = log.after(3);
        assert_eq!((events.iter().map(|event| event.serial).collect::<Vec<_>>(), gap), (vec![4, 5], None));
        note(&log, "y");
        assert_eq!(told.try_recv().map(|event| event.serial), Ok(6));
        assert!(log.after(6).0.is_empty() && log.after(99).0.is_empty());
        assert_eq!(log.place(&log.id(4)), Some(4));
        assert_eq!((log.place("q-4"), log.place("4"), log.place("r-x")), (None, None, None));
    }

    #[test]
    fn what_is_forgotten_is_counted_and_the_log_is_bounded() {
        let log = Log::new("r".into());
        (0..KEPT + 7).for_each(|_| note(&log, "x"));
        let (events, gap, _) = log.after(0);
        assert_eq!((events.len(), gap), (KEPT, Some(Gap { lost: Some(7) })));
        assert_eq!(log.after(7).1, None, "the first that is kept is the next one");
        assert_eq!(log.newest(2, |_| true)[0].serial, log.last());
        note(&log, &"ü".repeat(1000));
        assert!(log.newest(1, |_| true)[0].text.len() <= SENTENCE + 4);
    }

    #[test]
    fn names_are_those_of_json() {
        for kind in [Kind::NodeJoined, Kind::ConnectionRebuilding, Kind::StoreBack, Kind::KeysChanged] {
            assert_eq!(serde_json::to_value(kind).expect("JSON"), kind.name());
        }
    }
}
