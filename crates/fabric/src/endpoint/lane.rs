//! Lanes as QPs: made on a path, taken to RTS towards the peer's QP, stopped and drained. It chooses GIDs by meaning and decides nothing else.

use super::config::Config;
use super::gid::Want;
use super::hub::{Hub, Hubs};
use super::link::{Link, lock};
use super::operation::MAX_PIECES;
use super::send::{MARKER, Outlet};
use crate::error::FabricError;
use crate::path::Path;
use crate::session::{Drained, LaneId, QpOffer};
use scalefabric_verbs::{
    AccessFlags, AddressVector, Gid, GidEntry, Mtu, Psn, QpAttr, QpCap, QpInit, QpType, Qpn, QueuePair, SendFlags,
    SendOp, SendWr,
};
use std::sync::Arc;

/// What a peer may do through a connection's QP; what it really may touch is said by keys.
const RIGHTS: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// Windows that are bound at a time.
const BINDS: u32 = 8;

/// One lane's QP.
#[derive(Debug)]
pub(crate) struct Lane {
    pub id: LaneId,
    /// Which of the fabric's devices it is on.
    pub domain: usize,
    pub hub: Arc<Hub>,
    pub qp: Arc<dyn QueuePair>,
    pub path: Path,
    /// The path that it is to migrate to.
    pub alternate: Option<Path>,
    sgid_index: u8,
    /// Which of its fabric's devices the peer's QP is on.
    peer_domain: u8,
    psn: u32,
    mtu: Mtu,
    max_rd_atomic: u8,
}

/// Where a lane is to be made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// This path, if one is wanted.
    pub path: Option<Path>,
    /// The path in use, which is taken again while its port is active.
    pub present: Option<Path>,
    /// The peer's GID, as far as it is known.
    pub peer: Option<Gid>,
}

