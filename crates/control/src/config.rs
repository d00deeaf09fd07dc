//! Configuration files of `sfab control` and `sfab agent`, in TOML. A key that is not known is an error that names it; a file that is named in it and
//! cannot be read is one, too. Nothing is started here.

use crate::service::access::{Access, ServerTls, Token};
use crate::store::etcd;
use crate::{agent, service};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong(pub String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// The file of `sfab control`. Every key may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// Name of the replica. Default: the host's.
    pub name: Option<String>,
    /// Where agents find it. Default 127.0.0.1:7480. Off loopback it needs `tls`.
    pub listen: Option<SocketAddr>,
    /// Where people and scripts find it. Default 127.0.0.1:7481. Off loopback it needs `tls`.
    pub http: Option<SocketAddr>,
    /// The address that agents are told, such as `https://control-1.example:7480`, if it is not what it listens on.
    pub advertise: Option<String>,
    /// How long what an agent told stays when nothing is heard of it. Default 15, at least 3.
    pub lease_seconds: Option<u64>,
    /// How often agents tell loads. Default 100, 10 to 60000. Short: moves are decided sooner, and more is sent; long: the other way round.
    pub load_interval_ms: Option<u64>,
    /// File that describes switches, their links and cables that LLDP does not tell of (docs/configuration.md). It takes the place of the one in the
    /// store when control starts. Default: the one in the store, else none.
    pub topology: Option<PathBuf>,
    /// File with the bearer token for HTTP. Without it HTTP is open to this host, on loopback only.
    pub token_file: Option<PathBuf>,
    /// Where the state is.
    pub store: StoreTable,
    /// Certificates.
    pub tls: Option<ControlTls>,
}

/// Where the state is: in a file, or in etcd.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreTable {
    /// File of the embedded store, for one replica.
    pub embedded: Option<PathBuf>,
    /// Members of an etcd, for any number of replicas.
    pub etcd: Vec<String>,
    /// What all keys in etcd begin with. Default `scalefabric/`.
    pub root: Option<String>,
    /// Who signs etcd's certificates.
    pub ca: Option<PathBuf>,
    /// Own certificate for etcd.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Certificates of control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlTls {
    /// Own certificate, PEM.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs the certificates of agents and clients.
    pub client_ca: PathBuf,
}

/// The file of `sfab agent`. Every key may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    /// Name of the node. Default: the host's.
    pub node: Option<String>,
    /// Addresses of replicas of control. Default `http://127.0.0.1:7480`.
    pub control: Vec<String>,
    /// Socket for the processes of the node. Default: what `SCALEFABRIC_AGENT` says, else /run/scalefabric/agent.sock.
    pub socket: Option<PathBuf>,
    /// Whether processes of other users may use it. Default false.
    pub any_user: bool,
    /// File in which the agent remembers. Default: `agent.memory` beside the socket.
    pub memory: Option<PathBuf>,
    /// Certificates; needed for `https`.
    pub tls: Option<AgentTls>,
    /// The program that prints what LLDP has learnt. Default `lldpctl`, which need not be there; empty: nobody is asked.
    pub lldpctl: Option<PathBuf>,
    /// What is at the other ends of links, where LLDP does not say.
    #[serde(rename = "neighbour")]
    pub neighbours: Vec<agent::Neighbour>,
}

/// Certificates of an agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTls {
    /// Who signs control's certificates, PEM.
    pub ca: PathBuf,
    /// Own certificate, for the node's name.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Which store.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// A file.
    Embedded(PathBuf),
    /// An etcd.
    Etcd(etcd::Settings),
}

/// Reads a file.
pub fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, Wrong> {
    let text = text(path)?;
    toml::from_str(&text).map_err(|error| Wrong(format!("{}: {}", path.display(), error.to_string().trim_end())))
}

fn text(path: &Path) -> Result<String, Wrong> {
    std::fs::read_to_string(path).map_err(|error| Wrong(format!("{} cannot be read: {error}", path.display())))
}

/// The host's name, as far as it can be a node's.
pub fn host_name() -> Result<String, Wrong> {
    let name = text(Path::new("/proc/sys/kernel/hostname"))?.trim().to_lowercase();
    crate::message::node_name(&name)
        .map_err(|error| Wrong(format!("this host's name cannot be used: {error}; give one with `name` or `node`")))
}

