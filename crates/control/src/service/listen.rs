//! Sockets: taken with a clear error, accepted with TLS where there is a certificate. A handshake that hangs holds nobody up.

use crate::store::StoreError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at a time.
const AT_ONCE: usize = 256;

/// Takes an address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, StoreError> {
    TcpListener::bind(address).await.map_err(|error| {
        StoreError::Invalid(format!(
            "{address} cannot be taken: {error}; choose another port, or 0 for any that is free"
        ))
    })
}

/// A connection with TLS whose handshake is done.
pub type Secured = (TlsStream<TcpStream>, SocketAddr);

/// Accepts and shakes hands beside the caller; gives what came of it.
pub fn secured(listener: TcpListener, acceptor: TlsAcceptor) -> mpsc::Receiver<Secured> {
    let (ready, taken) = mpsc::channel(64);
    tokio::spawn(async move {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ready.closed() => return,
            };
            let Ok((stream, peer)) = accepted else {
                // Out of descriptors, most likely: wait a little for some to come back.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let (acceptor, ready) = (acceptor.clone(), ready.clone());
            tokio::spawn(async move {
                let _slot = slot;
                if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    let _ = ready.send((stream, peer)).await;
                }
            });
        }
    });
    taken
}
