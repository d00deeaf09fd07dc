//! What `sfab top` knows and how it is arranged: the last look at control, which view, what is sorted, filtered and chosen. It draws nothing and asks nobody.

use super::Sort;
use serde::Deserialize;
use std::cmp::Ordering;

/// Bits of a port's flags, as /v1/overview gives them.
const UP: u8 = 1;
const HOT: u8 = 2;
const DRAINED: u8 = 4;

/// `/v1/overview`, as far as it is shown.
#[derive(Clone, Debug, Deserialize)]
pub struct Overview {
    /// The replica that was asked.
    pub replica: String,
    /// The store.
    pub store: StoreState,
    /// Who has the duty to rebalance.
    pub leader: Option<String>,
    /// What the operator has set.
    pub rebalance: Rebalance,
    /// Nodes by name.
    pub nodes: Vec<NodeEntry>,
    /// The last second; none before the first.
    pub second: Option<Second>,
}

/// The store.
#[derive(Clone, Debug, Deserialize)]
pub struct StoreState {
    /// `etcd` or `embedded`.
    pub kind: String,
    /// `in-sync` and others.
    pub health: String,
    /// Why.
    pub reason: Option<String>,
}

/// Settings of rebalancing.
#[derive(Clone, Debug, Deserialize)]
pub struct Rebalance {
    /// `no`, `optional`, `all`.
    pub freeze: String,
    /// Decided, not ordered.
    pub dry_run: bool,
}

/// A node.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeEntry {
    /// Name.
    pub node: String,
    /// Ports.
    pub ports: Vec<PortEntry>,
}

/// A port.
#[derive(Clone, Debug, Deserialize)]
pub struct PortEntry {
    /// Device.
    pub device: String,
    /// Number, from 1.
    pub port_num: u8,
    /// Speed.
    pub rate_mbps: u64,
    /// Switch at the other end.
    pub switch: Option<String>,
}

/// A second of all ports.
#[derive(Clone, Debug, Deserialize)]
pub struct Second {
    /// When, milliseconds of control's clock.
    pub at_ms: u64,
    /// Thousandths sent, by port; -1: unknown.
    pub tx: Vec<i32>,
    /// The same received.
    pub rx: Vec<i32>,
    /// 1 up, 2 hot, 4 drained.
    pub flags: Vec<u8>,
    /// Ends of connections.
    pub connections: Vec<u32>,
    /// All together.
    pub summary: Summary,
}

/// All ports together.
#[derive(Clone, Debug, Deserialize)]
pub struct Summary {
    pub nodes: u32,
    pub ports: u32,
    pub up: u32,
    pub hot: u32,
    pub down: u32,
    pub ends: u32,
    pub moves_per_minute: u32,
    pub tx_bps: f64,
}

/// An event.
#[derive(Clone, Debug, Deserialize)]
pub struct EventEntry {
    pub at_ms: u64,
    pub kind: String,
    pub text: String,
    pub why: Option<String>,
}

/// A page of connections.
#[derive(Clone, Debug, Deserialize)]
pub struct Connections {
    pub connections: Vec<ConnectionEntry>,
}

/// An end of a connection.
#[derive(Clone, Debug, Deserialize)]
pub struct ConnectionEntry {
    pub node: String,
    pub tenant: String,
    pub service: String,
    pub qp_num: u32,
    pub state: String,
    pub path: PathEntry,
    pub load: Option<LoadEntry>,
}

/// A path's own end.
#[derive(Clone, Debug, Deserialize)]
pub struct PathEntry {
    pub device: String,
    pub port_num: u8,
}

/// What a connection carries.
#[derive(Clone, Debug, Deserialize)]
pub struct LoadEntry {
    pub tx_bps: f64,
    pub rx_bps: f64,
}

