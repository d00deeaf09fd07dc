//! `sfab up` from outside: control sees all nodes, all kinds of traffic run on all ports, the hot port is relieved by control's orders, nothing fails, and nothing
//! is left behind, whichever way it ends.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SFAB: &str = env!("CARGO_BIN_EXE_sfab");

/// Small enough for a machine that does other things, too.
const SLOW: [&str; 4] = ["--port-rate", "50", "--block", "32K"];

/// Long enough for a busy machine; a hang is ended, not waited for.
const LIMIT: Duration = Duration::from_secs(900);

/// One at a time: each is a dozen processes.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running `sfab up --json`.
struct Up {
    child: Child,
    lines: BufReader<ChildStdout>,
    events: Vec<Value>,
}

impl Up {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(SFAB)
            .args(["up", "--json"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sfab starts");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        // A test that hangs would hide where.
        let pid = child.id().to_string();
        std::thread::spawn(move || {
            std::thread::sleep(LIMIT);
            if std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sfab") {
                let _ = Command::new("kill").args(["-TERM", &pid]).status();
            }
        });
        Self { child, lines, events: Vec::new() }
    }

    /// Reads events until one of this kind.
    fn next(&mut self, kind: &str) -> Value {
        loop {
            match self.read() {
                Some(event) if event["event"] == kind => return event,
                Some(_) => {}
                None => panic!("it ended before `{kind}`: {}", self.complaint()),
            }
        }
    }

    fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).expect("text") == 0 {
            return None;
        }
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.events.push(event.clone());
        Some(event)
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        let _ = self.child.stderr.as_mut().expect("stderr").read_to_string(&mut text);
        text
    }

    fn signal(&self, signal: &str) {
        kill(self.child.id().into(), signal);
    }

    /// Reads to the end: how it ended, and what it said on standard error.
    fn finish(&mut self) -> (ExitStatus, String) {
        while self.read().is_some() {}
        let complaint = self.complaint();
        (self.child.wait().expect("it ends"), complaint)
    }

    fn all(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["event"] == kind).collect()
    }

    /// The number of the process that is called so.
    fn pid(&self, who: &str) -> u64 {
        let one = self.all("process").into_iter().find(|event| event["who"] == who);
        one.and_then(|event| event["pid"].as_u64()).unwrap_or_else(|| panic!("no process is {who}"))
    }

    /// No process, folder or namespace of it is there, or will be in a moment.
    fn assert_nothing_is_left(&self) {
        let folder = std::env::temp_dir().join(format!("sfab-up-{}", self.child.id()));
        let namespaces = format!("sfab-up-{}-", self.child.id());
        let mut left = Vec::new();
        for _ in 0..600 {
            let processes =
                self.all("process").into_iter().filter(|event| is_alive(event["pid"].as_u64().expect("a pid")));
            left = processes.map(|event| event["who"].to_string()).collect();
            left.extend(folder.exists().then(|| folder.display().to_string()));
            let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
            let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
            left.extend(names.filter(|name| name.starts_with(&namespaces)));
            if left.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it has left behind: {left:?}");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill(pid: u64, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(status.expect("kill").success(), "kill {signal} {pid}");
}

/// A process that has ended and is only waited for by its parent is not alive.
fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// The whole play, and all that must be so afterwards.
fn play(arguments: &[&str]) -> Up {
    let mut up = Up::start(&[&["--for", "600", "--until-relieved"], &SLOW[..], arguments].concat());
    let (status, complaint) = up.finish();
    let told = |up: &Up| up.events.iter().map(|event| format!("{event}\n")).collect::<String>();
    assert!(status.success(), "{status}: {complaint}\n{}", told(&up));
    assert_eq!(complaint, "");

    let summary = up.all("up")[0].clone();
    assert_eq!((&summary["nodes"], &summary["ports"], &summary["connections"]), (&4.into(), &2.into(), &32.into()));
    let end = up.all("end")[0].clone();
    assert_eq!((&end["good"], &end["relieved"]), (&true.into(), &true.into()), "{end}");
    for kind in ["ping-pong", "stream", "read", "atomic", "call"] {
        let tally = &end["traffic"][kind];
        assert!(tally["operations"].as_u64() > Some(0), "{kind}: {end}");
        assert_eq!((tally["failed"].as_u64(), tally["damaged"].as_u64()), (Some(0), Some(0)), "{kind}: {end}");
    }
    assert!(up.all("wrong").is_empty());

    // Control saw traffic on each of the eight ports, and the first port of the first node hot before it was not.
    let mut most = std::collections::BTreeMap::new();
    for event in up.all("ports") {
        assert_eq!(event["nodes"], 4);
        for port in event["ports"].as_array().expect("ports") {
            let load = port["sends"].as_f64().expect("sends").max(port["receives"].as_f64().expect("receives"));
            let best = most.entry((port["node"].to_string(), port["port"].to_string())).or_insert(0.0_f64);
            *best = best.max(load);
        }
    }
    assert_eq!(most.len(), 8, "{most:?}");
    assert!(most.values().all(|load| *load > 0.0), "{most:?}");
    let hot = most[&("\"n1\"".to_owned(), "1".to_owned())];
    assert!(hot > 0.7, "{most:?}");
    let last = up.all("ports").into_iter().next_back().expect("ports").clone();
    let now = last["ports"].as_array().expect("ports").iter().find(|port| port["node"] == "n1" && port["port"] == 1);
    assert!(now.expect("the port")["sends"].as_f64().expect("sends") <= 0.7, "{last}");

    // It was relieved by orders of control, which say why.
    let moves = up.all("move");
    let done: Vec<&&Value> = moves.iter().filter(|event| event["outcome"] == "done").collect();
    assert!(!done.is_empty());
    let first = done[0];
    assert_eq!(
        (&first["node"], &first["from_port"], &first["to_port"]),
        (&"n1".into(), &1.into(), &2.into()),
        "{first}"
    );
    for event in &done {
        assert_eq!(event["node"], "n1", "{event}");
        assert!(event["why"].as_str().is_some_and(|why| why.contains("of its capacity")), "{event}");
    }
    assert!(end["moves"].as_u64() >= Some(done.len() as u64), "{end}");
    up.assert_nothing_is_left();
    up
}

#[test]
fn control_relieves_the_hot_port_and_nothing_fails_or_is_left_behind() {
    let _turn = turn();
    play(&[]);
}

#[test]
fn the_same_with_an_etcd_of_its_own() {
    let _turn = turn();
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
        return println!("skipped: `etcd` is not installed; install the package etcd-server");
    }
    let up = play(&["--store", "etcd"]);
    assert!(!is_alive(up.pid("etcd")));
}

