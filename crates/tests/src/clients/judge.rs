//! What the outputs must show. Every judgement is a sentence when it is not met.

use super::case::Template;

/// Words that no output may hold, in any case of letters, unless the line also holds a word of `allow`.
const COMPLAINTS: &[&str] = &["error", "fail", "segmentation", "panicked", "mismatch", "corrupt", "couldn't", "unable"];

/// What is wrong with a side's output.
pub fn output(who: &str, text: &str, has: &[String], allow: &[String]) -> Vec<String> {
    let missing = has.iter().filter(|wanted| !wanted.split('|').any(|one| text.contains(one)));
    let mut wrong: Vec<String> = missing.map(|wanted| format!("{who} did not print `{wanted}`")).collect();
    for line in text.lines() {
        let small = line.to_lowercase();
        let complains = COMPLAINTS.iter().any(|word| small.contains(word));
        if complains && !allow.iter().any(|word| line.contains(word.as_str())) {
            wrong.push(format!("{who} complains: {}", line.trim()));
        }
    }
    wrong
}

/// What is wrong with an exit code.
pub fn exit(who: &str, code: Option<i32>, wanted: i32) -> Option<String> {
    match code {
        Some(code) if code == wanted => None,
        Some(code) if code > 128 && wanted < 128 => Some(format!("{who} died of signal {}", code - 128)),
        Some(code) => Some(format!("{who} ended with {code}, not {wanted}")),
        None => Some(format!("{who} did not end in time")),
    }
}

/// What is wrong with the number of lines that begin with a number.
pub fn rows(what: &Template, text: &str) -> Option<String> {
    let wanted: usize = what.rows.parse().ok()?;
    let begins = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.parse::<u64>().is_ok());
    let found = text.lines().filter(begins).count();
    (found != wanted).then(|| format!("the client printed {found} lines of figures, not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_and_missing_words_are_found() {
        let allow = ["no error".to_owned()];
        let has = ["bytes|octets".to_owned(), "iters".to_owned()];
        assert_eq!(output("client", "8 bytes, 7 iters, no error", &has, &allow), Vec::<String>::new());
        let wrong = output("client", "8 bytes\nFailed to poll", &has, &allow);
        assert_eq!(wrong, ["client did not print `iters`", "client complains: Failed to poll"]);
    }

    #[test]
    fn an_exit_by_signal_is_named() {
        assert_eq!(exit("server", Some(139), 0).as_deref(), Some("server died of signal 11"));
        assert_eq!(exit("server", Some(1), 1), None);
        assert_eq!(exit("server", None, 0).as_deref(), Some("server did not end in time"));
    }
}
