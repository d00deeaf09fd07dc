//! What the RDMA part of the kernel answers (`rdma/rdma_netlink.h`, RDMA_NL_NLDEV): devices, ports, what processes have,
//! counters. The data are those of a survey of the shared device, so that every process of it is seen.

use std::net::SocketAddr;

use scalefabric_nic::discovery::DevicePlan;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_nic::survey::{DeviceSurvey, Member, PortSurvey};
use scalefabric_verbs::PortState;

use super::message::{ACK, DUMP, MULTI, Message, Request};
use crate::tree;

/// RDMA_NL_NLDEV in the upper bits of a message's type.
const NLDEV: u16 = 5;

/// Commands (`enum rdma_nldev_command`).
mod command {
    pub const GET: u16 = 1;
    pub const PORT_GET: u16 = 5;
    pub const SYS_GET: u16 = 6;
    pub const RES_GET: u16 = 9;
    pub const RES_QP_GET: u16 = 10;
    pub const RES_CM_ID_GET: u16 = 11;
    pub const RES_CQ_GET: u16 = 12;
    pub const RES_MR_GET: u16 = 13;
    pub const RES_PD_GET: u16 = 14;
    pub const GET_CHARDEV: u16 = 15;
    pub const STAT_GET: u16 = 17;
    pub const RES_CTX_GET: u16 = 22;
    pub const RES_SRQ_GET: u16 = 23;
}

/// Attributes (`enum rdma_nldev_attr`). Each table of resources is followed by the attribute of its entries.
mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_RQ_PSN: u16 = 23;
    pub const RES_SQ_PSN: u16 = 24;
    pub const RES_PATH_MIG_STATE: u16 = 25;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_KERN_NAME: u16 = 29;
    pub const RES_CM_ID: u16 = 30;
    pub const RES_PS: u16 = 32;
    pub const RES_SRC_ADDR: u16 = 33;
    pub const RES_DST_ADDR: u16 = 34;
    pub const RES_CQ: u16 = 35;
    pub const RES_CQE: u16 = 37;
    pub const RES_USECNT: u16 = 38;
    pub const RES_MR: u16 = 40;
    pub const RES_RKEY: u16 = 42;
    pub const RES_LKEY: u16 = 43;
    pub const RES_IOVA: u16 = 44;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CM_IDN: u16 = 63;
    pub const RES_CTXN: u16 = 64;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const CHARDEV_NAME: u16 = 70;
    pub const CHARDEV_ABI: u16 = 71;
    pub const CHARDEV: u16 = 72;
    pub const STAT_RES: u16 = 75;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub const RES_CTX: u16 = 86;
    pub const RES_SRQ: u16 = 88;
    pub const RES_SRQN: u16 = 90;
    pub const COPY_ON_FORK: u16 = 93;
}

/// Bytes of a message that readers have room for: a page, less what the kernel leaves free of it.
const ROOM: usize = 3_700;

/// What a request becomes: messages to send, or an errno.
type Answer = Result<Vec<Vec<u8>>, i32>;

/// The datagrams that answer a request.
pub fn answer(provider: &SoftwareProvider, request: &Request<'_>) -> Vec<Vec<u8>> {
    let is_dump = request.flags & DUMP == DUMP;
    let answers = if request.kind >> 10 == NLDEV { nldev(provider, request, is_dump) } else { Err(libc::EOPNOTSUPP) };
    match answers {
        Err(errno) => vec![Message::outcome(errno, request)],
        Ok(mut messages) => {
            if is_dump {
                messages.push(Message::done(request));
            } else if request.flags & ACK != 0 {
                messages.push(Message::outcome(0, request));
            }
            messages
        }
    }
}

