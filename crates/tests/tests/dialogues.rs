//! Plays every script of `scripts/` on every stage that it names.

use std::path::PathBuf;

use scalefabric_tests::engine_stage::EngineStage;
use scalefabric_tests::runner::play;
use scalefabric_tests::script::parse::parse;
use scalefabric_tests::stage::Stage;
use scalefabric_tests::transport_stage::TransportStage;

/// All scripts: name and text, in order.
fn scripts() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut scripts = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder of scripts is there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rdma") {
                let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
                scripts.push((name, std::fs::read_to_string(&path).expect("a script can be read")));
            }
        }
    }
    scripts.sort();
    scripts
}

/// Plays all scripts for which `on` is true; `DIALOGUE=name` plays one.
fn play_all(stage: &str, make: &dyn Fn() -> Box<dyn Stage>) {
    let only = std::env::var("DIALOGUE").ok();
    let (mut played, mut reports) = (0, String::new());
    for (name, text) in scripts() {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let script = parse(&name, &text).unwrap_or_else(|error| panic!("{name}.rdma: {error}"));
        let on = if stage == "transport" { script.on_transport } else { script.on_engine };
        if !on {
            continue;
        }
        played += 1;
        if let Err(failure) = play(&script, make().as_mut()) {
            reports += &failure.report(&name, stage, &text);
            reports +=
                &format!("  repeat: DIALOGUE={name} cargo test -p scalefabric-tests --test dialogues {stage}\n\n");
        }
    }
    assert!(reports.is_empty(), "\n{reports}");
    assert!(played > 0, "no script was played");
}

#[test]
fn every_script_is_true_on_the_transport() {
    play_all("transport", &|| Box::new(TransportStage::default()));
}

#[test]
fn every_script_is_true_on_the_engine() {
    play_all("engine", &|| Box::new(EngineStage::default()));
}
