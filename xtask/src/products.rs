//! `cargo xtask build`: the binary `sfab`, and beside it the folder `scalefabric` with the libraries that bring unmodified
//! verbs programs onto the software NIC. rustc cannot give symbols of a shared library their version nodes, so crate
//! `preload` is a static library and `cc` links it here:
//!
//! | product | what it is |
//! |---|---|
//! | `libscalefabric-preload.so` | all of it: the engine, the functions of libibverbs, the hooks of libc |
//! | `dropin/libibverbs.so.1` | a thin library in the place of libibverbs: its functions jump to the first one |
//! | `dropin-rdmacm/librdmacm.so.1` | crate `rdmacm`, for machines without a librdmacm |
//! | `libscalefabric-audit.so` | leads those who ask for libibverbs to the drop-in, whatever their RPATH |
//!
//! Version scripts and jumps come from the tables `crates/ibv/abi/symbols.txt`, `crates/ibv/abi/rdmacm.txt` and
//! `crates/preload/abi/private.txt`.

use crate::process::{self, Outcome, cargo, output, root};
use clap::Args;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `build`.
#[derive(Args)]
pub struct Options {
    /// Build without optimisation, into target/debug.
    #[arg(long)]
    debug: bool,
}

/// What an alias of the engine begins with. The drop-in calls the engine by these names: by their own names it would find
/// itself.
const ALIAS: &str = "scalefabric_";

/// A symbol of the drop-in. By this the engine knows that what stands behind it is not the distribution's library.
const MARK: &str = "scalefabric_dropin";

/// Names that rustc gives its own symbols; no other symbol of the static library becomes local by itself.
const LOCAL: &str = "_ZN*; _R*; __rust*; rust_*; __rdl_*; __rg_*; anon.*;";

/// The command.
pub fn run(options: &Options) -> Outcome {
    build(options.debug)
}

/// Builds and links all of it.
pub fn build(debug: bool) -> Outcome {
    let mut build = cargo();
    build.args(["build", "--quiet"]);
    for package in ["cli", "preload-audit", "rdmacm"] {
        build.args(["--package", &format!("scalefabric-{package}")]);
    }
    if debug {
        process::run(build.args(["--package", "scalefabric-preload"]))?;
    } else {
        process::run(build.arg("--release"))?;
        // As a static library alone: rustc optimises across crates only where it makes no rlib beside it, and the data path
        // goes through four.
        let alone = ["rustc", "--quiet", "--release", "--package", "scalefabric-preload", "--lib"];
        process::run(cargo().args(alone).args(["--crate-type", "staticlib"]))?;
    }
    let profile = process::target_folder()?.join(if debug { "debug" } else { "release" });
    let tables = Tables::read(&root().join("crates"))?;
    Products { archive: profile.join("libscalefabric_preload.a"), folder: profile.join("scalefabric"), tables }
        .make(&profile)
}

/// The tables of symbols.
struct Tables {
    /// Public functions and their node, in the order of the nodes.
    public: Vec<(String, String)>,
    /// The numbers n of IBVERBS_PRIVATE_n.
    private_nodes: Vec<String>,
    /// Private names and what the drop-in answers.
    private: Vec<(String, String)>,
    /// Functions of librdmacm and their node, in the order of the nodes.
    rdmacm: Vec<(String, String)>,
    /// When they last changed.
    changed: std::time::SystemTime,
}

impl Tables {
    fn read(folder: &Path) -> Result<Self, String> {
        let mut changed = std::time::SystemTime::UNIX_EPOCH;
        let mut rows = |name: &str| -> Result<Vec<Vec<String>>, String> {
            let path = folder.join(name);
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            changed = changed.max(modified(&path));
            let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
            Ok(lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect())
        };
        let pair = |row: Vec<String>| match &row[..] {
            [first, second, ..] => Ok((first.clone(), second.clone())),
            _ => Err(format!("a table of symbols has a row with one word: {row:?}")),
        };
        let mut public = rows("ibv/abi/symbols.txt")?.into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        let mut rdmacm = rows("ibv/abi/rdmacm.txt")?.into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        for table in [&mut public, &mut rdmacm] {
            table.sort_by_key(|(_, node)| node.rsplit('.').next().and_then(|minor| minor.parse::<u32>().ok()));
        }
        let (nodes, private): (Vec<_>, Vec<_>) = rows("preload/abi/private.txt")?
            .into_iter()
            .partition(|row| row.first().is_some_and(|word| word == "nodes"));
        let private_nodes = nodes.into_iter().flat_map(|row| row.into_iter().skip(1)).collect();
        let private = private.into_iter().map(pair).collect::<Result<_, _>>()?;
        Ok(Self { public, private_nodes, private, rdmacm, changed })
    }

