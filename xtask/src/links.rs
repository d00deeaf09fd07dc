//! Links between the pages: every relative link in a Markdown file must lead to a file that is there, and every path of
//! the source that a page names in backticks must exist.

use crate::process::{Outcome, root};
use crate::source;

/// Checks all Markdown files.
pub fn check() -> Outcome {
    let mut wrong = Vec::new();
    for file in source::files()?.iter().filter(|f| f.path.ends_with(".md")) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, line) in file.text.lines().enumerate() {
            for target in link_targets(line) {
                if !root().join(folder).join(target).exists() {
                    wrong.push(format!("{}:{}: the link to {target} leads nowhere", file.path, index + 1));
                }
            }
            for path in named_paths(line) {
                if !root().join(path).exists() {
                    wrong.push(format!("{}:{}: `{path}` does not exist", file.path, index + 1));
                }
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("\n      {}", wrong.join("\n      "))) }
}

/// Relative targets of `[text](target)`, without their fragments.
fn link_targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for part in line.split("](").skip(1) {
        let target = part.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") {
            targets.push(target);
        }
    }
    targets
}

/// Paths in backticks that start in one of our folders and hold no placeholder.
fn named_paths(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter(|word| ["crates/", "xtask/", "docs/", "examples/", "fuzz/"].iter().any(|start| word.starts_with(start)))
        .filter(|word| !word.contains(|c: char| "<>*{} …,:".contains(c)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_and_named_paths_are_found() {
        assert_eq!(link_targets("see [a](docs/a.md#top) and [b](https://x.y) and [c](#here)"), ["docs/a.md"]);
        assert_eq!(named_paths("in `crates/wire/src/ids.rs`, `crates/<name>` and `cargo`"), ["crates/wire/src/ids.rs"]);
    }
}
