//! The client: connects to a server, goes through the sizes, and gives what was measured. It decides; the server follows.

use crate::failure::{During, Failure};
use crate::perf::asked::Asked;
use crate::perf::bandwidth;
use crate::perf::connection::Connection;
use crate::perf::device::{DeviceOptions, Devices};
use crate::perf::exchange::{self, FarResult, Link, Message, Plan, Sent, SideInfo, Step, Verb, greeted, unexpected};
use crate::perf::histogram::{Latency, Schedule};
use crate::perf::latency::{self, Pace};
use crate::perf::processor;
use crate::perf::rdma_cm::{self, Managed};
use crate::perf::watch::Watch;
use crate::terminal::Progress;
use crate::units;
use quanta::Instant;
use serde::Serialize;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long the server may take for one line.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the server may take to say why something failed.
const REASON: Duration = Duration::from_millis(500);

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// Everything that was measured, and between whom.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What was agreed on.
    pub plan: Plan,
    /// This end.
    pub client: SideInfo,
    /// The other end.
    pub server: SideInfo,
    /// Version of the other end.
    pub server_version: String,
    /// Path MTU of the connection, bytes.
    pub path_mtu: u32,
    /// The open loop's operations a second.
    pub rate: Option<f64>,
    /// What reading the clock costs here, ns.
    pub clock_ns: f64,
    /// Requests on this device meanwhile that their requesters executed themselves, without packets.
    pub direct_requests: Option<u64>,
    /// A row for each size.
    pub rows: Vec<Row>,
}

/// A size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Bytes of a message.
    pub size: u32,
    /// If it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// If it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Timing>,
}

/// Bandwidth of both directions together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// Messages that were sent and, on an unreliable transport where that is known, arrived.
    pub messages: u64,
    /// Messages that did not arrive; `None` where nobody can know (UC WRITEs).
    pub lost: Option<u64>,
    /// Time of the longer direction.
    pub seconds: f64,
    /// Average, Gb/s.
    pub average_gbits: f64,
    /// The best 5 ms, Gb/s.
    pub peak_gbits: f64,
    /// Average, MiB/s.
    pub average_mib_s: f64,
    /// The best 5 ms, MiB/s.
    pub peak_mib_s: f64,
    /// Messages a second.
    pub messages_per_s: f64,
    /// Processor time of this process, seconds for 10^9 bytes.
    pub client_cpu_s_per_gb: f64,
    /// Processor time of the server's process.
    pub server_cpu_s_per_gb: f64,
    /// Resident memory of this process afterwards, bytes.
    pub client_rss_bytes: u64,
    /// Resident memory of the server's process.
    pub server_rss_bytes: u64,
    /// The server served others meanwhile: its processor time and memory are theirs, too.
    pub server_cpu_is_shared: bool,
}

/// Latency with its circumstances.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    /// Percentiles; `None` if no answer came at all.
    #[serde(flatten)]
    pub latency: Option<Latency>,
    /// `one_way` is half of there and back; `round_trip` is all of it.
    pub of: Way,
    /// Messages without an answer (UC, UD).
    pub lost: u64,
    /// Time of all.
    pub seconds: f64,
    /// Operations a second that there were.
    pub operations_per_s: f64,
}

/// What a latency is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Half of there and back.
    OneWay,
    /// There and back.
    RoundTrip,
}

/// A connected client.
struct Client {
    link: Link,
    connection: Connection,
    _managed: Option<Managed>,
}

