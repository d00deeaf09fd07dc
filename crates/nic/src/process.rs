//! What becomes of the NIC when its process forks, and how it ends.
//!
//! **A forked child has nothing of its parent's NIC.** The worker does not exist in it, the engine may have been copied in the
//! middle of a step, and every descriptor is the parent's as well. So the child never touches what it inherited: a [`Home`]
//! tells things of this process from inherited ones, verbs on those fail with ENODEV (destroying one succeeds and does nothing),
//! and what other threads may have been changing is never dropped ([`Own`]). The child may open the device for itself and is
//! then a member with a slot of its own. What the parent has is untouched: its memory stays registered and its own writes go
//! where its addresses lead, copied pages included, since the NIC uses the process's addresses and pins nothing.
//!
//! **No lock is held across a fork** but for the moment in which a descriptor is made: a fork waits for it, so that every
//! descriptor of ours is known when the child begins. There each is replaced by an eventfd that nobody writes, under the same
//! number: the death of the parent is noticed, its addresses and its meeting point are free when it ends, and a child that polls
//! the number of a completion channel takes nothing away. (With a NIC of hardware, both would read one and the same queue.) A
//! copy that the application made of such a number stays shared.
//!
//! **A program may close what it did not open.** One that becomes a daemon closes every number there is. [`is_ours`] tells
//! ours from its own, for those who can keep them (the hooks of `sfab run` do). A number that the program takes for itself, by
//! `dup2`, is its own from then on ([`taken`]): the NIC loses a descriptor, and never closes the program's.
//!
//! `vfork`, `posix_spawn` and `_Fork` run none of this: their children may only call `exec`, which closes all descriptors.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use scalefabric_verbs::{Errno, VerbsError};

/// Forks between the first process that used the NIC and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// False in a forked child.
    #[inline]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }

    /// The error that a verb gives in a forked child.
    #[inline]
    pub fn check(self, what: &str) -> Result<(), VerbsError> {
        if self.is_here() { Ok(()) } else { Err(inherited(what)) }
    }
}

#[cold]
fn inherited(what: &str) -> VerbsError {
    VerbsError::misuse(
        Errno::ENODEV,
        format!(
            "this {what} belongs to the parent process, which made it before the fork: a child opens the device for itself"
        ),
    )
}

/// A value that only the process which made it drops. A forked child leaks it: a thread that the child does not have may have
/// been changing it, and what it does when it ends would be done to the parent.
pub struct Own<T> {
    home: Home,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    /// Of this process.
    pub fn new(value: T) -> Self {
        Self { home: Home::here(), value: ManuallyDrop::new(value) }
    }
}

