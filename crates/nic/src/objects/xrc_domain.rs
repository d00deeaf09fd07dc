//! XRC domains (annex A14): what ties XRC target QPs to XRC SRQs. A domain may be named by a file: every context of this
//! process that opens it through the same inode has the same domain. Another process that opens it has a domain of its
//! own: each side of a connection needs no more, and SRQs of other processes are out of reach of our target QPs anyhow.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_verbs::{Errno, QpType, Qpn, VerbsError, XrcDomain, XrcdInit};

use super::Alive;
use super::queue_pair::XrcTarget;
use crate::engine::drive::Core;
use crate::process::Own;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Inode(u64, u64);

impl Inode {
    fn of(fd: i32) -> Result<Self, VerbsError> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: fstat fills the whole struct or fails.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return Err(VerbsError::misuse(Errno::EBADF, format!("descriptor {fd} of the XRC domain's file: {error}")));
        }
        // SAFETY: filled.
        let stat = unsafe { stat.assume_init() };
        Ok(Self(stat.st_dev, stat.st_ino))
    }
}

/// Domains of files.
type Files = HashMap<Inode, Arc<Xrcd>>;

/// What a device knows of XRC by name: domains of files, and target QPs by their numbers.
#[derive(Debug)]
pub(crate) struct XrcDirectory {
    files: Own<Mutex<Files>>,
    targets: Own<Mutex<HashMap<Qpn, Arc<XrcTarget>>>>,
}

impl XrcDirectory {
    pub(crate) fn new() -> Self {
        let (files, targets) = (Mutex::new(HashMap::new()), Mutex::new(HashMap::new()));
        Self { files: Own::new(files), targets: Own::new(targets) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Target QPs that can be opened by their numbers.
    pub(crate) fn targets(&self) -> MutexGuard<'_, HashMap<Qpn, Arc<XrcTarget>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What QPs and SRQs of a domain hold.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) id: u32,
    users: AtomicU32,
    /// Open handles; the domain ends with the last one.
    handles: AtomicU32,
    file: Option<Inode>,
}

/// An XRC domain.
#[derive(Debug)]
pub struct XrcdObject {
    pub(crate) core: Arc<Core>,
    pub(crate) xrcd: Arc<Xrcd>,
    alive: Alive,
}

impl XrcdObject {
    pub(crate) fn new(core: &Arc<Core>, init: &XrcdInit) -> Result<Self, VerbsError> {
        core.home().check("device")?;
        core.config().rules.check_type(QpType::XrcRecv)?;
        let registry = core.registry();
        let xrcd = match init.fd {
            None => Arc::new(Xrcd::new(registry.xrcd_number(), None)),
            Some(fd) => {
                let inode = Inode::of(fd)?;
                let mut files = registry.xrc.files();
                match files.get(&inode) {
                    // What Linux's uverbs answers in these two cases.
                    Some(_) if init.create && init.exclusive => {
                        return Err(VerbsError::invalid(
                            "the XRC domain of this file is open already, and O_EXCL was given",
                        ));
                    }
                    None if !init.create => {
                        return Err(VerbsError::misuse(
                            Errno::EAGAIN,
                            "nobody has opened the XRC domain of this file yet, and O_CREAT was not given",
                        ));
                    }
                    Some(xrcd) => {
                        xrcd.handles.fetch_add(1, Ordering::AcqRel);
                        xrcd.clone()
                    }
                    None => {
                        let xrcd = Arc::new(Xrcd::new(registry.xrcd_number(), Some(inode)));
                        files.insert(inode, xrcd.clone());
                        xrcd
                    }
                }
            }
        };
        Ok(Self { core: core.clone(), xrcd, alive: Alive::new() })
    }

    /// Begins a use by a QP or an SRQ.
    pub(crate) fn enter(&self) -> Result<XrcdUse, VerbsError> {
        self.alive.check("XRC domain")?;
        self.xrcd.users.fetch_add(1, Ordering::AcqRel);
        Ok(XrcdUse(self.xrcd.clone()))
    }

    /// Closes this handle; with `refuse`, not the last one while the domain is used.
    fn close(&self, refuse: bool) -> Result<(), VerbsError> {
        // Under the lock under which handles come.
        let mut files = self.core.registry().xrc.files();
        let users = self.xrcd.users.load(Ordering::Acquire);
        let last = self.xrcd.handles.load(Ordering::Acquire) == 1;
        if refuse && last && users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the XRC domain is used by {users} SRQs or target QPs: destroy them first"),
            ));
        }
        if self.alive.end() {
            self.xrcd.handles.fetch_sub(1, Ordering::AcqRel);
            if let (true, Some(inode)) = (last, &self.xrcd.file) {
                files.remove(inode);
            }
        }
        Ok(())
    }
}

impl Xrcd {
    fn new(id: u32, file: Option<Inode>) -> Self {
        Self { id, users: AtomicU32::new(0), handles: AtomicU32::new(1), file }
    }
}

impl XrcDomain for XrcdObject {
    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        self.alive.check("XRC domain")?;
        self.close(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for XrcdObject {
    fn drop(&mut self) {
        if self.alive.is() {
            let _ = self.close(false);
        }
    }
}

/// A use of an XRC domain, for as long as it is held.
#[derive(Debug)]
pub(crate) struct XrcdUse(pub(crate) Arc<Xrcd>);

impl Drop for XrcdUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
