//! What the software provider is told: by its caller, by the TOML file that `SCALEFABRIC_CONFIG` names, and by a few
//! environment variables, so that unmodified programs can be configured, too. Later ones win.
//!
//! ```toml
//! share = true                    # several processes use a device together
//! receive_buffer = 67108864       # bytes for each receive socket
//! source_ports = 8                # send sockets for each address
//! solve_ip_ids = true
//! faults = "drop=1%,seed=7"
//! capture = "/tmp/rdma.pcapng"    # {pid} becomes the process's number
//! personality = "connectx-5"      # look like another NIC
//! path = "wire"                   # packets also between processes of this host; default "auto"
//! polling = "spin=20us"           # see polling.rs
//! sockets = "udp"                 # "xdp": ports send and receive by AF_XDP, too
//!
//! [congestion]                    # see congestion.rs
//! algorithm = "dcqcn"
//!
//! [[device]]                      # beside those that appear by themselves
//! name = "pair"
//! [[device.port]]
//! interface = "eth0"
//! [[device.port]]
//! interface = "eth1"
//! addresses = ["10.0.1.7"]        # only these; default: all of the interface
//! ```

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use scalefabric_verbs::{Errno, VerbsError};
use serde::Deserialize;

use crate::congestion::{Congestion, CongestionTable};
use crate::personality::Personality;
use crate::polling::Polling;
use crate::port::faults::FaultSpec;

/// A port of a configured device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortOptions {
    /// The network interface it stands on.
    pub interface: String,
    /// The addresses it uses; empty: all that the interface has, as they come and go. On the loopback any address of its
    /// network may be named (127.0.0.2 …).
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// A configured device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceOptions {
    /// Its name. One that appears by itself is replaced by the configured one.
    pub name: String,
    /// Its ports, one or two.
    #[serde(rename = "port")]
    pub ports: Vec<PortOptions>,
    /// Congestion control of this device; what it does not say is as for all devices.
    pub congestion: Option<CongestionTable>,
    /// How whoever waits on this device passes the time; what it does not say is as for all devices.
    pub polling: Option<String>,
    /// Sockets of its ports; if it does not say, those of all devices.
    pub sockets: Option<SocketKind>,
}

/// Which sockets a port sends and receives by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketKind {
    /// UDP sockets.
    #[default]
    Udp,
    /// AF_XDP sockets beside them ([`crate::port::xdp`]). A device on which that cannot be is not opened.
    Xdp,
    /// AF_XDP sockets where they can be, else UDP sockets alone; [`crate::provider::SoftwareContext::problems`] says why.
    XdpOrUdp,
}

impl SocketKind {
    /// `udp`, `xdp` or `xdp-or-udp`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "udp" => Some(Self::Udp),
            "xdp" => Some(Self::Xdp),
            "xdp-or-udp" => Some(Self::XdpOrUdp),
            _ => None,
        }
    }
}

/// Which way requests to QPs of the same host go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RequestPath {
    /// One-sided ones are executed by the requester itself on the memory of its peer, where that is possible; the rest are packets.
    #[default]
    Auto,
    /// All are packets, as to another host.
    Wire,
}

impl RequestPath {
    /// `auto` or `wire`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "wire" => Some(Self::Wire),
            _ => None,
        }
    }
}

/// What the software provider is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Devices beside those that appear by themselves.
    pub devices: Vec<DeviceOptions>,
    /// The only device there is (`SCALEFABRIC_DEVICE`). Default none: all are there.
    pub only: Option<String>,
    /// Whether devices appear by themselves: one for each usable interface. Default true.
    pub automatic: bool,
    /// Whether processes of one user share a device and its addresses. Default true. False: the first process has the
    /// addresses for itself, others get EADDRINUSE.
    pub share: bool,
    /// Bytes of buffer for each receive socket. Default 64 MiB, which is taken only while bursts wait in it: what a sender of UC or UD,
    /// which nothing holds back, sends while the receiver has no processor for 20 ms. Unprivileged processes get at most
    /// `net.core.rmem_max`. Too small: bursts are lost; for UC and UD they stay lost, for RC each loss costs a go-back-N.
    pub receive_buffer: usize,
    /// Send sockets, and so UDP source ports, for each address. Default 8; 1: all flows take one path.
    pub source_ports: usize,
    /// Whether trains leave with UDP GSO. Default true; false is slower by a multiple.
    pub gso: bool,
    /// Whether unknown IPv4 identifications are solved for. Default true; false: packets of Linux's rxe and of hardware are
    /// dropped as `drop_bad_icrc` over IPv4.
    pub solve_ip_ids: bool,
    /// Faults on every port. Default none.
    pub faults: Option<FaultSpec>,
    /// File that every packet is written to. Default none. `{pid}` in it becomes the process's number.
    pub capture: Option<PathBuf>,
    /// What other NIC the devices look like. Default none: the software NIC itself.
    pub personality: Option<&'static Personality>,
    /// Congestion control. Default none.
    pub congestion: Congestion,
    /// Which way requests to QPs of the same host go. Default `Auto`. Faults, a personality and the lack of a worker are reasons for packets, too.
    pub path: RequestPath,
    /// How whoever waits passes the time. Default: it spins for 20 µs, then sleeps.
    pub polling: Polling,
    /// Which sockets ports send and receive by. Default `Udp`. The others need root or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF.
    pub sockets: SocketKind,
    /// Whether a thread makes progress when nobody calls the library. Default true. False: the process is deaf while it
    /// does not poll.
    pub worker: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            only: None,
            automatic: true,
            share: true,
            receive_buffer: 64 << 20,
            source_ports: 8,
            gso: true,
            solve_ip_ids: true,
            faults: None,
            capture: None,
            personality: None,
            congestion: Congestion::default(),
            path: RequestPath::default(),
            polling: Polling::default(),
            sockets: SocketKind::default(),
            worker: true,
        }
    }
}

