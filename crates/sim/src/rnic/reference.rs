//! The points that the profiles must reproduce: what the course says and what was measured, each with its tolerance, its source, and whether a profile's
//! figures were chosen by it (fitted) or not (predicted). Points that contradict others are kept, compared, and said to differ and why; no average of a
//! contradiction is made. A point that is excused but agrees is a failure, too: the excuse is stale.

mod course;
mod measured;
mod table;

use super::profile::{Kind, Profile};

pub use measured::atomic_bw;

/// Tolerance of a measured point, and of a course figure that is written with `~`.
pub const TOLERANCE: f64 = 0.15;

/// What a point expects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// A value, within [`TOLERANCE`].
    About(f64),
    /// A range, ends included, without tolerance.
    Within(f64, f64),
}

impl Expected {
    /// True if `got` is as expected.
    pub fn holds(self, got: f64) -> bool {
        match self {
            Expected::About(value) => (got - value).abs() <= TOLERANCE * value.abs(),
            Expected::Within(low, high) => (low..=high).contains(&got),
        }
    }
}

/// Whether a figure of a profile was chosen by the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It was.
    Fitted,
    /// It was not: the model predicts it.
    Predicted,
}

/// What a model makes of a profile, or why it cannot.
pub type Model = Box<dyn Fn(&Profile) -> Result<f64, String> + Send + Sync>;

/// One point.
pub struct Point {
    /// Name, such as `cx6 READ 96 threads x 8`.
    pub name: String,
    /// Whose.
    pub profile: &'static str,
    /// In which kind of profile.
    pub kind: Kind,
    /// Unit of the values.
    pub unit: &'static str,
    /// What is expected.
    pub expected: Expected,
    /// Fitted or predicted.
    pub role: Role,
    /// Where it is from.
    pub source: &'static str,
    /// Why it may differ.
    pub excuse: Option<&'static str>,
    /// What the model says.
    pub model: Model,
}

/// What came of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As expected.
    Agrees,
    /// Differs, for a reason that is given.
    Differs,
    /// Differs without a reason, or could not be computed.
    Fails,
    /// Agrees though it is excused.
    Stale,
}

impl Verdict {
    /// True if the validation must fail.
    pub fn is_failure(self) -> bool {
        matches!(self, Verdict::Fails | Verdict::Stale)
    }

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Verdict::Agrees => "ok",
            Verdict::Differs => "differs",
            Verdict::Fails => "FAILS",
            Verdict::Stale => "STALE",
        }
    }
}

impl Point {
    /// Asks the model: the value, if there is one, and the verdict.
    pub fn judge(&self) -> (Result<f64, String>, Verdict) {
        let profile = Profile::named(self.profile, self.kind).map_err(|error| error.to_string());
        let got = profile.and_then(|profile| (self.model)(&profile));
        let agrees = got.as_ref().is_ok_and(|got| self.expected.holds(*got));
        let verdict = match (agrees, self.excuse) {
            (true, None) => Verdict::Agrees,
            (true, Some(_)) => Verdict::Stale,
            (false, Some(_)) if got.is_ok() => Verdict::Differs,
            (false, _) => Verdict::Fails,
        };
        (got, verdict)
    }
}

/// All points: the course's, then the measured ones.
pub fn points() -> Vec<Point> {
    let mut points = course::points();
    points.extend(measured::points());
    points
}

/// Judges points, on as many threads as `jobs`. The order and the values do not depend on `jobs`.
pub fn judge_all(points: &[Point], jobs: usize) -> Vec<(Result<f64, String>, Verdict)> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done: std::sync::Mutex<Vec<_>> = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, 64) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(point) = points.get(at) else { return };
                    let judged = point.judge();
                    done.lock().expect("no judge panics").push((at, judged));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no judge panics");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, judged)| judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_agrees_or_says_why_not() {
        let points = points();
        let judged = judge_all(&points, 2);
        let mut wrong = String::new();
        for (point, (got, verdict)) in points.iter().zip(&judged) {
            if verdict.is_failure() {
                let (expected, label) = (point.expected, verdict.label());
                wrong +=
                    &format!("{label} {} ({}): expected {expected:?}, got {got:?}\n", point.name, point.kind.label());
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
        let count = |role| points.iter().zip(&judged).filter(|(p, j)| p.role == role && j.1 == Verdict::Agrees).count();
        let excused = judged.iter().filter(|(_, verdict)| *verdict == Verdict::Differs).count();
        // Most of what agrees was predicted, and little is excused; else this page says nothing.
        assert!(count(Role::Predicted) > count(Role::Fitted), "{} fitted", count(Role::Fitted));
        assert!(excused * 12 < points.len(), "{excused} excused of {}", points.len());
    }

    #[test]
    fn a_point_that_is_wrong_is_seen() {
        let mut point = points().remove(0);
        (point.expected, point.excuse) = (Expected::Within(-2.0, -1.0), None);
        assert_eq!(point.judge().1, Verdict::Fails);
        point.excuse = Some("because");
        assert_eq!(point.judge().1, Verdict::Differs);
        let (got, _) = point.judge();
        point.expected = Expected::About(got.unwrap());
        assert_eq!(point.judge().1, Verdict::Stale);
        point.excuse = None;
        assert_eq!(point.judge().1, Verdict::Agrees);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> =
            points().into_iter().map(|point| format!("{} {:?}", point.name, point.kind)).collect();
        names.sort();
        let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}
