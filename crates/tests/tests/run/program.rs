//! What a program keeps: its process, its name, its output, its exit code. And what cannot be run.

use super::{cc, run, said, sfab};
use scalefabric_tests::Folder;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn the_program_is_the_process_that_was_started() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("pid");
    let program = cc(
        &folder,
        "pid",
        r#"#include <stdio.h>
           #include <unistd.h>
           int main(int n, char **v) { printf("%d %s %s\n", getpid(), v[0], v[1]); return 0; }"#,
        &[],
    );
    let child =
        Command::new(sfab).args(["run", "--"]).arg(&program).arg("--fault").stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let text = said(&child.wait_with_output().unwrap());
    assert_eq!(text.trim(), format!("{pid} {} --fault", program.display()));
}

#[test]
fn exit_codes_signals_and_output_are_the_programs_own() {
    let Some(sfab) = sfab() else { return };
    assert_eq!(run(sfab, &[], "sh", &["-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(sfab, &[], "sh", &["-c", "kill -TERM $$"]).status.signal(), Some(15));
    let output = run(sfab, &[], "sh", &["-c", "echo out; echo err >&2"]);
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
}

#[test]
fn what_cannot_be_run_is_refused_with_2_and_one_sentence() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("refused");
    let fixed = cc(&folder, "static", "int main(void) { return 0; }", &["-static"]);
    let inside = cc(&folder, "inside", "int ibv_open_device(void) { return 1; } int main(void) { return 0; }", &[]);
    let text = folder.join("text");
    std::fs::write(&text, "no program").unwrap();
    std::fs::set_permissions(&text, PermissionsExt::from_mode(0o755)).unwrap();
    let foreign = folder.join("foreign");
    std::fs::write(&foreign, [&b"\x7fELF\x01\x01\x01"[..], &[0; 11], &[3, 0], &[0; 64]].concat()).unwrap();
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
    let none = ("/no/such/file".to_owned(), "no program");
    let shown = |path: &std::path::Path| path.display().to_string();
    for (program, word) in [
        none,
        (shown(&fixed), "statically linked"),
        (shown(&inside), "libibverbs"),
        (shown(&text), "neither an ELF"),
        (shown(&foreign), "i386"),
        (shown(&folder), "folder"),
        ("no-such-program".to_owned(), "PATH"),
    ] {
        let output = run(sfab, &[], &program, &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{program}: {told}");
        assert!(told.starts_with("sfab: ") && told.contains(word) && told.lines().count() == 1, "{program}: {told}");
    }
    // Its children can use the libraries: who wants that says so.
    said(&run(sfab, &["--mode", "preload"], &fixed, &[]));
}

#[test]
fn missing_libraries_and_wrong_options_are_told_in_one_sentence() {
    let Some(sfab) = sfab() else { return };
    let output = Command::new(sfab).args(["run", "--", "true"]).env("SCALEFABRIC_LIB", "/nowhere").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("cargo xtask build"), "{told}");
    for (options, word) in [
        (&["--fault", "drip=1%"][..], "drip"),
        (&["--device", "mlx5_9"], "mlx5_9"),
        (&["--config", "/no/such.toml"], "/no/such.toml"),
        (&["--capture", "/no/such/folder/x.pcapng"], "/no/such/folder"),
    ] {
        let output = run(sfab, options, "true", &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(word), "{options:?}: {told}");
    }
}

#[test]
fn a_set_user_id_program_is_refused() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("suid");
    let program = cc(&folder, "suid", "int main(void) { return 0; }", &[]);
    let given = Command::new("chown").arg("65534").arg(&program).status().is_ok_and(|status| status.success());
    if !given {
        println!("skipped: giving a file away needs root");
        return;
    }
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let output = run(sfab, &[], &program, &[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("set-user-ID"), "{told}");
}
