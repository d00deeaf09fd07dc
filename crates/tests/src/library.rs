//! The folder of scripts, and playing all of them.

use std::path::PathBuf;

use scalefabric_verbs::OpKind;

use crate::engine_stage::EngineStage;
use crate::runner::{Evidence, Failure, play};
use crate::script::parse::parse;
use crate::script::{Fate, Script, Statement};
use crate::stage::Stage;
use crate::transport_stage::TransportStage;

/// A script of the folder.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name without folder and extension; unique.
    pub name: String,
    /// Its text.
    pub text: String,
    /// What it says.
    pub script: Script,
}

/// The stages there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StageName {
    /// The bare transport.
    Transport,
    /// The NIC's engine.
    Engine,
}

impl StageName {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Transport, Self::Engine];

    /// As scripts write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Engine => "engine",
        }
    }

    /// A new, empty one.
    pub fn make(self) -> Box<dyn Stage> {
        match self {
            Self::Transport => Box::new(TransportStage::default()),
            Self::Engine => Box::new(EngineStage::default()),
        }
    }

    /// Whether a script runs on it.
    pub const fn runs(self, script: &Script) -> bool {
        match self {
            Self::Transport => script.on_transport,
            Self::Engine => script.on_engine,
        }
    }
}

/// The folder of scripts.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

/// All scripts, by name. An error names file and line.
pub fn scripts() -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let mut folders = vec![folder()];
    while let Some(folder) = folders.pop() {
        let inside = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for file in inside {
            let path = file.map_err(|e| format!("{}: {e}", folder.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rdma") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                let script = parse(&name, &text).map_err(|e| format!("{}: {e}", path.display()))?;
                entries.push(Entry { name, text, script });
            }
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("two scripts are called {}", pair[0].name));
    }
    Ok(entries)
}

/// Whether a script asks for something that a requester can execute by itself, and leaves the packets alone: then it has to be true on the same-host path, too.
pub fn is_for_same_host(script: &Script) -> bool {
    let mut asks = false;
    for (_, statement) in &script.statements {
        match statement {
            Statement::Packet { fate, .. } if *fate != Fate::default() => return false,
            Statement::Inject { .. }
            | Statement::Ghost { .. }
            | Statement::Batch { .. }
            | Statement::Gone { .. }
            | Statement::Fail { .. } => return false,
            Statement::Post { kind, .. } => asks |= is_one_sided(*kind),
            _ => {}
        }
    }
    asks && script.on_engine
}

const fn is_one_sided(kind: OpKind) -> bool {
    use OpKind::{AtomicWrite, CompareSwap, FetchAdd, Flush, Read, Write};
    matches!(kind, Write | Read | CompareSwap | FetchAdd | AtomicWrite | Flush)
}

/// Plays one script on one stage.
pub fn play_on(entry: &Entry, stage: StageName) -> Result<Evidence, Box<Failure>> {
    play(&entry.script, stage.make().as_mut())
}
