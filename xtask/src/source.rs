//! Reading the repository's own files for the checks: which there are, and Rust lines without comments and tests.

use crate::process::{output, root};
use std::process::Command;

/// A tracked or new file, with `/`-separated path from the root.
pub struct SourceFile {
    /// Path from the root of the repository.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// All files that git tracks or would add, as text; files that are not UTF-8 are left out.
pub fn files() -> Result<Vec<SourceFile>, String> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let mut files = Vec::new();
    for path in output(&mut git)?.lines() {
        if let Ok(text) = std::fs::read_to_string(root().join(path)) {
            files.push(SourceFile { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

impl SourceFile {
    /// True for Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Numbered lines of code: no comments, no string literals, nothing after the `#[cfg(test)]` module at the end.
    pub fn code(&self) -> Vec<(usize, String)> {
        let mut lines = Vec::new();
        let all: Vec<&str> = self.text.lines().collect();
        for (index, line) in all.iter().enumerate() {
            let opens_tests = line.trim().starts_with("#[cfg(")
                && line.contains("test")
                && all.get(index + 1).is_some_and(|next| next.trim().starts_with("mod ") && next.contains('{'));
            if opens_tests {
                break;
            }
            let code = without_comment(line);
            if !code.trim().is_empty() {
                lines.push((index + 1, code));
            }
        }
        lines
    }
}

/// The line without `//` comments and without what stands in double quotes. Good enough for rustfmt-formatted code.
fn without_comment(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let mut quoted = false;
    let mut previous = ' ';
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        if quoted {
            if c == '\\' {
                characters.next();
            } else if c == '"' {
                quoted = false;
                code.push('"');
            }
            continue;
        }
        if c == '/' && characters.peek() == Some(&'/') {
            break;
        }
        if c == '"' && previous != '\'' {
            quoted = true;
        }
        code.push(c);
        previous = c;
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_not_code() {
        assert_eq!(without_comment(r#"let a = "unsafe // x"; // unsafe"#), r#"let a = ""; "#);
        assert_eq!(without_comment("if c == '\"' { x }"), "if c == '\"' { x }");
    }

    #[test]
    fn the_test_module_at_the_end_is_left_out() {
        let text = "//! x\nfn a() {}\n#[cfg(all(test, not(loom)))]\nmod tests {\n fn b() {}\n}\n".to_owned();
        let file = SourceFile { path: "a.rs".to_owned(), text };
        assert_eq!(file.code(), [(2, "fn a() {}".to_owned())]);
    }
}