/// The file's fields; what is not there stays as it was.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "device")]
    devices: Vec<DeviceOptions>,
    automatic: Option<bool>,
    share: Option<bool>,
    receive_buffer: Option<usize>,
    source_ports: Option<usize>,
    gso: Option<bool>,
    solve_ip_ids: Option<bool>,
    faults: Option<String>,
    capture: Option<PathBuf>,
    personality: Option<String>,
    congestion: Option<CongestionTable>,
    path: Option<String>,
    polling: Option<String>,
    sockets: Option<SocketKind>,
    worker: Option<bool>,
}

fn wrong(message: String) -> VerbsError {
    VerbsError::invalid(message)
}

impl Options {
    /// Defaults, then the file named by `SCALEFABRIC_CONFIG`, then `SCALEFABRIC_FAULTS`, `SCALEFABRIC_CAPTURE`, `SCALEFABRIC_PERSONALITY`,
    /// `SCALEFABRIC_PATH`, `SCALEFABRIC_POLLING`, `SCALEFABRIC_SOCKETS`, `SCALEFABRIC_DEVICE`, `SCALEFABRIC_CONGESTION` (name of an algorithm) and `SCALEFABRIC_SHARE` (0 or 1).
    pub fn from_environment() -> Result<Self, VerbsError> {
        let mut options = Self::default();
        if let Some(path) = std::env::var_os("SCALEFABRIC_CONFIG") {
            options.read_file(Path::new(&path))?;
        }
        if let Ok(faults) = std::env::var("SCALEFABRIC_FAULTS") {
            options.set_faults(&faults, "SCALEFABRIC_FAULTS")?;
        }
        if let Some(path) = std::env::var_os("SCALEFABRIC_CAPTURE") {
            options.capture = Some(path.into());
        }
        if let Ok(name) = std::env::var("SCALEFABRIC_DEVICE") {
            options.only = Some(name).filter(|name| !name.is_empty());
        }
        if let Ok(share) = std::env::var("SCALEFABRIC_SHARE") {
            options.share = match share.as_str() {
                "1" => true,
                "0" => false,
                other => return Err(wrong(format!("SCALEFABRIC_SHARE is {other:?}: it may be 0 or 1"))),
            };
        }
        if let Ok(name) = std::env::var("SCALEFABRIC_CONGESTION") {
            options.congestion.set_algorithm(name.trim(), "SCALEFABRIC_CONGESTION")?;
        }
        if let Ok(name) = std::env::var("SCALEFABRIC_PERSONALITY") {
            options.set_personality(&name, "SCALEFABRIC_PERSONALITY")?;
        }
        if let Ok(name) = std::env::var("SCALEFABRIC_PATH") {
            options.set_path(&name, "SCALEFABRIC_PATH")?;
        }
        if let Ok(text) = std::env::var("SCALEFABRIC_POLLING") {
            options.set_polling(&text, "SCALEFABRIC_POLLING")?;
        }
        if let Ok(name) = std::env::var("SCALEFABRIC_SOCKETS") {
            options.set_sockets(&name, "SCALEFABRIC_SOCKETS")?;
        }
        Ok(options)
    }

    fn set_path(&mut self, name: &str, origin: &str) -> Result<(), VerbsError> {
        self.path = RequestPath::named(name)
            .ok_or_else(|| wrong(format!("{origin} is {name:?}: it may be \"auto\" or \"wire\"")))?;
        Ok(())
    }

