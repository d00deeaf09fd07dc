//! The tests of rdma-core, as Python's unittest prints them. A failure fails; a skip fails, too, unless the list
//! `crates/tests/clients/pyverbs-skips.txt` has it with a reason. A test of the list that is not skipped any more fails as
//! well, so that the list stays true.

use std::collections::BTreeMap;
use std::path::Path;

/// The tests that may be skipped: `module.Class.test`, or with a `?` if that depends on the machine, or `module.Class.*`, or
/// `module.*`; and the reason.
pub type Skips = BTreeMap<String, String>;

/// One test's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// `module.Class.test`.
    pub id: String,
    /// `ok`, `FAIL`, `ERROR`, or `skipped`.
    pub result: String,
    /// Why it was skipped.
    pub reason: String,
}

/// Reads the list: a line is an id, spaces, a reason; `#` begins a comment.
pub fn read(path: &Path) -> Result<Skips, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let (id, reason) =
                line.split_once(char::is_whitespace).ok_or_else(|| format!("{}: no reason: {line}", path.display()))?;
            Ok((id.to_owned(), reason.trim().to_owned()))
        })
        .collect()
}

/// The results in what `unittest -v` prints: `test_name (tests.module.Class) ... result`, where a description may stand
/// on a line of its own, and what the test prints between the dots and the result.
pub fn results(text: &str) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        if line.starts_with("======") {
            break;
        }
        if let Some(id) = heading(line) {
            open = Some(id);
        }
        let Some(id) = &open else { continue };
        let words = line.rsplit_once("... ").map_or(line, |(_, after)| after);
        let found =
            ["ok", "FAIL", "ERROR"].into_iter().find(|word| words == *word || words.ends_with(&format!("... {word}")));
        let skipped = words.strip_prefix("skipped ");
        if let Some(word) = found.or_else(|| skipped.map(|_| "skipped")) {
            let reason = skipped.unwrap_or_default().trim_matches(['\'', '"']).to_owned();
            tests.push(Test { id: id.clone(), result: word.to_owned(), reason });
            open = None;
        }
    }
    // The last one may have died.
    tests.extend(open.map(|id| Test { id, result: "died".to_owned(), reason: String::new() }));
    tests
}

/// `module.Class.test` of a line such as `test_x (tests.test_cq.CQTest)`.
fn heading(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" (")?;
    let (place, _) = rest.split_once(')')?;
    let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    if !name.starts_with("test") && name != "setUpClass" || !is_name(name) || !is_name(place) {
        return None;
    }
    // Newer versions of Python repeat the name in the brackets.
    let place = place.strip_prefix("tests.").unwrap_or(place);
    let place = place.strip_suffix(&format!(".{name}")).unwrap_or(place);
    Some(format!("{place}.{name}"))
}

/// The reason the list gives for a test.
fn listed<'a>(id: &str, skips: &'a Skips) -> Option<&'a str> {
    let mut name = id;
    if let Some(reason) = skips.get(name).or_else(|| skips.get(&format!("{name}?"))) {
        return Some(reason);
    }
    while let Some((head, _)) = name.rsplit_once('.') {
        if let Some(reason) = skips.get(&format!("{head}.*")) {
            return Some(reason);
        }
        name = head;
    }
    None
}

/// What is wrong with a run's output.
pub fn judge(text: &str, skips: &Skips) -> Vec<String> {
    let tests = results(text);
    let mut wrong = Vec::new();
    for test in &tests {
        let reason = listed(&test.id, skips);
        match (test.result.as_str(), reason) {
            ("ok", None) | ("skipped", Some(_)) => {}
            ("ok", Some(_)) if !skips.contains_key(&test.id) => {}
            ("ok", Some(_)) => wrong.push(format!("{} is in the list of skips but passes", test.id)),
            ("skipped", None) => wrong.push(format!("{} was skipped: {}", test.id, test.reason)),
            (result, _) => wrong.push(format!("{}: {result}", test.id)),
        }
    }
    if !text.lines().any(|line| line.starts_with("Ran ")) {
        wrong.push("the run did not reach its end".to_owned());
    }
    if tests.is_empty() {
        wrong.push("no test ran".to_owned());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "test_a (tests.test_cq.CQTest) ... ok\ntest_b (tests.test_cq.CQTest)\nSays what it is ... ok\n\
                        test_c (tests.test_flow.F) ... skipped 'no flows'\ntest_d (tests.test_qp.Q) ... noise\nFAIL\n\n\
                        ======\nFAIL: test_d\n------\nRan 4 tests in 1s\n";

    #[test]
    fn results_are_read() {
        let results: Vec<String> = results(TEXT).iter().map(|test| format!("{} {}", test.id, test.result)).collect();
        assert_eq!(
            results,
            [
                "test_cq.CQTest.test_a ok",
                "test_cq.CQTest.test_b ok",
                "test_flow.F.test_c skipped",
                "test_qp.Q.test_d FAIL"
            ]
        );
    }

    #[test]
    fn a_skip_needs_a_reason_and_a_reason_needs_a_skip() {
        let skips: Skips = [("test_cq.CQTest.test_a".to_owned(), "x".to_owned())].into();
        let wrong = judge(TEXT, &skips);
        assert_eq!(wrong[0], "test_cq.CQTest.test_a is in the list of skips but passes");
        assert_eq!(wrong[1], "test_flow.F.test_c was skipped: no flows");
        let skips: Skips =
            [("test_flow.*".to_owned(), "x".to_owned()), ("test_cq.CQTest.test_a?".to_owned(), "x".to_owned())].into();
        assert_eq!(judge(TEXT, &skips), ["test_qp.Q.test_d: FAIL"]);
    }

    #[test]
    fn a_run_that_dies_is_noticed() {
        let wrong = judge("test_a (tests.test_cq.CQTest) ... ", &Skips::new());
        assert_eq!(wrong, ["test_cq.CQTest.test_a: died", "the run did not reach its end"]);
    }
}
