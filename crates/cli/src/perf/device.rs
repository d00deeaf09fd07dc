//! Which device a measurement uses: the named one, else the one that has the address by which the two ends reach each other. So neither
//! end has to be told a device or a GID index when there is only one sensible choice.

use crate::backend::Backend;
use crate::demo::endpoint::choose_gid;
use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use clap::Args;
use scalefabric_ibv::IbvProvider;
use scalefabric_verbs::{Context, Gid, Mtu, Provider};
use std::net::IpAddr;
use std::sync::Arc;

/// What a command line can say of the device.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// Who makes the objects
    #[arg(long, value_enum, default_value = "software")]
    pub backend: Backend,
    /// Device (default: the one that has the address of the connection)
    #[arg(short = 'd', long, value_name = "NAME")]
    pub device: Option<String>,
    /// Port of the device, from 1 (default: that of the address, else 1)
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    pub port_num: Option<u8>,
    /// Index in the GID table (default: that of the address, else the first IPv4 address)
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u8>,
    /// Which way requests to this host go: `auto`, the requester executes one-sided ones itself where it can; `wire`, all as packets
    #[arg(long, value_name = "PATH", value_parser = ["auto", "wire"])]
    pub path: Option<String>,
    /// Bind the measuring thread to this CPU
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Bind it, and the memory that it uses, to this memory node
    #[arg(long, value_name = "N")]
    pub numa: Option<usize>,
}

impl DeviceOptions {
    fn software(&self) -> SoftwareOptions {
        SoftwareOptions { path: self.path.clone(), ..SoftwareOptions::default() }
    }
}

/// An open device, and what of it is used.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its backend.
    pub provider: Arc<dyn Provider>,
    /// The device.
    pub context: Arc<dyn Context>,
    /// Its name.
    pub name: String,
    /// Port, from 1.
    pub port_num: u8,
    /// Index of the GID.
    pub gid_index: u8,
    /// The GID.
    pub gid: Gid,
    /// Path MTU of the port.
    pub path_mtu: Mtu,
}

/// A place in the GID tables.
struct Place {
    device: String,
    port_num: u8,
    gid_index: u8,
}

/// A backend whose devices are opened as they are needed.
pub struct Devices {
    provider: Arc<dyn Provider>,
    options: DeviceOptions,
}

impl Device {
    /// Requests that requesters of this host executed themselves, without packets; `None` where the device does not count them.
    pub fn direct_requests(&self) -> Option<u64> {
        let counters = self.context.hw_counters(self.port_num).ok()?;
        counters.iter().find(|(name, _)| name == "direct_requests").map(|(_, value)| *value)
    }
}

impl Devices {
    /// The backend that is asked for.
    pub fn new(options: &DeviceOptions) -> Result<Self, Failure> {
        if options.backend == Backend::Ibv && options.path.is_some() {
            return Err(Failure::usage("--path is the software NIC's: leave out --backend ibv"));
        }
        let provider: Arc<dyn Provider> = match options.backend {
            Backend::Software => software::provider(&options.software())?,
            Backend::Ibv => Arc::new(IbvProvider::new().during(|| "load libibverbs")?),
        };
        let devices = Self { provider, options: options.clone() };
        if let Some(name) = &options.device {
            let all = devices.provider.devices().during(|| "list the devices")?;
            if !all.iter().any(|device| device.name == *name) {
                let names: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
                return Err(Failure::usage(format!(
                    "-d {name}: there is no such device; devices here: {}",
                    names.join(", ")
                )));
            }
        }
        Ok(devices)
    }

    /// Opens the device for a connection whose own end has this address.
    pub fn open(&self, local: IpAddr) -> Result<Device, Failure> {
        let found = self.place_of(local.to_canonical())?;
        let name = match (&self.options.device, &found) {
            (Some(name), _) => name.clone(),
            (None, Some(place)) => place.device.clone(),
            (None, None) => self.fallback(local)?,
        };
        let place = found.filter(|place| place.device == name);
        let context = self.provider.open(&name).during(|| format!("open device {name}"))?;
        let port_num = self.options.port_num.or(place.as_ref().map(|place| place.port_num)).unwrap_or(1);
        let ports = context.query_device().during(|| format!("query device {name}"))?.phys_port_cnt;
        if port_num > ports {
            let count = if ports == 1 { "one port".to_owned() } else { format!("ports 1 to {ports}") };
            return Err(Failure::usage(format!("-i {port_num}: device {name} has {count}")));
        }
        let of_port = place.filter(|place| place.port_num == port_num);
        let index = self.options.gid_index.or(of_port.map(|place| place.gid_index));
        let (gid_index, gid) = choose_gid(context.as_ref(), port_num, index)?;
        let path_mtu = crate::demo::endpoint::active_port(context.as_ref(), port_num)?.active_mtu;
        Ok(Device { provider: Arc::clone(&self.provider), context, name, port_num, gid_index, gid, path_mtu })
    }

    /// Where the address stands in the GID tables.
    fn place_of(&self, address: IpAddr) -> Result<Option<Place>, Failure> {
        let matches = |gid: &Gid| gid.to_ip().to_canonical() == address;
        if self.options.backend == Backend::Software {
            for survey in software::port_surveys(&SoftwareOptions::default())? {
                let device = &survey.plan.info.name;
                for port in survey.ports().during(|| format!("look at device {device}"))? {
                    let index = port.gids.iter().find(|(index, gid)| *index < 256 && matches(gid));
                    if let Some((index, _)) = index {
                        let (device, gid_index) = (device.clone(), *index as u8);
                        return Ok(Some(Place { device, port_num: port.port_num, gid_index }));
                    }
                }
            }
            return Ok(None);
        }
        for device in self.provider.devices().during(|| "list the devices")? {
            let context = self.provider.open(&device.name).during(|| format!("open device {}", device.name))?;
            let table = context.query_gid_table().during(|| format!("read the GID table of {}", device.name))?;
            let usable = |type_of| type_of == scalefabric_verbs::GidType::RoceV2;
            let entry =
                table.iter().find(|entry| usable(entry.gid_type) && entry.gid_index < 256 && matches(&entry.gid));
            if let Some(entry) = entry {
                let (port_num, gid_index) = (entry.port_num, entry.gid_index as u8);
                return Ok(Some(Place { device: device.name, port_num, gid_index }));
            }
        }
        Ok(None)
    }

    /// No device has the address.
    fn fallback(&self, local: IpAddr) -> Result<String, Failure> {
        if self.options.backend == Backend::Software && local.to_canonical().is_loopback() {
            return software::choose(self.provider.as_ref(), None, "lo");
        }
        let all = self.provider.devices().during(|| "list the devices")?;
        let names: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
        match names[..] {
            [] => Err(Failure::failed("there is no RDMA device here")),
            [only] => Ok(only.to_owned()),
            _ => Err(Failure::failed(format!(
                "no device has the address {local} by which the two ends reach each other: name one with -d; devices here: {}",
                names.join(", ")
            ))),
        }
    }
}
