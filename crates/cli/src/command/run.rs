//! `sfab run`: an unmodified verbs program on the software NIC. It finds the libraries, chooses the way in, sets the
//! environment, and becomes the program: same process, same descriptors, its own output and exit code.
//!
//! | way | what the loader is told | for |
//! |---|---|---|
//! | preload | LD_PRELOAD | programs that are linked with libibverbs or librdmacm |
//! | dropin | and LD_LIBRARY_PATH | programs that open libibverbs themselves, hosts without it or without librdmacm |
//! | audit | LD_PRELOAD and LD_AUDIT | those that would look elsewhere first |

mod closure;
mod elf;
mod program;
mod tree;

use crate::failure::Failure;
use crate::software;
use crate::terminal::say;
use clap::{Args, ValueEnum};
use closure::Closure;
use scalefabric_nic::discovery::{self, DevicePlan};
use scalefabric_nic::options::Options as NicOptions;
use scalefabric_nic::port::faults::FaultSpec;
use scalefabric_nic::provider::SoftwareProvider;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program that uses libibverbs or librdmacm, unmodified, on the software NIC.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab run -- ibv_devinfo
  sfab run -- ib_write_bw -d sflo            (and in another terminal: sfab run -- ib_write_bw -d sflo 127.0.0.1)
  sfab run --fault drop=1%,seed=7 --capture /tmp/rping.pcapng -- rping -s -a 127.0.0.1 -v
  sfab run --mode audit -- ./program-with-an-rpath

The program keeps its process number, its output and its exit code. 2: it could not be run; the sentence says why.")]
pub struct Options {
    /// TOML file that configures the software NIC (SCALEFABRIC_CONFIG)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Make the device look and behave like another NIC (sfab personalities)
    #[arg(long, value_name = "NAME")]
    personality: Option<String>,
    /// Fault to inject; may be given several times
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<String>,
    /// Write every packet to this pcapng file; {pid} becomes the process's number
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Which way requests to programs on this host go: `auto`, the requester executes one-sided ones itself where it can; `wire`, all
    /// as packets (SCALEFABRIC_PATH)
    #[arg(long, value_name = "PATH", value_parser = ["auto", "wire"])]
    path: Option<String>,
    /// How the program gets our libibverbs
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    mode: Mode,
    /// Show the program this device only
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Hide the RDMA devices that the machine really has
    #[arg(long)]
    hide_real: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    show: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// How a program gets our libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Chosen by what the program is linked with
    Auto,
    /// LD_PRELOAD
    Preload,
    /// LD_PRELOAD, and libibverbs.so.1 of our own on LD_LIBRARY_PATH
    Dropin,
    /// LD_PRELOAD, and an audit library that leads to our libibverbs.so.1
    Audit,
}

/// The command. It returns only if the program could not be run.
pub fn run(options: &Options) -> Result<(), Failure> {
    let products = Products::find()?;
    let nic = nic_options(options)?;
    let plans = plans(&nic, options.device.as_deref())?;
    let program = program::find(&options.program[0], options.mode == Mode::Auto)?;
    let library_path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    // Our librdmacm has no rsockets: it stands in only where there is no other.
    let (mode, own_rdmacm) = match options.mode {
        Mode::Auto => {
            let closure = closure::follow(&program.elf_file, program.elf, &library_path);
            (choose(&closure), closure.is_missing("librdmacm"))
        }
        mode => (mode, false),
    };
    let mut command = Command::new(&program.file);
    command.arg0(&options.program[0]).args(&options.program[1..]);
    for (name, value) in environment(options, mode, own_rdmacm, &products, &plans)? {
        command.env(name, value);
    }
    if options.show {
        return show(&command, mode);
    }
    let error = command.exec();
    Err(Failure::usage(format!("{} cannot be run: {error}", program.file.display())))
}

/// The way in for a program.
fn choose(closure: &Closure) -> Mode {
    if closure.own_verbs.is_some() {
        // Its RPATH comes before LD_LIBRARY_PATH, and what it opens itself does not see LD_PRELOAD.
        Mode::Audit
    } else if closure.is_missing("libibverbs") || closure.is_missing("librdmacm") {
        Mode::Dropin
    } else if closure.needs("libibverbs") || closure.needs("librdmacm") {
        Mode::Preload
    } else {
        Mode::Dropin
    }
}

