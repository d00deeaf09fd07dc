//! The tables in `abi/` against the headers and the libraries that are installed. (Against the mirrors of the structures the
//! compiler holds `layouts.txt`.) A public function of an installed library that the table does not know fails here: the C door
//! would let it fall through to the real library with a context of ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use scalefabric_ibv::abi::MIRRORED;
use scalefabric_ibv::abi::layouts::LAYOUTS;

const SYMBOLS: &str = include_str!("../abi/symbols.txt");
const RDMACM: &str = include_str!("../abi/rdmacm.txt");
/// The releases that the tables cover.
const OLDEST: u32 = 28;
const NEWEST: u32 = 65;

/// Rows of a table: three words each.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str, u32)> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 3, "three words in `{line}`");
        (words[0], words[1], words[2].parse().expect("a release"))
    })
}

/// The layouts as a release has them.
fn layouts(release: u32) -> BTreeMap<String, usize> {
    let mut known = BTreeMap::new();
    for (name, value, since) in rows(LAYOUTS) {
        if since <= release {
            known.insert(name.to_owned(), value.parse().expect("bytes"));
        }
    }
    known
}

/// An installed shared library, and the release of rdma-core that its file name ends in (`.so.1.14.44.0` is 44).
fn installed(name: &str) -> Option<(PathBuf, u32)> {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let path = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists())?;
    let path = fs::canonicalize(path).ok()?;
    let file = path.file_name()?.to_str()?.to_owned();
    let release = file.rsplit('.').nth(1)?.parse().ok()?;
    Some((path, release))
}

/// Public functions of a library as `name node`, by `nm`; none without it.
fn exports(library: &Path) -> Option<Vec<(String, String)>> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, symbol] = words[..] else { continue };
        if !matches!(kind, "T" | "W" | "D" | "i") {
            continue;
        }
        let (name, node) = symbol.split_once('@')?;
        found.push((name.to_owned(), node.trim_start_matches('@').to_owned()));
    }
    Some(found)
}

/// Compares a library with its table; every difference is a line.
fn compare(exports: &[(String, String)], table: &'static str, release: u32) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, node) in exports {
        let superseded =
            node == "IBVERBS_1.0" && exports.iter().any(|(other, newer)| other == name && newer == "IBVERBS_1.1");
        if node.contains("PRIVATE") || superseded {
            continue;
        }
        if !rows(table).any(|(known, at, _)| known == name && at == node) {
            wrong.push(format!("{name}@{node} is not in the table: add it, and export it from the C door"));
        }
    }
    for (name, node, since) in rows(table).filter(|row| row.2 <= release) {
        if !exports.iter().any(|(found, at)| found == name && at == node) {
            wrong.push(format!("{name}@{node} is said to exist since v{since}, but v{release} does not have it"));
        }
    }
    wrong
}

/// The compiler looks up each mirror in the table; a row that no mirror asks for would never be looked at.
#[test]
fn every_row_of_the_layouts_has_a_mirror() {
    let mut mirrored: Vec<&str> = MIRRORED.concat();
    mirrored.sort_unstable();
    let table = layouts(NEWEST);
    assert_eq!(table.keys().map(String::as_str).collect::<Vec<_>>(), mirrored);
}

#[test]
fn tables_are_well_formed_and_grow_only() {
    let mut last = BTreeMap::new();
    for (name, value, since) in rows(LAYOUTS) {
        assert!((OLDEST..=NEWEST).contains(&since), "{name} {since}");
        let bytes: usize = value.parse().expect("bytes");
        let (structure, member) = name.split_once('.').unwrap_or((name, ""));
        if let Some((before, release)) = last.insert(name, (bytes, since)) {
            assert!(release < since, "{name}: rows in the order of releases");
            // `verbs_context` grows in front: its members move up. Everything else keeps its members and grows behind them.
            assert!(
                bytes > before && (member.is_empty() || structure == "verbs_context"),
                "{name} changed from {before} to {bytes}"
            );
        }
    }
    for table in [SYMBOLS, RDMACM] {
        let mut names: Vec<&str> = rows(table).map(|row| row.0).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a name stands once");
        assert!(rows(table).all(|row| (OLDEST..=NEWEST).contains(&row.2)));
    }
}

#[test]
fn a_function_that_the_table_lacks_is_found() {
    let new = [("ibv_newest_idea".to_owned(), "IBVERBS_1.99".to_owned())];
    let wrong = compare(&new, SYMBOLS, 0);
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0].contains("ibv_newest_idea@IBVERBS_1.99"), "{wrong:?}");
    let private = [("ibv_cmd_anything".to_owned(), "IBVERBS_PRIVATE_99".to_owned())];
    assert!(compare(&private, SYMBOLS, 0).is_empty());
}

#[test]
fn installed_libraries_have_the_functions_of_their_release_and_no_others() {
    let mut wrong = Vec::new();
    for (name, table) in [("libibverbs.so.1", SYMBOLS), ("librdmacm.so.1", RDMACM)] {
        let Some((path, release)) = installed(name) else {
            println!("skipped: {name} is not installed");
            continue;
        };
        let Some(exports) = exports(&path) else {
            println!("skipped: nm is not installed");
            return;
        };
        assert!(exports.len() > 50, "{} exports", exports.len());
        wrong.extend(compare(&exports, table, release).into_iter().map(|line| format!("{}: {line}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn installed_headers_have_the_layouts_of_their_release() {
    let headers = ["verbs.h", "sa.h"].iter().all(|name| Path::new("/usr/include/infiniband").join(name).exists())
        && Path::new("/usr/include/rdma/rdma_cma.h").exists();
    let (Some((_, release)), true) = (installed("libibverbs.so.1"), headers) else {
        println!("skipped: the headers of libibverbs and librdmacm (libibverbs-dev, librdmacm-dev) are not installed");
        return;
    };
    // One program prints everything that a release of this number has.
    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    let table = layouts(release);
    for name in table.keys() {
        let value = match name.split_once('.') {
            Some((structure, member)) => format!("offsetof(struct {structure}, {member})"),
            None => format!("sizeof(struct {name})"),
        };
        program += &format!("  printf(\"{name} %zu\\n\", {value});\n");
    }
    program += "  return 0;\n}\n";
    let folder = std::env::temp_dir().join(format!("scalefabric-layouts-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (source, binary) = (folder.join("layouts.c"), folder.join("layouts"));
    fs::write(&source, program).expect("the source");
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let Ok(compiled) = compiled else {
        println!("skipped: no C compiler (cc)");
        return;
    };
    let errors = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.success(), "v{release} lacks what the table says: {errors}");
    let printed = Command::new(&binary).output().expect("the program runs").stdout;
    let _ = fs::remove_dir_all(&folder);
    let mut seen = 0;
    for line in String::from_utf8(printed).expect("text").lines() {
        let (name, value) = line.split_once(' ').expect("two words");
        assert_eq!(table[name], value.parse::<usize>().expect("bytes"), "{name} of v{release}");
        seen += 1;
    }
    assert_eq!(seen, table.len());
}
