//! What the verbs do inside the engine, under its lock: objects come and go, QPs change state, ports change.
//!
//! Checks of values against the device live here because the tables do; the rules of the state machine are those of
//! `verbs::state`, and what a state means is the transport's business.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use scalefabric_transport::congestion::Profile;
use scalefabric_transport::{self as transport, Counter, DropReason, RecvWqe, Time};
use scalefabric_verbs::limit::{DeviceLimits, check_ah, check_values};
use scalefabric_verbs::state::check_modify;
use scalefabric_verbs::{
    AccessFlags, CongestionState, DeviceAttr, Errno, Gid, Mtu, PKey, QpAttr, QpAttrMask, QpCap, QpState, QpType, Qpn,
    Srqn, VerbsError, WcStatus,
};

use super::apart::Habit;
use super::direct::DirectRoute;
use super::entry::{CqEntry, Late, NO_CQ, QpEntry, QpShared, QpSide, Route, SrqShared};
use super::{Engine, Nic, takes_multicast};
use crate::completion::{Channel, Producer};
use crate::congestion::Chosen;
use crate::events::Events;
use crate::host::{flow_of, make_route};
use crate::memory::{Access, PdId};
use crate::port::Port;
use crate::ring::{RecvRing, SendRing, SharedRecvRing};
use crate::tables::{PortChange, Tables};
use crate::window::Part;

/// What a new QP is made of.
pub(crate) struct NewQp {
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdId,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<Arc<SrqShared>>,
    pub(crate) xrcd: Option<u32>,
    pub(crate) events: Arc<Events>,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) send: Option<SendRing>,
    pub(crate) recv: Option<RecvRing>,
}

/// Limits as `verbs::limit` asks for them.
struct Limits<'a> {
    tables: &'a Tables,
    attr: &'a DeviceAttr,
}

impl DeviceLimits for Limits<'_> {
    fn port_count(&self) -> u8 {
        self.tables.len()
    }
    fn active_mtu(&self, port_num: u8) -> Mtu {
        self.tables.port(port_num).map_or(Mtu::Mtu256, |p| p.mtu())
    }
    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        self.tables.port(port_num)?.pkey(index)
    }
    fn gid(&self, port_num: u8, index: u8) -> Option<Gid> {
        self.tables.port(port_num)?.gid(u32::from(index))
    }
    fn max_qp_rd_atom(&self) -> u32 {
        self.attr.max_qp_rd_atom
    }
    fn max_qp_init_rd_atom(&self) -> u32 {
        self.attr.max_qp_init_rd_atom
    }
}

/// Gives a QP a controller, and lets its packets say that they may be marked.
fn apply_congestion(entry: &mut QpEntry, chosen: &Chosen) -> Result<(), VerbsError> {
    entry
        .transport
        .set_congestion(&chosen.profile, &chosen.fallback, &chosen.route, chosen.burst_bytes)
        .map_err(|e| VerbsError::invalid(e.to_string()))?;
    entry.side.ecn_capable = chosen.profile != Profile::None;
    Ok(())
}

fn gone(what: &str) -> VerbsError {
    VerbsError::invalid(format!("this {what} was destroyed: the handle is stale"))
}

fn full(what: &str, limit: usize) -> VerbsError {
    VerbsError::environment(
        Errno::ENOMEM,
        format!("the device has no more {what}: {limit} are in use; destroy some, or use another device"),
    )
}

impl Engine {
    /// Every QP goes to ERR.
    pub(crate) fn fail_all(&mut self, now: Time, ports: &[Box<dyn Port>]) {
        let (memory, nic) = self.parts();
        for qp in 0..nic.qps.high() {
            nic.with_qp(qp as u16, now, &memory, Some(ports), |entry, host| {
                if entry.transport.state() != QpState::Reset {
                    entry.transport.fail(host, WcStatus::FatalErr);
                }
            });
        }
    }
}

