//! What is looked at while a fabric runs: queues, goodput, fairness and pauses at equal intervals. It changes nothing.

use super::qp::Qp;
use super::time::Ps;
use super::timeline::Timeline;
use super::world::{Observer, World};

/// Samples that are kept; when there are more, every second one is dropped and the interval doubles.
const MOST: usize = 4096;

/// What a QP must get on average before shares are compared.
const WINDOW_BYTES: f64 = 131_072.0;

/// One look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Ps,
    /// The longest queue of a switch, in bytes.
    pub worst_queue: u32,
    /// All queues of switches.
    pub queued: u64,
    /// Payload acknowledged since the look before, in Gb/s.
    pub goodput_gbps: f64,
    /// QPs that had something to send during the whole interval.
    pub active: u32,
    /// Jain's index of their goodput: 1 if all got the same, 1/n if one got all; `None` if there are fewer than two. It is taken over as many
    /// intervals as it takes for each to get 128 KiB on average: over less, packets and ACKs are counted, and not shares.
    pub jain: Option<f64>,
    /// Ports that are stopped by PFC.
    pub paused: u32,
}

/// Keeps samples, and tells of progress.
pub struct Recorder<'a> {
    /// What was seen.
    pub samples: Vec<Sample>,
    /// Of each QP when the present window of fairness began: generation, bytes, whether it was busy.
    before: Vec<(u32, u64, bool)>,
    before_bytes: u64,
    /// The newest index, and the sum and number of all.
    jain: Option<f64>,
    jain_sum: (f64, u32),
    before_at: Ps,
    skip: u32,
    skipped: u32,
    /// A page to scrub through, if it was asked for.
    pub timeline: Option<Timeline>,
    progress: &'a mut dyn FnMut(&World) -> bool,
}

impl<'a> Recorder<'a> {
    /// `progress` is called now and then; false ends the run.
    pub fn new(progress: &'a mut dyn FnMut(&World) -> bool) -> Self {
        Self {
            samples: Vec::new(),
            before: Vec::new(),
            before_bytes: 0,
            jain: None,
            jain_sum: (0.0, 0),
            before_at: Ps::ZERO,
            skip: 0,
            skipped: 0,
            timeline: None,
            progress,
        }
    }

    /// The mean of Jain's index over its windows; none if there never were two QPs for long enough.
    pub fn mean_jain(&self) -> Option<f64> {
        (self.jain_sum.1 > 0).then(|| self.jain_sum.0 / f64::from(self.jain_sum.1))
    }

    /// Counts what each QP got that was busy from the beginning of the window on; if that is enough, a new window begins.
    fn look_at_fairness(&mut self, qps: &[Qp]) {
        let stays = |qp: &Qp, generation: u32, was_busy: bool| {
            was_busy && qp.generation == generation && qp.open && !qp.posted.is_empty()
        };
        let got = || {
            qps.iter()
                .zip(&self.before)
                .filter(|(qp, (generation, _, was_busy))| stays(qp, *generation, *was_busy))
                .map(|(qp, (_, bytes, _))| (qp.acked_bytes - bytes) as f64)
        };
        let (count, index) = jain(got());
        if count >= 2 && got().sum::<f64>() < f64::from(count) * WINDOW_BYTES {
            return;
        }
        self.jain = (count >= 2).then_some(index);
        if count >= 2 {
            self.jain_sum = (self.jain_sum.0 + index, self.jain_sum.1 + 1);
        }
        self.before.clear();
        self.before.extend(qps.iter().map(|qp| (qp.generation, qp.acked_bytes, qp.open && !qp.posted.is_empty())));
    }
}

/// Jain's index.
pub fn jain(values: impl Iterator<Item = f64>) -> (u32, f64) {
    let (mut n, mut sum, mut squares) = (0_u32, 0.0, 0.0);
    for value in values {
        n += 1;
        sum += value;
        squares += value * value;
    }
    if n < 2 || squares == 0.0 { (n, 1.0) } else { (n, sum * sum / (f64::from(n) * squares)) }
}

impl Observer for Recorder<'_> {
    fn sample(&mut self, world: &World) {
        if let Some(timeline) = &mut self.timeline {
            timeline.sample(world);
        }
        if self.skipped < self.skip {
            self.skipped += 1;
            return;
        }
        self.skipped = 0;
        let hosts = world.topology().hosts;
        let (mut worst_queue, mut queued, mut paused) = (0, 0_u64, 0);
        for port in world.ports() {
            if port.node >= hosts {
                worst_queue = worst_queue.max(port.queued_bytes);
                queued += u64::from(port.queued_bytes);
            }
            paused += u32::from(port.stopped() != 0);
        }
        let qps = world.qps();
        let total: u64 = world.acknowledged_bytes();
        let span = world.now().since(self.before_at).as_secs();
        let sum = total - self.before_bytes;
        self.before_bytes = total;
        let active = qps.iter().filter(|qp| qp.open && !qp.posted.is_empty()).count() as u32;
        self.look_at_fairness(qps);
        self.before_at = world.now();
        let goodput_gbps = if span > 0.0 { sum as f64 * 8.0 / span / 1e9 } else { 0.0 };
        let jain = self.jain;
        self.samples.push(Sample { at: world.now(), worst_queue, queued, goodput_gbps, active, jain, paused });
        if self.samples.len() >= MOST {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.skip = self.skip * 2 + 1;
        }
    }

    fn progress(&mut self, world: &World) -> bool {
        (self.progress)(world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_between_one_nth_and_one() {
        assert_eq!(jain([3.0, 3.0, 3.0].into_iter()), (3, 1.0));
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), (4, 0.25));
        assert_eq!(jain([5.0].into_iter()), (1, 1.0));
        let (_, index) = jain([2.0, 1.0].into_iter());
        assert!((index - 0.9).abs() < 1e-12);
    }
}