fn nldev(provider: &SoftwareProvider, request: &Request<'_>, is_dump: bool) -> Answer {
    let command = request.kind & 0x3ff;
    match command {
        command::SYS_GET => return Ok(vec![system(request)]),
        command::GET_CHARDEV => return character_device(provider, request),
        _ => {}
    }
    let plans = plans(provider, request, is_dump)?;
    let survey = |plan: &DevicePlan| tree::state::survey(provider, plan);
    let mut messages = Vec::new();
    for plan in &plans {
        match command {
            command::GET => messages.push(device(provider, plan, request, is_dump)),
            command::PORT_GET => ports(&survey(plan), request, is_dump, &mut messages)?,
            command::RES_GET => messages.push(summary(&survey(plan), request, is_dump)),
            command::STAT_GET if request.attribute(attr::STAT_RES).is_some() => {
                // Counters bound to single QPs and MRs: there are none.
                if !is_dump {
                    return Err(libc::EOPNOTSUPP);
                }
            }
            command::STAT_GET => statistic(&survey(plan), request, is_dump, &mut messages)?,
            _ => match Kind::of(command) {
                Some(kind) => resources(kind, &survey(plan), request, is_dump, &mut messages)?,
                None => return Err(libc::EOPNOTSUPP),
            },
        }
    }
    Ok(messages)
}

/// The devices that a request is about: the named one, or all for a dump that names none.
fn plans(provider: &SoftwareProvider, request: &Request<'_>, is_dump: bool) -> Result<Vec<DevicePlan>, i32> {
    let all = provider.plans().map_err(|_| libc::EIO)?;
    match request.attribute_u32(attr::DEV_INDEX) {
        Some(index) => match all.into_iter().find(|plan| plan.info.index == index) {
            Some(plan) => Ok(vec![plan]),
            None => Err(libc::EINVAL),
        },
        None if is_dump => Ok(all),
        None => Err(libc::EINVAL),
    }
}

/// An answer about a device, which names it.
fn about(plan: &DevicePlan, request: &Request<'_>, is_dump: bool) -> Message {
    let mut message = Message::new(request.kind, if is_dump { MULTI } else { 0 }, request);
    message.put_u32(attr::DEV_INDEX, plan.info.index);
    message.put_text(attr::DEV_NAME, &plan.info.name);
    message
}

fn system(request: &Request<'_>) -> Vec<u8> {
    let mut message = Message::new(request.kind, 0, request);
    // A device belongs to one network name space.
    message.put_u8(attr::NETNS_MODE, 0);
    message.put_u8(attr::COPY_ON_FORK, 1);
    message.finish()
}

/// Numbers of device nodes: `uverbs` of a device, or `rdma_cm`.
fn character_device(provider: &SoftwareProvider, request: &Request<'_>) -> Answer {
    let (name, abi, number) = match request.attribute_text(attr::CHARDEV_TYPE) {
        Some("rdma_cm") => ("rdma_cm".to_owned(), 4, tree::rdma_cm_device()),
        Some("uverbs") => {
            let index = plans(provider, request, false)?.first().map(|plan| plan.info.index).ok_or(libc::EINVAL)?;
            (tree::state::uverbs(index), 1, tree::uverbs_device(index))
        }
        _ => return Err(libc::EOPNOTSUPP),
    };
    let mut message = Message::new(request.kind, 0, request);
    message.put_u64(attr::CHARDEV, number);
    message.put_u64(attr::CHARDEV_ABI, abi);
    message.put_text(attr::CHARDEV_NAME, &name);
    Ok(vec![message.finish()])
}

fn device(provider: &SoftwareProvider, plan: &DevicePlan, request: &Request<'_>, is_dump: bool) -> Vec<u8> {
    let attributes = provider.attr(plan);
    let mut message = about(plan, request, is_dump);
    message.put_u32(attr::PORT_INDEX, plan.ports.len() as u32);
    message.put_u64(attr::CAP_FLAGS, attributes.device_cap_flags.into());
    message.put_text(attr::FW_VERSION, &attributes.fw_ver);
    message.put_u64(attr::NODE_GUID, attributes.node_guid);
    message.put_u64(attr::SYS_IMAGE_GUID, attributes.sys_image_guid);
    message.put_u8(attr::DEV_NODE_TYPE, 1);
    message.put_text(attr::DEV_PROTOCOL, "roce");
    message.finish()
}

