//! `sfab decode`: prints a capture, one readable line a packet. All meaning comes from the crate `wire`.

use crate::failure::Failure;
use clap::Args;
use scalefabric_wire::describe;
use scalefabric_wire::frame::{Capture, Frame, NotRoce};
use scalefabric_wire::pcap::Record;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;

/// Prints the RoCE packets of a pcap or pcapng file, one line each.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab decode trace.pcap
  sfab decode trace.pcapng --json | jq 'select(.icrc_ok == false)'")]
pub struct Options {
    /// Capture file: pcap or pcapng, of tcpdump, Wireshark or `sfab demo --capture`
    file: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Leave out what is not RoCE
    #[arg(long)]
    only_roce: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let name = options.file.display();
    let bytes =
        std::fs::read(&options.file).map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
    let capture = Capture::new(&bytes).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    for record in capture {
        // What was whole has been printed by then.
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let _ = out.flush();
                return Err(Failure::usage(format!("{name}: {error}")));
            }
        };
        let parsed = Frame::parse(record.link, record.data);
        if options.only_roce && matches!(&parsed, Err(reason) if !matches!(reason, NotRoce::Invalid(_))) {
            continue;
        }
        let line = if options.json { as_json(&record, &parsed).to_string() } else { as_text(&record, &parsed) };
        if let Err(error) = writeln!(out, "{line}") {
            return ended(&error);
        }
    }
    out.flush().or_else(|error| ended(&error))
}

/// A reader that has seen enough (`| head`) is no failure.
fn ended(error: &std::io::Error) -> Result<(), Failure> {
    if error.kind() == ErrorKind::BrokenPipe {
        return Ok(());
    }
    Err(Failure::failed(format!("the output cannot be written: {error}")))
}

fn as_text(record: &Record<'_>, parsed: &Result<Frame<'_>, NotRoce>) -> String {
    let mut line = match parsed {
        Ok(frame) => describe::line(record.time_ns, frame),
        Err(reason) => describe::not_roce(record.time_ns, record.original_len, reason),
    };
    if let Some(comment) = record.comment {
        line += &format!(" ({})", comment.replace('\n', " "));
    }
    line
}

fn as_json(record: &Record<'_>, parsed: &Result<Frame<'_>, NotRoce>) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            object.insert(name.to_owned(), value);
        }
    };
    put("time_ns", json!(record.time_ns));
    put("length", json!(record.original_len));
    put("comment", json!(record.comment));
    let frame = match parsed {
        Ok(frame) => frame,
        Err(reason) => {
            put("not_roce", json!(reason.to_string()));
            return object.into();
        }
    };
    let headers = &frame.packet.headers;
    let bth = &headers.bth;
    put("src", json!(frame.ip.src().to_string()));
    put("dst", json!(frame.ip.dst().to_string()));
    put("src_port", json!(frame.udp.src_port));
    put("traffic_class", json!(frame.ip.traffic_class()));
    put("hop_limit", json!(frame.ip.hop_limit()));
    put("opcode", json!(bth.opcode.info().name));
    put("solicited", json!(bth.solicited));
    put("mig_req", json!(bth.mig_req));
    put("pad_count", json!(bth.pad_count));
    put("pkey", json!(bth.pkey.0));
    put("fecn", json!(bth.fecn));
    put("becn", json!(bth.becn));
    put("dest_qp", json!(bth.dest_qp.get()));
    put("ack_req", json!(bth.ack_req));
    put("psn", json!(bth.psn.get()));
    put("srqn", json!(headers.xrceth.map(|srqn| srqn.get())));
    put("deth", json!(headers.deth.map(|deth| json!({ "qkey": deth.qkey.0, "src_qp": deth.src_qp.get() }))));
    put("feth", json!(headers.feth.map(|feth| json!({ "plt": feth.plt, "sel": feth.sel }))));
    let reth = headers.reth.map(|reth| json!({ "va": reth.va, "rkey": reth.rkey.0, "dma_len": reth.dma_len }));
    put("reth", json!(reth));
    let atomic = headers.atomic_eth.map(|atomic| {
        let (swap_or_add, compare) = (atomic.swap_or_add, atomic.compare);
        json!({ "va": atomic.va, "rkey": atomic.rkey.0, "swap_or_add": swap_or_add, "compare": compare })
    });
    put("atomic_eth", json!(atomic));
    let aeth = headers.aeth.map(|aeth| json!({ "syndrome": describe::syndrome(aeth.syndrome), "msn": aeth.msn }));
    put("aeth", json!(aeth));
    put("atomic_ack_eth", json!(headers.atomic_ack_eth));
    put("imm", json!(headers.imm));
    put("invalidate_rkey", json!(headers.ieth.map(|rkey| rkey.0)));
    put("payload_length", json!(frame.packet.payload.len()));
    put("icrc", json!(format!("{:#010x}", frame.packet.icrc)));
    put("icrc_ok", json!(frame.icrc_ok()));
    put("text", json!(describe::packet(&frame.packet)));
    object.into()
}
