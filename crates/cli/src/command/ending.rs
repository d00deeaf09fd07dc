//! The end of a command that runs until it is told to end: Ctrl-C, or SIGTERM from whoever started it. Both are its ordinary end.

use tokio::signal::unix::{SignalKind, signal};

/// Waits to be told.
pub async fn asked() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers signals end the process at once.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
