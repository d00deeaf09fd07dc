//! What is looked at while a fabric runs: queues, goodput, fairness and pauses at equal intervals. It changes nothing.

use super::time::Ps;
use super::timeline::Timeline;
use super::world::{Observer, World};

/// Samples that are kept; when there are more, every second one is dropped and the interval doubles.
const MOST: usize = 4096;

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
    /// Jain's index of their goodput: 1 if all got the same, 1/n if one got all. 1 if there are fewer than two.
    pub jain: f64,
    /// Ports that are stopped by PFC.
    pub paused: u32,
}

/// Keeps samples, and tells of progress.
pub struct Recorder<'a> {
    /// What was seen.
    pub samples: Vec<Sample>,
    before: Vec<(u32, u64, bool)>,
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
            before_at: Ps::ZERO,
            skip: 0,
            skipped: 0,
            timeline: None,
            progress,
        }
    }

    /// The mean of Jain's index over the looks that had at least two QPs.
    pub fn mean_jain(&self) -> Option<f64> {
        let looks: Vec<f64> =
            self.samples.iter().filter(|sample| sample.active >= 2).map(|sample| sample.jain).collect();
        (!looks.is_empty()).then(|| looks.iter().sum::<f64>() / looks.len() as f64)
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
        self.before.resize(qps.len(), (u32::MAX, 0, false));
        let span = world.now().since(self.before_at).as_secs();
        let mut sum = 0_u64;
        let (active, jain) = jain(qps.iter().zip(&self.before).filter_map(|(qp, (generation, bytes, was_busy))| {
            let delta = if qp.generation == *generation { qp.acked_bytes - bytes } else { qp.acked_bytes };
            sum += delta;
            let busy = *was_busy && qp.generation == *generation && qp.open && !qp.posted.is_empty();
            busy.then_some(delta as f64)
        }));
        for (qp, before) in qps.iter().zip(&mut self.before) {
            *before = (qp.generation, qp.acked_bytes, qp.open && !qp.posted.is_empty());
        }
        self.before_at = world.now();
        let goodput_gbps = if span > 0.0 { sum as f64 * 8.0 / span / 1e9 } else { 0.0 };
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