impl Control {
    /// How the replica serves.
    pub fn settings(&self) -> Result<service::Settings, Wrong> {
        let name = self.name.clone().map_or_else(host_name, Ok)?;
        let mut settings = service::Settings::local(&name);
        settings.grpc = self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7480)));
        settings.http = Some(self.http.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7481))));
        settings.advertise.clone_from(&self.advertise);
        if let Some(seconds) = self.lease_seconds {
            settings.lease_ttl = Duration::from_secs(seconds);
        }
        if let Some(interval) = self.load_interval_ms {
            settings.load_interval = Duration::from_millis(interval);
        }
        settings.topology = self.topology.as_deref().map(text).transpose()?;
        let token =
            |path: &PathBuf| Token::new(&text(path)?).map_err(|error| Wrong(format!("{}: {error}", path.display())));
        let tls = |tls: &ControlTls| {
            Ok(ServerTls {
                certificate: text(&tls.certificate)?,
                key: text(&tls.key)?,
                client_ca: text(&tls.client_ca)?,
            })
        };
        settings.access = Access {
            tls: self.tls.as_ref().map(tls).transpose()?,
            token: self.token_file.as_ref().map(token).transpose()?,
        };
        Ok(settings)
    }

    /// Which store; `default` is the file if nothing is said.
    pub fn store(&self, default: impl FnOnce() -> PathBuf) -> Result<StoreSettings, Wrong> {
        let store = &self.store;
        if store.etcd.is_empty() {
            return Ok(StoreSettings::Embedded(store.embedded.clone().unwrap_or_else(default)));
        }
        if store.embedded.is_some() {
            return Err(Wrong("store: both `embedded` and `etcd` are given; the state is in one place".into()));
        }
        for address in &store.etcd {
            let uri = address.parse::<axum::http::Uri>().ok();
            let is_whole = |uri: &axum::http::Uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
            };
            if !uri.as_ref().is_some_and(is_whole) {
                let example = "one looks like `http://10.0.0.1:2379`";
                return Err(Wrong(format!("store: `{address}` is no address of etcd; {example}")));
            }
        }
        let mut settings = etcd::Settings::new(store.etcd.clone());
        if let Some(root) = &store.root {
            settings.root.clone_from(root);
        }
        settings.tls = match (&store.ca, &store.certificate, &store.key) {
            (None, None, None) => None,
            (Some(ca), None, None) => Some(etcd::Tls { ca: text(ca)?, identity: None }),
            (Some(ca), Some(certificate), Some(key)) => {
                Some(etcd::Tls { ca: text(ca)?, identity: Some((text(certificate)?, text(key)?)) })
            }
            _ => return Err(Wrong("store: give `ca`, or `ca`, `certificate` and `key`".into())),
        };
        Ok(StoreSettings::Etcd(settings))
    }
}

impl Agent {
    /// How the agent works.
    pub fn settings(&self) -> Result<agent::Settings, Wrong> {
        let tls = |tls: &AgentTls| {
            Ok(agent::Tls { ca: text(&tls.ca)?, certificate: text(&tls.certificate)?, key: text(&tls.key)? })
        };
        let socket = self.socket.clone().unwrap_or_else(crate::local::default_socket);
        let memory = self.memory.clone().unwrap_or_else(|| socket.with_extension("memory"));
        let control = if self.control.is_empty() { vec!["http://127.0.0.1:7480".into()] } else { self.control.clone() };
        Ok(agent::Settings {
            node: self.node.clone().map_or_else(host_name, Ok)?,
            control,
            tls: self.tls.as_ref().map(tls).transpose()?,
            socket,
            any_user: self.any_user,
            memory: Some(memory),
            neighbours: self.neighbours.clone(),
            lldpctl: match &self.lldpctl {
                None => Some("lldpctl".into()),
                Some(program) => (!program.as_os_str().is_empty()).then(|| program.clone()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_known_is_named() {
        let wrong = toml::from_str::<Control>("lisen = \"127.0.0.1:1\"").expect_err("it is not known");
        assert!(wrong.to_string().contains("lisen"), "{wrong}");
        assert!(
            toml::from_str::<Agent>("[[neighbour]]\ndevice = \"sf0\"\nport_num = 1\nchassis = \"s1\"\nport_id = \"7\"")
                .is_ok()
        );
    }

    #[test]
    fn the_state_is_in_one_place() {
        let both: Control = toml::from_str("[store]\nembedded = \"a\"\netcd = [\"http://b:1\"]").expect("TOML");
        assert!(both.store(PathBuf::new).is_err());
        for (address, good) in [
            ("http://b:1", true),
            ("https://[::1]:2379", true),
            ("nonsense", false),
            ("b:2379", false),
            ("ftp://b:1", false),
            ("http://", false),
        ] {
            let etcd: Control = toml::from_str(&format!("[store]\netcd = [\"{address}\"]")).expect("TOML");
            let told = etcd.store(PathBuf::new);
            assert_eq!(told.is_ok(), good, "{address}");
            assert!(told.err().is_none_or(|wrong| wrong.to_string().contains(address)));
        }
        let none = Control::default().store(|| "here".into());
        assert!(matches!(none, Ok(StoreSettings::Embedded(path)) if path == Path::new("here")));
    }
}
