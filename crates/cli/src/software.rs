//! Opening the software NIC with what the command line says. This file and `backend.rs` name backends, and no other does.

use crate::failure::{During, Failure};
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions, RequestPath};
pub use scalefabric_nic::personality::{Field, PERSONALITIES, Personality};
use scalefabric_nic::port::faults::FaultSpec;
use scalefabric_nic::provider::{SoftwareContext, SoftwareProvider};
use scalefabric_nic::resources::SameHostReport;
pub use scalefabric_nic::survey::{DeviceSurvey, Member};
use scalefabric_nic::{NicConfig, PortConfig};
use scalefabric_verbs::{Context, PKey, Provider};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

/// What commands can ask of the software NIC.
#[derive(Clone, Debug, Default)]
pub struct SoftwareOptions {
    /// Faults, each as `kind=rate`.
    pub faults: Vec<String>,
    /// Seed of the faults.
    pub seed: u64,
    /// Where to write what passes.
    pub capture: Option<PathBuf>,
    /// What other NIC to look like.
    pub personality: Option<String>,
    /// Which way requests to this host go: `auto` or `wire`.
    pub path: Option<String>,
}

/// The software provider: what the environment says (`SCALEFABRIC_CONFIG` and others), and above it the command line.
pub fn provider(options: &SoftwareOptions) -> Result<Arc<dyn Provider>, Failure> {
    Ok(Arc::new(software(options)?))
}

/// Names of the devices that [`rails`] makes.
pub const RAIL_DEVICES: [&str; 2] = ["near", "far"];

/// Two devices of two ports each, on addresses of the loopback that other processes do not use, and no other device.
pub fn rails(options: &SoftwareOptions) -> Result<Arc<dyn Provider>, Failure> {
    let id = std::process::id();
    let address = |n: u8| {
        let host = [127, 100 + (id >> 13) as u8 % 100, (id >> 5) as u8, (id << 3) as u8 | n];
        IpAddr::from(Ipv4Addr::from(host))
    };
    let port = |n| PortOptions { interface: "lo".into(), addresses: vec![address(n)] };
    let device = |name: &str, first| DeviceOptions {
        name: name.into(),
        ports: vec![port(first), port(first + 1)],
        ..DeviceOptions::default()
    };
    let devices = vec![device(RAIL_DEVICES[0], 1), device(RAIL_DEVICES[1], 3)];
    // What a rail carries is to be seen on its port; both ends are in this process, and would not need it.
    let path = RequestPath::Wire;
    let software = Options { devices, automatic: false, share: false, only: None, path, ..configured(options)? };
    Ok(Arc::new(SoftwareProvider::new(software)))
}

fn software(options: &SoftwareOptions) -> Result<SoftwareProvider, Failure> {
    Ok(SoftwareProvider::new(configured(options)?))
}

fn configured(options: &SoftwareOptions) -> Result<Options, Failure> {
    let mut software = Options::from_environment().map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(mut spec) = fault_spec(&options.faults)? {
        if !options.faults.iter().any(|text| text.contains("seed=")) {
            spec.seed = options.seed;
        }
        software.faults = Some(spec);
    }
    if let Some(file) = &options.capture {
        software.capture = Some(file.clone());
    }
    if let Some(name) = &options.path {
        let path = RequestPath::named(name);
        software.path = path.ok_or_else(|| Failure::usage(format!("--path {name}: it may be auto or wire")))?;
    }
    if let Some(name) = &options.personality {
        software.personality = match name.as_str() {
            "none" => None,
            name => Some(Personality::find(name).map_err(|error| Failure::usage(format!("--personality: {error}")))?),
        };
    }
    Ok(software)
}

/// The name of the personality that is meant.
pub fn personality(name: &str) -> Result<&'static str, Failure> {
    Personality::find(name).map(|found| found.name).map_err(|error| Failure::usage(error.to_string()))
}

/// What the software NIC has of a field when it looks like nobody else.
pub fn own(field: Field) -> u64 {
    field.of(&NicConfig::new("", vec![PortConfig::new("", Vec::new())]))
}

/// Says what is wrong with `--fault`, before anything starts.
pub fn check_faults(faults: &[String]) -> Result<(), Failure> {
    fault_spec(faults).map(drop)
}

/// All `--fault` together; `None` without any.
fn fault_spec(faults: &[String]) -> Result<Option<FaultSpec>, Failure> {
    if faults.is_empty() {
        return Ok(None);
    }
    let text = faults.join(",");
    let spec = text.parse::<FaultSpec>().map_err(|error| Failure::usage(format!("--fault {text}: {error}")))?;
    Ok(Some(spec))
}

