//! How loaded every port was: one column a second for the last ten minutes, and the one that is being measured. It is told what was sampled and
//! answers; it has no clock. Memory is bounded: [`COLUMNS`] columns of at most [`MAX_PORTS`] ports at 9 bytes, 44 MB; with 512 nodes of two ports 5.5 MB.

use crate::directory::NodeRecord;
use crate::load::PortLoad;
use crate::topology::PortName;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Columns that are kept: ten minutes.
pub const COLUMNS: usize = 600;
/// Time between two columns, ms.
pub const INTERVAL_MS: u64 = 1_000;
/// Ports that are recorded; those of the last nodes by name are left out, and told.
pub const MAX_PORTS: usize = 8_192;
/// A utilisation that nobody told.
pub const UNKNOWN: u16 = u16::MAX;

/// Bit of [`Column::flags`]: the port can carry traffic.
pub const UP: u8 = 1;
/// The port is hot: so it was judged by who decides over moves.
pub const HOT: u8 = 2;
/// The operator wants the port empty.
pub const DRAINED: u8 = 4;

/// Which port stands where in a column.
#[derive(Debug, Default)]
pub struct Layout {
    /// Counts up with each change.
    pub number: u64,
    /// Ports, in order of their nodes' names, then of the node's record.
    pub ports: Vec<PortName>,
    /// Ports that found no place.
    pub left_out: usize,
    /// Where a node's ports begin, and how many there are.
    pub of_node: BTreeMap<String, (usize, usize)>,
}

impl Layout {
    /// Of these nodes.
    pub fn new(number: u64, nodes: &BTreeMap<String, Arc<NodeRecord>>) -> Self {
        let mut layout = Self { number, ..Self::default() };
        for (name, node) in nodes {
            if layout.ports.len() + node.ports.len() > MAX_PORTS {
                layout.left_out += node.ports.len();
                continue;
            }
            layout.of_node.insert(name.clone(), (layout.ports.len(), node.ports.len()));
            layout.ports.extend(node.ports.iter().map(|port| PortName {
                node: name.clone(),
                device: port.device.clone(),
                port_num: port.port_num,
            }));
        }
        layout
    }

    /// Where a port stands.
    pub fn place(&self, node: &str, device: &str, port_num: u8) -> Option<usize> {
        let (first, count) = *self.of_node.get(node)?;
        let of_node = self.ports.get(first..first + count)?;
        of_node.iter().position(|port| port.port_num == port_num && port.device == device).map(|at| first + at)
    }
}

/// What all ports came to in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Summary {
    /// Nodes whose agents live.
    pub nodes: u32,
    /// Their ports.
    pub ports: u32,
    /// Ports that can carry traffic.
    pub up: u32,
    /// Ports that are hot.
    pub hot: u32,
    /// Ports that cannot carry traffic.
    pub down: u32,
    /// Ports that the operator wants empty.
    pub drained: u32,
    /// Ends of connections in the directory: two for each connection.
    pub ends: u32,
    /// Moves in this second.
    pub moves: u32,
    /// Moves in the last minute.
    pub moves_per_minute: u32,
    /// The most loaded direction of any port, thousandths.
    pub busiest: u16,
    /// Bits a second sent by all ports together.
    pub tx_bps: f64,
}

/// One second.
#[derive(Debug)]
pub struct Column {
    /// When it ended, milliseconds of the replica's clock.
    pub at_ms: u64,
    /// Who stands where.
    pub layout: Arc<Layout>,
    /// Thousandths of the capacity sent, by port; [`UNKNOWN`]: nobody told.
    pub tx: Box<[u16]>,
    /// The same received.
    pub rx: Box<[u16]>,
    /// [`UP`], [`HOT`], [`DRAINED`].
    pub flags: Box<[u8]>,
    /// Ends of connections that use the port.
    pub connections: Box<[u32]>,
    /// All together.
    pub summary: Summary,
}

/// What was sampled of a port since the last column.
#[derive(Clone, Debug, Default)]
struct Cell {
    tx: u32,
    rx: u32,
    samples: u32,
    capacity_bps: u64,
    up: bool,
    drained: bool,
    hot: bool,
}

/// The recording.
#[derive(Debug, Default)]
pub struct Recording {
    layout: Arc<Layout>,
    cells: Vec<Cell>,
    columns: VecDeque<Arc<Column>>,
    moves: u32,
}