/// What the environment, the file and the command line say to the NIC, checked before anything starts.
fn nic_options(options: &Options) -> Result<NicOptions, Failure> {
    let wrong = |error: scalefabric_verbs::VerbsError| Failure::usage(error.to_string());
    let mut nic = NicOptions::from_environment().map_err(wrong)?;
    if let Some(file) = &options.config {
        nic.read_file(file).map_err(wrong)?;
    }
    if !options.faults.is_empty() {
        let text = options.faults.join(",");
        let spec = text.parse::<FaultSpec>().map_err(|error| Failure::usage(format!("--fault {text}: {error}")))?;
        nic.faults = Some(spec);
    }
    if let Some(name) = &options.personality {
        software::personality(name)?;
    }
    if let Some(file) = &options.capture {
        nic.capture = Some(file.clone());
    }
    if let Some(file) = nic.capture_path() {
        check_capture(&file)?;
    }
    Ok(nic)
}

/// Whether the program will be able to write this file: what it prints itself when it cannot open the device says nothing of it.
fn check_capture(file: &Path) -> Result<(), Failure> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::usage(format!("--capture: there is no folder {}", folder.display())));
    }
    let opened = match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => {
            return Err(Failure::usage(format!("--capture: {} is a folder, not a file", file.display())));
        }
        Ok(found) if found.is_file() => OpenOptions::new().write(true).open(file).map(drop),
        // A pipe, which would wait for its reader here.
        Ok(_) => Ok(()),
        Err(_) => OpenOptions::new().write(true).create_new(true).open(file).and_then(|_| std::fs::remove_file(file)),
    };
    opened.map_err(|error| Failure::usage(format!("--capture: {} cannot be written: {error}", file.display())))
}

/// The devices that the program will see.
fn plans(nic: &NicOptions, only: Option<&str>) -> Result<Vec<DevicePlan>, Failure> {
    let only = only.or(nic.only.as_deref());
    let plans = SoftwareProvider::new(NicOptions { only: None, ..nic.clone() }).plans()?;
    if plans.is_empty() {
        return Err(Failure::usage(
            "there is no usable interface: the software NIC needs a network interface that is up and has an address \
             (the loopback will do: ip link set lo up)",
        ));
    }
    match only {
        Some(name) => Ok(vec![discovery::find(plans, name).map_err(|error| Failure::usage(error.to_string()))?]),
        None => Ok(plans),
    }
}

/// The files that `cargo xtask build` makes.
struct Products {
    preload: PathBuf,
    dropin: PathBuf,
    dropin_rdmacm: PathBuf,
    audit: PathBuf,
}

impl Products {
    /// SCALEFABRIC_LIB, else beside this binary, else where packages put them.
    fn find() -> Result<Self, Failure> {
        let own = std::env::current_exe().unwrap_or_default();
        let beside = own.parent().unwrap_or(Path::new("/"));
        let folders = match std::env::var_os("SCALEFABRIC_LIB") {
            Some(folder) => vec![PathBuf::from(folder)],
            None => vec![beside.join("scalefabric"), beside.join("../lib/scalefabric")],
        };
        for folder in &folders {
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            let products = Self {
                preload: folder.join("libscalefabric-preload.so"),
                dropin: folder.join("dropin"),
                dropin_rdmacm: folder.join("dropin-rdmacm"),
                audit: folder.join("libscalefabric-audit.so"),
            };
            if products.preload.exists() && products.dropin.join("libibverbs.so.1").exists() && products.audit.exists()
            {
                return match folder.to_str() {
                    // The loader separates its lists by colons and spaces, and knows no way to escape them.
                    Some(text) if !text.contains([' ', ':', ';']) => Ok(products),
                    _ => Err(Failure::usage(format!(
                        "the libraries are in {}: the loader cannot be told a path with spaces, colons or bytes that are \
                         not UTF-8; put them elsewhere and name the folder by SCALEFABRIC_LIB",
                        folder.display()
                    ))),
                };
            }
        }
        let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        Err(Failure::usage(format!(
            "the libraries that bring programs onto the software NIC are missing (looked in {}): build them with \
             cargo xtask build, or name their folder by SCALEFABRIC_LIB",
            looked.join(" and ")
        )))
    }
}

