//! One command: its header and its struct are written to the device, and the answer is where it said.

use std::ffi::c_int;

use scalefabric_ibv::abi::ucma::{Command, Header, Plain};

use crate::engine::{Errno, errno, sfab_ucma_write};

/// Largest command: RESOLVE_ADDR's 272 bytes, ACCEPT's 288 with ECE behind, and the header.
const ROOM: usize = 320;

/// Writes a command that has no answer.
pub fn tell<T: Plain>(fd: c_int, command: Command, body: &T) -> Result<(), Errno> {
    send(fd, command, &[body.bytes()], 0)
}

/// Writes a command with something behind its struct.
pub fn tell_with<T: Plain, U: Plain>(fd: c_int, command: Command, body: &T, behind: &U) -> Result<(), Errno> {
    send(fd, command, &[body.bytes(), behind.bytes()], 0)
}

/// Writes a command that `body` makes for the address of its answer, and reads that.
pub fn ask<T: Plain, R: Plain>(fd: c_int, command: Command, body: impl FnOnce(u64) -> T) -> Result<R, Errno> {
    let mut answer = R::zeroed();
    let body = body((&raw mut answer).expose_provenance() as u64);
    send(fd, command, &[body.bytes()], size_of::<R>() as u16)?;
    // SAFETY: the command wrote it, by its address, at most.
    Ok(unsafe { (&raw const answer).read_volatile() })
}

fn send(fd: c_int, command: Command, parts: &[&[u8]], room: u16) -> Result<(), Errno> {
    let mut message = [0; ROOM];
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header = Header { cmd: command as u32, size_in: length as u16, size_out: room };
    let mut at = 0;
    for part in std::iter::once(&header.bytes()).chain(parts) {
        message[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    // SAFETY: so many bytes are there.
    let written = unsafe { sfab_ucma_write(fd, message.as_ptr().cast(), at) };
    if written == at as isize { Ok(()) } else { Err(if written < 0 { errno() } else { libc::ENODATA }) }
}
