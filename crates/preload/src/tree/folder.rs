//! The folder that the tree stands in: where it is, who removes it, and how things are put there.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use super::content::{Entries, Entry};

/// The variable by which a program and its children share a tree; its value ends in the number of the process that removes
/// it.
const VARIABLE: &CStr = c"SCALEFABRIC_TREE";

/// The root's path, once it is known. It stays.
static ROOT: AtomicPtr<Vec<u8>> = AtomicPtr::new(std::ptr::null_mut());
/// The process that made a folder of its own; 0: none did.
static MAKER: AtomicI32 = AtomicI32::new(0);

/// The root of the tree; `None` if there is none, and none was announced.
pub fn root() -> Option<&'static [u8]> {
    // SAFETY: what is put there stays.
    if let Some(root) = unsafe { ROOT.load(Ordering::Acquire).as_ref() } {
        return Some(root);
    }
    let announced = announced()?;
    Some(remember(announced.as_os_str().as_bytes().to_vec()))
}

/// What `sfab run` announced.
fn announced() -> Option<PathBuf> {
    // SAFETY: the value is copied at once; a program that changes its environment in another thread at this moment breaks
    // libc's own rule.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()).as_ref() }?;
    // SAFETY: a C string.
    let bytes = unsafe { CStr::from_ptr(value) }.to_bytes();
    bytes.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(bytes)))
}

fn remember(root: Vec<u8>) -> &'static [u8] {
    let new = Box::into_raw(Box::new(root));
    let found = match ROOT.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(other) => {
            // SAFETY: it came from a Box just now, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    };
    // SAFETY: what is put there stays.
    unsafe { &*found }
}

/// Makes the folder if it is not there.
pub fn make() -> Option<()> {
    let own = std::process::id() as i32;
    let path = match root() {
        Some(root) => PathBuf::from(OsStr::from_bytes(root)),
        None => {
            let name = format!("scalefabric-{}-{own}", user());
            let path = bases().into_iter().map(|base| base.join(&name)).find(|path| folder(path).is_ok())?;
            remember(path.as_os_str().as_bytes().to_vec());
            if MAKER.swap(own, Ordering::Relaxed) == 0 {
                extern "C" fn at_exit() {
                    leave();
                }
                // SAFETY: a function that stays: this library is never unloaded.
                unsafe { libc::atexit(at_exit) };
            }
            path
        }
    };
    folder(&path).ok()
}

/// Makes a folder for this user alone, or finds one that is.
fn folder(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(path)?;
            // Somebody else's, or a link: it would be followed.
            if found.is_dir() && found.uid() == user() { Ok(()) } else { Err(error) }
        }
        other => other,
    }
}

/// Where a folder may stand, the best first: memory, and this user's.
fn bases() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    runtime.into_iter().chain([PathBuf::from("/dev/shm"), std::env::temp_dir()]).collect()
}

fn user() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// The end of a process: who made a folder removes it, and so does the program that `sfab run` became. It may be called in a
/// signal handler: nothing here allocates.
pub fn leave() {
    // SAFETY: it has no arguments. A child of `vfork` has a number of its own.
    let own = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
    let path: &[u8] = if MAKER.load(Ordering::Relaxed) == own {
        root().unwrap_or_default()
    } else {
        // SAFETY: as in `announced`.
        match unsafe { libc::getenv(VARIABLE.as_ptr()).as_ref() } {
            // SAFETY: a C string.
            Some(value) => unsafe { CStr::from_ptr(value) }.to_bytes(),
            None => return,
        }
    };
    let mut name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().rsplit(|&byte| byte == b'-');
    let is_own = name.next().and_then(number) == Some(own) && name.next().and_then(number) == Some(user() as i32);
    if !is_own || name.next() != Some(b"scalefabric") || path.len() >= PATH {
        return;
    }
    let mut text = [0_u8; PATH];
    text[..path.len()].copy_from_slice(path);
    // SAFETY: C strings on the stack; the kernel follows no link, and removes only what is this user's to remove.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, text.as_ptr(), flags) as i32;
        if fd >= 0 {
            clear(fd, 0);
            libc::syscall(libc::SYS_close, fd);
            libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, text.as_ptr(), libc::AT_REMOVEDIR);
        }
    }
}

