//! What the tree tells: the devices as they are now, looked at without opening any of them. Plain data; the files are made
//! from it in [`super::content`].

use std::sync::OnceLock;

use scalefabric_nic::discovery::DevicePlan;
use scalefabric_nic::objects::width_and_speed;
use scalefabric_nic::options::Options;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_nic::share::segment::GIDS;
use scalefabric_nic::survey::DeviceSurvey;
use scalefabric_verbs::{DeviceAttr, Gid, Mtu, PKey, PortState, VerbsError};

use crate::real;

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of its interface.
    pub interface: String,
    /// Index of its interface, 0 if it is gone.
    pub ifindex: u32,
    /// ACTIVE or DOWN.
    pub state: PortState,
    /// Width and speed codes, as `ibv_port_attr` has them.
    pub width_and_speed: (u8, u8),
    /// Largest path MTU.
    pub active_mtu: Mtu,
    /// Slots of the GID table.
    pub gid_table_len: u32,
    /// GIDs with their indexes.
    pub gids: Vec<(u32, Gid)>,
    /// The P_Key table.
    pub pkeys: Vec<PKey>,
    /// Counters with their names.
    pub counters: Vec<(String, u64)>,
}

impl Port {
    /// A counter by name; 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value)
    }

    /// Packets dropped for any reason.
    pub fn drops(&self) -> u64 {
        self.counters.iter().filter(|(name, _)| name.starts_with("drop_")).map(|(_, value)| value).sum()
    }
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number ([`uverbs`]).
    pub index: u32,
    /// What it says of itself.
    pub attr: DeviceAttr,
    /// Its ports, the first is port 1.
    pub ports: Vec<Port>,
}

impl Device {
    /// The name of its node.
    pub fn uverbs(&self) -> String {
        uverbs(self.index)
    }
}

/// The name of the node of the device of this index. Nodes of the machine's own devices come first.
pub fn uverbs(index: u32) -> String {
    static FIRST: OnceLock<u32> = OnceLock::new();
    format!("uverbs{}", FIRST.get_or_init(real::first_free_uverbs).saturating_add(index))
}

/// The provider that the environment describes.
pub fn provider() -> Result<SoftwareProvider, VerbsError> {
    Options::from_environment().map(SoftwareProvider::new)
}

/// A device as it is now. Its tables and counters are those that its processes share; nobody's, if none has it open.
pub fn device(provider: &SoftwareProvider, plan: &DevicePlan) -> Result<Device, VerbsError> {
    let ports = survey(provider, plan).ports()?.into_iter().map(|port| Port {
        interface: port.interface,
        ifindex: port.ifindex,
        state: port.state,
        width_and_speed: width_and_speed(port.speed_mbps),
        active_mtu: port.active_mtu,
        gid_table_len: GIDS as u32,
        gids: port.gids,
        pkeys: port.pkeys,
        counters: port.counters,
    });
    let (name, index, attr) = (plan.info.name.clone(), plan.info.index, provider.attr(plan));
    Ok(Device { name, index, attr, ports: ports.collect() })
}

/// A look at a device from outside. One that cannot be looked at (it is another user's, or its host is stopped) still exists,
/// with what its interface says.
pub fn survey(provider: &SoftwareProvider, plan: &DevicePlan) -> DeviceSurvey {
    provider.survey(&plan.info.name).unwrap_or_else(|_| DeviceSurvey::unseen(plan.clone()))
}
