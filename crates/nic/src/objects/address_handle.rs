//! Address handles (clause 11.2.2): where a datagram goes. An AH holds its GID slot, so that the slot does not come to
//! mean another address.

use std::any::Any;
use std::sync::Arc;

use scalefabric_verbs::{AddressHandle, AddressVector, Errno, Gid, VerbsError, WcFlags, WorkCompletion};

use super::Alive;
use super::protection_domain::PdUse;
use super::quota::Token;
use crate::engine::drive::Core;
use crate::memory::PdId;
use crate::tables::PortTable;

/// An address handle.
#[derive(Debug)]
pub struct AhObject {
    core: Arc<Core>,
    av: AddressVector,
    pd: PdUse,
    alive: Alive,
    _token: Token,
}

impl AhObject {
    pub(crate) fn new(core: &Arc<Core>, pd: PdUse, av: &AddressVector, token: Token) -> Result<Self, VerbsError> {
        core.enter()?.engine.nic().hold_av(av)?;
        Ok(Self { core: core.clone(), av: *av, pd, alive: Alive::new(), _token: token })
    }

    pub(crate) fn av(&self) -> AddressVector {
        self.av
    }

    pub(crate) fn pd(&self) -> PdId {
        self.pd.id()
    }

    pub(crate) fn is_of(&self, core: &Core) -> bool {
        std::ptr::eq(&*self.core, core)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.is()
    }

    fn end(&self) -> bool {
        let ended = self.alive.end();
        if ended {
            self.pd.release();
            self.core.lock().engine.nic().fabric.tables.release_gid(self.av.port_num, self.av.sgid_index);
        }
        ended
    }
}

impl AddressHandle for AhObject {
    fn address_vector(&self) -> AddressVector {
        self.av
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        self.alive.check("address handle")?;
        self.end();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for AhObject {
    fn drop(&mut self) {
        self.end();
    }
}

/// The address vector that answers a received datagram (`ibv_init_ah_from_wc`): source and destination of its GRH change
/// places.
pub(crate) fn answer(
    port: &PortTable,
    port_num: u8,
    wc: &WorkCompletion,
    grh: &[u8; 40],
) -> Result<AddressVector, VerbsError> {
    if !wc.flags.contains(WcFlags::GRH) {
        return Err(VerbsError::invalid(
            "the completion has no GRH: only datagrams received by a UD QP tell their sender",
        ));
    }
    let (src, dst, traffic_class, flow_label) = match version(grh) {
        Some(4) => {
            let ip = |at: usize| {
                Gid::from_ip(std::net::Ipv4Addr::new(grh[at], grh[at + 1], grh[at + 2], grh[at + 3]).into())
            };
            (ip(32), ip(36), grh[21], 0)
        }
        Some(6) => {
            let gid = |at: usize| Gid(core::array::from_fn(|i| grh[at + i]));
            let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
            (gid(8), gid(24), (word >> 20) as u8, word & 0x000f_ffff)
        }
        _ => {
            return Err(VerbsError::misuse(
                Errno::EPROTONOSUPPORT,
                "the 40 bytes hold neither an IPv6 header nor an IPv4 header in the last 20: pass the start of the receive buffer",
            ));
        }
    };
    let index = port.find_gid(dst).or_else(|| {
        // A group is nobody's source address: answer from the first address of the same IP version.
        let same = |g: Gid| g.is_ipv4() == dst.is_ipv4();
        dst.is_multicast().then(|| port.gids().find(|(_, g)| same(*g)).map(|(i, _)| i)).flatten()
    });
    let Some(sgid_index) = index else {
        return Err(VerbsError::environment(
            Errno::ENOENT,
            format!("{dst}, to which the datagram was sent, is no longer in the GID table of port {port_num}"),
        ));
    };
    Ok(AddressVector {
        dgid: src,
        sgid_index,
        // As libibverbs: the way back may be longer than what is left of the hop limit.
        hop_limit: 255,
        // A CE mark says what happened to that datagram, not what the answer is: it is sent as ECT(0).
        traffic_class: if traffic_class & 3 == 3 { traffic_class & !1 } else { traffic_class },
        flow_label,
        sl: wc.sl,
        static_rate: 0,
        port_num,
    })
}

/// IP version of a GRH: an IPv4 header in the last 20 bytes is believed if nothing else is possible or its checksum is right.
fn version(grh: &[u8; 40]) -> Option<u8> {
    let v4 = &grh[20..];
    if grh[0] >> 4 != 6 {
        return (v4[0] >> 4 == 4).then_some(4);
    }
    if v4[0] != 0x45 {
        return Some(6);
    }
    let sum: u32 = v4.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    Some(if (folded & 0xffff) + (folded >> 16) == 0xffff { 4 } else { 6 })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use scalefabric_verbs::{QKey, Qpn};

    use super::*;
    use crate::config::PortConfig;
    use crate::tables::Tables;

    fn wc(flags: WcFlags) -> WorkCompletion {
        let _ = QKey(0);
        WorkCompletion {
            wr_id: 0,
            status: scalefabric_verbs::WcStatus::Success,
            opcode: scalefabric_verbs::WcOpcode::Recv,
            vendor_err: 0,
            byte_len: 40,
            imm: 0,
            invalidated_rkey: Default::default(),
            qp_num: Qpn::new(5),
            src_qp: Qpn::new(6),
            flags,
            pkey_index: 0,
            sl: 0,
            timestamp_ns: 0,
        }
    }

    fn tables() -> Tables {
        let gids = [IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)), Ipv4Addr::new(10, 0, 0, 1).into()];
        Tables::new(&[PortConfig::new("wire", gids.map(Gid::from_ip).to_vec())])
    }

