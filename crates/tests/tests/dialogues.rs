//! Plays every script of `scripts/` on every stage that it names, and compares the page of capabilities with what that
//! proved.

use scalefabric_tests::capabilities;
use scalefabric_tests::engine_stage::EngineStage;
use scalefabric_tests::library::{StageName, is_for_same_host, play_on, scripts};
use scalefabric_tests::runner::play;
use scalefabric_tests::script::parse::parse;

/// Plays all scripts of a stage; `DIALOGUE=name` plays those whose name contains it.
fn play_all(stage: StageName) {
    let only = std::env::var("DIALOGUE").ok();
    let entries = scripts().unwrap_or_else(|error| panic!("{error}"));
    let (mut played, mut reports) = (0, String::new());
    for entry in entries.iter().filter(|entry| stage.runs(&entry.script)) {
        if only.as_ref().is_some_and(|only| !entry.name.contains(only.as_str())) {
            continue;
        }
        played += 1;
        if let Err(failure) = play_on(entry, stage) {
            let (name, stage) = (&entry.name, stage.as_str());
            reports += &failure.report(name, stage, &entry.text);
            reports +=
                &format!("  repeat: DIALOGUE={name} cargo test -p scalefabric-tests --test dialogues {stage}\n\n");
        }
    }
    assert!(reports.is_empty(), "\n{reports}");
    assert!(played > 0, "no script was played");
}

#[test]
fn every_script_is_true_on_the_transport() {
    play_all(StageName::Transport);
}

#[test]
fn every_script_is_true_on_the_engine() {
    play_all(StageName::Engine);
}

/// What an application sees there is what it sees on the wire: the same scripts, which only find that packets were not needed.
#[test]
fn every_script_that_leaves_packets_alone_is_true_on_the_same_host() {
    let only = std::env::var("DIALOGUE").ok();
    let entries = scripts().unwrap_or_else(|error| panic!("{error}"));
    let (mut executing, mut reports) = (0, String::new());
    for at_once in [false, true] {
        for entry in entries.iter().filter(|entry| is_for_same_host(&entry.script)) {
            if only.as_ref().is_some_and(|only| !entry.name.contains(only.as_str())) {
                continue;
            }
            let mut stage = EngineStage::same_host(at_once);
            if let Err(failure) = play(&entry.script, &mut stage) {
                let stage = if at_once { "same host (at once)" } else { "same host" };
                reports += &failure.report(&entry.name, stage, &entry.text);
            }
            executing += u32::from(stage.direct_requests() > 0);
        }
    }
    assert!(reports.is_empty(), "\n{reports}");
    assert!(only.is_some() || executing >= 20, "requests were executed in {executing} plays only");
}

#[test]
fn the_page_of_capabilities_is_fresh_and_has_no_gap() {
    let page = capabilities::page().unwrap_or_else(|error| panic!("{error}"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/capabilities.md");
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(stored == page.text, "docs/capabilities.md is stale: run `cargo xtask capabilities`");
    assert!(page.gaps.is_empty(), "nobody proves: {:#?}", page.gaps);
}

/// What a script must not be able to hide: each of these differs from the truth in one word, and each must fail there.
#[test]
fn a_script_that_is_not_true_fails_at_its_line() {
    let scene = "# t\nmr m node=a len=64 fill=count\nmr n node=b len=64\nqp A rc psn=100\nqp B rc psn=200\nconnect A B\n\
                 recv B wr=7 local=n:16\npost A send wr=1 local=m:5\n";
    let truth = "A -> B: RC SEND ONLY psn=100 len=5\nwc B recv wr=7 SUCCESS len=5\nB -> A: RC Acknowledge psn=100 ack msn=1\n\
                 wc A send wr=1 SUCCESS\nmemory n is=m:5\nnothing\n";
    let lies = [
        ("psn=100 len=5", "psn=101 len=5", "psn: expected 101, found 100"),
        ("len=5\nwc", "len=5 | lost\nwc", "B has no completion"),
        ("wr=7 SUCCESS len=5", "wr=8 SUCCESS len=5", "wr: expected 8, found 7"),
        ("wr=7 SUCCESS", "wr=7 LOC_LEN_ERR", "status: expected LOC_LEN_ERR, found SUCCESS"),
        ("ack msn=1", "ack msn=2", "msn: expected Some(2), found Some(1)"),
        ("ack msn=1", "nak=access msn=1", "syndrome: expected"),
        ("wc A send wr=1 SUCCESS\n", "", "nothing should happen, but this happened"),
        ("memory n is=m:5", "memory n is=m+1:5", "memory n differs from byte 0"),
        ("nothing\n", "event A COMM_EST\n", "expected event COMM_EST of A, found none"),
        ("nothing\n", "state A SQD\n", "A should be in SQD, and is in RTS"),
        ("nothing\n", "count b drop_bad_pkey 1\n", "expected 1, found 0"),
        ("nothing\n", "post A read wr=2 refused \"EINVAL\"\n", "should have been refused"),
        ("nothing\n", "post A send wr=2\n", "the script ends, but this happened"),
        ("# t", "# t\n# proves: wc REM_OP_ERR", "claims to prove 'wc REM_OP_ERR'"),
    ];
    for stage in StageName::ALL {
        let text = format!("{scene}{truth}");
        play(&parse("truth", &text).unwrap(), stage.make().as_mut()).unwrap_or_else(|f| panic!("{}", f.message));
        for (true_words, lie, message) in lies {
            assert!(text.contains(true_words), "{true_words}");
            let script = parse("lie", &text.replacen(true_words, lie, 1)).unwrap();
            let failure = play(&script, stage.make().as_mut()).expect_err(message);
            assert!(failure.message.contains(message), "expected '{message}' in '{}'", failure.message);
        }
    }
}
