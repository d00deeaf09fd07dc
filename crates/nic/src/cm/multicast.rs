//! Joining a multicast group. On a flat network nobody has to be asked: the group's GID is its IP address, and the port itself
//! joins when a QP is attached.

use std::net::SocketAddr;

use scalefabric_verbs::cm::RDMA_UDP_QKEY;
use scalefabric_verbs::{
    AddressVector, CmEvent, CmEventType, Ece, Errno, EventParam, Gid, JoinFlags, QKey, Qpn, UdEvent, VerbsError,
};

use super::agent::State;
use super::id::Stage;

/// A join.
#[derive(Debug)]
pub(super) struct Join {
    pub(super) id: u32,
    pub(super) reported: u32,
}

impl State {
    pub(super) fn join(
        &mut self,
        number: u32,
        group: SocketAddr,
        _flags: JoinFlags,
        uid: u64,
    ) -> Result<u32, VerbsError> {
        let join = self.number();
        let id = self.id(number)?;
        id.expect("join_multicast", &[Stage::AddrBound, Stage::AddrResolved, Stage::RouteResolved])?;
        let Some(place) = &id.place else {
            return Err(VerbsError::invalid(format!(
                "identifier {number} is bound to no device: bind it to an address or resolve one first"
            )));
        };
        if !group.ip().is_multicast() {
            return Err(VerbsError::invalid(format!("{} is not a multicast address", group.ip())));
        }
        if !id.is_ud() {
            return Err(VerbsError::invalid("only UD identifiers join multicast groups"));
        }
        if id.qkey == QKey(0) {
            id.qkey = RDMA_UDP_QKEY;
        }
        let dgid = Gid::from_ip(group.ip());
        let same_family = dgid.is_ipv4() == place.sgid.is_ipv4();
        let av = AddressVector {
            // A group's packets stay in the subnet, as Linux has it for RoCE.
            hop_limit: 1,
            traffic_class: id.tos.unwrap_or(0),
            ..AddressVector::new(place.port_num, place.sgid_index, dgid)
        };
        let told = UdEvent { private_data: Vec::new(), ah_attr: av, qp_num: Qpn::MULTICAST, qkey: id.qkey };
        let (event, status) = if same_family {
            (CmEventType::MulticastJoin, 0)
        } else {
            // The address from which we would send has no such packets.
            (CmEventType::MulticastError, -(Errno::EINVAL.to_raw()))
        };
        let event = CmEvent {
            event,
            status,
            uid,
            id: join,
            listen_id: None,
            request: None,
            param: EventParam::Ud(told),
            ece: Ece::default(),
        };
        let channel = id.channel;
        id.joins.push(join);
        self.joins.insert(join, Join { id: number, reported: 0 });
        self.queue(channel, event);
        Ok(join)
    }

    /// Leaves; gives the number of events of the join that its application has had.
    pub(super) fn leave(&mut self, join: u32) -> Result<u32, VerbsError> {
        let left = self.joins.remove(&join).ok_or_else(|| {
            VerbsError::misuse(Errno::ENOENT, format!("there is no join {join}: it was left already"))
        })?;
        let channel = self.ids.get_mut(&left.id).map(|id| {
            id.joins.retain(|other| *other != join);
            id.channel
        });
        if let Some(line) = channel.and_then(|channel| self.channels.get(&channel)) {
            line.events.forget(|event| {
                event.id == join && matches!(event.event, CmEventType::MulticastJoin | CmEventType::MulticastError)
            });
        }
        Ok(left.reported)
    }
}
