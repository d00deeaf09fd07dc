//! Where peers are measured: `sfab perf` and the others on the loopback or between two network namespaces, and what must be installed for
//! that. Processes that are started here end with their handles, by process ID.

use crate::machine::{self, is_there};
use crate::process::{self, Outcome, root};
use serde_json::Value;
use std::cell::OnceCell;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// perftest does not warm up, as we do. From this time on it leaves out a quarter at each end instead; in less, the beginning counts.
const PERFTEST_SECONDS: f64 = 4.0;

/// Packages of Debian that bring peers.
const PACKAGES: [&str; 7] =
    ["iperf3", "ucx-utils", "perftest", "libfabric-bin", "ethtool", "openmpi-bin", "libopenmpi-dev"];

/// The package of PyPI that brings UCX 1.22, and its version.
const UCX_WHEEL: &str = "libucx-cu12==1.22.0";

/// An installed UCX.
#[derive(Clone, Debug)]
pub struct Ucx {
    /// Such as `1.22`.
    pub version: String,
    /// Folder of `ucx_perftest`.
    pub programs: PathBuf,
    /// Folder of its libraries; none for the system's.
    pub libraries: Option<PathBuf>,
}

/// Programs, and how long each measurement lasts.
pub struct Lab {
    sfab: PathBuf,
    seconds: f64,
    namespaces: OnceCell<Result<Namespaces, String>>,
}

/// Which way requests to this host go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As packets.
    Wire,
    /// By the same-host path.
    Host,
}

/// A process that ends with its handle.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Installs what is missing.
pub fn install() -> Outcome {
    machine::install(&PACKAGES)?;
    let folder = wheel_folder()?;
    if !folder.is_dir() {
        println!("    installing {UCX_WHEEL} into {}", folder.display());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&folder).arg(UCX_WHEEL);
        process::run(&mut pip)?;
    }
    Ok(())
}

fn wheel_folder() -> Result<PathBuf, String> {
    Ok(process::target_folder()?.join("peers/ucx"))
}

/// Every UCX that is installed, the newest first.
pub fn ucx_versions() -> Vec<Ucx> {
    let mut found = Vec::new();
    if let Ok(folder) = wheel_folder() {
        let programs = folder.join("libucx/bin");
        if programs.join("ucx_perftest").is_file() {
            found.push((programs, Some(folder.join("libucx/lib"))));
        }
    }
    if let Some(file) = machine::find("ucx_perftest") {
        found.push((file.parent().unwrap_or(Path::new("/usr/bin")).to_path_buf(), None));
    }
    let mut all: Vec<Ucx> = found
        .into_iter()
        .filter_map(|(programs, libraries)| {
            let mut command = Command::new(programs.join("ucx_info"));
            if let Some(folder) = &libraries {
                command.env("LD_LIBRARY_PATH", folder);
            }
            let text = process::output(command.arg("-v")).ok()?;
            Some(Ucx { version: version_in(&text)?, programs, libraries })
        })
        .collect();
    all.sort_by_key(|ucx| std::cmp::Reverse(number(&ucx.version)));
    all
}

/// `1.22` of `# Library version: 1.22.0`, or of older ones' `# UCT version=1.13.1`.
fn version_in(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("ersion"))?;
    let start = line.find(|c: char| c.is_ascii_digit())?;
    let mut parts = line[start..].split(|c: char| !c.is_ascii_digit());
    Some(format!("{}.{}", parts.next()?, parts.next()?))
}

fn number(version: &str) -> (u32, u32) {
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
}

impl Lab {
    /// On the products of a release build, or of a debug build.
    pub fn new(seconds: f64, debug: bool) -> Result<Self, String> {
        let sfab = process::target_folder()?.join(if debug { "debug" } else { "release" }).join("sfab");
        Ok(Self { sfab, seconds, namespaces: OnceCell::new() })
    }

    fn sfab(&self, way: Way) -> Command {
        let mut command = Command::new(&self.sfab);
        command.env("SCALEFABRIC_PATH", if way == Way::Wire { "wire" } else { "auto" });
        command.stdin(Stdio::null());
        command
    }

    /// Whether this build has a same-host path; else why not.
    pub fn has_host_path(&self) -> Result<(), String> {
        // A build that knows the variable refuses a way that there is not.
        let mut command = self.sfab(Way::Wire);
        command.args(["gids"]).env("SCALEFABRIC_PATH", "no-such-way").stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(|error| format!("sfab: {error}"))?;
        if status.success() { Err("this build has no same-host path".to_owned()) } else { Ok(()) }
    }

