//! How the kernel tells that memory goes away: a `userfaultfd` whose ranges are registered for write protection which nobody switches on, so that no
//! access is ever trapped, and whose events say what is unmapped, moved and discarded. The only place with its system calls, and so with unsafe code. It
//! knows ranges and events; what they mean for registrations stands in `core.rs`.
//!
//! What the kernel promises (fs/userfaultfd.c, Linux 5.15 and later, tried on 6.18): the call that takes memory away waits until its event has been
//! read; from before the change until then an ioctl such as UFFDIO_WRITEPROTECT answers EAGAIN.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{Builder, JoinHandle};

const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const UNREGISTER: libc::c_ulong = 0x8010_aa01;
const WRITE_PROTECT: libc::c_ulong = 0xc018_aa06;
/// On `/dev/userfaultfd`.
const NEW: libc::c_ulong = 0xaa00;
const USER_MODE_ONLY: libc::c_int = 1;

const FEATURE_WP: u64 = 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const MODE_WP: u64 = 2;

const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// `PROCMAP_QUERY` on `/proc/self/maps`, Linux 6.11.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const VMA_SHARED: u64 = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

#[repr(C)]
#[derive(Default)]
struct MapsQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// What happened to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Unmapped; it is gone.
    Unmapped(usize, usize),
    /// Moved from `.0` to `.1`, `.2` bytes; done.
    Moved(usize, usize, usize),
    /// About to be discarded by `madvise`: the thread that was told to goes on now and does it.
    Discarding(usize, usize),
    /// Something else, or a message that could not be understood.
    Unknown,
}

/// Whether all that the kernel has changed was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Yes.
    Yes,
    /// A change has begun whose event was not read yet.
    Changing,
    /// The watch does not work any more.
    Broken,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Watch {
    fd: OwnedFd,
    stop: OwnedFd,
}

