//! Tenants apart: quotas are kept where objects are made, connections are refused by policy, and packets of another partition are dropped by the NIC, which counts them.

use crate::world::{Control, DEVICES, Host, Node, call, offered, provider, runtime};
use scalefabric_fabric::endpoint::{Config, Operation, Target};
use scalefabric_fabric::{Directory, Fault};
use scalefabric_tests::fabric::Region;
use scalefabric_tests::{Folder, eventually};
use scalefabric_verbs::{
    AccessFlags, AddressVector, Context, Gid, Mtu, PKey, Provider, Psn, QpAttr, QpCap, QpInit, QpType, Qpn, SendFlags,
    SendOp, SendWr, WcStatus, WorkCompletion,
};
use std::sync::Arc;

const MEMORY: usize = 32 << 20;

const RULES: &str = r#"{"tenant":[
    {"name":"red","pkey":"0x8011","services":["kv"],"quota":{"qps":4,"memory_bytes":33554432,"rate_bps":400000000}},
    {"name":"blue","pkey":"0x8012","services":["cache"]}]}"#;

fn of(tenant: &str) -> Config {
    Config { tenant: tenant.into(), receives: 16, ..Config::default() }
}

fn has_pkey(device: &str, pkey: u16) -> bool {
    let context = provider().open(device).expect("the device");
    (1..=2).all(|port| (0..8).any(|index| context.query_pkey(port, index).is_ok_and(|entry| entry == PKey(pkey))))
}

fn dropped(context: &Arc<dyn Context>) -> u32 {
    (1..=2).map(|port| context.query_port(port).expect("a port").bad_pkey_cntr).sum()
}

#[test]
fn a_tenant_has_what_it_may_and_reaches_nobody_else() {
    let (runtime, folder) = (runtime(), Folder::new("control"));
    let control = Control::start(&runtime, &folder);
    let nodes = [0, 1].map(|number| Node::start(&runtime, &folder, number, &control.address()));
    let directories = [0, 1].map(|n| nodes[n].directory(&folder.join(["client", "server"][n])));
    assert_eq!(call(control.http, "PUT /v1/tenants", RULES).0, 200);
    eventually("the rules are known", || directories.iter().all(|one| one.may_connect("blue", "kv").is_err()));
    eventually("the agents have set the P_Keys", || DEVICES.iter().all(|device| has_pkey(device, 0x8012)));

    let server = nodes[1].fabric(directories[1].clone(), of("red"));
    let _host = Host::new(&server, server.listen("kv").expect("a service"));
    let red = nodes[0].fabric(directories[0].clone(), of("red"));
    let target = Target::at(server.addresses()[0].clone(), "kv");

    // Its own service, in its own partition.
    let connection = red.connect(&target).expect("red may");
    let region = Region::new(&red, 64);
    let write = |one: &scalefabric_fabric::endpoint::Connection| {
        one.execute(Operation::write(&region.piece(0, 64), offered(one))).expect("it is open")
    };
    assert!(write(&connection).is_done());

    // Another tenant is refused by policy, before anything is sent.
    let blue = nodes[0].fabric(directories[0].clone(), of("blue"));
    let refused = blue.connect(&target).expect_err("blue may not");
    assert_eq!(refused.fault, Fault::NoAuthority, "{refused}");
    assert!(refused.message.contains("`blue`") && refused.message.contains("`kv`"), "{refused}");

    // And who goes around the library is dropped by the NIC: the partition is not its own.
    let record = connection.record().expect("a record");
    let far = provider().open(DEVICES[1]).expect("the device");
    let before = dropped(&far);
    assert_eq!(send_as(0x8012, record.path.dgid, record.peer_qp_num), WcStatus::RetryExcErr);
    assert!(dropped(&far) > before, "the NIC counts what it drops");
    assert!(write(&connection).is_done(), "and red does not notice");

    // Memory, to the byte.
    let pd = red.protection_domain();
    let held = || directories[0].held("red");
    let room =
        MEMORY as u64 - held().memory_bytes - elsewhere(&directories[0]).memory_bytes.map_or(0, |one| one.elsewhere);
    let refused = pd.alloc_mr(room as usize + 1, AccessFlags::LOCAL_WRITE).expect_err("a byte too much");
    for part in ["`red`", "33554432", "memory_bytes"] {
        assert!(refused.message.contains(part), "{part}: {}", refused.message);
    }

    // QPs on all nodes together: the server's count, too.
    eventually("what red has at the other node is known", || {
        elsewhere(&directories[0]).qps.is_some_and(|qps| qps.elsewhere == 1)
    });
    let more = red.connect(&target).expect("the third and the fourth");
    eventually("both ends are counted", || {
        elsewhere(&directories[0]).qps.is_some_and(|qps| qps.elsewhere == 2) && held().qps == 2
    });
    let asked = std::time::Instant::now();
    let refused = red.connect(&target).expect_err("four are not enough for a third pair");
    assert_eq!(refused.errno, Some(scalefabric_verbs::Errno::ENOMEM), "{refused}");
    assert!(asked.elapsed() < std::time::Duration::from_secs(5), "at once: nobody gives back what is in use");
    assert!(refused.message.contains("`red`") && refused.message.contains("QPs"), "{refused}");
    assert!(write(&connection).is_done() && write(&more).is_done(), "the others live on");

    // What is given back can be had again.
    more.close(None).expect("it closes");
    drop(more);
    eventually("the QPs are given back", || {
        held().qps == 1 && elsewhere(&directories[0]).qps.is_some_and(|qps| qps.elsewhere == 1)
    });
    assert!(write(&red.connect(&target).expect("there is room again")).is_done());
}