impl<T> Deref for Own<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.home.is_here() {
            // SAFETY: dropped here and nowhere else, and nobody sees the value afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A descriptor of the NIC. A forked child lets go of it, and never closes what has its number by then; nor does this process
/// once the program has taken the number.
#[derive(Debug)]
pub struct Descriptor(Own<Registered>);

/// Its number stands among ours. Not an `OwnedFd`, which aborts where somebody else has closed it.
#[derive(Debug)]
struct Registered(RawFd);

impl Drop for Registered {
    fn drop(&mut self) {
        // Before the number is free for others.
        if note(self.0, false) {
            // SAFETY: it was made for this value, and the program has not taken its number.
            unsafe { libc::close(self.0) };
        }
    }
}

impl Descriptor {
    /// The descriptor that a system call gives, or the error that it left.
    pub fn make(call: impl FnOnce() -> RawFd) -> io::Result<Self> {
        let _making = Making::begin();
        let fd = call();
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made it, and nobody else knows it.
        Ok(Self::keep(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes one that exists. Between a [`Making`]'s begin and end, or a fork in between leaves it to the child.
    pub fn keep(fd: OwnedFd) -> Self {
        let fd = fd.into_raw_fd();
        note(fd, true);
        Self(Own::new(Registered(fd)))
    }

    /// Another descriptor of the same thing.
    pub fn try_clone(&self) -> io::Result<Self> {
        let _making = Making::begin();
        Ok(Self::keep(self.as_fd().try_clone_to_owned()?))
    }
}

impl Descriptor {
    /// True once the program has put something of its own in its place: there is nothing to talk to any more.
    pub fn is_taken(&self) -> bool {
        self.0.home.is_here() && (self.0.0 as usize) < NUMBERS && !is_ours(self.0.0)
    }
}

impl AsRawFd for Descriptor {
    /// Its number, or -1 once the program has taken it: what was meant for ours must not reach the program's.
    fn as_raw_fd(&self) -> RawFd {
        if self.is_taken() { -1 } else { self.0.0 }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it stays open as long as this value lives, unless the program closes what is not its own: then it is a
        // number that is wrong, or another file's, as for any library.
        unsafe { BorrowedFd::borrow_raw(self.0.0) }
    }
}

impl io::Write for &Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the bytes are there.
        let written = unsafe { libc::write(self.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Numbers that are looked at in a child; the usual limit of a process is far below. A descriptor beyond stays open in the child.
const NUMBERS: usize = 1 << 20;
/// Our descriptors, a bit each. Pages that are never touched cost nothing.
static OURS: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];
/// Words of it that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether it stood there before.
fn note(fd: RawFd, ours: bool) -> bool {
    let (word, bit) = (fd as usize / 64, 1u64 << (fd as usize % 64));
    let Some(place) = OURS.get(word) else { return true };
    let before = if ours {
        watch_forks();
        USED.fetch_max(word + 1, Ordering::AcqRel);
        place.fetch_or(bit, Ordering::AcqRel)
    } else {
        place.fetch_and(!bit, Ordering::AcqRel)
    };
    before & bit != 0
}

/// Whether this number is a descriptor of the NIC. Where there is no NIC it costs a load and a branch.
#[inline]
pub fn is_ours(fd: RawFd) -> bool {
    let word = fd as usize / 64;
    word < USED.load(Ordering::Relaxed) && OURS[word].load(Ordering::Relaxed) & (1 << (fd as usize % 64)) != 0
}

/// A number beyond all of ours.
pub fn end_of_ours() -> RawFd {
    (USED.load(Ordering::Relaxed) * 64) as RawFd
}

/// The program has put something of its own in the place of this number. A child of `vfork` has descriptors of its own but
/// not memory: what it does there changes nothing here.
pub fn taken(fd: RawFd) {
    if is_ours(fd) && OWNER.load(Ordering::Relaxed) == number() {
        note(fd, false);
    }
}

/// The process whose descriptors stand in the table; 0 before the first.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The number of this process, asked of the kernel.
fn number() -> i32 {
    // SAFETY: it has no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

/// Threads that make a descriptor (lower half) and threads that fork (upper half).
static MAKING: AtomicU32 = AtomicU32::new(0);
const FORKING: u32 = 1 << 16;

/// While it lives no fork happens: for steps of a few microseconds that never block.
#[derive(Debug)]
pub struct Making(Home);

impl Making {
    /// Waits for forks that are under way.
    pub fn begin() -> Self {
        loop {
            let now = MAKING.load(Ordering::Acquire);
            if now < FORKING && MAKING.compare_exchange_weak(now, now + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                return Self(Home::here());
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.0.is_here() {
            MAKING.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Something that is done once in a program, such as the registering of handlers. A child that is forked while another thread is at it does not wait
/// for that thread, which it does not have, as with `std::sync::Once`: it does the thing itself, so that there it may be done twice.
#[derive(Debug)]
pub struct DoneOnce(AtomicI32);

impl DoneOnce {
    const DONE: i32 = i32::MAX;

    /// Not done yet.
    pub const fn new() -> Self {
        Self(AtomicI32::new(0))
    }

    /// Does it, or waits until another thread of this process has.
    #[inline]
    pub fn once(&self, register: impl FnOnce()) {
        if self.0.load(Ordering::Acquire) != Self::DONE {
            self.slowly(register);
        }
    }

    #[cold]
    fn slowly(&self, register: impl FnOnce()) {
        // Who is at it, by the number of its process.
        let ours = number();
        loop {
            match self.0.load(Ordering::Acquire) {
                Self::DONE => return,
                other if other == ours => std::thread::yield_now(),
                other => {
                    if self.0.compare_exchange(other, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        register();
                        return self.0.store(Self::DONE, Ordering::Release);
                    }
                }
            }
        }
    }
}

impl Default for DoneOnce {
    fn default() -> Self {
        Self::new()
    }
}

/// Registers the fork handlers; the first time only. They may stand twice in a child: each undoes what it did.
fn watch_forks() {
    static WATCHED: DoneOnce = DoneOnce::new();
    // SAFETY: three functions that live as long as the program.
    WATCHED.once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(child_handler));
        OWNER.store(number(), Ordering::Relaxed);
    });
}

extern "C" fn before_fork() {
    MAKING.fetch_add(FORKING, Ordering::AcqRel);
    while !MAKING.load(Ordering::Acquire).is_multiple_of(FORKING) {
        std::thread::yield_now();
    }
}

extern "C" fn after_fork_in_parent() {
    MAKING.fetch_sub(FORKING, Ordering::AcqRel);
}

extern "C" fn child_handler() {
    after_fork_in_child();
}

/// The process ends: from now on nothing is opened.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Acknowledges what has come, sends what is due, ends the workers and gives the slots back, all of it within some 60 ms a
/// device. `exit` calls it by itself once a device was opened; whoever ends by `_exit` may call it before. Other threads may
/// go on with verbs: nothing leaves and nothing arrives any more, and nothing can be opened. A process that dies by a signal does none of this:
/// its peers see what they see when a machine fails.
pub fn at_exit() {
    ENDING.store(true, Ordering::Release);
    crate::provider::end_all();
}

extern "C" fn exit_handler() {
    at_exit();
}

/// Fails once the process has begun to end. Otherwise makes sure that it will end in order.
pub(crate) fn check_not_ending() -> Result<(), VerbsError> {
    static ORDERLY: DoneOnce = DoneOnce::new();
    // SAFETY: a function that lives as long as the program, and may be called twice.
    ORDERLY.once(|| unsafe {
        libc::atexit(exit_handler);
    });
    if ENDING.load(Ordering::Acquire) {
        return Err(VerbsError::environment(Errno::ENODEV, "the process is ending: no device can be opened any more"));
    }
    Ok(())
}

/// Makes this process forget what it has inherited. `fork` does it by itself; a program that makes a child by the bare system
/// call and goes on in it calls this first. Async-signal-safe. In a process that did not just begin it takes the NIC away.
pub fn after_fork_in_child() {
    MAKING.store(0, Ordering::Release);
    FORKS.fetch_add(1, Ordering::AcqRel);
    OWNER.store(number(), Ordering::Relaxed);
    crate::provider::forget_all();
    // SAFETY: plain system calls on numbers of ours, which nobody closes any more.
    unsafe {
        let silent = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        for (word, place) in OURS.iter().enumerate().take(USED.load(Ordering::Acquire)) {
            let mut bits = place.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let fd = (word * 64) as RawFd + bits.trailing_zeros() as RawFd;
                bits &= bits - 1;
                if silent < 0 {
                    libc::close(fd);
                } else {
                    libc::dup3(silent, fd, libc::O_CLOEXEC);
                }
            }
        }
        if silent >= 0 {
            libc::close(silent);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_forked_while_another_thread_registers_registers_by_itself() {
        static ONCE: DoneOnce = DoneOnce::new();
        static IS_AT_IT: AtomicBool = AtomicBool::new(false);
        static MAY_END: AtomicBool = AtomicBool::new(false);
        static TIMES: AtomicU32 = AtomicU32::new(0);
        fn again() {
            TIMES.fetch_add(1, Ordering::SeqCst);
        }
        let busy = std::thread::spawn(|| {
            ONCE.once(|| {
                IS_AT_IT.store(true, Ordering::SeqCst);
                while !MAY_END.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                TIMES.fetch_add(1, Ordering::SeqCst);
            });
        });
        while !IS_AT_IT.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // SAFETY: the child does nothing but what is tested, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Ends it if it waits after all.
            // SAFETY: plain system calls.
            unsafe { libc::alarm(20) };
            for _ in 0..2 {
                ONCE.once(again);
            }
            // SAFETY: nothing of the parent's runs in the child.
            unsafe { libc::_exit(TIMES.load(Ordering::SeqCst) as i32) };
        }
        let mut status = 0;
        // SAFETY: a child of ours and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1, "status {status:#x}");
        MAY_END.store(true, Ordering::SeqCst);
        busy.join().unwrap();
        ONCE.once(again);
        assert_eq!(TIMES.load(Ordering::SeqCst), 1);
    }
}
