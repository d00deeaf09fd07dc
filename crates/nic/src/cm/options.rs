//! What an identifier can be told beside its course, and what it says of itself.

use scalefabric_verbs::cm::RDMA_UDP_QKEY;
use scalefabric_verbs::{
    AccessFlags, CmAddr, CmAddresses, CmEventType, CmOption, Gid, QKey, QpAttr, QpAttrMask, QpState, VerbsError,
};

use super::agent::State;
use super::id::Stage;

impl State {
    pub(super) fn set_option(&mut self, number: u32, option: CmOption) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        match option {
            CmOption::Tos(tos) => id.tos = Some(tos),
            CmOption::ReuseAddr(reuse) => {
                // As in the kernel: before the port is taken, or to allow others later.
                id.expect("REUSEADDR", if reuse { &[Stage::Idle, Stage::AddrBound] } else { &[Stage::Idle] })?;
                id.reuse = reuse;
            }
            CmOption::AfOnly(af_only) => {
                id.expect("AFONLY", &[Stage::Idle, Stage::AddrBound])?;
                id.af_only = af_only;
            }
            CmOption::AckTimeout(timeout) => {
                if timeout > 31 {
                    return Err(VerbsError::invalid(format!("ACK timeout {timeout}: a code of 5 bits, 0 to 31")));
                }
                id.timeout = Some(timeout);
            }
            CmOption::IbPath(path) => {
                id.expect("IB path", &[Stage::AddrResolved])?;
                id.route = Some(path);
                id.stage = Stage::RouteResolved;
                self.tell_plain(number, CmEventType::RouteResolved, 0);
            }
        }
        Ok(())
    }

    pub(super) fn init_qp_attr(&mut self, number: u32, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        let id = self.id(number)?;
        let Some(place) = id.place.clone() else {
            return Err(VerbsError::invalid(format!("identifier {number} is bound to no device yet")));
        };
        let link = id.link.filter(|_| !id.is_ud());
        let (timeout, is_ud) = (id.timeout, id.is_ud());
        if is_ud && id.qkey == QKey(0) {
            id.qkey = RDMA_UDP_QKEY;
        }
        let qkey = id.qkey;
        let Some(link) = link.and_then(|key| self.links.get(&key)) else {
            // No connection yet, or none at all: what is known without one.
            let mut mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
            let mut attr = QpAttr { qp_state: state, port_num: place.port_num, ..QpAttr::default() };
            if is_ud {
                mask |= QpAttrMask::QKEY;
                attr.qkey = qkey;
            } else {
                mask |= QpAttrMask::ACCESS_FLAGS;
                attr.qp_access_flags = AccessFlags::empty();
            }
            return Ok((attr, mask));
        };
        use scalefabric_transport::cm::State as Stand;
        let allowed = match link.machine.state() {
            Stand::ReqSent => state == QpState::Init,
            Stand::ReqRcvd | Stand::RepRcvd | Stand::RepSent | Stand::Established => true,
            _ => false,
        };
        let found = link.path.attributes(state).filter(|_| allowed);
        let (mut attr, mask) = found.ok_or_else(|| {
            VerbsError::invalid(format!(
                "no attributes for QP state {state:?} while the connection of identifier {number} is in {:?}",
                link.machine.state()
            ))
        })?;
        if let Some(timeout) = timeout.filter(|_| mask.contains(QpAttrMask::TIMEOUT)) {
            attr.timeout = timeout;
        }
        Ok((attr, mask))
    }

    pub(super) fn addresses(&self, number: u32) -> CmAddresses {
        let Some(id) = self.ids.get(&number) else { return CmAddresses::default() };
        let sgid = id.place.as_ref().map_or(Gid::ZERO, |place| place.sgid);
        let dgid = id.peer.filter(|_| id.place.is_some()).map_or(Gid::ZERO, |peer| Gid::from_ip(peer.ip()));
        CmAddresses {
            local: id.local.map(CmAddr::Ip),
            peer: id.peer.map(CmAddr::Ip),
            device: id.place.as_ref().map(|place| place.device.describe(place.port_num)),
            gids: (sgid, dgid),
        }
    }
}