/// The ports that a request is about.
fn chosen(survey: &DeviceSurvey, request: &Request<'_>, is_dump: bool) -> Result<Vec<PortSurvey>, i32> {
    let mut ports = survey.ports().map_err(|_| libc::EIO)?;
    match request.attribute_u32(attr::PORT_INDEX) {
        Some(number) => ports.retain(|port| u32::from(port.port_num) == number),
        None if is_dump => return Ok(ports),
        None => return Err(libc::EINVAL),
    }
    if ports.is_empty() { Err(libc::EINVAL) } else { Ok(ports) }
}

fn ports(survey: &DeviceSurvey, request: &Request<'_>, is_dump: bool, into: &mut Vec<Vec<u8>>) -> Result<(), i32> {
    for port in chosen(survey, request, is_dump)? {
        let is_active = port.state == PortState::Active;
        let mut message = about(&survey.plan, request, is_dump);
        message.put_u32(attr::PORT_INDEX, port.port_num.into());
        message.put_u64(attr::CAP_FLAGS, (1 << 16) | (1 << 26));
        message.put_u8(attr::PORT_STATE, if is_active { 4 } else { 1 });
        message.put_u8(attr::PORT_PHYS_STATE, if is_active { 5 } else { 3 });
        if port.ifindex != 0 {
            message.put_u32(attr::NDEV_INDEX, port.ifindex);
            message.put_text(attr::NDEV_NAME, &port.interface);
        }
        into.push(message.finish());
    }
    Ok(())
}

fn statistic(survey: &DeviceSurvey, request: &Request<'_>, is_dump: bool, into: &mut Vec<Vec<u8>>) -> Result<(), i32> {
    for port in chosen(survey, request, is_dump)? {
        let mut message = about(&survey.plan, request, is_dump);
        message.put_u32(attr::PORT_INDEX, port.port_num.into());
        let table = message.open(attr::STAT_HWCOUNTERS);
        // All counters do not fit a reader's buffer. Reasons of drops that never happened are what can be missed.
        for (name, value) in port.counters.iter().filter(|(name, value)| *value != 0 || !name.starts_with("drop_")) {
            if message.len() > ROOM {
                break;
            }
            message.nest(attr::STAT_HWCOUNTER_ENTRY, |entry| {
                entry.put_text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                entry.put_u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, *value);
            });
        }
        message.close(table);
        into.push(message.finish());
    }
    Ok(())
}

fn summary(survey: &DeviceSurvey, request: &Request<'_>, is_dump: bool) -> Vec<u8> {
    let mut message = about(&survey.plan, request, is_dump);
    message.nest(attr::RES_SUMMARY, |table| {
        for (name, kind) in [
            ("pd", Kind::Pd),
            ("cq", Kind::Cq),
            ("qp", Kind::Qp),
            ("cm_id", Kind::CmId),
            ("mr", Kind::Mr),
            ("ctx", Kind::Ctx),
            ("srq", Kind::Srq),
        ] {
            table.nest(attr::RES_SUMMARY_ENTRY, |entry| {
                entry.put_text(attr::RES_SUMMARY_ENTRY_NAME, name);
                entry.put_u64(attr::RES_SUMMARY_ENTRY_CURR, entries(kind, survey).len() as u64);
            });
        }
    });
    message.finish()
}

/// Kinds of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Qp,
    CmId,
    Cq,
    Mr,
    Pd,
    Ctx,
    Srq,
}

impl Kind {
    fn of(command: u16) -> Option<Self> {
        Some(match command {
            command::RES_QP_GET => Self::Qp,
            command::RES_CM_ID_GET => Self::CmId,
            command::RES_CQ_GET => Self::Cq,
            command::RES_MR_GET => Self::Mr,
            command::RES_PD_GET => Self::Pd,
            command::RES_CTX_GET => Self::Ctx,
            command::RES_SRQ_GET => Self::Srq,
            _ => return None,
        })
    }

