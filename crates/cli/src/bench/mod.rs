//! `sfab bench`, what `cargo xtask bench` runs: speed as ratios. The RDMA of one RC queue pair over loopback beside raw UDP
//! and TCP, all in one run, in interleaved repetitions, so that what else the machine does falls on all alike.

pub mod datagram;
mod peer;
mod rdma;
mod stream;
mod summary;
mod yardstick;

use crate::demo::endpoint::Side;
use crate::demo::step::Transport;
use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use crate::terminal::Progress;
use crate::terminal::say;
use crate::units::rate;
use clap::Args;
use peer::{Answer, Order, Peer};
use rdma::{Connection, Service};
use std::net::SocketAddr;
use std::time::Duration;
use summary::{Quantity, Summary, median_us};

/// Speed of RC over loopback as ratios to raw UDP and TCP, measured in one run.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  cargo xtask bench\n  sfab bench --repeat 9 --ms 300 --json")]
pub struct Options {
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Length of one measurement
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    ms: u64,
    /// Only what has this in its name, such as `one way`; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Device (default: the loopback device)
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// One JSON document instead of tables
    #[arg(long)]
    json: bool,
    /// Only what the machine does by itself: a cache line to another core, copies; as JSON
    #[arg(long)]
    yardstick: bool,
    /// Be the second process
    #[arg(long, hide = true)]
    peer: bool,
}

/// Bytes registered on each side.
const REGION: u64 = 8 << 20;

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.yardstick {
        return yardstick::run(Duration::from_millis(options.ms));
    }
    // Both ends are in this process, and what is measured is packets.
    let provider = software::provider(&SoftwareOptions { path: Some("wire".into()), ..SoftwareOptions::default() })?;
    let device = software::choose(provider.as_ref(), options.device.as_deref(), "lo")?;
    let context = provider.open(&device).during(|| format!("open device {device}"))?;
    let side = Side::new(context, 1, None, REGION, 14)?;
    if options.peer {
        return peer::run(&side);
    }
    let mut peer = Peer::start(&device)?;
    let mut summary = Summary::default();
    let is_wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|text| name.contains(text));
    let wanted: Vec<Quantity> = Quantity::ALL.into_iter().filter(|quantity| is_wanted(quantity.name())).collect();
    let mut progress = Progress::new(options.repeat as usize * wanted.len());
    for _ in 0..options.repeat {
        for quantity in wanted.iter().copied() {
            progress.next(quantity.name());
            let duration = Duration::from_millis(options.ms);
            let value = measure(quantity, &side, &mut peer, duration).map_err(|f| f.during(quantity.name()))?;
            summary.add(quantity, value);
        }
    }
    drop(progress);
    if options.json {
        say!("{:#}", summary.as_json());
    } else {
        summary.print();
    }
    Ok(())
}

fn measure(quantity: Quantity, side: &Side, peer: &mut Peer, duration: Duration) -> Result<f64, Failure> {
    let gigabits = |(bytes, time): (u64, Duration)| rate(bytes * 8, time) / 1e9;
    let millions = |(messages, time): (u64, Duration)| rate(messages, time) / 1e6;
    match quantity {
        Quantity::Datagram64K => datagram_stream(peer, 64 << 10, duration).map(gigabits),
        Quantity::Datagram1M => datagram_stream(peer, 1 << 20, duration).map(gigabits),
        Quantity::Stream => {
            let to = address(peer.begin(&Order::StreamSink)?)?;
            let measured = stream::stream(to, duration)?;
            peer.wait_stopped()?;
            Ok(gigabits(measured))
        }
        Quantity::DatagramLatency => {
            let to = address(peer.begin(&Order::DatagramEcho)?)?;
            let mut samples = datagram::ping_pong(to, duration)?;
            peer.stop()?;
            Ok(median_us(&mut samples))
        }
        Quantity::Write64K => write_stream(side, peer, 64 << 10, 1, 64, duration).map(gigabits),
        Quantity::Write1M => write_stream(side, peer, 1 << 20, 1, 8, duration).map(gigabits),
        Quantity::Rate32 => write_stream(side, peer, 8, 32, 512, duration).map(|(b, t)| millions((b / 8, t))),
        Quantity::Rate1 => write_stream(side, peer, 8, 1, 64, duration).map(|(b, t)| millions((b / 8, t))),
        Quantity::WriteLatency => {
            let connection = connect(side, peer, Service::EchoWrite)?;
            let mut samples = connection.write_ping_pong(duration)?;
            peer.stop()?;
            Ok(median_us(&mut samples))
        }
        Quantity::SendLatency => {
            let connection = connect(side, peer, Service::EchoSend)?;
            let mut samples = connection.send_ping_pong(duration)?;
            peer.stop()?;
            Ok(median_us(&mut samples))
        }
    }
}

fn datagram_stream(peer: &mut Peer, size: usize, duration: Duration) -> Result<(u64, Duration), Failure> {
    let to = address(peer.begin(&Order::DatagramSink)?)?;
    let measured = datagram::stream(to, size, duration)?;
    peer.stop()?;
    Ok(measured)
}

/// Bytes and time.
fn write_stream(
    side: &Side,
    peer: &mut Peer,
    size: u32,
    chain: u32,
    window: u32,
    duration: Duration,
) -> Result<(u64, Duration), Failure> {
    let connection = connect(side, peer, Service::Passive)?;
    let (messages, time) = connection.write_stream(size, chain, window, duration)?;
    peer.stop()?;
    Ok((messages * u64::from(size), time))
}

fn connect<'a>(side: &'a Side, peer: &mut Peer, service: Service) -> Result<Connection<'a>, Failure> {
    let endpoint = side.endpoint(Transport::Rc)?;
    match peer.begin(&Order::Rdma(endpoint.local.clone(), service))? {
        Answer::QueuePair(far) => Connection::new(side, endpoint, far),
        other => Err(Failure::failed(format!("the second process answers {other:?} instead of a queue pair"))),
    }
}

fn address(answer: Answer) -> Result<SocketAddr, Failure> {
    match answer {
        Answer::At(address) => Ok(address),
        other => Err(Failure::failed(format!("the second process answers {other:?} instead of an address"))),
    }
}
