//! The page of capabilities: each object, opcode, operation, state transition, WC status and event, with the dialogues and
//! tests that prove it. Made from what really happened when the scripts were played, not from what they claim.
//!
//! Tests of other crates prove by a comment above them, `// proves: event PORT_ERR; object completion channel`; a comment
//! that names nothing of the page is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use scalefabric_verbs::event::EVENTS;
use scalefabric_verbs::operation::OPERATIONS;
use scalefabric_verbs::state::TRANSITIONS;
use scalefabric_verbs::work_completion::{Produced, STATUSES};
use scalefabric_wire::opcode::TABLE;

use crate::library::{StageName, play_on, scripts};

/// Objects of the verbs.
pub const OBJECTS: [&str; 18] = [
    "device context",
    "protection domain",
    "memory region",
    "memory window type 1",
    "memory window type 2",
    "completion queue",
    "completion channel",
    "RC queue pair",
    "UC queue pair",
    "UD queue pair",
    "XRC_SEND queue pair",
    "XRC_RECV queue pair",
    "shared receive queue",
    "XRC shared receive queue",
    "XRC domain",
    "address handle",
    "multicast attach",
    "asynchronous event queue",
];

/// One line of the page.
#[derive(Clone, Debug)]
struct Row {
    kind: &'static str,
    /// As evidence and claims name it.
    what: String,
    /// As the page prints it.
    title: String,
    /// Why there is no proof, if there can be none.
    not_here: Option<&'static str>,
}

/// Names of those who prove a thing: claimed first.
#[derive(Clone, Debug, Default)]
struct Proof {
    claimed: BTreeSet<String>,
    seen: BTreeSet<String>,
}

impl Proof {
    fn is_empty(&self) -> bool {
        self.claimed.is_empty() && self.seen.is_empty()
    }

    /// At most four names.
    fn names(&self) -> String {
        let all: Vec<&String> = self.claimed.iter().chain(self.seen.difference(&self.claimed)).collect();
        let mut text: Vec<String> = all.iter().take(4).map(|name| format!("`{name}`")).collect();
        if all.len() > 4 {
            text.push(format!("and {} more", all.len() - 4));
        }
        text.join(", ")
    }
}

/// The page, and what it lacks.
#[derive(Clone, Debug)]
pub struct Page {
    /// Markdown.
    pub text: String,
    /// Capabilities without a dialogue, or without a proof on the engine.
    pub gaps: Vec<String>,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |kind, what: String, title: String, not_here| rows.push(Row { kind, what, title, not_here });
    for object in OBJECTS {
        add("object", object.into(), object.into(), None);
    }
    for row in TABLE {
        add("opcode", row.name.into(), format!("{:#04x} {}", row.code, row.name), None);
    }
    for row in OPERATIONS {
        for qp_type in row.types {
            let what = format!("{qp_type} {}", row.name);
            add("operation", what.clone(), what, None);
        }
    }
    for row in TRANSITIONS {
        add("transition", row.to_string(), row.to_string(), None);
    }
    for row in STATUSES {
        let not_here = match row.produced {
            Produced::Yes => None,
            Produced::No(why) => Some(why),
        };
        add("wc", row.name.into(), format!("{} {}", row.status.to_raw(), row.name), not_here);
    }
    for row in EVENTS {
        let not_here = match row.produced {
            Produced::Yes => None,
            Produced::No(why) => Some(why),
        };
        add("event", row.name.into(), format!("{} {}", row.event_type.to_raw(), row.name), not_here);
    }
    rows
}

type Proofs = BTreeMap<(String, String, StageName), Proof>;

