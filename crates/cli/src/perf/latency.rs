//! Latency: one message there and one back. WRITEs are seen by polling the last byte in memory, as `ib_write_lat` does; SENDs by their
//! receive completions; READs and atomics come back by themselves. In a closed loop the next message leaves when the answer to the last
//! one is there. In an open loop messages leave by a schedule, and what one takes counts from when it should have left.

use crate::demo::step::Transport;
use crate::failure::{During, Failure};
use crate::perf::bandwidth::Show;
use crate::perf::connection::{BATCH, Connection};
use crate::perf::exchange::{Length, Message, Step, Verb};
use crate::perf::histogram::{Schedule, Times};
use crate::perf::watch::Watch;
use quanta::Instant;
use scalefabric_verbs::{SendFlags, SendWr, WorkCompletion};
use std::collections::VecDeque;
use std::time::Duration;

/// On an unreliable transport, an answer that takes longer than this is lost.
const LOST: Duration = Duration::from_millis(100);

/// How often it is told how far a measurement is.
const SHOW: Duration = Duration::from_millis(250);

/// Completions of sends that may wait to be taken.
const UNTAKEN: usize = 8;

/// What was measured.
#[derive(Default)]
pub struct Timed {
    /// There and back, each.
    pub times: Times,
    /// From the first to the last.
    pub elapsed: Duration,
    /// Messages without an answer (UC, UD).
    pub lost: u64,
}

/// When messages leave.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// When the last answer is there.
    Closed,
    /// By a schedule.
    Open(Schedule),
}

impl Pace {
    /// How long operation `index` of a measurement that began at `begin` took, which was over at `now` and left at `from`.
    fn took(self, index: u64, now: Instant, from: Instant, begin: Instant) -> Duration {
        match self {
            Self::Closed => now.saturating_duration_since(from),
            Self::Open(schedule) => schedule.latency(index, now.saturating_duration_since(begin)),
        }
    }
}

/// Whether a measurement goes on after so many messages and so long.
fn goes_on(length: Length, count: u64, passed: Duration) -> bool {
    match length {
        Length::Messages(most) => count < most,
        Length::Nanoseconds(ns) => passed < Duration::from_nanos(ns),
    }
}

/// The byte that message `index` ends with: never 0, which means that nothing came, and never that of its neighbours.
const fn mark(index: u64) -> u8 {
    (index % 255) as u8 + 1
}

/// Measures as the step says.
pub fn measure(
    connection: &Connection,
    step: &Step,
    pace: Pace,
    watch: &mut Watch<'_>,
    show: Show<'_>,
) -> Result<Timed, Failure> {
    match connection.plan.verb {
        Verb::Write | Verb::Send => ping(connection, step, pace, watch, show),
        Verb::Read | Verb::FetchAdd | Verb::CompareSwap => ask(connection, step, pace, watch, show),
    }
}

/// WRITEs and SENDs: the other end answers each with one of its own.
fn ping(
    connection: &Connection,
    step: &Step,
    pace: Pace,
    watch: &mut Watch<'_>,
    show: Show<'_>,
) -> Result<Timed, Failure> {
    let lane = &connection.lanes[0];
    let is_lossy = connection.plan.transport != Transport::Rc;
    let (mut scratch, mut out) = (Vec::new(), Vec::new());
    let mut done = [WorkCompletion::default(); BATCH];
    let mut timed = Timed::default();
    let begin = Instant::now();
    let (mut from, mut shown) = (begin, begin);
    let (mut index, mut untaken) = (0, 0usize);
    // In a closed loop a message counts from when it was posted until the next one is, which is at once when its answer is there: so the clock is
    // read, and what it says counted, while a message is on its way, and nobody waits for either.
    let mut answered_at_post = false;
    while goes_on(step.length, index, from - begin) {
        if let Pace::Open(schedule) = pace {
            let start = begin + schedule.start(index);
            while Instant::now() < start {
                untaken = untaken.saturating_sub(connection.take_sends(&mut done)?);
            }
            from = start;
        }
        connection.post_marked(lane, step.size, mark(index), &mut scratch)?;
        untaken += 1;
        let posted = Instant::now();
        if std::mem::take(&mut answered_at_post) {
            timed.times.record(posted.saturating_duration_since(from));
            watch.is_alive(posted);
        }
        if matches!(pace, Pace::Closed) {
            from = posted;
        }
        let mut idle = 0;
        while connection.plan.waits_for_completion && untaken > 0 {
            untaken = untaken.saturating_sub(connection.take_sends(&mut done)?);
            if connection.is_to_look(idle) {
                watch.wait(Instant::now(), "the completion of a message")?;
            }
            connection.pause(&mut idle)?;
        }
        let answered = loop {
            let is_there = match connection.plan.verb {
                Verb::Write => {
                    let is_it = |byte| byte == mark(index);
                    is_it(connection.last_byte_soon(lane, untaken, is_it)?)
                }
                _ => connection.take_receives(&mut done)? > 0,
            };
            // Answers overtake completions; these must not fill their queue.
            if is_there && untaken < UNTAKEN {
                break true;
            }
            // Those of an earlier measurement may come late.
            untaken = untaken.saturating_sub(connection.take_sends(&mut done)?);
            if is_there {
                break true;
            }
            if connection.is_to_look(idle) {
                let now = Instant::now();
                watch.wait(now, "an answer to a message")?;
                if is_lossy && now.saturating_duration_since(from) > LOST {
                    break false;
                }
            }
            connection.pause(&mut idle)?;
        };
        connection.read_data(lane, step.size, &mut out)?;
        index += 1;
        let is_to_show = posted - shown > SHOW;
        answered_at_post =
            answered && matches!(pace, Pace::Closed) && !is_to_show && goes_on(step.length, index, posted - begin);
        if answered_at_post {
            continue;
        }
        let now = Instant::now();
        if answered {
            timed.times.record(pace.took(index - 1, now, from, begin));
            watch.is_alive(now);
        } else {
            timed.lost += 1;
        }
        from = now;
        if is_to_show {
            show(now - begin, index);
            shown = Instant::now();
        }
    }
    timed.elapsed = begin.elapsed();
    drain(connection, &mut done)?;
    Ok(timed)
}

