//! What `sfab run` must know of a program file: for which machine it is, its loader, what it needs, where it looks. Reads
//! ELF (System V ABI, chapters 4 and 5) of 64 bits, little-endian; never trusts an offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The machine of this build, as ELF numbers them.
pub const OWN_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// What a file is.
#[derive(Debug)]
pub enum Kind {
    /// ELF of this machine.
    Elf(Elf),
    /// ELF of another machine; its name.
    Foreign(String),
    /// A script: its interpreter, and one argument of it.
    Script(String, Option<String>),
    /// Something else.
    Other,
}

/// An ELF file's dynamic part.
#[derive(Debug, Default)]
pub struct Elf {
    /// The loader (PT_INTERP); a program without one is statically linked.
    pub interpreter: Option<String>,
    /// Libraries it needs (DT_NEEDED).
    pub needed: Vec<String>,
    /// Where it looks before LD_LIBRARY_PATH (DT_RPATH, when there is no DT_RUNPATH).
    pub rpath: Option<String>,
    /// Where it looks after LD_LIBRARY_PATH (DT_RUNPATH).
    pub runpath: Option<String>,
    /// True if the file has libibverbs' `ibv_open_device` in itself, and not as a dynamic symbol.
    pub has_verbs_inside: bool,
}

/// A file that is read at offsets, within bounds.
struct Reader {
    file: File,
    len: u64,
}

impl Reader {
    fn bytes(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        // Nothing that is read whole is larger: string tables of large programs have some megabytes.
        if len > 256 << 20 || offset.checked_add(len)? > self.len {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn text_at(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    Some(String::from_utf8_lossy(&rest[..rest.iter().position(|&b| b == 0)?]).into_owned())
}

/// Looks at a file.
pub fn read(path: &Path) -> io::Result<Kind> {
    let file = File::open(path)?;
    let reader = Reader { len: file.metadata()?.len(), file };
    let head = reader.bytes(0, reader.len.min(256)).unwrap_or_default();
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = String::from_utf8_lossy(line.split(|&b| b == b'\n').next().unwrap_or_default());
        let line = line.trim();
        let (program, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let argument = Some(argument.trim().to_owned()).filter(|argument| !argument.is_empty());
        return Ok(Kind::Script(program.to_owned(), argument));
    }
    if !head.starts_with(b"\x7fELF") || head.len() < 64 {
        return Ok(Kind::Other);
    }
    let machine = u16_at(&head, 18).unwrap_or(0);
    if head[4] != 2 || head[5] != 1 || machine != OWN_MACHINE {
        let bits = if head[4] == 1 { 32 } else { 64 };
        return Ok(Kind::Foreign(format!("{} ({bits} bits)", machine_name(machine))));
    }
    Ok(Kind::Elf(parse(&reader, &head).unwrap_or_default()))
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "i386".to_owned(),
        40 => "ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "AArch64".to_owned(),
        21 => "PowerPC".to_owned(),
        22 => "S/390".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("machine {other}"),
    }
}

fn parse(reader: &Reader, head: &[u8]) -> Option<Elf> {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const PT_INTERP: u32 = 3;
    let mut elf = Elf::default();
    let count = u64::from(u16_at(head, 56)?);
    let headers = reader.bytes(u64_at(head, 32)?, count * 56)?;
    // Offset in the file, address, length.
    let mut loads: Vec<(u64, u64, u64)> = Vec::new();
    let mut dynamic = None;
    for header in headers.chunks_exact(56) {
        let (offset, address, len) = (u64_at(header, 8)?, u64_at(header, 16)?, u64_at(header, 32)?);
        match u32_at(header, 0)? {
            PT_LOAD => loads.push((offset, address, len)),
            PT_DYNAMIC => dynamic = reader.bytes(offset, len),
            PT_INTERP => elf.interpreter = text_at(&reader.bytes(offset, len)?, 0),
            _ => {}
        }
    }
    elf.has_verbs_inside = has_verbs_inside(reader, head).unwrap_or(false);
    let Some(dynamic) = dynamic else { return Some(elf) };
    let entries: Vec<(u64, u64)> =
        dynamic.chunks_exact(16).map_while(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?))).collect();
    let find = |tag: u64| entries.iter().take_while(|(t, _)| *t != 0).filter(move |(t, _)| *t == tag).map(|(_, v)| *v);
    let address = find(5).next()?;
    let &(start, base, _) = loads.iter().find(|&&(_, a, l)| address >= a && address - a < l)?;
    let offset = start.checked_add(address - base)?;
    let strings = reader.bytes(offset, find(10).next()?)?;
    let text = |at: u64| text_at(&strings, at as usize);
    elf.needed = find(1).filter_map(text).collect();
    elf.runpath = find(29).next().and_then(text);
    elf.rpath = find(15).next().and_then(text).filter(|_| elf.runpath.is_none());
    Some(elf)
}