impl Nic {
    pub(crate) fn change_port(&mut self, port_num: u8, change: &PortChange) -> Result<(), VerbsError> {
        let most = self.config.rules.max_mtu;
        let change = &match change {
            PortChange::SetMtu(mtu) => PortChange::SetMtu((*mtu).min(most)),
            // A personality's table may be shorter than the interface has addresses.
            PortChange::AddGid { index: Some(index), .. }
                if self.fabric.tables.port(port_num).is_some_and(|p| u32::from(*index) >= p.gid_table_len()) =>
            {
                return Ok(());
            }
            other => other.clone(),
        };
        let Some(event) = self.fabric.tables.change(port_num, change)? else { return Ok(()) };
        if *change == PortChange::Down {
            self.count(port_num, Counter::LinkDowned, 1);
            let index = usize::from(port_num) - 1;
            let lost = self.fabric.egress[index].discard();
            self.fabric.batches[index].drop_packets(DropReason::PortDown, lost);
        }
        self.fabric.port_event(event, port_num);
        Ok(())
    }

    /// Checks an address vector as `create_ah` needs it, and holds its GID slot.
    pub(crate) fn hold_av(&mut self, av: &scalefabric_verbs::AddressVector) -> Result<(), VerbsError> {
        let limits = Limits { tables: &self.fabric.tables, attr: &self.config.attr };
        check_ah(av, &limits)?;
        self.fabric.tables.hold_gid(av.port_num, av.sgid_index);
        Ok(())
    }

    // ---- completion queues ----

    pub(crate) fn add_cq(
        &mut self,
        producer: Producer,
        channel: Option<Arc<Channel>>,
        events: Arc<Events>,
    ) -> Result<u32, VerbsError> {
        let limit = self.config.attr.max_cq as usize;
        let late = Late { batch_ns: self.config.completion_batch_ns, ..Late::default() };
        let index = self.fabric.cqs.insert(|_| CqEntry { producer, channel, events, users: 0, late });
        self.fabric.late.reserve(2 * self.fabric.cqs.len());
        self.fabric.wakes.reserve(self.fabric.cqs.len().saturating_sub(self.fabric.wakes.len()));
        self.fabric.overruns.reserve(self.fabric.cqs.len());
        index.map(|i| i as u32).ok_or_else(|| full("completion queues", limit))
    }

    pub(crate) fn resize_cq(&mut self, cq: u32, cqe: u32) -> Result<(), VerbsError> {
        if !self.config.rules.resize_cq {
            return Err(VerbsError::misuse(Errno::EOPNOTSUPP, "completion queues of this device keep their size"));
        }
        let entry = self.fabric.cqs.get_mut(cq as usize).ok_or_else(|| gone("completion queue"))?;
        let held = entry.producer.ring().len();
        if entry.producer.resize(cqe) {
            return Ok(());
        }
        Err(VerbsError::invalid(format!(
            "cannot resize to {cqe} entries: {held} completions wait in the queue; poll first"
        )))
    }

    /// Moderates a CQ's events.
    pub(crate) fn moderate_cq(&mut self, cq: u32, count: u16, period_us: u16) -> Result<(), VerbsError> {
        let (most, longest) = (self.config.attr.max_cq_count, self.config.attr.max_cq_period);
        if (most, longest) == (0, 0) {
            return Err(VerbsError::misuse(
                Errno::EOPNOTSUPP,
                "this device does not moderate events (max_cq_count is 0)",
            ));
        }
        if count > most || period_us > longest {
            return Err(VerbsError::invalid(format!(
                "moderation of {count} completions and {period_us} us: the device has at most {most} and {longest}"
            )));
        }
        self.fabric.moderate(cq, count, u64::from(period_us) * 1000);
        Ok(())
    }

    /// Who opened an XRC target QP by its number hears of it, too.
    pub(crate) fn listen_to_qp(&mut self, qp: u16, events: &Arc<Events>, add: bool) {
        if let Some(entry) = self.qps.get_mut(usize::from(qp)) {
            let more = &mut entry.side.more_events;
            match (add, more.iter().position(|e| Arc::ptr_eq(e, events))) {
                (true, _) => more.push(events.clone()),
                (false, Some(place)) => drop(more.swap_remove(place)),
                (false, None) => {}
            }
        }
    }

