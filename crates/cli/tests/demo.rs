//! `sfab demo` from outside: two processes, each with its own NIC, on one host and in two network namespaces, with and
//! without faults. Every byte is compared by the demo itself; here it is checked that it says so, and how it fails.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SFAB: &str = env!("CARGO_BIN_EXE_sfab");

/// One demo at a time: two processes that poll are enough for two cores.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Long enough for a busy machine; a hang is ended, not waited for.
const LIMIT: Duration = Duration::from_secs(240);

fn finish(mut child: Child) -> Output {
    let begin = Instant::now();
    let out = child.stdout.take().map(reader);
    let err = child.stderr.take().map(reader);
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().expect("kill");
            break child.wait().expect("wait");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text =
        |thread: Option<std::thread::JoinHandle<Vec<u8>>>| thread.map(|t| t.join().expect("read")).unwrap_or_default();
    Output { status, stdout: text(out), stderr: text(err) }
}

fn reader(mut stream: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

fn start(arguments: &[&str]) -> Child {
    Command::new(SFAB)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sfab starts")
}

/// Runs a demo that must succeed; gives its JSON document.
fn demo(arguments: &[&str]) -> Value {
    let output = finish(start(&[&["demo", "--json"], arguments].concat()));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "sfab demo {}: {}\n{out}\n{err}", arguments.join(" "), output.status);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn rows(document: &Value) -> &Vec<Value> {
    document["rows"].as_array().expect("rows")
}

fn counter(document: &Value, side: &str, name: &str) -> u64 {
    document["counters"][side][name].as_u64().unwrap_or(0)
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

#[test]
fn all_operations_move_every_byte() {
    let _turn = turn();
    let document = demo(&["--size", "8", "--size", "4K", "--size", "64K", "--size", "1M", "--iterations", "12"]);
    let names: Vec<String> = rows(&document)
        .iter()
        .map(|row| format!("{} {}", row["transport"], row["operation"]).replace('"', ""))
        .collect();
    for name in [
        "RC SEND",
        "RC WRITE",
        "RC WRITE_WITH_IMM",
        "RC READ",
        "RC COMPARE_SWAP",
        "RC FETCH_ADD",
        "UC SEND",
        "UC WRITE",
        "UC WRITE_WITH_IMM",
        "UD SEND",
    ] {
        assert!(names.iter().any(|other| other == name), "no row {name}: {names:?}");
    }
    for row in rows(&document).iter().filter(|row| row["transport"] == "RC") {
        assert_eq!(row["messages"], 24, "{row}");
        assert_eq!(row["lost"], 0, "{row}");
        assert!(row["verified_bytes"].as_u64() > Some(0), "{row}");
        assert!(row["latency_median_ns"].as_u64() > Some(0), "{row}");
    }
    assert!(counter(&document, "initiator", "sent_pkts") > 0, "{document}");
}

#[test]
fn sizes_at_the_edges_of_packets_arrive() {
    let _turn = turn();
    let sizes = ["1", "3", "1023", "1024", "1025", "4095", "4096", "4097", "8193"];
    let mut arguments = vec!["--transport", "RC", "--iterations", "5"];
    for size in sizes {
        arguments.extend(["--size", size]);
    }
    let document = demo(&arguments);
    // Four operations with these sizes, and two atomics.
    assert_eq!(rows(&document).len(), 4 * sizes.len() + 2);
}

#[test]
fn data_arrives_intact_over_a_lossy_wire() {
    let _turn = turn();
    let document = demo(&[
        "--transport",
        "RC",
        "--fault",
        "drop=2%",
        "--seed",
        "7",
        "--size",
        "8",
        "--size",
        "64K",
        "--iterations",
        "60",
    ]);
    assert!(rows(&document).iter().all(|row| row["lost"] == 0));
    assert!(counter(&document, "initiator", "retransmitted_pkts") > 0, "{document}");
    assert!(counter(&document, "initiator", "drop_fault") > 0, "{document}");
}

#[test]
fn data_arrives_intact_when_packets_come_twice_late_and_damaged() {
    let _turn = turn();
    let document = demo(&[
        "--transport",
        "RC",
        "--fault",
        "dup=2%",
        "--fault",
        "reorder=2%",
        "--fault",
        "corrupt=1%",
        "--seed",
        "3",
        "--size",
        "4K",
        "--iterations",
        "60",
    ]);
    assert!(rows(&document).iter().all(|row| row["lost"] == 0));
    assert!(counter(&document, "initiator", "drop_bad_icrc") > 0, "{document}");
}

#[test]
fn unreliable_transports_may_lose_and_never_mix_up() {
    let _turn = turn();
    let document = demo(&[
        "--transport",
        "UC",
        "--transport",
        "UD",
        "--fault",
        "drop=5%",
        "--seed",
        "5",
        "--size",
        "8",
        "--size",
        "4K",
        "--iterations",
        "100",
    ]);
    let lost: u64 = rows(&document).iter().filter_map(|row| row["lost"].as_u64()).sum();
    assert!(lost > 0, "5 % of 800 messages and none lost: {document}");
}

#[test]
fn two_namespaces_are_two_hosts() {
    let _turn = turn();
    if !is_root() {
        println!("skipped: two network namespaces need root");
        return;
    }
    let document = demo(&["--netns", "--size", "8", "--size", "64K", "--iterations", "20"]);
    let ports = document["ports"].as_array().expect("ports");
    let gids: Vec<&str> = ports.iter().filter_map(|port| port["gid"].as_str()).collect();
    assert!(gids.contains(&"192.0.2.1") && gids.contains(&"192.0.2.2"), "{ports:?}");
    assert!(ports.iter().all(|port| port["path_mtu"] == 4096), "{ports:?}");
    let left = std::fs::read_dir("/run/netns").map(|entries| entries.count()).unwrap_or(0);
    let ours = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let ours = ours.filter(|entry| entry.file_name().to_string_lossy().starts_with("sfab-demo-")).count();
    assert!(ours == 0, "{ours} of {left} namespaces are left behind");
}

#[test]
fn an_ethernet_mtu_of_1500_gives_a_path_mtu_of_1024() {
    let _turn = turn();
    if !is_root() {
        println!("skipped: two network namespaces need root");
        return;
    }
    let document = demo(&["--netns", "--netns-mtu", "1500", "--size", "64K", "--iterations", "5"]);
    assert!(document["ports"].as_array().expect("ports").iter().all(|port| port["path_mtu"] == 1024), "{document}");
}

#[test]
fn a_capture_of_the_demo_decodes() {
    let _turn = turn();
    let file = std::env::temp_dir().join(format!("sfab-demo-{}.pcapng", std::process::id()));
    let name = file.to_str().expect("UTF-8");
    demo(&["--transport", "RC", "--size", "64K", "--iterations", "3", "--capture", name]);
    let output = Command::new(SFAB).args(["decode", name]).output().expect("sfab starts");
    std::fs::remove_file(&file).expect("the capture is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    for operation in ["RC SEND FIRST", "RC RDMA WRITE FIRST", "RC RDMA READ response FIRST", "RC FetchAdd", "RC ATOMIC"]
    {
        assert!(
            text.to_lowercase().contains(&operation.to_lowercase()),
            "no {operation} in {} lines",
            text.lines().count()
        );
    }
    // What was not needed is said to be so.
    let is_good =
        |line: &&str| line.trim_end_matches(" (same host: executed without this packet)").ends_with("icrc ok");
    let bad: Vec<&str> = text.lines().filter(|line| !is_good(line)).take(5).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_killed_target_is_noticed_and_told() {
    let _turn = turn();
    // By hand, so that the target's process is ours to end.
    let mut target = start(&["demo", "--listen", "127.0.0.1:0"]);
    let mut line = String::new();
    BufReader::new(target.stderr.take().expect("stderr")).read_line(&mut line).expect("the target says where it waits");
    let address = line.trim().rsplit(' ').next().expect("an address").to_owned();
    let initiator =
        start(&["demo", "--connect", &address, "--transport", "RC", "--size", "64K", "--iterations", "1000000"]);
    std::thread::sleep(Duration::from_secs(2));
    target.kill().expect("end the target");
    target.wait().expect("wait");
    let output = finish(initiator);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no longer answers") || said.contains("lost the other process"), "{said}");
}

#[test]
fn an_unknown_device_is_refused_with_the_names_of_those_there_are() {
    let _turn = turn();
    let output = finish(start(&["demo", "--device", "mlx5_0"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("mlx5_0") && said.contains("sflo"), "{said}");
}

#[test]
fn a_target_that_is_not_there_is_told() {
    let _turn = turn();
    let output = finish(start(&["demo", "--connect", "127.0.0.1:1"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("127.0.0.1:1") && said.contains("is it running"), "{said}");
}

#[test]
fn two_demos_share_a_device() {
    let _turn = turn();
    let arguments = ["demo", "--json", "--transport", "RC", "--size", "4K", "--iterations", "200"];
    let pair = [start(&arguments), start(&arguments)];
    for child in pair {
        let output = finish(child);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn ctrl_c_leaves_no_namespace_behind() {
    let _turn = turn();
    if !is_root() {
        println!("skipped: two network namespaces need root");
        return;
    }
    let child = start(&["demo", "--netns", "--transport", "RC", "--size", "64K", "--iterations", "10000000"]);
    let ours = format!("sfab-demo-{}-", child.id());
    let left = || {
        let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&ours)).count()
    };
    let begin = Instant::now();
    while left() < 2 && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(left(), 2);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(sent.success());
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(left(), 0);
}

#[test]
fn connections_leave_a_hot_port_and_nothing_is_lost() {
    let _turn = turn();
    let output = finish(start(&["demo", "--rails", "2", "--connections", "16", "--port-rate", "40", "--json"]));
    let err = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {err}"));
    let checker = &report["checker"];
    assert!(checker["in_order"].as_u64() > Some(100), "{report:#}");
    for wrong in ["lost", "duplicated", "reordered", "damaged", "failed"] {
        assert_eq!(checker[wrong], 0, "{report:#}");
    }
    assert_eq!(output.status.success(), report["good"] == true, "{report:#}");
    // A machine that is too busy to make a port hot is not the demo's fault; what was moved must have been worth it.
    for round in report["rounds"].as_array().expect("rounds") {
        assert_eq!(round["done"], round["ordered"], "{report:#}");
    }
    if let Some(first) = report["rounds"].get(0) {
        assert!(first["ordered"].as_u64() > Some(0), "{report:#}");
        let rail = |name: &str| report["rails"][0][name].as_u64().expect("a count");
        assert!(rail("connections_after") < rail("connections_before"), "{report:#}");
    }
}
