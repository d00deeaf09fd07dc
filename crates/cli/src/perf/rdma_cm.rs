//! Connecting queue pairs by rdma_cm (`-R`): the client resolves and connects one identifier for each, in order; the server takes as many
//! requests. What is measured is still agreed on over TCP.

use crate::failure::{During, Failure};
use crate::perf::connection::{Connection, Lane, with_rights};
use crate::perf::device::Device;
use crate::perf::exchange::SideInfo;
use scalefabric_verbs::cm::reject_reason;
use scalefabric_verbs::{
    CmAddr, CmChannel, CmEvent, CmEventType, CmId, ConnParam, Ece, EventParam, PortSpace, QpAttrMask, QpState, QpType,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How long one event may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// READs and atomics outstanding in each direction.
const DEPTH: u8 = 16;

/// Identifiers that keep queue pairs connected; they are disconnected when this goes.
pub struct Managed {
    channel: Arc<dyn CmChannel>,
    ids: Vec<Arc<dyn CmId>>,
}

impl Drop for Managed {
    fn drop(&mut self) {
        for id in &self.ids {
            let _ = id.disconnect();
            let _ = id.destroy();
        }
        self.channel.close();
    }
}

/// The server's side before the client has come.
pub struct Listening {
    managed: Managed,
    /// Where it listens.
    pub port: u16,
}

impl Listening {
    /// Listens on a free port of the device's address.
    pub fn new(device: &Device) -> Result<Self, Failure> {
        let channel = device.provider.event_channel().during(|| "-R")?;
        let id = channel.create_id(PortSpace::Tcp, QpType::Rc, 1).during(|| "make an rdma_cm identifier")?;
        let managed = Managed { channel, ids: vec![Arc::clone(&id)] };
        let own = device.gid.to_ip();
        id.bind_addr(SocketAddr::new(own, 0).into()).during(|| format!("bind rdma_cm to {own}"))?;
        id.listen(0).during(|| "listen by rdma_cm")?;
        match id.query_addr().local {
            Some(CmAddr::Ip(address)) => Ok(Self { managed, port: address.port() }),
            _ => Err(Failure::failed("rdma_cm does not say where it listens")),
        }
    }

    /// Takes a request for each queue pair.
    pub fn accept(mut self, connection: &mut Connection, far: &SideInfo) -> Result<Managed, Failure> {
        connection.meet(far)?;
        let mut established = 0;
        let mut taken = 0;
        while established < connection.lanes.len() {
            let event = next(self.managed.channel.as_ref())?;
            match event.event {
                CmEventType::Established => established += 1,
                CmEventType::ConnectRequest => {
                    let id = event.request.clone().ok_or_else(|| Failure::failed("a request without an identifier"))?;
                    if taken == connection.lanes.len() || index_in(&event) != Some(taken as u32) {
                        // Somebody else's: this port is known to our client only, but nothing keeps others from trying.
                        let _ = id.reject(b"sfab perf: not expected", reject_reason::CONSUMER_DEFINED);
                        let _ = id.destroy();
                        continue;
                    }
                    self.managed.ids.push(Arc::clone(&id));
                    let lane = &connection.lanes[taken];
                    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                        bring(connection, lane, id.as_ref(), state)?;
                    }
                    id.accept(Some(&parameters(lane, Vec::new())), Some(taken as u64 + 2), Ece::default())
                        .during(|| "accept by rdma_cm")?;
                    taken += 1;
                }
                other => return Err(refused(other, event.status, "the client")),
            }
        }
        Ok(self.managed)
    }
}

/// The client's side.
pub fn connect(connection: &mut Connection, far: &SideInfo) -> Result<Managed, Failure> {
    connection.meet(far)?;
    let channel = connection.device.provider.event_channel().during(|| "-R")?;
    let mut managed = Managed { channel, ids: Vec::new() };
    let address: IpAddr = far.gid.parse().during(|| format!("the server's GID `{}`", far.gid))?;
    let port = far.cm_port.ok_or_else(|| Failure::failed("the server does not listen by rdma_cm"))?;
    let to = SocketAddr::new(address, port);
    let from = SocketAddr::new(connection.device.gid.to_ip(), 0);
    for (index, lane) in connection.lanes.iter().enumerate() {
        let channel = managed.channel.as_ref();
        let uid = index as u64 + 1;
        let id = channel.create_id(PortSpace::Tcp, QpType::Rc, uid).during(|| "make an rdma_cm identifier")?;
        managed.ids.push(Arc::clone(&id));
        let expect = |wanted| {
            let event = next(channel)?;
            let fits = event.event == wanted && event.status == 0;
            if fits { Ok(()) } else { Err(refused(event.event, event.status, &to.to_string())) }
        };
        let limit_ms = PATIENCE.as_millis() as u32;
        id.resolve_addr(Some(from.into()), to.into(), limit_ms).during(|| format!("resolve {to} by rdma_cm"))?;
        expect(CmEventType::AddrResolved)?;
        id.resolve_route(limit_ms).during(|| format!("resolve the route to {to} by rdma_cm"))?;
        expect(CmEventType::RouteResolved)?;
        bring(connection, lane, id.as_ref(), QpState::Init)?;
        let said = (index as u32).to_le_bytes().to_vec();
        id.connect(&parameters(lane, said)).during(|| format!("connect to {to} by rdma_cm"))?;
        expect(CmEventType::ConnectResponse)?;
        bring(connection, lane, id.as_ref(), QpState::Rtr)?;
        bring(connection, lane, id.as_ref(), QpState::Rts)?;
        id.accept(None, None, Ece::default()).during(|| "answer by rdma_cm")?;
    }
    Ok(managed)
}

/// Takes a queue pair to a state as the communication manager knows it.
fn bring(connection: &Connection, lane: &Lane, id: &dyn CmId, state: QpState) -> Result<(), Failure> {
    let (mut attr, mask) = id.init_qp_attr(state).during(|| format!("ask rdma_cm for {state:?}"))?;
    with_rights(&mut attr, mask, connection.rights());
    if let (Some(bytes), true) = (connection.plan.path_mtu, mask.contains(QpAttrMask::PATH_MTU)) {
        attr.path_mtu = scalefabric_verbs::Mtu::from_bytes(bytes).unwrap_or(attr.path_mtu).min(attr.path_mtu);
    }
    lane.queue_pair.modify(&attr, mask).during(|| format!("a queue pair to {state:?}"))
}

fn parameters(lane: &Lane, private_data: Vec<u8>) -> ConnParam {
    ConnParam {
        private_data,
        responder_resources: DEPTH,
        initiator_depth: DEPTH,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: lane.queue_pair.qp_num(),
        ..ConnParam::default()
    }
}

fn index_in(event: &CmEvent) -> Option<u32> {
    let EventParam::Conn(said) = &event.param else { return None };
    let bytes: [u8; 4] = said.private_data.get(..4)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn next(channel: &dyn CmChannel) -> Result<CmEvent, Failure> {
    channel.get_event(Some(PATIENCE)).during(|| "wait for rdma_cm")?.ok_or_else(|| {
        Failure::failed(format!(
            "nothing came from rdma_cm for {} s: does UDP port 4791 pass the firewalls?",
            PATIENCE.as_secs()
        ))
    })
}

fn refused(event: CmEventType, status: i32, whom: &str) -> Failure {
    Failure::failed(format!("rdma_cm does not connect to {whom}: {event:?}, status {status}"))
}