impl Lane {
    /// Makes a QP in INIT.
    pub fn make(link: &Link, id: LaneId, place: &Place, psn: u32) -> Result<(Self, QpOffer), FabricError> {
        let config = &link.config;
        let (domain, path) = choose_path(&link.hubs, config, place)?;
        let dock = &link.docks[domain];
        let hub = &*dock.hub;
        let sgid_index = gid_index(hub, &path)?;
        let cap = QpCap {
            // A marker at its end, a signal in a hand-over, and some binds of windows.
            max_send_wr: config.depth + 3 + if config.lend_by_windows { BINDS } else { 0 },
            max_recv_wr: 0,
            max_send_sge: MAX_PIECES as u32,
            max_recv_sge: 0,
            max_inline_data: lock(&link.sender).bounds.max_inline as u32,
        };
        let (send_cq, recv_cq) = (dock.send_cq.clone(), dock.recv_cq.clone());
        let srq = Some(dock.pool.srq.clone());
        let qp = hub.pd.create_qp(&QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq, cap, sq_sig_all: false })?;
        let (mut attr, mask) = QpAttr::init(QpType::Rc, path.port_num, RIGHTS);
        attr.pkey_index = hub.pkey_index(path.port_num, link.pkey)?;
        qp.modify(&attr, mask)?;
        let mtu = hub.mtu(path.port_num)?;
        let limit = |most: u32| config.max_rd_atomic.min(u8::try_from(most).unwrap_or(u8::MAX));
        let offer = QpOffer {
            qp_num: qp.qp_num().get(),
            psn,
            gid: std::net::Ipv6Addr::from(path.sgid.0),
            mtu: mtu.bytes(),
            max_dest_rd_atomic: limit(hub.attr.max_qp_rd_atom),
            max_rd_atomic: limit(hub.attr.max_qp_init_rd_atom),
            receive_bytes: dock.pool.bytes,
            receives: dock.pool.receives,
            port: format!("{} port {}", path.device, path.port_num),
            srq_num: None,
            domain: domain as u8,
        };
        link.attach(domain);
        lock(&link.receiver).add(id, domain, qp.qp_num().get());
        let (hub, max_rd_atomic) = (dock.hub.clone(), offer.max_rd_atomic);
        let lane =
            Self { id, domain, hub, qp, path, alternate: None, sgid_index, peer_domain: 0, psn, mtu, max_rd_atomic };
        Ok((lane, offer))
    }

    /// Takes it to RTS towards the peer's QP.
    pub fn ready(&mut self, link: &Link, peer: &QpOffer) -> Result<(), FabricError> {
        let (hub, config) = (&*self.hub, &link.config);
        let peer_mtu =
            Mtu::from_bytes(peer.mtu).ok_or_else(|| FabricError::peer(format!("mtu {} is none", peer.mtu)))?;
        self.mtu = self.mtu.min(peer_mtu);
        (self.path.dgid, self.peer_domain) = (Gid(peer.gid.octets()), peer.domain);
        let av = address_vector(&self.path, self.sgid_index);
        let (mut rtr, mask) = QpAttr::rtr(QpType::Rc, Qpn::new(peer.qp_num), Psn::new(peer.psn), self.mtu, av);
        rtr.max_dest_rd_atomic = config.max_rd_atomic.min(u8::try_from(hub.attr.max_qp_rd_atom).unwrap_or(u8::MAX));
        rtr.min_rnr_timer = config.min_rnr_timer;
        self.qp.modify(&rtr, mask)?;
        self.max_rd_atomic = self.max_rd_atomic.min(peer.max_dest_rd_atomic);
        let (mut rts, mask) = QpAttr::rts(QpType::Rc, Psn::new(self.psn));
        rts.max_rd_atomic = self.max_rd_atomic;
        (rts.timeout, rts.retry_cnt) = (config.timeout, config.retry_cnt);
        self.qp.modify(&rts, mask)?;
        let mut sender = lock(&link.sender);
        sender.bounds.peer_receive_bytes = peer.receive_bytes;
        sender.bounds.max_rd_atomic = self.max_rd_atomic;
        Ok(())
    }

    /// Bytes of its packets.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// How it is posted on.
    pub fn outlet(&self) -> Outlet {
        Outlet {
            lane: self.id,
            domain: self.domain,
            peer_domain: self.peer_domain,
            qp: self.qp.clone(),
            psn: self.psn,
            mtu: self.mtu.bytes(),
            max_rd_atomic: self.max_rd_atomic,
        }
    }

    /// Destroys it. Whatever was posted is gone.
    pub fn destroy(self) {
        let (attr, mask) = QpAttr::error();
        let _ = self.qp.modify(&attr, mask);
        // A handle that is in use for a moment longer keeps it; it is destroyed with the last one.
        let _ = self.qp.destroy();
    }

    /// To ERR, and a marker behind everything that was posted.
    fn fail(&self) -> Result<bool, FabricError> {
        let (attr, mask) = QpAttr::error();
        self.qp.modify(&attr, mask)?;
        let mut wr = SendWr::new(MARKER, SendOp::Send);
        wr.flags = SendFlags::SIGNALED;
        Ok(self.qp.post_send(std::slice::from_ref(&wr)).is_ok())
    }
}

/// The index of a path's GID, now; an error if nothing can be sent by the path.
pub(crate) fn gid_index(hub: &Hub, path: &Path) -> Result<u8, FabricError> {
    if path.device != hub.device {
        return Err(FabricError::misuse(format!(
            "the path is on device {}, the QP on {}: only another QP gets there",
            path.device, hub.device
        )));
    }
    let entry = hub.choose(&Want { gid: Some(path.sgid), port_num: Some(path.port_num), ..Want::default() })?;
    if !hub.is_active(path.port_num) {
        return Err(FabricError::environment(format!("port {} of {} is down", path.port_num, hub.device)));
    }
    u8::try_from(entry.gid_index)
        .map_err(|_| FabricError::environment(format!("GID index {} is beyond 255", entry.gid_index)))
}

pub(crate) fn address_vector(path: &Path, sgid_index: u8) -> AddressVector {
    let mut av = AddressVector::new(path.port_num, sgid_index, path.dgid);
    av.flow_label = path.flow_label;
    av.traffic_class = path.dscp << 2;
    av
}