impl Recording {
    /// Who stands where now.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Other nodes or ports. What is known of those that stay is kept, and who stands where stays so as long as the ports and their speeds are the same.
    pub fn set_nodes(&mut self, nodes: &BTreeMap<String, Arc<NodeRecord>>) {
        let mut fresh = Layout::new(self.layout.number + 1, nodes);
        let cells = std::mem::take(&mut self.cells);
        let mut same = fresh.ports == self.layout.ports && fresh.left_out == self.layout.left_out;
        let mut old: HashMap<&PortName, Cell> = self.layout.ports.iter().zip(cells).collect();
        for (name, (first, count)) in &fresh.of_node {
            let Some(node) = nodes.get(name) else { continue };
            for (port, name) in node.ports.iter().zip(&fresh.ports[*first..*first + *count]) {
                let mut cell = old.remove(name).unwrap_or_default();
                let capacity_bps = port.rate_mbps.saturating_mul(1_000_000);
                same &= cell.capacity_bps == capacity_bps;
                (cell.capacity_bps, cell.up) = (capacity_bps, port.active);
                self.cells.push(cell);
            }
        }
        if same {
            fresh.number = self.layout.number;
        }
        self.layout = Arc::new(fresh);
    }

    /// Which ports the operator wants empty.
    pub fn set_drained(&mut self, drained: &[PortName]) {
        self.cells.iter_mut().for_each(|cell| cell.drained = false);
        for port in drained {
            if let Some(at) = self.layout.place(&port.node, &port.device, port.port_num) {
                self.cells[at].drained = true;
            }
        }
    }

    /// Which ports are hot.
    pub fn set_hot(&mut self, hot: &BTreeSet<PortName>) {
        for (port, cell) in self.layout.ports.iter().zip(&mut self.cells) {
            cell.hot = hot.contains(port);
        }
    }

    /// A connection has moved.
    pub fn note_move(&mut self) {
        self.moves += 1;
    }

    /// What a node's ports carry now.
    pub fn sample(&mut self, node: &str, ports: &[PortLoad]) {
        for load in ports {
            let Some(at) = self.layout.place(node, &load.device, load.port_num) else { continue };
            let cell = &mut self.cells[at];
            cell.up = load.active;
            let (tx, rx) = (permille(load.tx_bps, cell.capacity_bps), permille(load.rx_bps, cell.capacity_bps));
            cell.tx += u32::from(tx);
            cell.rx += u32::from(rx);
            cell.samples += 1;
        }
    }

    /// Ends the second. `connections` are the ends by port.
    pub fn close_column(
        &mut self,
        at_ms: u64,
        nodes: usize,
        ends: usize,
        connections: impl Fn(&PortName) -> u32,
    ) -> Arc<Column> {
        let count = self.cells.len();
        let (mut tx, mut rx) = (vec![UNKNOWN; count], vec![UNKNOWN; count]);
        let mut flags = vec![0; count];
        let mut summary = Summary {
            nodes: nodes as u32,
            ports: count as u32,
            ends: ends as u32,
            moves: std::mem::take(&mut self.moves),
            ..Summary::default()
        };
        for (at, cell) in self.cells.iter_mut().enumerate() {
            if let Some(mean) = cell.tx.checked_div(cell.samples) {
                tx[at] = mean as u16;
                rx[at] = (cell.rx / cell.samples) as u16;
                summary.busiest = summary.busiest.max(tx[at]).max(rx[at]);
                summary.tx_bps += f64::from(mean) * cell.capacity_bps as f64 / 1000.0;
            }
            (cell.tx, cell.rx, cell.samples) = (0, 0, 0);
            flags[at] = u8::from(cell.up) * UP + u8::from(cell.hot) * HOT + u8::from(cell.drained) * DRAINED;
            summary.up += u32::from(cell.up);
            summary.down += u32::from(!cell.up);
            summary.hot += u32::from(cell.hot);
            summary.drained += u32::from(cell.drained);
        }
        let earlier: u32 = self.since(at_ms.saturating_sub(59_999)).map(|column| column.summary.moves).sum();
        summary.moves_per_minute = summary.moves + earlier;
        let column = Arc::new(Column {
            at_ms,
            layout: Arc::clone(&self.layout),
            tx: tx.into(),
            rx: rx.into(),
            flags: flags.into(),
            connections: self.layout.ports.iter().map(connections).collect(),
            summary,
        });
        if self.columns.len() == COLUMNS {
            self.columns.pop_front();
        }
        self.columns.push_back(Arc::clone(&column));
        column
    }

    /// Columns that ended at or after a moment, the oldest first.
    pub fn since(&self, at_ms: u64) -> impl Iterator<Item = &Arc<Column>> {
        let first = self.columns.partition_point(|column| column.at_ms < at_ms);
        self.columns.iter().skip(first)
    }

    /// The column of a moment: the last that had ended, else the first.
    pub fn moment(&self, at_ms: u64) -> Option<Arc<Column>> {
        let after = self.columns.partition_point(|column| column.at_ms <= at_ms);
        self.columns.get(after.saturating_sub(1)).cloned()
    }

    /// The newest column.
    pub fn latest(&self) -> Option<Arc<Column>> {
        self.columns.back().cloned()
    }
}

