//! Attributes, paths and events: from the contract's structs to the kernel's, and back where a command carries one.

use scalefabric_ibv::abi::ucma::{self as abi, Plain};
use scalefabric_verbs::{
    AddressVector, CmEvent, ConnParam, Ece, EventParam, Gid, MigState, Mtu, PKey, PathRecord, QKey, QpAttr, QpAttrMask,
    Qpn,
};

/// "Exactly", as selectors of path records say it.
const EXACTLY: u8 = 2;

fn ah_attr(av: &AddressVector) -> abi::AhAttr {
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: av.dgid.0,
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
            reserved: 0,
        },
        dlid: 0,
        sl: av.sl,
        src_path_bits: 0,
        static_rate: av.static_rate,
        is_global: 1,
        port_num: av.port_num,
        reserved: 0,
    }
}

/// The response of INIT_QP_ATTR. What the mask does not name stays zero, as in the kernel.
pub fn qp_attr(attr: &QpAttr, mask: QpAttrMask) -> abi::UserQpAttr {
    let mut user = abi::UserQpAttr::zeroed();
    user.qp_attr_mask = mask.bits();
    user.qp_state = attr.qp_state as u32;
    user.cur_qp_state = attr.cur_qp_state as u32;
    let has = |flag| mask.contains(flag);
    if has(QpAttrMask::PATH_MTU) {
        user.path_mtu = attr.path_mtu as u32;
    }
    user.path_mig_state = if has(QpAttrMask::PATH_MIG_STATE) { attr.path_mig_state } else { MigState::Migrated } as u32;
    user.qkey = attr.qkey.0;
    user.rq_psn = attr.rq_psn.get();
    user.sq_psn = attr.sq_psn.get();
    user.dest_qp_num = attr.dest_qp_num.get();
    user.qp_access_flags = attr.qp_access_flags.bits();
    if has(QpAttrMask::AV) {
        user.ah_attr = ah_attr(&attr.ah_attr);
    }
    if has(QpAttrMask::ALT_PATH) {
        user.alt_ah_attr = ah_attr(&attr.alt_ah_attr);
        user.alt_pkey_index = attr.alt_pkey_index;
        user.alt_port_num = attr.alt_port_num;
        user.alt_timeout = attr.alt_timeout;
    }
    user.pkey_index = attr.pkey_index;
    user.max_rd_atomic = attr.max_rd_atomic;
    user.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    user.min_rnr_timer = attr.min_rnr_timer;
    user.port_num = attr.port_num;
    user.timeout = attr.timeout;
    user.retry_cnt = attr.retry_cnt;
    user.rnr_retry = attr.rnr_retry;
    user
}

/// A path in the response of QUERY_ROUTE.
pub fn user_path(path: &PathRecord) -> abi::UserPathRec {
    abi::UserPathRec {
        dgid: path.dgid.0,
        sgid: path.sgid.0,
        flow_label_be: path.flow_label.to_be(),
        reversible: u32::from(path.reversible),
        mtu: path.mtu as u32,
        pkey_be: path.pkey.0.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: 1,
        sl: path.sl,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        ..abi::UserPathRec::zeroed()
    }
}

/// What stands in the place of a path while there is none: the GIDs.
pub fn user_path_of_gids(source: Gid, destination: Gid, pkey: u16) -> abi::UserPathRec {
    abi::UserPathRec { dgid: destination.0, sgid: source.0, pkey_be: pkey.to_be(), ..abi::UserPathRec::zeroed() }
}

/// A packed path with its flags.
pub fn path_data(path: &PathRecord) -> abi::PathRecData {
    abi::PathRecData {
        flags: abi::PATH_PRIMARY_BOTH_WAYS,
        dgid: path.dgid.0,
        sgid: path.sgid.0,
        flow_label_hop_limit_be: ((path.flow_label & 0xf_ffff) << 8 | u32::from(path.hop_limit)).to_be(),
        traffic_class: path.traffic_class,
        reversible_numb_path: u8::from(path.reversible) << 7 | 1,
        pkey_be: path.pkey.0.to_be(),
        qos_class_sl_be: u16::from(path.sl & 0xf).to_be(),
        mtu: EXACTLY << 6 | path.mtu as u8,
        rate: EXACTLY << 6 | path.rate & 0x3f,
        packet_life_time: EXACTLY << 6 | path.packet_life_time & 0x3f,
        ..abi::PathRecData::zeroed()
    }
}

