//! A port that loses packets, live: its connection takes another source port, and when that does not help another port, by itself and under load. The checker
//! finds nothing lost, repeated or reordered.

use super::load::Loads;
use super::ports::wait_until;
use scalefabric_fabric::endpoint::{Config, Fabric, Target};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::fabric::{PATIENCE, Pair, provider_named};
use scalefabric_verbs::cm::CmChannel;
use scalefabric_verbs::{Context, DeviceInfo, Provider, VerbsError};
use std::sync::Arc;

/// The devices of two providers, of which one has faults.
#[derive(Debug)]
struct Both([Arc<SoftwareProvider>; 2]);

impl Provider for Both {
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let all: Result<Vec<_>, _> = self.0.iter().map(|provider| provider.devices()).collect();
        Ok(all?.concat())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>, VerbsError> {
        let found = self.0.iter().find(|one| one.devices().is_ok_and(|all| all.iter().any(|info| info.name == name)));
        Provider::open(&**found.unwrap_or(&self.0[0]), name)
    }

    fn event_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        self.0[0].event_channel()
    }
}

#[test]
fn a_connection_leaves_a_source_port_and_then_a_port_that_lose_what_it_sends() {
    let faults = "drop=5% dir=tx, seed=7".parse().unwrap();
    let (lossy, sound) = (provider_named("lossy", 1, Some(faults)), provider_named("sound", 2, None));
    // A loss at the end of what is sent is found by the timer: soon, so that enough is sent between two looks.
    let config = Config { depth: 32, receives: 64, receive_bytes: 64, timeout: 11, ..Config::default() };
    let provider: Arc<dyn Provider> = Arc::new(Both([lossy, sound]));
    let build = |node: &str, device: &str| {
        let builder = Fabric::builder(provider.clone()).device(device).node(node).config(config.clone());
        builder.exchange(Arc::new(Tcp::new()))
    };
    let server = build("server", "sound").listen_at("tcp://127.0.0.1:0").build().unwrap();
    let client = build("client", "lossy").also("sound").build().unwrap();
    let listener = server.listen("echo").unwrap();
    let pair = Pair { server, client, listener };
    let target = Target::at(pair.server.addresses()[0].clone(), "echo");
    let client = pair.client.connect(&target).unwrap();
    let server = pair.listener.accept(Some(PATIENCE)).unwrap().expect("the peer is connected");
    let path = || client.record().unwrap().path;
    assert_eq!((path().device.as_str(), path().flow_label), ("lossy", 0));

    let loads = Loads::start(&pair, &client, &server);
    wait_until("it kept its source port", &[&client, &server], || path().flow_label != 0);
    wait_until("it stayed on the port that loses", &[&client, &server], || path().device == "sound");
    loads.wait_for(1000);
    assert!(loads.end() > 0);
    assert!(client.statistics().moves >= 2, "{:?}", client.statistics());
}