/// One look at control.
#[derive(Clone, Debug)]
pub struct Picture {
    pub overview: Overview,
    /// The newest first.
    pub events: Vec<EventEntry>,
    /// If they were asked for.
    pub connections: Option<Connections>,
}

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Ports by load.
    #[default]
    Ports,
    /// Connections, of a port or of all.
    Connections,
    /// Moves and why.
    Moves,
    /// Events.
    Events,
}

/// A port as a row.
#[derive(Clone, Debug, PartialEq)]
pub struct PortRow {
    pub node: String,
    pub device: String,
    pub port_num: u8,
    pub rate_mbps: u64,
    pub switch: String,
    /// Thousandths; -1: unknown.
    pub tx: i32,
    pub rx: i32,
    pub connections: u32,
    flags: u8,
}

impl PortRow {
    /// `node/device/port`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.node, self.device, self.port_num)
    }

    pub fn is_up(&self) -> bool {
        self.flags & UP != 0
    }

    pub fn is_hot(&self) -> bool {
        self.flags & HOT != 0
    }

    pub fn is_drained(&self) -> bool {
        self.flags & DRAINED != 0
    }

    /// The busier direction.
    pub fn busier(&self) -> i32 {
        self.tx.max(self.rx)
    }

    /// Its state in a word or two.
    pub fn state(&self) -> &'static str {
        match (self.is_up(), self.is_hot(), self.is_drained()) {
            (false, ..) => "DOWN",
            (true, true, _) => "HOT",
            (true, false, true) => "drained",
            (true, false, false) => "up",
        }
    }
}

/// All that is shown.
pub struct Model {
    /// The last look.
    pub picture: Option<Picture>,
    pub view: View,
    pub sort: Sort,
    pub reversed: bool,
    pub filter: String,
    /// The chosen row of each view.
    pub chosen: usize,
    /// Connections of this port only.
    pub of_port: Option<(String, String, u8)>,
    pub paused: bool,
    /// Why the last look failed.
    pub trouble: Option<String>,
    /// What came of the last change.
    pub notice: Option<String>,
}

impl Model {
    /// Nothing yet.
    pub fn new(sort: Sort, filter: &str) -> Self {
        Self {
            picture: None,
            view: View::default(),
            sort,
            reversed: false,
            filter: filter.to_owned(),
            chosen: 0,
            of_port: None,
            paused: false,
            trouble: None,
            notice: None,
        }
    }

    /// A new look. Connections that were not asked for again stay.
    pub fn take(&mut self, mut picture: Picture) {
        if picture.connections.is_none() {
            picture.connections = self.picture.take().and_then(|old| old.connections);
        }
        self.picture = Some(picture);
        self.trouble = None;
        self.chosen = self.chosen.min(self.rows().saturating_sub(1));
    }

    /// The query of the connections that the view wants.
    pub fn wanted(&self) -> Option<String> {
        if self.view != View::Connections {
            return None;
        }
        Some(match &self.of_port {
            Some((node, device, port_num)) => {
                format!("node={}&device={}&port_num={port_num}", escaped(node), escaped(device))
            }
            None if self.filter.is_empty() => String::new(),
            None => format!("node={}", escaped(&self.filter)),
        })
    }

    /// Rows of the view.
    pub fn rows(&self) -> usize {
        match self.view {
            View::Ports => self.ports().len(),
            View::Connections => self.connections().len(),
            View::Moves | View::Events => self.events().len(),
        }
    }

