//! What a process has on a device, as plain data for tools: iproute2's `rdma resource show`, `sfab res`, a file tree that looks
//! like sysfs. Nothing here is on the data path: it is collected when somebody asks.
//!
//! Numbers of PDs, CQs, regions, contexts and connection identifiers count in each process by themselves. Here they carry the process's slot in their
//! upper 8 bits, so that they name one object of the whole device; numbers of QPs and SRQs do so by birth.

use std::net::SocketAddr;
use std::sync::Arc;

use scalefabric_verbs::Qpn;
use serde::{Deserialize, Serialize};

use crate::cm;
use crate::engine::Nic;
use crate::engine::drive::Core;
use crate::engine::entry::NO_CQ;
use crate::events::Events;
use crate::host::NO_PD;

/// An open device: a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CtxResource {
    /// Number.
    pub ctxn: u32,
}

/// A protection domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PdResource {
    /// Number.
    pub pdn: u32,
    /// The context that made it.
    pub ctxn: u32,
    /// Regions, windows, QPs, SRQs and address handles.
    pub users: u32,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqResource {
    /// Number.
    pub cqn: u32,
    /// The context that made it.
    pub ctxn: u32,
    /// Entries.
    pub cqe: u32,
    /// Queues that complete here: send queue and receive queue of a QP are two.
    pub users: u32,
    /// It has a completion channel.
    pub has_channel: bool,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrResource {
    /// Number.
    pub mrn: u32,
    /// Its PD.
    pub pdn: u32,
    /// Bytes.
    pub mrlen: u64,
    /// Address by which peers name the first byte.
    pub iova: u64,
    /// Keys: rkey and lkey are the same number.
    pub key: u32,
    /// `ibv_access_flags`.
    pub access: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqResource {
    /// Number.
    pub srqn: u32,
    /// `ibv_srq_type`: 0 basic, 1 XRC.
    pub srq_type: u32,
    /// The context that made it.
    pub ctxn: u32,
    /// Its PD.
    pub pdn: u32,
    /// XRC: the CQ of its completions.
    pub cqn: Option<u32>,
    /// WRs it holds.
    pub max_wr: u32,
    /// QPNs of those that take from it.
    pub qpns: Vec<u32>,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpResource {
    /// Number.
    pub lqpn: u32,
    /// The peer's; `None` for what is not connected.
    pub rqpn: Option<u32>,
    /// `ibv_qp_type`.
    pub qp_type: u32,
    /// `ibv_qp_state`.
    pub state: u32,
    /// PSN of the next packet that it sends.
    pub sq_psn: u32,
    /// PSN that it expects.
    pub rq_psn: u32,
    /// `ibv_mig_state`.
    pub path_mig_state: u32,
    /// Port, from 1; 0 while it has none.
    pub port_num: u8,
    /// The context that made it.
    pub ctxn: u32,
    /// PD; `None` for an XRC target.
    pub pdn: Option<u32>,
    /// CQ of the send queue.
    pub send_cqn: Option<u32>,
    /// CQ of the receive queue.
    pub recv_cqn: Option<u32>,
    /// Its SRQ.
    pub srqn: Option<u32>,
    /// The peer's address.
    pub remote: Option<std::net::IpAddr>,
    /// It knows the way to its peer's memory: one-sided requests are executed without packets.
    #[serde(default)]
    pub is_direct: bool,
    /// Its requests that were, since it was made.
    #[serde(default)]
    pub direct_requests: u64,
}

/// A connection identifier of the communication manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmIdResource {
    /// Number.
    pub cm_idn: u32,
    /// Its QP: the one that is connected to the peer's.
    pub lqpn: Option<u32>,
    /// The peer's QP.
    pub rqpn: Option<u32>,
    /// `ibv_qp_type`.
    pub qp_type: u32,
    /// State as Linux counts (`enum rdma_cm_state`): 0 idle, 1 address query, 2 address resolved, 3 route query, 4 route
    /// resolved, 5 connect, 6 disconnect, 7 address bound, 8 listen.
    pub state: u32,
    /// Port space (`enum rdma_ucm_port_space`): 0x106 TCP, 0x111 UDP, 0x13f IB.
    pub ps: u32,
    /// Port of the device, from 1; 0 unbound.
    pub port_num: u8,
    /// Own address.
    pub src: Option<SocketAddr>,
    /// The peer's address.
    pub dst: Option<SocketAddr>,
}

/// Another process of the device, as this one reaches its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourReport {
    /// Its slot.
    pub slot: u8,
    /// Its process, if it has a number here.
    pub pid: Option<u32>,
    /// Why memory that its NIC has allocated is not reached by mapping; `None`: it is.
    pub no_mapping: Option<String>,
    /// Why its other memory is not reached by `process_vm_readv` and `process_vm_writev`; `None`: the kernel lets us.
    pub no_process_vm: Option<String>,
}

/// Which way a process's one-sided requests to QPs of the same host go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SameHostReport {
    /// Why all of them are packets; `None`: the process executes them itself.
    pub packets_because: Option<String>,
    /// The other processes of the device.
    pub neighbours: Vec<NeighbourReport>,
}

