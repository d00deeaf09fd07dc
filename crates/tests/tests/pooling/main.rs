//! What connections share: receives over an SRQ, calls over the same, QPs over XRC, and the pace at which a memory node can serve them. Each test has a device of its own, so that its counters and its list of
//! objects are those of the test.

mod calls;
mod pressure;
mod shared_receives;
mod xrc;

use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Listener, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_nic::resources::{QpResource, SrqResource};
use scalefabric_verbs::QpType;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// After this, something has not happened and will not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A device on a loopback address of its own; numbers are 1 to 31, each for one test.
pub(crate) struct Device {
    pub(crate) provider: Arc<SoftwareProvider>,
    pub(crate) name: String,
}

impl Device {
    pub(crate) fn new(number: u8) -> Self {
        Self::with_ports(&[number])
    }

    /// A device with a port for each number.
    pub(crate) fn with_ports(numbers: &[u8]) -> Self {
        let id = std::process::id();
        let address =
            |number| Ipv4Addr::new(127, 210 + (id >> 11) as u8 % 40, (id >> 3) as u8, (id << 5) as u8 | number);
        let name = format!("pooling{}", numbers[0]);
        let port =
            |number: &u8| PortOptions { interface: "lo".into(), addresses: vec![IpAddr::from(address(*number))] };
        let ports = numbers.iter().map(port).collect();
        let devices = vec![DeviceOptions { name: name.clone(), ports, ..DeviceOptions::default() }];
        let options = Options { devices, automatic: false, share: false, ..Options::default() };
        Self { provider: Arc::new(SoftwareProvider::new(options)), name }
    }

    /// A process, as far as RDMA is concerned.
    pub(crate) fn fabric(&self, node: &str, config: &Config) -> Fabric {
        let builder = Fabric::builder(self.provider.clone()).device(&self.name).node(node).config(config.clone());
        builder.exchange(Arc::new(Tcp::new())).listen_at("tcp://127.0.0.1:0").build().unwrap()
    }

    /// The device's own list of its QPs.
    pub(crate) fn qps(&self) -> Vec<QpResource> {
        self.provider.survey(&self.name).unwrap().all(|resources| &resources.qps).map(|(_, qp)| qp.clone()).collect()
    }

    pub(crate) fn qps_of(&self, qp_type: QpType) -> usize {
        self.qps().iter().filter(|qp| qp.qp_type == qp_type as u32).count()
    }

    /// The device's own list of its SRQs.
    pub(crate) fn srqs(&self) -> Vec<SrqResource> {
        self.provider.survey(&self.name).unwrap().all(|resources| &resources.srqs).map(|(_, srq)| srq.clone()).collect()
    }

    /// What a counter says.
    pub(crate) fn counter(&self, fabric: &Fabric, name: &str) -> u64 {
        let counters = fabric.context().hw_counters(1).unwrap();
        counters.iter().find(|(known, _)| known == name).unwrap().1
    }
}

pub(crate) fn connect(from: &Fabric, to: &Fabric, listener: &Listener) -> (Connection, Connection) {
    let target = Target::at(to.addresses()[0].clone(), "service");
    let connection = from.connect(&target).unwrap();
    (connection, listener.accept(Some(PATIENCE)).unwrap().expect("the peer is connected"))
}
