//! `sfab res`: what each process has on a device, as `rdma resource show` lists it for a device of the kernel.

use crate::failure::Failure;
use crate::software::{self, DeviceSurvey, Member, SoftwareOptions};
use crate::table::{Align, Table};
use crate::terminal::say;
use clap::Args;
use scalefabric_verbs::{MigState, QpState, QpType};
use serde_json::{Value, json};

/// QPs, CQs, memory regions, PDs, SRQs, connections and contexts of every process of a device.
#[derive(Args)]
#[command(after_help = "Example, while something runs:
  sfab res --device sf0
  sfab res --json | jq '.[].qps[] | select(.state == \"RTS\")'

Looking does not join the device. It shows the processes of the calling user in this network namespace.")]
pub struct Options {
    /// Only this device
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let surveys = software::surveys(&SoftwareOptions::default(), options.device.as_deref())?;
    if options.json {
        let all: Vec<Value> = surveys.iter().map(json).collect();
        say!("{:#}", Value::from(all));
        return Ok(());
    }
    let mut table = Table::new(&[
        ("device", Align::Left),
        ("what", Align::Left),
        ("number", Align::Right),
        ("pid", Align::Right),
        ("process", Align::Left),
        ("state", Align::Left),
    ]);
    let mut empty = true;
    for survey in &surveys {
        let device = &survey.plan.info.name;
        let mut row = |member: &Member, what: &str, number: u32, state: String| {
            empty = false;
            table.row(vec![device.clone(), what.into(), number.to_string(), pid(member), comm(member), state]);
        };
        for (member, one) in survey.all(|r| &r.ctxs) {
            row(member, "context", one.ctxn, String::new());
        }
        for (member, one) in survey.all(|r| &r.pds) {
            row(member, "PD", one.pdn, format!("{} users", one.users));
        }
        for (member, one) in survey.all(|r| &r.mrs) {
            row(member, "MR", one.mrn, format!("{} bytes, PD {}", one.mrlen, one.pdn));
        }
        for (member, one) in survey.all(|r| &r.cqs) {
            let events = if one.has_channel { ", events" } else { "" };
            row(member, "CQ", one.cqn, format!("{} CQEs, {} users{events}", one.cqe, one.users));
        }
        for (member, one) in survey.all(|r| &r.srqs) {
            let kind = if one.srq_type == 1 { "XRC" } else { "basic" };
            row(member, "SRQ", one.srqn, format!("{kind}, {} WRs, {} QPs", one.max_wr, one.qpns.len()));
        }
        for (member, one) in survey.all(|r| &r.qps) {
            let to = match (one.rqpn, one.remote) {
                (Some(qpn), Some(ip)) => format!(" to {qpn} at {ip}"),
                _ => String::new(),
            };
            let psns = format!("sq_psn {} rq_psn {}", one.sq_psn, one.rq_psn);
            let direct = match (one.direct_requests, one.is_direct) {
                (0, false) => String::new(),
                (n, _) => format!(", {n} requests without packets"),
            };
            let state = format!("{} {}{to}, {psns}{direct}", qp_type(one.qp_type), qp_state(one.state));
            row(member, "QP", one.lqpn, state);
        }
        for (member, one) in survey.all(|r| &r.cm_ids) {
            let address = |a: Option<std::net::SocketAddr>| a.map_or_else(|| "-".to_owned(), |a| a.to_string());
            let state = format!("{} {} to {}", cm_state(one.state), address(one.src), address(one.dst));
            row(member, "CM ID", one.cm_idn, state);
        }
        for member in survey.silent() {
            empty = false;
            let state = "did not answer within 100 ms: is it stopped?".to_owned();
            table.row(vec![device.clone(), "process".into(), String::new(), pid(member), comm(member), state]);
        }
    }
    if empty {
        say!("no process has a device open");
    } else {
        crate::terminal::print(format_args!("{table}"));
    }
    Ok(())
}

/// The process as this one would call it; in parentheses the number in a PID namespace of its own.
fn pid(member: &Member) -> String {
    member.pid.map_or_else(|| format!("({})", member.own_pid), |pid| pid.to_string())
}

fn comm(member: &Member) -> String {
    if member.comm.is_empty() { "?".to_owned() } else { member.comm.clone() }
}

fn qp_type(raw: u32) -> &'static str {
    QpType::from_raw(raw).map_or("?", QpType::as_str)
}

fn qp_state(raw: u32) -> &'static str {
    QpState::from_raw(raw).map_or("?", QpState::as_str)
}

fn cm_state(raw: u32) -> &'static str {
    const NAMES: [&str; 9] = [
        "IDLE",
        "ADDR_QUERY",
        "ADDR_RESOLVED",
        "ROUTE_QUERY",
        "ROUTE_RESOLVED",
        "CONNECT",
        "DISCONNECT",
        "ADDR_BOUND",
        "LISTEN",
    ];
    NAMES.get(raw as usize).unwrap_or(&"?")
}

fn json(survey: &DeviceSurvey) -> Value {
    let owned = |member: &Member, mut value: Value| {
        value["pid"] = json!(member.pid);
        value["comm"] = json!(member.comm);
        value
    };
    let members: Vec<Value> = survey
        .members
        .iter()
        .map(|m| {
            json!({
                "slot": m.slot, "pid": m.pid, "own_pid": m.own_pid, "comm": m.comm, "is_host": m.is_host,
                "answered": m.resources.is_some(),
            })
        })
        .collect();
    let qps = survey.all(|r| &r.qps).map(|(member, qp)| {
        let mut value = owned(member, json!(qp));
        value["qp_type"] = json!(qp_type(qp.qp_type));
        value["state"] = json!(qp_state(qp.state));
        value["path_mig_state"] = json!(MigState::from_raw(qp.path_mig_state).map(MigState::as_str));
        value
    });
    let cm_ids = survey.all(|r| &r.cm_ids).map(|(member, id)| {
        let mut value = owned(member, json!(id));
        value["qp_type"] = json!(qp_type(id.qp_type));
        value["state"] = json!(cm_state(id.state));
        value
    });
    json!({
        "device": survey.plan.info.name,
        "members": members,
        "ctxs": survey.all(|r| &r.ctxs).map(|(m, one)| owned(m, json!(one))).collect::<Vec<_>>(),
        "pds": survey.all(|r| &r.pds).map(|(m, one)| owned(m, json!(one))).collect::<Vec<_>>(),
        "mrs": survey.all(|r| &r.mrs).map(|(m, one)| owned(m, json!(one))).collect::<Vec<_>>(),
        "cqs": survey.all(|r| &r.cqs).map(|(m, one)| owned(m, json!(one))).collect::<Vec<_>>(),
        "srqs": survey.all(|r| &r.srqs).map(|(m, one)| owned(m, json!(one))).collect::<Vec<_>>(),
        "qps": qps.collect::<Vec<_>>(),
        "cm_ids": cm_ids.collect::<Vec<_>>(),
    })
}
