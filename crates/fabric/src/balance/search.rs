//! The smallest set of moves as a problem of its own: what each hot lane must lose, who can take how much off it, and where there is room. A greedy
//! answer, an exact search for a set of a given size, and a bound below. It knows nothing of time, rest or limits.

use super::ground::{Fit, Ground};
use super::relieve::{Candidate, Lane, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The problem.
pub(super) struct Problem<'a> {
    candidates: &'a [Candidate<'a>],
    /// What each lane must lose, bits per second; not above 0: nothing.
    needs: Vec<i128>,
    /// What is worth a move, by lane: a thousandth of its capacity.
    worth: Vec<i128>,
    /// By lane: those who can take something off it, with the most that this and later ones can, and the sum of it.
    relievers: Vec<Vec<Reliever>>,
    /// The first candidate behind this one that differs from it in more than its name.
    next_kind: Vec<usize>,
}

/// A candidate that can take load off a lane.
#[derive(Clone, Copy)]
struct Reliever {
    candidate: usize,
    most: i128,
    /// The greatest of this and later ones, and their sum.
    most_from: i128,
    sum_from: i128,
}

/// A greedy answer.
pub(super) struct Greedy {
    pub steps: Vec<Step>,
    /// All needs are met.
    pub is_complete: bool,
}

/// What a search says.
pub(super) enum Verdict {
    /// This set meets all needs.
    Found(Vec<Step>),
    /// No set of this size does.
    NoSuchSet,
    /// The steps were used up.
    Unknown,
}

/// What a dive says.
enum Dive {
    Found,
    Nothing,
    OutOfSteps,
}

