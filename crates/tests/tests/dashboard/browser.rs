//! Debian's Chromium without a window, driven by its own protocol over two pipes: no port, no library, nothing of the machine's user. It hears of every error that the page's
//! console shows.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a machine that is very busy may take for anything. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The browser's program, if the machine has it.
pub fn program() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&folders).flat_map(|folder| names.map(|name| folder.join(name))).find(|path| path.is_file())
}

/// A page in a browser of its own.
pub struct Page {
    child: Child,
    folder: PathBuf,
    to: File,
    from: Receiver<Value>,
    waiting: VecDeque<Value>,
    session: Option<String>,
    serial: u64,
    /// Errors that the console showed.
    pub errors: Vec<String>,
}

impl Page {
    /// A page that is empty, of this size.
    pub fn open(program: &std::path::Path, width: u32, height: u32) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sfab-browser-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (commands, answers) = (folder.join("commands"), folder.join("answers"));
        for pipe in [&commands, &answers] {
            assert!(Command::new("mkfifo").arg(pipe).status().expect("mkfifo").success());
        }
        // The shell gives the browser descriptors 3 and 4, where it looks for them.
        let script = "exec \"$1\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars \
             --disable-background-networking --disable-component-update --disable-extensions --force-color-profile=srgb \
             --remote-debugging-pipe --user-data-dir=\"$2/profile\" about:blank 3<\"$2/commands\" 4>\"$2/answers\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(program)
            .arg(&folder)
            .env("HOME", &folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log")).expect("a log"))
            .spawn()
            .expect("a shell");
        let to = File::options().write(true).open(&commands).expect("the browser's ear");
        let answers = File::open(&answers).expect("the browser's mouth");
        let (told, from) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(answers);
            let mut message = Vec::new();
            while reader.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                let end = message.len() - 1;
                if let Ok(value) = serde_json::from_slice(&message[..end])
                    && told.send(value).is_err()
                {
                    return;
                }
                message.clear();
            }
        });
        let waiting = VecDeque::new();
        let mut page = Self { child, folder, to, from, waiting, session: None, serial: 0, errors: Vec::new() };
        let target = page.command("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            page.command("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            page.command(&format!("{domain}.enable"), json!({}));
        }
        page.size(width, height);
        page
    }

    /// Another size, at one pixel a CSS pixel.
    pub fn size(&mut self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// `light` or `dark`.
    pub fn scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }, { "name": "prefers-reduced-motion", "value": "reduce" }]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Goes to an address.
    pub fn go(&mut self, address: &str) {
        let gone = self.command("Page.navigate", json!({ "url": address }));
        assert!(gone["errorText"].is_null(), "{address}: {gone}");
    }

    /// What an expression of the page gives.
    pub fn ask(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.command("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression of the page is true; `what` names it for people.
    pub fn wait(&mut self, what: &str, expression: &str) {
        let end = Instant::now() + PATIENCE;
        // A page that is just being made has not everything that is asked for.
        let asked = format!("(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()");
        while self.ask(&asked) != Value::Bool(true) {
            if Instant::now() > end {
                let text = self.ask("document.body?.innerText");
                panic!("it never came: {what}; the page says {text}; errors {:?}", self.errors);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    pub fn wait_for_text(&mut self, text: &str) {
        let quoted = Value::from(text).to_string();
        self.wait(text, &format!("document.body.innerText.includes({quoted})"));
    }

    /// Clicks what a selector finds.
    pub fn click(&mut self, selector: &str) {
        let quoted = Value::from(selector).to_string();
        self.wait(selector, &format!("document.querySelector({quoted})"));
        self.ask(&format!("document.querySelector({quoted}).click()"));
    }

    /// Types into a field as people do: the field hears of it.
    pub fn fill(&mut self, selector: &str, text: &str) {
        let (selector, text) = (Value::from(selector).to_string(), Value::from(text).to_string());
        self.ask(&format!(
            "{{ const field = document.querySelector({selector}); field.value = {text}; \
             field.dispatchEvent(new Event('input', {{ bubbles: true }})); field.dispatchEvent(new Event('change', {{ bubbles: true }})); }}"
        ));
    }

    /// Presses a key, as the keyboard would.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            // What the browser does with a key by itself goes by this number.
            let code = ["Enter", "End", "Home", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"];
            let numbers = [13, 35, 36, 37, 38, 39, 40];
            let number = code.iter().zip(numbers).find(|(name, _)| **name == key).map_or(0, |(_, number)| number);
            let mut event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": number });
            if key == "Enter" && kind == "keyDown" {
                event["text"] = json!("\r");
            }
            self.command("Input.dispatchKeyEvent", event);
        }
    }

    /// A picture of what is seen, PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let taken = self.command("Page.captureScreenshot", json!({ "format": "png", "optimizeForSpeed": false }));
        base64(taken["data"].as_str().expect("a picture"))
    }

    /// Sends a command and gives its result. Events that come before are taken in.
    fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.serial += 1;
        let id = self.serial;
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.waiting.pop_front().map_or_else(|| self.from.recv_timeout(left), Ok) {
                Ok(message) if message["id"] == id => {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return message["result"].clone();
                }
                Ok(message) => self.hear(&message),
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no answer"),
                Err(RecvTimeoutError::Disconnected) => {
                    let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                    panic!("{method}: the browser has ended: {log}");
                }
            }
        }
    }

    fn hear(&mut self, message: &Value) {
        let told = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(told["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled")
                if matches!(told["type"].as_str(), Some("error" | "warning" | "assert")) =>
            {
                self.errors.push(told["args"].to_string());
            }
            Some("Log.entryAdded") if told["entry"]["level"] == "error" => self.errors.push(told["entry"].to_string()),
            _ => {}
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Bytes from base64, as the browser writes it.
fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> = text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte))
        .map(|digit| digit as u32)
        .collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}