    /// The attribute of the table, and the one by which a request names a single entry. The attribute after the table's is
    /// that of an entry.
    fn attributes(self) -> (u16, u16) {
        match self {
            Self::Qp => (attr::RES_QP, attr::RES_LQPN),
            Self::CmId => (attr::RES_CM_ID, attr::RES_CM_IDN),
            Self::Cq => (attr::RES_CQ, attr::RES_CQN),
            Self::Mr => (attr::RES_MR, attr::RES_MRN),
            Self::Pd => (attr::RES_PD, attr::RES_PDN),
            Self::Ctx => (attr::RES_CTX, attr::RES_CTXN),
            Self::Srq => (attr::RES_SRQ, attr::RES_SRQN),
        }
    }
}

/// The attributes of one resource.
struct Entry<'s> {
    number: u32,
    member: &'s Member,
    /// In the order in which they are written.
    attributes: Vec<(u16, Value)>,
}

enum Value {
    U8(u8),
    U32(u32),
    U64(u64),
    Bytes(Vec<u8>),
    /// Numbers of QPs, each in an entry of a table of its own.
    Qps(Vec<u32>),
}

fn entries(kind: Kind, survey: &DeviceSurvey) -> Vec<Entry<'_>> {
    use Value::{Bytes, Qps, U8, U32, U64};
    let some = |kind: u16, number: Option<u32>| number.map(|number| (kind, U32(number)));
    let entry = |member, number, attributes| Entry { number, member, attributes };
    match kind {
        Kind::Qp => survey
            .all(|resources| &resources.qps)
            .map(|(member, qp)| {
                let mut all = vec![(attr::RES_LQPN, U32(qp.lqpn))];
                if qp.port_num != 0 {
                    all.insert(0, (attr::PORT_INDEX, U32(qp.port_num.into())));
                }
                if let Some(rqpn) = qp.rqpn {
                    all.push((attr::RES_RQPN, U32(rqpn)));
                    all.push((attr::RES_RQ_PSN, U32(qp.rq_psn)));
                    all.push((attr::RES_PATH_MIG_STATE, U8(qp.path_mig_state as u8)));
                }
                all.push((attr::RES_SQ_PSN, U32(qp.sq_psn)));
                all.push((attr::RES_TYPE, U8(qp.qp_type as u8)));
                all.push((attr::RES_STATE, U8(qp.state as u8)));
                all.extend(some(attr::RES_PDN, qp.pdn));
                entry(member, qp.lqpn, all)
            })
            .collect(),
        Kind::CmId => survey
            .all(|resources| &resources.cm_ids)
            .map(|(member, id)| {
                let mut all = vec![(attr::RES_CM_IDN, U32(id.cm_idn))];
                if id.port_num != 0 {
                    all.insert(0, (attr::PORT_INDEX, U32(id.port_num.into())));
                }
                if let Some(lqpn) = id.lqpn {
                    all.push((attr::RES_LQPN, U32(lqpn)));
                    all.push((attr::RES_TYPE, U8(id.qp_type as u8)));
                }
                all.push((attr::RES_STATE, U8(id.state as u8)));
                all.push((attr::RES_PS, U32(id.ps)));
                let addresses = [(attr::RES_SRC_ADDR, id.src), (attr::RES_DST_ADDR, id.dst)];
                let present =
                    addresses.into_iter().filter_map(|(kind, address)| Some((kind, Bytes(storage(address?)))));
                all.extend(present);
                entry(member, id.cm_idn, all)
            })
            .collect(),
        Kind::Cq => survey
            .all(|resources| &resources.cqs)
            .map(|(member, cq)| {
                let all = vec![
                    (attr::RES_CQE, U32(cq.cqe)),
                    (attr::RES_USECNT, U64(cq.users.into())),
                    (attr::RES_CQN, U32(cq.cqn)),
                    (attr::RES_CTXN, U32(cq.ctxn)),
                ];
                entry(member, cq.cqn, all)
            })
            .collect(),
        Kind::Mr => survey
            .all(|resources| &resources.mrs)
            .map(|(member, mr)| {
                let all = vec![
                    (attr::RES_RKEY, U32(mr.key)),
                    (attr::RES_LKEY, U32(mr.key)),
                    (attr::RES_MRLEN, U64(mr.mrlen)),
                    (attr::RES_IOVA, U64(mr.iova)),
                    (attr::RES_MRN, U32(mr.mrn)),
                    (attr::RES_PDN, U32(mr.pdn)),
                ];
                entry(member, mr.mrn, all)
            })
            .collect(),
        Kind::Pd => survey
            .all(|resources| &resources.pds)
            .map(|(member, pd)| {
                let all = vec![
                    (attr::RES_USECNT, U64(pd.users.into())),
                    (attr::RES_PDN, U32(pd.pdn)),
                    (attr::RES_CTXN, U32(pd.ctxn)),
                ];
                entry(member, pd.pdn, all)
            })
            .collect(),
        Kind::Ctx => survey
            .all(|resources| &resources.ctxs)
            .map(|(member, context)| entry(member, context.ctxn, vec![(attr::RES_CTXN, U32(context.ctxn))]))
            .collect(),
        Kind::Srq => survey
            .all(|resources| &resources.srqs)
            .map(|(member, srq)| {
                let mut all = vec![(attr::RES_SRQN, U32(srq.srqn)), (attr::RES_TYPE, U8(srq.srq_type as u8))];
                all.push((attr::RES_PDN, U32(srq.pdn)));
                all.extend(some(attr::RES_CQN, srq.cqn));
                all.push((attr::RES_CTXN, U32(srq.ctxn)));
                all.push((attr::RES_QP, Qps(srq.qpns.clone())));
                entry(member, srq.srqn, all)
            })
            .collect(),
    }
}

