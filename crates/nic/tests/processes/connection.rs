//! A small rdma_cm application that is told what to do word by word: what a child does with connections, and what a test of one
//! process does itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::*;

/// A QP of an identifier, with a buffer: received bytes in the first half, bytes to send in the second.
struct Endpoint {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    mr: Arc<dyn MemoryRegion>,
    pd: Arc<dyn ProtectionDomain>,
    /// Completions that came while another was waited for.
    early: Vec<WorkCompletion>,
}

const HALF: usize = 1024;

/// The application.
pub struct Application {
    provider: SoftwareProvider,
    channel: Arc<dyn CmChannel>,
    ids: HashMap<u32, Arc<dyn CmId>>,
    endpoints: HashMap<u32, Endpoint>,
    /// Where datagrams of an identifier go.
    ways: HashMap<u32, UdEvent>,
}

/// An address whose interface, if it names one, is `address%interface`.
fn address(ip: &str, port: &str) -> std::net::SocketAddr {
    let port = port.parse().unwrap();
    let Some((ip, interface)) = ip.split_once('%') else {
        return (ip.parse::<std::net::IpAddr>().unwrap(), port).into();
    };
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).unwrap();
    std::net::SocketAddrV6::new(ip.parse().unwrap(), port, 0, index.trim().parse().unwrap()).into()
}

fn text(data: &[u8]) -> String {
    let end = data.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
    format!("{:?}/{}", String::from_utf8_lossy(&data[..end]), data.len())
}

impl Application {
    pub fn new(provider: SoftwareProvider) -> Self {
        let channel = provider.event_channel().unwrap();
        Self { provider, channel, ids: HashMap::new(), endpoints: HashMap::new(), ways: HashMap::new() }
    }

    /// Does what the words say and says how it went.
    pub fn answer(&mut self, words: &[&str]) -> String {
        match self.act(words) {
            Ok(answer) => answer,
            Err(error) => format!("error {:?} {}", error.errno, error.message),
        }
    }

    fn act(&mut self, words: &[&str]) -> Result<String, VerbsError> {
        if let ["id", space, uid] = *words {
            let space = if space == "udp" { PortSpace::Udp } else { PortSpace::Tcp };
            let id = self.channel.create_id(space, QpType::Rc, uid.parse().unwrap())?;
            let number = id.id();
            self.ids.insert(number, id);
            return Ok(number.to_string());
        }
        if let ["event", ms] = *words {
            return self.event(Duration::from_millis(ms.parse().unwrap()));
        }
        let [what, number, ref rest @ ..] = *words else { return Ok(format!("error unknown {words:?}")) };
        let number: u32 = number.parse().unwrap();
        let id = self.ids[&number].clone();
        let address = |ip: &str, port: &str| CmAddr::Ip(address(ip, port));
        match (what, rest) {
            ("bind", [ip, port]) => id.bind_addr(address(ip, port))?,
            ("listen", [backlog]) => id.listen(backlog.parse().unwrap())?,
            ("resolve", [ip, port]) => id.resolve_addr(None, address(ip, port), 2000)?,
            ("route", []) => id.resolve_route(2000)?,
            ("timeout", [code]) => id.set_option(CmOption::AckTimeout(code.parse().unwrap()))?,
            ("local", []) => {
                return Ok(match id.query_addr().local {
                    Some(CmAddr::Ip(ip)) => ip.to_string(),
                    other => format!("{other:?}"),
                });
            }
            ("attributes", [state]) => {
                let state = if *state == "rts" { QpState::Rts } else { QpState::Rtr };
                let (attr, _) = id.init_qp_attr(state)?;
                return Ok(format!("timeout={} port={}", attr.timeout, attr.port_num));
            }
            ("qp", []) => self.make(&id)?,
            ("connect", [data]) => id.connect(&self.param(number, data))?,
            ("accept", [data]) => {
                if id.qp_type() == QpType::Rc {
                    self.bring_up(&id, &[QpState::Rtr, QpState::Rts])?;
                }
                id.accept(Some(&self.param(number, data)), Some(u64::from(number) + 1000), Ece::default())?;
            }
            ("finish", []) => {
                self.bring_up(&id, &[QpState::Rtr, QpState::Rts])?;
                id.accept(None, None, Ece::default())?;
            }
            ("reject", [data]) => id.reject(data.as_bytes(), cm::reject_reason::CONSUMER_DEFINED)?,
            ("disconnect", []) => id.disconnect()?,
            ("join", [ip]) => {
                let join = id.join_multicast(address(ip, "0"), JoinFlags::FullMember, 77)?;
                return Ok(join.to_string());
            }
            ("attach", []) => {
                let group = self.ways[&number].ah_attr.dgid;
                self.endpoints[&number].qp.attach_mcast(group)?;
            }
            ("detach", []) => {
                let group = self.ways[&number].ah_attr.dgid;
                self.endpoints[&number].qp.detach_mcast(group)?;
            }
            ("leave", [join]) => {
                return self.channel.leave_multicast(join.parse().unwrap()).map(|n| n.to_string());
            }
            ("send", [data]) => return self.send(number, data),
            ("recv", []) => return self.recv(number),
            ("destroy", []) => {
                self.endpoints.remove(&number);
                self.ids.remove(&number);
                return id.destroy().map(|reported| reported.to_string());
            }
            _ => return Ok(format!("error unknown {words:?}")),
        }
        Ok("ok".into())
    }

