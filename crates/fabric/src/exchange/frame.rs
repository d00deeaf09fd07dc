//! Messages over a stream of bytes: each side greets with eight bytes, then every message has its length (4 bytes, big endian) before it; length 0 is the goodbye.
//! TCP and TLS are streams. It may not interpret a message, and it never prints one.

use super::handshake::explain;
use super::{MAX_MESSAGE, Patience, check_length};
use crate::error::{FabricError, Fault};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// What both sides say first: seven letters and the version.
const GREETING: [u8; 8] = *b"SFABXCH\x01";

/// How long a closed channel waits for the peer to have read everything.
const LINGER: Duration = Duration::from_secs(5);

/// A stream that can carry messages.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Both directions of a greeted stream.
pub(super) struct Frames<S: Stream> {
    /// Present until it is dropped.
    stream: Option<S>,
    peer: String,
    patience: Patience,
    /// Bytes that came and were not yet taken: at most one frame and a read more.
    inbox: Vec<u8>,
    /// Why nothing can be sent any more.
    cannot_send: Option<FabricError>,
    /// Why nothing can be received any more.
    cannot_receive: Option<FabricError>,
}

impl<S: Stream> Frames<S> {
    /// Greets and hears the greeting. `peer` names the other side in errors. The caller limits the time.
    pub(super) async fn greet(mut stream: S, peer: String, patience: Patience) -> Result<Self, FabricError> {
        let broke = |error| explain(&peer, "the greeting", &error);
        stream.write_all(&GREETING).await.map_err(broke)?;
        stream.flush().await.map_err(broke)?;
        let mut heard = [0; GREETING.len()];
        let mut length = 0;
        while length < heard.len() {
            match stream.read(&mut heard[length..]).await.map_err(broke)? {
                0 => break,
                more => length += more,
            }
        }
        check_greeting(&heard[..length], &peer)?;
        Ok(Self { stream: Some(stream), peer, patience, inbox: Vec::new(), cannot_send: None, cannot_receive: None })
    }

    /// See [`super::Channel::send`].
    pub(super) async fn send(&mut self, message: &[u8]) -> Result<(), FabricError> {
        check_length(message)?;
        if let Some(error) = &self.cannot_send {
            return Err(error.clone());
        }
        // Whoever cancels from here on leaves half a message behind.
        self.cannot_send = Some(FabricError::unreachable(format!(
            "the channel to {} is broken: a message was given up half sent; dial again",
            self.peer
        )));
        let mut frame = Vec::with_capacity(4 + message.len());
        frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
        frame.extend_from_slice(message);
        let stream = self.stream.as_mut().expect("present until dropped");
        let write = async {
            stream.write_all(&frame).await?;
            stream.flush().await
        };
        let result = match timeout(self.patience.send, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(explain(&self.peer, "a send", &error)),
            Err(_) => Err(FabricError::unreachable(format!(
                "{} took no message for {:?} (it does not read, or the way to it is cut): dial again",
                self.peer, self.patience.send
            ))),
        };
        self.cannot_send = result.clone().err();
        result
    }

    /// See [`super::Channel::receive`].
    pub(super) async fn receive(&mut self) -> Result<Vec<u8>, FabricError> {
        if let Some(error) = &self.cannot_receive {
            return Err(error.clone());
        }
        let result = self.next_frame().await;
        self.cannot_receive = result.as_ref().err().cloned();
        result
    }

    /// The bytes are kept in `inbox` between polls, so that nothing is lost when the caller stops waiting.
    async fn next_frame(&mut self) -> Result<Vec<u8>, FabricError> {
        loop {
            if let Some(head) = self.inbox.first_chunk::<4>() {
                let length = u32::from_be_bytes(*head) as usize;
                if length == 0 {
                    return Err(FabricError::new(Fault::Closed, format!("{} has closed the channel", self.peer)));
                }
                if length > MAX_MESSAGE {
                    return Err(FabricError::peer(format!(
                        "{} announces a message of {length} bytes, more than {MAX_MESSAGE}: is it a scaleFabric of this version?",
                        self.peer
                    )));
                }
                if self.inbox.len() >= 4 + length {
                    let rest = self.inbox.split_off(4 + length);
                    let mut message = std::mem::replace(&mut self.inbox, rest);
                    message.drain(..4);
                    return Ok(message);
                }
            }
            self.inbox.reserve(4096);
            let stream = self.stream.as_mut().expect("present until dropped");
            match stream.read_buf(&mut self.inbox).await {
                Ok(0) => {
                    return Err(FabricError::unreachable(format!(
                        "{} is gone without a goodbye (its process has probably ended): dial again",
                        self.peer
                    )));
                }
                Ok(_) => {}
                Err(error) => return Err(explain(&self.peer, "a receive", &error)),
            }
        }
    }
}

impl<S: Stream> Drop for Frames<S> {
    /// Says goodbye and reads on until the peer has closed, too: closing a TCP socket with unread bytes would reset the connection and destroy what
    /// the peer has not read yet.
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        if self.cannot_send.is_some() {
            return;
        }
        let reads_on = self.cannot_receive.is_none();
        let mut farewell: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            if stream.write_all(&0_u32.to_be_bytes()).await.is_err() || stream.shutdown().await.is_err() {
                return;
            }
            let mut rest = [0; 4096];
            while reads_on && matches!(stream.read(&mut rest).await, Ok(1..)) {}
        });
        // Usually the goodbye fits at once: then it is said even if the runtime ends right after.
        if farewell.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Pending
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { timeout(LINGER, farewell).await });
        }
    }
}

fn check_greeting(heard: &[u8], peer: &str) -> Result<(), FabricError> {
    if heard == GREETING {
        return Ok(());
    }
    Err(match heard {
        [] => FabricError::unreachable(format!(
            "{peer} hung up before it said anything: it may be stopping, or want another protocol"
        )),
        // A TLS record of a handshake or of an alert.
        [0x15 | 0x16, 0x03, ..] => {
            FabricError::peer(format!("{peer} speaks TLS, and plain TCP was expected: use tls:// on both sides"))
        }
        [b'S', b'F', b'A', b'B', b'X', b'C', b'H', version] => FabricError::peer(format!(
            "{peer} speaks version {version} of the exchange, we speak version {}: bring both to the same release",
            GREETING[7]
        )),
        _ => FabricError::peer(format!(
            "{peer} is no scaleFabric exchange (its first bytes are others'): check the port"
        )),
    })
}