    /// `sfab perf WORDS` against a server of its own on the loopback, each measurement for the time of the lab.
    pub fn perf(&self, way: Way, words: &str) -> Result<Value, String> {
        let (server, said) = start(self.sfab(way).args(["perf", "server", "--json", "--listen", "127.0.0.1:0"]))?;
        let address = said["listening"].as_str().unwrap_or_default().to_owned();
        let mut client = self.sfab(way);
        let document = document(self.client(&mut client, words, &address))?;
        drop(server);
        Ok(document["results"][0].clone())
    }

    fn client<'a>(&self, command: &'a mut Command, words: &str, address: &str) -> &'a mut Command {
        let mut words = words.split_whitespace();
        let first: Vec<&str> = words.by_ref().take(2).collect();
        command.arg("perf").args(first).args([address, "--json", "-D", &self.seconds.to_string()]).args(words)
    }

    /// `sfab perf WORDS --peer PEER`: ours and those of the peers that were measured.
    pub fn beside(
        &self,
        way: Way,
        words: &str,
        peer: &str,
        ucx: Option<(&Ucx, &str)>,
    ) -> Result<(Value, Vec<Value>), String> {
        let mut command = self.sfab(way);
        let mut words = words.split_whitespace();
        let first: Vec<&str> = words.by_ref().take(2).collect();
        let seconds = if peer == "perftest" { self.seconds.max(PERFTEST_SECONDS) } else { self.seconds };
        command.arg("perf").args(first).args(["--json", "--peer", peer, "-D", &seconds.to_string()]).args(words);
        if let Some((ucx, tls)) = ucx {
            command.env("UCX_TLS", tls);
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(ucx.programs.clone()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(folders).map_err(|error| error.to_string())?);
            if let Some(folder) = &ucx.libraries {
                command.env("LD_LIBRARY_PATH", folder);
            }
        }
        let told = document(&mut command)?;
        let all = told["peers"].as_array().cloned().unwrap_or_default();
        let (measured, not): (Vec<Value>, Vec<Value>) = all.into_iter().partition(|peer| peer["result"].is_object());
        if measured.is_empty() {
            let why = not.iter().filter_map(|peer| peer["not_measured"].as_str()).collect::<Vec<_>>().join("; ");
            return Err(format!("{peer}: {why}"));
        }
        Ok((told["own"].clone(), measured))
    }

    /// A figure of `sfab bench`.
    pub fn bench(&self, name: &str) -> Result<f64, String> {
        let ms = (self.seconds * 1e3).max(1.0) as u64;
        let mut command = self.sfab(Way::Wire);
        let told =
            document(command.args(["bench", "--json", "--repeat", "1", "--ms", &ms.to_string(), "--only", name]))?;
        told["values"][0]["median"].as_f64().ok_or_else(|| format!("sfab bench has no {name}"))
    }

    /// What the machine does by itself; measured anew each time, since what else it does changes.
    pub fn yardstick(&self, read: impl Fn(&Value) -> Option<f64>) -> Result<f64, String> {
        let ms = (self.seconds * 250.0).max(40.0) as u64;
        let mut command = self.sfab(Way::Wire);
        let told = document(command.args(["bench", "--yardstick", "--ms", &ms.to_string()]))?;
        read(&told).ok_or_else(|| "the yardstick has no such figure".to_owned())
    }

    /// Two namespaces joined by a link, made when they are needed first.
    pub fn namespaces(&self) -> Result<&Namespaces, String> {
        self.namespaces.get_or_init(Namespaces::new).as_ref().map_err(Clone::clone)
    }

    /// `sfab perf WORDS` between the namespaces.
    pub fn perf_between(&self, namespaces: &Namespaces, words: &str) -> Result<Value, String> {
        let inside = |side: usize| {
            let mut command = namespaces.inside(side, &self.sfab);
            command.env("SCALEFABRIC_PATH", "wire");
            command
        };
        let listen = format!("{}:0", Namespaces::ADDRESSES[0]);
        let (server, said) = start(inside(0).args(["perf", "server", "--json", "--listen", &listen]))?;
        let address = said["listening"].as_str().unwrap_or_default().to_owned();
        let mut client = inside(1);
        let told = document(self.client(&mut client, words, &address))?;
        drop(server);
        Ok(told["results"][0].clone())
    }

    /// iperf3's TCP between the namespaces, Gb/s.
    pub fn iperf3_between(&self, namespaces: &Namespaces) -> Result<f64, String> {
        if !is_there("iperf3") {
            return Err("`iperf3` is missing; install the package iperf3".to_owned());
        }
        let mut server = namespaces.inside(0, Path::new("iperf3"));
        server.args(["-s", "-1", "-B", Namespaces::ADDRESSES[0]]).stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Running(server.spawn().map_err(|error| format!("iperf3: {error}"))?);
        let begin = Instant::now();
        loop {
            let mut client = namespaces.inside(1, Path::new("iperf3"));
            let seconds = self.seconds.ceil().to_string();
            let told = document(client.args(["-c", Namespaces::ADDRESSES[0], "-J", "-t", &seconds]));
            let bits = told.as_ref().ok().and_then(|told| told["end"]["sum_received"]["bits_per_second"].as_f64());
            match bits {
                Some(bits) => return Ok(bits / 1e9),
                None if begin.elapsed() > Duration::from_secs(10) => {
                    return Err(format!("iperf3 told nothing: {told:?}"));
                }
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// What our program for Open MPI tells: `bw SIZE` in Gb/s, `rate` in messages a second.
    pub fn open_mpi(&self, words: &[&str]) -> Result<f64, String> {
        for program in ["mpicc", "mpirun"] {
            if !is_there(program) {
                return Err(format!("`{program}` is missing; install the packages openmpi-bin and libopenmpi-dev"));
            }
        }
        let program = self.sfab.with_file_name("peer-mpi");
        if !program.is_file() {
            let source = root().join("crates/tests/peers/mpi.c");
            process::run(Command::new("mpicc").args(["-O2", "-o"]).arg(&program).arg(source))?;
        }
        let mut command = Command::new("mpirun");
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-np",
            "2",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "pml",
            "ob1",
        ]);
        // Every other kind of window shares memory between two processes of one host, whatever BTL is asked for: nothing of it is
        // seen on the loopback's counters.
        command.args(["--mca", "osc", "pt2pt"]);
        command.args(["--mca", "btl_tcp_if_include", "lo"]).arg(&program).args(words).arg(self.seconds.to_string());
        let text = process::output(command.stdin(Stdio::null()))?;
        text.trim().parse().map_err(|_| format!("Open MPI told `{}`", text.trim()))
    }
}