/// Plays everything and writes the page. An error is a script that fails, or a tag that names nothing.
pub fn page() -> Result<Page, String> {
    let rows = rows();
    let mut proofs = Proofs::new();
    for entry in scripts()? {
        for stage in StageName::ALL.into_iter().filter(|stage| stage.runs(&entry.script)) {
            let evidence = play_on(&entry, stage).map_err(|f| f.report(&entry.name, stage.as_str(), &entry.text))?;
            for (kind, what) in evidence.iter() {
                let proof = proofs.entry((kind.into(), what.into(), stage)).or_default();
                let claimed = entry.script.claims.iter().any(|claim| claim.kind == kind && claim.what == what);
                let names = if claimed { &mut proof.claimed } else { &mut proof.seen };
                names.insert(entry.name.clone());
            }
        }
    }
    for (folder, stage) in [
        ("crates/nic", StageName::Engine),
        ("crates/sim", StageName::Engine),
        ("crates/tests/tests", StageName::Engine),
        ("crates/transport", StageName::Transport),
    ] {
        for (kind, what, test) in tagged_tests(&root().join(folder))? {
            if !rows.iter().any(|row| row.kind == kind && row.what == what) {
                return Err(format!("the test {test} claims to prove '{kind} {what}', which the page does not have"));
            }
            proofs.entry((kind, what, stage)).or_default().claimed.insert(test);
        }
    }
    Ok(write(&rows, &proofs))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `// proves:` comments of Rust files, with the test that follows each.
fn tagged_tests(folder: &Path) -> Result<Vec<(String, String, String)>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(inside) = std::fs::read_dir(&folder) else { continue };
        for file in inside {
            let path = file.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let mut claims: Vec<(String, String)> = Vec::new();
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                if let Some(tags) = line.strip_prefix("// proves:") {
                    for tag in tags.split(';').map(str::trim).filter(|t| !t.is_empty()) {
                        let Some((kind, what)) = tag.split_once(' ') else {
                            return Err(format!("{}:{}: '{tag}' is no claim", path.display(), number + 1));
                        };
                        claims.push((kind.into(), what.into()));
                    }
                } else if let Some(rest) = line.strip_prefix("fn ") {
                    let test = rest.split('(').next().unwrap_or(rest).to_string();
                    found.extend(claims.drain(..).map(|(kind, what)| (kind, what, test.clone())));
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

const SECTIONS: [(&str, &str, &str); 6] = [
    ("object", "Objects", "What an application makes and destroys."),
    ("opcode", "Opcodes on the wire", "Every row of the opcode table, sent or received in a dialogue."),
    ("operation", "Operations by QP type", "What can be posted to a send queue."),
    (
        "transition",
        "State transitions",
        "Every transition of the table, with the right masks. Wrong masks: see the scripts.",
    ),
    ("wc", "Completion statuses", "All 24. What this transport cannot produce says why."),
    ("event", "Asynchronous events", "All 20. What RoCE does not have says why."),
];

fn write(rows: &[Row], proofs: &Proofs) -> Page {
    let mut text = String::from(
        "# Capabilities\n\n\
         Generated by `cargo xtask capabilities`; a test fails when it is stale. Each line names the dialogues\n\
         (`crates/tests/scripts/**/NAME.rdma`) in which the thing really happened and was expected, on the bare transport and on\n\
         the engine, and tests of the engine that are tagged with it. **gap** marks what nobody proves.\n",
    );
    let mut gaps = Vec::new();
    let none = Proof::default();
    for (kind, title, about) in SECTIONS {
        let _ = write!(text, "\n## {title}\n\n{about}\n\n| | transport | engine |\n|---|---|---|\n");
        for row in rows.iter().filter(|row| row.kind == kind) {
            if let Some(why) = row.not_here {
                let _ = writeln!(text, "| {} | not produced: {why} | |", row.title);
                continue;
            }
            let of = |stage| proofs.get(&(row.kind.to_string(), row.what.clone(), stage)).unwrap_or(&none);
            let (transport, engine) = (of(StageName::Transport), of(StageName::Engine));
            let engine_text = if engine.is_empty() {
                gaps.push(format!("{} {}", row.kind, row.what));
                "**gap**".to_string()
            } else {
                engine.names()
            };
            let transport_text = if transport.is_empty() { "the NIC's".to_string() } else { transport.names() };
            let _ = writeln!(text, "| {} | {transport_text} | {engine_text} |", row.title);
        }
    }
    Page { text, gaps }
}
