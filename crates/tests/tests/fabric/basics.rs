//! Connect, send, one-sided operations, waiting in all its forms, and closing.

use scalefabric_fabric::endpoint::{Completion, Config, Connection, Operation, Remote, Target, Waiting};
use scalefabric_fabric::{Fault, Outcome};
use scalefabric_tests::fabric::{PATIENCE, Pair, Region};
use std::sync::mpsc;
use std::time::Duration;

#[track_caller]
fn done(connection: &Connection, operation: Operation<'_>) {
    let outcome = connection.execute(operation).unwrap();
    assert!(outcome.is_done(), "{outcome:?}");
}

fn small() -> Config {
    Config { depth: 32, receives: 32, ..Config::default() }
}

#[test]
fn messages_come_whole_in_order_with_their_immediate_data() {
    let pair = Pair::new(&small());
    let (client, server) = pair.connect();
    for n in 0..100u32 {
        let bytes = [n as u8; 20];
        client.post(&[Operation::send_with_imm(&bytes, n).context(u64::from(n))]).unwrap();
        let message = server.receive(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!((message.len(), message.imm(), message.is_write()), (20, Some(n), false));
        assert_eq!(message.to_vec().unwrap(), bytes);
        let mut out = [Completion::default(); 4];
        assert_eq!(client.wait(&mut out, Some(PATIENCE)).unwrap(), 1);
        assert_eq!(out[0].context, u64::from(n));
        assert!(out[0].outcome.is_done());
    }
}

#[test]
fn one_sided_operations_reach_what_the_peer_has_offered() {
    let pair = Pair::new(&small());
    let (client, server) = pair.connect();
    let (local, remote) = (Region::new(&pair.client, 65536), Region::new(&pair.server, 65536));
    server.offer(7, remote.range()).unwrap();
    let range = client.offered(7, Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(range, remote.range());
    local.0.write(0, &[9; 10_000]).unwrap();
    done(&client, Operation::write(&local.piece(0, 10_000), range.part(100, 10_000).unwrap()));
    assert_eq!(remote.bytes(100, 10_000), [9; 10_000]);
    done(&client, Operation::read(&local.piece(20_000, 10_000), Remote::Offered { id: 7, offset: 100 }));
    assert_eq!(local.bytes(20_000, 10_000), [9; 10_000]);
    done(&client, Operation::fetch_add(&local.piece(64, 8), Remote::Offered { id: 7, offset: 0 }, 5));
    done(&client, Operation::compare_swap(&local.piece(72, 8), Remote::Offered { id: 7, offset: 0 }, 5, 11));
    assert_eq!(remote.0.load_u64(0).unwrap(), 11);
    assert_eq!((local.0.load_u64(64).unwrap(), local.0.load_u64(72).unwrap()), (0, 5));
    done(&client, Operation::write_with_imm(&local.piece(0, 100), range, 77));
    let notice = server.receive(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!((notice.imm(), notice.is_write(), notice.len()), (Some(77), true, 100));
}

#[test]
fn a_batch_is_taken_as_far_as_there_is_room_and_quiet_operations_are_silent() {
    let pair = Pair::new(&small());
    let (client, server) = pair.connect();
    let bytes = [1u8; 8];
    let batch: Vec<_> = (0..40u64).map(|n| Operation::send(&bytes).context(n)).collect();
    let taken = client.try_post(&batch).unwrap();
    assert!((1..=32).contains(&taken), "{taken}");
    let mut out = [Completion::default(); 40];
    let mut seen = Vec::new();
    while seen.len() < taken {
        let count = client.wait(&mut out, Some(PATIENCE)).unwrap();
        assert!(count > 0, "completions are missing");
        seen.extend(out[..count].iter().map(|completion| completion.context));
    }
    assert_eq!(seen, (0..taken as u64).collect::<Vec<_>>());
    for _ in 0..taken {
        server.receive(Some(PATIENCE)).unwrap().unwrap();
    }
    let quiet: Vec<_> = (0..5u64).map(|n| Operation::send(&bytes).context(n).quiet()).collect();
    client.post(&quiet).unwrap();
    assert!(client.flush(Some(PATIENCE)).unwrap());
    assert_eq!(client.poll(&mut out).unwrap(), 0);
    for _ in 0..5 {
        server.receive(Some(PATIENCE)).unwrap().unwrap();
    }
}

#[test]
fn what_cannot_be_posted_is_refused_with_its_value() {
    let pair = Pair::new(&small());
    let (client, _server) = pair.connect();
    let local = Region::new(&pair.client, 10_000);
    let too_long = client.try_post(&[Operation::send(&local.piece(0, 5000))]).unwrap_err();
    assert_eq!(too_long.fault, Fault::Misuse);
    assert!(too_long.message.contains("5000") && too_long.message.contains("4096"), "{too_long}");
    let outside = client.try_post(&[Operation::send(&local.piece(9_000, 2000))]).unwrap_err();
    assert!(outside.message.contains("10000"), "{outside}");
    assert!(client.try_post(&[Operation::send(&[0u8; 221][..])]).is_err());
    assert!(client.try_post(&[Operation::fetch_add(&local.piece(0, 4), local.range(), 1)]).is_err());
}

#[test]
fn each_way_of_waiting_gives_what_came() {
    for waiting in [Waiting::Busy, Waiting::Events, Waiting::Adaptive(Duration::from_micros(5))] {
        let pair = Pair::new(&Config { waiting, ..small() });
        let (client, server) = pair.connect();
        assert!(server.receive(Some(Duration::from_millis(1))).unwrap().is_none());
        let echo = std::thread::spawn(move || {
            for _ in 0..20 {
                let message = server.receive(Some(PATIENCE)).unwrap().unwrap();
                let bytes = message.to_vec().unwrap();
                assert!(server.execute(Operation::send(&bytes[..])).unwrap().is_done());
            }
            server
        });
        for n in 0..20u8 {
            assert!(client.execute(Operation::send(&[n; 3])).unwrap().is_done());
            assert_eq!(client.receive(Some(PATIENCE)).unwrap().unwrap().to_vec().unwrap(), [n; 3], "{waiting:?}");
        }
        echo.join().unwrap();
    }
}

#[test]
fn handlers_get_completions_and_messages_without_anybody_polling() {
    let pair = Pair::new(&small());
    let (client, server) = pair.connect();
    let (tell, completions) = mpsc::channel();
    client.on_completion(Box::new(move |completion| tell.send(completion).unwrap())).unwrap();
    let (tell, messages) = mpsc::channel();
    server.on_message(Box::new(move |message| tell.send(message.to_vec().unwrap()).unwrap())).unwrap();
    for n in 0..100u8 {
        client.post(&[Operation::send(&[n; 4]).context(u64::from(n))]).unwrap();
    }
    for n in 0..100u8 {
        assert_eq!(completions.recv_timeout(PATIENCE).unwrap().context, u64::from(n));
        assert_eq!(messages.recv_timeout(PATIENCE).unwrap(), [n; 4]);
    }
}

async fn converse(pair: &Pair) {
    let client = pair.client.connect_async(&pair.target()).await.unwrap();
    let server = pair.listener.accept_async().await.unwrap();
    for n in 0..50u8 {
        assert!(client.execute_async(Operation::send(&[n; 7])).await.unwrap().is_done());
        assert_eq!(server.receive_async().await.unwrap().to_vec().unwrap(), [n; 7]);
        let pending = server.submit(Operation::send(&[n; 2])).unwrap().unwrap();
        assert_eq!(client.receive_async().await.unwrap().to_vec().unwrap(), [n; 2]);
        assert!(pending.await.unwrap().is_done());
    }
}

#[test]
fn futures_run_on_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(converse(&Pair::new(&small())));
}

#[test]
fn futures_run_on_an_executor_of_thirty_lines() {
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let pair = Pair::new(&small());
    let mut future = std::pin::pin!(converse(&pair));
    let waker = Arc::new(Unpark(std::thread::current())).into();
    while future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        std::thread::park();
    }
}

#[test]
fn a_closed_connection_says_so_on_both_sides_and_loses_nothing_that_came() {
    let pair = Pair::new(&small());
    let (client, server) = pair.connect();
    client.post(&[Operation::send(b"last words")]).unwrap();
    client.close(Some(PATIENCE)).unwrap();
    assert_eq!(client.try_post(&[Operation::send(b"more")]).unwrap_err().fault, Fault::Closed);
    let message = server.receive(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(message.to_vec().unwrap(), b"last words");
    assert_eq!(server.receive(Some(PATIENCE)).unwrap_err().fault, Fault::Closed);
}

#[test]
fn a_service_that_nobody_offers_and_a_peer_that_is_not_there_are_told_apart() {
    let mut config = small();
    config.patience.connect_ns = 300_000_000;
    let pair = Pair::new(&config);
    let address = pair.server.addresses()[0].clone();
    let error = pair.client.connect(&Target::at(address, "nothing")).unwrap_err();
    assert_eq!(error.fault, Fault::Peer);
    assert!(error.message.contains("nothing") && error.message.contains("echo"), "{error}");
    let error = pair.client.connect(&Target::at("tcp://127.0.0.1:1", "echo")).unwrap_err();
    assert_eq!(error.fault, Fault::Unreachable, "{error}");
}

#[test]
fn a_wrong_key_fails_its_operation_and_not_the_connection() {
    let pair = Pair::new(&small());
    let (client, server) = pair.connect();
    let local = Region::new(&pair.client, 64);
    let nobody = scalefabric_fabric::RemoteRange { addr: 64, length: 64, rkey: 0xdead };
    let outcome = client.execute(Operation::write(&local.piece(0, 64), nobody)).unwrap();
    assert!(matches!(outcome, Outcome::NotDone(scalefabric_verbs::WcStatus::RemAccessErr)), "{outcome:?}");
    assert!(client.execute(Operation::send(b"still here")).unwrap().is_done());
    assert_eq!(server.receive(Some(PATIENCE)).unwrap().unwrap().to_vec().unwrap(), b"still here");
    assert_eq!(client.statistics().rebuilds, 1);
}
