//! `sfab control` and `sfab agent` as people start them: they say where they listen, find one another, and end cleanly when they are told to.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sfab"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("sfab starts");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, lines }
    }

    /// The next line that is about `event` and fits.
    fn next(&mut self, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("text"), 0, "it ended");
            let value: Value = serde_json::from_str(&line).expect("JSON");
            if value["event"] == event && fits(&value) {
                return value;
            }
        }
    }

    /// Tells it to end as Ctrl-C does; its exit code.
    fn interrupt(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        let _ = self.lines.read_to_string(&mut String::new());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn control_and_agent_find_one_another_and_end_cleanly() {
    let folder = std::env::temp_dir().join(format!("sfab-cli-control-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).display().to_string();
    let any = "127.0.0.1:0";
    let store = path("store");
    let mut control =
        Running::start(&["control", "--json", "--name", "c1", "--store", &store, "--listen", any, "--http", any]);
    let listening = control.next("listening", |_| true);
    let text = |value: &Value, key: &str| value[key].as_str().expect("text").to_owned();
    let (agents, http) = (format!("http://{}", text(&listening, "agents")), text(&listening, "http"));
    control.next("store", |value| value["state"] == "in sync");

    let socket = path("agent.sock");
    let mut agent = Running::start(&["agent", "--json", "--node", "n1", "--control", &agents, "--socket", &socket]);
    agent.next("control", |value| value["replica"] == "c1");
    // What was stored a moment ago is seen a moment later.
    let mut answer = String::new();
    for _ in 0..6000 {
        let mut stream = TcpStream::connect(&http).expect("HTTP");
        let request = b"GET /v1/nodes/n1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("it reads");
        answer.clear();
        stream.read_to_string(&mut answer).expect("an answer");
        if !answer.starts_with("HTTP/1.1 404") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"replica\":\"c1\""), "{answer}");

    // The same store a second time is refused, with a sentence.
    let second = Command::new(env!("CARGO_BIN_EXE_sfab"))
        .args(["control", "--name", "c2", "--store", &store, "--listen", any, "--http", any])
        .output()
        .expect("sfab starts");
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("open in another process"));

    assert_eq!(control.interrupt(), Some(0));
    agent.next("control", |value| value["trouble"].is_string());
    assert_eq!(agent.interrupt(), Some(0));
    assert!(!std::path::Path::new(&socket).exists());
    std::fs::remove_dir_all(&folder).expect("removed");
}
