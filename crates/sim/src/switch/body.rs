//! Software switches with hosts that are network interfaces: a thread for each host reads what it sends, walks it through the network and gives it to whom it comes. When a
//! host's interface goes away its thread ends.

use super::tun::Tun;
use super::{HostId, Network};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest IP packet.
const MAX_PACKET: usize = 65_535;

/// A network that forwards. It goes on for as long as there are interfaces.
#[derive(Clone, Debug)]
pub struct Forwarder {
    network: Arc<Mutex<Network>>,
}

impl Forwarder {
    /// Starts a thread for each host.
    pub fn start(network: Network, hosts: BTreeMap<HostId, Tun>) -> std::io::Result<Self> {
        let network = Arc::new(Mutex::new(network));
        let hosts: Arc<BTreeMap<HostId, Tun>> = Arc::new(hosts);
        for &host in hosts.keys() {
            let (network, hosts) = (network.clone(), hosts.clone());
            std::thread::Builder::new()
                .name(format!("switch-{}", host.0))
                .spawn(move || serve(&network, &hosts, host))?;
        }
        Ok(Self { network })
    }

    /// The network, to look at its counters or to change its links.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(network: &Mutex<Network>, hosts: &BTreeMap<HostId, Tun>, host: HostId) {
    let mut packet = vec![0; MAX_PACKET];
    while let Ok(length) = hosts[&host].read(&mut packet) {
        let packet = &mut packet[..length];
        let to = network.lock().unwrap_or_else(PoisonError::into_inner).forward(host, packet);
        if let Some(to) = to.ok().and_then(|to| hosts.get(&to)) {
            // A host whose interface is down loses the packet, as behind a cable that was pulled.
            let _ = to.write(packet);
        }
    }
}