/// Starts a server; it, and the line that it says first.
fn start(command: &mut Command) -> Result<(Running, Value), String> {
    let line = process::shown(command);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut running = Running(child.map_err(|error| format!("`{line}` could not be started: {error}"))?);
    let stdout = running.0.stdout.take().ok_or("a server without standard output")?;
    let mut reader = BufReader::new(stdout);
    let mut first = String::new();
    reader.read_line(&mut first).map_err(|error| format!("`{line}`: {error}"))?;
    let said = serde_json::from_str(&first).map_err(|_| format!("`{line}` ended before it listened"))?;
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    Ok((running, said))
}

/// Runs a command and reads the JSON that it prints; its last words if there is none.
fn document(command: &mut Command) -> Result<Value, String> {
    let line = process::shown(command);
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("`{line}` could not be started: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
        format!("`{line}` ended with {}: {}", output.status, last.trim())
    })
}

/// Two network namespaces joined by a veth pair; dropping them removes them.
pub struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// Addresses of the two sides, from the documentation block of RFC 5737.
    pub const ADDRESSES: [&'static str; 2] = ["192.0.2.1", "192.0.2.2"];

    fn new() -> Result<Self, String> {
        if !machine::is_root() {
            return Err("network namespaces need root".to_owned());
        }
        let process = std::process::id();
        let made = Self { names: [format!("sfab-peers-{process}-a"), format!("sfab-peers-{process}-b")] };
        let [a, b] = &made.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "peer0", "type", "veth", "peer", "name", "peer0", "netns", b])?;
        for (name, address) in made.names.iter().zip(Self::ADDRESSES) {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "peer0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "peer0", "up"])?;
        }
        Ok(made)
    }

    /// A program inside one of them.
    fn inside(&self, side: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]).arg(program).stdin(Stdio::null());
        command
    }

    /// Sets MTU and whether packets may be super-packets, on both ends.
    pub fn shape(&self, mtu: u32, super_packets: bool) -> Outcome {
        if !super_packets && !is_there("ethtool") {
            return Err("`ethtool` is missing; install the package ethtool".to_owned());
        }
        for (side, name) in self.names.iter().enumerate() {
            ip(&["-n", name, "link", "set", "peer0", "mtu", &mtu.to_string()])?;
            let word = if super_packets { "on" } else { "off" };
            if is_there("ethtool") {
                let mut ethtool = self.inside(side, Path::new("ethtool"));
                ethtool.args(["-K", "peer0", "tso", word, "gso", word, "gro", word, "tx-udp-segmentation", word]);
                process::run(ethtool.stdout(Stdio::null()).stderr(Stdio::null()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ =
                Command::new("ip").args(["netns", "delete", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

fn ip(arguments: &[&str]) -> Outcome {
    process::run(Command::new("ip").args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_old_and_new_ucx_are_read() {
        assert_eq!(version_in("# Library version: 1.22.0\n# Library path: /x\n").as_deref(), Some("1.22"));
        assert_eq!(version_in("# UCT version=1.13.1 revision 0\n").as_deref(), Some("1.13"));
        assert_eq!(version_in("no idea\n"), None);
        assert!(number("1.22") > number("1.13") && number("1.9") < number("1.13"));
    }
}