/// What is set for the program. Lists of others are kept behind ours.
fn environment(
    options: &Options,
    mode: Mode,
    own_rdmacm: bool,
    products: &Products,
    plans: &[DevicePlan],
) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut set: Vec<(&str, OsString)> = vec![("LD_PRELOAD", before("LD_PRELOAD", &products.preload))];
    match mode {
        Mode::Dropin => {
            let mut list = before("LD_LIBRARY_PATH", &products.dropin);
            if own_rdmacm {
                list.push(":");
                list.push(&products.dropin_rdmacm);
            }
            set.push(("LD_LIBRARY_PATH", list));
        }
        Mode::Audit => set.push(("LD_AUDIT", before("LD_AUDIT", &products.audit))),
        Mode::Auto | Mode::Preload => {}
    }
    // A program that we run may run `sfab run` again: the outermost one has the folder.
    unless_set(&mut set, "SCALEFABRIC_TREE", || tree::announce().map(Into::into));
    if let Some(file) = &options.config {
        set.push(("SCALEFABRIC_CONFIG", absolute(file)?.into()));
    }
    if !options.faults.is_empty() {
        set.push(("SCALEFABRIC_FAULTS", options.faults.join(",").into()));
    }
    if let Some(file) = &options.capture {
        set.push(("SCALEFABRIC_CAPTURE", absolute(file)?.into()));
    }
    if let Some(name) = &options.personality {
        set.push(("SCALEFABRIC_PERSONALITY", name.into()));
    }
    if let Some(path) = &options.path {
        set.push(("SCALEFABRIC_PATH", path.into()));
    }
    if let Some(name) = &options.device {
        set.push(("SCALEFABRIC_DEVICE", name.into()));
    }
    if options.hide_real {
        set.push(("SCALEFABRIC_HIDE_REAL", "1".into()));
    }
    // NCCL asks for symbols of the library it opened itself, and its default GID is the first, which may be link-local.
    unless_set(&mut set, "NCCL_IBVERBS_LIB", || Some(products.dropin.join("libibverbs.so.1").into()));
    unless_set(&mut set, "NCCL_IB_GID_INDEX", || gid_index(plans).map(|index| index.to_string().into()));
    Ok(set)
}

fn unless_set(set: &mut Vec<(&str, OsString)>, name: &'static str, value: impl FnOnce() -> Option<OsString>) {
    if std::env::var_os(name).is_none()
        && let Some(value) = value()
    {
        set.push((name, value));
    }
}

/// The list in `name`, with `first` in front.
fn before(name: &str, first: &Path) -> OsString {
    let mut list = first.as_os_str().to_owned();
    let rest = std::env::var_os(name).unwrap_or_default();
    // A program that we run may run `sfab run` again.
    let others = rest
        .as_bytes()
        .split(|&byte| byte == b':')
        .filter(|&other| !other.is_empty() && other != first.as_os_str().as_bytes());
    for other in others {
        list.push(":");
        list.push(OsStr::from_bytes(other));
    }
    list
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The first GID of an IPv4 address of the first device that has one.
fn gid_index(plans: &[DevicePlan]) -> Option<usize> {
    let interfaces = scalefabric_nic::netlink::interfaces().ok()?;
    plans
        .iter()
        .flat_map(|plan| &plan.ports)
        .find_map(|port| discovery::facts(port, &interfaces).addresses.iter().position(std::net::IpAddr::is_ipv4))
}

/// The command as one would type it.
fn show(command: &Command, mode: Mode) -> Result<(), Failure> {
    let mut text = String::new();
    let _ = writeln!(text, "# {mode:?}");
    let quoted = |word: &OsStr| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=,@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    for (name, value) in command.get_envs() {
        let _ = writeln!(text, "{}={} \\", name.display(), quoted(value.unwrap_or_default()));
    }
    let words: Vec<String> = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
    let _ = write!(text, "{}", words.join(" "));
    say!("{text}");
    Ok(())
}