fn elsewhere(directory: &Arc<scalefabric_control::client::AgentDirectory>) -> scalefabric_fabric::directory::Allowance {
    directory.allowance("red")
}

/// Sends one message from a QP of another partition, made with plain verbs; how it ended.
fn send_as(pkey: u16, dgid: Gid, qp_num: u32) -> WcStatus {
    let context = provider().open(DEVICES[0]).expect("the device");
    let index = (0..8).find(|index| context.query_pkey(1, *index).is_ok_and(|entry| entry == PKey(pkey)));
    let table = context.query_gid_table().expect("a table");
    let own = table.iter().find(|entry| entry.port_num == 1 && entry.gid.is_ipv4()).expect("an address");
    let pd = context.alloc_pd().expect("a PD");
    let cq = context.create_cq(16, None, 0).expect("a CQ");
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
    let init =
        QpInit { qp_type: QpType::Rc, send_cq: cq.clone(), recv_cq: cq.clone(), srq: None, cap, sq_sig_all: true };
    let qp = pd.create_qp(&init).expect("a QP");
    let (mut attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::LOCAL_WRITE);
    attr.pkey_index = index.expect("it is in the table");
    qp.modify(&attr, mask).expect("INIT");
    let av = AddressVector::new(1, own.gid_index as u8, dgid);
    let (attr, mask) = QpAttr::rtr(QpType::Rc, Qpn::new(qp_num), Psn::new(0), Mtu::Mtu1024, av);
    qp.modify(&attr, mask).expect("RTR");
    let (mut attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(0));
    (attr.timeout, attr.retry_cnt) = (8, 1);
    qp.modify(&attr, mask).expect("RTS");
    let mut wr = SendWr::new(1, SendOp::Send);
    wr.flags = SendFlags::SIGNALED | SendFlags::INLINE;
    wr.inline_data = b"stranger";
    qp.post_send(std::slice::from_ref(&wr)).map_err(|error| error.reason).expect("posted");
    let mut found = [WorkCompletion::default()];
    eventually("it ends", || cq.poll(&mut found).expect("a CQ") == 1);
    found[0].status
}
