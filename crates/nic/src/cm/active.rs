//! Binding, resolving and connecting: what an application does before anything is answered.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use scalefabric_transport::cm::{Connection, PACKET_LIFE_TIME, QpPath, Request, request};
use scalefabric_verbs::{
    AddressVector, CmAddr, CmEventType, ConnParam, Errno, Gid, PKey, PathRecord, Psn, QpType, VerbsError,
};
use scalefabric_wire::cm::{CommId, IpAddressing, ServiceId};

use super::agent::State;
use super::devices::{self, Device, Place, destination, is_link_local, scope_of, source_for, with_port};
use super::id::{Claimed, Id, Stage};
use super::links::Link;
use crate::clock;
use crate::provider::SoftwareProvider;
use crate::share::connections::{Claim, Refused};

/// Ports that are given to those who do not care, as Linux does by default.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

/// Hop limit of a path. More than 1: it may be routed, and librdmacm uses a GRH.
const HOP_LIMIT: u8 = 64;

/// An IP address. `sockaddr_ib` is refused with the errno by which librdmacm learns to use IP.
pub(super) fn ip_address(address: CmAddr) -> Result<SocketAddr, VerbsError> {
    match address {
        CmAddr::Ip(ip) => Ok(ip),
        CmAddr::Ib(_) => Err(VerbsError::misuse(
            Errno::EADDRNOTAVAIL,
            "AF_IB addresses name InfiniBand ports: a RoCE device is addressed by IP",
        )),
    }
}

/// Where a bound address stands: nowhere if it is any.
pub(super) struct Bound {
    address: SocketAddr,
    place: Option<Place>,
    devices: Vec<Arc<Device>>,
}

/// Finds the devices of a local address. Without the agent's lock: a device may have to be opened.
pub(super) fn look_up(provider: &SoftwareProvider, address: SocketAddr) -> Result<Bound, VerbsError> {
    if is_link_local(address.ip()) && scope_of(address) == 0 {
        return Err(VerbsError::invalid(format!(
            "{} is link-local: name its interface (scope ID) as well",
            address.ip()
        )));
    }
    if address.ip().is_unspecified() {
        return Ok(Bound { address, place: None, devices: devices::all(provider)? });
    }
    let place = devices::find(provider, address.ip(), scope_of(address))?;
    Ok(Bound { address, devices: vec![place.device.clone()], place: Some(place) })
}