/// Measures against a server.
pub fn measure(asked: &Asked, device: &DeviceOptions, to: &[SocketAddr], shows: bool) -> Result<Measured, Failure> {
    let devices = Devices::new(device)?;
    let stream = reach(to)?;
    let local = stream.local_addr().during(|| "own address")?.ip();
    let mut link = Link::new(stream)?;
    link.send(&exchange::hello())?;
    let server_version = greeted(link.receive(PATIENCE, "its greeting")?)?;
    let device_options = device;
    let device = devices.open(local)?;
    processor::pin(device_options.cpu, device_options.numa)?;
    let mut plan = asked.plan.clone();
    if asked.inline_is_a_wish {
        let limits = device.context.query_device().during(|| "query the device")?;
        plan.inline_bytes = plan.inline_bytes.min(limits.max_inline_data);
    }
    let sizes = usable_sizes(asked, &plan, device.path_mtu.bytes())?;
    let mut connection = Connection::new(&device, &plan)?;
    link.send(&Message::Plan(plan.clone()))?;
    let server = match link.receive(PATIENCE, "its queue pairs")? {
        Message::Side(side) => side,
        other => return Err(unexpected("queue pairs", &other)),
    };
    link.send(&Message::Side(connection.info(None)))?;
    let managed = if plan.rdma_cm {
        Some(rdma_cm::connect(&mut connection, &server)?)
    } else {
        connection.connect(&server)?;
        None
    };
    let path_mtu = connection.path_mtu(&server)?.bytes();
    if plan.verb == Verb::Send {
        connection.post_receives()?;
    }
    match link.receive(PATIENCE, "its queue pairs to be ready")? {
        Message::Ready => link.send(&Message::Ready)?,
        other => return Err(unexpected("ready", &other)),
    }
    let client_info = connection.info(None);
    let direct_before = device.direct_requests();
    let mut client = Client { link, connection, _managed: managed };
    let rows = match client.rows(asked, &sizes, shows) {
        Ok(rows) => rows,
        Err(failure) => {
            let _ = client.link.send(&Message::Trouble(failure.to_string()));
            return Err(reason(&mut client.link, failure));
        }
    };
    client.link.send(&Message::Finish)?;
    Ok(Measured {
        plan,
        client: client_info,
        server,
        server_version,
        path_mtu,
        rate: asked.rate,
        clock_ns: processor::clock_cost_ns(),
        direct_requests: device.direct_requests().map(|after| after.saturating_sub(direct_before.unwrap_or(0))),
        rows,
    })
}

