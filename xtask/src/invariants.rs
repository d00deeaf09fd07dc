//! The invariants of ARCHITECTURE.md that can be seen in the text of the source. Each rule is a row: what it looks for,
//! where that may stand, and the reason. Rules that the compiler can keep (`forbid(unsafe_code)`) are only checked to be
//! switched on.

use crate::process::Outcome;
use crate::source::{self, SourceFile};
use crate::wrappers;

/// Lines a file may have before somebody should look for the two things inside it.
const LONG_FILE_LINES: usize = 900;

/// Attributes that must stand in a crate's `lib.rs`.
const ATTRIBUTES: &[(&str, &[&str])] = &[
    ("crates/wire/src/lib.rs", &["#![no_std]", "#![forbid(unsafe_code)]"]),
    ("crates/verbs/src/lib.rs", &["#![no_std]", "#![deny(unsafe_code)]"]),
    ("crates/transport/src/lib.rs", &["#![no_std]", "#![forbid(unsafe_code)]"]),
];

/// File names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "manager"];

/// A thing that may stand only in some places.
struct Fence {
    /// Name, for the message.
    rule: &'static str,
    /// Where the rule looks.
    within: &'static [&'static str],
    /// Code that falls under the rule.
    needles: &'static [&'static str],
    /// Files and folders in which it may stand all the same.
    allowed: &'static [&'static str],
    /// Why there is a rule.
    reason: &'static str,
}

const FENCES: &[Fence] = &[
    Fence {
        rule: "unsafe code",
        within: &["crates/", "xtask/", "examples/"],
        needles: &["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"],
        allowed: &[
            "crates/verbs/src/",
            "crates/nic/src/memory/",
            "crates/nic/src/port/",
            "crates/nic/src/ring/",
            "crates/nic/src/completion/",
            "crates/nic/src/share/",
            "crates/nic/src/objects/",
            "crates/nic/src/clock.rs",
            "crates/nic/src/netlink.rs",
            "crates/nic/src/worker.rs",
            "crates/nic/src/process.rs",
            "crates/nic/src/provider.rs",
            "crates/nic/src/post.rs",
            "crates/nic/examples/scale/",
            "crates/nic/tests/",
            "crates/nic/examples/",
            "crates/cli/src/bench/datagram.rs",
            "crates/cli/src/perf/heap.rs",
            "crates/fabric/src/fork.rs",
            "crates/fabric/src/pool/arena.rs",
            "crates/fabric/src/cache/region.rs",
            "crates/fabric/src/cache/watch.rs",
            "crates/fabric/src/guard/",
            "crates/ibv/",
            "crates/cli/src/command/heap.rs",
            "crates/cli/src/command/run/program.rs",
            "crates/fabric/src/endpoint/descriptor.rs",
            "crates/fabric/src/endpoint/tests/fake.rs",
            "crates/preload/",
            "crates/rdmacm/",
            "crates/sim/src/station.rs",
            "crates/sim/src/switch/tun.rs",
            "crates/sim/tests/no_allocation.rs",
            "crates/tests/",
        ],
        reason: "unsafe code lives in few named places, so that it can be read whole",
    },
    Fence {
        rule: "raw access to memory",
        within: &["crates/nic/src/"],
        needles: &[
            "copy_nonoverlapping",
            "read_volatile",
            "write_volatile",
            "from_raw_parts",
            "ptr::read",
            "ptr::write",
        ],
        allowed: &[
            "crates/nic/src/memory/",
            "crates/nic/src/share/",
            "crates/nic/src/port/",
            "crates/nic/src/netlink.rs",
        ],
        reason: "registered memory is shared with peers: it is touched in nic/src/memory and nowhere else",
    },
    Fence {
        rule: "system calls in the engine",
        within: &[
            "crates/nic/src/engine",
            "crates/nic/src/ingress",
            "crates/nic/src/egress",
            "crates/nic/src/schedule",
            "crates/nic/src/post",
        ],
        needles: &[
            "libc::",
            "UdpSocket",
            "TcpStream",
            "TcpListener",
            "UnixStream",
            "std::fs",
            "std::thread",
            "thread::sleep",
            "Instant::now",
            "SystemTime",
        ],
        allowed: &[],
        reason: "Engine::turn makes no system call: ports and clock are handed in, so the simulator runs what ships",
    },
    Fence {
        rule: "pointers in the protocol",
        within: &["crates/wire/src/", "crates/transport/src/"],
        needles: &["*const ", "*mut ", "std::time", "Instant"],
        allowed: &[],
        reason: "the protocol sees neither pointers nor clocks; memory and time are handed in",
    },
];