/// The path in packed bytes; none if its MTU is no MTU.
pub fn path_record(data: &abi::PathRecData) -> Option<PathRecord> {
    let flow_label_hop_limit = u32::from_be(data.flow_label_hop_limit_be);
    Some(PathRecord {
        dgid: Gid(data.dgid),
        sgid: Gid(data.sgid),
        flow_label: flow_label_hop_limit >> 8 & 0xf_ffff,
        hop_limit: flow_label_hop_limit as u8,
        traffic_class: data.traffic_class,
        pkey: PKey(u16::from_be(data.pkey_be)),
        sl: (u16::from_be(data.qos_class_sl_be) & 0xf) as u8,
        mtu: Mtu::from_raw(u32::from(data.mtu & 0x3f))?,
        rate: data.rate & 0x3f,
        packet_life_time: data.packet_life_time & 0x3f,
        reversible: data.reversible_numb_path & 0x80 != 0,
    })
}

/// The parameters of CONNECT and ACCEPT. The Q_Key counts for addresses of AF_IB only, as in the kernel.
pub fn conn_param(raw: &abi::ConnParam, with_qkey: bool) -> ConnParam {
    ConnParam {
        private_data: raw.private_data[..usize::from(raw.private_data_len)].to_vec(),
        responder_resources: raw.responder_resources,
        initiator_depth: raw.initiator_depth,
        flow_control: raw.flow_control != 0,
        retry_count: raw.retry_count,
        rnr_retry_count: raw.rnr_retry_count,
        srq: raw.srq != 0,
        qp_num: Qpn::new(raw.qp_num),
        qkey: QKey(if with_qkey { raw.qkey } else { 0 }),
    }
}

/// An ECE option.
pub fn ece(raw: abi::Ece) -> Ece {
    Ece { vendor_id: raw.vendor_id, attr_mod: raw.attr_mod }
}

/// Private data in its place, with its length.
fn private_data(data: &[u8]) -> ([u8; 256], u8) {
    let mut place = [0; 256];
    let length = data.len().min(usize::from(u8::MAX));
    place[..length].copy_from_slice(&data[..length]);
    (place, length as u8)
}

/// The response of GET_EVENT.
pub fn event(event: &CmEvent) -> abi::EventResp {
    let mut param = [0; 304];
    match &event.param {
        EventParam::Conn(conn) => {
            let (private_data, private_data_len) = private_data(&conn.private_data);
            let raw = abi::ConnParam {
                qp_num: conn.qp_num.get(),
                qkey: 0,
                private_data,
                private_data_len,
                srq: u8::from(conn.srq),
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                flow_control: u8::from(conn.flow_control),
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                valid: 0,
            };
            param[..size_of::<abi::ConnParam>()].copy_from_slice(raw.bytes());
        }
        EventParam::Ud(ud) => {
            let (private_data, private_data_len) = private_data(&ud.private_data);
            let raw = abi::UdParam {
                qp_num: ud.qp_num.get(),
                qkey: ud.qkey.0,
                ah_attr: ah_attr(&ud.ah_attr),
                private_data,
                private_data_len,
                reserved: [0; 7],
            };
            param.copy_from_slice(raw.bytes());
        }
    }
    abi::EventResp {
        uid: event.uid,
        id: event.id,
        event: event.event.to_raw(),
        status: event.status.cast_unsigned(),
        param,
        reserved: 0,
        ece: abi::Ece { vendor_id: event.ece.vendor_id, attr_mod: event.ece.attr_mod },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> PathRecord {
        PathRecord {
            dgid: Gid([1; 16]),
            sgid: Gid([2; 16]),
            flow_label: 0xabcde,
            hop_limit: 64,
            traffic_class: 9,
            pkey: PKey(0x8001),
            sl: 3,
            mtu: Mtu::Mtu1024,
            rate: 7,
            packet_life_time: 18,
            reversible: true,
        }
    }

    #[test]
    fn a_packed_path_comes_back() {
        let data = path_data(&path());
        assert_eq!(path_record(&data), Some(path()));
        assert_eq!(data.bytes()[52..56], [0x0a, 0xbc, 0xde, 64], "flow label and hop limit, big endian");
    }

    #[test]
    fn a_packed_path_without_an_mtu_is_none() {
        assert_eq!(path_record(&abi::PathRecData { mtu: 2 << 6, ..path_data(&path()) }), None);
    }

    #[test]
    fn a_route_says_that_a_grh_is_needed() {
        let user = user_path(&path());
        assert_eq!((user.hop_limit, user.bytes()[54]), (64, 64), "hop limit, at its documented place");
        assert_eq!(user.bytes()[52..54], [0x80, 0x01], "P_Key, big endian");
    }
}