/// All that a process has on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Contexts.
    pub ctxs: Vec<CtxResource>,
    /// Protection domains.
    pub pds: Vec<PdResource>,
    /// Completion queues.
    pub cqs: Vec<CqResource>,
    /// Memory regions.
    pub mrs: Vec<MrResource>,
    /// Shared receive queues.
    pub srqs: Vec<SrqResource>,
    /// Queue pairs.
    pub qps: Vec<QpResource>,
    /// Connection identifiers.
    pub cm_ids: Vec<CmIdResource>,
    /// Which way its requests to this host go.
    pub same_host: SameHostReport,
}

/// A number that names one object of the device.
fn wide(slot: u8, number: u32) -> u32 {
    u32::from(slot) << 24 | (number & 0x00ff_ffff)
}

impl Core {
    /// What this process has on the device now.
    pub fn resources(&self) -> Resources {
        let slot = self.config().slot;
        let mut all = Resources {
            pds: self.registry().live_pds(),
            mrs: self.memory().regions(),
            cm_ids: cm::list(self),
            ..Resources::default()
        };
        self.lock().engine.nic().list(&mut all);
        for id in all.cm_ids.iter_mut().filter(|id| id.rqpn.is_some()) {
            id.lqpn = all.qps.iter().find(|qp| qp.rqpn == id.rqpn).map(|qp| qp.lqpn);
        }
        all.cm_ids.iter_mut().for_each(|id| id.cm_idn = wide(slot, id.cm_idn));
        for pd in &mut all.pds {
            (pd.pdn, pd.ctxn) = (wide(slot, pd.pdn), wide(slot, pd.ctxn));
        }
        for mr in &mut all.mrs {
            (mr.mrn, mr.pdn) = (wide(slot, mr.mrn), wide(slot, mr.pdn));
        }
        all
    }
}

impl Nic {
    /// Adds what the engine knows.
    fn list(&mut self, all: &mut Resources) {
        let slot = self.config.slot;
        let contexts: Vec<(u32, Arc<Events>)> = self.fabric.listeners.numbered().collect();
        let ctxn = |events: &Arc<Events>| {
            let found = contexts.iter().find(|(_, e)| Arc::ptr_eq(e, events));
            found.map_or(0, |(number, _)| wide(slot, *number))
        };
        let cqn = |number: u32| (number != NO_CQ).then(|| wide(slot, number));
        all.ctxs = contexts.iter().map(|(number, _)| CtxResource { ctxn: wide(slot, *number) }).collect();
        for (number, cq) in self.fabric.cqs.iter_mut() {
            all.cqs.push(CqResource {
                cqn: wide(slot, number as u32),
                ctxn: ctxn(&cq.events),
                cqe: cq.producer.capacity(),
                users: cq.users,
                has_channel: cq.channel.is_some(),
            });
        }
        for (_, srq) in self.fabric.srqs.iter_mut() {
            all.srqs.push(SrqResource {
                srqn: srq.srqn.get(),
                srq_type: u32::from(srq.xrc.is_some()),
                ctxn: ctxn(&srq.events),
                pdn: wide(slot, srq.pd.0),
                cqn: srq.xrc.and_then(|(_, cq)| cqn(cq)),
                max_wr: srq.ring.capacity(),
                qpns: Vec::new(),
            });
        }
        for (_, entry) in self.qps.iter_mut() {
            let (side, attr) = (&entry.side, entry.transport.query());
            let srqn = side.srq.as_ref().map(|srq| srq.srqn.get());
            if let Some(srq) = all.srqs.iter_mut().find(|srq| Some(srq.srqn) == srqn) {
                srq.qpns.push(side.shared.qpn.get());
            }
            all.qps.push(QpResource {
                lqpn: side.shared.qpn.get(),
                rqpn: (attr.dest_qp_num != Qpn::new(0)).then(|| attr.dest_qp_num.get()),
                qp_type: side.shared.qp_type as u32,
                state: attr.qp_state as u32,
                sq_psn: attr.sq_psn.get(),
                rq_psn: attr.rq_psn.get(),
                path_mig_state: attr.path_mig_state as u32,
                port_num: attr.port_num,
                ctxn: ctxn(&side.events),
                pdn: (side.pd != NO_PD).then(|| wide(slot, side.pd.0)),
                send_cqn: cqn(side.send_cq),
                recv_cqn: cqn(side.recv_cq),
                srqn,
                remote: (!attr.ah_attr.dgid.is_zero()).then(|| attr.ah_attr.dgid.to_ip()),
                is_direct: side.shared.is_direct(),
                direct_requests: side.direct_requests,
            });
        }
    }
}
