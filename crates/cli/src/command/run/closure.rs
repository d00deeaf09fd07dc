//! Which libraries a program loads at its start, and where the loader finds them: DT_RPATH, LD_LIBRARY_PATH, DT_RUNPATH,
//! the loader's cache, the usual folders (ld.so(8)). Good enough to tell how a program reaches libibverbs; the loader has
//! the last word.

use super::elf::{Elf, Kind, read};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

/// What was found out about a program.
#[derive(Debug, Default)]
pub struct Closure {
    /// Names that are needed, each with the file it was found in, or none.
    pub libraries: BTreeMap<String, Option<PathBuf>>,
    /// A folder named by an RPATH in which a `libibverbs.so` stands: the loader looks there before LD_LIBRARY_PATH.
    pub own_verbs: Option<PathBuf>,
}

impl Closure {
    /// True if a library of this stem (`libibverbs`) is needed.
    pub fn needs(&self, stem: &str) -> bool {
        self.libraries.keys().any(|name| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so")))
    }

    /// Libraries of this stem that are needed and were not found.
    pub fn is_missing(&self, stem: &str) -> bool {
        let of_stem = |name: &str| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so"));
        self.libraries.iter().any(|(name, found)| of_stem(name) && found.is_none())
    }
}

/// Follows the needs of a program.
pub fn follow(program: &Path, elf: Elf, library_path: &str) -> Closure {
    let cache = Cache::read(Path::new("/etc/ld.so.cache"));
    let mut closure = Closure::default();
    let mut open: VecDeque<(PathBuf, Elf)> = VecDeque::from([(program.to_path_buf(), elf)]);
    // An RPATH counts for what its library's dependencies need, too.
    let mut inherited: Vec<PathBuf> = Vec::new();
    while let Some((file, elf)) = open.pop_front() {
        let origin = file.parent().unwrap_or(Path::new("/"));
        let folders = |list: &str| -> Vec<PathBuf> {
            list.split(':').filter(|f| !f.is_empty()).map(|f| expand(f, origin)).collect()
        };
        let rpath = folders(elf.rpath.as_deref().unwrap_or(""));
        if closure.own_verbs.is_none() {
            closure.own_verbs =
                rpath.iter().find(|f| f.join("libibverbs.so.1").exists() || f.join("libibverbs.so").exists()).cloned();
        }
        let runpath = folders(elf.runpath.as_deref().unwrap_or(""));
        inherited.extend(rpath);
        for name in elf.needed {
            if closure.libraries.contains_key(&name) {
                continue;
            }
            let before = inherited.iter().cloned().chain(folders(library_path)).chain(runpath.iter().cloned());
            let found = if name.contains('/') {
                Some(PathBuf::from(&name)).filter(|path| path.exists())
            } else {
                before.map(|folder| folder.join(&name)).find(|path| path.exists()).or_else(|| cache.find(&name))
            };
            if let Some(path) = &found
                && let Ok(Kind::Elf(elf)) = read(path)
            {
                open.push_back((path.canonicalize().unwrap_or_else(|_| path.clone()), elf));
            }
            closure.libraries.insert(name, found);
        }
    }
    closure
}

fn expand(folder: &str, origin: &Path) -> PathBuf {
    let origin = origin.to_string_lossy();
    folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into()
}

/// The loader's cache (`glibc-ld.so.cache1.1`).
struct Cache(Vec<u8>);

impl Cache {
    fn read(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_default())
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        self.in_cache(name).filter(|path| path.exists()).or_else(|| {
            let machine = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };
            let usual = [
                format!("/lib/{machine}"),
                format!("/usr/lib/{machine}"),
                "/lib64".into(),
                "/usr/lib64".into(),
                "/lib".into(),
                "/usr/lib".into(),
            ];
            usual.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
        })
    }

    /// Entries of 24 bytes behind a head of 48: flags, where the name and the path begin. Of several the first for this
    /// machine counts.
    fn in_cache(&self, name: &str) -> Option<PathBuf> {
        const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
        /// Flags: libc 6, and the machine.
        const OWN: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };
        let start = self.0.windows(MAGIC.len()).position(|window| window == MAGIC)?;
        let bytes = &self.0[start..];
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let text = |at: u32| {
            let rest = bytes.get(at as usize..)?;
            std::str::from_utf8(&rest[..rest.iter().position(|&byte| byte == 0)?]).ok()
        };
        let entries = (0..number(20)? as usize).map(|index| 48 + 24 * index);
        entries
            .filter(|&at| number(at) == Some(OWN))
            .find(|&at| number(at + 4).and_then(text) == Some(name))
            .and_then(|at| number(at + 8).and_then(text))
            .map(PathBuf::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closure_of_this_test_has_libc_and_where_it_is() {
        let own = std::env::current_exe().unwrap();
        let Ok(Kind::Elf(elf)) = read(&own) else { panic!("not ELF") };
        let closure = follow(&own, elf, "");
        assert!(closure.needs("libc") && !closure.is_missing("libc"), "{closure:?}");
        assert!(!closure.needs("libib"), "a stem is a whole one");
        assert_eq!(closure.own_verbs, None);
    }
}