    /// For all devices, those included that have words of their own: who sets the variable means this run.
    fn set_polling(&mut self, text: &str, origin: &str) -> Result<(), VerbsError> {
        self.polling.read(text).map_err(|e| wrong(format!("{origin}: {e}")))?;
        for device in &mut self.devices {
            if let Some(own) = &mut device.polling {
                *own = format!("{own},{text}");
            }
        }
        Ok(())
    }

    /// For all devices, as with polling.
    fn set_sockets(&mut self, name: &str, origin: &str) -> Result<(), VerbsError> {
        self.sockets = SocketKind::named(name)
            .ok_or_else(|| wrong(format!("{origin} is {name:?}: it may be \"udp\", \"xdp\" or \"xdp-or-udp\"")))?;
        self.devices.iter_mut().for_each(|device| device.sockets = None);
        Ok(())
    }

    /// `none` or nothing: the software NIC itself.
    fn set_personality(&mut self, name: &str, origin: &str) -> Result<(), VerbsError> {
        self.personality = match name.trim() {
            "" | "none" => None,
            name => Some(Personality::find(name).map_err(|e| wrong(format!("{origin}: {}", e.message)))?),
        };
        Ok(())
    }

    fn set_faults(&mut self, text: &str, origin: &str) -> Result<(), VerbsError> {
        self.faults = match text.trim() {
            "" | "none" => None,
            text => Some(text.parse().map_err(|e| wrong(format!("{origin}: {e}")))?),
        };
        Ok(())
    }