/// The path of a new lane, and which device it is on.
fn choose_path(hubs: &Hubs, config: &Config, place: &Place) -> Result<(usize, Path), FabricError> {
    if let Some(path) = place.path.as_ref().filter(|path| path.device.is_empty()) {
        // The peer knows only by which address it wants to reach this side.
        let (domain, entry) = on_some(hubs, &Want { gid: Some(path.sgid), ..Want::default() })?;
        let device = hubs.all()[domain].device.clone();
        return Ok((domain, Path { device, port_num: entry.port_num, ..path.clone() }));
    }
    if let Some(path) = &place.path {
        return Ok((hubs.named(&path.device)?, path.clone()));
    }
    let present = place.present.clone().and_then(|path| {
        let domain = hubs.named(&path.device).ok()?;
        let hub = &hubs.all()[domain];
        let same = Want { gid: Some(path.sgid), port_num: Some(path.port_num), ..Want::default() };
        (hub.is_active(path.port_num) && hub.choose(&same).is_ok()).then_some((domain, path))
    });
    if let Some(present) = present {
        return Ok(present);
    }
    let (domain, entry) = on_some(hubs, &Want { peer: place.peer, ..Want::default() })?;
    let path = Path {
        device: hubs.all()[domain].device.clone(),
        port_num: entry.port_num,
        sgid: entry.gid,
        dgid: place.peer.unwrap_or(Gid::ZERO),
        flow_label: 0,
        dscp: config.dscp,
    };
    Ok((domain, path))
}

/// The first device with a GID that means what is wanted, on an active port if any has one. The error is the first device's.
fn on_some(hubs: &Hubs, want: &Want) -> Result<(usize, GidEntry), FabricError> {
    let mut found: Vec<_> = hubs.all().iter().map(|hub| hub.choose(want)).enumerate().collect();
    let active = |(domain, entry): &(usize, Result<GidEntry, FabricError>)| {
        entry.as_ref().is_ok_and(|entry| hubs.all()[*domain].is_active(entry.port_num))
    };
    let best = found.iter().position(active).or_else(|| found.iter().position(|(_, entry)| entry.is_ok()));
    let (domain, entry) = found.swap_remove(best.unwrap_or(0));
    Ok((domain, entry?))
}

/// Other paths that could be taken to the same peer, those of the same device first.
pub(crate) fn alternatives(hubs: &Hubs, path: &Path) -> Vec<Path> {
    let mut all: Vec<Path> = Vec::new();
    for hub in hubs.all() {
        let Ok(table) = hub.gids() else { continue };
        let usable = table.iter().filter(|entry| {
            entry.gid_type == scalefabric_verbs::GidType::RoceV2
                && (entry.gid != path.sgid || hub.device != path.device)
                && entry.gid.is_ipv4() == path.dgid.is_ipv4()
                && super::gid::is_link_local(entry.gid) == super::gid::is_link_local(path.dgid)
        });
        let device = &hub.device;
        all.extend(usable.map(|entry| Path {
            device: device.clone(),
            port_num: entry.port_num,
            sgid: entry.gid,
            ..path.clone()
        }));
    }
    all.sort_by_key(|other| other.device != path.device);
    all
}

/// Stops lanes: to ERR, all completions taken, and what was received counted. Waits for nobody but the device.
pub(crate) async fn stop(
    link: &Link,
    lanes: &[Lane],
    last_receive: impl Fn(&Lane) -> bool,
) -> Result<Drained, FabricError> {
    lock(&link.sender).drop_lane();
    lock(&link.sender).markers = 0;
    let mut markers = 0;
    for lane in lanes {
        markers += usize::from(lane.fail()?);
    }
    let drained = || {
        link.drive()?;
        let sent = lock(&link.sender).markers >= markers;
        Ok::<bool, FabricError>(sent && lanes.iter().all(&last_receive))
    };
    let begun = std::time::Instant::now();
    let mut looks = 0u32;
    while !drained()? {
        looks += 1;
        if looks < 200 {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        // Some backends do not tell of the last receive; what is in the queue after so long is all there is.
        if begun.elapsed() > std::time::Duration::from_millis(300) && lock(&link.sender).markers >= markers {
            break;
        }
        if begun.elapsed() > std::time::Duration::from_secs(5) {
            return Err(FabricError::environment("the device did not flush a QP in ERR within 5 s: open it anew"));
        }
    }
    let mut executed = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let psn = if lane.hub.context.rq_psn_is_executed_prefix() {
            lane.qp.query().ok().map(|(attr, _)| attr.rq_psn.get())
        } else {
            None
        };
        executed.push((lane.id, psn));
    }
    let (received, any) = lock(&link.receiver).stop()?;
    if any {
        for waker in lock(&link.receiver).wakers.drain(..) {
            waker.wake();
        }
        link.bell.ring();
    }
    Ok(Drained { received, executed })
}