impl Watch {
    /// Opens one, or says why not and what would help.
    pub fn open() -> Result<Self, String> {
        let fd = open_fd()?;
        let features = FEATURE_WP | FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;
        let mut api = [0xaa_u64, features, 0];
        // SAFETY: `struct uffdio_api` is three words, which the kernel reads and writes.
        if unsafe { libc::ioctl(fd.as_raw_fd(), API, api.as_mut_ptr()) } != 0 {
            return Err(format!(
                "userfaultfd without write protection or events on this kernel or processor: {}",
                io::Error::last_os_error()
            ));
        }
        // SAFETY: makes a descriptor.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if stop < 0 {
            return Err(format!("no eventfd: {}", io::Error::last_os_error()));
        }
        // SAFETY: a new descriptor that nobody else has.
        let stop = unsafe { OwnedFd::from_raw_fd(stop) };
        close_in_children(fd.as_raw_fd())?;
        Ok(Self { fd, stop })
    }

    /// Watches `start..end`, whole pages. Mappings that cannot be watched refuse.
    pub fn start(&self, start: usize, end: usize) -> io::Result<()> {
        let mut register = [start as u64, (end - start) as u64, MODE_WP, 0];
        // SAFETY: `struct uffdio_register` is four words.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), REGISTER, register.as_mut_ptr()) })
    }

    /// Watches `start..end` no longer. What is not watched any more, or something else by now, is no error.
    pub fn stop(&self, start: usize, end: usize) {
        let mut range = [start as u64, (end - start) as u64];
        // SAFETY: `struct uffdio_range` is two words.
        let _ = unsafe { libc::ioctl(self.fd.as_raw_fd(), UNREGISTER, range.as_mut_ptr()) };
    }

    /// Asks the kernel whether a change is under way. The range of the request is empty, so that it never does anything; a change is looked at before.
    #[inline(always)]
    pub fn settled(&self) -> Settled {
        match refusal(self.fd.as_raw_fd(), &[0; 3]) {
            libc::EINVAL => Settled::Yes,
            libc::EAGAIN => Settled::Changing,
            _ => Settled::Broken,
        }
    }

    /// Sleeps until there is an event; false when it was told to stop.
    pub fn wait(&self) -> bool {
        loop {
            let poll = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [poll(self.fd.as_raw_fd()), poll(self.stop.as_raw_fd())];
            // SAFETY: two entries.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
            if fds[1].revents != 0 || fds[0].revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
                return false;
            }
            if ready > 0 {
                return true;
            }
        }
    }

    /// Reads one event that is there; the call that made it goes on. Neither allocates nor frees.
    pub fn read(&self) -> Option<Event> {
        let mut message = Message::default();
        // SAFETY: the kernel writes one message.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut message).cast(), size_of::<Message>()) };
        if usize::try_from(got) != Ok(size_of::<Message>()) {
            return None;
        }
        let [a, b, c] = message.arguments.map(|argument| argument as usize);
        Some(match message.event {
            EVENT_UNMAP => Event::Unmapped(a, b),
            EVENT_REMAP => Event::Moved(a, b, c),
            EVENT_REMOVE => Event::Discarding(a, b),
            _ => Event::Unknown,
        })
    }

    /// Gives everything up: no call waits any more, and [`Self::settled`] says broken. The number stays taken, so that nobody else's descriptor is asked.
    pub fn give_up(&self) {
        // SAFETY: both are ours. The userfaultfd is closed with it, which wakes who waits.
        unsafe { libc::dup3(self.stop.as_raw_fd(), self.fd.as_raw_fd(), libc::O_CLOEXEC) };
    }

    /// Makes [`Self::wait`] return false.
    pub fn tell_to_stop(&self) {
        // SAFETY: writes 8 bytes.
        unsafe { libc::write(self.stop.as_raw_fd(), 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
    }
}

/// The errno with which UFFDIO_WRITEPROTECT refuses; 0 if it does not.
#[inline(always)]
fn refusal(fd: RawFd, protect: &[u64; 3]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    {
        let answer: i64;
        // SAFETY: `struct uffdio_writeprotect` is three words, which the kernel reads. WHY: it is asked at every hit, and the C library's way there and back, with
        // its errno in the thread's memory, costs as much as all the rest of a hit.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") libc::SYS_ioctl => answer,
                in("rdi") i64::from(fd),
                in("rsi") WRITE_PROTECT,
                in("rdx") protect.as_ptr(),
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        -answer as i32
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: `struct uffdio_writeprotect` is three words, which the kernel reads.
        match unsafe { libc::ioctl(fd, WRITE_PROTECT, protect.as_ptr()) } {
            0 => 0,
            _ => io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let own = self.fd.as_raw_fd();
        for slot in &INHERITED {
            let _ = slot.compare_exchange(own, -1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Descriptors that a child of fork must not keep: while one is open somewhere, calls of the parent wait for its events even after the parent closed it.
static INHERITED: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];

fn close_in_children(fd: RawFd) -> Result<(), String> {
    extern "C" fn in_child() {
        for slot in &INHERITED {
            let fd = slot.swap(-1, Ordering::Relaxed);
            if fd >= 0 {
                // SAFETY: the child's copy of a descriptor of ours. Nothing in the child uses or closes it: what owns it is leaked there.
                unsafe { libc::close(fd) };
            }
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only closes descriptors. Without memory for it, a child that keeps the descriptor is no worse than one of `clone`.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let is_free = |slot: &&AtomicI32| slot.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    match INHERITED.iter().find(is_free) {
        Some(_) => Ok(()),
        None => Err(format!("{} caches of this process watch memory already: share one", INHERITED.len())),
    }
}

fn open_fd() -> Result<OwnedFd, String> {
    // Before 5.15 a flag stood where a counter is now, and two changes at once looked like none.
    if kernel() < Some((5, 15)) {
        return Err(
            "the kernel is older than Linux 5.15, whose userfaultfd loses track of changes at the same time".into()
        );
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: makes a descriptor. Faults are never trapped here, so those of user mode are enough; that needs no privilege.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | USER_MODE_ONLY) };
    let refused = io::Error::last_os_error();
    let fd = if fd >= 0 {
        fd as RawFd
    } else {
        // A container may forbid the call and give the device.
        let device = File::open("/dev/userfaultfd").map_err(|error| {
            format!(
                "userfaultfd is refused ({refused}), and /dev/userfaultfd, too ({error}): allow the system call, or give access to the device"
            )
        })?;
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW, flags | USER_MODE_ONLY) };
        if fd < 0 {
            return Err(format!(
                "userfaultfd is refused ({refused}), and by its device ({})",
                io::Error::last_os_error()
            ));
        }
        fd
    };
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn kernel() -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// A mapping of this process.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// First byte.
    pub start: usize,
    /// First byte behind it.
    pub end: usize,
    /// Private anonymous memory: whoever changes it must be a call of this process which the kernel tells of. Files and shared memory can be truncated
    /// by calls that it does not tell of, also from other processes.
    pub is_anonymous: bool,
}

/// `/proc/self/maps`, to be asked what an address is: by a call since Linux 6.11, before that by reading all of it.
#[derive(Debug)]
pub struct Maps {
    file: File,
    has_call: bool,
}

impl Maps {
    /// Opens it.
    pub fn open() -> Result<Self, String> {
        let file = File::open("/proc/self/maps").map_err(|error| format!("no /proc/self/maps: {error}"))?;
        let mut maps = Self { file, has_call: true };
        let here = &raw const maps as usize;
        maps.has_call = maps.mapping(here).is_ok();
        match maps.mapping(here) {
            Ok(Some(_)) => Ok(maps),
            Ok(None) => Err("/proc/self/maps does not show the memory of this process".into()),
            Err(error) => Err(format!("/proc/self/maps: {error}")),
        }
    }

    /// The mapping at `at`, or the next one behind it.
    pub fn mapping(&self, at: usize) -> io::Result<Option<Mapping>> {
        if !self.has_call {
            let text = std::fs::read_to_string("/proc/self/maps")?;
            return Ok(text.lines().filter_map(mapping_of_line).find(|mapping| mapping.end > at));
        }
        let Some(query) = self.ask(at, None)? else { return Ok(None) };
        let is_nameless = query.inode == 0 && query.dev_major == 0 && query.dev_minor == 0;
        let is_private = query.vma_flags & VMA_SHARED == 0;
        Ok(Some(Mapping {
            start: query.start as usize,
            end: query.end as usize,
            is_anonymous: is_private && (is_nameless || query.page_size > 4096 && self.is_anonymous_huge(at)),
        }))
    }

    /// Calls `each` with the mappings of `start..end`; false if there is a hole or memory that is not anonymous, or if `each` says so.
    pub fn all_anonymous(&self, start: usize, end: usize, mut each: impl FnMut(Mapping) -> bool) -> bool {
        let mut at = start;
        while at < end {
            match self.mapping(at) {
                Ok(Some(mapping)) if mapping.start <= at && mapping.is_anonymous && each(mapping) => at = mapping.end,
                _ => return false,
            }
        }
        true
    }

    /// Private mappings of reserved huge pages have a file of their own in the kernel, which no descriptor leads to.
    fn is_anonymous_huge(&self, at: usize) -> bool {
        let mut name = [0_u8; 32];
        let asked = self.ask(at, Some(&mut name));
        asked.is_ok_and(|found| found.is_some()) && name.starts_with(b"/anon_hugepage (deleted)\0")
    }

    fn ask(&self, at: usize, name: Option<&mut [u8; 32]>) -> io::Result<Option<MapsQuery>> {
        let (name, name_size) =
            name.map_or((0, 0), |name| (name.as_mut_ptr().expose_provenance() as u64, name.len() as u32));
        let mut query = MapsQuery {
            size: size_of::<MapsQuery>() as u64,
            flags: COVERING_OR_NEXT,
            address: at as u64,
            name_size,
            name,
            ..MapsQuery::default()
        };
        // SAFETY: the kernel reads and writes the structure, and at most `name_size` bytes of the name.
        match check(unsafe { libc::ioctl(self.file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }) {
            Ok(()) => Ok(Some(query)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A line such as `7f00-7f80 rw-p 00000000 00:00 0 [heap]`.
fn mapping_of_line(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_private = words.next()?.ends_with('p');
    let is_nameless = words.nth(1)? == "00:00" && words.next()? == "0";
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        is_anonymous: is_private && (is_nameless || line.ends_with(" /anon_hugepage (deleted)")),
    })
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::gettid() as u32 }
}

/// Starts a thread in which no handler of the application ever runs: one that unmaps memory would wait for the very thread it runs in.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: sets are plain data, filled by the calls.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let thread = Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        thread
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_tells_anonymous_memory_from_files() {
        let is_anonymous = |line| mapping_of_line(line).unwrap().is_anonymous;
        assert!(is_anonymous("7f0000000000-7f0000021000 rw-p 00000000 00:00 0 "));
        assert!(is_anonymous("55d0a000-55d0c000 rw-p 00000000 00:00 0                  [heap]"));
        assert!(is_anonymous("7f00-7f80 rw-p 00000000 00:0f 1234                       /anon_hugepage (deleted)"));
        assert!(!is_anonymous("7f00-7f80 rw-s 00000000 00:01 1042                       /dev/zero (deleted)"));
        assert!(!is_anonymous("7f00-7f80 r--p 00000000 fe:00 1042                       /usr/lib/libc.so.6"));
        assert!(mapping_of_line("").is_none());
    }

    /// Both ways to ask say the same of every mapping of this process that stays.
    #[test]
    fn the_call_and_the_text_agree() {
        let Ok(called) = Maps::open() else { return };
        if !called.has_call {
            return println!("skipped: PROCMAP_QUERY needs Linux 6.11");
        }
        let read = Maps { file: File::open("/proc/self/maps").unwrap(), has_call: false };
        let local = 0_u8;
        for at in [&raw const local as usize, mapping_of_line as *const () as usize, INHERITED.as_ptr() as usize] {
            let [a, b] = [&called, &read].map(|maps| maps.mapping(at).unwrap().unwrap());
            assert_eq!(a.is_anonymous, b.is_anonymous, "{at:#x}");
            assert!(a.start <= at && at < a.end && b.start <= at && at < b.end);
        }
    }
}
