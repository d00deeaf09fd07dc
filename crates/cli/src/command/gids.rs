//! `sfab gids`: the GID table of each port, as it is now.

use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use crate::table::{Align, Table};
use crate::terminal::say;
use clap::Args;
use serde_json::json;

/// GIDs of all devices, with the network interface that each comes from.
#[derive(Args)]
#[command(after_help = "Example:\n  sfab gids --device sf0")]
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
    let mut table = Table::new(&[
        ("device", Align::Left),
        ("port", Align::Right),
        ("index", Align::Right),
        ("GID", Align::Left),
        ("address", Align::Left),
        ("interface", Align::Left),
    ]);
    let mut entries = Vec::new();
    for context in software::open_all(&SoftwareOptions::default(), options.device.as_deref())? {
        let device = context.device().name;
        for entry in context.query_gid_table().during(|| format!("read the GID table of device {device}"))? {
            let (gid, address) = (groups(entry.gid.0), entry.gid.to_ip().to_string());
            entries.push(json!({
                "device": device, "port": entry.port_num, "index": entry.gid_index, "gid": gid,
                "address": address, "type": "RoCE v2", "interface": entry.ndev_name,
            }));
            table.row(vec![
                device.clone(),
                entry.port_num.to_string(),
                entry.gid_index.to_string(),
                gid,
                address,
                entry.ndev_name,
            ]);
        }
    }
    if options.json {
        say!("{:#}", serde_json::Value::from(entries));
    } else {
        crate::terminal::print(format_args!("{table}"));
    }
    Ok(())
}

/// The 16 bytes in eight groups, none left out, as tools of RDMA print a GID.
pub fn groups(gid: [u8; 16]) -> String {
    let groups: Vec<String> = gid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}
