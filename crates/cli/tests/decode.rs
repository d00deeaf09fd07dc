//! `sfab decode` from outside: every golden capture of a Linux kernel decodes completely, and bad input ends with exit
//! code 2 and a sentence.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn sfab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sfab")).args(arguments).output().expect("sfab starts")
}

fn golden() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/rxe");
    let entries = std::fs::read_dir(folder).expect("the golden captures are there");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    files
}

#[test]
fn each_packet_of_the_golden_captures_is_a_line_with_a_right_icrc() {
    let files = golden();
    assert!(files.len() >= 34, "{} captures", files.len());
    let mut lines = 0;
    for file in files {
        let output = sfab(&["decode", file.to_str().expect("a UTF-8 path")]);
        assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
            assert!(line.ends_with("icrc ok"), "{}: {line}", file.display());
            lines += 1;
        }
    }
    assert_eq!(lines, 466);
}

#[test]
fn json_is_one_object_a_line() {
    let file = golden().into_iter().find(|file| file.ends_with("rc-atomic.pcap")).expect("rc-atomic.pcap");
    let output = sfab(&["decode", "--json", file.to_str().expect("a UTF-8 path")]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 8);
    for line in text.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(object["icrc_ok"], true);
        assert!(object["psn"].is_u64());
    }
    assert!(text.contains("\"atomic_ack_eth\""), "{text}");
}

#[test]
fn a_file_that_is_no_capture_is_refused_with_its_name() {
    let output = sfab(&["decode", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Cargo.toml") && said.contains("pcap"), "{said}");
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    assert_eq!(sfab(&["decode", "no/such/file.pcap"]).status.code(), Some(2));
}

#[test]
fn a_cut_capture_shows_what_is_whole_and_says_where_it_ends() {
    let file = golden().into_iter().find(|file| file.ends_with("rc-send.pcap")).expect("rc-send.pcap");
    let bytes = std::fs::read(file).expect("read");
    let cut = std::env::temp_dir().join(format!("sfab-cut-{}.pcap", std::process::id()));
    std::fs::write(&cut, &bytes[..bytes.len() - 3]).expect("write");
    let output = sfab(&["decode", cut.to_str().expect("a UTF-8 path")]);
    std::fs::remove_file(&cut).expect("remove");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 23);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cut"));
}
