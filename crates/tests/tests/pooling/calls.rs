//! Calls over an SRQ of 1,024 receives, for all connections together: each caller has its share of them as its window, so that no call meets an empty queue.

use crate::{Device, PATIENCE, connect};
use scalefabric_fabric::endpoint::Config;
use scalefabric_fabric::remote::rpc::{self, Caller, Line, RECEIVES, Server};
use scalefabric_tests::fabric::pool;
use std::sync::Arc;

const CALLERS: usize = 16;

#[test]
fn callers_on_many_connections_share_a_thousand_receives_and_no_call_waits_for_one() {
    let device = Device::new(4);
    let config = rpc::config(&Config { share_receives: true, receive_bytes: 256, ..Config::default() });
    let (server, client) = (device.fabric("server", &config), device.fabric("client", &config));
    let listener = server.listen("service").unwrap();
    let (server_pool, client_pool) = (pool(&server), pool(&client));
    let longest = config.receive_bytes as usize;
    let mut answering = Vec::new();
    let mut calling = Vec::new();
    for _ in 0..CALLERS {
        let (ours, theirs) = connect(&client, &server, &listener);
        let handler = |request: rpc::Request| Ok(request.body.iter().map(|byte| byte ^ 0xff).collect());
        answering.push(Server::new(Arc::new(Line::new(&theirs, &server_pool, longest)), 1, handler).unwrap());
        let line = Arc::new(Line::new(&ours, &client_pool, longest));
        calling.push(Caller::new(line, rpc::window(CALLERS)).unwrap());
    }
    let srqs = device.srqs();
    assert_eq!(srqs.len(), 2);
    assert!(srqs.iter().all(|srq| srq.max_wr >= RECEIVES && srq.qpns.len() == CALLERS), "{srqs:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        // All windows full at once, and more behind them.
        let mut tasks = Vec::new();
        for (number, caller) in calling.iter().enumerate() {
            for call in 0..200_u8 {
                let body = vec![call, number as u8];
                tasks.push((body.clone(), tokio::spawn(caller.call_async(1, body, PATIENCE))));
            }
        }
        for (body, task) in tasks {
            let expected: Vec<u8> = body.iter().map(|byte| byte ^ 0xff).collect();
            assert_eq!(task.await.unwrap().unwrap(), expected);
        }
    });
    let handled: u64 = answering.iter().map(|server| server.tally().handled).sum();
    assert_eq!(handled, CALLERS as u64 * 200);
    assert!(answering.iter().all(|server| server.tally().busy == 0));
    // Of requests and of answers: nobody was told to wait.
    assert_eq!(device.counter(&server, "send_rnr_err"), 0);
}

#[test]
fn a_window_is_a_share_of_the_receives_and_at_least_one() {
    assert_eq!(rpc::window(1), 1024);
    assert_eq!(rpc::window(16), 64);
    assert_eq!(rpc::window(1000), 1);
    assert_eq!(rpc::window(5000), 1);
    assert_eq!(rpc::window(0), 1024);
}
