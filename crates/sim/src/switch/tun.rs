//! A network interface that is a file: what the host sends is read from it, what is written to it the host receives. IP packets without a link layer. It needs root, or the
//! capability to make interfaces, in its network namespace. The only unsafe code is the call that makes the interface.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

/// The interface. It is gone when this is dropped, also if it has been moved to another namespace.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
}

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;

impl Tun {
    /// Makes an interface of this name, at most 15 bytes, in the namespace of the calling thread. It is down and has no address.
    pub fn create(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}`: 1 to 15 bytes")));
        }
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: all-zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open and the request is a whole ifreq that lives through the call.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { file, name: name.into() }) }
    }

    /// Its name when it was made.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next packet that the host sends. An error when the interface is gone.
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(packet)
    }

    /// Gives the host a packet. An interface that is down refuses it.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }
}
