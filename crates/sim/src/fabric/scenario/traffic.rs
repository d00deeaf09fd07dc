//! The workloads of a scenario, made from its file.

use super::super::time::Ps;
use super::super::workload::all_reduce::{self, AllReduce, Shape};
use super::super::workload::all_to_all::AllToAll;
use super::super::workload::flow_list::FlowList;
use super::super::workload::sizes::{NAMES, Sizes};
use super::super::workload::storage::{self, Storage};
use super::super::workload::{Job, Mix};
use super::super::world::World;
use super::file::{ShapeName, WorkloadKind, WorkloadTable};
use super::{Refusal, Scenario};
use crate::random::Random;

/// All of them.
pub(super) fn build(scenario: &Scenario, world: &World) -> Result<Mix, Refusal> {
    let tables = &scenario.file.workload;
    if tables.is_empty() || tables.len() > 200 {
        return Err(scenario.refuse("workload", &format!("there are {}; expected 1 to 200", tables.len())));
    }
    let mut jobs = Vec::with_capacity(tables.len());
    for (index, table) in tables.iter().enumerate() {
        jobs.push(Maker { scenario, world, table, index }.job()?);
    }
    Ok(Mix::new(jobs))
}

/// Packets of one message: their numbers have 32 bits.
const MOST_PACKETS: u64 = 1 << 30;

/// Flows of an open loop or operations of storage: all are made before the run.
const MOST_FLOWS: f64 = 2e7;

struct Maker<'a> {
    scenario: &'a Scenario,
    world: &'a World,
    table: &'a WorkloadTable,
    index: usize,
}