    fn event(&mut self, timeout: Duration) -> Result<String, VerbsError> {
        let Some(event) = self.channel.get_event(Some(timeout))? else { return Ok("none".into()) };
        if let Some(id) = event.request.clone() {
            self.ids.insert(id.id(), id);
        }
        let param = match &event.param {
            EventParam::Conn(c) => format!(
                "data={} rr={} id={} retry={} rnr={}",
                text(&c.private_data),
                c.responder_resources,
                c.initiator_depth,
                c.retry_count,
                c.rnr_retry_count
            ),
            EventParam::Ud(u) => {
                let of = if event.event == CmEventType::MulticastJoin { event.uid as u32 } else { event.id };
                if u.qp_num != Qpn::new(0) {
                    self.ways.insert(of, u.clone());
                    // The test joins with a uid of its own and one identifier.
                    if event.event == CmEventType::MulticastJoin {
                        self.ids.keys().for_each(|&id| drop(self.ways.insert(id, u.clone())));
                    }
                }
                format!("data={} qkey={:#x} gid={}", text(&u.private_data), u.qkey.0, u.ah_attr.dgid)
            }
        };
        Ok(format!("{:?} status={} id={} uid={} {param}", event.event, event.status, event.id, event.uid))
    }

    fn param(&self, number: u32, data: &str) -> ConnParam {
        ConnParam {
            private_data: data.as_bytes().to_vec(),
            responder_resources: 3,
            initiator_depth: 2,
            retry_count: 6,
            rnr_retry_count: 5,
            qp_num: self.endpoints.get(&number).map_or(Qpn::new(0), |e| e.qp.qp_num()),
            ..ConnParam::default()
        }
    }

    fn make(&mut self, id: &Arc<dyn CmId>) -> Result<(), VerbsError> {
        let device = id.query_addr().device.expect("bound to a device");
        let context = self.provider.open(&device.name)?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16, None, 0)?;
        let mr = pd.alloc_mr(2 * HALF, AccessFlags::LOCAL_WRITE)?;
        let init = QpInit {
            qp_type: id.qp_type(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
        };
        let qp = pd.create_qp(&init)?;
        self.endpoints.insert(id.id(), Endpoint { qp, cq, mr, pd, early: Vec::new() });
        self.bring_up(id, &[QpState::Init])?;
        let endpoint = &self.endpoints[&id.id()];
        let list = [Sge { addr: endpoint.mr.addr(), length: HALF as u32, lkey: endpoint.mr.lkey() }];
        endpoint.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &list }])?;
        if id.qp_type() == QpType::Ud {
            self.bring_up(id, &[QpState::Rtr, QpState::Rts])?;
        }
        Ok(())
    }

    fn bring_up(&self, id: &Arc<dyn CmId>, states: &[QpState]) -> Result<(), VerbsError> {
        let endpoint = &self.endpoints[&id.id()];
        for &state in states {
            let (attr, mask) = match (id.qp_type(), state) {
                // As librdmacm does: a UD QP needs nothing from the communication manager beyond INIT.
                (QpType::Ud, QpState::Rtr) => (QpAttr { qp_state: state, ..QpAttr::default() }, QpAttrMask::STATE),
                (QpType::Ud, QpState::Rts) => {
                    (QpAttr { qp_state: state, ..QpAttr::default() }, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
                }
                _ => id.init_qp_attr(state)?,
            };
            endpoint.qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    fn send(&mut self, number: u32, data: &str) -> Result<String, VerbsError> {
        let Endpoint { qp, mr, pd, .. } = &self.endpoints[&number];
        mr.write(HALF, data.as_bytes())?;
        let list = [Sge { addr: mr.addr() + HALF as u64, length: data.len() as u32, lkey: mr.lkey() }];
        let ah = match self.ways.get(&number) {
            Some(way) => Some((pd.create_ah(&way.ah_attr)?, way.qp_num, way.qkey)),
            None => None,
        };
        let ud = ah.as_ref().map(|(ah, remote_qpn, remote_qkey)| UdAddress {
            ah: ah.as_ref(),
            remote_qpn: *remote_qpn,
            remote_qkey: *remote_qkey,
        });
        qp.post_send(&[SendWr { sg_list: &list, ud, ..SendWr::new(2, SendOp::Send) }])?;
        let wc = self.completion(number, WcOpcode::Send);
        Ok(format!("{:?}", wc.status))
    }

    fn recv(&mut self, number: u32) -> Result<String, VerbsError> {
        let wc = self.completion(number, WcOpcode::Recv);
        let skip = if self.endpoints[&number].qp.qp_type() == QpType::Ud { 40 } else { 0 };
        let mut got = vec![0; (wc.byte_len as usize).saturating_sub(skip)];
        self.endpoints[&number].mr.read(skip, &mut got)?;
        Ok(format!("{:?} {}", wc.status, String::from_utf8_lossy(&got)))
    }

    fn completion(&mut self, number: u32, opcode: WcOpcode) -> WorkCompletion {
        let endpoint = self.endpoints.get_mut(&number).unwrap();
        let start = Instant::now();
        loop {
            let wanted = |wc: &WorkCompletion| wc.opcode == opcode || wc.status != WcStatus::Success;
            if let Some(at) = endpoint.early.iter().position(wanted) {
                return endpoint.early.remove(at);
            }
            let mut out = [WorkCompletion::default()];
            if endpoint.cq.poll(&mut out).unwrap() > 0 {
                endpoint.early.push(out[0]);
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no completion");
        }
    }
}
