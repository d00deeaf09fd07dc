//! How a fabric is put together from topology, model and controller, and what is refused. Nothing has a time here yet.

use super::super::buffer::{Buffer, BufferSizes, Ingress};
use super::super::engine::Engines;
use super::super::event::EventQueue;
use super::super::host::Host;
use super::super::model::{Model, PortMarking};
use super::super::packet::Arena;
use super::super::pause::Pauses;
use super::super::port::Port;
use super::super::route::Routes;
use super::super::telemetry::Writing;
use super::super::time::{Ps, Rate};
use super::super::topology::Topology;
use super::{Counters, World};
use crate::random::{Random, mix};
use scalefabric_transport::congestion::Profile;

impl World {
    /// A fabric at rest. The topology must have passed its check; buffers that do not hold reserves and headroom are refused.
    pub fn new(topology: Topology, model: Model, profile: Profile, seed: u64) -> Result<Self, String> {
        topology.check()?;
        let routes = Routes::new(&topology, |_| true);
        let nodes = (topology.hosts + topology.switches) as usize;
        let mut ports = Vec::with_capacity(topology.links.len() * 2);
        for link in &topology.links {
            let rate = Rate::new(link.bps, model.ns3_quantum);
            for (node, peer) in [(link.a, link.b), (link.b, link.a)] {
                let mut port = Port::new(node, peer, rate, link.delay);
                port.loss_e7 = link.loss_e7;
                ports.push(port);
            }
        }
        let mut node_ports = vec![Vec::new(); nodes];
        for (index, port) in (0_u32..).zip(&ports) {
            node_ports[port.node as usize].push(index);
        }
        let mut host_ports = vec![u32::MAX; topology.hosts as usize];
        for (index, port) in (0_u32..).zip(&ports) {
            if let Some(own) = host_ports.get_mut(port.node as usize) {
                *own = index;
            }
        }
        let slowest = host_ports.iter().map(|port| ports[*port as usize].rate.bps).min().unwrap_or(1);
        let mut ingress = vec![Ingress::default(); ports.len()];
        let mut set_aside = vec![0_u64; nodes];
        let pfc = &model.switch.pfc;
        for (port, place) in ports.iter().zip(&mut ingress) {
            if port.node < topology.hosts {
                continue;
            }
            let times = if pfc.alpha_by_speed { (port.rate.bps / slowest.max(1)).max(1).ilog2() } else { 0 };
            place.alpha_1024 = pfc.alpha_1024.saturating_mul(1 << times.min(10));
            let headroom =
                u64::from(pfc.headroom_delays) * port.rate.bytes_in(port.delay) + u64::from(pfc.headroom_bytes);
            place.headroom_limit = u32::try_from(headroom).unwrap_or(u32::MAX);
            set_aside[port.node as usize] +=
                (headroom + u64::from(pfc.reserve)) * u64::from(pfc.priorities.count_ones());
        }
        let mut buffers = Vec::with_capacity(topology.switches as usize);
        for switch in topology.hosts..topology.hosts + topology.switches {
            let aside = set_aside[switch as usize];
            if aside >= model.switch.buffer {
                return Err(format!(
                    "{} has a buffer of {} B, but reserve and headroom of its ports take {aside} B: give it more, shorten its links, \
                     or use PFC on fewer priorities",
                    topology.name(switch),
                    model.switch.buffer
                ));
            }
            let sizes = BufferSizes {
                total: model.switch.buffer,
                reserve: pfc.reserve,
                resume_below: pfc.resume_below,
                lossless: pfc.priorities,
                lossy_alpha_1024: model.switch.lossy_alpha_1024,
            };
            buffers.push(Buffer::new(sizes, aside));
        }
        let marking = ports.iter().map(|port| PortMarking::of(model.switch.marking, port.rate.bps)).collect();
        // As many slots of the wheel as there are packets on all wires in the time of one.
        let fastest = ports.iter().map(|port| port.rate.serialise(1000).0).min().unwrap_or(1000);
        let width = Ps((fastest * 2 / ports.len().max(1) as u64).max(64));
        let with_stamp = matches!(profile, Profile::Timely(_) | Profile::Swift(_));
        let random = Random::new(seed, 0xfab);
        let hash_seeds = (0..nodes as u64).map(|node| mix(seed ^ mix(node + 1)) as u32).collect();
        let hosts = host_ports.into_iter().map(Host::new).collect();
        let mut world = Self {
            now: Ps::ZERO,
            queue: EventQueue::new(width),
            arena: Arena::new(false),
            writing: Writing::Nothing,
            with_stamp,
            pauses: Pauses::new(ports.len()),
            model,
            profile,
            routes,
            ports,
            node_ports,
            ingress,
            marking,
            buffers,
            hash_seeds,
            hosts,
            qps: Vec::new(),
            free_qps: Vec::new(),
            lanes: std::collections::BTreeMap::new(),
            messages: Vec::new(),
            forgets: false,
            free_messages: Vec::new(),
            open: 0,
            tickets: 0,
            random,
            counters: Counters::default(),
            notices: Vec::new(),
            done: Vec::new(),
            faults: Vec::new(),
            greatest: (Ps::ZERO, 0),
            sample_every: Ps::NEVER,
            last_done: Ps::ZERO,
            until: Ps::NEVER,
            posted_bytes: 0,
            acked_bytes: 0,
            acknowledged: 0,
            expected_bytes: 0,
            engines: None,
            topology,
        };
        world.greatest = world.greatest_rtt();
        world.start_engines(seed)?;
        world.writing = Writing::for_profile(&world.profile, &world.ports, world.greatest.0);
        world.arena = Arena::new(world.writing.has_records());
        Ok(world)
    }

    fn start_engines(&mut self, seed: u64) -> Result<(), String> {
        let Some(engine) = &self.model.host.engine else { return Ok(()) };
        let line: Vec<u64> = self.hosts.iter().map(|host| self.ports[host.port as usize].rate.bps).collect();
        let route = |from: u32, to: u32| {
            let route = self.route_of(from, to);
            (route.base_rtt_ps, route.hops)
        };
        let engines = Engines::new(&self.topology, &self.model, engine, &line, &route, seed)?;
        self.engines = Some(Box::new(engines));
        Ok(())
    }

    /// Refuses a profile that its parameters do not allow on this fabric.
    pub fn check_profile(&self) -> Result<(), String> {
        self.profile.check(&self.route_of(0, self.topology.hosts - 1)).map_err(|error| error.to_string())
    }
}