    fn v4_grh(tos: u8, src: [u8; 4], dst: [u8; 4]) -> [u8; 40] {
        let mut grh = [0; 40];
        grh[20..24].copy_from_slice(&[0x45, tos, 0, 60]);
        grh[26..30].copy_from_slice(&[0x40, 0, 64, 17]);
        grh[32..36].copy_from_slice(&src);
        grh[36..40].copy_from_slice(&dst);
        let sum: u32 = grh[20..].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        grh[30..32].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        grh
    }

    #[test]
    fn an_ipv4_datagram_is_answered_from_the_address_it_came_to() {
        let tables = tables();
        let grh = v4_grh(0x6b, [10, 0, 0, 9], [10, 0, 0, 1]);
        let av = answer(tables.port(1).unwrap(), 1, &wc(WcFlags::GRH), &grh).unwrap();
        assert_eq!(av.dgid, Gid::from_ip(Ipv4Addr::new(10, 0, 0, 9).into()));
        assert_eq!((av.sgid_index, av.traffic_class, av.port_num), (1, 0x6a, 1));
    }

    #[test]
    fn an_ipv6_datagram_is_answered_with_its_flow_label() {
        let tables = tables();
        let mut grh = [0; 40];
        grh[..4].copy_from_slice(&(6u32 << 28 | 0x20 << 20 | 0xabcde).to_be_bytes());
        let peer = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        grh[8..24].copy_from_slice(&peer.octets());
        grh[24..].copy_from_slice(&Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
        let av = answer(tables.port(1).unwrap(), 1, &wc(WcFlags::GRH), &grh).unwrap();
        assert_eq!((av.dgid, av.sgid_index), (Gid::from_ip(peer.into()), 0));
        assert_eq!((av.traffic_class, av.flow_label), (0x20, 0xabcde));
    }

    #[test]
    fn a_group_is_answered_from_an_address_of_its_version() {
        let tables = tables();
        let grh = v4_grh(0, [10, 0, 0, 9], [239, 0, 0, 1]);
        assert_eq!(answer(tables.port(1).unwrap(), 1, &wc(WcFlags::GRH), &grh).unwrap().sgid_index, 1);
    }

    #[test]
    fn no_grh_an_unknown_address_or_noise_is_refused() {
        let tables = tables();
        let port = tables.port(1).unwrap();
        let grh = v4_grh(0, [10, 0, 0, 9], [10, 0, 0, 1]);
        assert_eq!(answer(port, 1, &wc(WcFlags::empty()), &grh).unwrap_err().errno, Errno::EINVAL);
        let elsewhere = v4_grh(0, [10, 0, 0, 9], [10, 0, 0, 77]);
        assert_eq!(answer(port, 1, &wc(WcFlags::GRH), &elsewhere).unwrap_err().errno, Errno::ENOENT);
        assert_eq!(answer(port, 1, &wc(WcFlags::GRH), &[0; 40]).unwrap_err().errno, Errno::EPROTONOSUPPORT);
    }
}
