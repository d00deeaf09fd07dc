//! `abi/layouts.txt` as the compiler reads it, so that the mirrors of this crate are held against it when the crate compiles.
//! Rows are names, bytes and releases; the last row of a name is the newest. Nothing here runs in a program.

/// Sizes of structures and offsets of their members, release by release.
pub const LAYOUTS: &str = include_str!("../../abi/layouts.txt");

/// A row: where its name stands in the text, and its value.
#[derive(Clone, Copy)]
struct Row {
    start: usize,
    end: usize,
    value: usize,
}

const TEXT: &[u8] = LAYOUTS.as_bytes();
const ROWS: usize = rows();
// Read by the compiler alone: it never becomes part of a program.
#[expect(clippy::large_const_arrays, reason = "other constants are made of it")]
const TABLE: [Row; ROWS] = parse();

/// First byte behind the line that begins at `at`.
const fn line_end(mut at: usize) -> usize {
    while at < TEXT.len() && TEXT[at] != b'\n' {
        at += 1;
    }
    at + 1
}

const fn rows() -> usize {
    let (mut at, mut count) = (0, 0);
    while at < TEXT.len() {
        count += (TEXT[at] != b'#') as usize;
        at = line_end(at);
    }
    count
}

const fn parse() -> [Row; ROWS] {
    let mut table = [Row { start: 0, end: 0, value: 0 }; ROWS];
    let (mut at, mut count) = (0, 0);
    while at < TEXT.len() {
        if TEXT[at] != b'#' {
            let mut end = at;
            while TEXT[end] != b' ' {
                end += 1;
            }
            let mut digit = end;
            while TEXT[digit] == b' ' {
                digit += 1;
            }
            let mut value = 0;
            while TEXT[digit].is_ascii_digit() {
                value = value * 10 + (TEXT[digit] - b'0') as usize;
                digit += 1;
            }
            assert!(TEXT[digit] == b' ', "a row of layouts.txt is a name, a number, a number");
            table[count] = Row { start: at, end, value };
            count += 1;
        }
        at = line_end(at);
    }
    table
}

/// The value that the newest release has for a structure or a member. Does not compile for a name that has no row.
pub(super) const fn newest(name: &str) -> usize {
    let name = name.as_bytes();
    let mut row = ROWS;
    while row > 0 {
        row -= 1;
        let Row { start, end, value } = TABLE[row];
        if end - start == name.len() && is_at(name, start) {
            return value;
        }
    }
    panic!("abi/layouts.txt has no row of this name")
}

const fn is_at(name: &[u8], start: usize) -> bool {
    // From the end: names of one structure begin alike.
    let mut at = name.len();
    while at > 0 {
        at -= 1;
        if TEXT[start + at] != name[at] {
            return false;
        }
    }
    true
}
