//! Bandwidth and message rate: as many messages under way as the depth allows, on all queue pairs in turn. A closed loop: a slow peer
//! slows the sender, so nothing here says how long a message takes.

use crate::demo::step::Transport;
use crate::failure::{During, Failure};
use crate::perf::connection::{BATCH, Connection};
use crate::perf::exchange::{Length, Message, Sent, Step, Verb, unexpected};
use crate::perf::processor::Share;
use crate::perf::watch::Watch;
use quanta::Instant;
use scalefabric_verbs::{SendFlags, SendWr, Sge, WorkCompletion};
use std::collections::VecDeque;
use std::time::Duration;

/// Length of the windows of which the best is the peak. Shorter ones would tell of bursts that no application sees.
const WINDOW: Duration = Duration::from_millis(5);

/// Messages posted before completions are looked at again.
const BURST: u64 = 128;

/// On an unreliable transport, nothing more comes when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(20);

/// What is shown during a long measurement: time passed, messages done.
pub type Show<'a> = &'a mut dyn FnMut(Duration, u64);

/// What one end did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streamed {
    /// What it sent.
    pub sent: Sent,
    /// What arrived meanwhile.
    pub arrived: u64,
}

/// A queue pair during a measurement.
#[derive(Clone, Default)]
struct Fill {
    posted: u64,
    outstanding: u32,
    unsignalled: u32,
    is_ready: bool,
}

/// Sends as the step says, and takes what the other end sends meanwhile.
pub fn stream(
    connection: &Connection,
    step: &Step,
    watch: &mut Watch<'_>,
    show: Show<'_>,
) -> Result<Streamed, Failure> {
    let plan = &connection.plan;
    let lists: Vec<[Sge; 1]> = connection.lanes.iter().map(|lane| [connection.sge(lane, step.size)]).collect();
    let inline = vec![0x5a; if connection.goes_inline(step.size) { step.size as usize } else { 0 }];
    let mut fills = vec![Fill { is_ready: true, ..Fill::default() }; connection.lanes.len()];
    let mut ready: VecDeque<usize> = (0..connection.lanes.len()).collect();
    let per_lane = match step.length {
        Length::Messages(count) => count,
        Length::Nanoseconds(_) => u64::MAX,
    };
    let receives = plan.verb == Verb::Send && plan.both_directions;
    let mut chain: Vec<SendWr<'_>> = Vec::with_capacity(plan.post_list as usize);
    let mut chain_lane = usize::MAX;
    let mut done = [WorkCompletion::default(); BATCH];
    let (mut posted, mut completed, mut arrived) = (0u64, 0u64, 0u64);
    let begin = Instant::now();
    let mut peak = Peak::new(begin);
    let mut shown = begin;
    let mut idle = 0;
    let mut tails_posted = false;
    loop {
        let now = Instant::now();
        let is_over = match step.length {
            Length::Messages(_) => ready.is_empty() && posted == completed,
            Length::Nanoseconds(ns) => now - begin >= Duration::from_nanos(ns),
        };
        let mut budget = BURST;
        while !is_over && budget > 0 {
            let Some(index) = ready.pop_front() else { break };
            let (lane, fill) = (&connection.lanes[index], &mut fills[index]);
            let count = u64::from(plan.post_list).min(per_lane - fill.posted) as u32;
            if chain_lane != index || chain.len() != plan.post_list as usize {
                let mut request = SendWr::new(0, connection.operation(lane, step.size));
                request.ud = connection.datagram_address(lane);
                if inline.is_empty() {
                    request.sg_list = &lists[index];
                } else {
                    request.flags = SendFlags::INLINE;
                    request.inline_data = &inline;
                }
                chain.clear();
                chain.resize(plan.post_list as usize, request);
                chain_lane = index;
            }
            let is_last = fill.posted + u64::from(count) == per_lane;
            post(connection, index, fill, &mut chain[..count as usize], is_last)?;
            posted += u64::from(count);
            budget = budget.saturating_sub(count.into());
            fill.is_ready = !is_last && fill.outstanding + plan.post_list <= plan.tx_depth;
            if fill.is_ready {
                ready.push_back(index);
            }
        }
        if is_over && posted == completed {
            return Ok(Streamed { sent: peak.finish(begin, now, completed), arrived });
        }
        if is_over && !tails_posted {
            // Messages that made no completion are complete when one behind them is.
            tails_posted = true;
            for (index, fill) in fills.iter_mut().enumerate().filter(|(_, fill)| fill.unsignalled > 0) {
                if fill.outstanding >= plan.tx_depth {
                    tails_posted = false;
                    continue;
                }
                let lane = &connection.lanes[index];
                let mut request = SendWr::new(0, connection.operation(lane, step.size));
                request.ud = connection.datagram_address(lane);
                if inline.is_empty() {
                    request.sg_list = &lists[index];
                } else {
                    request.flags = SendFlags::INLINE;
                    request.inline_data = &inline;
                }
                post(connection, index, fill, &mut [request], true)?;
                posted += 1;
            }
        }
        let mut found = connection.take_sends(&mut done)?;
        for completion in &done[..found] {
            let (index, covered) = ((completion.wr_id >> 32) as usize, completion.wr_id as u32);
            let Some(fill) = fills.get_mut(index) else { continue };
            fill.outstanding = fill.outstanding.saturating_sub(covered);
            completed += u64::from(covered);
            if !fill.is_ready && fill.posted < per_lane && fill.outstanding + plan.post_list <= plan.tx_depth {
                fill.is_ready = true;
                ready.push_back(index);
            }
        }
        if found > 0 {
            peak.add(now, completed);
        }
        if receives {
            let count = connection.take_receives(&mut done)?;
            arrived += count as u64;
            found += count;
        }
        if found > 0 {
            idle = 0;
            watch.is_alive(now);
        } else {
            watch.wait(now, "sending")?;
            connection.pause(&mut idle)?;
        }
        if now - shown > Duration::from_millis(250) {
            shown = now;
            show(now - begin, completed);
        }
    }
}