impl State {
    /// Takes the port of an address on all its devices.
    pub(super) fn bind(&mut self, number: u32, bound: Bound) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        id.expect("bind_addr", &[Stage::Idle])?;
        let Bound { address, place, devices } = bound;
        let claim = Claim {
            space: id.space.to_raw(),
            port: address.port(),
            ip: address.ip(),
            reuse: id.reuse,
            af_only: id.af_only,
        };
        let (port, claims) = if address.port() == 0 {
            self.claim_free(&claim, &devices)?
        } else {
            (address.port(), take(&claim, &devices).map_err(|refused| in_use(refused, &claim))?)
        };
        let id = self.id(number)?;
        id.claims = claims;
        id.local = Some(with_port(address, port));
        id.place = place;
        id.stage = Stage::AddrBound;
        Ok(())
    }

    fn claim_free(&mut self, claim: &Claim, devices: &[Arc<Device>]) -> Result<(u16, Vec<Claimed>), VerbsError> {
        let span = u32::from(EPHEMERAL.end - EPHEMERAL.start);
        let start = self.draw() as u32 % span;
        for step in 0..span {
            let port = EPHEMERAL.start + ((start + step) % span) as u16;
            match take(&Claim { port, ..*claim }, devices) {
                Ok(claims) => return Ok((port, claims)),
                Err(Refused::InUse) => {}
                Err(refused @ Refused::Full) => return Err(in_use(refused, claim)),
            }
        }
        Err(in_use(Refused::InUse, claim))
    }

    /// Finishes `resolve_addr`: `source` is where the way begins, or why there is none, which the application hears by event.
    pub(super) fn resolved(
        &mut self,
        number: u32,
        destination: SocketAddr,
        source: Result<Bound, VerbsError>,
    ) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        id.expect("resolve_addr", &[Stage::Idle, Stage::AddrBound])?;
        id.peer = Some(destination);
        let done = match source {
            Ok(bound) if id.stage == Stage::Idle => self.bind(number, bound),
            Ok(Bound { place, address, .. }) => {
                // Bound to any before: now it is known which address that is.
                let port = id.local.map_or(0, |local| local.port());
                id.local = Some(with_port(address, port));
                id.place = place;
                Ok(())
            }
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                self.id(number)?.stage = Stage::AddrResolved;
                self.tell_plain(number, CmEventType::AddrResolved, 0);
            }
            Err(error) => self.tell_plain(number, CmEventType::AddrError, -(error.errno.to_raw())),
        }
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, number: u32) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        id.expect("resolve_route", &[Stage::AddrResolved])?;
        id.route = Some(id.path()?);
        id.stage = Stage::RouteResolved;
        self.tell_plain(number, CmEventType::RouteResolved, 0);
        Ok(())
    }

    pub(super) fn connect(&mut self, number: u32, param: &ConnParam) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        id.expect("connect", &[Stage::RouteResolved])?;
        if id.is_ud() {
            return self.ask(number, param);
        }
        let header = request::addressing(&id.addressing()?);
        let private_data = request::padded(&header, &param.private_data).ok_or_else(|| {
            too_long("connect", param.private_data.len(), scalefabric_verbs::cm::MAX_CONNECT_PRIVATE_DATA)
        })?;
        let (place, route) = id.way()?;
        let (qp_type, ece, service_id) = (id.qp_type, id.local_ece, id.service_id());
        if !matches!(qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend) {
            return Err(VerbsError::invalid(format!("a QP of type {qp_type:?} does not connect actively")));
        }
        let local_id = self.comm_id(place.device.slot());
        let starting_psn = Psn::new(self.draw() as u32);
        let req = Request {
            local_id: CommId(local_id),
            service_id,
            ca_guid: place.device.guid(),
            qpn: param.qp_num,
            qp_type,
            starting_psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            pkey: route.pkey,
            path_mtu: route.mtu,
            gids: (route.sgid, route.dgid),
            flow_label: route.flow_label,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            sl: route.sl,
            packet_life_time: route.packet_life_time,
            vendor_id: ece.vendor_id,
            private_data,
        }
        .message();
        let av = route_vector(&place, &route);
        let transaction_id = 1 << 32 | u64::from(local_id);
        let machine = Connection::connect(clock::now(), req, ece.attr_mod, transaction_id);
        let link = Link {
            machine,
            core: place.device.core().clone(),
            device: Some(place.device.clone()),
            av: message_vector(&av),
            path: QpPath::of_own_req(&req, qp_type, av),
            packet_life_time: route.packet_life_time,
            id: Some(number),
            noted: None,
        };
        self.links.insert(local_id, link);
        let id = self.id(number)?;
        id.link = Some(local_id);
        id.stage = Stage::Connect;
        self.pump(local_id);
        Ok(())
    }
}

impl Id {
    /// The path of a flat network: what Linux derives for RoCE without asking anybody.
    fn path(&self) -> Result<PathRecord, VerbsError> {
        let (Some(place), Some(local), Some(peer)) = (&self.place, self.local, self.peer) else {
            return Err(VerbsError::invalid(format!("identifier {} is not resolved", self.number)));
        };
        let held = place.device.core().lock();
        let port = held.engine.tables().port_or_err(place.port_num)?;
        Ok(PathRecord {
            dgid: Gid::from_ip(peer.ip()),
            sgid: place.sgid,
            flow_label: request::flow_label(local.port(), peer.port()),
            hop_limit: HOP_LIMIT,
            traffic_class: self.tos.unwrap_or(0),
            pkey: PKey::DEFAULT,
            sl: 0,
            mtu: port.mtu(),
            rate: rate(port.speed_mbps()),
            packet_life_time: PACKET_LIFE_TIME,
            reversible: true,
        })
    }

    /// Place and path of a resolved identifier.
    pub(super) fn way(&self) -> Result<(Place, PathRecord), VerbsError> {
        match (&self.place, self.route) {
            (Some(place), Some(route)) => Ok((place.clone(), route)),
            _ => Err(VerbsError::invalid(format!("identifier {} has no route", self.number))),
        }
    }