impl Maker<'_> {
    fn place(&self, field: &str) -> String {
        format!("workload[{}].{field}", self.index)
    }

    fn refuse(&self, field: &str, message: &str) -> Refusal {
        self.scenario.refuse(&self.place(field), message)
    }

    fn within(&self, value: Option<u32>, default: u32, field: &str, least: u32, most: u32) -> Result<u32, Refusal> {
        self.scenario.within(value.unwrap_or(default), &self.place(field), least, most)
    }

    /// What a message may be: 4 TiB, and [`MOST_PACKETS`].
    fn most_bytes(&self) -> u64 {
        (u64::from(self.scenario.model.host.mtu) * MOST_PACKETS).min(1 << 42)
    }

    fn bytes(&self) -> Result<u64, Refusal> {
        let bytes = self.scenario.need(self.table.bytes, &self.place("bytes"), "a size, such as \"1MB\"")?.0;
        let most = self.most_bytes();
        if bytes == 0 || bytes > most {
            let message = format!("is {bytes}; expected 1 to {most} B: 4 TiB, or {MOST_PACKETS} packets of host.mtu");
            return Err(self.refuse("bytes", &message));
        }
        Ok(bytes)
    }

    fn load(&self) -> Result<f64, Refusal> {
        let load = self.scenario.need(self.table.load, &self.place("load"), "a part from 0 to 2")?;
        if load <= 0.0 {
            return Err(self.refuse("load", &format!("is {load}; expected more than 0")));
        }
        self.scenario.part(load, &self.place("load"), 2.0)
    }

    fn sizes(&self) -> Result<Sizes, Refusal> {
        if self.table.sizes.is_some() && self.table.bytes.is_some() {
            return Err(self.refuse("bytes", "sizes are given, too; expected one of the two"));
        }
        match &self.table.sizes {
            None => Ok(Sizes::fixed(self.bytes()?)),
            Some(name) => match Sizes::named(name) {
                Some(sizes) => Ok(sizes),
                None if name.ends_with(".csv") => {
                    let (text, shown) = self.scenario.table(&self.place("sizes"), name)?;
                    Sizes::from_csv(&text, &shown, self.most_bytes()).map_err(Refusal)
                }
                None => {
                    let names = NAMES.join(", ");
                    Err(self.refuse(
                        "sizes",
                        &format!("is {name:?}; expected {names}, or a table NAME.csv of bytes,percent"),
                    ))
                }
            },
        }
    }

    /// For how long flows of `hosts` begin, at this load and of these sizes.
    fn duration(&self, hosts: u32, load: f64, sizes: &Sizes) -> Result<Ps, Refusal> {
        let duration = self.scenario.need(self.table.duration, &self.place("duration"), "a time, such as \"1ms\"")?.0;
        if duration == Ps::ZERO {
            return Err(self.refuse("duration", "is 0: nothing would begin; expected a time above 0"));
        }
        let flows = f64::from(hosts) * self.line() as f64 * load / 8.0 / sizes.mean() * duration.as_secs();
        if flows > MOST_FLOWS {
            let message = format!("is {duration}, in which {flows:.1e} flows begin; at most {MOST_FLOWS:.0e} are made");
            return Err(self.refuse("duration", &message));
        }
        Ok(duration)
    }

    fn line(&self) -> u64 {
        let port = self.world.last_port(0);
        self.world.ports()[port as usize].rate.bps
    }

    fn job(&self) -> Result<Box<dyn Job>, Refusal> {
        let table = self.table;
        let hosts = self.world.topology().hosts;
        let start = table.start.map_or(Ps::ZERO, |time| time.0);
        let priority = self.within(table.priority.map(u32::from), 3, "priority", 0, 7)? as u8;
        let mut random = Random::new(self.scenario.seed, 100 + self.index as u64);
        Ok(match table.kind {
            WorkloadKind::Incast => {
                let to = self.within(table.to, hosts - 1, "to", 0, hosts - 1)?;
                let senders = self.within(table.senders, hosts - 1, "senders", 1, hosts - 1)?;
                let from = (0..hosts).filter(|host| *host != to).take(senders as usize);
                Box::new(FlowList::new(FlowList::incast(from, to, self.bytes()?, start), priority))
            }
            WorkloadKind::Permutation => {
                let flows = FlowList::permutation(hosts, self.bytes()?, start, &mut random);
                Box::new(FlowList::new(flows, priority))
            }
            WorkloadKind::AllToAll => {
                let members = self.within(table.members, hosts, "members", 2, hosts)?;
                let concurrent = self.within(table.concurrent, 4, "concurrent", 1, 1 << 16)?;
                Box::new(AllToAll::new((0..members).collect(), self.bytes()?, concurrent, priority, start))
            }
            WorkloadKind::AllReduce => Box::new(AllReduce::new(self.all_reduce(start, priority, &mut random)?)),
            WorkloadKind::OpenLoop => {
                let (load, sizes) = (self.load()?, self.sizes()?);
                let duration = self.duration(hosts, load, &sizes)?;
                let flows = FlowList::open_loop(hosts, self.line(), load, &sizes, start, duration, &mut random);
                Box::new(FlowList::new(flows, priority))
            }
            WorkloadKind::Storage => {
                let clients = self.within(table.clients, hosts / 2, "clients", 1, hosts - 1)?;
                let (load, sizes) = (self.load()?, self.sizes()?);
                let plan = storage::Plan {
                    clients: (0..clients).collect(),
                    servers: (clients..hosts).collect(),
                    reads: self.scenario.part(table.reads.unwrap_or(0.7), &self.place("reads"), 1.0)?,
                    load,
                    bps: self.line(),
                    duration: self.duration(clients, load, &sizes)?,
                    sizes,
                    start,
                    priority,
                };
                Box::new(Storage::new(&plan, &mut random))
            }
            WorkloadKind::Csv => {
                let file = self.scenario.need(table.file.clone(), &self.place("file"), "the name of a table")?;
                let (text, shown) = self.scenario.table(&self.place("file"), &file)?;
                let flows = FlowList::from_csv(&text, &shown, hosts, self.most_bytes()).map_err(Refusal)?;
                Box::new(FlowList::new(flows, priority))
            }
        })
    }

    fn all_reduce(&self, start: Ps, priority: u8, random: &mut Random) -> Result<all_reduce::Plan, Refusal> {
        let table = self.table;
        let topology = self.world.topology();
        // On rails a member is a server, and a channel goes by the NICs of one rail.
        let rails = topology.rails;
        let all = topology.hosts / rails;
        let members = self.within(table.members, all, "members", 2, all.min(65_535))?;
        let channels = self.within(table.channels, rails, "channels", 1, 4_000)?;
        let mut order: Vec<u32> = (0..members).collect();
        if table.shuffled.unwrap_or(false) {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        let channels = (0..channels)
            .map(|channel| order.iter().map(|member| member * rails + channel % rails).collect())
            .collect();
        let shape = match table.shape.unwrap_or(ShapeName::Ring) {
            ShapeName::Ring if table.piece.is_some() => {
                return Err(self.refuse("piece", "counts only with shape = \"tree\""));
            }
            ShapeName::Ring => Shape::Ring,
            ShapeName::Tree => Shape::Tree { piece: table.piece.map_or(512 << 10, |size| size.0).max(1) },
        };
        Ok(all_reduce::Plan {
            channels,
            bytes: self.bytes()?,
            buckets: self.within(table.buckets, 1, "buckets", 1, 100_000)?,
            overlap: self.within(table.overlap, 1, "overlap", 1, 2_000)?,
            iterations: self.within(table.iterations, 1, "iterations", 1, 100_000)?,
            shape,
            start,
            priority,
            binding: None,
        })
    }
}
