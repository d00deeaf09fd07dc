//! Seeds keep every promise; the same seed is the same run; and a rule that is broken on purpose is noticed by the checker
//! that it is meant for.

use scalefabric_sim::canary::{Canary, Rule};
use scalefabric_sim::pattern::{PATTERNS, Pattern};
use scalefabric_sim::run::run;

#[test]
fn a_few_seeds_of_every_pattern_keep_every_promise() {
    for pattern in PATTERNS {
        for seed in 100..104 {
            if let Err(failure) = run(seed, pattern, None) {
                panic!("{failure}");
            }
        }
    }
}

#[test]
fn forged_packets_reach_what_is_granted_to_them() {
    let pattern = Pattern::find("calm").unwrap();
    let reached: u64 = (0..20).map(|seed| run(seed, pattern, None).map_or(0, |outcome| outcome.reached)).sum();
    assert!(
        reached >= 5,
        "only {reached} NICs of 20 runs were reached: the attacker's packets are not what they should be"
    );
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..12 {
        let pattern = Pattern::of_seed(seed);
        let (first, second) = (run(seed, pattern, None), run(seed, pattern, None));
        assert_eq!(first, second, "cargo xtask sim --seed {seed} --pattern {}", pattern.name);
        assert_ne!(first, run(seed + 1000, pattern, None));
    }
}

/// Runs ten seeds with the rule broken: each must end with a failure, which `checker` found unless another one could see
/// the harm even earlier.
fn is_caught(rule: Rule, checker: &str) {
    let pattern = Pattern::find("loss").unwrap();
    let mut found = 0;
    for seed in 0..10 {
        match run(seed, pattern, Some(Canary::new(rule, seed as u32 % 3))) {
            Err(failure) => {
                found += u32::from(failure.checker == checker);
                assert!(failure.to_string().starts_with(&format!("cargo xtask sim --seed {seed} --pattern loss")));
            }
            Ok(outcome) => panic!("{rule:?} went unnoticed with seed {seed}: {outcome:?}"),
        }
    }
    assert!(found >= 7, "{checker} found {rule:?} {found} times of 10");
}

#[test]
fn a_write_that_is_acknowledged_and_not_done_is_noticed() {
    is_caught(Rule::AcknowledgeUnwritten, "bytes");
}

#[test]
fn a_damaged_payload_is_noticed() {
    is_caught(Rule::DamagePayload, "bytes");
}

#[test]
fn messages_that_change_places_are_noticed() {
    is_caught(Rule::SwapMessages, "order");
}

#[test]
fn an_atomic_that_is_done_twice_is_noticed() {
    is_caught(Rule::RepeatAtomic, "exactly once");
}

#[test]
fn a_completion_that_is_forgotten_is_noticed() {
    is_caught(Rule::ForgetCompletion, "progress");
}

#[test]
fn a_secret_that_is_carried_away_is_noticed() {
    is_caught(Rule::LeakSecret, "isolation");
}

#[test]
fn a_write_where_nothing_was_granted_is_noticed() {
    is_caught(Rule::WriteAnywhere, "isolation");
}
