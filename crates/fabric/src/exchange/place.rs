//! Which addresses are on this host, and names resolved to addresses. It decides nothing: who may speak plainly is for the exchange to say.

use crate::error::FabricError;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// All addresses of `host:port`; at least one.
pub(super) async fn resolve(address: &str) -> Result<Vec<SocketAddr>, FabricError> {
    let found = tokio::net::lookup_host(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => FabricError::misuse(format!(
            "`{address}` is no address: write host:port, such as 10.0.0.1:7471 or [fe80::1]:7471"
        )),
        _ => FabricError::unreachable(format!(
            "`{address}` cannot be resolved ({error}): check the name, or write the address"
        )),
    })?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() {
        return Err(FabricError::unreachable(format!("`{address}` has no address: check the name")));
    }
    Ok(found)
}

/// Whether packets to it stay in the loopback interface.
pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether it is an address of this host (of its network namespace): only those can be bound.
pub(super) fn is_own(ip: IpAddr) -> bool {
    is_loopback(ip) || UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether a connection between these two stays on this host.
pub(super) fn is_within_host(local: SocketAddr, peer: SocketAddr) -> bool {
    is_loopback(peer.ip()) || local.ip().to_canonical() == peer.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_in_all_its_forms_and_an_address_for_documentation_is_nobodys() {
        for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_loopback(text.parse().unwrap()), "{text}");
        }
        for text in ["192.0.2.7", "2001:db8::7"] {
            assert!(!is_loopback(text.parse().unwrap()), "{text}");
            assert!(!is_own(text.parse().unwrap()), "{text}");
        }
    }
}
