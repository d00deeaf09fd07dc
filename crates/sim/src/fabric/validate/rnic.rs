//! The points of the NIC timing model ([`crate::rnic::reference`]) as checks beside those of fabrics. A point that is excused, because it contradicts another
//! point of its source, counts as known to differ.

use super::Check;
use crate::rnic::Kind;
use crate::rnic::reference::{Expected, Point, TOLERANCE, judge_all, points};

/// What engineers are taught.
pub(super) fn course() -> Result<Vec<Check>, String> {
    checks("NIC timing, course", Kind::Course)
}

/// What was measured and published.
pub(super) fn measured() -> Result<Vec<Check>, String> {
    checks("NIC timing, measured", Kind::Measured)
}

fn checks(group: &str, kind: Kind) -> Result<Vec<Check>, String> {
    let points: Vec<Point> = points().into_iter().filter(|point| point.kind == kind).collect();
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let judged = judge_all(&points, jobs);
    let checks = points.iter().zip(judged).map(|(point, (got, _))| {
        // A range is its middle, and half its width.
        let (expected, tolerance) = match point.expected {
            Expected::About(value) => (value, TOLERANCE * 100.0),
            Expected::Within(low, high) => ((low + high) / 2.0, (high - low) / (low + high).abs() * 100.0),
        };
        let got = got.map_err(|error| format!("{}: {error}", point.name))?;
        let check = Check::new(group, point.name.as_str(), expected, got, tolerance, point.unit);
        Ok(match point.excuse {
            Some(why) => check.known_to_differ(why),
            None => check,
        })
    });
    checks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rnic::reference::Verdict;

    #[test]
    fn a_check_says_of_a_point_what_the_model_of_nics_says() {
        let points: Vec<Point> = points().into_iter().filter(|point| point.kind == Kind::Course).collect();
        let checks = course().unwrap();
        assert_eq!(checks.len(), points.len());
        for (check, (point, (got, verdict))) in checks.iter().zip(points.iter().zip(judge_all(&points, 2))) {
            assert_eq!((check.name.as_str(), Ok(check.got)), (point.name.as_str(), got));
            assert_eq!(check.agrees(), !verdict.is_failure(), "{check:?}");
            assert_eq!(check.known_to_differ, verdict == Verdict::Differs, "{check:?}");
        }
        assert!(checks.iter().any(|check| check.known_to_differ) && checks.iter().any(|check| !check.known_to_differ));
    }
}