    /// Ports that fit the filter, sorted.
    pub fn ports(&self) -> Vec<PortRow> {
        let Some(Picture { overview, .. }) = &self.picture else { return Vec::new() };
        let all = overview.nodes.iter().flat_map(|node| node.ports.iter().map(move |port| (node, port)));
        let mut rows: Vec<PortRow> = all
            .enumerate()
            .map(|(at, (node, port))| {
                let of = |values: fn(&Second) -> &[i32]| {
                    overview.second.as_ref().and_then(|second| values(second).get(at).copied()).unwrap_or(-1)
                };
                let second = overview.second.as_ref();
                PortRow {
                    node: node.node.clone(),
                    device: port.device.clone(),
                    port_num: port.port_num,
                    rate_mbps: port.rate_mbps,
                    switch: port.switch.clone().unwrap_or_default(),
                    tx: of(|second| &second.tx),
                    rx: of(|second| &second.rx),
                    connections: second.and_then(|second| second.connections.get(at).copied()).unwrap_or(0),
                    flags: second.and_then(|second| second.flags.get(at).copied()).unwrap_or(0),
                }
            })
            .filter(|row| fits(&self.filter, &[&row.name(), &row.switch]))
            .collect();
        let rate = |permille: i32, row: &PortRow| i64::from(permille.max(0)) * row.rate_mbps as i64;
        rows.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Load => b.busier().cmp(&a.busier()),
                Sort::Sent => rate(b.tx, b).cmp(&rate(a.tx, a)),
                Sort::Received => rate(b.rx, b).cmp(&rate(a.rx, a)),
                Sort::Connections => b.connections.cmp(&a.connections),
                Sort::Name => Ordering::Equal,
            };
            order.then_with(|| natural(&a.name(), &b.name()))
        });
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Connections, the busiest first.
    pub fn connections(&self) -> Vec<&ConnectionEntry> {
        let page = self.picture.as_ref().and_then(|picture| picture.connections.as_ref());
        let mut all: Vec<&ConnectionEntry> = page.map(|page| page.connections.iter().collect()).unwrap_or_default();
        let rate = |one: &ConnectionEntry| one.load.as_ref().map_or(-1.0, |load| load.tx_bps.max(load.rx_bps));
        all.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| natural(&a.node, &b.node)));
        if self.reversed {
            all.reverse();
        }
        all
    }

    /// Events of the view that fit the filter, the newest first.
    pub fn events(&self) -> Vec<&EventEntry> {
        let Some(picture) = &self.picture else { return Vec::new() };
        let of_view = |event: &&EventEntry| self.view != View::Moves || event.kind.starts_with("connection-");
        let text =
            |event: &&EventEntry| fits(&self.filter, &[&event.text, &event.kind, event.why.as_deref().unwrap_or("")]);
        picture.events.iter().filter(of_view).filter(text).collect()
    }

    /// How long ago something was, by control's clock, seconds.
    pub fn seconds_since(&self, at_ms: u64) -> u64 {
        let second = self.picture.as_ref().and_then(|picture| picture.overview.second.as_ref());
        second.map_or(0, |second| second.at_ms.saturating_sub(at_ms) / 1000)
    }
}

fn fits(filter: &str, texts: &[&str]) -> bool {
    let filter = filter.to_lowercase();
    filter.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&filter))
}

/// Names in the order of people: node2 before node10.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (in_a, in_b) = (digits(a), digits(b));
        if in_a > 0 && in_b > 0 {
            let number = |text: &str| text.parse::<u128>().unwrap_or(u128::MAX);
            let order = number(&a[..in_a]).cmp(&number(&b[..in_b]));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (&a[in_a..], &b[in_b..]);
            continue;
        }
        match (a.chars().next(), b.chars().next()) {
            (Some(x), Some(y)) if x == y => (a, b) = (&a[x.len_utf8()..], &b[y.len_utf8()..]),
            (x, y) => return x.cmp(&y),
        }
    }
}

/// A part of a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_people() {
        let mut names = ["node10/sf0/1", "node2/sf0/2", "node2/sf0/1", "node", "a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "node", "node2/sf0/1", "node2/sf0/2", "node10/sf0/1"]);
    }

    #[test]
    fn what_is_asked_is_escaped() {
        let mut model = Model::new(Sort::Load, "a&b=ü");
        assert_eq!(model.wanted(), None);
        model.view = View::Connections;
        assert_eq!(model.wanted().as_deref(), Some("node=a%26b%3D%C3%BC"));
        model.of_port = Some(("n1".into(), "sf 0".into(), 2));
        assert_eq!(model.wanted().as_deref(), Some("node=n1&device=sf%200&port_num=2"));
    }
}