/// Bytes of a path that is removed, at most.
const PATH: usize = 512;
/// Folders in each other, at most: the tree has ten.
const DEPTH: usize = 16;

fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Removes what is in a folder, by system calls alone.
///
/// # Safety
///
/// `fd` is a folder's descriptor.
unsafe fn clear(fd: i32, depth: usize) {
    /// Where the kernel puts an entry's length and name.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut buffer = [0_u8; 1024];
    loop {
        let mut removed = false;
        // SAFETY: by the contract; entries lie within the buffer, each with a name that ends with 0.
        unsafe {
            libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_SET);
            loop {
                let len = libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len());
                let Ok(len @ 1..) = usize::try_from(len) else { break };
                let mut at = 0;
                while at + NAME_AT < len {
                    let step = usize::from(u16::from_ne_bytes([buffer[at + LENGTH_AT], buffer[at + LENGTH_AT + 1]]));
                    let name = buffer.as_ptr().add(at + NAME_AT).cast::<libc::c_char>();
                    at += step.max(1);
                    if matches!(CStr::from_ptr(name).to_bytes(), b"." | b"..") {
                        continue;
                    }
                    if libc::syscall(libc::SYS_unlinkat, fd, name, 0) == 0 {
                        removed = true;
                    } else if depth < DEPTH {
                        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
                        let inner = libc::syscall(libc::SYS_openat, fd, name, flags) as i32;
                        if inner >= 0 {
                            clear(inner, depth + 1);
                            libc::syscall(libc::SYS_close, inner);
                            removed |= libc::syscall(libc::SYS_unlinkat, fd, name, libc::AT_REMOVEDIR) == 0;
                        }
                    }
                }
            }
        }
        // Removing moves what comes behind: another round, until there is nothing that can be removed.
        if !removed {
            return;
        }
    }
}

/// At the end of the process, however it came to `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn at_end() {
        leave();
    }
    at_end
};

fn place(path: &str) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(&[root()?, path.as_bytes()].concat())))
}

/// Puts an entry in its place; what is read there meanwhile is the old one or the new one, whole. Device and inode of a file.
pub fn put(path: &str, entry: &Entry) -> Option<(u64, u64)> {
    let at = place(path)?;
    if let Some(parent) = at.parent()
        && !parent.is_dir()
    {
        fs::create_dir_all(parent).ok()?;
    }
    match entry {
        Entry::Link(target) => {
            if fs::read_link(&at).is_ok_and(|found| found.as_os_str() == target.as_str()) {
                return None;
            }
            let _ = fs::remove_file(&at);
            symlink(target, &at).ok()?;
            None
        }
        // The children's processes know the file by its identity: an old one stays.
        Entry::Node(_) => {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).mode(0o666).open(&at).ok()?;
            let _ = fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o666));
            let found = file.metadata().ok()?;
            Some((found.dev(), found.ino()))
        }
        Entry::File(text) => {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let new = place(&format!("/.{}.{number}", std::process::id()))?;
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o444).open(&new).ok()?;
            let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, &at));
            if written.is_err() {
                let _ = fs::remove_file(&new);
            }
            None
        }
    }
}

/// Takes an entry away, and the folders that are empty then.
pub fn remove(path: &str) {
    let (Some(at), Some(top)) = (place(path), place("")) else { return };
    let _ = fs::remove_file(&at);
    let mut parent = at.parent();
    while let Some(folder) = parent.filter(|folder| *folder != top) {
        if fs::remove_dir(folder).is_err() {
            break;
        }
        parent = folder.parent();
    }
}

/// Devices that the machine really has, unless they are to be hidden: links to them.
pub fn real(into: &mut Entries) {
    if crate::real::hides_devices() {
        return;
    }
    for place in
        [c"/sys/class/infiniband", c"/sys/class/infiniband_verbs", c"/sys/class/infiniband_mad", c"/dev/infiniband"]
    {
        for name in crate::real::names(place) {
            let path = format!("{}/{name}", place.to_string_lossy());
            into.entry(path.clone()).or_insert(Entry::Link(path));
        }
    }
}
