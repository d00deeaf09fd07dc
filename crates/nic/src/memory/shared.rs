//! Memory for regions to come that neighbours map: a part of the process's file that is given out whole, at a multiple of 2 MiB, so that whoever asked may
//! have it in transparent pages, bind it to a node, or keep it from its children. The regions over it are registered as any memory of the application; that they
//! lie in the file is seen by their address.

use std::sync::Arc;

use scalefabric_verbs::{Errno, SharedMemory, VerbsError};

use super::file::OwnFile;
use crate::process::Home;

const PAGE: usize = 4096;

/// A part of the process's file.
#[derive(Debug)]
pub struct SharedPages {
    home: Home,
    file: Arc<OwnFile>,
    offset: usize,
    bytes: usize,
    at: usize,
}

impl SharedPages {
    /// Maps `length` bytes, rounded up to pages. `EOPNOTSUPP` without a file: requests to this process are packets then. `ENOMEM` without room in it.
    pub(super) fn new(file: Option<&Arc<OwnFile>>, length: usize) -> Result<Self, VerbsError> {
        let Some(file) = file else {
            let why = "neighbours map nothing of this process: it takes the wire path";
            return Err(VerbsError::misuse(Errno::EOPNOTSUPP, why));
        };
        let bytes = length.max(1).checked_next_multiple_of(PAGE);
        let Some((bytes, (offset, at))) = bytes.and_then(|bytes| Some((bytes, file.map_apart(bytes)?))) else {
            let message =
                format!("no {length} bytes of address space that neighbours map; check ulimit -v and ulimit -f");
            return Err(VerbsError::environment(Errno::ENOMEM, message));
        };
        Ok(Self { home: Home::here(), file: file.clone(), offset, bytes, at: at.expose_provenance() })
    }
}

impl SharedMemory for SharedPages {
    fn addr(&self) -> usize {
        self.at
    }

    fn length(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        if self.home.is_here() {
            self.file.unmap_apart(self.offset, self.bytes);
        }
    }
}
