//! What the tests need of the machine beyond a Rust compiler: a few programs, and root for network namespaces. What is
//! missing is installed if we are root on Debian or Ubuntu, else named, with what will be skipped. No service of the machine is
//! switched on: a program whose package would do that is unpacked below the target folder, and nothing else changes.

use crate::process;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something that a package brings, and what is skipped without it.
struct Need {
    /// A program, or a path.
    thing: &'static str,
    package: &'static str,
    skipped: &'static str,
}

const fn need(thing: &'static str, package: &'static str, skipped: &'static str) -> Need {
    Need { thing, package, skipped }
}

const NEEDS: &[Need] = &[
    need("ip", "iproute2", "tests between two network namespaces"),
    need("tshark", "tshark", "re-reading our captures with tshark"),
    need("ibv_rc_pingpong", "ibverbs-utils", "clients: the examples of libibverbs"),
    need("/etc/libibverbs.d/rxe.driver", "ibverbs-providers", "clients: what links a vendor's library"),
    need("ib_write_bw", "perftest", "clients: perftest"),
    need("qperf", "qperf", "clients: qperf"),
    need("rping", "rdmacm-utils", "clients: the examples of librdmacm"),
    need("ibstat", "infiniband-diags", "clients: ibstat and ibstatus"),
    need("ucx_perftest", "ucx-utils", "clients: UCX"),
    need("fi_pingpong", "libfabric-bin", "clients: libfabric"),
    need(
        "/usr/include/infiniband/verbs.h",
        "libibverbs-dev",
        "C programs of our own, and the layouts of the installed header",
    ),
    need("/usr/include/rdma/rdma_cma.h", "librdmacm-dev", "C programs of our own that use librdmacm"),
    need("tcpdump", "tcpdump", "reading our captures with tcpdump"),
    need("valgrind", "valgrind", "counting instructions"),
    need("memcached", "memcached", "connecting through memcached"),
    need("etcd", "etcd-server", "connecting through etcd, and the control plane's state in it"),
    need("chromium", "chromium", "the dashboard in a browser"),
    need("/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs", "clients: the tests of rdma-core"),
];

/// Programs whose packages start a service when they are installed: the tests find them in `target/unpacked/<package>`.
const UNPACKED: &[Need] = &[need("/usr/sbin/lldpd", "lldpd", "LLDP between two network namespaces")];

/// Fetches a package and what it needs beyond what is installed, and unpacks all of it in the present folder. None of their scripts is run.
const UNPACK: &str = r#"
    set -e
    mkdir -p debs/partial root
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends --reinstall --download-only \
        -o APT::Sandbox::User=root -o Dir::Cache::archives="$PWD/debs" "$1"
    for package in debs/*.deb; do dpkg-deb -x "$package" root; done
    rm -r debs
"#;

/// Installs or names what is missing; gives a sentence for each kind of test that will be skipped.
pub fn prepare(installs: bool) -> Vec<String> {
    let mut missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_there(need.thing)).collect();
    if !missing.is_empty() && installs && is_root() && is_there("apt-get") {
        let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
        if let Err(message) = install(&packages) {
            println!("    {message}");
        }
        missing.retain(|need| !is_there(need.thing));
    }
    let mut skipped: Vec<String> = missing
        .iter()
        .map(|need| format!("{}: `{}` is missing; install the package {}", need.skipped, need.thing, need.package))
        .collect();
    for need in UNPACKED {
        if let Err(message) = provide(need, installs) {
            skipped.push(format!("{}: {message}", need.skipped));
        }
    }
    if !is_root() {
        skipped.push("tests between two network namespaces: they need root".to_owned());
    }
    skipped
}

/// A program that is there, or is unpacked. Error: why it is not, and what helps.
fn provide(need: &Need, installs: bool) -> process::Outcome {
    let folder = process::target_folder()?.join("unpacked").join(need.package);
    let there = |folder: &Path| folder.join("root").join(need.thing.trim_start_matches('/')).is_file();
    if is_there(need.thing) || there(&folder) {
        return Ok(());
    }
    let by_hand = format!("`{}` is missing; install the package {}", need.thing, need.package);
    if !installs || !is_root() || !is_there("apt-get") || !is_there("dpkg-deb") {
        return Err(by_hand);
    }
    println!("    unpacking {} in {}", need.package, folder.display());
    unpack(need.package, &folder).map_err(|message| format!("{by_hand} ({message})"))
}

/// Puts a package's files into `folder/root`, all or none.
fn unpack(package: &str, folder: &Path) -> process::Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let beginning: PathBuf = folder.with_extension("part");
    let _ = std::fs::remove_dir_all(&beginning);
    std::fs::create_dir_all(&beginning).map_err(failed)?;
    let mut command = Command::new("sh");
    command.args(["-c", UNPACK, "sh", package]).current_dir(&beginning).env("DEBIAN_FRONTEND", "noninteractive");
    process::run(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
    std::fs::rename(&beginning, folder).map_err(failed)
}

/// Installs packages of Debian or Ubuntu.
pub fn install(packages: &[&str]) -> process::Outcome {
    if !is_root() || !is_there("apt-get") {
        return Err(format!("installing {} needs root and apt-get", packages.join(" ")));
    }
    println!("    installing {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        process::run(command.stdin(Stdio::null()).stdout(Stdio::null()))
    };
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&["update", "-qq"]).and_then(|()| apt(&arguments))
}

/// A program in a folder of PATH, or a path.
pub fn is_there(program: &str) -> bool {
    find(program).is_some()
}

/// Where it is.
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    if program.starts_with('/') {
        return Some(program.into()).filter(|path: &std::path::PathBuf| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// True if we may make network namespaces.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

/// What was measured on, in a sentence.
pub fn description() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    format!("{count} CPUs, {model}, Linux {}, load {load} at the end.", kernel.trim())
}