/// Opens all devices, or the named one. One of several that cannot be opened is told on standard error and left out.
pub fn open_all(options: &SoftwareOptions, only: Option<&str>) -> Result<Vec<Arc<dyn Context>>, Failure> {
    let provider = provider(options)?;
    let names: Vec<String> = match only {
        Some(name) => vec![name.to_owned()],
        None => provider.devices().during(|| "list the devices")?.into_iter().map(|device| device.name).collect(),
    };
    if names.is_empty() {
        return Err(Failure::failed("there is no device: no network interface is up that has an address"));
    }
    let mut opened = Vec::new();
    let mut last = None;
    for name in &names {
        match provider.open(name).during(|| format!("open device {name}")) {
            Ok(context) => opened.push(context),
            Err(failure) => {
                if let Some(failure) = last.replace(failure) {
                    eprintln!("sfab: {failure}");
                }
            }
        }
    }
    match last {
        Some(failure) if opened.is_empty() => Err(failure),
        Some(failure) => {
            eprintln!("sfab: {failure}");
            Ok(opened)
        }
        None => Ok(opened),
    }
}

/// Looks at all devices, or the named one, without opening them. What cannot be seen of several is told on standard error.
pub fn surveys(options: &SoftwareOptions, only: Option<&str>) -> Result<Vec<DeviceSurvey>, Failure> {
    let provider = software(options)?;
    if let Some(name) = only {
        return Ok(vec![provider.survey(name).during(|| format!("look at device {name}"))?]);
    }
    let mut all = Vec::new();
    for device in provider.devices().during(|| "list the devices")? {
        match provider.survey(&device.name).during(|| format!("look at device {}", device.name)) {
            Ok(survey) => all.push(survey),
            Err(failure) => eprintln!("sfab: {failure}"),
        }
    }
    Ok(all)
}

/// Looks at the ports of all devices, without asking the processes that have them open. What cannot be seen is left out.
pub fn port_surveys(options: &SoftwareOptions) -> Result<Vec<DeviceSurvey>, Failure> {
    let provider = software(options)?;
    let devices = provider.devices().during(|| "list the devices")?;
    Ok(devices.iter().filter_map(|device| provider.survey_ports(&device.name).ok()).collect())
}

/// Sets the P_Key tables of a device for all processes that have it open, without opening it.
pub fn set_pkeys(options: &SoftwareOptions, device: &str, pkeys: &[PKey]) -> Result<(), Failure> {
    software(options)?.set_pkeys(device, pkeys).map(drop).during(|| format!("set the P_Keys of device {device}"))
}

/// Which way one-sided requests to QPs of this host go, and why: those of a process that is told what this one is, and those of each process that has the device open.
/// `None` for a device that is not ours.
pub fn same_host(context: &dyn Context) -> Option<Value> {
    let context = context.as_any().downcast_ref::<SoftwareContext>()?;
    let name = context.device().name;
    let survey = software(&SoftwareOptions::default()).ok().and_then(|provider| provider.survey(&name).ok());
    let members = survey.map(|survey| survey.members).unwrap_or_default();
    let others = members.iter().filter(|member| member.slot != context.slot());
    let processes = others.map(|member| {
        let told = member.resources.as_ref().map(|resources| way(&resources.same_host));
        let mut process = json!({ "slot": member.slot, "pid": member.pid, "comm": member.comm });
        // One that does not answer is stopped.
        process["same_host"] = told.unwrap_or_default();
        process
    });
    let mut all = way(&context.same_host());
    all["processes"] = processes.collect();
    Some(all)
}

/// A process's way, and what it reaches.
fn way(report: &SameHostReport) -> Value {
    let neighbours = report.neighbours.iter().map(|other| {
        json!({ "slot": other.slot, "pid": other.pid, "no_mapping": other.no_mapping, "no_process_vm": other.no_process_vm })
    });
    let path = if report.packets_because.is_some() { "wire" } else { "direct" };
    json!({ "path": path, "because": report.packets_because, "neighbours": neighbours.collect::<Value>() })
}

/// By which sockets a port, from 1, sends and receives; `None`: a device that is not ours.
pub fn sockets(context: &dyn Context, port_num: u8) -> Option<&'static str> {
    context.as_any().downcast_ref::<SoftwareContext>()?.sockets(port_num).ok()
}

/// The named device, or the one on a network interface.
pub fn choose(provider: &dyn Provider, name: Option<&str>, interface: &str) -> Result<String, Failure> {
    if let Some(name) = name {
        return Ok(name.to_owned());
    }
    let devices = provider.devices().during(|| "list the devices")?;
    let of_interface = devices.iter().find(|device| device.interfaces.iter().any(|name| name == interface));
    of_interface.map(|device| device.name.clone()).ok_or_else(|| {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Failure::failed(format!(
            "no device stands on the interface {interface}: is it up? devices: {names}; choose one with --device"
        ))
    })
}
