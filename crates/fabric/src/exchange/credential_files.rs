//! Credentials that follow their files: when a certificate is renewed on disk, handshakes to come use it, and nothing is restarted. Files that cannot be used
//! (half written, of another authority's key, for another name) leave everything as it was, and are looked at again. It opens no channel.

use crate::certificate::{Credentials, FILES};
use crate::error::FabricError;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Files are looked at with a handshake, at most so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What tells a file from its successor: inode, bytes, time of its last change.
type Stamp = Option<(u64, u64, i64, i64)>;

/// A folder with credentials, and which of its files are in use.
#[derive(Debug)]
pub(super) struct CredentialFiles {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    looked: Option<Instant>,
    used: [Stamp; 3],
    trouble: Option<FabricError>,
}

impl CredentialFiles {
    /// Reads them for the first time.
    pub fn open(folder: &Path) -> Result<(Self, Credentials), FabricError> {
        // The stamps first: files that change in between are read once more.
        let used = stamps(folder);
        let credentials = Credentials::load(folder)?;
        let state = State { looked: Some(Instant::now()), used, trouble: None };
        Ok((Self { folder: folder.to_owned(), state: Mutex::new(state) }, credentials))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the files, unless they were looked at a moment ago and `now` is false, and hands what changed to `take`. True: it was taken.
    pub fn follow(
        &self,
        now: bool,
        take: impl FnOnce(&Credentials) -> Result<(), FabricError>,
    ) -> Result<bool, FabricError> {
        let mut state = self.state();
        if !now && state.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return Ok(false);
        }
        state.looked = Some(Instant::now());
        let present = stamps(&self.folder);
        if present == state.used {
            state.trouble = None;
            return Ok(false);
        }
        let taken = Credentials::load(&self.folder).and_then(|credentials| take(&credentials));
        match taken {
            Ok(()) => {
                (state.used, state.trouble) = (present, None);
                Ok(true)
            }
            Err(error) => {
                let error = error.during(format!(
                    "the credentials in {} have changed and cannot be used; those of before still are",
                    self.folder.display()
                ));
                state.trouble = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Why the files that are there now are not in use.
    pub fn trouble(&self) -> Option<FabricError> {
        self.state().trouble.clone()
    }
}

fn stamps(folder: &Path) -> [Stamp; 3] {
    FILES.map(|name| {
        let metadata = std::fs::metadata(folder.join(name)).ok()?;
        Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
    })
}
