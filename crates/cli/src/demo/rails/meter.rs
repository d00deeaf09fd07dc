//! What the balancing rule is told in the demo with two rails: bytes that the ports' own counters saw, and what each connection carried. It decides nothing.

use super::load::{Load, MESSAGE_BYTES};
use crate::failure::{During, Failure};
use scalefabric_fabric::balance::{ConnectionKey, ConnectionSample, PortKey, PortSample, Route, RouteKey};
use scalefabric_fabric::directory::ConnectionState;
use scalefabric_fabric::endpoint::Connection;
use scalefabric_verbs::{Context, PortState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Rails: port n of one device with port n of the other.
pub const RAILS: usize = 2;

/// One round.
pub struct Sample {
    pub now_ms: u64,
    pub ports: Vec<PortSample>,
    pub connections: Vec<ConnectionSample>,
}

impl Sample {
    /// Thousandths of its capacity that the near port of each rail sends.
    pub fn utilisation_permille(&self) -> [f64; RAILS] {
        let mut out = [0.0; RAILS];
        for (slot, port) in out.iter_mut().zip(&self.ports) {
            *slot = port.tx_bps * 1000.0 / port.capacity_bps as f64;
        }
        out
    }
}

/// Reads the counters and tells what has changed since it last did.
pub struct Meter<'a> {
    contexts: [Arc<dyn Context>; 2],
    near: Vec<&'a Connection>,
    load: &'a Load,
    begun: Instant,
    last_at: Instant,
    last_ports: Vec<[u64; 2]>,
    last_checked: Vec<u64>,
}

/// The two ports of a rail: the near device's and the far device's.
fn route(rail: u64) -> Route {
    let (near, far) = (PortKey(rail as u32), PortKey((RAILS as u64 + rail) as u32));
    Route { key: RouteKey(rail), local: near, remote: Some(far), via: Vec::new() }
}

impl<'a> Meter<'a> {
    /// Begins to measure. `contexts`: the near device and the far one.
    pub fn new(
        contexts: [Arc<dyn Context>; 2],
        ends: &'a [(Connection, Connection)],
        load: &'a Load,
    ) -> Result<Self, Failure> {
        let near = ends.iter().map(|(near, _)| near).collect();
        let now = Instant::now();
        let mut meter = Self {
            contexts,
            near,
            load,
            begun: now,
            last_at: now,
            last_ports: Vec::new(),
            last_checked: vec![0; ends.len()],
        };
        meter.sample(1)?;
        Ok(meter)
    }

    /// What has passed since the last look, as shares of this capacity.
    pub fn sample(&mut self, capacity_bps: u64) -> Result<Sample, Failure> {
        let now = Instant::now();
        let seconds = now.duration_since(std::mem::replace(&mut self.last_at, now)).as_secs_f64().max(1e-6);
        let now_ms = now.duration_since(self.begun).as_millis() as u64;
        let mut counters = Vec::new();
        let mut ports = Vec::new();
        for (side, context) in self.contexts.iter().enumerate() {
            for number in 1..=RAILS {
                let bytes = port_bytes(&**context, number as u8)?;
                let before = self.last_ports.get(counters.len()).copied().unwrap_or(bytes);
                // A software port has no line rate: a burst above what it is taken to carry is a full port.
                let bps = |way: usize| ((bytes[way] - before[way]) as f64 * 8.0 / seconds).min(capacity_bps as f64);
                ports.push(PortSample {
                    port: PortKey((side * RAILS + number) as u32),
                    plane: Some(number as u32),
                    taken_ms: now_ms,
                    up: context.query_port(number as u8).is_ok_and(|port| port.state == PortState::Active),
                    capacity_bps,
                    tx_bps: bps(0),
                    rx_bps: bps(1),
                });
                counters.push(bytes);
            }
        }
        self.last_ports = counters;
        let mut connections = Vec::new();
        for (index, near) in self.near.iter().enumerate() {
            let checked = self.load.gauges()[index].checked.load(Ordering::Relaxed);
            let messages = checked - std::mem::replace(&mut self.last_checked[index], checked);
            let Some(record) = near.record() else { continue };
            connections.push(ConnectionSample {
                connection: ConnectionKey(index as u64),
                taken_ms: now_ms,
                tx_bps: messages as f64 * MESSAGE_BYTES as f64 * 8.0 / seconds,
                rx_bps: 0.0,
                retransmit_ratio: 0.0,
                route: RouteKey(record.path.port_num.into()),
                routes: (1..=RAILS as u64).map(route).collect(),
                moved_ms: None,
                movable: record.state == ConnectionState::Up,
            });
        }
        Ok(Sample { now_ms, ports, connections })
    }
}

/// Bytes sent and received by a port.
fn port_bytes(context: &dyn Context, port_num: u8) -> Result<[u64; 2], Failure> {
    let counters = context.hw_counters(port_num).during(|| format!("read the counters of port {port_num}"))?;
    let of = |name: &str| counters.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
    match (of("sent_bytes"), of("rcvd_bytes")) {
        (Some(sent), Some(received)) => Ok([sent, received]),
        _ => Err(Failure::failed(format!("port {port_num} does not count its bytes: sent_bytes, rcvd_bytes"))),
    }
}
