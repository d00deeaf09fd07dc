//! What a node or a process remembers of the control plane while it is away: addresses, policy, the highest fencing token. A small file, replaced whole,
//! so that a crash leaves the old one or the new one. Losing it loses nothing but the memory.

use crate::local::Policy;
use scalefabric_fabric::directory::{FencingToken, ServiceAddress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Addresses by service.
    pub services: BTreeMap<String, Vec<ServiceAddress>>,
    /// The policy; `None`: never heard of one.
    pub policy: Option<Policy>,
    /// Highest token of an order.
    pub token: FencingTokenOrNone,
    /// Where replicas of control were reached.
    pub replicas: Vec<String>,
}

/// The highest token seen, 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingTokenOrNone(pub u64);

impl FencingTokenOrNone {
    /// Whether an order may be carried out; if so its token counts from now on.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), FencingToken> {
        if token.0 < self.0 {
            return Err(FencingToken(self.0));
        }
        self.0 = token.0;
        Ok(())
    }
}

impl Memory {
    /// Reads it; empty if there is none, or if it cannot be read: then it is written anew, since nothing in it is needed.
    pub fn load(path: &Path) -> Self {
        let text = std::fs::read(path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Writes it into a file that other processes write, too: what they know and this one does not stays.
    pub fn store_with_others(mut self, path: &Path) -> std::io::Result<()> {
        let others = Self::load(path);
        self.token.0 = self.token.0.max(others.token.0);
        for (service, addresses) in others.services {
            self.services.entry(service).or_insert(addresses);
        }
        self.store(path)
    }

    /// Writes it, readable by its owner only.
    pub fn store(&self, path: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let written = (|| {
            let mut file =
                std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            std::fs::rename(&unfinished, path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_an_earlier_holder_is_refused() {
        let mut highest = FencingTokenOrNone::default();
        assert_eq!(highest.admit(FencingToken(5)), Ok(()));
        assert_eq!(highest.admit(FencingToken(5)), Ok(()));
        assert_eq!(highest.admit(FencingToken(4)), Err(FencingToken(5)));
        assert_eq!(highest.admit(FencingToken(6)), Ok(()));
    }

    #[test]
    fn a_memory_that_is_damaged_is_an_empty_one() {
        let path = std::env::temp_dir().join(format!("sfab-memory-{}", std::process::id()));
        let memory = Memory { token: FencingTokenOrNone(7), ..Memory::default() };
        memory.store(&path).expect("a file");
        assert_eq!(Memory::load(&path), memory);
        std::fs::write(&path, b"{\"token\": 7").expect("a file");
        assert_eq!(Memory::load(&path), Memory::default());
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(Memory::load(&path), Memory::default());
    }
}
