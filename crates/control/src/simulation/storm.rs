//! Faults: what is lost, late and split, who dies and comes back, which clock jumps or stands still, when the store has no leader. All of it by chance, and each thing
//! at any moment; then calm, in which everything is there again.

use super::world::World;
use super::{MS, NODES, PER_NODE, PROCESSES};

/// What is mended later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mend {
    Replica(usize),
    Agent(usize),
    Process(usize),
    Port(usize, usize),
}

/// A storm.
#[derive(Debug, Default)]
pub struct Storm {
    mends: Vec<(u64, Mend)>,
}

impl Storm {
    /// A gust: nothing, or one fault.
    pub fn gust(&mut self, world: &mut World) {
        self.mend(world, false);
        let long = |world: &mut World, most_ms: u64| world.now + 50 * MS + world.dice.below(most_ms * MS);
        match world.dice.below(40) {
            0 | 29 => {
                let replica = world.dice.index(world.replicas.len());
                if world.replicas[replica].alive {
                    world.kill_replica(replica);
                    self.later(world, 6_000, Mend::Replica(replica));
                }
            }
            1 => {
                let replica = world.dice.index(world.replicas.len());
                let until = long(world, 8_000).max(world.replicas[replica].paused_until);
                world.replicas[replica].paused_until = until;
                // The machine slept, and its clock with it.
                if world.dice.permille(400) {
                    let now = world.now;
                    world.replicas[replica].sleep(now, until);
                }
            }
            2 => {
                let (now, rarely) = (world.now, world.dice.permille(200));
                let until = long(world, if rarely { 7_000 } else { 1_500 });
                if world.store.has_leader(now) && world.dice.permille(600) {
                    world.store.lose_leader(now, until);
                }
            }
            3 => world.store.compact(),
            4 => {
                let replica = world.dice.index(world.replicas.len());
                world.store_cut[replica] = long(world, 12_000);
            }
            5 => {
                let node = world.dice.index(NODES);
                world.agent_cut[node] = long(world, 9_000);
            }
            6 => {
                let node = world.dice.index(NODES);
                if world.nodes[node].agent.is_some() {
                    world.kill_agent(node);
                    self.later(world, 6_000, Mend::Agent(node));
                }
            }
            7 => {
                let node = world.dice.index(NODES);
                world.channel_cut[node] = long(world, 6_000);
            }
            8..=11 => {
                let channels = world.channels();
                if !channels.is_empty() {
                    let channel = channels[world.dice.index(channels.len())];
                    world.break_channel(channel);
                }
            }
            12 | 13 => {
                let streams = world.streams();
                if !streams.is_empty() {
                    let stream = streams[world.dice.index(streams.len())];
                    world.break_stream(stream);
                }
            }
            14 | 15 => {
                let (node, port) = (world.dice.index(NODES), world.dice.index(2));
                if world.nodes[node].up[port] {
                    world.set_port(node, port, false);
                    self.later(world, 8_000, Mend::Port(node, port));
                }
            }
            16 => {
                let slot = world.dice.index(PROCESSES);
                if world.processes[slot].alive {
                    world.kill_process(slot);
                    self.later(world, 4_000, Mend::Process(slot));
                }
            }
            17 => {
                let slot = world.dice.index(PROCESSES);
                let until = long(world, 3_000);
                world.processes[slot].paused_until = world.processes[slot].paused_until.max(until);
            }
            18 => {
                let slot = world.dice.index(PROCESSES);
                let jump = world.dice.below(3_000 * MS);
                world.processes[slot].ahead += jump as i64;
            }
            19 => {
                let open = world.dice.permille(500);
                if world.store.has_leader(world.now) {
                    world.set_tenants(open);
                }
            }
            20 | 21 => {
                let slot = world.dice.index(PROCESSES);
                if world.processes[slot].alive {
                    world.rotate(slot, None);
                }
            }
            22 => {
                let node = world.dice.index(NODES);
                world.order_rotation(node);
            }
            25 | 26 => world.order_move(false),
            27 | 28 => world.order_move(true),
            23 => world.trouble = world.dice.below(120),
            24 => {
                let before = world.store.revision().saturating_sub(500);
                world.store.sweep_orders(before);
            }
            _ => {}
        }
    }

    fn later(&mut self, world: &mut World, most_ms: u64, mend: Mend) {
        let at = world.now + 20 * MS + world.dice.below(most_ms * MS);
        self.mends.push((at, mend));
    }

    fn mend(&mut self, world: &mut World, all: bool) {
        let now = world.now;
        let (due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.mends).into_iter().partition(|(at, _)| all || *at <= now);
        self.mends = rest;
        for (_, mend) in due {
            match mend {
                Mend::Replica(replica) => world.revive_replica(replica),
                Mend::Agent(node) => world.start_agent(node),
                Mend::Process(slot) => world.revive_process(slot),
                Mend::Port(node, port) => world.set_port(node, port, true),
            }
        }
    }

    /// All is there again, and nothing is lost any more.
    pub fn end(&mut self, world: &mut World) {
        self.mend(world, true);
        world.trouble = 0;
        world.store_cut.fill(0);
        world.agent_cut.fill(0);
        world.channel_cut.fill(0);
        let now = world.now;
        world.store.headless_until = world.store.headless_until.min(now);
        // Who stands still wakes by itself.
        debug_assert_eq!(PROCESSES, NODES * PER_NODE);
    }
}
