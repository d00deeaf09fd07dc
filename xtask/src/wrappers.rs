//! Objects that stand before another backend's objects forward every method of the contract: one with a default body that a wrapper leaves out compiles, and
//! silently answers for the wrong backend. The compiler does not see that; here the text is read: the methods of the trait, and those of the `impl`. It
//! judges nothing else.

use crate::source::SourceFile;
use std::collections::BTreeSet;

/// Where the traits stand.
const CONTRACT: &str = "crates/verbs/src/";

/// Files and folders in which each `impl` of a trait of the contract is a wrapper.
const WRAPPERS: &[&str] = &["crates/fabric/src/guard/", "crates/nic/src/provider.rs"];

/// Methods that a wrapper leaves out.
pub fn left_out(files: &[SourceFile]) -> Vec<String> {
    let contract = files.iter().filter(|file| file.path.starts_with(CONTRACT));
    let traits: Vec<(String, BTreeSet<String>)> = contract.flat_map(|file| blocks(file, "pub trait ")).collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in files.iter().filter(|file| WRAPPERS.iter().any(|place| file.path.starts_with(place))) {
        for (head, methods) in blocks(file, "impl ") {
            let Some((name, wrapper)) = head.split_once(" for ") else { continue };
            let Some((_, all)) = traits.iter().find(|(known, _)| first_word(known) == name) else { continue };
            seen += 1;
            for method in all.difference(&methods) {
                wrong.push(format!("{}: `{wrapper}` does not forward `{name}::{method}`", file.path));
            }
        }
    }
    // A rule that finds nothing to look at has lost what it looks for.
    if seen == 0 {
        wrong.push(format!("no wrapper of a trait of {CONTRACT} is found in {}", WRAPPERS.join(", ")));
    }
    wrong
}

/// Items that begin a line so: what stands between that and the brace, and the methods directly inside.
fn blocks(file: &SourceFile, begin: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    let mut open: Option<(String, BTreeSet<String>)> = None;
    for (_, line) in file.code() {
        match &mut open {
            None => {
                let head = line.strip_prefix(begin).and_then(|rest| rest.trim_end().strip_suffix('{'));
                open = head.map(|head| (head.trim().to_owned(), BTreeSet::new()));
            }
            Some(_) if line.starts_with('}') => found.extend(open.take()),
            Some((_, methods)) => methods.extend(method(&line)),
        }
    }
    found
}

/// The method that begins on a line, one step inside of its item.
fn method(line: &str) -> Option<String> {
    let inside = line.strip_prefix("    ").filter(|rest| !rest.starts_with(' '))?;
    let name = inside.strip_prefix("unsafe ").unwrap_or(inside).strip_prefix("fn ")?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(name[..end].to_owned())
}

fn first_word(head: &str) -> &str {
    head.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    const TRAIT: &str = "//! x\npub trait Thing: Debug {\n    fn one(&self);\n    unsafe fn two(&self) {}\n    /// fn not\n    fn three(&self) -> bool {\n        false\n    }\n}\n";

    fn wrapper(methods: &str) -> Vec<String> {
        let text = format!("//! x\nimpl Other for W {{\n}}\nimpl Thing for W {{\n{methods}}}\n");
        left_out(&[file("crates/verbs/src/thing.rs", TRAIT), file("crates/fabric/src/guard/w.rs", &text)])
    }

    #[test]
    fn a_method_with_a_default_that_a_wrapper_leaves_out_is_found() {
        let all =
            "    fn one(&self) {\n    }\n    unsafe fn two(&self) {\n    }\n    fn three(&self) -> bool {\n    }\n";
        assert!(wrapper(all).is_empty());
        let wrong = wrapper(&all.replace("    fn three(&self) -> bool {\n", "    fn four(&self) -> bool {\n"));
        assert_eq!(wrong, ["crates/fabric/src/guard/w.rs: `W` does not forward `Thing::three`"]);
        // A method of the same name deeper inside is not it.
        assert_eq!(wrapper(&all.replace("    fn one", "        fn one")).len(), 1);
    }

    #[test]
    fn a_rule_that_finds_no_wrapper_says_so() {
        assert_eq!(left_out(&[file("crates/verbs/src/thing.rs", TRAIT)]).len(), 1);
    }
}
