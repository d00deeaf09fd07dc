//! `sfab top` as people start it: one look as text and as JSON, a screen in a pseudo-terminal that is given back as it was, and a sentence where control is not there.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A machine that is very busy may take so long. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

struct Control {
    child: Child,
    folder: std::path::PathBuf,
    address: String,
}

impl Control {
    fn start(name: &str, more: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("sfab-top-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut child = Command::new(env!("CARGO_BIN_EXE_sfab"))
            .args(["control", "--json", "--name", "c1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store"])
            .arg(folder.join("store"))
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("sfab starts");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        lines.read_line(&mut line).expect("a line");
        let listening: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self { child, folder, address: format!("http://{}", listening["http"].as_str().expect("HTTP")) }
    }

    fn top(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sfab"));
        command.args(["top", "--control", &self.address]).args(arguments).env_remove("SCALEFABRIC_TOKEN");
        command.output().expect("sfab starts")
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn one_look_is_text_or_json_and_no_terminal_is_no_screen() {
    let control = Control::start("once", &[]);
    let once = control.top(&["--once"]);
    let said = text(&once.stdout);
    assert!(once.status.success() && said.contains("store embedded") && said.contains("asked c1"), "{said}");
    let json = control.top(&["--json"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((&value["replica"], value["events"].is_array()), (&"c1".into(), true));
    let screen = control.top(&[]);
    assert_eq!(screen.status.code(), Some(2));
    assert!(text(&screen.stderr).contains("--once"), "{}", text(&screen.stderr));
}

#[test]
fn a_control_that_is_not_there_or_asks_for_a_token_is_told_in_a_sentence() {
    // A port that nothing gives away: one that was free a moment ago may be another test's now.
    let nobody = "127.0.0.1:1";
    let failed = Command::new(env!("CARGO_BIN_EXE_sfab"))
        .args(["top", "--once", "--control", &format!("http://{nobody}")])
        .output()
        .expect("sfab starts");
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("does not answer") && said.contains("sfab control"), "{said}");
    let token = std::env::temp_dir().join(format!("sfab-top-token-{}", std::process::id()));
    std::fs::write(&token, "0123456789abcdef\n").expect("a token");
    let config = token.with_extension("toml");
    std::fs::write(&config, format!("token_file = {:?}\n", token.display().to_string())).expect("a configuration");
    let control = Control::start("asks", &["--config", config.to_str().expect("text")]);
    let refused = control.top(&["--once"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("SCALEFABRIC_TOKEN"), "{}", text(&refused.stderr));
    assert!(control.top(&["--once", "--token", "0123456789abcdef"]).status.success());
    let _ = (std::fs::remove_file(token), std::fs::remove_file(config));
}

/// `sfab top` in a pseudo-terminal of 80 columns and 24 lines, which `script` of util-linux makes.
struct Screen {
    child: Child,
    /// All that was written.
    written: String,
    /// What is seen of it.
    seen: vt100::Parser,
    news: Receiver<Vec<u8>>,
}

impl Screen {
    fn start(control: &Control) -> Self {
        let command =
            format!("stty rows 24 cols 80; exec {} top --control {}", env!("CARGO_BIN_EXE_sfab"), control.address);
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("SCALEFABRIC_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script of util-linux");
        let mut out = child.stdout.take().expect("its output");
        let (told, news) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = out.read(&mut buffer) {
                if told.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, written: String::new(), seen: vt100::Parser::new(24, 80, 0), news }
    }

    fn wait_for(&mut self, wanted: &str) {
        while !self.seen.screen().contents().contains(wanted) {
            let more = self.news.recv_timeout(PATIENCE);
            let more = more.unwrap_or_else(|_| panic!("it never showed {wanted:?}: {:?}", self.written));
            self.take(&more);
        }
    }

    fn take(&mut self, more: &[u8]) {
        self.written += &text(more);
        self.seen.process(more);
    }

    fn press(&mut self, keys: &str) {
        self.child.stdin.as_mut().expect("its keyboard").write_all(keys.as_bytes()).expect("it listens");
    }

    /// What else it shows until it ends, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        while let Ok(more) = self.news.recv_timeout(PATIENCE) {
            self.take(&more);
        }
        let status = self.child.wait().expect("it ends");
        (self.written, status.code())
    }
}

#[test]
fn the_screen_shows_what_there_is_and_the_terminal_is_given_back() {
    let control = Control::start("screen", &[]);
    for (last, code) in [("q", 0), ("\u{3}", 130)] {
        let mut screen = Screen::start(&control);
        screen.wait_for("No agent has joined");
        assert!(screen.written.contains("\u{1b}[?1049h"), "a screen of its own");
        screen.press("4");
        screen.wait_for("c1 has the duty to rebalance");
        screen.press("f");
        screen.wait_for("[y/n]");
        screen.press("n");
        screen.press(last);
        let (shown, ended) = screen.end();
        assert_eq!(ended, Some(code), "{shown:?}");
        let given_back = shown.rfind("\u{1b}[?1049l").expect("the screen before");
        assert!(given_back > shown.rfind("\u{1b}[?1049h").expect("taken"), "{shown:?}");
        assert!(shown.rfind("\u{1b}[?25h") > shown.rfind("\u{1b}[?25l"), "the cursor is seen again: {shown:?}");
    }
}