/// A completion that failed is often the trace of something that the server can tell better, or of its end.
fn reason(link: &mut Link, failure: Failure) -> Failure {
    let begin = Instant::now();
    while begin.elapsed() < REASON {
        match link.try_receive() {
            Err(told) if failure.to_string().ends_with(&told.to_string()) => return failure,
            Err(told) => return Failure::failed(format!("{told} ({failure})")),
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    failure
}

fn reach(to: &[SocketAddr]) -> Result<TcpStream, Failure> {
    let mut last = None;
    for address in to {
        match TcpStream::connect_timeout(address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some((address, error)),
        }
    }
    let Some((address, error)) = last else { return Err(Failure::failed("the server's name has no address")) };
    Err(Failure::failed(format!(
        "connect to {address}: {error}: is `sfab perf server` running there, and is this its port?"
    )))
}

/// Datagrams are no larger than the path MTU.
fn usable_sizes(asked: &Asked, plan: &Plan, port_mtu: u32) -> Result<Vec<u32>, Failure> {
    if plan.transport != crate::demo::step::Transport::Ud {
        return Ok(asked.sizes.clone());
    }
    let most = plan.path_mtu.unwrap_or(port_mtu);
    let fitting: Vec<u32> = asked.sizes.iter().copied().filter(|size| *size <= most).collect();
    if fitting.is_empty() {
        let size = plan.largest;
        return Err(Failure::usage(format!(
            "-s {size}: a datagram (UD) holds at most the path MTU, {most} bytes here"
        )));
    }
    Ok(fitting)
}

impl Client {
    fn rows(&mut self, asked: &Asked, sizes: &[u32], shows: bool) -> Result<Vec<Row>, Failure> {
        let mut progress = Progress::new(if shows { sizes.len() * asked.halves().count() } else { 0 });
        let mut rows = Vec::with_capacity(sizes.len());
        for size in sizes.iter().copied() {
            let mut row = Row { size, bandwidth: None, latency: None };
            for is_latency in asked.halves() {
                let name = format!(
                    "{} {}, {}",
                    asked.plan.verb.name(),
                    if is_latency { "lat" } else { "bw" },
                    units::size(size.into())
                );
                if shows {
                    progress.next(&name);
                }
                let mut show = |passed: Duration, done: u64| {
                    if shows {
                        progress.again(&format!("{name}: {done} messages, {:.0} s", passed.as_secs_f64()));
                    }
                };
                if let Some(step) = asked.warmup(size, is_latency) {
                    self.step(&step, asked, &mut show).map_err(|failure| failure.during(&name))?;
                }
                match self
                    .step(&asked.step(size, is_latency), asked, &mut show)
                    .map_err(|failure| failure.during(&name))?
                {
                    Outcome::Bandwidth(bandwidth) => row.bandwidth = Some(bandwidth),
                    Outcome::Latency(timing) => row.latency = Some(timing),
                }
            }
            rows.push(row);
        }
        Ok(rows)
    }

    fn step(&mut self, step: &Step, asked: &Asked, show: bandwidth::Show<'_>) -> Result<Outcome, Failure> {
        self.connection.clear_landing(&self.connection.lanes[0])?;
        self.link.send(&Message::Step(*step))?;
        match self.link.receive(PATIENCE, "it to be prepared")? {
            Message::Go => {}
            other => return Err(unexpected("go", &other)),
        }
        if step.is_latency { self.latency(step, asked, show) } else { self.bandwidth(step, show) }
    }

    fn latency(&mut self, step: &Step, asked: &Asked, show: bandwidth::Show<'_>) -> Result<Outcome, Failure> {
        let pace = asked.rate.map_or(Pace::Closed, |rate| Pace::Open(Schedule::new(rate)));
        let mut watch = Watch::new(&mut self.link);
        let timed = latency::measure(&self.connection, step, pace, &mut watch, show)?;
        let messages = timed.times.len() + timed.lost;
        self.link.send(&Message::Done { messages })?;
        self.result()?;
        let is_round_trip = self.connection.plan.verb.is_round_trip() || asked.rate.is_some();
        let (parts, of) = if is_round_trip { (1, Way::RoundTrip) } else { (2, Way::OneWay) };
        Ok(Outcome::Latency(Timing {
            latency: timed.times.latency(parts),
            of,
            lost: timed.lost,
            seconds: timed.elapsed.as_secs_f64(),
            operations_per_s: units::rate(timed.times.len(), timed.elapsed),
        }))
    }

    fn bandwidth(&mut self, step: &Step, show: bandwidth::Show<'_>) -> Result<Outcome, Failure> {
        let before = processor::time_used();
        let mut watch = Watch::new(&mut self.link);
        let streamed = bandwidth::stream(&self.connection, step, &mut watch, show)?;
        self.link.send(&Message::Done { messages: streamed.sent.messages })?;
        let (far, more) = self.result()?;
        let cpu = processor::time_used().saturating_sub(before);
        let plan = &self.connection.plan;
        let mut arrived_here = streamed.arrived + more;
        if plan.verb == Verb::Send && plan.both_directions {
            arrived_here = bandwidth::take_rest(&self.connection, arrived_here, far.sent.messages)?;
        }
        Ok(Outcome::Bandwidth(together(plan, step.size, &streamed.sent, arrived_here, &far, cpu)))
    }

    /// Drives the queue pairs until the server has told its result.
    fn result(&mut self) -> Result<(FarResult, u64), Failure> {
        let begin = Instant::now();
        let mut watch = Watch::new(&mut self.link);
        let (message, arrived) = bandwidth::drive_within(&self.connection, &mut watch, Some(begin + PATIENCE * 2))?;
        match message {
            Message::Result(result) => Ok((result, arrived)),
            other => Err(unexpected("a result", &other)),
        }
    }
}

enum Outcome {
    Bandwidth(Bandwidth),
    Latency(Timing),
}

/// Both directions as one.
fn together(plan: &Plan, size: u32, here: &Sent, arrived_here: u64, far: &FarResult, cpu: Duration) -> Bandwidth {
    let is_counted = plan.verb == Verb::Send;
    let is_reliable = plan.transport == crate::demo::step::Transport::Rc;
    let sent = here.messages + far.sent.messages;
    let messages = if is_counted && !is_reliable {
        far.arrived.min(here.messages) + arrived_here.min(far.sent.messages)
    } else {
        sent
    };
    let lost = if is_counted || is_reliable { Some(sent - messages) } else { None };
    let elapsed_ns = here.elapsed_ns.max(far.sent.elapsed_ns);
    // Each direction at its own pace; of what was sent, the part that arrived.
    let share = if sent == 0 { 0.0 } else { messages as f64 / sent as f64 };
    let pace = |sent: &Sent| units::rate(sent.messages, Duration::from_nanos(sent.elapsed_ns));
    let per_s = (pace(here) + pace(&far.sent)) * share;
    let peak_per_s = ((here.peak + far.sent.peak) * share).max(per_s);
    let (gbits, mib) = (f64::from(size) * 8.0 / 1e9, f64::from(size) / f64::from(1 << 20));
    let gigabytes = messages as f64 * f64::from(size) / 1e9;
    let per_gb = |seconds: f64| if gigabytes > 0.0 { seconds / gigabytes } else { 0.0 };
    Bandwidth {
        messages,
        lost,
        seconds: elapsed_ns as f64 / 1e9,
        average_gbits: per_s * gbits,
        peak_gbits: peak_per_s * gbits,
        average_mib_s: per_s * mib,
        peak_mib_s: peak_per_s * mib,
        messages_per_s: per_s,
        client_cpu_s_per_gb: per_gb(cpu.as_secs_f64()),
        server_cpu_s_per_gb: per_gb(far.cpu_ns as f64 / 1e9),
        client_rss_bytes: processor::resident_bytes(),
        server_rss_bytes: far.rss_bytes,
        server_cpu_is_shared: far.is_shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::step::Transport;
    use crate::perf::exchange::Memory;

    fn plan(verb: Verb, transport: Transport) -> Plan {
        Plan {
            verb,
            transport,
            largest: 1000,
            qps: 1,
            tx_depth: 8,
            rx_depth: 8,
            post_list: 1,
            signal_every: 1,
            inline_bytes: 0,
            both_directions: false,
            events: false,
            path_mtu: None,
            rdma_cm: false,
            reads_data: false,
            waits_for_completion: false,
            memory: Memory::Device,
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn units_of_one_measurement_agree() {
        let here = Sent { messages: 1_000_000, elapsed_ns: 2 * SECOND, peak: 600_000.0 };
        let far = FarResult { cpu_ns: 3 * SECOND, ..FarResult::default() };
        let told = together(&plan(Verb::Write, Transport::Rc), 1000, &here, 0, &far, Duration::from_secs(2));
        assert_eq!((told.messages, told.lost, told.messages_per_s), (1_000_000, Some(0), 500_000.0));
        assert!((told.average_gbits - 4.0).abs() < 1e-9 && (told.peak_gbits - 4.8).abs() < 1e-9, "{told:?}");
        assert!((told.average_mib_s - 500_000_000.0 / 1_048_576.0).abs() < 1e-6, "{told:?}");
        assert!((told.client_cpu_s_per_gb - 2.0).abs() < 1e-9 && (told.server_cpu_s_per_gb - 3.0).abs() < 1e-9);
    }

    #[test]
    fn both_directions_add_up_and_what_was_lost_does_not_count() {
        let here = Sent { messages: 1000, elapsed_ns: SECOND, peak: 1000.0 };
        let sent = Sent { messages: 500, elapsed_ns: SECOND, peak: 500.0 };
        let far = FarResult { sent, arrived: 900, ..FarResult::default() };
        let told = together(&plan(Verb::Send, Transport::Ud), 1000, &here, 450, &far, Duration::ZERO);
        assert_eq!((told.messages, told.lost), (1350, Some(150)));
        assert!((told.messages_per_s - 1350.0).abs() < 1e-9, "{told:?}");
        let unknown =
            together(&plan(Verb::Write, Transport::Uc), 1000, &here, 0, &FarResult::default(), Duration::ZERO);
        assert_eq!((unknown.messages, unknown.lost), (1000, None));
    }
}