/// Runs every rule over every file.
pub fn check() -> Outcome {
    let files = source::files()?;
    let mut wrong = Vec::new();
    for (path, attributes) in ATTRIBUTES {
        let text = files.iter().find(|f| f.path == *path).map_or("", |f| f.text.as_str());
        for attribute in *attributes {
            if !text.lines().any(|line| line.trim() == *attribute) {
                wrong.push(format!("{path}: `{attribute}` is missing"));
            }
        }
    }
    for file in &files {
        wrong.extend(names(file));
        wrong.extend(places_of_this_machine(file));
        if file.is_rust() {
            wrong.extend(opening(file));
            wrong.extend(fences(file));
            let lines = file.text.lines().count();
            if lines > LONG_FILE_LINES {
                println!("    note: {} has {lines} lines: which two things are inside it?", file.path);
            }
        }
    }
    wrong.extend(wrappers::left_out(&files));
    if wrong.is_empty() { Ok(()) } else { Err(format!("\n      {}", wrong.join("\n      "))) }
}

fn names(file: &SourceFile) -> Option<String> {
    let mut parts = file.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let empty = parts.rfind(|part| EMPTY_NAMES.contains(part))?;
    Some(format!("{}: a file or folder is called by the thing inside, not `{empty}`", file.path))
}

fn opening(file: &SourceFile) -> Option<String> {
    let first = file.text.lines().next().unwrap_or_default();
    (!first.starts_with("//!")).then(|| {
        format!("{}:1: opens without a `//!` paragraph that says what it is and what it may not do", file.path)
    })
}

/// A path of the machine it was written on means nothing to a reader.
fn places_of_this_machine(file: &SourceFile) -> Vec<String> {
    const PLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut wrong = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if PLACES.iter().any(|place| line.contains(place)) {
            wrong.push(format!("{}:{}: a path of one machine", file.path, index + 1));
        }
    }
    wrong
}

fn fences(file: &SourceFile) -> Vec<String> {
    let starts = |places: &[&str]| places.iter().any(|place| file.path.starts_with(place));
    let mut wrong = Vec::new();
    for fence in FENCES {
        if !starts(fence.within) || starts(fence.allowed) {
            continue;
        }
        for (number, line) in file.code() {
            if let Some(needle) = fence.needles.iter().find(|needle| line.contains(**needle)) {
                let (path, needle) = (&file.path, needle.trim());
                wrong.push(format!("{path}:{number}: `{needle}`: {} ({})", fence.rule, fence.reason));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_system_call_in_the_engine_is_found() {
        let bad = file("crates/nic/src/engine.rs", "//! x\nlet t = std::time::Instant::now();\n");
        assert_eq!(fences(&bad).len(), 1);
        assert!(fences(&file("crates/nic/src/progress/worker.rs", &bad.text)).is_empty());
    }

    #[test]
    fn unsafe_code_outside_its_places_is_found() {
        let text = "//! x\n// unsafe { in a comment }\nlet x = unsafe { y() };\n";
        assert_eq!(fences(&file("crates/sim/src/lib.rs", text)).len(), 1);
        assert!(fences(&file("crates/nic/src/memory/region.rs", text)).is_empty());
    }

    #[test]
    fn a_file_that_says_nothing_about_itself_is_found() {
        assert!(opening(&file("a.rs", "fn a() {}\n")).is_some());
        assert!(opening(&file("a.rs", "//! A.\n")).is_none());
        assert!(names(&file("crates/nic/src/util.rs", "")).is_some());
        assert!(names(&file("crates/nic/src/utility_of_rings.rs", "")).is_none());
    }
}