    pub(super) fn service_id(&self) -> ServiceId {
        ServiceId::of_port(self.space.to_raw(), self.peer.map_or(0, |peer| peer.port()))
    }

    pub(super) fn addressing(&self) -> Result<IpAddressing, VerbsError> {
        match (self.local, self.peer) {
            (Some(local), Some(peer)) => Ok(IpAddressing { src_port: local.port(), src: local.ip(), dst: peer.ip() }),
            _ => Err(VerbsError::invalid(format!("identifier {} has no addresses", self.number))),
        }
    }

    /// Gives the port back on all devices.
    pub(super) fn release(&mut self) {
        for (device, index) in self.claims.drain(..) {
            device.segment().release_port(index, clock::now());
        }
    }
}

/// `enum ibv_rate` as Linux chooses it for an Ethernet speed; 0 is the port's own.
fn rate(mbps: u32) -> u8 {
    match mbps {
        0 => 0,
        40_000.. => 7,
        30_000.. => 5,
        20_000.. => 6,
        10_000.. => 3,
        _ => 0,
    }
}

/// The way of a QP along a path.
pub(super) fn route_vector(place: &Place, route: &PathRecord) -> AddressVector {
    AddressVector {
        dgid: route.dgid,
        sgid_index: place.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
        sl: route.sl,
        // The rate of a path is a description of its port, not a limit.
        static_rate: 0,
        port_num: place.port_num,
    }
}

/// The way of messages: that of the QP, but for the source port, which is QP 1's.
pub(super) fn message_vector(av: &AddressVector) -> AddressVector {
    AddressVector { flow_label: 0, ..*av }
}

pub(super) fn too_long(call: &str, bytes: usize, most: usize) -> VerbsError {
    VerbsError::invalid(format!("{bytes} bytes of private data in {call}: at most {most} fit"))
}

fn in_use(refused: Refused, claim: &Claim) -> VerbsError {
    match refused {
        Refused::InUse => VerbsError::environment(
            Errno::EADDRINUSE,
            format!("port {} of {} is taken in this port space by another identifier or process", claim.port, claim.ip),
        ),
        Refused::Full => VerbsError::environment(
            Errno::ENOMEM,
            format!("the device's table of bound ports is full ({} ports)", crate::share::connections::CLAIMS),
        ),
    }
}

/// Takes a port on all devices or on none.
fn take(claim: &Claim, devices: &[Arc<Device>]) -> Result<Vec<Claimed>, Refused> {
    let mut claims: Vec<Claimed> = Vec::new();
    for device in devices {
        match device.segment().claim_port(device.slot(), claim) {
            Ok(index) => claims.push((device.clone(), index)),
            Err(refused) => {
                claims.drain(..).for_each(|(device, index)| device.segment().release_port(index, clock::now()));
                return Err(refused);
            }
        }
    }
    Ok(claims)
}

/// Where the way to a destination begins: at `source` if that is an address, else where the kernel's routing says.
pub(super) fn begin(
    provider: &SoftwareProvider,
    source: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<(SocketAddr, Bound), VerbsError> {
    let to = destination(to);
    // To an address of our own, the way begins and ends at the device that has it, whatever address the kernel's routing would
    // choose (on the loopback, 127.0.0.1).
    if source.is_none_or(|source| source.ip().is_unspecified())
        && let Ok(place) = devices::find(provider, to.ip(), scope_of(to))
    {
        let address = with_port(to, source.map_or(0, |source| source.port()));
        return Ok((to, Bound { address, devices: vec![place.device.clone()], place: Some(place) }));
    }
    let from = match source.filter(|source| !source.ip().is_unspecified()) {
        Some(source) => source,
        None => {
            let routed = source_for(to)?;
            with_port(routed, source.map_or(0, |source| source.port()))
        }
    };
    let scoped = match (from, to) {
        (SocketAddr::V6(mut from), SocketAddr::V6(to))
            if is_link_local(IpAddr::V6(*from.ip())) && from.scope_id() == 0 =>
        {
            from.set_scope_id(to.scope_id());
            SocketAddr::V6(from)
        }
        (from, _) => from,
    };
    Ok((to, look_up(provider, scoped)?))
}
