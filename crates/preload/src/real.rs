//! The libraries that stand behind us: libc, whose functions ours hide, and the distribution's libibverbs.

use std::ffi::{CStr, c_void};

/// The next definition of a symbol after this object, in the program's search order; null if there is none.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: dlsym reads the name; RTLD_NEXT is resolved from this object, which the call stands in.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// libc's definition of a symbol that we hook: the next one, or libc's own where this object was not preloaded but came
/// behind it, as the drop-in's dependency. Calls from here then still end in our hooks, as they are bound within the object.
pub fn libc(name: &CStr) -> *mut c_void {
    let found = next(name);
    if !found.is_null() {
        return found;
    }
    // SAFETY: libc is in each process, so that opening it loads nothing; its handle is never given back, which costs nothing.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    }
}

/// A function of the distribution's libibverbs: the next definition after ours. In the place of that library may stand our
/// own drop-in, whose functions lead back here: it is none.
pub fn verbs(name: &CStr) -> *mut c_void {
    let found = next(name);
    if found.is_null() || is_dropin(found) { std::ptr::null_mut() } else { found }
}

/// The symbol by which a library says that it is the drop-in.
const MARK: &CStr = c"scalefabric_dropin";

fn is_dropin(function: *mut c_void) -> bool {
    // SAFETY: dladdr fills `info`; the file's name is that of a library that is loaded, so that opening it again loads
    // nothing, and closing it gives back one reference.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(function, &raw mut info) == 0 || info.dli_fname.is_null() {
            return false;
        }
        let library = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return false;
        }
        let is_marked = !libc::dlsym(library, MARK.as_ptr()).is_null();
        libc::dlclose(library);
        is_marked
    }
}

/// Names in a folder as the kernel has it: our own hooks would show the tree.
pub fn names(folder: &CStr) -> Vec<String> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a C string; the kernel answers with a descriptor or not.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, folder.as_ptr(), flags) };
    if fd < 0 {
        return Vec::new();
    }
    // By the descriptor's own path, which no hook leads elsewhere.
    let found = std::fs::read_dir(format!("/proc/self/fd/{fd}"));
    let names =
        found.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // SAFETY: the descriptor made above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    names
}

/// The first number that no real uverbs device has: the machine's own devices keep their names.
pub fn first_free_uverbs() -> u32 {
    let names = names(c"/sys/class/infiniband_verbs");
    let numbers = names.iter().filter_map(|name| name.strip_prefix("uverbs")?.parse::<u32>().ok());
    numbers.max().map_or(0, |highest| highest.saturating_add(1))
}

/// True if the machine has RDMA devices of its own, and they are not to be hidden (SCALEFABRIC_HIDE_REAL=1).
pub fn has_devices() -> bool {
    !hides_devices() && names(c"/sys/class/infiniband_verbs").iter().any(|name| name.starts_with("uverbs"))
}

/// True if the machine's own devices are to be hidden.
pub fn hides_devices() -> bool {
    std::env::var_os("SCALEFABRIC_HIDE_REAL").is_some_and(|value| value == "1")
}
