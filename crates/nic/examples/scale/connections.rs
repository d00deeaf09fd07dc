//! What a connection costs that rdma_cm makes and ends, both sides in this process, beside idle ones. No queue pair is made: what is measured is the
//! communication manager and the messages of QP 1.

use super::pair::own_address;
use super::{Limits, Table, count, ratio};
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::*;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// After this, something has not happened and will not.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connections that are made and ended for a row.
const COUNTED: usize = 200;

/// The two sides of a connection.
type Pair = (Arc<dyn CmId>, Arc<dyn CmId>);

/// A listener, and who calls it.
struct Ends {
    _listener: Arc<dyn CmId>,
    listening: Arc<dyn CmChannel>,
    calling: Arc<dyn CmChannel>,
    address: SocketAddr,
    qpn: u32,
}

impl Ends {
    fn new() -> Self {
        let ip = IpAddr::from(own_address(2));
        let port = PortOptions { interface: "lo".into(), addresses: vec![ip] };
        let device = DeviceOptions { name: "scale-cm".into(), ports: vec![port], ..DeviceOptions::default() };
        let options = Options { devices: vec![device], automatic: false, share: false, ..Options::default() };
        let provider = SoftwareProvider::new(options);
        let channel = || provider.event_channel().expect("a channel");
        let (listening, calling) = (channel(), channel());
        let address = SocketAddr::new(ip, 7471);
        let listener = listening.create_id(PortSpace::Tcp, QpType::Rc, 1).expect("an identifier");
        listener.bind_addr(address.into()).expect("the port is free");
        listener.listen(0).expect("it listens");
        Self { _listener: listener, listening, calling, address, qpn: 0x10_0000 }
    }

    /// The next event but for those that only say that an earlier connection is forgotten.
    fn expect(channel: &dyn CmChannel, kind: CmEventType) -> CmEvent {
        loop {
            let event = channel.get_event(Some(PATIENCE)).expect("events").expect("an event in time");
            if event.event == kind {
                return event;
            }
            assert_eq!(event.event, CmEventType::TimewaitExit, "instead of {kind:?}");
        }
    }

    fn parameters(&mut self) -> ConnParam {
        // Each connection another queue pair, or it would be the end of the one before.
        self.qpn += 1;
        ConnParam { qp_num: Qpn::new(self.qpn), responder_resources: 1, initiator_depth: 1, ..ConnParam::default() }
    }

    fn make(&mut self) -> Pair {
        let (near, far) = (self.parameters(), self.parameters());
        let id = self.calling.create_id(PortSpace::Tcp, QpType::Rc, 1).expect("an identifier");
        id.resolve_addr(None, self.address.into(), 2000).expect("an address");
        Self::expect(&*self.calling, CmEventType::AddrResolved);
        id.resolve_route(2000).expect("a route");
        Self::expect(&*self.calling, CmEventType::RouteResolved);
        id.connect(&near).expect("a request");
        let request = Self::expect(&*self.listening, CmEventType::ConnectRequest).request.expect("its identifier");
        request.accept(Some(&far), Some(2), Ece::default()).expect("an answer");
        Self::expect(&*self.calling, CmEventType::ConnectResponse);
        id.accept(None, None, Ece::default()).expect("it is ready");
        Self::expect(&*self.listening, CmEventType::Established);
        (id, request)
    }

    fn end(&self, (near, far): Pair) {
        near.disconnect().expect("it ends");
        Self::expect(&*self.calling, CmEventType::Disconnected);
        Self::expect(&*self.listening, CmEventType::Disconnected);
        near.destroy().expect("it is gone");
        far.destroy().expect("it is gone");
    }
}

/// Processor time of all threads of the process.
fn of_process() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Connections made and ended beside idle ones.
pub fn beside_idle(limits: &Limits) -> Table {
    let mut table = Table::new(
        "connections of rdma_cm, both sides in one process, beside N idle ones",
        &["N", "make one, us of processor", "end one, us of processor", "make and end / with none"],
    );
    let mut ends = Ends::new();
    let mut idle: Vec<Pair> = Vec::new();
    let mut first = None;
    // A caller takes a port, and a device has 4,096.
    for n in [0, 1_000, 2_000, 3_500].into_iter().filter(|n| *n <= limits.most) {
        idle.extend((idle.len()..n as usize).map(|_| ends.make()));
        let before = of_process();
        let made: Vec<Pair> = (0..COUNTED).map(|_| ends.make()).collect();
        let between = of_process();
        made.into_iter().for_each(|pair| ends.end(pair));
        let us = |time: Duration| time.as_nanos() as f64 / 1e3 / COUNTED as f64;
        let (make, end) = (us(between - before), us(of_process() - between));
        let alone = *first.get_or_insert(make + end);
        table.row([count(n), format!("{make:.0}"), format!("{end:.0}"), ratio((make + end) / alone)]);
    }
    table
}
