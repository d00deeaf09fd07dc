//! Whether a range is mapped with the needed rights, asked once at registration (D10). Also whether it has a file behind
//! it, for FLUSH to persistence.

use std::fs;

use super::copy;

const PAGE: usize = 4096;

/// True if every page of the range can be read, and written if `write`. Like pinning in hardware, it brings the pages
/// in: a region that shall stay sparse is registered with ON_DEMAND, which is not probed.
///
/// # Safety
/// If `write`, the caller may write to the range (nothing is changed).
pub unsafe fn is_accessible(at: *mut u8, length: usize, write: bool) -> bool {
    if length == 0 {
        return true;
    }
    let start = at as usize & !(PAGE - 1);
    let Some(end) = (at as usize).checked_add(length).and_then(|e| e.checked_next_multiple_of(PAGE)) else {
        return false;
    };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: populating pages changes no byte; bad ranges are refused.
    if unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) } == 0 {
        return true;
    }
    // Before Linux 5.14, and for mappings of devices, the kernel does not know this call: touch each page.
    super::guard::ensure_here();
    // SAFETY: the caller's promise; faults are caught.
    unsafe { copy::touch(at, length, PAGE, write) }.is_ok()
}

/// True if every page of the range is in memory now; nothing is brought in.
pub fn is_present(at: *mut u8, length: usize) -> bool {
    let start = at as usize & !(PAGE - 1);
    let Some(end) = (at as usize).checked_add(length) else { return false };
    let mut present = [0u8; 256];
    let mut next = start;
    while next < end {
        let pages = (end - next).div_ceil(PAGE).min(present.len());
        // SAFETY: mincore writes one byte for each page into `present`, and refuses what is not mapped.
        if unsafe { libc::mincore(next as *mut libc::c_void, pages * PAGE, present.as_mut_ptr()) } != 0
            || present[..pages].iter().any(|p| p & 1 == 0)
        {
            return false;
        }
        next += pages * PAGE;
    }
    true
}

/// True if the whole range is shared mappings of files: what `msync` can make persistent. (A file in memory, as on tmpfs,
/// looks the same; memfds are told apart by their name.)
pub fn has_file(at: *mut u8, length: usize) -> bool {
    // Rare and slow: only for regions that ask for FLUSH to persistence.
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return false };
    let (mut next, end) = (at as usize, (at as usize).saturating_add(length));
    for line in maps.lines() {
        let Some((from, to, is_file)) = parse(line) else { continue };
        if from <= next && next < to {
            if !is_file {
                return false;
            }
            next = to;
        }
        if next >= end {
            return true;
        }
    }
    next >= end
}

/// Start, end, and whether it is a shared mapping of a file, from a line of `/proc/self/maps`.
fn parse(line: &str) -> Option<(usize, usize, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let shared = fields.next()?.as_bytes().get(3) == Some(&b's');
    let path = fields.nth(3);
    let is_file = path.is_some_and(|p| {
        p.starts_with('/') && !p.starts_with("/memfd:") && !p.starts_with("/dev/zero") && !p.starts_with("/SYSV")
    });
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, shared && is_file))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn map(pages: usize, protection: i32) -> *mut u8 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    fn probe(at: *mut u8, length: usize, write: bool) -> (bool, bool) {
        super::super::guard::ensure_here();
        // SAFETY: the test's own mappings, or none.
        unsafe { (is_accessible(at, length, write), copy::touch(at, length, PAGE, write).is_ok()) }
    }

    #[test]
    fn rights_are_found_page_by_page() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let at = map(3, both);
        assert_eq!(probe(at, 3 * PAGE, true), (true, true));
        // The middle page becomes read-only.
        // SAFETY: the test's own mapping.
        unsafe { libc::mprotect(at.add(PAGE).cast(), PAGE, libc::PROT_READ) };
        assert_eq!(probe(at, 3 * PAGE, false), (true, true));
        assert_eq!(probe(at, 3 * PAGE, true), (false, false));
        assert_eq!(probe(at, PAGE, true), (true, true), "up to its edge");
        assert_eq!(probe(at, PAGE + 1, true), (false, false), "one beyond");
        assert_eq!(probe(at.wrapping_add(2 * PAGE), PAGE, true), (true, true));
        // The last page goes away.
        // SAFETY: the test's own mapping.
        unsafe { libc::munmap(at.add(2 * PAGE).cast(), PAGE) };
        assert_eq!(probe(at.wrapping_add(PAGE), PAGE, false), (true, true));
        assert_eq!(probe(at.wrapping_add(PAGE), PAGE + 1, false), (false, false));
        assert_eq!(probe(std::ptr::null_mut(), 1, false), (false, false));
        assert_eq!(probe(map(1, libc::PROT_NONE), 1, false), (false, false));
        assert_eq!(probe(std::ptr::null_mut(), 0, true), (true, true), "nothing is always there");
    }

    #[test]
    fn a_page_is_present_once_it_was_touched() {
        let at = map(300, libc::PROT_READ | libc::PROT_WRITE);
        assert!(!is_present(at, 1));
        // SAFETY: the test's own mapping.
        assert!(unsafe { is_accessible(at, 299 * PAGE, true) });
        assert!(is_present(at, 299 * PAGE));
        assert!(!is_present(at, 299 * PAGE + 1), "the last one was not touched");
        assert!(!is_present(std::ptr::null_mut(), 1));
    }

    #[test]
    fn only_shared_files_count_as_persistent() {
        assert!(!has_file(map(1, libc::PROT_READ), PAGE));
        assert!(parse("7f00-7f10 rw-s 00000000 08:01 123 /var/x y").is_some_and(|m| m.2));
        assert!(parse("7f00-7f10 rw-p 00000000 08:01 123 /var/x").is_some_and(|m| !m.2));
        assert!(parse("7f00-7f10 rw-s 00000000 00:01 123 /memfd:a (deleted)").is_some_and(|m| !m.2));
        assert!(parse("7f00-7f10 rw-s 00000000 00:00 0").is_some_and(|m| !m.2));
    }
}
