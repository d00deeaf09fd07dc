//! The `bpf` system call, as much of it as an XDP program needs: maps, loading, and a link that holds the program at its interface
//! until the last descriptor of it closes, also when the process is killed. The layout of the arguments is that of `union bpf_attr` in
//! linux/bpf.h.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::process::Descriptor;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The driver runs the program itself, before there is a socket buffer (`XDP_FLAGS_DRV_MODE`).
const NATIVE: u32 = 1 << 2;
/// The program takes packets that lie in several buffers.
const HAS_FRAGS: u32 = 1 << 5;

/// Kinds of maps.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapKind {
    Hash = 1,
    Xsk = 17,
}

/// One instruction (RFC 9669): opcode, destination and source register, offset, immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    pub(super) code: u8,
    registers: u8,
    pub(super) off: i16,
    pub(super) imm: i32,
}

impl Instruction {
    /// Registers are half bytes whose order is that of the machine.
    pub(super) fn new(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Self {
        let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        Self { code, registers, off, imm }
    }
}

/// The arguments of a call. Longer than any that is used here; the kernel wants the rest to be zero.
#[repr(C, align(8))]
struct Arguments([u8; 128]);

impl Arguments {
    fn new() -> Self {
        Self([0; 128])
    }

    fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn long(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// The address of what the kernel reads, or writes, while the call lasts.
    fn address<T: ?Sized>(self, at: usize, value: *const T) -> Self {
        self.long(at, value.cast::<u8>() as u64)
    }

    fn call(&mut self, command: libc::c_int) -> RawFd {
        // SAFETY: the arguments are writable for their size, and every address in them was made by `address` from something that the
        // caller keeps until the call has returned, with the length that the kernel is told.
        unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) as RawFd }
    }
}

/// Makes a map.
pub(super) fn map(kind: MapKind, key_bytes: u32, value_bytes: u32, entries: u32) -> io::Result<Descriptor> {
    let mut arguments = Arguments::new().word(0, kind as u32).word(4, key_bytes).word(8, value_bytes).word(12, entries);
    Descriptor::make(|| arguments.call(MAP_CREATE))
}

/// Sets an element. Key and value must have the map's sizes.
pub(super) fn set(map: &Descriptor, key: &[u8], value: &[u8]) -> io::Result<()> {
    let arguments = Arguments::new().word(0, map.as_raw_fd() as u32).address(8, key).address(16, value);
    done({ arguments }.call(MAP_UPDATE_ELEM))
}

/// Removes an element. The key must have the map's size.
pub(super) fn remove(map: &Descriptor, key: &[u8]) -> io::Result<()> {
    let arguments = Arguments::new().word(0, map.as_raw_fd() as u32).address(8, key);
    done({ arguments }.call(MAP_DELETE_ELEM))
}

fn done(result: RawFd) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Loads an XDP program. What the kernel's verifier does not like is an error that ends with its words.
pub(super) fn load(program: &[Instruction], frags: bool) -> io::Result<Descriptor> {
    let mut words = vec![0u8; 16 << 10];
    let license = c"MIT";
    let mut arguments = Arguments::new()
        .word(0, PROG_TYPE_XDP)
        .word(4, program.len() as u32)
        .address(8, program)
        .address(16, license.as_ptr())
        .word(24, 1)
        .word(28, words.len() as u32)
        .address(32, words.as_mut_ptr())
        .word(44, if frags { HAS_FRAGS } else { 0 })
        .word(68, ATTACH_XDP);
    let name = b"scalefabric";
    arguments.0[48..48 + name.len()].copy_from_slice(name);
    Descriptor::make(|| arguments.call(PROG_LOAD)).map_err(|error| {
        let text = String::from_utf8_lossy(&words);
        match text.trim_end_matches(['\0', '\n']).lines().rev().nth(1) {
            Some(last) => io::Error::new(error.kind(), format!("{error}: {last}")),
            None => error,
        }
    })
}

/// Attaches a program to an interface, in its driver. It stays as long as the descriptor.
pub(super) fn attach(program: &Descriptor, ifindex: u32) -> io::Result<Descriptor> {
    let mut arguments =
        Arguments::new().word(0, program.as_raw_fd() as u32).word(4, ifindex).word(8, ATTACH_XDP).word(12, NATIVE);
    Descriptor::make(|| arguments.call(LINK_CREATE))
}
