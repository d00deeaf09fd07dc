//! `sfab perf` from outside: a server and its clients on the loopback, in every mode, with few messages; what they print as JSON, how they
//! fail, and that a server outlives whatever comes to its port.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SFAB: &str = env!("CARGO_BIN_EXE_sfab");

/// One measurement at a time: two processes that poll are enough for two cores.
static TURN: Mutex<()> = Mutex::new(());

/// Long enough for a busy machine; a hang is ended, not waited for.
const LIMIT: Duration = Duration::from_secs(240);

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(more: &[&str]) -> Self {
        let mut child = Command::new(SFAB)
            .args(["perf", "server", "--json", "--listen", "127.0.0.1:0"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sfab starts");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("the server speaks");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let address = said["listening"].as_str().expect("an address").to_owned();
        Self { child, out, address }
    }

    /// The next that it says of this kind: `begins` or `ends`.
    fn next(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            self.out.read_line(&mut line).expect("the server speaks");
            let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if said["event"] == event {
                return said;
            }
        }
    }

    /// Measures; the JSON document.
    fn measure(&self, arguments: &str) -> Value {
        let output = self.run(arguments);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "sfab perf {arguments}: {}\n{out}\n{err}", output.status);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments}: {error}: {out}"))
    }

    fn run(&self, arguments: &str) -> Output {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        perf(&[&words[..2], &[self.address.as_str(), "--json"], &words[2..]].concat())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn perf(arguments: &[&str]) -> Output {
    let child = Command::new(SFAB)
        .arg("perf")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sfab starts");
    finish(child)
}

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

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn check_bandwidth(document: &Value, messages: u64) {
    let results = document["results"].as_array().expect("results");
    assert_eq!(results.len(), 1, "{document:#}");
    let (size, told) = (number(&results[0]["size"]), &results[0]["bandwidth"]);
    assert_eq!(told["messages"], messages, "{document:#}");
    assert_eq!(told["lost"], 0, "{document:#}");
    let rate = number(&told["messages_per_s"]);
    let close = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 1e-6;
    assert!(rate > 0.0 && close(number(&told["average_gbits"]), rate * size * 8.0 / 1e9), "{told}");
    assert!(close(number(&told["average_mib_s"]), rate * size / 1_048_576.0), "{told}");
    assert!(number(&told["peak_gbits"]) >= number(&told["average_gbits"]) * (1.0 - 1e-9), "{told}");
    assert!(number(&told["client_cpu_s_per_gb"]) > 0.0, "{told}");
    assert_eq!(document["loop"], "closed");
}

fn check_latency(document: &Value, samples: u64, of: &str) {
    let told = &document["results"][0]["latency"];
    assert_eq!(told["samples"].as_u64().unwrap_or(0) + told["lost"].as_u64().expect("lost"), samples, "{document:#}");
    assert_eq!(told["of"], of, "{document:#}");
    let order = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"].map(|name| number(&told[name]));
    assert!(order[0] > 0.0 && order.is_sorted(), "{told}");
    // The histogram keeps three digits.
    let mean = number(&told["mean_us"]);
    assert!(mean >= order[0] * 0.999 && mean <= order[5] * 1.001, "{told}");
    assert!(number(&document["clock_overhead_ns"]) > 0.0);
}

#[test]
fn bandwidth_of_every_operation_and_way_of_posting() {
    let _turn = turn();
    let mut server = Server::start(&[]);
    for (arguments, messages) in [
        ("write bw -n 40", 40),
        ("write bw -s 8 -n 200 -l 8 -Q 16 -I 64", 200),
        ("write bw -s 1M -n 10 -t 4 -m 1024", 10),
        ("write bw -s 4K -n 33 -q 5 -t 7 -Q 3", 165),
        ("write bw -s 4K -n 60 -b", 120),
        ("write bw -s 4K -n 60 -e", 60),
        ("write bw -s 4K -n 60 -R -q 2", 120),
        ("write bw -s 4K -n 60 -l 7 -t 16 -Q 14", 60),
        ("read bw -s 64K -n 40", 40),
        ("write bw -s 64K -n 40 --memory heap", 40),
        ("read bw -s 4K -n 40 -b -q 2", 160),
        ("send bw -s 4K -n 100", 100),
        ("send bw -s 8 -n 300 -r 4 -t 32", 300),
        ("send bw -s 4K -n 50 -b -q 3", 300),
        ("send bw -s 4K -n 50 -e", 50),
        ("atomic bw -n 100", 100),
        ("atomic bw -n 100 --op cas -q 2", 200),
    ] {
        let document = server.measure(arguments);
        check_bandwidth(&document, messages);
        let served = server.next("ends");
        assert_eq!(served["error"], Value::Null, "{arguments}: {served}");
    }
}

#[test]
fn latency_of_every_operation_and_way_of_waiting() {
    let _turn = turn();
    let server = Server::start(&[]);
    for (arguments, of) in [
        ("write lat -n 60", "one_way"),
        ("write lat -n 60 -s 2", "one_way"),
        ("write lat -n 20 -s 100000 -I 0", "one_way"),
        ("write lat -n 60 -R", "one_way"),
        ("write lat -n 60 -s 64K --read-data --memory heap", "one_way"),
        ("write lat -n 60 --wait-completion", "one_way"),
        ("send lat -n 60 -e --wait-completion", "one_way"),
        ("write lat -n 60 --transport uc", "one_way"),
        ("read lat -n 60 -s 4K", "round_trip"),
        ("read lat -n 60 -e", "round_trip"),
        ("send lat -n 60 -s 64", "one_way"),
        ("send lat -n 60 -e", "one_way"),
        ("send lat -n 60 --transport uc", "one_way"),
        ("send lat -n 60 --transport ud -s 1K", "one_way"),
        ("atomic lat -n 60", "round_trip"),
        ("atomic lat -n 60 --op cas", "round_trip"),
    ] {
        check_latency(
            &server.measure(arguments),
            arguments.split("-n ").nth(1).and_then(|n| n.split(' ').next()?.parse().ok()).expect("n"),
            of,
        );
    }
}

#[test]
fn an_open_loop_says_so_and_counts_from_the_intended_start() {
    let _turn = turn();
    let server = Server::start(&[]);
    for arguments in ["write lat --rate 2000 -n 100", "read lat --rate 2000 -n 100 -t 4", "send lat --rate 2000 -n 100"]
    {
        let document = server.measure(arguments);
        check_latency(&document, 100, "round_trip");
        assert_eq!(
            (&document["loop"], &document["rate"]),
            (&Value::from("open"), &Value::from(2000.0)),
            "{document:#}"
        );
        let told = &document["results"][0]["latency"];
        // 100 operations by a schedule of 2,000 a second are not done before 99 of its intervals.
        assert!(number(&told["seconds"]) >= 99.0 / 2000.0 && number(&told["operations_per_s"]) <= 2021.0, "{told}");
    }
    // A rate that nobody reaches: what waits is told as waiting.
    let document = server.measure("write lat --rate 100000000 -n 200");
    let told = &document["results"][0]["latency"];
    assert!(
        number(&told["max_us"]) > 0.8 * number(&told["seconds"]) * 1e6,
        "the last waited for all before it: {told}"
    );
}

#[test]
fn the_same_host_path_is_told() {
    let _turn = turn();
    let server = Server::start(&["--path", "auto"]);
    for arguments in ["write both -s 4K -n 50", "read both -s 4K -n 50", "write bw -s 64K -n 100 --memory heap"] {
        let document = server.measure(&format!("{arguments} --path auto"));
        // Others may use the device, too: more is possible, fewer is not.
        assert!(document["direct_requests"].as_u64() >= Some(100), "{arguments}: {document:#}");
    }
}

#[test]
fn all_sizes_in_one_run_and_a_picture_of_them() {
    let _turn = turn();
    let server = Server::start(&[]);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("perf.svg");
    let _ = std::fs::remove_file(&file);
    let document = server.measure(&format!("write both -a -n 5 --warmup 1 --plot {}", file.display()));
    let results = document["results"].as_array().expect("results");
    assert_eq!(results.len(), 23);
    for (power, row) in (1..).zip(results) {
        assert_eq!(row["size"], 1u32 << power);
        assert_eq!(row["bandwidth"]["messages"], 5, "{row}");
        assert_eq!(row["latency"]["samples"], 5, "{row}");
    }
    let picture = std::fs::read_to_string(&file).expect("a picture");
    for word in ["<svg", "</svg>", "bandwidth", "latency, one way", "Gb/s", "8 M"] {
        assert!(picture.contains(word), "{word} is not in the picture");
    }
    let datagrams = server.measure("send bw -a -n 5 --transport ud");
    let sizes: Vec<u64> =
        datagrams["results"].as_array().expect("results").iter().filter_map(|row| row["size"].as_u64()).collect();
    assert!(sizes.first() == Some(&2) && sizes.last() <= Some(&4096), "datagrams end at the path MTU: {sizes:?}");
}

#[test]
fn unreliable_transports_tell_what_was_lost() {
    let _turn = turn();
    let server = Server::start(&[]);
    let document = server.measure("send bw --transport ud -s 1K -n 200");
    let told = &document["results"][0]["bandwidth"];
    assert_eq!(told["messages"].as_u64().unwrap() + told["lost"].as_u64().unwrap(), 200, "{told}");
    let document = server.measure("write bw --transport uc -s 1K -n 200");
    let told = &document["results"][0]["bandwidth"];
    assert_eq!((&told["messages"], &told["lost"]), (&Value::from(200), &Value::Null), "nobody knows: {told}");
}

#[test]
fn a_measurement_for_a_time_lasts_as_long() {
    let _turn = turn();
    let server = Server::start(&[]);
    let document = server.measure("write both -s 4K -D 0.2");
    let row = &document["results"][0];
    for part in ["bandwidth", "latency"] {
        assert!(number(&row[part]["seconds"]) >= 0.2, "{row}");
    }
    assert!(row["bandwidth"]["messages"].as_u64() > Some(0) && row["latency"]["samples"].as_u64() > Some(0), "{row}");
}

#[test]
fn tables_are_for_people() {
    let _turn = turn();
    let server = Server::start(&[]);
    let output = perf(&["write", "both", &server.address, "-s", "8", "-n", "50", "--report-gbits"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", said(&output));
    for word in
        ["average Gb/s", "messages/s", "CPU s/GB", "typical", "p99.9", "stdev", "Closed loop", "clock", "path MTU"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(output.stderr.is_empty(), "no progress in a pipe: {}", said(&output));
}

#[test]
fn a_server_outlives_strangers_and_clients_that_die() {
    let _turn = turn();
    let mut server = Server::start(&[]);
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        let _ = stream.write_all(bytes);
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    };
    assert!(say(b"GET / HTTP/1.1\r\n\r\n").contains("not part of the exchange"));
    let hello = "{\"hello\":{\"exchange\":2,\"version\":\"0\"}}\n";
    assert!(say(b"{\"hello\":{\"exchange\":99,\"version\":\"9.9.9\"}}\n").contains("use one version"));
    let plan = |qps: u64, largest: u64| {
        format!(
            "{hello}{{\"plan\":{{\"verb\":\"write\",\"transport\":\"RC\",\"largest\":{largest},\"qps\":{qps},\"tx_depth\":1,\"rx_depth\":1,\
             \"post_list\":1,\"signal_every\":1,\"inline_bytes\":0,\"both_directions\":false,\"events\":false,\"path_mtu\":null,\"rdma_cm\":false,\"reads_data\":false,\"waits_for_completion\":false,\"memory\":\"device\"}}}}\n"
        )
    };
    for (qps, largest, part) in [(0, 8, "-q 0"), (4_000_000_000, 8, "-q"), (1, 0, "-s 0"), (1, 4_000_000_000, "-s")] {
        let answer = say(plan(qps, largest).as_bytes());
        assert!(answer.contains("trouble") && answer.contains(part), "{answer}");
    }
    assert!(say(&[b'x'; 2 << 20]).contains("without end"));
    for _ in 0..7 {
        assert_ne!(server.next("ends")["error"], Value::Null);
    }
    // A client that is killed in the middle.
    let mut child = Command::new(SFAB)
        .args(["perf", "write", "bw", &server.address, "-D", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sfab starts");
    server.next("begins");
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_ne!(server.next("ends")["error"], Value::Null);
    check_bandwidth(&server.measure("write bw -n 10"), 10);
    assert_eq!(server.next("ends")["error"], Value::Null);
}

#[test]
fn clients_at_the_same_time_are_served_at_the_same_time() {
    let _turn = turn();
    let server = Server::start(&[]);
    let start = || {
        Command::new(SFAB)
            .args(["perf", "write", "bw", &server.address, "--json", "-D", "1", "-s", "4K"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sfab starts")
    };
    let clients = [start(), start()];
    for client in clients {
        let output = finish(client);
        assert!(output.status.success(), "{}", said(&output));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(document["results"][0]["bandwidth"]["messages"].as_u64() > Some(0), "{document:#}");
    }
}

#[test]
fn a_server_for_once_ends_with_its_client() {
    let _turn = turn();
    let mut server = Server::start(&["--once"]);
    check_bandwidth(&server.measure("write bw -n 10"), 10);
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = server.child.try_wait().expect("wait") {
            break status;
        }
        assert!(begin.elapsed() < LIMIT, "the server did not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_server_that_is_not_there_or_dies_is_told() {
    let _turn = turn();
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        listener.local_addr().expect("address").to_string()
    };
    let output = perf(&["write", "bw", &address]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("is `sfab perf server` running there"), "{}", said(&output));
    for arguments in [["write", "bw"], ["write", "lat"], ["read", "lat"], ["send", "bw"]] {
        let mut server = Server::start(&[]);
        let child = Command::new(SFAB)
            .arg("perf")
            .args(arguments)
            .args([server.address.as_str(), "-D", "120"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sfab starts");
        server.next("begins");
        server.child.kill().expect("kill");
        let output = finish(child);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", said(&output));
        assert!(
            said(&output).contains("lost the other process") || said(&output).contains("no longer answers"),
            "{arguments:?}: {}",
            said(&output)
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn wrong_use_ends_with_2_before_anything_is_reached() {
    let cases: &[(&[&str], &str)] = &[
        (&["write", "fast", "h"], "fast"),
        (&["write", "bw"], "ADDRESS"),
        (&["write", "bw", "h", "-s", "12q"], "12q"),
        (&["write", "bw", "h", "-s", "0"], "-s"),
        (&["write", "bw", "h", "-m", "1500"], "1500"),
        (&["write", "bw", "h", "-D", "1", "-n", "1"], "--iters"),
        (&["write", "bw", "h", "--transport", "ud"], "UD has SENDs only"),
        (&["read", "bw", "h", "--transport", "uc"], "need RC"),
        (&["write", "lat", "h", "-q", "2"], "-q"),
        (&["write", "lat", "h", "-e"], "polling memory"),
        (&["write", "bw", "h", "--rate", "5"], "--rate"),
        (&["atomic", "bw", "h", "-s", "16"], "8 bytes"),
        (&["atomic", "bw", "h", "--op", "xor"], "xor"),
        (&["write", "bw", "h", "--plot", "x.svg"], "--all"),
        (&["write", "bw", "h", "-a", "--plot", "/nonexistent/x.svg"], "/nonexistent/x.svg"),
        (&["write", "bw", "h", "--peer", "iperf3"], "--peer"),
        (&["write", "bw", "--peer", "somebody"], "somebody"),
        (&["write", "both", "--peer", "ucx"], "--peer"),
        (&["write", "bw", "127.0.0.1:seven"], "seven"),
        (&["write", "bw", "127.0.0.1", "-d", "nosuch"], "nosuch"),
        (&["server", "--listen", "127.0.0.1:seven"], "seven"),
        (&["server", "--cpu", "99999"], "no such CPU"),
        (&["server", "--numa", "99999"], "no such memory node"),
        (&["server", "-d", "nosuch"], "nosuch"),
        (&["server", "--path", "sideways"], "sideways"),
        (&["server", "--path", "auto", "--backend", "ibv"], "--path"),
    ];
    for (arguments, part) in cases {
        let output = perf(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{arguments:?}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn what_only_the_device_knows_is_wrong_use_too() {
    let _turn = turn();
    let server = Server::start(&[]);
    for (arguments, part) in [
        ("write bw --cpu 99999", "no such CPU"),
        ("write bw -I 60000", "inline"),
        ("write bw -i 200", "-i 200"),
        ("write bw -x 250", "no GID"),
        ("send bw --transport ud -s 8K", "path MTU"),
    ] {
        let output = server.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", said(&output));
        assert!(said(&output).contains(part), "{arguments}: {}", said(&output));
    }
}

#[test]
fn a_peer_that_is_not_installed_is_named_with_what_brings_it() {
    let _turn = turn();
    let output = Command::new(SFAB)
        .args(["perf", "write", "bw", "-s", "4K", "-n", "20", "--json", "--peer", "all"])
        .env("PATH", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .expect("sfab starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(document["ours"]["results"][0]["bandwidth"]["messages"], 20);
    let peers = document["peers"].as_array().expect("peers");
    assert_eq!(peers.len(), 4, "{document:#}");
    for peer in peers {
        let why = peer["not_measured"].as_str().expect("why not");
        // Those of libfabric are in few distributions' packages.
        let remedy = if peer["peer"] == "libfabric" { "fabtests" } else { "install the package" };
        assert!(why.contains("is missing") && why.contains(remedy), "{peer}");
    }
}
