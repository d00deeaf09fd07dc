//! The caller's memory, as the kernel sees it: an address that is not mapped is `EFAULT` and no signal. Commands are not fast, so
//! the kernel does the copying where it may (`process_vm_readv` on ourselves); where a sandbox forbids that, we copy.

use crate::hooks::device::Errno;

/// Copies bytes to an address of the caller.
pub fn put(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: pointer(address)?.cast(), iov_len: bytes.len() };
    // SAFETY: both lists have one valid entry; the kernel checks the remote address.
    let done = unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if whole(done, bytes.len())? {
        return Ok(());
    }
    // SAFETY: the caller of write(2) says that a response may be written here.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(address)?, bytes.len()) };
    Ok(())
}

/// Copies bytes from an address of the caller.
pub fn get(address: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length];
    if length == 0 {
        return Ok(bytes);
    }
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let remote = libc::iovec { iov_base: pointer(address)?.cast(), iov_len: length };
    // SAFETY: both lists have one valid entry; the kernel checks the remote address.
    let done = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if !whole(done, length)? {
        // SAFETY: the caller of write(2) says that so many bytes are here.
        unsafe { std::ptr::copy_nonoverlapping(pointer(address)?.cast_const(), bytes.as_mut_ptr(), length) };
    }
    Ok(bytes)
}

fn pointer(address: u64) -> Result<*mut u8, Errno> {
    match usize::try_from(address) {
        Ok(0) | Err(_) => Err(libc::EFAULT),
        Ok(address) => Ok(std::ptr::with_exposed_provenance_mut(address)),
    }
}

/// Whether the kernel copied all; not if it may not copy at all.
fn whole(done: isize, wanted: usize) -> Result<bool, Errno> {
    if done >= 0 {
        return if done.unsigned_abs() == wanted { Ok(true) } else { Err(libc::EFAULT) };
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Ok(false),
        _ => Err(libc::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_to_an_address_and_come_back() {
        let mut place = [0_u8; 8];
        put(place.as_mut_ptr().expose_provenance() as u64, &[1, 2, 3]).unwrap();
        assert_eq!(place, [1, 2, 3, 0, 0, 0, 0, 0]);
        assert_eq!(get(place.as_ptr().expose_provenance() as u64, 4).unwrap(), [1, 2, 3, 0]);
    }

    #[test]
    fn an_address_without_memory_is_efault() {
        assert_eq!(put(0, &[1]), Err(libc::EFAULT));
        assert_eq!(put(16, &[1]), Err(libc::EFAULT));
        assert_eq!(get(4096, 8), Err(libc::EFAULT));
    }
}