/// Thousandths of a capacity, at most 2,000: what is above is a mistake of whoever measured. 0 without a capacity.
fn permille(bps: f64, capacity_bps: u64) -> u16 {
    if capacity_bps == 0 || !bps.is_finite() || bps <= 0.0 {
        return 0;
    }
    (bps * 1000.0 / capacity_bps as f64).round().min(2_000.0) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::PortRecord;

    fn nodes(names: &[&str], ports: u8) -> BTreeMap<String, Arc<NodeRecord>> {
        let port = |port_num| PortRecord {
            device: "sf0".into(),
            port_num,
            gids: Vec::new(),
            rate_mbps: 10_000,
            numa_node: None,
            active: true,
        };
        let node = |name: &str| NodeRecord {
            node: name.into(),
            version: "1".into(),
            incarnation: 1,
            replica: "c".into(),
            ports: (1..=ports).map(port).collect(),
            neighbours: Vec::new(),
        };
        names.iter().map(|name| ((*name).to_owned(), Arc::new(node(name)))).collect()
    }

    fn load(port_num: u8, permille: f64) -> PortLoad {
        PortLoad {
            device: "sf0".into(),
            port_num,
            capacity_bps: 10_000_000_000,
            active: true,
            tx_bps: permille * 1e7,
            rx_bps: 0.0,
            retransmitted_ps: 0.0,
            marked_ps: 0.0,
            age_ms: 0,
        }
    }

    #[test]
    fn a_column_is_the_mean_of_its_samples_and_silence_is_not_zero() {
        let mut recording = Recording::default();
        recording.set_nodes(&nodes(&["a", "b"], 2));
        recording.sample("a", &[load(1, 400.0), load(2, 0.0)]);
        recording.sample("a", &[load(1, 600.0), load(2, 0.0)]);
        let column = recording.close_column(1_000, 2, 7, |port| u32::from(port.node == "b"));
        assert_eq!(&*column.tx, [500, 0, UNKNOWN, UNKNOWN]);
        assert_eq!((&*column.connections, &*column.flags), (&[0, 0, 1, 1][..], &[UP; 4][..]));
        assert_eq!((column.summary.busiest, column.summary.up, column.summary.ends), (500, 4, 7));
        assert!((column.summary.tx_bps - 5e9).abs() < 1.0);
        assert_eq!(&*recording.close_column(2_000, 2, 7, |_| 0).tx, [UNKNOWN; 4]);
    }

    #[test]
    fn a_port_is_hot_if_it_was_judged_so_whatever_it_carries() {
        let mut recording = Recording::default();
        recording.set_nodes(&nodes(&["a"], 2));
        let judged = BTreeSet::from([PortName { node: "a".into(), device: "sf0".into(), port_num: 2 }]);
        recording.set_hot(&judged);
        recording.sample("a", &[load(1, 900.0), load(2, 100.0)]);
        let column = recording.close_column(1_000, 1, 0, |_| 0);
        assert_eq!((&*column.flags, column.summary.hot), (&[UP, UP | HOT][..], 1));
        recording.set_hot(&BTreeSet::new());
        assert_eq!(&*recording.close_column(2_000, 1, 0, |_| 0).flags, [UP, UP]);
    }

    #[test]
    fn a_node_that_joins_moves_the_others_places_and_not_what_is_known_of_them() {
        let mut recording = Recording::default();
        recording.set_nodes(&nodes(&["b"], 1));
        recording.set_hot(&BTreeSet::from([PortName { node: "b".into(), device: "sf0".into(), port_num: 1 }]));
        recording.close_column(1_000, 1, 0, |_| 0);
        recording.set_nodes(&nodes(&["a", "b"], 1));
        recording.sample("b", &[load(1, 900.0)]);
        let column = recording.close_column(2_000, 2, 0, |_| 0);
        assert_eq!((column.flags[1] & HOT, column.tx[1], column.layout.number), (HOT, 900, 2));
        recording.set_nodes(&nodes(&["a", "b"], 1));
        assert_eq!(recording.layout().number, 2, "nobody moved");
        assert_eq!(recording.moment(1_500).map(|column| column.layout.number), Some(1));
        assert_eq!(recording.moment(0).map(|column| column.at_ms), Some(1_000));
    }

    #[test]
    fn the_recording_is_bounded_in_time_and_in_ports() {
        let mut recording = Recording::default();
        let names: Vec<String> = (0..MAX_PORTS / 100 + 2).map(|n| format!("n{n:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        recording.set_nodes(&nodes(&names, 100));
        assert_eq!(recording.layout().ports.len() + recording.layout().left_out, names.len() * 100);
        assert!(recording.layout().ports.len() <= MAX_PORTS && recording.layout().left_out > 0);
        let mut recording = Recording::default();
        for second in 0..COLUMNS as u64 + 5 {
            recording.note_move();
            recording.close_column(second * 1_000, 0, 0, |_| 0);
        }
        assert_eq!(recording.since(0).count(), COLUMNS);
        assert_eq!(recording.latest().map(|column| column.summary.moves_per_minute), Some(60));
    }
}
