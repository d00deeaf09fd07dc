//! The open devices of a fabric and what all connections on them share: protection domains, limits, ports and their GIDs. It holds no connection.

use super::gid::{self, Want};
use super::loss::LossSample;
use crate::error::FabricError;
use crate::path::Path;
use scalefabric_verbs::{Context, DeviceAttr, GidEntry, Mtu, PKey, PortState, ProtectionDomain, Provider, QueuePair};
use std::sync::Arc;

/// Most devices of a fabric.
pub(crate) const MAX_DEVICES: usize = 4;

/// A port of a fabric's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortAt {
    /// Which device: index of its protection domain.
    pub domain: usize,
    /// From 1.
    pub port_num: u8,
}

/// The devices of a fabric, the first of which is where connections begin.
#[derive(Debug)]
pub(crate) struct Hubs(Vec<Arc<Hub>>);

impl Hubs {
    /// Misuse without a device, with more than [`MAX_DEVICES`], and with one twice.
    pub fn new(hubs: Vec<Hub>) -> Result<Self, FabricError> {
        if hubs.is_empty() || hubs.len() > MAX_DEVICES {
            return Err(FabricError::misuse(format!("a fabric has 1 to {MAX_DEVICES} devices, not {}", hubs.len())));
        }
        for (index, hub) in hubs.iter().enumerate() {
            if hubs[..index].iter().any(|other| other.device == hub.device) {
                return Err(FabricError::misuse(format!("device {} is named twice: name another", hub.device)));
            }
        }
        Ok(Self(hubs.into_iter().map(Arc::new).collect()))
    }

    pub fn all(&self) -> &[Arc<Hub>] {
        &self.0
    }

    /// The first.
    pub fn home(&self) -> &Arc<Hub> {
        &self.0[0]
    }

    /// A device by its name, and its index.
    pub fn named(&self, device: &str) -> Result<usize, FabricError> {
        self.0.iter().position(|hub| hub.device == device).ok_or_else(|| {
            let known = self.0.iter().map(|hub| hub.device.as_str()).collect::<Vec<_>>().join(", ");
            FabricError::misuse(format!(
                "the path is on device {device}, and the fabric's memory is registered with {known}: name the device to `Builder::also`"
            ))
        })
    }

    /// The port of a path.
    pub fn port_of(&self, path: &Path) -> Option<PortAt> {
        let domain = self.named(&path.device).ok()?;
        Some(PortAt { domain, port_num: path.port_num })
    }

    /// All ports of all devices.
    pub fn ports(&self) -> impl Iterator<Item = PortAt> + '_ {
        let of = |(domain, hub): (usize, &Arc<Hub>)| {
            (1..=hub.attr.phys_port_cnt).map(move |port_num| PortAt { domain, port_num })
        };
        self.0.iter().enumerate().flat_map(of)
    }

    pub fn is_active(&self, at: PortAt) -> bool {
        self.0.get(at.domain).is_some_and(|hub| hub.is_active(at.port_num))
    }

    /// Whether this is the path's port.
    pub fn is_on(&self, path: &Path, at: PortAt) -> bool {
        path.port_num == at.port_num && self.0.get(at.domain).is_some_and(|hub| hub.device == path.device)
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Hub {
    pub device: String,
    pub context: Arc<dyn Context>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub attr: DeviceAttr,
}

impl Hub {
    /// Opens a device; `None`: the first with an active port.
    pub fn open(provider: &dyn Provider, device: Option<&str>) -> Result<Self, FabricError> {
        let context = match device {
            Some(name) => provider.open(name)?,
            None => Self::first_active(provider)?,
        };
        let (pd, attr) = (context.alloc_pd()?, context.query_device()?);
        Ok(Self { device: context.device().name, context, pd, attr })
    }

    fn first_active(provider: &dyn Provider) -> Result<Arc<dyn Context>, FabricError> {
        let mut seen = Vec::new();
        for info in provider.devices()? {
            match provider.open(&info.name) {
                Ok(context) => {
                    let ports = context.query_device()?.phys_port_cnt;
                    if (1..=ports).any(|port| context.query_port(port).is_ok_and(|p| p.state == PortState::Active)) {
                        return Ok(context);
                    }
                    seen.push(format!("{} (no active port)", info.name));
                }
                Err(error) => seen.push(format!("{} ({})", info.name, error.message)),
            }
        }
        let seen = if seen.is_empty() { "there is no RDMA device".into() } else { seen.join(", ") };
        Err(FabricError::environment(format!("no device has an active port: {seen}; name one, or bring a port up")))
    }

    /// The GID table as it is now, active ports first.
    pub fn gids(&self) -> Result<Vec<GidEntry>, FabricError> {
        let mut table = self.context.query_gid_table()?;
        table.sort_by_key(|entry| !self.is_active(entry.port_num));
        Ok(table)
    }

    /// Where a P_Key stands in the table of a port now.
    pub fn pkey_index(&self, port_num: u8, pkey: PKey) -> Result<u16, FabricError> {
        let entries = self.context.query_port(port_num)?.pkey_tbl_len;
        let is_it = |index: &u16| self.context.query_pkey(port_num, *index).is_ok_and(|entry| entry == pkey);
        (0..entries).find(is_it).ok_or_else(|| {
            FabricError::environment(format!(
                "P_Key {:#06x} is not in the table of {} port {port_num}: the node's agent puts those of tenants there; is it running, and may the tenant run here?",
                pkey.0, self.device
            ))
        })
    }

    /// The GID that means what is wanted.
    pub fn choose(&self, want: &Want) -> Result<GidEntry, FabricError> {
        let table = self.gids()?;
        if want.gid.is_none() && want.port_num.is_none() {
            // The nearest address may be that of a port that is down, which is of no use while another is up.
            let active: Vec<GidEntry> = table.iter().filter(|entry| self.is_active(entry.port_num)).cloned().collect();
            if let Ok(entry) = gid::choose(&self.device, &active, want) {
                return Ok(entry.clone());
            }
        }
        gid::choose(&self.device, &table, want).cloned()
    }

    pub fn is_active(&self, port_num: u8) -> bool {
        self.context.query_port(port_num).is_ok_and(|port| port.state == PortState::Active)
    }

    /// How often a port's QPs found that something was lost, ever; `None`: the device does not count that. A peer without a receive is no loss.
    pub fn losses(&self, port_num: u8) -> Option<u64> {
        let counters = self.context.hw_counters(port_num).ok()?;
        let value = |name: &str| counters.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
        let found = ["packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err"];
        found.into_iter().filter_map(value).reduce(|one, other| one.saturating_add(other))
    }

    /// What a QP has sent and lost; of a device that does not count that of each QP, what its port has.
    pub fn loss_sample(&self, qp: &dyn QueuePair, port_num: u8) -> Option<LossSample> {
        let qp_num = qp.qp_num().get();
        if let Some(losses) = qp.losses() {
            let sent = qp.query().ok()?.0.sq_psn.get().into();
            return Some(LossSample { qp_num, sent, wraps: 1 << 24, losses });
        }
        let counters = self.context.hw_counters(port_num).ok()?;
        let sent = counters.iter().find(|(name, _)| name == "sent_pkts").map(|(_, value)| *value)?;
        Some(LossSample { qp_num, sent, wraps: 1 << 63, losses: self.losses(port_num)? })
    }

    pub fn mtu(&self, port_num: u8) -> Result<Mtu, FabricError> {
        Ok(self.context.query_port(port_num)?.active_mtu)
    }
}