    pub(crate) fn remove_cq(&mut self, cq: u32) -> Result<CqEntry, VerbsError> {
        let entry = self.fabric.cqs.get(cq as usize).ok_or_else(|| gone("completion queue"))?;
        if entry.users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("completion queue {cq} is used by {} QPs or SRQs: destroy them first", entry.users),
            ));
        }
        self.fabric.cqs.remove(cq as usize).ok_or_else(|| gone("completion queue"))
    }

    fn use_cq(&mut self, cq: u32, add: bool) {
        if let Some(entry) = self.fabric.cqs.get_mut(cq as usize) {
            entry.users = if add { entry.users + 1 } else { entry.users.saturating_sub(1) };
        }
    }

    // ---- shared receive queues ----

    pub(crate) fn add_srq(
        &mut self,
        pd: PdId,
        xrc: Option<(u32, u32)>,
        events: Arc<Events>,
        ring: impl FnOnce(Srqn) -> SharedRecvRing,
    ) -> Result<Arc<SrqShared>, VerbsError> {
        let slot = u32::from(self.config.slot) << 16;
        let limit = self.config.attr.max_srq as usize;
        let index = self.fabric.srqs.insert(|index| {
            let srqn = Srqn::new(slot | index as u32);
            Arc::new(SrqShared { srqn, ring: ring(srqn), pd, xrc, events, users: AtomicU32::new(0) })
        });
        let index = index.ok_or_else(|| full("shared receive queues", limit))?;
        if let Some((_, cq)) = xrc {
            self.use_cq(cq, true);
        }
        self.fabric.srqs.get(index).cloned().ok_or_else(|| gone("shared receive queue"))
    }

    pub(crate) fn remove_srq(&mut self, srqn: Srqn) -> Result<(), VerbsError> {
        let srq = self.fabric.srqs.remove(srqn.get() as usize & 0xffff).ok_or_else(|| gone("shared receive queue"))?;
        if let Some((_, cq)) = srq.xrc {
            self.use_cq(cq, false);
        }
        Ok(())
    }

    // ---- queue pairs ----

    pub(crate) fn add_qp(&mut self, new: NewQp) -> Result<Arc<QpShared>, VerbsError> {
        for cq in [new.send_cq, new.recv_cq] {
            if cq != NO_CQ && self.fabric.cqs.get(cq as usize).is_none() {
                return Err(gone("completion queue"));
            }
        }
        let slot = u32::from(self.config.slot) << 16;
        let transport_config = self.config.transport;
        let limit = self.config.attr.max_qp as usize;
        let index = self.qps.insert(|index| {
            let qpn = Qpn::new(slot | index as u32);
            let shared = QpShared::new(qpn, new.qp_type, new.cap, new.sq_sig_all, new.send, new.recv);
            Box::new(QpEntry {
                transport: transport::QueuePair::new(new.qp_type, qpn, transport_config),
                side: QpSide {
                    shared: Arc::new(shared),
                    pd: new.pd,
                    send_cq: new.send_cq,
                    recv_cq: new.recv_cq,
                    srq: new.srq,
                    xrcd: new.xrcd,
                    events: new.events,
                    more_events: Vec::new(),
                    routes: [Route::none(); 2],
                    port_num: 1,
                    held_gids: [None; 2],
                    srq_taken: None,
                    part: Part::default(),
                    cq_overrun: false,
                    ecn_capable: false,
                    congestion_named: false,
                    direct: DirectRoute::Unknown,
                    direct_requests: 0,
                    heard_in_rtr: false,
                },
                touched: false,
                batch: 0,
                wake_at: None,
                groups: 0,
                habit: Habit::default(),
            })
        });
        let index = index.ok_or_else(|| full("queue pairs", limit))?;
        if let Some(faults) = &self.fabric.faults {
            faults.watch().made(Qpn::new(slot | index as u32));
        }
        self.use_cq(new.send_cq, true);
        self.use_cq(new.recv_cq, true);
        self.run.grow(self.qps.high());
        self.timers.grow(self.qps.high());
        self.fabric.windows.grow(self.qps.high());
        self.touched.reserve(self.qps.len());
        self.recent.reserve(self.qps.len());
        self.qps.get(index).map(|entry| entry.side.shared.clone()).ok_or_else(|| gone("queue pair"))
    }

    pub(crate) fn query_qp(&self, qp: u16) -> Result<QpAttr, VerbsError> {
        let entry = self.qps.get(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        let attr = entry.transport.query();
        // What its peer has executed by itself counts as received.
        let rq_psn = attr.rq_psn.add(self.executed_psns(qp));
        Ok(QpAttr { cap: entry.side.shared.cap, rq_psn, ..attr })
    }

    pub(crate) fn losses(&self, qp: u16) -> Option<u64> {
        Some(self.qps.get(usize::from(qp))?.transport.losses())
    }

    pub(crate) fn modify_qp(
        &mut self,
        qp: u16,
        now: Time,
        memory: &Access<'_>,
        ports: &[Box<dyn Port>],
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), VerbsError> {
        let current = self.query_qp(qp)?;
        let mut attr = *attr;
        if !self.config.rules.has_atomics() {
            // Connection managers give the right whether there are atomics or not; what nobody can use is not granted.
            attr.qp_access_flags -= AccessFlags::REMOTE_ATOMIC;
        }
        let attr = &attr;
        let entry = self.qps.get(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        let qp_type = entry.side.shared.qp_type;
        let to = check_modify(qp_type, current.qp_state, attr, mask)?;
        let limits = Limits { tables: &self.fabric.tables, attr: &self.config.attr };
        check_values(qp_type, &current, attr, mask, &limits)?;
        if (current.qp_state, to) == (QpState::Init, QpState::Rtr) && qp_type != QpType::Ud {
            self.choose_congestion(qp, attr, mask)?;
        }
        self.with_qp(qp, now, memory, Some(ports), |entry, host| entry.transport.modify(host, attr, mask))
            .ok_or_else(|| gone("queue pair"))??;
        if to == QpState::Reset {
            self.reset_qp(qp, memory);
        } else {
            self.route_qp(qp, ports);
            self.renew_gate(qp);
            // RTS, or back from SQD or SQE: what was posted meanwhile goes on now.
            self.run.push(qp);
        }
        Ok(())
    }

    /// INIT to RTR: the QP gets the congestion controller that the configuration has for its peer, unless its owner named one.
    fn choose_congestion(&mut self, qp: u16, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let entry = self.qps.get_mut(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        if entry.side.congestion_named || !mask.contains(QpAttrMask::AV) {
            return Ok(());
        }
        let port_num = entry.transport.query().port_num;
        let speed = self.fabric.tables.port(port_num).map_or(0, |port| port.speed_mbps());
        let chosen = self.config.congestion.choose(&attr.ah_attr, speed, attr.path_mtu)?;
        apply_congestion(entry, &chosen)
    }

    /// The QP's owner names its congestion control, before RTR.
    pub(crate) fn set_congestion(&mut self, qp: u16, name: &str) -> Result<(), VerbsError> {
        let entry = self.qps.get_mut(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        let attr = entry.transport.query();
        let speed = self.fabric.tables.port(attr.port_num.max(1)).map_or(0, |port| port.speed_mbps());
        let chosen = self.config.congestion.choose_named(name, speed, Mtu::Mtu1024)?;
        apply_congestion(entry, &chosen)?;
        entry.side.congestion_named = true;
        Ok(())
    }

    /// A QP's congestion controller as it stands.
    pub(crate) fn congestion(&self, qp: u16) -> Option<CongestionState> {
        self.qps.get(usize::from(qp))?.transport.congestion()
    }

    /// Makes the routes of a QP from its attributes and holds their GID slots.
    fn route_qp(&mut self, qp: u16, ports: &[Box<dyn Port>]) {
        let Some(entry) = self.qps.get_mut(usize::from(qp)) else { return };
        let attr = entry.transport.query();
        let side = &mut entry.side;
        if attr.port_num != 0 {
            side.port_num = attr.port_num;
        }
        let paths = [(attr.ah_attr, attr.port_num), (attr.alt_ah_attr, attr.alt_port_num)];
        for (which, (mut av, port_num)) in paths.into_iter().enumerate() {
            let was = side.held_gids[which].take();
            if !av.dgid.is_zero() && side.shared.qp_type != QpType::Ud {
                if port_num != 0 {
                    av.port_num = port_num;
                }
                if side.routes[which].av != av || side.routes[which].way.is_none() {
                    let flow = flow_of(&av, side.shared.qpn, attr.dest_qp_num);
                    side.routes[which] = make_route(&mut self.fabric, Some(ports), &av, flow);
                    side.routes[which].set_ecn(side.ecn_capable);
                    if which == 0 {
                        self.fabric.windows.lead(&mut side.part, av.dgid);
                    }
                }
                self.fabric.tables.hold_gid(av.port_num, av.sgid_index);
                side.held_gids[which] = Some((av.port_num, av.sgid_index));
            }
            if let Some((port_num, index)) = was {
                self.fabric.tables.release_gid(port_num, index);
            }
        }
    }

    /// A QP in RESET has nothing: no WQEs, no completions (clause 10.2.4.4), no path.
    fn reset_qp(&mut self, qp: u16, memory: &Access<'_>) {
        self.run.remove(qp);
        self.timers.remove(qp);
        self.fabric.windows.remove(qp);
        self.reset_gate(qp);
        let Some(entry) = self.qps.get_mut(usize::from(qp)) else { return };
        entry.wake_at = None;
        let side = &mut entry.side;
        for (port_num, index) in side.held_gids.iter_mut().filter_map(Option::take) {
            self.fabric.tables.release_gid(port_num, index);
        }
        side.routes = [Route::none(); 2];
        self.fabric.windows.settle(&mut side.part, 0);
        // Windows of type 2 were tied to it, and its number may come again.
        memory.forget_qp(side.shared.qpn);
        if let Some(RecvWqe { slot, srq: Some(srqn), .. }) = side.srq_taken.take()
            && let Some(srq) = self.fabric.srqs.get(srqn.get() as usize & 0xffff)
        {
            srq.ring.free(slot);
        }
        for cq in [side.send_cq, side.recv_cq] {
            if let Some(cq) = self.fabric.cqs.get_mut(cq as usize) {
                cq.producer.forget_qp(side.shared.qpn);
            }
        }
        if let Some(ring) = &side.shared.send {
            ring.reset();
        }
        if let Some(ring) = &side.shared.recv {
            ring.reset();
        }
    }

    /// Whether a QP may go.
    pub(crate) fn check_removal(&self, qp: u16) -> Result<(), VerbsError> {
        let entry = self.qps.get(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        if entry.groups > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the QP is attached to {} multicast groups: detach it first", entry.groups),
            ));
        }
        Ok(())
    }

    pub(crate) fn remove_qp(
        &mut self,
        qp: u16,
        now: Time,
        memory: &Access<'_>,
        ports: &[Box<dyn Port>],
    ) -> Result<(), VerbsError> {
        self.check_removal(qp)?;
        let entry = self.qps.get(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        // To RESET first: an SRQ's WQE in the middle of a message goes back, and nothing of the QP is left in its CQs.
        let reset = QpAttr { qp_state: QpState::Reset, ..entry.transport.query() };
        let _ = self.with_qp(qp, now, memory, Some(ports), |entry, host| {
            entry.transport.modify(host, &reset, QpAttrMask::STATE)
        });
        self.reset_qp(qp, memory);
        if let Some(entry) = self.qps.remove(usize::from(qp)) {
            if let Some(faults) = &self.fabric.faults {
                faults.watch().removed(entry.side.shared.qpn);
            }
            self.use_cq(entry.side.send_cq, false);
            self.use_cq(entry.side.recv_cq, false);
        }
        for (of, route) in self.fabric.datagrams.iter_mut() {
            if of.get() & 0xffff == u32::from(qp) {
                route.generation = 0;
            }
        }
        Ok(())
    }

    /// A fault from outside: the QP goes to ERR as if the device had failed under it.
    pub(crate) fn fail_qp(
        &mut self,
        qp: u16,
        now: Time,
        memory: &Access<'_>,
        ports: &[Box<dyn Port>],
        status: WcStatus,
    ) -> Result<(), VerbsError> {
        self.with_qp(qp, now, memory, Some(ports), |entry, host| entry.transport.fail(host, status))
            .ok_or_else(|| gone("queue pair"))
    }

    // ---- multicast ----

    pub(crate) fn attach(&mut self, qp: u16, group: Gid, ports: &mut [Box<dyn Port>]) -> Result<(), VerbsError> {
        let entry = self.qps.get(usize::from(qp)).ok_or_else(|| gone("queue pair"))?;
        let shared = &entry.side.shared;
        if !takes_multicast(shared.qp_type) {
            return Err(VerbsError::invalid(format!(
                "only UD QPs join multicast groups; this one is {}",
                shared.qp_type.as_str()
            )));
        }
        if !group.is_multicast() {
            return Err(VerbsError::invalid(format!("{group} is no multicast address (ff00::/8 or 224.0.0.0/4)")));
        }
        if shared.state() == QpState::Reset {
            return Err(VerbsError::invalid("the QP is in RESET and has no port yet: take it to INIT first"));
        }
        let port_num = entry.side.port_num;
        let limits = &self.config.attr;
        if limits.max_mcast_grp == 0 {
            return Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device has no multicast (max_mcast_grp is 0)"));
        }
        let place = self.groups.iter().position(|(p, g, _)| *p == port_num && *g == group);
        let attached: usize = self.groups.iter().map(|(_, _, members)| members.len()).sum();
        let again = place.is_some_and(|place| self.groups[place].2.contains(&qp));
        if !again && attached >= limits.max_total_mcast_qp_attach as usize {
            return Err(full("places in multicast groups (max_total_mcast_qp_attach)", attached));
        }
        match place {
            Some(place) => {
                let members = &self.groups[place].2;
                // Attaching twice changes nothing (clause 11.3.1).
                if members.contains(&qp) {
                    return Ok(());
                }
                if members.len() >= limits.max_mcast_qp_attach as usize {
                    return Err(full("places in this multicast group", members.len()));
                }
                self.groups[place].2.push(qp);
            }
            None => {
                if self.groups.len() >= limits.max_mcast_grp as usize {
                    return Err(full("multicast groups", self.groups.len()));
                }
                ports[usize::from(port_num) - 1].join(group.to_ip()).map_err(|e| {
                    VerbsError::environment(
                        Errno::from_raw(e.raw_os_error().unwrap_or(0)).unwrap_or(Errno::EINVAL),
                        format!("port {port_num} cannot join {group}: {e}"),
                    )
                })?;
                self.groups.push((port_num, group, vec![qp]));
            }
        }
        if let Some(entry) = self.qps.get_mut(usize::from(qp)) {
            entry.groups += 1;
        }
        Ok(())
    }

    pub(crate) fn detach(&mut self, qp: u16, group: Gid, ports: &mut [Box<dyn Port>]) -> Result<(), VerbsError> {
        let place = self
            .groups
            .iter()
            .position(|(_, g, members)| *g == group && members.contains(&qp))
            .ok_or_else(|| VerbsError::invalid(format!("the QP is not attached to {group}")))?;
        let (port_num, _, members) = &mut self.groups[place];
        let port_num = *port_num;
        members.retain(|&m| m != qp);
        if members.is_empty() {
            self.groups.swap_remove(place);
            // The interface may be gone with all its memberships; then there is nothing to leave.
            let _ = ports[usize::from(port_num) - 1].leave(group.to_ip());
        }
        if let Some(entry) = self.qps.get_mut(usize::from(qp)) {
            entry.groups -= 1;
        }
        Ok(())
    }

    /// Groups of a QP, for its owner's drop.
    pub(crate) fn groups_of(&self, qp: u16) -> Vec<Gid> {
        self.groups.iter().filter(|(_, _, members)| members.contains(&qp)).map(|(_, g, _)| *g).collect()
    }
}
