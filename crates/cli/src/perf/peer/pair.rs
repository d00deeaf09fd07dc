//! The two processes of another program: the server first, then the client, whose output is read. Both end with their handles, by process ID.

use crate::failure::{During, Failure};
use crate::perf::asked::ClientOptions;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until clients reach it.
const READY: Duration = Duration::from_secs(15);

/// Both ends.
pub struct Pair {
    /// Started first.
    pub server: Command,
    /// Started next; again while nobody listens yet.
    pub client: Command,
}

/// A process that ends with its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True if a program is in a folder of PATH.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A TCP port of the loopback that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_or(0, |address| address.port())
}

/// This program, as a command.
pub fn own() -> Command {
    Command::new(std::env::current_exe().unwrap_or_else(|_| "sfab".into()))
}

impl Pair {
    /// Runs both; what the client printed, or why there is nothing.
    pub fn run(mut self, limit: Duration) -> Result<String, String> {
        let begin = Instant::now();
        let mut server = Running(spawn(&mut self.server, Stdio::null(), Stdio::null())?);
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let (status, out, err) = finish(&mut self.client, limit)?;
            if status.success() {
                return Ok(out);
            }
            let server_ended = server.0.try_wait().ok().flatten();
            if begin.elapsed() > READY || server_ended.is_some() {
                let said = if err.trim().is_empty() { out } else { err };
                let last = super::last_line(&said).trim().to_owned();
                let how = server_ended.map_or(String::new(), |status| format!("; its server ended with {status}"));
                return Err(format!("ended with {status}{how}: {last}"));
            }
        }
    }
}

fn spawn(command: &mut Command, out: Stdio, err: Stdio) -> Result<Child, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    command.spawn().map_err(|error| format!("`{name}` could not be started: {error}"))
}

/// Runs it to its end; status, standard output, standard error.
fn finish(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String, String), String> {
    let mut running = Running(spawn(command, Stdio::piped(), Stdio::piped())?);
    let out = running.0.stdout.take().map(reader);
    let err = running.0.stderr.take().map(reader);
    let begin = Instant::now();
    let status = loop {
        match running.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() > limit => {
                return Err(format!("did not end within {} s and was ended", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(format!("wait: {error}")),
        }
    };
    let text = |thread: Option<std::thread::JoinHandle<String>>| thread.and_then(|t| t.join().ok()).unwrap_or_default();
    Ok((status, text(out), text(err)))
}

fn reader(mut stream: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Our own server as a process, on a free port of the loopback.
pub struct Server {
    /// What it said first.
    pub said: Value,
    _running: Running,
}

impl Server {
    /// Starts it with the options of the device.
    pub fn own(options: &ClientOptions) -> Result<Self, Failure> {
        let mut command = own();
        command.args([
            "perf",
            "server",
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--backend",
            options.device.backend.name(),
        ]);
        if let Some(device) = &options.device.device {
            command.args(["--device", device]);
        }
        if let Some(path) = &options.device.path {
            command.args(["--path", path]);
        }
        for (name, value) in [("--ib-port", options.device.port_num), ("--gid-index", options.device.gid_index)] {
            if let Some(value) = value {
                command.args([name, &value.to_string()]);
            }
        }
        let child = spawn(&mut command, Stdio::piped(), Stdio::inherit()).map_err(Failure::failed)?;
        let mut running = Running(child);
        let stdout = running.0.stdout.take().ok_or_else(|| Failure::failed("our server has no standard output"))?;
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        reader.read_line(&mut line).during(|| "hear our server")?;
        let said = serde_json::from_str(&line).map_err(|_| Failure::failed("our server ended before it listened"))?;
        // What it says of its clients is for nobody; the pipe must not fill.
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        Ok(Self { said, _running: running })
    }
}