#[test]
fn the_same_in_network_namespaces_joined_by_software_switches() {
    let _turn = turn();
    if !is_root() || !Path::new("/dev/net/tun").exists() {
        return println!("skipped: makes network namespaces and tun interfaces, which needs root");
    }
    let up = play(&["--netns"]);
    assert_eq!(up.all("up")[0]["namespaces"].as_array().map(Vec::len), Some(4));
}

/// A small one that is up.
fn small(arguments: &[&str]) -> Up {
    let slow = ["--nodes", "3", "--port-rate", "20", "--block", "16K"];
    let mut up = Up::start(&[&slow[..], arguments].concat());
    up.next("up");
    up.next("ports");
    up
}

#[test]
fn ctrl_c_sigterm_and_sighup_are_ordinary_ends() {
    let _turn = turn();
    for signal in ["-INT", "-TERM", "-HUP"] {
        let mut up = small(&[]);
        up.signal(signal);
        let (status, complaint) = up.finish();
        assert_eq!((status.code(), complaint.as_str()), (Some(0), ""), "{signal}");
        assert_eq!(up.all("end")[0]["good"], true, "{signal}: {:?}", up.all("end"));
        up.assert_nothing_is_left();
    }
}

#[test]
fn a_kill_leaves_nothing_behind_either() {
    let _turn = turn();
    let netns: &[&str] = if is_root() && Path::new("/dev/net/tun").exists() { &["--netns"] } else { &[] };
    let mut up = small(netns);
    up.signal("-KILL");
    let (status, _) = up.finish();
    assert!(!status.success());
    up.assert_nothing_is_left();
}

#[test]
fn a_process_that_dies_is_named_with_its_last_lines() {
    let _turn = turn();
    let who = "the workload of n2";
    let mut up = small(&[]);
    kill(up.pid(who), "-KILL");
    let (status, complaint) = up.finish();
    assert_eq!(status.code(), Some(1), "{complaint}");
    assert!(complaint.contains(who), "{complaint}");
    up.assert_nothing_is_left();
}

#[test]
fn control_and_agents_that_are_killed_are_started_again_and_no_operation_fails() {
    let _turn = turn();
    let mut up = Up::start(&[&["--for", "600", "--until-relieved", "--nodes", "3"], &SLOW[..]].concat());
    up.next("ports");
    for who in ["control", "the agent of n2"] {
        let before = up.pid(who);
        kill(before, "-KILL");
        let restarted = up.next("restarted");
        assert_eq!(restarted["who"], who, "{restarted}");
        assert!(restarted["why"].as_str().is_some_and(|why| why.contains("signal: 9")), "{restarted}");
        let again = up.next("process");
        assert!(again["who"] == who && again["pid"].as_u64() != Some(before), "{again}");
    }
    let (status, complaint) = up.finish();
    let end = up.all("end")[0].clone();
    assert_eq!((status.code(), complaint.as_str()), (Some(0), ""), "{end}");
    assert_eq!(
        (&end["good"], &end["relieved"]),
        (&true.into(), &true.into()),
        "the new control relieves the port: {end}"
    );
    assert!(up.all("wrong").is_empty());
    up.assert_nothing_is_left();
}

#[test]
fn a_signal_while_it_comes_up_ends_it_too() {
    let _turn = turn();
    let mut up = Up::start(&["--nodes", "3", "--port-rate", "20", "--block", "16K"]);
    let begun = Instant::now();
    let folder = std::env::temp_dir().join(format!("sfab-up-{}", up.child.id()));
    while !folder.exists() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    up.signal("-INT");
    let (status, complaint) = up.finish();
    // A busy machine may have let it come up before it heard of that: then it is an ordinary end.
    let code = if up.all("up").is_empty() { 130 } else { 0 };
    assert_eq!((status.code(), complaint.as_str()), (Some(code), ""));
    up.assert_nothing_is_left();
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let refused = |arguments: &[&str], path: Option<&str>| {
        let mut command = Command::new(SFAB);
        command.arg("up").args(arguments);
        path.iter().for_each(|path| _ = command.env("PATH", path));
        let output = command.output().expect("sfab starts");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    refused(&["--nodes", "2"], None);
    refused(&["--ports", "3"], None);
    refused(&["--block", "4K"], None);
    assert!(refused(&["--http", "10.0.0.1:80"], None).contains("loopback"));
    assert!(refused(&["--ports", "1", "--until-relieved"], None).contains("no port is made hot"));
    assert!(refused(&["--store", "etcd"], Some("/nowhere")).contains("install"));
    if !is_root() {
        assert!(refused(&["--netns"], None).contains("root"));
    }
}
