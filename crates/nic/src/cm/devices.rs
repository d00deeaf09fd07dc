//! Which device and port an address belongs to, and which address the kernel's routing would send from.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Arc, PoisonError, Weak};

use scalefabric_verbs::{CmDevice, Context, Errno, Gid, PKey, VerbsError};

use crate::discovery;
use crate::engine::drive::Core;
use crate::netlink;
use crate::provider::{SoftwareContext, SoftwareProvider, communication};
use crate::share::segment::Segment;

/// A device that identifiers use; open as long as one does.
#[derive(Debug)]
pub(super) struct Device {
    context: Arc<SoftwareContext>,
}

impl Device {
    fn of(context: Arc<SoftwareContext>) -> Arc<Self> {
        let mut devices = communication().devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|device| device.strong_count() > 0);
        let same = |device: &Arc<Self>| Arc::ptr_eq(device.core(), context.core());
        if let Some(device) = devices.iter().filter_map(Weak::upgrade).find(same) {
            return device;
        }
        let device = Arc::new(Self { context });
        devices.push(Arc::downgrade(&device));
        device
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        self.context.core()
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        self.context.segment()
    }

    pub(super) fn slot(&self) -> u8 {
        self.context.slot()
    }

    /// EUI-64.
    pub(super) fn guid(&self) -> u64 {
        self.core().config().device.node_guid
    }

    /// What applications are told.
    pub(super) fn describe(&self, port_num: u8) -> CmDevice {
        let info = self.context.device();
        let pkey = self.context.query_pkey(port_num, 0).unwrap_or(PKey::DEFAULT);
        CmDevice { name: info.name, node_guid: info.node_guid, index: info.index, port_num, pkey }
    }
}

/// A port with one of its addresses.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) device: Arc<Device>,
    pub(super) port_num: u8,
    pub(super) sgid: Gid,
    pub(super) sgid_index: u8,
}

impl Place {
    /// The place of an address on an open device: its RoCE v2 entry, by meaning and not by number.
    pub(super) fn on(device: &Arc<Device>, port_num: u8, sgid: Gid) -> Option<Self> {
        let held = device.core().lock();
        let sgid_index = held.engine.tables().port(port_num)?.find_gid(sgid)?;
        Some(Self { device: device.clone(), port_num, sgid, sgid_index })
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().and_then(Errno::from_raw).unwrap_or(Errno::EHOSTUNREACH)
}

/// The device with an address. `EADDRNOTAVAIL` if this machine does not have it, `ENODEV` if no device does.
pub(super) fn find(provider: &SoftwareProvider, ip: IpAddr, scope: u32) -> Result<Place, VerbsError> {
    let interfaces = netlink::interfaces().map_err(|e| {
        VerbsError::environment(Errno::EIO, format!("network interfaces cannot be listed (rtnetlink): {e}"))
    })?;
    let mut refused = None;
    for plan in discovery::devices(&interfaces, provider.options()) {
        for (index, port) in plan.ports.iter().enumerate() {
            let facts = discovery::facts(port, &interfaces);
            if !facts.addresses.contains(&ip) || (scope != 0 && is_link_local(ip) && facts.ifindex != scope) {
                continue;
            }
            match provider.open_software(&plan.info.name) {
                Ok(context) => {
                    let device = Device::of(context);
                    if let Some(place) = Place::on(&device, index as u8 + 1, Gid::from_ip(ip)) {
                        return Ok(place);
                    }
                }
                Err(error) => refused = Some(error),
            }
        }
    }
    if let Some(error) = refused {
        return Err(error);
    }
    Err(if interfaces.iter().any(|i| i.addresses.iter().any(|a| a.ip == ip)) {
        VerbsError::environment(Errno::ENODEV, format!("no RDMA device stands on the interface that has {ip}"))
    } else {
        VerbsError::environment(Errno::EADDRNOTAVAIL, format!("this machine has no address {ip} that a device uses"))
    })
}

/// All devices that can be opened, for a listener on any address.
pub(super) fn all(provider: &SoftwareProvider) -> Result<Vec<Arc<Device>>, VerbsError> {
    let plans = provider.plans()?;
    let mut refused = None;
    let mut devices = Vec::new();
    for plan in plans {
        match provider.open_software(&plan.info.name) {
            Ok(context) => devices.push(Device::of(context)),
            Err(error) => refused = Some(error),
        }
    }
    match (devices.is_empty(), refused) {
        (false, _) => Ok(devices),
        (true, Some(error)) => Err(error),
        (true, None) => Err(VerbsError::environment(
            Errno::ENODEV,
            "there is no RDMA device: no usable network interface (devices stand on Ethernet-like interfaces and the loopback)",
        )),
    }
}

/// True for an IPv6 address that means nothing without its interface.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The interface that an address names; 0 none.
pub(super) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

/// An address with another port.
pub(super) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// An IP with a port, and its interface if it is link-local.
pub(super) fn address(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if is_link_local(ip) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope)),
        _ => SocketAddr::new(ip, port),
    }
}

/// "Any" as a destination is this machine itself.
pub(super) fn destination(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let ip = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, address.port())
}

/// The address from which the kernel would send to `destination`: what a connected UDP socket says of itself. No packet leaves.
pub(super) fn source_for(destination: SocketAddr) -> Result<SocketAddr, VerbsError> {
    let any = match destination {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let ask = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(with_port(destination, 4791))?;
        socket.local_addr()
    };
    ask().map_err(|e| {
        VerbsError::environment(errno(&e), format!("no way leads to {}: {e} (see `ip route get`)", destination.ip()))
    })
}
