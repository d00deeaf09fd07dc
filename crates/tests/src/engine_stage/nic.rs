//! The NICs of a play: one for each node, or one for all, whose QPs execute what they ask of one another without packets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use scalefabric_nic::port::Port;
use scalefabric_nic::{ManualNic, NicConfig, PortChange, PortConfig};
use scalefabric_transport::{Config, Counter};
use scalefabric_wire::{Gid, PKey};

use super::EngineStage;
use super::line::{Line, ScriptPort};
use crate::stage::Stage;

/// The NIC of all nodes of a script.
pub(super) type OneNic = (Arc<ManualNic>, Vec<Arc<Mutex<Line>>>);

/// Nodes that a script may have on one NIC, ports of each, and P_Keys of each port.
const NODES: u8 = 3;
pub(super) const PORTS: u8 = 2;
const PKEYS: usize = 8;

/// A NIC of a node's own, and its lines.
pub(super) fn own_nic(number: usize, ports: &[Gid], pkeys: &[PKey], config: &Config) -> OneNic {
    let mut lines = Vec::new();
    let mut boxed: Vec<Box<dyn Port>> = Vec::new();
    let mut configs = Vec::new();
    for (index, gid) in ports.iter().enumerate() {
        let line = Arc::new(Mutex::new(Line { port_num: index as u8 + 1, ..Line::default() }));
        lines.push(line.clone());
        boxed.push(Box::new(ScriptPort(line)));
        let mut port = PortConfig::new(format!("n{number}p{}", index + 1), vec![*gid]);
        port.pkeys = pkeys.to_vec();
        configs.push(port);
    }
    let mut nic = NicConfig::new(format!("node{number}"), configs);
    nic.transport = *config;
    let nic = ManualNic::new(nic, boxed, number as u64 + 1).expect("the configuration of a script's node is legal");
    (Arc::new(nic), lines)
}

/// A NIC that has room for all nodes of a script, whose requests to one another go without packets.
fn one_nic(config: &Config) -> OneNic {
    let line = |index: u8| Arc::new(Mutex::new(Line { port_num: 1 + index % PORTS, ..Line::default() }));
    let lines: Vec<_> = (0..NODES * PORTS).map(line).collect();
    let boxed = lines.iter().map(|line| Box::new(ScriptPort(line.clone())) as Box<dyn Port>).collect();
    let port = |index: u8| {
        let mut port = PortConfig::new(format!("n{}p{}", index / PORTS, 1 + index % PORTS), Vec::new());
        port.pkeys = vec![PKey(0); PKEYS];
        port
    };
    let mut nic = NicConfig::new("samehost", (0..NODES * PORTS).map(port).collect());
    nic.transport = *config;
    let nic = ManualNic::new_direct(nic, boxed, 1).expect("the configuration of a script's nodes is legal");
    (Arc::new(nic), lines)
}

impl EngineStage {
    /// A stage whose nodes are on one NIC, and execute what they ask of one another: `at_once`, whoever posts does; else the NIC's turns.
    pub fn same_host(at_once: bool) -> Self {
        Self { one: Some(one_nic(&Config::default())), at_once, ..Self::default() }
    }

    /// Requests that were executed without packets.
    pub fn direct_requests(&self) -> u64 {
        let of = |node: usize| self.counter(node, Counter::DirectRequests.label());
        (0..self.nodes.len()).map(of).sum()
    }

    /// The next node's ports of the one NIC.
    pub(super) fn own_ports(
        &mut self,
        number: usize,
        gids: &[Gid],
        pkeys: &[PKey],
        config: &Config,
    ) -> (Arc<ManualNic>, Vec<Arc<Mutex<Line>>>, u8) {
        if number == 0 {
            // Nobody has it yet, and now it is known what it shall be.
            let one = one_nic(config);
            if self.at_once {
                one.0.execute_at_once();
            }
            self.one = Some(one);
        }
        let (nic, lines) = self.one.as_ref().expect("a stage of one NIC has it");
        assert!(number < usize::from(NODES) && gids.len() <= usize::from(PORTS) && pkeys.len() <= PKEYS);
        let before = number as u8 * PORTS;
        for (port, gid) in (before + 1..).zip(gids) {
            nic.change_port(port, PortChange::AddGid { gid: *gid, index: None }).expect("the table has room");
            for (index, pkey) in (0..).zip(pkeys) {
                let change = PortChange::SetPKey { index, pkey: *pkey };
                nic.change_port(port, change).expect("the table has room");
            }
        }
        // That it was set up is no event of the play.
        while let Ok(Some(_)) = nic.context().get_async_event(Some(Duration::ZERO)) {}
        let own = lines[usize::from(before)..].iter().take(gids.len()).cloned().collect();
        (nic.clone(), own, before)
    }
}