    /// Takes over what a TOML file says.
    pub fn read_file(&mut self, path: &Path) -> Result<(), VerbsError> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            VerbsError::environment(Errno::ENOENT, format!("configuration file {} cannot be read: {e}", path.display()))
        })?;
        self.read_toml(&text).map_err(|e| VerbsError { message: format!("{}: {}", path.display(), e.message), ..e })
    }

    /// Takes over what TOML text says.
    pub fn read_toml(&mut self, text: &str) -> Result<(), VerbsError> {
        let file: File = toml::from_str(text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))?;
        for device in &file.devices {
            if !(1..=2).contains(&device.ports.len()) {
                return Err(wrong(format!(
                    "device {:?} has {} ports: one or two [[device.port]] are possible",
                    device.name,
                    device.ports.len()
                )));
            }
            let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if device.name.is_empty() || device.name.len() > 32 || !device.name.chars().all(good) {
                return Err(wrong(format!(
                    "device name {:?}: 1 to 32 letters, digits, '_' and '-' are possible",
                    device.name
                )));
            }
        }
        if let Some(table) = file.congestion {
            self.congestion.read(table)?;
        }
        if let Some(text) = &file.polling {
            self.polling.read(text).map_err(|e| wrong(format!("polling: {e}")))?;
        }
        for device in &file.devices {
            self.congestion_of(device)?;
            self.polling_of(device)?;
        }
        self.devices.extend(file.devices);
        self.automatic = file.automatic.unwrap_or(self.automatic);
        self.share = file.share.unwrap_or(self.share);
        self.receive_buffer = file.receive_buffer.unwrap_or(self.receive_buffer);
        self.source_ports = file.source_ports.unwrap_or(self.source_ports);
        self.gso = file.gso.unwrap_or(self.gso);
        self.solve_ip_ids = file.solve_ip_ids.unwrap_or(self.solve_ip_ids);
        self.sockets = file.sockets.unwrap_or(self.sockets);
        self.worker = file.worker.unwrap_or(self.worker);
        self.capture = file.capture.or(self.capture.take());
        if let Some(name) = &file.personality {
            self.set_personality(name, "personality")?;
        }
        if let Some(name) = &file.path {
            self.set_path(name, "path")?;
        }
        if !(1..=256).contains(&self.source_ports) {
            return Err(wrong(format!("source_ports is {}: 1 to 256 are possible", self.source_ports)));
        }
        match file.faults {
            Some(faults) => self.set_faults(&faults, "faults"),
            None => Ok(()),
        }
    }

    /// Congestion control of a device that is configured by this name.
    pub fn congestion(&self, device: &str) -> Result<Congestion, VerbsError> {
        match self.devices.iter().find(|options| options.name == device) {
            Some(options) => self.congestion_of(options),
            None => Ok(self.congestion.clone()),
        }
    }

    /// How whoever waits on a device of this name passes the time.
    pub fn polling(&self, device: &str) -> Result<Polling, VerbsError> {
        self.devices.iter().find(|options| options.name == device).map_or(Ok(self.polling), |own| self.polling_of(own))
    }

    /// Sockets of the ports of a device of this name.
    pub fn sockets(&self, device: &str) -> SocketKind {
        self.devices.iter().find(|options| options.name == device).and_then(|own| own.sockets).unwrap_or(self.sockets)
    }

    fn polling_of(&self, device: &DeviceOptions) -> Result<Polling, VerbsError> {
        let mut polling = self.polling;
        let text = device.polling.as_deref().unwrap_or_default();
        polling.read(text).map_err(|e| wrong(format!("device {:?}: polling: {e}", device.name)))?;
        Ok(polling)
    }

    fn congestion_of(&self, device: &DeviceOptions) -> Result<Congestion, VerbsError> {
        let mut congestion = self.congestion.clone();
        if let Some(table) = &device.congestion {
            let named = |e: VerbsError| VerbsError { message: format!("device {:?}: {}", device.name, e.message), ..e };
            congestion.read(table.clone()).map_err(named)?;
        }
        Ok(congestion)
    }

    /// The capture file with `{pid}` filled in.
    pub fn capture_path(&self) -> Option<PathBuf> {
        let path = self.capture.as_ref()?;
        Some(match path.to_str() {
            Some(text) => text.replace("{pid}", &std::process::id().to_string()).into(),
            None => path.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, VerbsError> {
        let mut options = Options::default();
        options.read_toml(text).map(|()| options)
    }

    #[test]
    fn the_example_of_the_manual_is_understood() {
        let example: String = include_str!("options.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
            .collect();
        let options = read(&example).unwrap();
        assert_eq!(options.devices[0].ports.len(), 2);
        assert_eq!(options.devices[0].ports[1].addresses, ["10.0.1.7".parse::<IpAddr>().unwrap()]);
        assert_eq!(options.faults.as_ref().unwrap().seed, 7);
        assert_eq!(options.personality.unwrap().name, "connectx-5");
        assert!(!options.congestion("pair").unwrap().is_none());
        assert_eq!(options.capture_path().unwrap(), Path::new("/tmp/rdma.pcapng"));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let message = |text: &str| read(text).unwrap_err().message;
        assert!(message("shared = true").contains("shared"), "{}", message("shared = true"));
        assert!(message("faults = \"drop=x\"").contains("position 5"));
        assert!(message("[[device]]\nname = \"a\"\nport = []").contains("0 ports"));
        assert!(message("[[device]]\nname = \"a b\"\n[[device.port]]\ninterface = \"lo\"").contains("a b"));
        assert!(message("source_ports = 0").contains("source_ports"));
        assert!(message("personality = \"cx9\"").contains("connectx-6"), "{}", message("personality = \"cx9\""));
        assert!(message("path = \"shared\"").contains("\"wire\""), "{}", message("path = \"shared\""));
        assert!(message("\n\nshare = 1").contains("line 3"), "{}", message("\n\nshare = 1"));
        assert!(message("polling = \"spin=2\"").contains("polling: \"spin=2\""), "{}", message("polling = \"spin=2\""));
        let of_device = "[[device]]\nname = \"a\"\npolling = \"aside=1us\"\n[[device.port]]\ninterface = \"lo\"";
        assert!(message(of_device).contains("device \"a\": polling"), "{}", message(of_device));
    }

    #[test]
    fn polling_of_a_device_goes_before_that_of_all_and_the_variable_before_both() {
        let file = "polling = \"spin=1us,yield=2us\"\n[[device]]\nname = \"a\"\npolling = \"spin=5us\"\n\
                    [[device.port]]\ninterface = \"lo\"";
        let mut options = read(file).unwrap();
        let text = |options: &Options, device| {
            let polling = options.polling(device).unwrap();
            (polling.spin.as_micros(), polling.yielding.as_micros())
        };
        assert_eq!((text(&options, "a"), text(&options, "b")), ((5, 2), (1, 2)));
        options.set_polling("spin=9us", "SCALEFABRIC_POLLING").unwrap();
        assert_eq!((text(&options, "a"), text(&options, "b")), ((9, 2), (9, 2)));
    }

    #[test]
    fn sockets_of_a_device_go_before_those_of_all_and_the_variable_before_both() {
        let file = "sockets = \"xdp-or-udp\"\n[[device]]\nname = \"a\"\nsockets = \"xdp\"\n\
                    [[device.port]]\ninterface = \"eth0\"";
        let mut options = read(file).unwrap();
        assert_eq!((options.sockets("a"), options.sockets("b")), (SocketKind::Xdp, SocketKind::XdpOrUdp));
        options.set_sockets("udp", "SCALEFABRIC_SOCKETS").unwrap();
        assert_eq!((options.sockets("a"), options.sockets("b")), (SocketKind::Udp, SocketKind::Udp));
        assert!(read("sockets = \"raw\"").unwrap_err().message.contains("xdp-or-udp"));
    }

    #[test]
    fn what_the_file_does_not_say_stays() {
        let mut options = Options { share: false, ..Options::default() };
        options.read_toml("gso = false").unwrap();
        assert!(!options.share && !options.gso && options.automatic);
    }
}
