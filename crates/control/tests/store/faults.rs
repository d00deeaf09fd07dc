//! What a network and a crash do to etcd's clients: answers that get lost after the work was done, a server that is gone, and one that comes back.

use super::etcd_server::Server;
use scalefabric_control::store::etcd::Settings;
use scalefabric_control::store::{Change, Etcd, Event, Revision, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Stands between a client and etcd, and loses answers when told to.
struct Wire {
    port: u16,
    lose: Arc<AtomicBool>,
    lost: Arc<AtomicU32>,
}

impl Wire {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (lose, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (told, counted) = (Arc::clone(&lose), Arc::clone(&lost));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(etcd) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                tokio::spawn(carry(client, etcd, Arc::clone(&told), Arc::clone(&counted)));
            }
        });
        Self { port, lose, lost }
    }

    /// The next answer that carries data to the client is lost, and the connection with it.
    fn lose_an_answer(&self) {
        self.lose.store(true, Ordering::SeqCst);
    }

    fn lost(&self) -> u32 {
        self.lost.load(Ordering::SeqCst)
    }
}

async fn carry(client: TcpStream, etcd: TcpStream, lose: Arc<AtomicBool>, lost: Arc<AtomicU32>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_etcd, mut to_etcd) = etcd.into_split();
    let there = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_etcd).await;
    });
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from_etcd.read(&mut bytes).await {
        // A short piece is a frame of the connection's own (settings, ping, window); the answer to a transaction is longer.
        if count > 60 && lose.swap(false, Ordering::SeqCst) {
            lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if to_client.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    there.abort();
}

fn store(port: u16, root: &str, patience: Duration) -> Etcd {
    let settings = Settings { root: root.into(), patience, ..Settings::new(vec![format!("http://127.0.0.1:{port}")]) };
    Etcd::new(&settings).expect("an address")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_whose_answer_was_lost_is_known_to_be_done() {
    let Some(server) = Server::start() else { return };
    let wire = Wire::to(server.port()).await;
    let store = store(wire.port, "lost/", Duration::from_secs(120));
    let mut at = Revision(0);
    let mut of_swaps = 0;
    for number in 0..20_u32 {
        if number % 2 == 1 {
            wire.lose_an_answer();
        }
        let before = wire.lost();
        let value = number.to_string().into_bytes();
        // Nobody else writes: the swap must succeed, and at the revision that is told.
        let done = store.compare_and_swap("a", at, value, None).await.expect("etcd lives");
        at = done.unwrap_or_else(|| panic!("swap {number} was done and is said to be refused"));
        of_swaps += wire.lost() - before;
        let entry = store.get("a").await.expect("etcd lives").expect("it is there");
        assert_eq!((entry.revision, entry.value), (at, number.to_string().into_bytes()));
    }
    assert!(of_swaps >= 8, "only {of_swaps} answers of swaps were lost: the test tested nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_whose_answer_was_lost_stays_a_refusal() {
    let Some(server) = Server::start() else { return };
    let wire = Wire::to(server.port()).await;
    let store = store(wire.port, "refused/", Duration::from_secs(120));
    store.put("a", b"1".to_vec(), None).await.expect("etcd lives");
    for _ in 0..6 {
        wire.lose_an_answer();
        assert_eq!(store.compare_and_swap("a", Revision(1), b"2".to_vec(), None).await, Ok(None));
    }
    // And a change that was deleted meanwhile is not made again by a copy that comes late.
    store.transact(Vec::new(), vec![Change::Delete { key: "a".into() }]).await.expect("etcd lives");
    assert_eq!(store.get("a").await, Ok(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_has_surely_done_nothing_and_a_watch_goes_on_when_it_is_back() {
    let Some(mut server) = Server::start() else { return };
    let patient = store(server.port(), "gone/", Duration::from_secs(120));
    let first = patient.put("a", b"1".to_vec(), None).await.expect("etcd lives");
    let mut watch = patient.watch("", first).await.expect("a watch");
    server.kill();
    let impatient = store(server.port(), "gone/", Duration::from_secs(2));
    let outcome = loop {
        match impatient.put("a", b"2".to_vec(), None).await {
            // The first call may have been on a connection that died under it.
            Err(StoreError::Unavailable(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(outcome, Err(StoreError::NotDone(_))), "{outcome:?}");
    server.revive();
    let second = patient.put("b", b"3".to_vec(), None).await.expect("etcd is back");
    let event = loop {
        match watch.next().await {
            Ok(events) => break events.into_iter().next_back().expect("at least one"),
            Err(error) => assert!(error.is_passing(), "{error}"),
        }
    };
    assert!(matches!(event, Event::Put(entry) if entry.key == "b" && entry.revision == second));
}
