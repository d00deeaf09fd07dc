//! Two programs that find each other by address and port, as with librdmacm: one listens, the other connects and sends a
//! greeting.
//!
//! `cargo run --example greeting -- listen 127.0.0.1 7471` in one terminal, `cargo run --example greeting -- greet 127.0.0.1 7471
//! hello` in another. No QP number is exchanged by hand: the communication manager does that.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::{
    AccessFlags, CmChannel, CmEvent, CmEventType, CmId, CompletionQueue, ConnParam, Ece, MemoryRegion, PortSpace,
    Provider, QpCap, QpInit, QpState, QpType, QueuePair, RecvWr, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

const BYTES: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let provider = SoftwareProvider::from_environment()?;
    let channel = provider.event_channel()?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", ip, port] => listen(&provider, &*channel, address(ip, port)?),
        ["greet", ip, port, text] => greet(&provider, &*channel, address(ip, port)?, text),
        _ => Err("usage: greeting listen ADDRESS PORT | greeting greet ADDRESS PORT TEXT".into()),
    }
}

fn address(ip: &str, port: &str) -> Result<SocketAddr, Box<dyn Error>> {
    Ok(SocketAddr::new(ip.parse::<IpAddr>()?, port.parse()?))
}

fn listen(provider: &dyn Provider, channel: &dyn CmChannel, at: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = channel.create_id(PortSpace::Tcp, QpType::Rc, 1)?;
    listener.bind_addr(at.into())?;
    listener.listen(1)?;
    println!("listening on {at}");
    let request = expect(channel, CmEventType::ConnectRequest)?.request.ok_or("a request has an identifier")?;
    let endpoint = Endpoint::new(provider, &*request)?;
    endpoint.bring_up(&*request, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
    endpoint.post_recv()?;
    request.accept(Some(&endpoint.parameters()), Some(2), Ece::default())?;
    expect(channel, CmEventType::Established)?;
    let length = endpoint.completion()?.byte_len as usize;
    let mut text = vec![0; length];
    endpoint.memory.read(0, &mut text)?;
    println!("heard: {}", String::from_utf8_lossy(&text));
    expect(channel, CmEventType::Disconnected)?;
    request.destroy()?;
    Ok(())
}

fn greet(provider: &dyn Provider, channel: &dyn CmChannel, to: SocketAddr, text: &str) -> Result<(), Box<dyn Error>> {
    let id = channel.create_id(PortSpace::Tcp, QpType::Rc, 1)?;
    id.resolve_addr(None, to.into(), 2000)?;
    expect(channel, CmEventType::AddrResolved)?;
    id.resolve_route(2000)?;
    expect(channel, CmEventType::RouteResolved)?;
    let endpoint = Endpoint::new(provider, &*id)?;
    endpoint.bring_up(&*id, &[QpState::Init])?;
    id.connect(&endpoint.parameters())?;
    expect(channel, CmEventType::ConnectResponse)?;
    endpoint.bring_up(&*id, &[QpState::Rtr, QpState::Rts])?;
    id.accept(None, None, Ece::default())?;
    endpoint.send(text)?;
    id.disconnect()?;
    expect(channel, CmEventType::Disconnected)?;
    id.destroy()?;
    println!("said: {text}");
    Ok(())
}

/// The next event, which must be of this kind.
fn expect(channel: &dyn CmChannel, kind: CmEventType) -> Result<CmEvent, Box<dyn Error>> {
    let event = channel.get_event(None)?.ok_or("no event")?;
    if event.event == kind {
        return Ok(event);
    }
    Err(format!("{:?} came instead of {kind:?}, status {}", event.event, event.status).into())
}

/// A queue pair with a buffer.
struct Endpoint {
    qp: Arc<dyn QueuePair>,
    completions: Arc<dyn CompletionQueue>,
    memory: Arc<dyn MemoryRegion>,
}

impl Endpoint {
    fn new(provider: &dyn Provider, id: &dyn CmId) -> Result<Self, Box<dyn Error>> {
        let device = id.query_addr().device.ok_or("the identifier is bound to no device")?;
        let context = provider.open(&device.name)?;
        let domain = context.alloc_pd()?;
        let completions = context.create_cq(4, None, 0)?;
        let memory = domain.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE)?;
        let qp = domain.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: completions.clone(),
            recv_cq: completions.clone(),
            srq: None,
            cap: QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
        })?;
        Ok(Self { qp, completions, memory })
    }

    /// The communication manager knows what the queue pair needs.
    fn bring_up(&self, id: &dyn CmId, states: &[QpState]) -> Result<(), Box<dyn Error>> {
        for &state in states {
            let (attr, mask) = id.init_qp_attr(state)?;
            self.qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    fn parameters(&self) -> ConnParam {
        ConnParam {
            qp_num: self.qp.qp_num(),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    fn post_recv(&self) -> Result<(), Box<dyn Error>> {
        let list = [Sge { addr: self.memory.addr(), length: BYTES as u32, lkey: self.memory.lkey() }];
        Ok(self.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &list }])?)
    }

    fn send(&self, text: &str) -> Result<(), Box<dyn Error>> {
        let text = &text.as_bytes()[..text.len().min(BYTES)];
        self.memory.write(0, text)?;
        let list = [Sge { addr: self.memory.addr(), length: text.len() as u32, lkey: self.memory.lkey() }];
        self.qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(1, SendOp::Send) }])?;
        self.completion().map(drop)
    }

    fn completion(&self) -> Result<WorkCompletion, Box<dyn Error>> {
        let mut found = [WorkCompletion::default()];
        while self.completions.poll(&mut found)? == 0 {
            std::thread::yield_now();
        }
        match found[0].status {
            WcStatus::Success => Ok(found[0]),
            status => Err(format!("the transfer failed: {status:?}").into()),
        }
    }
}