impl<'a> Problem<'a> {
    pub fn new(lanes: &[Lane], candidates: &'a [Candidate<'a>], needs: Vec<i128>) -> Self {
        let count = candidates.len();
        let mut relievers: Vec<Vec<Reliever>> = vec![Vec::new(); lanes.len()];
        for (candidate, one) in candidates.iter().enumerate() {
            for &(lane, most) in &one.most {
                relievers[lane].push(Reliever { candidate, most, most_from: most, sum_from: most });
            }
        }
        for all in &mut relievers {
            for n in (0..all.len().saturating_sub(1)).rev() {
                let behind = all[n + 1];
                all[n].most_from = all[n].most.max(behind.most_from);
                all[n].sum_from = all[n].most + behind.sum_from;
            }
        }
        let mut next_kind = vec![count; count];
        for n in (0..count.saturating_sub(1)).rev() {
            next_kind[n] = if same_kind(&candidates[n], &candidates[n + 1]) { next_kind[n + 1] } else { n + 1 };
        }
        let worth = lanes.iter().map(|lane| i128::from(lane.capacity_bps / 1000).max(1)).collect();
        Self { candidates, needs, worth, relievers, next_kind }
    }

    /// A number of moves below which no set meets all needs, wherever there is room; `None` if all candidates together do not.
    pub fn at_least(&self) -> Option<usize> {
        (0..self.needs.len()).map(|lane| self.fewest(lane, self.needs[lane])).try_fold(0, |most, n| Some(most.max(n?)))
    }

    /// The same for what a given set reaches.
    pub fn at_least_for(&self, steps: &[Step]) -> usize {
        let mut reached = vec![0; self.needs.len()];
        for &(lane, relief) in steps.iter().flat_map(|step| self.relief(*step)) {
            reached[lane] += relief;
        }
        let fewest = |lane: usize| self.fewest(lane, reached[lane].min(self.needs[lane]));
        (0..self.needs.len()).filter_map(fewest).max().unwrap_or(0)
    }

    /// How many of the largest it takes to meet one lane's need.
    fn fewest(&self, lane: usize, mut need: i128) -> Option<usize> {
        let mut most: Vec<i128> = self.relievers[lane].iter().map(|reliever| reliever.most).collect();
        most.sort_unstable_by_key(|&bps| Reverse(bps));
        let mut count = 0;
        for bps in most {
            if need <= 0 {
                break;
            }
            need -= bps;
            count += 1;
        }
        (need <= 0).then_some(count)
    }

    fn relief(&self, step: Step) -> &'a [(usize, i128)] {
        &self.candidates[step.candidate].exits[step.exit].relief
    }

    /// Whenever there is a next move: the one that takes most off, as far as it is needed; among equals the one that moves least. What takes less than
    /// a thousandth off is not worth it, unless it is the last that is needed. Then what turned out to be superfluous is left out.
    pub fn greedy(&self, mut ground: Ground) -> Greedy {
        let mut needs = self.needs.clone();
        let mut steps = Vec::new();
        let mut heap: BinaryHeap<(i128, Reverse<u64>, Reverse<usize>)> = (0..self.candidates.len())
            .filter_map(|n| Some((self.best_exit(n, &needs, &ground)?.1, Reverse(self.size(n)), Reverse(n))))
            .collect();
        // Gains only become smaller, so the first one that still has its gain is the best of all.
        while let Some((gain, size, Reverse(n))) = heap.pop() {
            let Some((exit, now)) = self.best_exit(n, &needs, &ground) else { continue };
            if now < gain {
                heap.push((now, size, Reverse(n)));
                continue;
            }
            let step = Step { candidate: n, exit };
            self.apply(step, &mut ground, &mut needs);
            steps.push(step);
        }
        self.prune(&mut steps, &mut ground, &mut needs);
        Greedy { is_complete: needs.iter().all(|&need| need <= 0), steps }
    }

    /// The exit of a candidate that gains most, then fills its port least, and what it gains.
    fn best_exit(&self, candidate: usize, needs: &[i128], ground: &Ground) -> Option<(usize, i128)> {
        let Candidate { fact, load_bps, exits, .. } = &self.candidates[candidate];
        let mut best: Option<(i128, Reverse<u32>, usize)> = None;
        for (n, exit) in exits.iter().enumerate() {
            let mut gain = 0;
            let mut is_worth_it = false;
            for &(lane, relief) in &exit.relief {
                let need = needs[lane];
                if need > 0 {
                    gain += need.min(relief);
                    is_worth_it |= relief >= self.worth[lane] || relief >= need;
                }
            }
            if !is_worth_it || best.is_some_and(|(most, ..)| gain < most) {
                continue;
            }
            let Some((Fit::Good, level)) = ground.fit(fact.route, exit.to, *load_bps) else { continue };
            if best.is_none_or(|(most, least, _)| (gain, Reverse(level)) > (most, least)) {
                best = Some((gain, Reverse(level), n));
            }
        }
        best.map(|(gain, _, n)| (n, gain))
    }

    fn size(&self, candidate: usize) -> u64 {
        let [tx, rx] = self.candidates[candidate].load_bps;
        tx.saturating_add(rx)
    }

    fn apply(&self, step: Step, ground: &mut Ground, needs: &mut [i128]) {
        let Candidate { fact, load_bps, exits, .. } = &self.candidates[step.candidate];
        ground.claim(fact.route, exits[step.exit].to, *load_bps);
        for &(lane, relief) in &exits[step.exit].relief {
            needs[lane] -= relief;
        }
    }

    fn undo(&self, step: Step, ground: &mut Ground, needs: &mut [i128]) {
        let Candidate { fact, load_bps, exits, .. } = &self.candidates[step.candidate];
        ground.release(fact.route, exits[step.exit].to, *load_bps);
        for &(lane, relief) in &exits[step.exit].relief {
            needs[lane] += relief;
        }
    }

    /// Leaves out moves without which every lane that has its need met still has, and every other one is not worse: the smallest first.
    fn prune(&self, steps: &mut Vec<Step>, ground: &mut Ground, needs: &mut [i128]) {
        for n in (0..steps.len()).rev() {
            let step = steps[n];
            let is_superfluous =
                self.relief(step).iter().all(|&(lane, relief)| needs[lane] + relief <= needs[lane].max(0));
            if is_superfluous {
                self.undo(step, ground, needs);
                steps.remove(n);
            }
        }
    }

    /// Looks for a set of exactly `size` moves, or fewer, that meets all needs.
    pub fn search(&self, mut ground: Ground, size: usize, steps_left: &mut u32) -> Verdict {
        let mut needs = self.needs.clone();
        let mut steps = Vec::with_capacity(size);
        match self.dive(0, size, &mut ground, &mut needs, &mut steps, steps_left) {
            Dive::Found => Verdict::Found(steps),
            Dive::Nothing => Verdict::NoSuchSet,
            Dive::OutOfSteps => Verdict::Unknown,
        }
    }

    fn dive(
        &self,
        from: usize,
        left: usize,
        ground: &mut Ground,
        needs: &mut [i128],
        steps: &mut Vec<Step>,
        steps_left: &mut u32,
    ) -> Dive {
        if needs.iter().all(|&need| need <= 0) {
            return Dive::Found;
        }
        let mut n = from;
        while left > 0 && n < self.candidates.len() && !self.is_hopeless(n, left, needs) {
            let Candidate { fact, load_bps, exits, .. } = &self.candidates[n];
            for (exit, way) in exits.iter().enumerate() {
                if *steps_left == 0 {
                    return Dive::OutOfSteps;
                }
                *steps_left -= 1;
                if !matches!(ground.fit(fact.route, way.to, *load_bps), Some((Fit::Good, _))) {
                    continue;
                }
                let step = Step { candidate: n, exit };
                self.apply(step, ground, needs);
                steps.push(step);
                match self.dive(n + 1, left - 1, ground, needs, steps, steps_left) {
                    Dive::Nothing => {}
                    end => return end,
                }
                steps.pop();
                self.undo(step, ground, needs);
            }
            // Whoever is left out, its equals behind it need not be tried in its place.
            n = self.next_kind[n];
        }
        Dive::Nothing
    }

    /// Whether `left` moves of candidates from `n` on cannot meet the needs.
    fn is_hopeless(&self, n: usize, left: usize, needs: &[i128]) -> bool {
        needs.iter().enumerate().filter(|(_, need)| **need > 0).any(|(lane, &need)| {
            let all = &self.relievers[lane];
            let next = all.get(all.partition_point(|reliever| reliever.candidate < n));
            need > next.map_or(0, |next| (next.most_from * left as i128).min(next.sum_from))
        })
    }
}

/// Whether two candidates can stand for one another.
fn same_kind(a: &Candidate<'_>, b: &Candidate<'_>) -> bool {
    let same_ports =
        |x: &super::Route, y: &super::Route| x.ports().eq(y.ports()) && x.remote.is_some() == y.remote.is_some();
    a.load_bps == b.load_bps
        && same_ports(a.fact.route, b.fact.route)
        && a.exits.len() == b.exits.len()
        && a.exits.iter().zip(&b.exits).all(|(x, y)| same_ports(x.to, y.to))
}
