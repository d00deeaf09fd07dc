//! Wrong use of `sfab`: exit code 2, a sentence on standard error, nothing on standard output. And help with an example
//! for each command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn sfab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sfab")).args(arguments).output().expect("sfab starts")
}

#[test]
fn wrong_use_ends_with_2_and_a_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (&["dance"], "dance"),
        (&["demo", "--size", "12q"], "12q"),
        (&["demo", "--size", "3G"], "3G"),
        (&["demo", "--transport", "RD"], "RC, UC and UD"),
        (&["demo", "--iterations", "0"], "0"),
        (&["demo", "--fault", "drip=1%"], "drip"),
        (&["demo", "--fault", "drop=101%"], "101%"),
        (&["demo", "--netns", "--listen", "127.0.0.1:0"], "--listen"),
        (&["counters", "--explain", "no_such_counter"], "no_such_counter"),
        (&["bench", "--repeat", "0"], "0"),
        (&["demo", "--port", "0"], "--port"),
        (&["demo", "--capture", "/nonexistent/file"], "/nonexistent/file: cannot be written: No such file"),
        (&["personalities", "connectx-99"], "connectx-5"),
        (&["devices", "--personality", "connectx-99"], "connectx-5"),
        (&["control", "--listen", "10.0.0.1:0"], "client_ca"),
        (&["control", "--config", "/nonexistent/file"], "/nonexistent/file cannot be read"),
        (&["agent", "--node", "Node_3"], "Node_3"),
        (&["top", "--control", "10.0.0.1"], "http://host:port"),
        (&["top", "--sort", "colour"], "colour"),
        (&["sim", "run", "/nonexistent.toml"], "/nonexistent.toml cannot be read"),
        (&["sim", "run", "../../examples/sim/spray.toml", "--timeline", "t.html"], "--timeline"),
        (
            &["sim", "run", "../../examples/sim/incast.toml", "--set", "topology.hosts=1"],
            "topology.hosts: is 1; expected 2",
        ),
        (&["sim", "compare", "../../examples/sim/incast.toml", "--algorithms", "cubic"], "cubic"),
        (&["sim", "run", "../../examples/sim/incast.toml", "--parquet"], "--out"),
        (&["sim", "parameters", "cubic"], "timely-scaled"),
        (&["sim", "parameters", "hpcc", "--rate", "0"], "0.001 to 10000"),
        (&["sim", "parameters", "--explain"], "<PROFILE>"),
        (&["top", "--ca", "/nonexistent/file"], "/nonexistent/file"),
        (&["agent", "--socket", "/tmp/sfab-usage.sock", "--control", "http://10.0.0.1:7480"], "https"),
    ];
    for (arguments, named) in cases {
        let output = sfab(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(named), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_of_each_command_has_an_example() {
    for command in [
        "run",
        "demo",
        "perf",
        "devices",
        "gids",
        "counters",
        "res",
        "decode",
        "bench",
        "personalities",
        "control",
        "agent",
        "top",
        "sim",
    ] {
        let output = sfab(&[command, "--help"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("Example"), "{command}: {text}");
    }
}

#[test]
fn personalities_are_listed_with_their_figures_and_sources() {
    let text = |arguments: &[&str]| String::from_utf8(sfab(arguments).stdout).expect("text");
    let all = text(&["personalities"]);
    for name in ["rxe", "siw", "connectx-5", "connectx-6", "connectx-7", "efa", "bnxt-re", "ionic"] {
        assert!(all.contains(name), "{name}: {all}");
    }
    let one = text(&["personalities", "siw"]);
    assert!(one.contains("max_inline_data") && one.contains("siw-abi.h") && one.contains("80"), "{one}");
    let json: serde_json::Value = serde_json::from_str(&text(&["personalities", "--json", "efa"])).expect("JSON");
    assert_eq!(json[0]["qp_types"]["value"], serde_json::json!(["UD"]));
    assert_eq!(json[0]["figures"]["max_srq"]["value"], 0);
    assert!(json[0]["about"].as_str().is_some_and(|about| about.contains("SRD")));
}

#[test]
fn each_counter_is_explained() {
    let output = sfab(&["counters", "--explain", "drop_bad_icrc"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("CRC"));
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    for command in [&["counters", "--explain"][..], &["devices"], &["gids"], &["decode", "--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sfab"))
            .args(command)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("sfab starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("sfab ends");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!told.contains("panicked"), "{command:?}: {told}");
    }
}

#[test]
fn a_program_is_not_started_with_what_cannot_work() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("usage-products");
    for name in ["libscalefabric-preload.so", "libscalefabric-audit.so", "dropin/libibverbs.so.1"] {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, "").expect("a file");
    }
    let run = |options: &[&str], device: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sfab"));
        command.arg("run").args(options).args(["--show", "--", "true"]).env("SCALEFABRIC_LIB", &folder);
        if let Some(name) = device {
            command.env("SCALEFABRIC_DEVICE", name);
        }
        let output = command.output().expect("sfab starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let folder_text = folder.to_str().expect("text");
    let new = format!("{folder_text}/new.pcapng");
    for (options, device, part) in [
        (&["--capture", folder_text][..], None, "is a folder"),
        (&["--capture", "/proc/capture.pcapng"], None, "cannot be written"),
        (&["--capture", "/nowhere/capture.pcapng"], None, "there is no folder /nowhere"),
        (&["--device", "nosuch"], None, "there is no device \"nosuch\"; devices here: "),
        (&[], Some("nosuch"), "there is no device \"nosuch\"; devices here: "),
    ] {
        let (code, said) = run(options, device);
        assert!(code == Some(2) && said.contains(part), "{options:?}: {code:?}, {said}");
    }
    assert_eq!(run(&["--capture", &new], None), (Some(0), String::new()));
    assert!(!Path::new(&new).exists(), "only the program makes it");
    assert_eq!(run(&["--device", "sflo"], Some("nosuch")), (Some(0), String::new()), "the option wins");
}