/// READs and atomics: their completions say that the answer is there.
fn ask(
    connection: &Connection,
    step: &Step,
    pace: Pace,
    watch: &mut Watch<'_>,
    show: Show<'_>,
) -> Result<Timed, Failure> {
    let lane = &connection.lanes[0];
    let list = [connection.sge(lane, step.size)];
    let mut request = SendWr::new(0, connection.operation(lane, step.size));
    request.flags = SendFlags::SIGNALED;
    request.sg_list = &list;
    let depth = match pace {
        Pace::Closed => 1,
        Pace::Open(_) => connection.plan.tx_depth as usize,
    };
    let mut done = [WorkCompletion::default(); BATCH];
    let mut under_way: VecDeque<(u64, Instant)> = VecDeque::with_capacity(depth);
    let mut timed = Timed::default();
    let begin = Instant::now();
    let (mut now, mut shown) = (begin, begin);
    let (mut index, mut idle) = (0, 0);
    while goes_on(step.length, index, now - begin) || !under_way.is_empty() {
        if under_way.len() < depth && goes_on(step.length, index, now - begin) {
            let start = match pace {
                Pace::Closed => now,
                Pace::Open(schedule) => begin + schedule.start(index),
            };
            if start <= now {
                lane.queue_pair.post_send(&[request]).during(|| "post a request")?;
                under_way.push_back((index, now));
                index += 1;
            }
        }
        let count = connection.take_sends(&mut done)?;
        // In a closed loop the clock is read when the answer is there, and then the next request leaves.
        if count > 0 || matches!(pace, Pace::Open(_)) || connection.is_to_look(idle) || under_way.is_empty() {
            now = Instant::now();
        }
        for (index, from) in under_way.drain(..count.min(under_way.len())) {
            timed.times.record(pace.took(index, now, from, begin));
        }
        if count > 0 {
            idle = 0;
            watch.is_alive(now);
        } else if under_way.is_empty() {
            watch.is_alive(now);
        } else {
            if connection.is_to_look(idle) {
                watch.wait(now, "an answer to a request")?;
            }
            connection.pause(&mut idle)?;
        }
        if now - shown > SHOW && under_way.is_empty() {
            show(now - begin, index);
            now = Instant::now();
            shown = now;
        }
    }
    timed.elapsed = begin.elapsed();
    Ok(timed)
}

/// The other end: answers until told that the measurement is over.
pub fn answer(connection: &Connection, step: &Step, watch: &mut Watch<'_>) -> Result<(Message, u64), Failure> {
    if connection.plan.verb.is_round_trip() {
        return crate::perf::bandwidth::drive(connection, watch);
    }
    let lane = &connection.lanes[0];
    let (mut scratch, mut out) = (Vec::new(), Vec::new());
    let mut done = [WorkCompletion::default(); BATCH];
    let (mut last, mut idle, mut untaken, mut arrived) = (0, 0, 0usize, 0u64);
    loop {
        let mut answers = 0;
        match connection.plan.verb {
            _ if connection.plan.waits_for_completion && untaken > 0 => {}
            Verb::Write => {
                let byte = connection.last_byte_soon(lane, untaken, |byte| byte != last)?;
                if byte != last {
                    last = byte;
                    answers = 1;
                }
            }
            _ => {
                answers = connection.take_receives(&mut done)?;
                last = last.wrapping_add(1);
            }
        }
        for _ in 0..answers {
            connection.read_data(lane, step.size, &mut out)?;
            connection.post_marked(lane, step.size, last, &mut scratch)?;
        }
        arrived += answers as u64;
        untaken += answers;
        if answers > 0 && untaken < UNTAKEN && !connection.plan.waits_for_completion {
            idle = 0;
            continue;
        }
        let taken = connection.take_sends(&mut done)?;
        untaken = untaken.saturating_sub(taken);
        if answers + taken > 0 {
            idle = 0;
            continue;
        }
        if connection.is_to_look(idle)
            && let Some(message) = watch.look(Instant::now())?
        {
            drain(connection, &mut done)?;
            return Ok((message, arrived));
        }
        connection.pause(&mut idle)?;
    }
}

/// Lets the last sends complete, so that the next measurement starts with an empty queue.
fn drain(connection: &Connection, done: &mut [WorkCompletion; BATCH]) -> Result<(), Failure> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(2) {
        connection.take_sends(done)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_end_with_different_bytes_and_none_with_zero() {
        for index in 0..1000 {
            assert_ne!(mark(index), 0);
            assert_ne!(mark(index), mark(index + 1));
        }
    }

    #[test]
    fn a_measurement_ends_by_count_or_by_time() {
        let second = Duration::from_secs(1);
        assert!(goes_on(Length::Messages(3), 2, second * 100));
        assert!(!goes_on(Length::Messages(3), 3, Duration::ZERO));
        assert!(goes_on(Length::Nanoseconds(1_000_000_001), u64::MAX, second));
        assert!(!goes_on(Length::Nanoseconds(1_000_000_000), 0, second));
    }
}
