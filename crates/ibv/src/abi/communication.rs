//! The public structures of `rdma/rdma_cma.h`. They did not change from v28 to v65, but for an arm of a union in the event
//! that does not make it larger.

use core::ffi::{c_char, c_int, c_void};

use super::{AhAttr, CompChannel, Context, Cq, Gid, Pd, Qp, Srq, layout, layouts};

#[repr(C)]
pub struct CmChannel {
    pub fd: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CmIbAddr {
    pub sgid: Gid,
    pub dgid: Gid,
    /// Big-endian.
    pub pkey: u16,
}

/// `struct rdma_addr`: both addresses are `sockaddr`s of any family.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CmAddr {
    pub src_storage: libc::sockaddr_storage,
    pub dst_storage: libc::sockaddr_storage,
    pub ibaddr: CmIbAddr,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CmRoute {
    pub addr: CmAddr,
    pub path_rec: *mut SaPathRec,
    pub num_paths: c_int,
}

#[repr(C)]
pub struct CmId {
    /// Set once the identifier is bound to a device: librdmacm's own context of it.
    pub verbs: *mut Context,
    pub channel: *mut CmChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: CmRoute,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CmConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CmUdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union CmParam {
    pub conn: CmConnParam,
    pub ud: CmUdParam,
    /// v60: of user events.
    pub arg: u64,
}

#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: u32,
    pub status: c_int,
    pub param: CmParam,
}

#[repr(C)]
pub struct CmAddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: u32,
    pub ai_dst_len: u32,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut CmAddrInfo,
}

#[repr(C)]
pub struct CmJoinMcAttrEx {
    /// Bit 0 address, bit 1 join_flags.
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// `struct ibv_sa_path_rec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SaPathRec {
    pub dgid: Gid,
    pub sgid: Gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    /// Big-endian.
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    /// Big-endian.
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

layout! {
    rdma_event_channel = CmChannel { fd };
    rdma_ib_addr = CmIbAddr { sgid, dgid, pkey };
    rdma_addr = CmAddr { src_storage, dst_storage, addr.ibaddr = ibaddr };
    rdma_route = CmRoute { addr, path_rec, num_paths };
    rdma_cm_id = CmId {
        verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq,
        srq, pd, qp_type,
    };
    rdma_conn_param = CmConnParam {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
        rnr_retry_count, srq, qp_num,
    };
    rdma_ud_param = CmUdParam { private_data, private_data_len, ah_attr, qp_num, qkey };
    rdma_cm_event = CmEvent { id, listen_id, event, status, param };
    rdma_addrinfo = CmAddrInfo {
        ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr,
        ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next,
    };
    rdma_cm_join_mc_attr_ex = CmJoinMcAttrEx { comp_mask, join_flags, addr };
    ibv_sa_path_rec = SaPathRec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl,
        mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
    };
}
