//! Whether this process is the one that made an object. A child of fork has copies of everything and may use nothing of it: registrations, threads
//! and the device's state belong to its parent. One word on a page that the kernel clears in a child answers in a nanosecond, for every kind of
//! fork, and needs no handler. It holds unsafe code (one mapping, one load) and knows nothing of pools and caches.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use scalefabric_verbs::Errno;

use crate::error::{FabricError, Fault};

const PAGE: usize = 4096;

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// 1 here, 0 in a child. It lives until the process ends.
    mark: &'static AtomicU64,
}

impl Home {
    /// This process, or an error where the kernel has no MADV_WIPEONFORK (before 4.14).
    pub fn here() -> Result<Self, FabricError> {
        static NOW: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
        loop {
            let known = NOW.load(Ordering::Acquire);
            // SAFETY: null, or a mark from `new_mark`, which lives as long as the process and its children.
            if let Some(mark) = unsafe { known.as_ref() }
                && mark.load(Ordering::Relaxed) == 1
            {
                return Ok(Self { mark });
            }
            // The first call of this process; in a child the word that it inherited is 0 and stays so. Two threads may both make a page:
            // one is lost.
            let made = new_mark().map_err(|errno| {
                FabricError::environment(format!(
                    "the kernel cannot tell a forked child from its parent (MADV_WIPEONFORK, Linux 4.14): {}",
                    std::io::Error::from_raw_os_error(errno)
                ))
            })?;
            let _ =
                NOW.compare_exchange(known, std::ptr::from_ref(made).cast_mut(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether this is still that process.
    #[inline]
    pub fn is_here(self) -> bool {
        self.mark.load(Ordering::Relaxed) == 1
    }

    /// `EPERM` in a forked child.
    #[inline]
    pub fn check(self, what: &str) -> Result<(), FabricError> {
        if self.is_here() { Ok(()) } else { Err(foreign(what)) }
    }
}

#[cold]
fn foreign(what: &str) -> FabricError {
    FabricError {
        fault: Fault::Misuse,
        errno: Some(Errno::EPERM),
        message: format!(
            "{what} belongs to the parent of this process: a child of fork has to open its own device and make its own"
        ),
    }
}

fn new_mark() -> Result<&'static AtomicU64, i32> {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: a new mapping, which replaces nothing.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(errno());
    }
    // SAFETY: the page was mapped above and belongs to nobody else.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
        return Err(errno());
    }
    // SAFETY: mapped, zeroed, aligned, and never unmapped: it lives as long as the process. Only this atomic refers to it.
    let mark = unsafe { &*page.cast::<AtomicU64>() };
    mark.store(1, Ordering::Relaxed);
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_not_its_parent() {
        let home = Home::here().unwrap();
        assert!(home.is_here());
        // SAFETY: the child only loads a word and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(home.is_here())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(home.check("a pool").is_ok());
    }
}