/// Looks for `ibv_open_device` as a defined function in the full symbol table, and not in the dynamic one.
fn has_verbs_inside(reader: &Reader, head: &[u8]) -> Option<bool> {
    const SHT_SYMTAB: u32 = 2;
    const SHT_DYNSYM: u32 = 11;
    let count = u64::from(u16_at(head, 60)?);
    let headers = reader.bytes(u64_at(head, 40)?, count * 64)?;
    let defines = |kind: u32| -> Option<bool> {
        let header = headers.chunks_exact(64).find(|header| u32_at(header, 4) == Some(kind))?;
        let strings = headers.chunks_exact(64).nth(u32_at(header, 40)? as usize)?;
        let strings = reader.bytes(u64_at(strings, 24)?, u64_at(strings, 32)?)?;
        let at = find(&strings, b"\0ibv_open_device\0")? as u32 + 1;
        let symbols = reader.bytes(u64_at(header, 24)?, u64_at(header, 32)?)?;
        // Name, and section 0: not defined here.
        Some(symbols.chunks_exact(24).any(|symbol| u32_at(symbol, 0) == Some(at) && u16_at(symbol, 6) != Some(0)))
    };
    Some(defines(SHT_SYMTAB).unwrap_or(false) && !defines(SHT_DYNSYM).unwrap_or(false))
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_program_of_this_machine_that_needs_libc() {
        let own = std::env::current_exe().unwrap();
        let Kind::Elf(elf) = read(&own).unwrap() else { panic!("not ELF") };
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.so")), "{elf:?}");
        assert!(elf.interpreter.is_some() && !elf.has_verbs_inside);
    }

    #[test]
    fn a_script_names_its_interpreter_and_one_argument() {
        let path = std::env::temp_dir().join(format!("sfab-elf-{}", std::process::id()));
        std::fs::write(&path, "#! /usr/bin/env  python3 -u\nprint()\n").unwrap();
        let kind = read(&path);
        std::fs::write(&path, [b"\x7fELF\x02\x01\x01".as_slice(), &[0xff; 200]].concat()).unwrap();
        let wild = read(&path);
        std::fs::remove_file(&path).unwrap();
        let Kind::Script(program, argument) = kind.unwrap() else { panic!("not a script") };
        assert_eq!((program.as_str(), argument.as_deref()), ("/usr/bin/env", Some("python3 -u")));
        assert!(matches!(wild.unwrap(), Kind::Foreign(_)));
    }

    #[test]
    fn a_program_with_any_bytes_changed_is_read_or_not_and_nothing_panics() {
        let whole = std::fs::read("/bin/true").unwrap();
        let path = std::env::temp_dir().join(format!("sfab-elf-any-{}", std::process::id()));
        let mut state = 1_u64;
        let mut next = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for _ in 0..1000 {
            let mut bytes = whole.clone();
            // Mostly in the headers, where the offsets stand; sometimes cut off.
            for _ in 0..1 + next(8) {
                let at = if next(4) == 0 { next(bytes.len()) } else { 16 + next(1000) };
                bytes[at] = [0, 0xff, 0x7f, next(256) as u8][next(4)];
            }
            let tables = u64_at(&bytes, 40).map_or(0, |at| at as usize);
            if let Some(byte) = bytes.get_mut(tables.saturating_add(next(2000))) {
                *byte = next(256) as u8;
            }
            bytes.truncate(if next(8) == 0 { next(whole.len()) } else { whole.len() });
            std::fs::write(&path, &bytes).unwrap();
            read(&path).unwrap();
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn offsets_beyond_the_end_are_no_program_and_no_panic() {
        let mut bytes = vec![0xff_u8; 128];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&OWN_MACHINE.to_le_bytes());
        let path = std::env::temp_dir().join(format!("sfab-elf-wild-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let kind = read(&path);
        std::fs::remove_file(&path).unwrap();
        let Kind::Elf(elf) = kind.unwrap() else { panic!("not ELF") };
        assert!(elf.interpreter.is_none() && elf.needed.is_empty());
    }
}
