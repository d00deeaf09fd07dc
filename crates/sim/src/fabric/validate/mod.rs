//! Does the simulator agree with what is known? Closed forms, the runs of a reference simulator on the same flows, published curves, and what must never
//! happen. Each check prints what was expected, what was got and how far apart they may be; where ours differs for a reason, the reason stands beside it.

mod closed_form;
mod pint;
mod published;
mod rebinding;
mod reference;
mod rnic;
pub mod trial;

use std::fmt::Write;

/// One thing that was compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Which group it belongs to.
    pub group: String,
    /// What was compared.
    pub name: String,
    /// What it should be.
    pub expected: f64,
    /// What it is.
    pub got: f64,
    /// How far apart they may be, in per cent of what is expected; 0: not at all.
    pub tolerance_percent: f64,
    /// Of what.
    pub unit: &'static str,
    /// Why it may differ; empty: for no known reason.
    pub why: String,
    /// It is known to differ, for the reason in `why`, and stands here to be seen. If it does not differ any more, the reason is stale, and that is a failure.
    pub known_to_differ: bool,
}

impl Check {
    /// A check.
    pub fn new(
        group: &str,
        name: impl Into<String>,
        expected: f64,
        got: f64,
        tolerance_percent: f64,
        unit: &'static str,
    ) -> Self {
        Self {
            group: group.to_owned(),
            name: name.into(),
            expected,
            got,
            tolerance_percent,
            unit,
            why: String::new(),
            known_to_differ: false,
        }
    }

    /// With a reason why it may differ.
    #[must_use]
    pub fn because(mut self, why: &str) -> Self {
        self.why = why.to_owned();
        self
    }

    /// Of what contradicts other known results.
    #[must_use]
    pub fn known_to_differ(self, why: &str) -> Self {
        Self { known_to_differ: true, ..self.because(why) }
    }

    /// How far apart they are, in per cent.
    pub fn difference_percent(&self) -> f64 {
        if self.expected == self.got {
            return 0.0;
        }
        if self.expected == 0.0 { f64::INFINITY } else { (self.got / self.expected - 1.0) * 100.0 }
    }

    /// Whether they agree, or differ as is known.
    pub fn agrees(&self) -> bool {
        self.is_within() != self.known_to_differ
    }

    fn is_within(&self) -> bool {
        // A range of a point is turned into per cent, which may cost a bit at its ends.
        self.difference_percent().abs() <= self.tolerance_percent * (1.0 + 1e-9)
    }

    /// In a word.
    fn verdict(&self) -> &'static str {
        match (self.is_within(), self.known_to_differ) {
            (true, false) => "ok",
            (false, true) => "known",
            (true, true) => "STALE",
            (false, false) => "DIFFERS",
        }
    }
}

/// What shall be checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope {
    /// Also what takes minutes: the fat tree of 320 hosts.
    pub long: bool,
}

/// A group of checks: its name, and what makes them.
pub type Group = (&'static str, fn() -> Result<Vec<Check>, String>);

/// The groups of a scope.
pub fn groups(scope: Scope) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![
        ("closed forms", closed_form::checks),
        ("incast and two flows", reference::small),
        ("DCQCN, mean of 8 seeds", reference::dcqcn),
        ("HPCC, PINT beside INT", pint::checks),
        ("go-back-N under loss", reference::go_back_n),
        ("FB_Hadoop 50 % on 32 hosts", reference::fb_star32),
        ("WebSearch 50 % on 32 hosts", reference::ws_star32),
        ("rebinding of QPs", rebinding::checks),
        ("NIC timing, course", rnic::course),
        ("NIC timing, measured", rnic::measured),
    ];
    if scope.long {
        groups.push(("FB_Hadoop 30 % on 320 hosts, published", published::checks));
        groups.push(("rebinding of QPs on 128 nodes", rebinding::long));
    }
    groups
}

fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v >= 100_000.0 => format!("{value:.0}"),
        v if v >= 1_000.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A tolerance in per cent, with two digits where it has that many.
fn may(percent: f64) -> f64 {
    if percent < 0.01 { percent } else { (percent * 100.0).round() / 100.0 }
}

/// A table of checks, at most 100 columns.
pub fn table(checks: &[Check]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{:<38} {:>12} {:>12} {:>5} {:>9} {:>7}", "", "expected", "got", "", "differs", "may");
    let mut group = "";
    for check in checks {
        if check.group != group {
            group = &check.group;
            let _ = writeln!(out, "{group}");
        }
        let difference = check.difference_percent();
        let differs = if difference.is_finite() { format!("{difference:+.2}%") } else { "all".to_owned() };
        let _ = writeln!(
            out,
            "  {:<36} {:>12} {:>12} {:>5} {:>9} {:>6}%  {}",
            check.name,
            number(check.expected),
            number(check.got),
            check.unit,
            differs,
            may(check.tolerance_percent),
            check.verdict()
        );
        if !check.why.is_empty() && check.verdict() != "ok" {
            let _ = writeln!(out, "      {}", check.why);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_to_differ_agrees_only_while_it_differs() {
        let check = |got: f64| Check::new("group", "name", 100.0, got, 5.0, "µs");
        for (check, agrees, verdict) in [
            (check(105.0), true, "ok"),
            (check(105.1), false, "DIFFERS"),
            (check(105.1).because("chance"), false, "DIFFERS"),
            (check(105.1).known_to_differ("sources contradict each other"), true, "known"),
            (check(105.0).known_to_differ("sources contradict each other"), false, "STALE"),
        ] {
            assert_eq!((check.agrees(), check.verdict()), (agrees, verdict), "{check:?}");
            assert!(table(&[check]).contains(verdict), "{verdict}");
        }
        let known = table(&[check(200.0).known_to_differ("sources contradict each other")]);
        assert!(known.contains("\n      sources contradict each other\n"), "{known}");
    }
}