/// Posts a chain on a lane, with a completion if enough have gone without.
fn post(
    connection: &Connection,
    index: usize,
    fill: &mut Fill,
    chain: &mut [SendWr<'_>],
    must_signal: bool,
) -> Result<(), Failure> {
    let count = chain.len() as u32;
    fill.posted += u64::from(count);
    fill.outstanding += count;
    fill.unsignalled += count;
    let signals = must_signal || fill.unsignalled >= connection.plan.signal_every;
    if let Some(last) = chain.last_mut() {
        last.flags.set(SendFlags::SIGNALED, signals);
        last.wr_id = (index as u64) << 32 | u64::from(fill.unsignalled);
    }
    if signals {
        fill.unsignalled = 0;
    }
    connection.lanes[index].queue_pair.post_send(chain).during(|| "post a list of messages")?;
    if let Some(last) = chain.last_mut() {
        last.flags.remove(SendFlags::SIGNALED);
    }
    Ok(())
}

/// Drives the queue pairs until the other end has said that it is finished; gives what it said, and what arrived.
pub fn drive(connection: &Connection, watch: &mut Watch<'_>) -> Result<(Message, u64), Failure> {
    drive_within(connection, watch, None)
}

/// As [`drive`], and gives up at `deadline`.
pub fn drive_within(
    connection: &Connection,
    watch: &mut Watch<'_>,
    deadline: Option<Instant>,
) -> Result<(Message, u64), Failure> {
    let mut done = [WorkCompletion::default(); BATCH];
    let (mut arrived, mut idle) = (0, 0);
    // Each look at a completion queue is a look at the network: where nothing can be in it, it only makes the other look later.
    let makes_receives = connection.plan.verb == Verb::Send;
    let mut share = Share::new();
    loop {
        let mut found = connection.take_sends(&mut done)?;
        if makes_receives {
            let count = connection.take_receives(&mut done)?;
            arrived += count as u64;
            found += count;
        }
        if found > 0 {
            idle = 0;
            continue;
        }
        if connection.is_to_look(idle) {
            let now = Instant::now();
            if let Some(message) = watch.look(now)? {
                return Ok((message, arrived));
            }
            if deadline.is_some_and(|deadline| now > deadline) {
                return Err(Failure::failed("the other end has not told its result: is it stopped?"));
            }
            share.look(now);
        }
        connection.pause_as_target(&mut idle, &share)?;
    }
}

/// After the other end has finished: takes what is still to come of `expected` messages.
pub fn take_rest(connection: &Connection, arrived: u64, expected: u64) -> Result<u64, Failure> {
    let is_reliable = connection.plan.transport == Transport::Rc;
    let patience = if is_reliable { Duration::from_secs(10) } else { QUIET };
    let mut done = [WorkCompletion::default(); BATCH];
    let mut arrived = arrived;
    let mut heard = Instant::now();
    while arrived < expected && heard.elapsed() < patience {
        let count = connection.take_receives(&mut done)?;
        if count > 0 {
            arrived += count as u64;
            heard = Instant::now();
        }
    }
    if is_reliable && arrived < expected {
        return Err(Failure::failed(format!(
            "{arrived} of {expected} messages made a completion: the others are missing"
        )));
    }
    Ok(arrived)
}

/// The message that says that the other end has sent everything.
pub fn done_of(message: Message) -> Result<u64, Failure> {
    match message {
        Message::Done { messages } => Ok(messages),
        other => Err(unexpected("done", &other)),
    }
}

/// The best window.
struct Peak {
    since: Instant,
    completed: u64,
    best: f64,
}

impl Peak {
    fn new(begin: Instant) -> Self {
        Self { since: begin, completed: 0, best: 0.0 }
    }

    fn add(&mut self, now: Instant, completed: u64) {
        let time = now - self.since;
        if time >= WINDOW {
            self.best = self.best.max((completed - self.completed) as f64 / time.as_secs_f64());
            self.since = now;
            self.completed = completed;
        }
    }

    /// A measurement shorter than a window has no better part.
    fn finish(&self, begin: Instant, end: Instant, completed: u64) -> Sent {
        let elapsed = end - begin;
        let average = crate::units::rate(completed, elapsed);
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        Sent { messages: completed, elapsed_ns, peak: self.best.max(average) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_best_window_and_never_below_the_average() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut peak = Peak::new(begin);
        peak.add(at(1), 900);
        peak.add(at(10), 1000);
        peak.add(at(20), 3000);
        peak.add(at(40), 4000);
        let sent = peak.finish(begin, at(40), 4000);
        assert!((sent.peak - 200_000.0).abs() < 1.0, "{sent:?}");
        assert_eq!((sent.messages, sent.elapsed_ns), (4000, 40_000_000));
        let short = Peak::new(begin).finish(begin, at(2), 500);
        assert!((short.peak - 250_000.0).abs() < 1.0, "{short:?}");
    }
}
