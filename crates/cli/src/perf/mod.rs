//! `sfab perf`: what a device does, measured between two ends, with the options that users of perftest know. A server ([`server`]) serves
//! clients ([`client`]); they agree over TCP ([`exchange`]) and measure over queue pairs ([`connection`]): bandwidth ([`bandwidth`]) and
//! latency ([`latency`]). With `--peer` others are measured on the same machine, too ([`peer`]).

mod asked;
mod bandwidth;
mod client;
mod connection;
mod device;
mod exchange;
mod heap;
mod histogram;
mod latency;
mod peer;
mod plot;
mod processor;
mod rdma_cm;
mod report;
mod server;
mod watch;

use crate::failure::Failure;
use crate::terminal::say;
use asked::{AtomicOp, AtomicOptions, ClientOptions};
use clap::{Args, Subcommand};
use exchange::Verb;
use std::io::{ErrorKind, IsTerminal};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Bandwidth, message rate and latency of RDMA between two ends.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sfab perf server                               on one end: serves all tests, until Ctrl-C
  sfab perf write bw 10.0.0.1                    on the other: 64 KiB WRITEs
  sfab perf write both 10.0.0.1 -a --plot w.svg  all sizes, bandwidth and latency, and a picture
  sfab perf send lat 10.0.0.1 -s 64 -D 5         half of there and back, for 5 s
  sfab perf read lat 10.0.0.1 --rate 20000       an open loop: latency from the intended start
  sfab perf atomic bw 10.0.0.1 --op cas -q 4     compare and swap on 4 queue pairs
  sfab perf write bw -s 1M --peer all            ours and others' on this machine, and the ratio

The server needs no options: it takes them from the client. Letters are perftest's: -s -a -q -t -l -D -n -b -I -Q -e -R -m -d -i -x.")]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// The other end of all tests
    Server(Box<server::Options>),
    /// RDMA WRITE; latency by polling memory
    #[command(after_help = "Example:\n  sfab perf write bw 10.0.0.1 -s 1M -D 5 --report-gbits")]
    Write(Box<ClientOptions>),
    /// RDMA READ; latency is there and back
    #[command(after_help = "Example:\n  sfab perf read bw 10.0.0.1 -s 64K -q 4")]
    Read(Box<ClientOptions>),
    /// SEND and receive
    #[command(after_help = "Example:\n  sfab perf send lat 10.0.0.1 --transport ud -s 512 -e")]
    Send(Box<ClientOptions>),
    /// Atomics on 8 bytes; latency is there and back
    #[command(after_help = "Example:\n  sfab perf atomic lat 10.0.0.1 --op cas")]
    Atomic(Box<AtomicOptions>),
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    match &options.command {
        Command::Server(options) => server::run(options),
        Command::Write(options) => measure(Verb::Write, options),
        Command::Read(options) => measure(Verb::Read, options),
        Command::Send(options) => measure(Verb::Send, options),
        Command::Atomic(options) => {
            let verb = match options.op {
                AtomicOp::Fadd => Verb::FetchAdd,
                AtomicOp::Cas => Verb::CompareSwap,
            };
            measure(verb, &options.client)
        }
    }
}

fn measure(verb: Verb, options: &ClientOptions) -> Result<(), Failure> {
    let asked = asked::asked(verb, options)?;
    if let Some(file) = &options.plot {
        plot::check(file)?;
    }
    let shows = std::io::stderr().is_terminal();
    if let Some(choice) = options.peer {
        return peer::run(choice, &asked, options, shows);
    }
    let to = resolve(options.address.as_deref().unwrap_or_default(), options.port, "the server's address")?;
    let measured = client::measure(&asked, &options.device, &to, shows)?;
    if options.json {
        say!("{:#}", report::json(&measured));
    } else {
        report::tables(&measured, options.report_gbits);
    }
    if let Some(file) = &options.plot {
        plot::draw(&measured, file)?;
        if !options.json {
            say!("Picture: {}", file.display());
        }
    }
    Ok(())
}

/// Addresses of a name or an address that may have a port.
fn resolve(text: &str, port: u16, what: &str) -> Result<Vec<SocketAddr>, Failure> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = if text.contains(':') { text.to_socket_addrs() } else { (text, port).to_socket_addrs() };
    found.map(Iterator::collect).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => {
            Failure::usage(format!("{what} `{text}`: {error}; use 10.0.0.1, 10.0.0.1:7000 or [::1]:7000"))
        }
        _ => Failure::failed(format!("{what} `{text}`: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_get_one() {
        let of = |text| resolve(text, 5, "it").map(|all| all.first().map(ToString::to_string).unwrap_or_default());
        assert_eq!(of("10.0.0.1").unwrap(), "10.0.0.1:5");
        assert_eq!(of("10.0.0.1:7").unwrap(), "10.0.0.1:7");
        assert_eq!(of("::1").unwrap(), "[::1]:5");
        assert_eq!(of("[::1]").unwrap(), "[::1]:5");
        assert_eq!(of("[::1]:7").unwrap(), "[::1]:7");
        assert!(of("10.0.0.1:seven").unwrap_err().is_usage());
        assert!(of("10.0.0.1:70000").unwrap_err().is_usage());
    }
}