    /// The nodes IBVERBS_1.x, oldest first.
    fn nodes(&self) -> Vec<&str> {
        nodes(&self.public)
    }
}

/// The nodes of a table, oldest first.
fn nodes(table: &[(String, String)]) -> Vec<&str> {
    let mut nodes: Vec<&str> = Vec::new();
    for (_, node) in table {
        if nodes.last() != Some(&node.as_str()) {
            nodes.push(node);
        }
    }
    nodes
}

/// The version script of a table: each function in its node, `local` with the first.
fn script(table: &[(String, String)], local: &str) -> String {
    let mut script = String::new();
    let mut before = "";
    for node in nodes(table) {
        let _ = writeln!(script, "{node} {{\n  global:");
        for (name, _) in table.iter().filter(|(_, of)| of == node) {
            let _ = writeln!(script, "    {name};");
        }
        if before.is_empty() {
            let _ = writeln!(script, "  local: {local}");
        }
        let _ = writeln!(script, "}}{}{before};", if before.is_empty() { "" } else { " " });
        before = node;
    }
    script
}

struct Products {
    archive: PathBuf,
    folder: PathBuf,
    tables: Tables,
}

impl Products {
    fn make(&self, profile: &Path) -> Outcome {
        let parts = self.folder.join("parts");
        let dropin = self.folder.join("dropin");
        for folder in [&parts, &dropin] {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        let engine = self.folder.join("libscalefabric-preload.so");
        let thin = dropin.join("libibverbs.so.1");
        let own = std::env::current_exe().map_or(std::time::SystemTime::UNIX_EPOCH, |path| modified(&path));
        let newest = modified(&self.archive).max(self.tables.changed).max(own);
        if modified(&engine) < newest || modified(&thin) < newest {
            let defined = self.defined()?;
            let missing: Vec<&str> = self
                .tables
                .public
                .iter()
                .map(|(name, _)| name.as_str())
                .filter(|name| !defined.contains(*name))
                .collect();
            if !missing.is_empty() {
                println!("crates/preload/src/verbs does not define: {}", missing.join(" "));
            }
            self.engine(&parts, &engine, &defined)?;
            self.thin(&parts, &thin, &defined)?;
        }
        self.rdmacm(profile, &parts, newest)?;
        let plain = dropin.join("libibverbs.so");
        if fs::symlink_metadata(&plain).is_err() {
            std::os::unix::fs::symlink("libibverbs.so.1", &plain).map_err(|e| format!("{}: {e}", plain.display()))?;
        }
        let audit = self.folder.join("libscalefabric-audit.so");
        let built = profile.join("libscalefabric_audit.so");
        if modified(&audit) < modified(&built) {
            replace(&audit, |new| fs::copy(&built, new).map(drop).map_err(|e| format!("{}: {e}", built.display())))?;
        }
        Ok(())
    }

    /// Our own librdmacm: its functions call the engine, which must be there first.
    fn rdmacm(&self, profile: &Path, parts: &Path, newest: std::time::SystemTime) -> Outcome {
        let folder = self.folder.join("dropin-rdmacm");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let (archive, product) = (profile.join("libscalefabric_rdmacm.a"), folder.join("librdmacm.so.1"));
        if modified(&product) >= newest.max(modified(&archive)) {
            return Ok(());
        }
        let map = parts.join("rdmacm.map");
        write(&map, &script(&self.tables.rdmacm, "*;"))?;
        let mut link = cc();
        link.args(["-Wl,-soname,librdmacm.so.1", "-Wl,-rpath,$ORIGIN/..", "-Wl,--enable-new-dtags"]);
        link.arg(format!("-Wl,--version-script={}", map.display())).args(["-Wl,--no-undefined", "-Wl,--gc-sections"]);
        link.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
        link.arg(self.folder.join("libscalefabric-preload.so"));
        link.args(["-Wl,--as-needed", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"]);
        replace(&product, |new| process::run(link.arg("-o").arg(new)))
    }

    /// Functions that the static library defines. Not by `nm`: where it has a plugin for link-time optimisation, it looks at
    /// the bitcode beside the code and finds nothing.
    fn defined(&self) -> Result<BTreeSet<String>, String> {
        let text = output(Command::new("readelf").args(["--symbols", "--wide"]).arg(&self.archive))?;
        // Number, value, size, type, binding, visibility, section, name.
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let defined = rows.filter_map(|row| match row[..] {
            [_, _, _, "FUNC", "GLOBAL" | "WEAK", _, section, name] if section != "UND" => Some(name.to_owned()),
            _ => None,
        });
        Ok(defined.collect())
    }

    /// The library with everything in it. Hooks of libc stand in no node: an unversioned function satisfies a reference to
    /// any version.
    fn engine(&self, parts: &Path, product: &Path, defined: &BTreeSet<String>) -> Outcome {
        let path = parts.join("preload.map");
        write(&path, &script(&self.tables.public, LOCAL))?;
        let mut link = cc();
        link.arg("-Wl,-soname,libscalefabric-preload.so").arg(format!("-Wl,--version-script={}", path.display()));
        for name in self.called().filter(|name| defined.contains(*name)) {
            link.arg(format!("-Wl,--defsym={ALIAS}{name}={name}"));
        }
        link.arg("-Wl,--whole-archive").arg(&self.archive).arg("-Wl,--no-whole-archive");
        link.args(["-Wl,--gc-sections", "-Wl,--as-needed", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"]);
        replace(product, |new| process::run(link.arg("-o").arg(new)))
    }

    /// Names that the drop-in calls in the engine.
    fn called(&self) -> impl Iterator<Item = &str> {
        let private = self.tables.private.iter().filter(|(_, answer)| answer == "engine").map(|(name, _)| name);
        self.tables.public.iter().map(|(name, _)| name).chain(private).map(String::as_str)
    }

    /// The drop-in: one jump for each public function, and the answers of the private nodes.
    fn thin(&self, parts: &Path, product: &Path, defined: &BTreeSet<String>) -> Outcome {
        let mut text = String::from(MACROS);
        let mut script = String::new();
        let mut before = String::new();
        for node in self.tables.nodes() {
            let names = self.tables.public.iter().filter(|(_, of)| of == node).map(|(name, _)| name.as_str());
            let is_first = before.is_empty();
            let names: Vec<&str> = names.chain(is_first.then_some(MARK)).collect();
            let local = if is_first { "local: *; " } else { "" };
            let _ = writeln!(script, "{node} {{ global: {}; {local}}}{before};", names.join("; "));
            before = format!(" {node}");
        }
        for (name, node) in self.tables.public.iter().filter(|(name, _)| defined.contains(name)) {
            let _ = writeln!(text, "jump dropin_{name}, {ALIAS}{name}\n.symver dropin_{name}, {name}@@{node}");
        }
        for number in &self.tables.private_nodes {
            let node = format!("IBVERBS_PRIVATE_{number}");
            let names: Vec<&str> = self.tables.private.iter().map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(script, "{node} {{ global: verbs_register_driver_{number}; {}; }};", names.join("; "));
            let register = (format!("verbs_register_driver_{number}"), "zero".to_owned());
            for (name, answer) in self.tables.private.iter().chain([&register]) {
                let own = format!("dropin_{number}_{name}");
                match answer.as_str() {
                    "engine" if !defined.contains(name) => continue,
                    "engine" => drop(writeln!(text, "jump {own}, {ALIAS}{name}")),
                    "unsupported" | "null" | "minus" | "zero" | "data" => drop(writeln!(text, "{answer} {own}")),
                    other => return Err(format!("crates/preload/abi/private.txt: {name}: what is {other:?}?")),
                }
                let _ = writeln!(text, ".symver {own}, {name}@{node}");
            }
        }
        let first = self.tables.nodes()[0];
        let _ = writeln!(text, "data {MARK}_data\n.symver {MARK}_data, {MARK}@@{first}");
        text.push_str(".section .note.GNU-stack,\"\",%progbits\n");
        let (source, map) = (parts.join("dropin.s"), parts.join("dropin.map"));
        write(&source, &text)?;
        write(&map, &script)?;
        let mut link = cc();
        link.args(["-nostartfiles", "-nostdlib", "-Wl,-soname,libibverbs.so.1", "-Wl,-rpath,$ORIGIN/.."]);
        link.arg("-Wl,--enable-new-dtags").arg(format!("-Wl,--version-script={}", map.display())).arg(&source);
        // The engine must stay a dependency even where nothing refers to it yet.
        link.arg("-Wl,--no-as-needed").arg(self.folder.join("libscalefabric-preload.so")).arg("-lc");
        replace(product, |new| process::run(link.arg("-o").arg(new)))
    }
}

/// The answers of the drop-in as assembler macros. A jump keeps every register that holds an argument.
const MACROS: &str =
    if cfg!(target_arch = "aarch64") { include_str!("products/aarch64.s") } else { include_str!("products/x86_64.s") };

/// `cc`, told to make a shared library that is never unloaded: threads may run in it.
fn cc() -> Command {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-shared", "-fPIC", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,--hash-style=gnu"]);
    command
}

/// Makes a file beside `path` and puts it in its place: programs that have the old one mapped keep it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> Outcome) -> Outcome {
    let new = path.with_extension("new");
    make(&new)?;
    fs::rename(&new, path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// When a file changed last; long ago if it is not there.
fn modified(path: &Path) -> std::time::SystemTime {
    fs::metadata(path).and_then(|m| m.modified()).unwrap_or(std::time::SystemTime::UNIX_EPOCH)
}
