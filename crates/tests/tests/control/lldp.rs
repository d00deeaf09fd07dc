//! LLDP for real: a daemon on a node and one that plays its switch, at the two ends of a cable between two network namespaces. What they tell one another is read by the agent with
//! `lldpctl`, told to control, and shown as a cable. Needs root and `lldpd`, installed or unpacked by the test command; nothing of it leaves the namespaces.

use crate::world::{Control, PATIENCE, call, runtime};
use scalefabric_control::agent::ports::{PortCounters, PortSource};
use scalefabric_control::agent::{self, Agent};
use scalefabric_control::clock::Machine;
use scalefabric_control::directory::PortRecord;
use scalefabric_tests::{Folder, eventually};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The namespaces: the shell is in the node's, and its first child in the switch's. `$1`: a folder. The daemons lock themselves up in `/run/lldpd` as a user whom only
/// the package's installation makes: both are there for these namespaces alone.
const STAGE: &str = r#"
    set -e
    cd "$1"
    for file in passwd group; do cp "/etc/$file" "$file"; done
    grep -q '^_lldpd:' passwd || echo '_lldpd:x:65534:65534::/run/lldpd:/usr/sbin/nologin' >> passwd
    grep -q '^_lldpd:' group || echo '_lldpd:x:65534:' >> group
    for file in passwd group; do mount --bind "$file" "/etc/$file"; done
    mount -t tmpfs -o mode=755 lldp /run
    mkdir /run/lldpd
    hostname node1
    ip link set lo up
    ip link add rail1 type veth peer name swp7
    mkfifo go
    echo 'configure lldp tx-interval 1' > often.conf
    unshare -n -u sh -c 'hostname leaf1; echo $$ > switch.pid; read go < go; ip link set swp7 up; exec lldpd -d -L "$(command -v lldpcli)" -O "$1/often.conf" -u "$1/switch.sock" -I swp7' sh "$1" &
    while [ ! -s switch.pid ]; do sleep 0.05; done
    ip link set swp7 netns "$(cat switch.pid)"
    ip link set rail1 up
    echo go > go
    exec lldpd -d -L "$(command -v lldpcli)" -O "$1/often.conf" -u "$1/node.sock" -I rail1
"#;

/// The daemons, as long as this lives.
struct Stage(Child);

impl Stage {
    fn set(programs: &Programs, folder: &Path) -> Self {
        let mut command = programs.command("unshare");
        command.args(["-m", "-n", "-u", "sh", "-c", STAGE, "sh"]).arg(folder).process_group(0);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("unshare"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // All of its group, which is its own.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

/// One port, on the interface at the node's end of the cable.
struct Rail;

impl PortSource for Rail {
    fn ports(&mut self) -> Vec<PortRecord> {
        vec![PortRecord {
            device: "sf0".into(),
            port_num: 1,
            gids: Vec::new(),
            rate_mbps: 10_000,
            numa_node: None,
            active: true,
        }]
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        vec![PortCounters::default()]
    }

    fn interfaces(&mut self) -> Vec<String> {
        vec!["rail1".into()]
    }
}

/// Where the daemon's programs are: those of the machine, or those that the test command has unpacked, with their libraries.
struct Programs {
    root: PathBuf,
}

impl Programs {
    fn find() -> Option<Self> {
        let own = std::env::current_exe().expect("a test knows its file");
        let unpacked = own.ancestors().map(|folder| folder.join("unpacked/lldpd/root"));
        let mut roots = unpacked.chain([PathBuf::from("/")]);
        roots.find(|root| root.join("usr/sbin/lldpd").is_file()).map(|root| Self { root })
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let own = [self.root.join("usr/sbin"), self.root.join("usr/bin")];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).expect("folders");
        command.env("PATH", path);
        if self.root != Path::new("/") {
            let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
            let libraries = ["usr/lib", "lib"].map(|folder| self.root.join(folder).join(&machine));
            command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("folders"));
        }
        command
    }
}

#[test]
fn a_cable_that_lldp_sees_is_a_cable_of_the_topology() {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let Some(programs) = Programs::find().filter(|_| is_root) else {
        return println!("skipped: LLDP between two network namespaces: it needs root and the package lldpd");
    };
    let (runtime, folder) = (runtime(), Folder::new("control"));
    let place = folder.join("");
    let _stage = Stage::set(&programs, &place);
    // A program that asks the daemon of this test and not that of the machine. Another process writes it: one that is open for writing anywhere could not be started.
    let program = folder.join("lldpctl");
    let script = "printf '#!/bin/sh\\nPATH=\"%s\" LD_LIBRARY_PATH=\"%s\" exec lldpctl -u \"%s\" \"$@\"\\n' \"$PATH\" \"$LD_LIBRARY_PATH\" \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let made = programs.command("sh").args(["-c", script, "sh"]).arg(folder.join("node.sock")).arg(&program).status();
    assert!(made.expect("sh").success());
    // The agent asks twice a minute: it begins when there is something to hear.
    let begun = Instant::now();
    loop {
        let heard = Command::new(&program).args(["-f", "json0"]).stderr(Stdio::null()).output().expect("lldpctl");
        if String::from_utf8_lossy(&heard.stdout).contains("swp7") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the daemons never heard of one another: {heard:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let control = Control::start(&runtime, &folder);
    let settings = agent::Settings {
        node: "node1".into(),
        control: vec![control.address()],
        tls: None,
        socket: folder.join("node1.sock"),
        any_user: false,
        memory: None,
        neighbours: Vec::new(),
        lldpctl: Some(program),
    };
    let agent = runtime.block_on(async { Agent::start(settings, Box::new(Rail), Arc::new(Machine::default())) });
    let _agent = agent.expect("an agent");
    let mut seen = Value::Null;
    eventually("the cable is in the topology", || {
        seen = call(control.http, "GET /v1/topology", "").1;
        seen["ports"][0]["at"] == json!({ "switch": "leaf1", "port": "swp7" })
    });
    assert_eq!(
        (&seen["ports"][0]["port"]["node"], &seen["switches"][0]["name"]),
        (&json!("node1"), &json!("leaf1")),
        "{seen}"
    );
}
