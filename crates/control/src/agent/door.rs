//! The Unix socket of the node's processes. The kernel says who is there; a process that sends nonsense, or does not read, is cut off, and its
//! connections count as gone when its socket closes, however it ended.

use super::Unusable;
use super::hub::{Hub, ProcessKey};
use crate::local::{FromProcess, MAX_LINE, PROTOCOL, line};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long a process may take to read.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the socket. A file that an agent left behind is replaced; one that answers is not.
pub fn open(path: &Path, any_user: bool) -> Result<UnixListener, Unusable> {
    let wrong = |why: String| Unusable(format!("the socket `{}` cannot be taken: {why}", path.display()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| wrong(error.to_string()))?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(wrong("another agent listens there; end it, or give this one another socket (`socket`)".into()));
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|error| wrong(error.to_string()))?;
    let mode = if any_user { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(|error| wrong(error.to_string()))?;
    Ok(listener)
}

/// Accepts for as long as the agent lives.
pub async fn run(hub: Arc<Hub>, listener: UnixListener, any_user: bool) {
    // They end with this one.
    let mut serving = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = serving.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                if any_user || is_ours(&stream) {
                    serving.spawn(serve(Arc::clone(&hub), stream));
                }
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn is_ours(stream: &UnixStream) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").map(|metadata| metadata.uid());
    match (stream.peer_cred(), own) {
        (Ok(peer), Ok(own)) => peer.uid() == 0 || peer.uid() == own,
        _ => false,
    }
}

async fn serve(hub: Arc<Hub>, stream: UnixStream) {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or(0);
    let (reading, writing) = stream.into_split();
    let (out, queue) = mpsc::channel(1024);
    let Some(key) = hub.handle_process(pid, out) else { return };
    tokio::select! {
        () = read(&hub, key, reading) => {}
        () = write(queue, writing) => {}
    }
    hub.handle_process_gone(key);
}

async fn read(hub: &Hub, key: ProcessKey, reading: OwnedReadHalf) {
    let mut reader = BufReader::new(reading);
    let mut text = Vec::new();
    let mut greeted = false;
    loop {
        text.clear();
        let mut limited = (&mut reader).take(MAX_LINE as u64 + 1);
        if !matches!(limited.read_until(b'\n', &mut text).await, Ok(1..)) || text.last() != Some(&b'\n') {
            return;
        }
        let Ok(message) = serde_json::from_slice::<FromProcess>(&text) else { return };
        let is_hello = matches!(message, FromProcess::Hello { protocol: PROTOCOL, .. });
        if is_hello == greeted || !hub.handle_message(key, message) {
            return;
        }
        greeted = true;
    }
}

async fn write(mut queue: mpsc::Receiver<Arc<crate::local::ToProcess>>, mut writing: OwnedWriteHalf) {
    while let Some(message) = queue.recv().await {
        let bytes = line(&*message);
        if !matches!(tokio::time::timeout(PATIENCE, writing.write_all(&bytes)).await, Ok(Ok(()))) {
            return;
        }
    }
}
