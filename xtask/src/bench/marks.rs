//! The part of a page of the documentation that a command writes: what stands between two marks.

use crate::process::{Outcome, root};
use std::fs;

const END: &str = "<!-- end -->";

/// A part of a page, and the command that makes it.
pub struct Marks {
    /// The page, from the root of the repository.
    pub page: &'static str,
    /// As it stands in the first mark.
    pub command: &'static str,
}

impl Marks {
    fn begin(&self) -> String {
        format!("<!-- made by `{}` -->", self.command)
    }

    fn lost(&self) -> String {
        format!("{} has lost its marks: `{}` … `{END}`", self.page, self.begin())
    }

    /// What stands there.
    pub fn read(&self) -> Result<String, String> {
        let page = fs::read_to_string(root().join(self.page)).map_err(|error| format!("{}: {error}", self.page))?;
        self.between(&page).map(|(_, text, _)| text.to_owned()).ok_or_else(|| self.lost())
    }

    /// Puts a text in the place of what stood there.
    pub fn write(&self, text: &str) -> Outcome {
        let path = root().join(self.page);
        let page = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", self.page))?;
        let page = self.with(&page, text).ok_or_else(|| self.lost())?;
        fs::write(&path, page).map_err(|error| format!("{}: {error}", self.page))
    }

    fn between<'p>(&self, page: &'p str) -> Option<(&'p str, &'p str, &'p str)> {
        let begin = self.begin();
        let at = page.find(&begin)? + begin.len();
        let length = page[at..].find(END)?;
        Some((&page[..at], &page[at..at + length], &page[at + length..]))
    }

    fn with(&self, page: &str, text: &str) -> Option<String> {
        let (before, _, after) = self.between(page)?;
        Some(format!("{before}\n\n{}\n\n{after}", text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_its_own_marks_changes() {
        let marks = |command| Marks { page: "docs/a.md", command };
        let (one, two) = (marks("one"), marks("two"));
        let page = format!("# A\n\n{}\nold\n{END}\nbetween\n{}\nold too\n{END}\nafter\n", one.begin(), two.begin());
        let page = two.with(&page, "new\n").unwrap();
        assert!(page.ends_with(&format!("between\n{}\n\nnew\n\n{END}\nafter\n", two.begin())), "{page}");
        assert_eq!(one.between(&page).unwrap().1, "\nold\n");
        assert_eq!(two.between(&page).unwrap().1, "\n\nnew\n\n");
        assert_eq!(marks("three").with(&page, "new"), None);
    }
}
