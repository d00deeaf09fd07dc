//! docs/performance.md: the tables of the last `cargo xtask bench --peers --page`.

use super::Measured;
use crate::bench::marks::Marks;
use crate::process::Outcome;

const PAGE: Marks = Marks { page: "docs/performance.md", command: "cargo xtask bench --peers --page" };

/// Puts what was measured in the place of what stood there.
pub fn write(measured: &[Measured], machine: &str, command: &str) -> Outcome {
    PAGE.write(&tables(measured, machine, command))
}

fn tables(measured: &[Measured], machine: &str, command: &str) -> String {
    let mut text = format!("`{command}`\n\n{machine}\n\n");
    text += "| ours / theirs | ours, theirs | ratio | least to most | floor | aim | reached | CPU s/GB, both ends |\n|---|---|---|---|---|---|---|---|\n";
    for row in measured.iter().filter(|row| row.skipped.is_none()) {
        text += &format!("| {} |\n", row.cells()[..8].join(" | "));
    }
    let skipped: Vec<_> = measured.iter().filter_map(|row| Some((&row.name, row.skipped.as_ref()?))).collect();
    if !skipped.is_empty() {
        text += "\nNot measured:\n\n";
        for (name, why) in skipped {
            text += &format!("- {name}: {why}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Goal, Sample};
    use super::*;

    #[test]
    fn a_row_and_a_reason_are_told() {
        let sample = Sample { ours: 2.0, theirs: 1.0, cpu: [Some(0.5), None] };
        let row = |name: &str, skipped: Option<&str>| Measured {
            name: name.to_owned(),
            unit: "us",
            goal: Goal::AtMost(2.0, 1.3),
            samples: vec![sample],
            skipped: skipped.map(str::to_owned),
        };
        let text = tables(&[row("a / b", None), row("c / d", Some("no root"))], "a machine", "a command");
        assert!(
            text.contains("| a / b | 2.00, 1.00 us | 2.00 | 2.00 to 2.00 | <= 2 | <= 1.3 | floor | 0.50, - |"),
            "{text}"
        );
        assert!(text.contains("- c / d: no root"), "{text}");
    }
}