/// A table of resources, in as many messages as it needs.
fn resources(
    kind: Kind,
    survey: &DeviceSurvey,
    request: &Request<'_>,
    is_dump: bool,
    into: &mut Vec<Vec<u8>>,
) -> Result<(), i32> {
    let (table, number) = kind.attributes();
    let mut entries = entries(kind, survey);
    if !is_dump {
        let wanted = request.attribute_u32(number).ok_or(libc::EINVAL)?;
        entries.retain(|entry| entry.number == wanted);
        let one = entries.first().ok_or(libc::EINVAL)?;
        // A single entry stands by itself.
        let mut message = about(&survey.plan, request, false);
        write(one, &mut message);
        into.push(message.finish());
        return Ok(());
    }
    let mut entries = entries.iter().peekable();
    while entries.peek().is_some() {
        let mut message = about(&survey.plan, request, true);
        let open = message.open(table);
        // An entry with its addresses has less than 400 bytes.
        while message.len() < ROOM - 400 {
            let Some(entry) = entries.next() else { break };
            message.nest(table + 1, |message| write(entry, message));
        }
        message.close(open);
        into.push(message.finish());
    }
    Ok(())
}

fn write(entry: &Entry<'_>, message: &mut Message) {
    for (kind, value) in &entry.attributes {
        match value {
            Value::U8(value) => message.put_u8(*kind, *value),
            Value::U32(value) => message.put_u32(*kind, *value),
            Value::U64(value) => message.put_u64(*kind, *value),
            Value::Bytes(value) => message.put(*kind, value),
            Value::Qps(qps) => message.nest(*kind, |table| {
                // More would not fit: a reader sees the first ones.
                for qpn in qps.iter().take(20) {
                    table.nest(*kind + 1, |entry| entry.put_u32(attr::RES_LQPN, *qpn));
                }
            }),
        }
    }
    match entry.member.pid {
        Some(pid) => message.put_u32(attr::RES_PID, pid),
        // A process of another PID name space has no number here.
        None => message.put_text(attr::RES_KERN_NAME, &entry.member.comm),
    }
}

/// `struct sockaddr_storage` of an address.
fn storage(address: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<libc::sockaddr_storage>()];
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => bytes[4..8].copy_from_slice(&v4.ip().octets()),
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}
